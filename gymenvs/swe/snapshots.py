"""What a snapshot of a work tree holds, how a path is read into one, and how a tree is brought back to it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rtmc.gymenvs.swe.errors import TooLarge
from rtmc.gymenvs.swe.folders import (
    PERMISSIONS,
    forget_bytecode,
    loosen,
    open_below,
    open_content,
    remove_folder,
    replacing,
)
from rtmc.gymenvs.swe.layers import Scan, special

_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


@dataclass(frozen=True, slots=True)
class Node:
    """One path of a snapshot.

    Attributes:
        kind: "file", "link", "folder", or "gone" (the base has something there).
        mode: permissions of a file or folder.
        size: bytes of a file.
        chunks: (offset, content) of a file, all else being zeros; of a link, its target.
        mtime_ns: modification time of a file; two nodes that differ in it alone are equal.
    """

    kind: str
    mode: int = 0
    size: int = 0
    chunks: tuple[tuple[int, bytes], ...] = ()
    mtime_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """A tree's differences from its base: unchangeable, picklable, good for any tree over an equal base.

    Attributes:
        base: fingerprint of the base's names, kinds, sizes and executable bits.
        nodes: (path, node) in order of path.
        ignored: (path, kind) of what could not be kept.
        root_mode: permissions of the tree's root; None where they are the base's.
    """

    base: str
    nodes: tuple[tuple[str, Node], ...]
    ignored: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    root_mode: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of content held."""
        return sum(len(content) for _, node in self.nodes for _, content in node.chunks)


GONE = Node("gone")


def blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, content) of a file's blocks that are not all zeros; holes are passed over unread."""
    handle, at = file.fileno(), 0
    end = os.fstat(handle).st_size
    while at < end:
        try:
            data = os.lseek(handle, at, os.SEEK_DATA)
        except OSError:
            return  # a hole to the end (ENXIO)
        at = data - data % _BLOCK
        os.lseek(handle, at, os.SEEK_SET)
        block = file.read(_BLOCK)
        if not block:
            return
        if block != _ZEROS[: len(block)]:
            yield at, block
        at += _BLOCK


def read_node(path: str, folder: int, name: str, info: os.stat_result, limit: int) -> Node:
    """The node of an entry of a folder. Raises TooLarge for a file with more than `limit` bytes beside zeros."""
    if stat.S_ISDIR(info.st_mode):
        return Node("folder", info.st_mode & PERMISSIONS)
    if stat.S_ISLNK(info.st_mode):
        return Node("link", chunks=((0, os.fsencode(os.readlink(name, dir_fd=folder))),))
    chunks: list[tuple[int, bytes]] = []
    with os.fdopen(open_content(folder, name), "rb", buffering=0) as file:
        if info.st_size <= _BLOCK:
            content = file.read(_BLOCK)
            chunks = [(0, content)] if content.strip(b"\0") else []
        else:
            chunks = list(_within(path, blocks(file), limit))
    if sum(len(content) for _, content in chunks) > limit:
        raise TooLarge(path, f"does not fit into a snapshot: {limit} bytes are left for it")
    return Node("file", info.st_mode & PERMISSIONS, info.st_size, tuple(chunks), info.st_mtime_ns)


def _within(path: str, parts: Iterator[tuple[int, bytes]], limit: int) -> Iterator[tuple[int, bytes]]:
    for at, block in parts:
        limit -= len(block)
        if limit < 0:
            raise TooLarge(path, "does not fit into a snapshot: too many bytes beside zeros")
        yield at, block


def content_digest(folder: int, name: str, info: os.stat_result) -> bytes:
    """A hash of a file's content, read in parts, or of a link's target. The same however zeros are stored."""
    whole = hashlib.blake2b(digest_size=16)
    if stat.S_ISLNK(info.st_mode):
        whole.update(os.fsencode(os.readlink(name, dir_fd=folder)))
        return whole.digest()
    whole.update(b"%d" % info.st_size)
    with os.fdopen(open_content(folder, name), "rb", buffering=0) as file:
        for at, block in blocks(file):
            whole.update(b" %d " % at + block)
    return whole.digest()


class Restoring:
    """Brings a tree from where it is to a snapshot's state, touching only what is not so yet. Raises OSError.

    Folders that the tree's own permissions close are opened for the work, and all permissions set at the end. Of a
    file that has other names every name is written anew: a write to one would else reach the others later.

    Args:
        root: descriptor of the tree.
        base: the base folder.
        owner: owner of what is written; None leaves what the system gives.
    """

    def __init__(self, root: int, base: Path, owner: tuple[int, int] | None) -> None:
        self._root = root
        self._base = base
        self._owner = owner
        self._modes: dict[str, int] = {}  # of folders, to be set in the end
        self._ready: set[str] = set()
        self._was_folder: dict[str, bool] = {"": True}
        self._linked: set[str] = set()

    def run(self, scan: Scan, goal: dict[str, Node], root_mode: int) -> None:
        """From the state that `scan` found to the nodes of `goal`, with the root's permissions."""
        cleared = None  # all below this path is gone
        self._modes[""] = root_mode
        self._linked = scan.linked
        concerned = {*scan.differences, *scan.ignored, *scan.linked, *goal}
        for path in sorted(concerned, key=lambda path: path.split("/")):
            difference = scan.differences.get(path)
            base = difference.base if difference else self._base_stat(path)
            present: os.stat_result | None = difference.now if difference else base
            if cleared is not None and path.startswith(cleared):
                present = None
            elif path in scan.ignored:  # a folder that is too deep too: the snapshot has nothing in it
                self._remove(path)
                present = None
            wanted = goal.get(path)
            kind = wanted.kind if wanted else _kind(base)
            if present is not None and _kind(present) != kind:
                self._remove(path)
                cleared, present = f"{path}/", None
            if kind == "gone":
                continue
            if wanted is None:
                assert base is not None
                self._write_base(path, base, present)
            else:
                self._write(path, wanted, present)
        for path, mode in sorted(self._modes.items(), key=lambda item: item[0].split("/"), reverse=True):
            outer, name = _split(path)
            with self._folder(outer) as folder:
                if stat.S_IMODE(os.lstat(name, dir_fd=folder).st_mode) != mode:
                    loosen(name, folder, mode)

    def _base_stat(self, path: str) -> os.stat_result | None:
        """What the base has there; links on the way are none of its folders."""
        outer, _ = _split(path)
        if outer not in self._was_folder:
            info = self._base_stat(outer)
            self._was_folder[outer] = info is not None and stat.S_ISDIR(info.st_mode)
        if not self._was_folder[outer]:
            return None
        try:
            return os.lstat(self._base / path)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """Descriptor of a folder of the tree in which we may write."""
        names = path.split("/") if path else []
        for depth in range(len(names) + 1) if path not in self._ready else ():
            outer = "/".join(names[:depth])
            if outer in self._ready:
                continue
            self._ready.add(outer)
            if not depth:
                mode = os.fstat(self._root).st_mode & PERMISSIONS
                if mode & 0o700 != 0o700:
                    os.chmod(f"/proc/self/fd/{self._root}", mode | 0o700)
                continue
            folder, name = open_below(self._root, names[: depth - 1]), names[depth - 1]
            try:
                mode = os.lstat(name, dir_fd=folder).st_mode & PERMISSIONS
                if mode & 0o700 != 0o700:
                    loosen(name, folder, mode | 0o700)
                    self._modes.setdefault(outer, mode)
            finally:
                os.close(folder)
        folder = open_below(self._root, names)
        try:
            yield folder
        finally:
            os.close(folder)

    def _remove(self, path: str) -> None:
        outer, name = _split(path)
        with self._folder(outer) as folder:
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                remove_folder(folder, name)
            else:
                os.unlink(name, dir_fd=folder)
                forget_bytecode(folder, name)
        self._ready = {ready for ready in self._ready if ready != path and not ready.startswith(f"{path}/")}
        for below in [below for below in self._modes if below == path or below.startswith(f"{path}/")]:
            del self._modes[below]

    def _write_base(self, path: str, base: os.stat_result, present: os.stat_result | None) -> None:
        """As the base has it."""
        if stat.S_ISDIR(base.st_mode):
            self._make_folder(path, base.st_mode & PERMISSIONS, present)
        elif stat.S_ISLNK(base.st_mode):
            self._make_link(path, os.fsencode(os.readlink(self._base / path)))
        else:

            def fill(file: BinaryIO) -> None:
                with open(self._base / path, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)

            self._make_file(path, base.st_mode & PERMISSIONS, base.st_mtime_ns, fill)

    def _write(self, path: str, wanted: Node, present: os.stat_result | None) -> None:
        """As the snapshot has it; a file or link that is so already is left."""
        if wanted.kind == "folder":
            self._make_folder(path, wanted.mode, present)
            return
        if present is not None and path not in self._linked:
            outer, name = _split(path)
            with self._folder(outer) as folder:
                same_size = stat.S_ISLNK(present.st_mode) or present.st_size == wanted.size
                held = sum(len(content) for _, content in wanted.chunks)
                with contextlib.suppress(TooLarge):  # then it is another content
                    if same_size and read_node(path, folder, name, present, held) == wanted:
                        if wanted.kind == "file":
                            os.utime(name, ns=(wanted.mtime_ns,) * 2, dir_fd=folder, follow_symlinks=False)
                        return
        if wanted.kind == "link":
            self._make_link(path, wanted.chunks[0][1])
            return

        def fill(file: BinaryIO) -> None:
            for at, content in wanted.chunks:
                file.seek(at)
                file.write(content)
            file.truncate(wanted.size)

        self._make_file(path, wanted.mode, wanted.mtime_ns, fill)

    def _make_folder(self, path: str, mode: int, present: os.stat_result | None) -> None:
        outer, name = _split(path)
        if present is None:
            with self._folder(outer) as folder:
                os.mkdir(name, 0o700, dir_fd=folder)
                if self._owner is not None:
                    os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)
        self._modes[path] = mode

    def _make_link(self, path: str, target: bytes) -> None:
        outer, name = _split(path)
        with self._folder(outer) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.symlink(target, os.fsencode(name), dir_fd=folder)
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)

    def _make_file(self, path: str, mode: int, mtime_ns: int, fill: Callable[[BinaryIO], None]) -> None:
        outer, name = _split(path)
        with self._folder(outer) as folder:
            with replacing(folder, name, mode, self._owner) as file:
                fill(file)
                file.flush()
                os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
            forget_bytecode(folder, name)


def _split(path: str) -> tuple[str, str]:
    outer, _, name = path.rpartition("/")
    return outer, name or "."


def _kind(info: os.stat_result | None) -> str:
    if info is None or special(info.st_mode) is not None:
        return "gone"
    if stat.S_ISDIR(info.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(info.st_mode) else "file"
