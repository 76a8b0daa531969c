"""What the engine answers to an action. Its sentences stand in `texts`, the rules in `world`."""

from __future__ import annotations

from rtmc.gymenvs.household import texts
from rtmc.gymenvs.household.facts import Ledger, Trace
from rtmc.gymenvs.household.world import NOBODY, STATE_NAMES, Action, State, World, bits

_KEPT = 256


class Narrator:
    """Tells one world. `ledger` is the world's."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.world, self.ledger = world, ledger
        self._sights: dict[tuple[int, bool, int], str] = {}

    def intro(self) -> str:
        """The first text: the surroundings and the goal's sentence."""
        world = self.world
        surroundings = self._look(world.start, Trace()) if world.here[world.start.place] else self._room()
        return texts.intro(surroundings, world.goal.sentence)

    def answer(self, state: State, trace: Trace, action: Action) -> str:
        """The engine's answer to an admissible action, told from the state and the book-keeping after it."""
        world = self.world
        verb, k, target = action
        if verb == "go":
            return f"You arrive at {world.receptacle_names[target]}. {self._sight(state, target)}"
        if verb == "open":
            return f"You open the {world.receptacle_names[target]}. {self._sight(state, target)}"
        if verb == "help":
            return texts.HELP
        if verb == "look":
            return self._look(state, trace)
        if verb == "inventory":
            if state.held == NOBODY:
                return texts.EMPTY_HANDED
            return f"You are carrying: {texts.things([world.item_names[state.held]])}."
        thing = world.item_names[k] if k != NOBODY else ""
        if verb == "slice":
            return f"You sliced the {thing} with the {world.item_names[target]}."
        if verb == "use":
            return f"You turn {'on' if state.toggled >> k & 1 else 'off'} the {thing}."
        if verb == "examine":
            return self._sight(state, target) if k == NOBODY else self._examined(state, k)
        name = world.receptacle_names[target]
        if verb == "take":
            return f"You pick up the {thing} from the {name}."
        if verb == "move":
            return f"You move the {thing} to the {name}."
        if verb == "close":
            return f"You close the {name}."
        return f"You {verb} the {thing} using the {name}."  # heat, cool, clean

    def _sight(self, state: State, r: int) -> str:
        world = self.world
        key = (r, bool(state.opened >> r & 1), state.contents[r])
        sight = self._sights.get(key)
        if sight is None:
            contents = [world.item_names[k] for k in bits(state.contents[r])]
            sight = texts.receptacle(world.receptacle_names[r], contents, bool(world.openable >> r & 1), key[1])
            if len(self._sights) >= _KEPT:
                del self._sights[next(iter(self._sights))]
            self._sights[key] = sight
        return sight

    def _examined(self, state: State, k: int) -> str:
        world = self.world
        states = [name for name in STATE_NAMES if getattr(state, name) >> k & 1]
        vessel = bool(world.trait["isreceptacleobject"] >> k & 1)
        lamp = bool(world.trait["toggleable"] >> k & 1)
        if not lamp:
            states = [name for name in states if name != "toggled"]
        elif world.plain and not states:
            return f"This {world.item_names[k]} is off."
        if world.plain and states:
            vessel = False
        if states == ["sliced"] and not world.trait["sliceable"] >> k & 1:
            states = []
        return texts.item(world.item_names[k], states, vessel, world.task.items[k].contents)

    def _room(self) -> str:
        return texts.around([r.name for r in self.world.task.receptacles if r.location is not None])

    def _look(self, state: State, trace: Trace) -> str:
        world = self.world
        here = world.here[state.place]
        if not here:
            # Once the agent looks, the engine no longer lists the room.
            return self._room() if world.plain else texts.around(())
        beside = [
            world.item_names[k]
            for k in bits(state.lying[state.place])
            for r in here
            if self.ledger.taken_from(trace, k, r)
        ]
        return texts.facing([world.receptacle_names[r] for r in here], () if world.plain else beside)
