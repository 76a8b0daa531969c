"""What of an agent's tree Python would load by itself, or in the place of something that the tests mean.

`importlib.metadata` reads names without regard to case, and so is it done here.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

__all__ = ["RUNNER_NAMES", "imported_names", "is_loaded", "metadata_of", "roots_of", "shadowed"]

RUNNER_NAMES = frozenset(
    {"pytest", "_pytest", "pluggy", "py", "iniconfig", "unittest", "sitecustomize", "usercustomize"}
    | {"pytest_timeout", "xdist", "hypothesis", "_hypothesis_pytestplugin"}
)
_LOADED = re.compile(
    r".*\.(?:pth|pyc|pyo|egg-link|egg)|(?:.*/)?(?:[^/]+\.(?:egg-info|dist-info|egg)|egg-info|__editable__[^/]*)(?:/.*)?",
    re.DOTALL | re.IGNORECASE,
)
_METADATA = re.compile(r"(?:[^/]+\.(?:egg-info|dist-info)|egg-info)", re.IGNORECASE)
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:\.py|\.pyi|(?:\.[\w-]+)?\.so|\.pyd)?")
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", re.MULTILINE)


def is_loaded(path: str) -> bool:
    """Whether the path is a file that start-up, the import of a compiled module, or a look for plugins would read."""
    return _LOADED.fullmatch(path) is not None


def roots_of(env: Mapping[str, str], inside: str = "/testbed") -> tuple[str, ...]:
    """The folders of the tree that modules are imported from, as prefixes ("" or "src/"): the usual ones and what
    PYTHONPATH names."""
    found = ["", "src/", "lib/"]
    for one in env.get("PYTHONPATH", "").split(":"):
        path = one.removeprefix(f"{inside}/") if one.startswith(f"{inside}/") else one
        if path and not path.startswith("/") and ".." not in path.split("/"):
            found.append(f"{PurePosixPath(path)}/".removeprefix("./"))
    return tuple(dict.fromkeys(found))


def metadata_of(base: Path, roots: Iterable[str]) -> list[str]:
    """Folders (and files) of packages' metadata that the tree had from the beginning."""
    found = []
    for root in roots:
        try:
            names = sorted(os.listdir(base / root))
        except OSError:
            continue
        found += [f"{root}{name}" for name in names if _METADATA.fullmatch(name)]
    return found


def imported_names(texts: Iterable[str]) -> set[str]:
    """Top-level names of all modules that the texts import anywhere."""
    found: set[str] = set()
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found.update(_IMPORT.findall(text))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found.update(one.name.split(".")[0] for one in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.split(".")[0])
    return found


def shadowed(path: str, base: Path, roots: Iterable[str], names: Collection[str], packages: Collection[str]) -> str:
    """The top of a new module that would be imported in place of one that the tests mean; "" = it is none.

    Args:
        path: what the agent added.
        base: the tree as it was.
        roots: see `roots_of`.
        names: what the tests import.
        packages: top-level names of what is installed beside the standard library.
    """
    for root in roots:
        if not path.startswith(root):
            continue
        first = path[len(root) :].split("/")[0]
        named = _MODULE.fullmatch(first)
        if named is None or named[1] not in names:
            continue
        if named[1] not in sys.stdlib_module_names and named[1] not in packages:
            continue
        kept = (f"{other}{named[1]}{end}" for other in roots for end in ("", ".py"))
        if not any(os.path.lexists(base / one) for one in kept):
            return f"{root}{first}"
    return ""
