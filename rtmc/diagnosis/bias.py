"""Exact bias of every estimator: its expected policy gradient, beside the true one.

In the world of world.py, with groups of N rollouts sampled from the policy, the expected gradient under an estimator is

    E[g_hat] = sum over groups, of P(group) (1/N) sum over rollouts and steps of A d log pi(a|s)

a finite sum, taken here over every group (multisets of paths, weighed by their multinomial probability). The true
gradient is g = d/d logits of the probability of success. Told are

    cosine   of E[g_hat] and g: 1 = the direction is right
    scale    <E[g_hat], g> / <g, g>: how long it is along g; a learning rate takes this up
    bias     |E[g_hat] - g| / |g|: 0 = unbiased; a wrong length counts here too

Methods for trees get groups of two trees of two leaves: a first turn, continued twice. A turn weighs as many leaves as
stand below it, as in a loss over the leaves' whole texts.

Scores are exact: `value` and `answer_score` the probability of success before and after the step, `root_score` that at
the start, `hindsight_logprob` the log-probability of the action given how the rollout ended, `entropy` -log pi(a|s),
`prm_reward` the gain in value.

What this is not: variance. An unbiased estimator may be the noisiest of the table. Nor does small bias here promise
small bias elsewhere: a pooled baseline contains the rollout itself, which weighs less in larger groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from rtmc.diagnosis import world
from rtmc.errors import EstimatorError
from rtmc.methods.registry import EstimatorInfo, estimate, estimators
from rtmc.table import StepTable

_TREES, _LEAVES = 2, 2


@dataclass(frozen=True)
class Bias:
    """One line of the table: a method, options other than its defaults, what it was given, and the three numbers.

    `reason` says why there are none; then they are NaN.
    """

    method: str
    options: dict[str, Any]
    sampled: str
    cosine: float = math.nan
    scale: float = math.nan
    bias: float = math.nan
    reason: str = ""


@dataclass(frozen=True)
class _Sampled:
    """Everything that can be sampled: a table of all groups, and the weight of each row in the expectation, (S,)."""

    table: StepTable
    weight: Tensor
    words: str


def biases(rollouts: int = 3) -> list[Bias]:
    """The table of every registered estimator, with its defaults and, where it discounts by default, with gamma 1.

    rollouts   N, in a group of chains; 2 to 6

    A method that needs a score without an exact value here has NaN and the reason.

    Raises EstimatorError for `rollouts` out of range.
    """
    if not isinstance(rollouts, int) or isinstance(rollouts, bool) or not 2 <= rollouts <= 6:
        raise EstimatorError(f"`rollouts` must be an integer in [2, 6], got {rollouts!r}")
    chains, trees = _chains(rollouts), _trees()
    found = []
    for info in estimators():
        sampled = trees if "parent" in info.needs else chains
        for options in _settings(info):
            found.append(bias_of(info.name, options, sampled))
    return found


def _settings(info: EstimatorInfo) -> Iterable[dict[str, Any]]:
    yield {}
    if info.options.get("gamma", 1.0) != 1.0:
        yield {"gamma": 1.0}
    if "prior_visits" in info.options:
        yield {"gamma": 1.0, "prior_visits": 0.0}


def bias_of(method: str, options: dict[str, Any], sampled: _Sampled) -> Bias:
    """The line of one method."""
    try:
        advantage = estimate(sampled.table, method, **options).advantage
    except EstimatorError as error:
        return Bias(method, options, sampled.words, reason=str(error))
    expected, true = expected_gradient(sampled, advantage), true_gradient()
    along = (expected @ true / (true @ true)).item()
    norm = (expected.norm() * true.norm()).item()
    cosine = (expected @ true).item() / norm if norm else math.nan
    return Bias(method, options, sampled.words, cosine, along, ((expected - true).norm() / true.norm()).item())


def true_gradient() -> Tensor:
    """(states * actions,) d/d logits of the probability of success, 0 where a state lacks an action."""
    total = torch.zeros(len(world.MOVES), world.ACTIONS, dtype=torch.float64)
    for path in world.paths():
        credit = [path.probability * path.outcome] * len(path.steps)
        total += torch.tensor(world.gradient(path.steps, credit), dtype=torch.float64)
    return total.flatten()


def expected_gradient(sampled: _Sampled, advantage: Tensor) -> Tensor:
    """(states * actions,) sum over rows of weight * advantage * d log pi(a|s) / d logits."""
    table = sampled.table
    if table.state_names is None or table.action_names is None:
        raise EstimatorError("the table of the world must have names of states and actions")
    state = torch.tensor([table.state_names[number] for number in table.state.tolist()])
    action = torch.tensor([table.action_names[number] for number in table.action.tolist()])
    padded = [row + [0.0] * (world.ACTIONS - len(row)) for row in world.policy()]
    pi = torch.tensor(padded, dtype=torch.float64)
    score = torch.nn.functional.one_hot(action, world.ACTIONS) - pi[state]
    total = torch.zeros_like(pi).index_add_(0, state, (sampled.weight * advantage)[:, None] * score)
    return total.flatten()


def _chains(rollouts: int) -> _Sampled:
    """Every group of `rollouts` paths from the start."""
    ways = world.paths()
    rows: list[dict[str, Any]] = []
    weight: list[float] = []
    for group, members in enumerate(combinations_with_replacement(range(len(ways)), rollouts)):
        chance = _multinomial(members) * math.prod(ways[way].probability for way in members)
        for rollout, way in enumerate(members):
            common = {"group": group, "rollout": rollout, "outcome": ways[way].outcome}
            rows += [common | row for row in _rows(ways[way], 0)]
            weight += [chance / rollouts] * len(ways[way].steps)
    return _Sampled(_table(rows), torch.tensor(weight, dtype=torch.float64), f"{rollouts} rollouts")


def _trees() -> _Sampled:
    """Every group of two trees, each a first turn with two continuations."""
    kinds: list[tuple[world.Path, list[world.Path], float]] = []
    for action, state in enumerate(world.MOVES[0]):
        ways = world.paths(state)
        first = world.Path(((0, action),), 0.0, world.policy()[0][action])
        for members in combinations_with_replacement(range(len(ways)), _LEAVES):
            chance = _multinomial(members) * math.prod(ways[way].probability for way in members)
            kinds.append((first, [ways[way] for way in members], first.probability * chance))
    rows: list[dict[str, Any]] = []
    weight: list[float] = []
    for group, members in enumerate(combinations_with_replacement(range(len(kinds)), _TREES)):
        chance = _multinomial(members) * math.prod(kinds[kind][2] for kind in members) / (_TREES * _LEAVES)
        for tree, kind in enumerate(members):
            first, leaves, _ = kinds[kind]
            top = len(rows)
            for leaf, path in enumerate(leaves):
                common = {"group": group, "rollout": tree * _LEAVES + leaf, "outcome": path.outcome}
                if leaf == 0:
                    whole = world.Path(first.steps + path.steps, path.outcome, 1.0)
                    rows.append(common | {"parent": -1} | _rows(whole, 0)[0])
                    weight.append(chance * _LEAVES)
                for place, row in enumerate(_rows(path, 1)):
                    rows.append(common | {"parent": len(rows) - 1 if place else top} | row)
                    weight.append(chance)
    return _Sampled(_table(rows), torch.tensor(weight, dtype=torch.float64), f"{_TREES} trees of {_LEAVES} leaves")


def _multinomial(members: Sequence[int]) -> int:
    """In how many orders the multiset can be sampled."""
    orders = math.factorial(len(members))
    for count in Counter(members).values():
        orders //= math.factorial(count)
    return orders


def _rows(path: world.Path, depth: int) -> list[dict[str, Any]]:
    """Rows of a path whose first step has this depth, with exact scores."""
    pi, rows = world.policy(), []
    for index, (state, action) in enumerate(path.steps):
        following = world.MOVES[state][action]
        before = world.value(state)
        after = world.value(following) if following >= 0 else float(following == world.SUCCESS)
        ended, could = (after, before) if path.outcome else (1 - after, 1 - before)
        rows.append(
            {
                "index": depth + index,
                "state": state,
                "action": action,
                "next_state": following,
                "value": before,
                "answer_score": after,
                "hindsight_logprob": math.log(pi[state][action] * ended / could),
                "entropy": -math.log(pi[state][action]),
                "prm_reward": after - before,
                "root_score": world.value(0),
            }
        )
    return rows


def _table(rows: list[dict[str, Any]]) -> StepTable:
    # The ends are states of their own; no row leaves them.
    named = [
        row | {"next_state": row["next_state"] if row["next_state"] >= 0 else 4 - row["next_state"]} for row in rows
    ]
    return StepTable.from_rows(named, dtype=torch.float64)


def text(lines: Sequence[Bias]) -> str:
    """The table as aligned text."""
    cells = [("method", "options", "groups of", "cosine", "scale", "bias")]
    for line in lines:
        options = ", ".join(f"{name}={value:g}" for name, value in line.options.items()) or "-"
        numbers = [f"{value + 0.0:.3f}".replace("-0.000", "0.000") for value in (line.cosine, line.scale, line.bias)]
        cells.append((line.method, options, line.sampled, *(numbers if not line.reason else ("-", "-", line.reason))))
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    return "\n".join(
        "  ".join(
            [
                *(cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)),
                *(cell.rjust(width) for cell, width in zip(row[3:5], widths[3:], strict=True)),
                row[5],
            ]
        )
        for row in cells
    )
