"""The report of a signature's quality, counted by hand."""

import json
import math

import pytest

from rtmc import Rollout, Step, tabulate
from rtmc.signatures.quality import signature_quality


def rollout(name, steps, reward, task="t"):
    """`steps` = (state, action, observation)."""
    made = [Step(text, f"do {action}", state_key=state, action_key=action) for state, action, text in steps]
    return Rollout(task, name, made, reward=reward)


ROLLOUTS = [
    rollout("1", [("s", "a", "start"), ("x", "c", "seen one way")], 1.0),
    rollout("2", [("s", "b", "start"), ("x", "c", "seen another way")], 0.0),
    rollout("3", [("s", "a", "start"), ("y", "c", "alone"), ("y", "c", "alone")], 0.0),
    rollout("4", [("s", "a", "start")], 1.0, task="other"),
]


def test_counts_by_hand():
    found = signature_quality(ROLLOUTS, "env", prior_visits=0)
    assert (found.groups, found.rollouts, found.steps) == (2, 4, 8)
    # t: s 3 visits, x 2, y 2 (of one rollout); other: s 1
    assert (found.states, found.actions) == (4, 4)
    assert found.single_visit_states == 1 / 4
    assert found.single_visit_steps == 1 / 8
    assert found.shared_states == 2 / 4
    assert found.group_size_by_turn == [(3 + 3 + 3 + 1) / 4, (2 + 2 + 2) / 3, 2.0]
    assert found.shared_by_turn == [3 / 4, 2 / 3, 0.0]
    # One action each in x, y and the other s: Q = V there; in s the two actions differ.
    assert found.zero_advantage == 5 / 8
    assert found.colliding_states == 1 / 4
    assert found.colliding_actions == 0
    assert [(c.kind, c.task_id, c.key, c.texts) for c in found.collisions] == [("state", "t", "x", 2)]
    assert found.collisions[0].examples == [("1", 1, "seen one way"), ("2", 1, "seen another way")]


def test_a_finer_signature_merges_less_and_confuses_nothing():
    found = signature_quality(ROLLOUTS, "text")
    assert found.states == 5
    assert found.colliding_states == 0
    assert signature_quality(ROLLOUTS, "tokens").states > found.states


def test_as_json_and_as_text():
    found = signature_quality(ROLLOUTS, "env")
    assert json.loads(json.dumps(found.to_json()))["collisions"][0]["key"] == "x"
    text = str(found)
    assert "8 steps of 4 rollouts of 2 tasks: 4 states, 4 actions" in text
    assert "visited once: 25.0 % of the states" in text
    assert "'seen another way'" in text


def test_a_table_made_already_and_another_estimator():
    table = tabulate(ROLLOUTS, "env")
    found = signature_quality(ROLLOUTS, table=table, method="grpo")
    assert found.method == "grpo"
    assert found.zero_advantage == 1 / 8  # the group of one
    with pytest.raises(ValueError, match="`table` has 8 rows, `rollouts` have 1 steps"):
        signature_quality(ROLLOUTS[3:], table=table)


def test_nothing_to_count():
    found = signature_quality([], "text")
    assert found.steps == 0
    assert math.isnan(found.zero_advantage)
    assert found.to_json()["single_visit_states"] is None
    assert "advantage 0 by rtmc: -" in str(found)
    unknown = signature_quality([rollout("1", [("s", "a", "x")], math.nan)], "env")
    assert unknown.zero_advantage == 1.0
