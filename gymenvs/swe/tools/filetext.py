"""A file's bytes as the text that an editor works on, and edits that change nothing else.

The agent sees a text without byte order mark, its lines ended by "\\n". Below it lie the bytes: an edit replaces the
bytes of the characters it names, so that CRLF line ends, a byte order mark, tabs and bytes that are no UTF-8 stay what
they are everywhere else. New lines get the file's own line end (the one that most of its lines have).

Bytes that are no UTF-8 are single surrogates in `text` (PEP 383) and are shown as U+FFFD.
"""

from __future__ import annotations

import re
from bisect import bisect_left

_BOM = "\ufeff"


class FileText:
    """The text of a file: `text`, and `with_replaced` for the bytes after an edit.

    `binary`: the bytes hold a NUL, so this is no text.
    """

    __slots__ = ("_body", "_bom", "_crlf_at", "_newline", "binary", "text")

    def __init__(self, content: bytes) -> None:
        self.binary = b"\0" in content
        decoded = content.decode("utf-8", "surrogateescape")
        self._bom = _BOM if decoded.startswith(_BOM) else ""
        self._body = decoded[len(self._bom) :]
        self._crlf_at: list[int] = []  # in `text`, the places of the line ends that are CRLF in the file
        if "\r\n" in self._body:
            self._crlf_at = [found.start() - number for number, found in enumerate(re.finditer("\r\n", self._body))]
        self.text = self._body.replace("\r\n", "\n") if self._crlf_at else self._body
        self._newline = "\r\n" if 2 * len(self._crlf_at) > self.text.count("\n") else "\n"

    def as_written(self, text: str) -> str:
        """A text of the agent, to be looked for in `text`: in a file with CRLF its line ends are "\\n" too."""
        return text.replace("\r\n", "\n") if self._crlf_at else text

    def with_replaced(self, start: int, end: int, new: str) -> bytes:
        """The file's bytes after text[start:end] became `new`."""
        if self._newline != "\n":
            new = new.replace("\r\n", "\n").replace("\n", self._newline)
        changed = self._bom + self._body[: self._in_body(start)] + new + self._body[self._in_body(end) :]
        return changed.encode("utf-8", "surrogateescape")

    def _in_body(self, at: int) -> int:
        return at + bisect_left(self._crlf_at, at)


def lines_of(text: str) -> list[str]:
    """The lines as `cat -n` counts them: a last line end begins no further line. Only "\\n" ends a line."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def numbered(text: str, first: int = 1) -> str:
    """Each line with its number, as `cat -n` prints it, tabs expanded."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(text.expandtabs().split("\n"), first))


def unexpanded_span(text: str, expanded: str, start: int, end: int) -> tuple[int, int, str, str]:
    """Where expanded[start:end] stands in `text`, given expanded = text.expandtabs().

    As (start, end, before, after): text[start:end] holds it, and where it begins or ends within a tab, `before` and
    `after` are the rest of that tab, as spaces.
    """
    first, over = _unexpanded(text, expanded, start)
    last, into = _unexpanded(text, expanded, end)
    if not into:
        return first, last, " " * over, ""
    # The whole tab goes, and what was behind the end comes back as spaces.
    return first, last + 1, " " * over, " " * (_tab_width(text, last) - into)


def _unexpanded(text: str, expanded: str, at: int) -> tuple[int, int]:
    """The place in `text` of a place in `expanded`, and how far behind the beginning of a tab that is."""
    line_start = expanded.rfind("\n", 0, at) + 1
    start = 0
    for _ in range(expanded.count("\n", 0, at)):
        start = text.index("\n", start) + 1
    wanted = at - line_start
    column = done = 0
    for place in range(start, len(text)):
        width = 8 - column % 8 if text[place] == "\t" else 1
        if done + width > wanted:
            return place, wanted - done
        done += width
        column = 0 if text[place] == "\r" else column + width
    return len(text), 0


def _tab_width(text: str, at: int) -> int:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return 8 - len(line[line.rfind("\r") + 1 :].expandtabs()) % 8
