"""Whether a mutant makes a task: the package's own tests before and after, each run in a sandbox of its own.

A suite is measured by two clean runs. Its stable tests pass in both; one that passes in only one of them is flaky and
left out with those that fail. A mutant is kept if

- its suite runs to the end, within the limit, and every file is collected;
- at least one stable test fails, in each of two runs (those are FAIL_TO_PASS; PASS_TO_PASS pass in both);
- no more than `MAX_SHARE` of the stable tests fail: where nearly everything breaks, there is nothing to look for;
- there is a text for it (`describe`), and the grader pays the right code and nothing else (`make`).

Otherwise it is told by one of `REJECTIONS`, or has survived: no test noticed it, which is the case for every mutant
that means the same as the original.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rtmc.gymenvs.sandbox import Limits, open_sandbox
from rtmc.gymenvs.swe import treefiles
from rtmc.gymenvs.swe.grading.report import TestReport
from rtmc.gymenvs.swe.grading.run import run_tests
from rtmc.gymenvs.swe.mutate import observe, replay
from rtmc.gymenvs.swe.mutate.layout import Package
from rtmc.gymenvs.swe.mutate.mutants import Mutant
from rtmc.gymenvs.swe.runtime import Runtime, python_runtime

MAX_SHARE = 0.8
ACCEPTED, SURVIVED = "accepted", "survived"
TIMEOUT, COLLECTION, CRASH = "timeout", "collection error", "crash"
NEARLY_ALL, UNSTABLE, MISSING = "nearly all tests fail", "unstable", "tests missing"
GIVES_AWAY, UNDESCRIBED = "the text would give it away", "not describable"
HIDES = "one site hides the other"
NOT_PAID, UNSOUND = "the grader does not accept the right code", "the grader finds the task unsound"
REJECTIONS = (
    *(TIMEOUT, COLLECTION, CRASH, NEARLY_ALL, UNSTABLE, MISSING),
    *(GIVES_AWAY, UNDESCRIBED, HIDES, NOT_PAID, UNSOUND),
)
CLEAN_S = 300.0

INSIDE = "/testbed"
_OBSERVER = "/opt/rtmc-observe"
_MARKED = re.compile(r"(E|FAILED|ERROR|\w*Error:|\w*Exception:)[ :]")
_RULE = re.compile(r"[=_-]{3,}.*[=_-]{3,}$")  # a heading, or the count at the end
_WITHOUT_OPTIONS = "python -m pytest -rA -o addopts="


class Stopped(RuntimeError):
    """A run was to begin after `Bench.stop` was set."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs the tests of one package.

    runtime: the Python inside. backend, trusted: of the sandbox, see `open_sandbox`. limit_s: seconds for one run; the
    clean runs get it as it is, the mutants' limit is set by what those took. stop: once it is set, no run begins.
    needs: the distributions in the runtime that the tests need beside pytest.
    """

    package: Package
    runtime: Runtime
    backend: str = "auto"
    trusted: bool = False
    limit_s: float = CLEAN_S
    command: str = ""
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    needs: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        inner = [f"{INSIDE}/src", INSIDE] if (self.package.root / "src").is_dir() else [INSIDE]
        # One order of sets and dicts of strings, so that a mutant's two runs can be compared.
        return {"PYTHONPATH": os.pathsep.join(inner), "PYTHONHASHSEED": "0"}

    @contextmanager
    def tree(self, files: Mapping[str, bytes]) -> Iterator[Path]:
        """A copy of the package with some files replaced. Raises Stopped."""
        self.check_not_stopped()
        with treefiles.scratch() as folder:
            tree = folder / "tree"
            treefiles.copy_folder(self.package.root, tree)
            for path, data in files.items():
                (tree / path).write_bytes(data)
            yield tree

    def check_not_stopped(self) -> None:
        """Raises Stopped once no run is to begin."""
        if self.stop.is_set():
            raise Stopped("no run begins any more")

    def run(self, files: Mapping[str, bytes]) -> TestReport:
        """The whole suite on the package with some files replaced."""
        with self.tree(files) as tree:
            return run_tests(
                tree,
                self.package.tests,
                runtime=self.runtime,
                command=self.command,
                inside=INSIDE,
                backend=self.backend,
                trusted=self.trusted,
                limits=Limits(wall_s=self.limit_s, cpu_s=max(1, int(2 * self.limit_s))),
                env=self.env,
            )

    def observe(
        self, files: Mapping[str, bytes], tests: Sequence[str], functions: Sequence[tuple[str, int, int]]
    ) -> list[dict[str, Any]]:
        """What failing tests see, as `observe` notes it; [] where the run came to no end."""
        with self.tree(files) as tree:
            place = tree.with_name("observe")
            place.mkdir(mode=0o755)
            shutil.copyfile(Path(__file__).with_name("observe.py"), place / "rtmc_observe.py")
            env = self.env
            env["PYTHONPATH"] += os.pathsep + _OBSERVER
            env["RTMC_OBSERVED"] = json.dumps(list(functions))
            env["RTMC_PACKAGE"] = json.dumps([source.name for source in self.package.modules])
            options = ["-p", "rtmc_observe", "-o", "addopts=", "-vv", "--tb=no", "-p", "no:cacheprovider"]
            command = [self.runtime.python, "-m", "pytest", *options, *tests]
            found = self._said(tree, command, observe.MARK, self.limit_s, env, readable=((place, _OBSERVER),))
        # The code under test shares the output, so what is read there may be anything.
        return [note for note in found if isinstance(note, dict) and set(observe.FIELDS) <= set(note)]

    def replay(self, files: Mapping[str, bytes], pieces: Sequence[str], hidden: Sequence[str]) -> list[str | None]:
        """How pieces of code end on the package with some files replaced and some gone, as `replay` says it."""
        with self.tree(files) as tree:
            for path in hidden:
                treefiles.remove(tree / path)
            command = [self.runtime.python, "-c", Path(replay.__file__).read_text(encoding="utf-8")]
            limit = self.limit_s + replay.LIMIT_S
            found = self._said(tree, command, replay.MARK, limit, self.env, json.dumps(list(pieces)).encode())
        whole = len(found) == len(pieces) and all(one is None or isinstance(one, str) for one in found)
        return found if whole else [None] * len(pieces)

    def _said(
        self,
        tree: Path,
        command: Sequence[str],
        mark: str,
        limit_s: float,
        env: Mapping[str, str],
        stdin: bytes = b"",
        readable: Sequence[tuple[Path, str]] = (),
    ) -> list[Any]:
        """The list that a command prints in its last line with the mark; [] where there is none."""
        runtime = self.runtime
        with open_sandbox(
            tree,
            inside=INSIDE,
            readable=(*runtime.readable, *readable),
            hidden=runtime.hidden,
            path=runtime.path,
            env={**dict(runtime.env), **env},
            backend=self.backend,
            trusted=self.trusted,
            limits=Limits(wall_s=limit_s, cpu_s=max(1, int(2 * limit_s)), output_bytes=8 << 20),
        ) as sandbox:
            done = sandbox.run(command, stdin=stdin)
        lines = [line for line in done.stdout.splitlines() if line.startswith(mark)]
        try:
            found = json.loads(lines[-1].removeprefix(mark)) if lines else []
        except ValueError:
            return []
        return found if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Baseline:
    """The suite without a bug.

    stable: ids of tests that pass in both clean runs. flaky: that pass in one. failing: that pass in none, skipped
    ones included. seconds: of the slower run. limit_s: for a mutant's run. command: "" = a plain call of pytest.
    """

    stable: tuple[str, ...]
    flaky: tuple[str, ...]
    failing: tuple[str, ...]
    seconds: float
    limit_s: float
    command: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a mutant. status: ACCEPTED, SURVIVED or one of REJECTIONS. flipped: how many stable tests failed
    in the first run."""

    status: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    flipped: int = 0
    seconds: float = field(default=0.0, compare=False)


def make_bench(
    package: Package, needs: Sequence[str] = (), backend: str = "auto", trusted: bool = False, limit_s: float = CLEAN_S
) -> Bench:
    """A bench with pytest and the named installed distributions. Raises ValueError where one is not installed."""
    for name in ("pytest", *needs):
        try:
            importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):  # ValueError: an empty name
            why = f"its tests need {name!r}, which is not installed here by that name"
            raise ValueError(f"{package.title}: {why} (pip install NAME, and name it without a version)") from None
    runtime = python_runtime(("pytest", *needs))
    return Bench(package, runtime, backend, trusted, limit_s, needs=tuple(needs))


def measure(bench: Bench, limit_s: float | None = None) -> tuple[Bench, Baseline]:
    """Two clean runs, and one with all modules broken; gives the bench set up for mutants.

    limit_s: for a mutant's run; None = five times the slower clean run, at least 10 s.

    Raises:
        ValueError: the suite cannot be run, has no stable test, or passes without the package's code: then it runs a
            copy that is installed somewhere. The message ends with what was printed.
    """
    title = bench.package.title
    bench, first = _first_run(bench)
    if first.stopped is not None:
        where = f" in {first.running}" if first.running else ""
        raise ValueError(
            f"{title}: the clean run of its tests was stopped{where}: {first.stopped} ({first.seconds:.0f} s of the "
            f"{bench.limit_s:g} s that a clean run may take)"
        )
    second = bench.run({})
    passed = [[test for test, result in run.results.items() if result.passed] for run in (first, second)]
    stable = tuple(test for test in passed[0] if test in set(passed[1]))
    if not stable:
        errors = [f"{file or 'pytest'}: {telling(text)}" for file, text in first.collection_errors.items()]
        said = errors[0] if errors else telling(first.log)
        raise ValueError(f"{title}: none of its tests passes in two clean runs: {said or 'nothing was printed'}")
    flaky = tuple(sorted(set(passed[0]) ^ set(passed[1])))
    known = dict.fromkeys([*first.results, *second.results])
    failing = tuple(test for test in known if test not in set(stable) | set(flaky))
    slower = max(first.seconds, second.seconds)
    limit = limit_s if limit_s is not None else max(10.0, 5 * slower)
    return replace(bench, limit_s=limit), Baseline(stable, flaky, failing, slower, limit, bench.command)


def telling(log: str, most: int = 300) -> str:
    """What a log says of failures, in one line of whole lines: those marked as such, else its last ones."""
    lines = [" ".join(line.split()) for line in log.splitlines()]
    lines = [line for line in lines if re.search(r"\w", line) and not _RULE.match(line)]
    marked = [line for line in lines if _MARKED.match(line)]
    kept: list[str] = []
    for line in reversed(marked or lines):
        line = line if len(line) <= most else f"{line[: most - 3]}..."
        if kept and len("; ".join([line, *kept])) > most:
            break
        if line not in kept:
            kept.insert(0, line)
    return "; ".join(kept)


def _first_run(bench: Bench) -> tuple[Bench, TestReport]:
    """A clean run, by the first command that runs tests and runs them on the code of this folder.

    The package's own configuration may ask for plugins that are not here. And a package that pytest itself needs is
    loaded, as installed, before its tests are: a plain call of pytest in a shell finds the folder's first.
    """
    shell = shlex.join(["python", "-X", "utf8", "-m", "pytest", "-rA", "-o", "addopts=", *bench.package.tests])
    broken = {
        source.name: b"raise ImportError('this module was broken on purpose')\n" for source in bench.package.modules
    }
    tried = []
    for command in ("", _WITHOUT_OPTIONS, shell):
        bench = replace(bench, command=command)
        report = bench.run({})
        tried.append((bench, report))
        passed = {test for test, result in report.results.items() if result.passed}
        without = bench.run(broken).results if passed and report.stopped is None else {}
        if report.stopped is not None or any(test not in without or not without[test].passed for test in passed):
            return bench, report
    if any(result.passed for _, report in tried for result in report.results.values()):
        raise ValueError(
            f"{bench.package.title}: its tests pass without the code of this folder; they run a copy that is installed"
        )
    return tried[0]  # says best why nothing passes


def judge(bench: Bench, baseline: Baseline, mutant: Mutant) -> Judgement:
    """Run the suite on a mutant, twice where the first run makes a task of it."""
    files = {mutant.path: mutant.data}
    first = bench.run(files)
    judged = _judged(first, baseline)
    if judged.status != ACCEPTED:
        return judged
    second = bench.run(files)
    again = _judged(second, baseline)
    fails = tuple(test for test in judged.fail_to_pass if test in set(again.fail_to_pass))
    passes = tuple(test for test in judged.pass_to_pass if test in set(again.pass_to_pass))
    seconds = first.seconds + second.seconds
    if again.status != ACCEPTED or not fails:
        return replace(judged, status=UNSTABLE, fail_to_pass=(), pass_to_pass=(), seconds=seconds)
    return replace(judged, fail_to_pass=fails, pass_to_pass=passes, seconds=seconds)


def _judged(report: TestReport, baseline: Baseline) -> Judgement:
    """What one run says."""
    statuses = {test: report.results[test].status for test in baseline.stable if test in report.results}
    failed = tuple(test for test, status in statuses.items() if status in ("FAILED", "ERROR"))
    passed = tuple(test for test in statuses if report.results[test].passed)
    if report.stopped is not None:
        status = TIMEOUT if report.stopped in ("wall time", "cpu time") else CRASH
    elif report.collection_errors:
        status = COLLECTION
    elif report.crashed or report.forged:
        status = CRASH
    elif len(statuses) < len(baseline.stable):
        status = MISSING
    elif not failed:
        status = SURVIVED
    elif len(failed) > MAX_SHARE * len(baseline.stable):
        status = NEARLY_ALL
    else:
        return Judgement(ACCEPTED, failed, passed, len(failed), report.seconds)
    return Judgement(status, flipped=len(failed), seconds=report.seconds)
