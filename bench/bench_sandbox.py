"""Starting a command: each backend that works here, and util-linux's `unshare` with bare namespaces, over plain `sh`.

The peer is `subprocess.run(["sh", "-c", "true"])`. A sandbox is opened once, as for an episode, and one command is
timed; the notes below the table say how many milliseconds each adds in the median, what opening and closing one costs,
and how many commands a second 16 threads start on 16 sandboxes.

The kernel takes namespaces down after their command has ended, and on a small machine that slows whatever comes next,
by half or more. So no backend is timed in turns with another one, and `plain` not with `unshare` either: the table and
the notes time each with the same peers.
"""

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measure import Case, seconds_of

from rtmc.gymenvs.sandbox import Sandbox, open_sandbox, probe_sandboxes

TESTS = ["tests/test_sandbox.py", "tests/test_sandbox_parts.py"]
NOTES: list[str] = []
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net"]


def succeeds(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def started(sandbox: Sandbox) -> Callable[[], None]:
    def work() -> None:
        done = sandbox.run("true")
        if done.exit_code != 0:
            raise RuntimeError(f"{sandbox.backend}: {done}")

    return work


def opened(backend: str, folder: str) -> Sandbox:
    return open_sandbox(Path(folder), backend=backend, trusted=backend == "plain")


def opening(backend: str, folder: str) -> str:
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        with opened(backend, folder) as sandbox:
            sandbox.run("true")
        taken.append((time.perf_counter() - began) * 1e3)
    return f"{backend}: opening, one command, closing: {statistics.median(taken):.1f} ms"


def at_once(backend: str, folder: str, number: int, each: int) -> str:
    with ExitStack() as stack, ThreadPoolExecutor(number) as pool:
        boxes = [stack.enter_context(opened(backend, folder)) for _ in range(number)]
        began = time.perf_counter()
        list(pool.map(lambda box: [box.run("true") for _ in range(each)], boxes))
        rate = number * each / (time.perf_counter() - began)
    return f"{backend}: {number} sandboxes at once start {rate:.0f} commands a second"


def cases(quick: bool) -> Iterator[Case]:
    NOTES.clear()
    rounds = 15 if quick else 60
    backends = [name for name, probe in probe_sandboxes().items() if probe.works]
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], Any]] = {
            name: started(stack.enter_context(opened(name, folder))) for name in backends
        }
        peers: dict[str, Callable[[], Any]] = {"sh": lambda: succeeds(["sh", "-c", "true"])}
        if shutil.which("unshare"):
            peers["util-linux unshare"] = lambda: succeeds([*NAMESPACES, "sh", "-c", "true"])
        beside = {name: {name: work[name], **(peers if name != "plain" else {"sh": peers["sh"]})} for name in backends}
        for name in backends:
            yield Case(f"sandbox, one command, {name}", beside[name])
        for name in backends:
            taken = {one: statistics.median(some) for one, some in seconds_of(beside[name], "cpu", rounds).items()}
            over = (taken[name] - taken["sh"]) * 1e3
            NOTES.append(f"{name}: {over:.1f} ms over sh ({taken['sh'] * 1e3:.1f} ms)")
        for name in backends:
            NOTES.append(opening(name, folder))
            NOTES.append(at_once(name, folder, 16, 3 if quick else 10))
