"""Regular expressions as their parts, read from left to right in the dialect that they are written in.

What this is not: nothing is matched here (rtmc/signatures/patterns.py). A repeated group, an alternative, a
backreference and a look-around have no parts: such a pattern is refused.
Source: the manuals of GNU sed (basic and extended expressions, brackets), perl and Python's `re`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PARTS = 200
CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_POSIX = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "blank": r" \t", "upper": "A-Z"},
    **{"lower": "a-z", "xdigit": "0-9a-fA-F", "punct": r"!-/:-@\[-`{-~", "word": r"\w"},
}
_ENDLESS = 0
_COUNT = re.compile(r"(\d{0,3})(,?)(\d{0,3})")


@dataclass(frozen=True, slots=True)
class Part:
    """kind    "text" (`text` itself); "set" (one character of the class `text`), "maybe" (one or none), "any" (any
             number of them); "at" (a place: ^ $ b B < >); "open", "close" (of the group `group`)
    lazy    takes as few as it can
    """

    kind: str
    text: str = ""
    lazy: bool = False
    group: int = 0


def pattern_parts(pattern: str, dialect: str, folded: bool) -> tuple[list[Part], int] | None:
    """(parts, number of groups) of a pattern in a dialect of rtmc/signatures/patterns.py; `folded`: capital and small
    letters are the same, and the parts' texts small. None for a pattern that is not followed, or that has no part."""
    reader = _Reader(pattern, dialect, folded)
    try:
        parts = reader.parts()
    except _NotFollowedError:
        return None
    return (parts, reader.groups) if 0 < len(parts) <= MAX_PARTS else None


class _NotFollowedError(Exception):
    """The pattern has a part that is not followed."""


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str, dialect: str, folded: bool) -> None:
        self._pattern = pattern
        self._folded = folded
        self._dialect = dialect
        self._basic = dialect == "sed"
        self._posix = dialect.startswith("sed")
        self._at = 0
        self._found: list[Part] = []
        self._open: list[int] = []
        self.groups = 0

    def parts(self) -> list[Part]:
        """All parts. Raises _NotFollowedError."""
        while self._at < len(self._pattern):
            self._one()
        if self._open:
            raise _NotFollowedError
        return self._found

    def _next(self, count: int = 1) -> str:
        return self._pattern[self._at : self._at + count]

    def _one(self) -> None:
        here, two = self._next(), self._next(2)
        mark = two[1:] if self._basic and here == "\\" and two[1:] in tuple("(){}+?|") else ""
        mark = here if not self._basic and here in "(){+?|" else mark
        if mark in ("(", ")"):
            self._at += len(two) if self._basic else 1
            self._group(mark)
        elif mark == "{" and not self._posix and not re.match(r"\{\d*,?\d*\}", self._pattern[self._at :]):
            self._at += 1
            self._repeated("{", literal=True)
        elif mark:  # a repetition of nothing, an alternative
            raise _NotFollowedError
        elif here == "*":
            if not (self._basic and self._starts()):
                raise _NotFollowedError
            self._at += 1
            self._repeated("*", literal=True)
        elif here == "^" and (not self._basic or self._starts()):
            self._place("^")
        elif here == "$" and self._ends():
            self._place("$")
        elif here == "[":
            self._repeated(self._class(), literal=False)
        elif here == ".":
            self._at += 1
            self._repeated(".", literal=False)
        elif here == "\\":
            self._escape(two[1:])
        elif self._dialect == "perl" and here in "$@":
            raise _NotFollowedError  # a variable
        else:
            self._at += 1
            self._repeated(here, literal=True)

    def _starts(self) -> bool:
        return all(part.kind == "open" or (part.kind, part.text) == ("at", "^") for part in self._found)

    def _ends(self) -> bool:
        rest = self._pattern[self._at + 1 :]
        return not rest or rest.startswith("\\)" if self._basic else ")")

    def _place(self, place: str) -> None:
        self._found.append(Part("at", place))
        self._at += 1

    def _group(self, mark: str) -> None:
        if mark == "(":
            plain = True
            if not self._posix and self._next() == "?":
                if self._next(2) != "?:":
                    raise _NotFollowedError
                self._at += 2
                plain = False
            self.groups += plain
            self._open.append(self.groups if plain else 0)
            if plain:
                self._found.append(Part("open", group=self.groups))
            return
        if not self._open:
            raise _NotFollowedError
        group = self._open.pop()
        if group:
            self._found.append(Part("close", group=group))
        if self._count() != (1, 1, False):
            raise _NotFollowedError

    def _escape(self, letter: str) -> None:
        self._at += 2
        if letter in ("b", "B", "<", ">") and letter and (letter in "bB" or self._posix):
            self._found.append(Part("at", letter))
        elif letter in ("s", "S", "w", "W") or (letter in ("d", "D") and not self._posix):
            self._repeated(f"\\{letter}", literal=False)
        elif letter in ("n", "t"):
            self._repeated(CONTROL[letter], literal=True)
        elif not letter or letter.isalnum() or letter in "`'<>":
            raise _NotFollowedError
        else:
            self._repeated(letter, literal=True)

    def _class(self) -> str:
        """A class in brackets as Python writes it."""
        at = self._at + 1
        made = "["
        if self._pattern[at : at + 1] == "^":
            made, at = "[^", at + 1
        first = True
        while True:
            here, two = self._pattern[at : at + 1], self._pattern[at : at + 2]
            if not here:
                raise _NotFollowedError
            if here == "]" and not first:
                break
            named = re.compile(r"\[:(\w+):\]").match(self._pattern, at)
            if self._posix and named:
                if named[1] not in _POSIX:
                    raise _NotFollowedError
                made, at = made + _POSIX[named[1]], named.end()
            elif here == "\\" and (not self._posix or two[1:] in ("n", "t")):
                if len(two) < 2 or (two[1].isalnum() and two[1] not in "sSwWdDnt"):
                    raise _NotFollowedError
                made, at = made + two, at + 2
            else:
                made, at = made + (here if here == "-" or here.isalnum() else re.escape(here)), at + 1
            first = False
        self._at = at + 1
        try:
            re.compile(made + "]")
        except re.error:
            raise _NotFollowedError from None
        return made + "]"

    def _count(self) -> tuple[int, int, bool]:
        """(least, most, lazy) of the repetition that stands here; most 0 = without end."""
        here, two = self._next(), self._next(2)
        mark = here if here == "*" or (not self._basic and here and here in "+?{") else ""
        if self._basic and two in ("\\+", "\\?", "\\{"):
            mark = two[1]
        if not mark:
            return 1, 1, False
        size = 2 if self._basic and mark != "*" else 1
        least, most = {"*": (0, _ENDLESS), "+": (1, _ENDLESS), "?": (0, 1)}.get(mark, (1, 1))
        if mark == "{":
            close = "\\}" if self._basic else "}"
            found = _COUNT.match(self._pattern, self._at + size)
            if found is None or not (found[1] or found[3]) or not self._pattern.startswith(close, found.end()):
                if self._posix:
                    raise _NotFollowedError
                return 1, 1, False
            least = int(found[1] or 0)
            most = (int(found[3]) if found[3] else _ENDLESS) if found[2] else least
            size = found.end() + len(close) - self._at
            if most != _ENDLESS and most < max(least, 1):
                raise _NotFollowedError
        self._at += size
        lazy = not self._posix and self._next() == "?"
        self._at += lazy
        if self._next() and (self._next() == "*" or (not self._basic and self._next() in "+?")):
            raise _NotFollowedError  # repeated twice, or possessive
        return least, most, lazy

    def _repeated(self, text: str, literal: bool) -> None:
        """A character or a class, with the repetition behind it."""
        least, most, lazy = self._count()
        text = text.lower() if literal and self._folded else text
        if literal and least == most == 1:
            before = self._found[-1] if self._found else None
            if before is not None and before.kind == "text":
                self._found[-1] = Part("text", before.text + text)
            else:
                self._found.append(Part("text", text))
            return
        characters = re.escape(text) if literal else text
        self._found += [Part("set", characters)] * least
        if most == _ENDLESS:
            self._found.append(Part("any", characters, lazy))
        else:
            self._found += [Part("maybe", characters, lazy)] * (most - least)
        if len(self._found) > 2 * MAX_PARTS:
            raise _NotFollowedError
