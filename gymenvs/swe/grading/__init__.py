"""Grading an attempt at a task by tests that the agent cannot touch.

Read downwards: `verdict` (what an attempt is worth) lays the tests (`lay`), reads the change (`scan`), runs (`run`,
`command`) under a guard inside the sandbox (`guard`, `watch`, with `canary`) whose messages `stream` judges; `report`
is what a run gave; `logs`, `junit` and `names` read what runners print and how they name tests; `flaky` runs a suite
several times.

What holds. The tests, their configuration and what Python loads by itself are the task's own, whatever the agent made
of them; they lie over a fresh copy, and no process, file or variable of the agent's episode reaches the run. A test
that is missing, skipped, or was not collected has not passed. Results leave the process by a pipe as they happen:
leaving early, writing reports, exit codes and exit handlers change none of them. Who makes failures pass makes a
canary pass, and who replaces a function of the runner is seen.

What remains possible, because code under test runs in the process of the tests:

- It can do what the tests ask in another way than by a fix: read the tests beside it and answer them alone, or return
  objects with comparisons of their own. A class that plainly equals everything voids the reward; a subtler one passes.
- Written against this very guard, it can find the guard's objects in memory (by frames and closures, which nothing
  audits) and send results in its name. Canaries then have to be told from tests by what they call.
- By native code (ctypes, a compiled module) it can alter anything unseen. Both are reported as suspicions.
- A test it does break can be hidden if the test's own files let it: they catch all errors, or skip on them.
- Where a task's command is no plain call of pytest (Django's and SymPy's runners, unittest, a script that does more),
  or the tree is pytest itself, printed text is believed, and code under test can print.

What voids a reward (`TestReport.forged`): a message the guard did not write; a canary that does not fail; an exception
of a test that is reported as a pass; an outcome altered after the test; a JUnit report that disagrees; functions of
pytest, pluggy, unittest or builtins replaced by code that is neither a library's nor the task's; the code of a test or
of the runner swapped, a test file written, moved or removed by such code; a test file that is another after the run; a
class that equals everything. All else is a suspicion: told, and free.
"""

from rtmc.gymenvs.swe.grading.flaky import Validation, compare_runs, validate
from rtmc.gymenvs.swe.grading.junit import parse_junit
from rtmc.gymenvs.swe.grading.logs import (
    TestCounts,
    parse_django,
    parse_pytest_log,
    parse_r2e,
    parse_sympy,
    parse_unittest,
    summarise_tests,
)
from rtmc.gymenvs.swe.grading.report import TestReport, TestResult
from rtmc.gymenvs.swe.grading.run import run_tests
from rtmc.gymenvs.swe.grading.verdict import Verdict, grade

__all__ = [
    "TestCounts",
    "TestReport",
    "TestResult",
    "Validation",
    "Verdict",
    "compare_runs",
    "grade",
    "parse_django",
    "parse_junit",
    "parse_pytest_log",
    "parse_r2e",
    "parse_sympy",
    "parse_unittest",
    "run_tests",
    "summarise_tests",
    "validate",
]
