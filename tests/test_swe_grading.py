"""Grades of attempts that are right, wrong, half right, hanging, or graded by another runner; runs and validation."""

import hashlib
import os

import pytest

from rtmc.gymenvs.sandbox import Limits, probe_sandboxes
from rtmc.gymenvs.swe.grading import TestReport, TestResult, compare_runs, grade, run_tests, validate
from rtmc.gymenvs.swe.grading.lay import lay_over
from rtmc.gymenvs.swe.grading.scan import scan_source
from rtmc.gymenvs.swe.patch import make_patch
from rtmc.gymenvs.swe.tree import WorkTree
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_grading_case import (
    BASE,
    FAIL_TO_PASS,
    FIXED,
    HIDDEN,
    PASS_TO_PASS,
    SOURCE,
    attempt,
    make_task,
    runtime,
    write,
)

pytestmark = NEEDS_SANDBOX


def test_each_test_is_told(tmp_path):
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED})
    assert (verdict.reward, verdict.resolved, verdict.partial, verdict.reason) == (1.0, True, False, None)
    assert dict(verdict.fail_to_pass) == dict.fromkeys(FAIL_TO_PASS, True)
    assert dict(verdict.pass_to_pass) == dict.fromkeys(PASS_TO_PASS, True)
    assert "7 passed" in verdict.log
    assert "failed" not in verdict.log  # canaries are nothing for people


def test_half_a_fix_is_partial(tmp_path):
    half = SOURCE.replace("cents * discount // 100", "(cents * discount + 50) // 100 - (cents == 199)")
    verdict = attempt(tmp_path, {"shop/prices.py": half})
    assert (verdict.reward, verdict.partial) == (0.0, True)
    assert verdict.fail_to_pass == {FAIL_TO_PASS[0]: True, FAIL_TO_PASS[1]: False}
    assert "test_discount[c] is FAILED: AssertionError: assert 196 == 197" in verdict.reason


def test_a_fix_that_breaks_another_thing_is_not_partial(tmp_path):
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED.replace("{number} x", "{number} times")})
    assert (verdict.reward, verdict.partial) == (0.0, False)
    assert verdict.pass_to_pass["tests/test_prices.py::test_receipt"] is False
    assert sum(verdict.pass_to_pass.values()) == len(PASS_TO_PASS) - 1


def test_a_syntax_error_scores_0_and_is_called_a_collection_error(tmp_path):
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED + "\n\ndef broken(:\n    pass\n"})
    assert verdict.reward == 0.0
    assert "collection error" in verdict.reason
    assert "shop/prices.py:14" in verdict.reason
    assert not any({**verdict.fail_to_pass, **verdict.pass_to_pass}.values())


def test_a_broken_conftest_of_the_code_is_called_a_collection_error(tmp_path):
    conftest = {"conftest.py": "import shop\n"}
    verdict = attempt(tmp_path, {"shop/__init__.py": "import nothing_such\n"}, base=BASE | conftest)
    assert verdict.reward == 0.0
    assert "collection error in conftest.py" in verdict.reason
    assert "nothing_such" in verdict.reason


@pytest.mark.parametrize("where", ["at import", "in a test"])
def test_a_hang_fails_within_its_limit(tmp_path, where):
    hang = "import time\ntime.sleep(1000)\n"
    source = (
        hang + SOURCE if where == "at import" else FIXED.replace('half up."""', 'half up."""\n    while items: pass')
    )
    verdict = attempt(tmp_path, {"shop/prices.py": source}, timeout_s=4.0)
    assert verdict.reward == 0.0
    assert "the run was stopped: wall time" in verdict.reason
    assert ("tests/test_fix.py::test_discount" in verdict.reason.split(";")[0]) is (where == "in a test")
    assert verdict.seconds < 20


def test_endless_output_is_stopped_and_fails(tmp_path):
    flood = "import os\nwhile True:\n    os.write(2, b'PASSED tests/test_fix.py::test_many\\n' * 99999)\n"
    task = make_task()
    base = tmp_path / "base"
    write(base, BASE)
    with WorkTree(base) as tree:
        write(tree.root, {"shop/prices.py": flood + SOURCE})
        verdict = grade(task, base, tree.snapshot(), runtime=runtime(), limits=Limits(wall_s=30.0))
    assert verdict.reward == 0.0
    assert "stopped" in verdict.reason
    assert len(verdict.log) <= 200_000


def test_a_missing_test_fails_and_a_cut_off_id_is_matched(tmp_path):
    missing = "tests/test_fix.py::test_that_is_not_there"
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED}, pass_to_pass=(*PASS_TO_PASS, missing))
    assert verdict.reward == 0.0
    assert f"1 of 6 pass_to_pass not as wanted: {missing} is missing" in verdict.reason
    cut = ("tests/test_fix.py::test_discount[a", FAIL_TO_PASS[1])
    assert attempt(tmp_path / "cut", {"shop/prices.py": FIXED}, fail_to_pass=cut).reward == 1.0
    assert attempt(tmp_path / "bug", {}, fail_to_pass=cut).fail_to_pass[cut[0]] is False


def test_a_skipped_test_is_maintained_but_has_not_passed(tmp_path):
    skipping = HIDDEN.replace("def test_many(limit):", "@pytest.mark.skip(reason='x')\ndef test_many(limit):")
    files = {"tests/test_fix.py": skipping}
    assert attempt(tmp_path, {"shop/prices.py": FIXED}, test_files=files).reward == 1.0
    many = "tests/test_fix.py::test_many"
    kept = tuple(test for test in PASS_TO_PASS if test != many)
    lists = {"fail_to_pass": (*FAIL_TO_PASS, many), "pass_to_pass": kept}
    verdict = attempt(tmp_path / "needed", {"shop/prices.py": FIXED}, test_files=files, **lists)
    assert (verdict.reward, verdict.fail_to_pass[many]) == (0.0, False)


def test_the_tasks_own_pytest_command_is_honoured(tmp_path):
    command = "python -m pytest -rA -k 'not nothing' tests/test_fix.py tests/test_prices.py"
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED}, test_command=command)
    assert verdict.reason == (
        "1 of 5 pass_to_pass not as wanted: tests/test_prices.py::TestEmpty::test_nothing is missing"
    )


@pytest.mark.parametrize("parser", ["unittest", "django"])
def test_a_unittest_task(tmp_path, parser):
    hidden = "import unittest\nfrom shop import total\n\n\nclass Fix(unittest.TestCase):\n" + (
        "    def test_half(self):\n        self.assertEqual(total([('a', 101, 1)], 50), 50)\n\n"
        "    def test_whole(self):\n        self.assertEqual(total([('a', 100, 1)], 50), 50)\n"
    )
    fields = {
        "fail_to_pass": ("test_half (tests.test_unit.Fix)",),
        "pass_to_pass": ("test_whole (tests.test_unit.Fix)", "tests.test_prices.TestEmpty.test_nothing"),
        "test_files": {"tests/test_unit.py": hidden, "tests/__init__.py": ""},
        "hidden_files": ("tests/test_unit.py",),
        "test_command": "python -m unittest -v tests.test_unit tests.test_prices 2>&1 && true",
        "test_parser": parser,
    }
    assert attempt(tmp_path, {"shop/prices.py": FIXED}, **fields).reason is None
    assert "is FAILED" in attempt(tmp_path / "bug", {}, **fields).reason
    broken = attempt(tmp_path / "broken", {"shop/prices.py": "def (:"}, **fields)
    assert (broken.reward, "collection error" in broken.reason) == (0.0, True)
    silent = attempt(tmp_path / "silent", {"shop/prices.py": "import os\nos._exit(0)\n"}, **fields)
    assert (silent.reward, "missing" in silent.reason) == (0.0, True)


@pytest.mark.parametrize("command", ["bash run_tests.sh", "", "true && python -m pytest -rA r2e_tests"])
def test_the_r2e_rule_wants_exactly_the_map(tmp_path, command):
    names = {"test_discount[a b]": "PASSED", "test_discount[c]": "PASSED", "test_discount[d]": "PASSED"}
    fields = {
        "fail_to_pass": (),
        "pass_to_pass": (),
        "expected": names | {"test_many": "FAILED"},  # a test that fails, and is to
        "test_files": {
            "r2e_tests/test_1.py": HIDDEN.replace("limit)", ")").replace("== limit", "== 0"),
            "run_tests.sh": "python -m pytest -rA r2e_tests",
        },
        "hidden_files": ("r2e_tests", "run_tests.sh"),
        "test_command": command,
        "test_parser": "r2e",
    }
    assert attempt(tmp_path, {"shop/prices.py": FIXED}, **fields).reason is None
    bug = attempt(tmp_path / "bug", {}, **fields)
    assert (bug.reward, "test_discount[a b] is FAILED, and PASSED was expected" in bug.reason) == (0.0, True)
    turned = attempt(
        tmp_path / "turned",
        {"shop/prices.py": FIXED},
        **{**fields, "expected": dict.fromkeys([*names, "test_many"], "FAILED")},
    )
    assert "3 of 4 tests not as wanted: test_discount[a b] is PASSED, and FAILED was expected" in turned.reason
    fewer = attempt(tmp_path / "fewer", {"shop/prices.py": FIXED}, **{**fields, "expected": names})
    assert (fewer.reward, fewer.reason) == (0.0, "4 tests ran, 3 are expected; not test_many")
    more = attempt(tmp_path / "more", {"shop/prices.py": FIXED}, **{**fields, "expected": {**names, "x": "PASSED"}})
    assert (more.reward, more.reason) == (0.0, "1 of 4 tests not as wanted: x is missing")


def test_a_crash_without_a_failed_test_is_no_success(tmp_path):
    # Everything that was asked for passes; and yet the command fails, which no line of the log explains.
    command = "python -m pytest -rA -o addopts= tests/test_prices.py tests/test_fix.py; exit 7"
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED}, test_command=command)
    assert verdict.reward == 0.0
    assert "ended with 7 and named no failed test" in verdict.reason
    assert all({**verdict.fail_to_pass, **verdict.pass_to_pass}.values())


def test_a_tree_that_is_pytest_itself_runs_its_own(tmp_path):
    own = {"src/_pytest/__init__.py": "", "src/pytest/__init__.py": "raise RuntimeError('this is the one')\n"}
    env = {"PYTHONPATH": "/testbed/src"}
    verdict = attempt(tmp_path, {"shop/prices.py": FIXED}, base=BASE | own, env=env)
    assert "this is the one" in verdict.log


def test_a_module_of_the_tree_is_found_by_the_tasks_path(tmp_path):
    base = {path.replace("shop/", "src/shop/"): content for path, content in BASE.items()}
    verdict = attempt(tmp_path, {"src/shop/prices.py": FIXED}, base=base, env={"PYTHONPATH": "src:/testbed/src"})
    assert verdict.reason is None


@pytest.mark.parametrize("backend", ["bwrap", "unshare", "plain"])
def test_every_backend_grades_alike(tmp_path, backend):
    probe = probe_sandboxes().get(backend)
    if probe is not None and not probe.works:
        pytest.skip(f"{backend} does not work here: {probe.why}")
    options = {"backend": backend, "trusted": backend == "plain"}
    base = {path.replace("shop/", "src/shop/"): content for path, content in BASE.items()}
    fields = {"base": base, "env": {"PYTHONPATH": "/testbed/src"}, "options": options}
    assert attempt(tmp_path / "fix", {"src/shop/prices.py": FIXED}, **fields).reason is None
    assert "is FAILED" in attempt(tmp_path / "null", {}, **fields).reason
    patched = "import unittest\nunittest.TestCase.assertEqual = print\n" + SOURCE
    assert "void" in attempt(tmp_path / "cheat", {"src/shop/prices.py": patched}, **fields).reason


# What is laid


def laid(tmp_path, base, files, **fields):
    write(tmp_path / "base", base)
    with WorkTree(tmp_path / "base") as tree:
        write(tree.root, files)
        result = lay_over(make_task(**fields), tree.base, tree.root, tree.changes())
        left = {
            path: (tree.root / path).read_text() for path in [*base, *files, "tests/test_fix.py"] if tree.exists(path)
        }
    return result, left


def test_what_the_gold_patch_changes_is_the_agents_even_where_it_looks_like_a_test(tmp_path):
    base = BASE | {"shop/test/client.py": "old\n", "shop/tests/test_a.py": "", "shop/tests/tool.py": "old\n"}
    ours = {"shop/test/client.py": "new\n", "shop/tests/tool.py": "new\n", "setup.cfg": "[metadata]\nname = a\n"}
    result, left = laid(tmp_path, base, ours)
    assert left["shop/test/client.py"] == "new\n"  # a folder `test` without tests is source
    assert left["shop/tests/tool.py"] == "old\n"
    assert left["setup.cfg"] == ours["setup.cfg"]  # nothing in it is pytest's
    assert set(result.changed) == {"shop/test/client.py", "setup.cfg"}
    patch = make_patch({"shop/tests/tool.py": "old\n"}, {"shop/tests/tool.py": "gold\n"})
    _, left = laid(tmp_path / "gold", base, ours, patch=patch)
    assert left["shop/tests/tool.py"] == "new\n"


@pytest.mark.parametrize(
    ("path", "content", "stays"),
    [
        (
            "pyproject.toml",
            '[project]\nname = "shop"\nversion = "2"\n[tool.pytest.ini_options]\naddopts = "-x"\n',
            True,
        ),
        ("pyproject.toml", '[project]\nname = "shop"\n[tool.pytest.ini_options]\naddopts = "-k no"\n', False),
        ("pyproject.toml", "[tool.pytest", False),
        ("setup.cfg", "[tool:pytest]\naddopts = -k no\n", False),
        ("setup.cfg", "[flake8]\nmax-line-length = 99\n", True),
        ("shop/setup.cfg", "[pytest]\naddopts = -k no\n", False),
        ("tox.ini", "[tox]\n", False),
        ("src/pytest.py", "", False),
        ("shop/pytest.py", "", True),  # no folder of the path: nothing imports it by that name
        ("lib/sitecustomize.py", "", False),
        ("shop/data.pyc", "", False),
        ("test_new.py", "", True),
        ("tests/new.py", "", False),
        ("tests/new.json", "{}", True),
    ],
)
def test_configuration_and_what_loads_by_itself_is_the_bases(tmp_path, path, content, stays):
    _, left = laid(tmp_path, BASE, {path: content})
    assert left.get(path) == (content if stays else BASE.get(path))


def test_what_is_laid_is_protected(tmp_path):
    result, left = laid(tmp_path, BASE, {})
    wanted = {"tests/test_fix.py", "tests/test_prices.py", "tests/conftest.py", "pyproject.toml"}
    assert set(result.protected) == wanted
    assert result.protected == {path: hashlib.sha256(left[path].encode()).hexdigest() for path in wanted}


@pytest.mark.parametrize("path", ["../out.py", "/abs.py", "a/../../out.py"])
def test_a_test_file_outside_the_tree_is_refused(tmp_path, path):
    write(tmp_path, BASE)

    class Loose:  # what a task would refuse to hold
        test_files, hidden_files, patch = {path: ""}, (), ""
        fail_to_pass = pass_to_pass = ()

    with pytest.raises(ValueError, match="outside the tree"):
        lay_over(Loose(), tmp_path, tmp_path, ())


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import _pytest.runner", "imports _pytest"),
        ("from unittest import mock", "imports unittest"),
        ("import os\nos._exit(0)", "uses os._exit"),
        ("def f(x):\n    return x.__code__", "uses .__code__"),
        ("x = 'PYTEST_ADDOPTS'", "holds the text"),
        ("class A:\n    def __eq__(self, o):\n        '''Same.'''\n        return True", "class A equals everything"),
        ("class A:\n    __eq__ = lambda self, o: True", "class A equals everything"),
        ("class A:\n    def __eq__(self, o):\n        x = 1\n        return not 0", "class A equals everything"),
        ("class A:\n    def __ne__(self, o):\n        return False", "class A equals everything"),
    ],
)
def test_the_scan_of_a_change(source, what):
    assert any(one.what.startswith(what) for one in scan_source(source))
    assert scan_source(source, before=source) == ()  # it was there before


@pytest.mark.parametrize(
    "source",
    [
        "import os, sys\nx = os.path.sep",
        "class A:\n    def __eq__(self, o):\n        return self.x == o.x",
        "def (",
        "",
    ],
)
def test_the_scan_finds_nothing_in_plain_code(source):
    assert scan_source(source) == ()


# Runs and validation


def test_run_tests_runs_a_folder(tmp_path):
    write(tmp_path, BASE)
    report = run_tests(tmp_path, runtime=runtime())
    assert report.complete
    assert {test: one.status for test, one in report.results.items()} == dict.fromkeys(
        [test for test in PASS_TO_PASS if "test_prices" in test], "PASSED"
    )
    assert report.exit_code == 0
    assert {*os.listdir(tmp_path)} - {".pytest_cache"} == {"README.md", "pyproject.toml", "shop", "tests"}


def test_run_tests_refuses(tmp_path):
    with pytest.raises(ValueError, match="parser='nose'"):
        run_tests(tmp_path, runtime=runtime(), parser="nose")
    with pytest.raises(ValueError, match="no folder"):
        run_tests(tmp_path / "gone", runtime=runtime())


def test_canaries_are_gone_after_the_run(tmp_path):
    write(tmp_path, BASE)
    report = run_tests(tmp_path, ["tests/test_prices.py"], runtime=runtime(), canaries=2)
    assert (report.forged, report.exit_code, len(report.results)) == ((), 0, 3)
    assert sorted(os.listdir(tmp_path / "tests")) == ["conftest.py", "test_prices.py"]


def test_validation_tells_flaky_tests_and_wrong_lists(tmp_path):
    flaky = HIDDEN + "\n\ndef test_luck():\n    assert hash('tea') % 2\n\n\ndef test_never():\n    assert 0\n"
    place = "tests/test_fix.py::"
    task = make_task(
        test_files={"tests/test_fix.py": flaky},
        fail_to_pass=(*FAIL_TO_PASS, f"{place}test_never"),
        pass_to_pass=(*PASS_TO_PASS, f"{place}test_luck"),
        patch=make_patch({"shop/prices.py": SOURCE}, {"shop/prices.py": FIXED}),
    )
    write(tmp_path, BASE)
    result = validate(task, tmp_path, runtime=runtime(), runs=3)
    assert result.fail_to_pass == FAIL_TO_PASS
    assert result.pass_to_pass == PASS_TO_PASS
    assert set(result.flaky) == {f"{place}test_luck"}  # seeds 0, 1, 2 give both parities
    assert result.wrong == (f"{place}test_never",)
    assert result.faults == ()
    assert not result.sound
    with pytest.raises(ValueError, match="at least 2"):
        validate(task, tmp_path, runtime=runtime(), runs=1)
    with pytest.raises(ValueError, match="no gold patch"):
        validate(make_task(), tmp_path, runtime=runtime())


def test_runs_are_compared():
    def report(**statuses):
        return TestReport({name: TestResult(status) for name, status in statuses.items()})

    before = [
        report(fix="FAILED", keep="PASSED", luck="PASSED", late="ERROR", skip="SKIPPED"),
        report(fix="ERROR", keep="PASSED", luck="PASSED", skip="SKIPPED"),
    ]
    after = [
        report(fix="PASSED", keep="PASSED", luck="PASSED", late="PASSED", skip="SKIPPED"),
        report(fix="XFAIL", keep="FAILED", late="PASSED", skip="SKIPPED"),
    ]
    result = compare_runs(["fix", "late"], ["keep", "luck", "skip", "gone"], before, after)
    assert result.fail_to_pass == ("fix", "late")
    assert result.pass_to_pass == ("skip",)
    assert result.flaky == {
        "keep": ("PASSED", "PASSED", "PASSED", "FAILED"),
        "luck": ("PASSED", "PASSED", "PASSED", "MISSING"),
    }
    assert result.wrong == ("gone",)
    assert compare_runs(["fix"], [], before, [TestReport({}, stopped="memory")]).faults == (
        "after the fix, run 1: stopped by the limit of memory",
    )
