"""RTMC on the GPU in one launch, for tables whose groups fit a block.

Formulas and edge cases: ``rollout_tree.py``, whose reference is the specification of this file too. A program takes
one group, from rewards to the values of its rows: lane i keeps the sums of the cells of row i while the group's rows
go by, each rollout from its end to its begin, so that the return of the row at hand is one multiplication and one
addition away. Returns are made in the order of the numba loop, not by a scan, so both give the same bits, whichever
rollouts stand beside one another.

Rows go by twice, because the grid ("Exact sums" in ``segments.py``) needs max |G| first. A loop over one side, because
a BLOCK x BLOCK matrix of equal keys does not fit the registers.

Besides the launch there are operations of torch on the rollouts (not the rows): a sort by group, sums of lengths, and
one wait for the device, in which offsets are checked and the largest group is learnt (``members_by_group``).

Not here: groups of more rows than ``LARGEST_BLOCK`` (``tree_table.py``).
"""

import torch

from rtmc.kernels.backend import bits_of, check_offsets, jit, launch, next_power_of_2, number_of, tl
from rtmc.kernels.segments import grid_constants, grid_parts, grid_total, magnitude

# Each row is compared with each of its group, and a program holds all of them.
LARGEST_BLOCK = 1024
_INF = tl.constexpr(float("inf"))


@jit
def read_table(n_s, w_s, n_sa, w_sa, p, prior_visits, known):
    """(advantage, q, v) of rows from their cells' counts and sums."""
    weight = n_s.to(tl.float64) + prior_visits
    v = tl.where(weight > 0, (w_s + prior_visits * p) / weight, 0.0)
    q = tl.where(n_sa > 0, w_sa / n_sa.to(tl.float64), v)
    return tl.where(known, q - v, 0.0), q, v


@jit
def store_rows(row, inside, advantage, q, v, returns, n_s, n_sa, floats_4S, counts_2S, S):
    dtype: tl.constexpr = floats_4S.dtype.element_ty
    S = tl.cast(S, tl.int64)
    tl.store(floats_4S + row, advantage.to(dtype), mask=inside)
    tl.store(floats_4S + S + row, q.to(dtype), mask=inside)
    tl.store(floats_4S + 2 * S + row, v.to(dtype), mask=inside)
    tl.store(floats_4S + 3 * S + row, returns.to(dtype), mask=inside)
    tl.store(counts_2S + row, n_s.to(tl.int64), mask=inside)
    tl.store(counts_2S + S + row, n_sa.to(tl.int64), mask=inside)


@jit
def _rollout(order_R, offsets_R1, outcome_R, at):
    """(first row, length, 1 if the outcome is known, outcome or 0) of the rollout at place ``at`` of the order."""
    r = tl.load(order_R + at)
    begin = tl.load(offsets_R1 + r)
    outcome = tl.load(outcome_R + r)
    known = tl.where(outcome == outcome, 1, 0)
    return begin, tl.load(offsets_R1 + r + 1) - begin, known, tl.where(known > 0, outcome, 0.0)


@jit
def _group_kernel(
    reward_S, state_S, action_S, outcome_R, offsets_R1, group_R, order_R, gamma_bits, prior_bits, floats_4S, counts_2S,
    R, S, BY_RETURN: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """``group_R`` is sorted and rollout order_R[i] belongs to group_R[i]. Program i does the group that begins there;
    where none does, it has no members and stores nothing. MEMBERS rollouts are looked at at once."""
    here = tl.program_id(0).to(tl.int64)
    gamma, prior_visits = number_of(gamma_bits), number_of(prior_bits)
    group = tl.load(group_R + here)
    before = tl.load(group_R + here - 1, mask=here > 0, other=0)
    members = here * 0
    more = (here == 0) | (group != before)
    while more:
        at = here + members + tl.arange(0, MEMBERS)
        same = (at < R) & (tl.load(group_R + at, mask=at < R, other=0) == group)
        found = tl.sum(same.to(tl.int64), 0)
        members += found
        more = found == MEMBERS

    # Rows in lanes; bounds of the returns and of what the prior is the mean of.
    lane = tl.arange(0, BLOCK)
    row = tl.zeros((BLOCK,), tl.int64)
    member = tl.zeros((BLOCK,), tl.int64) - 1
    lane_known = lane < 0
    n = here * 0
    known_rows = here * 0
    known_members = here * 0
    bound = gamma * 0.0
    start_bound = gamma * 0.0
    for m in range(0, members):
        begin, length, known, final = _rollout(order_R, offsets_R1, outcome_R, here + m)
        mine = (lane >= n) & (lane < n + length)
        row = tl.where(mine, begin + lane - n, row)
        member = tl.where(mine, m, member)
        lane_known = lane_known | (mine & (known > 0))
        n += length
        value = final
        for back in range(0, length):
            x = tl.load(reward_S + begin + length - 1 - back).to(tl.float64)
            value = x + tl.where(back == 0, final, gamma * value)
            # Returns that are no numbers stay out of the bound: they must not move the grid of the other cells.
            counts = (known > 0) & (magnitude(value) < _INF)
            bound = tl.where(counts, tl.maximum(bound, tl.abs(value)), bound)
        start = final
        if BY_RETURN:
            start = value
        start_bound = tl.where(known > 0, tl.maximum(start_bound, magnitude(start)), start_bound)
        known_rows += tl.where(known > 0, length, 0)
        known_members += known

    inside = lane < n
    state = tl.load(state_S + row, mask=inside, other=0)
    action = tl.load(action_S + row, mask=inside, other=0)
    c1, c2, down = grid_constants(bound, known_rows)
    s1, s2, start_down = grid_constants(start_bound, known_members)
    zero = tl.zeros((BLOCK,), tl.float64)
    returns = zero
    n_s = tl.zeros((BLOCK,), tl.int32)
    n_sa = tl.zeros((BLOCK,), tl.int32)
    hi_s = zero
    lo_s = zero
    hi_sa = zero
    lo_sa = zero
    hi_start = gamma * 0.0
    lo_start = gamma * 0.0
    first_lane = here * 0
    for m in range(0, members):
        begin, length, known, final = _rollout(order_R, offsets_R1, outcome_R, here + m)
        value = final
        for back in range(0, length):
            t = length - 1 - back
            x = tl.load(reward_S + begin + t).to(tl.float64)
            value = x + tl.where(back == 0, final, gamma * value)
            returns = tl.where(lane == first_lane + t, value, returns)
            same_state = inside & (state == tl.load(state_S + begin + t))
            same_pair = same_state & (action == tl.load(action_S + begin + t))
            counts = known > 0
            if FIRST:
                earlier = same_pair & (member == m) & (lane < first_lane + t)
                counts = counts & (tl.max(earlier.to(tl.int32), 0) == 0)
            hi, lo = grid_parts(value, c1, c2, down)
            same_state = same_state & counts
            same_pair = same_pair & counts
            n_s += same_state.to(tl.int32)
            n_sa += same_pair.to(tl.int32)
            hi_s += tl.where(same_state, hi, 0.0)
            lo_s += tl.where(same_state, lo, 0.0)
            hi_sa += tl.where(same_pair, hi, 0.0)
            lo_sa += tl.where(same_pair, lo, 0.0)
        start = final
        if BY_RETURN:
            start = value
        hi, lo = grid_parts(start, s1, s2, start_down)
        hi_start += tl.where(known > 0, hi, 0.0)
        lo_start += tl.where(known > 0, lo, 0.0)
        first_lane += length

    p = tl.where(known_members > 0, grid_total(hi_start, lo_start, start_down) / known_members.to(tl.float64), 0.0)
    w_s, w_sa = grid_total(hi_s, lo_s, down), grid_total(hi_sa, lo_sa, down)
    advantage, q, v = read_table(n_s, w_s, n_sa, w_sa, p, prior_visits, lane_known)
    store_rows(row, inside, advantage, q, v, returns, n_s, n_sa, floats_4S, counts_2S, S)


def members_by_group(
    offsets: torch.Tensor, rollout_group: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(groups in order (R,), rollout at each place (R,), rows of the largest group).

    Waits for the device once, and checks ``offsets`` in the same wait (ValueError as ``check_offsets``).
    """
    if rollout_group.shape[0] == 0:
        check_offsets("offsets", offsets, rows)
        return rollout_group, rollout_group, 0
    group, order = torch.sort(rollout_group, stable=True)
    length = offsets.diff()
    ends = length[order].cumsum(0)
    before = ends - length[order]
    head = torch.ones_like(group, dtype=torch.bool)
    head[1:] = group[1:] != group[:-1]
    # Ends do not fall, so the running maximum holds the begin of the latest group.
    largest = (ends - torch.where(head, before, 0).cummax(0).values).max()
    first, last, least, largest_group = torch.stack([offsets[0], offsets[-1], length.min(), largest]).tolist()
    if first != 0 or last != rows or least < 0:
        check_offsets("offsets", offsets, rows)  # says what is wrong
    return group, order, largest_group


def fill_by_group(
    reward: torch.Tensor,
    outcome: torch.Tensor,
    offsets: torch.Tensor,
    group: torch.Tensor,
    order: torch.Tensor,
    largest: int,
    state: torch.Tensor,
    action: torch.Tensor,
    gamma: float,
    prior_visits: float,
    prior: str,
    first_visit: bool,
    floats: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """One launch. Fills ``floats`` (4, S): advantage, q, v, returns, and ``counts`` (2, S): N(s), N(s,a)."""
    block = max(next_power_of_2(largest), 32)
    launch(
        _group_kernel,
        (group.shape[0] if reward.shape[0] else 0,),
        reward.contiguous(),
        state.contiguous(),
        action.contiguous(),
        outcome.double().contiguous(),
        offsets.contiguous(),
        group,
        order,
        bits_of(gamma),
        bits_of(prior_visits),
        floats,
        counts,
        group.shape[0],
        reward.shape[0],
        BY_RETURN=prior == "mean_return",
        FIRST=first_visit,
        BLOCK=block,
        MEMBERS=32,
        num_warps=max(block // 64, 1),
    )
