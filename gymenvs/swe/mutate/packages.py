"""Where a package comes from: a word of the command line becomes its source in a folder.

    with opened("toolz==1.2.0", cache) as (package, origin): ...

A word with a slash is a local folder; any other is the name of a package on the registry, whose source archive is
fetched by pip with the user's own settings, or found where it was put before.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtmc.gymenvs.swe import sdists, treefiles
from rtmc.gymenvs.swe.mutate.layout import Package, read_package
from rtmc.gymenvs.swe.sources import Folder, Sdist

_ASK_S = 60.0
_NAMED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?")


@contextmanager
def opened(word: str, cache: Path, version: str = "") -> Iterator[tuple[Package, Sdist | Folder]]:
    """The package of a word, and how a task names its source.

    Args:
        word: `name`, `name==version`, or a folder with a slash in it (`./name`).
        cache: folder that keeps the archives.
        version: of a name without one; "" = the newest.

    Raises:
        ValueError: there is no such folder, package or release, or it holds no code or no tests.
    """
    if "/" in word or word in (".", ".."):
        if version:
            raise ValueError(f"{word}: a folder has no version to choose, got {version!r}")
        root = Path(word).resolve()
        if not root.is_dir():
            raise ValueError(f"there is no folder {word!r}")
        yield read_package(root, root.name, where=f"the folder {word!r}"), Folder(str(root))
        return
    _check_spelling(word)
    name, _, pinned = word.partition("==")
    if pinned and version and pinned != version:
        raise ValueError(f"{word}: it names a version, and another one is asked for: {version!r}")
    release = Sdist(name, pinned or version or newest(name))
    archive, digest = sdists.fetch(release, cache)
    with treefiles.scratch() as folder:
        root = folder / "source"
        sdists.unpack(archive, root, word)
        where = f"the source archive {archive.name}"
        yield read_package(root, name, release.version, where), Sdist(name, release.version, digest)


def newest(name: str) -> str:
    """The newest release that the registry has for this Python. Raises ValueError where there is none, or no answer."""
    Sdist(name, "0")  # no option of pip, no path, no address
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{name}: the registry gave no answer in {_ASK_S:g} s; name a version (`{name}==1.2`)"
        ) from None
    found = re.match(r"\S+ \(([^)\s]+)\)", done.stdout)
    if done.returncode != 0 or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = said[-1].removeprefix("ERROR: ") if said else "no release of it"
        hint = f"; a folder is written with a slash: `./{name}`" if Path(name).is_dir() else ""
        raise ValueError(f"{name}: the registry names no release: {reason}{hint}")
    return found.group(1)


def check_named(word: str, version: str = "") -> None:
    """Raises ValueError where a word is no package: no such folder, no such name, no such release, as far as a look
    at the disk or one question to the registry tells."""
    if "/" in word or word in (".", ".."):
        if not Path(word).is_dir():
            raise ValueError(f"there is no folder {word!r}")
        return
    _check_spelling(word)
    if "==" not in word and not version:
        newest(word)


def _check_spelling(word: str) -> None:
    if _NAMED.fullmatch(word) is None:
        raise ValueError(f"{word!r} is no package: wanted `name`, `name==version`, or a folder with a slash (`./name`)")


def is_of(source: object, word: str, version: str = "") -> bool:
    """Whether a task's source is the package of a word of the command line, in any version where none is named."""
    if "/" in word or word in (".", ".."):
        return isinstance(source, Folder) and source.path == str(Path(word).resolve())
    name, _, pinned = word.partition("==")
    wanted = pinned or version
    return isinstance(source, Sdist) and source.name == name and wanted in ("", source.version)
