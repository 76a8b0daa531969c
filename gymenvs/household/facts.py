"""The engine's facts: what it reports of a state, and the book-keeping that needs.

The engine tells, besides the facts that hold, `checked(x)` of what was looked at and `not_x` of a fact that was
deleted and does not hold again. No rule depends on these, but for what `look` says lies beside a receptacle. They are
two sets, kept as bit masks over numbers that `Ledger` gives to the facts of a world.
"""

from __future__ import annotations

from typing import NamedTuple

from rtmc.gymenvs.household.world import NOBODY, STATE_NAMES, Action, State, World, bits


class Trace(NamedTuple):
    """The book-keeping: what was `checked`, and the facts that are `gone`, as numbered by the world's `Ledger`."""

    checked: int = 0
    gone: int = 0


class Ledger:
    """The facts of one world by number, and as text."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._items, self._receptacles = len(world.item_names), len(world.receptacle_names)
        self._places = len(world.locations)
        # The changeable facts that may be deleted, one block after the other.
        self._at = self._items * self._receptacles
        self._place = self._at + self._items * self._places
        self._opened = self._place + self._places
        self._held = self._opened + self._receptacles
        self._any = self._held + self._items
        self._hot = self._any + 1
        self._cool = self._hot + self._items
        self._on = self._cool + self._items
        # The engine drops effects on facts that can never hold, so "not cool" is told of no thing here that could
        # never be cool, and "not there" of no thing that could never lie there.
        self._can_lie = list(world.start.lying)
        for place, here in enumerate(world.here):
            for r in here:
                self._can_lie[place] |= world.accepts[r]
        standing = {r.kind for r in world.task.receptacles if r.location is not None}
        self._can_cool = world.start.cool | (world.trait["coolable"] if "fridge" in standing else 0)
        self._can_heat = world.start.hot | (world.trait["heatable"] if "microwave" in standing else 0)
        self._constant: list[str] | None = None

    def note(self, trace: Trace, state: State, action: Action) -> Trace:
        """The book-keeping after an admissible action taken in `state`."""
        verb, k, target = action
        checked, gone = trace
        if verb == "go":
            place = self.world.receptacle_place[target]
            gone = (gone | 1 << self._place + state.place) & ~(1 << self._place + place)
        elif verb == "open":
            gone &= ~(1 << self._opened + target)
            checked |= self._check("receptacle", target)
        elif verb == "close":
            gone |= 1 << self._opened + target
        elif verb in ("take", "move"):
            lay = self._can_lie[state.place] >> k & 1
            resting = 1 << k * self._receptacles + target | lay << self._at + k * self._places + state.place
            holding = 1 << self._held + k | 1 << self._any
            gone = (gone | resting) & ~holding if verb == "take" else (gone | holding) & ~resting
        elif verb == "heat":
            gone = (gone | (self._can_cool >> k & 1) << self._cool + k) & ~(1 << self._hot + k)
        elif verb == "cool":
            gone = (gone | (self._can_heat >> k & 1) << self._hot + k) & ~(1 << self._cool + k)
        elif verb == "use":
            gone |= 1 << self._on + k
        elif verb == "look":
            checked |= self._check("place", state.place)
        elif verb in ("inventory", "help"):
            checked |= 1
        elif verb == "examine":
            checked |= self._check("receptacle", target) if k == NOBODY else self._check("item", k)
        return Trace(checked, gone)

    def _check(self, kind: str, number: int) -> int:
        # Bit 0 is the agent's.
        offset = {"place": 1, "receptacle": 1 + self._places, "item": 1 + self._places + self._receptacles}[kind]
        return 1 << offset + number

    def taken_from(self, trace: Trace, item: int, receptacle: int) -> bool:
        """Whether the item was taken out of the receptacle and not put back."""
        return bool(trace.gone >> item * self._receptacles + receptacle & 1)

    def _checked_name(self, number: int) -> str:
        world = self.world
        return ["agent1", *world.locations, *world.receptacle_names, *world.item_names][number]

    def _gone_fact(self, number: int) -> str:
        world = self.world
        items, receptacles, places = world.item_names, world.receptacle_names, world.locations
        if number < self._at:
            k, r = divmod(number, self._receptacles)
            return f"inreceptacle({items[k]}, {receptacles[r]})"
        if number < self._place:
            k, place = divmod(number - self._at, self._places)
            return f"objectatlocation({items[k]}, {places[place]})"
        if number < self._opened:
            return f"atlocation(agent1, {places[number - self._place]})"
        if number < self._held:
            return f"opened({receptacles[number - self._opened]})"
        if number < self._any:
            return f"holds(agent1, {items[number - self._held]})"
        if number == self._any:
            return "holdsany(agent1)"
        for start, name in ((self._on, "ison"), (self._cool, "iscool"), (self._hot, "ishot")):
            if number >= start:
                return f"{name}({items[number - start]})"
        raise AssertionError(number)

    def _facts_that_stay(self) -> list[str]:
        task = self.world.task
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
        world = self.world
        items, receptacles = world.item_names, world.receptacle_names
        if self._constant is None:
            self._constant = self._facts_that_stay()
        gone = {self._gone_fact(number) for number in bits(trace.gone)}
        facts = [*self._constant, *(f"not_{fact}" for fact in gone)]
        facts.extend(f"checked({self._checked_name(number)})" for number in bits(trace.checked))
        facts.append(f"atlocation(agent1, {world.locations[state.place]})")
        if state.held != NOBODY:
            facts += [f"holds(agent1, {items[state.held]})", "holdsany(agent1)"]
        facts.extend(f"opened({receptacles[r]})" for r in bits(state.opened))
        for r, mask in enumerate(state.contents):
            facts.extend(f"inreceptacle({items[k]}, {receptacles[r]})" for k in bits(mask))
        for place, mask in enumerate(state.lying):
            facts.extend(f"objectatlocation({items[k]}, {world.locations[place]})" for k in bits(mask))
        for label in STATE_NAMES:
            facts.extend(f"is{label}({items[k]})" for k in bits(getattr(state, label)))
        return sorted(set(facts) - gone)
