"""The weights under which a sum over tokens becomes the wanted mean, and means over turns or sequences.

Both rest on keys: at each token the number of its turn, sequence or rollout, any number >= 0, or -1 for none.

    lengths[i] = how many tokens bear key[i];   distinct = how many different keys >= 0 there are
    means[i]   = sum of values[j] over the tokens j with key[j] = key[i], / lengths[i];   0 where key[i] < 0

CPU: counts in a table indexed by the key (by its rank, where the keys are far larger than their number). CUDA: one
sort, and for the means one launch more; no host wait. Sums run in float64 in token order, so the bits are the same
in every run. The policy loss (policy_loss.py) is a sum with these weights.

Not here: the loss itself; statistics of steps (segments.py).
"""

import torch

from rtmc.kernels.backend import (
    FLOAT_DTYPES,
    as_numpy,
    check_integers,
    check_range,
    check_tensor,
    choose,
    jit,
    launch,
    lazy_njit,
    register_op,
    tl,
)

__all__ = ["AGGREGATES", "aggregate_weights", "choose", "segment_mean"]

AGGREGATES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "rollout-mean",
)
_INFINITY = float("inf")
_PROGRAMS = 4096  # of a launch over segments: several for every multiprocessor there is


# --- reference ----------------------------------------------------------------------------------------------


def _key_lengths_reference(key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys, which, counts = key.unique(return_inverse=True, return_counts=True)
    return torch.where(key >= 0, counts[which], 0), (keys >= 0).sum()


def _segment_mean_reference(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    keys, which, counts = key.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(keys.shape, dtype=torch.float64, device=values.device)
    sums.index_add_(0, which, torch.where(key >= 0, values.double(), 0.0))
    return (sums / counts)[which].to(values.dtype)


# --- Triton -------------------------------------------------------------------------------------------------


@jit
def _segment_mean_kernel(values_ptr, order_ptr, starts_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr):
    """Each program takes every n-th segment: a sum over its tokens, then their mean to each of them.

    How many segments there are is read from the device, so the host need not wait for it.
    """
    acc = out_ptr.dtype.element_ty
    segment = tl.program_id(0).to(tl.int64)
    count = tl.load(count_ptr)
    while segment < count:
        first = tl.load(starts_ptr + segment)
        last = tl.load(starts_ptr + segment + 1)
        total = tl.zeros((BLOCK,), tl.float64)
        for start in range(first, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            token = tl.load(order_ptr + at, mask=at < last, other=0)
            total += tl.load(values_ptr + token, mask=at < last, other=0.0).to(tl.float64)
        mean = (tl.sum(total, axis=0) / (last - first).to(tl.float64)).to(acc)
        for start in range(first, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            token = tl.load(order_ptr + at, mask=at < last, other=0)
            tl.store(out_ptr + token, tl.full((BLOCK,), 0.0, acc) + mean, mask=at < last)
        segment += tl.num_programs(0)


def _key_lengths_triton(key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorts and counts of torch: integers, so the same in every run."""
    ordered = key.sort().values
    lengths = torch.searchsorted(ordered, key, right=True) - torch.searchsorted(ordered, key)
    heads = _heads(ordered)
    return torch.where(key >= 0, lengths, 0), heads.sum()


def _heads(ordered: torch.Tensor) -> torch.Tensor:
    """Where a key >= 0 stands for the first time among sorted ones."""
    return torch.cat([ordered[:1] >= 0, (ordered[1:] != ordered[:-1]) & (ordered[1:] >= 0)])


def _segment_mean_triton(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    tokens = key.shape[0]
    ordered, order = key.sort(stable=True)
    heads = _heads(ordered)
    rank = heads.cumsum(0) - 1
    # starts[s] is where segment s begins among the sorted tokens; after the last one stands their number.
    starts = torch.full((tokens + 1,), tokens, dtype=torch.int64, device=key.device)
    place = torch.arange(tokens, device=key.device)
    starts.scatter_(0, torch.where(heads, rank, tokens), torch.where(heads, place, tokens))
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.zeros(tokens, dtype=wide, device=values.device)
    grid = (min(tokens, _PROGRAMS),)
    launch(_segment_mean_kernel, grid, values.contiguous(), order, starts, heads.sum(), out, BLOCK=256)
    return out.to(values.dtype)


# --- numba --------------------------------------------------------------------------------------------------


@lazy_njit
def _key_lengths_numba(key, counts, lengths):
    """``counts``: zeros, one for each key. Returns how many keys occur."""
    distinct = 0
    for i in range(key.shape[0]):
        if key[i] >= 0:
            if counts[key[i]] == 0:
                distinct += 1
            counts[key[i]] += 1
    for i in range(key.shape[0]):
        lengths[i] = counts[key[i]] if key[i] >= 0 else 0
    return distinct


@lazy_njit
def _segment_mean_numba(values, key, counts, sums, out):
    """``counts`` and ``sums``: zeros, one for each key."""
    for i in range(key.shape[0]):
        if key[i] >= 0:
            counts[key[i]] += 1
            sums[key[i]] += values[i]
    for i in range(key.shape[0]):
        out[i] = sums[key[i]] / counts[key[i]] if key[i] >= 0 else 0.0


def _small_keys(key: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The keys, or where they are far larger than their number their ranks, and what is above all of them."""
    size = int(key.max()) + 1 if key.numel() else 0
    if size <= 4 * key.numel() + 4096:
        return key, max(size, 0)
    keys, which = key.unique(return_inverse=True)
    return torch.where(key >= 0, which, -1), keys.numel()


def _key_lengths_cpu(key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    small, size = _small_keys(key)
    lengths = torch.empty(key.shape, dtype=torch.int64)
    distinct = _key_lengths_numba(as_numpy(small), torch.zeros(size, dtype=torch.int64).numpy(), lengths.numpy())
    return lengths, torch.tensor(distinct)


def _segment_mean_cpu(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    small, size = _small_keys(key)
    wide = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(key.shape, dtype=wide)
    counts, sums = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.float64)
    _segment_mean_numba(as_numpy(values, wide), as_numpy(small), counts.numpy(), sums.numpy(), out.numpy())
    return out.to(values.dtype)


# --- the ops ------------------------------------------------------------------------------------------------

_key_lengths = register_op(
    "key_lengths",
    "(Tensor key) -> (Tensor, Tensor)",
    reference=_key_lengths_reference,
    triton=_key_lengths_triton,
    numba=_key_lengths_cpu,
    fake=lambda key: (key.new_empty(key.shape), key.new_empty(())),
)

_segment_mean = register_op(
    "segment_mean",
    "(Tensor values, Tensor key) -> Tensor",
    reference=_segment_mean_reference,
    triton=_segment_mean_triton,
    numba=_segment_mean_cpu,
    fake=lambda values, key: values.new_empty(values.shape),
)


def aggregate_weights(
    step_of_token: torch.Tensor,
    rollout_of_token: torch.Tensor,
    aggregate: str = "token-mean",
    *,
    sequence_of_token: torch.Tensor | None = None,
    norm_length: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The weight of every token under which a sum over tokens becomes the aggregate.

    A token is unmasked where its step and its rollout (and its sequence) are >= 0; masked tokens weigh 0.
    With n the number of unmasked tokens, N_seq and N_roll the number of sequences and rollouts that have any,
    n_seq and n_roll the number in the token's own sequence and rollout:

    =========================  =================================
    ``token-mean``             1 / n
    ``token-sum``              1
    ``seq-mean-token-sum``     1 / N_seq
    ``seq-mean-token-mean``    1 / (N_seq n_seq)
    ``seq-mean-token-sum-norm``  1 / (N_seq norm_length)
    ``rollout-mean``           1 / (N_roll n_roll)
    =========================  =================================

    A *sequence* is a row of the batch. Without ``sequence_of_token`` each rollout is one sequence, and
    ``rollout-mean`` equals ``seq-mean-token-mean``. Where a rollout was cut into several rows the two differ:
    a mean over sequences gives that rollout one share per row, ``rollout-mean`` one share in all. Rows or
    rollouts that are masked throughout count nowhere.

    Gradient accumulation: compute the weights once from the masks of the whole batch, give each micro-batch
    its slice as ``policy_loss(..., weights=)``, and add the losses up (no division by their number). The sum
    is the whole batch's loss up to rounding, however the batch is cut.

    Parameters
    ----------
    step_of_token, rollout_of_token : (T,) int64, or int32, which is widened; any strides
    sequence_of_token : (T,) int64 or int32, optional
    norm_length : positive number, optional
        For ``seq-mean-token-sum-norm`` (Dr. GRPO's constant). By default the tokens of the longest sequence,
        masked ones included where they bear its number: the width of the batch when padded.
    dtype : float32 or float64 of the result; counted in integers, divided in float64, rounded once.

    Returns
    -------
    (T,) weights, 0 at masked tokens.
    """
    choose("aggregate", aggregate, AGGREGATES)
    step_of_token = check_integers("step_of_token", step_of_token, shape=("T",))
    shape, device = tuple(step_of_token.shape), step_of_token.device
    rollout_of_token = check_integers("rollout_of_token", rollout_of_token, shape=shape, device=device)
    sequence = rollout_of_token
    if sequence_of_token is not None:
        sequence = check_integers("sequence_of_token", sequence_of_token, shape=shape, device=device)
    if norm_length is not None:
        check_range("norm_length", norm_length, 0, _INFINITY, low_open=True, high_open=True)
    active = (step_of_token >= 0) & (rollout_of_token >= 0) & (sequence >= 0)
    one = torch.ones((), dtype=torch.float64, device=active.device)
    if aggregate == "token-sum":
        weight = one
    elif aggregate == "token-mean":
        weight = one / active.sum().clamp(min=1)
    else:
        key = torch.where(active, rollout_of_token if aggregate == "rollout-mean" else sequence, -1)
        lengths, distinct = _key_lengths(key)
        weight = one / distinct.clamp(min=1)
        if aggregate in ("seq-mean-token-mean", "rollout-mean"):
            weight = weight / lengths
        elif aggregate == "seq-mean-token-sum-norm":
            if norm_length is None:
                widths, _ = _key_lengths(sequence)
                weight = weight / torch.cat([widths, widths.new_ones(1)]).max()
            else:
                weight = weight / norm_length
    return torch.where(active, weight, 0.0).to(dtype)


def segment_mean(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """At each token the mean of ``values`` over the tokens with its ``key``; 0 where key < 0. Not differentiable.

    Parameters
    ----------
    values : (T,) float16, bfloat16, float32 or float64, any strides; not read where key < 0
    key : (T,) int64, or int32, which is widened; any strides and any numbers

    Returns
    -------
    (T,) of ``values``' dtype: summed and divided in float64, rounded (halves: through float32), bitwise repeatable.

    Raises
    ------
    TypeError, ValueError
        For another dtype, shape or device.
    """
    check_tensor("values", values, dtypes=FLOAT_DTYPES, shape=("T",))
    key = check_integers("key", key, shape=tuple(values.shape), device=values.device)
    return _segment_mean(values, key)
