"""The tasks that ship: small packages written for them, each with a few bugs, in files that can be read and reviewed.

A file `data/ready_<package>.json` holds one package:

    {"package": "spans", "about": ..., "files": {path: [line, ...]}, "tests": [id, ...],
     "tasks": [{"task_id": ..., "difficulty": ..., "kind": ..., "problem_statement": [line, ...],
                "edits": [{"path": ..., "old": [line, ...], "new": [line, ...]}], "fail_to_pass": [id, ...]}, ...]}

`files` is the package as it should be; the `edits` of a task plant its bug. Lists of lines are `text.split("\\n")`.
`tests` are all tests of the package, and those that a task does not name have to pass before and after. The files that
hold a task's failing tests are hidden from the agent. `ready` writes and checks these files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.task import Embedded, SWETask

DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Planted:
    """One task as its file has it. broken: path -> text of the files with the bug."""

    task: SWETask
    kind: str
    broken: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadyPackage:
    """One file: the package as it should be, ids of its tests, its tasks."""

    name: str
    about: str
    files: Mapping[str, str]
    tests: tuple[str, ...]
    planted: tuple[Planted, ...]


@cache
def ready_tasks() -> tuple[SWETask, ...]:
    """The shipped tasks, by package, in the order of their files. Raises ValueError where a file is broken."""
    return tuple(one.task for package in ready_packages() for one in package.planted)


def ready_packages(folder: Path = DATA) -> tuple[ReadyPackage, ...]:
    """The packages of all `ready_*.json` in a folder. Raises ValueError that names file and task."""
    return tuple(read_ready(path) for path in sorted(folder.glob("ready_*.json")))


def read_ready(path: Path) -> ReadyPackage:
    """One file. Raises ValueError that names file and task."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        files = {name: "\n".join(lines) for name, lines in record["files"].items()}
        tests = tuple(record["tests"])
        planted = tuple(_planted(one, record["package"], files, tests, str(path)) for one in record["tasks"])
        return ReadyPackage(record["package"], record["about"], files, tests, planted)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: this is no file of shipped tasks ({error!r})") from None


def _planted(
    record: Mapping[str, Any], package: str, files: Mapping[str, str], tests: tuple[str, ...], where: str
) -> Planted:
    at = f"{where}, task {record['task_id']!r}"
    broken = plant(files, record["edits"], at)
    fails = tuple(record["fail_to_pass"])
    unknown = sorted(set(fails) - set(tests))
    if unknown:
        raise ValueError(f"{at}: {unknown[0]!r} is no test of the package")
    task = SWETask(
        task_id=record["task_id"],
        problem_statement="\n".join(record["problem_statement"]) + "\n",
        source=Embedded(files),
        fail_to_pass=fails,
        pass_to_pass=tuple(test for test in tests if test not in set(fails)),
        bug_patch=make_patch({path: files[path] for path in broken}, broken),
        hidden_files=tuple(dict.fromkeys(test.split("::", 1)[0] for test in fails)),
        difficulty=record["difficulty"],
        repo=package,
        timeout_s=60.0,
        meta={"kind": record["kind"]},
    )
    return Planted(task, record["kind"], broken)


def plant(files: Mapping[str, str], edits: list[Mapping[str, Any]], where: str) -> dict[str, str]:
    """The files that the edits change, changed. Raises ValueError where an old text does not stand there just once."""
    broken: dict[str, str] = {}
    for number, edit in enumerate(edits, 1):
        path, old, new = edit["path"], "\n".join(edit["old"]), "\n".join(edit["new"])
        if path not in files:
            raise ValueError(f"{where}, edit {number}: there is no file {path!r}")
        text = broken.get(path, files[path])
        if not old or text.count(old) != 1:
            raise ValueError(
                f"{where}, edit {number}: its old text stands {text.count(old)} times in {path!r}, wanted 1"
            )
        broken[path] = text.replace(old, new)
    return broken
