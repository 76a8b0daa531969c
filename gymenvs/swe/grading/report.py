"""What a run of tests gave: statuses of tests, errors of collection, and signs that the report was forged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rtmc.gymenvs.swe.grading.names import matches

__all__ = ["BADNESS", "TestReport", "TestResult"]


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of a run.

    Attributes:
        status: PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS.
        message: the end of the failure's text, or the reason of a skip.
        seconds: what it took, all phases.
        origin: for a test that was skipped, or expected to fail, from inside: the file whose code said so, as a path
            in the tree or an absolute one; "" = by a mark, or not told.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    origin: str = ""
    __test__ = False

    @property
    def passed(self) -> bool:
        """PASSED, or failed as its author expects (XFAIL): what SWE-bench counts as a pass."""
        return self.status in ("PASSED", "XFAIL")


@dataclass(frozen=True, slots=True)
class TestReport:
    """One run of a test command.

    Attributes:
        results: id -> result of every test that ran to its end, in the order of the run. Canaries are not in it.
        collection_errors: file (or id) -> message, of what could not be collected.
        complete: the runner came to its end and said so; False = it was stopped, or left by itself.
        exit_code: of the runner; -1 = stopped by us.
        stopped: the limit at which it was stopped ("wall time", "memory", ...); None = it was not.
        running: the test that ran when the run broke off, "" = none.
        forged: signs that the report was made by something else than the tests; () = none were seen.
        suspicions: acts of the code under test that a fix has no need of, though one may be honest.
        guarded: results came over the signed channel; False = they were read from printed text.
        log: what was printed.
        seconds: wall clock.
        facts: versions of the runner and of Python.
    """

    results: Mapping[str, TestResult] = field(default_factory=dict)
    collection_errors: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    exit_code: int = 0
    stopped: str | None = None
    running: str = ""
    forged: tuple[str, ...] = ()
    suspicions: tuple[str, ...] = ()
    guarded: bool = True
    log: str = ""
    seconds: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)
    __test__ = False

    def of(self, test: str) -> TestResult | None:
        """The result of an id as a task has it (cut-off ids by their beginning); None = missing.

        Where an id stands for several tests of the run, the one that did worst speaks for them.
        """
        found = [self.results[one] for one in matches(test, dict(self.results))]
        return max(found, key=lambda one: BADNESS[one.status], default=None)

    @property
    def crashed(self) -> bool:
        """SWE-bench's crash guard: a failing exit code, and yet no test that failed."""
        bad = any(one.status in ("FAILED", "ERROR") for one in self.results.values()) or self.collection_errors
        return not self.complete or (self.exit_code != 0 and not bad)


BADNESS = {"PASSED": 0, "XFAIL": 1, "SKIPPED": 2, "XPASS": 3, "FAILED": 4, "ERROR": 5}
