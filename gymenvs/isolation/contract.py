"""The words every backend shares: limits, the result of a command, the protocol of a sandbox, its error."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

STOPS = ("wall time", "cpu time", "output", "memory", "disk", "processes")


class SandboxError(RuntimeError):
    """A sandbox cannot be had or could not start a command. The message says what is missing and how to get it."""


class Probe(NamedTuple):
    """Whether a backend works on this machine, and the reason in a sentence either way."""

    works: bool
    why: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use. Seconds, bytes, counts; all above zero.

    wall_s        seconds from start to end
    cpu_s         CPU seconds of one process, enforced by the kernel; the sum over all processes is watched and may
                  reach this times the number of CPUs
    memory_bytes  of all processes together
    processes     processes and threads at once
    output_bytes  kept of each stream: past it the middle is left out, at 16 times it the command is stopped
    file_bytes    the largest single file
    disk_bytes    a quarter is the size of /tmp, three quarters may be added to the work tree; in a tree that was
                  brought over it a command can remove files and write none
    open_files    descriptors of one process

    Raises:
        ValueError, TypeError: a value is not a number above zero.
    """

    wall_s: float = 120.0
    cpu_s: int = 120
    memory_bytes: int = 2 << 30
    processes: int = 128
    output_bytes: int = 1 << 20
    file_bytes: int = 256 << 20
    disk_bytes: int = 1 << 30
    open_files: int = 512

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "wall_s" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise TypeError(f"Limits: `{field.name}` is {value!r}; wanted a number")
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"Limits: `{field.name}` is {value!r}; wanted a finite number above zero")

    @property
    def tmp_bytes(self) -> int:
        """The size of /tmp."""
        return max(self.disk_bytes // 4, 4096)

    @property
    def tree_bytes(self) -> int:
        """What may be added to the work tree."""
        return max(self.disk_bytes - self.tmp_bytes, 4096)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left behind.

    exit_code  as the shell has it (128 + n where signal n ended it); -1 = stopped by us
    stdout, stderr  UTF-8, other bytes replaced; where a stream was longer than the limit, its head and its tail with
               a line between them that counts the bytes left out
    timed_out  the wall time was over
    stopped    what stopped it, one of `STOPS`, or None
    seconds    wall time of the call
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool
    stopped: str | None
    seconds: float


class Sandbox(ABC):
    """Runs commands around one work tree. Made by `rtmc.gymenvs.sandbox.open_sandbox`; usable from several threads of
    the process that made it. In a forked child one that isolates raises in `run`, and `close` does nothing.

    backend  its name
    owner    (uid, gid) that must own the tree's files for the inside to write them; None = as they are
    """

    backend: str
    owner: tuple[int, int] | None = None

    @abstractmethod
    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
        writable: Sequence[tuple[Path, str]] = (),
    ) -> Completed:
        """Runs a command to its end or to a limit; when it returns, none of its processes is left.

        Args:
            command: a text for a fresh shell (`bash -c` where there is bash, else `sh -c`) or an argument list.
            stdin: what it reads; at its end, and so by default at once, it reads end of file.
            cwd: inside path to start in, by default the tree.
            env: variables beyond the sandbox's own, or in place of them.
            limits: in place of the sandbox's own.
            mounts: (host path, inside path) shown read-only to this command alone.
            writable: (host path, inside path) shown writable to this command alone.

        Raises:
            ValueError, TypeError: a NUL byte, an empty argument list, a path that is not absolute, does not exist on
                the host or lies below the tree, a malformed variable.
            SandboxError: the command was not started: the sandbox is closed or could not be set up.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back what the sandbox holds. A second call does nothing; the tree is left alone."""

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
