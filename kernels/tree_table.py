"""The (state, action) table of RTMC filled and read, in three ways that give the same bits.

Formulas and edge cases: ``rollout_tree.py``, whose reference is the specification of this file too. Here
are the parts between "returns, groups and priors are known" (``Prepared``) and "every row has its values":

- ``table_numba``: one loop over the rows, cells numbered by ``ids.py``;
- ``_group_kernel``: one program a group, for groups that fit a block, in one launch;
- ``_cell_kernel`` + ``_read_kernel``: rows sorted by cell, for groups of any size.

Sums go on the grid of the *group* (``Prepared.bound`` and ``size``; "Exact sums" in ``segments.py``), so a
cell's sum is the same number whichever way adds it up.
"""

import math
from typing import NamedTuple

import torch

from rtmc.kernels.backend import as_numpy, cdiv, jit, launch, lazy_njit, next_power_of_2, tl
from rtmc.kernels.ids import _ids_numba, ids_and_firsts_triton
from rtmc.kernels.segments import grid_constants, grid_constants_each, grid_parts, rows_by_segment

# A group of more rows takes the sorted path: one program compares each row with each, and holds all of them.
LARGEST_BLOCK = 1024
_BLOCK = 1024


class Prepared(NamedTuple):
    """What the table needs besides the keys. ``returns`` is float64; ``group`` is dense; flags are int64 0 / 1."""

    returns: torch.Tensor  # (S,)
    rollout: torch.Tensor  # (S,) rollout of each row
    known: torch.Tensor  # (R,)
    group: torch.Tensor  # (R,)
    bound: torch.Tensor  # (G,) max |return| over the rows of known rollouts, infinite if one is not finite
    size: torch.Tensor  # (G,) number of those rows
    prior: torch.Tensor  # (G,) P


@jit
def _read_table(n_s, w_s, n_sa, w_sa, p, prior_visits, known):
    """(advantage, q, v) of rows from their cells' counts and sums."""
    weight = n_s.to(tl.float64) + prior_visits
    v = tl.where(weight > 0, (w_s + prior_visits * p) / weight, 0.0)
    q = tl.where(n_sa > 0, w_sa / n_sa.to(tl.float64), v)
    return tl.where(known, q - v, 0.0), q, v


@jit
def _store_rows(row, inside, advantage, q, v, n_s, n_sa, floats_3S, counts_2S, S):
    dtype: tl.constexpr = floats_3S.dtype.element_ty
    S = tl.cast(S, tl.int64)
    tl.store(floats_3S + row, advantage.to(dtype), mask=inside)
    tl.store(floats_3S + S + row, q.to(dtype), mask=inside)
    tl.store(floats_3S + 2 * S + row, v.to(dtype), mask=inside)
    tl.store(counts_2S + row, n_s, mask=inside)
    tl.store(counts_2S + S + row, n_sa, mask=inside)


@jit
def _group_kernel(
    returns_S, state_S, action_S, rollout_S, known_R, order_S, starts_G1, bound_G, size_G, prior_G,
    prior_visits_1, floats_3S, counts_2S, S, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a group of at most BLOCK rows: lane i keeps the cell sums of row i while j runs over all rows.

    A loop over one side, because a BLOCK x BLOCK equality matrix does not fit the registers.
    """
    group = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_G1 + group)
    n = tl.load(starts_G1 + group + 1) - start
    bound = tl.load(bound_G + group)
    c1, c2 = grid_constants(bound, tl.load(size_G + group))
    lane = tl.arange(0, BLOCK)
    inside = lane < n
    row = tl.load(order_S + start + lane, mask=inside, other=0)
    state = tl.load(state_S + row, mask=inside, other=0)
    action = tl.load(action_S + row, mask=inside, other=0)
    rollout = tl.load(rollout_S + row, mask=inside, other=-1)
    n_s = tl.zeros((BLOCK,), tl.int64)
    n_sa = tl.zeros((BLOCK,), tl.int64)
    hi_s = tl.zeros((BLOCK,), tl.float64)
    lo_s = tl.zeros((BLOCK,), tl.float64)
    hi_sa = tl.zeros((BLOCK,), tl.float64)
    lo_sa = tl.zeros((BLOCK,), tl.float64)
    for j in range(0, n):
        other = tl.load(order_S + start + j)
        same_state = inside & (state == tl.load(state_S + other))
        same_pair = same_state & (action == tl.load(action_S + other))
        other_rollout = tl.load(rollout_S + other)
        visit = tl.load(known_R + other_rollout)
        if FIRST:
            earlier = same_pair & (rollout == other_rollout) & (lane < j)
            visit = visit * (1 - tl.max(earlier.to(tl.int64), 0))
        hi, lo = grid_parts(tl.load(returns_S + other), bound, c1, c2)
        same_state = same_state & (visit > 0)
        same_pair = same_pair & (visit > 0)
        n_s += same_state.to(tl.int64)
        n_sa += same_pair.to(tl.int64)
        hi_s += tl.where(same_state, hi, 0.0)
        lo_s += tl.where(same_state, lo, 0.0)
        hi_sa += tl.where(same_pair, hi, 0.0)
        lo_sa += tl.where(same_pair, lo, 0.0)
    known = tl.load(known_R + rollout, mask=inside, other=0) > 0
    advantage, q, v = _read_table(
        n_s, hi_s + lo_s, n_sa, hi_sa + lo_sa, tl.load(prior_G + group), tl.load(prior_visits_1), known
    )
    _store_rows(row, inside, advantage, q, v, n_s, n_sa, floats_3S, counts_2S, S)


@jit
def _cell_kernel(
    returns_S, counted_S, order_S, starts_C1, group_S, bound_G, size_G, number_C, total_C, BLOCK: tl.constexpr
):
    """One program a cell (a state or a pair): number and exact sum of its counted rows."""
    cell = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_C1 + cell)
    end = tl.load(starts_C1 + cell + 1)
    group = tl.load(group_S + tl.load(order_S + start))
    bound = tl.load(bound_G + group)
    c1, c2 = grid_constants(bound, tl.load(size_G + group))
    number = tl.zeros((BLOCK,), tl.int64)
    hi = tl.zeros((BLOCK,), tl.float64)
    lo = tl.zeros((BLOCK,), tl.float64)
    for done in range(0, end - start, BLOCK):
        position = start + done + tl.arange(0, BLOCK)
        inside = position < end
        row = tl.load(order_S + position, mask=inside, other=0)
        counted = tl.load(counted_S + row, mask=inside, other=0)
        part_hi, part_lo = grid_parts(tl.load(returns_S + row, mask=inside, other=0.0), bound, c1, c2)
        number += counted
        hi += tl.where(counted > 0, part_hi, 0.0)
        lo += tl.where(counted > 0, part_lo, 0.0)
    tl.store(number_C + cell, tl.sum(number, 0))
    tl.store(total_C + cell, tl.sum(hi, 0) + tl.sum(lo, 0))


@jit
def _read_kernel(
    state_S, pair_S, group_S, known_S, number_C, total_C, number_D, total_D, prior_G, prior_visits_1,
    floats_3S, counts_2S, S, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < S
    state = tl.load(state_S + row, mask=inside, other=0)
    pair = tl.load(pair_S + row, mask=inside, other=0)
    group = tl.load(group_S + row, mask=inside, other=0)
    known = tl.load(known_S + row, mask=inside, other=0) > 0
    n_s = tl.load(number_C + state, mask=inside, other=0)
    w_s = tl.load(total_C + state, mask=inside, other=0.0)
    n_sa = tl.load(number_D + pair, mask=inside, other=0)
    w_sa = tl.load(total_D + pair, mask=inside, other=0.0)
    p = tl.load(prior_G + group, mask=inside, other=0.0)
    advantage, q, v = _read_table(n_s, w_s, n_sa, w_sa, p, tl.load(prior_visits_1), known)
    _store_rows(row, inside, advantage, q, v, n_s, n_sa, floats_3S, counts_2S, S)


def table_triton(have, state, action, prior_visits, first_visit, dtype):
    """((advantage, q, v) as (3, S) of ``dtype``, (N(s), N(s,a)) as (2, S) int64); the way is chosen by size."""
    rows, device = state.shape[0], state.device
    floats = torch.empty(3, rows, dtype=dtype, device=device)
    counts = torch.empty(2, rows, dtype=torch.int64, device=device)
    if rows > 0:
        order, starts = rows_by_segment(have.group[have.rollout], have.size.shape[0])
        strength = torch.full((1,), prior_visits, dtype=torch.float64, device=device)
        largest = int(starts.diff().max())
        keys = (state.contiguous(), action.contiguous())
        if largest <= LARGEST_BLOCK:
            _fill_by_group(have, *keys, order, starts, largest, strength, first_visit, floats, counts)
        else:
            _fill_by_cell(have, *keys, strength, first_visit, floats, counts)
    return floats, counts


def _fill_by_group(have, state, action, order, starts, largest, strength, first_visit, floats, counts):
    """One launch over groups; ``largest`` rows fit a block."""
    block = max(next_power_of_2(largest), 32)
    launch(
        _group_kernel,
        (have.size.shape[0],),
        have.returns,
        state,
        action,
        have.rollout,
        have.known,
        order,
        starts,
        have.bound,
        have.size,
        have.prior,
        strength,
        floats,
        counts,
        state.shape[0],
        FIRST=first_visit,
        BLOCK=block,
        num_warps=min(max(block // 128, 1), 8),
    )


def _fill_by_cell(have, state, action, strength, first_visit, floats, counts):
    """Groups of any size: ids of states and pairs, one launch over each kind of cell, one over rows."""
    group = have.group[have.rollout]
    known = have.known[have.rollout]
    states, state_count, _ = ids_and_firsts_triton([group, state])
    pairs, pair_count, _ = ids_and_firsts_triton([states, action])
    counted = known
    if first_visit:
        counted = known * ids_and_firsts_triton([have.rollout, pairs])[2]
    cells = []
    for ids, count in ((states, int(state_count)), (pairs, int(pair_count))):
        cell_order, cell_starts = rows_by_segment(ids, count)
        number = torch.empty(count, dtype=torch.int64, device=ids.device)
        total = torch.empty(count, dtype=torch.float64, device=ids.device)
        launch(
            _cell_kernel,
            (count,),
            have.returns,
            counted,
            cell_order,
            cell_starts,
            group,
            have.bound,
            have.size,
            number,
            total,
            BLOCK=128,
            num_warps=1,
        )
        cells += [number, total]
    launch(
        _read_kernel,
        (cdiv(state.shape[0], _BLOCK),),
        states,
        pairs,
        group,
        known,
        *cells,
        have.prior,
        strength,
        floats,
        counts,
        state.shape[0],
        BLOCK=_BLOCK,
    )


@lazy_njit
def _table_loop(returns, offsets, known, group, states, pairs, bound, c1, c2, first_visit, n_s, w_s, n_sa, w_sa):
    """Counts and sums of the cells, in place; they come zeroed."""
    lo_s, lo_sa = w_s.copy(), w_sa.copy()
    last_rollout = n_sa - 1
    for r in range(len(offsets) - 1):
        if not known[r]:
            continue
        g = group[r]
        for t in range(offsets[r], offsets[r + 1]):
            s, p, x = states[t], pairs[t], returns[t]
            # The rows of a rollout are adjacent, so one stamp a pair tells whether it was there before.
            if first_visit and last_rollout[p] == r:
                continue
            last_rollout[p] = r
            if bound[g] < math.inf:
                hi = (x + c1[g]) - c1[g]
                lo = ((x - hi) + c2[g]) - c2[g]
            else:
                hi, lo = 0.0 if abs(x) < math.inf else x, 0.0
            n_s[s] += 1
            n_sa[p] += 1
            w_s[s] += hi
            lo_s[s] += lo
            w_sa[p] += hi
            lo_sa[p] += lo
    w_s += lo_s
    w_sa += lo_sa


def table_numba(have, offsets, state, action, prior_visits, first_visit):
    """(advantage, q, v, N(s), N(s,a)), each (S,); the first three in float64."""
    group = have.group[have.rollout]
    states, state_count = _ids_numba([group, state])
    pairs, pair_count = _ids_numba([states, action])
    n_s, n_sa = (torch.zeros(int(count), dtype=torch.int64) for count in (state_count, pair_count))
    w_s, w_sa = (torch.zeros(int(count), dtype=torch.float64) for count in (state_count, pair_count))
    c1, c2 = torch.zeros(2, have.size.shape[0], dtype=torch.float64).unbind(0)
    grid_constants_each(have.bound.numpy(), have.size.numpy(), c1.numpy(), c2.numpy())
    inputs = (have.returns, offsets, have.known, have.group, states, pairs, have.bound, c1, c2)
    _table_loop(*map(as_numpy, inputs), first_visit, *(c.numpy() for c in (n_s, w_s, n_sa, w_sa)))
    n_s, w_s, n_sa, w_sa = n_s[states], w_s[states], n_sa[pairs], w_sa[pairs]
    weight = n_s.double() + prior_visits  # an int64 tensor and a Python float would meet in torch's default dtype
    v = torch.where(weight > 0, (w_s + prior_visits * have.prior[group]) / weight, 0.0)
    q = torch.where(n_sa > 0, w_sa / n_sa, v)
    return torch.where(have.known[have.rollout] > 0, q - v, 0.0), q, v, n_s, n_sa
