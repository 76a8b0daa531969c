"""`dense_ids` beside `torch.unique` of rows, and beside the sort that CUDA takes."""

from collections.abc import Iterator

import torch
from measure import Case

from rtmc.kernels.ids import dense_ids


def cases(quick: bool, device: str) -> Iterator[Case]:
    steps = 100_000 if quick else 1_000_000
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 300, (steps,), generator=g).to(device) for _ in range(2))

    def by_sorts():
        """By first appearance too: rows sorted by both keys, runs of equal ones numbered by their first row."""
        order = torch.argsort(b, stable=True)
        order = order[torch.argsort(a[order], stable=True)]
        head = torch.ones(steps, dtype=torch.bool, device=device)
        head[1:] = (a[order].diff() != 0) | (b[order].diff() != 0)
        rank = torch.argsort(torch.argsort(order[head]))
        ids = torch.empty_like(order)
        ids[order] = rank[head.cumsum(0) - 1]
        return ids

    candidates = {
        "dense_ids": lambda: dense_ids(a, b)[0],
        "stable sorts in torch": by_sorts,
        "torch.unique of rows": lambda: torch.unique(torch.stack([a, b], 1), dim=0, return_inverse=True)[1],
    }

    def mismatched(ours, other) -> float:
        """Numberings may differ (by first appearance, sorted): both count the same, and so do the pairs of the two."""
        count = int(ours.max()) + 1
        pairs = torch.unique(ours * (int(other.max()) + 1) + other).numel()
        return abs(count - pairs) + abs(count - int(other.max()) - 1)

    name = f"dense_ids of two keys, {steps:,} rows"
    yield Case(name, candidates, device, steps * 24, mismatched, 0)
