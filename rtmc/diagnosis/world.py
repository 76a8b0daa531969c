"""A world small enough to sum over everything that can happen in it, and a softmax policy for it.

Four states, nine paths; states recur between rollouts and at different times:

    state 0   action 0 -> 1          action 1 -> 2          action 2 -> 3
    state 1   action 0 -> success    action 1 -> 2
    state 2   action 0 -> failure    action 1 -> 3
    state 3   action 0 -> success    action 1 -> failure

The policy is pi(a|s) = softmax of `LOGITS[s]`. Values are exact: V(s) is the probability of success from s.

What this is not: a benchmark. It shows what an estimator's formula does to the policy gradient, with nothing sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SUCCESS, FAILURE = -1, -2
MOVES = ((1, 2, 3), (SUCCESS, 2), (FAILURE, 3), (SUCCESS, FAILURE))
ACTIONS = max(map(len, MOVES))
LOGITS = ((0.4, 0.0, -0.3), (-0.2, 0.0), (-0.6, 0.0), (0.9, 0.0))


class Path(NamedTuple):
    """One way to an end.

    steps         (state, action) pairs
    outcome       1 for success, 0 for failure
    probability   of taking it, from its first state, under the policy
    """

    steps: tuple[tuple[int, int], ...]
    outcome: float
    probability: float


def policy(logits: Sequence[Sequence[float]] = LOGITS) -> list[list[float]]:
    """pi[s][a]."""
    return [[math.exp(x) / math.fsum(map(math.exp, row)) for x in row] for row in logits]


def paths(state: int = 0, logits: Sequence[Sequence[float]] = LOGITS) -> list[Path]:
    """Every path from `state` on; their probabilities sum to 1."""
    pi = policy(logits)

    def walk(at: int) -> Iterator[Path]:
        if at < 0:
            yield Path((), float(at == SUCCESS), 1.0)
            return
        for action, following in enumerate(MOVES[at]):
            for rest in walk(following):
                yield Path(((at, action), *rest.steps), rest.outcome, pi[at][action] * rest.probability)

    return list(walk(state))


def value(state: int, logits: Sequence[Sequence[float]] = LOGITS) -> float:
    """V(state): the probability of success; 1 and 0 at the ends."""
    return math.fsum(path.probability * path.outcome for path in paths(state, logits))


def gradient(path: Sequence[tuple[int, int]], credit: Sequence[float]) -> list[list[float]]:
    """sum_t credit_t d log pi(a_t|s_t) / d logits, one row a state, 0 where a state lacks an action."""
    pi = policy()
    found = [[0.0] * ACTIONS for _ in MOVES]
    for (state, action), weight in zip(path, credit, strict=True):
        for other, probability in enumerate(pi[state]):
            found[state][other] += weight * ((other == action) - probability)
    return found
