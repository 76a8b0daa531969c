"""Worked examples for the prompt: the environment's expert plays tasks that neither training nor evaluation uses."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium

from rtmc.errors import RtmcError
from rtmc.train.evaluate import HELD_OUT

# A third range of seeds, far above the held-out tasks.
_FIRST_SEED = HELD_OUT + 2**28


class NoExpertError(RtmcError, ValueError):
    """The environment offers no expert, or its plan did not work."""


def expert_examples(make_env: Callable[[], gymnasium.Env], count: int) -> list[list[tuple[str, str]]]:
    """`count` solved episodes as (observation, action) pairs.

    Raises NoExpertError where the environment has no `expert_plan`, or where a plan does not end in success.
    """
    if count == 0:
        return []
    env = make_env()
    try:
        plan_of = getattr(env.unwrapped, "expert_plan", None)
        if plan_of is None:
            raise NoExpertError(
                f"`prompt.examples = {count}`: {env.spec.id if env.spec else env} has no expert; set it to 0"
            )
        return [_episode(env, _FIRST_SEED + i) for i in range(count)]
    finally:
        env.close()


def _episode(env: gymnasium.Env, seed: int) -> list[tuple[str, str]]:
    observation, info = env.reset(seed=seed)
    pairs = []
    for action in env.unwrapped.expert_plan():  # type: ignore[attr-defined]
        pairs.append((str(observation), action))
        observation, _, _, _, info = env.step(action)
    if not info["success"]:
        raise NoExpertError(f"the expert's plan for task {info['task_id']} did not end in success")
    return pairs
