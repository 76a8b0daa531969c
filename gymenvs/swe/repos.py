"""Where the repositories of public tasks lie on this machine: clones, bundles, prepared folders."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtmc.gymenvs.swe.sources import Clone, Folder, Source

_SMITH = re.compile(r"swesmith/(.+?)__(.+)\.([0-9a-f]{7,40})")


class Repos:
    """Finds a task's repository.

    Args:
        where: a folder or a mapping. In a folder are looked for, by a task's id and by its repository's name
            `owner/name`: `ID`, `owner__name`, `owner/name`, `name`, each a clone, or with `.git` (bare) or `.bundle`
            after it. A mapping has the same keys, and paths or sources (`Folder(path, python)`, `Clone(path, commit,
            python)` with "HEAD" for the task's own commit). What a task's id names and is no git repository is its
            prepared folder.

    Raises:
        ValueError: there is no such folder. TypeError: `where` is neither, or a value is neither path nor source.
    """

    def __init__(self, where: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        self._folder: Path | None = None
        self._listed: dict[str, Any] = {}
        if isinstance(where, Mapping):
            for key, value in where.items():
                if not isinstance(key, str) or not isinstance(value, (str, os.PathLike, Folder, Clone)):
                    raise TypeError(
                        f"repos: wanted names and paths (or Folder, Clone), got {key!r:.60}: {type(value).__name__}"
                    )
            self._listed = dict(where)
        elif isinstance(where, (str, os.PathLike)):
            self._folder = Path(where)
            if not self._folder.is_dir():
                raise ValueError(f"repos: {str(where)!r} is no folder; wanted one that holds clones, or a mapping")
        else:
            raise TypeError(f"repos: wanted a folder or a mapping of names to paths, got {type(where).__name__}")

    def find(self, task_id: str, repo: str, commit: str) -> Source | None:
        """The source for a task, or None where there is nothing of its name.

        Raises:
            ValueError: what is there under the repository's name is no git repository and no bundle.
        """
        found = self._look(task_id)
        if found is not None:
            return self._source(found, task_id, commit, whole=True)
        for name, at in _names(repo, commit):
            found = self._look(name)
            if found is not None:
                return self._source(found, name, at, whole=False)
        return None

    def _look(self, name: str) -> Any:
        if name in self._listed:
            return self._listed[name]
        if self._folder is None or not name or any(part in ("", ".", "..") for part in name.split("/")):
            return None
        for ending in ("", ".git", ".bundle"):
            path = self._folder / (name + ending)
            try:
                if path.exists():
                    return path
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # a name that no file can have is the name of none
                    raise
        return None

    @staticmethod
    def _source(found: Any, name: str, commit: str, *, whole: bool) -> Source:
        if isinstance(found, Folder):
            return found
        if isinstance(found, Clone):
            return Clone(found.path, commit if found.commit == "HEAD" and commit else found.commit, found.python)
        path = Path(found)
        if not path.exists():
            raise ValueError(f"repos: {name!r} should lie at {str(path)!r}, where there is nothing")
        if is_repository(path):
            if not commit:
                raise ValueError(f"repos: {name!r} has a clone at {str(path)!r}, but the task names no commit of it")
            return Clone(str(path), commit)
        if whole and path.is_dir():
            return Folder(str(path))
        raise ValueError(
            f"repos: {name!r} lies at {str(path)!r}, which is no git clone and no bundle; a prepared folder is given "
            f"by the task's id"
        )


def is_repository(path: Path) -> bool:
    """Whether there is a clone (with or without a working tree) or a bundle, by what lies there."""
    if path.is_dir():
        return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())
    if path.is_file():
        with path.open("rb") as file:
            return file.read(16).startswith((b"# v2 git bundle", b"# v3 git bundle"))
    return False


def _names(repo: str, commit: str) -> list[tuple[str, str]]:
    """Names that a repository may lie under, with the commit to take from it."""
    if not repo:
        return []
    smith = _SMITH.fullmatch(repo)
    plain = f"{smith[1]}/{smith[2]}" if smith else repo
    names = [plain, plain.replace("/", "__"), plain.rpartition("/")[2]]
    found = [(name, commit) for name in dict.fromkeys(names)]
    if smith:
        # SWE-smith's mirrors have a history of their own, whose first branch is the repository without any bug.
        found = [(repo, "HEAD"), (repo.removeprefix("swesmith/"), "HEAD"), *found]
    return found
