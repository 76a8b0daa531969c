"""Regular expressions of logs' edits, matched in linear time: sed's basic and extended ones, perl's, Python's.

Followed are literals, `.`, classes, `*` `+` `?` `{n,m}` (greedy and lazy) of a single character, groups, anchors and
word ends. A table says for every part of the pattern and every place of the text whether the rest of the pattern can
match from there; it is filled from the end, in (parts x characters) steps, and then read forwards. So a match is the
leftmost one, and the same that a backtracking engine finds; no pattern can make it slow.

What this is not: a repeated group, an alternative, a backreference within the pattern and a look-around are refused
(`compiled` gives None), and so is a text that would take too many steps (TooLongError).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from rtmc.signatures.patternparts import CONTROL, Part, pattern_parts

# sed's basic and extended expressions, perl's, Python's.
DIALECTS = ("sed", "sed-E", "perl", "python")
# Parts of a pattern times characters of a text.
MAX_STEPS = 1_000_000
_WORD = re.compile(r"\w")

# The groups of a match as (start, end), the whole first; (-1, -1) = not reached.
Groups = list[tuple[int, int]]


class TooLongError(ValueError):
    """Following the pattern through this text would take too many steps."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that can be followed.

    needs      a text that every match holds
    folded     capital and small letters are the same
    adjacent   an empty match may stand right behind another one (perl, Python)
    """

    parts: tuple[Part, ...]
    groups: int
    needs: str
    folded: bool
    adjacent: bool

    def matches(self, text: str) -> Iterator[Groups]:
        """The matches in order. Raises TooLongError."""
        if self.folded:
            folded = text.lower()
            if len(folded) != len(text):
                raise TooLongError("a letter whose small form is longer")
            text = folded
        if self.needs and self.needs not in text:
            return
        if len(self.parts) * (len(text) + 1) > MAX_STEPS:
            raise TooLongError(f"{len(self.parts)} parts, {len(text)} characters")
        tables, classes = self._tables(text)
        at, end = 0, -1
        while (at := tables[0].find(1, at)) >= 0:
            found = self._read(tables, classes, at)
            stop = found[0][1]
            if stop > at or self.adjacent or at != end:
                yield found
            end = stop
            at = stop if stop > at else at + 1

    @property
    def within_lines(self) -> bool:
        """Whether no match can reach over a line end, nor hangs on the ends of the text: line by line is the same."""
        return not any(_reaches_over(part) for part in self.parts)

    def spelled(self) -> str | None:
        """The one text that the pattern is written as (`.` as itself, anchors left out); None for a pattern of many."""
        if any(part.kind in ("maybe", "any") or (part.kind == "set" and part.text != ".") for part in self.parts):
            return None
        return "".join(part.text for part in self.parts if part.kind in ("text", "set")) or None

    def _tables(self, text: str) -> tuple[list[bytearray], dict[str, bytearray]]:
        classes: dict[str, bytearray] = {}
        tables = [bytearray(b"\1" * (len(text) + 1))]
        for part in reversed(self.parts):
            if part.kind in ("set", "maybe", "any") and part.text not in classes:
                classes[part.text] = _marks(part.text, self.folded, text)
            tables.append(_table(part, text, tables[-1], classes))
        tables.reverse()
        return tables, classes

    def _read(self, tables: list[bytearray], classes: dict[str, bytearray], at: int) -> Groups:
        found = [(-1, -1)] * (self.groups + 1)
        start = at
        for place, part in enumerate(self.parts):
            after = tables[place + 1]
            if part.kind == "text":
                at += len(part.text)
            elif part.kind == "set":
                at += 1
            elif part.kind in ("maybe", "any"):
                # From the next place: what follows has to match, or else this part once more.
                rest = after if part.kind == "maybe" else tables[place]
                marks = classes[part.text]
                while marks[at] and rest[at + 1] and not (part.lazy and after[at]):
                    at += 1
                    if part.kind == "maybe":
                        break
            elif part.kind == "open":
                found[part.group] = (at, at)
            elif part.kind == "close":
                found[part.group] = (found[part.group][0], at)
        found[0] = (start, at)
        return found


def _reaches_over(part: Part) -> bool:
    if part.kind in ("set", "maybe", "any"):
        return re.fullmatch(part.text, "\n") is not None
    return (part.kind == "at" and part.text in "^$") or (part.kind == "text" and "\n" in part.text)


def _marks(characters: str, folded: bool, text: str) -> bytearray:
    """1 at every place of the text whose character is of the class; 0 at its end."""
    marks = bytearray(len(text) + 1)
    for found in re.compile(characters, re.I if folded else 0).finditer(text):
        marks[found.start()] = 1
    return marks


def _table(part: Part, text: str, after: bytearray, classes: dict[str, bytearray]) -> bytearray:
    """From which places the part, and what follows it, can match."""
    size = len(text) + 1
    if part.kind in ("open", "close"):
        return after
    now = bytearray(size)
    if part.kind == "text":
        at = text.find(part.text)
        while at >= 0:
            now[at] = after[at + len(part.text)]
            at = text.find(part.text, at + 1)
    elif part.kind == "at":
        for at in range(size):
            now[at] = after[at] and _stands(part.text, text, at)
    else:
        marks = classes[part.text]
        now[-1] = after[-1] if part.kind != "set" else 0
        for at in range(size - 2, -1, -1):
            if part.kind == "set":
                now[at] = marks[at] and after[at + 1]
            else:
                now[at] = after[at] or (marks[at] and (after if part.kind == "maybe" else now)[at + 1])
    return now


def _stands(place: str, text: str, at: int) -> bool:
    if place in "^$":
        return at == (0 if place == "^" else len(text))
    before = at > 0 and _WORD.match(text[at - 1]) is not None
    behind = at < len(text) and _WORD.match(text[at]) is not None
    return {"b": before != behind, "B": before == behind, "<": behind > before, ">": before > behind}[place]


@lru_cache(maxsize=512)
def compiled(pattern: str, dialect: str, ignore_case: bool = False) -> Pattern | None:
    """The pattern, in one of DIALECTS; None for one that is not followed, and for an empty one."""
    found = pattern_parts(pattern, dialect, ignore_case)
    if found is None:
        return None
    parts, groups = found
    if any(part.lazy for part in parts) and not any(part.kind in ("text", "set") for part in parts):
        return None  # engines look twice at one place for a match that may be empty
    needs = max((part.text for part in parts if part.kind == "text"), key=len, default="")
    return Pattern(tuple(parts), groups, needs, ignore_case, not dialect.startswith("sed"))


def replaced(pattern: Pattern, replacement: str, text: str, dialect: str, first: int = 1, count: int = 1) -> str | None:
    """The text with what the pattern matches replaced: from the `first` match on, `count` of them (0 = all that
    follow); None where the replacement is not followed. Raises TooLongError."""
    made, at, number = [], 0, 0
    for found in pattern.matches(text):
        number += 1
        if number < first:
            continue
        filled = filled_in(replacement, text, found, dialect)
        if filled is None:
            return None
        made += [text[at : found[0][0]], filled]
        at = found[0][1]
        if count and number == first + count - 1:
            break
    return "".join(made) + text[at:]


_PYTHON_GROUP = re.compile(r"g<(\d{1,2})>")
_PERL_GROUP = re.compile(r"\$(?:(\d{1,2}|&)|\{(\d{1,2})\})")


def filled_in(replacement: str, text: str, found: Groups, dialect: str) -> str | None:
    """The replacement with the groups of a match put in; None for one that holds more than those."""
    made, at = [], 0
    while at < len(replacement):
        here, letter = replacement[at], replacement[at + 1 : at + 2]
        group = None
        size = 2
        if here == "\\":
            named = _PYTHON_GROUP.match(replacement, at + 1) if dialect == "python" else None
            if named is not None:
                group, size = int(named[1]), named.end() - at
            elif letter.isdecimal() and (letter != "0" or dialect.startswith("sed")):
                group = int(letter)
            elif letter in CONTROL:
                made.append(CONTROL[letter])
            elif letter.isalnum():
                return None  # changes the case, names a character
            else:
                made.append(letter)
        elif here == "&" and dialect.startswith("sed"):
            group, size = 0, 1
        elif dialect == "perl" and here in "$@" and (letter in ("{", "&") or letter.isalnum() or letter == "_"):
            named = _PERL_GROUP.match(replacement, at)
            if named is None:
                return None
            group = 0 if named[1] == "&" else int(named[1] or named[2])
            size = named.end() - at
        else:
            made.append(here)
            size = 1
        if group is not None:
            if group >= len(found) or found[group][0] < 0:
                return None
            made.append(text[slice(*found[group])])
        at += size
    return "".join(made)
