"""A made-up world: things with unique names, facts about them that agree with one another, a passage for each.

    world = make_world(seed)

Facts are functions: (thing, relation) has at most one object. Teachers are 20 to 45 years older than their pupils, so
the chain of teachers ends: the oldest people have none. Each thing has a passage that states its own facts and no one
else's, among sentences that state nothing but mention other things; notices are passages that name things and relations
and state no fact. Names share their roots (Velmar the town, Velmar Academy, the Velmar Bridge), so that a passage about
one answers the words of a question about another. The same seed gives the same world on every machine.

What this is not: knowledge. No name or fact is meant to be real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple

from rtmc.gymenvs.qa.relations import RELATIONS
from rtmc.gymenvs.qa.retrieval.base import Passage

VERSION = 1  # of the world that a seed gives
SIZES = {
    "person": 1800, "town": 500, "company": 500, "school": 250, "book": 900, "ship": 450, "bridge": 300,
    "festival": 250, "river": 120, "region": 30,
}  # fmt: skip
NOTICES = 900


def _words(text: str) -> tuple[str, ...]:
    """How lists of names are written here."""
    return tuple(text.split())


_ONSETS = _words("b br c d dr f g gr h j k l m n p r s st t th tr v w z")
_VOWELS = _words("a e i o u ae ia or en al")
_ENDS = _words("l m n r s th v nd rn lt mar vin dell rick mond ster wyn gard holm set")
_FIRST = _words("a e i o en in el ia or an is us")
_ADJECTIVES = _words(
    "Amber Ancient Bitter Broken Burning Careful Crooked Distant Drowned Early Empty Faithful Fallen Forgotten Frozen "
    "Gentle Golden Hidden Hollow Honest Hungry Idle Iron Late Lonely Long Lost Narrow Nameless Painted Patient Pale "
    "Quiet Restless Scarlet Second Seventh Shallow Silent Silver Sleeping Slow Stolen Sunken Tall Thirsty Twisted "
    "Unwritten Wandering Winter"
)
_NOUNS = _words(
    "Almanac Anchor Bell Candle Carriage Clock Compass Crown Door Ferry Field Garden Harvest Heron House Island Key "
    "Ladder Lamp Lantern Letter Mapmaker Market Mirror Orchard Passage Pilgrim Quarry River Road Sail Shepherd Song "
    "Stair Stone Storm Summer Tide Tower Voyage Well Window"
)
_COMPANY = ("Works", "Mills", "Press", "Trading House", "Yards", "Foundry")
_SCHOOL = ("Academy", "College", "Seminary")
_FESTIVAL = ("Lantern Fair", "Harvest Feast", "Spring Games", "Kite Days")
_FILLER = (
    "Travellers who come from {a} often remark on it.",
    "An old engraving shows it beside {a}, though the scale is wrong.",
    "Letters kept in the archive compare it with {a} and with {b}.",
    "Few visitors know that {a} once bore a similar name.",
    "A quarrel with {a} was settled without a court.",
    "In the guide books it stands between {a} and {b}.",
    "Its story is told together with that of {a}.",
    "The almanacs mention it once, and {a} twice.",
)
_KIND_LINE = {
    "person": "{s} is a name known in several trades.", "town": "{s} is a town of modest size.",
    "company": "{s} is a company of the old kind.", "school": "{s} is a school with a long register.",
    "book": "{s} is a book in three parts.", "ship": "{s} is a ship with two masts.",
    "bridge": "{s} is a bridge of nine arches.", "festival": "{s} is a festival that lasts four days.",
    "river": "{s} is a river of middling length.", "region": "{s} is a region of hills and moors.",
}  # fmt: skip


class Thing(NamedTuple):
    """A thing of the world; years are facts, no things."""

    name: str
    kind: str


class World:
    """Things, facts and passages. `facts[(subject's name, relation)]` is the object's name, or a year as text."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(f"rtmc search qa world {VERSION} {seed}")
        self.things = _name_things(rng)
        self.by_kind = {kind: [one.name for one in self.things if one.kind == kind] for kind in SIZES}
        self.kind_of = {one.name: one.kind for one in self.things}
        self.facts = _draw_facts(rng, self.by_kind)

    @cached_property
    def passages(self) -> list[Passage]:
        """One passage a thing, then the notices, in an order that tells nothing of what they are."""
        rng = random.Random(f"rtmc search qa passages {VERSION} {self.seed}")
        made = [(thing.name, _about(rng, thing, self)) for thing in self.things]
        made += [_notice(rng, number, self) for number in range(NOTICES)]
        rng.shuffle(made)
        return [Passage.made(str(number), title, text) for number, (title, text) in enumerate(made)]

    @cached_property
    def passage_of(self) -> dict[str, Passage]:
        """The passage of each thing, by the thing's name."""
        return {passage.title: passage for passage in self.passages if passage.title in self.kind_of}


@lru_cache(maxsize=2)
def make_world(seed: int = 0) -> World:
    """The world of a seed; made once a process."""
    return World(seed)


def _name_things(rng: random.Random) -> list[Thing]:
    def distinct(number: int, draw: Callable[[], str]) -> list[str]:
        found: dict[str, None] = {}
        while len(found) < number:
            found.setdefault(draw())
        return list(found)

    def root() -> str:
        middle = rng.choice(_ONSETS) + rng.choice(_VOWELS) if rng.random() < 0.5 else ""
        return (rng.choice(_ONSETS) + rng.choice(_VOWELS) + middle + rng.choice(_ENDS)).capitalize()

    roots = distinct(900, root)
    given = distinct(140, lambda: (rng.choice(_ONSETS) + rng.choice(_VOWELS) + "l" + rng.choice(_FIRST)).capitalize())
    family = roots[500:]
    draws: dict[str, Callable[[], str]] = {
        "person": lambda: f"{rng.choice(given)} {rng.choice(family)}",
        "town": iter(roots).__next__,
        "company": lambda: f"{rng.choice(roots)} {rng.choice(_COMPANY)}",
        "school": lambda: f"{rng.choice(roots)} {rng.choice(_SCHOOL)}",
        "book": lambda: f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}",
        "ship": lambda: f"{rng.choice(_ADJECTIVES)} {rng.choice(given)}",
        "bridge": lambda: f"{rng.choice(roots)} Bridge",
        "festival": lambda: f"{rng.choice(roots)} {rng.choice(_FESTIVAL)}",
        "river": lambda: f"River {rng.choice(roots)}",
        "region": lambda: f"{rng.choice(roots)} {rng.choice(('March', 'Vale', 'Downs'))}",
    }
    return [Thing(name, kind) for kind, number in SIZES.items() for name in distinct(number, draws[kind])]


def _draw_facts(rng: random.Random, by_kind: dict[str, list[str]]) -> dict[tuple[str, str], str]:
    facts: dict[tuple[str, str], str] = {}
    born = {name: rng.randrange(1700, 1880) for name in by_kind["person"]}
    by_age = sorted(born, key=lambda name: (born[name], name))
    older: dict[str, list[str]] = {}
    for name in by_age:
        older[name] = [one for one in by_age if 20 <= born[name] - born[one] <= 45]
    for relation in RELATIONS.values():
        for subject in by_kind[relation.subject]:
            if relation.name == "birth year":
                facts[subject, relation.name] = str(born[subject])
            elif relation.name == "teacher":
                if older[subject]:
                    facts[subject, relation.name] = rng.choice(older[subject])
            else:
                facts[subject, relation.name] = rng.choice(by_kind[relation.object])
    return facts


def _about(rng: random.Random, thing: Thing, world: World) -> str:
    told = [
        rng.choice(relation.sentences).format(s=thing.name, o=world.facts[thing.name, relation.name])
        for relation in RELATIONS.values()
        if (thing.name, relation.name) in world.facts
    ]
    told += [_filler(rng, world) for _ in range(rng.randrange(2, 5))]
    rng.shuffle(told)
    return " ".join([_KIND_LINE[thing.kind].format(s=thing.name), *told])


def _filler(rng: random.Random, world: World) -> str:
    a, b = rng.choice(world.things).name, rng.choice(world.things).name
    return rng.choice(_FILLER).format(a=a, b=b)


def _notice(rng: random.Random, number: int, world: World) -> tuple[str, str]:
    """Title and text of a passage that asks what questions ask, and answers nothing."""
    lines = []
    for _ in range(3):
        relation = rng.choice(list(RELATIONS.values()))
        subject = rng.choice(world.by_kind[relation.subject])
        wanted = relation.noun.format(x=subject)
        lines.append(rng.choice(("Readers ask about {}.", "Nothing certain is known here of {}.",
                                 "A prize is set for news of {}.")).format(wanted))  # fmt: skip
    lines.append(_filler(rng, world))
    return f"Notice {number + 1} of the Common Reader", " ".join(lines)
