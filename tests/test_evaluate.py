"""Evaluation: intervals against the closed form, the same tasks each time, none shared with training."""

from __future__ import annotations

import math
from functools import partial

import gymnasium
import pytest

import rtmc.gymenvs  # noqa: F401 - registers the environments
from rtmc.train.collect import Acting, Collector
from rtmc.train.evaluate import Evaluated, Rate, evaluate
from rtmc.train.policy import Policy
from rtmc.train.prompt import PlainFormat
from tests import tiny


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (50, 192), (192, 192)])
def test_the_interval_is_wilsons(count: int, total: int) -> None:
    z, p = 1.959963984540054, count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    assert Rate(count, total).interval == pytest.approx((middle - half, middle + half), abs=1e-9)


def test_the_same_tasks_and_draws_each_time() -> None:
    words = tiny.tokenizer()
    make = partial(gymnasium.make, "rtmc/Household-v0", split="tiny", max_turns=4, observation="knowledge")
    collector = Collector(make, Policy(tiny.model(vocab=len(words)), words), PlainFormat(words, history=0))
    first = evaluate(collector, Acting(), 10, batch=4)
    again = evaluate(collector, Acting(), 10, batch=10)
    assert first == again
    assert first.sampled.total == first.greedy.total == sum(r.total for r in first.by_type.values()) == 10
    assert Evaluated.from_json(first.to_json()) == first
