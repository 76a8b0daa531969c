"""Where an environment's tasks come from: drawn by number, or the games of a data folder in order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtmc.gymenvs.household import generate, splits, vocabulary
from rtmc.gymenvs.household.datafolder import GAME, START, TRAJECTORY, find_games, load_trial
from rtmc.gymenvs.household.records import load_game
from rtmc.gymenvs.household.task import HouseholdTask
from rtmc.gymenvs.textenv import TaskSource

SEEDS_PER_TYPE = 10_000
# Tasks are immutable: the members of a group, and an environment reset to one task again, share one object.
_draw = lru_cache(maxsize=256)(generate.draw_task)
_regenerate = lru_cache(maxsize=256)(generate.generate_task)


Source = TaskSource[HouseholdTask]


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
    """The games of ALFWorld's data folder, in the order of their paths, over and over.

    A game's id is the names of the two folders it lies in; of more where two games would share an id.
    """

    def __init__(self, folder: str | os.PathLike[str], split: str | None, task_types: Sequence[str]) -> None:
        self.games = find_games(folder, split, task_types)
        self.size = len(self.games)
        self._ids = dict(zip(self.games, _ids_of(self.games), strict=True))
        self._paths = {task_id: path for path, task_id in self._ids.items()}

    def task(self, number: int) -> HouseholdTask:
        return self._load(self.games[number % self.size])

    def named(self, task_id: str) -> HouseholdTask:
        if task_id not in self._paths:
            raise splits.near("task id", task_id, tuple(self._paths))
        return self._load(self._paths[task_id])

    def _load(self, folder: Path) -> HouseholdTask:
        task = _load(folder, _stamp(folder))
        return task if task.task_id == self._ids[folder] else _renamed(task, self._ids[folder])


def _ids_of(folders: Sequence[Path]) -> list[str]:
    """For each folder its last names, two at least and as many as no other folder shares."""
    parts = [folder.resolve().parts for folder in folders]
    depths = [2] * len(parts)
    while True:
        ids = ["/".join(names[-depth:]) for names, depth in zip(parts, depths, strict=True)]
        times = Counter(ids)
        shared = [k for k, one in enumerate(ids) if times[one] > 1 and depths[k] < len(parts[k])]
        if not shared:
            return ids
        for k in shared:
            depths[k] += 1


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells whether the files of a trial have changed: name, time of the last change, size."""
    found = []
    for name in (GAME, START, TRAJECTORY):
        try:
            state = (folder / name).stat()
        except FileNotFoundError:
            continue
        found.append((name, state.st_mtime_ns, state.st_size))
    return tuple(found)


@lru_cache(maxsize=64)
def _load(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> HouseholdTask:
    return load_trial(folder)


@lru_cache(maxsize=64)
def _renamed(task: HouseholdTask, task_id: str) -> HouseholdTask:
    return replace(task, task_id=task_id)


def as_task(task: Any, source: Source) -> HouseholdTask:
    """The task that an argument names: an id of the source, a game's path, a task, or the JSON of one.

    Raises:
        ValueError: the id, the file or the JSON names no task.
        TypeError: it is none of these.
    """
    if isinstance(task, HouseholdTask):
        return task
    if isinstance(task, os.PathLike) or (isinstance(task, str) and task.endswith(f".{GAME.partition('.')[2]}")):
        return load_trial(task) if Path(task).is_dir() else load_game(task)
    if isinstance(task, str):
        if task.lstrip().startswith("{"):
            return HouseholdTask.from_json(task)
        try:
            return source.named(task)
        except ValueError as error:
            if not os.path.isdir(os.path.expanduser(os.path.expandvars(task))):
                raise
            raise ValueError(
                f"Household: task={task!r} is read as an id, and is the name of a folder: pass the folder of one game "
                f"as pathlib.Path({task!r}) (or its {GAME}), a folder of games as data={task!r}"
            ) from error
    if isinstance(task, Mapping):
        return HouseholdTask.from_recording(task) if "init" in task else HouseholdTask.from_json(task)
    raise TypeError(
        f"Household: a task is an id, the path of a game, a HouseholdTask or its JSON object, got {type(task).__name__}"
    )


def check_task_types(task_types: str | Sequence[str] | None) -> tuple[str, ...]:
    """The task types asked for, all six for None. Raises ValueError for an unknown one, and for none at all."""
    if isinstance(task_types, str):
        task_types = (task_types,)
    if task_types is not None and not isinstance(task_types, Iterable):
        raise TypeError(f"Household: task_types must be names of task types, got {task_types!r}")
    chosen = tuple(vocabulary.TASK_TYPES if task_types is None else task_types)
    for task_type in chosen:
        splits.check_task_type(task_type)
    if not chosen:
        raise ValueError(f"Household: task_types is empty; wanted some of {', '.join(vocabulary.TASK_TYPES)}")
    return chosen
