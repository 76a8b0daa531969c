"""RTMC on the CPU: one numba loop over groups, from rewards to the values of every row.

Formulas and edge cases: ``rollout_tree.py``, whose reference is the specification of this file too.

A group is done before the next is begun, so its table stays in the cache however many groups there are: returns
backwards through its rollouts, a hash table of its (state, action) pairs, then the values of each row. States are
looked up once a pair, not once a row, and W(s) is added up from W(s, a): the parts on the group's grid ("Exact
sums" in ``segments.py``) are exact in any order, so this too gives the bits that ``tree_group.py`` and
``tree_table.py`` give.

Not here: argument checks, and which rollouts form a group.
"""

import math

import numpy as np
import torch

from rtmc.kernels.backend import as_numpy, lazy_njit
from rtmc.kernels.ids import _ids_numba

LARGE, DOWN = 2.0**900, 2.0**-192  # as in segment_loop.py
_NATIVE = (torch.float32, torch.float64)  # numba knows no half


@lazy_njit
def _grid(bound, n):
    """``_grid_constants_numba`` of segment_loop.py; again here, as numba's cache follows no call into another file."""
    exponent = max(math.frexp(bound)[1], -1022) if bound > 0.0 else -1022
    if bound >= LARGE:
        exponent -= 192
    log_n = math.frexp(float(n + 2))[1]
    first = min(max(exponent + 1023 + log_n, 1), 2045)
    second = max(first - 53 + log_n, 1)
    return math.ldexp(1.5, first - 1023), math.ldexp(1.5, second - 1023)


@lazy_njit
def _slot(a, b, mask):
    """Where the search for the pair (a, b) starts; int64 arithmetic wraps, the masks clear the sign's copies."""
    h = a * 0x2545F4914F6CDD1D + b * 0x369DEA0F31A53F85
    h = (h ^ ((h >> 32) & 0xFFFFFFFF)) * 0x1B873593CC9E2D51
    return (h ^ ((h >> 32) & 0xFFFFFFFF)) & mask


@lazy_njit
def _members(group_R, count, offsets, order_R, starts_G1):
    """Counting sort: group g is the rollouts order[starts[g] : starts[g+1]], in rollout order. Returns the rows of
    the largest group. ``starts_G1`` comes zeroed."""
    rollouts = len(group_R)
    for r in range(rollouts):
        starts_G1[group_R[r] + 1] += 1
    for g in range(count):
        starts_G1[g + 1] += starts_G1[g]
    free = starts_G1[:-1].copy()
    rows = np.zeros(count, np.int64)
    largest = 0
    for r in range(rollouts):
        g = group_R[r]
        order_R[free[g]] = r
        free[g] += 1
        rows[g] += offsets[r + 1] - offsets[r]
        largest = max(largest, rows[g])
    return largest


@lazy_njit
def _mean(values, n):
    """Mean of values[:n] by their exact sum; 0 for none."""
    bound = 0.0
    for i in range(n):
        size = abs(values[i])
        if not size <= bound:
            bound = size if size == size else math.inf
    hi_sum = 0.0
    lo_sum = 0.0
    if bound < math.inf:
        c1, c2 = _grid(bound, n)
        down = DOWN if bound >= LARGE else 1.0
        for i in range(n):
            x = values[i] * down
            hi = (x + c1) - c1
            hi_sum += hi
            lo_sum += ((x - hi) + c2) - c2
        return (hi_sum + lo_sum) / down / n if n > 0 else 0.0
    for i in range(n):
        hi_sum += 0.0 if abs(values[i]) < math.inf else values[i]
    return hi_sum / n


@lazy_njit
def _groups_numba(
    reward, outcome, offsets, order_R, starts_G1, largest, state, action, gamma, prior_visits, by_return, first_visit,
    advantage, q, v, returns, n_s, n_sa,
):  # fmt: skip
    """Fills the six columns. Row k of a group counts through its rollouts; ``gain`` and ``cell`` are indexed by k."""
    slots_size = 2
    while slots_size < 2 * largest:
        slots_size *= 2
    pair_slots, state_slots = np.empty(slots_size, np.int32), np.empty(slots_size, np.int32)
    gain, cell = np.empty(largest), np.empty(largest, np.int32)
    # What a row touches lies side by side: state, action, N(s,a), rollout that visited last; the two sums of G.
    pairs, pair_sums = np.empty((largest, 4), np.int64), np.empty((largest, 2))
    state_of_pair = np.empty(largest, np.int32)
    states, state_sums = np.empty((largest, 2), np.int64), np.empty((largest, 2))
    values = np.empty((largest, 3))
    starting = np.empty(len(order_R))

    for g in range(len(starts_G1) - 1):
        # Returns, what the grid and the prior need of them.
        rows, known_rows, known_rollouts, bound = 0, 0, 0, 0.0
        for m in range(starts_G1[g], starts_G1[g + 1]):
            r = order_R[m]
            begin, end = offsets[r], offsets[r + 1]
            known = outcome[r] == outcome[r]
            final = outcome[r] if known else 0.0
            x = final
            for t in range(end - 1, begin - 1, -1):
                x = reward[t] + (final if t == end - 1 else gamma * x)
                gain[rows + t - begin] = x
                returns[t] = x
                # Returns that are no numbers stay out of the bound: they must not move the grid of the other cells.
                if known and bound < abs(x) < math.inf:
                    bound = abs(x)
            rows += end - begin
            if known:
                known_rows += end - begin
                starting[known_rollouts] = x if by_return else final
                known_rollouts += 1
        p0 = prior_visits * _mean(starting, known_rollouts)
        c1, c2 = _grid(bound, known_rows)
        down = DOWN if bound >= LARGE else 1.0

        # The table.
        size = 2
        while size < 2 * rows:
            size *= 2
        mask = size - 1
        pair_slots[:size] = -1
        state_slots[:size] = -1
        pair_count, state_count, k = 0, 0, 0
        for m in range(starts_G1[g], starts_G1[g + 1]):
            r = order_R[m]
            known = outcome[r] == outcome[r]
            for t in range(offsets[r], offsets[r + 1]):
                s, a = state[t], action[t]
                at = _slot(s, a, mask)
                p = pair_slots[at]
                while p >= 0 and (pairs[p, 0] != s or pairs[p, 1] != a):
                    at = (at + 1) & mask
                    p = pair_slots[at]
                if p < 0:
                    p = pair_count
                    pair_count += 1
                    pair_slots[at] = p
                    pairs[p, 0], pairs[p, 1], pairs[p, 2], pairs[p, 3] = s, a, 0, -1
                    pair_sums[p, 0], pair_sums[p, 1] = 0.0, 0.0
                    at = _slot(s, 0, mask)
                    c = state_slots[at]
                    while c >= 0 and states[c, 0] != s:
                        at = (at + 1) & mask
                        c = state_slots[at]
                    if c < 0:
                        c = state_count
                        state_count += 1
                        state_slots[at] = c
                        states[c, 0], states[c, 1] = s, 0
                        state_sums[c, 0], state_sums[c, 1] = 0.0, 0.0
                    state_of_pair[p] = c
                cell[k] = p
                if known and not (first_visit and pairs[p, 3] == r):
                    pairs[p, 2] += 1
                    pairs[p, 3] = r
                    x = gain[k]
                    if abs(x) < math.inf:
                        x *= down
                        hi = (x + c1) - c1
                        pair_sums[p, 0] += hi
                        pair_sums[p, 1] += ((x - hi) + c2) - c2
                    else:
                        pair_sums[p, 0] += x
                k += 1

        # What each cell says, then each row.
        for p in range(pair_count):
            c = state_of_pair[p]
            states[c, 1] += pairs[p, 2]
            state_sums[c, 0] += pair_sums[p, 0]
            state_sums[c, 1] += pair_sums[p, 1]
        for p in range(pair_count):
            c = state_of_pair[p]
            weight = float(states[c, 1]) + prior_visits
            base = ((state_sums[c, 0] + state_sums[c, 1]) / down + p0) / weight if weight > 0 else 0.0
            n = pairs[p, 2]
            value = (pair_sums[p, 0] + pair_sums[p, 1]) / down / n if n > 0 else base
            values[p, 0], values[p, 1], values[p, 2] = value - base, value, base
        k = 0
        for m in range(starts_G1[g], starts_G1[g + 1]):
            r = order_R[m]
            known = outcome[r] == outcome[r]
            for t in range(offsets[r], offsets[r + 1]):
                p = cell[k]
                k += 1
                advantage[t] = values[p, 0] if known else 0.0
                q[t] = values[p, 1]
                v[t] = values[p, 2]
                n_s[t] = states[state_of_pair[p], 1]
                n_sa[t] = pairs[p, 2]


def tree_numba(
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
    """(advantage, q, v, returns) in the reward's dtype, (N(s), N(s,a)) int64, each (S,). Arguments as the op's."""
    wide = reward.dtype if reward.dtype in _NATIVE else torch.float64
    floats = [torch.empty(reward.shape[0], dtype=wide) for _ in range(4)]
    counts = [torch.empty(reward.shape[0], dtype=torch.int64) for _ in range(2)]
    group, count = _ids_numba([rollout_group])
    order = torch.empty_like(group)
    starts = torch.zeros(int(count) + 1, dtype=torch.int64)
    offsets_np = as_numpy(offsets)
    largest = _members(group.numpy(), int(count), offsets_np, order.numpy(), starts.numpy())
    if largest >= 2**31:  # cells are numbered in int32, to keep twice as many in the cache
        raise ValueError(f"`rollout_group`: got a group of {largest} rows; wanted fewer than 2^31 on the CPU")
    _groups_numba(
        as_numpy(reward, wide),
        as_numpy(outcome, torch.float64),
        offsets_np,
        order.numpy(),
        starts.numpy(),
        max(largest, 1),
        as_numpy(state),
        as_numpy(action),
        gamma,
        prior_visits,
        prior == "mean_return",
        first_visit,
        *(column.numpy() for column in (*floats, *counts)),
    )
    return *(column.to(reward.dtype) for column in floats), *counts
