"""The weighted sum of clipped token losses and its gradient, in one pass over the tokens.

With d = logprob - old_logprob of an unmasked token, A its advantage and w its weight:

    u     = clamp(d, -20, 20), or min(segment_log_ratio, 10) where that is given;   r = exp(u)
    A    := A (1 + (entropy - z[0]) z[1])   where an entropy is given
    l     = max(-A r, -A clip(r, 1 - low, 1 + high));   with a dual clip c and A < 0:  min(l, -A c)
    loss  = sum of w (l + kl k(x)),   x = logprob - ref_logprob;   divided by the unmasked tokens if ``mean``
    grad  = w (dl/du + kl dk/dx);   dl/du = -A r, or 0 where a clip or a clamp holds

    k1, k2, k3, abs:   x,   x^2 / 2,   exp(y) - 1 - y with y = clamp(-x, -20, 20) and at most 10,   |x|

With ``high_passes`` the upper bound is (1 + high) r / stopgrad(r): the value is the clip's, the slope is
-A (1 + high) and not 0 (AEPO). The token's own logprob moves u even where segment_log_ratio is its value
(GSPO's token form). The gradient is stored by the forward pass, not yet divided by ``mean``'s count, so that the
backward pass is one product. Sources: see policy_loss.py, which names the words and checks the arguments; this
file has the numbers alone.

The reduction has two stages of fixed order: each block of tokens in the accumulation dtype (float64 for
float64 ``logprob``, else float32), then the blocks' sums in float64. The CPU code (token_loss_cpu.py) computes and
sums in float64 throughout. On CUDA: two launches, no host wait.

Not here: which token weighs what (token_weights.py); means over turns or sequences (policy_loss.py).
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from rtmc.kernels.backend import cdiv, jit, launch, register_op, tl
from rtmc.kernels.broadcast import check_rows
from rtmc.kernels.token_loss_cpu import run_chunks

__all__ = ["token_loss"]

# The third output: the sum of w l (as ``mean`` divides it), then means over unmasked tokens of r, of hits of the
# lower, upper and dual clip, of d, of k3(d) and of k(x); the unmasked tokens; the largest |d|; what the stored
# gradient is still to be multiplied by.
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
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
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
        if entropy is not None:
            a = a * (1 + (entropy[active].to(acc) - entropy_z[0].to(acc)) * entropy_z[1].to(acc))
        d = new - old
        if segment_log_ratio is None:
            level, log_ratio = d, d.clamp(-_TOKEN_CLAMP, _TOKEN_CLAMP)
        else:
            level = segment_log_ratio[active].to(acc)
            log_ratio = (level + new - new.detach()).clamp(max=_SEGMENT_CLAMP)
        ratio = log_ratio.exp()
        upper = (1 + clip_high) * (ratio / ratio.detach() if high_passes else torch.ones_like(ratio))
        bounded = torch.where(ratio > 1 + clip_high, upper, ratio.clamp(min=1 - clip_low))
        direct, clipped = -a * ratio, -a * bounded
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
        loss = (token_loss if weight is None else weight[active].to(acc) * token_loss).sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    grad[active] = torch.where(finite, grad[active], torch.nan)  # autograd passes 0 through a clamp of NaN
    d = d.detach()
    kept = d.clamp(-_TOKEN_CLAMP, _TOKEN_CLAMP)
    clips = clipped > direct  # never where the dual clip caps: there r > c > 1, while A < 0 clips r < 1 - low
    largest = torch.where(d.isfinite(), d.abs(), torch.inf)
    k3_old = torch.expm1(kept) - kept
    count = active.sum().clamp(min=1)
    scale = 1 / count.double() if mean else torch.ones((), dtype=torch.float64, device=loss.device)
    total = loss.detach().double() * scale
    averaged = (ratio, clips & (a < 0), clips & (a > 0), capped, d, k3_old, penalty)
    stats = [total, *(each.detach().double().sum() / count for each in averaged), active.sum().double()]
    stats += [torch.cat([largest, largest.new_zeros(1)]).max().double(), scale]
    return total.to(acc), grad, torch.stack(stats)


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
def _load(pointer, at, inside, other: tl.constexpr, FULL: tl.constexpr):
    """Without a mask where the block lies whole inside: only then are accesses 128 bits wide at any length."""
    if FULL:
        return tl.load(pointer + at)
    else:
        return tl.load(pointer + at, mask=inside, other=other)


@jit
def _block_of_tokens(
    logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr, entropy_ptr,
    entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low,
    PER: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_REF: tl.constexpr, ADD_KL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, HAS_ENTROPY: tl.constexpr, KL_MODE: tl.constexpr, CLIP_LOW: tl.constexpr,
    CLIP_HIGH: tl.constexpr, DUAL_CLIP: tl.constexpr, HIGH_PASSES: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    acc = grad_ptr.dtype.element_ty
    nan = float("nan")
    infinity = float("inf")
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
    # tl.full, because a bare scalar in tl.where would become a float32 first.
    low = tl.full((BLOCK,), 1.0 - CLIP_LOW, acc)
    high = tl.full((BLOCK,), 1.0 + CLIP_HIGH, acc)
    direct = -advantage * ratio
    bounded = -advantage * tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    clips = bounded > direct
    value = tl.where(clips, bounded, direct)
    if HIGH_PASSES:
        slope = tl.where((clips & (ratio < low)) | (moves == 0), 0.0, value)
    else:
        slope = tl.where(clips | (moves == 0), 0.0, direct)
    caps = tl.zeros((BLOCK,), tl.int1)
    if DUAL_CLIP > 0:
        cap = -advantage * DUAL_CLIP
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
    entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low,
    PER: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_REF: tl.constexpr, ADD_KL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, HAS_ENTROPY: tl.constexpr, KL_MODE: tl.constexpr, CLIP_LOW: tl.constexpr,
    CLIP_HIGH: tl.constexpr, DUAL_CLIP: tl.constexpr, HIGH_PASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if (tl.program_id(0).to(tl.int64) + 1) * BLOCK <= tokens:
        _block_of_tokens(
            logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr,
            entropy_ptr, entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, PER, HAS_WEIGHT,
            HAS_REF, ADD_KL, HAS_SEGMENT, HAS_ENTROPY, KL_MODE, CLIP_LOW, CLIP_HIGH, DUAL_CLIP, HIGH_PASSES, BLOCK,
            True,
        )  # fmt: skip
    else:
        _block_of_tokens(
            logprob_ptr, old_ptr, advantage_ptr, step_ptr, rollout_ptr, weight_ptr, ref_ptr, segment_ptr,
            entropy_ptr, entropy_z_ptr, grad_ptr, partial_ptr, tokens, advantages, kl_high, kl_low, PER, HAS_WEIGHT,
            HAS_REF, ADD_KL, HAS_SEGMENT, HAS_ENTROPY, KL_MODE, CLIP_LOW, CLIP_HIGH, DUAL_CLIP, HIGH_PASSES, BLOCK,
            False,
        )  # fmt: skip


@jit
def _token_stats_kernel(partial_ptr, loss_ptr, stats_ptr, blocks, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """The second stage: program ``row`` adds up that row of the blocks' sums in a fixed order, and divides it."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * blocks
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


def _token_loss_triton(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per)
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
        PER=per,
        HAS_WEIGHT=weight is not None,
        HAS_REF=ref_logprob is not None,
        ADD_KL=ref_logprob is not None and kl != 0,
        HAS_SEGMENT=segment_log_ratio is not None,
        HAS_ENTROPY=entropy is not None,
        KL_MODE=kl_mode,
        CLIP_LOW=clip_low,
        CLIP_HIGH=clip_high,
        DUAL_CLIP=dual_clip,
        HIGH_PASSES=high_passes,
        BLOCK=block,
    )
    stats = torch.empty(_ROWS + 1, dtype=torch.float64, device=device)
    loss = torch.empty((), dtype=grad.dtype, device=device)
    launch(_token_stats_kernel, (_ROWS,), partials, loss, stats, blocks, MEAN=mean, BLOCK=1024)
    return loss, grad, stats


# --- numba --------------------------------------------------------------------------------------------------


def _token_loss_cpu(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per)
    grad = torch.empty(logprob.shape, dtype=torch.promote_types(logprob.dtype, torch.float32))
    stats = run_chunks(
        logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
        entropy, entropy_z, per, clip_low, clip_high, dual_clip, kl, kl_mode, high_passes, grad,
    )  # fmt: skip
    count = stats[8].clamp(min=1)
    stats[1:8] /= count
    scale = 1 / count if mean else torch.ones_like(count)
    stats[0] *= scale
    return stats[0].to(grad.dtype, copy=True), grad, torch.cat([stats, scale[None]])


# --- the op -------------------------------------------------------------------------------------------------


def _token_loss_fake(logprob, *_):
    acc = torch.promote_types(logprob.dtype, torch.float32)
    return (
        logprob.new_empty((), dtype=acc),
        logprob.new_empty(logprob.shape, dtype=acc),
        logprob.new_empty((_ROWS + 1,), dtype=torch.float64),
    )


def _token_loss_setup(ctx, inputs, output):
    _, grad, stats = output
    ctx.mark_non_differentiable(grad, stats)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad, stats)
    ctx.dtype = inputs[0].dtype


def _token_loss_backward(ctx, grad_loss, _grad_grad, _grad_stats):
    if grad_loss is None:
        return (None,) * 18
    grad, stats = ctx.saved_tensors
    # In the accumulation dtype until the product is made: a half-precision loss scale arrives in grad_loss.
    return ((grad_loss * stats[10]).to(grad.dtype) * grad).to(ctx.dtype), *(None,) * 17


_op = register_op(
    "policy_loss",
    "(Tensor logprob, Tensor old_logprob, Tensor advantage, Tensor step_of_token, Tensor rollout_of_token, "
    "Tensor? weight, Tensor? ref_logprob, Tensor? segment_log_ratio, int per, float clip_low, "
    "float clip_high, float dual_clip, float kl, int kl_mode, Tensor? entropy=None, Tensor? entropy_z=None, "
    "bool mean=False, bool high_passes=False) -> (Tensor, Tensor, Tensor)",
    reference=_token_loss_reference_below_autograd,
    triton=_token_loss_triton,
    numba=_token_loss_cpu,
    fake=_token_loss_fake,
    backward=_token_loss_backward,
    setup_context=_token_loss_setup,
)


def token_loss(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy=None, entropy_z=None, mean=False, high_passes=False,
):  # fmt: skip
    """``torch.ops.rtmc.policy_loss``: the formulas at the head of this file.

    Parameters
    ----------
    logprob, old_logprob : (T,) floating point; ref_logprob, segment_log_ratio, entropy : (T,) or None
    advantage : (S,), (R,) or (T,) as ``per`` is 0 (step), 1 (rollout) or 2 (token)
    step_of_token, rollout_of_token : (T,) int64; a token with a negative one is masked
    weight : (T,) floating point, or None: every unmasked token weighs 1
    clip_low, clip_high, dual_clip, kl : float; dual_clip 0 = none
    kl_mode : 0..3 for k1, k2, k3, abs
    entropy_z : (2,) float64, with ``entropy``: the mean taken off, and the factor
    mean : divide by the unmasked tokens; high_passes : the upper clip keeps a slope

    Returns
    -------
    loss 0-d (differentiable in ``logprob``), the gradient before ``mean`` divides it (T,), and eleven statistics as
    named above (float64).

    Raises
    ------
    ValueError for an index outside the advantages (CPU). On CUDA it makes the loss NaN.
    """
    return _op(
        logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob,
        segment_log_ratio, per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
    )  # fmt: skip
