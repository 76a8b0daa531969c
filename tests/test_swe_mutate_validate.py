"""Mutants judged by a package's own tests in a real sandbox, and tasks made of them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.grading.report import TestReport, TestResult
from rtmc.gymenvs.swe.mutate import validate
from rtmc.gymenvs.swe.mutate.journal import Journal
from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.make import Settings, changed_functions, difficulty, make_tasks, write_tasks
from rtmc.gymenvs.swe.mutate.mutants import Mutant, changed_lines
from rtmc.gymenvs.swe.mutate.validate import Baseline, judge, make_bench, measure
from rtmc.gymenvs.swe.sources import Folder
from rtmc.gymenvs.swe.task import SWETask
from tests.sandbox_help import NEEDS_SANDBOX

CODE = '''"""Prices."""


def clamp(value, low, high):
    if value < low:
        return low
    return min(value, high)


def total(prices, discount=0):
    found = 0
    for price in prices:
        found += clamp(price, 0, 100)
    return found - discount


def steps(count):
    left = []
    while count > 0:
        left.append(count)
        count -= 1
    return left


def unused(a):
    return a + 1
'''
TESTS = """import pytest

from shop.prices import clamp, steps, total


@pytest.mark.parametrize(("value", "expected"), [(-5, 0), (5, 5), (500, 100)])
def test_clamp(value, expected):
    assert clamp(value, 0, 100) == expected


def test_total():
    assert total([1, 2, 300], discount=3) == 100


def test_steps():
    assert steps(3) == [3, 2, 1]
"""
OTHER_TESTS = (
    "def test_name():\n    import shop\n\n    assert shop.__name__ == 'shop'\n\n\ndef test_never():\n    assert False\n"
)


def write_package(root: Path) -> Path:
    for name, text in {
        "shop/__init__.py": "",
        "shop/prices.py": CODE,
        "tests/test_prices.py": TESTS,
        "tests/test_other.py": OTHER_TESTS,
        "setup.py": "raise SystemExit\n",
        "docs/conf.py": "x = 1 + 1\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    package = read_package(write_package(tmp_path_factory.mktemp("shop")), "shop")
    assert [source.name for source in package.modules] == ["shop/__init__.py", "shop/prices.py"]
    assert package.tests == ("tests/test_other.py", "tests/test_prices.py")
    return make_bench(package, limit_s=60)


@pytest.fixture(scope="module")
def measured(bench):
    return measure(bench, limit_s=6)


def mutant(old: str, new: str, name: str = "total") -> Mutant:
    assert CODE.count(old) == 1
    data = CODE.replace(old, new).encode()
    return Mutant("shop/prices.py", "by hand", ((name, 1),), data, changed_lines(CODE.encode(), data))


@NEEDS_SANDBOX
def test_the_clean_suite(measured):
    _, baseline = measured
    assert set(baseline.stable) == {
        *(f"tests/test_prices.py::test_clamp[{value}]" for value in ("-5-0", "5-5", "500-100")),
        "tests/test_prices.py::test_total",
        "tests/test_prices.py::test_steps",
        "tests/test_other.py::test_name",
    }
    assert baseline.failing == ("tests/test_other.py::test_never",)
    assert baseline.flaky == ()


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("old", "new", "status", "failing"),
    [
        ("found - discount", "found + discount", "accepted", ["tests/test_prices.py::test_total"]),
        ("return a + 1", "return a - 1", "survived", []),
        ("if value < low:", "if value <= low:", "survived", []),  # the same for every value
        ("        left.append(count)\n        count -= 1\n", "        pass\n", "timeout", []),
        ('"""Prices."""', "1 // 0", "collection error", []),
        ('"""Prices."""', "import os; os._exit(0)", "crash", []),
        ("    left = []\n", "    import os; os._exit(3)\n", "crash", []),
    ],
)
def test_what_becomes_of_a_mutant(measured, old, new, status, failing):
    judged = judge(*measured, mutant(old, new))
    assert judged.status == status
    assert list(judged.fail_to_pass) == failing
    if status == "accepted":
        assert set(judged.pass_to_pass) == set(measured[1].stable) - set(failing)


@NEEDS_SANDBOX
def test_what_a_failing_test_saw(measured):
    bench, _ = measured
    broken = mutant("return min(value, high)", "return value", "clamp")
    tests = ["tests/test_prices.py::test_total", "tests/test_prices.py::test_clamp[500-100]"]
    functions = list(changed_functions(broken))
    assert functions == [("shop/prices.py", 4, 4)]
    notes = {note["test"]: note for note in bench.observe({broken.path: broken.data}, tests, functions)}
    assert {test: note["depth"] for test, note in notes.items()} == dict(zip(tests, [2, 1], strict=True))
    note = notes[tests[1]]
    lines = TESTS.split("\n")
    assert (note["file"], lines[note["line"] - 1].strip()) == (
        "tests/test_prices.py",
        "assert clamp(value, 0, 100) == expected",
    )
    assert lines[note["first"] - 1].startswith("@pytest.mark.parametrize")
    assert note["ours"] == ["clamp", "steps", "total"]
    assert note["public"] == {}  # the package's top offers none of them
    assert note["parameters"] == {"value": "500", "expected": "100"}
    assert note["message"].startswith("assert 500 == 100")


def test_a_suite_that_runs_an_installed_copy(bench, monkeypatch):
    # It passes whatever stands in the folder, as it does where another copy of the package is found first.
    monkeypatch.setattr(validate.Bench, "run", lambda *_: report(a="PASSED"))
    with pytest.raises(ValueError, match="pass without the code of this folder"):
        measure(bench)


@NEEDS_SANDBOX
def test_a_suite_without_a_passing_test(tmp_path):
    write_package(tmp_path)
    (tmp_path / "tests/test_prices.py").write_text("import not_there\n")
    (tmp_path / "tests/test_other.py").unlink()
    with pytest.raises(ValueError, match=r"none of its tests passes in two clean runs: .*not_there"):
        measure(make_bench(read_package(tmp_path, "shop"), limit_s=30))


@NEEDS_SANDBOX
def test_tasks_and_how_a_run_goes_on(bench, tmp_path, monkeypatch):
    settings = Settings(count=2, seed=1, jobs=2)
    origin = Folder(str(bench.package.root))
    path = tmp_path / "out.jsonl.journal"
    told = []
    with Journal(path) as journal:
        made = make_tasks(bench, origin, settings, journal, lambda made, wanted: told.append((len(made.tasks), wanted)))
    assert len(made.tasks) == 2
    assert told[-1] == (2, 2)
    assert made.mutants == sum(made.counts.values()) == len(told)
    for task in made.tasks:
        assert task.fail_to_pass
        assert set(task.hidden_files) == {test.split("::")[0] for test in task.fail_to_pass}
        assert SWETask.from_json(task.to_json()) == task
        assert "shop/prices.py" in task.bug_patch
        rest = re.sub(r"^ *from shop\.prices import .*$", "", task.problem_statement, flags=re.MULTILINE)
        for secret in ("prices.py", "shop.prices", *changed(task.bug_patch)):
            assert secret not in rest

    # Once more: everything is found in the journal, nothing runs. A cut-off last line is dropped.
    def no_run(*_):
        raise RuntimeError("a test ran")

    monkeypatch.setattr(validate.Bench, "run", no_run)
    with path.open("ab") as file:
        file.write(b'{"key": "shop:cut o')
    with Journal(path) as journal:
        again = make_tasks(bench, origin, settings, journal)
    assert again.tasks == made.tasks
    assert again.to_json() == made.to_json()
    # With a record less, that mutant has to run again.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) if b"accepted" in lines[-1] else lines[0])
    with Journal(path) as journal, pytest.raises(RuntimeError, match="a test ran"):
        make_tasks(bench, origin, settings, journal)

    assert write_tasks(tmp_path / "out.jsonl", made.tasks) == 2
    read = [SWETask.from_json(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert read == made.tasks
    assert [found.name for found in tmp_path.iterdir() if "part" in found.name] == []


def changed(patch: str) -> list[str]:
    lines = [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return [line[1:].strip() for line in lines if line[1:].strip()]


def report(**statuses: str) -> TestReport:
    return TestReport({test: TestResult(status) for test, status in statuses.items()})


def test_flaky_tests_are_left_out(bench, monkeypatch):
    runs = iter(
        [
            report(a="PASSED", b="PASSED", c="FAILED", d="SKIPPED"),
            report(a="FAILED"),  # without the package's code
            report(a="PASSED", b="FAILED", c="PASSED", d="SKIPPED"),
        ]
    )
    monkeypatch.setattr(validate.Bench, "run", lambda *_: next(runs))
    _, baseline = measure(bench)
    assert (baseline.stable, baseline.flaky, baseline.failing) == (("a",), ("b", "c"), ("d",))
    assert baseline.limit_s == 10.0


ALL = tuple("abcdefghij")


@pytest.mark.parametrize(
    ("first", "second", "status", "fails"),
    [
        ({"a": "FAILED"}, {"a": "FAILED"}, "accepted", ("a",)),
        ({"a": "FAILED", "b": "ERROR"}, {"b": "FAILED"}, "accepted", ("b",)),
        ({"a": "FAILED"}, {}, "unstable", ()),
        ({"a": "FAILED"}, {"b": "FAILED"}, "unstable", ()),
        ({}, {}, "survived", ()),
        ({"a": "SKIPPED"}, {}, "survived", ()),
        (dict.fromkeys("abcdefgh", "FAILED"), dict.fromkeys("abcdefgh", "FAILED"), "accepted", ALL[:8]),
        (dict.fromkeys("abcdefghi", "FAILED"), {}, "nearly all tests fail", ()),
        ({"a": None, "b": "FAILED"}, {}, "tests missing", ()),
    ],
)
def test_two_runs_decide(bench, monkeypatch, first, second, status, fails):
    def made(changes):
        found = {**dict.fromkeys(ALL, "PASSED"), **changes}
        return report(**{test: status for test, status in found.items() if status is not None})

    runs = iter([made(first), made(second)])
    monkeypatch.setattr(validate.Bench, "run", lambda *_: next(runs))
    judged = judge(bench, Baseline(ALL, (), (), 1.0, 10.0), mutant("return a + 1", "return a"))
    assert (judged.status, judged.fail_to_pass) == (status, fails)
    if status == "accepted":
        both = set(first) | set(second)
        assert judged.pass_to_pass == tuple(test for test in ALL if test not in both)


@pytest.mark.parametrize(
    ("stopped", "status"), [("wall time", "timeout"), ("cpu time", "timeout"), ("memory", "crash")]
)
def test_a_stopped_run(bench, monkeypatch, stopped, status):
    monkeypatch.setattr(validate.Bench, "run", lambda *_: replace(report(a="PASSED"), stopped=stopped))
    assert judge(bench, Baseline(("a",), (), (), 1, 10), mutant("return a + 1", "return a")).status == status


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ((9, 1, 100, 1), "easy"),
        ((2, 1, 100, 1), "easy"),
        ((2, 3, 100, 1), "medium"),
        ((9, None, 401, 1), "medium"),
        ((1, 3, 401, 1), "hard"),
        ((1, 4, 900, 2), "hard"),
        ((9, 2, 400, 2), "easy"),
    ],
)
def test_difficulty(arguments, label):
    assert difficulty(*arguments) == label


def test_a_journal_goes_on_behind_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.put("a", {"n": 1})
        journal.put("b", {"n": 2})
    whole = path.read_bytes()
    for cut in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert (journal.get("a"), journal.get("b")) == ({"n": 1}, None)
            journal.put("b", {"n": 2})
        assert path.read_bytes() == whole


def test_a_file_that_is_no_journal(tmp_path):
    (tmp_path / "j").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="line 1: this is no record"):
        Journal(tmp_path / "j")
    assert json.loads((tmp_path / "j").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    "settings", [{"count": 0}, {"jobs": 0}, {"most": 0}, {"limit_s": 0.0}, {"limit_s": float("nan")}, {"kinds": ("x",)}]
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Settings(**settings)


def test_packages_without_code_or_tests(tmp_path):
    (tmp_path / "test_a.py").write_text("")
    with pytest.raises(ValueError, match="no Python module"):
        read_package(tmp_path, "x")
    (tmp_path / "a.py").write_text("")
    (tmp_path / "test_a.py").unlink()
    with pytest.raises(ValueError, match="no tests"):
        read_package(tmp_path, "x")
