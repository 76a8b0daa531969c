"""The CPU code of ``token_loss``: the same formulas (token_loss.py) as loops that a compiler can vectorise.

Tokens are taken in chunks of a fixed size, one row of sums each, and the rows are added up in their order; so a
result has the same bits however many threads work (``torch.get_num_threads()`` of them, for more than one chunk).
Inside a chunk, tiles of ``_TILE`` tokens stay in the first cache: one loop gathers, with masked tokens replaced by
zeros, so that a NaN of theirs meets no product; the others are arithmetic without branches. Each sum runs in
``_LANES`` lanes of fixed order. All of it is float64.

exp is written out, because numba calls the C library's for each number where Intel's vector library is absent:
x = k log 2 + r with |r| <= log(2) / 2, a polynomial of degree 12 in r, and 2^k by its bits; within 2 units in the
last place.

Not here: the definition, the argument checks and the op (token_loss.py).
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from rtmc.kernels.backend import as_numpy, lazy_njit

__all__ = ["run_chunks"]

_CHUNK = 65536
_TILE = 256
_LANES = 16
_ROWS = 10
# Places of the arrays in a tile's scratch space: of one block at known distances, or the compiler, which has to
# expect that two arrays overlap, vectorises nothing.
_ON, _A, _D, _W, _X, _LEVEL, _SURPRISE, _RATIO, _VALUE = range(0, 9 * _TILE, _TILE)
_SLOPE, _PENALTY, _RISE, _APPROX_KL, _BELOW, _ABOVE, _CAPS, _FAR = range(9 * _TILE, 17 * _TILE, _TILE)


@lazy_njit
def _exp_numba(x):
    """exp of a number <= 20, 0 below -700; NaN stays NaN."""
    low = x < -700.0
    bounded = -700.0 if low else x
    # Adding 1.5 * 2^52 rounds to an integer, whose low bits are then those of the sum.
    shifted = np.float64(bounded * 1.4426950408889634 + 6755399441055744.0)
    k = shifted - 6755399441055744.0
    r = (bounded - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    tail = 1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r / 479001600))
    tail = 1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * (1 / 40320 + r * tail)))
    power = 1.0 + r * (1.0 + r * (0.5 + r * (1 / 6 + r * (1 / 24 + r * tail))))
    two_to_k = np.int64((shifted.view(np.int64) << 52) + 0x3FF0000000000000).view(np.float64)
    return 0.0 if low else power * two_to_k


@lazy_njit
def _k3_numba(y, exp_y):
    """exp(y) - 1 - y; near 0 by eight terms of its series, which cancel nothing."""
    tail = 1 / 720 + y * (1 / 5040 + y * (1 / 40320 + y / 362880))
    near = y * y * (0.5 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * tail))))
    return near if abs(y) < 0.125 else exp_y - 1.0 - y


@lazy_njit
def _lane_sum_numba(s, row, lanes):
    """Sum of one row over the unmasked tokens of a tile: a fixed order whatever the width of the machine's vectors."""
    lanes[:] = 0.0
    for start in range(0, _TILE, _LANES):
        for lane in range(_LANES):
            lanes[lane] += s[row + start + lane] * s[_ON + start + lane]
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total


@lazy_njit
def _token_loss_numba(
    first, last, logprob, old, advantage, step_of_token, rollout_of_token, weight, ref, segment, entropy, entropy_z,
    has_weight, has_ref, has_segment, has_entropy, per, clip_low, clip_high, dual_clip, kl, kl_mode, high_passes,
    grad, sums,
):  # fmt: skip
    s = np.zeros(17 * _TILE)
    lanes = np.zeros(_LANES)
    low, high = 1.0 - clip_low, 1.0 + clip_high
    infinity = np.inf
    for start in range(first, last, _TILE):
        size = min(_TILE, last - start)
        for j in range(_TILE):
            i = start + j
            here = j < size and step_of_token[min(i, last - 1)] >= 0 and rollout_of_token[min(i, last - 1)] >= 0
            s[_ON + j] = 1.0 if here else 0.0
            if here:
                index = step_of_token[i] if per == 0 else (rollout_of_token[i] if per == 1 else i)
                s[_A + j] = advantage[index]
                s[_D + j] = np.float64(logprob[i]) - np.float64(old[i])
                s[_W + j] = weight[i] if has_weight else 1.0
                s[_X + j] = np.float64(logprob[i]) - np.float64(ref[i]) if has_ref else 0.0
                s[_LEVEL + j] = segment[i] if has_segment else 0.0
                s[_SURPRISE + j] = (entropy[i] - entropy_z[0]) * entropy_z[1] if has_entropy else 0.0
            else:
                s[_A + j] = s[_D + j] = s[_W + j] = s[_X + j] = s[_LEVEL + j] = s[_SURPRISE + j] = 0.0

        for j in range(_TILE):
            kept = -20.0 if s[_D + j] < -20.0 else (20.0 if s[_D + j] > 20.0 else s[_D + j])
            exp_kept = _exp_numba(kept)
            s[_APPROX_KL + j] = _k3_numba(kept, exp_kept)
            s[_RATIO + j] = exp_kept
            s[_SLOPE + j] = 1.0 if kept == s[_D + j] else 0.0
            s[_FAR + j] = abs(s[_D + j]) if abs(s[_D + j]) < infinity else infinity
        if has_segment:
            for j in range(_TILE):
                s[_RATIO + j] = _exp_numba(10.0 if s[_LEVEL + j] > 10.0 else s[_LEVEL + j])
                s[_SLOPE + j] = 1.0 if s[_LEVEL + j] <= 10.0 else 0.0
        if has_entropy:
            for j in range(_TILE):
                s[_A + j] *= 1.0 + s[_SURPRISE + j]
        for j in range(_TILE):
            inner = low if s[_RATIO + j] < low else (high if s[_RATIO + j] > high else s[_RATIO + j])
            direct, bounded = -s[_A + j] * s[_RATIO + j], -s[_A + j] * inner
            clips = bounded > direct
            s[_VALUE + j] = bounded if clips else direct
            keeps = not clips or (high_passes and s[_RATIO + j] >= low)
            s[_SLOPE + j] = s[_VALUE + j] if keeps and s[_SLOPE + j] > 0.0 else 0.0
            s[_BELOW + j] = 1.0 if clips and s[_A + j] < 0.0 else 0.0
            s[_ABOVE + j] = 1.0 if clips and s[_A + j] > 0.0 else 0.0
        if dual_clip > 0.0:
            for j in range(_TILE):
                cap = -s[_A + j] * dual_clip
                capped = s[_A + j] < 0.0 and s[_VALUE + j] > cap
                s[_CAPS + j] = 1.0 if capped else 0.0
                s[_VALUE + j] = cap if capped else s[_VALUE + j]
                s[_SLOPE + j] = 0.0 if capped else s[_SLOPE + j]
        if has_ref:
            if kl_mode == 0:
                for j in range(_TILE):
                    s[_PENALTY + j], s[_RISE + j] = s[_X + j], 1.0
            elif kl_mode == 1:
                for j in range(_TILE):
                    s[_PENALTY + j], s[_RISE + j] = s[_X + j] * s[_X + j] * 0.5, s[_X + j]
            elif kl_mode == 2:
                for j in range(_TILE):
                    y = 20.0 if s[_X + j] < -20.0 else (-20.0 if s[_X + j] > 20.0 else -s[_X + j])
                    raw = _k3_numba(y, _exp_numba(y))
                    s[_PENALTY + j] = 10.0 if raw > 10.0 else raw
                    # exp(y) - 1 = y + k3(y)
                    s[_RISE + j] = 0.0 if raw > 10.0 or y != -s[_X + j] else -(raw + y)
            else:
                for j in range(_TILE):
                    s[_PENALTY + j] = abs(s[_X + j])
                    s[_RISE + j] = 1.0 if s[_X + j] > 0.0 else (-1.0 if s[_X + j] < 0.0 else 0.0)
            if kl != 0.0:
                for j in range(_TILE):
                    finite = abs(s[_X + j]) < infinity
                    s[_VALUE + j] = s[_VALUE + j] + kl * s[_PENALTY + j] if finite else np.nan
                    s[_SLOPE + j] = s[_SLOPE + j] + kl * s[_RISE + j] if finite else np.nan
        for j in range(_TILE):
            finite = s[_FAR + j] < infinity and abs(s[_LEVEL + j]) < infinity
            s[_VALUE + j] = s[_W + j] * s[_VALUE + j] if finite else np.nan
            s[_SLOPE + j] = s[_SLOPE + j] if finite else np.nan
        # Rounded before it is weighed, as where the weight is a factor of the backward pass.
        for j in range(size):
            grad[start + j] = s[_SLOPE + j]
        for j in range(size):
            grad[start + j] = grad[start + j] * s[_W + j] if s[_ON + j] > 0.0 else 0.0

        sums[0] += _lane_sum_numba(s, _VALUE, lanes)
        sums[1] += _lane_sum_numba(s, _RATIO, lanes)
        sums[2] += _lane_sum_numba(s, _BELOW, lanes)
        sums[3] += _lane_sum_numba(s, _ABOVE, lanes)
        sums[4] += _lane_sum_numba(s, _CAPS, lanes)
        sums[5] += _lane_sum_numba(s, _D, lanes)
        sums[6] += _lane_sum_numba(s, _APPROX_KL, lanes)
        sums[7] += _lane_sum_numba(s, _PENALTY, lanes)
        sums[8] += _lane_sum_numba(s, _ON, lanes)
        for j in range(_TILE):
            sums[9] = max(sums[9], s[_FAR + j])


def run_chunks(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    entropy, entropy_z, per, clip_low, clip_high, dual_clip, kl, kl_mode, high_passes, grad,
):  # fmt: skip
    """Fills ``grad`` (T,) and returns the ten sums (the largest |d| last) over unmasked tokens, float64."""
    tokens = logprob.shape[0]
    absent = torch.empty(0, dtype=grad.dtype)

    def numbers(tensor):
        # numba knows neither half type; float32 and float64 pass as they are, so that few variants are compiled.
        if tensor is None:
            return absent.numpy()
        return as_numpy(tensor, None if tensor.dtype == torch.float64 else torch.float32)

    optional = (weight, ref_logprob, segment_log_ratio, entropy)
    arguments = (
        *(numbers(t) for t in (logprob, old_logprob, advantage)),
        *(as_numpy(t) for t in (step_of_token, rollout_of_token)),
        *(numbers(t) for t in optional),
        np.zeros(2) if entropy_z is None else as_numpy(entropy_z, torch.float64),
        *(t is not None for t in optional),
        *(per, clip_low, clip_high, dual_clip, kl, kl_mode, high_passes),
        grad.numpy(),
    )
    rows = np.zeros((max(-(-tokens // _CHUNK), 1), _ROWS))

    def run(chunk):
        _token_loss_numba(chunk * _CHUNK, min((chunk + 1) * _CHUNK, tokens), *arguments, rows[chunk])

    threads = min(len(rows), torch.get_num_threads())
    if threads > 1:
        run(0)  # compiles, if nothing has, before there are several who would
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, range(1, len(rows))))
    else:
        for chunk in range(len(rows)):
            run(chunk)
    sums = rows[0].copy()
    for row in rows[1:]:
        sums[:9] += row[:9]
        sums[9] = max(sums[9], row[9])
    return torch.from_numpy(sums)
