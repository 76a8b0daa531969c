"""Tasks drawn by number: the same id gives the same task on every machine. What ids mean stands in `splits`.

Every task drawn can be solved (the expert has done it), is not solved at the start, and asks for things that fit
where they are to go. Randomness is `random.Random(integer).random()` alone, whose values Python fixes for all
versions. Rooms are drawn until one serves, so that the time of a draw varies:
`bench/bench_envs.py` measured a mean of 1.3 ms and a 99th percentile of 10 ms for `tiny`, 0.7 and 3 ms for `train`.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.splits import (
    SPLITS,
    Knobs,
    check_knob,
    check_seed,
    check_split,
    check_task_type,
    read_task_id,
    task_id_of,
)
from rtmc.gymenvs.household.task import Goal, HouseholdTask, Item, Receptacle
from rtmc.gymenvs.household.world import World

T = TypeVar("T")
SEEN_LAYOUTS, UNSEEN_LAYOUTS = range(24), range(24, 30)
_LONGEST_SEARCH = 5000


def held_out(thing: str, place: str) -> bool:
    """Whether goals with this object and receptacle (or lamp) are kept for the `_unseen` splits: about a fifth."""
    return zlib.crc32(f"{thing} {place}".encode()) % 5 == 0


class _Dice:
    """Draws that depend on an integer alone."""

    def __init__(self, text: str) -> None:
        self._next = random.Random(zlib.crc32(text.encode())).random

    def chance(self, probability: float) -> bool:
        return self._next() < probability

    def between(self, fewest: int, most: int) -> int:
        return fewest + int(self._next() * (most - fewest + 1))

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self._next() * len(options))]

    def length(self, fewest: int, most: int) -> int:
        """A number from `fewest` to `most`, n as often as n to one."""

        def up_to(n: int) -> int:
            return (n * (n + 1) - fewest * (fewest - 1)) // 2

        lengths = range(fewest, most + 1)
        return lengths[bisect_right(lengths, int(self._next() * up_to(most)), key=up_to)]

    def shuffled(self, options: Iterable[T]) -> list[T]:
        rest, drawn = list(options), []
        while rest:
            drawn.append(rest.pop(int(self._next() * len(rest))))
        return drawn


def generate_task(task_id: str) -> HouseholdTask:
    """The task that an id names.

    Raises:
        ValueError: see `read_task_id`; or no room was found that the knobs allow.
    """
    split, task_type, seed, knobs = read_task_id(task_id)
    return draw_task(task_type, seed, split=split, knobs=knobs)


def draw_task(
    task_type: str, seed: int, *, split: str = "tiny", knobs: Knobs | None = None, **changes: object
) -> HouseholdTask:
    """Draw one task.

    Args:
        task_type: one of `vocabulary.TASK_TYPES`.
        seed: number of the task, at least 0.
        split: gives the usual knobs, the layouts and the goals.
        knobs: all knobs at once; by default the split's.
        changes: single knobs by name, e.g. `distractors=(2, 4)`.

    Raises:
        ValueError: a name is unknown, the seed is negative, or no room was found that the knobs allow.
    """
    return draw_with_plan(task_type, seed, split=split, knobs=knobs, **changes)[0]


def draw_with_plan(
    task_type: str, seed: int, *, split: str = "tiny", knobs: Knobs | None = None, **changes: object
) -> tuple[HouseholdTask, list[str]]:
    """Draw one task, as `draw_task`, with the shortest plan found on the way; its length says how hard the task is."""
    check_task_type(task_type)
    usual = SPLITS[check_split(split)] if knobs is None else knobs
    for knob in changes:
        check_knob(knob)
    chosen = replace(usual, **changes)  # type: ignore[arg-type]  # names are checked above, values by Knobs
    name = task_id_of(split, task_type, check_seed(seed), chosen)
    fewest, most = chosen.plan
    least = least_steps(task_type, chosen)
    if most < least:
        raise ValueError(
            f"household task {name!r}: no room was found that the knobs allow: plan={chosen.plan} is too short, "
            f"{task_type} takes at least {least} steps"
        )
    dice = _Dice(name)
    # The wanted length is drawn first: a room would otherwise nearly always have the longest one allowed.
    exact = dice.length(max(fewest, least), most) if chosen.choices else 0
    # Knobs that are seldom met by chance are insisted on; where no room has the drawn length, any that is allowed does.
    for wanted, insist in [(exact, False), (exact, True)] + [(0, True)] * bool(exact):
        for _ in range(_LONGEST_SEARCH):
            task = _Draft(dice, task_type, split, chosen, insist).task(name)
            if task is None:
                continue
            world = World(task)
            if chosen.choices and most_choices(world) > chosen.choices:
                continue
            plan = shortest_plan(world, world.start, wanted or most)
            if plan is not None and (len(plan) == wanted if wanted else fewest <= len(plan)):
                return task, plan
    raise ValueError(f"household task {name!r}: no room was found that the knobs allow")


def least_steps(task_type: str, knobs: Knobs) -> int:
    """No task of the type can be drawn that takes fewer steps: take and move, or take and use, and the treatment."""
    if task_type == "pick_two_obj_and_place":
        return 2 if knobs.choices else 4  # where choices are few, one of the two is in place already
    return 3 if task_type in voc.TREATMENTS else 2


def most_choices(world: World) -> int:
    """No fewer commands than any state of the world admits, besides help, inventory, look and examine."""
    movable = sum(1 for item in world.task.items if "pickupable" in item.traits)
    lamps = sum(1 for item in world.task.items if "toggleable" in item.traits)
    sliceable = sum(1 for item in world.task.items if "sliceable" in item.traits) if world.knives else 0
    total = len(world.receptacle_names)
    worst = total
    for here in world.here:
        appliances = sum(world.receptacle_kinds[r] in ("fridge", "microwave", "sinkbasin") for r in here)
        doors = sum(world.openable >> r & 1 for r in here)
        holding = len(here) + appliances + sliceable
        worst = max(worst, total - len(here) + doors + (lamps if here else 0) + max(movable, holding))
    return worst


@lru_cache(maxsize=1024)
def _goals(room: str, task_type: str, receptacles: frozenset[str], unseen: bool) -> dict[str, list[str]]:
    """Object kind -> target kinds of the goals that the room allows and the split may ask for; objects sorted."""
    kinds = sorted(receptacles)
    treatment = voc.TREATMENTS.get(task_type)
    if treatment and treatment[2] not in kinds:
        return {}
    objects = [o for o in voc.ROOM_OBJECTS[room] if treatment is None or o in voc.TRAITS[treatment[1]]]
    if task_type == "look_at_obj_in_light":
        lamps = voc.LAMPS if any(kind in voc.LAMP_HOLDERS for kind in kinds) else ()
        pairs = [(o, lamp) for o in objects for lamp in lamps]
    else:
        pairs = [(o, kind) for o in objects for kind in kinds if o in voc.ACCEPTS.get(kind, ()) and kind != "box"]
    goals: dict[str, list[str]] = {}
    for thing, place in pairs:
        if held_out(thing, place) == unseen:
            goals.setdefault(thing, []).append(place)
    return dict(sorted(goals.items()))


class _Draft:
    """One attempt at a room: kinds first, then places, then things.

    With `insist` it draws on until the numbers are those of the knobs, without it comes to nothing where chance left
    too few.
    """

    def __init__(self, dice: _Dice, task_type: str, split: str, knobs: Knobs, insist: bool) -> None:
        self.dice, self.task_type, self.knobs = dice, task_type, knobs
        self.unseen = split.endswith("_unseen")
        self.light = task_type == "look_at_obj_in_light"
        self.treatment = voc.TREATMENTS.get(task_type)
        self.room = dice.choice(voc.TASK_ROOMS[task_type])
        self.insist, self.short = insist, False
        # A split's own number counts draws; one that was asked for counts what lies in the room.
        self.exactly = knobs.distractors != SPLITS[split].distractors
        self.kinds: list[str] = []  # of the receptacles
        self.location: list[int] = []
        self.closed: list[bool] = []
        self.things: list[tuple[str, int]] = []  # kind and receptacle

    def task(self, name: str) -> HouseholdTask | None:
        """The task, or None where the draw came to nothing."""
        if self.knobs.receptacles is None:
            layouts = UNSEEN_LAYOUTS if self.unseen else SEEN_LAYOUTS
            self._lay_out(_Dice(f"layout {self.room} {self.dice.choice(layouts)}"))
            if not self._choose_goal(Counter(self.kinds)):
                return None
        else:
            if not self._choose_goal(voc.ROOM_RECEPTACLES[self.room]):
                return None
            self._small_room(self.dice.between(*self.knobs.receptacles), self.knobs.receptacles[0])
        self.closed = [kind in voc.OPENABLE and self.dice.chance(self.knobs.closed) for kind in self.kinds]
        if not self._place_goal_things() or not self._place_distractors():
            return None
        task = self._finished(name)
        return None if self.short else task

    def _lay_out(self, dice: _Dice) -> None:
        for kind, (fewest, most) in voc.ROOM_RECEPTACLES[self.room].items():
            self.kinds += [kind] * dice.between(fewest, most)
        self._locate(dice)

    def _locate(self, dice: _Dice) -> None:
        for _ in self.kinds:
            new = max(self.location, default=0) + 1
            shared = bool(self.location) and dice.chance(self.knobs.shared)
            self.location.append(dice.choice(self.location) if shared else new)

    def _choose_goal(self, receptacles: Iterable[str]) -> bool:
        """Object kind and target kind of the goal, among those the room has and the split may ask for."""
        goals = _goals(self.room, self.task_type, frozenset(receptacles), self.unseen)
        if not goals:
            return False
        # Object first, then its partner, so that objects with few partners are asked for as often as others.
        self.object = self.dice.choice(list(goals))
        self.target = self.dice.choice(goals[self.object])
        return True

    def _small_room(self, size: int, fewest: int) -> None:
        """A few receptacles: what the goal needs, and others that would suit the object as well."""
        table = voc.ROOM_RECEPTACLES[self.room]
        needed = [] if self.light else [self.target]
        if self.light:
            needed.append(self.dice.choice([kind for kind in voc.LAMP_HOLDERS if kind in table]))
        if self.treatment and self.treatment[2] not in needed:
            needed.append(self.treatment[2])
        fitting = [kind for kind in table if self.object in voc.ACCEPTS.get(kind, ())]
        room_for = sum(max(most, needed.count(kind)) for kind, (_, most) in table.items())
        while len(needed) < size:
            kind = self.dice.choice(fitting if self.dice.chance(0.75) else sorted(table))
            if needed.count(kind) < table[kind][1]:
                needed.append(kind)
            elif len(needed) >= (room_for if self.insist else len(table)):
                break
        self.short |= len(needed) < fewest or len(needed) > size
        self.kinds = self.dice.shuffled(needed)
        self._locate(self.dice)
        if self.treatment and self.dice.chance(0.8):
            # A short plan has no time to walk to the appliance: it stands where the object is, or is to go.
            appliance = self.kinds.index(self.treatment[2])
            self.location[appliance] = self.dice.choice(self.location)

    def _acceptors(self, kind: str) -> list[int]:
        return [r for r, place in enumerate(self.kinds) if kind in voc.ACCEPTS.get(place, ())]

    def _source(self, kind: str, avoid: Sequence[int] = ()) -> int | None:
        """Where a thing of the goal lies: in a closed receptacle with the wished-for probability."""
        options = [r for r in self._acceptors(kind) if r not in avoid]
        shut = [r for r in options if self.closed[r]]
        if not options:
            return None
        if shut and self.dice.chance(self.knobs.hidden):
            return self.dice.choice(shut)
        return self.dice.choice([r for r in options if not self.closed[r]] or options)

    def _place_goal_things(self) -> bool:
        targets = [] if self.light else [r for r, kind in enumerate(self.kinds) if kind == self.target]
        if not targets and not self.light:
            return False
        # A thing that is only to be put somewhere must not be there yet; one to be treated may be.
        avoid = [] if self.treatment else targets
        copies = 1
        if self.task_type == "pick_two_obj_and_place":
            copies = 2
            if self.knobs.choices:
                self.things.append((self.object, self.dice.choice(targets)))
                copies = 1
        if not self.knobs.choices:
            copies += self.dice.between(0, 1)
        for _ in range(copies):
            source = self._source(self.object, avoid)
            if source is None:
                return False
            self.things.append((self.object, source))
        if self.light:
            holders = [r for r, kind in enumerate(self.kinds) if kind in voc.LAMP_HOLDERS]
            if not holders:
                return False
            self.things.append((self.target, self.dice.choice(holders)))
            if self.dice.chance(0.4):
                # A lamp of the other kind gives light too, but not the light that was asked for.
                other = next(lamp for lamp in voc.LAMPS if lamp != self.target)
                self.things.append((other, self.dice.choice(holders)))
        return True

    def _place_distractors(self) -> bool:
        pool = [kind for kind in voc.ROOM_OBJECTS[self.room] if kind != self.object]
        rivals = [
            kind
            for kind in pool
            if (self.light or kind in voc.ACCEPTS.get(self.target, ()))
            and (self.treatment is None or kind in voc.TRAITS[self.treatment[1]])
        ]
        number = self.dice.between(*self.knobs.distractors)
        placed = 0
        for k in range(number):
            # The first is a rival: it would do just as well if the goal had named it.
            options = rivals if k == 0 and rivals else pool
            kind = self.dice.choice(options)
            places = self._acceptors(kind)
            if places:
                self.things.append((kind, self.dice.choice(places)))
                placed += 1
            elif k == 0 and self.knobs.choices:
                return False
        missing = self.knobs.distractors[0] - placed if self.exactly else 0
        pool = [kind for kind in pool if self._acceptors(kind)] if missing > 0 and self.insist else []
        for _ in range(missing if pool else 0):
            kind = self.dice.choice(pool)
            self.things.append((kind, self.dice.choice(self._acceptors(kind))))
        self.short |= missing > 0 and not pool
        return True

    def _finished(self, name: str) -> HouseholdTask:
        used = sorted(set(self.location))
        beside = self.dice.chance(self.knobs.at_start)
        numbers = [f"loc {n}" for n in self.dice.shuffled(range(1, len(used) + 2 - beside))]
        where = [numbers[used.index(place)] for place in self.location]
        start = self.dice.choice(where) if beside else numbers[-1]
        # The engine numbers the things of a kind downwards in the order in which it lists them.
        left = Counter(self.kinds)
        names = {}
        for r in sorted(range(len(self.kinds)), key=lambda r: (self.kinds[r], r)):
            names[r] = f"{self.kinds[r]} {left[self.kinds[r]]}"
            left[self.kinds[r]] -= 1
        receptacles = tuple(
            Receptacle(
                names[r],
                self.kinds[r],
                where[r],
                self.kinds[r] in voc.OPENABLE,
                self.kinds[r] in voc.OPENABLE and not self.closed[r],
            )
            for r in names
        )
        counts = Counter(kind for kind, _ in self.things)
        items = []
        # Shuffled, so that a number says nothing of which thing was placed first.
        for kind, r in sorted(self.dice.shuffled(self.things), key=lambda thing: thing[0]):
            items.append(Item(f"{kind} {counts[kind]}", kind, voc.traits_of(kind), (names[r],), (where[r],)))
            counts[kind] -= 1
        template = self.dice.choice(voc.SENTENCES[self.task_type])
        sentence = template.format(object=self.object, receptacle=self.target, lamp=self.target)
        goal = Goal(
            self.task_type,
            self.object,
            sentence,
            None if self.light else self.target,
            self.target if self.light else None,
        )
        present = {kind for kind, _ in self.things}
        accepts = tuple(
            (kind, tuple(sorted(voc.ACCEPTS[kind] & present)))
            for kind in sorted(set(self.kinds))
            if voc.ACCEPTS.get(kind, frozenset()) & present
        )
        return HouseholdTask(name, goal, receptacles, tuple(items), start, accepts=accepts)
