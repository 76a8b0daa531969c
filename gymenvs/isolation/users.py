"""Which user the inside is, outside.

A command never runs with root's user number: even without capabilities that number may write kernel settings below
/proc/sys, change the modes of device nodes, and reach the program of its sandbox's first process. So root hands the
inside to `AGENT`, a number that belongs to nobody, and the work tree with it; any other user's inside is that user.
Inside it is always 1000.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

INSIDE = 1000
# Above what systemd and subordinate ids are given from, below 2**31.
AGENT = 0x70000000


def is_root() -> bool:
    """Whether this process has the machine's user 0, not the 0 of a user namespace, which stands for someone else."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def owner() -> tuple[int, int] | None:
    """(uid, gid) that must own a tree for the inside to write it, or None where it is this process's own."""
    return (AGENT, AGENT) if is_root() else None


def maps() -> str:
    """The users of a sandbox's namespace as root writes them: 0 for setting it up, 1000 for the command."""
    return f"0 0 1\n{INSIDE} {AGENT} 1\n"


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
