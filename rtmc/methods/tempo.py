"""`tempo`: token credit from the prefix tree of the group's responses (TEMPO, arXiv 2509.18314).

One row a token: `action` is the token, `tokens` = 0 marks a masked one. At token j of response i let P be the
responses of the group that share all tokens before j, and B those of P that share token j too. With m and s the mean
and sample standard deviation of the group's outcomes,

    A_ij = (R_i - m + mean_B R - mean_P R) / (s + 1e-6)        std=False: without the division

Where P is response i alone, B is too, and A is GRPO's from there on.

As in the authors' code the walk along a response stops at its first masked token: later tokens of the policy get
(R_i - m) / (s + 1e-6). With tool output in the middle of a response the tree thus only tells the first turn apart.
Masks do not enter the comparison of prefixes: masked tokens are compared like others, and get 0.

Departure: a group with one known outcome, where the authors' code gives NaN, gives 0, as does one whose known outcomes
are all equal. Rollouts with an unknown outcome are in no set.

What this is not: a method for steps. Where a row is a whole turn it compares turns by their action alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.kernels.prefix import prefix_groups
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import flag
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups
from rtmc.table import StepTable
from rtmc.types import Estimate

_EPS = 1e-6


@register_estimator(
    "tempo",
    needs=("action",),
    options={"std": flag(True)},
    source="TEMPO, arXiv 2509.18314",
)
def tempo(table: StepTable, std: bool) -> Estimate:
    """A = (R - mean + mean_B - mean_P) / (std + 1e-6), see the head of this file.

    std   False: not divided

    Returns advantage, parts `episode` (GRPO's term) and `prefix` (the tree's); their sum, 0 on masked rows, is the
    advantage.
    """
    rollout, offsets = table.rollout, table.offsets()
    group = known_groups(table)
    centred = centre(table.outcome, group, table.n_groups, ddof=1)
    scale = centred.std + _EPS if std else torch.ones_like(centred.std)

    node = prefix_groups(table.action, offsets, table.group)
    nodes = int(node.max()) + 1 if len(node) else 0
    known = group[rollout] >= 0
    outcome = torch.where(known, table.outcome[rollout], 0.0)
    together = _means(outcome, torch.where(known, node, -1), nodes)[node]
    groups = _means(torch.where(group >= 0, table.outcome, 0.0), group, table.n_groups)
    # The set P of a token is the set B of the token before it; of a first token, the group.
    first = torch.arange(len(node), device=node.device) == offsets[rollout]
    before = torch.where(first, groups[table.group[rollout]], together.roll(1))

    masked = table.tokens == 0
    passed = torch.cumsum(masked, 0)
    begin = offsets[rollout]
    reached = passed == passed[begin] - masked[begin].long() if len(node) else masked
    prefix = torch.where(known & reached, (together - before) / scale[rollout], 0.0)
    episode = (centred.difference / scale)[rollout]
    parts = {"episode": episode, "prefix": prefix}
    return Estimate(torch.where(masked, 0.0, episode + prefix), parts=parts)


def _means(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """(count,) mean of each segment, exact where its values are all equal, 0 where it is empty."""
    stats = segment_stats(values, ids, count)
    return torch.where(stats.min == stats.max, stats.min, stats.mean).nan_to_num(nan=0.0)
