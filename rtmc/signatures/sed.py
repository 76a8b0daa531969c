"""Programmes that change lines in place: sed's `s`, `d`, `c`, `a`, `i`, and perl's `s///`, in the dialect they use.

What this is not: a sed. A pattern with groups, classes or repetition other than `.*` is not followed, since no pattern
from a log may take more than linear time; what such a programme changes stays unknown.
Source: GNU sed's manual, sections 3 and 4 (text of `a`, `i`, `c`, its escapes and its one-line form).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Dialects of regular expressions: basic, extended, perl's. They are the scopes of effects whose `new` is a programme.
DIALECTS = ("sed", "sed-E", "perl")
_ADDRESS = re.compile(r"\d{1,9}|\$|\+\d{1,9}|/((?:[^/\\\n]|\\.){1,500})/")
_MAX_COMMANDS = 50
_MAX_LINE = 2000


@dataclass(frozen=True, slots=True)
class _Command:
    """One command: first and last address as written (None = none), verb, and its pattern, replacement and flags, or
    its text."""

    low: str | None
    high: str | None
    verb: str
    pattern: str = ""
    text: str = ""
    flags: str = ""


def sed_change(programme: str, lines: dict[int, str], dialect: str = "sed") -> tuple[str, str] | None:
    """(old, new) lines that a programme changes in the known lines of a file; None where that is not told."""
    commands = _commands(programme, dialect)
    if not commands or not lines:
        return None
    numbers = sorted(lines)
    spans = [_span(command, lines, numbers, dialect) for command in commands]
    if any(span is None for span in spans):
        return None
    old: list[str] = []
    new: list[str] = []
    for number in numbers:
        before: list[str] = []
        after: list[str] = []
        line: str | None = lines[number]
        for command, span in zip(commands, spans, strict=True):
            if span is None or number not in span or line is None:
                continue
            if command.verb == "i":
                before.append(command.text)
            elif command.verb == "a":
                after.append(command.text)
            elif command.verb == "s":
                changed = _substituted(command, line, dialect)
                if changed is None:
                    return None
                line = changed
            else:
                line = None
                if command.verb == "c" and number == max(span):
                    before.append(command.text)
        kept = line == lines[number]
        if not kept:
            old.append(lines[number])
        new += [*before, *([] if kept or line is None else [line]), *after]
    return ("\n".join(old), "\n".join(new)) if old or new else None


def sed_texts(programme: str, dialect: str = "sed") -> tuple[str | None, str]:
    """The same where the file's lines are not known, as far as the programme spells it: the texts of a substitution,
    the text that is inserted. The old text is None where it is not told."""
    commands = _commands(programme, dialect)
    if not commands:
        return None, programme
    if all(command.verb in "ai" for command in commands):
        return "", "\n".join(command.text for command in commands)
    first = commands[0]
    if len(commands) > 1 or first.verb != "s":
        return None, "\n".join(command.text for command in commands if command.text) or programme
    pattern = re.sub(r"\\(\W)", r"\1", first.pattern.replace("\\n", "\n").replace("\\t", "\t"))
    text = _replacement(first.text, "", dialect)
    if (first.pattern == "$" and text.startswith("\n")) or (first.pattern == "^" and text.endswith("\n")):
        return "", text.strip("\n")  # a line of its own after or before
    if pattern.startswith("^") and not first.pattern.startswith("\\"):
        pattern = pattern[1:]
    if pattern.endswith("$") and not first.pattern.endswith("\\$"):
        pattern = pattern[:-1]
    return pattern, text


def substitution(programme: str) -> tuple[str, str] | None:
    """(old, new) of one substitution by perl of a text that its pattern spells, for files read whole; else None."""
    commands = _commands(programme, "perl")
    if len(commands) != 1 or commands[0].verb != "s" or _literal(commands[0].pattern, False, "perl") is None:
        return None
    pattern = commands[0].pattern
    if re.search(r"(?<!\\)[.^$]", pattern):
        return None
    plain = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), pattern, flags=re.S)
    return plain, _replacement(commands[0].text, "", "perl")


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
        verb = programme[at : at + 1]
        at += 1
        if verb == "{" and not outer:
            outer.append((low, high))
            continue
        if outer:
            if low is not None:
                return []
            low, high = outer[-1]
        if verb == "d":
            found.append(_Command(low, high, verb))
        elif verb and verb in "aic" and dialect != "perl":
            text, at = _text(programme, at)
            found.append(_Command(low, high, verb, text=text))
        elif verb == "s":
            cut = _cut(programme, at)
            if cut is None:
                return []
            pattern, replacement, at = cut
            flags = re.compile(r"[\dgipImM]*").match(programme, at)
            at = flags.end() if flags else at
            if programme[at : at + 1] not in ("", " ", "\t", "\n", ";", "}"):
                return []
            found.append(_Command(low, high, "s", pattern, replacement, flags[0] if flags else ""))
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


def _cut(text: str, at: int) -> tuple[str, str, int] | None:
    """Pattern and replacement of the text after `s`, and where its flags begin."""
    mark = text[at : at + 1]
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


def _span(command: _Command, lines: dict[int, str], numbers: list[int], dialect: str) -> set[int] | None:
    """The lines that a command is for; None where that is not told."""
    if command.low is None:
        return set(numbers) if command.verb in "sd" and command.low is None else None
    low = _place(command.low, lines, numbers, dialect)
    if low is None or (command.low.startswith("/") and command.high is not None):
        return None
    if command.high is None:
        return low
    first = min(low, default=0)
    if command.high.startswith("+"):
        last = first + int(command.high[1:])
    else:
        end = _place(command.high, lines, numbers, dialect)
        if not end or command.high.startswith("/"):
            return None
        last = max(min(end), first)
    found = {n for n in numbers if first <= n <= last}
    return found if len(found) == last - first + 1 else None


def _place(address: str, lines: dict[int, str], numbers: list[int], dialect: str) -> set[int] | None:
    if address == "$":
        return {numbers[-1]}
    if address.startswith("/"):
        expression = _literal(address[1:-1], False, dialect)
        if expression is None or any(len(lines[n]) > _MAX_LINE for n in numbers):
            return None
        return {n for n in numbers if expression.search(lines[n])}
    number = int(address.lstrip("+"))
    return {number} if number in lines else None


def _substituted(command: _Command, line: str, dialect: str) -> str | None:
    expression = _literal(command.pattern, "i" in command.flags.lower(), dialect)
    which = re.sub(r"\D", "", command.flags)
    if expression is None or len(line) > _MAX_LINE or which:
        return None
    if dialect == "perl" and re.search(r"(?<!\\)\$[\w&{]|(?<!\\)@\w", command.text):
        return None
    once = "g" not in command.flags
    return expression.sub(lambda m: _replacement(command.text, m[0], dialect), line, count=1 if once else 0)


def _literal(pattern: str, ignore_case: bool, dialect: str) -> re.Pattern[str] | None:
    """A regular expression of plain characters, `.`, one `.*`, `^` and `$`; None for any other."""
    special = "[*" if dialect == "sed" else "[*(){}+?|"
    made, at, stars = "", 0, 0
    while at < len(pattern):
        here, two = pattern[at], pattern[at : at + 2]
        if here == "\\":
            if len(two) < 2 or two[1].isdigit() or two[1] in "<>bBwWsSdDQEAzZ'`":
                return None
            if dialect == "sed" and two[1] in "(){}+?|":
                return None
            made += {"n": "\n", "t": "\t"}.get(two[1], re.escape(two[1]))
            at += 2
            continue
        if two == ".*":
            stars += 1
            made += ".*"
            at += 2
            continue
        if here in special or (dialect == "perl" and here in "$@" and at < len(pattern) - 1):
            return None
        if (here == "^" and at == 0) or (here == "$" and at == len(pattern) - 1) or here == ".":
            made += here
        else:
            made += re.escape(here)
        at += 1
    return re.compile(made, re.I if ignore_case else 0) if made and stars < 2 else None


def _replacement(text: str, matched: str, dialect: str) -> str:
    """The text that a substitution puts in the place of what matched."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "&":
            return "&" if dialect == "perl" or not matched else matched
        return {"n": "\n", "t": "\t"}.get(found[1], found[1] or "")

    return re.sub(r"&|\\(.)", one, text, flags=re.S)
