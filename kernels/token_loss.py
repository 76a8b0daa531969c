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
sums in float64 throughout; on CUDA it is two launches without a host wait (token_loss_triton.py).

Not here: which token weighs what (token_weights.py); means over turns or sequences (policy_loss.py).
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from rtmc.kernels.backend import register_op
from rtmc.kernels.broadcast import check_rows
from rtmc.kernels.token_loss_cpu import run_chunks
from rtmc.kernels.token_loss_triton import run_blocks

__all__ = ["token_loss"]

# The third output: the sum of w l (as ``mean`` divides it), then means over unmasked tokens of r, of hits of the
# lower, upper and dual clip, of d, of k3(d) and of k(x); the unmasked tokens; the largest |d|; what the stored
# gradient is still to be multiplied by.
_ROWS = 10
_TOKEN_CLAMP, _SEGMENT_CLAMP, _K3_CLAMP = 20.0, 10.0, 10.0


def _check_index(
    advantage: torch.Tensor, step_of_token: torch.Tensor, rollout_of_token: torch.Tensor, per: int, one_a_token: bool
) -> None:
    """Refuses rows that there are not (CPU), and with ``one_a_token``, where there are as many advantages as tokens, a
    table whose last row no unmasked token has (anywhere: the host waits)."""
    rows = advantage.shape[0]
    check_rows("step_of_token", step_of_token, rows if per == 0 else None, "steps" if per == 0 else "a number >= 0")
    # Where a sequence is below 0, ``rollout_of_token`` comes with its number.
    kind = "rollouts" if per == 1 else "a number >= 0"
    check_rows("rollout_of_token", rollout_of_token, rows if per == 1 else None, f"{kind} (`sequence_of_token`: >= -1)")
    if not (one_a_token and rows):
        return
    name, index = ("step", step_of_token) if per == 0 else ("rollout", rollout_of_token)
    largest = int(torch.where((step_of_token >= 0) & (rollout_of_token >= 0), index, -1).max())
    if 0 <= largest != rows - 1:
        raise ValueError(
            f"`advantage`: got {rows} for {rows} tokens whose largest unmasked {name} is {largest}; wanted one for a "
            f'{name}, per="token" where there is one a token, or `rows={rows}` where there are {rows} {name}s'
        )


# --- reference ----------------------------------------------------------------------------------------------


def _token_loss_reference(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes, one_a_token,
):  # fmt: skip
    """Autograd computes the gradient here; the other implementations write it out."""
    _check_index(advantage, step_of_token, rollout_of_token, per, one_a_token)
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


# --- Triton and numba ---------------------------------------------------------------------------------------


def _token_loss_triton(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes, one_a_token,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per, one_a_token)
    return run_blocks(
        logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
        per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes,
    )  # fmt: skip


def _token_loss_cpu(
    logprob, old_logprob, advantage, step_of_token, rollout_of_token, weight, ref_logprob, segment_log_ratio,
    per, clip_low, clip_high, dual_clip, kl, kl_mode, entropy, entropy_z, mean, high_passes, one_a_token,
):  # fmt: skip
    _check_index(advantage, step_of_token, rollout_of_token, per, one_a_token)
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
        return (None,) * 19
    grad, stats = ctx.saved_tensors
    # In the accumulation dtype until the product is made: a half-precision loss scale arrives in grad_loss.
    return ((grad_loss * stats[10]).to(grad.dtype) * grad).to(ctx.dtype), *(None,) * 18


_op = register_op(
    "policy_loss",
    "(Tensor logprob, Tensor old_logprob, Tensor advantage, Tensor step_of_token, Tensor rollout_of_token, "
    "Tensor? weight, Tensor? ref_logprob, Tensor? segment_log_ratio, int per, float clip_low, "
    "float clip_high, float dual_clip, float kl, int kl_mode, Tensor? entropy=None, Tensor? entropy_z=None, "
    "bool mean=False, bool high_passes=False, bool one_a_token=False) -> (Tensor, Tensor, Tensor)",
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
    one_a_token=False,
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
    one_a_token : refuse advantages whose last row no unmasked token has (the host waits)

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
        one_a_token,
    )  # fmt: skip
