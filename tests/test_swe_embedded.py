"""The shipped SWE tasks: each bug is noticed by the tests that say so and by no other, and its text tells the truth."""

import json
import shutil

import pytest

from rtmc.gymenvs.swe.mutate import ready
from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.ready import check, main, pack, unpack
from rtmc.gymenvs.swe.mutate.readyset import DATA, read_ready, ready_packages, ready_tasks
from rtmc.gymenvs.swe.mutate.validate import make_bench
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.sources import Embedded
from rtmc.gymenvs.swe.task import SWETask
from tests.sandbox_help import NEEDS_SANDBOX

PACKAGES = {package.name: package for package in ready_packages()}


@NEEDS_SANDBOX
@pytest.mark.parametrize("name", PACKAGES)
def test_every_task_is_as_it_says(name):
    assert check(PACKAGES[name]) == []


def test_the_set():
    tasks = ready_tasks()
    assert len(tasks) == 20
    assert len({task.task_id for task in tasks}) == 20
    assert len(PACKAGES) == 6
    counts = {label: sum(task.difficulty == label for task in tasks) for label in ("easy", "medium", "hard")}
    assert sum(counts.values()) == 20
    assert min(counts.values()) >= 5
    for package in PACKAGES.values():
        assert len(package.tests) >= 15
        code = [text for path, text in package.files.items() if path.endswith(".py") and not path.startswith("tests/")]
        assert sum(text.count("\n") for text in code) >= 80


# Other fixes that do what text, README and docstrings say; each edit is made in the tree with the bug.
OTHER_FIXES = {
    "nestdiff-shifting-removals": [
        (
            "nestdiff/changes.py",
            "yield Change(join((*path, head + at)), old_middle[at], ABSENT)",
            "yield Change(join((*path, head + shared)), old_middle[at], ABSENT)",
        )
    ],
    "spans-lost-hole": [
        (
            "spans/spanset.py",
            "if joined and joined[-1].touches(interval):",
            "last = joined[-1] if joined else None\n"
            "        hole = last and last.high == interval.low and not (last.closed_high or interval.closed_low)\n"
            "        if last and last.touches(interval) and not hole:",
        )
    ],
    "keepcache-evicts-the-living": [
        (
            "keepcache/cache.py",
            "        self._make_room(weight)\n",
            "        self.expire()\n        self._make_room(weight)\n",
        )
    ],
    "deptree-cycle-story": [("deptree/graph.py", "return [*path, name]", "return [*path[path.index(name) :], name]")],
    "cronexpr-star-step-days": [
        ("cronexpr/schedule.py", f'words[{k}] == "*"', f'words[{k}].split("/")[0] == "*"') for k in (2, 4)
    ],
}


@NEEDS_SANDBOX
@pytest.mark.parametrize("task_id", OTHER_FIXES)
def test_another_right_fix_passes(task_id, tmp_path):
    package, one = next((p, one) for p in PACKAGES.values() for one in p.planted if one.task.task_id == task_id)
    texts = {**package.files, **one.broken}
    for path, old, new in OTHER_FIXES[task_id]:
        assert texts[path].count(old) == 1
        texts[path] = texts[path].replace(old, new)
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    report = make_bench(read_package(tmp_path, package.name), limit_s=60).run({})
    assert set(report.results) == set(package.tests)
    assert [test for test, result in report.results.items() if not result.passed] == []


@pytest.mark.parametrize("task", ready_tasks(), ids=lambda task: task.task_id)
def test_fields(task, tmp_path):
    assert SWETask.from_json(json.dumps(task.to_json())) == task
    package = PACKAGES[task.repo]
    assert set(task.fail_to_pass) | set(task.pass_to_pass) == set(package.tests)
    assert isinstance(task.source, Embedded)
    assert set(task.hidden_files) < set(task.source.files)
    assert len(task.problem_statement.splitlines()[0]) < 100
    # The patch of the bug applies to the package, and gives what the edits give.
    for path, text in package.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    apply_patch(tmp_path, task.bug_patch)
    planted = next(one for one in package.planted if one.task == task)
    now = {path: (tmp_path / path).read_text() for path in package.files}
    assert now == {**package.files, **planted.broken}


@pytest.fixture
def folder(tmp_path):
    """A package unpacked, with its record, to plant faults in."""
    unpack("cronexpr", tmp_path / "cronexpr")
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(DATA / "ready_cronexpr.json", data)
    return tmp_path


@NEEDS_SANDBOX
def test_packing_what_was_unpacked_changes_nothing(folder):
    written = pack(folder / "cronexpr", folder / "data")
    assert written.read_text() == (DATA / "ready_cronexpr.json").read_text()


def _with(folder, change):
    path = folder / "data" / "ready_cronexpr.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return path


def _only_first(record):
    record["tasks"] = record["tasks"][:1]


def _no_bug(record):
    _only_first(record)
    edit = record["tasks"][0]["edits"][0]
    edit["new"] = [line + "  # nothing" for line in edit["old"]]


def _untrue_text(record):
    _only_first(record)
    statement = record["tasks"][0]["problem_statement"]
    statement[statement.index("    False")] = "    True"


def _place_in_text(record):
    _only_first(record)
    record["tasks"][0]["problem_statement"].append("See schedule.py, it says so.")


def _unlisted_failure(record):
    _only_first(record)
    record["tasks"][0]["fail_to_pass"].pop()


def _test_that_is_gone(record):
    _only_first(record)
    record["tests"].append("tests/test_days.py::test_gone")


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_no_bug, "should fail and does not"),
        (_untrue_text, "the examples of its text"),
        (_place_in_text, "names cronexpr/schedule.py"),
        (_unlisted_failure, "fails and is not listed"),
        (_test_that_is_gone, "is listed and did not run"),
    ],
)
def test_a_planted_fault_is_found(folder, change, fault):
    found = check(read_ready(_with(folder, change)))
    assert any(fault in line for line in found), found


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda record: record.pop("tests"), "no file of shipped tasks"),
        (
            lambda record: record["tasks"][0]["edits"][0].update(path="no.py"),
            "task 'cronexpr-sunday', edit 1: there is no",
        ),
        (lambda record: record["tasks"][0]["edits"][0].update(old=["import"]), "stands .* times in .*, wanted 1"),
        (lambda record: record["tasks"][0]["fail_to_pass"].append("x"), "'x' is no test of the package"),
    ],
)
def test_broken_files(folder, change, fault):
    with pytest.raises(ValueError, match=fault):
        read_ready(_with(folder, change))


def test_the_command(folder, capsys, monkeypatch):
    monkeypatch.setattr(ready, "check", lambda package: [f"{package.name}: wrong"] if package.name == "spans" else [])
    assert main(["check", "spans", "deptree"]) == 1
    assert capsys.readouterr().out.splitlines() == ["deptree: 3 tasks are as they say", "spans: wrong"]
    assert main(["check", "deptree"]) == 0
    assert main(["check", "nothing"]) == 2
    assert main(["unpack", "nothing", str(folder / "x")]) == 2
    assert "no shipped package 'nothing'" in capsys.readouterr().err
    assert main(["pack", str(folder / "missing")]) == 2
