"""`segment_stats` beside `index_add` and `scatter_reduce`."""

from collections.abc import Iterator

import torch
from measure import Case
from peers import largest, reference

from rtmc.kernels.segments import segment_stats


def cases(quick: bool, device: str) -> Iterator[Case]:
    steps, count = (20_000, 500) if quick else (1_000_000, 5000)  # none stays empty
    g = torch.Generator().manual_seed(0)
    values = torch.randn(steps, generator=g).to(device)
    ids = torch.randint(0, count, (steps,), generator=g).to(device)

    def ours():
        stats = segment_stats(values, ids, count)
        return stats.mean, stats.var, stats.min, stats.max

    def plain():
        """Two passes in float64, as ours; index_add is not repeatable on CUDA."""
        wide = values.double()
        n = torch.zeros(count, dtype=torch.float64, device=device).index_add(0, ids, torch.ones_like(wide))
        mean = torch.zeros_like(n).index_add(0, ids, wide) / n
        var = torch.zeros_like(n).index_add(0, ids, (wide - mean[ids]) ** 2) / n
        low, high = (
            torch.full((count,), start, device=device).scatter_reduce(0, ids, values, reduce)
            for start, reduce in ((torch.inf, "amin"), (-torch.inf, "amax"))
        )
        return mean, var, low, high

    candidates = {"segment_stats": ours, "index_add in torch": plain}
    if quick:  # a loop over segments in Python: minutes at the full size
        candidates["reference"] = reference(ours)
    yield Case(f"segment_stats, {steps:,} rows in {count:,}", candidates, device, steps * 12, largest, 1e-5)
