"""`rtmc make-swe-tasks`, as a person runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtmc.cli.command import UsageError
from rtmc.cli.swe import MAKE_SWE_TASKS
from rtmc.gymenvs.swe.mutate import packages
from rtmc.gymenvs.swe.task import Folder, Sdist, SWETask
from rtmc.gymenvs.swe.tree import sweep_leftovers
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_making import lay, run

ROOT = Path(__file__).resolve().parents[1]
CODE = """def f(x, y):
    if x > y:
        return x - y
    return y - x


def g(x):
    return [x + 1, x * 2, f(x, 3)]
"""
TESTS = """from mine import f, g


def test_f():
    assert f(5, 2) == 3
    assert f(2, 7) == 5


def test_g():
    assert g(4) == [5, 8, 1]


def test_there():
    assert f and g
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    return lay(tmp_path, CODE, TESTS, monkeypatch)


@NEEDS_SANDBOX
def test_a_local_folder(package, capsys):
    assert run("./mine", "--count", "2", "--jobs", "2", "--timeout", "8", "--json", "--seed", "4") == 0
    document = json.loads(capsys.readouterr().out)
    tasks = [SWETask.from_json(line) for line in (package / "tasks.jsonl").read_text().splitlines()]
    assert document["tasks"] == len(tasks) == 2
    assert document["failed"] == {}
    (made,) = document["packages"]
    assert made["mutants"] == made["killed"] + made["survived"]
    assert made["killed"] == made["tasks"] + sum(made["rejected"].values())
    assert made["tests"]["stable"] == 3
    for task in tasks:
        assert task.hidden_files == ("test_mine.py",)
    # The same command has nothing left to run, and says the same in words.
    assert run("./mine", "--count", "2", "--timeout", "8", "--seed", "4") == 0
    out = capsys.readouterr().out
    assert out.startswith("mine: 2 tasks; 3 stable tests\n")
    assert "2 tasks written to tasks.jsonl" in out
    assert [SWETask.from_json(line) for line in (package / "tasks.jsonl").read_text().splitlines()] == tasks


@NEEDS_SANDBOX
def test_ctrl_c_leaves_what_is_needed_to_go_on(package):
    # A suite that takes its time, so that the signal comes in the middle.
    (package / "mine" / "test_slow.py").write_text("import time\n\n\ndef test_slow():\n    time.sleep(0.3)\n")
    program = "import sys; from rtmc.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "make-swe-tasks", "./mine", "--count", "50", "--jobs", "1"]
    # A child of a shell in the background would ignore the signal, and so would ours.
    process = subprocess.Popen(
        command,
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    journal = package / "tasks.jsonl.journal"
    deadline = time.monotonic() + 90
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"stopping; runs that have begun end within \d+ s\n", errors)
    assert "the same command goes on from tasks.jsonl.journal" in errors
    assert not (package / "tasks.jsonl").exists()
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert sorted(path.name for path in package.iterdir()) == ["mine", "tasks.jsonl.journal"]


def test_a_file_of_somebody_else_stays(package):
    (package / "tasks.jsonl").write_text("mine\n")
    with pytest.raises(UsageError, match="was not begun by this command"):
        run("./mine")
    assert (package / "tasks.jsonl").read_text() == "mine\n"
    assert not (package / "tasks.jsonl.journal").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "PACKAGE"),
        (["a", "b", "--version", "1"], "--version goes with one package"),
        (["./mine", "--count", "0"], "count must be at least 1"),
        (["./mine", "--timeout", "-3"], "--timeout must be above 0 seconds"),
        (["./mine", "--timeout", "0"], "--timeout must be above 0 seconds and finite, got 0"),
        (["./mine", "--timeout", "inf"], "--timeout must be above 0"),
        (["./mine", "-o", "nowhere/x.jsonl"], "there is no folder 'nowhere'"),
        (["./mine", "--cuont", "3"], "--count"),
    ],
)
def test_words_that_make_no_sense(package, words, message):
    with pytest.raises(ValueError, match=message):
        run(*words)
    assert sorted(path.name for path in package.iterdir()) == ["mine"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("./none", "there is no folder './none'"),
        ("--option==1", "'--option==1' is no package"),
        ("a b", "'a b' is no package"),
        ("mine", "a folder is written with a slash: `./mine`"),
    ],
)
def test_packages_that_are_not_there(package, capsys, monkeypatch, word, message):
    refused = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: refused)
    arguments = MAKE_SWE_TASKS.parse(["./mine", "--json"])
    arguments.packages = [word]
    assert MAKE_SWE_TASKS.run(arguments) == 2
    captured = capsys.readouterr()
    assert message in json.loads(captured.out)["failed"][word]
    assert captured.err.count("\n") == 1
    assert sorted(path.name for path in package.iterdir()) == ["mine"]


def written(path, *sources):
    """An output as an earlier run leaves it: a task of each source."""
    tasks = [
        SWETask(f"task-{k}", "It is wrong.", source, fail_to_pass=("test_a.py::test_a",))
        for k, source in enumerate(sources)
    ]
    path.write_text("".join(json.dumps(task.to_json()) + "\n" for task in tasks))
    path.with_name(f"{path.name}.journal").touch()


def test_tasks_of_another_package_stay(package, monkeypatch):
    monkeypatch.setattr(packages, "newest", lambda name: "1.0")
    output = package / "tasks.jsonl"
    written(output, Folder(str(package / "mine")), Sdist("toolz", "1.0"))
    before = output.read_bytes()
    for words in (["./mine"], ["./mine", "toolz==2.0"], ["./mine", "semver"], ["toolz"]):
        with pytest.raises(UsageError, match=r"tasks\.jsonl holds tasks of another package \(task-[01]\)"):
            run(*words)
    assert output.read_bytes() == before


@NEEDS_SANDBOX
def test_what_an_earlier_run_made_of_a_package_that_fails_now_stays(package, capsys, monkeypatch):
    def newest(name):
        raise ValueError(f"{name}: the registry names no release")

    monkeypatch.setattr(packages, "newest", newest)
    written(package / "tasks.jsonl", Sdist("toolz", "1.0"))
    assert run("toolz", "./mine", "--count", "1", "--timeout", "8") == 2
    assert "2 tasks written to tasks.jsonl, 1 of them of an earlier run" in capsys.readouterr().out
    tasks = [SWETask.from_json(line) for line in (package / "tasks.jsonl").read_text().splitlines()]
    assert [type(task.source) for task in tasks] == [Folder, Sdist]


@NEEDS_SANDBOX
def test_a_package_that_the_tests_run_with(package, capsys):
    # Its code as released can be read where pytest is.
    (package / "mine").rename(package / "iniconfig")
    assert run("./iniconfig", "--count", "1", "--most", "1", "--timeout", "8") == 0
    assert "iniconfig is among what its tests run with" in capsys.readouterr().err


@NEEDS_SANDBOX
def test_what_a_killed_run_leaves_goes_with_the_next(package):
    (package / "mine" / "test_slow.py").write_text("import time\n\n\ndef test_slow():\n    time.sleep(20)\n")
    program = "import sys; from rtmc.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "make-swe-tasks", "./mine", "--jobs", "1"]
    place = package / "tmp"
    place.mkdir(mode=0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    process = subprocess.Popen(command, cwd=package, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(place.rglob("test_slow.py")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert list(place.rglob("test_slow.py"))
    sweep_leftovers(place)
    assert list(place.rglob("test_slow.py")) == []
