"""What the agent knows of the room, as a set that does not depend on the order in which it learned it.

It knows what the texts and the admissible commands have told, and nothing else: which receptacles stand where it has
been, and their doors; what lies in a receptacle it went to, opened or examined; with an empty hand also what can be
taken from the others there, for the commands name it; of the states of things those it brought about, or was told of
when it examined them. That a lamp can be used tells at which location it is, not in which of several receptacles
there. Since only the agent changes the room, what was told once stays true but for the agent's own doing, which it
knows. So what is known is a few sets, read against the state as it is.
"""

from __future__ import annotations

import re
from operator import and_
from typing import NamedTuple

from rtmc.gymenvs.household.world import NOBODY, NOWHERE, STATE_NAMES, Action, State, World, bits

_KEPT = 256
_SHOWN_STATES = ("clean", "cool", "hot", "sliced")
_CHANGES = {"heat": "hot", "cool": "cool", "clean": "clean", "slice": "sliced", "use": "toggled"}
_START = Action("look")


class Knowledge(NamedTuple):
    """Bit masks: locations where the agent has been, receptacles whose inside it knows, things whose receptacle it
    knows, lamps whose location it knows, and for each state of a thing the things it was told to be in it."""

    visited: int = 0
    inside: int = 0
    things: int = 0
    lamps: int = 0
    told: tuple[int, ...] = (0,) * len(STATE_NAMES)


def learn(world: World, state: State, known: Knowledge, action: Action = _START) -> Knowledge:
    """What is known after an action that led to `state`; by default, after a look round at the start."""
    verb, k, target = action
    inside, things, told = known.inside, known.things, known.told
    here = world.here[state.place]
    if verb in ("go", "open") or (verb == "examine" and k == NOBODY):
        if world.reachable(state, target):
            inside |= 1 << target
            things |= state.contents[target]
    elif verb in ("take", "move"):
        things |= 1 << k
    elif verb in _CHANGES or verb == "examine":
        told = _told(world, state, told, verb, k)
    lamps = named = 0
    movable, switched = world.trait["pickupable"], world.trait["toggleable"]
    for r in here:
        contents = state.contents[r]
        if world.reachable(state, r):
            if world.plain:
                named |= contents
            if state.held == NOBODY:
                things |= contents & movable
        elif world.plain:
            continue
        lamps |= contents & switched
    if len(here) == 1 and world.reachable(state, here[0]):
        things |= named | lamps
        if world.plain:
            inside |= 1 << here[0]
    if state.held == NOBODY and not lamps & ~things:
        for r in here:
            if world.reachable(state, r):
                inside |= 1 << r
    return Knowledge(known.visited | 1 << state.place, inside, things, known.lamps | lamps, told)


def _told(world: World, state: State, told: tuple[int, ...], verb: str, k: int) -> tuple[int, ...]:
    """The states told, after the text of `verb`, an examination or a change, on item k."""
    names = told_states(world, state, k) if verb == "examine" else (_CHANGES[verb],)
    return tuple(mask | (name in names) << k for name, mask in zip(STATE_NAMES, told, strict=True))


def told_states(world: World, state: State, k: int) -> tuple[str, ...]:
    """The states of an item that its examination tells (`texts.item`)."""
    states = {name for name in STATE_NAMES if getattr(state, name) >> k & 1}
    if world.trait["isreceptacleobject"] >> k & 1 and not (world.plain and states):
        return ()
    warm = next((name for name in ("hot", "cool") if name in states), None)
    if warm is not None or "clean" in states:
        return tuple(states & {warm, "clean", "sliced"})
    if "toggled" in states and world.trait["toggleable"] >> k & 1:
        return ("toggled",)
    return ("sliced",) if "sliced" in states and world.trait["sliceable"] >> k & 1 else ()


def _natural(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if re.fullmatch(r"\d+", number) else (name, 0)


def _as_known(state: State, known: Knowledge) -> State:
    """The state with those states of things alone that are known."""
    held = state[-len(STATE_NAMES) :]
    told = tuple(map(and_, held, known.told))
    return state if told == held else state._replace(**dict(zip(STATE_NAMES, told, strict=True)))


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
        parts = [part for r in self._order if visited >> places[r] & 1 and (part := self._part(state, known, r))]
        for k in bits(known.lamps & ~known.things):
            for place in [places[r] for r, mask in enumerate(state.contents) if mask >> k & 1][:1]:
                names = " or ".join(self.world.receptacle_names[r] for r in self._order if places[r] == place)
                parts.append(f"{self.world.item_names[k]}: at {names}.")
        return " ".join(parts) or "nothing yet."

    def _part(self, state: State, known: Knowledge, r: int) -> str:
        """What is known of a receptacle's door and inside; empty text if nothing is."""
        world, contents = self.world, state.contents[r] & known.things
        door = "" if not world.openable >> r & 1 else " (open)" if state.opened >> r & 1 else " (closed)"
        if not (contents or known.inside >> r & 1):
            return f"{world.receptacle_names[r]}: {door[2:-1]}." if door else ""
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
            for k in self._items:
                if state.toggled >> k & 1:
                    text += f" {world.item_names[k]} is on."
                if state.sliced >> k & 1 and k != state.held and not known.things >> k & 1:
                    text += f" {world.item_names[k]} is sliced."
        return text

    def text(self, state: State, known: Knowledge) -> str:
        """Task, places, what was seen, and where the agent is: four lines that suffice to choose a command."""
        state = _as_known(state, known)
        return f"{self._head}\nSeen: {self._seen(state, known)}\n{self._now(state, known)}"

    def key(self, state: State, known: Knowledge) -> str:
        """The state's identity: the part of the text that changes, and what the commands name besides.

        Some commands are offered on things whose place is not known: slicing what lies in a closed receptacle, and by
        the plain rules examining what stands in one of several. They are named here, so that equal keys always admit
        equal commands.
        """
        state = _as_known(state, known)
        more = f" Offered: {', '.join(hidden)}." if (hidden := self._offered_unseen(state, known)) else ""
        return f"Seen: {self._seen(state, known)} {self._now(state, known)}{more}"

    def _offered_unseen(self, state: State, known: Knowledge) -> list[str]:
        world = self.world
        at_hand = state.lying[state.place]
        shown = 0
        for r in world.here[state.place]:
            at_hand |= state.contents[r]
            shown |= state.contents[r] & (known.things | known.lamps)
        hidden = at_hand & ~shown
        if not hidden:
            return []
        return [text for text, action in world.actions(state).items() if action.item >= 0 and hidden >> action.item & 1]
