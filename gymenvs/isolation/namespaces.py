"""The backend `unshare`: the kernel's namespaces asked for directly, with Landlock behind them; no program needed.

What it guarantees is what `bubblewrap` does, by the same view, filter, control groups and rlimits, and with Landlock
(kernel 5.19 or newer) as a wall behind the mounts: nothing but the tree, /tmp and /dev/shm can be written even if a
mount should be wrong, and no process outside can be signalled. It needs user namespaces and kernel 5.12.

A small program (`launcher`) is started once for a sandbox, forks for each command and ends with the sandbox; commands
that run at the same time have a launcher each.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.isolation import launcher, seccomp, users, view
from rtmc.gymenvs.isolation.bounded import BoundedSandbox, Descriptors, Start
from rtmc.gymenvs.isolation.contract import Limits, SandboxError

_SETUP_S = 30.0


def missing() -> str | None:
    """What keeps namespaces from being used here, as far as it can be told without a start; None if nothing."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return "it takes Linux"
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release < (5, 12):
        return f"kernel {os.uname().release} has no mount_setattr: 5.12 or newer is wanted"
    if not seccomp.supported():
        return f"no table of system calls for {os.uname().machine}"
    if lacking := users.lacking():
        return lacking
    for name, wanted in (("user/max_user_namespaces", "1"), ("kernel/unprivileged_userns_clone", "1")):
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text().strip() == "0" and not users.is_root():
                return f"user namespaces are switched off: sysctl {name.replace('/', '.')}={wanted} or more"
    return None


HELP = (
    "user namespaces may be switched off (sysctl user.max_user_namespaces), held back by AppArmor "
    "(sysctl kernel.apparmor_restrict_unprivileged_userns=0) or by a container's own filter"
)


class NamespaceSandbox(BoundedSandbox):
    """See the module. Made by `open_sandbox(..., backend="unshare")`."""

    backend = "unshare"

    def __init__(self, layout: view.Layout, limits: Limits) -> None:
        super().__init__(layout, limits)
        self._lock = threading.Lock()
        self._idle: list[_Launcher] = []

    def _start(self, what: Start) -> _Job:
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        made_by = users.maker() if users.is_root() else 0
        request = {
            "steps": list(what.steps),
            "variables": dict(what.variables),
            "folder": what.folder,
            "words": list(what.words),
            "filter": self._filter.hex(),
            "rlimits": list(what.rlimits.items()),
            "doors": list(what.doors),
            "maker": made_by,
            "maps": users.maps(made_by) if made_by else "",
            "writable": ["/tmp", "/dev/shm", *(step.inside for step in what.steps if step.kind == "bind")],
        }
        return _Job(self, idle or _Launcher(), request, what.feed)

    def keep(self, one: _Launcher) -> None:
        """Takes an idle launcher back for the next command."""
        with self._lock:
            if not self._closed:
                self._idle.append(one)
                return
        one.close()

    def close(self) -> None:
        super().close()
        if os.getpid() != self._process:
            return  # a forked child: the launchers are its parent's
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()


class _Launcher:
    """A running launcher and the socket to it."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        # By its descriptor: the inside reads the first process's command line, and should not learn the host's paths.
        python = getattr(sys, "_base_executable", sys.executable)
        with theirs, open(launcher.__file__, "rb") as program:
            given = [program.fileno(), theirs.fileno()]
            script = f"/proc/self/fd/{given[0]}"
            self._process = subprocess.Popen(
                [python, "-I", "-S", script, str(given[1]), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                pass_fds=given,
                start_new_session=True,
            )

    def send(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        data = struct.pack("=Q", len(data)) + data
        sent = socket.send_fds(self.channel, [data], descriptors)
        self.channel.sendall(data[sent:])

    def close(self) -> None:
        self.channel.close()  # it ends by itself, and what it runs with it
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Job(Descriptors):
    """A request to a launcher; see the protocol `supervise.Job`."""

    def __init__(self, sandbox: NamespaceSandbox, one: _Launcher, request: dict[str, Any], feed: bool) -> None:
        super().__init__()
        self._sandbox, self._launcher = sandbox, one
        self._code: int | None = None
        self.feed: int | None = None
        try:
            stdin, self.feed = self.kept(*os.pipe())
            if not feed:
                self.end_feed()
            self.out, out = self.kept(*os.pipe())
            self.err, err = self.kept(*os.pipe())
            if owner := users.owner():  # else the command could not open /dev/stdout and its like
                for end in (stdin, out, err):
                    os.fchown(end, *owner)
            told, report = self.kept(*os.pipe())
            gate, self._gate = self.kept(*os.pipe())
            one.send(request, [stdin, out, err, report, gate])
            self.closed(stdin, out, err, report, gate)
            self.first = self._set_up(told)
            self._end = os.pidfd_open(self.first)
            self.kept(self._end)
        except BaseException:
            self.close()
            raise

    def let_go(self) -> None:
        """Lets the command start."""
        os.write(self._gate, b".")

    def began(self) -> bool:
        return True  # the set-up was reported to be done

    def waits(self) -> Sequence[int]:
        return [self._launcher.channel.fileno()]

    def finished(self) -> bool:
        if self._code is None and select.select([self._launcher.channel], [], [], 0)[0]:
            answer = self._launcher.channel.recv(4, socket.MSG_WAITALL)
            if len(answer) < 4:
                raise SandboxError("the launcher of the sandbox is gone")
            (self._code,) = struct.unpack("=i", answer)
        return self._code is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def exit_code(self) -> int:
        assert self._code is not None
        return self._code

    def close(self) -> None:
        super().close()
        if self._code is not None:
            self._sandbox.keep(self._launcher)
        else:
            self._launcher.close()

    def _set_up(self, told: int) -> int:
        """The number of the sandbox's first process, when it waits at the gate."""
        text, until = b"", time.monotonic() + _SETUP_S
        while b"ready\n" not in text:
            if not select.select([told], [], [], max(0.0, until - time.monotonic()))[0]:
                raise SandboxError(f"unshare did not set the sandbox up within {_SETUP_S:g} s")
            part = os.read(told, 4096)
            text += part
            if not part or b"error " in text:
                why = text.decode(errors="replace").partition("error ")[2].strip() or "its launcher ended"
                raise SandboxError(f"unshare could not set the sandbox up: {why}; {HELP}")
        found = re.search(rb"pid (\d+)\n", text)
        while found is None:
            text += os.read(told, 4096)
            found = re.search(rb"pid (\d+)\n", text)
        return int(found[1])
