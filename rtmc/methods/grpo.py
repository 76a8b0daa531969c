"""Group-relative credit: `grpo`, `dr_grpo`, `rloo`, and GRPO with step rewards, `grpo_step`.

With R_i the outcome of rollout i, m and s the mean and standard deviation of its group's known outcomes, n
their number:

    grpo      A_i = (R_i - m) / (s + eps)                        DeepSeekMath, arXiv 2402.03300
    dr_grpo   A_i = R_i - m                                      arXiv 2503.20783
    rloo      A_i = R_i - mean of the others = n/(n-1) (R_i - m) arXiv 2402.14740

copied to every step of rollout i. Statistics are over rollouts, not over steps: a long rollout weighs no
more.

What these are not: a loss. Dr. GRPO's constant length divisor, and every other aggregation, is the loss's
business.

Departures from the engines, on purpose: a group with one known outcome, and a group whose known outcomes are
all equal, get exactly 0, because nothing was compared. `parity=` gives an engine's own numbers instead:

    verl, verl_agent, skyrl   sample std + 1e-6; one outcome: the raw score / (1 + 1e-6)
    rllm                      population std + 1e-6; one outcome: the raw score / (1 + 1e-6)
    trl                       sample std + 1e-4; one outcome: 0
    roll                      sample std + 1e-6; 0 for one outcome and where the std is at most 1e-6
    openrlhf                  sample std + 1e-9; one outcome: 0
    prime_rl, tinker          centred only
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtmc.kernels.returns import discounted_returns
from rtmc.methods.options import choice, flag, number, whole
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups, whitened, z_score
from rtmc.table import StepTable
from rtmc.types import Estimate


class Rules(NamedTuple):
    """What an engine does: degrees of freedom, eps, raw score for one outcome, std below which all is 0."""

    ddof: int
    eps: float
    raw_single: bool = False
    least_std: float = 0.0
    centred: bool = False


ENGINES = {
    "verl": Rules(1, 1e-6, raw_single=True),
    "verl_agent": Rules(1, 1e-6, raw_single=True),
    "skyrl": Rules(1, 1e-6, raw_single=True),
    "rllm": Rules(0, 1e-6, raw_single=True),
    "trl": Rules(1, 1e-4),
    "roll": Rules(1, 1e-6, least_std=1e-6),
    "openrlhf": Rules(1, 1e-9),
    "prime_rl": Rules(1, 0.0, centred=True),
    "tinker": Rules(1, 0.0, centred=True),
}
_SPREAD = {"ddof": whole(1, 0, 1), "eps": number(1e-6, 0.0)}


# No engine has a switch for these.
_PARITY = {name: {"ddof": (rules.ddof,), "eps": (rules.eps,)} for name, rules in ENGINES.items()}


def grpo_of_rollouts(table: StepTable, rules: Rules) -> Tensor:
    """(R,) GRPO advantage of each rollout."""
    centred = centre(table.outcome, known_groups(table), table.n_groups, rules.ddof)
    advantage = centred.difference if rules.centred else z_score(centred, rules.eps)
    if rules.least_std:
        advantage = torch.where(centred.std > rules.least_std, advantage, 0.0)
    if rules.raw_single:
        advantage = torch.where(centred.members == 1, table.outcome / (1 + rules.eps), advantage)
    return advantage


def per_step(table: StepTable, advantage_R: Tensor) -> Estimate:
    advantage = advantage_R[table.rollout]
    return Estimate(advantage, parts={"episode": advantage})


@register_estimator(
    "grpo",
    options={**_SPREAD, "parity": choice(None, tuple(ENGINES))},
    source="DeepSeekMath, arXiv 2402.03300; verl's defaults",
    engines=_PARITY,
)
def grpo(table: StepTable, ddof: int, eps: float, parity: str | None) -> Estimate:
    """A = (R_i - mean) / (std + eps) over the group's known outcomes; 0 for one outcome or all equal.

    ddof     1 = sample, 0 = population standard deviation
    parity   an engine's numbers, see the head of this file; `ddof` and `eps` are then the engine's
    """
    rules = Rules(ddof, eps) if parity is None else ENGINES[parity]
    return per_step(table, grpo_of_rollouts(table, rules))


@register_estimator(
    "dr_grpo",
    options={**_SPREAD, "whiten": flag(False), "parity": choice(None, ("verl",))},
    source="Dr. GRPO, arXiv 2503.20783; whitened: REINFORCE++-baseline, arXiv 2501.03262, as in verl",
)
def dr_grpo(table: StepTable, ddof: int, eps: float, whiten: bool, parity: str | None) -> Estimate:
    """A = R_i - mean over the group's known outcomes; 0 for one outcome, the raw score with parity="verl".

    ddof, eps   taken, as by `grpo`, and without effect: there is no standard deviation here
    whiten      True: A is then (A - m) / sqrt(v + 1e-8), with the mean m and the sample variance v over all policy
                tokens (`tokens` of each step) of the table's known rollouts, all groups together; 0 where fewer than
                two tokens count. With parity="verl" these are verl's numbers for REINFORCE++-baseline

    Returns advantage, part `episode` (A before whitening). Whitened, a group's numbers depend on the other groups of
    the table; on a tree a turn counts once for every leaf below it.
    """
    rules = Rules(1, 0.0, raw_single=parity is not None, centred=True)
    found = per_step(table, grpo_of_rollouts(table, rules))
    if not whiten:
        return found
    known = table.known[table.rollout]
    white = whitened(found.advantage, torch.where(known, table.tokens, 0))
    return Estimate(torch.where(known, white, 0.0), parts=found.parts)


@register_estimator(
    "rloo",
    options={**_SPREAD, "parity": choice(None, ("verl",))},
    source="RLOO, arXiv 2402.14740",
)
def rloo(table: StepTable, ddof: int, eps: float, parity: str | None) -> Estimate:
    """A = R_i minus the mean of the group's other known outcomes; 0 for one outcome, as verl's vectorised form.

    ddof, eps   taken, as by `grpo`, and without effect: there is no standard deviation here
    parity      "verl": the raw score for one outcome, as verl's loop gives it
    """
    centred = centre(table.outcome, known_groups(table), table.n_groups, ddof=0)
    others = (centred.members - 1).clamp(min=1)
    advantage = centred.difference * centred.members / others
    if parity is not None:
        advantage = torch.where(centred.members == 1, table.outcome, advantage)
    return per_step(table, advantage)


@register_estimator(
    "grpo_step",
    needs=("reward",),
    options={
        "gamma": number(0.99, 0.0, 1.0),
        "mode": choice("steps", ("steps", "sum")),
        "weight": number(1.0),
        **_SPREAD,
    },
    source="'GRPO + Step Reward', the baseline of RTMC, arXiv 2604.11037; the normalisation is a choice here",
)
def grpo_step(table: StepTable, gamma: float, mode: str, weight: float, ddof: int, eps: float) -> Estimate:
    """GRPO on step rewards. With G the discounted return from the step on, the outcome included,

        z(G) = (G - mean) / (std + eps) over all steps of the group

    mode     "steps": A = z(G).  "sum": A = A_grpo + weight * z(G)
    parts    `step` = z(G), and `episode` = A_grpo in mode "sum"

    Steps of rollouts without a known outcome are absent: advantage 0, no shift of mean or std; their returns
    hold the step rewards alone. Here the statistics are over steps, so a longer rollout weighs more.
    """
    known = table.known
    returns = discounted_returns(table.reward, table.offsets(), gamma, final=torch.where(known, table.outcome, 0.0))
    ids = known_groups(table)[table.rollout]
    step = z_score(centre(returns, ids, table.n_groups, ddof), eps)
    if mode == "steps":
        return Estimate(step, returns=returns, parts={"step": step})
    episode = grpo_of_rollouts(table, Rules(ddof, eps))[table.rollout]
    return Estimate(episode + weight * step, returns=returns, parts={"episode": episode, "step": step})
