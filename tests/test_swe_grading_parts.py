"""Tests of many parts, and the ways of unittest to skip and to fail, counted as pytest counts them."""

import hashlib

import pytest

from rtmc.gymenvs.swe.grading import run_tests
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_grading_case import FIXED, attempt, runtime, write
from tests.test_swe_grading_stream import junit, phases, read, session, stream

SUITE = """import unittest

import pytest

from shop import total


def part(outcome):
    if outcome == "skip":
        pytest.skip("not here")
    assert outcome == "pass"


class Parts(unittest.TestCase):
    def test_all(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertEqual(total([("tea", number, 1)]), number)

    def test_some_skipped(self):
        for number in range(3):
            with self.subTest(number=number):
                if number == 1:
                    self.skipTest("not here")

    def test_every_one_skipped(self):
        for number in range(3):
            with self.subTest(number=number):
                self.skipTest("not here")

    def test_some_failed(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)

    def test_skipped_and_failed(self):
        for number in range(3):
            with self.subTest(number=number):
                if number == 0:
                    self.skipTest("not here")
                self.assertNotEqual(number, 1)

    def test_a_skip_and_then_a_failure(self):
        with self.subTest(number=0):
            self.skipTest("not here")
        self.assertEqual(1, 2)

    def test_skipped_as_a_whole_after_a_part(self):
        with self.subTest(number=0):
            self.skipTest("not here")
        self.skipTest("later")

    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(1, 2)

    @unittest.expectedFailure
    def test_expected_in_a_part(self):
        with self.subTest(number=0):
            self.assertEqual(1, 2)

    @unittest.expectedFailure
    def test_not_as_expected(self):
        pass


class Without(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("no class")

    def test_never(self):
        pass


@pytest.mark.parametrize("outcomes", [("pass", "skip"), ("skip", "fail"), ("pass", "pass")], ids="abc")
def test_fixture(subtests, outcomes):
    for outcome in outcomes:
        with subtests.test(outcome=outcome):
            part(outcome)


@pytest.mark.xfail(strict=True)
def test_strict():
    assert False


@pytest.mark.xfail(strict=True)
def test_strict_and_passes():
    pass


@pytest.mark.xfail
def test_lax_and_passes():
    pass


@pytest.mark.parametrize("number", [1, 1])
def test_twice(number):
    pass
"""
WANTED = {
    "Parts::test_all": "PASSED",
    "Parts::test_some_skipped": "PASSED",
    "Parts::test_every_one_skipped": "PASSED",
    "Parts::test_some_failed": "FAILED",
    "Parts::test_skipped_and_failed": "FAILED",
    "Parts::test_a_skip_and_then_a_failure": "FAILED",
    "Parts::test_skipped_as_a_whole_after_a_part": "SKIPPED",
    "Parts::test_expected": "XFAIL",
    "Parts::test_expected_in_a_part": "XFAIL",
    "Parts::test_not_as_expected": "FAILED",
    "Without::test_never": "SKIPPED",
    "test_fixture[a]": "PASSED",
    "test_fixture[b]": "FAILED",
    "test_fixture[c]": "PASSED",
    "test_strict": "XFAIL",
    "test_strict_and_passes": "FAILED",
    "test_lax_and_passes": "XPASS",
    "test_twice[1_0]": "PASSED",
    "test_twice[1_1]": "PASSED",
}


@NEEDS_SANDBOX
def test_every_kind_counts_as_pytest_counts_it(tmp_path):
    write(tmp_path, {"shop/__init__.py": FIXED, "test_parts.py": SUITE})
    tmp_path.chmod(0o755)
    own = {"test_parts.py": hashlib.sha256(SUITE.encode()).hexdigest()}
    report = run_tests(tmp_path, ["test_parts.py"], runtime=runtime(), canaries=2, base=tmp_path, protected=own)
    assert report.forged == ()
    assert {name.partition("::")[2]: one.status for name, one in report.results.items()} == WANTED


@NEEDS_SANDBOX
def test_an_id_that_comes_twice_has_the_worse_result(tmp_path):
    double = (
        "done = []\n\n\ndef test_once():\n    done.append(1)\n    assert len(done) == {wanted}\n\n\n"
        "def test_other():\n    pass\n"
    )
    conftest = "def pytest_collection_modifyitems(items):\n    items.extend(list(items))\n"
    for wanted in (1, 2):
        place = tmp_path / str(wanted)
        write(place, {"test_double.py": double.format(wanted=wanted), "conftest.py": conftest})
        place.chmod(0o755)
        report = run_tests(place, ["test_double.py"], runtime=runtime(), canaries=2, base=place)
        assert report.forged == ()
        assert {name: one.status for name, one in report.results.items()} == {
            "test_double.py::test_once": "FAILED",
            "test_double.py::test_other": "PASSED",
        }


PARTED = """import unittest

from shop import total


class TestFix(unittest.TestCase):
    def test_parts(self):
        for cents, off, wanted in ((101, 50, 50), (199, 1, 197), (1000, 10, 900)):
            with self.subTest(cents=cents):
                if cents == 1000:
                    self.skipTest("not here")
                self.assertEqual(total([("tea", cents, 1)], off), wanted)
"""
TASK = {
    "test_files": {"tests/test_fix.py": PARTED},
    "fail_to_pass": ("tests/test_fix.py::TestFix::test_parts",),
    "pass_to_pass": (),
}


@NEEDS_SANDBOX
@pytest.mark.parametrize("how", ["unittest.SkipTest", "pytest.skip.Exception"])
def test_no_part_is_skipped_by_the_code_under_test(tmp_path, how):
    """A part's skip leaves its test a pass, so that it has to be the test's own."""
    good = attempt(tmp_path / "good", {"shop/prices.py": FIXED}, **TASK)
    assert (good.reward, good.reason) == (1.0, None)
    assert attempt(tmp_path / "null", {}, **TASK).reward == 0.0
    skipping = f"import pytest\nimport unittest\n\n\ndef total(items, discount=0):\n    raise {how}('no')\n"
    skipping += "\n\ndef receipt(items):\n    return []\n"
    verdict = attempt(tmp_path / "bad", {"shop/prices.py": skipping}, **TASK)
    assert verdict.reward == 0.0
    assert "the code under test (shop/prices.py) stopped the test" in verdict.reason


def parted(test: str, *parts: str):
    """A test with subtests, in the order in which pytest tells of them."""
    first, second, *rest = phases(test)
    yield from (first, second)
    for outcome in parts:
        yield "phase", test, "call", outcome, False, "" if outcome == "passed" else "E", "", True, False, "", 0.1
        yield "log", test, "call", outcome, False, True
    yield from rest


@pytest.mark.parametrize(
    ("parts", "report", "status", "void"),
    [
        (("passed", "skipped"), "SKIPPED", "PASSED", False),
        (("skipped", "passed"), "PASSED", "PASSED", False),
        (("passed", "passed"), "SKIPPED", "PASSED", True),
        (("passed", "skipped"), "FAILED", "PASSED", True),
        (("skipped", "failed"), "FAILED", "FAILED", False),
        (("skipped", "failed"), "SKIPPED", "FAILED", False),
    ],
)
def test_the_report_of_pytest_may_name_a_part(parts, report, status, void):
    channel = read(stream(session(parted("a.py::t", *parts), report=junit(t=report))))
    assert channel.results["a.py::t"].status == status
    assert bool(channel.forged) is void


def test_a_part_is_no_end_of_its_test():
    whole = list(parted("a.py::t", "skipped"))
    cut = [message for message in whole if message[1:3] != ("a.py::t", "call")] + whole[2:4]
    assert read(stream(session(cut, report=junit(t="SKIPPED")))).results == {}
