"""rLLM: trajectory groups of its form get a list of advantages on every step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import rtmc
import rtmc.adapters.rllm as credit
from rtmc.errors import EstimatorError


@dataclass
class Step:
    """The fields of rLLM's step that the adapter reads, and the one it writes."""

    response_ids: list[int]
    observation: Any = None
    action: Any = None
    model_response: str = ""
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    advantage: Any = None


@dataclass
class Trajectory:
    steps: list[Step]
    reward: float | None = None


@dataclass
class Group:
    trajectories: list[Trajectory]


def groups():
    def step(tokens, state, action, reward=0.0):
        return Step([0] * tokens, state, action, reward=reward, info={"state_key": state, "action_key": action})

    one = Trajectory([step(2, "s", "x"), step(1, "sx", "y")], 1.0)
    two = Trajectory([step(2, "s", "x"), step(3, "sx", "z", 0.25), step(1, "sxz", "y")], 0.0)
    three = Trajectory([step(1, "s", "p")], 1.0)
    return [Group([one, two]), Group([three, Trajectory([], 0.0)])]


def expected(method, step_rewards=False, **options):
    rows = [
        {
            **{"group": g, "rollout": r, "index": i, "outcome": trajectory.reward},
            **{"state": step.observation, "action": step.action, "reward": step.reward if step_rewards else 0.0},
        }
        for g, group in enumerate(groups())
        for r, trajectory in enumerate(group.trajectories)
        for i, step in enumerate(trajectory.steps)
    ]
    empty = [{"group": 1, "rollout": 1, "outcome": 0.0}]
    return rtmc.advantages(rtmc.StepTable.from_rows(rows, empty), method, **options).tolist()


def written(found):
    return [step for group in found for trajectory in group.trajectories for step in trajectory.steps]


@pytest.mark.parametrize("step_rewards", [False, True])
def test_a_list_a_step_one_number_a_token(step_rewards):
    found = groups()
    credit.set_advantages(found, "rtmc", step_rewards=step_rewards, gamma=0.9)
    wanted = expected("rtmc", step_rewards, gamma=0.9)
    assert [step.advantage for step in written(found)] == [
        [number] * len(step.response_ids) for step, number in zip(written(found), wanted, strict=True)
    ]
    assert len(set(wanted)) > 2


def test_keys_of_ones_own():
    found = groups()
    credit.set_advantages(found, "rtmc", keys=lambda one, index, step: {"state": index, "action": 0}, prior_visits=0)
    assert all(step.advantage == [0.0] * len(step.response_ids) for step in written(found)[:1])


def test_an_action_object_and_an_answer_without_one():
    found = groups()
    for step in written(found):
        step.model_response, step.action = step.action, None
    credit.set_advantages(found, "rtmc")
    assert [step.advantage[0] for step in written(found)] == expected("rtmc")
    for step in written(found):
        step.action = type("Action", (), {"action": step.model_response})()
    credit.set_advantages(found, "rtmc")
    assert [step.advantage[0] for step in written(found)] == expected("rtmc")


def test_unknown_rewards():
    found = groups()
    found[0].trajectories[0].reward = None
    credit.set_advantages(found, "rtmc")
    assert found[0].trajectories[0].steps[0].advantage == [0.0, 0.0]
    assert all(np.isfinite(step.advantage).all() for step in written(found))


def test_missing_keys():
    found = groups()
    found[1].trajectories[0].steps[0].observation = None
    with pytest.raises(EstimatorError, match=r"needs the state key .* group 1, trajectory 0, step 0 .*`keys=`"):
        credit.set_advantages(found, "rtmc")


def test_as_an_estimator_of_the_trainer():
    found = groups()
    function = credit.estimator("grpo", ddof=0)
    rewards = [np.array([one.reward for one in group.trajectories]) for group in found]
    advantages, returns = function(rewards=rewards, algorithm_config=None, traj_groups=found)
    assert function.writes_step_advantages
    assert advantages is returns
    assert [part.shape for part in advantages] == [(2,), (2,)]
    np.testing.assert_allclose(advantages[0], [1, -1], rtol=1e-5)
    assert advantages[1][1] == 0  # no step to take a mean of
    assert found[0].trajectories[0].steps[0].advantage == pytest.approx([1, 1], rel=1e-5)
    with pytest.raises(ValueError, match="rewards of 2 groups and 0 trajectory groups"):
        function(rewards=rewards)


def test_the_lines_to_paste(paste, capsys):
    found = groups()
    registered = {}
    paste(
        credit,
        groups=found,
        register_adv_estimator=lambda name: lambda function: registered.setdefault(name, function),
    )
    assert [step.advantage[0] for step in written(found)] == expected("rtmc", gamma=0.99)
    assert str(found[0].trajectories[0].steps[0].advantage) in capsys.readouterr().out
    assert registered["rtmc"].writes_step_advantages
