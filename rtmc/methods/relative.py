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


class Centred(NamedTuple):
    """Values relative to their segment, each (N,); all 0 where nothing was compared."""

    difference: Tensor
    std: Tensor
    members: Tensor


def centre(values: Tensor, ids: Tensor, count: int, ddof: int) -> Centred:
    """values - mean and the std of each value's segment; id -1 = absent, gets 0 and shifts nothing."""
    absent = ids < 0
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


def known_groups(table: StepTable) -> Tensor:
    """(R,) group of each rollout, -1 where the outcome is unknown."""
    return torch.where(table.known, table.group, -1)
