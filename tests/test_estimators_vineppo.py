"""vineppo against the authors' numbers and hand-worked gaps."""

import math

import pytest
import torch

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases

NONE = math.nan


def of_values(rewards, values, outcomes=None, dtype=torch.float64):
    rows = [
        {"group": 0, "rollout": r, "index": t, "state": "s", "action": "a", "reward": w, "value": v}
        | ({} if outcomes is None else {"outcome": outcomes[r]})
        for r, own in enumerate(zip(rewards, values, strict=True))
        for t, (w, v) in enumerate(zip(*own, strict=True))
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("as_outcome", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_vectors(dtype, tolerance, as_outcome, shared):
    """`values` has one entry more than there are steps: that of the final state, which is none."""
    for given, wanted in vector_cases(shared, "vineppo"):
        rewards, values = given["step_rewards"], given["values"]
        values = [NONE if value is None else value for value in values[: len(rewards)]]
        outcomes = [rewards[-1]] if as_outcome else None
        rewards = [*rewards[:-1], 0.0] if as_outcome else rewards
        found = rtmc.advantages(of_values([rewards], [values], outcomes, dtype), "vineppo")
        expected = torch.tensor(wanted["adv"], dtype=dtype)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_missing_tail_is_filled_backward():
    found = rtmc.estimate(of_values([[0.0, 0.25, 0.0, 1.0]], [[0.5, 0.75, NONE, NONE]]), "vineppo")
    assert found.v.tolist() == [0.5, 0.75, 1.0, 1.0]
    assert found.advantage.tolist() == [0.25, 0.5, 0.0, 0.0]
    nothing = rtmc.estimate(of_values([[0.0, 0.5]], [[NONE, NONE]], [1.0]), "vineppo")
    assert nothing.v.tolist() == [1.5, 1.5]
    assert nothing.advantage.tolist() == [0.0, 0.0]


def test_a_gap_reads_the_next_value():
    found = rtmc.estimate(of_values([[0.0, 0.25, 0.5, 0.0]], [[NONE, 0.5, NONE, 0.125]], [1.0]), "vineppo")
    # V_2 = 0.5 + 0.125, V_0 = 0 + 0.5.
    assert found.v.tolist() == [0.5, 0.5, 0.625, 0.125]
    assert found.advantage.tolist() == [0.0, 0.375, 0.0, 0.875]
    assert found.returns.tolist() == [1.75, 1.75, 1.5, 1.0]


def test_rollouts_do_not_see_each_other():
    both = rtmc.advantages(of_values([[0.0, 0.0], [0.0, 0.0]], [[NONE, NONE], [0.5, 0.25]], [1.0, 0.0]), "vineppo")
    assert both.tolist() == [0.0, 0.0, -0.25, -0.25]


def test_credits_add_up_to_the_outcome_minus_the_first_value():
    table = of_values([[0.1, -0.2, 0.3]], [[0.4, NONE, 0.7]], [1.0])
    assert float(rtmc.advantages(table, "vineppo").sum()) == pytest.approx(1.2 - 0.4)
