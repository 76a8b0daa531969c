"""Cases of ``graph_potential``: one linear system a graph, solved by numpy; for other powers, plain dictionaries."""

import functools
import math
from unittest.mock import patch

import numpy as np
import torch

from rtmc.kernels import graph_solve
from rtmc.kernels.graph_potential import graph_potential
from tests.kernel_cases import AotCase, offsets_of


def random_graphs(sizes, edges_per_node=0.6, seed=0, ends=True):
    """(source, target, count, node_offsets, goal): forward chains with jumps back, self-loops and doubled rows.

    Of each graph with at least 3 nodes the last is a success, the one before a failure; edges out of them are to be
    ignored.
    """
    g = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    source, target = [], []
    goal = torch.zeros(int(offsets[-1]), dtype=torch.int64)
    for begin, n in zip(offsets.tolist(), sizes, strict=False):
        rows = int(n * edges_per_node)
        if not rows:
            continue
        s = torch.randint(0, n, (rows,), generator=g)
        t = (s + torch.randint(-4, 6, (rows,), generator=g)).clamp(0, n - 1)
        # The way along the chain, one edge past the failure, and three rows twice.
        chain = torch.arange(n - 1)
        past = (chain + 1 + (chain == n - 3)).clamp_max(n - 1)
        source.append(torch.cat([s, chain, s[:3]]) + begin)
        target.append(torch.cat([t, past, t[:3]]) + begin)
        if ends and n >= 3:
            goal[begin + n - 1], goal[begin + n - 2] = 1, -1
    source = torch.cat([torch.zeros(0, dtype=torch.int64), *source])
    target = torch.cat([torch.zeros(0, dtype=torch.int64), *target])
    count = torch.randint(0, 6, source.shape, generator=g)
    count[(target > source) & (count == 0)] = 1
    order = torch.randperm(len(source), generator=g)
    return source[order], target[order], count[order], offsets, goal


def frequencies(source, target, count, goal):
    """node -> {successor: frequency} for nodes that are no end."""
    table: dict[int, dict[int, float]] = {}
    for s, t, n in zip(source.tolist(), target.tolist(), count.tolist(), strict=True):
        if n > 0 and goal[s] == 0:
            row = table.setdefault(s, {})
            row[t] = row.get(t, 0.0) + n
    return {s: {t: n / sum(row.values()) for t, n in row.items()} for s, row in table.items()}


def by_definition(source, target, count, node_offsets, goal, gamma_bar, power=1.0):
    """(nodes,) float64. Power 1: all graphs as one dense system. Else: rounds over a dictionary until all is still."""
    table = frequencies(source, target, count, goal)
    value = (goal > 0).double().numpy()
    if power == 1.0:
        system = np.eye(len(value))
        for s, row in table.items():
            for t, p in row.items():
                system[s, t] -= gamma_bar * p
        return torch.from_numpy(np.linalg.solve(system, value))
    now = dict(enumerate(value.tolist()))
    for _ in range(1500):
        after = dict(now)
        for s, row in table.items():
            if power == math.inf:
                after[s] = gamma_bar * max(now[t] for t in row)
            else:
                after[s] = gamma_bar * sum(p * now[t] ** power for t, p in row.items()) ** (1 / power)
        if after == now:
            break
        now = after
    return torch.tensor([now[s] for s in range(len(value))], dtype=torch.float64)


def placed(graphs, device, how="contiguous"):
    """The tensors on the device: as they are, with strides, or starting in the middle of other memory."""
    out = []
    for tensor in graphs:
        moved = tensor.to(device)
        if how == "int32":
            moved = moved.int()
        elif how == "strided":
            moved = torch.stack([moved, torch.zeros_like(moved)], 1)[:, 0]
        elif how == "unaligned":
            moved = torch.cat([moved[:0].new_zeros(1), moved])[1:]
        out.append(moved)
    return tuple(out)


def check(device, graphs, gamma_bar, power=1.0, tol=1e-6, how="contiguous"):
    truth = by_definition(*graphs, gamma_bar, power)
    got = graph_potential(*placed(graphs, device, how), gamma_bar, power, tol)
    assert got.dtype == torch.float64
    assert got.shape == graphs[-1].shape
    if gamma_bar > 0 and (graphs[-1] == -1).any():
        assert ((truth > tol) & (truth < 0.99)).any(), "a case in which nothing is learnt"
    error = (got.cpu() - truth).abs().max().item() if len(truth) else 0.0
    # The bound that the op promises, and the rounding of the truth.
    assert error <= tol + 1e-13, f"off by {error}"


def check_types(device, ids, counts, marks):
    source, target, count, offsets, goal = random_graphs([9, 8], seed=5)
    graphs = (source.to(ids), target.to(ids), count.to(counts), offsets, goal.to(marks))
    check(device, graphs, 0.8, tol=1e-9)


def check_weights(device):
    """Counts that are no integers, in two orders."""
    source, target, count, offsets, goal = random_graphs([6, 7], seed=6)
    g = torch.Generator().manual_seed(1)
    weight = count * torch.rand(count.shape, generator=g, dtype=torch.float64)
    check(device, (source, target, weight, offsets, goal), 0.8, tol=1e-9)
    rows = torch.randperm(len(source), generator=g)
    one = graph_potential(*placed((source, target, weight, offsets, goal), device), 0.8)
    other = graph_potential(*placed((source[rows], target[rows], weight[rows], offsets, goal), device), 0.8)
    assert torch.equal(one, other)


def check_two_ways(device, power):
    """Graphs of one program each and of many tiles, which stop at different sweeps: equal to the bit."""
    graphs = placed(random_graphs([9, 0, 21, 12, 35], seed=7), device)
    one = graph_potential(*graphs, 0.85, power, 1e-2)
    for largest in (20, 0):
        patches = {"LARGEST": largest, "_ROWS": 16, "_BATCH": 4}
        with patch.multiple(graph_solve, **patches):
            assert torch.equal(graph_potential(*graphs, 0.85, power, 1e-2), one)


def check_order(device, power):
    """Rows permuted, counts split over rows, nodes renumbered, graphs exchanged: the same bits for each node."""
    source, target, count, offsets, goal = random_graphs([20, 30], seed=8)
    one = graph_potential(*placed((source, target, count, offsets, goal), device), 0.85, power, 1e-4)
    g = torch.Generator().manual_seed(3)
    part = (count * torch.rand(count.shape, generator=g)).long()
    rows = torch.randperm(2 * len(source), generator=g)
    # New numbers: the second graph first, and inside a graph any.
    number = torch.cat([torch.randperm(20, generator=g) + 30, torch.randperm(30, generator=g)])
    marks = torch.zeros_like(goal).scatter_(0, number, goal)
    s, t = (number[torch.cat([ids, ids])[rows]] for ids in (source, target))
    counts = torch.cat([part, count - part])[rows]
    other = graph_potential(*placed((s, t, counts, offsets_of([30, 20]), marks), device), 0.85, power, 1e-4)
    assert torch.equal(other[number.to(device)], one)


def cases():
    mixed = random_graphs([0, 1, 2, 3, 30, 0, 17], seed=1)
    for power in (1.0, 0.5, 3.0, math.inf):
        yield f"cycles, power {power:g}", functools.partial(check, graphs=mixed, gamma_bar=0.8, power=power)
    for power in (1.0, 3.0):
        yield f"any order, power {power:g}", functools.partial(check_order, power=power)
        yield f"two ways, power {power:g}", functools.partial(check_two_ways, power=power)
    yield "the paper's discount", functools.partial(check, graphs=random_graphs([30], seed=2), gamma_bar=0.95)
    yield "tight", functools.partial(check, graphs=random_graphs([30], seed=2), gamma_bar=0.9, tol=1e-12)
    yield "gamma_bar 0", functools.partial(check, graphs=mixed, gamma_bar=0.0)
    yield "no end", functools.partial(check, graphs=random_graphs([20], seed=3, ends=False), gamma_bar=0.8)
    for nodes in (1023, 1024, 1025):
        graphs = random_graphs([nodes], seed=nodes)
        yield f"{nodes} nodes", functools.partial(check, graphs=graphs, gamma_bar=0.5)
    hub = (torch.zeros(600, dtype=torch.int64), torch.arange(600), torch.arange(600), torch.tensor([0, 600]))
    marks = (torch.arange(600) % 3 == 1).long()
    yield "a row of 600 edges", functools.partial(check, graphs=(*hub, marks), gamma_bar=0.5)
    for how in ("strided", "unaligned", "int32"):
        yield how, functools.partial(check, graphs=random_graphs([20, 20], seed=4), gamma_bar=0.8, how=how)
    for types in ((torch.int32, torch.int32, torch.bool), (torch.int64, torch.float16, torch.float32)):
        yield f"{types}", functools.partial(check_types, ids=types[0], counts=types[1], marks=types[2])
    yield "weights", check_weights
    yield "no edge", functools.partial(check, graphs=random_graphs([4, 0], edges_per_node=0), gamma_bar=0.8)
    yield "no node", functools.partial(check, graphs=random_graphs([0, 0]), gamma_bar=0.8)
    yield "no graph", functools.partial(check, graphs=random_graphs([]), gamma_bar=0.8)


def aot():
    from rtmc.kernels.graph_solve import _ROWS, _WIDTH, LINEAR, MAXIMUM, POWER, _graph_kernel, _sweep_kernel

    for mode in (LINEAR, POWER, MAXIMUM):
        sizes = {"MODE": mode, "ROWS": _ROWS, "WIDTH": _WIDTH}
        yield AotCase(_graph_kernel, "*i64 *i64 *fp64 *i64 *fp64 *fp64 i32 i32", sizes)
        if mode != MAXIMUM:  # a part of the other modes' row
            yield AotCase(_sweep_kernel, "*i64 *i64 *fp64 *i64 *i64 *i64 *fp64 *fp64 *i64 i32 i32 i32", sizes)
    # A size of 1 reaches the kernel as a compile-time constant.
    sizes = {"MODE": LINEAR, "ROWS": _ROWS, "WIDTH": _WIDTH}
    yield AotCase(_graph_kernel, "*i64 *i64 *fp64 *i64 *fp64 *fp64 i32", {"N": 1, **sizes})
    types = "*i64 *i64 *fp64 *i64 *i64 *i64 *fp64 *fp64 *i64 i32"
    yield AotCase(_sweep_kernel, types, {"L": 1, "k": 1, **sizes})
