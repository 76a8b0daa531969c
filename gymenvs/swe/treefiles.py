"""Plain files of a tree in the making: written, copied, read, removed; no link is followed out of it.

For the starting folder, before any agent. What an agent has touched goes through `tree` and `paths`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from rtmc.gymenvs.swe.folders import open_content, remove_folder, walk_folder
from rtmc.gymenvs.swe.gitstore import PreparationError
from rtmc.gymenvs.swe.places import discard_place, new_place

BYTECODE = frozenset({"__pycache__", ".pytest_cache"})


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder to work in, removed at the end. What a killed process leaves, the next one to make one removes."""
    place = new_place()
    try:
        yield place
    finally:
        discard_place(place, os.getpid())


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Removes a file, a link or a folder with all it holds; nothing there is fine."""
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(info.st_mode):
        with _opened(path.parent) as outer:
            remove_folder(outer, path.name)
    else:
        path.unlink()


def drop(tree: Path, names: Collection[str]) -> None:
    """Removes what has one of these names, at any depth."""
    with _opened(tree) as root:
        found = [one.path for one in walk_folder(root, lambda path, _: path.rpartition("/")[2] not in names)]
    for path in found:
        if path.rpartition("/")[2] in names:
            remove(tree / path)


def write(tree: Path, files: Mapping[str, str | bytes]) -> None:
    """Writes files, with the folders they need. The paths are checked ones; a link on the way is not followed.

    Raises:
        PreparationError: a file would lie outside the tree, or where a folder is.
    """
    for name, content in files.items():
        path = within(tree, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        try:
            path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        except IsADirectoryError:
            raise PreparationError(f"{name!r}: wanted a file, there is a folder") from None


def read(tree: Path, name: str) -> bytes | None:
    """The content of a regular file, or None where there is none."""
    path = within(tree, name)
    if not path.is_file() or path.is_symlink():
        return None
    return path.read_bytes()


def read_below(tree: Path, name: str) -> dict[str, bytes]:
    """The regular files at a path: the file itself, or all files of the folder, compiled Python left out."""
    path = within(tree, name)
    if path.is_symlink() or not path.is_dir():
        content = read(tree, name)
        return {} if content is None else {name: content}
    found: dict[str, bytes] = {}
    with _opened(path) as root:
        for one in walk_folder(root, lambda below, _: below.rpartition("/")[2] not in BYTECODE):
            if stat.S_ISREG(one.stat.st_mode):
                with os.fdopen(open_content(one.folder, one.name), "rb") as file:
                    found[f"{name}/{one.path}"] = file.read()
    return found


def content_of(data: bytes) -> str | bytes:
    """As a task keeps it: text where it is UTF-8 without NUL, else the bytes."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return data if "\0" in text else text


def copy_folder(source: Path, target: Path, without: Collection[str] = ()) -> None:
    """Copies files, folders and links into a new folder; git's folders, compiled Python and `without` stay behind.

    Args:
        without: paths below the source.

    Raises:
        PreparationError: there is no such folder, or it holds something else than files, folders and links.
    """
    if not source.is_dir():
        raise PreparationError(f"there is no folder {str(source)!r}")
    target.mkdir()

    def wanted(path: str) -> bool:
        return path.rpartition("/")[2] not in {".git", *BYTECODE} and path not in without

    with _opened(source) as root:
        for one in walk_folder(root, lambda path, _: wanted(path)):
            if not wanted(one.path):
                continue
            copy, mode = target / one.path, one.stat.st_mode
            if stat.S_ISDIR(mode):
                copy.mkdir()
            elif stat.S_ISLNK(mode):
                copy.symlink_to(os.readlink(one.name, dir_fd=one.folder))
            elif stat.S_ISREG(mode):
                with os.fdopen(open_content(one.folder, one.name), "rb") as file, copy.open("wb") as new:
                    shutil.copyfileobj(file, new)
                copy.chmod(0o755 if mode & 0o100 else 0o644)
            else:
                raise PreparationError(f"{one.path!r} in {str(source)!r} is a device, a socket or a pipe")


def stamp(folder: Path) -> str:
    """A hash that changes when a file in a folder does: of paths, modes, sizes and times of the last change."""
    if not folder.is_dir():
        raise PreparationError(f"there is no folder {str(folder)!r}")
    found = hashlib.sha256()
    with _opened(folder) as root:
        for one in walk_folder(root, lambda path, _: path.rpartition("/")[2] not in {".git", *BYTECODE}):
            info = one.stat
            size = (info.st_size, info.st_mtime_ns) if stat.S_ISREG(info.st_mode) else ()
            found.update(f"{one.path!r} {info.st_mode} {size}\n".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def give(tree: Path, owner: tuple[int, int]) -> None:
    """Makes somebody else the owner of a folder and of all it holds."""
    with _opened(tree) as root:
        for one in walk_folder(root, force=True):
            os.chown(one.name, *owner, dir_fd=one.folder, follow_symlinks=False)
    os.chown(tree, *owner)


def within(tree: Path, name: str) -> Path:
    """The path of a file of the tree; its folder has to lie in the tree, links followed."""
    path = tree / name
    if not path.parent.resolve().is_relative_to(tree.resolve()):
        raise PreparationError(f"{name!r} lies behind a link that leads out of the tree")
    return path
