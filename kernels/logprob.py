"""Log-probabilities of target tokens, and the entropy, from hidden states, without a (tokens, vocabulary) tensor.

With the logits z = (hidden @ weight^T + bias) / temperature of a token and p = softmax(z):

    logprob = z_y - log sum exp z                     y = the token's target
    entropy = - sum p log p                           nats; 0 log 0 = 0

    d logprob / dz = onehot(y) - p                    d entropy / dz = - p (log p + entropy)

The sums run over blocks of the vocabulary, shifted by the running maximum (logprob_sweep.py has the formulas and the
memory bound, logprob_triton.py the GPU's kernels). There are two ways to the gradient:

    weight and bias frozen, no entropy    the forward pass carries the gradient of each logprob to its hidden row along
                                          and keeps it (T, H); the backward pass multiplies by the upstream gradient.
                                          Two products of tokens x vocabulary x H, as many as with all logits kept
    otherwise                             the forward pass keeps maximum and sum (2, T); the backward pass computes the
                                          logits again block by block: one product more

Sources: the online softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867), carried sums as in Dao et al. 2022
(FlashAttention, arXiv 2205.14135), chunked losses over the vocabulary as in Wijmans et al. 2024 (Cut Cross-Entropy,
arXiv 2411.09009).

Not here: sampling; shifting targets against hidden states (row t is scored against ``targets[t]``); losses
(policy_loss.py).
"""

import numpy as np
import torch

from rtmc.kernels.backend import FLOAT_DTYPES, check_integers, check_range, check_tensor, register_op
from rtmc.kernels.logprob_sweep import Blocks, backward_sweep, forward_sweep
from rtmc.kernels.logprob_triton import TritonBlocks

__all__ = ["token_logprobs"]


def _counted(targets: torch.Tensor, vocabulary: int, ignore_index: int) -> torch.Tensor:
    """Mask of the tokens that are not ignored; refuses targets outside the vocabulary (reads one value)."""
    counted = targets != ignore_index
    wrong = counted & ((targets < 0) | (targets >= vocabulary))
    if targets.numel() and wrong.any():
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"`targets`: got {int(targets[at])} at position {at}; wanted 0 to {vocabulary - 1} (a row of `weight`) "
            f"or {ignore_index} (`ignore_index`)"
        )
    return counted


# --- reference ----------------------------------------------------------------------------------------------


def _logits_reference(hidden, weight, bias, temperature):
    wide = torch.promote_types(hidden.dtype, torch.float32)
    z = hidden.to(wide) @ weight.to(wide).t()
    return (z if bias is None else z + bias.to(wide)) / temperature


def _token_logprobs_reference(hidden, weight, targets, bias, temperature, entropy, ignore_index, tie):
    counted = _counted(targets, weight.shape[0], ignore_index)
    z = _logits_reference(hidden[counted], weight, bias, temperature)
    y = targets[counted]
    logprobs, p = z.log_softmax(-1), z.softmax(-1)

    def spread(values):
        out = values.new_zeros(hidden.shape[0], *values.shape[1:])
        out[counted] = values
        return out

    top = z.amax(-1) if weight.shape[0] else z.new_zeros(len(y))
    stats = torch.stack([spread(top), spread((z - top.masked_fill(top == -torch.inf, 0)[:, None]).exp().sum(-1))])
    plogp = torch.where(p == 0, 0.0, p * logprobs)
    own = -plogp.sum(-1) if entropy else z.new_empty(0)
    direction = z.new_empty(0, hidden.shape[1])
    if tie is not None:
        direction = spread((weight[y].to(z.dtype) - p @ weight.to(z.dtype)) / temperature)
    return spread(logprobs.gather(1, y[:, None])[:, 0]), spread(own) if entropy else own, stats, direction


def _token_logprobs_bwd_reference(
    grad_logprob, grad_entropy, hidden, weight, targets, bias, stats, entropy, temperature, ignore_index, *needs
):
    moves = _moving(grad_logprob, grad_entropy, targets, ignore_index)
    h, y, g = hidden[moves], targets[moves], grad_logprob[moves]
    z = _logits_reference(h, weight, bias, temperature)
    logprobs, p = z.log_softmax(-1), z.softmax(-1)
    c = -g[:, None] * p
    c[torch.arange(len(y), device=c.device), y] += g
    if grad_entropy is not None:
        plogp = torch.where(p == 0, 0.0, p * logprobs)
        c = c - grad_entropy[moves, None] * (plogp - p * plogp.sum(-1, keepdim=True))
    c = c / temperature
    grad_hidden = torch.zeros_like(hidden, dtype=z.dtype)
    grad_hidden[moves] = c @ weight.to(z.dtype)
    grads = (grad_hidden, c.t() @ h.to(z.dtype), c.sum(0))
    return tuple(x.to(hidden.dtype) if need else hidden.new_empty(0) for x, need in zip(grads, needs, strict=True))


# --- the sweep, on either device ----------------------------------------------------------------------------


def _rows(mask: torch.Tensor) -> torch.Tensor | None:
    """Rows of the mask, or None for all of them; on CUDA the host waits for their number."""
    rows = mask.nonzero()[:, 0]
    return None if rows.numel() == mask.numel() else rows


def _take(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return x if rows is None else x[rows]


def _spread(values: torch.Tensor, rows: torch.Tensor | None, total: int) -> torch.Tensor:
    """(..., T, ...) with the values in their rows of the first dimension and exactly 0 in the others."""
    return values if rows is None else values.new_zeros(total, *values.shape[1:]).index_copy_(0, rows, values)


def _token_logprobs_in_blocks(
    kind: type[Blocks], hidden, weight, targets, bias, temperature, entropy, ignore_index, tie
):
    rows = _rows(_counted(targets, weight.shape[0], ignore_index))
    y = _take(targets, rows)
    # An autocast around the caller would turn the products of the sweep into halves.
    with torch.autocast(hidden.device.type, enabled=False):
        blocks = kind(hidden, temperature)
        running, direction = forward_sweep(blocks, _take(hidden, rows), weight, y, bias, entropy, tie is not None)
    m, s, q, z_y = running
    shift = m.masked_fill(m == -torch.inf, 0.0)
    total = hidden.shape[0]
    return (
        _spread((z_y - shift) - s.log(), rows, total),
        _spread(s.log() - q / s, rows, total) if entropy else s.new_empty(0),
        torch.stack([_spread(m, rows, total), _spread(s, rows, total)]),
        s.new_empty(0, hidden.shape[1]) if direction is None else _spread(direction, rows, total),
    )


def _moving(grad_logprob, grad_entropy, targets, ignore_index) -> torch.Tensor:
    """Mask of the tokens through which a gradient comes."""
    moves = grad_logprob != 0
    if grad_entropy is not None:
        moves = moves | (grad_entropy != 0)
    return moves & (targets != ignore_index)


def _token_logprobs_bwd_in_blocks(
    kind: type[Blocks], grad_logprob, grad_entropy, hidden, weight, targets, bias, stats, entropy, temperature,
    ignore_index, *needs,
):  # fmt: skip
    rows = _rows(_moving(grad_logprob, grad_entropy, targets, ignore_index))
    through_entropy = None if grad_entropy is None else _take(grad_entropy, rows)
    with torch.autocast(hidden.device.type, enabled=False):
        grad_hidden, grad_weight, grad_bias = backward_sweep(
            kind(hidden, temperature),
            (_take(grad_logprob, rows), through_entropy),
            _take(hidden, rows),
            weight,
            _take(targets, rows),
            bias,
            stats if rows is None else stats[:, rows],
            None if through_entropy is None else _take(entropy, rows),
            needs,
        )
    absent = hidden.new_empty(0)
    return (
        absent if grad_hidden is None else _spread(grad_hidden.to(hidden.dtype), rows, hidden.shape[0]),
        absent.clone() if grad_weight is None else grad_weight,
        absent.clone() if grad_bias is None else grad_bias,
    )


def _scaled_rows(direction, grad, targets, ignore_index, tie):
    """grad * direction in the dtype of ``tie``; exactly 0 where the token is ignored or its gradient 0."""
    still = (grad == 0) | (targets == ignore_index)
    return (direction * grad[:, None]).masked_fill_(still[:, None], 0.0).to(tie.dtype, copy=True)


# --- the ops ------------------------------------------------------------------------------------------------


def _token_logprobs_fake(hidden, weight, targets, bias, temperature, entropy, ignore_index, tie):
    tokens, size = hidden.shape
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (
        hidden.new_empty((tokens,), dtype=wide),
        hidden.new_empty((tokens if entropy else 0,), dtype=wide),
        hidden.new_empty((2, tokens), dtype=wide),
        hidden.new_empty((0 if tie is None else tokens, size), dtype=wide),
    )


def _token_logprobs_bwd_fake(grad_logprob, grad_entropy, hidden, weight, targets, bias, *rest):
    shapes = (hidden.shape, weight.shape, weight.shape[:1])
    return tuple(hidden.new_empty(s if need else (0,)) for s, need in zip(shapes, rest[-3:], strict=True))


def _token_logprobs_setup(ctx, inputs, output):
    hidden, weight, targets, bias, ctx.temperature, ctx.entropy, ctx.ignore_index, tie = inputs
    _, entropy, stats, direction = output
    ctx.mark_non_differentiable(stats, direction, *([] if ctx.entropy else [entropy]))
    ctx.set_materialize_grads(False)
    ctx.kept = tie is not None
    if ctx.kept:
        # Neither weight nor hidden is held: the op needs them no more.
        ctx.save_for_backward(direction, targets, tie)
    else:
        ctx.save_for_backward(hidden, weight, targets, bias, stats, entropy)


def _token_logprobs_backward(ctx, grad_logprob, grad_entropy, _grad_stats, _grad_direction):
    if grad_logprob is None and grad_entropy is None:
        return (None,) * 8
    need_hidden, need_weight, _, need_bias, *_ = ctx.needs_input_grad
    if ctx.kept:
        if need_weight or need_bias or grad_entropy is not None:
            raise RuntimeError("`tie` is for the gradient of `logprob` to `hidden` alone")
        direction, targets, tie = ctx.saved_tensors
        return _scaled_op(direction, grad_logprob, targets, ctx.ignore_index, tie), *(None,) * 7
    hidden, weight, targets, bias, stats, entropy = ctx.saved_tensors
    if grad_logprob is None:
        grad_logprob = torch.zeros_like(grad_entropy)
    needs = (need_hidden, need_weight, need_bias)
    grads = _backward_op(
        grad_logprob, grad_entropy, hidden, weight, targets, bias, stats, entropy, ctx.temperature,
        ctx.ignore_index, *needs,
    )  # fmt: skip
    grad_hidden, grad_weight, grad_bias = (x if need else None for x, need in zip(grads, needs, strict=True))
    return grad_hidden, grad_weight, None, grad_bias, None, None, None, None


def _on(kind: type[Blocks], work):
    return lambda *args: work(kind, *args)


# The backward passes are ops without a gradient of their own: a second derivative raises instead of being wrong.
_backward_op = register_op(
    "token_logprobs_bwd",
    "(Tensor grad_logprob, Tensor? grad_entropy, Tensor hidden, Tensor weight, Tensor targets, Tensor? bias, "
    "Tensor stats, Tensor entropy, float temperature, int ignore_index, bool need_hidden, bool need_weight, "
    "bool need_bias) -> (Tensor, Tensor, Tensor)",
    reference=_token_logprobs_bwd_reference,
    triton=_on(TritonBlocks, _token_logprobs_bwd_in_blocks),
    numba=_on(Blocks, _token_logprobs_bwd_in_blocks),
    fake=_token_logprobs_bwd_fake,
    needs_numba=False,
)

_scaled_op = register_op(
    "token_logprobs_scaled",
    "(Tensor direction, Tensor grad, Tensor targets, int ignore_index, Tensor tie) -> Tensor",
    reference=_scaled_rows,
    triton=_scaled_rows,
    numba=_scaled_rows,
    fake=lambda direction, grad, targets, ignore_index, tie: direction.new_empty(direction.shape, dtype=tie.dtype),
    needs_numba=False,
)

_op = register_op(
    "token_logprobs",
    "(Tensor hidden, Tensor weight, Tensor targets, Tensor? bias, float temperature, bool entropy, "
    "int ignore_index, Tensor? tie=None) -> (Tensor, Tensor, Tensor, Tensor)",
    reference=_token_logprobs_reference,
    triton=_on(TritonBlocks, _token_logprobs_in_blocks),
    numba=_on(Blocks, _token_logprobs_in_blocks),
    fake=_token_logprobs_fake,
    backward=_token_logprobs_backward,
    setup_context=_token_logprobs_setup,
    needs_numba=False,
)


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    entropy: bool = False,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each token's target, and the entropy of its distribution (formulas: head of this file).

    No tensor of tokens x vocabulary exists, forward or backward: a block of at most ``BUDGET`` bytes does (8 MiB on the
    CPU, 256 MiB on CUDA; logprob_sweep.py says what comes besides), however many tokens there are: the bfloat16 logits
    of 4 x 2,048 tokens and 151,936 words would take 2.5 GB. Called under ``torch.no_grad()`` it costs one product of
    tokens x vocabulary x H; with a gradient see the head of this file.

    Parameters
    ----------
    hidden : (T, H) float16, bfloat16, float32 or float64, any strides
        Last hidden states; row t is the state that predicts ``targets[t]``.
    weight : (V, H) the dtype of ``hidden``, any strides
        The output projection (the embedding, where they are tied).
    targets : (T,) int64 or int32, any strides
        0 .. V-1, or ``ignore_index``: such a row enters no product, gives exactly 0 and no gradient, whatever it holds.
    bias : (V,) the dtype of ``hidden``, or None
        Minus infinity masks an entry: its probability is 0, and a target there has logprob minus infinity.
    temperature : number > 0
        Divides the logits, bias included; its reciprocal must be finite in the dtype that is computed in.
    entropy : bool
        Whether to compute the entropy. It is differentiable; where only its value is wanted, call under
        ``torch.no_grad()`` or detach ``hidden``, which is cheaper.
    ignore_index : int

    Returns
    -------
    logprob : (T,) nats, float64 for float64 ``hidden`` else float32
    entropy : (T,) the same dtype, nats; None unless asked for

    Both are differentiable once in hidden, weight and bias (a second derivative raises RuntimeError). Halves
    accumulate in float32; gradients are rounded to their tensor's dtype at the end. A row with NaN or plus infinity
    among its logits, or minus infinity alone, is NaN in both; other rows do not see it. A row whose upstream gradient
    is 0 passes 0 on, NaN or not. The same inputs give the same bits in every run with the same number of threads.
    On CUDA the host waits for the device twice in the forward pass and, where logits are computed again, once in the
    backward pass (how many rows count decides the shapes), so neither can be captured into a CUDA graph.

    Raises
    ------
    TypeError, ValueError
        For a wrong dtype, shape, device or number, and for a target outside 0 .. V-1 (on CUDA too).
    """
    check_tensor("hidden", hidden, dtypes=FLOAT_DTYPES, shape=("T", "H"))
    tokens, size = hidden.shape
    check_tensor("weight", weight, dtypes=hidden.dtype, shape=("V", size), device=hidden.device)
    targets = check_integers("targets", targets, shape=(tokens,), device=hidden.device)
    if bias is not None:
        check_tensor("bias", bias, dtypes=hidden.dtype, shape=(weight.shape[0],), device=hidden.device)
    temperature = check_range("temperature", temperature, 0, float("inf"), low_open=True, high_open=True)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if 1 / temperature > torch.finfo(wide).max:
        computed = str(wide).removeprefix("torch.")
        raise ValueError(f"`temperature`: got {temperature!r}; wanted one whose reciprocal is finite in {computed}")
    if isinstance(ignore_index, np.integer):
        ignore_index = int(ignore_index)
    for name, value, kind in (("entropy", entropy, bool), ("ignore_index", ignore_index, int)):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"`{name}`: got {value!r} ({type(value).__name__}); wanted {kind.__name__}")
    trained = [weight] if bias is None else [weight, bias]
    only_hidden = hidden.requires_grad and not any(x.requires_grad for x in trained)
    # Given, it asks the forward pass for the gradient; and through it a second derivative finds that there is none,
    # without ``hidden`` being held.
    tie = hidden[:0].clone() if torch.is_grad_enabled() and only_hidden and not entropy else None
    args = (hidden, weight, targets, bias, temperature, entropy, ignore_index, tie)
    logprob, own_entropy, _, _ = _op(*args)
    return logprob, own_entropy if entropy else None
