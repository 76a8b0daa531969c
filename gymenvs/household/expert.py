"""The shortest plan from any state to the goal, by A* over what matters for it.

The expert sees the whole room. It leaves out what cannot be part of a shortest plan: closing, looking, examining
and slicing, walking twice in a row, and touching things other than those of the goal's kind and the one in hand.
The estimate counts the actions that cannot be spared and the walks between the places where they happen, so it
never exceeds the true number of steps, and the first goal taken from the queue is the best.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import NamedTuple

from rtmc.gymenvs.household import vocabulary
from rtmc.gymenvs.household.world import NOBODY, NOWHERE, State, World

IMPOSSIBLE = 1_000_000


class _Node(NamedTuple):
    place: int
    held: int  # -1, or the item in hand
    where: tuple[int, ...]  # for each wanted item, the receptacles that hold it
    opened: int
    ready: int  # wanted items that are as the goal wants them
    lit: int
    walked: bool  # the last step was a walk


class _Problem:
    """What of the world matters for its goal, with the moves and the estimate."""

    def __init__(self, world: World, state: State) -> None:
        goal = world.goal
        self.world = world
        self.light = goal.task_type == "look_at_obj_in_light"
        self.needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
        self.treatment = vocabulary.TREATMENTS.get(goal.task_type)
        self.wanted = [
            k
            for k, kind in enumerate(world.item_kinds)
            if kind == goal.object and (self.treatment is None or world.trait[self.treatment[1]] >> k & 1)
        ]
        self.movable = world.trait["pickupable"]
        self.targets = [r for r, kind in enumerate(world.receptacle_kinds) if kind == goal.receptacle]
        self.appliances = (
            [r for r, kind in enumerate(world.receptacle_kinds) if kind == self.treatment[2]] if self.treatment else []
        )
        self.lamps = [
            k
            for k, kind in enumerate(world.item_kinds)
            if kind == goal.lamp and world.trait["toggleable"] >> k & 1 and self.light
        ]
        # Lamps stay where they are unless something lets them be carried, which no plan of ours needs.
        self.lamp_places = {
            k: sorted({place for r, place in enumerate(world.receptacle_place) if state.inside[k] >> r & 1} - {NOWHERE})
            for k in self.lamps
        }
        ready = getattr(state, self.treatment[0]) if self.treatment else 0
        self.start = _Node(
            state.place,
            state.held,
            tuple(state.inside[k] for k in self.wanted),
            state.opened,
            sum(1 << k for k in self.wanted if ready >> k & 1),
            sum(1 << k for k in self.lamps if state.toggled >> k & 1),
            False,
        )

    def _open(self, node: _Node, receptacle: int) -> bool:
        return not (self.world.openable & ~node.opened) >> receptacle & 1

    def _is_ready(self, node: _Node, item: int) -> bool:
        return self.treatment is None or bool(node.ready >> item & 1)

    def reached(self, node: _Node) -> bool:
        if self.light:
            return node.held in self.wanted and any(
                node.lit >> k & 1 and node.place in self.lamp_places[k] for k in self.lamps
            )
        fit = [node.where[i] for i, k in enumerate(self.wanted) if self._is_ready(node, k)]
        return any(sum(mask >> r & 1 for mask in fit) >= self.needed for r in self.targets)

    def moves(self, node: _Node) -> list[tuple[str, _Node]]:
        world = self.world
        names, things = world.receptacle_names, world.item_names
        held = node.held
        found: list[tuple[str, _Node]] = []
        holding = 0
        for mask in node.where:
            holding |= mask
        useful = holding
        for r in self.targets + self.appliances:
            useful |= 1 << r
        if held != NOBODY:
            useful |= sum(1 << r for r, mask in enumerate(world.accepts) if mask >> held & 1)
        if not node.walked:
            seen = {node.place, NOWHERE}
            for r, place in enumerate(world.receptacle_place):
                if place not in seen and (
                    useful >> r & 1 or any(place in places for places in self.lamp_places.values())
                ):
                    seen.add(place)
                    found.append((f"go to {names[r]}", node._replace(place=place, walked=True)))
        node = node._replace(walked=False)
        for r in world.here[node.place]:
            if not self._open(node, r):
                if useful >> r & 1:
                    found.append((f"open {names[r]}", node._replace(opened=node.opened | 1 << r)))
            elif held == NOBODY:
                for i, k in enumerate(self.wanted):
                    if node.where[i] >> r & 1 and self.movable >> k & 1:
                        found.append((f"take {things[k]} from {names[r]}", self._carried(node, i, r, k)))
            elif world.accepts[r] >> held & 1:
                if held in self.wanted:
                    i = self.wanted.index(held)
                    after = self._carried(node, i, r, NOBODY)
                else:
                    after = node._replace(held=NOBODY)
                found.append((f"move {things[held]} to {names[r]}", after))
            if self.treatment and r in self.appliances and held in self.wanted and not node.ready >> held & 1:
                verb = {"hot": "heat", "cool": "cool", "clean": "clean"}[self.treatment[0]]
                found.append((f"{verb} {things[held]} with {names[r]}", node._replace(ready=node.ready | 1 << held)))
        for k in self.lamps:
            if node.place in self.lamp_places[k] and not node.lit >> k & 1:
                found.append((f"use {things[k]}", node._replace(lit=node.lit | 1 << k)))
        return found

    def _carried(self, node: _Node, i: int, receptacle: int, held: int) -> _Node:
        where = list(node.where)
        bit = 1 << receptacle
        where[i] = where[i] | bit if held == NOBODY else where[i] & ~bit
        return node._replace(where=tuple(where), held=held)

    # -- the estimate --------------------------------------------------------------------------------------

    def estimate(self, node: _Node) -> int:
        """Fewest steps still needed at least; IMPOSSIBLE if the goal is out of reach."""
        if self.reached(node):
            return 0
        if self.light:
            best = IMPOSSIBLE
            for lamp in self.lamps:
                for place in self.lamp_places[lamp]:
                    use = 0 if node.lit >> lamp & 1 else 1
                    best = min(best, use + self._fetch(node, place))
            return best
        return min((self._deliver(node, target) for target in self.targets), default=IMPOSSIBLE)

    def _sources(self, node: _Node, i: int) -> list[tuple[int, int, int]]:
        """For wanted item i: (place, actions to hold it, receptacle or -1), however it may be had."""
        k = self.wanted[i]
        if node.held == k:
            return [(node.place, 0, NOBODY)]
        if not self.movable >> k & 1:
            return []
        free = 0 if node.held == NOBODY else 1
        return [
            (place, free + 1 + (not self._open(node, r)), r)
            for r, place in enumerate(self.world.receptacle_place)
            if node.where[i] >> r & 1 and place != NOWHERE
        ]

    def _fetch(self, node: _Node, end: int) -> int:
        best = IMPOSSIBLE
        for i in range(len(self.wanted)):
            for place, actions, _ in self._sources(node, i):
                best = min(best, actions + (node.place != place) + (place != end))
        return best

    def _deliver(self, node: _Node, target: int) -> int:
        """Least cost to make `target` hold what is needed, other things left as they are."""
        world = self.world
        end = world.receptacle_place[target]
        if end == NOWHERE:
            return IMPOSSIBLE
        door = 0 if self._open(node, target) else 1
        missing = self.needed
        costs: list[tuple[int, int]] = []  # (as the first to be brought, as one more after it)
        for i, k in enumerate(self.wanted):
            if node.where[i] >> target & 1 and self._is_ready(node, k):
                missing -= 1
                continue
            if not world.accepts[target] >> k & 1:
                continue
            first = later = IMPOSSIBLE
            for place, actions, source in self._sources(node, i):
                opening = 0 if source == target else door
                if self._is_ready(node, k):
                    walks = (node.place != place) + (place != end)
                    # One more, once at the target: there and back, take and put.
                    later = min(later, 2 + (0 if place == end or node.held == k else 2))
                else:
                    actions += 1
                    walks = min(
                        (
                            (node.place != place) + (place != stop) + (stop != end)
                            for stop in {world.receptacle_place[r] for r in self.appliances}
                        ),
                        default=IMPOSSIBLE,
                    )
                first = min(first, actions + walks + 1 + opening)
            costs.append((first, later))
        if missing > len(costs):
            return IMPOSSIBLE
        if missing <= 1:
            return min((first for first, _ in costs), default=IMPOSSIBLE)
        return min(
            first + min(later for b, (_, later) in enumerate(costs) if b != a) for a, (first, _) in enumerate(costs)
        )


def shortest_plan(world: World, state: State) -> list[str] | None:
    """The commands of one shortest plan from `state` to the goal.

    Returns:
        An empty list where the goal holds already, None where no plan reaches it.
    """
    problem = _Problem(world, state)
    start = problem.start
    if problem.reached(start):
        return []
    order = count()
    queue = [(problem.estimate(start), 0, next(order), start)]
    cost = {start: 0}
    parent: dict[_Node, tuple[_Node, str]] = {}
    while queue:
        total, _, _, node = heapq.heappop(queue)
        if total >= IMPOSSIBLE:
            return None
        done = cost[node]
        if problem.reached(node):
            plan = []
            while node in parent:
                node, command = parent[node]
                plan.append(command)
            return plan[::-1]
        for command, after in problem.moves(node):
            if done + 1 < cost.get(after, IMPOSSIBLE):
                cost[after] = done + 1
                parent[after] = (node, command)
                rest = problem.estimate(after)
                heapq.heappush(queue, (done + 1 + rest, -done, next(order), after))
    return None
