"""A changeable copy of a folder, two ways, and what differs from the folder now.

`overlay`: an overlay file system over the folder. Nothing is copied, and what differs is all in its upper layer. It
needs root's CAP_SYS_ADMIN. The upper layer lies in memory (tmpfs, limited in bytes and in number of files) where
there is at least twice as much free as the limit, else on the disk, without a limit of its own. It works where the
temporary folder is itself an overlay, as long as memory allows.

`copy`: a copy, sharing blocks where the file system can (never hard links: a write would reach the base). What
differs is found by going through the tree; a file whose inode, change time and size are those seen when it was last
equal to the base isn't read again.

Both say the same of the same tree. The base must not change while a tree stands on it.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rtmc.gymenvs.swe.errors import TooLarge, TreeError
from rtmc.gymenvs.swe.folders import LISTED, PERMISSIONS, Found, open_content, walk_folder
from rtmc.gymenvs.swe.places import discard_place, mount, new_place

LAYERS = ("overlay", "copy")
DEEPEST = 100  # levels of folders; a tree of thousands would take minutes to compare
LONGEST = 3500  # bytes of a path; what lies deeper could hardly be named by any program
MOST_ENTRIES = 500_000
_FICLONE = 0x40049409
_TICK_NS = 20_000_000  # two changes within this time may have the same change time (the kernel's clock tick)
_BLOCK = 1 << 20
_LARGE = 1 << 16  # from here a file is worth two more system calls for shared blocks


class LayerUnavailable(RuntimeError):
    """The layer that was asked for doesn't work on this machine."""


class Difference(NamedTuple):
    """One path where the tree is not as the base: what is there (None: nothing), what the base has.

    `same_content`: a file of which only the permissions differ.
    """

    now: os.stat_result | None
    base: os.stat_result | None
    same_content: bool = False


class Scan(NamedTuple):
    """All differences by path, each path below a removed folder too; `ignored`: what no snapshot can hold, and why;
    `linked`: files, different or not, that have other names too. The root itself is not in it.
    """

    differences: dict[str, Difference]
    ignored: dict[str, str]
    linked: set[str]


class Stamp(NamedTuple):
    """Changes with every write to a file, whatever times its writer sets."""

    inode: int
    changed_ns: int
    size: int
    mode: int


def stamp_of(info: os.stat_result) -> Stamp:
    """The stamp of a file's state."""
    return Stamp(info.st_ino, info.st_ctime_ns, info.st_size, info.st_mode)


def is_settled(info: os.stat_result, asked_ns: int) -> bool:
    """Whether every write since a time would show in the stamp: the last one was not in the same tick of the clock."""
    return info.st_ctime_ns + _TICK_NS < asked_ns


def special(mode: int) -> str | None:
    """What a snapshot cannot hold, by its name; None for files, folders and links."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return None
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def is_deep(path: str) -> bool:
    """Whether a folder's content is no longer looked at."""
    return path.count("/") >= DEEPEST - 1 or len(os.fsencode(path)) > LONGEST


def check_depth(path: str, base: Path) -> None:
    """Raises TreeError for a path of the base that lies where a tree's content is no longer looked at."""
    if is_deep(path.rpartition("/")[0]):
        raise TreeError(str(base), f"is no base: it goes deeper than {DEEPEST} folders or {LONGEST} bytes of path")


class Layer:
    """A tree over a base.

    Attributes:
        place: the folder on the host that holds everything of the tree.
        tree: the tree itself.
        base: what it was made from.
    """

    kind = ""

    def __init__(self, base: Path, place: Path) -> None:
        self.base = base
        self.place = place
        self.tree = place / "tree"
        self._owner_process = os.getpid()
        self._equal: dict[str, Stamp] = {}  # files seen to be equal to the base's

    def discard(self) -> None:
        """Unmount and remove everything."""
        discard_place(self.place, self._owner_process)

    def scan(self) -> Scan:
        """What differs from the base now. Raises TooLarge for more than MOST_ENTRIES entries."""
        raise NotImplementedError(f"{type(self).__name__} does not say what differs")

    def _walk(self, folder: int, ignored: dict[str, str]) -> Iterator[Found]:
        def enter(path: str, info: os.stat_result) -> bool:
            if is_deep(path):
                ignored[path] = "too deep"
                return False
            return True

        for count, found in enumerate(walk_folder(folder, enter, force=True)):
            if count >= MOST_ENTRIES:
                raise TooLarge("", f"holds more than {MOST_ENTRIES} files and folders")
            yield found

    def _same_content(self, found: Found, base: os.stat_result) -> bool:
        """Whether a file or link, of the same kind in the base, has the base's content."""
        now = found.stat
        if stat.S_ISLNK(now.st_mode):
            return os.readlink(found.name, dir_fd=found.folder) == os.readlink(self.base / found.path)
        if now.st_size != base.st_size:
            return False
        stamp, asked_ns = stamp_of(now), time.time_ns()
        if self._equal.get(found.path) == stamp:
            return True
        with (
            os.fdopen(open_content(found.folder, found.name), "rb", buffering=0) as ours,
            open(self.base / found.path, "rb", buffering=0) as theirs,
        ):
            while block := ours.read(_BLOCK):
                if block != theirs.read(_BLOCK):
                    return False
        if is_settled(now, asked_ns):
            self._equal[found.path] = stamp
        return True

    def _note(self, scan: Scan, found: Found, base: os.stat_result | None) -> None:
        """Enter what an entry of the tree differs in: kind, permissions (not a link's: it has none), content."""
        now = found.stat
        kind = special(now.st_mode)
        if now.st_nlink > 1 and stat.S_ISREG(now.st_mode):
            scan.linked.add(found.path)
        if kind is not None:
            scan.ignored[found.path] = kind
        if base is None or special(base.st_mode) is not None:
            if kind is None:
                scan.differences[found.path] = Difference(now, None)
            return
        if kind is not None:
            scan.differences[found.path] = Difference(None, base)
            return
        if stat.S_IFMT(now.st_mode) != stat.S_IFMT(base.st_mode):
            scan.differences[found.path] = Difference(now, base)
            return
        same = stat.S_ISDIR(now.st_mode) or self._same_content(found, base)
        changed_mode = (now.st_mode ^ base.st_mode) & PERMISSIONS and not stat.S_ISLNK(now.st_mode)
        if changed_mode or not same:
            scan.differences[found.path] = Difference(now, base, same)


class OverlayLayer(Layer):
    """See the module. `memory`: where the upper layer lies; None chooses."""

    kind = "overlay"

    def __init__(self, base: Path, place: Path, size_bytes: int, memory: bool | None = None) -> None:
        super().__init__(base, place)
        store = place / "layer"
        store.mkdir(mode=0o700)
        if memory is None:
            memory = _free_memory() >= 2 * size_bytes
        if memory:
            mount("tmpfs", store, f"size={size_bytes},nr_inodes={MOST_ENTRIES},mode=700")
        self._upper = store / "upper"
        work = store / "work"
        self._upper.mkdir()
        work.mkdir()
        info = os.stat(base)
        os.chown(self._upper, info.st_uid, info.st_gid)
        os.chmod(self._upper, info.st_mode & PERMISSIONS)  # the mount's root is the upper layer's
        self.tree.mkdir()
        handles = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (base, self._upper, work)]
        try:
            # By descriptor: the options end at a comma and a colon, which paths may hold.
            lower, upper, working = (f"/proc/self/fd/{handle}" for handle in handles)
            options = f"lowerdir={lower},upperdir={upper},workdir={working}"
            # Explicit, as their defaults differ: with them off, the upper layer holds every difference as such.
            mount("overlay", self.tree, options + ",redirect_dir=off,metacopy=off,index=off")
        finally:
            for handle in handles:
                os.close(handle)

    def scan(self) -> Scan:
        """See `Layer`."""
        scan = Scan({}, {}, set())
        bare: set[str] = set()  # folders of which the base has none
        opaque: set[str] = set()  # folders that hide the base's
        root = os.open(self._upper, os.O_PATH | os.O_DIRECTORY)
        try:
            for found in self._walk(root, scan.ignored):
                outer = found.path.rpartition("/")[0]
                base = None if outer in bare else self._below_base(found.path)
                whiteout = stat.S_ISCHR(found.stat.st_mode) and found.stat.st_rdev == 0
                if whiteout:
                    if base is not None:
                        scan.differences[found.path] = Difference(None, base)
                else:
                    self._note(scan, found, base)
                was_folder = base is not None and stat.S_ISDIR(base.st_mode)
                if not stat.S_ISDIR(found.stat.st_mode):
                    if was_folder:
                        self._gone(scan, found.path, set())
                    continue
                if not was_folder:
                    bare.add(found.path)
                # What is made in a folder that hides the base's hides it too, and bears no mark.
                elif outer in opaque or _is_opaque(found):
                    opaque.add(found.path)
                    self._gone(scan, found.path, _names(found))
        finally:
            os.close(root)
        return scan

    def _below_base(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self.base / path)
        except FileNotFoundError:
            return None

    def _gone(self, scan: Scan, path: str, kept: set[str]) -> None:
        """Enter everything that the base has below a folder, but for the names directly in it that are `kept`."""
        folder = os.open(self.base / path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for found in walk_folder(folder, lambda below, _: below not in kept):
                if found.path not in kept and special(found.stat.st_mode) is None:
                    scan.differences[f"{path}/{found.path}"] = Difference(None, found.stat)
        finally:
            os.close(folder)


class CopyLayer(Layer):
    """See the module."""

    kind = "copy"

    def __init__(self, base: Path, place: Path, owner: tuple[int, int] | None) -> None:
        super().__init__(base, place)
        self._base: dict[str, os.stat_result] = {}
        copies: dict[str, os.stat_result] = {}
        shares = True
        self.tree.mkdir()
        source = os.open(base, os.O_PATH | os.O_DIRECTORY)
        try:
            target = str(self.tree)
            folders = [(target, os.stat(base))]
            for found in walk_folder(source):
                path = f"{target}/{found.path}"
                check_depth(found.path, base)
                if special(found.stat.st_mode) is not None:
                    continue
                self._base[found.path] = found.stat
                if stat.S_ISDIR(found.stat.st_mode):
                    os.mkdir(path, 0o700)
                    folders.append((path, found.stat))
                elif stat.S_ISLNK(found.stat.st_mode):
                    os.symlink(os.readlink(found.name, dir_fd=found.folder), path)
                    if owner is not None:
                        os.lchown(path, *owner)
                    os.utime(path, ns=(found.stat.st_atime_ns, found.stat.st_mtime_ns), follow_symlinks=False)
                else:
                    info, shares = _copy(found, path, owner, shares)
                    copies[found.path] = info
            for path, info in reversed(folders):
                if owner is not None:
                    os.chown(path, *owner)
                os.chmod(path, info.st_mode & PERMISSIONS)
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(source)
        done_ns = time.time_ns()
        self._equal = {path: stamp_of(info) for path, info in copies.items() if is_settled(info, done_ns)}

    def scan(self) -> Scan:
        """See `Layer`."""
        scan = Scan({}, {}, set())
        missing = dict(self._base)
        root = os.open(self.tree, os.O_PATH | os.O_DIRECTORY)
        try:
            for found in self._walk(root, scan.ignored):
                self._note(scan, found, missing.pop(found.path, None))
        finally:
            os.close(root)
        for path, base in missing.items():
            scan.differences[path] = Difference(None, base)
        return scan


def _is_opaque(found: Found) -> bool:
    try:
        mark = os.getxattr(f"/proc/self/fd/{found.folder}/{found.name}", "trusted.overlay.opaque")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise
    return mark == b"y"


def _names(found: Found) -> set[str]:
    handle = os.open(found.name, LISTED, dir_fd=found.folder)
    try:
        return set(os.listdir(handle))
    finally:
        os.close(handle)


def _copy(found: Found, path: str, owner: tuple[int, int] | None, shares: bool) -> tuple[os.stat_result, bool]:
    """Copy a file with its permissions and times; `shares`: whether the file system shared blocks so far."""
    source = os.open(found.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=found.folder)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            size = found.stat.st_size
            if shares and size >= _LARGE:
                try:
                    fcntl.ioctl(target, _FICLONE, source)
                    size = 0
                except OSError:
                    shares = False
            if size >= _LARGE:
                at = 0
                while at < size and (sent := os.sendfile(target, source, at, size - at)):
                    at += sent
            elif size:
                os.write(target, os.read(source, size))
            if owner is not None:
                os.fchown(target, *owner)
            os.fchmod(target, found.stat.st_mode & PERMISSIONS)
            os.utime(target, ns=(found.stat.st_atime_ns, found.stat.st_mtime_ns))
            return os.fstat(target), shares
        finally:
            os.close(target)
    finally:
        os.close(source)


def _free_memory() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) << 10


@functools.cache
def _why_no_overlay(place: Path | None) -> str:
    """Try it: "" where it works, else the reason."""
    folder = new_place(place)
    try:
        base = folder / "base"
        base.mkdir()
        (base / "kept").write_bytes(b"")
        (base / "gone").write_bytes(b"")
        layer = OverlayLayer(base, folder, 1 << 20)
        (layer.tree / "gone").unlink()
        seen = layer.scan().differences
        return "" if list(seen) == ["gone"] else f"its upper layer shows {sorted(seen)} after a removal, want ['gone']"
    except OSError as error:
        return f"{error.strerror or error} (it takes root with CAP_SYS_ADMIN, and Linux's overlay file system)"
    finally:
        discard_place(folder, os.getpid())


def probe_layers(place: Path | None = None) -> dict[str, str]:
    """Each layer's name with "" where it works for trees under `place`, else with the reason. Tried once a process."""
    return {"overlay": _why_no_overlay(place), "copy": ""}


def make_layer(
    base: Path, kind: str, *, owner: tuple[int, int] | None, size_bytes: int, place: Path | None, memory: bool | None
) -> Layer:
    """A tree over `base`. "auto" takes the overlay where it works, and the copy where not or where the base's files
    would have to change hands one by one.

    Raises:
        LayerUnavailable: the layer asked for doesn't work. ValueError: no such layer. TreeError: the base is no folder.
    """
    if kind not in ("auto", *LAYERS):
        raise ValueError(f"layer = {kind!r}: want auto, {', '.join(LAYERS)}")
    if not base.is_dir():
        raise TreeError(str(base), "is no folder: a tree needs one as its base")
    info = base.stat()
    same_owner = owner is None or owner == (info.st_uid, info.st_gid)
    if kind == "auto":
        kind = "overlay" if same_owner and not _why_no_overlay(place) else "copy"
    elif kind == "overlay":
        why = _why_no_overlay(place)
        if why:
            raise LayerUnavailable(f"layer = 'overlay' does not work here: {why}; want copy or auto")
    folder = new_place(place)
    try:
        if owner is not None:
            folder.chmod(0o711)  # the sandbox's user comes through to the tree
        if kind == "copy":
            return CopyLayer(base, folder, owner)
        layer = OverlayLayer(base, folder, size_bytes, memory)
        if owner is not None and not same_owner:
            _give(layer.tree, owner)
        return layer
    except BaseException:
        discard_place(folder, os.getpid())
        raise


def _give(tree: Path, owner: tuple[int, int]) -> None:
    """Change the owner of everything; in an overlay this copies every file up."""
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for found in walk_folder(root):
            os.chown(found.name, *owner, dir_fd=found.folder, follow_symlinks=False)
        os.fchown(root, *owner)
    finally:
        os.close(root)
