"""The rules of the household: which commands a state admits, what each changes, and when the goal holds.

`World` is what never changes in a task, `State` what does. A state is a tuple of small integers and tuples, so
keeping one is a snapshot and going back to it a restore. What the engine says stands in `answers`, its book-keeping
in `facts`. There are two sets of rules.

`alfworld`: those of ALFWorld's PDDL domain as the engine plays it, with its quirks:

- heating and cooling work through a closed door, lamps in a closed receptacle can be used, and things in one sliced;
- a lamp can be switched on, never off; "using" it again says that it is turned on;
- only held things can be examined, and a vessel's states are never told;
- `go to` a receptacle where one stands is no command;
- `look` before the first walk sees no receptacle, though the first text lists them; later it names a thing as lying
  beside a receptacle when it was taken out of that receptacle and now lies in another at the same location;
- receptacles are never full, and the hand holds one thing;
- the goal is judged anew after every step, so that it can be lost again.

`plain` mends what is plainly a mistake and leaves the rest:

- things in view (in a receptacle at hand that is open or has no door) can be examined, not held ones alone;
- `use` switches a lamp on and off in turn, and says which;
- heating and cooling need the appliance's door open; lamps are used and things sliced only within reach;
- `look` in the middle of the room lists the receptacles, and invents nothing lying beside one;
- examining a vessel tells that it is hot, cold, clean or sliced; the plain text is for one that is none of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from rtmc.gymenvs.household import vocabulary
from rtmc.gymenvs.household.task import HouseholdTask

RULES = ("alfworld", "plain")
NOBODY = -1
NOWHERE = -1
_KEPT = 256  # entries of each look-up of a world; an entry has some hundred bytes
_TREATED_AT = {appliance: (state, trait) for state, trait, appliance in vocabulary.TREATMENTS.values()}
_TREATMENT_VERBS = {"hot": "heat", "cool": "cool", "clean": "clean"}
STATE_NAMES = ("clean", "cool", "hot", "sliced", "toggled")


class State(NamedTuple):
    """What can change. Sets of receptacles and items are bit masks over the task's order.

    Attributes:
        place: index of the agent's location.
        held: index of the item in hand, or -1.
        contents: for each receptacle, the items in it.
        lying: for each location, the items there.
        opened: the open receptacles.
        clean, cool, hot, sliced, toggled: the items in that state.
    """

    place: int
    held: int
    contents: tuple[int, ...]
    lying: tuple[int, ...]
    opened: int
    clean: int
    cool: int
    hot: int
    sliced: int
    toggled: int


class Action(NamedTuple):
    """A grounded action: `verb` and the indices of what it acts on (-1 where it acts on nothing)."""

    verb: str
    item: int = NOBODY
    target: int = NOBODY


def bits(mask: int) -> list[int]:
    """Indices of the set bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _mask(indices: Iterable[int]) -> int:
    return sum(1 << k for k in indices)


def _word(text: str) -> int:
    """A 64-bit number of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class World:
    """A task made ready to be played: names resolved to indices, look-ups prepared. Holds no state of play.

    Args:
        task: the room and the goal.
        rules: `alfworld` or `plain`.
    """

    def __init__(self, task: HouseholdTask, rules: str = "alfworld") -> None:
        self.task = task
        self.goal = task.goal
        self.plain = rules == "plain"
        receptacles, items = task.receptacles, task.items
        self.receptacle_names = [r.name for r in receptacles]
        self.receptacle_kinds = [r.kind for r in receptacles]
        self.item_names = [i.name for i in items]
        self.item_kinds = [i.kind for i in items]
        self.locations = sorted(
            {r.location for r in receptacles if r.location is not None}
            | {task.start}
            | {place for i in items for place in i.at}
        )
        location_index = {name: k for k, name in enumerate(self.locations)}
        # A receptacle that stands nowhere has place -1: no command reaches it and no text names it.
        self.receptacle_place = [NOWHERE if r.location is None else location_index[r.location] for r in receptacles]
        self.here: list[list[int]] = [[] for _ in self.locations]
        for k, place in enumerate(self.receptacle_place):
            if place != NOWHERE:
                self.here[place].append(k)
        self.openable = _mask(k for k, r in enumerate(receptacles) if r.openable)
        self.trait = dict.fromkeys(("pickupable", *vocabulary.TRAITS), 0)
        states = dict.fromkeys(STATE_NAMES, 0)
        for k, i in enumerate(items):
            for trait in i.traits:
                self.trait[trait] |= 1 << k
            for name in i.states:
                states[name] |= 1 << k
        accepted = {kind: _mask(k for k, i in enumerate(items) if i.kind in kinds) for kind, kinds in task.accepts}
        self.accepts = [accepted.get(r.kind, 0) for r in receptacles]
        self.knives = _mask(k for k, i in enumerate(items) if i.kind in vocabulary.KNIVES)
        index = {name: k for k, name in enumerate(self.receptacle_names)}
        contents, lying = [0] * len(receptacles), [0] * len(self.locations)
        for k, i in enumerate(items):
            for name in i.inside:
                contents[index[name]] |= 1 << k
            for name in i.at:
                lying[location_index[name]] |= 1 << k
        self.start = State(
            place=location_index[task.start],
            held=NOBODY if task.held is None else self.item_names.index(task.held),
            contents=tuple(contents),
            lying=tuple(lying),
            opened=_mask(k for k, r in enumerate(receptacles) if r.opened),
            **states,
        )
        self._prepare_goal()
        self._actions = {verb: Action(verb) for verb in ("help", "inventory", "look")}
        self._walks: list[tuple[str, ...] | None] = [None] * len(self.locations)
        self._doors = [self.openable & _mask(here) for here in self.here]
        self._listed: dict[tuple[int, ...], tuple[str, ...]] = {}
        # A lamp that the task puts into two receptacles is offered at each; elsewhere no command comes twice.
        self._repeats = any(len(i.inside) > 1 for i in items)
        self._words: dict[tuple[int, Any], int] = {}
        self._fact_words: dict[tuple[int, int, int], int] = {}  # at most one a fact that can hold
        self._room_word: int | None = None

    def _prepare_goal(self) -> None:
        goal = self.goal
        wanted = _mask(k for k, kind in enumerate(self.item_kinds) if kind == goal.object)
        self.treatment = vocabulary.TREATMENTS.get(goal.task_type)
        if self.treatment is not None:
            wanted &= self.trait[self.treatment[1]]
        if goal.sliced:
            wanted &= self.trait["sliceable"]
        self.wanted = wanted
        self.targets = [r for r, kind in enumerate(self.receptacle_kinds) if kind == goal.receptacle]
        self.needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
        self.light = goal.task_type == "look_at_obj_in_light"
        lamps = _mask(k for k, kind in enumerate(self.item_kinds) if kind == goal.lamp)
        self.lamps = lamps & self.trait["toggleable"] if self.light else 0

    # -- what a state admits -------------------------------------------------------------------------------

    def reachable(self, state: State, receptacle: int) -> bool:
        """Whether the receptacle's inside can be got at: it is open or has no door."""
        return not (self.openable & ~state.opened) >> receptacle & 1

    def commands(self, state: State) -> list[str]:
        """Every admissible command of the state, sorted, each once. The list is the caller's."""
        place, held, contents = state.place, state.held, state.contents
        # All that the list depends on.
        key = (
            place,
            held,
            state.opened & self._doors[place],
            state.lying[place],
            *[contents[r] for r in self.here[place]],
        )
        listed = self._listed.get(key)
        if listed is None:
            if len(self._listed) >= _KEPT:
                del self._listed[next(iter(self._listed))]
            listed = self._listed[key] = tuple(self._list(state))
        return list(listed)

    def _list(self, state: State) -> list[str]:
        place, held = state.place, state.held
        found = list(self._walks[place] or self._walks_from(place))
        if held != NOBODY:
            found.append(self._command(f"examine {self.item_names[held]}", "examine", held))
        for r in self.here[place]:
            found += self._offers(r, self.reachable(state, r), held, state.contents[r])
        if held != NOBODY and self.knives >> held & 1:
            for k in bits(self._within_reach(state) & self.trait["sliceable"]):
                name = f"slice {self.item_names[k]} with {self.item_names[held]}"
                found.append(self._command(name, "slice", k, held))
        if self._repeats:
            found = list(set(found))
        found.sort()
        return found

    def action(self, command: str) -> Action:
        """The action of a command that `commands` has listed."""
        return self._actions[command]

    def actions(self, state: State) -> dict[str, Action]:
        """Every admissible command of the state, sorted, with the action it stands for."""
        return {command: self._actions[command] for command in self.commands(state)}

    def _command(self, text: str, verb: str, item: int = NOBODY, target: int = NOBODY) -> str:
        if text not in self._actions:
            self._actions[text] = Action(verb, item, target)
        return text

    def _within_reach(self, state: State) -> int:
        """The items a knife can be put to: by the engine's rules all that lie at the place, doors or not."""
        if not self.plain:
            return state.lying[state.place]
        reach = 0
        for r in self.here[state.place]:
            if self.reachable(state, r):
                reach |= state.contents[r]
        return reach

    def _walks_from(self, place: int) -> tuple[str, ...]:
        names = self.receptacle_names
        found = [
            self._command(f"go to {names[k]}", "go", target=k)
            for k, where in enumerate(self.receptacle_place)
            if where not in (place, NOWHERE)
        ]
        walks = tuple(sorted([*found, "help", "inventory", "look"]))
        self._walks[place] = walks
        return walks

    def _offers(self, r: int, reached: bool, held: int, contents: int) -> list[str]:
        """What one receptacle at hand lets one do, given whether its inside is reached, the hand and its contents."""
        name, things = self.receptacle_names[r], self.item_names
        found = [self._command(f"examine {name}", "examine", target=r)]
        if self.openable >> r & 1:
            verb = "close" if reached else "open"
            found.append(self._command(f"{verb} {name}", verb, target=r))
        for k in bits(contents):
            if reached and held == NOBODY and self.trait["pickupable"] >> k & 1:
                found.append(self._command(f"take {things[k]} from {name}", "take", k, r))
            if self.trait["toggleable"] >> k & 1 and (reached or not self.plain):
                found.append(self._command(f"use {things[k]}", "use", k))
            if self.plain and reached:
                found.append(self._command(f"examine {things[k]}", "examine", k))
        if held != NOBODY:
            if reached and self.accepts[r] >> held & 1:
                found.append(self._command(f"move {things[held]} to {name}", "move", held, r))
            state, trait = _TREATED_AT.get(self.receptacle_kinds[r], ("", ""))
            if state and self.trait[trait] >> held & 1 and (reached or not self.plain):
                verb = _TREATMENT_VERBS[state]
                found.append(self._command(f"{verb} {things[held]} with {name}", verb, held, r))
        return found

    def success(self, state: State) -> bool:
        """Whether the goal holds in the state."""
        fit = self.wanted & state.sliced if self.goal.sliced else self.wanted
        if self.light:
            lit = state.toggled & self.lamps
            if not lit or state.held == NOBODY or not fit >> state.held & 1:
                return False
            return any(state.contents[r] & lit for r in self.here[state.place])
        if self.treatment is not None:
            fit &= getattr(state, self.treatment[0])
        if not fit:
            return False
        contents = state.contents
        for r in self.targets:
            there = contents[r] & fit
            if there and there.bit_count() >= self.needed:
                return True
        return False

    # -- what an action does -------------------------------------------------------------------------------

    def apply(self, state: State, action: Action) -> State:
        """The state after an admissible action."""
        verb, k, target = action
        if verb == "go":
            return State(self.receptacle_place[target], *state[1:])
        if verb == "open":
            return state._replace(opened=state.opened | 1 << target)
        if verb == "close":
            return state._replace(opened=state.opened & ~(1 << target))
        if k == NOBODY or verb == "examine":
            return state  # help, inventory, look, examine
        bit = 1 << k
        if verb in ("take", "move"):
            contents, lying = list(state.contents), list(state.lying)
            if verb == "take":
                contents[target] &= ~bit
                lying[state.place] &= ~bit
            else:
                contents[target] |= bit
                lying[state.place] |= bit
            held = k if verb == "take" else NOBODY
            return State(state.place, held, tuple(contents), tuple(lying), *state[4:])
        if verb == "heat":
            return state._replace(hot=state.hot | bit, cool=state.cool & ~bit)
        if verb == "cool":
            return state._replace(cool=state.cool | bit, hot=state.hot & ~bit)
        if verb == "clean":
            return state._replace(clean=state.clean | bit)
        if verb == "slice":
            return state._replace(sliced=state.sliced | bit)
        if self.plain:
            return state._replace(toggled=state.toggled ^ bit)
        return state._replace(toggled=state.toggled | bit)

    # -- the state's identity ------------------------------------------------------------------------------

    def key(self, state: State) -> str:
        """The exact state as a 64-bit hash in hexadecimal, the same in every process.

        Every fact that can change, and the room with all that cannot, has a 64-bit number, BLAKE2b of its text cut to
        eight bytes; the key is the exclusive or of those that hold (Zobrist hashing). So it depends on names alone,
        not on the order in which a task lists things. Goal, turn and what was seen have no part in it.
        """
        words = self._words
        if len(words) > _KEPT:
            words.clear()
        if self._room_word is None:
            self._room_word = self._word_of_room()
        total = self._room_word
        # By field: a part that did not change since is found by its value.
        parts: Iterable[tuple[int, Any]] = enumerate(state)
        for part in parts:
            word = words.get(part)
            if word is None:
                word = words[part] = self._word_of_field(*part)
            total ^= word
        return f"{total:016x}"

    def _word_of_field(self, field: int, value: int | tuple[int, ...]) -> int:
        total = 0
        if isinstance(value, tuple):
            for owner, mask in enumerate(value):
                for k in bits(mask):
                    total ^= self._fact_words.get((field, owner, k)) or self._word_of_fact(field, owner, k)
        elif State._fields[field] in ("place", "held"):
            total = self._word_of_fact(field, 0, value) if value != NOBODY else 0
        else:
            for k in bits(value):
                total ^= self._fact_words.get((field, 0, k)) or self._word_of_fact(field, 0, k)
        return total

    def _word_of_fact(self, field: int, owner: int, k: int) -> int:
        """The number of the fact that the state's field holds k; of `contents` and `lying`, at the owner."""
        name = State._fields[field]
        named = {"place": self.locations, "opened": self.receptacle_names}.get(name, self.item_names)
        at = {"contents": self.receptacle_names, "lying": self.locations}.get(name)
        word = _word(f"{name} {named[k]}" + (f" {at[owner]}" if at else ""))
        self._fact_words[field, owner, k] = word
        return word

    def _word_of_room(self) -> int:
        task = self.task
        facts = [f"receptacle {(r.name, r.kind, r.location, r.openable)}" for r in task.receptacles]
        facts += [f"item {(i.name, i.kind, sorted(i.traits), sorted(i.contents))}" for i in task.items]
        facts += [f"accepts {kind} {sorted(set(kinds))}" for kind, kinds in task.accepts]
        return _word("\n".join(sorted(facts)))
