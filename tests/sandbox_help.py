"""What the sandbox tests share: a sandbox of each backend that works here, and the search for what a command left."""

import contextlib
import os
import secrets
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtmc.gymenvs.sandbox import Completed, Limits, Sandbox, open_sandbox, probe_sandboxes

BACKENDS = ("bwrap", "unshare")
TOKEN = "SANDBOX_TEST_TOKEN"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"


def need(backend: str) -> None:
    """Skips where the backend does not work on this machine, with its own reason."""
    probe = probe_sandboxes()[backend]
    if not probe.works:
        pytest.skip(f"the sandbox backend {backend} does not work here: {probe.why}")


def left_behind(token: str, patience_s: float = 0.0) -> list[str]:
    """Command lines of the processes, seen from the machine, that carry the token in their environment."""
    mark, until = f"{TOKEN}={token}".encode(), time.monotonic() + patience_s
    while True:
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        if not found or time.monotonic() >= until:
            return found
        time.sleep(0.02)


@contextlib.contextmanager
def contained(backend: str, tree: Path, limits: Limits | None = None) -> Iterator[Sandbox]:
    """A sandbox around an empty tree; afterwards it must still work and nothing of its processes be left."""
    need(backend)
    tree.mkdir()
    token = secrets.token_hex(8)
    with open_sandbox(tree, backend=backend, limits=limits, env={TOKEN: token}) as sandbox:
        yield sandbox
        assert left_behind(token) == []
        done = sandbox.run("echo still here; echo fine > file; cat file")
        assert (done.exit_code, done.stdout, done.stopped) == (0, "still here\nfine\n", None)


def python(box: Sandbox, source: str, limits: Limits | None = None) -> Completed:
    """Runs a Python program inside, given as an argument: no file of it lies in the tree."""
    return box.run([PYTHON, "-c", textwrap.dedent(source)], limits=limits)
