"""Whether tasks can be played and graded on this machine, before a run trains on them: `rtmc check-swe-tasks`.

A task is sound if the gold patch is paid 1.0 and doing nothing 0.0, each time, and every listed test does as the task
says. It is not where a package has to be built or installed here first, where its tests want what is not installed,
where they pass without the fix (whoever does nothing is paid), or where they change their mind from run to run.

    for check in check_tasks(read_tasks("tasks.jsonl"), repos="clones/", jobs=4):
        print(check.task_id, check.sound, check.why)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from rtmc.gymenvs.swe.grading import Verdict, grade
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.repository import Prepared, prepare
from rtmc.gymenvs.swe.task import SWETask
from rtmc.gymenvs.swe.tree import WorkTree

__all__ = ["TaskCheck", "check_task", "check_tasks"]


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What a task is worth here.

    Attributes:
        task_id: of the task.
        gold, null: the reward of the gold patch and of doing nothing, run by run; empty where nothing could be run.
        flaky: tests that change from run to run on the same tree.
        wrong: tests that always do the same, but not what the task says: of `fail_to_pass` they fail with the fix or
            pass without it, of `pass_to_pass` they fail with or without it.
        why: what makes it unsound, the weightiest first; "" where it is sound.
        seconds: that the check took.
    """

    task_id: str
    gold: tuple[float, ...]
    null: tuple[float, ...]
    flaky: tuple[str, ...]
    wrong: tuple[str, ...]
    why: str
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether it can be trained on as it is."""
        return not self.why

    def to_json(self) -> dict[str, Any]:
        """A JSON object of all of it."""
        return {**asdict(self), "sound": self.sound}


def check_task(
    task: SWETask,
    *,
    repos: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    runs: int = 2,
    backend: str = "auto",
    trusted: bool = False,
) -> TaskCheck:
    """Grades a task's gold patch and its untouched tree `runs` times each, with another hash seed in each run.

    What is wrong with the task is told in the answer, be it that it cannot be prepared.

    Args:
        repos: as `rtmc/SWE-v0` takes it. backend, trusted: the sandbox, see `open_sandbox`.

    Raises:
        ValueError: `runs` is below 1. SandboxError: no sandbox works here.
    """
    if runs < 1:
        raise ValueError(f"check_task: runs={runs}; at least 1 is needed")
    began = time.monotonic()
    try:
        prepared = prepare(task, repos=repos, backend=backend, trusted=trusted)
        null, gold = _verdicts(prepared, runs, backend, trusted)
    except (ValueError, OSError) as error:
        why = " ".join(str(error).split())
        return TaskCheck(task.task_id, (), (), (), (), why or type(error).__name__, time.monotonic() - began)
    flaky = [*dict.fromkeys(test for verdicts in (gold, null) for test in _changing(verdicts))]
    wrong = [test for test in _wrong(prepared.task, gold, null) if test not in flaky]
    return TaskCheck(
        task.task_id,
        tuple(one.reward for one in gold),
        tuple(one.reward for one in null),
        tuple(flaky),
        tuple(wrong),
        "; ".join(_reasons(gold, null, flaky, wrong)),
        time.monotonic() - began,
    )


def check_tasks(tasks: Iterable[SWETask], *, jobs: int = 1, **options: Any) -> Iterator[TaskCheck]:
    """Checks tasks side by side, each in a process of its own, and gives each as it is done.

    Closing the iterator, or an exception such as KeyboardInterrupt within it, ends the checks that have begun; their
    sandboxes and trees are cleared away first. A script that calls this guards its own work by
    `if __name__ == "__main__":`, as `multiprocessing` wants it.

    Args:
        jobs: how many at once. options: as `check_task` takes them.

    Raises:
        ValueError: `jobs` is below 1. Else as `check_task`; the first one ends it all.
    """
    if jobs < 1:
        raise ValueError(f"check_tasks: jobs={jobs}; at least 1 is needed")
    stream = iter(tasks)
    running: dict[Connection, tuple[Any, str]] = {}
    try:
        while True:
            while len(running) < jobs and (task := next(stream, None)) is not None:
                process, answers = _started(task, options)
                running[answers] = process, task.task_id
            if not running:
                return
            ready = wait(list(running))
            for answers in [one for one in running if one in ready]:
                try:
                    answer = answers.recv()
                except EOFError:
                    answer = None
                process, name = running.pop(answers)
                process.join()
                answers.close()
                if isinstance(answer, Exception):
                    raise answer
                died = f"the process that checked it ended with exit code {process.exitcode}"
                yield answer or TaskCheck(name, (), (), (), (), died, 0.0)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _started(task: SWETask, options: Mapping[str, Any]) -> tuple[Any, Connection]:
    """A process that checks the task, and where its answer comes."""
    context = multiprocessing.get_context("spawn")
    answers, sending = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(task, dict(options), sending))
    # Ctrl-C reaches all processes of a terminal: the parent acts on it. A child that has no handler yet must not.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sending.close()
    return process, answers


def _check(task: SWETask, options: dict[str, Any], sending: Connection) -> None:
    """The life of a child. It ends by `terminate` as by an exception, so that what it opened is closed."""
    signal.signal(signal.SIGTERM, _stop)
    # Functions, not SIG_IGN, and no mask: the tests inside a sandbox would inherit both.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            sending.send(check_task(task, **options))
        except Exception as error:
            sending.send(error)


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # the clearing away is not interrupted
    raise KeyboardInterrupt


def _verdicts(prepared: Prepared, runs: int, backend: str, trusted: bool) -> tuple[list[Verdict], list[Verdict]]:
    """Of the untouched tree, and of the tree with the gold patch; none where there is no gold patch."""
    task = prepared.task
    with WorkTree(prepared.base) as tree:
        snapshots = [tree.snapshot()]
        if task.patch:
            try:
                apply_patch(tree, task.patch)
            except RuntimeError as error:  # no git
                raise ValueError(str(error)) from None
            snapshots.append(tree.snapshot())
    found: list[list[Verdict]] = [[], []]
    for number in range(runs):
        seeded = task.replace(env={"PYTHONHASHSEED": str(number), **task.env})
        for kept, snapshot in zip(found, snapshots, strict=False):
            verdict = grade(seeded, prepared.base, snapshot, runtime=prepared.runtime, backend=backend, trusted=trusted)
            kept.append(verdict)
    return found[0], found[1]


def _outcomes(verdict: Verdict) -> dict[str, bool]:
    return {**verdict.pass_to_pass, **verdict.fail_to_pass}


def _changing(verdicts: Sequence[Verdict]) -> list[str]:
    """Tests whose outcome differs between verdicts on one tree."""
    outcomes = [_outcomes(one) for one in verdicts]
    return [test for test in (outcomes[0] if outcomes else ()) if len({one[test] for one in outcomes}) > 1]


def _wrong(task: SWETask, gold: Sequence[Verdict], null: Sequence[Verdict]) -> list[str]:
    found = [test for one in gold[:1] for test, well in _outcomes(one).items() if not well]
    if not task.expected:  # a map of outcomes says nothing of the tree before the fix
        found += [test for test, well in null[0].fail_to_pass.items() if well]
        found += [test for test, well in null[0].pass_to_pass.items() if not well]
    return list(dict.fromkeys(found))


def _reasons(
    gold: Sequence[Verdict], null: Sequence[Verdict], flaky: Sequence[str], wrong: Sequence[str]
) -> Iterator[str]:
    if not gold:
        yield "there is no gold patch: nothing says that it can be solved here"
    if failed := next((one for one in gold if one.reward < 1), None):
        yield f"the gold patch is not paid: {failed.reason}"
    if any(one.reward > 0 for one in null):
        yield "doing nothing is paid: the tests pass without the fix"
    if flaky:
        yield f"{len(flaky)} tests change from run to run: {flaky[0]}"
    failing = {test for one in gold[:1] for test, well in _outcomes(one).items() if not well}
    early = {test for test, well in null[0].fail_to_pass.items() if well} - failing
    kinds = {
        "of fail_to_pass pass without the fix": [test for test in wrong if test in early],
        "of pass_to_pass fail without the fix": [test for test in wrong if not null[0].pass_to_pass.get(test, True)],
    }
    for what, tests in kinds.items():
        if tests:
            yield f"{len(tests)} {what}: {tests[0]}"
