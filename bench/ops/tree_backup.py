"""`tree_backup` beside the walk over node objects that the methods' authors write, and a level at a time in torch."""

import math
from collections.abc import Iterator

import torch
from measure import Case
from peers import largest

from rtmc.kernels.tree_backup import tree_backup


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Rows as they were sampled, and in any order."""
    for shuffled in (False, True):
        yield case(100 if quick else 2_000, 200, shuffled, device)


def case(trees: int, turns: int, shuffled: bool, device: str) -> Case:
    """Every node is a child of one of the 20 before it in its tree."""
    nodes = trees * turns
    g = torch.Generator().manual_seed(0)
    at = torch.arange(nodes)
    place = at % turns
    back = 1 + (torch.rand(nodes, generator=g) * place.clamp(max=20)).long()
    order = torch.randperm(nodes, generator=g) if shuffled else at
    new_row = torch.cat([torch.argsort(order), torch.tensor([-1])])
    parent = new_row[torch.where(place == 0, -1, at - back)[order]].to(device)
    value, score = torch.randn(2, nodes, generator=g).to(device).unbind(0)

    def dictionaries():
        above, x, entropy = parent.tolist(), value.tolist(), score.tolist()
        children: dict[int, list[int]] = {}
        for node, p in enumerate(above):
            children.setdefault(p, []).append(node)
        b: dict[int, float] = {}
        stack = [(root, False) for root in children[-1]]
        while stack:
            node, ready = stack.pop()
            below = children.get(node)
            if below is None:
                b[node] = x[node]
            elif ready:
                top = max(entropy[c] for c in below)
                weights = [math.exp(entropy[c] - top) for c in below]
                b[node] = sum(w * b[c] for w, c in zip(weights, below, strict=True)) / sum(weights)
            else:
                stack.append((node, True))
                stack.extend((c, False) for c in below)
        return torch.tensor([b[node] for node in range(nodes)], dtype=torch.float32, device=device)

    def levels():
        """Depths by steps up, then index_add from the deepest level; not repeatable on CUDA, one host wait a level."""
        safe, depth, up = parent.clamp(min=0), torch.zeros_like(parent), parent
        while (going := up >= 0).any():
            depth += going
            up = torch.where(going, parent[up.clamp(min=0)], -1)
        top = torch.full((nodes,), -torch.inf, device=device).scatter_reduce(0, safe, score, "amax")
        weight = torch.where(parent >= 0, (score - top[safe]).double().exp(), 0.0)
        mass = torch.zeros(nodes, dtype=torch.float64, device=device).index_add(0, safe, weight)
        b = torch.where(mass > 0, 0.0, value.double())
        for level in range(int(depth.max()), 0, -1):
            rows = (depth == level).nonzero()[:, 0]
            b.index_add_(0, parent[rows], weight[rows] / mass[parent[rows]] * b[rows])
        return b.float()

    candidates = {
        "tree_backup": lambda: tree_backup(value, parent, score),
        "dictionaries in Python": dictionaries,
        "levels in torch": levels,
    }
    name = f"tree_backup, {trees:,} trees of {turns}{', shuffled' if shuffled else ''}"
    return Case(name, candidates, device, nodes * 20, largest, 1e-5)
