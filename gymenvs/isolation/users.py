"""Which user the inside is, outside.

A command never runs with root's user number: even without capabilities that number may write kernel settings below
/proc/sys, change the modes of device nodes, and reach the program of its sandbox's first process. So root hands the
inside to `AGENT`, a number that belongs to nobody, and the work tree with it; any other user's inside is that user.
Inside it is always 1000.

The kernel counts some things by user, over all namespaces: inotify instances, pending signals, locked memory. It counts
those of a user namespace against the user who made that too. As root each command's namespace is therefore made by a
number of its own (`maker`), so that one command's use is neither root's nor another command's. What the kernel counts
by the running user's number alone, `AGENT` for all sandboxes of a machine, stays shared between them: descriptors on
their way in Unix sockets (a command that leaves `open_files` of them there refuses more to the others), and the pages
of pipes beyond which new pipes are short. Root's own are never touched. As another user all counts are that user's;
inotify instances have a bound for each command.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

INSIDE = 1000
# Above what systemd and subordinate ids are given from, below 2**31.
AGENT = 0x70000000
_MAKERS = 0xFFFFFF  # numbers above AGENT
# Capabilities by their numbers: to give files away, to become the agent, to write the users of its namespace.
_NEEDED = {"CAP_CHOWN": 0, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21}


def is_root() -> bool:
    """Whether this process has the machine's user 0, not the 0 of a user namespace, which stands for someone else."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def lacking() -> str | None:
    """What root must have to hand the inside to another user and has not, as in most containers; None if nothing.

    Nothing else is done then: a command that ran with root's number, for want of another, could change the modes of
    the machine's device nodes.
    """
    if not is_root():
        return None
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    held = int(line.split()[1], 16)
    names = [name for name, number in _NEEDED.items() if not held >> number & 1]
    if not names:
        return None
    return (
        f"root here has no {', '.join(names)}: run as another user, or start the container with these "
        f"({' '.join('--cap-add ' + name.removeprefix('CAP_') for name in names)})"
    )


def owner() -> tuple[int, int] | None:
    """(uid, gid) that must own a tree for the inside to write it, or None where it is this process's own."""
    return (AGENT, AGENT) if is_root() else None


def maker() -> int:
    """A number for the user that makes one command's namespace, by chance: no other living command's."""
    return AGENT + 1 + secrets.randbelow(_MAKERS)


def maps(made_by: int) -> str:
    """The users of a sandbox's namespace as root writes them: the system's files are 0's, 1 sets up, 1000 runs."""
    return f"0 0 1\n1 {made_by} 1\n{INSIDE} {AGENT} 1\n"


def give(tree: Path, to: tuple[int, int]) -> None:
    """Makes `to` the owner of a tree and of all in it that is not; nothing happens where it owns the top.

    Links are not followed; hard links to files outside the tree would change hands too.
    """
    if (found := os.stat(tree)).st_uid == to[0] and found.st_gid == to[1]:
        return
    for folder, folders, files, handle in os.fwalk(tree, topdown=False, follow_symlinks=False):
        del folder
        for name in [*folders, *files]:
            with contextlib.suppress(FileNotFoundError):
                os.chown(name, *to, dir_fd=handle, follow_symlinks=False)
    os.chown(tree, *to)
