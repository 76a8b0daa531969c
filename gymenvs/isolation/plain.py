"""The backend `plain`: a subprocess on the machine itself, for code you trust. It isolates nothing.

The command sees and may change all that this process may, the network too. It still gets an environment of its own, a
/tmp folder of its own under TMPDIR, and the limits, which a program that means to can escape: rlimits (set a moment
after the start), a control group where one can be made, the looks at memory, processes and disk. What is left at the
end is found by its session, its control group and a variable that it inherits; a program that gives up all three, or
outlives a kill -9 of this process, stays.

There are no mounts. Paths at or below the inside places of the tree and of `readable` are turned into the host's where
they stand in `cwd`, as the program of an argument list, or as a whole entry of a variable (PATH, PYTHONPATH); not in a
command's text. `mounts` and `writable` at another place than their own are refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rtmc.gymenvs.isolation import cgroups, view
from rtmc.gymenvs.isolation.bounded import Descriptors
from rtmc.gymenvs.isolation.contract import Completed, Limits, Sandbox, SandboxError
from rtmc.gymenvs.isolation.disk import Disk
from rtmc.gymenvs.isolation.rlimits import bounds, give_up_first, set_rlimits
from rtmc.gymenvs.isolation.supervise import WITHOUT_WRITES, Watch, supervise

_MARK = "RTMC_SANDBOX_RUN"


def missing() -> str | None:
    """What keeps it from being used here; None if nothing."""
    return None if hasattr(os, "pidfd_open") else "it takes Linux"


class PlainSandbox(Sandbox):
    """See the module. Made by `open_sandbox(..., backend="plain", trusted=True)`."""

    backend = "plain"

    def __init__(self, layout: view.Layout, limits: Limits) -> None:
        self._layout = layout
        self._limits = limits
        self._disk = Disk(str(layout.tree), time.time() - 0.05)
        places = cgroups.places()
        self._pool = cgroups.Pool(places) if places else None
        self._closed = False

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
        limits = limits or self._limits
        words, files = view.arguments(command)
        for source, inside in [*mounts, *writable]:
            if os.path.realpath(source) != os.path.realpath(inside):
                raise ValueError(f"plain shows nothing at another place: {str(source)!r} at {inside!r}")
        folder = self._host(view.checked_inside(cwd or self._layout.inside, "cwd"))
        if not os.path.isdir(folder):
            raise ValueError(f"`cwd` is {cwd!r}, which is no folder ({folder!r} on the host)")
        if self._closed:
            raise SandboxError("the sandbox is closed")
        variables = {name: self._hosts(value) for name, value in self._layout.environment(env).items()}
        with tempfile.TemporaryDirectory(prefix="rtmc-plain-", ignore_cleanup_errors=True) as temporary:
            for text in files.values():  # the command, where it is too long for an argument
                script = Path(temporary, "command")
                script.write_bytes(os.fsencode(text))
                words[-1] = f". {script}"
            variables |= {"TMPDIR": temporary, "HOME": temporary, _MARK: secrets.token_hex(16)}
            program = shutil.which(words[0], path=variables["PATH"]) if "/" not in words[0] else self._host(words[0])
            words = [program or words[0], *words[1:]]
            if full := self._disk.is_full(limits.tree_bytes):
                words = [*WITHOUT_WRITES, *words]
            group = self._pool.take() if self._pool else None
            job = None
            try:
                job = _Job(words, folder, variables, stdin, group, limits)
                watch = Watch(limits, self._disk, full, job.first, group, 0)
                return supervise(job, stdin, limits, watch, started)
            finally:
                if job:
                    job.close()
                if group and self._pool:
                    group.empty()
                    self._pool.give(group)

    def close(self) -> None:
        self._closed = True
        if self._pool:
            self._pool.close()

    def _host(self, path: str) -> str:
        for source, inside in ((str(self._layout.tree), self._layout.inside), *self._layout.readable):
            if path == inside or path.startswith(inside + "/"):
                return source + path[len(inside) :]
        return path

    def _hosts(self, value: str) -> str:
        return ":".join(self._host(part) for part in value.split(":"))


class _Job(Descriptors):
    """A process in a session of its own; see the protocol `supervise.Job`."""

    def __init__(
        self,
        words: Sequence[str],
        folder: str,
        variables: Mapping[str, str],
        stdin: bytes,
        group: cgroups.Group | None,
        limits: Limits,
    ) -> None:
        super().__init__()
        self._group = group
        self._mark = f"{_MARK}={variables[_MARK]}".encode()
        try:
            source, self.feed = self.kept(*os.pipe())
            if not stdin:
                self.end_feed()
            self.out, out = self.kept(*os.pipe())
            self.err, err = self.kept(*os.pipe())
            try:
                self._process = subprocess.Popen(
                    words, stdin=source, stdout=out, stderr=err, cwd=folder, env=variables, start_new_session=True
                )
            except OSError as error:
                raise SandboxError(f"plain could not start {words[0]!r}: {error}") from None
            self.closed(source, out, err)
            self.first = self._process.pid
            (self._end,) = self.kept(os.pidfd_open(self.first))
            with contextlib.suppress(ProcessLookupError):
                if group:
                    group.limit(limits, 0)
                    group.add(self.first)
                set_rlimits(self.first, bounds(limits, group, 0, counted_alone=False))
                give_up_first(self.first)
        except BaseException:
            self.close()
            raise

    def waits(self) -> Sequence[int]:
        return [self._end]

    def finished(self) -> bool:
        if not select.select([self._end], [], [], 0)[0]:
            return False
        return not self._kill_rest()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.first, signal.SIGKILL)
        self._kill_rest()

    def exit_code(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if hasattr(self, "_process") and self._process.poll() is None:
            self.kill()
            self._process.wait()
        super().close()

    def _kill_rest(self) -> bool:
        """Ends all that the command left; whether there was anything."""
        found = self._group.kill() if self._group else False
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == self.first:
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as file:
                    marked = self._mark in file.read().split(b"\0")
                if marked:
                    found = True
                    os.kill(int(name), signal.SIGKILL)
        return found
