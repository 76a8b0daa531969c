"""What the sandbox tests share: a sandbox of each backend that works here, and the search for what a command left."""

import contextlib
import os
import secrets
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtmc.gymenvs.sandbox import Completed, Limits, Sandbox, open_sandbox, probe_sandboxes
from rtmc.gymenvs.swe.folders import remove_folder

BACKENDS = ("bwrap", "unshare")
TOKEN = "SANDBOX_TEST_TOKEN"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"


NEEDS_SANDBOX = pytest.mark.skipif(
    not any(probe_sandboxes()[backend].works for backend in BACKENDS),
    reason="no sandbox works here: " + "; ".join(f"{name}: {probe_sandboxes()[name].why}" for name in BACKENDS),
)


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


def emptied(tree: Path) -> None:
    """Removes all that is in a folder, whatever its permissions."""
    folder = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_folder(folder, entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)


class Shared:
    """Sandboxes that the tests of a file share, one a backend: each test finds the tree empty and leaves nothing alive.

    What a test needs a sandbox of its own for: other options, closing it, other bounds.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self._boxes: dict[str, tuple[Sandbox, str]] = {}

    @contextlib.contextmanager
    def box(self, backend: str) -> Iterator[Sandbox]:
        need(backend)
        if backend not in self._boxes:
            tree, token = self._folder / backend / "tree", secrets.token_hex(8)
            tree.mkdir(parents=True)
            options = self._options | {"env": {**self._options.get("env", {}), TOKEN: token}}
            options["trusted"] = backend == "plain"
            self._boxes[backend] = open_sandbox(tree, backend=backend, **options), token
        sandbox, token = self._boxes[backend]
        tree = self._folder / backend / "tree"
        emptied(tree)
        tree.chmod(0o755)
        yield sandbox
        assert left_behind(token) == []
        done = sandbox.run("echo still here; echo fine > file; cat file")
        assert (done.exit_code, done.stdout, done.stopped) == (0, "still here\nfine\n", None)

    def close(self) -> None:
        for sandbox, _ in self._boxes.values():
            sandbox.close()


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
