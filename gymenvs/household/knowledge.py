"""What the agent can know of the room, as a set that does not depend on the order in which it learned it.

The agent sees the place where it stands: every receptacle there, and what is in those that are open or have no
door (the commands offered there tell as much, also where the engine's text names one receptacle only). Since only
the agent changes the room, what was seen once stays true but for the agent's own doing, which it knows. So what is
known is two sets, the places visited and the insides seen, read against the state as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rtmc.gymenvs.household.world import NOBODY, NOWHERE, Action, State, World

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
        self._head = f"Task: {world.goal.sentence}.\nPlaces: {places}."

    def _seen(self, state: State, known: Knowledge) -> str:
        world = self.world
        parts = []
        for r in self._order:
            if not known.visited >> world.receptacle_place[r] & 1:
                continue
            held = [_item(world, state, k) for k in self._items if state.inside[k] >> r & 1]
            contents = ", ".join(held) or "nothing"
            name = world.receptacle_names[r]
            if not world.openable >> r & 1:
                parts.append(f"{name}: {contents}.")
            elif world.reachable(state, r):
                parts.append(f"{name} (open): {contents}.")
            elif known.inside >> r & 1:
                parts.append(f"{name} (closed): {contents}.")
            else:
                parts.append(f"{name}: closed.")
        return " ".join(parts) or "nothing yet."

    def _now(self, state: State, known: Knowledge) -> str:
        world = self.world
        here = [world.receptacle_names[r] for r in self._order if world.receptacle_place[r] == state.place]
        place = "at " + " and ".join(here) if here else "in the middle of the room"
        held = "nothing" if state.held == NOBODY else _item(world, state, state.held)
        text = f"You are {place}, holding {held}."
        for k in self._items:
            if state.toggled >> k & 1:
                text += f" {world.item_names[k]} is on."
            if state.sliced >> k & 1 and k != state.held and not state.inside[k] & known.inside:
                text += f" {world.item_names[k]} is sliced."
        return text

    def text(self, state: State, known: Knowledge) -> str:
        """Task, places, what was seen, and where the agent is: four lines that suffice to choose a command."""
        return f"{self._head}\nSeen: {self._seen(state, known)}\n{self._now(state, known)}"

    def key(self, state: State, known: Knowledge, actions: Mapping[str, Action]) -> str:
        """The state's identity: the part of the text that changes, and what the commands give away unseen.

        Two things are offered though they are out of sight: slicing what lies in a closed receptacle, and using a
        lamp in one. They are named here, so that equal keys always admit equal commands. `actions` are the state's.
        """
        hidden = sorted(
            command
            for command, action in actions.items()
            if action.verb in ("slice", "use") and not state.inside[action.item] & known.inside
        )
        more = f" Offered: {', '.join(hidden)}." if hidden else ""
        return f"Seen: {self._seen(state, known)} {self._now(state, known)}{more}"
