"""SWE: steps through the tools, commands in the sandbox, forks and resets of a tree of 1,000 files, episodes at once.

The peer of an editor or search call is the same done by a process, as tools do that live in a container: python for
the editor, grep for the search; their results are compared with ours. The peer of a command is a plain shell without
isolation, and that of a fork and of a reset a copy of the tree. Notes below the table: percentiles of single steps, the
median of a command against the shell, and how many steps a second 1 to 16 episodes make together.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Case

from rtmc.gymenvs.swe.actions import ToolCall, write_action
from rtmc.gymenvs.swe.env import SWEEnv
from rtmc.gymenvs.swe.oracle import shell_action
from rtmc.gymenvs.swe.task import Embedded, SWETask

TESTS = ["tests/test_swe_env.py"]
NOTES: list[str] = []
FILES, LINES = 1000, 120
PLACE = "pkg/part0/mod3.py"

# What a tool that is a process does: read the arguments, do the work, print what is seen.
_VIEW = "import sys; p, a, b = sys.argv[1:]; print(''.join(open(p).readlines()[int(a) - 1 : int(b)]), end='')"
_EDIT = """import sys
path, old, new = sys.argv[1:]
text = open(path).read()
assert text.count(old) == 1
open(path, "w").write(text.replace(old, new))"""


def task(files: int = FILES) -> SWETask:
    """A tree of so many modules of 120 lines in folders of ten."""
    tree = {
        f"pkg/part{at // 10}/mod{at}.py": "".join(
            f"value_{at}_{line} = {line}  # of module {at}\n" for line in range(LINES)
        )
        for at in range(files)
    }
    return SWETask("bench/tree", "Nothing is wrong.", Embedded(tree), fail_to_pass=("tests/test_x.py::test_x",))


def call(tool: str, **arguments: str) -> str:
    return write_action(ToolCall(tool, arguments), "r2e")


def tool_cases(env: SWEEnv, root: Path, calls: int) -> Iterator[Case]:
    view = call("file_editor", command="view", path=f"/testbed/{PLACE}", view_range="[41, 60]")
    find = call("search", search_term="value_33_119", path="/testbed/pkg/part3")

    def edit_of(old: str, new: str) -> str:
        return call("file_editor", command="str_replace", path=f"/testbed/{PLACE}", old_str=old, new_str=new)

    there, back = edit_of("value_3_50 =", "value_3_fifty ="), edit_of("value_3_fifty =", "value_3_50 =")

    def viewed() -> list[str]:
        return [re.findall(r"value_\d+_\d+", env.step(view)[0]) for _ in range(calls)][-1]

    def viewed_by_process() -> list[str]:
        command = [sys.executable, "-c", _VIEW, str(root / PLACE), "41", "60"]
        shown = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(calls)]
        return re.findall(r"value_\d+_\d+", shown[-1])

    def searched() -> list[str]:
        return [re.findall(r"(\w+\.py) \(1 matches", env.step(find)[0]) for _ in range(calls)][-1]

    def searched_by_process() -> list[str]:
        command = ["grep", "-rlF", "value_33_119", str(root / "pkg/part3"), "--include=*.py"]
        done = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(calls)][-1]
        return [os.path.basename(line) for line in done.stdout.split()]

    def edited() -> bytes:
        for at in range(calls):
            env.step(back if at % 2 else there)
        return env.tree.read(PLACE)

    def edited_by_process() -> bytes:
        for at in range(calls):
            words = ["value_3_50 =", "value_3_fifty ="]
            subprocess.run([sys.executable, "-c", _EDIT, str(root / PLACE), *words[:: -1 if at % 2 else 1]], check=True)
        return (root / PLACE).read_bytes()

    differ = lambda ours, other: float(ours != other)  # noqa: E731 -- three cases share one line
    yield Case(
        f"swe, view of 20 lines, {calls} calls", {"step": viewed, "a python process": viewed_by_process}, agree=differ
    )
    yield Case(
        f"swe, search of a folder, {calls} calls",
        {"step": searched, "a grep process": searched_by_process},
        agree=differ,
    )
    yield Case(f"swe, edit, {calls} calls", {"step": edited, "a python process": edited_by_process}, agree=differ)


def command_case(env: SWEEnv, calls: int) -> Case:
    message = shell_action("true", "r2e")

    def ours() -> int:
        return [env.step(message)[-1]["exit_code"] for _ in range(calls)][-1]

    def plain() -> int:
        return [subprocess.run(["sh", "-c", "true"], capture_output=True).returncode for _ in range(calls)][-1]

    return Case(f"swe, the command `true`, {calls} calls", {"step": ours, "sh without a sandbox": plain})


def fork_cases(env: SWEEnv, root: Path, folder: Path) -> Iterator[Case]:
    env.step(call("file_editor", command="create", path="/testbed/pkg/new.py", file_text="x = 1"))
    moment = env.snapshot()

    def fork() -> None:
        env.snapshot()
        env.restore(moment)

    def copied() -> None:
        shutil.copytree(root, folder / "copy")
        shutil.rmtree(folder / "copy")

    yield Case(f"swe, fork of {FILES:,} files: snapshot and restore", {"env": fork, "copy of the tree": copied})
    yield Case(f"swe, reset of {FILES:,} files", {"env": lambda: env.reset() and None, "copy of the tree": copied})


def percentiles(env: SWEEnv, name: str, message: str, calls: int) -> None:
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        env.step(message)
        taken.append((time.perf_counter() - began) * 1e3)
    p50, p95 = statistics.median(taken), statistics.quantiles(taken, n=20)[18]
    NOTES.append(f"{name}: p50 {p50:.2f} ms, p95 {p95:.2f} ms ({calls} steps)")


def episodes(number: int, turns: int) -> float:
    """Steps a second of so many episodes at once: views, edits, and a command every fourth turn."""
    envs = [SWEEnv(tasks=[task()], max_turns=10**9) for _ in range(number)]

    def play(env: SWEEnv) -> int:
        for at in range(turns):
            if at % 4 == 3:
                env.step(shell_action("true", "r2e"))
            elif at % 2:
                text = f"value_3_50 = {at}"
                env.step(call("file_editor", command="create", path=f"/testbed/pkg/new{at}.py", file_text=text))
            else:
                env.step(call("file_editor", command="view", path=f"/testbed/{PLACE}", view_range="[1, 20]"))
        return turns

    try:
        for env in envs:
            env.reset()
        with ThreadPoolExecutor(number) as pool:
            began = time.perf_counter()
            done = sum(pool.map(play, envs))
            return done / (time.perf_counter() - began)
    finally:
        for env in envs:
            env.close()


def cases(quick: bool) -> Iterator[Case]:
    NOTES.clear()
    calls = 10 if quick else 40
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["RTMC_CACHE"] = str(folder / "cache")
        env = SWEEnv(tasks=[task()], max_turns=10**9)
        try:
            env.reset()
            root = folder / "plain"
            for name, text in task().source.files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            yield from tool_cases(env, root, calls)
            yield command_case(env, calls)
            yield from fork_cases(env, root, folder)
            env.reset()
            percentiles(
                env,
                "view",
                call("file_editor", command="view", path=f"/testbed/{PLACE}", view_range="[41, 60]"),
                5 * calls,
            )
            percentiles(env, "execute_bash true", shell_action("true", "r2e"), 2 * calls)
            NOTES.append(f"sandbox {env._sandbox.backend}, tree by {env.tree.layer}")
        finally:
            env.close()
        for number in (1, 4, 16):
            NOTES.append(f"{number:>2} episodes at once: {episodes(number, 12 if quick else 40):,.0f} steps a second")
