"""The shortest plan from any state to the goal, by A* over what matters for it.

The expert sees the whole room. It leaves out what cannot be part of a shortest plan: closing, looking and examining,
slicing that no goal asks for, walking twice in a row, and touching things other than those of the goal's kind, the
one in hand and, for a goal on sliced things, knives.
The estimate counts the actions that cannot be spared and the walks between the places where they happen, so it
never exceeds the true number of steps, and the first goal taken from the queue is the best.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import NamedTuple

from rtmc.gymenvs.household.world import NOBODY, NOWHERE, State, World, bits

IMPOSSIBLE = 1_000_000


class _Node(NamedTuple):
    place: int
    held: int  # -1, or the item in hand
    where: tuple[int, ...]  # for each wanted item, and each knife if one is needed, the receptacles that hold it
    opened: int
    ready: int  # wanted items treated as the goal wants them
    cut: int  # wanted items that are sliced, if the goal wants that
    lit: int
    walked: bool  # the last step was a walk


class _Problem:
    """What of the world matters for its goal, with the moves and the estimate."""

    def __init__(self, world: World, state: State) -> None:
        self.world = world
        self.light, self.needed, self.treatment = world.light, world.needed, world.treatment
        self.wanted = bits(world.wanted)
        self.sliced = world.goal.sliced
        self.knives = bits(world.knives) if self.sliced else []
        self.carried = self.wanted + self.knives
        self.movable = world.trait["pickupable"]
        self.targets = world.targets
        self.target_mask = sum(1 << r for r in self.targets)
        self.appliances = (
            [r for r, kind in enumerate(world.receptacle_kinds) if kind == self.treatment[2]] if self.treatment else []
        )
        self.lamps = bits(world.lamps)
        things = self.lamps + self.carried
        holders = {k: [r for r, mask in enumerate(state.contents) if mask >> k & 1] for k in things}
        # Lamps stay where they are unless something lets them be carried, which no plan of ours needs.
        self.lamp_holders = {k: holders[k] for k in self.lamps}
        self.lamp_places = {k: {world.receptacle_place[r] for r in holders[k]} - {NOWHERE} for k in self.lamps}
        self.worth_a_walk = set().union(*self.lamp_places.values()) if self.lamps else set()
        self.always_useful = sum(1 << r for r in {*self.targets, *self.appliances})
        if world.plain:
            # A lamp behind a door has to be got at first.
            self.always_useful |= sum(1 << r for r in {r for held in self.lamp_holders.values() for r in held})
        self._taken_by: dict[int, int] = {}
        ready = getattr(state, self.treatment[0]) if self.treatment else 0
        self.start = _Node(
            state.place,
            state.held,
            tuple(sum(1 << r for r in holders[k]) for k in self.carried),
            state.opened,
            world.wanted & ready,
            world.wanted & state.sliced if self.sliced else 0,
            world.lamps & state.toggled,
            False,
        )

    def _open(self, node: _Node, receptacle: int) -> bool:
        return not (self.world.openable & ~node.opened) >> receptacle & 1

    def _is_ready(self, node: _Node, item: int) -> bool:
        return self.treatment is None or bool(node.ready >> item & 1)

    def _to_cut(self, node: _Node, item: int) -> bool:
        return self.sliced and not node.cut >> item & 1

    def reached(self, node: _Node) -> bool:
        if self.light:
            return (
                node.held in self.wanted
                and not self._to_cut(node, node.held)
                and any(node.lit >> k & 1 and node.place in self.lamp_places[k] for k in self.lamps)
            )
        fit = [
            node.where[i] & self.target_mask
            for i, k in enumerate(self.wanted)
            if (self.treatment is None or node.ready >> k & 1) and (not self.sliced or node.cut >> k & 1)
        ]
        if self.needed == 1:
            return any(fit)
        return any(sum(mask >> r & 1 for mask in fit) >= self.needed for r in self.targets)

    def _takers(self, held: int) -> int:
        """The receptacles that take the thing in hand."""
        if held not in self._taken_by:
            self._taken_by[held] = sum(1 << r for r, mask in enumerate(self.world.accepts) if mask >> held & 1)
        return self._taken_by[held]

    def moves(self, node: _Node) -> list[tuple[str, _Node]]:
        """The steps from a node that a shortest plan may take, and where they lead."""
        world = self.world
        names, things = world.receptacle_names, world.item_names
        held = node.held
        found: list[tuple[str, _Node]] = []
        useful = self.always_useful
        for mask in node.where:
            useful |= mask
        if held != NOBODY:
            useful |= self._takers(held)
        if not node.walked:
            seen = {node.place, NOWHERE}
            for r, place in enumerate(world.receptacle_place):
                if place not in seen and (useful >> r & 1 or place in self.worth_a_walk):
                    seen.add(place)
                    found.append((f"go to {names[r]}", _Node(place, *node[1:7], True)))
        else:
            node = _Node(*node[:7], False)
        for r in world.here[node.place]:
            if not self._open(node, r):
                if useful >> r & 1:
                    found.append((f"open {names[r]}", node._replace(opened=node.opened | 1 << r)))
            elif held == NOBODY:
                for i, k in enumerate(self.carried):
                    if node.where[i] >> r & 1 and self.movable >> k & 1:
                        found.append((f"take {things[k]} from {names[r]}", self._carried(node, i, r, k)))
            elif world.accepts[r] >> held & 1:
                if held in self.carried:
                    i = self.carried.index(held)
                    after = self._carried(node, i, r, NOBODY)
                else:
                    after = node._replace(held=NOBODY)
                found.append((f"move {things[held]} to {names[r]}", after))
            working = self.treatment and r in self.appliances and (not world.plain or self._open(node, r))
            if self.treatment and working and held in self.wanted and not node.ready >> held & 1:
                verb = {"hot": "heat", "cool": "cool", "clean": "clean"}[self.treatment[0]]
                found.append((f"{verb} {things[held]} with {names[r]}", node._replace(ready=node.ready | 1 << held)))
        if held in self.knives:
            for i, k in enumerate(self.wanted):
                near = [r for r in world.here[node.place] if node.where[i] >> r & 1]
                if self._to_cut(node, k) and any(not world.plain or self._open(node, r) for r in near):
                    found.append((f"slice {things[k]} with {things[held]}", node._replace(cut=node.cut | 1 << k)))
        for k in self.lamps:
            if not node.lit >> k & 1 and any(
                world.receptacle_place[r] == node.place and (not world.plain or self._open(node, r))
                for r in self.lamp_holders[k]
            ):
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
        if self.sliced and not self.knives and not node.cut:
            return IMPOSSIBLE
        if self.light:
            best = IMPOSSIBLE
            for lamp in self.lamps:
                for place in self.lamp_places[lamp]:
                    use = 0 if node.lit >> lamp & 1 else 1
                    best = min(best, use + self._fetch(node, place))
            return best
        return min((self._deliver(node, target) for target in self.targets), default=IMPOSSIBLE)

    def _sources(self, node: _Node, i: int) -> list[tuple[int, int, int]]:
        """However wanted item i may be had, slicing left aside: (place, actions to hold it, receptacle or -1)."""
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
                actions += self._to_cut(node, self.wanted[i])
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
            cut = int(self._to_cut(node, k))
            if node.where[i] >> target & 1 and self._is_ready(node, k):
                if cut:
                    costs.append((1, 1))
                else:
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
            costs.append((first + cut, later + cut))
        if missing > len(costs):
            return IMPOSSIBLE
        if missing <= 1:
            return min((first for first, _ in costs), default=IMPOSSIBLE)
        return min(
            first + min(later for b, (_, later) in enumerate(costs) if b != a) for a, (first, _) in enumerate(costs)
        )


def shortest_plan(world: World, state: State, longest: int = IMPOSSIBLE - 1) -> list[str] | None:
    """The commands of one shortest plan from `state` to the goal.

    Returns:
        An empty list where the goal holds already, None where no plan of at most `longest` steps reaches it.
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
        if total > longest:
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
