"""Cases of ``segment_stats``: exact rational arithmetic, row by row."""

import functools
import math
from fractions import Fraction

import torch

from rtmc.kernels.segments import _segment_numba, segment_stats
from tests.kernel_cases import PLACES, AotCase, close


def exact(values, ids, count, weights=None):
    """(count, 6) in float64 from fractions, which round nowhere."""
    rows: list[list[tuple[Fraction, Fraction]]] = [[] for _ in range(count)]
    ones = torch.ones_like(values) if weights is None else weights
    for x, c, w in zip(values.tolist(), ids.tolist(), ones.tolist(), strict=True):
        if c >= 0:
            rows[c].append((Fraction(w), Fraction(x)))
    out = torch.full((count, 6), math.nan, dtype=torch.float64)
    for c, terms in enumerate(rows):
        out[c, 0], out[c, 1] = len(terms), 0.0
        if terms:
            total_w = sum(w for w, _ in terms)
            total = sum(w * x for w, x in terms)
            out[c, 1] = float(total)
            if total_w:
                mean = total / total_w
                out[c, 2] = float(mean)
                out[c, 3] = float(sum(w * (x - mean) ** 2 for w, x in terms) / total_w)
            out[c, 4] = float(min(x for _, x in terms))
            out[c, 5] = float(max(x for _, x in terms))
    return out


def check(device, rows, count, dtype, mean=0.0, spread=1.0, weighted=False, strided=False, place=None):
    torch.manual_seed(rows + count)
    values = (torch.randn(rows, dtype=torch.float64) * spread + mean).to(dtype)
    ids = torch.randint(-1, max(count - 1, 1), (rows,)) if count else torch.full((rows,), -1)
    weights = torch.rand(rows) if weighted else None
    truth = exact(values, ids, count, weights)

    def placed(t):
        if place is not None:
            return place(t.to(device))
        return torch.stack([t, t], 1).to(device)[:, 0] if strided else t.to(device)

    got = segment_stats(placed(values), placed(ids), count, None if weights is None else placed(weights))
    assert got.count.dtype == torch.int64
    assert torch.equal(got.count.cpu(), truth[:, 0].long())
    # One rounding to the dtype. In float64 a weighted term, a mean and a square each round before; the mean's
    # error enters the variance relative to mean / spread.
    unit = torch.finfo(dtype).eps
    size = max(abs(mean), spread)
    for column, field in enumerate(("sum", "mean", "var", "min", "max"), start=1):
        close(getattr(got, field), truth[:, column], rtol=4 * unit, atol=rows * size * 2.0**-52)


def check_order(device):
    """Any row order, the same bits; with terms that cancel over 30 orders of magnitude."""
    torch.manual_seed(0)
    size = 700
    values = torch.randn(size, dtype=torch.float64) * 10.0 ** torch.randint(-15, 15, (size,))
    ids, weights = torch.randint(-1, 4, (size,)), torch.rand(size, dtype=torch.float64)
    first = segment_stats(values.to(device), ids.to(device), 4, weights.to(device))
    for _ in range(3):
        p = torch.randperm(size)
        again = segment_stats(values[p].to(device), ids[p].to(device), 4, weights[p].to(device))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    # Exact sums leave nothing to the backend either.
    twin = _segment_numba(values, ids, 4, weights)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(first, twin, strict=True))


def check_odd_values(device):
    inf, nan = math.inf, math.nan
    values = torch.tensor([1.0, inf, nan, 3.0, inf, -inf, 5e-324, 5e-324, -0.0], dtype=torch.float64)
    ids = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4])
    got = segment_stats(values.to(device), ids.to(device), 6)
    close(got.sum, torch.tensor([inf, nan, nan, 1e-323, 0.0, 0.0], dtype=torch.float64), rtol=0)
    close(got.mean, torch.tensor([inf, nan, nan, 5e-324, 0.0, nan], dtype=torch.float64), rtol=0)
    close(got.min, torch.tensor([1.0, nan, -inf, 5e-324, 0.0, nan], dtype=torch.float64), rtol=0)
    close(got.max, torch.tensor([inf, nan, inf, 5e-324, 0.0, nan], dtype=torch.float64), rtol=0)
    close(got.var, torch.tensor([nan, nan, nan, 0.0, 0.0, nan]), rtol=0)


def check_large(device):
    """Terms up to the largest number, whose partial sums would overflow; beside a segment of small ones."""
    top = torch.finfo(torch.float64).max
    values = [top, top, -top, -top, 1e300, 3.0, -1e300, 1.0, 2.0, top, top, 2.0**900, -(2.0**899)]
    ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4])
    values, ids = torch.tensor(values, dtype=torch.float64, device=device), ids.to(device)
    weights = torch.ones_like(values)
    for w, factor, high in ((None, 1.0, math.inf), (weights, 1.0, math.inf), (weights / 2, 0.5, top)):
        got = segment_stats(values, ids, 5, w)
        # 3 lies far below the last bit of the second grid of 1e300: nothing is left of it.
        assert got.sum.tolist() == [0.0, 0.0, 3.0 * factor, high, 2.0**899 * factor]
        assert got.mean.tolist() == [0.0, 0.0, 1.5, high, 2.0**898]
        assert got.var[2].item() == 0.25
        assert got.max.tolist() == [top, 1e300, 2.0, top, 2.0**900]
    huge = segment_stats(torch.ones_like(values), ids, 5, values.abs())  # weights of that size
    assert huge.mean.isnan().tolist() == [True, False, False, True, False]  # infinity over infinity
    assert huge.mean[[1, 2, 4]].tolist() == [1.0, 1.0, 1.0]
    # Squares: 1e150 and -1e150 have variance 1e300, 1e155 and -1e155 one that float64 cannot hold.
    for size, variance in ((1e150, 1e300), (1e155, math.inf)):
        pair = torch.tensor([size, -size], dtype=torch.float64, device=device)
        got = segment_stats(pair, torch.zeros(2, dtype=torch.int64, device=device), 1)
        close(got.var, torch.tensor([variance], dtype=torch.float64), rtol=1e-15)


def check_expanded(device):
    got = segment_stats(torch.tensor([0.7], device=device).expand(9), torch.tensor([1], device=device).expand(9), 2)
    assert got.count.tolist() == [0, 9]
    close(got.mean[1:], torch.tensor([0.7]), rtol=1e-7)


def cases():
    for rows in (0, 1, 1023, 1024, 1025):
        yield f"{rows} rows", functools.partial(check, rows=rows, count=7, dtype=torch.float32)
    for dtype in (torch.float32, torch.float64):
        for mean, spread in ((1e6, 1.0), (1e4, 0.01)):
            name = f"mean {mean:g}, deviation {spread:g}, {dtype}"
            yield name, functools.partial(check, rows=600, count=3, dtype=dtype, mean=mean, spread=spread)
    yield "weights", functools.partial(check, rows=500, count=5, dtype=torch.float64, weighted=True, strided=True)
    for dtype in (torch.float16, torch.bfloat16):
        yield f"{dtype}", functools.partial(check, rows=90, count=4, dtype=dtype, weighted=True)
    yield "no segment", functools.partial(check, rows=5, count=0, dtype=torch.float32)
    yield "any order", check_order
    yield "values that are no numbers", check_odd_values

    yield "values near the largest", check_large
    for name, place in PLACES.items():
        yield name, functools.partial(check, rows=200, count=4, dtype=torch.float32, weighted=True, place=place)
    yield "expanded", check_expanded


def aot():
    from rtmc.kernels.segments import _segment_kernel

    kinds = (("fp32", False, 32), ("fp64", False, 1024), ("fp64", True, 1024), ("fp32", True, 32), ("fp32", True, 1024))
    for scalar, weighted, block in kinds:
        yield AotCase(
            _segment_kernel,
            f"*{scalar} *fp64 *i64 *i64 *i64 *{scalar} i32",
            {"WEIGHTED": weighted, "BLOCK": block},
            num_warps=max(block // 128, 1),
        )
    # A size of 1 reaches the kernel as a compile-time constant.
    types = "*fp64 *fp64 *i64 *i64 *i64 *fp64"
    yield AotCase(_segment_kernel, types, {"C": 1, "WEIGHTED": False, "BLOCK": 1024}, num_warps=8)
