"""Grading an attempt at a task by tests that the agent cannot touch.

Read downwards: `verdict` (what an attempt is worth) lays the tests (`lay`), reads the change (`scan`), runs (`run`,
`command`) under a guard inside the sandbox (`guard` with `watch`, `session`, `genuine`, `equal`, `origin`, `trust`, and
`canary`) whose messages `stream` judges with `claims`; `configuration` and `shadows` help `lay`; `report` is what a run
gave; `logs`, `junit` and `names` read what runners print and how they name tests; `flaky` runs a suite
several times.

What holds. The tests, their configuration and what Python loads by itself are the task's own, whatever the agent made
of them; they lie over a fresh copy, and no process, file or variable of the agent's episode reaches the run. A test
that is missing, skipped, or was not collected has not passed. Results leave the process by a pipe as they happen:
leaving early, writing reports, exit codes and exit handlers change none of them. Who makes failures pass makes a
canary pass, and who replaces a function of the runner is seen.

Whose a function is, its code tells, not the file it names: a test's function has to be code that the guard compiled
from the text that was laid, a hook's, a tracer's or an item's own method code of the runner, of a library's file, or of
a file that is as the task began. What a function stands on counts as well: what it wraps, holds in its closure and
calls by name (`trust`). In a file that the agent changed, a test helper whose code is as it was is as the task began. A
skip or an expected failure counts only where the text of that very test (its marks, class, fixtures, and what these
name), or a hook of the task's own conftest, says so.

What remains possible, because code under test runs in the process of the tests:

- It can do what the tests ask in another way than by a fix: read the tests beside it, or the values in the frame that
  calls it, and answer them alone.
- It can return objects whose comparisons are tuned. Who equals an object of an unknown class, values like the one asked
  for, or gives two answers to one question, fails the test, wherever the task's own files compare (approx, `in`, and
  unittest's methods among it); not who knows what is asked for or a part of it, or guesses which question is the
  test's, one written in C, or one whose comparison or arithmetic a library or a `match` judges (numpy.testing, mock's
  calls, `abs(x - 1) < 0.1`). Classes that equalled everything before the agent came, and a library's (mock.ANY), are
  free in tests that name them or objects of them; a fix that is such a class fails. See `equal`.
- It can alter data that tests hold (parameters, globals that are no builtins, fixtures' values), and functions of
  libraries that are not named below (numpy.testing, `subprocess.run`).
- Written against this very guard, it can find the guard's objects in memory (by frames and closures, which nothing
  audits) and send results in its name, or replace what is looked at and put it back between two looks. Canaries then
  have to be told from tests by what they call.
- By native code (ctypes, a compiled module) it can alter anything unseen. Both are reported as suspicions.
- A test it does break can be hidden if the test's own files let it: they catch all errors, or skip on them; a test that
  speaks of a skip or an expected failure itself can be made to take it.
- A test file that makes code itself (exec, eval, compile) vouches for functions of unknown origin; a module that the
  task's configuration makes a plugin of pytest may do all that plugins do, and code that traced before may trace.
- Where a task's command is no plain call of pytest (Django's and SymPy's runners, unittest, a script that does more),
  or the tree is pytest itself, printed text is believed, and code under test can print.

What voids a reward (`TestReport.forged`): a message the guard did not write; a canary that does not fail; an exception
of a test that is reported as a pass; an outcome altered after the test; a JUnit report that disagrees; functions of
pytest, pluggy, unittest or builtins, hooks and what calls them, methods and classes of items, of the session and of
test cases replaced by code that is neither a library's nor the task's, or stands on such code; what links the session's
objects made to lead elsewhere; what `import pytest` gives, or functions of the standard library by which tests judge
(`watch.JUDGES`: math, re, ast, json, ...), replaced by a changed file that did not do so before; a test's function that
is not the one of its file; the code of a test or of the runner swapped, a test file written, moved or removed by such
code, or by nobody that can be seen; a tracer or profiler set by a file that the agent changed and that had none, or in
the frame of a test that speaks of none; a test file that is another after the run. All else is a suspicion: told, and
free.
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
from rtmc.gymenvs.swe.grading.verdict import Verdict, grade, refuse

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
    "refuse",
    "run_tests",
    "summarise_tests",
    "validate",
]
