"""Whether a task's tests say the same each time: validation by repeated runs.

A test that changes its mind without the code changing gives rewards at random. Each run is a fresh copy in a fresh
sandbox with another hash seed, so that a test which leans on the order of a set shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtmc.gymenvs.sandbox import Limits
from rtmc.gymenvs.swe.grading.report import TestReport
from rtmc.gymenvs.swe.grading.verdict import run_snapshot
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.tree import WorkTree

__all__ = ["Validation", "compare_runs", "validate"]


@dataclass(frozen=True, slots=True)
class Validation:
    """What repeated runs say of a task.

    Attributes:
        fail_to_pass, pass_to_pass: ids that do what these names say in every run.
        flaky: id -> its statuses, run by run, where they differ on the same code; MISSING = it was not run.
        wrong: ids that always do the same, but not what the task says of them.
        faults: what else is wrong: a run that was stopped, crashed, or broke off.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    flaky: Mapping[str, tuple[str, ...]]
    wrong: tuple[str, ...]
    faults: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the task can be graded as it is."""
        return not (self.flaky or self.wrong or self.faults)


def validate(
    task: Any,
    base: Path,
    *,
    runtime: Any,
    runs: int = 3,
    backend: str = "auto",
    trusted: bool = False,
    limits: Limits | None = None,
) -> Validation:
    """Runs the tests of a complete task `runs` times on the agent's starting tree, and as often with the gold patch.

    Raises:
        ValueError: the task has no gold patch, or `runs` is below 2. PatchError: the patch does not apply.
    """
    if runs < 2:
        raise ValueError(f"validate: runs={runs}; what changes from run to run takes at least 2 to see")
    if not task.patch:
        raise ValueError(
            f"validate: task {task.task_id!r} has no gold patch, so that nothing says what passes after it"
        )
    with WorkTree(base) as tree:
        before = tree.snapshot()
        apply_patch(tree, task.patch)
        after = tree.snapshot()
    reports = [
        [
            run_snapshot(
                task.replace(env={**task.env, "PYTHONHASHSEED": str(number)}),
                base,
                snapshot,
                runtime=runtime,
                backend=backend,
                trusted=trusted,
                limits=limits,
            )
            for number in range(runs)
        ]
        for snapshot in (before, after)
    ]
    return compare_runs(task.fail_to_pass, task.pass_to_pass, *reports)


def compare_runs(
    fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], before: Sequence[TestReport], after: Sequence[TestReport]
) -> Validation:
    """The verdict on a task's lists from reports of the tree before the fix and after it.

    Flaky is a test that passes in one run and not in another of the same tree: whether it fails or errs is all one.
    """
    flaky: dict[str, tuple[str, ...]] = {}
    kept: dict[str, list[str]] = {"fail": [], "pass": []}
    wrong = []
    for kind, tests in (("fail", fail_to_pass), ("pass", pass_to_pass)):
        for test in tests:
            early, late = ([_status(report, test) for report in reports] for reports in (before, after))
            if len({one in _GOOD for one in early}) > 1 or len({one in _GOOD for one in late}) > 1:
                flaky[test] = (*early, *late)
            elif late[0] in _GOOD and (early[0] in _GOOD) == (kind == "pass"):
                kept[kind].append(test)
            else:
                wrong.append(test)
    faults = [
        f"{name} the fix, run {number + 1}: {fault}"
        for name, reports in (("before", before), ("after", after))
        for number, report in enumerate(reports)
        if (fault := _fault(report, name == "after"))
    ]
    return Validation(tuple(kept["fail"]), tuple(kept["pass"]), flaky, tuple(wrong), tuple(faults))


_GOOD = ("PASSED", "XFAIL", "SKIPPED")


def _status(report: TestReport, test: str) -> str:
    found = report.of(test)
    return "MISSING" if found is None else found.status


def _fault(report: TestReport, fixed: bool) -> str:
    if report.stopped:
        return f"stopped by the limit of {report.stopped}"
    if report.forged:
        return report.forged[0]
    if fixed and report.collection_errors:
        name, text = next(iter(report.collection_errors.items()))
        return f"{name} could not be collected: {text.strip().splitlines()[-1] if text.strip() else ''}"
    return "the runner crashed" if report.crashed else ""
