"""`prefix_groups` beside a trie of dictionaries, and beside TEMPO's comparison of every row with every other."""

from collections.abc import Iterator

import torch
from measure import Case

from rtmc.kernels.prefix import prefix_groups


def cases(quick: bool, device: str) -> Iterator[Case]:
    """One group of rows that share their first half, then part in pairs, in fours and so on: a rollout tree."""
    rows, length = (16, 4_000) if quick else (64, 50_000)
    g = torch.Generator().manual_seed(0)
    table = torch.randint(0, 50_000, (1, length), generator=g).expand(rows, length).clone()
    shared, width = length // 2, rows
    while width > 1:
        width //= 2
        part = torch.randint(0, 50_000, (rows // width, length - shared), generator=g)
        table[:, shared:] = part.repeat_interleave(width, 0)
        shared += (length - shared) // 2
    table = table.to(device)
    tokens, offsets = table.reshape(-1), (torch.arange(rows + 1) * length).to(device)
    group = torch.zeros(rows, dtype=torch.int64, device=device)

    def trie():
        ids, flat = [], tokens.tolist()
        children: dict[tuple[int, int], int] = {}
        for n in range(rows):
            node = -1
            for token in flat[n * length : (n + 1) * length]:
                node = children.setdefault((node, token), len(children))
                ids.append(node)
        return torch.tensor(ids, device=device)

    def all_pairs():
        """Each token's first row with the same prefix: O(N^2 L), as the walk over pairs, but in torch."""
        first = torch.empty_like(table)
        for n in range(rows):
            same = (table == table[n]).long().cumprod(1)
            first[n] = same.argmax(0)
        return (first * length + torch.arange(length, device=device)).reshape(-1)

    def mismatched(ours, other) -> float:
        """Equal ids in one where equal in the other: as many of each as of the pairs."""
        pairs = torch.unique(torch.stack([ours, other]), dim=1).shape[1]
        return abs(ours.unique().numel() - pairs) + abs(other.unique().numel() - pairs)

    candidates = {
        "prefix_groups": lambda: prefix_groups(tokens, offsets, group),
        "trie of dictionaries": trie,
        "all pairs in torch": all_pairs,
    }
    name = f"prefix_groups, {rows} rows of {length:,}"
    yield Case(name, candidates, device, rows * length * 16, mismatched, 0)
