"""The sweeps of ``graph_potential``: edges pooled into rows, then x <- T(x) until the error is below the bound.

``graph_potential.py`` says what T is and proves the rule that stops. Here are the parts after the checks:

- ``pooled_rows``: rows of equal (source, target) become one edge, sorted by source (counting sort on the CPU,
  one sort of integer keys on CUDA); weights n(s,x) / n(s).
- ``sweep_triton`` launches ``_graph_kernel``, one program a graph of at most ``LARGEST`` nodes, all of whose sweeps and
  the test that ends them run inside the one launch; and ``_sweep_kernel``, one launch a sweep over tiles of the larger
  graphs, where the device itself decides which graphs go on and the host looks once a batch of ``_BATCH`` launches
  whether any does. Host waits: whether there are larger graphs, their tiles, one a batch. The sweeps of the two are the
  same, bit for bit in every mode.
- ``sweep_numba``: sweeps of one strongly connected component after the other, so that a component's successors are
  final and what lies on no cycle is evaluated once. The rule that stops is the same; the sweeps are not, so that CPU
  and CUDA agree within the bound on the error.

The sum over a row's edges is a sum of integers: see "Same bits in any order" in ``graph_potential.py``.
"""

from collections.abc import Callable

import numpy as np
import torch

from rtmc.kernels.backend import as_numpy, jit, launch, lazy_njit, tl

# One program goes over its graph in tiles of _ROWS nodes; a larger graph is worth the launches of a whole grid.
LARGEST = 1024
_ROWS = 128
_WIDTH = 4  # edges of a row that are read together; most rows have one to three
_BATCH = 32

LINEAR, POWER, MAXIMUM = 0, 1, 2
_LINEAR, _POWER, _MAXIMUM = tl.constexpr(LINEAR), tl.constexpr(POWER), tl.constexpr(MAXIMUM)
# Terms of a row's sum are integers in units of 2^-62: a row's sum is below 2^63, so int64 holds it.
UNIT = 2.0**-62
_UNIT = tl.constexpr(UNIT)
_INF = tl.constexpr(float("inf"))


def totals(values: torch.Tensor, ids: torch.Tensor, size: int, stats_of: Callable) -> torch.Tensor:
    """(size,) float64: sum of ``values`` per id (-1 = none), the same bits in any order.

    Integers, less than 2^63 in all, are added up as integers and rounded once; other weights go through the exact sums
    of ``segments.py``.
    """
    if values.dtype.is_floating_point:
        return stats_of(values.double(), ids, size, None)[1]
    sums = torch.zeros(size + 1, dtype=torch.int64, device=ids.device)  # the last of what has no id
    return sums.index_add_(0, torch.where(ids >= 0, ids, size), values.long())[:size].double()


@lazy_njit
def _pool_numba(source, target, live, starts, scratch, order, edge, left, to):
    """Counting sort by (source, target); rows of one edge get one number. Returns the number of edges.

    Written: ``starts`` (nodes+1; comes zeroed), the first edge of each node; ``edge`` (E,; comes as -1s), the edge of
    each row; ``left`` and ``to`` (E,), source and target of the edges. ``scratch`` (nodes+1) and ``order`` (2, E) may
    hold anything.
    """
    nodes = len(starts) - 1
    # Two stable passes, the minor key first.
    scratch[:] = 0
    for i in range(len(source)):
        if live[i]:
            scratch[target[i] + 1] += 1
            starts[source[i] + 1] += 1
    for s in range(nodes):
        scratch[s + 1] += scratch[s]
        starts[s + 1] += starts[s]
    number = starts[nodes]
    for i in range(len(source)):
        if live[i]:
            order[0, scratch[target[i]]] = i
            scratch[target[i]] += 1
    scratch[:] = starts
    for j in range(number):
        i = order[0, j]
        order[1, scratch[source[i]]] = i
        scratch[source[i]] += 1
    edges = 0
    last_source = last_target = -1
    starts[:] = 0
    for j in range(number):
        i = order[1, j]
        if source[i] != last_source or target[i] != last_target:
            last_source, last_target = source[i], target[i]
            left[edges], to[edges] = last_source, last_target
            starts[last_source + 1] += 1
            edges += 1
        edge[i] = edges - 1
    for s in range(nodes):
        starts[s + 1] += starts[s]
    return edges


def pool_numba(source, target, live, nodes):
    """(edge of each row or -1, first edge of each node (nodes+1,), source and target of each edge)."""
    rows = source.shape[0]
    starts, scratch = torch.zeros(2, nodes + 1, dtype=torch.int64).unbind(0)
    edge, left, to = torch.full((3, rows), -1).unbind(0)
    order = torch.zeros(2, rows, dtype=torch.int64)
    arrays = (as_numpy(t) for t in (source, target, live))
    edges = _pool_numba(*arrays, *(t.numpy() for t in (starts, scratch, order, edge, left, to)))
    return edge, starts, left[:edges], to[:edges]


def pool_sorted(source, target, live, nodes):
    """As ``pool_numba``; the edges stand in the first of E places, so that their number need not be waited for."""
    past = nodes * nodes  # a key behind those of all edges
    key, order = torch.sort(torch.where(live, source * nodes + target, past))
    head = torch.ones_like(key)
    head[1:] = (key[1:] != key[:-1]).long()
    number = torch.cumsum(head, 0) - 1
    keys = torch.full_like(key, past).scatter_(0, number, key)
    edge = torch.zeros_like(key).scatter_(0, order, torch.where(key < past, number, -1))
    starts = torch.searchsorted(keys, torch.arange(nodes + 1, device=key.device) * nodes)
    return edge, starts, (keys // nodes).clamp_max(nodes - 1), keys % nodes


def pooled_rows(source, target, count, live, nodes, pool, stats_of):
    """(starts (nodes+1,), target (edges,) int64, weight (edges,) float64) from the rows that are ``live``.

    weight = n(s,x) / n(s) <= 1, in units of UNIT. The edges of node s are starts[s] : starts[s+1], sorted by target.
    ``pool`` is ``pool_numba`` or ``pool_sorted``.
    """
    edge, starts, left, to = pool(source, target, live, nodes)
    together = totals(count, edge, to.shape[0], stats_of)
    leaving = totals(count, source, nodes, stats_of)  # of ends too, which no edge looks at
    # Two sums of the same terms are equal; of others, rounding could lift the quotient above 1.
    return starts, to, torch.minimum(together / leaving[left], torch.ones_like(together)) / UNIT


@jit
def _highest(first, end, longest, target_E, now_N, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(ROWS,): the largest value among the successors of each row, 0 without any."""
    best = tl.zeros((ROWS,), tl.float64)
    for done in range(0, longest, WIDTH):
        at = first[:, None] + done + tl.arange(0, WIDTH)[None, :]
        inside = at < end[:, None]
        to = tl.load(target_E + at, mask=inside, other=0)
        best = tl.maximum(best, tl.max(tl.load(now_N + to, mask=inside, other=0.0), 1))
    return best


@jit
def _backed_up(
    row, inside, starts_N1, target_E, weight_E, now_N, gamma, power,
    MODE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(old, new) values (ROWS,) of the rows ``inside``; those without edges keep the old one."""
    first = tl.load(starts_N1 + row, mask=inside, other=0)
    end = tl.load(starts_N1 + row + 1, mask=inside, other=0)
    old = tl.load(now_N + row, mask=inside, other=0.0)
    longest = tl.max(end - first, 0)
    if MODE == _LINEAR:
        size = tl.full((ROWS,), 1.0, tl.float64)
    else:
        size = _highest(first, end, longest, target_E, now_N, ROWS, WIDTH)
    if MODE == _MAXIMUM:
        mean = size
    else:
        total = tl.zeros((ROWS,), tl.int64)
        for done in range(0, longest, WIDTH):
            at = first[:, None] + done + tl.arange(0, WIDTH)[None, :]
            present = at < end[:, None]
            to = tl.load(target_E + at, mask=present, other=0)
            value = tl.load(now_N + to, mask=present, other=0.0)
            if MODE == _POWER:
                value = tl.exp(power * tl.log(value / tl.where(size > 0, size, 1.0)[:, None]))
            weight = tl.load(weight_E + at, mask=present, other=0.0)
            total += tl.sum((weight * value).to(tl.int64), 1)
        mean = total.to(tl.float64) * _UNIT
        if MODE == _POWER:
            mean = tl.where(size > 0, size * tl.exp(tl.log(mean) / power), 0.0)
    new = tl.where(end > first, gamma * mean, old)
    if MODE == _POWER:
        new = tl.maximum(new, old)
    return old, new


@jit
def _graph_kernel(
    starts_N1, target_E, weight_E, node_offsets_G1, scalars_3, x_2N, N, largest,
    MODE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program a graph of at most ``largest`` nodes: all sweeps. Both copies of x hold the result.

    x_2N holds two copies of the values: sweep k reads copy k % 2 and writes the other. A row without edges (an end, or
    a node that nothing leaves) keeps its value in both.
    """
    graph = tl.program_id(0).to(tl.int64)
    begin = tl.load(node_offsets_G1 + graph)
    end = tl.load(node_offsets_G1 + graph + 1)
    gamma = tl.load(scalars_3)
    power = tl.load(scalars_3 + 1)
    threshold = tl.load(scalars_3 + 2)
    N = tl.cast(N, tl.int64)
    # A program of a larger graph has no row to go over.
    end = tl.where(end - begin <= largest, end, begin)
    k = begin * 0
    change = gamma * 0.0 + _INF
    while change > threshold:
        now = x_2N + (k % 2) * N
        after = x_2N + ((k + 1) % 2) * N
        changes = tl.zeros((ROWS,), tl.float64)
        for done in range(begin, end, ROWS):
            row = done + tl.arange(0, ROWS)
            inside = row < end
            old, new = _backed_up(row, inside, starts_N1, target_E, weight_E, now, gamma, power, MODE, ROWS, WIDTH)
            tl.store(after + row, new, mask=inside)
            changes = tl.maximum(changes, tl.abs(new - old))
        change = tl.max(changes, 0)
        # The next sweep gathers what other threads of this program wrote: a barrier orders that on NVIDIA, and on CDNA,
        # where a work-group's accesses pass one first-level cache in order.
        tl.debug_barrier()
        k += 1
    for done in range(begin, end, ROWS):
        row = done + tl.arange(0, ROWS)
        inside = row < end
        value = tl.load(x_2N + (k % 2) * N + row, mask=inside, other=0.0)
        tl.store(x_2N + ((k + 1) % 2) * N + row, value, mask=inside)


@jit
def _sweep_kernel(
    starts_N1, target_E, weight_E, first_T, end_T, graph_T, scalars_3, x_2N, change_BL, N, L, k,
    MODE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program a tile of ROWS nodes of one graph: sweep k, if sweep k - 1 changed that graph by enough.

    change_BL[b, l]: bits of the largest change of graph l. Floats that are not negative are ordered as their bits are,
    and a maximum does not show the order in which the programs come.
    """
    tile = tl.program_id(0).to(tl.int64)
    first = tl.load(first_T + tile)
    end = tl.load(end_T + tile)
    graph = tl.load(graph_T + tile)
    gamma = tl.load(scalars_3)
    power = tl.load(scalars_3 + 1)
    threshold = tl.load(scalars_3 + 2)
    N = tl.cast(N, tl.int64)
    L = tl.cast(L, tl.int64)
    k = tl.cast(k, tl.int64)
    now = x_2N + (k % 2) * N
    row = first + tl.arange(0, ROWS)
    here = change_BL + k * L + graph
    going = tl.load(here).to(tl.float64, bitcast=True) > threshold
    # A graph that has settled is carried over to the other copy, no row of it evaluated.
    swept = row < tl.where(going, end, first)
    old, new = _backed_up(row, swept, starts_N1, target_E, weight_E, now, gamma, power, MODE, ROWS, WIDTH)
    if going:
        tl.store(x_2N + ((k + 1) % 2) * N + row, new, mask=swept)
        change = tl.max(tl.where(swept, tl.abs(new - old), 0.0), 0)
        tl.atomic_max(here + L, change.to(tl.int64, bitcast=True))
    else:
        kept = tl.load(now + row, mask=row < end, other=0.0)
        tl.store(x_2N + ((k + 1) % 2) * N + row, kept, mask=row < end)


def _sweep_large(rows, node_offsets, large, scalars, threshold, x_2N, mode):
    """All sweeps of the graphs ``large`` (L,); copy 0 of x holds the result."""
    begin, end = node_offsets[large], node_offsets[large + 1]
    tiles = (end - begin + _ROWS - 1) // _ROWS
    graph = torch.repeat_interleave(torch.arange(len(large), device=large.device), tiles)
    place = torch.arange(len(graph), device=large.device) - (torch.cumsum(tiles, 0) - tiles)[graph]
    first, last = begin[graph] + place * _ROWS, end[graph]
    change = torch.full((1, len(large)), torch.inf, dtype=torch.float64, device=large.device)
    while bool((change[-1] > threshold).any()):
        change = torch.cat([change[-1:], change.new_zeros(_BATCH, len(large))])
        # _BATCH is even, so each batch starts on copy 0 and ends there.
        for k in range(_BATCH):
            launch(
                _sweep_kernel, (len(graph),), *rows, first, last, graph, scalars, x_2N, change.view(torch.int64),
                x_2N.shape[1], len(large), k, MODE=mode, ROWS=_ROWS, WIDTH=_WIDTH,
            )  # fmt: skip


def sweep_triton(rows, node_offsets, x, mode, gamma, power, threshold):
    """(nodes,): ``x`` after sweeps until no value of its graph changes by more than ``threshold``."""
    scalars = torch.tensor([gamma, power, threshold], dtype=torch.float64, device=x.device)
    node_offsets = node_offsets.contiguous()
    x_2N = torch.stack([x, x])
    launch(
        _graph_kernel, (len(node_offsets) - 1,), *rows, node_offsets, scalars, x_2N, len(x), LARGEST,
        MODE=mode, ROWS=_ROWS, WIDTH=_WIDTH,
    )  # fmt: skip
    large = torch.nonzero(node_offsets.diff() > LARGEST).squeeze(1)
    if len(large):
        _sweep_large(rows, node_offsets, large, scalars, threshold, x_2N, mode)
    return x_2N[0].clone()


@lazy_njit
def _backed_up_numba(starts, target, weight, x, s, mode, gamma, power):
    first, end = starts[s], starts[s + 1]
    if mode == LINEAR:
        total = 0
        for e in range(first, end):
            total += int(weight[e] * x[target[e]])
        return gamma * (total * UNIT)
    size = 0.0
    for e in range(first, end):
        size = max(size, x[target[e]])
    if mode == MAXIMUM or size == 0.0:
        return gamma * size
    total = 0
    for e in range(first, end):
        total += int(weight[e] * (x[target[e]] / size) ** power)
    return max(x[s], gamma * (size * (total * UNIT) ** (1 / power)))


@lazy_njit
def _components(starts, target, members, bounds):
    """Strongly connected components, each after all that it leads to. Returns their number.

    Component c is members[bounds[c] : bounds[c+1]] (``bounds`` has nodes+1 places). Tarjan, SIAM J. Comput. 1 (1972),
    with the calls on a stack of their own.
    """
    nodes = len(starts) - 1
    scratch = np.full((5, nodes), -1, np.int64)
    seen, low, at, path, open_nodes = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    number = done = reached = opened = 0
    for root in range(nodes):
        if seen[root] >= 0:
            continue
        depth = 0
        path[0] = root
        while depth >= 0:
            s = path[depth]
            if seen[s] < 0:
                seen[s] = low[s] = reached
                reached += 1
                at[s] = starts[s]
                open_nodes[opened] = s
                opened += 1
            deeper = False
            while at[s] < starts[s + 1]:
                to = target[at[s]]
                if seen[to] < 0:
                    deeper = True
                    break
                low[s] = min(low[s], low[to])
                at[s] += 1
            if deeper:
                depth += 1
                path[depth] = to
                continue
            if low[s] == seen[s]:
                bounds[number] = done
                number += 1
                while True:
                    opened -= 1
                    member = open_nodes[opened]
                    low[member] = nodes  # closed: no open node's low comes from here any more
                    members[done] = member
                    done += 1
                    if member == s:
                        break
            depth -= 1
    bounds[number] = done
    return number


@lazy_njit
def _sweep_components(starts, target, weight, members, bounds, number, x, mode, gamma, power, threshold):
    """Component after component, so that what leaves one is final; a component on no cycle takes one evaluation."""
    fresh = np.zeros(len(x))
    for c in range(number):
        begin, end = bounds[c], bounds[c + 1]
        s = members[begin]
        if end == begin + 1:
            cyclic = False
            for e in range(starts[s], starts[s + 1]):
                cyclic = cyclic or target[e] == s
            if not cyclic:
                if starts[s + 1] > starts[s]:
                    x[s] = _backed_up_numba(starts, target, weight, x, s, mode, gamma, power)
                continue
        change = threshold + 1.0
        while change > threshold:
            change = 0.0
            for i in range(begin, end):
                fresh[i] = _backed_up_numba(starts, target, weight, x, members[i], mode, gamma, power)
            for i in range(begin, end):
                change = max(change, fresh[i] - x[members[i]])
                x[members[i]] = fresh[i]


def sweep_numba(rows, node_offsets, x, mode, gamma, power, threshold):
    """As ``sweep_triton``, by components; a graph is a union of them, so ``node_offsets`` says nothing more."""
    starts, target, weight = (as_numpy(t) for t in rows)
    members, bounds = np.zeros((2, len(x) + 1), np.int64)
    number = _components(starts, target, members, bounds)
    x = x.clone()
    _sweep_components(starts, target, weight, members, bounds, number, x.numpy(), mode, gamma, power, threshold)
    return x
