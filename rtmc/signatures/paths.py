"""File names relative to the repository's root, told the same whatever folder and root an agent works in.

The root is found as soon as an absolute path is met: the folder that the prompt names, a well-known checkout
(`/testbed`, `/OWNER__REPO`), what the rollout shows of it (rtmc/signatures/roots.py), a well-known place of checkouts
(`/workspace/NAME`, `/home/USER/NAME`), or the path itself. System folders are never taken; one below `/tmp` or `/opt`
is where the rollout starts there. Until then relative names are taken to start at the root, which is where agents are
put.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from rtmc.signatures.keys import word_set

if TYPE_CHECKING:
    from rtmc.signatures.roots import Evidence

# Checkouts lie directly under these, so the root is one level deeper.
_PARENTS = {"workspace": 1, "workdir": 1, "home": 2, "Users": 2, "root": 1, "mnt": 1, "data": 1, "srv": 1, "github": 1}
_SYSTEM = word_set("tmp usr etc var proc dev lib lib64 bin sbin opt sys run boot private Library")
# Folders of the system below which an agent may be put all the same.
_LOOSE = word_set("tmp opt private")
_CHECKOUTS = word_set("testbed repo app code project")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
# The whole repository, from whatever folder (as git writes it).
WHOLE = ":/"
# Longer names come from text that is no path.
_MAX_NAME = 300
_ODD = re.compile(r"[\x00-\x1f|,\x7f]")


class Place:
    """Where the repository and the shell are, as far as a rollout has shown.

    prompt     text that the agent was given; a folder named there that holds a path is taken as the root
    evidence   what the rollout shows of the root, None = nothing
    """

    def __init__(self, prompt: str, evidence: Evidence | None = None) -> None:
        self._prompt = prompt
        self._evidence = evidence
        self._root: str | None = None
        self._folder = ""  # absolute, or relative to the root

    @property
    def root(self) -> str | None:
        """The repository's root, absolute; None = not shown yet."""
        return self._root

    def name(self, path: str) -> str:
        """`path`, as an action writes it, relative to the root ("." = the root); absolute outside of it."""
        return _plain(self._resolved(path, folder=False))

    def learn(self, folder: str) -> None:
        """The action names `folder`; if nothing has shown the root so far, it may."""
        self._resolved(folder, folder=True)

    def enter(self, folder: str) -> None:
        """The shell changes to `folder`."""
        resolved = self._resolved(folder, folder=True)
        self._folder = "" if resolved == "." else resolved

    def told(self, folder: str) -> None:
        """The environment says that the shell is in `folder`, absolute."""
        if folder != "/":
            self.enter(folder)

    def leave(self) -> None:
        """A new shell starts at the root."""
        self._folder = ""

    def seen(self, written: str, absolute: str) -> None:
        """The environment calls `written`, a relative path from the root, by its `absolute` name."""
        if self._root is None and self._folder == "" and not written.startswith("/"):
            tail = "/" + posixpath.normpath(written)
            if absolute.startswith("/") and absolute.endswith(tail) and len(absolute) > len(tail):
                self._root = absolute[: -len(tail)]

    def _resolved(self, path: str, folder: bool) -> str:
        path = _slashed(path.strip(), self._root or self._folder)
        if path.endswith(WHOLE):
            return "."
        joined = posixpath.join(self._folder, path) if path else self._folder
        if joined.startswith("/"):
            joined = "/" + posixpath.normpath(joined).lstrip("/")
            if self._root is None:
                self._root = _root_of(joined, self._prompt, self._evidence, folder)
        if self._root is None:
            return posixpath.normpath(joined)
        whole = posixpath.normpath(posixpath.join(self._root, joined))
        if whole == self._root:
            return "."
        return whole.removeprefix(self._root + "/")


def _plain(name: str) -> str:
    """The name on one line, without what separates the parts of a key."""
    if len(name) > _MAX_NAME:
        name = name[:_MAX_NAME] + "..."
    if not name.isascii():
        name = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return _ODD.sub(lambda m: f"%{ord(m[0]):02X}", name)


def _slashed(path: str, here: str) -> str:
    """The path with slashes, a drive of Windows as its first folder; relative names are of Windows if `here` is."""
    if _DRIVE.match(path):
        return f"/{path[0].lower()}:{path[2:]}".replace("\\", "/")
    return path.replace("\\", "/") if re.match(r"/[a-z]:(?:/|$)", here) else path


def _root_of(path: str, prompt: str, evidence: Evidence | None, folder: bool) -> str | None:
    """The root of the repository that an absolute path lies in; None for a system folder."""
    parts = path.split("/")[1:]
    if not parts or not parts[0]:
        return None
    above = ["/" + "/".join(parts[:n]) for n in range(1, len(parts) + folder)]
    for candidate in above:
        outermost = candidate.rpartition("/")[2]
        if candidate.count("/") == 1 and (outermost in _PARENTS or outermost in _SYSTEM):
            continue
        if candidate in prompt and re.search(rf"(?<![\w./:-]){re.escape(candidate)}/?(?![\w/.-]*\w)", prompt):
            return candidate
    drive = f"/{parts.pop(0)}" if re.fullmatch(r"[a-z]:", parts[0]) and len(parts) > 1 else ""
    if parts[0] in _CHECKOUTS or "__" in parts[0]:
        return f"{drive}/{parts[0]}" if len(parts) > 1 or folder else None
    if parts[0] in _SYSTEM:
        loose = evidence is not None and parts[0] in _LOOSE
        return evidence.start(f"/{parts[0]}") if evidence is not None and loose else None
    depth = _PARENTS.get(parts[0], 0) + 1
    base = drive + "/" + "/".join(parts[: depth - 1 or 1])
    shown = None if evidence is None else evidence.root(base)
    if shown is not None:
        return shown
    if depth > 1:
        if folder and len(parts) < depth:
            return None  # the folder that checkouts lie in
        inner = parts[: len(parts) if folder else len(parts) - 1]
        return f"{drive}/{'/'.join(inner[:depth])}" if inner else None
    if folder:
        return path
    return f"{drive}/{parts[0]}" if len(parts) > 1 else None
