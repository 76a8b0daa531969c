"""Tasks out of the engine's own material: its game files and episodes recorded from it.

The start is a list of facts of ALFWorld's PDDL domain, the goal one of six formulas. Names follow the engine: it
sorts all ids and numbers the things of a kind downwards, so that lists come in the order of the ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.household import vocabulary
from rtmc.gymenvs.household.pddl import Problem, read_problem
from rtmc.gymenvs.household.task import Goal, HouseholdTask, Item, Receptacle

_STATE_FACTS = {
    "isclean": "clean",
    "iscool": "cool",
    "ishot": "hot",
    "issliced": "sliced",
    "istoggled": "toggled",
}
_TRAIT_FACTS = frozenset(("pickupable", *vocabulary.TRAITS))
# Predicates of the domain that no action reads or changes in a way the player can notice.
_NOTES = frozenset((
    "moveable", "ison", "examined", "checked", "wasinreceptacle", "full", "isreceptacleobjectfull",
    "holdsanyreceptacleobject",
))  # fmt: skip
_PLACED = {"inreceptacle": 1, "objecttype": 1, "receptacletype": 1}
# Task type -> the atoms of its goal, by number. Whether a pair's second receptacle type is written says nothing new.
_GOAL_ATOMS = {
    "pick_and_place_simple": [_PLACED],
    "look_at_obj_in_light": [
        {"objecttype": 2, "toggleable": 1, "istoggled": 1, "receptacleatlocation": 1, "atlocation": 1,
         "inreceptacle": 1, "holds": 1}
    ],
    "pick_two_obj_and_place": [
        {"inreceptacle": 2, "objecttype": 2, "receptacletype": number, "=": 1} for number in (1, 2)
    ],
    **{name: [{**_PLACED, trait: 1, f"is{state}": 1}] for name, (state, trait, _) in vocabulary.TREATMENTS.items()},
}  # fmt: skip
_ID_CODES = {"_bar_": "|", "_minus_": "-", "_plus_": "+", "_dot_": ".", "_comma_": ","}


def names_of_ids(ids: Iterable[str]) -> dict[str, str]:
    """The engine's printed name of every id: kind and number, the first id of a kind bearing the highest."""
    ordered = sorted({one.lower() for one in ids})
    kinds = {}
    for one in ordered:
        if "_bar_" in one:
            kinds[one] = one.split("_bar_", 1)[0] + ("basin" if "basin" in one else "")
    left = Counter(kinds.values())
    names = {}
    for one in ordered:
        if one in kinds:
            names[one] = f"{kinds[one]} {left[kinds[one]]}"
            left[kinds[one]] -= 1
        else:
            names[one] = one
            for code, sign in _ID_CODES.items():
                names[one] = names[one].replace(code, sign)
    return names


def read_goal(formula: str, sentence: str) -> Goal:
    """The goal that a PDDL formula states.

    Raises:
        ValueError: the formula is none of the six task types', nor one of them on sliced things.
    """
    flat = " ".join(formula.lower().split())
    # The atoms say which goal it is, provided that they stand in nothing but `and` and `exists`.
    atoms = Counter(re.findall(r"\((\w+|=) \??\w+(?: \??\w+)*\)", flat))
    words = set(re.findall(r"\(([a-z]+)\b", flat)) - set(atoms) - {"and", "exists"}
    cuts = {atoms.pop("sliceable", 0), atoms.pop("issliced", 0)}
    objects = set(re.findall(r"\(objecttype \?\w+ (\w+)type\)", flat))
    receptacles = set(re.findall(r"\(receptacletype \?\w+ (\w+)type\)", flat))
    lamps = set(re.findall(r"\(objecttype \?ot (\w+)type\)", flat))
    task_type = next((name for name, wanted in _GOAL_ATOMS.items() if atoms in wanted), None)
    apart = task_type == "pick_two_obj_and_place" and "(not (= ?o1 ?o2))" in flat
    if cuts in ({0}, {2 if apart else 1}):
        sliced = cuts != {0}
        if task_type == "look_at_obj_in_light" and not words and len(lamps) == 1 and len(objects - lamps) == 1:
            return Goal(task_type, min(objects - lamps), sentence, lamp=min(lamps), sliced=sliced)
        if task_type and words == ({"not"} if apart else set()) and len(objects) == len(receptacles) == 1 and not lamps:
            return Goal(task_type, min(objects), sentence, min(receptacles), sliced=sliced)
    raise ValueError(f"household goal: none of {', '.join(vocabulary.TASK_TYPES)}; got {formula!r}")


def build_task(task_id: str, init: Iterable[Sequence[str]], names: Mapping[str, str], goal: Goal) -> HouseholdTask:
    """The task whose start is the facts `init` (predicate first, then ids), printed with `names`.

    Raises:
        ValueError: a fact is not of the domain or names an id without a name; a receptacle has no kind or
            more than one location; the agent is nowhere.
    """
    where = f"household task {task_id!r}"
    # Predicate -> the arguments of its facts, in the order in which they came.
    table: dict[str, list[tuple[str, ...]]] = {}
    for row in init:
        predicate, arguments = row[0].lower(), tuple(one.lower() for one in row[1:])
        if predicate in ("=", "total-cost", "distance"):
            continue
        table.setdefault(predicate, []).append(arguments)
    known = {
        "receptacletype", "receptacleatlocation", "openable", "opened", "objecttype", "inreceptacle",
        "objectatlocation", "inreceptacleobject", "cancontain", "atlocation", "holds", "holdsany",
    }  # fmt: skip
    unknown = sorted(set(table) - known - _TRAIT_FACTS - set(_STATE_FACTS) - _NOTES)
    if unknown:
        raise ValueError(f"{where}: predicates {unknown} are not of the household domain")

    def name(one: str) -> str:
        try:
            return names[one].strip()
        except KeyError:
            raise ValueError(f"{where}: no name is given for {one!r}") from None

    def pairs(predicate: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for first, second in table.get(predicate, ()):
            found.setdefault(first, []).append(second)
        return found

    def ones(predicate: str) -> set[str]:
        return {arguments[0] for arguments in table.get(predicate, ())}

    kinds, places, opened = pairs("receptacletype"), pairs("receptacleatlocation"), ones("opened")
    receptacles = []
    for one in sorted(set(kinds) | set(places)):
        stands = places.get(one, [])
        if len(kinds.get(one, ())) != 1 or len(stands) > 1:
            raise ValueError(
                f"{where}: receptacle {one!r} needs one receptacleType and at most one receptacleAtLocation, "
                f"got {kinds.get(one, [])} and {stands}"
            )
        kind = kinds[one][0].removesuffix("type")
        receptacles.append(
            Receptacle(name(one), kind, name(stands[0]) if stands else None, one in ones("openable"), one in opened)
        )
    traits = {trait: ones(trait) for trait in sorted(_TRAIT_FACTS)}
    states = {label: ones(predicate) for predicate, label in _STATE_FACTS.items()}
    inside, at, within = pairs("inreceptacle"), pairs("objectatlocation"), pairs("inreceptacleobject")
    items = []
    for one, types in sorted(pairs("objecttype").items()):
        if len(types) != 1:
            raise ValueError(f"{where}: object {one!r} needs one objectType, got {types}")
        items.append(
            Item(
                name=name(one),
                kind=types[0].removesuffix("type"),
                traits=tuple(trait for trait, holders in traits.items() if one in holders),
                inside=tuple(name(r) for r in sorted(inside.get(one, ()))),
                at=tuple(name(place) for place in sorted(at.get(one, ()))),
                states=tuple(label for label, holders in states.items() if one in holders),
                contents=tuple(name(inner) for inner, outer in sorted(within.items()) if one in outer),
            )
        )
    starts = table.get("atlocation", [])
    if len(starts) != 1:
        raise ValueError(f"{where}: wanted one atLocation fact for the agent, got {starts}")
    hands = table.get("holds", [])
    if len(hands) > 1:
        raise ValueError(f"{where}: the agent holds one thing at most, got {hands}")
    accepts: dict[str, list[str]] = {}
    for kind, held in table.get("cancontain", ()):
        accepts.setdefault(kind.removesuffix("type"), []).append(held.removesuffix("type"))
    return HouseholdTask(
        task_id=task_id,
        goal=goal,
        receptacles=tuple(receptacles),
        items=tuple(items),
        start=name(starts[0][1]),
        held=name(hands[0][1]) if hands else None,
        accepts=tuple((kind, tuple(sorted(kinds_held))) for kind, kinds_held in sorted(accepts.items())),
        notes=tuple(sorted(f"{note}({', '.join(map(name, row))})" for note in _NOTES for row in table.get(note, ()))),
    )


def _sentence(text: str, where: str) -> str:
    found = re.search(r"Your task is to: (.*?)\.\s*$", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{where}: no line 'Your task is to: ... .' in {text[-200:]!r}")
    return found[1]


def task_from_recording(recording: Mapping[str, Any]) -> HouseholdTask:
    """See `HouseholdTask.from_recording`."""
    missing = [key for key in ("init", "goal", "entity_names", "observation") if key not in recording]
    if missing:
        raise ValueError(f"household recording: the keys {missing} are missing; it has {sorted(recording)}")
    goal = read_goal(recording["goal"], _sentence(recording["observation"], "household recording"))
    task_id = f"recording/{recording.get('name', goal.task_type)}"
    names = {one.lower(): text for one, text in recording["entity_names"].items()}
    return build_task(task_id, recording["init"], names, goal)


def task_from_game(game: Mapping[str, Any], task_id: str, where: str = "") -> HouseholdTask:
    """See `HouseholdTask.from_game`. `where` names the file, for messages."""
    missing = [key for key in ("pddl_problem", "grammar") if key not in game]
    if missing:
        raise ValueError(f"household game {task_id!r}: the keys {missing} are missing; it has {sorted(game)}")
    for key in ("pddl_problem", "grammar"):
        if not isinstance(game[key], str):
            raise ValueError(f"household game {task_id!r}: {key} must be text, got {type(game[key]).__name__}")
    problem = read_problem(game["pddl_problem"], f"{where or f'household game {task_id!r}'}, pddl_problem")
    sentence = re.search(r"Your task is to: ([^\"\n]*?)\.?\"", game["grammar"])
    if sentence is None:
        raise ValueError(f"household game {task_id!r}: the grammar has no 'Your task is to: ...'")
    return task_from_problem(problem, task_id, sentence[1])


def task_from_problem(problem: Problem, task_id: str, sentence: str) -> HouseholdTask:
    """The task of a PDDL problem; `sentence` tells its goal, without "Your task is to: " and the full stop.

    Raises:
        ValueError: as `build_task` and `read_goal`.
    """
    try:
        goal = read_goal(problem.goal, sentence)
    except ValueError as error:
        raise ValueError(f"{problem.where}:{problem.goal_line}: {error}") from None
    names = names_of_ids(one for row in problem.facts for one in row[1:])
    return build_task(task_id, problem.facts, names, goal)


def load_game(path: str | Path) -> HouseholdTask:
    """The task of an ALFWorld `game.tw-pddl` file. Its id is the names of the two folders it lies in.

    Raises:
        ValueError: the file is no JSON object; its problem is malformed (the line within `pddl_problem` is told); or
            see `HouseholdTask.from_recording`.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        game = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"household game {path}: no JSON: {error}") from error
    if not isinstance(game, Mapping):
        raise ValueError(f"household game {path}: wanted a JSON object, got {type(game).__name__}")
    return task_from_game(game, "/".join(path.resolve().parts[-3:-1]), f"household game {path}")
