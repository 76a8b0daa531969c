"""rLLM: trajectory groups, whose steps take a list of advantages, one a token of the response.

To paste, with `groups` rLLM's TrajectoryGroups, and `use_precomputed_advantage` set in its algorithm config:

    import rtmc.adapters.rllm as credit

    def keys(trajectory, index, step):
        return {"state": step.info["state_key"], "action": step.info["action_key"]}

    estimate = credit.set_advantages(groups, "rtmc", keys=keys, gamma=0.99)
    print([step.advantage for group in groups for one in group.trajectories for step in one.steps])

    # or, as an estimator that rLLM's trainer calls:
    register_adv_estimator("rtmc")(credit.estimator("rtmc", keys=keys, gamma=0.99))

The outcome is `trajectory.reward`, None = unknown. rLLM's `step.reward` mostly repeats or adds up to it, so it is read
only with `step_rewards=True`. Without `keys` a step's state is its `observation` and its action is `action`, or the
text of the model's answer.

This file reads and writes attributes only; rLLM stands in no package registry, so the form is the one its repository
has (rllm-org/rllm, rllm/agents/agent.py and rllm/trainer/algorithms/advantage.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rtmc.adapters.attempts import Attempt, attempts_credit, hashable
from rtmc.types import Estimate

__all__ = ["estimator", "set_advantages"]

Keys = Callable[[Any, int, Any], Mapping[str, Any]]
_HINT = "give `keys=`, a function of trajectory, index and step"


def set_advantages(
    groups: Sequence[Any], method: str, *, keys: Keys | None = None, step_rewards: bool = False, **options: Any
) -> Estimate:
    """Write `step.advantage = [credit] * len(step.response_ids)` on every step, and return the estimate, a row a step.

    groups         objects with `trajectories`, each with `steps` and `reward`; a group of its own each, whatever its id
    keys           (trajectory, index, step) -> what StepTable.from_rows takes for a step: `state`, `action`, `reward`,
                   scores. None: see the head of this file
    step_rewards   `step.reward` is a step reward that the trajectory's reward does not contain
    options        of the method

    Raises EstimatorError or TableError (ValueErrors) as `rtmc.estimate` does, naming trajectory and step.
    """
    attempts = []
    for number, group in enumerate(groups):
        for place, trajectory in enumerate(group.trajectories):
            steps = [
                _keys(step) if keys is None else dict(keys(trajectory, index, step))
                for index, step in enumerate(trajectory.steps)
            ]
            if step_rewards:
                steps = [{"reward": step.reward, **given} for step, given in zip(trajectory.steps, steps, strict=True)]
            outcome = math.nan if trajectory.reward is None else float(trajectory.reward)
            tokens = [len(step.response_ids) for step in trajectory.steps]
            attempts.append(Attempt(number, outcome, steps, tokens, None, f"group {number}, trajectory {place}"))
    found, first, _ = attempts_credit(attempts, method, options, hint=_HINT)
    advantage = found.advantage.tolist()
    trajectories = (trajectory for group in groups for trajectory in group.trajectories)
    for start, trajectory in zip(first, trajectories, strict=True):
        for index, step in enumerate(trajectory.steps):
            step.advantage = [advantage[start + index]] * len(step.response_ids)
    return found


def _keys(step: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if step.observation is not None:
        found["state"] = hashable(step.observation)
    action = getattr(step.action, "action", step.action)
    if action is None and step.model_response:
        action = step.model_response
    if action is not None:
        found["action"] = hashable(action)
    return found


def estimator(
    method: str, *, keys: Keys | None = None, step_rewards: bool = False, **options: Any
) -> Callable[..., tuple[list[np.ndarray], list[np.ndarray]]]:
    """A function for rLLM's `register_adv_estimator`.

    It writes `step.advantage` itself (`writes_step_advantages`) and returns, for rLLM's metrics, the mean advantage of
    each trajectory's steps (0 without steps), twice.
    """

    def advantages(
        rewards: list[np.ndarray], algorithm_config: Any = None, traj_groups: Sequence[Any] = (), **unused: Any
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if len(traj_groups) != len(rewards):
            raise ValueError(
                f"rLLM passed the rewards of {len(rewards)} groups and {len(traj_groups)} trajectory groups; this "
                "estimator needs `traj_groups`, so a version of rLLM that passes them"
            )
        found = set_advantages(traj_groups, method, keys=keys, step_rewards=step_rewards, **options)
        taken = iter(found.advantage.tolist())
        means = [
            np.array([_mean([next(taken) for _ in trajectory.steps]) for trajectory in group.trajectories])
            for group in traj_groups
        ]
        return means, means

    advantages.writes_step_advantages = True  # type: ignore[attr-defined]  # how rLLM knows
    advantages.__name__ = f"rtmc_{method}"
    return advantages


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
