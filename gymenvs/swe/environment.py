"""The environment of a prepared folder: another Python than this one's, with what it has installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rtmc.gymenvs.swe.gitstore import PreparationError
from rtmc.gymenvs.swe.runtime import Runtime

_ASK = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
_LIMIT_S = 60.0
_ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0"}


def own_environment(python: str, folder: Path | None, where: str) -> tuple[Runtime, dict[str, str]]:
    """What shows an interpreter and its packages, read-only, in a sandbox.

    Args:
        python: the interpreter's path; relative to `folder` where there is one.
        folder: the prepared folder. An environment inside it is not copied with the tree: a link takes its place.

    Returns:
        the runtime, and the links: path in the tree -> what it points to.

    Raises:
        PreparationError: it cannot be run, or it is this process's own environment. That one holds this package, whose
            data tell the fixes of the tasks it ships with.
    """
    path = Path(python) if folder is None else folder / python
    path = Path(os.path.abspath(path))  # not resolved: a link is how a virtual environment names its interpreter
    try:
        done = subprocess.run(
            [str(path), "-I", "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=True
        )
        prefix, base = (Path(one).resolve() for one in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PreparationError(f"{where}: python={python!r} cannot be run as an interpreter: {error}") from None
    if prefix == Path(sys.prefix).resolve() and prefix != base:
        raise PreparationError(
            f"{where}: python={python!r} is the environment that this process runs in; wanted one of the task's own "
            f"(python= left out means this interpreter's base with pytest and the task's python_packages)"
        )
    links = {}
    if folder is not None and prefix.is_relative_to(folder.resolve()) and prefix != folder.resolve():
        links[prefix.relative_to(folder.resolve()).as_posix()] = str(prefix)
        path = prefix / path.relative_to(Path(os.path.abspath(folder)) / next(iter(links)))
    # The system's own folders are shown in every sandbox.
    readable = tuple((one, str(one)) for one in dict.fromkeys((prefix, base)) if not one.is_relative_to("/usr"))
    return Runtime(str(path), readable, (), (str(path.parent),), dict(_ENV)), links
