"""Index folders: built aside, then put in place whole; and where the ones the library builds for itself are kept."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtmc.gymenvs.cachefolder import cache_folder, make_folder

__all__ = ["build_folder", "cache_folder", "check_kind", "read_facts"]

_FACTS = "index.json"


def build_folder(target: str | os.PathLike[str], facts: dict[str, Any], fill: Callable[[Path], None]) -> Path:
    """Make the folder `target` with what `fill` writes and with `facts`; it is there whole or not at all.

    Of two processes that build the same, the first one's stays.

    Raises:
        OSError: the folder cannot be written. FileExistsError: there is something of that name that is no index.
    """
    target = Path(target)
    if target.exists() and not (target / _FACTS).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is no index of ours; name another folder")
    make_folder(target.parent)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        fill(part)
        (part / _FACTS).write_text(json.dumps(facts))
        part.chmod(0o755)
        if (target / _FACTS).is_file() and read_facts(target) != facts:
            shutil.rmtree(target)
        try:
            part.rename(target)
        except OSError:
            if not (target / _FACTS).is_file():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)  # renamed by now, if all went well
    return target


def read_facts(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `build_folder` noted.

    Raises:
        ValueError: the folder holds no index.
    """
    file = Path(folder) / _FACTS
    try:
        facts = json.loads(file.read_text())
    except (OSError, ValueError):
        raise ValueError(f"{folder} holds no index: {_FACTS} is missing or unreadable; build it anew") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{file} holds no object; build the index anew")
    return facts


def check_kind(folder: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The facts of an index of this kind and of this version.

    Raises:
        ValueError: it is of another.
    """
    facts = read_facts(folder)
    if facts.get("kind") != kind:
        raise ValueError(f"{folder} holds an index of the kind {facts.get('kind')!r}; {kind!r} is wanted")
    return facts
