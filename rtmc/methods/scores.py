"""Scores that the caller supplies: read, and refused where they are no numbers.

What this is not: an estimator. That a score is there at all is checked by the register (registry.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.table import StepTable


def finite_score(table: StepTable, method: str, name: str, where: Tensor | None = None) -> Tensor:
    """(S,) score `name` of a table in time order, 0 on the rows that do not count.

    where   (S,) bool, the rows that count among those of rollouts with a known outcome; None = all of them

    Raises EstimatorError naming the step if a row that counts has NaN or an infinity.
    """
    counts = table.known[table.rollout]
    if where is not None:
        counts = counts & where
    score = table.scores[name]
    bad = counts & ~torch.isfinite(score)
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        rollout = table.name_of("rollout", int(table.rollout[row]))
        raise EstimatorError(
            f"estimator `{method}`: the score `{name}` is {score[row].item()} at step {int(table.index[row])} of "
            f"rollout {rollout!r}; the method reads it on {int(counts.sum())} steps, and on {int(bad.sum())} of them "
            "it is no finite number (a row that lacks it has NaN)"
        )
    return torch.where(counts, score, 0.0)
