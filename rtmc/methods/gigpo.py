"""`gigpo`: group-in-group policy optimisation (arXiv 2505.10978).

With T_i the total reward of rollout i (outcome and step rewards, undiscounted), G_{i,t} the discounted return
from step t on (outcome included), and the step group of a step all steps of the task in the same state:

    A_E = T_i - mean over the task's rollouts        A_S = G_{i,t} - mean over the step group
    A = A_E + w A_S

and with `std` each term is divided by the sample standard deviation of what its mean was taken over, + 1e-6.
Every visit counts, also a second one by the same rollout.

What this is not: a signature. Which observations are one state is the table's business; `similarity` joins
states whose names are nearly the same text, as the authors' code can.

Departures from the authors' code, which parity="verl_agent" undoes:

    statistics of A_E are over rollouts; there they are over step rows, so that a long rollout weighs more
    a task with one known rollout has A_E = 0; there, one row alone gets its raw total, / (1 + 1e-6) with `std`
    texts are compared by rapidfuzz's ratio; there by difflib's
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import Option, choice, flag, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups, z_score
from rtmc.table import StepTable
from rtmc.types import Estimate

EPS = 1e-6


def _is_threshold(value: Any) -> bool:
    return value is None or number(1.0, 0.0, 1.0).check(value)


def step_returns(table: StepTable, gamma: float) -> Tensor:
    """(S,) discounted return of every step, an unknown outcome left out."""
    return discounted_returns(table.reward, table.offsets(), gamma, final=torch.where(table.known, table.outcome, 0.0))


def rollout_totals(table: StepTable) -> Tensor:
    """(R,) total reward of every rollout, undiscounted, an unknown outcome left out."""
    outcome = torch.where(table.known, table.outcome, 0.0)
    return outcome + segment_stats(table.reward, table.rollout, table.n_rollouts).sum


def episode_advantage(table: StepTable, std: bool, cross_steps: bool, raw_single: bool) -> Tensor:
    """(S,) A_E of every step (head of this file).

    cross_steps   statistics over step rows, not over rollouts
    raw_single    a task with a single row (or rollout) gets its total reward, not 0
    """
    total = rollout_totals(table)
    ids = known_groups(table)
    if cross_steps:
        total, ids = total[table.rollout], ids[table.rollout]
    centred = centre(total, ids, table.n_groups, ddof=1)
    advantage = z_score(centred, EPS) if std else centred.difference
    if raw_single:
        advantage = torch.where(centred.members == 1, total / (1 + EPS) if std else total, advantage)
    return advantage if cross_steps else advantage[table.rollout]


def known_states(table: StepTable) -> tuple[Tensor, int]:
    """Step group of each row, -1 for rollouts with an unknown outcome, and the number of groups."""
    ids, count = dense_ids(table.state)
    return torch.where(table.known[table.rollout], ids, -1), int(count)


def _similar_states(table: StepTable, threshold: float, parity: str | None) -> tuple[Tensor, int]:
    """As `known_states`, with states of nearly equal names joined: greedy first fit in time order, task by task."""
    from rtmc.signatures.similarity import first_fit, resemblance

    if table.state_names is None:
        raise EstimatorError(
            "estimator `gigpo`: `similarity` compares the names of states, which this table lacks; build it with "
            "StepTable.from_rows, set `state_names`, or leave `similarity` out"
        )
    rows = table.known[table.rollout].nonzero().squeeze(1)
    ids, count = dense_ids(table.state[rows])
    place = torch.arange(len(rows), device=rows.device)
    first = rows[torch.full((int(count),), len(rows), device=rows.device).scatter_reduce_(0, ids, place, "amin")]
    texts = [table.state_names[state] for state in table.state[first].tolist()]
    for text in texts:
        if not isinstance(text, str):
            raise EstimatorError(
                f"estimator `gigpo`: `similarity` compares texts, and the state {text!r} is a {type(text).__name__}; "
                "leave `similarity` out, or name states by text"
            )
    members: dict[int, list[int]] = {}
    for state, group in enumerate(table.group[table.rollout[first]].tolist()):
        members.setdefault(group, []).append(state)
    resembles = resemblance(threshold, parity)
    joined, total = [0] * len(texts), 0
    for states in members.values():
        found = first_fit([texts[state] for state in states], resembles)
        for state, cluster in zip(states, found, strict=True):
            joined[state] = total + cluster
        total += max(found) + 1
    result = torch.full_like(table.state, -1)
    result[rows] = torch.tensor(joined, dtype=torch.int64, device=rows.device)[ids]
    return result, total


@register_estimator(
    "gigpo",
    needs=("state", "reward"),
    options={
        "gamma": number(0.95, 0.0, 1.0),
        "std": flag(False),
        "step_weight": number(1.0),
        "similarity": Option(None, "None or a number in [0, 1]", _is_threshold),
        "cross_steps": Option(None, "None, True or False", lambda value: value is None or isinstance(value, bool)),
        "parity": choice(None, ("verl_agent",)),
    },
    source="GiGPO, arXiv 2505.10978; verl-agent",
)
def gigpo(
    table: StepTable,
    gamma: float,
    std: bool,
    step_weight: float,
    similarity: float | None,
    cross_steps: bool | None,
    parity: str | None,
) -> Estimate:
    """A = A_E + step_weight A_S, see the head of this file; parts `episode` and `step`.

    gamma         discount of G, in [0, 1]
    std           True: divide by the sample standard deviation + 1e-6
    step_weight   w
    similarity    None: equal states are one. A number: a state joins the first of its task's step groups whose
                  first member's name it resembles by at least that ratio (the authors use 0.95). The result then
                  depends on the order of rollouts. Needs states named by text
    cross_steps   True: statistics of A_E over step rows; None: False, and True with parity="verl_agent"
    parity        the authors' numbers, see the head of this file

    A task with one known rollout, and one whose totals are all equal, has A_E = 0; a state visited once and one
    whose returns are all equal has A_S = 0. Returns advantage, returns (G), v (mean of the step group), visits
    (its size).

    Raises EstimatorError where `similarity` is given and states have no names, or names that are no text.
    """
    if cross_steps is None:
        cross_steps = parity is not None
    episode = episode_advantage(table, std, cross_steps, raw_single=parity is not None)
    ids, count = known_states(table) if similarity is None else _similar_states(table, similarity, parity)
    returns = step_returns(table, gamma)
    centred = centre(returns, ids, count, ddof=1)
    step = z_score(centred, EPS) if std else centred.difference
    mean = torch.where(ids < 0, 0.0, returns - centred.difference)
    return Estimate(
        episode + step_weight * step,
        returns=returns,
        v=mean,
        visits=centred.members.long(),
        parts={"episode": episode, "step": step},
    )
