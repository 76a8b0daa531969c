"""`rtmc`: rollout-tree Monte Carlo (arXiv 2604.11037).

The rollouts of a task are pooled into one table of states and actions. Over the known rollouts of a group,
with G the discounted return from the first visit of (s, a) in a rollout on, the outcome included,

    N(s, a), W(s, a)   number of rollouts that visit (s, a), sum of their G
    N(s) = sum_a N(s, a)                     W(s) = sum_a W(s, a)
    Q(s, a) = W(s, a) / N(s, a)              V'(s) = (W(s) + n P) / (N(s) + n)
    A(s, a) = Q(s, a) - V'(s)

n is `prior_visits`, P the prior: a state seen once would have A = 0 without it.

What this is not: the paper's text and the authors' code do not settle everything. The smoothing of V alone
and the strength 2 follow a third-party port that agrees with a second reader of the paper; whether the
paper's runs normalised is not known, so `normalize` is off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.kernels.rollout_tree import rollout_tree_advantages
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import choice, flag, number
from rtmc.methods.registry import register_estimator
from rtmc.table import StepTable
from rtmc.types import Estimate

# A group's spread below this is rounding, not signal; dividing by it would blow noise up to size one.
_LEAST_STD = 1e-8


@register_estimator(
    "rtmc",
    needs=("state", "action", "reward"),
    options={
        "gamma": number(0.99, 0.0, 1.0),
        "prior_visits": number(2.0, 0.0),
        "prior": choice("success_rate", ("success_rate", "mean_return")),
        "first_visit": flag(True),
        "filter_uniform": flag(False),
        "normalize": flag(False),
    },
    source="RTMC, arXiv 2604.11037",
)
def rtmc(
    table: StepTable,
    gamma: float,
    prior_visits: float,
    prior: str,
    first_visit: bool,
    filter_uniform: bool,
    normalize: bool,
) -> Estimate:
    """A(s, a) = Q(s, a) - V'(s), see the head of this file.

    gamma            discount, in [0, 1]
    prior_visits     n, at least 0; 0 = no smoothing
    prior            P: "success_rate" = mean outcome of the group's known rollouts, undiscounted;
                     "mean_return" = mean of their returns from the first step
    first_visit      True: a pair counts once a rollout, with its first return; False: every visit counts
    filter_uniform   True: groups whose known outcomes are all equal (a single one too) get advantage 0. They
                     cannot tell good from bad, but gamma < 1 and step rewards would still give them credit,
                     mostly negative
    normalize        True: divide by the group's population standard deviation over all steps of known
                     rollouts, without centring (no sign changes), where it is above 1e-8; after
                     `filter_uniform`

    Returns advantage, returns, q, v (= V'), visits (N(s)), action_visits (N(s, a)). The advantage is q - v, before
    `filter_uniform` and `normalize`: q, v and visits are the statistics as pooled, whatever these do to it.
    """
    tree = rollout_tree_advantages(
        table.reward,
        table.outcome,
        table.offsets(),
        table.group,
        table.state,
        table.action,
        gamma,
        prior_visits,
        prior,
        first_visit=first_visit,
    )
    advantage = tree.advantage
    known_group = torch.where(table.known, table.group, -1)
    if filter_uniform:
        outcomes = segment_stats(table.outcome.nan_to_num(), known_group, table.n_groups)
        uniform = (outcomes.min == outcomes.max)[table.group[table.rollout]]
        advantage = torch.where(uniform, 0.0, advantage)
    if normalize:
        advantage = _divided_by_std(advantage, known_group[table.rollout], table.n_groups)
    return Estimate(advantage, tree.returns, tree.q, tree.v, tree.visits, tree.action_visits)


def _divided_by_std(advantage: Tensor, ids: Tensor, groups: int) -> Tensor:
    std = segment_stats(advantage, ids, groups).var.sqrt()
    std = torch.where(std > _LEAST_STD, std, 1.0)  # NaN of a group without known steps is not above it either
    return torch.where(ids < 0, 0.0, advantage / std[ids.clamp(min=0)])
