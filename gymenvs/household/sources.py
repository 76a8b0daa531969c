"""Where an environment's tasks come from: drawn by number, or the games of a data folder in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from rtmc.gymenvs.household import generate, splits, vocabulary
from rtmc.gymenvs.household.datafolder import find_games, load_trial
from rtmc.gymenvs.household.records import load_game
from rtmc.gymenvs.household.task import HouseholdTask

SEEDS_PER_TYPE = 10_000
# Tasks are immutable: the members of a group, and an environment reset to one task again, share one object.
_draw = lru_cache(maxsize=256)(generate.draw_task)
_regenerate = lru_cache(maxsize=256)(generate.generate_task)


class Source(Protocol):
    """Tasks by number. `size`: how many numbers `reset(seed=...)` draws from."""

    size: int

    def task(self, number: int) -> HouseholdTask:
        """Task `number`, counted from 0 without end."""

    def named(self, task_id: str) -> HouseholdTask:
        """The task of an id. Raises ValueError where there is none."""


class Generated:
    """Number n has type `task_types[n % len(task_types)]` and seed `n // len(task_types)`."""

    def __init__(self, split: str, task_types: Sequence[str]) -> None:
        self.split, self.task_types = splits.check_split(split), tuple(task_types)
        self.size = SEEDS_PER_TYPE * len(self.task_types)

    def task(self, number: int) -> HouseholdTask:
        seed, kind = divmod(number, len(self.task_types))
        return _draw(self.task_types[kind], seed, split=self.split)

    def named(self, task_id: str) -> HouseholdTask:
        return _regenerate(task_id)


class Games:
    """The games of ALFWorld's data folder, in the order of their paths, over and over."""

    def __init__(self, folder: str | os.PathLike[str], split: str | None, task_types: Sequence[str]) -> None:
        self.games = find_games(folder, split, task_types)
        self.size = len(self.games)
        self._ids = {"/".join(path.resolve().parts[-2:]): path for path in self.games}

    def task(self, number: int) -> HouseholdTask:
        return _load(self.games[number % self.size])

    def named(self, task_id: str) -> HouseholdTask:
        if task_id not in self._ids:
            raise splits.near("task id", task_id, tuple(self._ids))
        return _load(self._ids[task_id])


@lru_cache(maxsize=64)
def _load(folder: Path) -> HouseholdTask:
    return load_trial(folder)


def as_task(task: Any, source: Source) -> HouseholdTask:
    """The task that an argument names: an id of the source, a game's path, a task, or the JSON of one.

    Raises:
        ValueError: the id, the file or the JSON names no task.
        TypeError: it is none of these.
    """
    if isinstance(task, HouseholdTask):
        return task
    if isinstance(task, Path) or (isinstance(task, str) and task.endswith(".tw-pddl")):
        return load_trial(task) if Path(task).is_dir() else load_game(task)
    if isinstance(task, str):
        return HouseholdTask.from_json(task) if task.lstrip().startswith("{") else source.named(task)
    if isinstance(task, Mapping):
        return HouseholdTask.from_recording(task) if "init" in task else HouseholdTask.from_json(task)
    raise TypeError(
        f"Household: a task is an id, the path of a game, a HouseholdTask or its JSON object, got {type(task).__name__}"
    )


def check_task_types(task_types: str | Sequence[str] | None) -> tuple[str, ...]:
    """The task types asked for, all six for None. Raises ValueError for an unknown one, and for none at all."""
    if isinstance(task_types, str):
        task_types = (task_types,)
    chosen = tuple(vocabulary.TASK_TYPES if task_types is None else task_types)
    for task_type in chosen:
        splits.check_task_type(task_type)
    if not chosen:
        raise ValueError(f"Household: task_types is empty; wanted some of {', '.join(vocabulary.TASK_TYPES)}")
    return chosen
