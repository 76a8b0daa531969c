"""`segment_stats`: hand-worked statistics, exact sums against rational arithmetic, order, strides, refusals.

The sizes around a block and every backend: ``tests/kernel_cases/segments.py``.
"""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels import segment_loop, segments, tree_climb, tree_loop
from rtmc.kernels.segments import segment_stats

TOP = 1.7976931348623157e308
SIZES = st.floats(-1e30, 1e30, allow_subnormal=True)


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def test_hand_worked(device, backend):
    values = torch.tensor([1.0, 5.0, 3.0, 100.0, -2.0], device=device)
    ids = torch.tensor([0, 2, 0, -1, 2], device=device)
    got = segment_stats(values, ids, torch.tensor(3))
    nan = math.nan
    assert got.count.tolist() == [2, 0, 2]
    assert got.sum.tolist() == [4.0, 0.0, 3.0]
    wanted = {"mean": [2.0, nan, 1.5], "var": [1.0, nan, 12.25], "min": [1.0, nan, -2.0], "max": [3.0, nan, 5.0]}
    for field, value in wanted.items():
        torch.testing.assert_close(getattr(got, field).cpu(), torch.tensor(value), rtol=0, atol=0, equal_nan=True)


def test_weights_by_hand(device, backend):
    # Segment 0: values 1 and 4 of weights 2 and 1: mean 2, variance (2 * 1 + 1 * 4) / 3. Segment 1: no weight.
    values = torch.tensor([1.0, 4.0, 7.0], dtype=torch.float64, device=device)
    weights = torch.tensor([2.0, 1.0, 0.0], device=device)
    got = segment_stats(values, torch.tensor([0, 0, 1], device=device), 2, weights)
    assert got.count.tolist() == [2, 1]
    assert got.sum.tolist() == [6.0, 0.0]
    assert got.mean[0].item() == 2.0
    assert got.var[0].item() == 2.0
    assert got.mean[1].isnan()
    assert got.var[1].isnan()
    assert got.max.tolist() == [4.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mean", "spread"), [(1e6, 1.0), (1e4, 0.01)])
def test_large_against_the_spread(device, backend, dtype, mean, spread):
    torch.manual_seed(0)
    values = (torch.randn(5000, dtype=torch.float64) * spread + mean).to(dtype)
    got = segment_stats(values.to(device), torch.zeros(5000, dtype=torch.int64, device=device), 1)
    exact = [Fraction(x) for x in values.tolist()]
    centre = sum(exact) / len(exact)
    truth = float(sum((x - centre) ** 2 for x in exact) / len(exact))
    # The float64 mean is off by half a unit at most, which enters the variance squared; then one rounding.
    assert got.var.item() == pytest.approx(truth, rel=2 * torch.finfo(dtype).eps)


@settings(max_examples=150, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=80))
def test_sums_are_within_one_rounding_of_the_exact_sum(values):
    got = segment_stats(torch.tensor(values, dtype=torch.float64), torch.zeros(len(values), dtype=torch.int64), 1)
    exact = sum(map(Fraction, values), Fraction(0))
    n, top = len(values), max(map(abs, values))
    # Head of the file: one rounding of the result, and half a unit of the second grid for each term.
    allowed = abs(exact) * Fraction(1, 2**53) + n * (n + 3) ** 2 * Fraction(top) * Fraction(8, 2**106)
    assert abs(Fraction(got.sum.item()) - exact) <= allowed + Fraction(1, 2**1074)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIZES, st.integers(-1, 3), st.floats(0, 100)), min_size=1, max_size=60), st.randoms())
def test_any_order_gives_the_same_bits(rows, random):
    def stats(some):
        x, i, w = zip(*some, strict=True)
        return segment_stats(torch.tensor(x, dtype=torch.float64), torch.tensor(i), 4, torch.tensor(w).double())

    shuffled = random.sample(rows, len(rows))
    for a, b in zip(stats(rows), stats(shuffled), strict=True):
        assert torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0))


def test_a_plain_float64_sum_would_not_pass():
    """The rows of the property above do tell orders apart."""
    x = torch.tensor([1e16, 1.0, -1e16, 1.0], dtype=torch.float64)
    assert sum(x.tolist()) != sum(x.sort().values.tolist())
    got = segment_stats(x, torch.zeros(4, dtype=torch.int64), 1)
    assert got.sum.item() == 2.0


def test_other_segments_change_no_bit():
    torch.manual_seed(3)
    x, i = torch.randn(500, dtype=torch.float64), torch.randint(0, 5, (500,))
    together = segment_stats(x, i, 5)
    for c in range(5):
        alone = segment_stats(x[i == c], torch.zeros(int((i == c).sum()), dtype=torch.int64), 1)
        assert all(torch.equal(a[c : c + 1], b) for a, b in zip(together, alone, strict=True))


def test_the_grid_is_the_formula_of_the_file():
    """Both constants from exact powers of two: 2^k >= (n + 2) bound, at most 4 times more."""
    for n in (1, 2, 3, 1000, 2**40):
        for bound in (1.0, 0.75, 1e-300, 3e200, 2.0**-1074):
            c1, c2 = segment_loop._grid_constants_numba(bound, n)
            assert tree_loop._grid(bound, n) == (c1, c2)
            top = Fraction(c1) / Fraction(3, 2)
            assert top >= (n + 2) * Fraction(bound)
            # Below the smallest normal number every sum is exact anyway.
            assert top <= 4 * (n + 2) * max(Fraction(bound), Fraction(1, 2**1022))
            second = Fraction(c2) / Fraction(3, 2)
            assert second >= min(top, (n + 2) * top / 2**53)


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 1.7e308, allow_subnormal=True), st.integers(0, 2**40))
def test_the_copies_of_the_grid_are_equal(bound, n):
    """numba's cache follows no call into another file, so each loop has the constants in its own. ``tree_climb`` is
    given no bound of 2^900 or more."""
    want = segment_loop._grid_constants_numba(bound, n)
    assert tree_loop._grid(bound, n) == want
    if bound < segments.LARGE:
        assert tree_climb._grid_numba(bound, n) == want
    assert (
        (segment_loop.LARGE, segment_loop.DOWN) == (tree_loop.LARGE, tree_loop.DOWN) == (segments.LARGE, segments.DOWN)
    )
    assert segments.DOWN * segments.UP == 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-TOP, TOP) | st.sampled_from([TOP, -TOP, TOP / 3, 1e300]), min_size=1), st.randoms())
def test_sums_of_any_finite_size_are_exact_in_any_order(values, random):
    """The sum of fractions, to one rounding (infinite where that has no float64), whatever the order."""
    ids = torch.zeros(len(values), dtype=torch.int64)
    got = segment_stats(torch.tensor(values, dtype=torch.float64), ids, 1)
    shuffled = random.sample(values, len(values))
    again = segment_stats(torch.tensor(shuffled, dtype=torch.float64), ids, 1)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(got, again, strict=True))
    exact, n = sum(map(Fraction, values), Fraction(0)), len(values)
    allowed = abs(exact) / 2**52 + n * (n + 3) ** 2 * Fraction(max(map(abs, values))) / 2**103 + Fraction(1, 2**1073)
    total = got.sum.item()
    if math.isinf(total):
        assert abs(exact) + allowed >= Fraction(2**1024 - 2**970)
        assert (total > 0) == (exact > 0)
    else:
        assert abs(Fraction(total) - exact) <= allowed


def test_strides(device, backend):
    base = torch.randn(30, 4, device=device)
    ids = torch.randint(-1, 3, (30, 2), device=device)
    for x, i in ((base[::2, 1], ids[::2, 0]), (base.t()[2], ids.t()[1]), (base[:1, 0].expand(30), ids[:, 1])):
        got, want = segment_stats(x, i, 3), segment_stats(x.contiguous(), i.contiguous(), 3)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_unaligned_rows_and_int32_ids(device, backend):
    base, ids = torch.randn(41, device=device), torch.randint(-1, 3, (41,), device=device)
    want = segment_stats(base[1:].clone(), ids[1:].clone(), 3)
    for some in (ids[1:], ids.int()[1:]):
        assert all(torch.equal(a, b) for a, b in zip(segment_stats(base[1:], some, 3), want, strict=True))


def test_a_million_rows_twice(device):
    g = torch.Generator().manual_seed(0)
    values, ids = torch.randn(10**6, generator=g).to(device), torch.randint(0, 100, (10**6,), generator=g).to(device)
    one, two = (segment_stats(values, ids, 100) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_float32_values_that_cancel(device, backend):
    """Sum 1,000 of terms of size 1e8: exact inside, so one rounding of the mean to float32 is all that is lost."""
    values = torch.tensor([1e8, 1.0, -1e8, 1.0] * 500, device=device)
    got = segment_stats(values, torch.zeros(2000, dtype=torch.int64, device=device), 1)
    wide = segment_stats(values.double(), torch.zeros(2000, dtype=torch.int64, device=device), 1)
    assert wide.sum.item() == 1000.0
    assert abs(got.mean.item() - wide.mean.item()) <= 2.0**-24 * 0.5


def test_a_zero_is_positive_whichever_came_first(device, backend):
    for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0]):
        ids = torch.zeros(len(values), dtype=torch.int64, device=device)
        got = segment_stats(torch.tensor(values, device=device), ids, 1)
        assert [math.copysign(1.0, getattr(got, field).item()) for field in ("sum", "min", "max")] == [1.0, 1.0, 1.0]


def test_opcheck(device):
    values, ids = torch.randn(6, device=device), torch.tensor([0, 1, 1, -1, 0, 2], device=device)
    # No empty segment: opcheck compares NaN with NaN as different.
    torch.library.opcheck(torch.ops.rtmc.segment_stats, (values, ids, 3))
    torch.library.opcheck(torch.ops.rtmc.segment_stats, (values.double(), ids, 3, torch.rand(6, device=device)))


X, IDS = torch.ones(3), torch.tensor([0, 1, -1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X.long(), IDS, 2), ValueError, "`values`: got int64"),
        ((X, IDS[:2], 2), ValueError, r"`ids`: .*\(2,\).*\(3,\)"),
        ((X, IDS.float(), 2), ValueError, "`ids`: got float32"),
        ((X, IDS.to("meta"), 2), ValueError, "`ids`: .*on meta; wanted .*on cpu"),
        ((X, IDS, 2, torch.ones(3, device="meta")), ValueError, "`weights`: .*on meta; wanted .*on cpu"),
        ((X, torch.tensor([0, 1, 2]), 2), ValueError, "`ids`: got values from 0 to 2; wanted -1 to 1"),
        ((X, torch.tensor([0, -2, 1]), 2, X), ValueError, "`ids`: got values from -2 to 1; wanted -1 to 1"),
        ((X, IDS, 1), ValueError, "`ids`: got values from -1 to 1; wanted -1 to 0"),
        ((X, IDS - 1, 2), ValueError, "`ids`: got values from -2 to 0"),
        ((X, IDS, -1), ValueError, "`count`: got -1"),
        ((X.to_sparse(), IDS, 2), ValueError, "`values`: got a tensor of layout sparse_coo; wanted a dense"),
        ((X, IDS.short(), 2), ValueError, "`ids`: got int16.*wanted int64 or int32"),
        ((X, IDS, 2.0), TypeError, "`count`: got 2.0"),
        ((X, IDS, torch.tensor([2])), ValueError, r"`count`: .*\(1,\)"),
        ((X, IDS, 2, torch.ones(2)), ValueError, r"`weights`: .*\(2,\).*\(3,\)"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        segment_stats(*arguments)
