"""Limits that the kernel holds for each process: set from outside on the first one, inherited by all others."""

from __future__ import annotations

import contextlib
import os
import resource

from rtmc.gymenvs.isolation.cgroups import Group
from rtmc.gymenvs.isolation.contract import Limits

# From here on RLIMIT_NPROC counts a user's processes in each user namespace by itself.
_COUNTED_BY_NAMESPACE = (5, 14)


def wanted(limits: Limits, group: Group | None, own_processes: int, counted_alone: bool) -> dict[int, tuple[int, int]]:
    """Resource -> (soft, hard). `counted_alone`: the user's other processes do not count against RLIMIT_NPROC.

    The address space is bounded only where no control group bounds memory: programs reserve more than they use.
    """
    found = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (limits.cpu_s, limits.cpu_s + 1),
        resource.RLIMIT_FSIZE: (limits.file_bytes, limits.file_bytes),
        resource.RLIMIT_NOFILE: (limits.open_files, limits.open_files),
        resource.RLIMIT_MSGQUEUE: (0, 0),
    }
    if group is None:
        space = 2 * limits.memory_bytes + (1 << 30)
        others = 0 if counted_alone else _tasks_of(os.getuid())
        processes = limits.processes + own_processes + others
        found |= {resource.RLIMIT_AS: (space, space), resource.RLIMIT_NPROC: (processes, processes)}
    return found


def set_rlimits(
    pid: int, limits: Limits, group: Group | None, own_processes: int, counted_alone: bool | None = None
) -> None:
    """Sets them on a process; unless said otherwise, on one in a user namespace of its own.

    Raises:
        ProcessLookupError: it is gone.
    """
    release = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in os.uname().release.split(".")[:2])
    alone = release >= _COUNTED_BY_NAMESPACE if counted_alone is None else counted_alone
    for kind, pair in wanted(limits, group, own_processes, alone).items():
        _, most = resource.prlimit(pid, kind)
        if most != resource.RLIM_INFINITY:  # what is bound already stays so
            pair = (min(pair[0], most), min(pair[1], most))
        resource.prlimit(pid, kind, pair)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")  # where the machine itself runs out of memory, this goes first


def _tasks_of(user: int) -> int:
    tasks = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                tasks += len(os.listdir(f"/proc/{name}/task"))
    return tasks
