"""The GPU code of ``token_loss`` (formulas: token_loss.py): two launches, no host wait.

The first goes over the tokens, a block a program: loss and gradient of each token, and the block's ten sums. The second
adds up the blocks' sums in a fixed order, in float64, and divides.

Not here: the definition, the argument checks and the op (token_loss.py).
"""

import torch

from rtmc.kernels.backend import bits_of, cdiv, jit, launch, number_of, tl

__all__ = ["run_blocks"]

_ROWS = 10


@jit
def _k3(y):
    """exp(y) - 1 - y without the cancellation near 0: eight terms of the series, exact in float64 for |y| < 1/8."""
    tail = 1 / 720 + y * (1 / 5040 + y * (1 / 40320 + y / 362880))
    near = y * y * (0.5 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * tail))))
    return tl.where(tl.abs(y) < 0.125, near, tl.exp(y) - 1.0 - y)


@jit
def _load(pointer, at, inside, other: tl.constexpr, FULL: tl.constexpr):
    """Without a mask where the block lies whole inside: only then are accesses 128 bits wide at any length."""
    if FULL:
        return tl.load(pointer + at)
    else:
        return tl.load(pointer + at, mask=inside, other=other)


@jit
def _block_of_tokens(
    logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr, entropy_ptr,
    entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, low_bits,
    high_bits, dual_bits,
    PER: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_REF: tl.constexpr, ADD_KL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, HAS_ENTROPY: tl.constexpr, KL_MODE: tl.constexpr, HAS_DUAL: tl.constexpr,
    HIGH_PASSES: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    acc = grad_ptr.dtype.element_ty
    nan = float("nan")
    infinity = float("inf")
    block = tl.program_id(0).to(tl.int64)
    blocks = tl.num_programs(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < tokens
    step = _load(step_ptr, at, inside, -1, FULL)
    rollout = _load(rollout_ptr, at, inside, -1, FULL)
    active = (step >= 0) & (rollout >= 0)
    if PER == 0:
        index = step
    elif PER == 1:
        index = rollout
    else:
        index = at
    # An index past the end reads NaN: the loss shows it, and no foreign memory is touched.
    advantage = tl.load(advantage_ptr + index, mask=active & (index < advantages), other=nan).to(acc)
    new = _load(logprob_ptr, at, inside, 0.0, FULL).to(acc)
    old = _load(old_ptr, at, inside, 0.0, FULL).to(acc)
    if HAS_ENTROPY:
        surprise = _load(entropy_ptr, at, inside, 0.0, FULL).to(acc) - tl.load(entropy_z_ptr).to(acc)
        advantage = advantage * (1.0 + surprise * tl.load(entropy_z_ptr + 1).to(acc))

    difference = new - old
    finite = tl.abs(difference) < infinity
    kept = tl.where(difference < -20.0, -20.0, tl.where(difference > 20.0, 20.0, difference))
    if HAS_SEGMENT:
        level = _load(segment_ptr, at, inside, 0.0, FULL).to(acc)
        finite = finite & (tl.abs(level) < infinity)
        log_ratio = tl.where(level > 10.0, 10.0, level)
        moves = level <= 10.0
    else:
        log_ratio = kept
        moves = kept == difference
    ratio = tl.exp(log_ratio)
    low = number_of(low_bits).to(acc)
    high = number_of(high_bits).to(acc)
    direct = -advantage * ratio
    bounded = -advantage * tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    clips = bounded > direct
    value = tl.where(clips, bounded, direct)
    if HIGH_PASSES:
        slope = tl.where((clips & (ratio < low)) | (moves == 0), 0.0, value)
    else:
        slope = tl.where(clips | (moves == 0), 0.0, direct)
    caps = tl.zeros((BLOCK,), tl.int1)
    if HAS_DUAL:
        cap = -advantage * number_of(dual_bits).to(acc)
        caps = (advantage < 0) & (value > cap)
        value = tl.where(caps, cap, value)
        slope = tl.where(caps, 0.0, slope)

    penalty = tl.zeros((BLOCK,), acc)
    if HAS_REF:
        x = new - _load(ref_ptr, at, inside, 0.0, FULL).to(acc)
        if KL_MODE == 0:
            penalty = x
            rise = tl.full((BLOCK,), 1.0, acc)
        elif KL_MODE == 1:
            penalty = x * x * 0.5
            rise = x
        elif KL_MODE == 2:
            y = tl.where(x > 20.0, -20.0, tl.where(x < -20.0, 20.0, -x))
            raw = _k3(y)
            penalty = tl.where(raw > 10.0, 10.0, raw)
            # exp(y) - 1 = y + k3(y)
            rise = tl.where((raw > 10.0) | (y != -x), 0.0, -(y + raw))
        else:
            penalty = tl.abs(x)
            rise = tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(acc)
        if ADD_KL:
            # Two float32 scalars carry 48 bits of a float64.
            kl = (tl.cast(kl_high, tl.float64) + tl.cast(kl_low, tl.float64)).to(acc)
            value += kl * penalty
            slope += kl * rise
            finite = finite & (tl.abs(x) < infinity)

    value = tl.where(finite, value, nan)
    slope = tl.where(finite, slope, nan)
    if HAS_WEIGHT:
        weight = _load(weight_ptr, at, inside, 0.0, FULL).to(acc)
        value = weight * value
        slope = weight * slope
    slope = tl.where(active, slope, 0.0)
    if FULL:
        tl.store(grad_ptr + at, slope)
    else:
        tl.store(grad_ptr + at, slope, mask=inside)

    out = partial_ptr + block
    tl.store(out, tl.sum(tl.where(active, value, 0.0), axis=0).to(tl.float64))
    tl.store(out + blocks, tl.sum(tl.where(active, ratio, 0.0), axis=0).to(tl.float64))
    tl.store(out + 2 * blocks, tl.sum((active & clips & (advantage < 0)).to(tl.int32), axis=0).to(tl.float64))
    tl.store(out + 3 * blocks, tl.sum((active & clips & (advantage > 0)).to(tl.int32), axis=0).to(tl.float64))
    tl.store(out + 4 * blocks, tl.sum((active & caps).to(tl.int32), axis=0).to(tl.float64))
    tl.store(out + 5 * blocks, tl.sum(tl.where(active, difference, 0.0), axis=0).to(tl.float64))
    tl.store(out + 6 * blocks, tl.sum(tl.where(active, _k3(kept), 0.0), axis=0).to(tl.float64))
    tl.store(out + 7 * blocks, tl.sum(tl.where(active, penalty, 0.0), axis=0).to(tl.float64))
    tl.store(out + 8 * blocks, tl.sum(active.to(tl.int32), axis=0).to(tl.float64))
    farthest = tl.where(tl.abs(difference) < infinity, tl.abs(difference), infinity)
    tl.store(out + 9 * blocks, tl.max(tl.where(active, farthest, 0.0), axis=0).to(tl.float64))


@jit
def _token_loss_kernel(
    logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr, entropy_ptr,
    entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, low_bits,
    high_bits, dual_bits,
    PER: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_REF: tl.constexpr, ADD_KL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, HAS_ENTROPY: tl.constexpr, KL_MODE: tl.constexpr, HAS_DUAL: tl.constexpr,
    HIGH_PASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= tokens:
        _block_of_tokens(
            logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr,
            entropy_ptr, entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, low_bits, high_bits,
            dual_bits, PER, HAS_WEIGHT, HAS_REF, ADD_KL, HAS_SEGMENT, HAS_ENTROPY, KL_MODE, HAS_DUAL, HIGH_PASSES,
            BLOCK, True,
        )  # fmt: skip
    else:
        _block_of_tokens(
            logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr,
            entropy_ptr, entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, low_bits, high_bits,
            dual_bits, PER, HAS_WEIGHT, HAS_REF, ADD_KL, HAS_SEGMENT, HAS_ENTROPY, KL_MODE, HAS_DUAL, HIGH_PASSES,
            BLOCK, False,
        )  # fmt: skip


@jit
def _token_stats_kernel(partial_ptr, loss_ptr, stats_ptr, blocks, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """The second stage: program ``row`` adds up that row of the blocks' sums in a fixed order, and divides it."""
    row = tl.program_id(0).to(tl.int64)
    start = row * blocks
    total = tl.zeros((BLOCK,), tl.float64)
    count = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, blocks, BLOCK):
        at = first + tl.arange(0, BLOCK)
        part = tl.load(partial_ptr + start + at, mask=at < blocks, other=0.0)
        total = tl.where(row == 9, tl.maximum(total, part), total + part)
        count += tl.load(partial_ptr + 8 * tl.cast(blocks, tl.int64) + at, mask=at < blocks, other=0.0)
    unmasked = tl.maximum(tl.sum(count, axis=0), 1.0)
    result = tl.where(row == 9, tl.max(total, axis=0), tl.sum(total, axis=0))
    if row == 0:
        if MEAN:
            result = result / unmasked
            tl.store(stats_ptr + 10, 1.0 / unmasked)
        else:
            tl.store(stats_ptr + 10, unmasked / unmasked)
        tl.store(loss_ptr, result.to(loss_ptr.dtype.element_ty))
    elif row < 8:
        result = result / unmasked
    tl.store(stats_ptr + row, result)


def run_blocks(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
):  # fmt: skip
    """(loss, gradient (T,), statistics) as the op's; arguments as its own, checked."""
    tokens, device = logprob.shape[0], logprob.device
    grad = torch.empty(tokens, dtype=torch.promote_types(logprob.dtype, torch.float32), device=device)
    block = 512 if grad.dtype == torch.float64 else 1024
    blocks = cdiv(tokens, block)
    partials = torch.empty((_ROWS, blocks), dtype=torch.float64, device=device)
    # Where one is None its constexpr keeps the pointer from being read.
    optional = [
        grad if t is None else t.contiguous() for t in (weight, ref_logprob, segment_log_ratio, entropy, entropy_z)
    ]
    kl_high = float(torch.tensor(kl, dtype=torch.float32))
    launch(
        _token_loss_kernel,
        (blocks,),
        *(t.contiguous() for t in (logprob, old_logprob, advantage, step_of_token, rollout_of_token)),
        *optional,
        grad,
        partials,
        tokens,
        advantage.shape[0],
        kl_high,
        kl - kl_high,
        # Bounds as bits, not as constants of the kernel: another clip is no other code.
        bits_of(1.0 - clip_low),
        bits_of(1.0 + clip_high),
        bits_of(dual_clip),
        PER=per,
        HAS_WEIGHT=weight is not None,
        HAS_REF=ref_logprob is not None,
        ADD_KL=ref_logprob is not None and kl != 0,
        HAS_SEGMENT=segment_log_ratio is not None,
        HAS_ENTROPY=entropy is not None,
        KL_MODE=kl_mode,
        HAS_DUAL=dual_clip > 0,
        HIGH_PASSES=high_passes,
        BLOCK=block,
    )
    stats = torch.empty(_ROWS + 1, dtype=torch.float64, device=device)
    loss = torch.empty((), dtype=grad.dtype, device=device)
    launch(_token_stats_kernel, (_ROWS,), partials, loss, stats, blocks, MEAN=mean, BLOCK=1024)
    return loss, grad, stats
