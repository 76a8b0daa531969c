"""The made-up world's kinds of things and the relations between them, with the sentences that state and ask them.

Every relation is a function: a thing has at most one such object. `sentences` state it (two wordings); `noun` names the
object inside a longer question; `question` asks for it. Wordings are whole patterns of their own, so that a sentence
states one relation and no other.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Relation(NamedTuple):
    """`subject` and `object` are kinds of things; `object` may be `year`."""

    name: str
    subject: str
    object: str
    sentences: tuple[str, str]
    noun: str
    question: str


_TABLE = [
    Relation("birthplace", "person", "town",
             ("{s} was born in {o}.", "The birthplace of {s} is {o}."),
             "the town where {x} was born", "In which town was {x} born?"),
    Relation("birth year", "person", "year",
             ("The year of birth of {s} is {o}.", "{s} first saw the light in the year {o}."),
             "the birth year of {x}", "In which year was {x} born?"),
    Relation("school", "person", "school",
             ("{s} studied at {o}.", "{s} received an education at {o}."),
             "the school where {x} studied", "At which school did {x} study?"),
    Relation("employer", "person", "company",
             ("{s} spent a working life with {o}.", "{s} was employed by {o}."),
             "the company that employed {x}", "Which company employed {x}?"),
    Relation("teacher", "person", "person",
             ("{s} learned the craft from {o}.", "{o} was the teacher of {s}."),
             "the teacher of {x}", "Who was the teacher of {x}?"),
    Relation("region", "town", "region",
             ("{s} lies in {o}.", "{s} belongs to the lands of {o}."),
             "the region in which {x} lies", "In which region does {x} lie?"),
    Relation("river", "town", "river",
             ("{s} stands on the banks of {o}.", "The mills of {s} are driven by {o}."),
             "the river on which {x} stands", "On which river does {x} stand?"),
    Relation("mayor", "town", "person",
             ("{o} is the mayor of {s}.", "The town hall of {s} is led by {o}, its mayor."),
             "the mayor of {x}", "Who is the mayor of {x}?"),
    Relation("founder", "company", "person",
             ("{s} was founded by {o}.", "The founder of {s} is {o}."),
             "the founder of {x}", "Who founded {x}?"),
    Relation("seat", "company", "town",
             ("{s} has its seat in {o}.", "The offices of {s} are in {o}."),
             "the town where {x} has its seat", "In which town does {x} have its seat?"),
    Relation("head", "school", "person",
             ("{s} is headed by {o}.", "The head of {s} is {o}."),
             "the head of {x}", "Who is the head of {x}?"),
    Relation("school town", "school", "town",
             ("The halls of {s} stand in {o}.", "{s} teaches its pupils in {o}."),
             "the town of {x}", "In which town is {x}?"),
    Relation("author", "book", "person",
             ("{s} was written by {o}.", "The author of {s} is {o}."),
             "the author of {x}", "Who wrote {x}?"),
    Relation("publisher", "book", "company",
             ("{s} was published by {o}.", "{o} brought {s} to print."),
             "the publisher of {x}", "Which company published {x}?"),
    Relation("captain", "ship", "person",
             ("{s} sails under {o}.", "The captain of {s} is {o}."),
             "the captain of {x}", "Who is the captain of {x}?"),
    Relation("builder", "ship", "company",
             ("{s} was built by {o}.", "The hull of {s} was laid down by {o}."),
             "the builder of {x}", "Which company built {x}?"),
    Relation("home port", "ship", "town",
             ("{s} has {o} as its home port.", "The home port of {s} is {o}."),
             "the home port of {x}", "Which town is the home port of {x}?"),
    Relation("designer", "bridge", "person",
             ("{s} was designed by {o}.", "The plans of {s} were drawn by {o}."),
             "the designer of {x}", "Who designed {x}?"),
    Relation("bridge river", "bridge", "river",
             ("{s} crosses {o}.", "{s} spans the waters of {o}."),
             "the river that {x} crosses", "Which river does {x} cross?"),
    Relation("host", "festival", "town",
             ("{s} is held in {o}.", "{s} fills the streets of {o}."),
             "the town that hosts {x}", "Which town hosts {x}?"),
    Relation("patron", "festival", "person",
             ("{s} is paid for by {o}.", "The patron of {s} is {o}."),
             "the patron of {x}", "Who is the patron of {x}?"),
    Relation("source", "river", "region",
             ("{s} rises in {o}.", "The springs of {s} are found in {o}."),
             "the region where {x} rises", "In which region does {x} rise?"),
    Relation("governor", "region", "person",
             ("{s} is governed by {o}.", "{o} holds the office of governor of {s}."),
             "the governor of {x}", "Who is the governor of {x}?"),
    Relation("capital", "region", "town",
             ("{s} has its capital at {o}.", "The capital of {s} is {o}."),
             "the capital of {x}", "Which town is the capital of {x}?"),
]  # fmt: skip
RELATIONS = {relation.name: relation for relation in _TABLE}

# How often the question asks for the older of two: the answer is no part of the question.
OLDER = "In which year was the older of {x} and {y} born?"


def _pattern(sentence: str) -> re.Pattern[str]:
    return re.compile(re.escape(sentence).replace(r"\{s\}", "(?P<s>.+)").replace(r"\{o\}", "(?P<o>.+)"))


_PATTERNS = [(relation.name, _pattern(text)) for relation in _TABLE for text in relation.sentences]


def facts_in(text: str) -> list[tuple[str, str, str]]:
    """The facts (subject, relation, object), by name, that the sentences of a text state, in its order."""
    found = []
    for sentence in re.findall(r"[^.]+\.", text):
        for name, pattern in _PATTERNS:
            match = pattern.fullmatch(sentence.strip())
            if match:
                found.append((match["s"], name, match["o"]))
    return found
