"""PDDL problems of ALFWorld's domain, read with the place of every fault.

Only problems are read, `(define (problem ...) (:domain ...) (:objects ...) (:init ...) (:goal ...))`; the domain's
actions are this package's own (`world`). Symbols know no letter case, `;` starts a comment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Predicate -> number of arguments, as ALFWorld's domain has them.
ARITY = {
    "atlocation": 2, "receptacleatlocation": 2, "objectatlocation": 2, "openable": 1, "opened": 1, "inreceptacle": 2,
    "isreceptacleobject": 1, "inreceptacleobject": 2, "isreceptacleobjectfull": 1, "wasinreceptacle": 2, "checked": 1,
    "examined": 1, "receptacletype": 2, "cancontain": 2, "objecttype": 2, "holds": 2, "holdsany": 1,
    "holdsanyreceptacleobject": 1, "full": 1, "isclean": 1, "cleanable": 1, "ishot": 1, "heatable": 1, "iscool": 1,
    "coolable": 1, "pickupable": 1, "moveable": 1, "toggleable": 1, "ison": 1, "istoggled": 1, "sliceable": 1,
    "issliced": 1,
}  # fmt: skip
_TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*|\n")
_DEEPEST = 100
_SECTIONS = (":domain", ":objects", ":init", ":goal", ":metric", ":requirements")


@dataclass(frozen=True)
class Form:
    """A list in parentheses, or a symbol, with the line on which it starts (counted from 1)."""

    line: int
    symbol: str | None = None
    parts: tuple[Form, ...] = ()

    def __str__(self) -> str:
        return self.symbol if self.symbol is not None else f"({' '.join(map(str, self.parts))})"

    @property
    def head(self) -> str | None:
        """The first symbol of a list; None where there is none."""
        return self.parts[0].symbol if self.parts else None


@dataclass(frozen=True)
class Problem:
    """A problem: `facts` as rows, predicate first, each once, costs left out; `goal` as text; both lower case.

    `where`, `fact_lines` (the line of each fact), `init_line` and `goal_line` say where it was read.
    """

    facts: tuple[tuple[str, ...], ...]
    goal: str
    where: str = "problem"
    fact_lines: tuple[int, ...] = ()
    init_line: int = 1
    goal_line: int = 1


def _fault(where: str, line: int, wanted: str, got: str) -> ValueError:
    return ValueError(f"{where}:{line}: expected {wanted}, got {got}")


def _short(form: Form | str) -> str:
    text = str(form)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _forms(text: str, where: str) -> Iterator[Form]:
    line = 1
    # The lists still open: line of the parenthesis, and what stands in it so far.
    opened: list[tuple[int, list[Form]]] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token == "(":
            if len(opened) == _DEEPEST:
                raise _fault(where, line, f"at most {_DEEPEST} nested lists", "one more")
            opened.append((line, []))
        elif token.startswith(";"):
            continue
        else:
            if token == ")":
                if not opened:
                    raise _fault(where, line, "the end of the file, or '('", "')' without its '('")
                start, parts = opened.pop()
                form = Form(start, None, tuple(parts))
            else:
                form = Form(line, token.lower())
            if opened:
                opened[-1][1].append(form)
            else:
                yield form
    if opened:
        raise _fault(where, line, f"')' for the '(' of line {opened[-1][0]}", "the end of the file")


def read_problem(text: str, where: str = "problem") -> Problem:
    """Read a problem.

    Args:
        text: the whole file.
        where: name of the file, for messages.

    Raises:
        ValueError: `where:line: expected ..., got ...` for the first fault: parentheses, sections that are unknown,
            doubled or missing, a fact that is none, an unknown predicate, a wrong number of arguments, an object that
            `(:objects ...)` does not declare.
    """
    forms = _forms(text, where)
    whole = next(forms, None)
    if whole is None or whole.head != "define":
        raise _fault(where, whole.line if whole else 1, "'(define (problem ...) ...)'", _short(whole or ""))
    extra = next(forms, None)
    if extra is not None:
        raise _fault(where, extra.line, "the end of the file", _short(extra))
    if len(whole.parts) < 2 or whole.parts[1].head != "problem":
        raise _fault(where, whole.line, "'(problem NAME)' after 'define'", _short(whole))
    sections: dict[str, Form] = {}
    for part in whole.parts[2:]:
        name = part.head
        if name not in _SECTIONS:
            raise _fault(where, part.line, f"a section, one of {', '.join(_SECTIONS)}", _short(part))
        if name in sections:
            raise _fault(where, part.line, f"one {name} section", f"a second one, after line {sections[name].line}")
        sections[name] = part
    for name in (":init", ":goal"):
        if name not in sections:
            raise _fault(where, whole.line, f"a section '({name} ...)'", f"only {', '.join(sections) or 'none'}")
    declared = _declared(sections[":objects"], where) if ":objects" in sections else None
    init = sections[":init"]
    facts = _start(init, declared, where)
    goal = sections[":goal"]
    if len(goal.parts) != 2 or goal.parts[1].symbol is not None:
        raise _fault(where, goal.line, "one formula in '(:goal ...)'", _short(goal))
    return Problem(tuple(facts), str(goal.parts[1]), where, tuple(facts.values()), init.line, goal.line)


def read_formula(text: str, where: str) -> Form:
    """The one formula of a goal's text; the parentheses that a problem's end leaves behind it are no part of it.

    Raises:
        ValueError: the text is none, as `WHERE:LINE: expected ..., got ...`.
    """
    surplus = text.count(")") - text.count("(")
    text = text.rstrip()
    while surplus > 0 and text.endswith(")"):
        text, surplus = text[:-1].rstrip(), surplus - 1
    forms = list(_forms(text, where))
    if len(forms) != 1 or forms[0].symbol is not None:
        raise _fault(where, 1, "one formula in parentheses", _short(" ".join(map(str, forms))))
    return forms[0]


def _start(init: Form, declared: frozenset[str] | None, where: str) -> dict[tuple[str, ...], int]:
    """Each fact of the start with its line. A fact may be told twice, and told not to hold, as the engine allows."""
    facts: dict[tuple[str, ...], int] = {}
    absent: dict[tuple[str, ...], int] = {}
    for form in init.parts[1:]:
        if form.head == "=":
            continue
        negated = form.head == "not" and len(form.parts) == 2
        row = _fact(form.parts[1] if negated else form, declared, where)
        (absent if negated else facts).setdefault(row, form.line)
        if row in absent and row in facts:
            first = facts[row] if negated else absent[row]
            raise _fault(where, form.line, f"what line {first} says of it", _short(form))
    return facts


def _declared(section: Form, where: str) -> frozenset[str]:
    names = []
    typed = False
    for form in section.parts[1:]:
        if form.symbol is None:
            raise _fault(where, form.line, "an object's name, or '- TYPE'", _short(form))
        if form.symbol == "-" or typed:
            typed = form.symbol == "-"
        else:
            names.append(form.symbol)
    return frozenset(names)


def _fact(form: Form, declared: frozenset[str] | None, where: str) -> tuple[str, ...]:
    if form.symbol is not None or form.head is None or any(part.symbol is None for part in form.parts):
        raise _fault(where, form.line, "a fact '(PREDICATE NAME ...)'", _short(form))
    row = tuple(str(part) for part in form.parts)
    predicate, arguments = row[0], row[1:]
    if predicate not in ARITY:
        close = difflib.get_close_matches(predicate, ARITY, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise _fault(where, form.line, f"a predicate of the household domain{hint}", repr(predicate))
    if len(arguments) != ARITY[predicate]:
        raise _fault(where, form.line, f"{ARITY[predicate]} names after {predicate!r}", _short(form))
    if declared is not None:
        for argument in arguments:
            if argument not in declared:
                raise _fault(where, form.line, "an object that (:objects ...) declares", repr(argument))
    return row
