"""What a running command uses, seen from outside: processes, memory and CPU, and files without a name.

The processes of a sandbox are the descendants of its first one: who loses a parent inside a pid namespace becomes a
child of that namespace's first process, so none gets out of the count by forking twice.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


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


def unlinked(pids: list[int], device: int) -> tuple[int, bool]:
    """Bytes of files on a device that have no name any more and live in open descriptors or mappings alone, and
    whether there may be more: a process, the first left aside, hid its descriptors, or a mapping could not be asked.
    """
    seen: dict[int, int] = {}
    blind = False
    for pid in pids:
        try:
            places = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
            with open(f"/proc/{pid}/maps", "rb") as file:
                for line in file:
                    if line.endswith(b" (deleted)\n"):
                        start, _, end = line.partition(b" ")[0].partition(b"-")
                        places.append(f"/proc/{pid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
        except PermissionError:
            blind = blind or pid != pids[0]
            continue
        except OSError:
            continue
        for place in places:
            try:
                found = os.stat(place)
            except PermissionError:
                blind = True
                continue
            except OSError:
                continue
            if found.st_dev == device and found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values()), blind


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
