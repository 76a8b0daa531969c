"""What the environments share: text spaces, the order in which an environment plays its tasks, checks of arguments.

What this is not: an environment. A world adds its tasks, its step and what its `info` says.
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import gymnasium as gym

from rtmc.gymenvs.spaces import UnicodeText

TaskT = TypeVar("TaskT")
TaskT_co = TypeVar("TaskT_co", covariant=True)


class TaskSource(Protocol[TaskT_co]):
    """Tasks by number. `size`: how many numbers `reset(seed=...)` draws from."""

    size: int

    def task(self, number: int) -> TaskT_co:
        """Task `number`, counted from 0 without end."""

    def named(self, task_id: str) -> TaskT_co:
        """The task of an id. Raises ValueError where there is none."""


def as_task(world: str, task: Any, source: TaskSource[TaskT], kind: Any) -> TaskT:
    """The task that an argument names: an id of the source, a `kind`, or the JSON (object or text) of one.

    `kind` is a class with `from_json`.

    Raises:
        ValueError: the id or the JSON names none. TypeError: it is none of these.
    """
    if isinstance(task, kind):
        return cast(TaskT, task)
    if isinstance(task, str):
        return kind.from_json(task) if task.lstrip().startswith("{") else source.named(task)
    if isinstance(task, Mapping):
        return kind.from_json(task)
    raise TypeError(f"{world}: a task is an id, a {kind.__name__} or its JSON object, got {type(task).__name__}")


class TextEnv(gym.Env[str, str], Generic[TaskT]):
    """An environment of text whose episodes play the tasks of a source.

    With a fixed `task` every episode plays it. Else `reset(seed=s)` draws the number of a task with that seed, a later
    `reset()` draws the next from the same generator, and an environment never seeded goes through the numbers in order
    from 0. `reset(options={"task": ...})` plays that task once and leaves the order as it was.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- the name and type are gymnasium's
    world: ClassVar[str]  # the world's name, in messages
    source: TaskSource[TaskT]

    def __init__(self, task: Any = None) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.task: TaskT | None = None if task is None else self._as_task(task)
        self._number = 0
        self._seeded = False

    @abstractmethod
    def _as_task(self, task: Any) -> TaskT:
        """The task that an argument names. Raises ValueError or TypeError where it names none."""

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> TaskT:
        """The task of the episode that `reset(seed=seed, options=options)` starts.

        Raises:
            ValueError: an option is not `task`, or its value names no task.
        """
        super().reset(seed=seed)
        self._seeded = self._seeded or seed is not None
        unknown = sorted(map(str, set(options or ()) - {"task"}))
        if unknown:
            raise ValueError(f"{self.world}: unknown reset options {unknown}; there is one, 'task'")
        chosen = (options or {}).get("task")
        if chosen is not None:
            return self._as_task(chosen)
        if self.task is not None:
            return self.task
        if self._seeded:
            return self.source.task(int(self.np_random.integers(self.source.size)))
        self._number += 1
        return self.source.task(self._number - 1)

    @classmethod
    def _choice(cls, name: str, got: str, options: Sequence[str]) -> str:
        """`got`, one of `options`. Raises ValueError for anything else."""
        if got not in options:
            close = difflib.get_close_matches(str(got), options, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{cls.world}: {name}={got!r} is none of {', '.join(map(repr, options))}{hint}")
        return got

    @classmethod
    def _flag(cls, name: str, got: bool) -> bool:
        """`got`, true or false. Raises TypeError for anything else: `"no"` would count as true."""
        if not isinstance(got, bool):
            raise TypeError(f"{cls.world}: {name} must be True or False, got {got!r}")
        return got

    @classmethod
    def _whole(cls, name: str, got: int, least: int) -> int:
        """`got`, a whole number of at least `least`. Raises ValueError for anything else."""
        if isinstance(got, bool) or not isinstance(got, int) or got < least:
            raise ValueError(f"{cls.world}: {name} must be a whole number of at least {least}, got {got!r}")
        return got
