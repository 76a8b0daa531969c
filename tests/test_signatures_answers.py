"""What answers tell, by texts as the programs print them; and that odd texts take no time."""

import time

import pytest

from rtmc import Rollout, Step
from rtmc.signatures import answers, get_signature
from rtmc.signatures.answers import ends, exit_status, plain, run_passed, shown_lines


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<returncode>1</returncode>\n<output>\nExit code: 0\n</output>", 1),
        ('{"returncode": 2, "output": "x"}', 2),
        ("Exit code: 0\nExecution output of [execute_bash]:\nthe job had exit code 3", 0),
        ("x\n[Command finished with exit code 1]", 1),
        ("x\n[The command completed with exit code 0.]\n[Current working directory: /w]", 0),
        ("x\n[Python Interpreter: /usr/bin/python]\n[The command completed with exit code -1.]", -1),
        ("y" * 20_000 + "\n[Command finished with exit code 127]", 127),
        ("the tool returns exit code 1 then", None),
        ("", None),
    ],
)
def test_exit_status(text, status):
    assert exit_status(ends(plain(text))) == status


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("===== 5 passed in 0.12s =====", True),
        ("5 passed, 1 warning in 0.12s", True),
        ("===== 2 passed, 1 xfailed in 3.00s =====", True),
        ("===== 1 failed, 4 passed in 0.12s =====", False),
        ("===== 4 passed, 1 error in 0.12s =====", False),
        ("FAILED tests/test_a.py::test_b - assert 1 == 2", False),
        ("===== no tests ran in 0.01s =====", False),
        ("ERROR: file or directory not found: tests/test_x.py", False),
        ("..\n----------\nRan 2 tests in 0.001s\n\nOK\n", True),
        ("Ran 2 tests in 0.001s\n\nOK (skipped=1)", True),
        ("Ran 2 tests in 0.001s\r\n\r\nOK\r\n", True),
        ("F.\nRan 2 tests in 0.001s\n\nFAILED (failures=1)", False),
        ("ERROR: test_x (tests.T)\n...\nFAILED (errors=1, skipped=2)", False),
        # Django's runner
        (
            "Found 3 test(s).\nSystem check identified no issues.\nRan 3 tests in 0.002s\n\nOK\nDestroying",
            True,
        ),
        (
            "Testing against Django installed in '/testbed'\nTraceback (most recent call last):\n  ...\nImportError: x",
            False,
        ),
        ("Tests:       1 failed, 2 passed, 3 total", False),
        ("Tests:       3 passed, 3 total", True),
        ("ok  \texample.com/pkg\t0.012s", True),
        ("--- FAIL: TestX (0.00s)\nFAIL\nexit status 1", False),
        ("test result: ok. 3 passed; 0 failed", True),
        ("test result: FAILED. 2 passed; 1 failed", False),
        ("  py311: OK (1.2=setup[1.0]+cmd[0.2] seconds)\n  congratulations :) (1.3 seconds)", True),
        ("bash: pytest: command not found", False),
        ("make: *** [Makefile:5: test] Error 1", False),
        ("something is printed", None),
        ("something is printed\n[Command finished with exit code 0]", True),
        ("===== 5 passed in 0.12s =====\n[Command finished with exit code 1]", False),
        # A pipe hides the status of the run.
        ("===== 1 failed in 0.12s =====\n[Command finished with exit code 0]", False),
        ("===== 3 skipped in 0.12s =====\n[Command finished with exit code 0]", True),
    ],
)
def test_outcomes_of_test_runs(text, passed):
    text = ends(plain(text))
    assert run_passed(text, exit_status(text)) is passed


def key(answer, **call):
    name = call.pop("name", "bash")
    return get_signature("swe").action(
        Step("", "", answer=answer, tool_calls=[{"function": {"name": name, "arguments": call}}])
    )


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("344", ":ok"),
        ("", ":ok"),
        ("Traceback (most recent call last):\n  ...\nValueError: x", ":error"),
        ("Traceback (most recent call last):\n  ...\nValueError: x\n[Command finished with exit code 0]", ":ok"),
        ("python: can't open file '/testbed/r.py': [Errno 2] No such file or directory", ":error"),
        ("x\n[The command completed with exit code 1.]", ":error"),
        ("EXECUTION TIMED OUT", ":error"),
        ("The command timed out after 30 s", ":error"),
        (None, ""),
    ],
)
def test_results_of_programs(answer, result):
    assert key(answer, command="python r.py") == f"execute@r.py{result}"


@pytest.mark.parametrize(
    "answer",
    [
        "Your proposed edit has introduced new syntax error(s). Please read this error message carefully",
        "Your edit was not applied (file not modified): Text 'a' not found in displayed lines.",
        "No replacement was performed, old_str `a` did not appear verbatim in /testbed/f.py.",
        "No replacement was performed. Multiple occurrences of old_str `a` in lines [1, 2]. Please ensure it is unique",
        "ERROR: No occurrences of 'a' found in /testbed/f.py for replacement.",
        "Execution output of [file_editor]:\nERROR: Multiple occurrences of 'a' found in /testbed/f.py.",
        "ERROR:\nInvalid `path` parameter: f.py is not an absolute path.",
        "The path /testbed/f.py does not exist. Please provide a valid path.",
        "No file open. Use the `open` command first.",
        "Error: String to replace not found in file.",
    ],
)
def test_refusals(answer):
    edit = {
        "name": "str_replace_editor",
        "command": "str_replace",
        "path": "/testbed/f.py",
        "old_str": "a",
        "new_str": "b",
    }
    assert key(answer, **edit) == "modify:replace:187e@f.py:error"
    assert (
        key("The file /testbed/f.py has been edited. Here's the result:\n   1\traise Error", **edit)
        == "modify:replace:187e@f.py"
    )


@pytest.mark.parametrize(
    ("command", "answer", "expected"),
    [
        ("cat a.py", "cat: a.py: No such file or directory", "view:full@a.py:error"),
        ("cat a.py", "# error: no such thing\nraise FileNotFoundError('No such file')", "view:full@a.py"),
        ("sed -i s/a/b/ a.py", "sed: can't read a.py: No such file or directory", "modify:replace:187e@a.py:error"),
        ("grep -n x a.py", "x\n[Command finished with exit code 1]", "search@a.py"),
        ("ls nowhere", "ls: cannot access 'nowhere': No such file or directory", "search@nowhere:error"),
        (
            "git apply x.diff",
            "error: patch failed: a.py:1\nerror: a.py: patch does not apply",
            "modify:replace:293e@.:error",  # printf x.diff | md5sum
        ),
        ("rm a.py", "rm: cannot remove 'a.py': No such file or directory", "fileop:delete@a.py:error"),
        ("open a.py", "File a.py not found", "view:full@a.py:error"),
    ],
)
def test_commands_that_fail(command, answer, expected):
    assert key(answer, command=command) == expected


def test_lines_that_are_shown():
    window = "[File: /r/a.py (9 lines total)]\n(2 more lines above)\n3:x\n4:\n5:  y: 1\n(4 more lines below)"
    assert shown_lines(window) == {3: "x", 4: "", 5: "  y: 1"}
    assert shown_lines("Here's the result:\n     9\tx\n    10\t  y\n") == {9: "x", 10: "  y"}
    assert shown_lines("<returncode>0</returncode>\n<output>\nx\n  y\n</output>", 7) == {7: "x", 8: "  y"}
    assert shown_lines("x\ny") == {}
    marked = (
        "[File: /r/a.py (9 lines total)]\n3:x\nSTART\n4:y\nEND\n5:z\n----\n[File: /r/a.py (9 lines total)]\n3:other"
    )
    assert shown_lines(marked) == {3: "x", 4: "y", 5: "z"}


def test_a_json_answer_is_read_as_text():
    told = plain('{"returncode": 1, "output": "===== 1 failed in 0.1s ====="}')
    assert run_passed(ends(told), 1) is False
    assert answers.fresh_shell(told)
    assert plain('{"returncode": ') == '{"returncode": '


LONG = 300_000


@pytest.mark.parametrize(
    "text",
    [
        "<function=" * (LONG // 10),
        "<parameter=a>" * (LONG // 13),
        "<function=bash>" + "<parameter=command>" * (LONG // 19),
        "<tool_call>{" * (LONG // 12),
        "<execute_bash>" * (LONG // 14),
        "<command>" * (LONG // 9),
        "```python\n" * (LONG // 10),
        "a\n<<<<<<< SEARCH\n" * (LONG // 17),
        "cat " + "(" * LONG,
        "cat '" * (LONG // 5),
        "cat <<EOF\n" * (LONG // 10),
        "cat " + "$(" * (LONG // 2),
        "sed -i 's/" + ".*" * 1000 + "/x/' f",
        "python - <<E\nopen('a','w')\n" + "(" * 50_000 + "\nE",
        "edit 1:2\n" + "end_of_edit x\n" * (LONG // 14),
        "*** Begin Patch\n" + "*** Update File: x\n" * (LONG // 20),
        "<search>" * (LONG // 8),
        "Search[" * (LONG // 7),
        "> go to " * (LONG // 8),
    ],
)
def test_odd_texts_take_no_time(text):
    odd = [
        "Doc 1(Title: " * 20_000,
        "Doc 1(Title: x) " + "\n" * LONG,
        "[File: " * 40_000,
        "1:\n" * 90_000,
        "a 1, " * 60_000,
    ]
    for name in ("swe", "qa", "household"):
        began = time.process_time()
        signature = get_signature(name)
        steps = [Step("", text, answer=answer) for answer in odd]
        state = signature.state(Rollout("t", "r", steps))
        for step in steps:
            signature.action(step)
            state.update(step)
            state.key()
        assert time.process_time() - began < 10
