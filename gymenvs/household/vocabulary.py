"""What there is in the household world: kinds of things, what fits where, and the four kinds of room.

The data stand in `vocabulary.json`, with their source; this module gives them names. Kinds are lower case, as the
engine prints them. No rule of the game stands here.

- `TASK_TYPES`: the six task types; `SENTENCES`: two wordings of each, of which a generated task draws one;
- `TREATMENTS`: task type -> (state the object must be in, trait it needs for that, appliance that brings it about);
- `TRAITS`: trait -> kinds of object that have it; `LAMPS`, `KNIVES`; `LAMP_HOLDERS`: where lamps stand;
- `OPENABLE`: kinds of receptacle with a door; `ACCEPTS`: kind of receptacle -> kinds of object that may go there;
- `ROOM_RECEPTACLES`: room -> kind of receptacle -> (fewest, most) of it; `ROOM_OBJECTS`: room -> kinds of object;
- `TASK_ROOMS`: task type -> rooms it is set in.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

_DATA: dict[str, Any] = json.loads(files(__package__).joinpath("vocabulary.json").read_text(encoding="utf-8"))
_TYPES: dict[str, dict[str, Any]] = _DATA["task_types"]
_ROOMS: dict[str, dict[str, Any]] = _DATA["rooms"]

SOURCE: str = _DATA["source"]
TASK_TYPES: tuple[str, ...] = tuple(_TYPES)
SENTENCES: dict[str, tuple[str, ...]] = {name: tuple(row["sentences"]) for name, row in _TYPES.items()}
TREATMENTS: dict[str, tuple[str, str, str]] = {
    name: (row["state"], row["trait"], row["appliance"]) for name, row in _TYPES.items() if "state" in row
}
TASK_ROOMS: dict[str, tuple[str, ...]] = {name: tuple(row["rooms"]) for name, row in _TYPES.items()}
TRAITS: dict[str, frozenset[str]] = {trait: frozenset(kinds) for trait, kinds in _DATA["traits"].items()}
LAMPS: tuple[str, ...] = tuple(_DATA["lamps"])
LAMP_HOLDERS: tuple[str, ...] = tuple(_DATA["lamp_holders"])
KNIVES: tuple[str, ...] = tuple(_DATA["knives"])
OPENABLE: frozenset[str] = frozenset(_DATA["openable"])
ACCEPTS: dict[str, frozenset[str]] = {kind: frozenset(kinds) for kind, kinds in _DATA["accepts"].items()}
ROOM_RECEPTACLES: dict[str, dict[str, tuple[int, int]]] = {
    room: {kind: (fewest, most) for kind, (fewest, most) in row["receptacles"].items()} for room, row in _ROOMS.items()
}
ROOM_OBJECTS: dict[str, tuple[str, ...]] = {room: tuple(row["objects"]) for room, row in _ROOMS.items()}


@cache
def traits_of(kind: str) -> tuple[str, ...]:
    """The traits of an object kind, in alphabetical order; all kinds but lamps can be picked up."""
    traits = [trait for trait, kinds in TRAITS.items() if kind in kinds]
    if kind not in LAMPS:
        traits.append("pickupable")
    return tuple(sorted(traits))
