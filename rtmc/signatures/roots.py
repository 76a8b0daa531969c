"""Where a rollout's repository lies, from what the rollout itself shows of it.

In this order: the answer to `git rev-parse --show-toplevel`; the folder that the agent was in first, by the answer to
`pwd` or what the environment says; the folder it changes to most often. The whole rollout is looked at, so that the
name of a file does not depend on when the root is first shown; the result is the same for equal rollouts.

What this is not: conventions about well-known places are in `rtmc.signatures.paths`, which asks here where they do not
decide.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rtmc.signatures import answers
from rtmc.signatures.calls import Call, calls_of
from rtmc.signatures.commands import understood_command

if TYPE_CHECKING:
    from rtmc.rollouts import Step

# A root shows within these; a longer rollout need not be read for it.
_STEPS = 300
_ABSOLUTE = re.compile(r"(?:^|\n)[ \t]*(/[^\s\0]{1,200}|[A-Za-z]:[\\/][^\n\0]{1,200}?)[ \t]*(?=\n|$)")
# Of the paths below the place of a checkout, this share has to lie in the folder that an agent changes to.
_MOST = 0.8
_FIRST = 3  # steps


class Evidence:
    """What the steps of a rollout show of its root; read when it is first asked for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._read = False
        self._told: str | None = None
        self._folders: list[tuple[int, str]] = []  # (step, folder)
        self._paths: list[str] = []

    def root(self, base: str) -> str | None:
        """The root below the folder `base` (absolute), in which checkouts lie; None where nothing shows one."""
        self._read_once()
        if self._told is not None and _below(self._told, base):
            return self._told
        folders = [folder for _, folder in self._folders if _below(folder, base)]
        paths = [path for path in self._paths if _below(path, base)]
        often = Counter(folders)
        usual = [f for f in often if f == folders[0] or 2 * often[f] >= max(often.values())]
        for folder in sorted(usual, key=len):
            if sum(_below(path, folder) or path == folder for path in paths) >= _MOST * len(paths):
                return folder
        parents = {path if "." not in posixpath.basename(path) else posixpath.dirname(path) for path in paths + folders}
        common = posixpath.commonpath(parents) if len(parents) > 1 else ""
        return common if common and _below(common, base) else None

    def start(self, base: str) -> str | None:
        """The root below `base`, if that is where the rollout starts: it goes there in one of its first steps, before
        it goes anywhere else."""
        self._read_once()
        if self._told is not None:
            return self._told if _below(self._told, base) else None
        first = self._folders[0] if self._folders else None
        return self.root(base) if first is not None and first[0] < _FIRST and _below(first[1], base) else None

    def _read_once(self) -> None:
        if not self._read:
            self._read = True
            for place, step in enumerate(self._steps[:_STEPS]):
                self._look(place, step)

    def _look(self, place: int, step: Step) -> None:
        answer = "" if step.answer is None else answers.ends(answers.plain(step.answer))
        told = answers.folder(answer)
        if told is not None:
            self._folders.append((place, unified(told)))
        for call in calls_of(step):
            if call.name == "bash":
                self._command(place, call.arguments["command"], answer)
            else:
                self._paths += [unified(path) for path in _named(call)]

    def _command(self, place: int, command: str, answer: str) -> None:
        printed = (
            [unified(m[1]) for m in _ABSOLUTE.finditer(answer)] if "pwd" in command or "rev-parse" in command else []
        )
        if "--show-toplevel" in command and printed and self._told is None:
            self._told = printed[-1]
        understood = understood_command(command)
        first = understood.units[0] if understood.units else None
        if first is not None and first.names == ("pwd",) and printed and not self._folders:
            self._folders.append((place, printed[0]))
        for unit in understood.units:
            if unit.folder and is_absolute(unit.folder):
                self._folders.append((place, unified(unit.folder)))
        self._paths += [
            unified(e.path) for e in understood.effects if e.path and e.scope != "cd" and is_absolute(e.path)
        ]


def is_absolute(path: str) -> bool:
    """Whether a path starts at the root of a file system, of Unix or of Windows."""
    return path.startswith("/") or re.match(r"[A-Za-z]:[\\/]", path) is not None


def unified(path: str) -> str:
    """The path with slashes and without `.` and `..`; a drive of Windows is its first folder (`/c:/Users`)."""
    if re.match(r"[A-Za-z]:[\\/]", path):
        path = f"/{path[0].lower()}:{path[2:]}".replace("\\", "/")
    return posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else path


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _named(call: Call) -> Iterator[str]:
    """The absolute paths among a call's arguments."""
    for value in call.arguments.values():
        known: Any = value
        if isinstance(known, str) and len(known) < 300 and "\n" not in known and is_absolute(known):
            yield known
