"""Files of a folder that an agent fills as it likes, reached without ever leaving the folder.

The agent may put links, pipes, devices and folders without end into its tree, and change them while a path is being
resolved. Nothing here starts a process, hangs, or touches a file outside. Paths are resolved one component at a
time from a descriptor of the root, every component opened with O_NOFOLLOW and links expanded by hand, so that a
folder swapped for a link in between gives an error, not another file. (`openat2` with RESOLVE_IN_ROOT would be one
system call, but takes `/testbed/x` in a link for `<root>/testbed/x`, and clamps where an error is wanted.)

How a path reads:

- relative to the tree, or absolute as seen inside the sandbox, under `inside`; `str`, bytes that are no UTF-8 as
  surrogates (`os.fsdecode`);
- `..` goes up as in a shell, after links are followed; above the tree it may come back (`/testbed/../testbed/x` is
  `x`), but a path that ends or turns elsewhere there is `OutsideTree`: `/testbed/../etc/passwd` isn't clamped;
- `~` is a name like any other; nothing is expanded;
- links that point inside are followed, absolute ones under `inside` too; others are `OutsideTree`.

Not a sandbox: it guards our own accesses from the outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtmc.gymenvs.swe.errors import (
    BadPath,
    IsFolder,
    NoAccess,
    NotFolder,
    NotFound,
    NotRegular,
    OutsideTree,
    TooLarge,
    TreeError,
    refusal,
)
from rtmc.gymenvs.swe.folders import (
    HANDLE,
    LISTED,
    PERMISSIONS,
    forget_bytecode,
    open_below,
    remove_folder,
    replacing,
    walk_folder,
)

PATH_BYTES = 4096  # Linux's PATH_MAX: what a shell inside could not name either
READ_BYTES = 64 << 20
MAX_LINKS = 40  # as the kernel
_MAX_STEPS = 20_000  # a chain of links through deep folders costs no more than this many opens


__all__ = [
    "BadPath",
    "Entry",
    "IsFolder",
    "NoAccess",
    "NotFolder",
    "NotFound",
    "NotRegular",
    "OutsideTree",
    "TooLarge",
    "TreeError",
    "TreeFolder",
]


class Entry(NamedTuple):
    """Something in a tree: `path` relative to it, `size` in bytes (0 for a folder)."""

    path: str
    is_folder: bool
    size: int
    is_link: bool


class _Place(NamedTuple):
    folder: int  # descriptor of the folder that holds it
    name: str  # "." for the root
    path: str  # relative, links resolved; "" for the root
    stat: os.stat_result | None  # None: nothing is there


class TreeFolder:
    """A folder whose files are read and written by paths that never lead out of it. One thread at a time.

    Args:
        root: the folder on the host.
        inside: its absolute path as the agent sees it.
        owner: (uid, gid) that files and folders made here get; None leaves what the system gives.
        size_bytes: a written file may not be larger.

    Raises:
        ValueError: `inside` is not absolute. OSError: `root` is no folder.
    """

    def __init__(
        self,
        root: Path,
        *,
        inside: str = "/testbed",
        owner: tuple[int, int] | None = None,
        size_bytes: int = 1 << 30,
    ) -> None:
        if not inside.startswith("/") or any(part in ("..", ".") for part in inside.split("/")):
            raise ValueError(f"inside = {inside!r}: want an absolute path without . and ..")
        self.root = Path(root)
        self.inside = "/" + "/".join(part for part in inside.split("/") if part)
        self.owner = owner
        self.size_bytes = size_bytes
        self._inside = [part for part in inside.split("/") if part]
        self._root = os.open(self.root, os.O_PATH | os.O_DIRECTORY)

    def close(self) -> None:
        """Give the descriptor back. Further accesses raise ValueError."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"a {type(self).__name__} belongs to its process: send its snapshot()")

    # Resolution

    @contextlib.contextmanager
    def _place(self, path: str, *, follow: bool = True, parents: bool = False) -> Iterator[_Place]:
        """Where a path leads. The descriptor closes with the context; system errors become the tree's."""
        if not isinstance(path, str):
            raise TypeError(f"a path is a str, not {type(path).__name__}")
        if self._root < 0:
            raise ValueError("this tree is closed")
        folder = -1
        try:
            if "\0" in path:
                raise BadPath(path, "has a NUL byte")
            if len(os.fsencode(path)) >= PATH_BYTES:
                raise BadPath(path[:100] + "...", f"is not shorter than {PATH_BYTES} bytes")
            folder, names, name = self._resolve(path, follow, parents)
            try:
                info = os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                info = None
            yield _Place(folder, name, "" if name == "." else "/".join([*names, name]), info)
        except UnicodeEncodeError:
            raise BadPath(path, "has characters that no file name holds") from None
        except OSError as error:
            raise refusal(path, error) from None
        finally:
            if folder >= 0:
                os.close(folder)

    def _resolve(self, path: str, follow: bool, parents: bool) -> tuple[int, list[str], str]:
        """Descriptor and names of the folder that holds the path's end, and the end's name ("." for the root)."""
        todo, names = _components(path), list[str]()
        above = len(self._inside) if path.startswith("/") else 0  # folders from here down to the root
        links = steps = 0
        folder = os.open(".", HANDLE, dir_fd=self._root)  # always that of `names`
        try:
            while todo:
                name = todo.pop()
                steps += 1
                if name == ".":
                    continue  # where we are is a folder
                if above or (name == ".." and not names):
                    if name == "..":
                        above = min(above + 1, len(self._inside))
                    elif name == self._inside[-above]:
                        above -= 1
                    else:
                        raise OutsideTree(path, f"leads out of {self.inside}")
                    continue
                target: str | None = None
                if name == "..":
                    # From the root anew: a `..` on the disk may lead elsewhere when a folder is moved meanwhile.
                    names.pop()
                    os.close(folder)
                    folder = -1
                    folder = open_below(self._root, names)
                    steps += len(names)
                elif todo:
                    below = self._enter(path, folder, name, parents)
                    if isinstance(below, str):
                        target = below
                    else:
                        os.close(folder)
                        folder = below
                        names.append(name)
                else:
                    target = _link_target(folder, name) if follow else None
                    if target is None:
                        return folder, names, name
                if target is not None:
                    links += 1
                    todo += _components(target)
                    if target.startswith("/"):
                        names, above = [], len(self._inside)
                        os.close(folder)
                        folder = -1
                        folder = os.open(".", HANDLE, dir_fd=self._root)
                if links > MAX_LINKS or steps > _MAX_STEPS:
                    raise BadPath(path, "goes round in links" if links > MAX_LINKS else "goes through too many folders")
            if above:
                raise OutsideTree(path, f"leads out of {self.inside}")
            if not names:
                return folder, names, "."
            os.close(folder)
            folder = -1
            return open_below(self._root, names[:-1]), names[:-1], names[-1]
        except BaseException:
            if folder >= 0:
                os.close(folder)
            raise

    def _enter(self, path: str, folder: int, name: str, parents: bool) -> int | str:
        """The folder `name` opened, or the target of the link that it is."""
        try:
            return os.open(name, HANDLE, dir_fd=folder)
        except NotADirectoryError:
            target = _link_target(folder, name)
            if target is None:
                raise NotFolder(path, f"has a component, {name!r}, that is no folder") from None
            return target
        except FileNotFoundError:
            if not parents:
                raise
        self._make_folder(folder, name)
        return os.open(name, HANDLE, dir_fd=folder)

    def _make_folder(self, folder: int, name: str, mode: int = 0o755) -> None:
        os.mkdir(name, 0o700, dir_fd=folder)
        handle = os.open(name, LISTED, dir_fd=folder)
        try:
            os.fchmod(handle, mode & PERMISSIONS)
            if self.owner is not None:
                os.fchown(handle, *self.owner)
        finally:
            os.close(handle)

    # Access

    def locate(self, path: str) -> str:
        """The path relative to the tree with links and `..` resolved, "" for the root. The end need not exist."""
        with self._place(path) as place:
            return place.path

    def entry(self, path: str) -> Entry:
        """What a path leads to, links followed. Raises NotFound and the other tree errors."""
        with self._place(path) as place:
            if place.stat is None:
                raise NotFound(path, "does not exist")
            return _entry(place.path, place.stat)

    def exists(self, path: str) -> bool:
        """Whether something is there, links followed. Raises OutsideTree, BadPath and NoAccess."""
        try:
            with self._place(path) as place:
                return place.stat is not None
        except (NotFound, NotFolder):
            return False

    def is_folder(self, path: str) -> bool:
        """Whether a folder is there, links followed. Raises OutsideTree, BadPath and NoAccess."""
        return self.exists(path) and self.entry(path).is_folder

    def is_link(self, path: str) -> bool:
        """Whether the path's last component is a link, be it dangling. Raises as `exists`."""
        try:
            with self._place(path, follow=False) as place:
                return place.stat is not None and stat.S_ISLNK(place.stat.st_mode)
        except (NotFound, NotFolder):
            return False

    def open(self, path: str) -> BinaryIO:
        """A regular file, opened to be read in parts. Never waits: pipes, sockets and devices are NotRegular."""
        with self._place(path) as place:
            if place.stat is None:
                raise NotFound(path, "does not exist")
            return os.fdopen(_open_regular(path, place), "rb")

    def read(self, path: str, *, limit: int = READ_BYTES) -> bytes:
        """A file's content. Raises TooLarge over `limit` bytes, NotFound, IsFolder, NotRegular, OutsideTree, ..."""
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = b"" if size > limit else file.read(limit + 1)
        if size > limit or len(content) > limit:
            raise TooLarge(path, f"has {max(size, len(content))} bytes, over the limit of {limit}")
        return content

    def write(self, path: str, content: bytes, *, parents: bool = False, mode: int | None = None) -> str:
        """Write a file whole or not at all, and give its resolved path.

        A link is followed to where it points in the tree. Permissions (without set-user-id and the like) and owner
        of the file that was there are kept, a new one is 0o644; other hard links of it keep the old content. The
        bytecode Python cached of a module goes: it is told from the source by second and size alone.

        Args:
            parents: make the missing folders on the way.
            mode: the permissions, in place of the above.

        Raises:
            NotFound: a folder on the way is missing. IsFolder, NotRegular, TooLarge, OutsideTree, NoAccess, BadPath.
        """
        if len(content) > self.size_bytes:
            raise TooLarge(path, f"cannot hold {len(content)} bytes: the limit is {self.size_bytes}")
        with self._place(path, parents=parents) as place:
            old = place.stat
            if old is not None and stat.S_ISDIR(old.st_mode):
                raise IsFolder(path, "is a folder")
            if old is not None and not stat.S_ISREG(old.st_mode):
                raise NotRegular(path, "is a pipe, socket or device")
            if mode is None:
                mode = 0o644 if old is None else old.st_mode
            owner = self.owner if old is None or self.owner else (old.st_uid, old.st_gid)
            with replacing(place.folder, place.name, mode, owner) as file:
                file.write(content)
            forget_bytecode(place.folder, place.name)
            return place.path

    def make_folder(self, path: str, *, parents: bool = False) -> str:
        """Make a folder and give its resolved path; one that is there stays. Raises NotFolder, NotFound, ..."""
        with self._place(path.rstrip("/") or path, parents=parents) as place:
            if place.stat is None:
                self._make_folder(place.folder, place.name)
            elif not stat.S_ISDIR(place.stat.st_mode):
                raise NotFolder(path, "is no folder")
            return place.path

    def make_link(self, path: str, target: str, *, parents: bool = False) -> str:
        """Make a link where nothing is, and give its path; `target` may lead anywhere. Raises TreeError, ..."""
        with self._place(path, follow=False, parents=parents) as place:
            if place.stat is not None:
                raise TreeError(path, "is there already")
            os.symlink(target, place.name, dir_fd=place.folder)
            if self.owner is not None:
                os.chown(place.name, *self.owner, dir_fd=place.folder, follow_symlinks=False)
            return place.path

    def read_link(self, path: str) -> str:
        """The target of a link, as it is written. Raises NotFound, TreeError for what is no link, ..."""
        with self._place(path, follow=False) as place:
            target = _link_target(place.folder, place.name)
            if place.stat is None or target is None:
                raise NotFound(path, "does not exist") if place.stat is None else TreeError(path, "is no link")
            return target

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or a link itself; a folder with all it holds if `recursive`, else IsFolder is raised."""
        with self._place(path, follow=False) as place:
            if place.stat is None:
                raise NotFound(path, "does not exist")
            if not place.path:
                raise IsFolder(path, "is the tree itself")
            if not stat.S_ISDIR(place.stat.st_mode):
                os.unlink(place.name, dir_fd=place.folder)
                forget_bytecode(place.folder, place.name)
            elif recursive:
                remove_folder(place.folder, place.name)
            else:
                raise IsFolder(path, "is a folder")

    def remove_empty(self, path: str) -> None:
        """Remove a folder if it is empty, then the one that holds it, and so on; never the tree itself."""
        while path:
            try:
                with self._place(path, follow=False) as place:
                    if not place.path:
                        return
                    os.rmdir(place.name, dir_fd=place.folder)
                    path = place.path.rpartition("/")[0]
            except TreeError:
                return  # something is in it, or it is no folder

    def walk(self, path: str = "", depth: int | None = None, hidden: bool = False) -> Iterator[Entry]:
        """What lies below a folder: folders before what they hold, names in order, links named and not followed.

        Args:
            depth: levels below `path`, 1 for its own entries; None for all.
            hidden: also names that begin with a dot, and what is below them.

        Raises:
            NotFound, NotFolder, OutsideTree, ... at the first entry asked for.
        """
        with self._place(path) as place:
            if place.stat is None:
                raise NotFound(path, "does not exist")
            start = os.open(place.name, LISTED, dir_fd=place.folder)
            prefix = f"{place.path}/" if place.path else ""
        try:
            deep = PATH_BYTES - len(os.fsencode(prefix)) - 1

            def enter(below: str, info: os.stat_result) -> bool:
                if not hidden and below.rpartition("/")[2].startswith("."):
                    return False
                return (depth is None or below.count("/") + 1 < depth) and len(os.fsencode(below)) < deep

            for found in walk_folder(start, enter):
                if hidden or not found.name.startswith("."):
                    yield _entry(prefix + found.path, found.stat)
        finally:
            os.close(start)


def _components(path: str) -> list[str]:
    """The names of a path, the last first; "." after one that a slash ends: it must be a folder, and is followed."""
    names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
    return [".", *names] if path.endswith(("/", "/.")) else names


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # no link
            return None
        raise


def _entry(path: str, info: os.stat_result) -> Entry:
    folder = stat.S_ISDIR(info.st_mode)
    return Entry(path, folder, 0 if folder else info.st_size, stat.S_ISLNK(info.st_mode))


def _open_regular(path: str, place: _Place) -> int:
    assert place.stat is not None
    if stat.S_ISDIR(place.stat.st_mode):
        raise IsFolder(path, "is a folder")
    if not stat.S_ISREG(place.stat.st_mode):
        raise NotRegular(path, "is a pipe, socket or device")
    # It may have been swapped since: a pipe doesn't block, a link isn't followed, and what it is is asked again.
    handle = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=place.folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(path, "is no regular file any more")
    return handle
