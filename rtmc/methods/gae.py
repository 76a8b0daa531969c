"""`gae`: generalised advantage estimation (arXiv 1506.02438) on steps or, one row a token, on tokens.

Input: `value`, a critic's V of the state before the row. Over the rows that the policy sampled (`tokens` > 0), with
the outcome added to the reward of a rollout's last such row and V = 0 after it:

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lam A_{t+1}        return = A_t + V_t

Rows with `tokens` = 0 (tool output, padding) are skipped: t + 1 is the next row of the policy. Their advantage is 0,
their value may be missing, and a step reward that stands on one is not seen.

What this is not: a bootstrap. A truncated rollout ends in V = 0 like any other.

parity="verl" gives verl's advantages: whitened, and rows with `tokens` = 0 hold what is carried over them, that is the
advantage of the next policy row (0 behind the last), whitened along.
"""

from __future__ import annotations

import torch

from rtmc.kernels.returns import discounted_returns
from rtmc.methods.options import choice, flag, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import whitened
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate


@register_estimator(
    "gae",
    needs=("value",),
    options={
        "gamma": number(1.0, 0.0, 1.0),
        "lam": number(0.95, 0.0, 1.0),
        "whiten": flag(False),
        "parity": choice(None, ("verl",)),
    },
    source="GAE, arXiv 1506.02438; verl",
    engines={"verl": {"whiten": (True,)}},
)
def gae(table: StepTable, gamma: float, lam: float, whiten: bool, parity: str | None) -> Estimate:
    """A_t = delta_t + gamma lam A_{t+1}, see the head of this file.

    gamma, lam   in [0, 1]
    whiten       True: (A - mean) / sqrt(var + 1e-8) over all policy rows of the table, all groups together, sample
                 variance; 0 where there is a single row
    parity       "verl" whitens, always, and fills masked rows as verl does

    Rollouts with an unknown outcome are absent: advantage 0, and not in the whitening.

    Returns advantage, returns (the critic's target A + V, before whitening; at a masked row with what is carried over
    it), v (= `value`). On policy rows the advantage, before whitening, is returns - v.

    Raises EstimatorError for a `value` that is not finite on a policy row of a rollout with a known outcome.
    """
    policy = table.tokens > 0
    known = table.known[table.rollout]
    value = finite_score(table, "gae", "value", policy)
    rows = policy.nonzero().squeeze(1)
    counts = torch.bincount(table.rollout[rows], minlength=table.n_rollouts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    last = (offsets[1:] - 1)[counts > 0]

    reward = table.reward[rows]
    reward[last] += torch.where(table.known, table.outcome, 0.0)[counts > 0]
    following = value[rows].roll(-1)
    following[last] = 0.0
    ahead = discounted_returns(reward + gamma * following - value[rows], offsets, gamma * lam)

    # The next policy row of each row, itself included, or none.
    place = policy.long().cumsum(0) - policy.long()
    some = place < offsets[table.rollout + 1]
    carried = torch.where(some, torch.cat([ahead, ahead.new_zeros(1)])[place], 0.0)

    # A masked row may have a value too; verl's target there is built on it.
    baseline = torch.where(policy, value, table.scores["value"].nan_to_num(nan=0.0))
    counted = known if parity else known & policy
    advantage = whitened(carried, (known & policy).long()) if whiten else carried
    return Estimate(torch.where(counted, advantage, 0.0), returns=carried + baseline, v=baseline)
