"""`graph_potential` beside a sparse direct solve of each graph and value iteration over dictionaries.

The graphs are forward chains with jumps back and forth: about a third of their nodes lie on cycles.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from measure import Case

from rtmc.kernels.graph_potential import graph_potential

GAMMA, TOL = 0.95, 1e-6


def graphs(number: int, nodes: int, edges: int) -> tuple[torch.Tensor, ...]:
    """(source, target, count, node_offsets, goal); the last node of a graph is a success, the one before a failure."""
    g = torch.Generator().manual_seed(0)
    chain = torch.arange(nodes - 2).expand(number, -1)
    ahead = (chain + torch.randint(1, 6, chain.shape, generator=g)).clamp(max=nodes - 1)
    source = torch.randint(0, nodes - 2, (number, edges - nodes + 2), generator=g)
    target = (source + torch.randint(-20, 20, source.shape, generator=g)).clamp(0, nodes - 1)
    begin = torch.arange(number)[:, None] * nodes
    source, target = ((torch.cat(parts, 1) + begin).flatten() for parts in ((chain, source), (ahead, target)))
    goal = torch.zeros(number, nodes, dtype=torch.int64)
    goal[:, -1], goal[:, -2] = 1, -1
    count = torch.randint(1, 5, source.shape, generator=g)
    return source, target, count, torch.arange(number + 1) * nodes, goal.flatten()


def sparse_solve(
    source: torch.Tensor, target: torch.Tensor, count: torch.Tensor, node_offsets: torch.Tensor, goal: torch.Tensor
) -> torch.Tensor:
    """(I - gamma M) Phi = goal, graph after graph; the rows of a graph stand together."""
    import numpy as np
    from scipy.sparse import csr_matrix, diags, identity
    from scipy.sparse.linalg import spsolve

    offsets, marks = node_offsets.numpy(), goal.numpy()
    ordinary = marks[source.numpy()] == 0
    s, t, n = (column.numpy()[ordinary] for column in (source, target, count))
    out = np.zeros(len(marks))
    bounds = np.searchsorted(s // (offsets[1] - offsets[0]), np.arange(len(offsets)))
    for k, (begin, end) in enumerate(pairwise(offsets)):
        rows, size = slice(bounds[k], bounds[k + 1]), end - begin
        table = csr_matrix((n[rows].astype(float), (s[rows] - begin, t[rows] - begin)), shape=(size, size))
        leaving = np.maximum(np.asarray(table.sum(1)).ravel(), 1.0)
        system = identity(size, format="csr") - GAMMA * diags(1 / leaving) @ table
        out[begin:end] = spsolve(system.tocsc(), (marks[begin:end] == 1).astype(float))
    return torch.from_numpy(out)


def dictionaries(
    source: torch.Tensor, target: torch.Tensor, count: torch.Tensor, node_offsets: torch.Tensor, goal: torch.Tensor
) -> torch.Tensor:
    """Value iteration in plain Python until the error is below the tolerance, all graphs together."""
    marks = goal.tolist()
    rows: dict[int, dict[int, int]] = {}
    for s, t, n in zip(source.tolist(), target.tolist(), count.tolist(), strict=True):
        if marks[s] == 0:
            row = rows.setdefault(s, {})
            row[t] = row.get(t, 0) + n
    shares = {s: [(t, n / sum(row.values())) for t, n in row.items()] for s, row in rows.items()}
    value = {s: float(mark == 1) for s, mark in enumerate(marks)}
    change = 1.0
    while GAMMA * change > TOL * (1 - GAMMA):
        new = {s: GAMMA * sum(p * value[t] for t, p in row) for s, row in shares.items()}
        change = max(abs(new[s] - value[s]) for s in new)
        value.update(new)
    return torch.tensor(list(value.values()), dtype=torch.float64)


def dense_solve(
    source: torch.Tensor, target: torch.Tensor, count: torch.Tensor, node_offsets: torch.Tensor, goal: torch.Tensor
) -> torch.Tensor:
    """All graphs, of one size, as one batch of dense systems."""
    graphs = node_offsets.shape[0] - 1
    size = goal.shape[0] // graphs
    n = torch.where(goal[source] == 0, count, 0).double()
    table = n.new_zeros(graphs * size * size).index_add_(0, source * size + target % size, n).view(graphs, size, size)
    p = table / table.sum(2, keepdim=True).clamp(min=1.0)
    fixed = (goal == 1).double().view(graphs, size)
    return torch.linalg.solve(torch.eye(size, dtype=n.dtype, device=n.device) - GAMMA * p, fixed).reshape(-1)


def apart(ours: torch.Tensor, other: torch.Tensor) -> float:
    return (ours.cpu() - other.cpu()).abs().max().item()


def cases(quick: bool, device: str) -> Iterator[Case]:
    for number, nodes, edges in (
        ((16, 300, 400), (1, 10_000, 14_000)) if quick else ((64, 300, 400), (1, 100_000, 140_000))
    ):
        inputs = graphs(number, nodes, edges)
        placed = [t.to(device) for t in inputs]
        candidates = {
            "graph_potential": partial(graph_potential, *placed, GAMMA, 1.0, TOL),
            "scipy spsolve": partial(sparse_solve, *inputs),
        }
        if number > 1:  # ten seconds on the large graph; and its dense system would take 80 GB
            candidates["dictionaries"] = partial(dictionaries, *inputs)
            candidates["dense solve in torch"] = partial(dense_solve, *placed)
        # Rows of source, target and count; marks and results of the nodes; where the graphs begin.
        moved = 24 * inputs[0].numel() + 16 * number * nodes + 8 * (number + 1)
        # Ours and the dictionaries both stop below, each within the tolerance.
        yield Case(f"graph_potential, {number} x {nodes:,} nodes", candidates, device, moved, apart, TOL)
