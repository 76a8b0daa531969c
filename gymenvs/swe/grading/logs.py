"""What the printed output of a test runner says: pytest with -rA, R2E-Gym's rule, unittest, Django, SymPy.

Each parser gives a map id -> status, in the order of the text. Statuses are pytest's words: PASSED, FAILED, ERROR,
SKIPPED, XFAIL, XPASS. Colours are ignored. Text can be forged by whatever prints into it: code under test may write a
line that begins with PASSED. `grading.run` believes text only where a task's own command leaves nothing better.

Sources: the log parsers of SWE-bench's harness and R2E-Gym's reward, by their rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "PARSERS",
    "TestCounts",
    "parse_django",
    "parse_pytest_log",
    "parse_r2e",
    "parse_sympy",
    "parse_unittest",
    "strip_colours",
    "summarise_tests",
]

STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def strip_colours(text: str) -> str:
    """The text without terminal escapes and carriage returns."""
    return _ESCAPE.sub("", text).replace("\r", "")


def parse_pytest_log(text: str) -> dict[str, str]:
    """The statuses in the output of `pytest -rA`.

    Each line that begins with a status word counts, the last one of a test wins. The id is the rest of the line; of a
    line with a message (`FAILED id - message`) what stands before the first ` - ` outside brackets. By its first word
    an id with blanks equals SWE-bench's, which splits lines at blanks. Folded skips (`SKIPPED [2] file.py:3: why`)
    name no test; they appear as `[2]`, as there.
    """
    found: dict[str, str] = {}
    for line in strip_colours(text).split("\n"):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word not in STATUSES or not rest:
            continue
        if word == "SKIPPED" and rest.startswith("["):
            name = rest.split()[0]
        elif word == "PASSED":
            name = rest
        else:
            name = _before_message(rest)
        found.pop(name, None)  # the order is that of the lines which count
        found[name] = word
    return found


def _before_message(rest: str) -> str:
    """`id - message` without the message. A dash inside a parameter belongs to the id."""
    at = rest.find(" - ")
    while at >= 0:
        if rest.count("[", 0, at) <= rest.count("]", 0, at):
            return rest[:at]
        at = rest.find(" - ", at + 1)
    # No balanced place: the parameter holds brackets of its own, or the line was cut. The first word is what is sure.
    return rest if " - " not in rest else rest.split()[0]


def parse_r2e(text: str) -> dict[str, str]:
    """R2E-Gym's map: test name -> PASSED, FAILED or ERROR, from the lines below `short test summary info`.

    The name is what follows the first `::`, joined by dots, cut at ` - `; a line without `::` has the name "".
    """
    parts = strip_colours(text).split("short test summary info")
    found: dict[str, str] = {}
    for line in parts[1].strip().split("\n") if len(parts) > 1 else ():
        for status in ("PASSED", "FAILED", "ERROR"):
            if status in line:
                found[".".join(line.split("::")[1:]).split(" - ")[0]] = status
                break
    return found


_UNITTEST_RESULT = re.compile(
    r"(?P<ok>ok)$|(?P<fail>FAIL)$|(?P<error>ERROR)$|(?P<skip>skipped\b.*)|(?P<xfail>expected failure)$"
    r"|(?P<xpass>unexpected success)$",
    re.IGNORECASE,
)
_UNITTEST_STATUS = {
    "ok": "PASSED",
    "fail": "FAILED",
    "error": "ERROR",
    "skip": "SKIPPED",
    "xfail": "XFAIL",
    "xpass": "XPASS",
}
_UNITTEST_NAME = re.compile(r"(?P<method>\w+) \((?P<place>[\w.<>]+)\)")
_UNITTEST_HEADING = re.compile(r"(FAIL|ERROR): (?P<name>\w+ \([\w.<>]+\)|\S.*)")


def parse_unittest(text: str) -> dict[str, str]:
    """The statuses in the output of `python -m unittest -v`, of Django's runtests.py and of their like.

    A test appears under every name that a data set may use: as printed, `test_a (package.module.Class)` (as Python
    before 3.11 prints it), `package.module.Class.test_a`, and, where it has one, the first line of its docstring.
    A result may follow later than its name, after what the test printed. A heading (`FAIL: ...`, `ERROR: ...`) of the
    test or of one of its subtests outweighs its line.
    """
    found: dict[str, str] = {}
    waiting: tuple[str, ...] = ()  # names of the test whose result is still to come
    header = ""  # a line that may be the first of two: name, then docstring
    for raw in strip_colours(text).split("\n"):
        line = raw.strip()
        heading = _UNITTEST_HEADING.fullmatch(line)
        shown, dots, after = line.partition(" ... ")
        if line.endswith(" ..."):
            shown, dots, after = line[:-4], " ...", ""
        elif dots and not _UNITTEST_RESULT.match(after):
            whole, _, last = line.rpartition(" ... ")
            if _UNITTEST_RESULT.match(last):  # the docstring holds dots of its own
                shown, after = whole, last
        if heading:
            name = _UNITTEST_NAME.match(heading["name"])
            for one in _names(name[0] if name else heading["name"]):
                found[one] = _UNITTEST_STATUS[heading[1].lower()]
            waiting = ()
        elif dots:
            # Django prints its own lines behind the first name: `name ... Testing against Django installed in`.
            waiting = _names(shown) + (_names(header) if _UNITTEST_NAME.fullmatch(header) else ())
            if result := _UNITTEST_RESULT.match(after.strip()):
                found.update(dict.fromkeys(waiting, _UNITTEST_STATUS[result.lastgroup or ""]))
                waiting = ()
        elif waiting and (result := _UNITTEST_RESULT.match(line)):
            found.update(dict.fromkeys(waiting, _UNITTEST_STATUS[result.lastgroup or ""]))
            waiting = ()
        header = line
    return found


def _names(shown: str) -> tuple[str, ...]:
    name = _UNITTEST_NAME.fullmatch(shown)
    if not name:
        return (shown,)
    method, place = name["method"], name["place"]
    place = place.removesuffix(f".{method}")
    return tuple(dict.fromkeys((shown, f"{method} ({place})", f"{place}.{method}")))


parse_django = parse_unittest

_SYMPY_FAILURE = re.compile(r"_+ (?P<name>\S+\.py:\w+) _+")


def parse_sympy(text: str) -> dict[str, str]:
    """The statuses in the output of SymPy's `bin/test -C --verbose`: `test_name ok`, `F`, `E`, `s` (skipped), `f`."""
    found: dict[str, str] = {}
    words = {"ok": "PASSED", "F": "FAILED", "E": "ERROR", "s": "SKIPPED", "f": "XFAIL", "X": "XPASS"}
    for line in strip_colours(text).split("\n"):
        failure = _SYMPY_FAILURE.fullmatch(line.strip())
        if failure:
            found[failure["name"]] = "FAILED"
            found[failure["name"].rsplit(":", 1)[1]] = "FAILED"
            continue
        parts = line.split()
        if len(parts) >= 2 and parts[0].startswith("test_") and parts[-1] in words:
            found.setdefault(parts[0], words[parts[-1]])
    return found


PARSERS = {
    "pytest": parse_pytest_log,
    "r2e": parse_r2e,
    "unittest": parse_unittest,
    "django": parse_django,
    "sympy": parse_sympy,
}


@dataclass(frozen=True, slots=True)
class TestCounts:
    """How many tests passed, failed, and could not be run; skipped and expected failures are in none of them."""

    passed: int
    failed: int
    errors: int
    __test__ = False  # no test class, though its name begins as one


_PYTEST_COUNT = (
    r"\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests (?:passed|failed))"
)
_PYTEST_SUMMARY = re.compile(
    rf"(?:=+ )?(?P<counts>{_PYTEST_COUNT}(?:, {_PYTEST_COUNT})*|no tests ran|no tests collected)"
    r" in \d+(?:\.\d+)?s(?: \([^)]*\))?(?: =+)?"
)
_UNITTEST_RAN = re.compile(r"Ran (\d+) tests? in \d+(?:\.\d+)?s")
_UNITTEST_END = re.compile(r"(?:OK|FAILED|NO TESTS RAN)(?: \((?P<counts>[a-z0-9=, ]+)\))?")


def summarise_tests(text: str) -> TestCounts | None:
    """The counts of the last summary that a test runner (pytest, unittest, Django) printed; None = there is none."""
    counts: TestCounts | None = None
    ran = 0
    for line in strip_colours(text).split("\n"):
        line = line.strip()
        summary = _PYTEST_SUMMARY.fullmatch(line)
        if summary:
            number = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", summary["counts"])}
            counts = TestCounts(
                number.get("passed", 0), number.get("failed", 0), number.get("error", 0) + number.get("errors", 0)
            )
        elif start := _UNITTEST_RAN.fullmatch(line):
            ran = int(start[1])
            counts = TestCounts(ran, 0, 0)
        elif ran and (end := _UNITTEST_END.fullmatch(line)):
            number = {word.strip(): int(n) for word, n in re.findall(r"([a-z ]+)=(\d+)", end["counts"] or "")}
            failed = number.get("failures", 0) + number.get("unexpected successes", 0)
            errors = number.get("errors", 0)
            neither = number.get("skipped", 0) + number.get("expected failures", 0)
            # Errors of a class's setup count no test: they may exceed what ran.
            counts, ran = TestCounts(max(0, ran - failed - errors - neither), failed, errors), 0
    return counts
