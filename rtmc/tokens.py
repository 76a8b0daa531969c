"""Which step each token belongs to: the `step_of_token` of `rtmc.kernels.broadcast.broadcast_to_tokens`.

Steps are numbered 0, 1, 2, ... in reading order, over the whole batch where there are rows; -1 marks a token of no
step: prompt, tool output, padding. Three sources say where steps lie: a mask of sampled tokens, whose runs of ones
are the steps (`steps_from_mask`); the lengths of steps that stand end to end (`steps_from_lengths`); spans
(`steps_from_spans`). `row_and_tokens` says which row a step lies in, and how many tokens it has.

What this is not: it does not guess. Two steps without a token between them are one run of a mask; use spans there.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

__all__ = ["row_and_tokens", "steps_from_lengths", "steps_from_mask", "steps_from_spans"]


def steps_from_mask(mask: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
    """Every run of ones is a step.

    mask      (T,) or (B, T) bool, or numbers that are 0 or 1: 1 = sampled by the policy
    lengths   (B,) tokens of each row that are not padding, for rows padded on the right (one number, or (1,), for a
              mask of one row); a mask may say anything there, as TRL's `tool_mask` does, which is padded with ones.
              None: the mask is 0 in the padding

    Returns int64 of the mask's shape, -1 where there is no step. A run ends with its row.

    Raises TypeError or ValueError for another shape or another value.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"`mask` must be a tensor, got {type(mask).__name__}")
    if mask.dim() not in (1, 2):
        raise ValueError(f"`mask` must have shape (T,) or (B, T), got {tuple(mask.shape)}")
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError("`mask` must hold 0 and 1 only; a weight is no mask")
    rows = mask.reshape(-1, mask.shape[-1]) if mask.dim() == 1 else mask
    sampled = rows != 0
    if lengths is not None:
        sampled = sampled & _before(lengths, rows.shape[0], rows.shape[1], mask.device)
    starts = sampled.clone()
    starts[:, 1:] &= ~sampled[:, :-1]
    step = starts.flatten().cumsum(0).reshape(rows.shape) - 1
    return torch.where(sampled, step, -1).reshape(mask.shape)


def _before(lengths: Tensor | Sequence[int], rows: int, tokens: int, device: torch.device) -> Tensor:
    """(rows, tokens) bool: the token stands before the end of its row."""
    ends = torch.as_tensor(lengths, device=device).reshape(-1)
    if ends.is_floating_point() or ends.dtype == torch.bool:
        raise TypeError(f"`lengths` must hold integers, got {ends.dtype}")
    if ends.shape != (rows,):
        raise ValueError(f"`lengths` must hold one length a row, ({rows},), got {tuple(ends.shape)}")
    if bool(((ends < 0) | (ends > tokens)).any()):
        row = int(((ends < 0) | (ends > tokens)).nonzero()[0])
        raise ValueError(f"`lengths`: row {row} has {int(ends[row])} tokens; it must be between 0 and {tokens}")
    return torch.arange(tokens, device=device) < ends[:, None]


def steps_from_lengths(lengths: Tensor | Sequence[int], total: int | None = None) -> Tensor:
    """Steps that stand end to end: step s has the next lengths[s] tokens.

    lengths   (S,) integers, at least 0; a step of length 0 keeps its number and has no token
    total     length of the result; the tokens after the last step get -1. None: the sum of `lengths`

    Returns (total,) int64. Raises TypeError or ValueError for other lengths, or where they do not fit into `total`.
    """
    sizes = torch.as_tensor(lengths)
    if sizes.numel() == 0:
        sizes = sizes.long()
    if sizes.is_floating_point() or sizes.dtype == torch.bool:
        raise TypeError(f"`lengths` must hold integers, got {sizes.dtype}")
    if sizes.dim() != 1:
        raise ValueError(f"`lengths` must have shape (S,), got {tuple(sizes.shape)}")
    if bool((sizes < 0).any()):
        step = int((sizes < 0).nonzero()[0])
        raise ValueError(f"`lengths`: step {step} has {int(sizes[step])} tokens; it must be at least 0")
    used = int(sizes.sum())
    if total is None:
        total = used
    if used > total:
        raise ValueError(f"`lengths` add up to {used} tokens, more than `total`, {total}")
    step_of_token = torch.full((total,), -1, dtype=torch.int64, device=sizes.device)
    step_of_token[:used] = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes.long())
    return step_of_token


def steps_from_spans(spans: Sequence[Any], length: int) -> Tensor:
    """Steps given by the places of their tokens.

    spans    pairs (start, stop), stop not included, in order and without overlap; or a sequence of such sequences,
             one a row of a batch. start = stop is a step without tokens, which keeps its number
    length   T, tokens of a row, padding included

    Returns (T,) int64, or (B, T) for rows, numbered through the batch; -1 outside the spans.

    Raises ValueError that names the row and the span.
    """
    if length < 0:
        raise ValueError(f"`length` must be at least 0, got {length}")
    flat = all(_is_pair(span) for span in spans)
    rows = [spans] if flat else list(spans)
    step = torch.full((len(rows), length), -1, dtype=torch.int64)
    number = 0
    for row, found in enumerate(rows):
        end = 0
        for place, span in enumerate(found):
            where = f"span {place}" if flat else f"row {row}, span {place}"
            if not _is_pair(span):
                raise ValueError(f"{where}: got {span!r}; wanted a pair of integers (start, stop)")
            start, stop = int(span[0]), int(span[1])
            if not end <= start <= stop <= length:
                raise ValueError(
                    f"{where}: got ({start}, {stop}); wanted start <= stop, from {end} (the end of the span before) to "
                    f"{length}"
                )
            step[row, start:stop] = number
            number, end = number + 1, stop
    return step[0] if flat else step


def _is_pair(span: Any) -> bool:
    if isinstance(span, Tensor):
        return span.shape == (2,) and not span.is_floating_point()
    return (
        isinstance(span, Sequence)
        and not isinstance(span, str)
        and len(span) == 2
        and all(isinstance(place, Integral) and not isinstance(place, bool) for place in span)
    )


def row_and_tokens(step_of_token: Tensor) -> tuple[Tensor, Tensor]:
    """(row, tokens), each (S,) int64: the row of `step_of_token` (B, T) that a step lies in, and its tokens there.

    S is one above the largest number. A step without tokens has row -1.
    """
    if step_of_token.dim() != 2:
        raise ValueError(f"`step_of_token` must have shape (B, T), got {tuple(step_of_token.shape)}")
    inside = step_of_token >= 0
    step, row = step_of_token[inside], inside.nonzero()[:, 0]
    steps = int(step.max()) + 1 if step.numel() else 0
    row_of_step = torch.full((steps,), -1, dtype=torch.int64, device=step.device)
    row_of_step[step] = row
    return row_of_step, torch.bincount(step, minlength=steps)
