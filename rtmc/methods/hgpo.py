"""`hgpo`: hierarchy-of-groups policy optimisation, steps compared at several depths of history.

Level k = 1 .. history + 1 groups the steps of a task that agree in their last k states (the present one and the
k - 1 before it). With G the discounted return from the step on, and n_k the steps that share the group of level k,

    A_k = (G - mean) / (std + 1e-6) over the group, population standard deviation
    A   = sum_k w_k A_k / sum_k w_k,     w_k = (k + 1)^alpha

over the levels that compare the step with another one: n_k > 1. A step with fewer than k states up to now has no
level k; nothing is padded. With `base`, level 0 is the episode term of GiGPO (gigpo.py), present where the task has
two known rollouts.

Departures from the authors' code, which parity="verl_agent" undoes: there a level whose A_k is exactly 0 is dropped
from the weights, so that a step of average return gets another mixture than its neighbours; 1e-6 is added to the sum
of weights; level 0 takes its statistics over step rows, and a task of one row has its raw total there.

Source: verl-agent, recipe/hgpo.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.kernels.ids import dense_ids
from rtmc.kernels.segments import segment_stats
from rtmc.methods.gigpo import EPS, episode_advantage, step_returns
from rtmc.methods.options import choice, flag, number, whole
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups, z_score
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate


class _Mixture:
    """Weighted mean of levels, (S,)."""

    def __init__(self, like: Tensor) -> None:
        self.sum, self.weight = torch.zeros_like(like), torch.zeros_like(like)

    def add(self, weight: float, value: Tensor, counts: Tensor) -> None:
        self.sum = self.sum + torch.where(counts, weight * value, 0.0)
        self.weight = self.weight + weight * counts.to(value.dtype)


@register_estimator(
    "hgpo",
    needs=("state", "reward"),
    options={
        "gamma": number(0.95, 0.0, 1.0),
        "history": whole(2, 0, 2**31),
        "alpha": number(1.0, 0.0, 32.0),
        "std": flag(True),
        "base": flag(True),
        "parity": choice(None, ("verl_agent",)),
    },
    source="HGPO; verl-agent, recipe/hgpo",
)
def hgpo(
    table: StepTable, gamma: float, history: int, alpha: float, std: bool, base: bool, parity: str | None
) -> Estimate:
    """A = weighted mean of A_k over levels, see the head of this file.

    gamma     discount of G, in [0, 1]
    history   states before the present one that may be looked at; levels run from 1 to history + 1
    alpha     exponent of the weights, in [0, 32]; 0 = all levels alike
    std       False: A_k is not divided by the standard deviation
    base      True: level 0, the episode advantage, takes part
    parity    the authors' numbers, see the head of this file

    A score `returns`, where the table has one, takes the place of G: finite on every step of a known rollout.
    A step that no level compares with another has advantage 0; so have a group of one level whose returns are all
    equal and (without `base`) a state visited once. Parts `episode` and `step` are the shares of level 0 and of the
    others: their sum is the advantage. Returns advantage, returns (G), visits (n_1).

    Raises EstimatorError for a score `returns` that is not finite.
    """
    returns = finite_score(table, "hgpo", "returns") if "returns" in table.scores else step_returns(table, gamma)
    known = table.known[table.rollout]
    below, episode = _Mixture(returns), _Mixture(returns)
    if base:
        value = episode_advantage(table, std, cross_steps=parity is not None, raw_single=parity is not None)
        rollouts = segment_stats(torch.zeros_like(table.outcome), known_groups(table), table.n_groups).count
        several = known & (rollouts[table.group[table.rollout]] > 1)
        episode.add(1.0, value, value != 0 if parity else several)

    visits = torch.zeros_like(table.state)
    ids, count = dense_ids(table.state)
    deepest = int(table.index.max()) if len(table) else -1
    for level in range(1, min(history, deepest) + 2):
        # The last k states are the present one and the last k - 1 of the row before. Rows that have no row before
        # them in their rollout pair with a stranger's; they have no such level and are left out.
        if level > 1:
            ids, count = dense_ids(ids.roll(1), table.state)
        there = known & (table.index >= level - 1)
        centred = centre(returns, torch.where(there, ids, -1), int(count), ddof=0)
        value = z_score(centred, EPS) if std else centred.difference
        below.add((level + 1.0) ** alpha, value, value != 0 if parity else centred.members > 1)
        if level == 1:
            visits = centred.members.long()

    weight = episode.weight + below.weight
    weight = weight + EPS if parity else torch.where(weight == 0, 1.0, weight)
    parts = {"episode": episode.sum / weight, "step": below.sum / weight}
    return Estimate(parts["episode"] + parts["step"], returns=returns, visits=visits, parts=parts)
