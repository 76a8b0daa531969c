"""ALFWorld's own data folder (`$ALFWORLD_DATA`): which games it holds, and the task of each.

A trial is a folder with `traj_data.json`, `initial_state.pddl` and, once ALFWorld has made it, `game.tw-pddl`. Trials
lie below `json_2.1.1/train`, `.../valid_seen` and `.../valid_unseen`. Files are read here, nothing is downloaded and
the engine is not needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.household import vocabulary
from rtmc.gymenvs.household.pddl import read_problem
from rtmc.gymenvs.household.records import load_game, task_from_problem
from rtmc.gymenvs.household.task import HouseholdTask

SPLITS = ("train", "valid_seen", "valid_unseen")
GAME, START, TRAJECTORY = "game.tw-pddl", "initial_state.pddl", "traj_data.json"
_TYPE = re.compile(r'"task_type"\s*:\s*"([^"]*)"')
_UNSOLVABLE = re.compile(r'"solvable"\s*:\s*(?:false|null)')


def find_games(
    folder: str | os.PathLike[str], split: str | None = None, task_types: Sequence[str] | None = None
) -> list[Path]:
    """The trials of a data folder that can be played, sorted by path.

    As in the engine, trials with movable receptacles or sliced things and games marked unsolvable are left out.

    Args:
        folder: the data folder, a folder in it, or text with a variable, e.g. `$ALFWORLD_DATA`.
        split: `train`, `valid_seen` or `valid_unseen`; None = every trial below the folder.
        task_types: which types; None = all six.

    Raises:
        ValueError: the variable is not set, there is no such folder, or there are no such games in it.
    """
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
        if "movable" in start or "Sliced" in start or not {GAME, START} & set(files):
            continue
        here = Path(start)
        if TRAJECTORY in files:
            found = _TYPE.search((here / TRAJECTORY).read_text(encoding="utf-8", errors="replace"))
            if found is None or found[1] not in wanted:
                continue
        elif GAME not in files or load_game(here / GAME).goal.task_type not in wanted:
            continue
        if GAME in files and _UNSOLVABLE.search((here / GAME).read_text(encoding="utf-8", errors="replace")):
            continue
        games.append(here)
    if not games:
        raise ValueError(
            f"household data folder {below}: holds no game of the types {', '.join(wanted)}; wanted folders with "
            f"{GAME}, or with {START} and {TRAJECTORY}, as ALFWorld's download and `alfworld-generate` make them"
        )
    return sorted(games)


def _split_folder(root: Path, split: str) -> Path:
    if split not in SPLITS:
        raise ValueError(f"household data folder {root}: split {split!r} is none of {', '.join(SPLITS)}")
    places = [root / split, *(child / split for child in sorted(root.glob("json_*")))]
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(f"household data folder {root}: has no folder {split}, nor json_*/{split}")


def load_trial(folder: str | os.PathLike[str]) -> HouseholdTask:
    """The task of one trial. Its id is the names of the two folders it lies in.

    `game.tw-pddl` says all. Without it the problem is read from `initial_state.pddl` and the goal's sentence made from
    `traj_data.json`, in the first of the two wordings (the engine draws one when it makes the game).

    Raises:
        ValueError: a file is missing or malformed, or the goal is none of the six types'.
        OSError: a file cannot be read.
    """
    here = Path(folder)
    if (here / GAME).is_file():
        return load_game(here / GAME)
    missing = [name for name in (START, TRAJECTORY) if not (here / name).is_file()]
    if missing:
        raise ValueError(f"household trial {here}: has no {GAME}, and for want of it no {' nor '.join(missing)} either")
    sentence = _sentence(here / TRAJECTORY)
    problem = read_problem((here / START).read_text(encoding="utf-8"), str(here / START))
    return task_from_problem(problem, "/".join(here.resolve().parts[-2:]), sentence)


def _sentence(path: Path) -> str:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"household trial {path}: no JSON: {error}") from error
    parameters = data.get("pddl_params") if isinstance(data, dict) else None
    if not isinstance(parameters, dict):
        raise ValueError(f"household trial {path}: wanted an object with `task_type` and `pddl_params`")
    task_type = data.get("task_type")
    if task_type not in vocabulary.TASK_TYPES or parameters.get("object_sliced"):
        sliced = " with a sliced object" if parameters.get("object_sliced") else ""
        raise ValueError(
            f"household trial {path}: task_type is {task_type!r}{sliced}; wanted one of "
            f"{', '.join(vocabulary.TASK_TYPES)}, and nothing sliced"
        )
    words = {ours: parameters.get(theirs) for ours, theirs in _PARAMETERS.items()}
    needed = ("object", "lamp" if task_type == "look_at_obj_in_light" else "receptacle")
    lacking = [_PARAMETERS[name] for name in needed if not isinstance(words[name], str)]
    if lacking:
        raise ValueError(f"household trial {path}: pddl_params has no text for {lacking}")
    texts = {name: str(value).lower() for name, value in words.items()}
    return vocabulary.SENTENCES[task_type][0].format(**texts)


_PARAMETERS = {"object": "object_target", "receptacle": "parent_target", "lamp": "toggle_target"}
