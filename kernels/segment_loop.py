"""Statistics of segments on the CPU: one numba loop, from values to the five columns.

Formulas and "Exact sums": ``segments.py``, whose reference is the specification of this file too.

Not here: argument checks and the conversion to numpy.
"""

import math

import numpy as np

from rtmc.kernels.backend import lazy_njit

# As in segments.py: terms from LARGE on are multiplied by DOWN (the twin of UP) as they are added up.
LARGE, DOWN = 2.0**900, 2.0**-192


@lazy_njit
def _grid_constants_numba(bound, n):
    """Twin of ``grid_constants``; ``bound`` finite. frexp gives the power of two above a number."""
    exponent = max(math.frexp(bound)[1], -1022) if bound > 0.0 else -1022
    if bound >= LARGE:
        exponent -= 192
    log_n = math.frexp(float(n + 2))[1]
    first = min(max(exponent + 1023 + log_n, 1), 2045)
    second = max(first - 53 + log_n, 1)
    return math.ldexp(1.5, first - 1023), math.ldexp(1.5, second - 1023)


@lazy_njit
def _constants(bound, n):
    """The grid's constants; infinite where the bound is, which marks a segment whose finite terms do not count."""
    return _grid_constants_numba(bound, n) if bound < math.inf else (math.inf, math.inf)


@lazy_njit
def _segment_loop(values, ids, weights, weighted, number, stats_C5):
    """Fills ``number`` and the rows (sum, mean, var, min, max). Returns False, having filled nothing, where an id has
    no segment; ``weights`` is read where ``weighted``.

    What a row touches in one sweep lies in one cache line of its segment: that, not arithmetic, is what a sweep costs.
    """
    count = len(number)
    # n; low and high of x; c1, c2, the two sums and the scale of the terms w x. Later c1, c2 and the sums of
    # w (x - mean)^2, with the mean in the scale's place and the scale in that of n.
    cells = np.zeros((count, 8))
    # Bound of w x, then the scale of w; bound, then c1, c2 and the sums of w.
    of_weights = np.zeros((count if weighted else 0, 5))
    for c in range(count):
        cells[c, 1], cells[c, 2] = math.inf, -math.inf
    for i in range(len(values)):
        c = ids[i]
        if c < -1 or c >= count:
            return False
        if c < 0:
            continue
        x = float(values[i])
        cells[c, 0] += 1.0
        if x < cells[c, 1] or x != x:
            cells[c, 1] = x
        if x > cells[c, 2] or x != x:
            cells[c, 2] = x
        if weighted:
            size = abs(weights[i] * x)
            if not size <= of_weights[c, 0]:
                of_weights[c, 0] = size if size == size else math.inf
            size = abs(weights[i])
            if not size <= of_weights[c, 1]:
                of_weights[c, 1] = size if size == size else math.inf

    for c in range(count):
        number[c] = int(cells[c, 0])
        if weighted:
            bound = of_weights[c, 0]
            of_weights[c, 0] = DOWN if of_weights[c, 1] >= LARGE else 1.0
            of_weights[c, 1], of_weights[c, 2] = _constants(of_weights[c, 1], number[c])
        else:
            low, high = abs(cells[c, 1]), abs(cells[c, 2])
            bound = max(low, high) if number[c] > 0 and low == low else math.inf if number[c] > 0 else 0.0
        cells[c, 3], cells[c, 4] = _constants(bound, number[c])
        cells[c, 7] = DOWN if bound >= LARGE else 1.0
    for i in range(len(values)):
        c = ids[i]
        if c < 0:
            continue
        x = float(values[i])
        if weighted:
            w = weights[i]
            x *= w
            c1 = of_weights[c, 1]
            if c1 < math.inf:
                w *= of_weights[c, 0]
                hi = (w + c1) - c1
                of_weights[c, 3] += hi
                of_weights[c, 4] += ((w - hi) + of_weights[c, 2]) - of_weights[c, 2]
            elif not abs(w) < math.inf:
                of_weights[c, 3] += w
        c1 = cells[c, 3]
        if c1 < math.inf:
            x *= cells[c, 7]
            hi = (x + c1) - c1
            cells[c, 5] += hi
            cells[c, 6] += ((x - hi) + cells[c, 4]) - cells[c, 4]
        elif not abs(x) < math.inf:
            cells[c, 5] += x

    for c in range(count):
        total_w = (of_weights[c, 3] + of_weights[c, 4]) / of_weights[c, 0] if weighted else cells[c, 0]
        total = (cells[c, 5] + cells[c, 6]) / cells[c, 7]
        mean = total / total_w
        stats_C5[c, 0], stats_C5[c, 1], stats_C5[c, 2] = total, mean, total_w
        # A zero is +0 whichever came first.
        stats_C5[c, 3] = cells[c, 1] + 0.0 if number[c] > 0 else math.nan
        stats_C5[c, 4] = cells[c, 2] + 0.0 if number[c] > 0 else math.nan
        # Rounding keeps the order of numbers, so without weights the largest deviation is that of an extreme value.
        low, high = cells[c, 1] - mean, cells[c, 2] - mean
        bound = max(low * low, high * high)
        bound = bound if low == low and high == high else math.inf
        if weighted:
            of_weights[c, 0] = 0.0
        else:
            bound = bound if number[c] > 0 else 0.0
            cells[c, 0] = DOWN if bound >= LARGE else 1.0
            cells[c, 3], cells[c, 4] = _constants(bound, number[c])
        cells[c, 5], cells[c, 6], cells[c, 7] = 0.0, 0.0, mean
    if weighted:
        for i in range(len(values)):
            c = ids[i]
            if c >= 0:
                d = values[i] - cells[c, 7]
                size = abs(weights[i] * (d * d))
                if not size <= of_weights[c, 0]:
                    of_weights[c, 0] = size if size == size else math.inf
        for c in range(count):
            cells[c, 0] = DOWN if of_weights[c, 0] >= LARGE else 1.0
            cells[c, 3], cells[c, 4] = _constants(of_weights[c, 0], number[c])
    for i in range(len(values)):
        c = ids[i]
        if c < 0:
            continue
        d = values[i] - cells[c, 7]
        x = d * d
        if weighted:
            x *= weights[i]
        c1 = cells[c, 3]
        if c1 < math.inf:
            x *= cells[c, 0]
            hi = (x + c1) - c1
            cells[c, 5] += hi
            cells[c, 6] += ((x - hi) + cells[c, 4]) - cells[c, 4]
        elif not abs(x) < math.inf:
            cells[c, 5] += x
    for c in range(count):
        stats_C5[c, 2] = (cells[c, 5] + cells[c, 6]) / cells[c, 0] / stats_C5[c, 2]
    return True
