"""Tasks out of the engine's own material: its game files and episodes recorded from it.

The start is a list of facts of ALFWorld's PDDL domain, the goal one of six formulas. Names follow the engine: it
sorts all ids and numbers the things of a kind downwards, so that lists come in the order of the ids.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.household import fields, vocabulary
from rtmc.gymenvs.household.goals import read_goal
from rtmc.gymenvs.household.pddl import ARITY, Problem, read_problem
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


def build_task(
    task_id: str,
    init: Iterable[Sequence[str]],
    names: Mapping[str, str],
    goal: Goal,
    where: str | None = None,
    places: Sequence[str] = (),
) -> HouseholdTask:
    """The task whose start is the facts `init` (predicate first, then ids), printed with `names`.

    For messages: `where` says where the facts stand, `places` where each does, by number.

    Raises:
        ValueError: a fact is not of the domain or names an id without a name; a receptacle has no kind or
            more than one location; the agent is nowhere, or holds a thing and yet nothing; or see `HouseholdTask`.
    """
    table = _Facts(init, names, where or f"household task {task_id!r}", places)
    kinds, stands = table.pairs("receptacletype"), table.pairs("receptacleatlocation")
    openable, opened = table.ones("openable"), table.ones("opened")
    receptacles = []
    for one in sorted(set(kinds) | set(stands)):
        kind = table.only("receptacletype", one, f"one receptacleType of {one!r}", ("receptacleatlocation", one))
        place = table.only("receptacleatlocation", one, f"one receptacleAtLocation of {one!r}") if one in stands else ""
        receptacles.append(
            Receptacle(
                table.name(one),
                kind[2].removesuffix("type"),
                table.name(place[2]) if place else None,
                one in openable,
                one in opened,
            )
        )
    traits = {trait: table.ones(trait) for trait in sorted(_TRAIT_FACTS)}
    states = {label: table.ones(predicate) for predicate, label in _STATE_FACTS.items()}
    inside, at, within = (table.pairs(name) for name in ("inreceptacle", "objectatlocation", "inreceptacleobject"))
    items = []
    for one in sorted(table.pairs("objecttype")):
        items.append(
            Item(
                name=table.name(one),
                kind=table.only("objecttype", one, f"one objectType of {one!r}")[2].removesuffix("type"),
                traits=tuple(trait for trait, holders in traits.items() if one in holders),
                inside=tuple(table.name(r) for r in sorted(inside.get(one, ()))),
                at=tuple(table.name(place) for place in sorted(at.get(one, ()))),
                states=tuple(label for label, holders in states.items() if one in holders),
                contents=tuple(table.name(inner) for inner, outer in sorted(within.items()) if one in outer),
            )
        )
    start = table.only("atlocation", None, "one atLocation of the agent")
    held = table.only("holds", None, "at most one holds, as the hand holds one thing") if "holds" in table else None
    for one, other in (("holds", "holdsany"), ("holdsany", "holds")):
        if one in table and other not in table:
            raise table.fault(f"{other!r} as well", one)
    accepts: dict[str, list[str]] = {}
    for holder, taken in table.pairs("cancontain").items():
        accepts.setdefault(holder.removesuffix("type"), []).extend(one.removesuffix("type") for one in taken)
    return HouseholdTask(
        task_id=task_id,
        goal=goal,
        receptacles=tuple(receptacles),
        items=tuple(items),
        start=table.name(start[2]),
        held=None if held is None else table.name(held[2]),
        accepts=tuple((holder, tuple(sorted(taken))) for holder, taken in sorted(accepts.items())),
        notes=tuple(sorted(f"{row[0]}({', '.join(map(table.name, row[1:]))})" for row in table.rows_of(_NOTES))),
    )


class _Facts:
    """The facts of a start by predicate, each once, with the place of each for messages."""

    def __init__(
        self, init: Iterable[Sequence[str]], names: Mapping[str, str], where: str, places: Sequence[str]
    ) -> None:
        self.where, self.names = where, names
        self._table: dict[str, dict[tuple[str, ...], str]] = {}
        for number, row in enumerate(init):
            lowered = tuple(one.lower() for one in row)
            if lowered[0] not in ("=", "total-cost", "distance"):
                place = places[number] if places else where
                self._table.setdefault(lowered[0], {}).setdefault(lowered, place)
        unknown = sorted(set(self._table) - set(ARITY))
        if unknown:
            raise ValueError(f"{where}: predicates {unknown} are not of the household domain")
        for predicate, found in self._table.items():
            for fact, place in found.items():
                if len(fact) - 1 != ARITY[predicate]:
                    raise ValueError(f"{place}: expected {ARITY[predicate]} names after {predicate!r}, got {fact}")

    def __contains__(self, predicate: str) -> bool:
        return predicate in self._table

    def rows_of(self, predicates: Iterable[str]) -> list[tuple[str, ...]]:
        return [row for predicate in predicates for row in self._table.get(predicate, ())]

    def pairs(self, predicate: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for _, first, second in self._table.get(predicate, ()):
            found.setdefault(first, []).append(second)
        return found

    def ones(self, predicate: str) -> set[str]:
        return {row[1] for row in self._table.get(predicate, ())}

    def only(
        self, predicate: str, one: str | None, wanted: str, because: tuple[str, str] | None = None
    ) -> tuple[str, ...]:
        """The one fact of the predicate (on `one`); `because` is a fact that asks for it."""
        found = [row for row in self._table.get(predicate, ()) if one is None or row[1] == one]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{self._table[predicate][found[1]]}: expected {wanted}, got {found[0]} and {found[1]}")
        raise self.fault(wanted, *(because or ()))

    def fault(self, wanted: str, predicate: str = "", one: str | None = None) -> ValueError:
        """That something is missing, which a fact of the predicate (on `one`) asks for."""
        for row, place in self._table.get(predicate, {}).items():
            if one is None or row[1] == one:
                return ValueError(f"{place}: expected {wanted}, got {row} alone")
        return ValueError(f"{self.where}: expected {wanted}, got none")

    def name(self, one: str) -> str:
        try:
            return self.names[one].strip()
        except KeyError:
            raise ValueError(f"{self.where}: no name is given for {one!r}") from None


def _sentence(text: str, where: str) -> str:
    found = re.search(r"Your task is to: (.*?)\.\s*$", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{where}: no line 'Your task is to: ... .' in {text[-200:]!r}")
    return found[1]


def task_from_recording(recording: Mapping[str, Any]) -> HouseholdTask:
    """See `HouseholdTask.from_recording`."""
    where = "household recording"
    fields.record(recording, where)
    missing = [key for key in ("init", "goal", "entity_names", "observation") if key not in recording]
    if missing:
        raise ValueError(f"{where}: the keys {missing} are missing; it has {sorted(map(str, recording))}")
    observation = fields.text(recording["observation"], f"{where}: observation")
    goal = read_goal(fields.text(recording["goal"], f"{where}: goal"), _sentence(observation, where))
    names = {
        fields.text(one, f"{where}: a key of entity_names").lower(): fields.text(
            name, f"{where}: entity_names[{one!r}]"
        )
        for one, name in fields.record(recording["entity_names"], f"{where}: entity_names").items()
    }
    init = fields.rows(recording["init"], f"{where}: init")
    places = [f"{where}: init[{number}]" for number in range(len(init))]
    for row, place in zip(init, places, strict=True):
        if not fields.texts(row, place):
            raise fields.fault(place, "a fact [predicate, id, ...]", row)
    title = fields.text(recording.get("name", goal.task_type), f"{where}: name")
    return build_task(f"recording/{title}", init, names, goal, where, places)


def task_from_game(game: Mapping[str, Any], task_id: str, where: str = "") -> HouseholdTask:
    """See `HouseholdTask.from_game`. `where` names the file, for messages."""
    where = where or f"household game {task_id!r}"
    fields.record(game, where)
    missing = [key for key in ("pddl_problem", "grammar") if key not in game]
    if missing:
        raise ValueError(f"{where}: the keys {missing} are missing; it has {sorted(map(str, game))}")
    texts = {key: fields.text(game[key], f"{where}: {key}") for key in ("pddl_problem", "grammar")}
    problem = read_problem(texts["pddl_problem"], f"{where}, pddl_problem")
    sentence = re.search(r"Your task is to: ([^\"\n]*?)\.?\"", texts["grammar"])
    if sentence is None:
        raise ValueError(f"{where}: the grammar has no 'Your task is to: ...'")
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
    places = [f"{problem.where}:{line}" for line in problem.fact_lines]
    return build_task(task_id, problem.facts, names, goal, f"{problem.where}:{problem.init_line}", places)


def load_game(path: str | os.PathLike[str]) -> HouseholdTask:
    """The task of an ALFWorld `game.tw-pddl` file. Its id is the names of the two folders it lies in.

    Raises:
        ValueError: the file is no JSON object; its problem is malformed (the line within `pddl_problem` is told); or
            see `HouseholdTask.from_recording`.
        OSError: the file cannot be read.
    """
    path = Path(path)
    where = f"household game {path}"
    game = fields.read_json(path.read_bytes(), where)
    if not isinstance(game, Mapping):
        raise ValueError(f"{where}: wanted a JSON object, got {type(game).__name__}")
    return task_from_game(game, "/".join(path.resolve().parts[-3:-1]), where)
