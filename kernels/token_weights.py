"""The weights under which a sum over tokens becomes the wanted mean, and means over turns or sequences.

All of it depends on masks and ids alone, in plain torch: integer sorts and counts, no host wait, no float
atomics, so that it runs on every device and under ``torch.compile``. The policy loss (policy_loss.py) is a
sum with these weights.

Not here: the loss itself; statistics of steps (segments.py).
"""

from typing import Any

import torch

from rtmc.kernels.backend import check_range, check_tensor
from rtmc.kernels.broadcast import broadcast_to_tokens, sum_over_tokens

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


def choose(name: str, value: object, words: tuple[str, ...] | dict[str, int]) -> None:
    """Refuse a word that is not among ``words``."""
    if value not in words:
        raise ValueError(f"`{name}`: got {value!r}; wanted one of {', '.join(map(repr, words))}")


def _lengths(key: torch.Tensor) -> torch.Tensor:
    """How many tokens bear each token's key, without a host wait and without knowing the largest key."""
    ordered = key.sort().values
    return torch.searchsorted(ordered, key, right=True) - torch.searchsorted(ordered, key)


def _count_distinct(key: torch.Tensor) -> torch.Tensor:
    """How many different keys >= 0 there are, 0-d."""
    ordered = key.sort().values
    return ((ordered[1:] != ordered[:-1]) & (ordered[1:] >= 0)).sum() + (ordered[:1] >= 0).sum()


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
    step_of_token, rollout_of_token : (T,) int64, any strides
    sequence_of_token : (T,) int64, optional
    norm_length : positive number, optional
        For ``seq-mean-token-sum-norm`` (Dr. GRPO's constant). By default the tokens of the longest sequence,
        masked ones included where they bear its number: the width of the batch when padded.
    dtype : float32 or float64 of the result; counted in integers, divided in float64, rounded once.

    Returns
    -------
    (T,) weights, 0 at masked tokens.
    """
    choose("aggregate", aggregate, AGGREGATES)
    check_tensor("step_of_token", step_of_token, dtypes=torch.int64, shape=("T",))
    like: dict[str, Any] = {
        "dtypes": torch.int64,
        "shape": tuple(step_of_token.shape),
        "device": step_of_token.device,
    }
    check_tensor("rollout_of_token", rollout_of_token, **like)
    sequence = rollout_of_token
    if sequence_of_token is not None:
        check_tensor("sequence_of_token", sequence_of_token, **like)
        sequence = sequence_of_token
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
        weight = one / _count_distinct(key).clamp(min=1)
        if aggregate in ("seq-mean-token-mean", "rollout-mean"):
            weight = weight / _lengths(key)
        elif aggregate == "seq-mean-token-sum-norm":
            if norm_length is None:
                lengths = torch.where(sequence >= 0, _lengths(sequence), 0)
                weight = weight / torch.cat([lengths, lengths.new_ones(1)]).max()
            else:
                weight = weight / norm_length
    return torch.where(active, weight, 0.0).to(dtype)


def segment_mean(values: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """At each token the mean of ``values`` (T,) over the tokens with its ``key`` (T,) int64; 0 where key < 0.

    Keys may be any numbers: they are ranked first. Bitwise repeatable.
    """
    ordered, order = key.sort(stable=True)
    # Ranks are integer sums, hence the same in every run; there are at most T of them.
    rank = torch.cat([ordered[:1] >= 0, (ordered[1:] != ordered[:-1]) & (ordered[1:] >= 0)]).cumsum(0) - 1
    segment = torch.zeros_like(rank).scatter(0, order, torch.where(ordered >= 0, rank, -1))
    tokens = segment.shape[0]
    sums = sum_over_tokens(values, segment, tokens)
    counts = sum_over_tokens(torch.ones_like(values), segment, tokens)
    return broadcast_to_tokens(sums / counts.clamp(min=1), segment)
