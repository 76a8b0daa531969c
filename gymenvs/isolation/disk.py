"""What the commands of a sandbox add to its tree on the disk: found by walking it, as seldom as will do.

A walk of a thousand files takes milliseconds, too much for the end of every command. What was added since the last walk
is at most what the file system has lost in free blocks and inodes, unless something else gave it room back meanwhile.
So a walk is made where that could bring the tree over its limit, and after enough running time in any case.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

# A path opened from a folder's descriptor must stay below PATH_MAX (4096); past this another descriptor is taken.
_LONGEST_STEP = 3000
_DEEPEST_STEPS = 40
_LOOKS_A_TURN = 1000
_INODE_BYTES = 512
_SHARE = 20  # of the running time, a walk at the end of a command may take one part in so many without a reason
_WHOLE = 1 << 60  # bytes; no tree holds as much
_MARGIN = 16  # one part in so many of the limit is left for what the file system does not show at once


class Disk:
    """The account of one tree over all commands of a sandbox; nothing that is older than `since` is in it.

    total   bytes added, as the last walk found them; where it ended early, more than it was asked for
    floor   in a tree that is over its limit, the least it was found to hold before a command since it is
    cost_s  what that walk took
    """

    def __init__(self, tree: str, since: float) -> None:
        self._tree, self._since = tree, since
        self.device = os.stat(tree).st_dev
        self.total = 0
        self.floor = 0
        self.cost_s = 0.0
        self._room = self._room_now()
        self._unseen_s = 0.0

    def walk(self, enough: int, force: bool = False) -> Iterator[int | None]:
        """A walk in turns, see `added`; its end is the new account."""
        room, spent, turns = self._room_now(), 0.0, added(self._tree, self._since, enough, force)
        while True:
            began = time.monotonic()
            found = next(turns)
            spent += time.monotonic() - began
            if found is not None:
                break
            yield None
        self.total, self.cost_s, self._room, self._unseen_s = found, spent, room, 0.0
        yield found

    def passed(self, limit: int, ran_s: float) -> bool:
        """Whether more than `limit` was added, asked at the end of a command that ran `ran_s` seconds."""
        self._unseen_s += ran_s
        free, inodes = self._room_now()
        # What others give back raises the mark: it hides at most what is added in the same interval.
        self._room = (max(self._room[0], free), max(self._room[1], inodes))
        lost = self._room[0] - free + (self._room[1] - inodes) * _INODE_BYTES
        if self.total + lost + limit // _MARGIN > limit or self._unseen_s > _SHARE * self.cost_s:
            self._walk_whole(limit)
        return self.total > limit

    def is_full(self, limit: int) -> bool:
        """Whether the tree is over its limit, asked before a command."""
        if self.total <= limit:
            return False
        self._walk_whole(_WHOLE)
        if self.total <= limit:
            self.floor = 0
            return False
        found = self.total if self.total <= _WHOLE else limit  # too deep to be known: no more of it then
        self.floor = min(self.floor or found, found)
        return True

    def bound(self, limit: int, full: bool) -> int:
        """What the tree may hold while a command runs: in a full one files cannot grow, but folders and links can be
        made, and none must be; a little more than there is, as removing and moving may take room for a while.
        """
        return self.floor + limit // _MARGIN if full else limit

    def lost(self, since: int) -> int:
        """Bytes of free room that the file system has lost, to whomever, since it had `since`."""
        return since - self.room()

    def room(self) -> int:
        """Free bytes of the file system."""
        return self._room_now()[0]

    def _walk_whole(self, enough: int) -> None:
        for _ in self.walk(enough, force=True):
            pass

    def _room_now(self) -> tuple[int, int]:
        """Free bytes and inodes of the file system."""
        found = os.statvfs(self._tree)
        return found.f_bfree * found.f_frsize, found.f_ffree


def added(tree: str, since: float, enough: int, force: bool = False) -> Iterator[int | None]:
    """Bytes on disk of what was made or changed below `tree` after `since`; None between turns, then the sum.

    The kernel sets the time of change and no program can set it back, so what was there before needs no counting. An
    entry counts at least `_INODE_BYTES`. Stops early above `enough`; a nest of folders too deep to follow counts as
    more than that. Links are never followed. Folders of ours that their permissions close are passed over, or with
    `force` opened while the walk is inside.
    """
    total, looked, closed = 0, 0, None
    root = _open_plainly(tree, None)
    if force and not (root >= 0 and _is_open(root)):
        if root >= 0:
            os.close(root)
        root, closed = _open_by_force(tree, None)
    if root < 0:
        yield 0
        return
    # Descriptor, the folders to look at from it, deepest last, and the mode to be set again in the end.
    bases: list[tuple[int, list[str], int | None]] = [(root, ["."], closed)]
    try:
        while bases:
            base, pending, mode = bases[-1]
            if not pending:
                bases.pop()
                _close(base, mode)
                continue
            name = pending.pop()
            try:
                folder = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME, dir_fd=base
                )
            except OSError:
                folder = _open_plainly(name, base)
            closed = None
            if force and name != "." and not (folder >= 0 and _is_open(folder)):
                if folder >= 0:
                    os.close(folder)
                folder, closed = _open_by_force(name, base)
            if folder < 0:
                continue
            if len(name) > _LONGEST_STEP or closed is not None:
                bases.append((folder, ["."], closed))
                if len(bases) > _DEEPEST_STEPS:
                    yield enough + 1
                    return
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        looked += 1
                        try:
                            found = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        if found.st_ctime >= since:
                            total += max(found.st_blocks * 512, _INODE_BYTES)
                        if stat.S_ISDIR(found.st_mode):
                            pending.append(entry.name if name == "." else f"{name}/{entry.name}")
                        if total > enough:
                            yield total
                            return
                        if looked % _LOOKS_A_TURN == 0:
                            yield None
            finally:
                os.close(folder)
        yield total
    finally:
        for base, _, mode in reversed(bases):
            _close(base, mode)


def _is_open(folder: int) -> bool:
    """Whether what is in a folder can be reached too, and not only listed."""
    found = os.fstat(folder)
    return found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o500 == 0o500


def _open_by_force(name: str, base: int | None) -> tuple[int, int | None]:
    """The folder of ours that its permissions close, opened wide, and the mode that it had; (-1, None) if it is not."""
    try:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except OSError:
        return -1, None
    try:
        found = os.fstat(handle)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid() or mode & 0o500 == 0o500:
            return -1, None
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, mode | 0o500)
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode
    except OSError:
        return -1, None
    finally:
        os.close(handle)


def _close(folder: int, mode: int | None) -> None:
    try:
        if mode is not None:
            os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _open_plainly(name: str, base: int | None) -> int:
    """The folder for one who may not ask for O_NOATIME, or -1."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except OSError:
        return -1
