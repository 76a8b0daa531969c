"""Where work trees stand on the host: their folders and mounts, and what a process that was killed left of them.

Under the temporary folder lies one folder a user, in it one a process that has trees, in that one a tree:

    <temporary folder>/rtmc-trees-<uid>/<pid>-<start time>-<pid namespace>-<random>/<number>/

A folder whose process is gone is a leftover: its mounts and files are removed by the next process that makes a tree
there. Two things say that it lives, and either is enough:

- a lock (flock) on the folder, which the system drops when the process ends, however it ends. Its forked children hold
  the same lock, so that a child that works on in its parent's trees keeps them if the parent is killed;
- the folder's name, where it is of our process namespace: the lock alone would go when a process closes all its
  descriptors, as programs do that turn into daemons. From another namespace (a container's) the number means nothing,
  and the lock alone counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import re
import secrets
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from rtmc.gymenvs.isolation.cgroups import pid_namespace, start_time
from rtmc.gymenvs.swe.folders import remove_folder

_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: Path, options: str) -> None:
    """mount(2) with nosuid and nodev. Raises OSError."""
    flags = _MS_NOSUID | _MS_NODEV
    arguments = (kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if _libc().mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {kind}: {os.strerror(number)}", str(target))


def unmount(target: Path) -> None:
    """Take a mount away at once; what still uses it keeps it until it ends. None there is no error."""
    if _libc().umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, f"unmounting: {os.strerror(number)}", str(target))


def mounts_below(folder: Path) -> list[Path]:
    """The mounts under a folder, innermost and latest first."""
    prefix = os.fsencode(folder) + b"/"
    found = []
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            escaped = line.split(b" ")[4]
            target = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), escaped)
            if target.startswith(prefix):
                found.append(Path(os.fsdecode(target)))
    return found[::-1]


class _Home:
    """This process's folder under one folder of trees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.live: set[Path] = set()
        self.made = 0
        self._identity = os.stat(path)
        self._lock = -1
        self.hold()

    def hold(self) -> None:
        """Have the lock; again where somebody closed its descriptor."""
        if not self._is_held():
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def let_go(self) -> None:
        """Close the lock's descriptor, if the number is still it."""
        if self._is_held():
            os.close(self._lock)

    def _is_held(self) -> bool:
        try:
            return self._lock >= 0 and os.path.samestat(os.fstat(self._lock), self._identity)
        except OSError:
            return False


_guard = threading.Lock()
_homes: dict[Path, _Home] = {}
_swept: set[Path] = set()


def _forget_parent() -> None:
    """In a forked child: its parent's trees are not its own to remove. The lock that it holds too keeps them for it."""
    global _guard
    _guard = threading.Lock()
    _homes.clear()


os.register_at_fork(after_in_child=_forget_parent)


def _process_name() -> str:
    return f"{os.getpid()}-{start_time(os.getpid())}-{pid_namespace()}"


def _lives(name: str) -> bool:
    """Whether the process that a folder is named for is of this namespace and lives."""
    parts = name.split("-")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[:3]):
        return False
    pid, started, namespace = (int(part) for part in parts[:3])
    return namespace == pid_namespace() and start_time(pid) == started


def trees_folder(place: Path | None = None) -> Path:
    """The folder of this user's trees under `place` (the temporary folder if None). It need not exist."""
    return Path(os.path.realpath(place or tempfile.gettempdir())) / f"rtmc-trees-{os.getuid()}"


@contextlib.contextmanager
def _locked(top: Path) -> Iterator[None]:
    """The folder of trees made, checked to be ours, and locked against other processes."""
    handle = _lock(top)
    while handle is None:  # its last user removed it just now
        handle = _lock(top)
    try:
        yield
    finally:
        os.close(handle)


def _lock(top: Path) -> int | None:
    with contextlib.suppress(FileExistsError):
        top.mkdir(mode=0o700)
    try:
        handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        info = os.fstat(handle)
        if info.st_uid != os.getuid() or info.st_mode & 0o022:
            what = "a folder of this user that nobody else may write to is wanted here: remove this one"
            raise PermissionError(errno.EPERM, what, str(top))
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(info, os.lstat(top)):
                os.fchmod(handle, 0o711)
                return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def new_place(place: Path | None = None) -> Path:
    """A fresh empty folder for a tree, mode 0o700. The first call for a `place` sweeps it. Raises OSError."""
    top = trees_folder(place)
    with _guard:
        if top not in _swept:
            _sweep(top)
            _swept.add(top)
        home = _homes.get(top)
        if home is None:
            with _locked(top):
                path = top / f"{_process_name()}-{secrets.token_hex(8)}"
                path.mkdir()
                path.chmod(0o711)  # whatever the umask: the sandbox's user may have to come through
                home = _homes[top] = _Home(path)
        home.hold()
        folder = home.path / str(home.made)
        home.made += 1
        folder.mkdir(mode=0o700)
        home.live.add(folder)
    return folder


def discard_place(folder: Path, owner: int) -> None:
    """Remove a tree's folder, its mounts first. Does nothing in another process than `owner`, its maker."""
    if os.getpid() != owner:
        return
    for target in mounts_below(folder):
        unmount(target)
    _remove(folder)
    with _guard:
        home = _homes.get(folder.parent.parent)
        if home is None:
            return
        home.live.discard(folder)
        if home.live:
            return
        top = home.path.parent
        del _homes[top]
        with _locked(top):
            os.rmdir(home.path)
            home.let_go()
            with contextlib.suppress(OSError):  # others have trees there
                top.rmdir()


def sweep_leftovers(place: Path | None = None) -> int:
    """Remove the folders and mounts of trees whose process is gone; how many processes' it removed.

    Trees of living processes, this one's too, are left alone, whichever container they are in. What cannot be
    removed is warned of.
    """
    with _guard:
        return _sweep(trees_folder(place))


def _sweep(top: Path) -> int:
    if not top.is_dir():
        return 0
    removed = 0
    with _locked(top):
        for name in os.listdir(top):
            folder = top / name
            lock = -1
            if _lives(name):
                continue
            try:
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for target in mounts_below(folder):
                    unmount(target)
                _remove(folder)
                removed += 1
            except BlockingIOError:
                continue  # its process lives, or a child of it
            except OSError as error:
                warnings.warn(f"could not remove {folder}, a leftover of a killed process: {error}", stacklevel=3)
            finally:
                if lock >= 0:
                    os.close(lock)
        with contextlib.suppress(OSError):
            top.rmdir()
    return removed


def _remove(folder: Path) -> None:
    parent = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        if stat.S_ISDIR(os.lstat(folder.name, dir_fd=parent).st_mode):
            remove_folder(parent, folder.name)
    finally:
        os.close(parent)
