"""What runners print, read back: against real output of pytest and unittest, and against the data sets' own rules."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.grading import (
    TestCounts,
    parse_django,
    parse_junit,
    parse_pytest_log,
    parse_r2e,
    parse_sympy,
    parse_unittest,
    summarise_tests,
)
from rtmc.gymenvs.swe.grading.command import pytest_arguments, script_command, with_files
from rtmc.gymenvs.swe.grading.names import files_of, matches

SUITE = """import unittest

import pytest


def test_ok(): pass
def test_bad(): assert 1 == 2, "a - b"
@pytest.mark.parametrize("s", ["a b", "x[1]", "a - b", "[", "é", "c::d"])
def test_p(s): pass
@pytest.mark.parametrize("s", ["a b", "a - b"])
def test_q(s): assert s == "x - y"
@pytest.mark.xfail(reason="known - bad")
def test_x(): assert 0
@pytest.mark.xfail
def test_xp(): pass
@pytest.mark.skip(reason="not here")
def test_s(): pass
@pytest.fixture
def broken(): raise OSError("no - file")
def test_fixture(broken): pass
@pytest.fixture
def down():
    yield
    raise OSError
def test_down(down): pass
class TestInner:
    class TestDeep:
        def test_in(self): pass
class Case(unittest.TestCase):
    def test_u(self): self.assertEqual(1, 1)
    def test_f(self): self.assertEqual(1, 2)
"""
TRUTH = {
    "t/test_a.py::test_ok": "PASSED",
    "t/test_a.py::test_bad": "FAILED",
    "t/test_a.py::test_p[a b]": "PASSED",
    "t/test_a.py::test_p[x[1]]": "PASSED",
    "t/test_a.py::test_p[a - b]": "PASSED",
    "t/test_a.py::test_p[[]": "PASSED",
    "t/test_a.py::test_p[\\xe9]": "PASSED",
    "t/test_a.py::test_p[c::d]": "PASSED",
    "t/test_a.py::test_q[a b]": "FAILED",
    "t/test_a.py::test_q[a - b]": "FAILED",
    "t/test_a.py::test_x": "XFAIL",
    "t/test_a.py::test_xp": "XPASS",
    "t/test_a.py::test_fixture": "ERROR",
    "t/test_a.py::TestInner::TestDeep::test_in": "PASSED",
    "t/test_a.py::Case::test_u": "PASSED",
    "t/test_a.py::Case::test_f": "FAILED",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(printed text, JUnit report) of a real pytest on SUITE."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "t").mkdir()
    (folder / "t" / "test_a.py").write_text(SUITE)
    (folder / "t" / "test_broken.py").write_text("import nothing_such\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["-rA", "--continue-on-collection-errors", "--junitxml=report.xml", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--color=yes"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stdout, (folder / "report.xml").read_bytes()


def test_pytest_text_gives_what_ran(run):
    found = parse_pytest_log(run[0])
    assert {name: found.get(name) for name in TRUTH} == TRUTH
    assert found["t/test_a.py::test_down"] in ("ERROR", "PASSED")  # the text has both lines
    assert found["t/test_broken.py"] == "ERROR"
    assert found["[1]"] == "SKIPPED"  # folded: no name, as SWE-bench's reader has it
    assert set(found) == {*TRUTH, "t/test_a.py::test_down", "t/test_broken.py", "[1]"}


def swebench_map(text: str) -> dict[str, str]:
    """SWE-bench's rule, in the words of its description: first word of a line, a test's name its second."""
    found = {}
    for line in text.split("\n"):
        if line.startswith(("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")):
            words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if len(words) > 1:
                found[words[1]] = words[0]
    return found


WORDS = st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "collected", "E  ", "="])
NAMES = st.sampled_from(["a.py::t", "a.py::t[x]", "a.py::t[a b]", "a.py::C::t[1 - 2]", "b.py"])
LINES = st.lists(st.tuples(WORDS, NAMES, st.sampled_from(["", " - assert 1 == 2", " - x[0] - y"])), max_size=12)


@given(LINES)
def test_pytest_text_agrees_with_swebench_where_both_can_name_the_test(lines):
    text = "\n".join(f"{word} {name}{'' if word == 'PASSED' else tail}" for word, name, tail in lines)
    ours = {name.split()[0]: status for name, status in parse_pytest_log(text).items() if name.split()}
    assert ours == swebench_map(text)


def test_junit_gives_what_ran(run):
    known = [*TRUTH, "t/test_a.py::test_s", "t/test_a.py::test_down"]
    for ids in (known, ()):
        found = {name: status for name, (status, _) in parse_junit(run[1], ids).items()}
        if not ids:  # pytest's report of today names no file: parts of a class's name are told by their capitals
            found = {name.replace("\\\\x", "\\x"): status for name, status in found.items()}
        xpass = {"t/test_a.py::test_xp": "PASSED"}  # the report does not tell it from a pass
        assert {name: found.get(name) for name in TRUTH} == TRUTH | xpass
        assert found["t/test_a.py::test_s"] == "SKIPPED"
        assert found["t/test_a.py::test_down"] == "ERROR"  # the worse of its two entries
        assert found["t/test_broken.py"] == "ERROR"
    assert "1 == 2" in parse_junit(run[1])["t/test_a.py::test_bad"][1]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "no XML report"),
        (b"<testsuite>", "no XML report"),
        (b"<html></html>", "wanted <testsuites>"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><testsuites/>', "entities"),
    ],
)
def test_what_is_no_junit_report_is_refused(data, wanted):
    with pytest.raises(ValueError, match=wanted):
        parse_junit(data)


def test_r2e_map():
    log = """===== short test summary info =====
PASSED r2e_tests/test_1.py::TestA::test_x[a - b]
\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mtest_y\x1b[0m
FAILED r2e_tests/test_1.py::test_z - AssertionError: PASSED is no word here
ERROR r2e_tests/test_2.py::test_e - ImportError
ERROR r2e_tests/test_3.py
==== 1 failed, 2 passed in 0.1s ===="""
    assert parse_r2e("PASSED a.py::before\n" + log) == {
        "TestA.test_x[a": "PASSED",
        "test_y": "PASSED",
        # The rule looks for the words in this order anywhere in the line.
        "test_z": "PASSED",
        "test_e": "ERROR",
        "": "ERROR",
    }
    assert parse_r2e("PASSED a.py::before") == {}


UNITTEST = '''import unittest


class Case(unittest.TestCase):
    def test_ok(self): print("said on the way")
    def test_doc(self):
        """What it does."""
    def test_bad(self): self.fail("ok")
    def test_error(self): raise OSError
    @unittest.skip("why ... not")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_xpass(self): pass
    def test_sub(self):
        for i in range(2):
            with self.subTest(i=i): self.assertEqual(i, 0)
'''
UNITTEST_TRUTH = {
    "ok": "PASSED",
    "doc": "PASSED",
    "bad": "FAILED",
    "error": "ERROR",
    "skip": "SKIPPED",
    "xfail": "XFAIL",
    "xpass": "XPASS",
    "sub": "FAILED",
}


@pytest.fixture(scope="module")
def unittest_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unittest")
    (folder / "test_m.py").write_text(UNITTEST)
    (folder / "test_gone.py").write_text("import nothing_such\n")
    command = [sys.executable, "-m", "unittest", "-v", "test_m", "test_gone"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("form", ["{m} (test_m.Case)", "{m} (test_m.Case.{m})", "test_m.Case.{m}"])
def test_unittest_text_gives_what_ran(unittest_text, form):
    found = parse_unittest(unittest_text)
    if sys.version_info < (3, 11) and form == "{m} (test_m.Case.{m})":
        pytest.skip("Python before 3.11 prints the class alone")
    assert {name: found.get(form.format(m=f"test_{name}")) for name in UNITTEST_TRUTH} == UNITTEST_TRUTH
    assert found["What it does."] == "PASSED"
    assert "ERROR" in {status for name, status in found.items() if "_FailedTest" in name}


def test_django_text():
    log = """test_callable (model_fields.tests.PathTests) ... ERROR
test_path (model_fields.tests.PathTests) ... Testing against Django installed in '/testbed/django'
Importing application model_fields
System check identified no issues (0 silenced).
ok
test_skip (model_fields.tests.PathTests) ... skipped 'no database'
test_printing (model_fields.tests.PathTests) ... some words
FAIL
The first line of a docstring. ... ok
ERROR: setUpClass (model_fields.tests.Other)
FAIL: test_sub (model_fields.tests.PathTests) (i=3)
"""
    found = parse_django(log)
    place = "(model_fields.tests.PathTests)"
    assert found[f"test_callable {place}"] == "ERROR"
    assert found[f"test_path {place}"] == "PASSED"
    assert found[f"test_skip {place}"] == "SKIPPED"
    assert found[f"test_printing {place}"] == "FAILED"
    assert found["The first line of a docstring."] == "PASSED"
    assert found["setUpClass (model_fields.tests.Other)"] == "ERROR"
    assert found[f"test_sub {place}"] == "FAILED"


def test_sympy_text():
    log = "sympy/a/tests/test_b.py[3]\ntest_one ok\ntest_two F\ntest_three E\ntest_four s\n" + (
        "____ sympy/a/tests/test_b.py:test_two ____\n"
    )
    assert parse_sympy(log) == {
        "test_one": "PASSED",
        "test_two": "FAILED",
        "test_three": "ERROR",
        "test_four": "SKIPPED",
        "sympy/a/tests/test_b.py:test_two": "FAILED",
    }


def test_a_summary_is_counted(run, unittest_text):
    # 1 + 6 + 2 (in classes) + test_down's call; test_bad, two of test_q, Case::test_f; fixture, teardown, collection.
    assert summarise_tests(run[0]) == TestCounts(10, 4, 3)
    # 9 ran (the missing module is one): ok and doc pass, bad, xpass and sub fail, error and the module err.
    assert summarise_tests(unittest_text) == TestCounts(2, 3, 2)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("3 passed in 0.01s", (3, 0, 0)),
        ("==== 2 failed, 3 passed, 1 skipped, 2 warnings in 61.30s (0:01:01) ====", (3, 2, 0)),
        ("\x1b[31m=== \x1b[31m1 failed\x1b[0m, 1 error\x1b[31m in 0.12s\x1b[0m ===\x1b[0m", (0, 1, 1)),
        ("=== no tests ran in 0.01s ===", (0, 0, 0)),
        ("1 passed in 0.01s\n...\n2 failed in 0.02s", (0, 2, 0)),
        ("Ran 3 tests in 0.001s\n\nOK", (3, 0, 0)),
        ("Ran 3 tests in 0.001s\n\nOK (skipped=1)", (2, 0, 0)),
        ("Ran 5 tests in 0.001s\n\nFAILED (failures=2, errors=1)", (2, 2, 1)),
        ("Ran 1 test in 0.001s\n\nFAILED (errors=3)", (0, 0, 3)),
    ],
)
def test_summaries(text, counts):
    assert summarise_tests(text) == TestCounts(*counts)


@pytest.mark.parametrize("text", ["", "3 passed the door in 2s", "OK", "all 3 passed in 0.1s", "FAILED (failures=1)"])
def test_what_is_no_summary(text):
    assert summarise_tests(text) is None


@given(st.text(max_size=300))
def test_no_text_breaks_a_parser(text):
    for parse in (parse_pytest_log, parse_r2e, parse_unittest, parse_sympy):
        assert all(isinstance(status, str) for status in parse(text).values())
    summarise_tests(text)


def test_a_cut_off_id_is_matched_by_its_beginning():
    ran = {"a.py::t[x y]": 0, "a.py::t[x z]": 0, "a.py::t[w]": 0, "a.py::u": 0}
    assert matches("a.py::t[x", ran) == ("a.py::t[x y]", "a.py::t[x z]")
    assert matches("a.py::t[w]", ran) == ("a.py::t[w]",)
    assert matches("a.py::t", ran) == ()  # a whole id is no beginning
    assert matches("a.py::t[x y", ran) == ("a.py::t[x y]",)
    assert matches("a.py::t[q r]", {"a.py::t[q": 0}) == ("a.py::t[q",)  # read by splitting at blanks
    assert files_of(["b.py::t", "a.py::t[x::y]", "b.py::u", "d/"]) == ("b.py", "a.py", "d/")


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("", ({}, [])),
        ("pytest -rA", ({}, ["-rA"])),
        ("python -m pytest -rA tests/a.py", ({}, ["-rA", "tests/a.py"])),
        (
            "TZ=UTC LC_ALL='C x' python3.9 -W error -m pytest -x",
            ({"TZ": "UTC", "LC_ALL": "C x"}, ["-W", "error", "-x"]),
        ),
        ("pytest -k 'a and (b or c)' \"t.py::x[1 2]\"", ({}, ["-k", "a and (b or c)", "t.py::x[1 2]"])),
        ("pytest t.py::x[1-2]", ({}, ["t.py::x[1-2]"])),
        ("./tests/runtests.py --verbosity 2", None),
        ("cd a && pytest", None),
        ("pytest; true", None),
        ("pytest | tail", None),
        ("pytest $FILES", None),
        ("pytest tests/*.py", None),
        ("pytest 'unclosed", None),
        ("python -O -m pytest", None),
        ("bash /testbed/run_tests.sh", None),
        ("TZ=UTC", None),
    ],
)
def test_a_plain_call_of_pytest_is_told(command, wanted):
    assert pytest_arguments(command) == wanted


@pytest.mark.parametrize("call", ["bash run_tests.sh", "/testbed/run_tests.sh", "sh ./run_tests.sh 2>&1"])
def test_a_script_that_only_calls_pytest_is_that_call(call):
    line = ".venv/bin/python -W ignore -m pytest -rA r2e_tests"
    script = f"#!/bin/bash\n\n# run\nset -e\n{line}\n"
    assert script_command(call, {"run_tests.sh": script}) == line
    assert pytest_arguments(line) == ({}, ["-W", "ignore", "-rA", "r2e_tests"])
    for other in (script + "rm -r build\n", "make test\n", b"\xff"):
        assert script_command(call, {"run_tests.sh": other}) == call
    assert script_command(call, {}) == call
    assert script_command("bash a.sh && true", {"a.sh": line}) == "bash a.sh && true"


def test_files_are_added_only_where_none_are_named(tmp_path):
    (tmp_path / "tests").mkdir()
    tests = ["tests/a.py::t", "tests/b.py::u"]
    assert with_files(["-rA"], tests, tmp_path) == ["-rA", "tests/a.py", "tests/b.py"]
    assert with_files(["-k", "tests"], tests, tmp_path) == ["-k", "tests", "tests/a.py", "tests/b.py"]
    assert with_files(["tests"], tests, tmp_path) == ["tests"]
    assert with_files(["tests/a.py::t"], tests, tmp_path) == ["tests/a.py::t"]


def test_the_known_junit_names_are_those_pytest_writes(run):
    from rtmc.gymenvs.swe.grading.junit import junit_name

    written = set(re.findall(rb'classname="([^"]*)" name="([^"]*)"', run[1]))
    for test in TRUTH:
        pair = junit_name(test)
        assert tuple(part.encode() for part in pair) in written, pair
