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
_MARGIN = 16  # one part in so many of the limit is left for what the file system does not show at once


class Disk:
    """The account of one tree over all commands of a sandbox; nothing that is older than `since` is in it.

    total   bytes added, as the last walk found them; where it ended early, more than it was asked for
    cost_s  what that walk took
    """

    def __init__(self, tree: str, since: float) -> None:
        self._tree, self._since = tree, since
        self.device = os.stat(tree).st_dev
        self.total = 0
        self.cost_s = 0.0
        self._room = self._room_now()
        self._unseen_s = 0.0

    def walk(self, enough: int) -> Iterator[int | None]:
        """A walk in turns, see `added`; its end is the new account."""
        room, spent, turns = self._room_now(), 0.0, added(self._tree, self._since, enough)
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
        if self.total > limit:
            self._walk_whole(limit)
        return self.total > limit

    def _walk_whole(self, enough: int) -> None:
        for _ in self.walk(enough):
            pass

    def _room_now(self) -> tuple[int, int]:
        """Free bytes and inodes of the file system."""
        found = os.statvfs(self._tree)
        return found.f_bfree * found.f_frsize, found.f_ffree


def added(tree: str, since: float, enough: int) -> Iterator[int | None]:
    """Bytes on disk of what was made or changed below `tree` after `since`; None between turns, then the sum.

    The kernel sets the time of change and no program can set it back, so what was there before needs no counting. An
    entry counts at least `_INODE_BYTES`. Stops early above `enough`; a nest of folders too deep to follow counts as
    more than that. Links are never followed.
    """
    total, looked = 0, 0
    try:
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield 0
        return
    # (descriptor, how many lie above it) and the folders to look at from it, deepest last.
    bases: list[tuple[int, list[str]]] = [(root, ["."])]
    try:
        while bases:
            base, pending = bases[-1]
            if not pending:
                bases.pop()
                os.close(base)
                continue
            name = pending.pop()
            try:
                folder = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME, dir_fd=base
                )
            except OSError:
                folder = _open_plainly(name, base)
            if folder < 0:
                continue
            if len(name) > _LONGEST_STEP:
                if len(bases) >= _DEEPEST_STEPS:
                    os.close(folder)
                    yield enough + 1
                    return
                bases.append((folder, ["."]))
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
        for base, _ in bases:
            os.close(base)


def _open_plainly(name: str, base: int) -> int:
    """The folder for one who may not ask for O_NOATIME, or -1."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except OSError:
        return -1
