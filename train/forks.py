"""Environments that are taken back to earlier moments: the forks an exploration plays in.

A moment (`Place`) is gone on from in a *slot*. What is played side by side has a slot each, and with a function that
makes environments each slot has its own: a rollout that goes straight on needs no restoring. With one environment all
slots share it, and every turn goes through `restore`.

What this is not: it knows no policy, and no rule of exploration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rtmc.train.references import ExploreError
from rtmc.train.turn_forest import PROMPT, Place


class Answered(NamedTuple):
    """What `step` returns, and the snapshot of the moment after it; None where the episode is over, or none is kept."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    snapshot: Any


@dataclass
class _World:
    env: gymnasium.Env
    place: Place | None = None  # the moment it stands at; None = not known
    started: bool = False


class Worlds:
    """Environments of one kind, made as they are needed; see the head of this file.

    Raises TypeError for what is neither an environment nor a function.
    """

    def __init__(self, env: gymnasium.Env | Callable[[], gymnasium.Env]) -> None:
        self._make = None if isinstance(env, gymnasium.Env) else env
        if not isinstance(env, gymnasium.Env) and not callable(env):
            raise TypeError(f"`env` must be a gymnasium environment or a function that makes one, got {env!r}")
        self._worlds = [_World(env)] if isinstance(env, gymnasium.Env) else []
        self._keeps = False

    @property
    def first(self) -> gymnasium.Env:
        """The environment of the first slot: `reset` plays there."""
        return self._slot(0).env

    def check_forks(self, needed: bool, option: str) -> None:
        """Refuse an environment that cannot be forked where that is `needed`, or where all slots share it."""
        self._keeps = needed or self._make is None
        if not self._keeps:
            return
        plain = self.first.unwrapped
        lacks = [name for name in ("snapshot", "restore") if not callable(getattr(plain, name, None))]
        if lacks:
            why = f"{option} goes back to earlier turns" if needed else "several rollouts share one environment"
            remedy = "" if needed else "; or give a function that makes environments instead"
            raise ExploreError(
                f"{why}: {type(plain).__name__} needs {' and '.join(lacks)} (`snapshot()` gives an episode as it is, "
                f"`restore(snapshot)` goes on from there){remedy}"
            )
        layer: Any = self.first
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, gymnasium.wrappers.TimeLimit):
                raise ExploreError(
                    "a fork would not have the turns that TimeLimit counted: let the environment count its own, and "
                    "make it without `max_episode_steps`"
                )
            layer = layer.env

    def reset(self, task: Any) -> tuple[str, Mapping[str, Any], Any]:
        """Start a task in the first slot: observation, info and snapshot. Raises what the environment raises."""
        world = self._slot(0)
        observation, info = self._started(world, task)
        if not isinstance(observation, str):
            raise ExploreError(
                f"exploration plays environments of text; {type(world.env.unwrapped).__name__} observes "
                f"{type(observation).__name__}"
            )
        return observation, info, self._snapshot(world)

    def arrived(self, slot: int, place: Place) -> None:
        """The slot's environment stands at `place`: what was just reset or stepped to."""
        self._slot(slot).place = place

    def step(self, slot: int, place: Place, task: Any, text: str) -> Answered:
        """Take a turn at a moment of a task. Raises what the environment raises; it may then stand anywhere."""
        world = self._slot(slot)
        if world.place is not place:
            world.place = None
            if not world.started or (place.snapshot is None and place.node == PROMPT):
                self._started(world, task)  # gymnasium's wrappers want a reset before the first step
            if place.snapshot is not None:
                world.env.unwrapped.restore(place.snapshot)  # type: ignore[attr-defined]  # check_forks saw it
        world.place = None
        observation, reward, terminated, truncated, info = world.env.step(text)
        over = bool(terminated or truncated)
        snapshot = None if over else self._snapshot(world)
        return Answered(observation, float(reward), bool(terminated), bool(truncated), info, snapshot)

    def close(self) -> None:
        """Close the environments that were made here."""
        if self._make is not None:
            for world in self._worlds:
                world.env.close()
            self._worlds.clear()

    def _slot(self, slot: int) -> _World:
        if self._make is None:
            return self._worlds[0]
        while len(self._worlds) <= slot:
            made = self._make()
            if not isinstance(made, gymnasium.Env):
                raise TypeError(f"`env` must be a function that makes a gymnasium environment; it made {made!r}")
            self._worlds.append(_World(made))
        return self._worlds[slot]

    @staticmethod
    def _started(world: _World, task: Any) -> tuple[Any, Mapping[str, Any]]:
        world.place = None
        number = isinstance(task, int | np.integer) and not isinstance(task, bool)
        told = world.env.reset(seed=int(task)) if number else world.env.reset(options={"task": task})
        world.started = True
        return told

    def _snapshot(self, world: _World) -> Any:
        return world.env.unwrapped.snapshot() if self._keeps else None  # type: ignore[attr-defined]  # as above
