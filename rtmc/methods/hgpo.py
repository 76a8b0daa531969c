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
of weights; level 0 takes its statistics over step rows, and a task of one row has its raw total there. What is exactly
0 is a rounding of float32 there, in which returns and means are computed, in the order of rollouts and steps: parity
computes likewise, in any table, for returns within 1e-5 of the mean (relative to the group's largest). Of these alone
the number depends on the order of rollouts, as there.

Source: verl-agent, recipe/hgpo.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.segments import segment_stats
from rtmc.methods.gigpo import EPS, episode_advantage, rollout_totals, step_returns
from rtmc.methods.options import choice, flag, number, whole
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import Centred, centre, known_groups, z_score
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate

_NEAR = 1e-5  # far above what float32 rounds, far below what tells one return from another


def _level(centred: Centred, std: bool) -> Tensor:
    return z_score(centred, EPS) if std else centred.difference


def _authors_level(values: Tensor, ids: Tensor, count: int, std: bool, ddof: int) -> Tensor:
    """(S,) the level of `values`, with the authors' float32 where it may be 0 there."""
    centred = centre(values, ids, count, ddof)
    largest = segment_stats(values.abs(), ids, count).max[ids.clamp(min=0)]
    near = centred.difference.abs() <= _NEAR * largest
    return torch.where(near, _single_precision(values, ids, count, std, ddof), _level(centred, std))


def _single_precision(values: Tensor, ids: Tensor, count: int, std: bool, ddof: int) -> Tensor:
    """(S,) values relative to their segment, in float32 and in the order of rows; 0 where `ids` is -1.

    Raises EstimatorError for values that float32 does not hold.
    """
    rounded = values.float()
    if bool((torch.isinf(rounded) & (ids >= 0)).any()):
        raise EstimatorError(
            f"estimator `hgpo`: parity='verl_agent' computes in float32, and the returns reach "
            f"{values[ids >= 0].abs().max().item():.3g}; scale the rewards, or leave `parity` out"
        )
    result = torch.zeros_like(rounded)
    members = torch.bincount(ids[ids >= 0], minlength=count)
    order = torch.argsort(ids, stable=True)[int((ids < 0).sum()) :]
    size = members[ids[order]]
    for n in members.unique().tolist():
        if n == 0:
            continue
        rows = order[size == n].view(-1, n)
        inside = rounded[rows].contiguous()
        mean = inside.mean(1, keepdim=True)
        centred = inside - mean
        if std and n > ddof:
            # As torch's std of one tensor: about the mean as it was rounded, summed in double precision.
            square = ((inside.double() - mean.double()) ** 2).sum(1, keepdim=True)
            centred = centred / ((square / (n - ddof)).sqrt().float() + EPS)
        result[rows] = centred
    return result.to(values.dtype)


def _episode_over_steps(table: StepTable, std: bool) -> Tensor:
    """(S,) the authors' level 0: the total reward relative to those of all step rows of the task."""
    total, ids = rollout_totals(table)[table.rollout], known_groups(table)[table.rollout]
    rows = torch.bincount(ids[ids >= 0], minlength=table.n_groups)[ids.clamp(min=0)]
    alone = total.float().to(total.dtype) / (1 + EPS if std else 1)
    value = _authors_level(total, ids, table.n_groups, std, ddof=1)
    return torch.where((ids >= 0) & (rows == 1), alone, value)


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

    Raises EstimatorError for a score `returns` that is not finite, or with `parity` returns beyond float32.
    """
    returns = finite_score(table, "hgpo", "returns") if "returns" in table.scores else step_returns(table, gamma)
    known = table.known[table.rollout]
    below, episode = _Mixture(returns), _Mixture(returns)
    if base:
        if parity:
            value = _episode_over_steps(table, std)
            counts = value != 0
        else:
            value = episode_advantage(table, std, cross_steps=False, raw_single=False)
            rollouts = segment_stats(torch.zeros_like(table.outcome), known_groups(table), table.n_groups).count
            counts = known & (rollouts[table.group[table.rollout]] > 1)
        episode.add(1.0, value, counts)

    visits = torch.zeros_like(table.state)
    ids, count = dense_ids(table.state)
    deepest = int(table.index.max()) if len(table) else -1
    for level in range(1, min(history, deepest) + 2):
        # The last k states are the present one and the last k - 1 of the row before. Rows that have no row before
        # them in their rollout pair with a stranger's; they have no such level and are left out.
        if level > 1:
            ids, count = dense_ids(ids.roll(1), table.state)
        there = torch.where(known & (table.index >= level - 1), ids, -1)
        centred = centre(returns, there, int(count), ddof=0)
        value = _authors_level(returns, there, int(count), std, ddof=0) if parity else _level(centred, std)
        below.add((level + 1.0) ** alpha, value, value != 0 if parity else centred.members > 1)
        if level == 1:
            visits = centred.members.long()

    weight = episode.weight + below.weight
    weight = weight + EPS if parity else torch.where(weight == 0, 1.0, weight)
    parts = {"episode": episode.sum / weight, "step": below.sum / weight}
    return Estimate(parts["episode"] + parts["step"], returns=returns, visits=visits, parts=parts)
