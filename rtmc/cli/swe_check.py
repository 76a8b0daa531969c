"""`rtmc check-swe-tasks`: which tasks of a file can be trained on, on this machine."""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

from rtmc.cli.command import Command, Parser, UsageError, add_json, print_json
from rtmc.errors import unknown_name

# What `rtmc.gymenvs.swe.soundness` gives for a task; that room is reached only when the command runs.
Check = Any

_WHY = 300  # characters of a reason in the table; --json has it whole

_ABOUT = """Check SWE tasks before a training run: play the gold patch and play nothing, and grade both.

FILE   as `tasks=` of rtmc/SWE-v0: a file or folder of SWE-bench, SWE-Gym, SWE-smith, SWE-rebench or R2E-Gym records,
       or of tasks made by `rtmc make-swe-tasks`. TASK: ids of tasks in it; without them, all are checked.

A task is sound if the gold patch is paid 1.0 and doing nothing 0.0 in every run, and its tests do as the task says. A
row a task, as it is done: how many runs paid the gold patch and how many paid doing nothing (--runs 2: wanted are 2/2
and 0/2), tests that changed from run to run, tests that do not do as listed, seconds, and why it is unsound.

Usual reasons: the package has to be built or installed first, or its tests need what is not there (give the task a
`setup_command` or `python_packages`, or put a folder in which that is done into --repos under the task's id); the tests
pass without the fix; they lean on time, order or network. Exit status 1 if a task is unsound."""


def _arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the tasks")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="ids of the tasks to check (default: all)")
    parser.add_argument("--repos", metavar="DIR", help="folder of clones, bundles or prepared folders")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="of each of the two (default: 2)")
    parser.add_argument("--jobs", type=int, metavar="N", help="tasks checked at once (default: the CPUs)")
    parser.add_argument("--trusted", action="store_true", help="run the tests unisolated where no sandbox works")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    for name in ("runs", "jobs"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}")
    from rtmc.gymenvs.sandbox import SandboxError
    from rtmc.gymenvs.swe.formats import read_tasks
    from rtmc.gymenvs.swe.repos import Repos
    from rtmc.gymenvs.swe.soundness import check_tasks

    if arguments.repos is not None:
        Repos(arguments.repos)  # said once, not of every task
    tasks = {task.task_id: task for task in read_tasks(arguments.file)}
    for name in arguments.tasks:
        if name not in tasks:
            raise UsageError(unknown_name("task", name, tasks))
    wanted = [tasks[name] for name in dict.fromkeys(arguments.tasks)] or list(tasks.values())
    checks = check_tasks(
        wanted,
        jobs=len(os.sched_getaffinity(0)) if arguments.jobs is None else arguments.jobs,
        repos=arguments.repos,
        runs=arguments.runs,
        trusted=arguments.trusted,
    )
    done: list[Check] = []
    try:
        _follow(checks, done, [task.task_id for task in wanted], as_json=arguments.json)
    except SandboxError as error:
        raise UsageError(str(error)) from None
    except KeyboardInterrupt:
        print(f"rtmc check-swe-tasks: {len(done)} of {len(wanted)} tasks were checked", file=sys.stderr)
        raise
    unsound = sum(not check.sound for check in done)
    if arguments.json:
        print_json({"sound": len(done) - unsound, "unsound": unsound, "tasks": [check.to_json() for check in done]})
    else:
        print(f"{len(done) - unsound} of {len(done)} tasks are sound")
    return 1 if unsound else 0


def _follow(checks: Iterable[Check], done: list[Check], names: list[str], *, as_json: bool) -> None:
    """Takes the checks as they come. Their rows are the progress; where nobody sees these, a count on a terminal."""
    width, digits = min(48, max(map(len, names))), len(str(len(names)))
    counts = sys.stderr.isatty() and (as_json or not sys.stdout.isatty())
    if not as_json:
        head = f"{'task':<{width}} {'gold':>6} {'null':>6} {'flaky':>5} {'wrong':>5} {'s':>7}  why"
        print(f"{'':>{2 * digits + 1}}  {head}", flush=True)
    try:
        for check in checks:
            done.append(check)
            if not as_json:
                print(f"{len(done):>{digits}}/{len(names)}  {_row(check, width)}", flush=True)
            if counts:
                unsound = sum(not one.sound for one in done)
                print(f"\r{len(done)}/{len(names)} tasks, {unsound} unsound ", end="", file=sys.stderr, flush=True)
    finally:
        if counts and done:
            print(file=sys.stderr)


def _row(check: Check, width: int) -> str:
    gold, null = (f"{rewards.count(1.0)}/{len(rewards)}" if rewards else "-" for rewards in (check.gold, check.null))
    why = check.why if len(check.why) <= _WHY else f"{check.why[: _WHY - 3]}..."
    numbers = f"{gold:>6} {null:>6} {len(check.flaky):>5} {len(check.wrong):>5} {check.seconds:>7.1f}"
    return f"{check.task_id:<{width}} {numbers}  {why}".rstrip()


CHECK_SWE_TASKS = Command(
    "check-swe-tasks",
    "say which SWE tasks of a file can be graded on this machine",
    _arguments,
    _run,
    _ABOUT,
)
