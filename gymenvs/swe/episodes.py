"""Which tasks an environment plays: a split that ships, a file of tasks, or tasks made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from rtmc.gymenvs.swe.formats import load_embedded, load_real, read_tasks
from rtmc.gymenvs.swe.task import SWETask
from rtmc.gymenvs.textenv import TaskSource

SPLITS = {"ready": load_embedded, "real": load_real}
Source = TaskSource[SWETask]


class Listed:
    """Tasks in their order, over and over.

    Raises:
        ValueError: the split is unknown or stands beside `tasks`, two tasks share an id, or there is none.
        TypeError: `tasks` is none of these, or holds something that is no SWETask.
    """

    def __init__(self, tasks: str | os.PathLike[str] | Iterable[SWETask] | None, split: str | None) -> None:
        if tasks is not None and split is not None:
            raise ValueError(f"SWE: split={split!r} is of the shipped tasks; with tasks= leave it out")
        if tasks is None:
            name = "ready" if split is None else split
            if name not in SPLITS:
                raise ValueError(f"SWE: split={split!r} is none of {', '.join(map(repr, SPLITS))}")
            found = list(SPLITS[name]())
        elif isinstance(tasks, (str, os.PathLike)):
            found = list(read_tasks(tasks))
        else:
            if not isinstance(tasks, Iterable) or isinstance(tasks, (bytes, Mapping)):
                raise TypeError(f"SWE: `tasks` is a file, a folder or SWETask objects, got {type(tasks).__name__}")
            found = list(tasks)
            for one in found:
                if not isinstance(one, SWETask):
                    raise TypeError(f"SWE: `tasks` holds SWETask objects, got {type(one).__name__}")
        if not found:
            raise ValueError("SWE: there is no task to play")
        self.tasks, self.size = found, len(found)
        self._by_id = {one.task_id: one for one in found}
        if len(self._by_id) < self.size:
            raise ValueError("SWE: two tasks have the same id")

    def task(self, number: int) -> SWETask:
        return self.tasks[number % self.size]

    def named(self, task_id: str) -> SWETask:
        if task_id in self._by_id:
            return self._by_id[task_id]
        close = get_close_matches(task_id, self._by_id, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else f"; there are {self.size}"
        raise ValueError(f"SWE: unknown task id {task_id!r:.100}{hint}")
