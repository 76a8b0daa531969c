"""The rules of the household: which commands a state admits, what each changes, and what the engine answers.

`World` is what never changes in a task, `State` what does. A state is a tuple of small integers and tuples, so
keeping one is a snapshot and going back to it a restore. The rules are those of ALFWorld's PDDL domain as the
engine plays it, with its quirks:

- heating, cooling and cleaning work through a closed door, and slicing on a thing in a closed receptacle;
- a lamp can be switched on, never off; "using" it again says that it is turned on;
- only held things can be examined, and `go to` a receptacle where one stands is no command;
- `look` names a thing as lying beside a receptacle when it was taken out of that receptacle and now lies in
  another at the same location;
- the goal is judged anew after every step, so that it can be lost again.
"""

from __future__ import annotations

from typing import NamedTuple

from rtmc.gymenvs.household import texts, vocabulary
from rtmc.gymenvs.household.task import HouseholdTask

NOBODY = -1
NOWHERE = -1


class State(NamedTuple):
    """What can change. Sets of receptacles, items and locations are bit masks over the task's order.

    Attributes:
        place: index of the agent's location.
        held: index of the item in hand, or -1.
        inside: for each item, the receptacles that hold it.
        at: for each item, the locations it is at.
        opened: the open receptacles.
        clean, cool, hot, sliced, toggled: the items in that state.
    """

    place: int
    held: int
    inside: tuple[int, ...]
    at: tuple[int, ...]
    opened: int
    clean: int
    cool: int
    hot: int
    sliced: int
    toggled: int


class Trace(NamedTuple):
    """The engine's book-keeping, which no rule depends on: facts `checked(x)`, and facts that were deleted."""

    checked: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


class Action(NamedTuple):
    """A grounded action: `verb` and the indices of what it acts on (-1 where it acts on nothing)."""

    verb: str
    item: int = NOBODY
    target: int = NOBODY


def _bits(mask: int) -> list[int]:
    """Indices of the set bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


class World:
    """A task made ready to be played: names resolved to indices, look-ups prepared. Holds no state of play."""

    def __init__(self, task: HouseholdTask) -> None:
        self.task = task
        self.goal = task.goal
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
        self.openable = sum(1 << k for k, r in enumerate(receptacles) if r.openable)
        self.trait = {
            trait: sum(1 << k for k, i in enumerate(items) if trait in i.traits)
            for trait in ("pickupable", *vocabulary.TRAITS)
        }
        accepts = {kind: frozenset(kinds) for kind, kinds in task.accepts}
        self.accepts = [
            sum(1 << k for k, i in enumerate(items) if i.kind in accepts.get(r.kind, ())) for r in receptacles
        ]
        self.knives = sum(1 << k for k, i in enumerate(items) if i.kind in vocabulary.KNIVES)
        index = {name: k for k, name in enumerate(self.receptacle_names)}
        held = NOBODY if task.held is None else self.item_names.index(task.held)

        def in_state(name: str) -> int:
            return sum(1 << k for k, i in enumerate(items) if name in i.states)

        self.start = State(
            place=location_index[task.start],
            held=held,
            inside=tuple(sum(1 << index[name] for name in i.inside) for i in items),
            at=tuple(sum(1 << location_index[name] for name in i.at) for i in items),
            opened=sum(1 << k for k, r in enumerate(receptacles) if r.opened),
            clean=in_state("clean"),
            cool=in_state("cool"),
            hot=in_state("hot"),
            sliced=in_state("sliced"),
            toggled=in_state("toggled"),
        )
        # The engine drops effects on facts that can never hold, so "not cool" is told of no thing here that could
        # never be cool.
        standing = {r.kind for r in receptacles if r.location is not None}
        self._can_cool = self.start.cool | (self.trait["coolable"] if "fridge" in standing else 0)
        self._can_heat = self.start.hot | (self.trait["heatable"] if "microwave" in standing else 0)
        self._constant_facts = self._facts_that_stay()

    # -- what a state admits -------------------------------------------------------------------------------

    def reachable(self, state: State, receptacle: int) -> bool:
        """Whether the receptacle's inside can be got at: it is open or has no door."""
        return not (self.openable & ~state.opened) >> receptacle & 1

    def contents(self, state: State, receptacle: int) -> list[int]:
        return [k for k, mask in enumerate(state.inside) if mask >> receptacle & 1]

    def actions(self, state: State) -> dict[str, Action]:
        """Every admissible command of the state, unsorted, with the action it stands for."""
        names, things = self.receptacle_names, self.item_names
        held = state.held
        found = {"help": Action("help"), "inventory": Action("inventory"), "look": Action("look")}
        for k, place in enumerate(self.receptacle_place):
            if place not in (state.place, NOWHERE):
                found[f"go to {names[k]}"] = Action("go", target=k)
        if held != NOBODY:
            found[f"examine {things[held]}"] = Action("examine", item=held)
        for r in self.here[state.place]:
            found[f"examine {names[r]}"] = Action("examine", target=r)
            if self.openable >> r & 1:
                verb = "close" if state.opened >> r & 1 else "open"
                found[f"{verb} {names[r]}"] = Action(verb, target=r)
            open_now = self.reachable(state, r)
            for k in self.contents(state, r):
                if open_now and held == NOBODY and self.trait["pickupable"] >> k & 1:
                    found[f"take {things[k]} from {names[r]}"] = Action("take", k, r)
                if self.trait["toggleable"] >> k & 1:
                    found[f"use {things[k]}"] = Action("use", k)
            if held == NOBODY:
                continue
            if open_now and self.accepts[r] >> held & 1:
                found[f"move {things[held]} to {names[r]}"] = Action("move", held, r)
            treatment = self._treatment(r)
            if treatment and self.trait[treatment[1]] >> held & 1:
                found[f"{treatment[0]} {things[held]} with {names[r]}"] = Action(treatment[0], held, r)
        if held != NOBODY and self.knives >> held & 1:
            for k, places in enumerate(state.at):
                if places >> state.place & 1 and self.trait["sliceable"] >> k & 1:
                    found[f"slice {things[k]} with {things[held]}"] = Action("slice", k, held)
        return found

    def _treatment(self, receptacle: int) -> tuple[str, str] | None:
        kind = self.receptacle_kinds[receptacle]
        if kind == "microwave":
            return "heat", "heatable"
        if kind == "fridge":
            return "cool", "coolable"
        if kind == "sinkbasin":
            return "clean", "cleanable"
        return None

    def success(self, state: State) -> bool:
        """Whether the goal holds in the state."""
        goal = self.goal
        wanted = [k for k, kind in enumerate(self.item_kinds) if kind == goal.object]
        if goal.task_type == "look_at_obj_in_light":
            here = sum(1 << r for r in self.here[state.place])
            lit = any(
                kind == goal.lamp and (state.toggled & self.trait["toggleable"]) >> k & 1 and state.inside[k] & here
                for k, kind in enumerate(self.item_kinds)
            )
            return lit and state.held in wanted
        targets = [r for r, kind in enumerate(self.receptacle_kinds) if kind == goal.receptacle]
        if goal.task_type in vocabulary.TREATMENTS:
            name, trait, _ = vocabulary.TREATMENTS[goal.task_type]
            fit = getattr(state, name) & self.trait[trait]
            wanted = [k for k in wanted if fit >> k & 1]
        needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
        return any(sum(state.inside[k] >> r & 1 for k in wanted) >= needed for r in targets)

    # -- what an action does -------------------------------------------------------------------------------

    def apply(self, state: State, action: Action) -> State:
        """The state after an admissible action."""
        verb, k, target = action
        if verb == "go":
            return state._replace(place=self.receptacle_place[target])
        if verb == "open":
            return state._replace(opened=state.opened | 1 << target)
        if verb == "close":
            return state._replace(opened=state.opened & ~(1 << target))
        if verb in ("take", "move"):
            inside, at = list(state.inside), list(state.at)
            if verb == "take":
                inside[k] &= ~(1 << target)
                at[k] &= ~(1 << state.place)
                return state._replace(held=k, inside=tuple(inside), at=tuple(at))
            inside[k] |= 1 << target
            at[k] |= 1 << state.place
            return state._replace(held=NOBODY, inside=tuple(inside), at=tuple(at))
        bit = 1 << k if k != NOBODY else 0
        if verb == "heat":
            return state._replace(hot=state.hot | bit, cool=state.cool & ~bit)
        if verb == "cool":
            return state._replace(cool=state.cool | bit, hot=state.hot & ~bit)
        if verb == "clean":
            return state._replace(clean=state.clean | bit)
        if verb == "slice":
            return state._replace(sliced=state.sliced | bit)
        if verb == "use":
            return state._replace(toggled=state.toggled | bit)
        return state  # help, inventory, look, examine

    def note(self, trace: Trace, state: State, action: Action) -> Trace:
        """The book-keeping after an admissible action taken in `state`."""
        verb, k, target = action
        receptacle = self.receptacle_names[target] if target != NOBODY and verb != "slice" else ""
        thing = self.item_names[k] if k != NOBODY else ""
        where = self.locations[state.place]
        made: tuple[str, ...] = ()
        deleted: tuple[str, ...] = ()
        if verb == "go":
            made = (f"atlocation(agent1, {self.locations[self.receptacle_place[target]]})",)
            deleted = (f"atlocation(agent1, {where})",)
        elif verb == "open":
            made = (f"opened({receptacle})",)
        elif verb == "close":
            deleted = (f"opened({receptacle})",)
        elif verb in ("take", "move"):
            resting = (f"inreceptacle({thing}, {receptacle})", f"objectatlocation({thing}, {where})")
            holding = (f"holds(agent1, {thing})", "holdsany(agent1)")
            made, deleted = (holding, resting) if verb == "take" else (resting, holding)
        elif verb == "heat":
            made = (f"ishot({thing})",)
            deleted = (f"iscool({thing})",) if self._can_cool >> k & 1 else ()
        elif verb == "cool":
            made = (f"iscool({thing})",)
            deleted = (f"ishot({thing})",) if self._can_heat >> k & 1 else ()
        elif verb == "use":
            deleted = (f"ison({thing})",)
        checked = {
            "look": where,
            "inventory": "agent1",
            "help": "agent1",
            "open": receptacle,
            "examine": thing or receptacle,
        }.get(verb)
        marks = trace.checked if checked is None else trace.checked | {f"checked({checked})"}
        return Trace(marks, trace.gone.difference(made).union(deleted) if made or deleted else trace.gone)

    # -- what the engine says ------------------------------------------------------------------------------

    def intro(self) -> str:
        """The first text: the surroundings and the goal's sentence."""
        if self.here[self.start.place]:
            surroundings = self._look(self.start, Trace())
        else:
            standing = [r.name for r in self.task.receptacles if r.location is not None]
            surroundings = texts.around(standing)
        return texts.intro(surroundings, self.goal.sentence)

    def feedback(self, state: State, trace: Trace, action: Action) -> str:
        """The engine's answer to an action, told from the state after it."""
        verb, k, target = action
        if verb == "help":
            return texts.HELP
        if verb == "look":
            return self._look(state, trace)
        if verb == "inventory":
            if state.held == NOBODY:
                return texts.EMPTY_HANDED
            return f"You are carrying: {texts.things([self.item_names[state.held]])}."
        thing = self.item_names[k] if k != NOBODY else ""
        if verb == "slice":
            return f"You sliced the {thing} with the {self.item_names[target]}."
        if verb == "use":
            return f"You turn on the {thing}."
        if verb == "examine" and k != NOBODY:
            states = [name for name in _STATE_NAMES if getattr(state, name) >> k & 1]
            if not self.trait["toggleable"] >> k & 1:
                states = [name for name in states if name != "toggled"]
            vessel = bool(self.trait["isreceptacleobject"] >> k & 1)
            return texts.item(thing, states, vessel, self.task.items[k].contents)
        name = self.receptacle_names[target]
        if verb == "take":
            return f"You pick up the {thing} from the {name}."
        if verb == "move":
            return f"You move the {thing} to the {name}."
        if verb == "close":
            return f"You close the {name}."
        if verb in ("heat", "cool", "clean"):
            return f"You {verb} the {thing} using the {name}."
        sight = texts.receptacle(
            name,
            [self.item_names[i] for i in self.contents(state, target)],
            bool(self.openable >> target & 1),
            bool(state.opened >> target & 1),
        )
        opening = {"go": f"You arrive at {name}. ", "open": f"You open the {name}. "}.get(verb, "")
        return opening + sight

    def _look(self, state: State, trace: Trace) -> str:
        here = self.here[state.place]
        if not here:
            # Once the agent looks, the engine no longer lists the room.
            return texts.around(())
        beside = [
            self.item_names[k]
            for k, places in enumerate(state.at)
            if places >> state.place & 1
            for r in here
            if f"inreceptacle({self.item_names[k]}, {self.receptacle_names[r]})" in trace.gone
        ]
        return texts.facing([self.receptacle_names[r] for r in here], beside)

    # -- the engine's facts --------------------------------------------------------------------------------

    def _facts_that_stay(self) -> list[str]:
        task = self.task
        facts = list(task.notes)
        for r in task.receptacles:
            facts.append(f"receptacletype({r.name}, {r.kind}type)")
            if r.location is not None:
                facts.append(f"receptacleatlocation({r.name}, {r.location})")
            if r.openable:
                facts.append(f"openable({r.name})")
        for i in task.items:
            facts.append(f"objecttype({i.name}, {i.kind}type)")
            facts.extend(f"{trait}({i.name})" for trait in i.traits)
            facts.extend(f"inreceptacleobject({name}, {i.name})" for name in i.contents)
        facts.extend(f"cancontain({kind}type, {held}type)" for kind, kinds in task.accepts for held in kinds)
        return facts

    def facts(self, state: State, trace: Trace) -> list[str]:
        """Every fact of the state as the engine reports them, sorted; `not_...` only for facts once deleted."""
        facts = [*self._constant_facts, *trace.checked, *(f"not_{fact}" for fact in trace.gone)]
        facts.append(f"atlocation(agent1, {self.locations[state.place]})")
        if state.held != NOBODY:
            facts += [f"holds(agent1, {self.item_names[state.held]})", "holdsany(agent1)"]
        facts.extend(f"opened({self.receptacle_names[r]})" for r in _bits(state.opened))
        for k, name in enumerate(self.item_names):
            facts.extend(f"inreceptacle({name}, {self.receptacle_names[r]})" for r in _bits(state.inside[k]))
            facts.extend(f"objectatlocation({name}, {self.locations[p]})" for p in _bits(state.at[k]))
        for label in _STATE_NAMES:
            facts.extend(f"is{label}({self.item_names[k]})" for k in _bits(getattr(state, label)))
        return sorted(set(facts) - trace.gone)


_STATE_NAMES = ("clean", "cool", "hot", "sliced", "toggled")
