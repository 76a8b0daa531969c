"""A task's working tree: changed by an agent, forked at any turn, compared with what the task began with.

A `WorkTree` is a changeable copy of a base folder (`layers` makes it). The editor and search tools reach its files
through the methods of `TreeFolder`, the sandbox mounts its `root`. A `TreeSnapshot` holds what differs from the base
and nothing else.

What a snapshot keeps: content, permissions and modification times of files, links, folders (empty ones and the root
too), and what is gone; also under `.git`, as agents commit. Zeros take no room. What it does not keep:

- Python's `__pycache__` folders: restoring removes those that the base has not, so that no bytecode of another
  fork's source is run (Python tells sources apart by second and size alone);
- set-user-id, set-group-id and sticky bits, owners, extended attributes; that several names are one file (restoring
  makes each a file of its own); folders' times;
- pipes, sockets, devices, and what lies deeper than 100 folders or 3,500 bytes of path: named in `ignored`.

`changes`, `diff` and `fingerprint` see files and links as git does (content, and whether a file is executable), and
leave out the folders of IGNORED: what tools leave behind on the way.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rtmc.gymenvs.swe.errors import TreeError, refusal
from rtmc.gymenvs.swe.folders import PERMISSIONS, entered, open_content, walk_folder
from rtmc.gymenvs.swe.layers import (
    Difference,
    Layer,
    LayerUnavailable,
    Scan,
    Stamp,
    check_depth,
    is_settled,
    make_layer,
    probe_layers,
    stamp_of,
)
from rtmc.gymenvs.swe.patch import Blob, write_patch
from rtmc.gymenvs.swe.paths import TreeFolder
from rtmc.gymenvs.swe.places import sweep_leftovers
from rtmc.gymenvs.swe.snapshots import GONE, Node, Restoring, TreeSnapshot, content_digest, read_node

__all__ = [
    "IGNORED",
    "Change",
    "LayerUnavailable",
    "Node",
    "TreeError",
    "TreeSnapshot",
    "WorkTree",
    "probe_layers",
    "sweep_leftovers",
]

IGNORED = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
SNAPSHOT_BYTES = 256 << 20
DIFF_BYTES = 8 << 20  # of one file; a larger one is named, its content left out


class Change(NamedTuple):
    """One file or link that differs from the base: "added", "modified", "deleted", or "mode" (executable or not)."""

    path: str
    kind: str


class WorkTree(TreeFolder):
    """A changeable copy of a folder. One thread at a time; any number of trees at once.

    Attributes (beside those of TreeFolder):
        base: the folder it began as.
        layer: "overlay" or "copy", what it is made by.

    Args:
        base: a folder that nobody changes while the tree exists.
        inside: the tree's absolute path as the agent sees it.
        layer: "overlay", "copy", or "auto": the overlay where it works.
        owner: (uid, gid) that owns all of the tree, where the sandbox runs as another user; takes root.
        size_bytes: the most that an overlay in memory holds, and that one file written by these methods has.
        place: the folder under which trees are put; the temporary folder if None.
        memory: whether an overlay keeps its changes in memory or on the disk; by what is free if None.

    Raises:
        LayerUnavailable: the layer asked for doesn't work here. TreeError: `base` is no folder.
        ValueError: `inside` or `layer` is none. OSError: the disk refuses.
    """

    def __init__(
        self,
        base: Path,
        *,
        inside: str = "/testbed",
        layer: str = "auto",
        owner: tuple[int, int] | None = None,
        size_bytes: int = 1 << 30,
        place: Path | None = None,
        memory: bool | None = None,
    ) -> None:
        self.base = Path(os.path.abspath(base))
        made = make_layer(self.base, layer, owner=owner, size_bytes=size_bytes, place=place, memory=memory)
        self._discard = weakref.finalize(self, Layer.discard, made)  # also when the interpreter ends
        self._layer = made
        self.layer = made.kind
        try:
            super().__init__(made.tree, inside=inside, owner=owner, size_bytes=size_bytes)
        except BaseException:
            self._discard()
            raise
        info = self.base.stat()
        self._gives = owner or ((info.st_uid, info.st_gid) if os.geteuid() == 0 else None)
        self._nodes: dict[str, tuple[Stamp, Node]] = {}  # the last snapshot's files: the next shares their content
        self._digests: dict[str, tuple[Stamp, bytes]] = {}

    @classmethod
    def from_snapshot(cls, base: Path, snapshot: TreeSnapshot, **options: Any) -> WorkTree:
        """A new tree in a snapshot's state; the options are those of the class. Raises as the class and `restore`."""
        tree = cls(base, **options)
        try:
            tree.restore(snapshot)
        except BaseException:
            tree.close()
            raise
        return tree

    def close(self) -> None:
        """Unmount and remove the tree. A second call does nothing."""
        super().close()
        self._discard()

    def __enter__(self) -> WorkTree:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Forks

    def snapshot(self, *, limit: int = SNAPSHOT_BYTES) -> TreeSnapshot:
        """What differs from the base now. Nothing may run in the tree meanwhile.

        Raises:
            TooLarge: the files that differ hold more than `limit` bytes beside zeros, or are too many.
        """
        left, asked_ns = limit, time.time_ns()
        nodes: list[tuple[str, Node]] = []
        fresh: dict[str, tuple[Stamp, Node]] = {}
        scan = self._scan()
        for path, difference in sorted(scan.differences.items()):
            if "__pycache__" in path.split("/"):
                continue
            node = GONE
            if difference.now is not None:
                stamp = stamp_of(difference.now)
                known = self._nodes.get(path)
                node = known[1] if known and known[0] == stamp else self._read(path, difference.now, left)
                left -= sum(len(content) for _, content in node.chunks)
                if is_settled(difference.now, asked_ns):
                    fresh[path] = (stamp, node)
            nodes.append((path, node))
        self._nodes = fresh
        root, of_base = (info.st_mode & PERMISSIONS for info in (os.fstat(self._root), os.stat(self.base)))
        root_mode = None if root == of_base else root
        return TreeSnapshot(self._base_key(), tuple(nodes), tuple(sorted(scan.ignored.items())), root_mode)

    def restore(self, snapshot: TreeSnapshot) -> None:
        """Make the tree as it was at the snapshot, in place: what has it mounted sees it.

        Raises:
            ValueError: the snapshot is of another base. TooLarge: no room; the tree is then in between.
        """
        if snapshot.base != self._base_key():
            raise ValueError(f"the snapshot is of another base than {self.base}: their files have other names or sizes")
        try:
            mode = os.stat(self.base).st_mode & PERMISSIONS if snapshot.root_mode is None else snapshot.root_mode
            Restoring(self._root, self.base, self._gives).run(self._scan(), dict(snapshot.nodes), mode)
        except OSError as error:
            raise refusal(str(error.filename or self.root), error) from error

    # Comparison

    def changes(self) -> tuple[Change, ...]:
        """The files and links that differ from the base, in order of path, IGNORED ones left out."""
        return tuple(Change(path, kind) for path, kind, _ in self._changed())

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of what `changes` names: equal for equal content, whatever led there and when."""
        whole, asked_ns = hashlib.blake2b(digest_size=16), time.time_ns()
        fresh: dict[str, tuple[Stamp, bytes]] = {}
        for path, kind, difference in self._changed():
            name = os.fsencode(path)
            whole.update(b"%d %s " % (len(name), name))
            if kind == "deleted":
                whole.update(b"gone")
                continue
            now = difference.now
            assert now is not None
            stamp = stamp_of(now)
            known = self._digests.get(path)
            if known and known[0] == stamp:
                digest = known[1]
            else:
                with self._folder_of(path) as (folder, entry):
                    digest = content_digest(folder, entry, now)
            if is_settled(now, asked_ns):
                fresh[path] = (stamp, digest)
            whole.update(b"%o " % git_mode(now) + digest)
        self._digests = fresh
        return whole.hexdigest()

    def diff(self) -> str:
        """A patch in git's format from the base to the tree, for `git apply` and `apply_patch`.

        A binary file (a NUL byte, or no UTF-8) is in it as `GIT binary patch`. A file over DIFF_BYTES is only named
        as differing: such a diff can be read but not applied. Empty folders are none of git's things.
        """
        pairs: list[tuple[str, Blob | None, Blob | None]] = []
        for path, kind, difference in self._changed():
            old = new = None
            if kind != "added":
                assert difference.base is not None
                old = _blob(None, str(self.base / path), difference.base)
            if kind != "deleted":
                assert difference.now is not None
                with self._folder_of(path) as (folder, name):
                    new = _blob(folder, name, difference.now)
            pairs.append((path, old, new))
        return write_patch(pairs)

    def _changed(self) -> Iterator[tuple[str, str, Difference]]:
        for path, difference in sorted(self._scan().differences.items()):
            if not IGNORED.isdisjoint(path.split("/")):
                continue
            now, base = _gitwise(difference.now), _gitwise(difference.base)
            if now and base:
                if not difference.same_content:
                    yield path, "modified", difference
                elif now != base:
                    yield path, "mode", difference
            elif now or base:
                yield path, "added" if now else "deleted", difference

    def _scan(self) -> Scan:
        if self._root < 0:
            raise ValueError("this tree is closed")
        return self._layer.scan()

    def _base_key(self) -> str:
        info = os.stat(self.base)
        return _fingerprint_of_names(str(self.base), info.st_dev, info.st_ino, info.st_ctime_ns)

    @contextlib.contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Descriptor of the folder that holds a path as the scan names it, and the name in it."""
        *outer, name = path.split("/")
        with entered(self._root, outer) as folder:
            yield folder, name

    def _read(self, path: str, info: os.stat_result, limit: int) -> Node:
        with self._folder_of(path) as (folder, name):
            return read_node(path, folder, name, info, limit)


def _gitwise(info: os.stat_result | None) -> int:
    """The mode by which git knows a file or link; 0 for what git doesn't know."""
    if info is None or stat.S_ISDIR(info.st_mode):
        return 0
    return git_mode(info)


def git_mode(info: os.stat_result) -> int:
    """0o120000 for a link, 0o100755 for a file that its owner may execute, else 0o100644."""
    if stat.S_ISLNK(info.st_mode):
        return 0o120000
    return 0o100755 if info.st_mode & 0o100 else 0o100644


def _blob(folder: int | None, name: str, info: os.stat_result) -> Blob:
    if stat.S_ISLNK(info.st_mode):
        return Blob(0o120000, os.fsencode(os.readlink(name, dir_fd=folder)))
    if info.st_size > DIFF_BYTES:
        return Blob(git_mode(info), None)
    handle = os.open(name, os.O_RDONLY) if folder is None else open_content(folder, name)
    with os.fdopen(handle, "rb") as file:
        return Blob(git_mode(info), file.read())


@functools.lru_cache(maxsize=256)
def _fingerprint_of_names(base: str, device: int, inode: int, changed_ns: int) -> str:
    """What a base is known by: its names, kinds, sizes and executable bits.

    Not the files' content, which a large repository takes long to read, and not what differs between two checkouts
    of the same files (`.git`) or comes and goes (the rest of IGNORED).
    """
    whole = hashlib.blake2b(digest_size=16)
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY)
    try:
        for found in walk_folder(folder, lambda path, _: path.rpartition("/")[2] not in IGNORED):
            check_depth(found.path, Path(base))
            if found.name not in IGNORED:
                name, info = os.fsencode(found.path), found.stat
                size = -1 if stat.S_ISDIR(info.st_mode) else info.st_size
                whole.update(b"%d %s %o %d " % (len(name), name, _gitwise(info), size))
    finally:
        os.close(folder)
    return whole.hexdigest()
