"""Programmes that change lines in place: sed's `s`, `d`, `c`, `a`, `i`, and perl's `s///`, in the dialect they use.

What this is not: a sed. Of regular expressions those of rtmc/signatures/patterns.py are followed; what another one
changes stays unknown.
Source: GNU sed's manual, sections 3 and 4 (addresses, text of `a`, `i`, `c`, its escapes and its one-line form).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rtmc.signatures.effects import Swap
from rtmc.signatures.patterns import MAX_STEPS, Pattern, TooLongError, compiled, filled_in, replaced

# Dialects of programmes: they are the scopes of effects whose `new` is a programme.
PROGRAMMES = ("sed", "sed-E", "perl")
_ADDRESS = re.compile(r"\d{1,9}|\$|\+\d{1,9}|/((?:[^/\\\n]|\\.){1,500})/")
_CONDITION = re.compile(r"[ \t]+if[ \t]*\(?(?:\$\.[ \t]*==[ \t]*(\d{1,9})|(/(?:[^/\\\n]|\\.){1,500}/))\)?")
_MAX_COMMANDS = 50
_PAIRED = {"{": "}", "(": ")", "[": "]", "<": ">"}


@dataclass(frozen=True, slots=True)
class _Command:
    """One command: first and last address as written (None = none), whether they are turned round by `!`, verb, and its
    pattern, replacement and flags, or its text."""

    low: str | None
    high: str | None
    verb: str
    pattern: str = ""
    text: str = ""
    flags: str = ""
    negated: bool = False


def sed_change(
    programme: str, lines: dict[int, str], dialect: str = "sed", whole: bool = True
) -> dict[int, str] | None:
    """The known lines of a file by number as a programme leaves them; None where that is not told, or where it changes
    none of them. `whole`: they are all that the file has."""
    commands = _commands(programme, dialect)
    if not commands or not lines:
        return None
    numbers = sorted(lines)
    patterns = [_pattern(c.pattern, dialect, c.flags) if c.verb == "s" else None for c in commands]
    size = sum(map(len, lines.values())) + len(lines)
    if any(p is not None and not p.needs and len(p.parts) * size > 2 * MAX_STEPS for p in patterns):
        return None
    try:
        spans = [_span(command, lines, numbers, dialect, whole) for command in commands]
        after = _changed(commands, patterns, spans, lines, dialect)
    except TooLongError:
        return None
    return None if after == lines else after


def _changed(
    commands: list[_Command],
    patterns: list[Pattern | None],
    spans: list[set[int] | None],
    lines: dict[int, str],
    dialect: str,
) -> dict[int, str] | None:
    after: dict[int, str] = {}
    shift = 0
    for number in sorted(lines):
        before: list[str] = []
        behind: list[str] = []
        line: str | None = lines[number]
        for command, pattern, span in zip(commands, patterns, spans, strict=True):
            if span is None:
                return None
            if number not in span or line is None:
                continue
            if command.verb == "i":
                before.append(command.text)
            elif command.verb == "a":
                behind.append(command.text)
            elif command.verb == "s":
                line = None if pattern is None else _substituted(command, pattern, line, dialect)
                if line is None:
                    return None
            else:
                line = None
                if command.verb == "c" and (number == max(span) or command.negated):
                    before.append(command.text)
        put = "\n".join([*before, *([] if line is None else [line]), *behind])
        made = put.split("\n") if before or behind or line is not None else []
        for text in made:
            after[number + shift] = text
            shift += 1
        shift -= 1
    return after


def sed_texts(programme: str, dialect: str = "sed") -> tuple[str | None, str]:
    """(old, new) where the file's lines are not known, as far as the programme spells it: the texts of a substitution,
    the text that is inserted. The old text is None where it is not told."""
    commands = _commands(programme, dialect)
    if not commands:
        return None, programme
    if all(command.verb in "ai" for command in commands):
        return "", "\n".join(command.text for command in commands)
    first = commands[0]
    if len(commands) > 1 or first.verb != "s":
        return None, "\n".join(command.text for command in commands if command.text) or programme
    return swap_texts(Swap(first.pattern, first.text, dialect=dialect))


def swap_texts(swap: Swap) -> tuple[str, str]:
    """(old, new) of a replacement, as far as its pattern spells them; the pattern and the replacement as they are
    written where it does not."""
    if not swap.dialect:
        return swap.old, swap.new
    if (swap.old == "$" and swap.new.startswith("\\n")) or (swap.old == "^" and swap.new.endswith("\\n")):
        new = filled_in(swap.new, "", [(0, 0)], swap.dialect)
        if new is not None:
            return "", new.strip("\n")  # a line of its own after or before
    pattern = compiled(swap.old, swap.dialect)
    old = None if pattern is None else pattern.spelled()
    if pattern is None or old is None:
        return swap.old, swap.new
    new = next((filled_in(swap.new, old, found, swap.dialect) for found in pattern.matches(old)), None)
    return (swap.old, swap.new) if new is None else (old, new)


def perl_swap(programme: str) -> Swap | None:
    """The one substitution that a perl programme makes in a file read whole; else None."""
    commands = _commands(programme, "perl")
    if len(commands) != 1 or commands[0].verb != "s" or commands[0].low is not None:
        return None
    only = commands[0]
    if set(only.flags) - {"g"} or compiled(only.pattern, "perl") is None:
        return None
    return Swap(only.pattern, only.text, 0 if "g" in only.flags else 1, "perl")


def line_edit(low: int, high: int, text: str | None) -> str:
    """The programme that puts `text` in the place of lines low to high (low > high: before line `low`)."""
    if text is None:
        return f"{low},{high}d"
    body = text.replace("\\", "\\\\").replace("\n", "\\\n")
    return f"{low}i\\\n{body}" if low > high else f"{low},{high}c\\\n{body}"


def _commands(programme: str, dialect: str) -> list[_Command]:
    """The commands of a programme; none where it holds one that is not followed."""
    found: list[_Command] = []
    at = 0
    outer: list[tuple[str | None, str | None]] = []
    while len(found) < _MAX_COMMANDS:
        while at < len(programme) and programme[at] in " \t\n;":
            at += 1
        if at >= len(programme):
            return found if not outer else []
        if programme[at] == "}" and outer:
            outer.pop()
            at += 1
            continue
        low, at = _address(programme, at)
        high = None
        if low is not None and programme[at : at + 1] == ",":
            high, at = _address(programme, at + 1)
            if high is None:
                return []
        while programme[at : at + 1] in (" ", "\t"):
            at += 1
        negated = programme[at : at + 1] == "!"
        at += negated
        verb = programme[at : at + 1]
        at += 1
        if negated and (low is None or verb == "{" or outer):
            return []
        if verb == "{" and not outer:
            outer.append((low, high))
            continue
        if outer:
            if low is not None:
                return []
            low, high = outer[-1]
        if verb == "d":
            found.append(_Command(low, high, verb, negated=negated))
        elif verb and verb in "aic" and dialect != "perl":
            text, at = _text(programme, at)
            found.append(_Command(low, high, verb, text=text, negated=negated))
        elif verb == "s":
            cut = _cut(programme, at, dialect)
            if cut is None:
                return []
            pattern, replacement, at = cut
            flags = re.compile(r"[\dgipImM]*").match(programme, at)
            at = flags.end() if flags else at
            condition = _CONDITION.match(programme, at) if dialect == "perl" and low is None else None
            if condition is not None:
                low, at = condition[1] or condition[2], condition.end()
            if programme[at : at + 1] not in ("", " ", "\t", "\n", ";", "}"):
                return []
            found.append(_Command(low, high, "s", pattern, replacement, flags[0] if flags else "", negated))
        else:
            return []
    return []


def _address(programme: str, at: int) -> tuple[str | None, int]:
    match = _ADDRESS.match(programme, at)
    return (match[0], match.end()) if match else (None, at)


def _text(programme: str, at: int) -> tuple[str, int]:
    """The text after `a`, `i` or `c`: up to a line end that no backslash stands before."""
    while programme[at : at + 1] in (" ", "\t"):
        at += 1
    if programme[at : at + 1] == "\\":
        at += 1
        rest = programme[at:]
        if rest.lstrip(" \t").startswith("\n"):
            at += len(rest) - len(rest.lstrip(" \t")) + 1
    parts = []
    while at < len(programme) and programme[at] != "\n":
        if programme[at] == "\\" and at + 1 < len(programme):
            at += 1
            parts.append({"n": "\n", "t": "\t"}.get(programme[at], programme[at]))
        else:
            parts.append(programme[at])
        at += 1
    return "".join(parts), at


def _cut(text: str, at: int, dialect: str) -> tuple[str, str, int] | None:
    """Pattern and replacement of the text after `s`, and where its flags begin."""
    mark = text[at : at + 1]
    if dialect == "perl" and mark in _PAIRED:
        pattern = _enclosed(text, at)
        if pattern is None:
            return None
        at += len(pattern) + 2
        while text[at : at + 1] in (" ", "\t", "\n"):
            at += 1
        replacement = _enclosed(text, at) if text[at : at + 1] in _PAIRED else None
        return None if replacement is None else (pattern, replacement, at + len(replacement) + 2)
    if not mark or mark.isalnum() or mark in "\\\n \t{([<":
        return None
    parts, at = [""], at + 1
    while at < len(text) and len(parts) < 3:
        if text[at] == "\\" and at + 1 < len(text):
            parts[-1] += text[at + 1] if text[at + 1] == mark else text[at : at + 2]
            at += 1
        elif text[at] == mark:
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    return (parts[0], parts[1], at) if len(parts) == 3 else None


def _enclosed(text: str, at: int) -> str | None:
    """What stands between the bracket at `at` and the one that closes it."""
    opening, depth, here = text[at], 0, at
    while here < len(text):
        if text[here] == "\\":
            here += 1
        elif text[here] == opening:
            depth += 1
        elif text[here] == _PAIRED[opening]:
            depth -= 1
            if not depth:
                return text[at + 1 : here]
        here += 1
    return None


def _span(command: _Command, lines: dict[int, str], numbers: list[int], dialect: str, whole: bool) -> set[int] | None:
    """The lines that a command is for; None where that is not told."""
    if command.negated:
        found = _span(replace(command, negated=False), lines, numbers, dialect, whole)
        return None if found is None else set(numbers) - found
    if command.low is None:
        return set(numbers) if command.verb in "sd" else None
    low = _place(command.low, lines, numbers, dialect, whole)
    if low is None or command.high is None:
        return low
    if command.low.startswith("/") or command.high.startswith("/"):
        return _between(command, low, lines, numbers, dialect, whole)
    first = min(low, default=0)
    if command.high.startswith("+"):
        last = first + int(command.high[1:])
    else:
        end = _place(command.high, lines, numbers, dialect, whole)
        if not end:
            return None
        last = max(min(end), first)
    found = {n for n in numbers if first <= n <= last}
    return found if len(found) == last - first + 1 else None


def _between(
    command: _Command, low: set[int], lines: dict[int, str], numbers: list[int], dialect: str, whole: bool
) -> set[int] | None:
    """Lines from one that `low` has up to the next that the second address has: it is looked for from the line after,
    if it is a pattern."""
    high = command.high or ""
    end = None if high.startswith("+") else _place(high, lines, numbers, dialect, whole)
    if end is None and not high.startswith("+"):
        return None
    found: set[int] = set()
    last: int | None = None  # of a range that is open, where that is told
    is_open = False
    for number in numbers:
        if not is_open and number in low:
            found.add(number)
            last = number + int(high[1:]) if high.startswith("+") else None if high.startswith("/") else max(end or {0})
            is_open = last is None or last > number
        elif is_open:
            found.add(number)
            is_open = number not in (end or ()) if last is None else number < last
    return found


def _place(address: str, lines: dict[int, str], numbers: list[int], dialect: str, whole: bool) -> set[int] | None:
    if address == "$":
        return {numbers[-1]} if whole else None
    if address.startswith("/"):
        pattern = compiled(address[1:-1], dialect)
        return None if pattern is None else {n for n in numbers if next(pattern.matches(lines[n]), None)}
    number = int(address.lstrip("+"))
    return {number} if number in lines else None


def _pattern(pattern: str, dialect: str, flags: str) -> Pattern | None:
    return compiled(pattern, dialect, "i" in flags.lower())


def _substituted(command: _Command, pattern: Pattern, line: str, dialect: str) -> str | None:
    which = re.sub(r"\D", "", command.flags)
    if len(which) > 3 or which == "0":
        return None
    count = 0 if "g" in command.flags else 1
    return replaced(pattern, command.text, line, dialect, int(which or 1), count)
