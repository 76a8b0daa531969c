"""Made tasks before the real grader; one run at a time for an output; what a run says of a package it cannot use."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rtmc.cli.command import UsageError
from rtmc.cli.swe import MAKE_SWE_TASKS
from rtmc.gymenvs.swe.mutate import holding, make, packages, validate
from rtmc.gymenvs.swe.mutate.holding import held
from rtmc.gymenvs.swe.mutate.journal import Journal
from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.make import Settings, make_tasks
from rtmc.gymenvs.swe.mutate.validate import NOT_PAID, UNSOUND, make_bench, telling
from rtmc.gymenvs.swe.soundness import check_task
from rtmc.gymenvs.swe.sources import Folder
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_making import lay, run

CODE = """def f(x, y):
    if x > y:
        return x - y
    return y - x


def g(x):
    return [x + 1, x * 2, f(x, 3)]
"""
TESTS = """import unittest

import pytest

from mine import f, g


class Parts(unittest.TestCase):
    def test_f(self):
        for x, y in ((5, 2), (2, 5), (0, 0)):
            with self.subTest(x=x):
                if not x:
                    self.skipTest("not here")
                self.assertEqual(f(x, y), 3)

    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(f(1, 1), 1)


class Without(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("no class")

    def test_never(self):
        pass


@pytest.mark.parametrize("x", [4, 4])
def test_g(x, subtests):
    for at, wanted in enumerate([5, 8, 1]):
        with subtests.test(at=at):
            if at == 1:
                pytest.skip("not here")
            assert g(x)[at] == wanted


@pytest.mark.xfail(strict=True)
def test_strict():
    assert g(1) == []


def test_plain():
    assert f(7, 2) == 5
    assert f(2, 7) == 5
    assert g(4) == [5, 8, 1]
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    return lay(tmp_path, CODE, TESTS, monkeypatch)


@NEEDS_SANDBOX
def test_a_suite_of_parts_and_skips_makes_tasks(package):
    assert run("./mine", "--count", "1", "--jobs", "2") == 0
    lines = (package / "tasks.jsonl").read_text().splitlines()
    tasks = [make.SWETask.from_json(line) for line in lines]
    assert len(tasks) == 1
    assert all(check_task(task, runs=1).sound for task in tasks)
    assert "test_mine.py::Parts::test_expected" in {*tasks[0].fail_to_pass, *tasks[0].pass_to_pass}


@NEEDS_SANDBOX
def test_what_the_grader_refuses_is_no_task(package, monkeypatch, capsys):
    # A suite that runs well and whose results void every grade: it changes itself while it runs.
    (package / "mine" / "test_self.py").write_text(
        "import pathlib\n\nimport mine\n\n\ndef test_self():\n    assert mine.g(1)[0] == 2\n"
        "    path = pathlib.Path(__file__)\n    path.write_text(path.read_text() + '#')\n"
    )
    assert run("./mine", "--jobs", "2", "--most", "2", "--json") == 0
    (made,) = json.loads(capsys.readouterr().out)["packages"]
    assert made["tasks"] == 0
    assert made["rejected"][NOT_PAID] > 0
    assert all("the gold patch is not paid: the result is void" in why for why in made["refused"])
    assert (package / "tasks.jsonl").read_text() == ""
    # It is remembered: nothing is run, and the reason is told again.
    monkeypatch.setattr(validate.Bench, "run", None)
    monkeypatch.setattr(make, "check_task", None)
    assert run("./mine", "--most", "2") == 0
    assert "the gold patch is not paid: the result is void" in capsys.readouterr().out


@NEEDS_SANDBOX
def test_a_task_that_pays_for_nothing_is_none(package, monkeypatch):
    def paid(task, **options):
        assert options["runs"] == 1
        return replace(check_task(task, **options), null=(1.0,), why="doing nothing is paid")

    monkeypatch.setattr(make, "check_task", paid)
    bench = make_bench(read_package(package / "mine", "mine"))
    with Journal(package / "j") as journal:
        made = make_tasks(bench, Folder(str(package / "mine")), Settings(count=1, most=2), journal)
    assert made.tasks == []
    assert made.counts[UNSOUND] > 0
    assert set(made.refused) == {"doing nothing is paid"}


def test_tasks_name_what_their_tests_need(package, monkeypatch):
    monkeypatch.setattr(make, "describe", lambda *_: make_described())
    bench = make_bench(read_package(package / "mine", "mine"), ["hypothesis"])
    plain = make_bench(bench.package)
    mutant = next(iter(make.mutants(bench.package.modules, 0, ("operator",))))
    baseline = validate.Baseline(("t",), (), (), 1.0, 10.0)
    origin = Folder(str(package / "mine"))
    task = make._task(bench, baseline, origin, mutant, ("test_mine.py::t",), ())
    assert task.python_packages == ("hypothesis",)
    keys = {make._key(one, origin, Settings()) for one in (bench, plain)}
    assert len(keys) == 2


def make_described():
    from rtmc.gymenvs.swe.mutate.describe import Described

    return Described("It is wrong.", "", 1)


def test_one_run_at_a_time_for_an_output(tmp_path):
    output = tmp_path / "tasks.jsonl"
    link = tmp_path / "link.jsonl"
    link.symlink_to(output)
    with held(output, "the first"):
        for name in (output, link):
            with pytest.raises(ValueError, match=rf"by process {os.getpid()} on .*: the first; wait"), held(name, "2"):
                pass
        with held(tmp_path / "other.jsonl"):
            pass
    with held(link):
        pass
    link.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_died_holds_nothing(tmp_path):
    code = "from rtmc.gymenvs.swe.mutate.holding import held; import os, pathlib\n"
    code += f"with held(pathlib.Path({str(tmp_path / 'a')!r})): os._exit(0)"
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, check=True)
    assert [path.name for path in tmp_path.iterdir()] == [".a.lock"]
    with held(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    flock, place, calls = fcntl.flock, tmp_path / ".a.lock", []

    def late(lock, operation):
        """Another holder ends, and removes its file, between our opening and our locking of it."""
        calls.append(lock)
        if len(calls) == 1:
            place.unlink()
        flock(lock, operation)

    monkeypatch.setattr(holding.fcntl, "flock", late)
    with held(tmp_path / "a"):
        assert place.is_file()
        with pytest.raises(ValueError, match="is being written already"), held(tmp_path / "a"):
            pass
    assert len(calls) == 3


def test_of_many_that_want_it_one_at_a_time_has_it(tmp_path):
    inside, most, had = [], [], []

    def try_often():
        for _ in range(200):
            try:
                with held(tmp_path / "a"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    had.append(1)
            except ValueError:
                continue

    threads = [threading.Thread(target=try_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert had
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_is_refused_and_says_who_holds_the_output(package):
    before = sorted(path.name for path in package.iterdir())
    refused = pytest.raises(ValueError, match=rf"process {os.getpid()} .*make-swe-tasks ./other")
    with held(package / "tasks.jsonl", "rtmc make-swe-tasks ./other"), refused:
        run("./mine")
    assert sorted(path.name for path in package.iterdir()) == before


@NEEDS_SANDBOX
def test_a_clean_run_that_hangs_ends_at_its_own_limit(package, capsys):
    (package / "mine" / "test_hang.py").write_text("import time\n\n\ndef test_hang():\n    time.sleep(600)\n")
    assert run("./mine", "--clean-timeout", "4") == 2
    told = capsys.readouterr().err
    assert "was stopped in test_hang.py::test_hang: wall time" in told
    assert "of the 4 s that a clean run may take" in told


def test_limits_are_told(package):
    assert "(default: 300)" in MAKE_SWE_TASKS.parser().format_help()
    with pytest.raises(UsageError, match="--clean-timeout must be above 0 seconds and finite, got 0"):
        run("./mine", "--clean-timeout", "0")
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        run("./mine", "--jobs", "0")


@pytest.mark.parametrize(
    ("word", "needs", "message"),
    [
        ("toolz>=1", [], "'toolz>=1' is no package: wanted `name`, `name==version`, or a folder with a slash"),
        ("./mine", ["nosuchmod"], "mine: its tests need 'nosuchmod', which is not installed here"),
        ("./mine", ["pytest>=1"], "mine: its tests need 'pytest>=1', which is not installed here by that name"),
        ("./empty", [], "empty: there are no tests in the folder './empty'"),
        ("./broken", [], "broken: of 1 modules in the folder './broken' none can be mutated: broken.py: "),
    ],
)
def test_what_a_user_did_is_said_in_a_user_s_words(package, capsys, word, needs, message):
    for name, text in (("empty", "x = 1\n"), ("broken", "def (:\n")):
        (package / name).mkdir()
        (package / name / f"{name}.py").write_text(text)
    (package / "broken" / "test_broken.py").write_text("def test():\n    pass\n")
    assert run(word, *(part for name in needs for part in ("--with", name))) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "rtmc-trees" not in told


def test_a_slip_in_a_name_is_told_before_what_would_be_lost(package, monkeypatch):
    asked = []

    def newest(name):
        asked.append(name)
        raise ValueError(f"{name}: the registry names no release")

    monkeypatch.setattr(packages, "newest", newest)
    task = make.SWETask("a", "It is wrong.", Folder("/elsewhere"), fail_to_pass=("test_a.py::t",))
    (package / "tasks.jsonl").write_text(json.dumps(task.to_json()) + "\n")
    (package / "tasks.jsonl.journal").touch()
    for word, message in (("tolz", "tolz: the registry"), ("./mien", "no folder './mien'"), ("a>1", "is no package")):
        with pytest.raises(ValueError, match=message):
            run(word)
    assert asked == ["tolz"]
    with pytest.raises(UsageError, match="would be lost"):
        run("./mine")


LOG = """============================= test session starts ==============================
collected 2 items

tests/test_a.py FF                                                       [100%]
=================================== FAILURES ===================================
____________________________________ test_a ____________________________________
>       assert f(1) == 2
E       assert 1 == 2
=========================== short test summary info ============================
FAILED tests/test_a.py::test_a - assert 1 == 2
========================= 1 failed, 1 error in 0.02s ===========================
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (LOG, "E assert 1 == 2; FAILED tests/test_a.py::test_a - assert 1 == 2"),
        ("one\ntwo\n\n=====\n", "one; two"),
        ("", ""),
        ("a\n" + "b" * 400, "b" * 297 + "..."),
        ("\n".join(f"line {at} of a long log" for at in range(99)).replace("line 98 of a long", "the last"), None),
    ],
)
def test_a_log_is_told_in_whole_lines(log, told):
    found = telling(log)
    assert len(found) <= 300
    if told is not None:
        assert found == told
        return
    assert set(found.split("; ")) <= set(log.splitlines())
    assert found.endswith("the last log")
