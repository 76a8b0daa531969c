"""What a running command uses, seen from outside: processes, memory and CPU from /proc, disk by walking the tree.

The processes of a sandbox are the descendants of its first one: who loses a parent inside a pid namespace becomes a
child of that namespace's first process, so none gets out of the count by forking twice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
# A path opened from a folder's descriptor must stay below PATH_MAX (4096); past this another descriptor is taken.
_LONGEST_STEP = 3000
_DEEPEST_STEPS = 40
_LOOKS_A_TURN = 1000
_INODE_BYTES = 512


class Usage(NamedTuple):
    """Tasks (threads count), resident bytes summed over processes (shared pages each time), CPU seconds."""

    tasks: int
    resident: int
    cpu_s: float


def descendants(root: int) -> list[int]:
    """`root` and all below it; processes that end meanwhile may be missing."""
    found, at = [root], 0
    while at < len(found):
        pid = found[at]
        at += 1
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    found.extend(int(word) for word in file.read().split())
        except FileNotFoundError:
            if at == 1 and not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                return _descendants_by_parent(root)  # a kernel without CONFIG_PROC_CHILDREN
        except OSError:
            continue
    return found


def usage(pids: list[int]) -> Usage:
    """What these processes use now; CPU seconds hold their ended children."""
    tasks = resident = ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
        tasks += int(fields[17])
        resident += int(fields[21]) * _PAGE
    return Usage(tasks, resident, ticks / _TICK)


def shared_out(pids: list[int]) -> int:
    """Bytes in memory with each shared page divided among those that share it: dearer than `usage`, and exact."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except OSError:
            total += usage([pid]).resident
    return total


def unlinked(pids: list[int], device: int) -> int:
    """Bytes of files on a device that have no name any more and live in open descriptors alone."""
    seen: dict[int, int] = {}
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                found = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if found.st_dev == device and found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


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


def _descendants_by_parent(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found
