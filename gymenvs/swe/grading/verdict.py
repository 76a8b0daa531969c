"""The grade of one attempt: the task's tests over a fresh copy of the agent's tree, in a fresh sandbox.

verdict = grade(task, prepared.base, tree.snapshot(), runtime=prepared.runtime)
verdict.reward, verdict.reason
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rtmc.gymenvs.isolation import users
from rtmc.gymenvs.sandbox import Limits
from rtmc.gymenvs.swe.errors import BadPath, NoAccess, NotRegular, TooLarge, TreeError
from rtmc.gymenvs.swe.grading.command import script_command
from rtmc.gymenvs.swe.grading.lay import Laid, lay_over
from rtmc.gymenvs.swe.grading.logs import parse_r2e
from rtmc.gymenvs.swe.grading.report import TestReport
from rtmc.gymenvs.swe.grading.run import run_tests
from rtmc.gymenvs.swe.grading.scan import scan_source
from rtmc.gymenvs.swe.grading.stream import STOPPED
from rtmc.gymenvs.swe.tree import TreeSnapshot, WorkTree

__all__ = ["Verdict", "grade", "refuse", "run_snapshot"]

_LOG = 200_000  # characters of the log that a verdict keeps
_CANARIES = 3
_LONGEST_SOURCE = 2 << 20  # bytes
_RUNNERS = ("_pytest", "pytest", "pluggy", "pytest.py", "pluggy.py")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt is worth.

    Attributes:
        resolved: every test that has to pass passes, every one that passed is maintained, and nothing was forged.
        reward: 1.0 if resolved, else 0.0.
        fail_to_pass, pass_to_pass: id -> whether it is as wanted. Missing = False. PASSED and XFAIL pass; a skip
            maintains a test that passed before, and passes none that has to.
        reason: why it is not resolved, the weightiest first; None where it is.
        suspicions: what the agent's change holds or did that no fix has need of. They cost nothing by themselves.
        partial: all of pass_to_pass, and some but not all of fail_to_pass (SWE-bench's PARTIAL); False if forged.
        seconds: wall clock of the run.
        log: what the run printed, the end of it.
    """

    resolved: bool
    reward: float
    fail_to_pass: Mapping[str, bool]
    pass_to_pass: Mapping[str, bool]
    reason: str | None = None
    suspicions: tuple[str, ...] = ()
    partial: bool = False
    seconds: float = 0.0
    log: str = field(default="", repr=False)


def grade(
    task: Any,
    base: Path,
    snapshot: TreeSnapshot,
    *,
    runtime: Any,
    backend: str = "auto",
    trusted: bool = False,
    limits: Limits | None = None,
) -> Verdict:
    """Grades the tree of a snapshot. What the agent did is a verdict; only a broken task or machine is an error.

    Args:
        task: a complete task (`prepare(...).task`): its `test_files` hold every test laid over the tree.
        base: the folder the agent began with.
        snapshot: the agent's tree.
        runtime: as `run_tests` takes it.
        backend, trusted: as in `open_sandbox`.
        limits: of the run; the wall clock is `task.timeout_s` unless this is shorter.

    Raises:
        ValueError: the snapshot is of another base, a test file lies outside the tree. SandboxError: no sandbox.
    """
    broken: list[str] = []
    try:
        report = run_snapshot(
            task, base, snapshot, runtime=runtime, backend=backend, trusted=trusted, limits=limits, broken=broken
        )
    except (TooLarge, BadPath, NoAccess, NotRegular) as error:
        return refuse(task, error)
    if task.expected:
        return _by_map(task, report, broken)
    return _by_lists(task.fail_to_pass, task.pass_to_pass, report, broken)


def refuse(task: Any, error: TreeError) -> Verdict:
    """The verdict on a tree that is no tree to grade: too much in it, or nothing that a copy can be made of."""
    what = "too large to grade" if isinstance(error, TooLarge) else "the tree cannot be graded"
    return Verdict(
        resolved=False,
        reward=0.0,
        fail_to_pass=dict.fromkeys(task.expected or task.fail_to_pass, False),
        pass_to_pass={} if task.expected else dict.fromkeys(task.pass_to_pass, False),
        reason=f"{what}: {error}"[:500],
    )


def run_snapshot(
    task: Any,
    base: Path,
    snapshot: TreeSnapshot,
    *,
    runtime: Any,
    backend: str = "auto",
    trusted: bool = False,
    limits: Limits | None = None,
    broken: list[str] | None = None,
) -> TestReport:
    """The run that `grade` judges: the task's tests over a snapshot. Arguments and errors are those of `grade`.

    `broken` takes the changed sources that are no valid Python, as `path:line: what`.
    """
    limits = limits or Limits(wall_s=task.timeout_s, cpu_s=max(1, int(task.timeout_s) + 1))
    limits = replace(limits, wall_s=min(limits.wall_s, task.timeout_s))
    owner = users.owner()
    with WorkTree.from_snapshot(base, snapshot, owner=owner) as tree:
        laid = lay_over(task, base, tree.root, tree.changes(), owner, _packages(runtime))
        suspicions = _read_changes(laid, base, tree.root)
        report = run_tests(
            tree.root,
            (*task.fail_to_pass, *task.pass_to_pass) or tuple(_test_files(task)),
            runtime=runtime,
            command=script_command(task.test_command, task.test_files),
            parser=task.test_parser,
            canaries=_CANARIES,
            base=base,
            changed=laid.changed,
            protected=laid.protected,
            known={"metadata": laid.metadata, "plugins": laid.plugins},
            guarded=not any(os.path.lexists(base / up / name) for up in ("", "src") for name in _RUNNERS),
            inside=tree.inside,
            backend=backend,
            trusted=trusted,
            limits=limits,
            env=task.env,
        )
        report = replace(report, suspicions=(*suspicions, *report.suspicions))
        if broken is not None:
            broken += _broken_sources(laid, tree.root)
    return report


def _test_files(task: Any) -> Iterable[str]:
    return (path for path in task.test_files if path.endswith(".py"))


def _packages(runtime: Any) -> set[str]:
    """Top-level names of what is installed in the folders that a runtime shows."""
    found = (one for host, _ in runtime.readable for one in Path(host).glob("lib/python*/site-packages/*"))
    return {one.name.split(".")[0] for one in found}


def _read_changes(laid: Laid, base: Path, root: Path) -> list[str]:
    """What reading the changed sources gives reason to suspect."""
    told = list(laid.suspicions)
    for path, text in _sources(laid, root):
        before = (base / path).read_text("utf-8", "replace") if (base / path).is_file() else ""
        told += [f"{path}:{one.line}: {one.what}" for one in scan_source(text, before)]
    return told


def _broken_sources(laid: Laid, root: Path) -> list[str]:
    """Changed sources that are no valid Python, as `path:line: what`."""
    found = []
    for path, text in _sources(laid, root):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            found.append(f"{path}:{getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', error)}")
        except (RecursionError, MemoryError):
            continue  # nested too deeply for this reader: that says nothing of the task's Python
    return found


def _sources(laid: Laid, root: Path) -> Iterable[tuple[str, str]]:
    """Path and text of each Python file that is the agent's, up to a size that nobody writes by hand."""
    for path in laid.changed:
        full = root / path
        if not path.endswith(".py") or full.is_symlink() or not full.is_file() or not os.access(full, os.R_OK):
            continue
        if full.stat().st_size <= _LONGEST_SOURCE:
            yield path, full.read_text("utf-8", "replace")


def _by_lists(
    fail_to_pass: Collection[str], pass_to_pass: Collection[str], report: TestReport, broken: list[str]
) -> Verdict:
    passes = {test: _passes(report, test) for test in fail_to_pass}
    keeps = {test: _passes(report, test) or _skipped(report, test) for test in pass_to_pass}
    reason = _reason(passes, keeps, report, broken)
    sound = not report.forged and not report.crashed
    return Verdict(
        resolved=reason is None,
        reward=float(reason is None),
        fail_to_pass=passes,
        pass_to_pass=keeps,
        reason=reason,
        suspicions=report.suspicions,
        partial=sound and all(keeps.values()) and 0 < sum(passes.values()) < len(passes),
        seconds=report.seconds,
        log=report.log[-_LOG:],
    )


def _passes(report: TestReport, test: str) -> bool:
    found = report.of(test)
    return found is not None and found.passed


def _skipped(report: TestReport, test: str) -> bool:
    found = report.of(test)
    return found is not None and found.status == "SKIPPED"


def _reason(
    passes: Mapping[str, bool],
    keeps: Mapping[str, bool],
    report: TestReport,
    broken: list[str],
    told: Mapping[str, str] | None = None,
) -> str | None:
    """Why the attempt is not resolved; None where it is. told: by R2E-Gym's rule, what is wrong with each test."""
    if report.forged:
        return f"the result is void: {report.forged[0]}"
    failed = [test for test, well in (*passes.items(), *keeps.items()) if not well]
    if not failed and not report.crashed:
        return None
    parts = []
    if report.stopped:
        parts.append(f"the run was stopped: {report.stopped}" + (f" in {report.running}" if report.running else ""))
    wanted = {test.split("::")[0] for test in failed}
    errors = report.collection_errors
    name = next((one for one in errors if one in wanted or not one), next(iter(errors), None))
    if name:
        parts.append(f"collection error in {name}: {_last_line(errors[name])}")
    elif name is not None:
        parts.append(_last_line(errors[name]))
    if not report.complete and not parts:
        parts.append("the test process ended by itself" + (f" in {report.running}" if report.running else ""))
    elif report.crashed and not parts:
        parts.append(f"the test runner ended with {report.exit_code} and named no failed test")
    if broken:
        collected = name is not None or report.results
        parts.append(f"{'' if collected else 'collection error: '}{broken[0]} (no valid Python)")
    for kind, tests in (("fail_to_pass", passes), ("pass_to_pass", keeps)):
        bad = [test for test, well in tests.items() if not well]
        if bad and told is not None:
            parts.append(f"{len(bad)} of {len(tests)} tests not as wanted: {bad[0]} {told[bad[0]]}")
        elif bad:
            found = report.of(bad[0])
            how = "is missing" if found is None else f"is {found.status}"
            text = f": {_last_line(found.message)}" if found is not None and found.message and not parts else ""
            parts.append(f"{len(bad)} of {len(tests)} {kind} not as wanted: {bad[0]} {how}{text}")
    return "; ".join(parts)


def _last_line(text: str) -> str:
    """The line that says what went wrong: ours, pytest's assertion, its last line marked with E, or the last of all."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    if text.startswith(STOPPED):
        return lines[0]
    asserted = [line for line in marked if line.startswith(("assert ", "AssertionError"))]
    return (asserted[:1] or marked[-1:] or lines[-1:] or [""])[0][:300]


def _by_map(task: Any, report: TestReport, broken: list[str]) -> Verdict:
    """R2E-Gym's rule: the run gives exactly the expected map of names to statuses."""
    if report.guarded:
        # The same map as from the text, out of what the tests did: names without their file, three statuses.
        found = {_r2e_name(test): one.status for test, one in report.results.items()}
        found |= {_r2e_name(name): "ERROR" for name in report.collection_errors if name}
        found = {name: status for name, status in found.items() if status in ("PASSED", "FAILED", "ERROR")}
    else:
        found = parse_r2e(report.log)
    wanted = {name: found.get(name) == status for name, status in task.expected.items()}
    other = [name for name in found if name not in task.expected]
    told = {
        name: f"is {found[name]}, and {status} was expected" if name in found else "is missing"
        for name, status in task.expected.items()
    }
    reason = _reason(wanted, {}, replace(report, exit_code=0), broken, told)
    if reason is None and len(found) != len(task.expected):
        reason = f"{len(found)} tests ran, {len(task.expected)} are expected" + (f"; not {other[0]}" if other else "")
    return Verdict(
        resolved=reason is None,
        reward=float(reason is None),
        fail_to_pass=wanted,
        pass_to_pass={},
        reason=reason,
        suspicions=report.suspicions,
        seconds=report.seconds,
        log=report.log[-_LOG:],
    )


def _r2e_name(test: str) -> str:
    return ".".join(test.split("::")[1:]).split(" - ")[0]
