"""`istar`: implicit step rewards beside the outcome (arXiv 2509.19199).

Input: `prm_reward` r, one number a step. The authors' is beta times the sum over the step's tokens of
log pi_prm - log pi_ref, beta 0.05, where the reference is the policy that sampled; learning that model is the
caller's. With n the members of a baseline and m, s their mean and sample standard deviation,

    base "rloo"   f(x) = n / (n - 1) (x - m)        base "grpo"   f(x) = (x - m) / (s + 1e-6)
    A = f(R_i) over the task's rollouts  +  w f(r) over the baseline of steps

The baseline of steps is the FIRST step of each of the task's rollouts (`step_baseline="first_row"`): the authors'
code keeps one row a rollout. For a later step, n / (n - 1) (r - m) is then no leave-one-out. "all_steps" takes every
step of the task. The authors' third form, RLOO of R + w r, is the same number as base "rloo", f being linear.

Departures: a task with one known rollout has an episode term of 0, a baseline of one step gives a step term of 0, and
so does dividing by the standard deviation of a baseline whose steps are all equal. parity="verl_agent" gives the
authors' numbers there: the raw R and r, and r - m over 1e-6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.kernels.segments import segment_stats
from rtmc.methods.grpo import Rules, grpo_of_rollouts, rloo
from rtmc.methods.options import choice, flag, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import known_groups
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate

_EPS = 1e-6


@register_estimator(
    "istar",
    needs=("prm_reward",),
    options={
        "step_weight": number(1.0),
        "base": choice("rloo", ("rloo", "grpo")),
        "step_baseline": choice("first_row", ("first_row", "all_steps")),
        "std": flag(True),
        "batch_norm": flag(False),
        "parity": choice(None, ("verl_agent",)),
    },
    source="iStar, arXiv 2509.19199; Tongyi-ConvAI/Qwen-Character",
)
def istar(
    table: StepTable,
    step_weight: float,
    base: str,
    step_baseline: str,
    std: bool,
    batch_norm: bool,
    parity: str | None,
) -> Estimate:
    """A = episode + step_weight * step, see the head of this file; parts `episode` and `step`.

    base            "rloo" (the authors' script) or "grpo"
    step_baseline   "first_row" of each rollout, or "all_steps" of the task
    std             False: base "grpo" centres only. No effect on "rloo"
    batch_norm      True: r is first divided by its largest absolute value over the table's known rollouts + 1e-6. The
                    authors divide by the largest reverse cumulative sum within a row; their rows are steps with
                    one reward each, so that is the same
    parity          the authors' numbers for baselines of one and of equal steps

    Raises EstimatorError for a `prm_reward` that is not finite in a rollout with a known outcome.
    """
    reward = finite_score(table, "istar", "prm_reward")
    if batch_norm and len(table):
        reward = reward / (reward.abs().max() + _EPS)
    raw = parity is not None
    if base == "rloo":
        episode = rloo(table, 1, _EPS, "verl" if raw else None).advantage
    else:
        rules = Rules(1, _EPS if std else 0.0, raw_single=raw, centred=not std)
        episode = grpo_of_rollouts(table, rules)[table.rollout]
    step = _steps(table, reward, base, step_baseline, std, raw)
    step = torch.where(table.known[table.rollout], step, 0.0)
    return Estimate(episode + step_weight * step, parts={"episode": episode, "step": step})


def _steps(table: StepTable, reward: Tensor, base: str, step_baseline: str, std: bool, raw: bool) -> Tensor:
    ids = known_groups(table)[table.rollout]
    group = table.group[table.rollout]
    if step_baseline == "first_row":
        ids = torch.where(table.index == 0, ids, -1)
    stats = segment_stats(reward, ids, table.n_groups)
    equal = (stats.min == stats.max)[group]
    members = stats.count.to(reward.dtype)[group]
    single = members == 1
    # Equal values differ from their mean by rounding.
    difference = reward - torch.where(equal, stats.min[group], stats.mean[group])
    bessel = members / (members - 1).clamp(min=1)
    if base == "rloo":
        step, alone = difference * bessel, reward
    elif not std:
        step, alone = difference, reward
    else:
        deviation = torch.where(equal, 0.0, (stats.var[group] * bessel).sqrt())
        step, alone = difference / (deviation + _EPS), reward / (1 + _EPS)
        if not raw:
            step = torch.where(equal, 0.0, step)
    return torch.where(single, alone if raw else 0.0, step)
