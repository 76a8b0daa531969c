"""Worked examples for the prompt: the environment's expert plays tasks of seeds that neither training nor evaluation
uses."""

from __future__ import annotations

from collections.abc import Callable, Container

import gymnasium

from rtmc.errors import RtmcError
from rtmc.train.evaluate import HELD_OUT

# A third range of seeds, far above the held-out tasks.
_FIRST_SEED = HELD_OUT + 2**28


class NoExpertError(RtmcError, ValueError):
    """The environment offers no expert, or its plan did not work."""


def expert_examples(
    make_env: Callable[[], gymnasium.Env], count: int, avoid: Container[str] = ()
) -> list[list[tuple[str, str]]]:
    """`count` solved episodes as (observation, action) pairs; no task starts by a text in `avoid`.

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
        seeds = (_FIRST_SEED + i for i in range(1000 + 10 * count))
        found = [s for s in seeds if env.reset(seed=s)[0] not in avoid][:count]
        if len(found) < count:
            raise NoExpertError(f"`prompt.examples = {count}`: nearly every task of the environment is held out")
        return [_episode(env, seed) for seed in found]
    finally:
        env.close()


def _episode(env: gymnasium.Env, seed: int) -> list[tuple[str, str]]:
    observation, info = env.reset(seed=seed)
    pairs = []
    plan = env.unwrapped.expert_plan()  # type: ignore[attr-defined]  # looked for by the caller
    for action in plan or ():
        pairs.append((str(observation), action))
        observation, _, _, _, info = env.step(action)
    if not info["success"]:
        raise NoExpertError(f"the expert's plan for task {info['task_id']} did not end in success")
    return pairs
