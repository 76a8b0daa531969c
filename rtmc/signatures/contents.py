"""What the files of a rollout hold, line by line, as far as the environment showed it and the edits since then tell.

What this is not: a working copy. A file that changed in a way that nothing tells is forgotten.
"""

from __future__ import annotations

import re

from rtmc.signatures.answers import shown_lines

# Text of files kept to look changes up in; longer text is not compared line by line.
MAX_TEXT = 60_000
# Where an environment says that it left something out.
_CUT = re.compile(
    r"<response clipped>|[Oo]bservation truncated|[Oo]utput (?:was |is )?truncated|elided_chars|eliding lines"
    r"|\d more lines (?:above|below)|characters (?:were )?(?:omitted|elided)"
)


class Contents:
    """The known lines of files, by name. Answers are taken apart when an edit needs them."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[str, int]]] = {}
        self._lines: dict[str, dict[int, str]] = {}
        self._whole: set[str] = set()
        self._last: dict[str, tuple[str, int]] = {}

    def show(self, name: str, answer: str, first: int = 0, whole: bool = False) -> None:
        """The answer shows lines of the file: with numbers, or plain from line `first` on (0 = not plain); or all of
        it. Other lines that are known stay, unless one that is shown is not as it was known."""
        if len(answer) > MAX_TEXT:
            return
        if whole:
            self.forget(name)
            if not _CUT.search(answer):
                self._whole.add(name)
        self._waiting.setdefault(name, []).append((answer, first))
        self._last[name] = answer, first

    def put(self, name: str, lines: dict[int, str], whole: bool) -> None:
        """The file holds these lines, by number; they are all of it, or what is known."""
        self.forget(name)
        if sum(map(len, lines.values())) <= MAX_TEXT:
            self._lines[name] = lines
            if whole:
                self._whole.add(name)

    def forget(self, name: str) -> None:
        """The file has changed in a way that was not shown."""
        self._waiting.pop(name, None)
        self._lines.pop(name, None)
        self._last.pop(name, None)
        self._whole.discard(name)

    def forget_below(self, folder: str) -> None:
        """So has every file in the folder ("." = all)."""
        for name in [n for n in {*self._waiting, *self._lines} if folder == "." or n.startswith(folder + "/")]:
            self.forget(name)

    def copy(self, source: str, target: str) -> None:
        """`target` holds what `source` does."""
        lines, whole = self.lines(source), self.whole(source)
        self.forget(target)
        if lines:
            self.put(target, lines, whole)

    def lines(self, name: str) -> dict[int, str]:
        """Known lines by number; not to be changed."""
        for answer, first in self._waiting.pop(name, ()):
            shown, known = shown_lines(answer, first), self._lines.get(name, {})
            if any(known.get(number, line) != line for number, line in shown.items()):
                known = {}
                self._whole.discard(name)
            self._lines[name] = {**known, **shown}
        return self._lines.get(name, {})

    def window(self, name: str) -> dict[int, str]:
        """The lines that were shown last, or all of them."""
        if name in self._last:
            return shown_lines(*self._last[name])
        return self.lines(name) if self.whole(name) else {}

    def whole(self, name: str) -> bool:
        """Whether the known lines are all that the file has."""
        lines = self.lines(name) if name in self._whole else {}
        return name in self._whole and bool(lines) and max(lines) == len(lines)
