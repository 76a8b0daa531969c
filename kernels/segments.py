"""Statistics of the rows that share a segment id.

With n rows x_i of weight w_i in a segment (w = 1 without weights), W = sum w_i:

    count = n    sum = sum w_i x_i    mean = sum / W    var = sum w_i (x_i - mean)^2 / W    min, max

``var`` is the population variance (ddof 0; for ddof 1 multiply by count / (count - 1)). The mean is known in
float64 before deviations are squared (two passes), so values that are large against their spread keep it.

A segment without rows has count 0, sum 0 and NaN for mean, var, min and max; a total weight of 0 gives mean
and var NaN. Rows of id -1 belong nowhere. ``count``, ``min`` and ``max`` do not look at weights.

Exact sums
----------
A float64 sum depends on the order of its terms; the estimators promise that the order of rows changes no bit.
So every term is cut on two fixed grids of the segment and the pieces are added, which is exact in any order:

    c1 = 1.5 * 2^k, 2^k >= (n + 2) max|x|     hi = (x + c1) - c1      x rounded to a multiple of 2^(k-52)
    c2 = 1.5 * 2^(k-53) * 2^ceil(log2(n+2))   lo = ((x - hi) + c2) - c2
    sum = (sum of hi) + (sum of lo)

x - hi is exact (a rounding error of an addition whose larger operand is the constant). Every partial sum of
hi is a multiple of 2^(k-52) below 2^(k+1), hence a float64 number: no rounding happens, so the additions
commute and associate; the same holds for lo. What is dropped is at most half a unit of the second grid per
term, about (n+2)^2 2^-106 max|x|: the result is within one rounding, plus n times that, of the true sum. k
comes from max|x| and n, which do not depend on order either. Any number of threads may add in any order, so the
same code serves one numba loop and a blocked kernel, bit for bit.

Terms of any finite size: where max|x| >= 2^900, x stands for 2^-192 x above and the sum is multiplied by 2^192 at the
end, so that no constant and no partial sum overflows (n < 2^63). Only bits far below the second grid are lost by that.
A sum beyond float64 is infinite, and its mean with it; so are squares of deviations from 2^512 on. Terms that are no
numbers follow IEEE rules: infinities of one sign stay, of both signs give NaN, and NaN stays.

Source: the grid is the pre-rounding of Rump, Ogita and Oishi, Accurate floating-point summation I (2008),
and of Demmel and Nguyen, Fast reproducible floating-point summation (2013).

Not here: which rows belong together (``ids.py``) and what the statistics are for.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    as_numpy,
    check_integers,
    check_tensor,
    jit,
    launch,
    next_power_of_2,
    register_op,
    tl,
)
from rtmc.kernels.segment_loop import _segment_loop

__all__ = ["SegmentStats", "segment_stats"]

_INF = tl.constexpr(float("inf"))
# Terms from LARGE on are added up as multiples of UP.
LARGE, DOWN, UP = 2.0**900, 2.0**-192, 2.0**192
_LARGE_FIELD = tl.constexpr(900 + 1023)  # of the exponent, as float64 stores it


class SegmentStats(NamedTuple):
    """Each (count,): ``count`` int64, the others in the dtype of the values. See ``segment_stats``."""

    count: torch.Tensor  # type: ignore[assignment]  # the contract's name hides tuple.count
    sum: torch.Tensor
    mean: torch.Tensor
    var: torch.Tensor
    min: torch.Tensor
    max: torch.Tensor


def _sum_reference(x: torch.Tensor) -> torch.Tensor:
    """Sorted, so that the order of the rows does not show here either."""
    finite = x.isfinite().all()
    if finite and x.abs().max() >= LARGE:
        return torch.sort(x * DOWN).values.sum() * UP
    # A partial sum of finite terms beside an infinite one is of no account, and must not overflow.
    return (torch.sort(x).values if finite else x[~x.isfinite()]).sum()


def _segment_reference(
    values: torch.Tensor, ids: torch.Tensor, count: int, weights: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    _check_ids(ids, count)
    result = torch.full((5, count), math.nan, dtype=torch.float64, device=values.device)
    result[0] = 0.0
    number = torch.zeros(count, dtype=torch.int64, device=values.device)
    for segment in range(count):
        inside = ids == segment
        number[segment] = inside.sum()
        if not inside.any():
            continue
        x = values[inside].double()
        w = torch.ones_like(x) if weights is None else weights[inside].double()
        total, mass = _sum_reference(w * x), _sum_reference(w)
        mean = total / mass
        var = _sum_reference(w * (x - mean) ** 2) / mass
        result[:, segment] = torch.stack([total, mean, var, x.min() + 0.0, x.max() + 0.0])  # a zero is +0
    return number, *(row.to(values.dtype, copy=True) for row in result.unbind(0))


@jit
def _field(x):
    """Exponent bits of a float64 that is not negative."""
    return (x.to(tl.int64, bitcast=True) >> 52) & 0x7FF


@jit
def grid_constants(bound, n):
    """(c1, c2, down) of "Exact sums" for float64 ``bound`` >= max|x| and int64 ``n`` terms, from the exponent bits.

    Beside a term that is no number the others are of no account, so that the bound may be infinite, or that of the
    finite terms alone.
    """
    bound_field = _field(bound)
    lower = tl.where(bound_field >= _LARGE_FIELD, bound_field * 0 + 192, 0)
    bound_field -= lower
    log_n = (((n + 2).to(tl.float64).to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1022
    field = bound_field + 1 + log_n
    first = tl.minimum(tl.maximum(field, 1), 2045)
    second = tl.maximum(first - 53 + log_n, 1)
    half = first * 0 + (1 << 51)
    return (
        ((first << 52) | half).to(tl.float64, bitcast=True),
        ((second << 52) | half).to(tl.float64, bitcast=True),
        ((1023 - lower) << 52).to(tl.float64, bitcast=True),
    )


@jit
def grid_parts(x, c1, c2, down):
    """(hi, lo) of "Exact sums". A term that is no number goes on in hi."""
    odd = magnitude(x) == _INF
    near = x * down
    hi = (near + c1) - c1
    lo = ((near - hi) + c2) - c2
    return tl.where(odd, x, hi), tl.where(odd, 0.0, lo)


@jit
def grid_total(hi, lo, down):
    """The sum, from the sums of the parts."""
    return (hi + lo) / down


@jit
def magnitude(x):
    """|x|, and infinity for NaN, so that one maximum finds all that is not finite."""
    return tl.where(x == x, tl.abs(x), _INF)


@jit
def _segment_load(values_S, weights_S, order_S, start, end, done, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """Block of a segment's rows as float64: (value, weight, mask); weight 1 without weights."""
    position = start + done + tl.arange(0, BLOCK)
    inside = position < end
    row = tl.load(order_S + position, mask=inside, other=0)
    x = tl.load(values_S + row, mask=inside, other=0.0).to(tl.float64)
    w = tl.where(inside, 1.0, 0.0).to(tl.float64)
    if WEIGHTED:
        w = tl.load(weights_S + row, mask=inside, other=0.0)
    return x, w, inside


@jit
def _segment_kernel(
    values_S, weights_S, order_S, starts_C1, count_C, stats_5C, C, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a segment; its rows are order_S[starts_C1[c] : starts_C1[c+1]]. Sweeps over them: bounds; sums; with
    weights, the bound of the squared deviations; sum of those."""
    segment = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_C1 + segment)
    end = tl.load(starts_C1 + segment + 1)
    n = end - start
    zero = tl.zeros((BLOCK,), tl.float64)

    low = zero + _INF
    high = zero - _INF
    bound_w = zero
    bound_wx = zero
    nan = zero
    for done in range(0, n, BLOCK):
        x, w, inside = _segment_load(values_S, weights_S, order_S, start, end, done, WEIGHTED, BLOCK)
        # A minimum on the device may skip NaN; count it apart.
        nan = tl.where(x == x, nan, 1.0)
        low = tl.where(inside & (x < low), x, low)
        high = tl.where(inside & (x > high), x, high)
        bound_w = tl.maximum(bound_w, magnitude(w))
        bound_wx = tl.maximum(bound_wx, magnitude(w * x))
    top_w = tl.max(bound_w, 0)
    top_wx = tl.max(bound_wx, 0)
    c1_w, c2_w, down_w = grid_constants(top_w, n)
    c1_wx, c2_wx, down_wx = grid_constants(top_wx, n)

    hi_w = zero
    lo_w = zero
    hi_wx = zero
    lo_wx = zero
    for done in range(0, n, BLOCK):
        x, w, inside = _segment_load(values_S, weights_S, order_S, start, end, done, WEIGHTED, BLOCK)
        hi, lo = grid_parts(w, c1_w, c2_w, down_w)
        hi_w += hi
        lo_w += lo
        hi, lo = grid_parts(w * x, c1_wx, c2_wx, down_wx)
        hi_wx += hi
        lo_wx += lo
    total_w = grid_total(tl.sum(hi_w, 0), tl.sum(lo_w, 0), down_w)
    total = grid_total(tl.sum(hi_wx, 0), tl.sum(lo_wx, 0), down_wx)
    mean = total / total_w

    absent = (n == 0) | (tl.max(nan, 0) > 0)
    # A zero is +0 whichever came first.
    lowest = tl.where(absent, float("nan"), tl.min(low, 0) + 0.0)
    highest = tl.where(absent, float("nan"), tl.max(high, 0) + 0.0)
    if WEIGHTED:
        bound_wdd = zero
        for done in range(0, n, BLOCK):
            x, w, inside = _segment_load(values_S, weights_S, order_S, start, end, done, WEIGHTED, BLOCK)
            d = tl.where(inside, x - mean, 0.0)
            bound_wdd = tl.maximum(bound_wdd, magnitude(w * (d * d)))
        top_wdd = tl.max(bound_wdd, 0)
    else:
        # Rounding keeps the order of numbers, so the largest deviation is that of an extreme value.
        top_wdd = tl.maximum(
            magnitude((lowest - mean) * (lowest - mean)), magnitude((highest - mean) * (highest - mean))
        )
    c1_wdd, c2_wdd, down_wdd = grid_constants(top_wdd, n)
    hi_wdd = zero
    lo_wdd = zero
    for done in range(0, n, BLOCK):
        x, w, inside = _segment_load(values_S, weights_S, order_S, start, end, done, WEIGHTED, BLOCK)
        d = tl.where(inside, x - mean, 0.0)
        hi, lo = grid_parts(w * (d * d), c1_wdd, c2_wdd, down_wdd)
        hi_wdd += hi
        lo_wdd += lo
    var = grid_total(tl.sum(hi_wdd, 0), tl.sum(lo_wdd, 0), down_wdd) / total_w

    dtype: tl.constexpr = stats_5C.dtype.element_ty
    C = tl.cast(C, tl.int64)
    tl.store(count_C + segment, n)
    tl.store(stats_5C + segment, total.to(dtype))
    tl.store(stats_5C + C + segment, mean.to(dtype))
    tl.store(stats_5C + 2 * C + segment, var.to(dtype))
    tl.store(stats_5C + 3 * C + segment, lowest.to(dtype))
    tl.store(stats_5C + 4 * C + segment, highest.to(dtype))


def rows_by_segment(ids: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(order (S,), starts (count+1,)): segment c is the rows order[starts[c] : starts[c+1]], in row order."""
    ordered, order = torch.sort(ids, stable=True)
    return order, torch.searchsorted(ordered, torch.arange(count + 1, device=ids.device))


def _segment_triton(
    values: torch.Tensor, ids: torch.Tensor, count: int, weights: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    _check_ids(ids, count)
    dtype = values.dtype
    # torch's cast to half is the one that the other backends use too.
    values = values.contiguous() if dtype.itemsize >= 4 else values.double().contiguous()
    order, starts = rows_by_segment(ids, count)
    number = torch.empty(count, dtype=torch.int64, device=values.device)
    stats = torch.empty(5, count, dtype=values.dtype, device=values.device)
    block = min(max(next_power_of_2(values.shape[0] // max(count, 1)), 32), 1024)
    launch(
        _segment_kernel,
        (count,),
        values,
        values if weights is None else weights.double().contiguous(),
        order,
        starts,
        number,
        stats,
        count,
        WEIGHTED=weights is not None,
        BLOCK=block,
        num_warps=max(block // 128, 1),
    )
    return number, *(row.to(dtype, copy=True) for row in stats.unbind(0))


def _segment_numba(
    values: torch.Tensor, ids: torch.Tensor, count: int, weights: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    # numba knows no half.
    wide = values.dtype if values.dtype.itemsize >= 4 else torch.float64
    number = torch.empty(count, dtype=torch.int64)
    stats = torch.empty(count, 5, dtype=torch.float64)
    w = torch.empty(0, dtype=torch.float64) if weights is None else weights
    arrays = (as_numpy(values, wide), as_numpy(ids), as_numpy(w, torch.float64), weights is not None)
    if not _segment_loop(*arrays, number.numpy(), stats.numpy()):
        _check_ids(ids, count)
    return number, *(column.to(values.dtype, copy=True) for column in stats.unbind(1))


def _segment_fake(
    values: torch.Tensor, ids: torch.Tensor, count: int, weights: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    return ids.new_empty(count), *(values.new_empty(count) for _ in range(5))


def _check_ids(ids: torch.Tensor, count: int) -> None:
    if ids.numel() == 0:
        return
    low, high = torch.stack(ids.aminmax()).tolist()
    if low < -1 or high >= count:
        raise ValueError(f"`ids`: got values from {low} to {high}; wanted -1 to {count - 1} (count - 1)")


_op = register_op(
    "segment_stats",
    "(Tensor values, Tensor ids, SymInt count, Tensor? weights=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=_segment_reference,
    triton=_segment_triton,
    numba=_segment_numba,
    fake=_segment_fake,
)


def segment_stats(
    values: torch.Tensor, ids: torch.Tensor, count: int | torch.Tensor, weights: torch.Tensor | None = None
) -> SegmentStats:
    """Count, sum, mean, population variance, minimum and maximum per segment (formulas: top of this file).

    Parameters
    ----------
    values : (S,) float16, bfloat16, float32 or float64
        Any strides, any row order. A caller that goes on computing with a mean passes float64: the result is
        rounded to this dtype, which at mean 1e4 and deviation 0.01 costs float32 the deviation.
    ids : (S,) int64, or int32, which is widened
        Segment of each row, 0 .. count-1; -1 = in no segment.
    count : int or 0-d integer tensor
        Number of segments (a tensor is read: on CUDA that waits for the device).
    weights : (S,) floating, optional

    Returns
    -------
    SegmentStats, each (count,); computed in float64 by exact sums and rounded once, so any permutation of the
    rows gives the same bits. Not differentiable.

    Raises TypeError or ValueError for a wrong dtype, shape, device, count, or an id outside -1 .. count-1.
    """
    check_tensor("values", values, dtypes=FLOAT_DTYPES, shape=("S",))
    ids = check_integers("ids", ids, shape=tuple(values.shape), device=values.device)
    if weights is not None:
        check_tensor("weights", weights, dtypes=FLOAT_DTYPES, shape=tuple(values.shape), device=values.device)
    if isinstance(count, torch.Tensor):
        count = int(check_integers("count", count, shape=()))
    if isinstance(count, np.integer):
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int | torch.SymInt):
        raise TypeError(f"`count`: got {count!r} ({type(count).__name__}); wanted the number of segments")
    if count < 0:
        raise ValueError(f"`count`: got {count}; wanted the number of segments, 0 or more")
    return SegmentStats(*_op(values, ids, count, weights))
