"""The weighted sum of clipped token losses and its gradient, in one pass over the tokens.

With d = logprob - old_logprob of an unmasked token, A its advantage and w its weight:

    u     = clamp(d, -20, 20), or min(segment_log_ratio, 10) where that is given;   r = exp(u)
    l     = max(-A r, -A clip(r, 1 - low, 1 + high));   with a dual clip c and A < 0:  min(l, -A c)
    loss  = sum of w (l + kl k(x)),   x = logprob - ref_logprob
    grad  = w (dl/du + kl dk/dx);   dl/du = -A r, or 0 where a clip or a clamp holds

    k1, k2, k3, abs:   x,   x^2 / 2,   exp(y) - 1 - y with y = clamp(-x, -20, 20) and at most 10,   |x|

The token's own logprob moves u even where segment_log_ratio is its value (GSPO's token form). The gradient is
stored by the forward pass, so that the backward pass is one product. Sources: see policy_loss.py, which names
the words and checks the arguments; this file has the numbers alone.

The reduction has two stages of fixed order: each block of tokens in the accumulation dtype (float64 for
float64 ``logprob``, else float32), then the blocks' sums in float64. The CPU code sums in float64 throughout.

Not here: which token weighs what (token_weights.py); means over turns or sequences (policy_loss.py).
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from rtmc.kernels.backend import as_numpy, cdiv, jit, launch, lazy_njit, register_op, tl
from rtmc.kernels.broadcast import check_rows

__all__ = ["token_loss"]

# The third output: sums over unmasked tokens of w l, r, hits of the lower, upper and dual clip, d, k3(d),
# k(x), 1, and the largest |d|.
_ROWS = 10
_TOKEN_CLAMP, _SEGMENT_CLAMP, _K3_CLAMP = 20.0, 10.0, 10.0


def _check_index(
    advantage: torch.Tensor, step_of_token: torch.Tensor, rollout_of_token: torch.Tensor, per: int
) -> None:
    if per == 0:
        check_rows("step_of_token", step_of_token, advantage.shape[0], "steps")
    elif per == 1:
        check_rows("rollout_of_token", rollout_of_token, advantage.shape[0], "rollouts")


# --- reference ----------------------------------------------------------------------------------------------


def _token_loss_reference(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode,
):  # fmt: skip
    """Autograd computes the gradient here; the other implementations write it out."""
    _check_index(advantage, step_of_token, rollout_of_token, per)
    index = {0: step_of_token, 1: rollout_of_token}.get(per, torch.arange(logprob.shape[0], device=logprob.device))
    active = (step_of_token >= 0) & (rollout_of_token >= 0)
    acc = torch.promote_types(logprob.dtype, torch.float32)
    with torch.enable_grad():
        leaf = logprob.detach().to(acc).requires_grad_()
        new, old = leaf[active], old_logprob[active].to(acc)
        a = advantage[index[active]].to(acc)
        d = new - old
        if segment_log_ratio is None:
            level, log_ratio = d, d.clamp(-_TOKEN_CLAMP, _TOKEN_CLAMP)
        else:
            level = segment_log_ratio[active].to(acc)
            log_ratio = (level + new - new.detach()).clamp(max=_SEGMENT_CLAMP)
        ratio = log_ratio.exp()
        direct, clipped = -a * ratio, -a * ratio.clamp(1 - clip_low, 1 + clip_high)
        token_loss = torch.maximum(direct, clipped)
        capped = torch.zeros_like(active[active])
        if dual_clip > 0:
            capped = (a < 0) & (token_loss > -a * dual_clip)
            token_loss = torch.where(capped, -a * dual_clip, token_loss)
        finite = d.isfinite() & level.isfinite()
        penalty = torch.zeros_like(d)
        if ref_logprob is not None:
            x = new - ref_logprob[active].to(acc)
            y = (-x).clamp(-_TOKEN_CLAMP, _TOKEN_CLAMP)
            k3 = (torch.expm1(y) - y).clamp(-_K3_CLAMP, _K3_CLAMP)
            penalty = (x, x.square() / 2, k3, x.abs())[kl_mode]
            if kl != 0:
                token_loss = token_loss + kl * penalty
                finite = finite & x.isfinite()
        token_loss = torch.where(finite, token_loss, torch.nan)
        loss = (weight[active].to(acc) * token_loss).sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    grad[active] = torch.where(finite, grad[active], torch.nan)  # autograd passes 0 through a clamp of NaN
    d = d.detach()
    kept = d.clamp(-_TOKEN_CLAMP, _TOKEN_CLAMP)
    clips = clipped > direct  # never where the dual clip caps: there r > c > 1, while A < 0 clips r < 1 - low
    largest = torch.where(d.isfinite(), d.abs(), torch.inf)
    k3_old = torch.expm1(kept) - kept
    counted = (loss, ratio, clips & (a < 0), clips & (a > 0), capped, d, k3_old, penalty, active)
    stats = [each.detach().double().sum() for each in counted]
    stats.append(torch.cat([largest, largest.new_zeros(1)]).max().double())
    return loss.detach().clone(), grad, torch.stack(stats)


def _token_loss_reference_below_autograd(*args):
    """The reference as the op's implementation: a thread of its own, as autograd is off for the one running
    it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_token_loss_reference, *args).result()


# --- Triton -------------------------------------------------------------------------------------------------


@jit
def _k3(y):
    """exp(y) - 1 - y without the cancellation near 0: eight terms of the series, exact in float64 for |y| < 1/8."""
    tail = 1 / 720 + y * (1 / 5040 + y * (1 / 40320 + y / 362880))
    near = y * y * (0.5 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * tail))))
    return tl.where(tl.abs(y) < 0.125, near, tl.exp(y) - 1.0 - y)


@jit
def _token_loss_kernel(
    logprob_ptr,
    old_ptr,
    advantage_ptr,
    step_ptr,
    rollout_ptr,
    weight_ptr,
    ref_ptr,
    segment_ptr,
    kl_ptr,
    grad_ptr,
    partial_ptr,
    tokens,
    advantages,
    PER: tl.constexpr,
    HAS_REF: tl.constexpr,
    ADD_KL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr,
    KL_MODE: tl.constexpr,
    CLIP_LOW: tl.constexpr,
    CLIP_HIGH: tl.constexpr,
    DUAL_CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Loads have one mask, at < tokens, and are wide (128 bits) where T is a multiple of 16.
    acc = grad_ptr.dtype.element_ty
    nan = float("nan")
    infinity = float("inf")
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tokens
    step = tl.load(step_ptr + at, mask=inside, other=-1)
    rollout = tl.load(rollout_ptr + at, mask=inside, other=-1)
    active = (step >= 0) & (rollout >= 0)
    if PER == 0:
        index = step
    elif PER == 1:
        index = rollout
    else:
        index = at
    # An index past the end reads NaN: the loss shows it, and no foreign memory is touched.
    advantage = tl.load(advantage_ptr + index, mask=active & (index < advantages), other=nan).to(acc)
    new = tl.load(logprob_ptr + at, mask=inside, other=0.0).to(acc)
    old = tl.load(old_ptr + at, mask=inside, other=0.0).to(acc)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(acc)

    difference = new - old
    finite = tl.abs(difference) < infinity
    kept = tl.where(difference < -20.0, -20.0, tl.where(difference > 20.0, 20.0, difference))
    if HAS_SEGMENT:
        level = tl.load(segment_ptr + at, mask=inside, other=0.0).to(acc)
        finite = finite & (tl.abs(level) < infinity)
        log_ratio = tl.where(level > 10.0, 10.0, level)
        moves = level <= 10.0
    else:
        log_ratio = kept
        moves = kept == difference
    ratio = tl.exp(log_ratio)
    # tl.full, because a bare scalar in tl.where would become a float32 first.
    low = tl.full((BLOCK,), 1.0 - CLIP_LOW, acc)
    high = tl.full((BLOCK,), 1.0 + CLIP_HIGH, acc)
    direct = -advantage * ratio
    bounded = -advantage * tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    clips = bounded > direct
    value = tl.where(clips, bounded, direct)
    slope = tl.where(clips | (moves == 0), 0.0, direct)
    caps = tl.zeros((BLOCK,), tl.int1)
    if DUAL_CLIP > 0:
        cap = -advantage * DUAL_CLIP
        caps = (advantage < 0) & (value > cap)
        value = tl.where(caps, cap, value)
        slope = tl.where(caps, 0.0, slope)

    penalty = tl.zeros((BLOCK,), acc)
    if HAS_REF:
        x = new - tl.load(ref_ptr + at, mask=inside, other=0.0).to(acc)
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
            kl = tl.load(kl_ptr).to(acc)
            value += kl * penalty
            slope += kl * rise
            finite = finite & (tl.abs(x) < infinity)

    value = tl.where(finite, value, nan)
    slope = tl.where(finite, slope, nan)
    tl.store(grad_ptr + at, tl.where(active, weight * slope, 0.0), mask=inside)

    out = partial_ptr + block
    tl.store(out, tl.sum(tl.where(active, weight * value, 0.0), axis=0).to(tl.float64))
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


def _token_loss_triton(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per)
    tokens, device = logprob.shape[0], logprob.device
    grad = torch.empty(tokens, dtype=torch.promote_types(logprob.dtype, torch.float32), device=device)
    block = 512 if grad.dtype == torch.float64 else 1024
    blocks = cdiv(tokens, block)
    partials = torch.zeros((_ROWS, max(blocks, 1)), dtype=torch.float64, device=device)
    unused = grad  # pointers the constexprs below keep from being read
    launch(
        _token_loss_kernel,
        (blocks,),
        *(t.contiguous() for t in (logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight)),
        unused if ref_logprob is None else ref_logprob.contiguous(),
        unused if segment_log_ratio is None else segment_log_ratio.contiguous(),
        torch.full((1,), kl, dtype=torch.float64, device=device),  # a scalar argument would be a float32
        grad,
        partials,
        tokens,
        advantage.shape[0],
        PER=per,
        HAS_REF=ref_logprob is not None,
        ADD_KL=ref_logprob is not None and kl != 0,
        HAS_SEGMENT=segment_log_ratio is not None,
        KL_MODE=kl_mode,
        CLIP_LOW=clip_low,
        CLIP_HIGH=clip_high,
        DUAL_CLIP=dual_clip,
        BLOCK=block,
    )
    # Second stage of the reduction: a fixed order over the blocks' float64 partial sums.
    sums = torch.cat([partials[:-1].sum(1), partials[-1:].amax(1)])
    return sums[0].to(grad.dtype, copy=True), grad, sums


# --- numba --------------------------------------------------------------------------------------------------


@lazy_njit
def _k3_numba(y):
    """As ``_k3``; most tokens lie near 0 and need no exponential."""
    if abs(y) < 0.125:
        tail = 1 / 720 + y * (1 / 5040 + y * (1 / 40320 + y / 362880))
        return y * y * (0.5 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * tail))))
    return np.exp(y) - 1.0 - y


@lazy_njit
def _token_loss_numba(
    logprob, old, advantage, step_of_token, rollout_of_token, weight, ref, segment, has_ref, has_segment,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, grad, sums,
):  # fmt: skip
    for i in range(logprob.shape[0]):
        grad[i] = 0.0
        step, rollout = step_of_token[i], rollout_of_token[i]
        if step < 0 or rollout < 0:
            continue
        index = step if per == 0 else (rollout if per == 1 else i)
        a = float(advantage[index])
        new = float(logprob[i])
        d = new - float(old[i])
        finite = np.isfinite(d)
        kept = min(max(d, -20.0), 20.0) if finite else d
        log_ratio = kept
        moves = kept == d
        if has_segment:
            log_ratio = min(float(segment[i]), 10.0) if np.isfinite(segment[i]) else np.nan
            moves = segment[i] <= 10.0
            finite = finite and np.isfinite(segment[i])
        approx_kl = _k3_numba(kept)
        ratio = np.exp(log_ratio) if has_segment else approx_kl + kept + 1.0
        value = -a * ratio
        bounded = -a * min(max(ratio, 1.0 - clip_low), 1.0 + clip_high)
        slope = value if moves else 0.0
        clips = bounded > value
        if clips:
            value, slope = bounded, 0.0
        caps = dual_clip > 0.0 and a < 0.0 and value > -a * dual_clip
        if caps:
            value, slope = -a * dual_clip, 0.0

        if has_ref:
            x = new - float(ref[i])
            if kl_mode == 0:
                penalty, rise = x, 1.0
            elif kl_mode == 1:
                penalty, rise = x * x * 0.5, x
            elif kl_mode == 2:
                y = min(max(-x, -20.0), 20.0) if np.isfinite(x) else -x
                penalty = _k3_numba(y)
                rise = -(penalty + y)  # 1 - exp(y)
                if penalty > 10.0:
                    penalty, rise = 10.0, 0.0
                elif y != -x:
                    rise = 0.0
            else:
                penalty, rise = abs(x), np.sign(x)
            sums[7] += penalty
            if kl != 0.0:
                value += kl * penalty
                slope += kl * rise
                finite = finite and np.isfinite(x)

        if not finite:
            value, slope = np.nan, np.nan
        grad[i] = weight[i] * slope
        sums[0] += weight[i] * value
        sums[1] += ratio
        if clips:
            sums[2 if a < 0.0 else 3] += 1.0
        if caps:
            sums[4] += 1.0
        sums[5] += d
        sums[6] += approx_kl
        sums[8] += 1.0
        sums[9] = max(sums[9], abs(d) if np.isfinite(d) else np.inf)


def _token_loss_cpu(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per)
    acc = torch.promote_types(logprob.dtype, torch.float32)
    grad = torch.empty(logprob.shape, dtype=acc)
    sums = torch.zeros(_ROWS, dtype=torch.float64)
    absent = torch.empty(0, dtype=acc)

    def numbers(tensor):
        # numba knows neither half type; float32 and float64 pass as they are, so that few variants are
        # compiled.
        return as_numpy(tensor, None if tensor.dtype == torch.float64 else torch.float32)

    _token_loss_numba(
        *(numbers(t) for t in (logprob, old_logprob, advantage)),
        *(as_numpy(t) for t in (step_of_token, rollout_of_token)),
        *(numbers(absent if t is None else t) for t in (weight, ref_logprob, segment_log_ratio)),
        *(ref_logprob is not None, segment_log_ratio is not None),
        *(per, clip_low, clip_high, dual_clip, kl, kl_mode),
        *(grad.numpy(), sums.numpy()),
    )
    return sums[0].to(acc, copy=True), grad, sums


# --- the op -------------------------------------------------------------------------------------------------


def _token_loss_fake(logprob, *_):
    acc = torch.promote_types(logprob.dtype, torch.float32)
    return (
        logprob.new_empty((), dtype=acc),
        logprob.new_empty(logprob.shape, dtype=acc),
        logprob.new_empty((_ROWS,), dtype=torch.float64),
    )


def _token_loss_setup(ctx, inputs, output):
    _, grad, sums = output
    ctx.mark_non_differentiable(grad, sums)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad)
    ctx.dtype = inputs[0].dtype


def _token_loss_backward(ctx, grad_loss, _grad_grad, _grad_sums):
    (grad,) = ctx.saved_tensors
    # In the accumulation dtype until the product is made: a half-precision loss scale arrives in grad_loss.
    grad_logprob = None if grad_loss is None else (grad_loss * grad).to(ctx.dtype)
    return grad_logprob, *(None,) * 13


_op = register_op(
    "policy_loss",
    "(Tensor logprob, Tensor old_logprob, Tensor advantage, Tensor step_of_token, Tensor rollout_of_token, "
    "Tensor weight, Tensor? ref_logprob, Tensor? segment_log_ratio, int per, float clip_low, "
    "float clip_high, float dual_clip, float kl, int kl_mode) -> (Tensor, Tensor, Tensor)",
    reference=_token_loss_reference_below_autograd,
    triton=_token_loss_triton,
    numba=_token_loss_cpu,
    fake=_token_loss_fake,
    backward=_token_loss_backward,
    setup_context=_token_loss_setup,
)


def token_loss(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode,
):  # fmt: skip
    """``torch.ops.rtmc.policy_loss``: the formulas at the head of this file.

    Parameters
    ----------
    logprob, old_logprob : (T,) floating point; ref_logprob, segment_log_ratio : (T,) or None
    advantage : (S,), (R,) or (T,) as ``per`` is 0 (step), 1 (rollout) or 2 (token)
    step_of_token, rollout_of_token : (T,) int64; a token with a negative one is masked
    weight : (T,) floating point
    clip_low, clip_high, dual_clip, kl : float; dual_clip 0 = none
    kl_mode : 0..3 for k1, k2, k3, abs

    Returns
    -------
    loss 0-d (differentiable in ``logprob``), its gradient (T,), ten sums as named above (float64).

    Raises
    ------
    ValueError for an index outside the advantages (CPU). On CUDA it makes the loss NaN.
    """
    return _op(
        logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob,
        segment_log_ratio, per, clip_low, clip_high, dual_clip, kl, kl_mode,
    )  # fmt: skip
