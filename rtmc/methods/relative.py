"""Values relative to their segment: what the estimators of this folder are composed of.

What this is not: an estimator. Segments are given by ids, -1 = absent; statistics are exact in any row order
(rtmc/kernels/segments.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtmc.kernels.segments import segment_stats
from rtmc.table import StepTable

WHITEN_EPS = 1e-8  # verl's


class Centred(NamedTuple):
    """Values relative to their segment, each (N,); all 0 where nothing was compared."""

    difference: Tensor
    std: Tensor
    members: Tensor


def centre(values: Tensor, ids: Tensor, count: int, ddof: int) -> Centred:
    """values - mean and the std of each value's segment; id -1 = absent, gets 0 and shifts nothing."""
    absent = ids < 0
    if count == 0:  # no segment, so that every value is absent
        nothing = torch.zeros_like(values)
        return Centred(nothing, nothing, nothing)
    stats = segment_stats(torch.where(absent, 0.0, values), ids, count)
    at = ids.clamp(min=0)
    members = stats.count.to(values.dtype)[at]
    # Equal values differ from their mean by rounding; min and max are exact.
    nothing = absent | (stats.min == stats.max)[at]
    difference = torch.where(nothing, 0.0, values - stats.mean[at])
    variance = stats.var[at] * members / (members - ddof)
    return Centred(difference, torch.where(nothing, 0.0, variance).sqrt(), torch.where(absent, 0, members))


def z_score(centred: Centred, eps: float) -> Tensor:
    """difference / (std + eps), 0 where the difference is 0 (also with eps = 0)."""
    return torch.where(centred.difference == 0, 0.0, centred.difference / (centred.std + eps))


def whitened(values: Tensor, tokens: Tensor) -> Tensor:
    """(N,) (values - mean) / sqrt(var + 1e-8), mean and sample variance over all tokens, all groups together.

    tokens   (N,) integers, how many tokens of the policy bear each value; 0 = the value is shifted and scaled like
             the others, and does not count

    All 0 where fewer than two tokens count.
    """
    n = int(tokens.sum())
    if n < 2:
        return torch.zeros_like(values)
    stats = segment_stats(values, torch.where(tokens > 0, 0, -1), 1, tokens.to(values.dtype))
    mean = torch.where(stats.min == stats.max, stats.min, stats.mean)  # equal values differ from it by rounding
    return (values - mean) * torch.rsqrt(stats.var * n / (n - 1) + WHITEN_EPS)


def known_groups(table: StepTable) -> Tensor:
    """(R,) group of each rollout, -1 where the outcome is unknown."""
    return torch.where(table.known, table.group, -1)
