"""The text that an edit changes, told the same by editors that take line ranges, old text or sed programmes.

A change is (old lines, new lines) without the lines both share at the ends, without white space at the ends of lines
and of the whole. What the action does not say is looked up in the lines of the file that the rollout was shown last.
"""

from __future__ import annotations

import hashlib
import re

from rtmc.signatures.answers import shown_lines
from rtmc.signatures.effects import Effect
from rtmc.signatures.sed import DIALECTS, sed_change, sed_texts

# Text of files kept to look changes up in; longer text is not compared line by line.
_MAX_TEXT = 60_000
# Where an environment says that it left something out.
_CUT = re.compile(
    r"<response clipped>|[Oo]bservation truncated|[Oo]utput (?:was |is )?truncated|elided_chars|eliding lines"
    r"|\d more lines (?:above|below)|characters (?:were )?(?:omitted|elided)"
)


class Contents:
    """The lines of files as the environment showed them last, by name; read when an edit needs them."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[str, int]] = {}
        self._lines: dict[str, dict[int, str]] = {}
        self._whole: set[str] = set()

    def show(self, name: str, answer: str, first: int = 0, whole: bool = False) -> None:
        """The answer shows lines of the file: with numbers, or plain from line `first` on (0 = not plain); or all of
        it."""
        if len(answer) <= _MAX_TEXT:
            self._answers[name] = answer, first
            self._lines.pop(name, None)
            self._whole.discard(name)
            if whole and not _CUT.search(answer):
                self._whole.add(name)

    def write(self, name: str, text: str) -> None:
        """The file holds this text."""
        self.forget(name)
        if len(text) <= _MAX_TEXT:
            self._lines[name] = dict(enumerate(text.split("\n"), 1))
            self._whole.add(name)

    def forget(self, name: str) -> None:
        """The file has changed in a way that was not shown."""
        self._answers.pop(name, None)
        self._lines.pop(name, None)
        self._whole.discard(name)

    def lines(self, name: str) -> dict[int, str]:
        """Known lines by number."""
        if name in self._answers:
            self._lines[name] = shown_lines(*self._answers.pop(name))
        return self._lines.get(name, {})

    def text(self, name: str) -> str | None:
        """The whole text, where it is known."""
        lines = self.lines(name) if name in self._whole else {}
        known = bool(lines) and list(lines) == list(range(1, len(lines) + 1))
        return "\n".join(lines.values()) if known else None


def change_of(
    effect: Effect, lines: dict[int, str], whole: str | None, cursors: tuple[int, int] | None
) -> tuple[str | None, str]:
    """(old, new) of an edit in the normal form.

    lines     what is known of the file's lines, by number
    whole     the file's whole text, where it is known
    cursors   lines that the editor's cursors are set to

    The old text is None where nothing tells what was replaced; ("", "") = nothing changes.
    """
    old, new = effect.old, effect.new or ""
    if effect.scope in ("range", "cursors"):
        span = effect.lines if effect.scope == "range" else cursors
        low, high = span or (1, 0)
        numbers = range(low, high + 1) if high - low < len(lines) else range(0)
        known = span is not None and (low > high or (len(numbers) > 0 and all(n in lines for n in numbers)))
        old = "\n".join(lines[n] for n in numbers) if known else None
    elif effect.scope == "window":
        old = "\n".join(lines[n] for n in sorted(lines)) if lines else None
    elif effect.scope in DIALECTS:
        old, new = sed_change(new, lines, effect.scope) or sed_texts(new, effect.scope)
    elif effect.scope == "replace" and old and lines:
        old, new = _whole_lines(old, new, lines)
    elif effect.scope == "overwrite":
        old = whole
    elif effect.scope == "insert":
        old = ""
    if old is None:
        return None, normal("", new)[1]
    return normal(old, new)


def normal(old: str, new: str) -> tuple[str, str]:
    """The change between two texts without what they share at their ends, line by line, and without outer space."""
    before, after = _trimmed(old), _trimmed(new)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    cut = slice(start, len(before) - end), slice(start, len(after) - end)
    return "\n".join(before[cut[0]]).strip(), "\n".join(after[cut[1]]).strip()


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
    if lines:
        # An editor that takes old text is often given the first line without its indentation.
        lines[0] = lines[0].lstrip()
    return lines


def _whole_lines(old: str, new: str, lines: dict[int, str]) -> tuple[str, str]:
    """A replaced text widened to the whole lines it stands in, where those are known and it stands there once."""
    numbers = sorted(lines)
    text = "\n".join(lines[n] for n in numbers)
    at = text.find(old)
    if at < 0 or text.find(old, at + 1) >= 0:
        return old, new
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at + len(old))
    end = len(text) if end < 0 else end
    return text[start:end], text[start:at] + new + text[at + len(old) : end]
