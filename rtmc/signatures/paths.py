"""File names relative to the repository's root, told the same whatever folder and root an agent works in.

The root is found as soon as an absolute path shows it, from the folder that the prompt names, from well-known places
of checkouts (`/testbed`, `/workspace/NAME`, `/OWNER__REPO`), or from the path itself; system folders are never taken.
Until then relative names are taken to start at the root, which is where agents are put. Only what a rollout has shown
so far is used.
"""

from __future__ import annotations

import posixpath
import re

from rtmc.signatures.keys import word_set

# Checkouts lie directly under these, so the root is one level deeper.
_PARENTS = {"workspace": 1, "workdir": 1, "home": 2, "Users": 2, "root": 1, "mnt": 1, "data": 1, "srv": 1, "github": 1}
_SYSTEM = word_set("tmp usr etc var proc dev lib lib64 bin sbin opt sys run boot private Library")
# The whole repository, from whatever folder (as git writes it).
WHOLE = ":/"
# Longer names come from text that is no path.
_MAX_NAME = 300
_ODD = re.compile(r"[\x00-\x1f|,\x7f]")


class Place:
    """Where the repository and the shell are, as far as a rollout has shown.

    prompt   text that the agent was given; a folder named there that holds a path is taken as the root
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
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
        path = path.strip()
        if path.endswith(WHOLE):
            return "."
        joined = posixpath.join(self._folder, path) if path else self._folder
        if joined.startswith("/"):
            joined = "/" + posixpath.normpath(joined).lstrip("/")
            if self._root is None:
                self._root = _root_of(joined, self._prompt, folder)
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


def _root_of(path: str, prompt: str, folder: bool) -> str | None:
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
    if parts[0] in _SYSTEM:
        return None
    depth = _PARENTS.get(parts[0], 0) + 1
    if depth > 1:
        if folder and len(parts) < depth:
            return None  # the folder that checkouts lie in
        inner = parts[: len(parts) if folder else len(parts) - 1]
        return "/" + "/".join(inner[:depth]) if inner else None
    if folder and parts[0] not in ("testbed", "repo", "app", "code", "project") and "__" not in parts[0]:
        return path
    return "/" + parts[0] if len(parts) > 1 or folder else None
