"""What the agent can know of the room, as a set that does not depend on the order in which it learned it.

The agent sees the place where it stands: every receptacle there, and what is in those that are open or have no
door (the commands offered there tell as much, also where the engine's text names one receptacle only). Since only
the agent changes the room, what was seen once stays true but for the agent's own doing, which it knows. So what is
known is two sets, the places visited and the insides seen, read against the state as it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rtmc.gymenvs.household.world import NOBODY, NOWHERE, State, World, bits

_KEPT = 256
_SHOWN_STATES = ("clean", "cool", "hot", "sliced")


class Knowledge(NamedTuple):
    """Bit masks: locations where the agent has been, receptacles whose inside it has seen."""

    visited: int = 0
    inside: int = 0


def learn(world: World, state: State, known: Knowledge) -> Knowledge:
    """What is known once the agent has looked round the place where it stands."""
    seen = known.inside
    for receptacle in world.here[state.place]:
        if world.reachable(state, receptacle):
            seen |= 1 << receptacle
    return Knowledge(known.visited | 1 << state.place, seen)


def _natural(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if re.fullmatch(r"\d+", number) else (name, 0)


def _item(world: World, state: State, k: int) -> str:
    states = [name for name in _SHOWN_STATES if getattr(state, name) >> k & 1]
    return world.item_names[k] + (f" ({', '.join(states)})" if states else "")


class Describer:
    """Writes what is known about one world: as text for a policy, and as the key of a state."""

    def __init__(self, world: World) -> None:
        self.world = world
        names = world.receptacle_names
        standing = [r for r in range(len(names)) if world.receptacle_place[r] != NOWHERE]
        self._order = sorted(standing, key=lambda r: _natural(names[r]))
        self._items = sorted(range(len(world.item_names)), key=lambda k: _natural(world.item_names[k]))
        places = ", ".join(names[r] for r in self._order)
        self._parts: dict[tuple[int, str, int, tuple[int, ...]], str] = {}
        self._head = f"Task: {world.goal.sentence}.\nPlaces: {places}."

    def _seen(self, state: State, known: Knowledge) -> str:
        visited, places = known.visited, self.world.receptacle_place
        return (
            " ".join([self._part(state, known, r) for r in self._order if visited >> places[r] & 1]) or "nothing yet."
        )

    def _part(self, state: State, known: Knowledge, r: int) -> str:
        world, contents = self.world, state.contents[r]
        door = "" if not world.openable >> r & 1 else " (open)" if state.opened >> r & 1 else " (closed)"
        if door == " (closed)" and not known.inside >> r & 1:
            return f"{world.receptacle_names[r]}: closed."
        states = (contents & state.clean, contents & state.cool, contents & state.hot, contents & state.sliced)
        key = (r, door, contents, states)
        part = self._parts.get(key)
        if part is None:
            held = ", ".join(_item(world, state, k) for k in self._items if contents >> k & 1) or "nothing"
            part = f"{world.receptacle_names[r]}{door}: {held}."
            if len(self._parts) >= _KEPT:
                del self._parts[next(iter(self._parts))]
            self._parts[key] = part
        return part

    def _now(self, state: State, known: Knowledge) -> str:
        world = self.world
        here = [world.receptacle_names[r] for r in self._order if world.receptacle_place[r] == state.place]
        place = "at " + " and ".join(here) if here else "in the middle of the room"
        held = "nothing" if state.held == NOBODY else _item(world, state, state.held)
        text = f"You are {place}, holding {held}."
        if state.toggled or state.sliced:
            seen = self._seen_items(state, known)
            for k in self._items:
                if state.toggled >> k & 1:
                    text += f" {world.item_names[k]} is on."
                if state.sliced >> k & 1 and k != state.held and not seen >> k & 1:
                    text += f" {world.item_names[k]} is sliced."
        return text

    def _seen_items(self, state: State, known: Knowledge) -> int:
        seen = 0
        for r in bits(known.inside):
            seen |= state.contents[r]
        return seen

    def text(self, state: State, known: Knowledge) -> str:
        """Task, places, what was seen, and where the agent is: four lines that suffice to choose a command."""
        return f"{self._head}\nSeen: {self._seen(state, known)}\n{self._now(state, known)}"

    def key(self, state: State, known: Knowledge) -> str:
        """The state's identity: the part of the text that changes, and what the commands give away unseen.

        By the engine's rules two things are offered though they are out of sight: slicing what lies in a closed
        receptacle, and using a lamp in one. They are named here, so that equal keys always admit equal commands.
        """
        more = f" Offered: {', '.join(hidden)}." if (hidden := self._offered_unseen(state, known)) else ""
        return f"Seen: {self._seen(state, known)} {self._now(state, known)}{more}"

    def _offered_unseen(self, state: State, known: Knowledge) -> list[str]:
        world = self.world
        if world.plain:
            return []
        unseen = ~self._seen_items(state, known)
        lamps = 0
        for r in world.here[state.place]:
            lamps |= state.contents[r] & world.trait["toggleable"] & unseen
        found = [f"use {world.item_names[k]}" for k in bits(lamps)]
        if state.held != NOBODY and world.knives >> state.held & 1:
            sliceable = state.lying[state.place] & world.trait["sliceable"] & unseen
            found += [f"slice {world.item_names[k]} with {world.item_names[state.held]}" for k in bits(sliceable)]
        return sorted(found)
