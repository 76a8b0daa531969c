"""What in a tree configures pytest: its own files, its part of shared ones, and the plugins that a task names.

A file is read as pytest reads it, by its name: TOML as TOML, the others line by line as iniconfig does. One that cannot
be read so is no business of the agent's: the base's stands in its place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["CONFIGURATION", "SHARED_CONFIGURATION", "differs", "named_plugins"]

CONFIGURATION = frozenset({"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"})
SHARED_CONFIGURATION = frozenset({"setup.cfg", "pyproject.toml"})
_LARGEST = 4 << 20
_UNREADABLE = object()
_NAMED = re.compile(r"-p[ =]*([A-Za-z_][\w.]*)")
_NAME = re.compile(r"['\"]([A-Za-z_][\w.]*)['\"]")


def differs(path: str, before: bytes | None, now: bytes | None, is_there: bool) -> bool:
    """Whether a shared file (`pyproject.toml`, `setup.cfg`) says something else to pytest than it did.

    Args:
        path: its path; the name decides how it is read.
        before, now: the contents; None = there is no such plain file.
        is_there: whether anything lies there now: what is no plain file (a link, a folder) differs from all.
    """
    if is_there and now is None:
        return True
    after = _part(path, now)
    return after is _UNREADABLE or after != _part(path, before)


def _part(path: str, data: bytes | None) -> Any:
    if data is None:
        return ()
    if len(data) > _LARGEST:
        return _UNREADABLE
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return _UNREADABLE
    if PurePosixPath(path).suffix != ".toml":
        return _sections(text)
    try:
        part = tomllib.loads(text).get("tool", {}).get("pytest", {})
    except (ValueError, AttributeError, RecursionError):
        return _UNREADABLE
    return part or ()


def _sections(text: str) -> tuple[str, ...]:
    """The lines of every section with pytest in its name, in any spelling."""
    found, inner = [], False
    for line in text.splitlines():  # at every separator that Unicode knows, as iniconfig does
        if line.lstrip("\ufeff \t").startswith("["):
            inner = "pytest" in line.lower()
        if inner and line.strip() and not line.lstrip().startswith(("#", ";")):
            found.append(line.rstrip())
    return tuple(found)


def named_plugins(root: Path, paths: Iterable[str]) -> set[str]:
    """Modules that the task's own files make plugins of pytest: `pytest_plugins` of a protected Python file, `-p` of a
    configuration, and entry points of the metadata given."""
    found: set[str] = set()
    for path in paths:
        try:
            text = (root / path).read_text("utf-8", "replace")
        except OSError:
            continue
        if path.endswith(".py"):
            for at in re.finditer(r"\bpytest_plugins\b", text):
                found.update(_NAME.findall(text[at.end() : at.end() + 1000]))
        elif path.endswith("entry_points.txt"):
            _, _, part = text.partition("[pytest11]")
            found.update(re.findall(r"=\s*([\w.]+)", part.split("\n[")[0]))
        else:
            found.update(_NAMED.findall(text))
    return found
