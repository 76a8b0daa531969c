"""Discounted returns of ragged rollouts.

Rollout r is the rows offsets[r] : offsets[r+1], in time order. With ``final`` (the outcome) added to its
last reward,

    G_t = r_t + gamma * G_{t+1},   G_{last} = r_last + final_r

Units: those of the reward. Arithmetic runs in float64 and is rounded once to the reward's dtype (by torch's cast). A
rollout's returns depend on its own rows alone, so moving whole rollouts changes no bit. Rollouts without
rows give no output.

Gradient: dL/dr_t = sum_{k <= t} gamma^{t-k} dL/dG_k, which is the same operation on the rows reversed.

Not here: which reward a step has, and what an unknown (NaN) ``final`` means; NaN spreads as IEEE has it.

Source: Sutton and Barto, Reinforcement Learning, 2nd ed., eq. 3.9; used by RTMC (arXiv 2604.11037).
"""

import torch

from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    as_numpy,
    check_integers,
    check_offsets,
    check_range,
    check_tensor,
    jit,
    launch,
    lazy_njit,
    register_op,
    tl,
)

__all__ = ["discounted_returns"]

# Fixed, not fitted to the longest rollout: the order of additions in a scan follows the block, and a
# rollout's returns must not depend on which other rollouts stand in the table.
_BLOCK = 256
_INF = tl.constexpr(float("inf"))


def _returns_reference(
    reward: torch.Tensor, offsets: torch.Tensor, gamma: float, final: torch.Tensor | None
) -> torch.Tensor:
    check_offsets("offsets", offsets, reward.shape[0])
    returns = reward.double().clone()
    for r, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        if end > begin and final is not None:
            returns[end - 1] += final[r].double()
        for t in range(end - 2, begin - 1, -1):
            returns[t] += gamma * returns[t + 1]
    return returns.to(reward.dtype)


@jit
def _decayed(value, decay):
    """value * decay for decay > 0. What is no number stays what it is: where gamma^k underflows, inf * 0 is NaN."""
    return tl.where(tl.abs(value) < _INF, value * decay, value)


@jit
def _decay_combine(decay_left, value_left, decay_right, value_right):
    return decay_left * decay_right, _decayed(value_left, decay_right) + value_right


@jit
def _returns_kernel(reward_S, offsets_R1, final_R, gamma_1, out_S, HAS_FINAL: tl.constexpr, BLOCK: tl.constexpr):
    """One program a rollout; blocks of rows from its end towards its begin, lane 0 the latest row.

    Within a block, h_i = gamma * h_{i-1} + r_i is an associative scan over pairs (decay, value); what the
    later blocks hold enters as carry * gamma^(i+1). A later value that is no number reaches every row before it; at
    gamma 0 as 0 * inf = NaN.
    """
    rollout = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets_R1 + rollout)
    end = tl.load(offsets_R1 + rollout + 1)
    gamma = tl.load(gamma_1)
    lane = tl.arange(0, BLOCK)
    carry = gamma * 0.0
    odd_later = begin * 0  # how many of the later blocks' values are no numbers
    if HAS_FINAL:
        final = tl.load(final_R + rollout)
    for done in range(0, end - begin, BLOCK):
        row = end - 1 - done - lane
        inside = row >= begin
        value = tl.load(reward_S + row, mask=inside, other=0.0).to(tl.float64)
        if HAS_FINAL:
            value = tl.where(row == end - 1, value + final, value)
        own = value
        decay = tl.zeros_like(value) + gamma
        decay, value = tl.associative_scan((decay, value), 0, _decay_combine)
        value = value + _decayed(carry, decay)
        if gamma == 0.0:
            odd = tl.where(tl.abs(own) < _INF, 0, 1).to(tl.int64)
            later = tl.cumsum(odd, 0) - odd + odd_later
            value = tl.where(later > 0, float("nan"), value)
            odd_later += tl.sum(odd, 0)
        tl.store(out_S + row, value.to(out_S.dtype.element_ty), mask=inside)
        carry = tl.sum(tl.where(lane == BLOCK - 1, value, 0.0), 0)


def _returns_triton(
    reward: torch.Tensor, offsets: torch.Tensor, gamma: float, final: torch.Tensor | None
) -> torch.Tensor:
    check_offsets("offsets", offsets, reward.shape[0])
    dtype = reward.dtype
    if dtype.itemsize < 4:
        # torch's cast to half is the one that the other backends use too.
        reward = reward.double()
    reward = reward.contiguous()
    out = torch.empty_like(reward)
    # A Python float would reach the kernel as float32.
    gamma_1 = torch.full((1,), gamma, dtype=torch.float64, device=reward.device)
    launch(
        _returns_kernel,
        (offsets.shape[0] - 1,),
        reward,
        offsets.contiguous(),
        reward if final is None else final.double().contiguous(),
        gamma_1,
        out,
        HAS_FINAL=final is not None,
        BLOCK=_BLOCK,
        num_warps=1,
    )
    return out.to(dtype)


@lazy_njit
def _returns_loop(reward, offsets, gamma, final, has_final, out):
    """One read and one write a row: the running return stays in a register, in float64 whatever the arrays are."""
    for r in range(len(offsets) - 1):
        begin, end = offsets[r], offsets[r + 1]
        if end > begin:
            running = float(reward[end - 1])
            if has_final:
                running += final[r]
            out[end - 1] = running
            for t in range(end - 2, begin - 1, -1):
                running = reward[t] + gamma * running
                out[t] = running


def _returns_numba(
    reward: torch.Tensor, offsets: torch.Tensor, gamma: float, final: torch.Tensor | None
) -> torch.Tensor:
    check_offsets("offsets", offsets, reward.shape[0])
    # numba knows no half; torch's cast to it is the one that the other backends use too.
    wide = reward.dtype if reward.dtype.itemsize >= 4 else torch.float64
    out = torch.empty(reward.shape[0], dtype=wide)
    extra = torch.empty(0, dtype=torch.float64) if final is None else final
    _returns_loop(
        as_numpy(reward, wide),
        as_numpy(offsets),
        gamma,
        as_numpy(extra, torch.float64),
        final is not None,
        out.numpy(),
    )
    return out.to(reward.dtype)


def _returns_fake(
    reward: torch.Tensor, offsets: torch.Tensor, gamma: float, final: torch.Tensor | None
) -> torch.Tensor:
    return torch.empty_like(reward, memory_format=torch.contiguous_format)


def _returns_setup(ctx, inputs, output):
    _, offsets, ctx.gamma, final = inputs
    ctx.final_dtype = None if final is None else final.dtype
    ctx.save_for_backward(offsets)


def _returns_bwd(ctx, grad):
    (offsets,) = ctx.saved_tensors
    reversed_offsets = grad.shape[0] - offsets.flip(0)
    grad_reward = _op(grad.flip(0), reversed_offsets, ctx.gamma, None).flip(0)
    grad_final = None
    if ctx.final_dtype is not None:
        last = (offsets[1:] - 1).clamp_min(0)
        filled = offsets[1:] > offsets[:-1]
        padded = grad_reward if grad_reward.shape[0] else grad_reward.new_zeros(1)
        grad_final = torch.where(filled, padded[last], 0.0).to(ctx.final_dtype)
    return grad_reward, None, None, grad_final


_op = register_op(
    "discounted_returns",
    "(Tensor reward, Tensor offsets, float gamma, Tensor? final=None) -> Tensor",
    reference=_returns_reference,
    triton=_returns_triton,
    numba=_returns_numba,
    fake=_returns_fake,
    backward=_returns_bwd,
    setup_context=_returns_setup,
)


def discounted_returns(
    reward: torch.Tensor, offsets: torch.Tensor, gamma: float, final: torch.Tensor | None = None
) -> torch.Tensor:
    """Return of every row: G_t = r_t + gamma G_{t+1} within its rollout (formula: top of this file).

    Parameters
    ----------
    reward : (S,) float16, bfloat16, float32 or float64
        Step rewards; the rows of a rollout are adjacent and in time order. NaN and infinities follow IEEE rules.
        Any strides.
    offsets : (R+1,) int64, or int32, which is widened
        Rollout r is rows offsets[r] : offsets[r+1]; equal neighbours are an empty rollout.
    gamma : float in [0, 1]
        Discount per row.
    final : (R,) floating, optional
        Added to the last reward of each rollout; that of an empty rollout goes nowhere.

    Returns
    -------
    (S,) in the reward's dtype, computed in float64. Differentiable in ``reward`` and ``final``.

    Raises TypeError or ValueError for a wrong dtype, shape, device, discount, or offsets that are no
    partition.
    """
    check_tensor("reward", reward, dtypes=FLOAT_DTYPES, shape=("S",))
    offsets = check_integers("offsets", offsets, shape=("R+1",), device=reward.device)
    if offsets.shape[0] == 0:
        raise ValueError("`offsets`: got no element; wanted R+1 of them (a table without rollouts has [0])")
    if final is not None:
        check_tensor("final", final, dtypes=FLOAT_DTYPES, shape=(offsets.shape[0] - 1,), device=reward.device)
    return _op(reward, offsets, check_range("gamma", gamma, 0.0, 1.0), final)
