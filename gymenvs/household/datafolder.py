"""ALFWorld's own data folder (`$ALFWORLD_DATA`): which games it holds, and the task of each.

A trial is a folder with `traj_data.json`, `initial_state.pddl` and, once ALFWorld has made it, `game.tw-pddl`. Trials
lie below `json_2.1.1/train`, `.../valid_seen` and `.../valid_unseen`. Files are read here, nothing is downloaded and
the engine is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.household import fields, vocabulary
from rtmc.gymenvs.household.pddl import read_problem
from rtmc.gymenvs.household.records import load_game, task_from_problem
from rtmc.gymenvs.household.task import HouseholdTask

SPLITS = ("train", "valid_seen", "valid_unseen")
GAME, START, TRAJECTORY = "game.tw-pddl", "initial_state.pddl", "traj_data.json"
_TYPE = re.compile(r'"task_type"\s*:\s*"([^"]*)"')
_SOLVABLE = re.compile(r'"solvable"\s*:\s*(true|false|null)')


def find_games(
    folder: str | os.PathLike[str], split: str | None = None, task_types: Sequence[str] | None = None
) -> list[Path]:
    """The trials of a data folder that can be played, sorted by path.

    As in the engine, left out are trials with movable receptacles or sliced things, those without `traj_data.json`,
    and games that are not marked as solvable. Unlike the engine, which plays nothing else than `game.tw-pddl`, a trial
    that has none yet is taken from `initial_state.pddl`.

    Args:
        folder: the data folder, a folder in it, or text with a variable, e.g. `$ALFWORLD_DATA`.
        split: `train`, `valid_seen` or `valid_unseen`; None = every trial below the folder.
        task_types: which types; None = all six.

    Raises:
        ValueError: the variable is not set, there is no such folder, there are no such games in it, or a file in it
            that tells which there are is malformed.
        TypeError: the folder is no path.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"household data must be the path of a folder, got {type(folder).__name__}: {folder!r}")
    text = os.path.expandvars(os.path.expanduser(os.fspath(folder)))
    if "$" in text:
        raise ValueError(f"household data folder {os.fspath(folder)!r}: the variable in it is not set")
    root = Path(text)
    if not root.is_dir():
        raise ValueError(f"household data folder {root}: is no folder")
    below = root if split is None else _split_folder(root, split)
    wanted = vocabulary.TASK_TYPES if task_types is None else task_types
    games = []
    for start, folders, files in os.walk(below):
        folders.sort()
        if "movable" in start or "Sliced" in start or TRAJECTORY not in files or not {GAME, START} & set(files):
            continue
        here = Path(start)
        if _task_type(here / TRAJECTORY) not in wanted or (GAME in files and not _is_solvable(here / GAME)):
            continue
        games.append(here)
    if not games:
        raise ValueError(
            f"household data folder {below}: holds no game of the types {', '.join(wanted)}; wanted folders with "
            f"{TRAJECTORY} and {GAME} (marked as solvable) or {START}, as ALFWorld's download and `alfworld-generate` "
            "make them"
        )
    return sorted(games)


def _task_type(path: Path) -> str:
    data = path.read_bytes()
    # A search, since the files are large, many, and parsed seldom; what it does not find is looked for properly.
    found = _TYPE.search(data.decode("utf-8", errors="replace"))
    return found[1] if found is not None else _parameters(path, data)[0]


def _is_solvable(path: Path) -> bool:
    data = path.read_bytes()
    found = _SOLVABLE.search(data.decode("utf-8", errors="replace"))
    if found is not None:
        return found[1] == "true"
    where = f"household game {path}"
    return bool(fields.record(fields.read_json(data, where), where).get("solvable"))


def _split_folder(root: Path, split: str) -> Path:
    if not isinstance(split, str) or split not in SPLITS:
        raise ValueError(f"household data folder {root}: split {split!r} is none of {', '.join(SPLITS)}")
    places = [root / split, *(child / split for child in sorted(root.glob("json_*")))]
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(f"household data folder {root}: has no folder {split}, nor json_*/{split}")


def load_trial(folder: str | os.PathLike[str]) -> HouseholdTask:
    """The task of one trial. Its id is the names of the two folders it lies in.

    `game.tw-pddl` says all. Without it the problem is read from `initial_state.pddl` and the goal's sentence made from
    `traj_data.json`, in the first of the two wordings (the engine draws one when it makes the game); the two files have
    to tell the same goal.

    Raises:
        ValueError: a file is missing or malformed, the goal is none of the six types', or the files differ in it.
        OSError: a file cannot be read.
    """
    here = Path(folder)
    if (here / GAME).is_file():
        return load_game(here / GAME)
    missing = [name for name in (START, TRAJECTORY) if not (here / name).is_file()]
    if missing:
        raise ValueError(f"household trial {here}: has no {GAME}, and for want of it no {' nor '.join(missing)} either")
    start, trajectory = here / START, here / TRAJECTORY
    task_type, words, sentence = _told_goal(trajectory)
    problem = read_problem(fields.decoded(start.read_bytes(), str(start)), str(start))
    task = task_from_problem(problem, "/".join(here.resolve().parts[-2:]), sentence)
    goal = task.goal
    stated = {"task_type": goal.task_type, "object_target": goal.object}
    stated |= {"toggle_target": goal.lamp} if goal.lamp is not None else {"parent_target": str(goal.receptacle)}
    stated |= {"object_sliced": "sliced"} if goal.sliced else {}
    told = {"task_type": task_type, **words}
    if stated != told:
        raise ValueError(f"household trial {here}: {START}:{problem.goal_line} states {stated}, {TRAJECTORY} {told}")
    return task


_PARAMETERS = {"object": "object_target", "receptacle": "parent_target", "lamp": "toggle_target"}


def _parameters(path: Path, data: bytes) -> tuple[str, Mapping[str, Any]]:
    """`task_type` and `pddl_params` (empty where there are none) of a `traj_data.json`."""
    where = f"household trial {path}"
    content = fields.record(fields.read_json(data, where), where)
    if not isinstance(content.get("task_type"), str):
        raise ValueError(f"{where}: wanted an object with the text `task_type`, got {content.get('task_type')!r}")
    return content["task_type"], fields.record(content.get("pddl_params", {}), f"{where}: pddl_params")


def _told_goal(path: Path) -> tuple[str, dict[str, str], str]:
    """Task type, what the goal names by ALFRED's words for it, and the sentence, of a `traj_data.json`."""
    task_type, parameters = _parameters(path, path.read_bytes())
    if task_type not in vocabulary.TASK_TYPES or parameters.get("object_sliced"):
        sliced = " with a sliced object" if parameters.get("object_sliced") else ""
        raise ValueError(
            f"household trial {path}: task_type is {task_type!r}{sliced}; wanted one of "
            f"{', '.join(vocabulary.TASK_TYPES)}, and nothing sliced"
        )
    needed = ("object", "lamp" if task_type == "look_at_obj_in_light" else "receptacle")
    words = {ours: parameters.get(_PARAMETERS[ours]) for ours in needed}
    lacking = [_PARAMETERS[ours] for ours, word in words.items() if not isinstance(word, str) or not word.strip()]
    if lacking:
        raise ValueError(f"household trial {path}: pddl_params has no text for {lacking}")
    texts = {ours: str(word).strip().lower() for ours, word in words.items()}
    sentence = vocabulary.SENTENCES[task_type][0].format(**texts)
    return task_type, {_PARAMETERS[ours]: word for ours, word in texts.items()}, sentence
