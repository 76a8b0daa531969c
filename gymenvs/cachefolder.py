"""Where the environments keep what they make once: prepared trees, runtimes, archives, indexes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(part: str = "") -> Path:
    """`$RTMC_CACHE`, or `rtmc` in `$XDG_CACHE_HOME` or in `~/.cache`; `part` is a folder in it. It need not exist.

    Raises:
        OSError: no variable says where, and this user has no home folder (a number without a name, as in containers).
    """
    named = os.environ.get("RTMC_CACHE")
    if named:
        return Path(named) / part
    above = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(above) if above else Path.home() / ".cache") / "rtmc" / part
    except RuntimeError:
        raise OSError(
            f"the user {os.getuid()} has no home folder to keep a cache in; RTMC_CACHE names another folder"
        ) from None


def make_folder(folder: Path) -> None:
    """Makes a folder of the cache, with those above it; one that is there is fine.

    Raises:
        OSError: it cannot be made, or nothing can be written into it; the message says what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be written ({error.strerror}); RTMC_CACHE names another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"{folder} cannot be written; RTMC_CACHE names another folder")
