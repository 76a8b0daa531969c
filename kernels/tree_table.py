"""RTMC on the GPU for groups of any size: rows sorted by cell.

Formulas and edge cases: ``rollout_tree.py``, whose reference is the specification of this file too; tables whose
groups fit a block take ``tree_group.py``. In launches of their own: the returns, a lane a rollout
(``_chain_kernel``, in the order of the numba loop); the sums of each cell (``_cell_kernel``); the values of each row
(``_read_kernel``). Ids, sorts and the prior come from ``ids.py`` and ``segments.py``; the host waits for the number of
groups, of states and of pairs.

Sums go on the grid of the *group* ("Exact sums" in ``segments.py``), so a cell's sum is the same number whichever way
adds it up.
"""

import torch

from rtmc.kernels.backend import bits_of, cdiv, jit, launch, number_of, tl
from rtmc.kernels.ids import ids_and_firsts_triton
from rtmc.kernels.segments import _segment_triton, grid_constants, grid_parts, grid_total, rows_by_segment
from rtmc.kernels.tree_group import read_table, store_rows

_BLOCK = 1024
_CHAINS = 32  # rollouts a program; more would leave a small table on few processors


@jit
def _chain_kernel(reward_S, final_R, offsets_R1, gamma_bits, out_S, R, BLOCK: tl.constexpr):
    """Returns in float64, rows from the end of each rollout to its begin, one lane a rollout."""
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = r < R
    gamma = number_of(gamma_bits)
    begin = tl.load(offsets_R1 + r, mask=inside, other=0)
    end = tl.load(offsets_R1 + r + 1, mask=inside, other=0)
    final = tl.load(final_R + r, mask=inside, other=0.0)
    value = final
    for back in range(0, tl.max(end - begin, 0)):
        row = end - 1 - back
        there = row >= begin
        x = tl.load(reward_S + row, mask=there, other=0.0).to(tl.float64)
        value = x + tl.where(back == 0, final, gamma * value)
        tl.store(out_S + row, value, mask=there)


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
    c1, c2, down = grid_constants(bound, tl.load(size_G + group))
    number = tl.zeros((BLOCK,), tl.int64)
    hi = tl.zeros((BLOCK,), tl.float64)
    lo = tl.zeros((BLOCK,), tl.float64)
    for done in range(0, end - start, BLOCK):
        position = start + done + tl.arange(0, BLOCK)
        inside = position < end
        row = tl.load(order_S + position, mask=inside, other=0)
        counted = tl.load(counted_S + row, mask=inside, other=0)
        part_hi, part_lo = grid_parts(tl.load(returns_S + row, mask=inside, other=0.0), c1, c2, down)
        number += counted
        hi += tl.where(counted > 0, part_hi, 0.0)
        lo += tl.where(counted > 0, part_lo, 0.0)
    tl.store(number_C + cell, tl.sum(number, 0))
    tl.store(total_C + cell, grid_total(tl.sum(hi, 0), tl.sum(lo, 0), down))


@jit
def _read_kernel(
    state_S, pair_S, group_S, known_S, returns_S, number_C, total_C, number_D, total_D, prior_G, prior_bits,
    floats_4S, counts_2S, S, BLOCK: tl.constexpr,
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
    returns = tl.load(returns_S + row, mask=inside, other=0.0)
    advantage, q, v = read_table(n_s, w_s, n_sa, w_sa, p, number_of(prior_bits), known)
    store_rows(row, inside, advantage, q, v, returns, n_s, n_sa, floats_4S, counts_2S, S)


def _per_group(returns, start_value, known_group, length, groups):
    """(bound, size, prior), each (G,): of the returns of known rollouts, and the mean of ``start_value``. Returns that
    are no numbers stay out of the bound: they must not move the grid of the other cells."""
    members, _, mean, _, _, _ = _segment_triton(start_value, known_group, groups, None)
    row_group = torch.repeat_interleave(known_group, length, output_size=returns.shape[0])
    finite = torch.where(returns.isfinite(), returns, 0.0)
    size, _, _, _, low, high = _segment_triton(finite, row_group, groups, None)
    return torch.where(size > 0, torch.maximum(low.abs(), high.abs()), 0.0), size, torch.where(members > 0, mean, 0.0)


def fill_by_cell(
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
    floats: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Fills ``floats`` (4, S): advantage, q, v, returns, and ``counts`` (2, S): N(s), N(s,a). S > 0."""
    rows, rollouts = reward.shape[0], outcome.shape[0]
    known = ~outcome.isnan()
    final = torch.where(known, outcome.double(), 0.0)
    returns = torch.empty(rows, dtype=torch.float64, device=reward.device)
    launch(
        _chain_kernel,
        (cdiv(rollouts, _CHAINS),),
        reward.contiguous(),
        final,
        offsets.contiguous(),
        bits_of(gamma),
        returns,
        rollouts,
        BLOCK=_CHAINS,
        num_warps=1,
    )
    length = offsets.diff()
    start_value = final
    if prior == "mean_return":
        start_value = torch.where(length > 0, returns[offsets[:-1].clamp_max(rows - 1)], final)
    group_of_rollout, group_count, _ = ids_and_firsts_triton([rollout_group])
    known_group = torch.where(known, group_of_rollout, -1)
    bound, size, mean = _per_group(returns, start_value, known_group, length, int(group_count))

    rollout = torch.repeat_interleave(torch.arange(rollouts, device=reward.device), length, output_size=rows)
    group, row_known = group_of_rollout[rollout], known.long()[rollout]
    states, state_count, _ = ids_and_firsts_triton([group, state])
    pairs, pair_count, _ = ids_and_firsts_triton([states, action])
    counted = row_known
    if first_visit:
        counted = row_known * ids_and_firsts_triton([rollout, pairs])[2]
    cells = []
    for ids, count in ((states, int(state_count)), (pairs, int(pair_count))):
        cell_order, cell_starts = rows_by_segment(ids, count)
        number = torch.empty(count, dtype=torch.int64, device=ids.device)
        total = torch.empty(count, dtype=torch.float64, device=ids.device)
        launch(
            _cell_kernel,
            (count,),
            returns,
            counted,
            cell_order,
            cell_starts,
            group,
            bound,
            size,
            number,
            total,
            BLOCK=128,
            num_warps=1,
        )
        cells += [number, total]
    launch(
        _read_kernel,
        (cdiv(rows, _BLOCK),),
        states,
        pairs,
        group,
        row_known,
        returns,
        *cells,
        mean,
        bits_of(prior_visits),
        floats,
        counts,
        rows,
        BLOCK=_BLOCK,
    )
