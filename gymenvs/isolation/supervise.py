"""The loop around one running command: feeds it, reads it, looks at what it uses, stops it at a limit.

One thread, no signal handlers, nothing that waits without an end: a descendant that holds the output pipe does not
keep the loop, because it ends when the sandbox's processes are gone and not when the pipe closes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from rtmc.gymenvs.isolation.cgroups import Group
from rtmc.gymenvs.isolation.contract import Completed, Limits, SandboxError
from rtmc.gymenvs.isolation.disk import Disk
from rtmc.gymenvs.isolation.watch import descendants, shared_out, unlinked, usage

OUTPUT_TIMES = 16  # a stream this many times its limit stops the command
REFUSALS = 100  # so does a fork that fails this often
# What a command in a full tree is started through: it may remove what is there, and no file can grow.
WITHOUT_WRITES = ("/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh")
_CHUNK = 1 << 16
_FIRST_LOOK_S, _LOOK_S = 0.05, 0.05
_DISK_LOOK_S, _WALK_TURN_S = 0.2, 0.01
_AT_BOUND_S = 1.0
_END_PATIENCE_S = 10.0


class Job(Protocol):
    """A started command. `out`, `err`: descriptors to read; `feed`: the one to write, or None."""

    out: int
    err: int
    feed: int | None

    def end_feed(self) -> None:
        """Closes `feed` and makes it None."""

    def waits(self) -> Sequence[int]:
        """Descriptors that become readable when there is news of its end."""

    def finished(self) -> bool:
        """Whether it and every process it started is gone; never blocks."""

    def kill(self) -> None:
        """Ends every process of it; `finished` tells when that is done."""

    def exit_code(self) -> int:
        """As the shell has it; asked once, after `finished`."""


class Capture:
    """One stream: all of it up to the limit, else its first and its last half."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head_room = limit // 2
        self._tail_room = limit - limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_held = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        if (room := self._head_room - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_held += len(data)
            while self._tail_held - len(self._tail[0]) >= self._tail_room:
                self._tail_held -= len(self._tail.popleft())

    def text(self) -> str:
        tail = b"".join(self._tail)[-self._tail_room :]
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        note = f"\n[... {left_out} bytes left out ...]\n"
        return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


class Watch:
    """Looks at a command's use every now and then and says which limit is passed.

    `root` is the first process of the sandbox; `group` its control group, in which the kernel holds memory and
    processes, or None, when the sums are taken here; `own` processes are the sandbox's and not counted. `full`: the
    tree was over its limit at the start; the command, which can write nothing (`WITHOUT_WRITES`), may make room, and
    is stopped where it adds folders and links.
    """

    def __init__(self, limits: Limits, disk: Disk, full: bool, root: int, group: Group | None, own: int) -> None:
        self._limits, self._disk = limits, disk
        self._root, self._group, self._own = root, group, own
        self._ooms = group.ooms() if group else 0
        self._refusals = group.refusals() if group else 0
        self._cpu_bound = limits.cpu_s * (os.cpu_count() or 1)
        self._at_bound_since: float | None = None
        self._walk: Iterator[int | None] | None = None
        self._next_walk = time.monotonic() + _DISK_LOOK_S
        self._disk_bound = disk.bound(limits.tree_bytes, full)
        self._room = disk.room()

    def memory_ended(self) -> bool:
        """Whether the kernel ended a process for want of memory."""
        return self._group is not None and self._group.ooms() > self._ooms

    def look(self) -> str | None:
        """The limit that is passed, or None."""
        if self.memory_ended():
            return "memory"
        pids = descendants(self._root)
        used = usage(pids)
        bound = self._limits.memory_bytes
        if self._group is None and used.resident > bound and shared_out(pids) > bound:
            return "memory"
        if self._forks_refused(used.tasks - self._own):
            return "processes"
        if used.cpu_s > self._cpu_bound:
            return "cpu time"
        return "disk" if self._disk_passed(pids) else None

    def last_look(self, ran_s: float) -> str | None:
        """The limit that was passed meanwhile, asked when the command has ended."""
        if self.memory_ended():
            return "memory"
        return "disk" if self._disk.passed(self._limits.tree_bytes, ran_s) else None

    def _forks_refused(self, tasks: int) -> bool:
        if self._group is None and tasks > self._limits.processes:
            return True
        if self._group is not None and self._group.refusals() - self._refusals > REFUSALS:
            return True
        # At the bound for a second: a program that retries its forks would go on so until the wall time.
        if tasks < self._limits.processes:
            self._at_bound_since = None
            return False
        self._at_bound_since = self._at_bound_since or time.monotonic()
        return time.monotonic() - self._at_bound_since > _AT_BOUND_S

    def _disk_passed(self, pids: list[int]) -> bool:
        now = time.monotonic()
        if self._walk is None:
            if now < self._next_walk:
                return False
            # Opening closed folders could be seen inside: only where what they hold may be too much.
            hidden = self._disk.lost(self._room) > self._limits.tree_bytes
            self._walk = self._disk.walk(self._disk_bound, force=hidden)
        total = next(self._walk)
        while total is None and time.monotonic() - now < _WALK_TURN_S:
            total = next(self._walk)
        if total is None:
            return False
        self._walk = None
        # A walk takes at most a tenth of the time, so that a large tree does not cost a core.
        self._next_walk = time.monotonic() + max(_DISK_LOOK_S, 10 * self._disk.cost_s)
        nameless, blind = unlinked(pids, self._disk.device)
        if blind:  # what it holds is not known; that much was taken by someone
            nameless = max(nameless, self._disk.lost(self._room) - total)
        return total + nameless > self._disk_bound


def supervise(job: Job, stdin: bytes, limits: Limits, watch: Watch | None, started: float) -> Completed:
    """Runs a started command to its end. `started` is the time.monotonic() at which `seconds` and the limit begin.

    Raises:
        SandboxError: its processes did not end within ten seconds of being killed.
    """
    streams = {job.out: Capture(limits.output_bytes), job.err: Capture(limits.output_bytes)}
    most = OUTPUT_TIMES * limits.output_bytes
    unfed = memoryview(stdin)
    stopped: str | None = None
    deadline = started + limits.wall_s
    next_look = started + _FIRST_LOOK_S
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            os.set_blocking(stream, False)
            selector.register(stream, selectors.EVENT_READ)
        if job.feed is not None:
            os.set_blocking(job.feed, False)
            selector.register(job.feed, selectors.EVENT_WRITE)
        for news in job.waits():
            selector.register(news, selectors.EVENT_READ)
        while not job.finished():
            now = time.monotonic()
            if stopped is None:
                if now >= deadline:
                    stopped = "wall time"
                elif any(capture.total > most for capture in streams.values()):
                    stopped = "output"
                elif now >= next_look:
                    stopped = watch.look() if watch else None
                    next_look = time.monotonic() + _LOOK_S
                if stopped is not None:
                    job.kill()
                    deadline = next_look = time.monotonic() + _END_PATIENCE_S
            elif now >= deadline:
                raise SandboxError(f"processes did not end within {_END_PATIENCE_S:g} s of being killed")
            for key, _ in selector.select(max(0.0, min(deadline, next_look) - time.monotonic())):
                if key.fd == job.feed:
                    unfed = _write(key.fd, unfed)
                    if not unfed:
                        selector.unregister(key.fd)
                        job.end_feed()
                elif key.fd not in streams or _read(key.fd, streams[key.fd], most) == 0:
                    selector.unregister(key.fd)  # news comes once, and a stream ends once
    for stream, capture in streams.items():
        while _read(stream, capture, most) > 0 and capture.total <= most:
            pass
    if stopped is None and watch is not None:
        stopped = watch.last_look(time.monotonic() - started)
    code = job.exit_code()
    return Completed(
        exit_code=-1 if stopped else code,
        stdout=streams[job.out].text(),
        stderr=streams[job.err].text(),
        timed_out=stopped == "wall time",
        stopped=stopped,
        seconds=time.monotonic() - started,
    )


def _read(stream: int, capture: Capture, most: int) -> int:
    """Reads what is there: its bytes, 0 at the stream's end, -1 where there is nothing now."""
    try:
        data = os.read(stream, _CHUNK)
    except BlockingIOError:
        return -1
    if capture.total <= most:
        capture.add(data)
    return len(data)


def _write(feed: int, unfed: memoryview) -> memoryview:
    with contextlib.suppress(BlockingIOError):
        try:
            return unfed[os.write(feed, unfed[:_CHUNK]) :]
        except BrokenPipeError:  # it reads no more
            return unfed[:0]
    return unfed
