"""The success potential of states on graphs of pooled transitions: the fixed point behind GraphHCA.

With n(s,x) = the number of transitions seen from s to x and n(s) = sum_x n(s,x), over all nodes of many graphs at once,

    Phi(s) = gamma_bar * ( sum_x n(s,x)/n(s) * Phi(x)^power )^(1/power)      an ordinary node
    Phi(s) = 1 on success ends, 0 on failure ends and on an ordinary node that nothing was seen to leave (empty sum)

``power`` 1 is the expectation: Phi(s) = E[gamma_bar^(steps to success) 1{success}] for a walk that follows the
frequencies. Larger powers lean to the best successor; at infinity Phi(s) = gamma_bar^(fewest steps to a success).
Cycles and self-loops need nothing of their own; a node from which no success is reached is worth 0, so a graph without
a success end is 0 everywhere. No unit: Phi is a discounted probability in [0, 1].

``gamma_bar`` lies below 1. It is the discount of the propagation, and all that makes the map a contraction: at 1 nodes
of a closed cycle have no single value, and no number of sweeps bounds the error.

The bound on the error
----------------------
T, the right side, is a contraction: |T(x) - T(y)| <= g |x - y| in the largest difference, g = gamma_bar. (For power at
least 1 the bracket is the L^power norm under the row's frequencies: Minkowski. For power < 1 we iterate u = Phi^power,
which solves the same equation with power 1 and g = gamma_bar^power; the error of Phi is at most 1/power times that of
u, so u is wanted to power * tol.) Sweeps x_k = T(x_{k-1}) start from below: 1 on success ends, 0 elsewhere. Let d bound
the error of one computed evaluation of T, and let a node's last sweep have changed nothing by more than c. Then

    |T(x) - x| <= g c + d    at every node, so    |Phi - x| <= (g c + d) / (1-g)

whether all nodes are swept together (CUDA) or one strongly connected component after another with what it leads to
final (CPU). Sweeps stop at g c <= tol (1-g) / 2, so the *true* error is at most tol if d <= tol (1-g) / 2.

The sweeps are bounded: c_k <= g c_{k-1} + 2d, hence c_k <= g^k + 2d / (1-g), and with d <= tol (1-g)^2 / 8 the rule
stops after at most K = ceil(log(tol (1-g) / 4) / log g) - 1 of them: 354 at gamma_bar 0.95 and tol 1e-6. For smaller
tol, or gamma_bar closer to 1, rounding could hold up the last sweeps but not for ever: every operation of a computed
sweep is monotone, so values never fall, and each further sweep lifts one of them by more than the threshold.

For power <= 1 and infinity d <= 2^-50 + edges * 2^-62, edges being the most that leave one node; a ``tol`` that this
does not allow is refused (at 0.95 and a thousand nodes what is below 4e-14). For other powers d is larger by up to
p^(1/power - 1) / power, p being the smallest frequency of a transition.

Same bits in any order
----------------------
A term of a row's sum is weight * value <= 1, taken as an integer in units of 2^-62 (rounded towards 0), so that the
sum is exact in any order. A node's value is then a function of its successors' values alone, and what is swept together
is set by the graph alone: permuting the rows, splitting an integer count over rows, renumbering the nodes and moving or
adding graphs change no bit of any node, and nodes whose futures are copies of each other get equal values. CPU and CUDA
each approach Phi from below, so they differ by at most tol.

Source: GraphHCA, arXiv 2609.35084, sections on the graph estimate and on the power-mean ablation; edge frequencies in
place of action frequencies (the same where a state and an action have one outcome) as in its sister paper CRBC.

Not here: which states are one node, what ends an episode (a virtual end is a node like any other, that the caller
adds), the floor, logarithms and advantages.
"""

import math

import torch

from rtmc.kernels import segments as _segments
from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    check_integers,
    check_offsets,
    check_range,
    check_tensor,
    register_op,
)
from rtmc.kernels.graph_solve import (
    LINEAR,
    MAXIMUM,
    POWER,
    UNIT,
    pool_numba,
    pool_sorted,
    pooled_rows,
    sweep_numba,
    sweep_triton,
)

__all__ = ["graph_potential"]

_INTEGERS = (torch.int64, torch.int32)
_LARGEST_COUNT = 2**53
_LARGEST_TOTAL = 2.0**62  # of integer counts, whose sums are int64


def _graph_reference(source, target, count, node_offsets, goal, gamma_bar, power, tol):
    """Dense float64 matrices: a direct solve, or for power > 1 sweeps until gamma_bar^k is below all rounding.

    ``tol`` does not enter: the result is as near as float64 comes.
    """
    live, x = _checked(source, target, count, node_offsets, goal)
    for begin, end in zip(node_offsets[:-1].tolist(), node_offsets[1:].tolist(), strict=True):
        inside = live & (source >= begin) & (source < end)
        wide = torch.float64 if count.dtype.is_floating_point else torch.int64
        n = torch.zeros(end - begin, end - begin, dtype=wide, device=x.device)
        # Sorted, so that the order of the rows does not show here either.
        order = torch.sort(count[inside]).indices
        at = tuple(ids[inside][order] - begin for ids in (source, target))
        n.index_put_(at, count[inside][order].to(wide), accumulate=True)
        leaving = n.sum(1, keepdim=True).double()
        p = n.double() / torch.where(leaving > 0, leaving, 1.0)
        fixed = x[begin:end]
        if power <= 1:
            a = torch.eye(end - begin, dtype=torch.float64, device=x.device) - gamma_bar**power * p
            # A solve may leave -1e-17 where the truth is 0, which has no root.
            x[begin:end] = torch.linalg.solve(a, fixed).clamp_min(0.0) ** (1 / power)
            continue
        value = fixed
        sweeps = 1 if gamma_bar == 0 else math.ceil(-60 * math.log(2) / math.log(gamma_bar))
        for _ in range(sweeps if end > begin else 0):
            size = torch.where(p > 0, value, 0.0).amax(1)
            mean = 1.0
            if power < math.inf:
                mean = (p * (value / torch.where(size > 0, size, 1.0)[:, None]) ** power).sum(1) ** (1 / power)
            value = torch.where(leaving[:, 0] > 0, gamma_bar * size * mean, fixed)
        x[begin:end] = value
    return x


def _checked(source, target, count, node_offsets, goal):
    """(live (E,) bool: the rows that count, x (nodes,) float64: 1 on success ends, 0 elsewhere); or raises.

    On CUDA this waits for the device twice. What a kernel would read outside its tensors is worth the wait.
    """
    nodes = goal.shape[0]
    check_offsets("node_offsets", node_offsets, nodes, "node")
    x = (goal > 0).double()
    odd = (goal != 0) & (goal != 1) & (goal != -1)
    if source.shape[0] == 0:
        if bool(odd.any()):
            _refuse("goal", goal, odd, "1 (success end), -1 (failure end) or 0")
        return torch.zeros_like(source, dtype=torch.bool), x
    graph = torch.repeat_interleave(
        torch.arange(len(node_offsets) - 1, device=goal.device), node_offsets.diff(), output_size=nodes
    )
    outside = [(ids < 0) | (ids >= nodes) for ids in (source, target)]
    apart = torch.zeros_like(outside[0])
    live = apart
    if nodes > 0:
        here, there = (ids.clamp(0, nodes - 1) for ids in (source, target))
        apart = graph[here] != graph[there]
        live = (count > 0) & (goal[here] == 0)
    # In a dtype that tells 2^53 from what is larger; NaN is refused too.
    exact = count.double() if count.dtype.is_floating_point else count.long()
    uncounted = ~((exact >= 0) & (exact <= _LARGEST_COUNT))
    beyond = torch.zeros((), dtype=torch.bool, device=goal.device)
    if not count.dtype.is_floating_point:
        beyond = count.double().sum() >= _LARGEST_TOTAL
    faults = torch.stack([*(part.any() for part in (odd, *outside, uncounted, apart)), beyond]).tolist()
    span = f"a node, 0 to {nodes - 1}" if nodes else "no row where there is no node"
    for fault, name, values, where, wanted in zip(
        faults,
        ("goal", "source", "target", "count"),
        (goal, source, target, count),
        (odd, *outside, uncounted),
        ("1 (success end), -1 (failure end) or 0", span, span, "a number of transitions, 0 to 2^53"),
        strict=False,
    ):
        if fault:
            _refuse(name, values, where, wanted)
    if faults[-1]:
        total = sum(count.tolist())
        raise ValueError(f"`count`: got integers of sum {total}; wanted one below 2^62, as sums are int64")
    if faults[-2]:
        row = int(apart.long().argmax())
        a, b = int(source[row]), int(target[row])
        raise ValueError(
            f"`target`: row {row} goes from node {a} of graph {int(graph[a])} to node {b} of graph {int(graph[b])}; "
            "wanted both in one graph of `node_offsets`"
        )
    return live, x


def _refuse(name: str, values: torch.Tensor, where: torch.Tensor, wanted: str) -> None:
    row = int(where.long().argmax())
    raise ValueError(f"`{name}`: got {values[row].item()} in row {row}; wanted {wanted}")


def _solved(source, target, count, node_offsets, goal, gamma_bar, power, tol, pool, stats_of, sweep):
    """Both backends; ``pool``, ``stats_of`` and ``sweep`` are that backend's own."""
    live, x = _checked(source, target, count, node_offsets, goal)
    if source.shape[0] == 0:
        return x
    rows = pooled_rows(source, target, count, live, goal.shape[0], pool, stats_of)
    if power < 1:
        factor, tol = gamma_bar**power, power * tol
    else:
        factor = gamma_bar
    mode = MAXIMUM if power == math.inf else POWER if power > 1 else LINEAR
    threshold = tol * (1 - factor) / (2 * factor) if factor > 0 else math.inf
    x = sweep(rows, node_offsets, x, mode, factor, power, threshold)
    return x ** (1 / power) if power < 1 else x


def _graph_triton(source, target, count, node_offsets, goal, gamma_bar, power, tol):
    parts = (pool_sorted, _segments._segment_triton, sweep_triton)
    return _solved(source, target, count, node_offsets, goal, gamma_bar, power, tol, *parts)


def _graph_numba(source, target, count, node_offsets, goal, gamma_bar, power, tol):
    parts = (pool_numba, _segments._segment_numba, sweep_numba)
    return _solved(source, target, count, node_offsets, goal, gamma_bar, power, tol, *parts)


def _graph_fake(source, target, count, node_offsets, goal, gamma_bar, power, tol):
    return goal.new_empty(goal.shape[0], dtype=torch.float64)


_op = register_op(
    "graph_potential",
    "(Tensor source, Tensor target, Tensor count, Tensor node_offsets, Tensor goal, float gamma_bar, "
    "float power=1.0, float tol=1e-06) -> Tensor",
    reference=_graph_reference,
    triton=_graph_triton,
    numba=_graph_numba,
    fake=_graph_fake,
)


def graph_potential(
    source: torch.Tensor,
    target: torch.Tensor,
    count: torch.Tensor,
    node_offsets: torch.Tensor,
    goal: torch.Tensor,
    gamma_bar: float,
    power: float = 1.0,
    tol: float = 1e-6,
) -> torch.Tensor:
    """Success potential of every node of many graphs (formula and guarantees: top of this file).

    Parameters
    ----------
    source, target : (E,) int64 or int32
        Nodes that a row of transitions leaves and reaches, numbered through all graphs, both in one graph. Any order;
        rows of the same pair add up.
    count : (E,) int64, int32 or floating
        Number (or weight) of the row's transitions, 0 .. 2^53; integers less than 2^62 in all. A row of 0 says nothing.
    node_offsets : (G+1,) int64 or int32
        Graph g is nodes node_offsets[g] : node_offsets[g+1]; equal neighbours are an empty graph.
    goal : (nodes,) bool, integer or floating
        1 (True) = success end, pinned to 1; -1 = failure end, pinned to 0; 0 = ordinary. What leaves an end is
        ignored. A node that nothing leaves is worth 0 without a mark.
    gamma_bar : float in [0, 1)
        Discount per transition.
    power : float in (0, inf]
        Of the mean over successors: 1 the expectation, infinity the largest.
    tol : float in (0, 1]
        Largest error of any node; below what float64 can promise it is refused.

    Returns
    -------
    (nodes,) float64, in [0, 1]. Not differentiable: statistics of what was seen.

    Raises TypeError or ValueError for a wrong dtype, shape, device or number, a node outside the graphs, an edge
    between two graphs, a negative, infinite or NaN count, or offsets that are no partition.
    """
    source = check_integers("source", source, shape=("E",))
    rows, device = tuple(source.shape), source.device
    target = check_integers("target", target, shape=rows, device=device)
    check_tensor("count", count, dtypes=(*_INTEGERS, *FLOAT_DTYPES), shape=rows, device=device)
    node_offsets = check_integers("node_offsets", node_offsets, shape=("G+1",), device=device)
    if node_offsets.shape[0] == 0:
        raise ValueError("`node_offsets`: got no element; wanted G+1 of them (no graph at all is [0])")
    marks = (torch.bool, torch.int8, *_INTEGERS, *FLOAT_DTYPES)
    check_tensor("goal", goal, dtypes=marks, shape=("nodes",), device=device)
    gamma_bar = check_range("gamma_bar", gamma_bar, 0.0, 1.0, high_open=True)
    power = check_range("power", power, 0.0, math.inf, low_open=True)
    tol = check_range("tol", tol, 0.0, 1.0, low_open=True)
    factor = gamma_bar ** min(power, 1.0)
    rounding = 2.0**-50 + min(goal.shape[0], source.shape[0]) * UNIT
    least = math.inf if factor == 1 else 2 * rounding / (1 - factor) / min(power, 1.0)
    if tol < least:
        raise ValueError(
            f"`tol`: got {tol!r}; wanted at least {least:.2g}, what float64 can promise at gamma_bar {gamma_bar!r} and "
            f"power {power!r}"
        )
    return _op(source, target, count, node_offsets, goal, gamma_bar, power, tol)
