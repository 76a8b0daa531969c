"""`hcapo`: hindsight credit from the policy's own judgement of its actions (arXiv 2603.08754).

Input: `hindsight_logprob` m, the mean token log-probability of the step's action with the outcome injected into the
prompt (one teacher-forced pass). For step t of rollout i with T steps and outcome R_i:

    ph  = exp(m / temperature)
    rho = clip(ph / mean of ph over the rollout)
    Q   = rho gamma^(T - 1 - t) R_i
    A   = (R_i - mean) / std  +  w M((Q - mean) / std)

the first statistics over the task's rollouts, the second over all steps of all its rollouts; M sets negative values
in a successful rollout (R > 0) to 0: do no harm.

What this is not: a ratio to the policy's own log-probability. The paper normalises by the rollout's mean, and a port
that divides by the policy's probability is known to drift to long answers.

Not settled by the paper, chosen here: the degrees of freedom and eps (`ddof`, `eps`); whether the second statistics
run over all steps or over those of equal index (`statistics`; the paper's theory and pseudo-code say all, one
sentence says equal); a task with one known rollout, or with nothing but equal values, gets 0. A failed rollout with
R = 0 has Q = 0 throughout, so all its steps get the same negative credit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from rtmc.kernels.ids import dense_ids
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import Option, choice, flag, number, whole
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups, z_score
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate


def _is_range(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    if not all(isinstance(end, Real) and not isinstance(end, bool) and math.isfinite(end) for end in value):
        return False
    return 0 <= value[0] <= value[1]


@register_estimator(
    "hcapo",
    needs=("hindsight_logprob",),
    options={
        "temperature": Option(5.0, "a finite number above 0", lambda value: number(1.0).check(value) and value > 0),
        "clip": Option((0.8, 1.2), "two finite numbers (low, high) with 0 <= low <= high", _is_range),
        "gamma": number(0.95, 0.0, 1.0),
        "step_weight": number(1.0),
        "smooth": flag(False),
        "ddof": whole(0, 0, 1),
        "eps": number(0.0, 0.0),
        "statistics": choice("all_steps", ("all_steps", "same_index")),
    },
    source="HCAPO, arXiv 2603.08754, as transcribed; the authors' code is not published",
)
def hcapo(
    table: StepTable,
    temperature: float,
    clip: Sequence[float],
    gamma: float,
    step_weight: float,
    smooth: bool,
    ddof: int,
    eps: float,
    statistics: str,
) -> Estimate:
    """A = episode z-score + step_weight * masked step z-score, see the head of this file.

    temperature   divides m before the exponential; above 0
    clip          (low, high) of rho
    gamma         discount of Q by the steps that remain; the last step has exponent 0
    step_weight   w
    smooth        True: Q_t becomes Q_t / 2 + Q_{t+1} / 2 (the last stays) before it is normalised
    ddof, eps     of both standard deviations; eps is added to them
    statistics    "all_steps" of the task, or those of the "same_index"

    Parts `episode`, `step` (after M), `rho`; advantage = episode + step_weight * step. Returns q (= Q, smoothed if
    asked) and returns (gamma^(T - 1 - t) R_i) too.

    Raises EstimatorError for a `hindsight_logprob` that is not finite in a rollout with a known outcome.
    """
    logprob = finite_score(table, "hcapo", "hindsight_logprob")
    # The rollout's largest m cancels in the ratio and keeps the exponential from under- and overflow.
    largest = segment_stats(logprob, table.rollout, table.n_rollouts).max[table.rollout]
    hindsight = torch.exp((logprob - largest) / temperature)
    rho = hindsight / segment_stats(hindsight, table.rollout, table.n_rollouts).mean[table.rollout]
    rho = rho.clamp(*clip)

    outcome = torch.where(table.known, table.outcome, 0.0)
    returns = discounted_returns(torch.zeros_like(table.reward), table.offsets(), gamma, final=outcome)
    q = rho * returns
    if smooth:
        last = table.index + 1 == table.offsets().diff()[table.rollout]
        q = torch.where(last, q, 0.5 * q + 0.5 * q.roll(-1))

    whole_group = centre(table.outcome, known_groups(table), table.n_groups, ddof)
    episode = z_score(whole_group, eps)[table.rollout]
    ids, count = known_groups(table)[table.rollout], table.n_groups
    if statistics == "same_index":
        cells, number_of_cells = dense_ids(ids, table.index)
        ids, count = torch.where(ids < 0, -1, cells), int(number_of_cells)
    step = z_score(centre(q, ids, count, ddof), eps)
    step = torch.where((whole_group.members == 1)[table.rollout], 0.0, step)
    step = torch.where((outcome > 0)[table.rollout], step.clamp(min=0.0), step)
    return Estimate(
        episode + step_weight * step,
        returns=returns,
        q=q,
        parts={"episode": episode, "step": step, "rho": rho},
    )
