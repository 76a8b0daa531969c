"""`igrpo`: GRPO over the turns of a tree grown by information gain (e3trange/IGRPO).

A rollout is a leaf; with R its reward, d the turns from a node down to it, gamma^d R is what the leaf says of the node
(gamma 1: the leaf's reward itself). Credit is GRPO over ROWS, not over rollouts:

    reward_mode "full"         every leaf's path is written out, a shared turn once for each leaf; z-score over all rows
                               of the task; a shared turn gets the mean of its rows
    reward_mode "avg", "max"   a turn is one row, with the mean or the largest of its leaves; z-score over the turns

z(x) = (x - mean) / (std + 1e-6), sample standard deviation. Chains are a tree without shared turns, where the three
agree.

`answer_score` p, the probability of the reference answer after the turn, steers how the tree is grown, which happens
before; here it is the reward of a leaf that was cut before a verdict, with `premature`. Such a leaf is a rollout whose
outcome is NaN and whose ending is truncated.

Departure: one row, or equal rows, give 0. parity="verl_agent" gives a single row its raw reward / (1 + 1e-6).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.segments import segment_stats
from rtmc.methods.igpo import EPS
from rtmc.methods.options import choice, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, z_score
from rtmc.table import StepTable
from rtmc.types import Ending, Estimate

_PREMATURE = {
    "score": lambda score: score,
    "half": lambda score: 0.5 * score,
    "threshold": lambda score: (score >= 0.5).to(score.dtype),
}


@register_estimator(
    "igrpo",
    needs=("answer_score",),
    options={
        "gamma": number(1.0, 0.0, 1.0),
        "norm": choice("separate", ("separate", "joint", "original")),
        "reward_mode": choice("full", ("full", "avg", "max")),
        "premature": choice(None, tuple(_PREMATURE)),
        "parity": choice(None, ("verl_agent",)),
    },
    source="IGRPO, e3trange/IGRPO",
    rows="table",
)
def igrpo(
    table: StepTable, gamma: float, norm: str, reward_mode: str, premature: str | None, parity: str | None
) -> Estimate:
    """A = z of a row's reward over the rows of the task, its leaf's or its leaves', see the head of this file.

    gamma         discount from a turn to its leaf, in [0, 1]; the authors use 1
    norm          as `igpo`'s, which normalises each kind of reward by itself ("separate") or all together ("joint").
                  Rows here carry one kind, so the two are the same. "original": centred only, over the rows of equal
                  index
    reward_mode   "full" (the authors' script), "avg", "max"
    premature     reward of a leaf cut before a verdict, from its p: "score" = p, "half" = p / 2 (the authors' first
                  150 training steps), "threshold" = 1 where p >= 0.5, else 0. None: such a leaf is absent, as any
                  rollout with an unknown outcome
    parity        the authors' number for a single row

    Returns advantage, returns (the row's reward, in "full" the mean over its leaves).

    Raises EstimatorError where `premature` meets a leaf whose `answer_score` is not finite.
    """
    paths, row = table.time_order()
    outcome = _leaf_rewards(paths, premature)
    known = ~torch.isnan(outcome)
    reward = discounted_returns(
        torch.zeros_like(paths.reward), paths.offsets(), gamma, final=torch.where(known, outcome, 0.0)
    )
    group = torch.where(known, paths.group, -1)[paths.rollout]
    rows = torch.where(group < 0, -1, row)
    leaves = segment_stats(reward, rows, len(table))
    seen = leaves.count > 0
    if reward_mode == "full":
        found = _normalised(reward, group, paths.index, table.n_groups, norm, parity)
        advantage, value = segment_stats(found, rows, len(table)).mean, leaves.mean
    else:
        value = torch.where(seen, leaves.mean if reward_mode == "avg" else leaves.max, 0.0)
        group = torch.where(seen, table.group[table.rollout], -1)
        advantage = _normalised(value, group, table.index, table.n_groups, norm, parity)
    return Estimate(torch.where(seen, advantage, 0.0), returns=torch.where(seen, value, 0.0))


def _leaf_rewards(paths: StepTable, premature: str | None) -> Tensor:
    """(R,) reward of each leaf, NaN = unknown."""
    if premature is None:
        return paths.outcome
    offsets = paths.offsets()
    cut = torch.isnan(paths.outcome) & (paths.ending == Ending.TRUNCATED) & (offsets.diff() > 0)
    score = torch.cat([paths.scores["answer_score"], paths.reward.new_zeros(1)])[offsets[1:] - 1]
    bad = cut & ~torch.isfinite(score)
    if bool(bad.any()):
        rollout = paths.name_of("rollout", int(bad.to(torch.int8).argmax()))
        raise EstimatorError(
            f"estimator `igrpo`: premature={premature!r} takes the `answer_score` of the last turn of a truncated "
            f"rollout without an outcome, and that of rollout {rollout!r} is not finite; give it, or leave `premature` "
            "out"
        )
    return torch.where(cut, _PREMATURE[premature](score), paths.outcome)


def _normalised(reward: Tensor, group: Tensor, index: Tensor, groups: int, norm: str, parity: str | None) -> Tensor:
    """Rows (N,) relative to their group's (-1 = absent), or to those of equal index too."""
    if norm == "original":
        cells, count = dense_ids(group, index)
        return centre(reward, torch.where(group < 0, -1, cells), int(count), ddof=1).difference
    centred = centre(reward, group, groups, ddof=1)
    if not parity:
        return z_score(centred, EPS)
    return torch.where(centred.members == 1, reward / (1 + EPS), z_score(centred, EPS))
