"""Questions over the made-up world: chains of one to three facts, and the older of two people four facts away.

    1 hop   Who founded Velmar Works?
    2 hops  In which town was the founder of Velmar Works born?
    3 hops  In which region does the town where the founder of Velmar Works was born lie?
    4 hops  In which year was the older of the author of B and the author of C born?

A hop is a passage that has to be read. The answer is unique by construction: names are unique, every relation is a
function, and the passages state each fact once and no other (`tests/test_qa_world.py` parses all of them back). No
answer occurs in its question, no thing occurs twice on a chain, and two people compared have different birth years.

Splits: every thing belongs to `train` or to `valid` (one in five); the things that a question names and the things
whose facts give the answer are all of its split, so no fact that answers a question of `valid` answers one of `train`.
Question n of a split has n % 4 + 1 hops.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from typing import NamedTuple

from rtmc.gymenvs.qa.metrics import normalize_answer
from rtmc.gymenvs.qa.questions import Question
from rtmc.gymenvs.qa.relations import OLDER, RELATIONS
from rtmc.gymenvs.qa.world import VERSION, World, make_world

SPLITS = {"train": 4000, "valid": 400}
HOPS = (1, 2, 3, 4)
_TO_PEOPLE = ("founder", "author", "captain", "designer", "patron", "mayor", "head")


class Program(NamedTuple):
    """How a question is answered: from each start along the relations; of several ends the least year is taken."""

    starts: tuple[str, ...]
    relations: tuple[str, ...]


class Made(NamedTuple):
    """A question with its program."""

    question: Question
    program: Program


@lru_cache(maxsize=4)
def make_questions(split: str, seed: int = 0) -> tuple[Made, ...]:
    """All questions of a split of the world of a seed; made once a process.

    Raises:
        ValueError: the split is none of `SPLITS`.
    """
    if split not in SPLITS:
        raise ValueError(f"Search QA: unknown split {split!r}; there are {', '.join(map(repr, SPLITS))}")
    world = make_world(seed)
    rng = random.Random(f"rtmc search qa questions {VERSION} {seed} {split}")
    starts = {name: side_of(name, seed) == split for name in world.kind_of}
    made: list[Made] = []
    asked: set[str] = set()
    while len(made) < SPLITS[split]:
        hops = HOPS[len(made) % len(HOPS)]
        program = _older(rng, world) if hops == 4 else _chain(rng, world, hops)
        if program is None:
            continue
        paths = [follow(world, start, program.relations) for start in program.starts]
        if not all(starts[path[0]] and starts[path[-2]] for path in paths):
            continue
        answer, text = min(path[-1] for path in paths), ask(program)
        if text in asked or f" {normalize_answer(answer)} " in f" {normalize_answer(text)} ":
            continue
        asked.add(text)
        made.append(Made(_question(f"{split}/{len(made)}", text, answer, program, paths), program))
    return tuple(made)


def side_of(name: str, seed: int = 0) -> str:
    """The split that a thing belongs to."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return "valid" if digest[0] % 5 == 0 else "train"


def follow(world: World, start: str, relations: tuple[str, ...]) -> list[str]:
    """The things on a chain, the start and the answer included. Raises KeyError where a fact is missing."""
    path = [start]
    for relation in relations:
        path.append(world.facts[path[-1], relation])
    return path


def ask(program: Program) -> str:
    """The question of a program."""
    *inner, last = program.relations
    nouns = []
    for noun in program.starts:
        for relation in inner:
            noun = RELATIONS[relation].noun.format(x=noun)
        nouns.append(noun)
    if len(nouns) == 2:
        return OLDER.format(x=nouns[0], y=nouns[1])
    return RELATIONS[last].question.format(x=nouns[0])


def _chain(rng: random.Random, world: World, hops: int) -> Program | None:
    """A chain of so many relations from a thing drawn; None where it runs into itself or ends too early."""
    start = rng.choice(world.things)
    kind, relations, path = start.kind, [], [start.name]
    for _ in range(hops):
        usable = [name for name, one in RELATIONS.items() if one.subject == kind and (path[-1], name) in world.facts]
        if not usable:
            return None
        relations.append(rng.choice(usable))
        kind = RELATIONS[relations[-1]].object
        path.append(world.facts[path[-1], relations[-1]])
    return Program((start.name,), tuple(relations)) if len(set(path)) == len(path) else None


def _older(rng: random.Random, world: World) -> Program | None:
    relation = rng.choice(_TO_PEOPLE)
    pair = rng.sample(world.by_kind[RELATIONS[relation].subject], 2)
    people = [world.facts[one, relation] for one in pair]
    years = {world.facts[one, "birth year"] for one in people}
    return Program(tuple(pair), (relation, "birth year")) if len(years) == 2 else None


def _question(name: str, text: str, answer: str, program: Program, paths: list[list[str]]) -> Question:
    # What the oracle asks: the names on the chains; those that are known at the same time in one query.
    searches = tuple(" ".join(dict.fromkeys(level)) for level in zip(*(path[:-1] for path in paths), strict=True))
    titles = dict.fromkeys(name for path in paths for name in path[:-1])
    kind = "comparison" if len(program.starts) == 2 else "chain"
    return Question(
        id=name,
        text=text,
        answers=(answer,),
        kind=kind,
        hops=len(titles),
        support=tuple((title,) for title in titles),
        searches=searches,
    )
