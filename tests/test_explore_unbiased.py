"""Exploration's correction is exact: every random choice of a small question-answering world is enumerated.

The code that runs is `rtmc.train.explore.explore` itself, with a policy whose probabilities are known. Each choice
(turns of chains, candidates, draws) is answered by a script; all scripts are played, and expectations are sums over
them with their probabilities. What they are compared with is worked out from the policy alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import pytest
import torch

import rtmc
import rtmc.explore
from rtmc.gymenvs.spaces import UnicodeText
from rtmc.train.explore import explore
from rtmc.train.references import Reference
from rtmc.train.turn_forest import PROMPT, Forest, Move

# What is searched for, then what is answered: the policy, and the reward of each pair.
SEARCH = {"a": 0.6, "b": 0.4}
WITH_BROKEN = {"a": 0.5, "b": 0.3, "c": 0.2}
ANSWER = {"a": {"x": 0.8, "y": 0.2}, "b": {"x": 0.3, "y": 0.7}}
REWARD = {"ax": 0.0, "ay": 1.0, "bx": 1.0, "by": 0.25}
# The likelihood of the reference answer after each history; the scorer of the world.
SCORE = {"": 0.4, "a": 0.2, "b": 0.7, "ax": 0.1, "ay": 0.9, "bx": 0.8, "by": 0.3}


class World(gymnasium.Env[str, str]):
    """A search, then an answer. Searching for "c" raises."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = UnicodeText(10)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.said = ""
        return "question", {"task_id": "q", "state_key": "", "action_key": None, "valid": True, "success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "c":
            raise RuntimeError("no such word")
        self.said += action
        done = len(self.said) == 2
        reward = REWARD[self.said] if done else 0.0
        info = {"task_id": "q", "state_key": self.said, "action_key": action, "valid": True, "success": reward == 1.0}
        return f"found {action}", reward, done, False, info

    def snapshot(self) -> str:
        return self.said

    def restore(self, snapshot: str) -> None:
        self.said = snapshot


class Script:
    """Answers every choice in turn; `probability` is that of all answers so far."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = list(answers)
        self.options: list[int] = []
        self.probability = 1.0

    def pick(self, probabilities: Sequence[float]) -> int:
        at = len(self.options)
        if at == len(self.answers):
            self.answers.append(0)
        self.options.append(len(probabilities))
        self.probability *= probabilities[self.answers[at]]
        return self.answers[at]

    def following(self) -> list[int] | None:
        """The next script in order, None after the last."""
        answers = self.answers
        for at in reversed(range(len(answers))):
            if answers[at] + 1 < self.options[at]:
                return [*answers[:at], answers[at] + 1]
        return None


class Tabular:
    """An agent with a known policy; a history is the text of its actions. It asks the script, not the generators."""

    def __init__(self, script: Script, search: dict[str, float]) -> None:
        self.script = script
        self.search = search

    def begin(self, observation: str) -> str:
        return ""

    def act(self, histories: Sequence[str], infos: Sequence[Any], generators: Sequence[Any]) -> list[Move]:
        moves = []
        for history in histories:
            table = ANSWER[history] if history else self.search
            moves.append(Move(list(table)[self.script.pick(list(table.values()))], tokens=1))
        return moves

    def extend(self, history: str, move: Move, observation: str) -> str:
        return history + move.text

    def score(self, histories: Sequence[str], references: Sequence[Reference]) -> list[float]:
        return [SCORE[history] for history in histories]

    def weights_changed(self) -> None:
        pass


class _Point:
    def __init__(self, point: float) -> None:
        self.point = point

    def random(self) -> float:
        return self.point


def every(search: dict[str, float] = SEARCH, **options: Any) -> Iterator[tuple[float, Forest]]:
    """(probability, forest) of every outcome of an exploration."""
    answers: list[int] | None = []
    while answers is not None:
        script = Script(answers)

        def draw(scores: Sequence[float], generator: Any, script: Script = script) -> rtmc.explore.Draw:
            weights = [math.exp(score) for score in scores]
            probabilities = [weight / sum(weights) for weight in weights]
            index = script.pick(probabilities)
            # The library's own draw, at a point in the middle of the candidate's part of the interval.
            found = rtmc.explore.draw(scores, _Point(sum(probabilities[:index]) + probabilities[index] / 2))
            assert found.index == index
            return found

        forest = explore(Tabular(script, search), World(), 0, reference="unused", draw=draw, **{"chains": 1, **options})
        yield script.probability, forest
        answers = script.following()


def value(history: str) -> float:
    """The policy's expected reward after a history, searches that break left out."""
    if len(history) == 2:
        return REWARD[history]
    return math.fsum(p * value(history + word) for word, p in (ANSWER[history] if history else SEARCH).items())


def prompt_value(forest: Forest, weights: str) -> float:
    """The prompt's value by the estimator: the corrected one, or the plain mean over children."""
    options = {"divisor": "children"} if weights == "pool_corrected" else {}
    table = forest.table(dtype=torch.float64)
    found = rtmc.estimate(table, "treehca", weights=weights, leaf_norm=None, **options)
    return float(found.parts["parent_value"][table.index == 0][0])


def mean(outcomes: Iterator[tuple[float, Forest]], *functions: Callable[[Forest], float]) -> list[float]:
    """Expectations; the probabilities of all outcomes must add up to one."""
    total, sums = 0.0, [0.0] * len(functions)
    for probability, forest in outcomes:
        total += probability
        sums = [s + probability * function(forest) for s, function in zip(sums, functions, strict=True)]
    assert total == pytest.approx(1.0, abs=1e-12)
    return sums


def branches(forest: Forest) -> Iterator[tuple[str, float, float]]:
    """(history, weight, outcome) of every branch that was played to a verdict."""
    for path in forest.paths[1:]:
        if path.nodes:
            history = "" if path.start == PROMPT else forest.nodes[path.start].after.history
            yield history, forest.nodes[path.nodes[0]].pool_weight, path.reward


CORRECTED, PLAIN = (lambda f: prompt_value(f, "pool_corrected")), (lambda f: prompt_value(f, "uniform"))


def test_the_corrected_value_is_the_on_policy_value():
    """Every history is revisited once, with N = 2: the prompt and what stands after the search."""
    options = {"threshold": math.inf, "per_round": 2, "budget": 3}
    shapes = set()

    def shape(forest: Forest) -> float:
        shapes.add((len(forest.nodes), len(forest.paths), len(forest.candidates), forest.tokens))
        return 0.0

    corrected, plain, _ = mean(every(**options), CORRECTED, PLAIN, shape)
    assert shapes == {(5, 3, 4, 7)}  # a chain of 2, a branch of 2, a branch of 1; 2 x 2 candidates, 7 sampled turns
    assert corrected == pytest.approx(value(""), abs=1e-12)
    assert abs(plain - value("")) > 0.03


@pytest.mark.parametrize("candidates", [1, 3])
def test_for_any_number_of_candidates(candidates):
    # The turn with the lowest log rho is revisited or not by what it was: only the branches are free of that.
    corrected, plain = mean(
        every(threshold=math.inf, budget=3, candidates=candidates),
        lambda f: sum(w * g - value(h) for h, w, g in branches(f)),
        lambda f: sum(g - value(h) for h, w, g in branches(f)),
    )
    assert corrected == pytest.approx(0.0, abs=1e-12)
    assert (abs(plain) > 0.03) if candidates > 1 else (plain == pytest.approx(0.0, abs=1e-12))


@pytest.mark.parametrize("rule", ["random", "none"])
@pytest.mark.parametrize("key", [(0,), (5,)])
def test_rules_that_do_not_look_are_exact_for_the_prompt(rule, key):
    options = {"candidates": 2} if rule == "random" else {}
    corrected, plain = mean(every(rule=rule, budget=3, key=key, **options), CORRECTED, PLAIN)
    assert corrected == pytest.approx(value(""), abs=1e-12)
    if rule == "random":
        assert abs(plain - value("")) > 0.01
    else:
        assert plain == pytest.approx(value(""), abs=1e-12)


def test_every_branch_is_exact_where_the_paper_explores():
    """Threshold -0.14, several rounds, histories chosen by what was seen: each branch stands for its history."""
    seen = set()

    def corrected(forest: Forest) -> float:
        seen.update(history for history, _, _ in branches(forest))
        return sum(w * g - value(h) for h, w, g in branches(forest))

    exact, plain, at_prompt = mean(
        every(budget=6), corrected, lambda f: sum(g - value(h) for h, _, g in branches(f)), CORRECTED
    )
    assert exact == pytest.approx(0.0, abs=1e-12)
    assert abs(plain) > 0.03
    assert seen == {"", "b"}  # a scores less than the prompt, by less than b
    # What is not corrected: a history that is revisited because its first child did badly keeps that child.
    assert abs(at_prompt - value("")) > 0.001


def test_candidates_that_break_leave_the_pool():
    """N counts what could be executed, so that a branch stands for the policy's turns that work."""

    def executed(history: str) -> float:
        if history:
            return value(history)
        return (WITH_BROKEN["a"] * value("a") + WITH_BROKEN["b"] * value("b")) / (WITH_BROKEN["a"] + WITH_BROKEN["b"])

    def errors(forest: Forest) -> float:
        return float(sum(candidate.error is not None for candidate in forest.candidates))

    corrected, plain, broken = mean(
        every(WITH_BROKEN, threshold=math.inf, budget=3),
        lambda f: sum(w * g - executed(h) for h, w, g in branches(f)),
        lambda f: sum(g - executed(h) for h, _, g in branches(f)),
        errors,
    )
    assert corrected == pytest.approx(0.0, abs=1e-12)
    assert abs(plain) > 0.01
    assert broken > 0.05


@pytest.mark.parametrize(
    "fault",
    [
        lambda p, n: 1 / ((n + 1) * p),  # a pool of another size
        lambda p, n: 1 / (n * (1 - p)) if p < 1 else 1 / n,  # the other candidate's probability
        lambda p, n: n * p,  # turned over
    ],
)
def test_a_wrong_weight_is_found(fault, monkeypatch):
    monkeypatch.setattr(rtmc.explore, "pool_weight", fault)
    (found,) = mean(every(threshold=math.inf, budget=3), lambda f: sum(w * g - value(h) for h, w, g in branches(f)))
    assert abs(found) > 0.01


def test_scripts_cover_every_choice_once():
    outcomes = [
        (p, [(c.text, c.node is not None) for c in forest.candidates])
        for p, forest in every(threshold=math.inf, budget=3)
    ]
    assert math.fsum(p for p, _ in outcomes) == pytest.approx(1.0, abs=1e-12)
    words = set(itertools.chain.from_iterable(tuple(text for text, _ in found) for _, found in outcomes))
    assert words == {"a", "b", "x", "y"}
