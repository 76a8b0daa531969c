"""The text that an edit changes, told the same by editors that take line ranges, old text, patches or programmes.

A change is (old lines, new lines): what is there no longer and what is there anew, in the order of the file, without
the lines that both texts share, without white space at the ends of lines and of the whole. Lines that only moved are
told with those between them. What an action does not say is looked up in the known lines of the file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rtmc.signatures.effects import ONLY, Effect, Swap
from rtmc.signatures.patterns import TooLongError, compiled, replaced
from rtmc.signatures.sed import PROGRAMMES, sed_change, sed_texts, swap_texts

# Lines of a moved part times lines of its counterpart, up to which the longest common part is sought.
_MAX_TABLE = 20_000
# Stands where lines between two known ones are not known; no edit's text matches it.
_GAP = "\0"
_Lines = dict[int, str]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a file before an edit.

    lines     by number
    whole     they are all that the file has
    window    the lines that a windowed editor shows
    """

    lines: _Lines
    whole: bool = False
    window: _Lines | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit changes, in the normal form.

    old     None = nothing tells what was replaced; old and new "" = nothing changes
    after   what is known of the file afterwards; None = nothing
    """

    old: str | None
    new: str
    after: Known | None = None


def change_of(effect: Effect, known: Known, span: tuple[int, int] | None = None) -> Change:
    """The change that an edit makes in a file; `span` = the lines that the editor's cursors are set to."""
    scope, new = effect.scope, effect.new or ""
    if scope in ("range", "cursors"):
        return _ranged(effect.lines if scope == "range" else span, new, known)
    if scope == "window":
        shown = known.window or {}
        return _ranged((min(shown), max(shown)) if shown else None, new, known)
    if scope == "insert":
        if effect.lines is not None:
            return _ranged(effect.lines, new, known)
        after = None
        if effect.shell and known.whole and effect.new is not None:
            after = _appended(known.lines, new)
        return Change("", normal("", new)[1], after)
    if scope == "overwrite" or effect.category == "create":
        after = None if effect.new is None else Known(_numbered(new), True)
        if known.whole and after is not None:
            return Change(*_between(known.lines, after.lines), after)
        return Change(None, normal("", new)[1], after)
    if scope in PROGRAMMES:
        changed = sed_change(new, known.lines, scope, known.whole)
        if changed is not None:
            return Change(*_between(known.lines, changed), Known(changed, known.whole))
        return _told(*sed_texts(new, scope))
    if scope == "replace":
        return _swapped(effect, known)
    return _told(effect.old, new)


def _told(old: str | None, new: str) -> Change:
    return Change(None, normal("", new)[1]) if old is None else Change(*normal(old, new))


def _numbered(text: str) -> _Lines:
    return dict(enumerate(text.removesuffix("\n").split("\n"), 1))


def _appended(lines: _Lines, text: str) -> Known:
    last = [lines[n] for n in sorted(lines)]
    while last and not last[-1]:
        last.pop()
    return Known(dict(enumerate([*last, *text.removesuffix("\n").split("\n")], 1)), True)


def _ranged(span: tuple[int, int] | None, new: str, known: Known) -> Change:
    """Lines put in the place of a range (first > last: before the first)."""
    if span is None:
        return _told(None, new)
    low, high = span
    high = max(high, low - 1)
    put = new.split("\n") if new else []
    shift = len(put) - (high - low + 1)
    after = {n + (shift if n > high else 0): line for n, line in known.lines.items() if not low <= n <= high}
    after |= dict(enumerate(put, low))
    held = (low > high or high - low < len(known.lines)) and all(n in known.lines for n in range(low, high + 1))
    old = "\n".join(known.lines[n] for n in range(low, high + 1)) if held else None
    whole = known.whole and max(after) == len(after)
    beside = low <= high or low in known.lines or low - 1 in known.lines
    change = Change(*_between(known.lines, after)) if old is not None and beside else _told(old, new)
    return Change(change.old, change.new, Known(after, whole))


def _swapped(effect: Effect, known: Known) -> Change:
    """Texts put in the place of others: in the known lines, where they stand there, else by themselves."""
    swaps = effect.swaps
    if not swaps and effect.old is not None:
        swaps = (Swap(effect.old, effect.new or ""),)
    if not swaps:
        return _told(effect.old, effect.new or "")
    if known.lines:
        before = _text_of(known.lines) + "\n"
        text = _applied(swaps, before)
        if text is not None and text != before:
            after = _lines_of(text.removesuffix("\n"), known.lines)
            return Change(*_between(known.lines, after), Known(after, known.whole))
    olds, news = zip(*(normal(*swap_texts(swap)) for swap in swaps), strict=True)
    joined = ["\n".join(part for part in parts if part) for parts in (olds, news)]
    return Change(joined[0], joined[1])


def _text_of(lines: _Lines) -> str:
    """The lines as a text, with a mark in each gap between them."""
    made: list[str] = []
    before = None
    for number in sorted(lines):
        if before is not None and number != before + 1:
            made.append(_GAP)
        made.append(lines[number])
        before = number
    return "\n".join(made)


def _lines_of(text: str, lines: _Lines) -> _Lines:
    """The lines of an edited text by number, where `lines` are those before the edit."""
    numbers = sorted(lines)
    starts = [n for n in numbers if n - 1 not in lines]
    ends = [n for n in numbers if n + 1 not in lines]
    after: _Lines = {}
    shift = 0
    for part, start, end in zip(text.split(f"\n{_GAP}\n"), starts, ends, strict=True):
        made = part.split("\n")
        after |= dict(enumerate(made, start + shift))
        shift += len(made) - (end - start + 1)
    return after


def _applied(swaps: Sequence[Swap], text: str) -> str | None:
    """The text after the replacements; None where one of them is not told."""
    for swap in swaps:
        if swap.dialect:
            found = _by_pattern(swap, text)
        elif not swap.old:
            return None
        elif swap.count == ONLY:
            at = text.find(swap.old)
            alone = at >= 0 and text.find(swap.old, at + 1) < 0
            found = text[:at] + swap.new + text[at + len(swap.old) :] if alone else None
        else:
            found = text.replace(swap.old, swap.new, swap.count or -1)
        if found is None or found.count(_GAP) != text.count(_GAP):
            return None
        text = found
    return text


def _by_pattern(swap: Swap, text: str) -> str | None:
    pattern = compiled(swap.old, swap.dialect)
    if pattern is None:
        return None
    count = max(swap.count, 0)
    try:
        if pattern.within_lines and not count:
            done = [replaced(pattern, swap.new, line, swap.dialect, 1, 0) for line in text.split("\n")]
            return None if None in done else "\n".join(line for line in done if line is not None)
        found = replaced(pattern, swap.new, text.removesuffix("\n"), swap.dialect, 1, count)
        return None if found is None else found + "\n"
    except TooLongError:
        return None


def _between(before: _Lines, after: _Lines) -> tuple[str, str]:
    return _difference([before[n].rstrip() for n in sorted(before)], [after[n].rstrip() for n in sorted(after)])


def normal(old: str, new: str) -> tuple[str, str]:
    """The change between two texts, of which the first lines may lack their indentation."""
    return _difference(_trimmed(old), _trimmed(new))


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    """The lines of each that the other has not, in order, without outer space."""
    start, most = 0, min(len(before), len(after))
    while start < most and before[start] == after[start]:
        start += 1
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if any(before) and any(after):  # blank lines are no text of which others could be parts
        old, new = _without(before, after), _without(after, before)
        if old[1] == new[1]:
            before, after = old[0], new[0]
        elif len(before) * len(after) <= _MAX_TABLE:  # lines have moved
            before, after = _apart(before, after)
    return "\n".join(before).strip(), "\n".join(after).strip()


def _without(lines: list[str], others: list[str]) -> tuple[list[str], list[str]]:
    """(lines that are not among the others, those that are), each line as often as it is there too often."""
    left = Counter(others)
    apart: list[str] = []
    common: list[str] = []
    for line in lines:
        if left[line] > 0:
            left[line] -= 1
            common.append(line)
        else:
            apart.append(line)
    return apart, common


def _apart(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """The lines outside of the longest common part of two lists."""
    rest = [[0] * (len(after) + 1)]
    for line in reversed(before):
        row, below = [0], rest[-1]
        for place in range(len(after) - 1, -1, -1):
            row.append(below[place + 1] + 1 if line == after[place] else max(below[place], row[-1]))
        rest.append(row[::-1])
    rest.reverse()
    old: list[str] = []
    new: list[str] = []
    i = j = 0
    while i < len(before) and j < len(after):
        if before[i] == after[j]:
            i, j = i + 1, j + 1
        elif rest[i + 1][j] >= rest[i][j + 1]:
            old.append(before[i])
            i += 1
        else:
            new.append(after[j])
            j += 1
    return old + before[i:], new + after[j:]


def digest(old: str, new: str, chars: int) -> str:
    """The first hexadecimal digits of MD5(old + new), which names a change and guards nothing."""
    text = (old + new).encode("utf-8", "backslashreplace")
    return hashlib.md5(text, usedforsecurity=False).hexdigest()[:chars]


def _trimmed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines
