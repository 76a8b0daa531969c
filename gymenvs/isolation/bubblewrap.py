"""The backend `bwrap`: bubblewrap makes the namespaces and the mounts, one for each command.

What it guarantees: network, processes, users, IPC and host name of its own; the file system of `view`, all of it
read-only but the tree and /tmp; no capabilities, no new privileges, the filter of `seccomp`. Killing bwrap, or the end
of the process that runs this, ends everything inside.

Limits: file size, open files, CPU seconds of a process, core files by rlimits. Memory and processes by control groups
where they can be made; else processes by RLIMIT_NPROC, which counts those of this sandbox alone from kernel 5.14 on,
and memory by the sum over processes, looked at 20 times a second, with a ceiling on each one's address space; /tmp and
/dev/shm come on top of that sum. The tree's growth is looked at 5 times a second and at the command's end: between two
looks it can pass the limit by what the disk takes, each file by no more than `file_bytes`; what then starts in the full
tree can remove files and write none.

Which user the inside is, outside, stands in `users`: never root, for whom RLIMIT_NPROC would do nothing either. As root
`setpriv` of util-linux makes the change, twice: outside, to the user who makes the namespace, and inside, first of all,
to the agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rtmc.gymenvs.isolation import cgroups, seccomp, users, view
from rtmc.gymenvs.isolation.bounded import BoundedSandbox, Descriptors, Start
from rtmc.gymenvs.isolation.contract import SandboxError
from rtmc.gymenvs.isolation.launcher import INOTIFY_INSTANCES
from rtmc.gymenvs.isolation.rlimits import prlimit_options, set_rlimits
from rtmc.gymenvs.isolation.view import Step

# Goes through the doors of a control group and becomes what follows them.
_ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 1; shift; n=$((n - 1)); done; exec "$@"'
# util-linux; run inside as the first thing, from the read-only system.
_BECOME_AGENT = (
    "/usr/bin/setpriv",
    f"--reuid={users.INSIDE}",
    f"--regid={users.INSIDE}",
    "--clear-groups",
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--bounding-set=-all",
    "--",
)
_PRLIMIT = "/usr/bin/prlimit"
_SETUP_S = 30.0
# In the environment of bwrap's own processes: who started them, as `cgroups.identity` has it.
_OWNER = "SANDBOX_OWNER"
# bwrap takes no more than 9,000 words in all, the view's among them; a longer command comes as a script.
_MOST_WORDS = 4000
_SCRIPT = "/run/arguments"
_NEEDED = (
    "--args",
    "--block-fd",
    "--info-fd",
    "--perms",
    "--remount-ro",
    "--seccomp",
    "--size",
    "--sync-fd",
    "--userns-block-fd",
)


def missing() -> str | None:
    """What keeps bubblewrap from being used here, as far as it can be told without a start; None if nothing."""
    program = shutil.which("bwrap")
    if program is None:
        return "there is no program bwrap on PATH: install the package bubblewrap (0.8 or newer)"
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    options = (told.stdout + told.stderr).split()
    if absent := [name for name in _NEEDED if name not in options]:
        return f"{program} has no {', '.join(absent)}: bubblewrap 0.8 or newer is wanted"
    if not seccomp.supported():
        return f"no table of system calls for {os.uname().machine}"
    if lacking := users.lacking():
        return lacking
    for needed in (_BECOME_AGENT[0], _PRLIMIT) if users.is_root() else ():
        if not os.access(needed, os.X_OK):
            return f"as root it needs {needed}: install the package util-linux"
    sweep()
    return None


@functools.cache
def _apart(program: str) -> tuple[str, ...]:
    """What bwrap is started through as another user than root: a namespace with its own bound on inotify instances.

    They are else those of the user who runs this, 128 in all. () where util-linux or the machine does not let it.
    """
    script = f'echo {INOTIFY_INSTANCES} > /proc/sys/user/max_inotify_instances && exec "$@"'
    words: tuple[str, ...] = (
        "unshare",
        "--user",
        "--map-current-user",
        "--keep-caps",
        "--",
        "/bin/sh",
        "-c",
        script,
        "sh",
    )
    words += ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--")
    trial = [*words, program, "--unshare-all", "--uid", str(users.INSIDE), "--ro-bind", "/", "/", "/bin/true"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(trial, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0:
            return words
    return ()


def sweep() -> int:
    """Ends bwrap processes whose starter is gone; how many. Those of another process namespace are left alone.

    "Dies with its parent" holds from an early moment of the set-up on; a starter that was killed before it leaves a
    process that waits for ever, without a command.
    """
    ended = 0
    mark = f"{_OWNER}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            told = Path("/proc", name, "environ").read_bytes()
            if told.startswith(mark) and cgroups.is_gone(told[len(mark) :].partition(b"\0")[0].decode()):
                os.kill(int(name), signal.SIGKILL)
                ended += 1
    return ended


class BubblewrapSandbox(BoundedSandbox):
    """See the module. Made by `open_sandbox(..., backend="bwrap")`."""

    backend = "bwrap"

    def _start(self, what: Start) -> _Job:
        if len(what.words) > _MOST_WORDS:
            script = Step("file", _SCRIPT, f"exec {shlex.join(what.words)}\n")
            what = replace(what, steps=[script, *what.steps], words=["/bin/sh", _SCRIPT])
        return _Job(what, self._filter)


class _Job(Descriptors):
    """A bwrap process: set up with the command held back, bounded, let go.

    bwrap writes the number of the sandbox's first process and waits for a byte before it starts the command, so that
    the control group and the limits are in place by then, set from outside. When the byte is gone, the set-up is done.
    """

    def __init__(self, what: Start, filter_: bytes) -> None:
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = None
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError(str(missing()))
        as_root, made_by = users.is_root(), 0
        before: list[str] = []
        words = list(what.words)
        try:
            told, tell = self.kept(*os.pipe())
            self._held, self._release = self.kept(*os.pipe())
            given = [tell, self._held, self._release]
            owner = users.owner()

            def content(data: bytes) -> str:
                """The number of a descriptor that bwrap inherits, to read this from."""
                (descriptor,) = self.kept(os.memfd_create("given"))
                given.append(descriptor)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
                os.lseek(descriptor, 0, os.SEEK_SET)
                return str(descriptor)

            options = ["--unshare-all", "--unshare-user", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
            options += ["--info-fd", str(tell), "--block-fd", str(self._held), "--seccomp", content(filter_)]
            # bwrap takes the end of the pipe for the byte: it holds the other side itself, so that the command does not
            # start when this process is killed.
            options += ["--sync-fd", str(self._release), "--cap-drop", "ALL"]
            if as_root:
                # The same pipe: bwrap's outer process takes the first byte, and only then the inner one goes on, to
                # wait for the second. A pipe of its own would stay open in the inner one, and in the command.
                options += ["--userns-block-fd", str(self._held)]
                # For `setpriv`, which gives them up, and for entering a folder that is the agent's alone.
                for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH"):
                    options += ["--cap-add", capability]
                words = [_PRLIMIT, *prlimit_options(what.rlimits), "--", *_BECOME_AGENT, *words]
                made_by = users.maker()
                before = [_BECOME_AGENT[0], f"--reuid={made_by}", f"--regid={made_by}", "--clear-groups", "--"]
            else:
                options += ["--uid", str(users.INSIDE), "--gid", str(users.INSIDE)]
                before = list(_apart(program))
            for step in what.steps:
                options += _options(step, content)
            options += ["--chdir", what.folder, "--unsetenv", _OWNER]
            for name, value in what.variables.items():
                options += ["--setenv", name, value]
            # Through a file, so that the inside does not read the host's paths from /proc/1/cmdline.
            listed = content(b"".join(os.fsencode(option) + b"\0" for option in options))
            if what.doors:
                before = ["/bin/sh", "-c", _ENTER, "sh", str(len(what.doors)), *what.doors, *before]
            stdin, self.feed = (subprocess.DEVNULL, None) if not what.feed else self.kept(*os.pipe())
            self.out, out = self.kept(*os.pipe())
            self.err, err = self.kept(*os.pipe())
            if owner:  # else the command could not open /dev/stdout and its like
                for end in (out, err, *([stdin] if what.feed else [])):
                    os.fchown(end, *owner)
            self._process = subprocess.Popen(
                [*before, program, "--args", listed, "--", *words],
                stdin=stdin,
                stdout=out,
                stderr=err,
                cwd="/",
                env={_OWNER: cgroups.identity()},
                pass_fds=given,
                start_new_session=True,
            )
            self.closed(tell, out, err, *([stdin] if what.feed else []))
            self._ends = list(self.kept(os.pidfd_open(self._process.pid)))
            self.first = self._first_process(told)
            if as_root:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{self.first}/{name}").write_text(users.maps(made_by))
                os.write(self._release, b".")
            with contextlib.suppress(ProcessLookupError):
                if not as_root:  # of another's process root alone may set them, and not every root: see `prlimit`
                    set_rlimits(self.first, what.rlimits)
                self._ends += self.kept(os.pidfd_open(self.first))
        except BaseException:
            self.close()
            raise

    def let_go(self) -> None:
        """Lets the command start."""
        os.write(self._release, b".")

    def began(self) -> bool:
        """Whether the set-up came to its end."""
        return fcntl.ioctl(self._held, termios.FIONREAD, b"\0\0\0\0") == b"\0\0\0\0"

    def waits(self) -> Sequence[int]:
        return self._ends

    def finished(self) -> bool:
        # The namespace's first process ends when all others in it have; bwrap's own may end a moment before.
        poll = select.poll()
        for end in self._ends:
            poll.register(end, select.POLLIN)
        return len(poll.poll(0)) == len(self._ends)

    def kill(self) -> None:
        for end in self._ends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)

    def exit_code(self) -> int:
        assert self._process is not None
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        super().close()

    def _first_process(self, told: int) -> int:
        """The number of the sandbox's first process, seen from here."""
        text, until = b"", time.monotonic() + _SETUP_S
        while time.monotonic() < until:
            if not select.select([told], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            part = os.read(told, 4096)
            text += part
            if found := re.search(rb'"child-pid":\s*(\d+)\b[^\d]', text):
                return int(found[1])
            if not part:
                assert self._process is not None
                self._process.wait()
                os.set_blocking(self.err, False)
                raise SandboxError(f"bwrap could not start: {os.read(self.err, 4096).decode(errors='replace').strip()}")
        raise SandboxError(f"bwrap did not set the sandbox up within {_SETUP_S:g} s")


def _options(step: view.Step, content: Callable[[bytes], str]) -> list[str]:
    """A step of the view in bwrap's words."""
    if step.kind == "tmpfs":
        return ["--perms", "1777", "--size", str(step.size), "--tmpfs", step.inside]
    if step.kind == "file":
        return ["--perms", "0644", "--file", content(os.fsencode(step.source)), step.inside]
    if step.kind == "folder":
        return ["--perms", "0755", "--dir", step.inside]
    word = {
        "bind": "--bind",
        "bind-read-only": "--ro-bind",
        "symlink": "--symlink",
        "proc": "--proc",
        "dev": "--dev",
        "seal": "--remount-ro",
    }[step.kind]
    return [word, step.source, step.inside] if step.source else [word, step.inside]
