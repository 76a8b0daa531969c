"""What the two isolating backends share: a command set up and held back, bounded from outside, let go, watched."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rtmc.gymenvs.isolation import cgroups, seccomp, users, view
from rtmc.gymenvs.isolation.contract import Completed, Limits, Sandbox, SandboxError
from rtmc.gymenvs.isolation.disk import Disk
from rtmc.gymenvs.isolation.rlimits import bounds, give_up_first
from rtmc.gymenvs.isolation.supervise import WITHOUT_WRITES, Job, Watch, supervise

OWN_PROCESSES = 1  # the sandbox's first process; one more is outside of it, and in the group if it went in itself


@dataclass(frozen=True, slots=True)
class Start:
    """What a backend starts: a command's view and variables, the inside folder it starts in, its arguments, whether
    it is fed, the doors to its control group, and its rlimits.
    """

    steps: Sequence[view.Step]
    variables: Mapping[str, str]
    folder: str
    words: Sequence[str]
    feed: bool
    doors: Sequence[str]
    rlimits: Mapping[int, tuple[int, int]]


class HeldJob(Job, Protocol):
    """A job whose command does not start before `let_go`; `first` is the sandbox's first process, seen from here."""

    first: int

    def let_go(self) -> None: ...

    def began(self) -> bool:
        """Whether the set-up came to its end; asked when the job has finished."""

    def close(self) -> None: ...


class BoundedSandbox(Sandbox):
    """Runs commands through `_start`, which a backend gives."""

    def __init__(self, layout: view.Layout, limits: Limits) -> None:
        self.owner = users.owner()
        if self.owner:
            users.give(layout.tree, self.owner)
        self._layout = layout
        self._limits = limits
        self._disk = Disk(str(layout.tree), time.time() - 0.05)  # file times tick coarsely
        places = cgroups.places()
        self._pool = cgroups.Pool(places) if places else None
        self._filter = seccomp.program(count_memory=places is None)
        self._turns = _Turns()
        self._closed = False
        self._process = os.getpid()

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
        started = time.monotonic()
        if os.getpid() != self._process:
            raise SandboxError("the sandbox belongs to the process that opened it: open another one in a forked child")
        limits = limits or self._limits
        words, files = view.arguments(command)
        folder = self._layout.inside if cwd is None else view.checked_inside(cwd, "cwd")
        ids = (users.INSIDE, users.INSIDE)
        steps = self._layout.steps(limits, ids, mounts, writable, files)
        variables = self._layout.environment(env)
        with self._turns.taken(alone=self._layout.mounts_in_tree(mounts)), self._group() as group:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if full := self._disk.is_full(limits.tree_bytes):
                words = [*WITHOUT_WRITES, *words]
            doors = group.doors if group else []
            if group:
                group.limit(limits, OWN_PROCESSES + bool(doors))
            # RLIMIT_NPROC counts a user's, and as root the first process has another than the command.
            rlimits = bounds(limits, group, 0 if self.owner else OWN_PROCESSES)
            job = self._start(Start(steps, variables, folder, words, bool(stdin), doors, rlimits))
            try:
                with contextlib.suppress(ProcessLookupError):
                    if group and not doors:
                        group.add(job.first)
                    give_up_first(job.first)
                watch = Watch(limits, self._disk, full, job.first, group, OWN_PROCESSES)
                job.let_go()
                done = supervise(job, stdin, limits, watch, started)
                if not job.began() and not done.stopped:
                    raise SandboxError(f"{self.backend} could not set the sandbox up: {done.stderr.strip()}")
                return done
            finally:
                job.close()

    @abstractmethod
    def _start(self, what: Start) -> HeldJob:
        """Sets the sandbox up, inside the group that the doors lead to, with the command held back.

        Raises:
            SandboxError: it could not be.
        """

    def close(self) -> None:
        self._closed = True
        if self._pool and os.getpid() == self._process:
            self._pool.close()

    @contextlib.contextmanager
    def _group(self) -> Iterator[cgroups.Group | None]:
        """A control group for one command, where they can be made; empty again at the end."""
        if self._pool is None:
            yield None
            return
        group = self._pool.take()
        try:
            yield group
        finally:
            group.empty()
            self._pool.give(group)


class Descriptors:
    """Descriptors to be closed in the end, whatever happens."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.feed: int | None = None

    def kept(self, *descriptors: int) -> tuple[int, ...]:
        self._open.update(descriptors)
        return descriptors

    def closed(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def end_feed(self) -> None:
        """Closes the command's input from this side."""
        if self.feed is not None:
            self.closed(self.feed)
            self.feed = None

    def close(self) -> None:
        self.closed(*self._open)


class _Turns:
    """Many commands at once, or one alone.

    A command with mounts below the tree has the sandbox to itself: its mount points are looked at before they are used,
    and another command could meanwhile put a link in their place.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._running = 0
        self._alone = False

    @contextlib.contextmanager
    def taken(self, alone: bool) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._alone and not (alone and self._running))
            self._running += 1
            self._alone = alone
        try:
            yield
        finally:
            with self._free:
                self._running -= 1
                self._alone = False
                self._free.notify_all()
