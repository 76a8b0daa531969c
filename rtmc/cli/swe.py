"""`rtmc make-swe-tasks`: packages with tests become tasks with bugs."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtmc.cli.command import Command, Parser, UsageError, add_json, print_json

# What `rtmc.gymenvs.swe.mutate.make` gives for a package; that room is reached only when the command runs.
Made = Any

_ABOUT = """Make SWE tasks: bugs put into packages that have tests, kept where the tests notice them.

PACKAGE   the name of a package on the registry (`toolz`, `toolz==1.2.0`), whose source archive is fetched; or a local
          folder, written with a slash (`./mine`). Code is left as it stands but for the bug: an operator, comparison,
          constant, condition, statement, argument, index, variable, return, exception type, or two of these at once.

A mutant becomes a task if the suite, which two clean runs show to be stable, still runs to its end, at least one test
fails in two runs, and no more than 80 % of them do. The files of the failing tests are hidden from the agent. All tests
run in a sandbox. Every piece of code in a task's text has been seen to fail with the bug and to run without it; a
mutant that cannot be shown so is rejected, and so is one whose right code the grader does not pay. The run may be
stopped at any time: the same command goes on from OUT.journal; two at once with one OUT are refused. OUT is written
anew, which is refused where it holds tasks of packages that are not named."""
_CLEAN_S = 300.0


def _arguments(parser: Parser) -> None:
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="name, name==version, or ./folder")
    parser.add_argument("--version", default="", metavar="V", help="of the one package that is named without a version")
    parser.add_argument("--count", type=int, default=20, metavar="N", help="tasks of each package (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice of mutants (default: 0)")
    parser.add_argument("-o", "--output", default="tasks.jsonl", metavar="OUT", help="default: tasks.jsonl")
    parser.add_argument("--jobs", type=int, metavar="N", help="suites run at once (default: the CPUs)")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds for a mutant's suite (default: 5 clean runs, at least 10)"
    )
    parser.add_argument(
        "--clean-timeout",
        type=float,
        default=_CLEAN_S,
        metavar="S",
        help=f"seconds for each run of the suite without a bug, of which there are two or more (default: {_CLEAN_S:g})",
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="mutants judged at most, a package (default: all there are)"
    )
    parser.add_argument(
        "--with", dest="needs", action="append", default=[], metavar="NAME", help="an installed package the tests need"
    )
    parser.add_argument("--trusted", action="store_true", help="run the tests unisolated where no sandbox works")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    words = list(dict.fromkeys(arguments.packages))
    if arguments.version and len(words) > 1:
        raise UsageError("--version goes with one package; write name==version for several")
    for name, seconds in (("--timeout", arguments.timeout), ("--clean-timeout", arguments.clean_timeout)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{name} must be above 0 seconds and finite, got {seconds:g}")
    from rtmc.gymenvs.swe.mutate.holding import held
    from rtmc.gymenvs.swe.mutate.make import Settings

    settings = Settings(
        count=arguments.count,
        seed=arguments.seed,
        jobs=len(os.sched_getaffinity(0)) if arguments.jobs is None else arguments.jobs,
        limit_s=arguments.timeout,
        most=arguments.most,
    )
    output = Path(arguments.output)
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {str(output.parent)!r} for {output.name}")
    with held(output, f"rtmc make-swe-tasks {' '.join(words)}"):
        return _make(output, words, arguments, settings)


def _make(output: Path, words: list[str], arguments: argparse.Namespace, settings: Any) -> int:
    """The work, while no other run has the output."""
    from rtmc.gymenvs.swe.mutate.journal import Journal
    from rtmc.gymenvs.swe.mutate.make import write_tasks

    kept = output.with_name(f"{output.name}.journal")
    if output.exists() and not kept.exists():
        raise UsageError(f"{output} is there and was not begun by this command (no {kept.name}); name another with -o")
    before = _before(output, words, arguments.version)
    made: list[Made] = []
    failed: dict[str, str] = {}
    try:
        with Journal(kept) as journal, _progress(arguments.clean_timeout) as progress:
            for word in words:
                try:
                    made.append(_one(word, arguments, settings, journal, progress))
                except ValueError as error:
                    failed[word] = " ".join(str(error).split())
    except KeyboardInterrupt:
        print(f"rtmc make-swe-tasks: the same command goes on from {kept}", file=sys.stderr)
        raise
    # What an earlier run made of a package that fails now is not lost for it.
    left = [task for word in failed for task in before[word]]
    count = write_tasks(output, [*(task for one in made for task in one.tasks), *left]) if made else 0
    if arguments.json:
        document: dict[str, Any] = {"tasks": count, "output": str(output) if made else None, "journal": str(kept)}
        print_json(document | {"packages": [one.to_json() for one in made], "failed": failed})
    else:
        for line in _report(made):
            print(line)
        if made:
            again = f", {len(left)} of them of an earlier run" if left else ""
            print(f"{count} tasks written to {output}{again} (journal: {kept})")
    for reason in failed.values():
        print(f"rtmc make-swe-tasks: {reason}", file=sys.stderr)
    return 2 if failed else 0


def _before(output: Path, words: list[str], version: str) -> dict[str, list[Any]]:
    """The tasks that the output holds, by the word of their package. Raises UsageError where no word is theirs."""
    from rtmc.gymenvs.swe.formats import read_tasks
    from rtmc.gymenvs.swe.mutate.packages import check_named, is_of

    found: dict[str, list[Any]] = {word: [] for word in words}
    if not output.exists() or output.stat().st_size == 0:
        return found
    for task in read_tasks(output, "rtmc"):
        word = next((word for word in words if is_of(task.source, word, version)), None)
        if word is None:
            for named in words:
                check_named(named, version)  # a slip in a word is the nearer fault
            raise UsageError(
                f"{output} holds tasks of another package ({task.task_id}), which would be lost; name another file "
                f"with -o, or all its packages"
            )
        found[word].append(task)
    return found


def _one(word: str, arguments: argparse.Namespace, settings: Any, journal: Any, progress: Any) -> Made:
    from rtmc.gymenvs.swe.mutate.make import make_tasks
    from rtmc.gymenvs.swe.mutate.packages import opened
    from rtmc.gymenvs.swe.mutate.validate import make_bench
    from rtmc.gymenvs.swe.repository import cache_folder
    from rtmc.gymenvs.swe.runtime import shown_distributions

    with opened(word, cache_folder() / "sdists", arguments.version) as (package, origin):
        bench = make_bench(package, arguments.needs, trusted=arguments.trusted, limit_s=arguments.clean_timeout)
        if _plain_name(package.name) in shown_distributions(("pytest", *arguments.needs)):
            print(
                f"rtmc make-swe-tasks: {package.name} is among what its tests run with: the installed copy can be read "
                f"in the sandbox, and shows how the code should be",
                file=sys.stderr,
            )
        return make_tasks(bench, origin, settings, journal, progress(package.title), _stopping)


def _plain_name(name: str) -> str:
    """A distribution's name as packaging compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _stopping(limit_s: float) -> None:
    print(f"rtmc make-swe-tasks: stopping; runs that have begun end within {limit_s:.0f} s", file=sys.stderr)


@contextmanager
def _progress(clean_s: float) -> Iterator[Callable[[str], Callable[[Made, int], None] | None]]:
    """A bar a package on standard error while a terminal watches and rich is installed; else nothing."""
    if not sys.stderr.isatty():
        yield lambda title: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:  # a bar is a comfort, and its package an extra
        yield lambda title: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(title: str) -> Callable[[Made, int], None]:
            bar = bars.add_task(title, total=None, told=f"clean runs, at most {clean_s:g} s each")
            return lambda made, wanted: bars.update(bar, completed=len(made.tasks), total=wanted, told=_told(made))

        yield begin


def _told(made: Made) -> str:
    survived = made.counts["survived"]
    rejected = made.killed - made.counts["accepted"]
    return f"{made.mutants} mutants: {made.killed} killed, {survived} survived, {rejected} of the killed rejected"


def _report(made: list[Made]) -> Iterator[str]:
    """A line a package, and why killed mutants made no task."""
    for one in made:
        base = one.baseline
        left = f", {len(base.failing)} fail or are skipped" if base.failing else ""
        flaky = f", {len(base.flaky)} flaky: {', '.join(base.flaky[:3])}" if base.flaky else ""
        yield f"{one.package}: {len(one.tasks)} tasks; {len(base.stable)} stable tests{left}{flaky}"
        yield f"  {_told(one)}"
        reasons = one.to_json()["rejected"]
        if reasons:
            yield "  rejected: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        for why, count in one.refused.most_common(3):
            yield f"  the grader, of {count}: {why}"
        for kind, counts in sorted(one.by_kind.items()):
            total, kept = sum(counts.values()), counts["accepted"]
            yield f"  {kind:<18}{total:>5} made{total - counts['survived']:>5} killed{kept:>5} tasks"


MAKE_SWE_TASKS = Command(
    "make-swe-tasks",
    "make SWE tasks by putting bugs into packages that have tests",
    _arguments,
    _run,
    _ABOUT,
)
