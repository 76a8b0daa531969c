"""RTMC, Rollout-Tree Monte Carlo: the advantages of all steps of many groups, end to end.

A group pools the rollouts of one task. G_t is the discounted return of a step with the outcome added to the
last reward of its rollout (``returns.py``). Over the rollouts of the group whose outcome is known,

    N(s,a) = number of visits of the pair        W(s,a) = sum of G over those visits
    N(s)   = sum_a N(s,a)                        W(s)   = sum_a W(s,a)
    q = Q(s,a) = W(s,a) / N(s,a)
    v = V'(s)  = (W(s) + prior_visits * P) / (N(s) + prior_visits)
    advantage  = Q(s,a) - V'(s)

``first_visit``: a rollout visits a pair once, at its first step there (later steps read the same values);
else every step is a visit. P, the group's prior, is the mean outcome over its known rollouts
("success_rate") or the mean of G at their first step ("mean_return", where a rollout without steps counts
with its outcome). Rollouts without steps count in P alone.

Edge cases. An unknown (NaN) outcome: the rollout is absent from N, W and P; its steps get advantage 0 and
read q, v and visits of their cells as the others made them (q = v where no known rollout has the pair), and
their ``returns`` hold the step rewards alone. A group in which no outcome is known: P = 0, so q = v =
advantage = 0, visits 0. A pair visited once through the only visit of its state: advantage = prior_visits /
(1 + prior_visits) * (G - P).

A return that is NaN or infinite makes the cells that count it NaN or infinite and no others; where it enters P, it
makes V' of the whole group so.

Sums use the fixed grid of ``segments.py`` ("Exact sums"), set per group from max |G| over its finite returns and the
number of rows of its known rollouts: they are exact in any order, so moving rollouts or mixing groups changes no bit.
The three ways to the result (``tree_loop.py``: a numba loop, one group after the other; ``tree_group.py``: one launch,
a program a group; ``tree_table.py``: sorted cells, groups of any size) make returns in the same order too and give
the same bits.

Source: arXiv 2604.11037. The smoothing is read from ports of it, the paper's equation being unavailable.

Not here: normalisation, the filter of uniform groups, shaping of step rewards.
"""

import math
from typing import NamedTuple

import torch

from rtmc.kernels import returns as _returns
from rtmc.kernels import tree_group
from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    check_integers,
    check_offsets,
    check_range,
    check_tensor,
    choose,
    register_op,
)
from rtmc.kernels.segments import DOWN, LARGE, UP
from rtmc.kernels.tree_group import members_by_group
from rtmc.kernels.tree_loop import tree_numba
from rtmc.kernels.tree_table import fill_by_cell

__all__ = ["RolloutTree", "rollout_tree_advantages"]

_PRIORS = ("success_rate", "mean_return")


class RolloutTree(NamedTuple):
    """Each (S,), one entry a step; the counts int64, the others in the reward's dtype. Formulas: top of the file."""

    advantage: torch.Tensor
    q: torch.Tensor
    v: torch.Tensor
    returns: torch.Tensor
    visits: torch.Tensor
    action_visits: torch.Tensor


def _tree_reference(
    reward: torch.Tensor,
    outcome: torch.Tensor,
    offsets: torch.Tensor,
    rollout_group: torch.Tensor,
    state: torch.Tensor,
    action: torch.Tensor,
    gamma: float,
    prior_visits: float,
    prior: str,
    first_visit: bool,
) -> tuple[torch.Tensor, ...]:
    """The table as dictionaries. Sums are correctly rounded (``math.fsum``), so no order shows in them."""
    known = ~outcome.isnan()
    final = torch.where(known, outcome.double(), 0.0)
    returns = _returns._returns_reference(reward.double(), offsets, gamma, final)
    bounds = offsets.tolist()
    groups, states, actions = rollout_group.tolist(), state.tolist(), action.tolist()
    gains = returns.tolist()

    priors: dict[int, list[float]] = {}
    by_pair: dict[tuple[int, int, int], list[float]] = {}
    by_state: dict[tuple[int, int], list[float]] = {}
    for r, group in enumerate(groups):
        if not known[r]:
            continue
        begin, end = bounds[r], bounds[r + 1]
        start_value = gains[begin] if prior == "mean_return" and end > begin else float(final[r])
        priors.setdefault(group, []).append(start_value)
        seen = set()
        for t in range(begin, end):
            pair = (group, states[t], actions[t])
            if first_visit and pair in seen:
                continue
            seen.add(pair)
            by_pair.setdefault(pair, []).append(gains[t])
            by_state.setdefault(pair[:2], []).append(gains[t])

    columns = torch.zeros(3, len(gains), dtype=torch.float64)
    counts = torch.zeros(2, len(gains), dtype=torch.int64)
    for r, group in enumerate(groups):
        p = _sum(priors[group]) / len(priors[group]) if group in priors else 0.0
        for t in range(bounds[r], bounds[r + 1]):
            in_state = by_state.get((group, states[t]), [])
            in_pair = by_pair.get((group, states[t], actions[t]), [])
            weight = len(in_state) + prior_visits
            v = (_sum(in_state) + prior_visits * p) / weight if weight > 0 else 0.0
            q = _sum(in_pair) / len(in_pair) if in_pair else v
            columns[:, t] = torch.tensor([q - v if known[r] else 0.0, q, v], dtype=torch.float64)
            counts[:, t] = torch.tensor([len(in_state), len(in_pair)])
    device, dtype = reward.device, reward.dtype
    floats = (column.to(device, dtype, copy=True) for column in (*columns.unbind(0), returns))
    return *floats, *(column.to(device, copy=True) for column in counts.unbind(0))


def _sum(values: list[float]) -> float:
    odd = [x for x in values if not math.isfinite(x)]
    if odd:
        return sum(odd)
    if max(map(abs, values), default=0.0) >= LARGE:  # where partial sums may pass float64 and the sum does not
        return math.fsum(x * DOWN for x in values) * UP
    return math.fsum(values)


def _tree_triton(reward, outcome, offsets, rollout_group, state, action, gamma, prior_visits, prior, first_visit):
    rows, dtype = reward.shape[0], reward.dtype
    group, order, largest = members_by_group(offsets, rollout_group, rows)
    # torch's cast to half is the one that the other backends use too.
    wide = reward if dtype.itemsize >= 4 else reward.double()
    floats = torch.empty(4, rows, dtype=wide.dtype, device=reward.device)
    counts = torch.empty(2, rows, dtype=torch.int64, device=reward.device)
    options = (state, action, gamma, prior_visits, prior, first_visit, floats, counts)
    if largest <= tree_group.LARGEST_BLOCK:
        tree_group.fill_by_group(wide, outcome, offsets, group, order, largest, *options)
    else:
        fill_by_cell(wide, outcome, offsets, rollout_group, *options)
    return *(row.to(dtype, copy=True) for row in floats.unbind(0)), *(row.clone() for row in counts.unbind(0))


def _tree_numba(reward, outcome, offsets, rollout_group, state, action, gamma, prior_visits, prior, first_visit):
    check_offsets("offsets", offsets, reward.shape[0])
    return tree_numba(reward, outcome, offsets, rollout_group, state, action, gamma, prior_visits, prior, first_visit)


def _tree_fake(reward, outcome, offsets, rollout_group, state, action, *options):
    rows = reward.shape[0]
    return *(reward.new_empty(rows) for _ in range(4)), *(state.new_empty(rows) for _ in range(2))


_op = register_op(
    "rollout_tree_advantages",
    "(Tensor reward, Tensor outcome, Tensor offsets, Tensor rollout_group, Tensor state, Tensor action, "
    "float gamma, float prior_visits, str prior, bool first_visit=True) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=_tree_reference,
    triton=_tree_triton,
    numba=_tree_numba,
    fake=_tree_fake,
)


def rollout_tree_advantages(
    reward: torch.Tensor,
    outcome: torch.Tensor,
    offsets: torch.Tensor,
    rollout_group: torch.Tensor,
    state: torch.Tensor,
    action: torch.Tensor,
    gamma: float,
    prior_visits: float,
    prior: str,
    first_visit: bool = True,
) -> RolloutTree:
    """RTMC of every step (formulas and edge cases: top of this file).

    Parameters
    ----------
    reward : (S,) float16, bfloat16, float32 or float64
        Step rewards without the outcome; the rows of a rollout are adjacent and in time order.
    outcome : (R,) floating
        Verifier's reward; NaN = unknown.
    offsets : (R+1,) int64, or int32 as the other integers here, which are widened
        Rollout r is rows offsets[r] : offsets[r+1].
    rollout_group : (R,) int64
        Group of each rollout; any values, any order.
    state, action : (S,) int64
        Keys; equal ids of different groups are different states.
    gamma : float in [0, 1]
    prior_visits : float >= 0
        Weight of the prior, in visits.
    prior : "success_rate" or "mean_return"
    first_visit : bool
        False counts every step as a visit.

    Returns
    -------
    RolloutTree, each (S,); computed in float64 and rounded once to the reward's dtype. Not differentiable.

    Raises TypeError or ValueError for a wrong dtype, shape, device, option, or offsets that are no partition.
    """
    check_tensor("reward", reward, dtypes=FLOAT_DTYPES, shape=("S",))
    rows, device = tuple(reward.shape), reward.device
    check_tensor("outcome", outcome, dtypes=FLOAT_DTYPES, shape=("R",), device=device)
    rollouts = outcome.shape[0]
    offsets = check_integers("offsets", offsets, shape=(rollouts + 1,), device=device)
    rollout_group = check_integers("rollout_group", rollout_group, shape=(rollouts,), device=device)
    state = check_integers("state", state, shape=rows, device=device)
    action = check_integers("action", action, shape=rows, device=device)
    gamma = check_range("gamma", gamma, 0.0, 1.0)
    prior_visits = check_range("prior_visits", prior_visits, 0.0, math.inf, high_open=True)
    choose("prior", prior, _PRIORS)
    if not isinstance(first_visit, bool):
        raise TypeError(f"`first_visit`: got {first_visit!r}; wanted True or False")
    return RolloutTree(
        *_op(reward, outcome, offsets, rollout_group, state, action, gamma, prior_visits, prior, first_visit)
    )
