"""Folders by descriptor: walked, removed and written at any depth, with any permissions, no link followed.

What works for a folder that an agent filled: paths longer than the system takes, thousands of levels, closed
folders, entries that change meanwhile. Everything raises OSError; `paths` makes the tree's errors of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

PERMISSIONS = 0o777  # set-user-id, set-group-id and sticky bits are never kept
HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_HELD_FOLDERS = 64  # descriptors a walk keeps open, however deep it goes


class Found(NamedTuple):
    """What `walk_folder` came to: its `folder` is a descriptor, good until the next one is asked for."""

    path: str
    name: str
    stat: os.stat_result
    folder: int


def open_below(root: int, names: list[str]) -> int:
    """A descriptor of the folder `names` below `root`, no link followed. Raises OSError."""
    folder = os.dup(root)  # opening "." would ask the root's own permissions
    for name in names:
        try:
            below = os.open(name, HANDLE, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def open_listed(root: int, path: str) -> int:
    """A descriptor, good for listing, of the folder at a relative path without links. Raises OSError."""
    folder = open_below(root, path.split("/") if path else [])
    try:
        return os.open(".", LISTED, dir_fd=folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def entered(root: int, names: list[str], wanted: int = 0o500) -> Iterator[int]:
    """A descriptor of the folder `names` below `root`; those on the way, the root too, whose permissions do not give
    us, who own them, what is `wanted`, are opened meanwhile. Raises OSError.
    """
    folder = os.dup(root)
    closed: list[tuple[int, int]] = []
    user = os.geteuid()

    def widen() -> None:
        info = os.fstat(folder)
        if user and info.st_uid == user and info.st_mode & wanted != wanted:
            os.chmod(f"/proc/self/fd/{folder}", info.st_mode & PERMISSIONS | 0o700)
            closed.append((os.dup(folder), info.st_mode & PERMISSIONS))

    try:
        widen()
        for name in names:
            below = os.open(name, HANDLE, dir_fd=folder)
            os.close(folder)
            folder = below
            widen()
        yield folder
    finally:
        os.close(folder)
        for handle, mode in reversed(closed):
            os.chmod(f"/proc/self/fd/{handle}", mode)
            os.close(handle)


def loosen(name: str, folder: int, mode: int) -> None:
    """Set the permissions of what is no link, without following one that takes its place. Raises OSError."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


class _Level:
    """A folder on the way down: its entries still to come, last name first, and its descriptor while it is held."""

    def __init__(self, path: str, name: str, outer: int, force: bool) -> None:
        self.path = path
        self.mode: int | None = None  # to be set again
        self.folder = -1
        try:
            self.folder = os.open(name, LISTED, dir_fd=outer)
            self.entries = _entries(self.folder)
        except PermissionError:
            self.shed()
            if not force:
                raise
            if path:
                self.mode = os.lstat(name, dir_fd=outer).st_mode & PERMISSIONS
                loosen(name, outer, self.mode | 0o700)
            else:
                self.mode = os.fstat(outer).st_mode & PERMISSIONS
                os.chmod(f"/proc/self/fd/{outer}", self.mode | 0o700)
            self.folder = os.open(name, LISTED, dir_fd=outer)
            self.entries = _entries(self.folder)
        self.identity = os.fstat(self.folder)

    def reopen(self, inner: int, root: int) -> None:
        """Have a descriptor again: the one above `inner` if that is still this folder, else from the root."""
        self.folder = os.open("..", LISTED, dir_fd=inner)
        if not os.path.samestat(os.fstat(self.folder), self.identity):
            self.shed()
            self.folder = open_listed(root, self.path)

    def release(self, root: int) -> None:
        """Give the descriptor back, and the folder its mode."""
        if self.mode is not None:
            folder = open_below(root, self.path.split("/") if self.path else [])
            os.chmod(f"/proc/self/fd/{folder}", self.mode)
            os.close(folder)
            self.mode = None
        self.shed()

    def shed(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    found = []
    with os.scandir(folder) as listed:
        for entry in listed:
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                found.append((entry.name, entry.stat(follow_symlinks=False)))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return found


def walk_folder(
    root: int, enter: Callable[[str, os.stat_result], bool] | None = None, *, force: bool = False
) -> Iterator[Found]:
    """All below a folder, a folder before what it holds, names in order. Never follows a link, never recurses.

    Args:
        root: descriptor of the folder.
        enter: whether to go into a folder, by its path and stat; all by default.
        force: also go into folders that their permissions close: these are widened while the walk is inside.
            Without it such a folder is named and not entered.
    """
    levels = [_Level("", ".", root, force)]
    shed = 0  # levels[:shed] gave their descriptor back
    try:
        while levels:
            level = levels[-1]
            if not level.entries:
                levels.pop()
                if levels and levels[-1].folder < 0:
                    levels[-1].reopen(level.folder, root)
                    shed = len(levels) - 1
                level.release(root)
                continue
            name, info = level.entries.pop()
            below = f"{level.path}/{name}" if level.path else name
            yield Found(below, name, info, level.folder)
            if not stat.S_ISDIR(info.st_mode) or (enter is not None and not enter(below, info)):
                continue
            try:
                levels.append(_Level(below, name, level.folder, force))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # swapped or closed: it was named, and is not entered
            if len(levels) - shed > _HELD_FOLDERS:
                levels[shed].shed()
                shed += 1
    finally:
        for level in reversed(levels):
            level.release(root)


def open_content(folder: int, name: str) -> int:
    """A regular file opened to be read, even where its permissions refuse that to its owner. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        mode = os.lstat(name, dir_fd=folder).st_mode & PERMISSIONS
        loosen(name, folder, mode | 0o400)
        try:
            return os.open(name, flags, dir_fd=folder)
        finally:
            loosen(name, folder, mode)


def remove_folder(folder: int, name: str) -> None:
    """Remove a folder and all it holds, at any depth and with any permissions. Raises OSError.

    Subfolders are moved up beside the first, so that no depth needs a long path, recursion or many descriptors.
    """
    mark, moved = f".rtmc-{secrets.token_hex(8)}", 0

    def empty(inner: int) -> None:
        nonlocal moved
        with os.scandir(inner) as listed:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
        for entry, is_folder in entries:
            if not is_folder:
                os.unlink(entry, dir_fd=inner)
                continue
            loosen(entry, inner, 0o700)  # to list it, and to move it: its `..` changes
            aside = f"{mark}-{moved}"
            try:
                os.rename(entry, aside, src_dir_fd=inner, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # An overlay does not move the base's own folders; their depth is the base's, a decent one.
                clear(entry, inner)
            else:
                moved += 1
                pending.append(aside)

    def clear(entry: str, outer: int) -> None:
        loosen(entry, outer, 0o700)
        inner = os.open(entry, LISTED, dir_fd=outer)
        try:
            empty(inner)
        finally:
            os.close(inner)
        os.rmdir(entry, dir_fd=outer)

    pending = [name]
    while pending:
        clear(pending.pop(), folder)


@contextlib.contextmanager
def replacing(folder: int, name: str, mode: int, owner: tuple[int, int] | None) -> Iterator[BinaryIO]:
    """A new file that takes the name when the context ends well. Raises OSError."""
    draft = f".rtmc-{secrets.token_hex(8)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            info = os.fstat(handle)
            if owner is not None and owner != (info.st_uid, info.st_gid):
                os.fchown(handle, *owner)
            os.fchmod(handle, mode & PERMISSIONS)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise


def forget_bytecode(folder: int, name: str) -> None:
    """Remove what Python cached of a module: a source of the same second and size would be taken for the old one."""
    stem, suffix = os.path.splitext(name)
    if suffix != ".py":
        return
    try:
        place = os.open("__pycache__", HANDLE, dir_fd=folder)
    except OSError:
        return  # no cache, or none that Python would use
    try:
        with entered(place, [], 0o700):
            cache = os.open(".", LISTED, dir_fd=place)
            try:
                for cached in os.listdir(cache):
                    if cached.startswith(f"{stem}.") and cached.endswith(".pyc"):
                        os.unlink(cached, dir_fd=cache)
            finally:
                os.close(cache)
    finally:
        os.close(place)
