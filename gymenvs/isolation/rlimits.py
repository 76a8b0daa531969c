"""Limits that the kernel holds for each process: set on the first one before the command runs, inherited by all."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping

from rtmc.gymenvs.isolation.cgroups import Group
from rtmc.gymenvs.isolation.contract import Limits

# From here on RLIMIT_NPROC counts a user's processes in each user namespace by itself.
_COUNTED_BY_NAMESPACE = (5, 14)
_NAMES = {
    resource.RLIMIT_CORE: "core",
    resource.RLIMIT_CPU: "cpu",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_MSGQUEUE: "msgqueue",
    resource.RLIMIT_AS: "as",
    resource.RLIMIT_NPROC: "nproc",
}


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


def bounds(
    limits: Limits, group: Group | None, own_processes: int, counted_alone: bool | None = None
) -> dict[int, tuple[int, int]]:
    """`wanted`, none of it above this process's own; unless said otherwise, for a user namespace of its own."""
    release = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in os.uname().release.split(".")[:2])
    alone = release >= _COUNTED_BY_NAMESPACE if counted_alone is None else counted_alone
    found = {}
    for kind, pair in wanted(limits, group, own_processes, alone).items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:  # what is bound already stays so
            pair = (min(pair[0], most), min(pair[1], most))
        found[kind] = pair
    return found


def set_rlimits(pid: int, found: Mapping[int, tuple[int, int]]) -> None:
    """Sets `bounds` on a process of this user.

    Raises:
        ProcessLookupError: it is gone.
    """
    for kind, pair in found.items():
        resource.prlimit(pid, kind, pair)


def prlimit_options(found: Mapping[int, tuple[int, int]]) -> list[str]:
    """`bounds` as options of util-linux's `prlimit`."""
    return [f"--{_NAMES[kind]}={soft}:{hard}" for kind, (soft, hard) in found.items()]


def give_up_first(pid: int) -> None:
    """Where the machine itself runs out of memory, this process and its children go before all others."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")


def _tasks_of(user: int) -> int:
    tasks = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                tasks += len(os.listdir(f"/proc/{name}/task"))
    return tasks
