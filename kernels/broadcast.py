"""Step values onto tokens, and the way back: token values summed onto steps.

    out[i]  = values[step_of_token[i]]   where step_of_token[i] >= 0, else fill
    sums[s] = sum over { i : step_of_token[i] = s } of token_values[i]

The second is the transpose of the first, so each is the other's gradient. Neither uses float atomics: the
sums run in token order (numba) or over the stably sorted tokens of one step in blocks (Triton), so a result
has the same bits in every run on one device.

Not here: weights and losses (policy_loss.py); statistics of steps (segments.py).
"""

import numpy as np
import torch

from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    as_numpy,
    cdiv,
    check_integers,
    check_number,
    check_tensor,
    jit,
    launch,
    lazy_njit,
    register_op,
    tl,
)

__all__ = ["broadcast_to_tokens", "check_rows", "sum_over_tokens"]

_BLOCK = 2048  # of bfloat16 too a thread then writes 128 bits, on AMD as well
_MASK_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.int32, *FLOAT_DTYPES)


def check_rows(name: str, ids: torch.Tensor, rows: int | None, what: str) -> None:
    """Refuse row numbers outside [-1, rows), or below -1 where ``rows`` is None. ``what`` they are is for the message.

    CPU alone: on CUDA the kernels turn such a token into NaN instead, because looking at the values would
    make the host wait for the device in every call.
    """
    if ids.device.type != "cpu" or ids.numel() == 0:
        return
    low, high = (int(v) for v in ids.aminmax())
    if low < -1 or (rows is not None and high >= rows):
        wanted = what if rows is None else f"a row of the {rows} {what}"
        raise ValueError(f"`{name}`: got {low if low < -1 else high}; wanted -1 (none) or {wanted}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the halves, which numpy (bfloat16) and numba (float16) do not know; else the dtype
    itself."""
    return torch.promote_types(dtype, torch.float32)


def _filler(fill: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(1,) on the device: ``fill`` by torch's cast, in every backend the same."""
    return torch.full((1,), fill, dtype=torch.float64, device=device).to(dtype)


# --- reference ----------------------------------------------------------------------------------------------


def _broadcast_to_tokens_reference(values: torch.Tensor, step_of_token: torch.Tensor, fill: float) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, values.shape[0], "steps")
    out = _filler(fill, values.dtype, values.device).repeat(step_of_token.shape)
    has_step = step_of_token >= 0
    out[has_step] = values[step_of_token[has_step]]
    return out


def _sum_over_tokens_reference(values: torch.Tensor, step_of_token: torch.Tensor, steps: int) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, steps, "steps")
    has_step = step_of_token >= 0
    sums = torch.zeros(steps, dtype=torch.float64, device=values.device)
    sums.index_add_(0, step_of_token[has_step], values[has_step].double())
    return sums.to(values.dtype)


# --- Triton -------------------------------------------------------------------------------------------------


@jit
def _broadcast_to_tokens_kernel(values_ptr, step_ptr, fill_ptr, out_ptr, tokens, steps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    fill = tl.load(fill_ptr)
    # A step that does not exist reads NaN: visible in whatever follows, and no foreign memory is touched.
    if start + BLOCK <= tokens:  # no mask, so ids are read and values written 128 bits at a time
        step = tl.load(step_ptr + at)
        value = tl.load(values_ptr + step, mask=(step >= 0) & (step < steps), other=float("nan"))
        tl.store(out_ptr + at, tl.where(step == -1, fill, value))
    else:
        inside = at < tokens
        step = tl.load(step_ptr + at, mask=inside, other=-1)
        value = tl.load(values_ptr + step, mask=(step >= 0) & (step < steps), other=float("nan"))
        tl.store(out_ptr + at, tl.where(step == -1, fill, value), mask=inside)


@jit
def _sum_over_tokens_kernel(values_ptr, order_ptr, offsets_ptr, out_ptr, BLOCK: tl.constexpr):
    step = tl.program_id(0).to(tl.int64)
    first = tl.load(offsets_ptr + step)
    last = tl.load(offsets_ptr + step + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < last
        token = tl.load(order_ptr + at, mask=inside, other=0)
        total += tl.load(values_ptr + token, mask=inside, other=0.0).to(tl.float64)
    tl.store(out_ptr + step, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty))


def _broadcast_to_tokens_triton(values: torch.Tensor, step_of_token: torch.Tensor, fill: float) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, values.shape[0], "steps")
    steps_T = step_of_token.contiguous()
    out = torch.empty(step_of_token.shape, dtype=values.dtype, device=values.device)
    tokens = out.numel()
    launch(
        _broadcast_to_tokens_kernel,
        (cdiv(tokens, _BLOCK),),
        values.contiguous(),
        steps_T,
        _filler(fill, values.dtype, values.device),  # as a tensor: a scalar argument would be rounded to float32
        out,
        tokens,
        values.shape[0],
        BLOCK=_BLOCK,
    )
    return out


def _sum_over_tokens_triton(values: torch.Tensor, step_of_token: torch.Tensor, steps: int) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, steps, "steps")
    sorted_steps, order = torch.sort(step_of_token.reshape(-1), stable=True)
    # Row s of the sorted tokens is offsets[s]:offsets[s + 1]; tokens without a step stand before offsets[0].
    offsets = torch.searchsorted(sorted_steps, torch.arange(steps + 1, device=values.device))
    # The halves are rounded from float32 by torch: Triton's own casts to them differ between targets.
    out = torch.empty(steps, dtype=_wide(values.dtype), device=values.device)
    launch(_sum_over_tokens_kernel, (steps,), values.reshape(-1).contiguous(), order, offsets, out, BLOCK=256)
    return out.to(values.dtype)


# --- numba --------------------------------------------------------------------------------------------------


@lazy_njit
def _broadcast_to_tokens_numba(values, step_of_token, fill, out):
    for i in range(step_of_token.shape[0]):
        step = step_of_token[i]
        out[i] = values[step] if step >= 0 else fill


@lazy_njit
def _sum_over_tokens_numba(values, step_of_token, sums):
    for i in range(step_of_token.shape[0]):
        step = step_of_token[i]
        if step >= 0:
            sums[step] += values[i]


def _broadcast_to_tokens_cpu(values: torch.Tensor, step_of_token: torch.Tensor, fill: float) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, values.shape[0], "steps")
    wide = _wide(values.dtype)
    out = torch.empty(step_of_token.shape, dtype=wide)
    fill = _filler(fill, values.dtype, values.device).item()
    _broadcast_to_tokens_numba(as_numpy(values, wide), as_numpy(step_of_token).reshape(-1), fill, out.view(-1).numpy())
    return out.to(values.dtype)


def _sum_over_tokens_cpu(values: torch.Tensor, step_of_token: torch.Tensor, steps: int) -> torch.Tensor:
    check_rows("step_of_token", step_of_token, steps, "steps")
    sums = torch.zeros(steps, dtype=torch.float64)
    token_values = as_numpy(values, _wide(values.dtype)).reshape(-1)
    _sum_over_tokens_numba(token_values, as_numpy(step_of_token).reshape(-1), sums.numpy())
    return sums.to(values.dtype)


# --- the ops ------------------------------------------------------------------------------------------------


def _broadcast_to_tokens_setup(ctx, inputs, output):
    values, step_of_token, _ = inputs
    ctx.save_for_backward(step_of_token)
    ctx.steps = values.shape[0]


def _broadcast_to_tokens_backward(ctx, grad):
    (step_of_token,) = ctx.saved_tensors
    return _sum_over_tokens_op(grad, step_of_token, ctx.steps), None, None


def _sum_over_tokens_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _sum_over_tokens_backward(ctx, grad):
    (step_of_token,) = ctx.saved_tensors
    return _broadcast_to_tokens_op(grad, step_of_token, 0.0), None, None


_broadcast_to_tokens_op = register_op(
    "broadcast_to_tokens",
    "(Tensor values, Tensor step_of_token, float fill) -> Tensor",
    reference=_broadcast_to_tokens_reference,
    triton=_broadcast_to_tokens_triton,
    numba=_broadcast_to_tokens_cpu,
    fake=lambda values, step_of_token, fill: values.new_empty(step_of_token.shape),
    backward=_broadcast_to_tokens_backward,
    setup_context=_broadcast_to_tokens_setup,
)

_sum_over_tokens_op = register_op(
    "sum_over_tokens",
    "(Tensor values, Tensor step_of_token, SymInt steps) -> Tensor",
    reference=_sum_over_tokens_reference,
    triton=_sum_over_tokens_triton,
    numba=_sum_over_tokens_cpu,
    fake=lambda values, step_of_token, steps: values.new_empty((steps,)),
    backward=_sum_over_tokens_backward,
    setup_context=_sum_over_tokens_setup,
)


def _checked_steps(step_of_token: torch.Tensor, device: torch.device) -> torch.Tensor:
    step_of_token = check_integers("step_of_token", step_of_token, device=device)
    if step_of_token.dim() not in (1, 2):
        raise ValueError(f"`step_of_token`: got shape {tuple(step_of_token.shape)}; wanted (T,) or (B, T)")
    return step_of_token


def broadcast_to_tokens(
    values: torch.Tensor,
    step_of_token: torch.Tensor,
    fill: float = 0.0,
    mask: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Each token gets its step's value: out[i] = values[step_of_token[i]], or ``fill`` where that is -1.

    Parameters
    ----------
    values : (S,) float16, bfloat16, float32 or float64, any strides
        One number a step, for example its advantage.
    step_of_token : (T,) packed or (B, T) padded, int64 (or int32, which is widened), any strides
        Row of each token's step; -1 for a token of no step (prompt, tool output, padding).
    fill : float
        What a token of no step receives, rounded to the result's dtype; it may be NaN or infinite. A finite one that
        the dtype can hold only as infinity is refused.
    mask : the shape of ``step_of_token``, bool, integer or floating, optional
        0 = the token counts as one of no step; its step is not looked at. Not differentiable.
    dtype : float16, bfloat16, float32 or float64, optional
        Of the result; by default that of ``values``. Steps are rounded, not tokens.

    Returns
    -------
    Tensor of ``step_of_token``'s shape. Differentiable in ``values`` (twice): the gradient of a step is the sum
    over its tokens in float64, rounded (halves: through float32), bitwise repeatable.

    Raises
    ------
    TypeError, ValueError
        For another dtype, shape or device; on CPU also for a step outside [-1, S). On CUDA such a token
        becomes NaN.
    """
    check_tensor("values", values, dtypes=FLOAT_DTYPES, shape=("S",))
    step_of_token = _checked_steps(step_of_token, values.device)
    fill = check_number("fill", fill)
    if mask is not None:
        shape = tuple(step_of_token.shape)
        check_tensor("mask", mask, dtypes=_MASK_DTYPES, shape=shape, device=values.device)
        step_of_token = torch.where(mask != 0, step_of_token, -1)
    if dtype is not None:
        if dtype not in FLOAT_DTYPES:
            wanted = ", ".join(str(d).removeprefix("torch.") for d in FLOAT_DTYPES)
            raise ValueError(f"`dtype`: got {dtype!r}; wanted one of {wanted}")
        values = values.to(dtype)
    most = torch.finfo(values.dtype).max
    if most < abs(fill) < float("inf"):
        kind = str(values.dtype).removeprefix("torch.")
        raise ValueError(f"`fill`: got {fill!r}; wanted inf, -inf, nan or a number of size {most:g} at most ({kind})")
    return _broadcast_to_tokens_op(values, step_of_token, fill)


def sum_over_tokens(values: torch.Tensor, step_of_token: torch.Tensor, steps: int) -> torch.Tensor:
    """Each step gets the sum of its tokens: out[s] = sum of values[i] over i with step_of_token[i] = s.

    Parameters
    ----------
    values : (T,) or (B, T) float16, bfloat16, float32 or float64, any strides
    step_of_token : the same shape, int64 (or int32, which is widened), any strides
        Row of each token's step; tokens with -1 enter no sum, whatever their value.
    steps : int
        S, the number of steps.

    Returns
    -------
    (S,) of ``values``' dtype: summed in float64, rounded (halves: through float32), bitwise repeatable; 0 for
    a step without tokens. Differentiable in ``values``.

    Raises
    ------
    TypeError, ValueError
        For another dtype, shape or device; on CPU also for a step outside [-1, S). On CUDA such a token
        enters no sum.
    """
    check_tensor("values", values, dtypes=FLOAT_DTYPES)
    step_of_token = _checked_steps(step_of_token, values.device)
    if values.shape != step_of_token.shape:
        wanted = tuple(step_of_token.shape)
        raise ValueError(f"`values`: got shape {tuple(values.shape)}; wanted {wanted} as `step_of_token` has")
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise ValueError(f"`steps`: got {steps!r}; wanted the number of steps, an int >= 0")
    return _sum_over_tokens_op(values, step_of_token, int(steps))
