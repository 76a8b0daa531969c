"""Which tasks can be trained on here: each fault that a task can have is found, and nothing is left behind."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtmc.cli.command import UsageError
from rtmc.cli.swe_check import CHECK_SWE_TASKS
from rtmc.gymenvs.sandbox import SandboxError
from rtmc.gymenvs.swe.soundness import check_task, check_tasks
from tests.sandbox_help import NEEDS_SANDBOX, TOKEN, left_behind
from tests.swe_episodes import HIDDEN, calc

pytestmark = NEEDS_SANDBOX
ROOT = Path(__file__).resolve().parents[1]
ADD, DOUBLE, ZERO = "tests/test_calc.py::test_add", "tests/test_calc.py::test_double", "tests/test_zero.py::test_zero"


def with_tests(more, **changes):
    """The task with more tests, at the end of the hidden file."""
    return calc(test_files={"tests/test_calc.py": HIDDEN + more}, **changes)


FLAKY = "\n\ndef test_seed():\n    import os\n\n    assert os.environ['PYTHONHASHSEED'] == '0'\n"
SLOW = "\n\ndef test_slow():\n    import time\n\n    time.sleep(300)\n"
SEED = "tests/test_calc.py::test_seed"


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


CASES = {
    "sound": (calc(), (1.0, 1.0), (0.0, 0.0), (), (), ""),
    "by a map": (
        calc(expected={"test_add": "PASSED", "test_double": "PASSED"}, fail_to_pass=(), pass_to_pass=()),
        (1.0, 1.0),
        (0.0, 0.0),
        (),
        (),
        "",
    ),
    "passes already": (
        calc(fail_to_pass=(ZERO,), pass_to_pass=()),
        (1.0, 1.0),
        (1.0, 1.0),
        (),
        (ZERO,),
        rf"doing nothing is paid.*; 1 of fail_to_pass pass without the fix: {ZERO}",
    ),
    "one of two passes already": (
        calc(fail_to_pass=(ADD, ZERO), pass_to_pass=()),
        (1.0, 1.0),
        (0.0, 0.0),
        (),
        (ZERO,),
        rf"1 of fail_to_pass pass without the fix: {ZERO}",
    ),
    "wants what is not installed": (
        with_tests("\nimport nosuchdep\n"),
        (0.0, 0.0),
        (0.0, 0.0),
        (),
        (ADD, DOUBLE),
        r"the gold patch is not paid: .*No module named 'nosuchdep'; 1 of 1 fail_to_pass",
    ),
    "changes its mind": (
        with_tests(FLAKY, pass_to_pass=(DOUBLE, SEED)),
        (1.0, 0.0),
        (0.0, 0.0),
        (SEED,),
        (),
        rf"the gold patch is not paid: .*test_seed.*; 1 tests change from run to run: {SEED}",
    ),
    "a regression test that the fix mends": (
        calc(fail_to_pass=(ADD,), pass_to_pass=("tests/test_calc.py::test_other",)).replace(
            test_files={"tests/test_calc.py": HIDDEN + "\n\ndef test_other():\n    assert add(1, 1) == 2\n"}
        ),
        (1.0, 1.0),
        (0.0, 0.0),
        (),
        ("tests/test_calc.py::test_other",),
        r"1 of pass_to_pass fail without the fix",
    ),
    "nothing to solve it by": (calc(patch=""), (), (0.0, 0.0), (), (), r"there is no gold patch"),
    "cannot be made": (calc(patch="no patch"), (), (), (), (), r"task 'calc/add': field `patch`"),
    "a setup that fails": (calc(setup_command="exit 3"), (), (), (), (), r"`setup_command` ended with exit code 3"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_a_task_is_found(name):
    task, gold, null, flaky, wrong, why = CASES[name]
    check = check_task(task)
    assert (check.gold, check.null, check.flaky, set(check.wrong)) == (gold, null, flaky, set(wrong))
    assert re.search(why, check.why) if why else check.why == ""
    assert check.sound == (why == "")
    assert check.seconds > 0
    assert json.loads(json.dumps(check.to_json()))["sound"] == check.sound


def test_tasks_are_checked_side_by_side():
    tasks = [calc(), calc(task_id="no", patch="no patch"), calc(task_id="yes")]
    found = {check.task_id: check.sound for check in check_tasks(tasks, jobs=2, runs=1)}
    assert found == {"calc/add": True, "no": False, "yes": True}


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="runs=0; at least 1"):
        check_task(calc(), runs=0)
    with pytest.raises(ValueError, match="runs=0; at least 1"):  # from the other process
        list(check_tasks([calc()], runs=0))
    with pytest.raises(ValueError, match="jobs=0; at least 1"):
        list(check_tasks([calc()], jobs=0))
    with pytest.raises(SandboxError, match="trusted=True"):
        list(check_tasks([calc()], backend="plain"))


# -- the command ----------------------------------------------------------------------------------------------------


def write(path, *tasks):
    path.write_text("".join(json.dumps(task.to_json()) + "\n" for task in tasks))
    return str(path)


def run(*words):
    return CHECK_SWE_TASKS.run(CHECK_SWE_TASKS.parse(words))


def test_the_command_shows_a_row_a_task(tmp_path, capsys):
    bad = calc(task_id="calc/none", fail_to_pass=(ZERO,), pass_to_pass=())
    file = write(tmp_path / "tasks.jsonl", calc(), bad)
    assert run(file, "--runs", "1", "--jobs", "1") == 1
    head, first, second, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["task", "gold", "null", "flaky", "wrong", "s", "why"]
    assert re.fullmatch(r"1/2  calc/add +1/1 +0/1 +0 +0 +\d+\.\d", first)
    assert re.fullmatch(r"2/2  calc/none +1/1 +1/1 +0 +1 +\d+\.\d  doing nothing is paid: .*", second)
    assert last == "1 of 2 tasks are sound"
    assert run(file, "calc/add", "--runs", "1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["sound"], document["unsound"]) == (1, 0)
    assert [(one["task_id"], one["gold"], one["null"], one["why"]) for one in document["tasks"]] == [
        ("calc/add", [1.0], [0.0], "")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["calc/ad"], "unknown task 'calc/ad'.*`calc/add`"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--jobs", "-1"], "--jobs must be at least"),
        (["--repos", "/nowhere"], "'/nowhere' is no folder"),
    ],
)
def test_words_that_make_no_sense(tmp_path, words, said):
    file = write(tmp_path / "tasks.jsonl", calc())
    with pytest.raises(ValueError, match=said):
        run(file, *words)


def test_without_a_sandbox_it_is_one_line(tmp_path, monkeypatch):
    def none(*_, **__):
        raise SandboxError("no sandbox works here")
        yield

    monkeypatch.setattr("rtmc.gymenvs.swe.soundness.check_tasks", none)
    with pytest.raises(UsageError, match="no sandbox works here"):
        run(write(tmp_path / "tasks.jsonl", calc()))


@pytest.mark.parametrize("everybody", [False, True])
def test_ctrl_c_ends_what_has_begun(tmp_path, everybody):
    token = secrets.token_hex(8)
    slow = with_tests(SLOW, task_id="calc/slow", fail_to_pass=("tests/test_calc.py::test_slow",), env={TOKEN: token})
    file = write(tmp_path / "tasks.jsonl", calc(), slow, slow.replace(task_id="calc/slow2"))
    program = "import sys; from rtmc.cli import main; sys.exit(main(sys.argv[1:]))"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "check-swe-tasks", file, "--runs", "1", "--jobs", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A child of a shell in the background would ignore the signal, and so would ours.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    lines = [process.stdout.readline() for _ in range(2)]
    assert "calc/add" in lines[1]
    deadline = time.monotonic() + 40
    while len(left_behind(token)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list(temporary.rglob("calc.py"))
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)  # a terminal tells the whole group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "rtmc check-swe-tasks: 1 of 3 tasks were checked\nrtmc: interrupted\n"
    assert left_behind(token) == []
    assert list(temporary.rglob("calc.py")) == []
