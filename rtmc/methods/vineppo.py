"""`vineppo`: values from extra rollouts (arXiv 2410.01679).

Input: `value`, the mean reward of fresh rollouts from the state before the step; NaN = none were made. With V = 0
after the last step and the outcome added to its reward,

    A_t = r_t + V_{t+1} - V_t

A missing V_t is r_t + V_{t+1}, so that the step itself has A_t = 0 and the steps before it are credited with what
follows. The authors fill a missing tail this way and stop at any other gap; here a gap in the middle, up to the next
value that is there, is filled by the same rule.

What this is not: a sampler. The rollouts, and what an unfinished one among them counts, are the caller's.
"""

from __future__ import annotations

import torch

from rtmc.kernels.returns import discounted_returns
from rtmc.methods.registry import register_estimator
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate


@register_estimator("vineppo", needs=("value",), source="VinePPO, arXiv 2410.01679")
def vineppo(table: StepTable) -> Estimate:
    """A_t = r_t + V_{t+1} - V_t, undiscounted, missing values filled; see the head of this file.

    There are no options. Nothing is compared within a group: a group of one and an all-equal group have the same
    credit as any other. Rollouts with an unknown outcome get advantage 0.

    Returns advantage, returns (sum of rewards from the step on, the outcome included), q (= r_t + V_{t+1}), v (= V_t,
    filled). The advantage is q - v.

    Raises EstimatorError for an infinite `value` in a rollout with a known outcome.
    """
    missing = torch.isnan(table.scores["value"])
    value = finite_score(table, "vineppo", "value", ~missing)
    outcome = torch.where(table.known, table.outcome, 0.0)
    # A stretch begins at every value that is there, and at every rollout. Summing it backward from the value at which
    # the next begins gives r + V(next) of each of its rows.
    start = (~missing) | (table.index == 0)
    begin = start.nonzero().squeeze(1)
    offsets = torch.cat([begin, begin.new_tensor([len(table)])])
    ends = offsets[1:] - 1
    closes = table.index[ends] + 1 == table.offsets().diff()[table.rollout[ends]]
    after = torch.cat([value, value.new_zeros(1)])[offsets[1:]]
    final = torch.where(closes, outcome[table.rollout[ends]], after)
    q = discounted_returns(table.reward, offsets, 1.0, final=final)
    v = torch.where(missing, q, value)
    advantage = torch.where(table.known[table.rollout], q - v, 0.0)
    returns = discounted_returns(table.reward, table.offsets(), 1.0, final=outcome)
    return Estimate(advantage, returns=returns, q=q, v=v)
