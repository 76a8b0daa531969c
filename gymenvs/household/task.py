"""A household task: the room as it is at the start, and the goal. Plain data with a JSON form.

How tasks are drawn stands in `generate`, how they are read from the engine's files in `records`, how the room
changes in `world`.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from rtmc.gymenvs.household import fields, vocabulary

T = TypeVar("T")

STATES = ("clean", "cool", "hot", "sliced", "toggled")
ALL_TRAITS = ("pickupable", *vocabulary.TRAITS)
_TRAIT_SET, _STATE_SET = frozenset(ALL_TRAITS), frozenset(STATES)


@dataclass(frozen=True)
class Receptacle:
    """Something that stands at `location` and may hold things, e.g. `fridge 1`; None = nowhere one can go."""

    name: str
    kind: str
    location: str | None
    openable: bool = False
    opened: bool = False


@dataclass(frozen=True)
class Item:
    """A thing, e.g. `mug 1`: `inside` names the receptacles that hold it, `at` the locations it is at.

    `contents` names things inside a bowl, cup or the like; only `examine` tells of them, nothing moves them.
    """

    name: str
    kind: str
    traits: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """What is to be reached: kinds of object and of receptacle (or lamp), and the sentence that says so.

    `sliced`: whether the object must be sliced too. ALFWorld leaves such tasks out; its rules and its engine know them.
    """

    task_type: str
    object: str
    sentence: str
    receptacle: str | None = None
    lamp: str | None = None
    sliced: bool = False


@dataclass(frozen=True)
class HouseholdTask:
    """One task. Receptacles and items stand in the order in which the engine lists them.

    Attributes:
        task_id: name of the task; `split/task_type/seed` for a generated one, which that text regenerates.
        goal: what is to be reached.
        receptacles: the room's receptacles.
        items: the room's things.
        start: location of the agent, e.g. `loc 3`; "in the middle" if no receptacle stands there.
        held: name of the item in the agent's hand, or None.
        accepts: pairs (kind of receptacle, kinds of item it takes).
        notes: further facts of the engine that never change, kept for `info["facts"]`.

    Raises:
        ValueError: names occur twice, something refers to a thing that is not there, or the thing in hand lies
            somewhere too.
    """

    task_id: str
    goal: Goal
    receptacles: tuple[Receptacle, ...]
    items: tuple[Item, ...]
    start: str
    held: str | None = None
    accepts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"household task {self.task_id!r}"
        goal = self.goal
        if goal.task_type not in vocabulary.TASK_TYPES:
            raise ValueError(f"{where}: goal.task_type is {goal.task_type!r}; wanted one of {vocabulary.TASK_TYPES}")
        wanted = "lamp" if goal.task_type == "look_at_obj_in_light" else "receptacle"
        if getattr(goal, wanted) is None:
            raise ValueError(f"{where}: a {goal.task_type} goal needs goal.{wanted}, got None")
        names = [one.name for one in self.receptacles] + [one.name for one in self.items]
        if len(set(names)) < len(names):
            twice = sorted(name for name, times in Counter(names).items() if times > 1)
            raise ValueError(f"{where}: names must be unique, but these occur more than once: {twice}")
        places = {receptacle.name for receptacle in self.receptacles}
        for item in self.items:
            if not places.issuperset(item.inside):
                missing = sorted(set(item.inside) - places)
                raise ValueError(f"{where}: {item.name} is inside {missing}, which the room does not have")
            if not (_TRAIT_SET.issuperset(item.traits) and _STATE_SET.issuperset(item.states)):
                unknown = sorted((set(item.traits) - _TRAIT_SET) | (set(item.states) - _STATE_SET))
                raise ValueError(f"{where}: {item.name} has {unknown}; traits are {ALL_TRAITS}, states {STATES}")
        if self.held is not None:
            held = next((item for item in self.items if item.name == self.held), None)
            if held is None:
                raise ValueError(f"{where}: held is {self.held!r}, which is no item of the room")
            if held.inside or held.at:
                raise ValueError(
                    f"{where}: held is {self.held!r}, which cannot be inside {list(held.inside)} and at "
                    f"{list(held.at)} as well"
                )

    def to_json(self) -> str:
        """The task as one JSON document; `from_json` gives an equal task back."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, document: str | Mapping[str, Any]) -> HouseholdTask:
        """The task of a JSON document (text, or the object already parsed).

        Raises:
            ValueError: the document is no JSON object, lacks a field, has one that no task has, or a field holds
                what it cannot; the message names the field.
        """
        form = "household task: not the JSON form that HouseholdTask.to_json writes"
        data = fields.read_json(document, form) if isinstance(document, str) else document
        try:
            arguments = _read(cls, data, "")
        except ValueError as error:
            raise ValueError(f"{form}: {error}") from None
        return cls(**arguments)

    @classmethod
    def from_recording(cls, recording: Mapping[str, Any]) -> HouseholdTask:
        """The task of an episode recorded from the engine.

        Args:
            recording: has `init` (facts as lists, predicate first), `goal` (the problem's goal text),
                `entity_names` (id -> name as printed) and `observation` (the first text; the goal's sentence is
                its last line). `name` gives the task id.

        Raises:
            ValueError: a key is missing, a fact is not one of the domain's, or the goal is none of the six.
        """
        from rtmc.gymenvs.household import records

        return records.task_from_recording(recording)

    @classmethod
    def from_game(cls, game: Mapping[str, Any], task_id: str) -> HouseholdTask:
        """The task of an ALFWorld `game.tw-pddl` file's JSON object (`pddl_problem` and `grammar` are read).

        Raises:
            ValueError: as `from_recording`.
        """
        from rtmc.gymenvs.household import records

        return records.task_from_game(game, task_id)


def _read(kind: type, got: object, where: str) -> dict[str, Any]:
    """The checked keyword arguments of one of the classes above."""
    readers = _READERS[kind]
    every = dataclasses.fields(kind)
    required = [field.name for field in every if field.default is MISSING]
    data = fields.record(got, where or "the document")
    fields.known_keys(data, where or "the document", required, [field.name for field in every])
    prefix = f"{where}." if where else ""
    return {key: read(data[key], prefix + key) for key, read in readers.items() if key in data}


def _each(kind: Callable[..., T]) -> Callable[[object, str], tuple[T, ...]]:
    def read(got: object, where: str) -> tuple[T, ...]:
        return tuple(kind(**_read(kind, one, f"{where}[{k}]")) for k, one in enumerate(fields.rows(got, where)))  # type: ignore[arg-type]  # kind is one of the classes

    return read


def _accepts(got: object, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    pairs = []
    for k, pair in enumerate(fields.rows(got, where)):
        if len(fields.rows(pair, f"{where}[{k}]")) != 2:
            raise fields.fault(f"{where}[{k}]", "a pair [kind of receptacle, [kinds of item]]", pair)
        pairs.append((fields.text(pair[0], f"{where}[{k}][0]"), fields.texts(pair[1], f"{where}[{k}][1]")))
    return tuple(pairs)


_READERS: dict[type, dict[str, Callable[[object, str], Any]]] = {
    Receptacle: {
        "name": fields.text,
        "kind": fields.text,
        "location": fields.optional_text,
        "openable": fields.flag,
        "opened": fields.flag,
    },
    Item: {
        "name": fields.text,
        "kind": fields.text,
        **dict.fromkeys(("traits", "inside", "at", "states", "contents"), fields.texts),
    },
    Goal: {
        "task_type": fields.text,
        "object": fields.text,
        "sentence": fields.text,
        "receptacle": fields.optional_text,
        "lamp": fields.optional_text,
        "sliced": fields.flag,
    },
    HouseholdTask: {
        "task_id": fields.text,
        "goal": lambda got, where: Goal(**_read(Goal, got, where)),
        "receptacles": _each(Receptacle),
        "items": _each(Item),
        "start": fields.text,
        "held": fields.optional_text,
        "accepts": _accepts,
        "notes": fields.texts,
    },
}
