"""Commands: `execute_bash` and mini-swe-agent's shell, in a real sandbox, and their observations to the letter."""

import json

import pytest

from rtmc.gymenvs.sandbox import Limits, open_sandbox
from rtmc.gymenvs.swe.actions import ToolCall
from rtmc.gymenvs.swe.tools import Toolbox, ToolLimits
from rtmc.gymenvs.swe.tools.results import clean, cut_middle
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_toolbox import Scripted, tools

RULE = "-" * 50
CUT = f"{RULE}\n<Observation truncated in middle for saving context>\n{RULE}"


@pytest.fixture
def sandboxed(tmp_path):
    """A toolbox over a sandbox that works here, in the syntax asked for."""
    with tools(tmp_path, {"a.py": "x = 1\n"}) as bench:
        bench.tree.root.chmod(0o777)

        def open_box(syntax="r2e", **limits):
            sandbox = open_sandbox(bench.tree.root, limits=Limits(**limits))
            opened.append(sandbox)
            return Toolbox(bench.tree, sandbox.run, syntax, limits=ToolLimits(command_s=limits.get("wall_s", 120.0)))

        opened: list = []
        yield open_box
        for sandbox in opened:
            sandbox.close()


def bash(box, command, name="execute_bash"):
    return box.call(ToolCall(name, {"cmd" if name == "execute_bash" else "command": command}))


# execute_bash


@NEEDS_SANDBOX
def test_commands_in_a_sandbox(sandboxed):
    box = sandboxed()
    done = bash(box, "echo out; echo err >&2")
    assert done.text == "Exit code: 0\nExecution output of [execute_bash]:\n[STDOUT]\n\nout \n\n[STDERR]\n\nerr"
    assert (done.exit_code, done.timed_out, done.error, done.kind) == (0, False, None, "bash")
    failed = bash(box, "pwd; exit 3")
    assert failed.text.startswith(
        "Exit code: 3\nExecution output of [execute_bash]:\n"
        "Error executing command:\n\n[STDOUT]\n\n/testbed \n\n[STDERR]\n\n"
    )
    assert (failed.exit_code, failed.error) == (3, None)
    # A new shell each time; only files stay. Input is at its end.
    bash(box, "export A=1; B=2; echo 3 > b.txt; mkdir d && pushd d")
    assert "[STDOUT]\n\n.:/testbed:3: \n" in bash(box, "echo .$A$B:$PWD:$(cat b.txt):$(cat)").text
    assert "x = 1" in bash(box, "cat a.py && " + "true " * 40_000).text  # longer than one argument of exec may be


@NEEDS_SANDBOX
def test_a_command_that_hangs(sandboxed):
    done = bash(sandboxed(wall_s=1.0), "echo begun; sleep 60")
    assert done.text == "Exit code: -1\nExecution output of [execute_bash]:\nThe command took too long to execute (>1s)"
    assert (done.exit_code, done.timed_out, done.error) == (-1, True, "wall time")


@NEEDS_SANDBOX
def test_output_without_end(sandboxed):
    done = bash(sandboxed(output_bytes=10_000), "yes word")
    assert done.error == "output"
    assert "The command was stopped: it went over the limit of output." in done.text
    assert len(done.text) < 3_000


@pytest.mark.parametrize(
    "command", ["cd", "cd /testbed && ls", " ipython", "jupyter notebook", "pip install x", "nohup ls &"]
)
def test_blocked_commands(tmp_path, command):
    with tools(tmp_path, {}) as bench:
        done = bash(bench.box, command)
    first = command.split()[0]
    refusal = f"Bash command '{first}' is not allowed. Please use a different command or tool."
    assert done.text == f"Exit code: 1\nExecution output of [execute_bash]:\n{refusal}"
    assert done.exit_code == 1


@pytest.mark.parametrize("command", ["ls && cd x", "cdx", "python -m pip list"])
def test_only_the_first_word_is_blocked(tmp_path, command):
    run = Scripted(stdout="ran")
    with tools(tmp_path, {}, run=run) as bench:
        assert "ran" in bash(bench.box, command).text
    assert run.commands == [command]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"cmd": ""}, {"cmd": " \n"}, {"cmd": None}, {"cmd": 3}, {"cmd": "a\0b"}, {"cmd": "\ud800"}, {"shell": "x"}],
)
def test_no_command(tmp_path, arguments):
    with tools(tmp_path, {}) as bench:
        done = bench.call("execute_bash", **arguments)
    assert done.exit_code == 2  # as the original's program ends where an argument is missing or unknown
    assert done.text.startswith("Exit code: 2\nExecution output of [execute_bash]:\n")
    assert done.error
    assert "cmd" in done.text


def test_terminal_codes_go_and_the_middle_of_long_outputs(tmp_path):
    lines = [f"\x1b[31mline {number}\x1b[0m\r" for number in range(200)]
    with tools(tmp_path, {}, run=Scripted(stdout="\n".join(lines))) as bench:
        text = bash(bench.box, "many").text
    rows = text.split("\n")
    assert rows[:2] == ["Exit code: 0", "Execution output of [execute_bash]:"]
    body = ["[STDOUT]", "", *(f"line {number}" for number in range(199)), "line 199 ", "", "[STDERR]", "", ""]
    body = "\n".join(body).splitlines()
    assert rows[2:] == [*body[:40], *CUT.split("\n"), *body[-40:]]


@pytest.mark.parametrize("lines", [80, 81])
def test_where_cutting_begins(lines):
    text = "\n".join(map(str, range(lines)))
    cut = cut_middle(text, 40, 10_000)
    assert (cut == text) == (lines == 80)
    if lines == 81:
        assert cut.split("\n") == [*map(str, range(40)), *CUT.split("\n"), *map(str, range(41, 81))]


def test_a_line_without_end_is_cut_too():
    cut = cut_middle("a" * 500 + "b" * 500, 40, 100)
    assert cut == "a" * 50 + f"\n{CUT}\n" + "b" * 50


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("50%\r100%\r\n", "50%100%\n"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy"),
        ("\x1b[2K\x1b[?25lx\x1bM", "x"),
        ("a\ud800b\udcff", "a\ufffdb\ufffd"),
        ("tab\tand é 北", "tab\tand é 北"),
        ("\x1b", "\x1b"),
    ],
)
def test_clean(text, cleaned):
    assert clean(text) == cleaned


# mini-swe-agent


@NEEDS_SANDBOX
def test_minis_observation_in_a_sandbox(sandboxed):
    box = sandboxed("bash")
    done = bash(box, "echo one; echo two >&2; echo 'a<b>&c' \"'\" é; exit 2", "bash")
    # The project's template writes what HTML minds, and what is not ASCII, as escapes.
    escaped = r"one\ntwo\na\u003cb\u003e\u0026c \u0027 \u00e9\n"
    assert done.text == f'{{\n  "returncode": 2,\n  "output": "{escaped}"\n}}'
    assert json.loads(done.text) == {"returncode": 2, "output": "one\ntwo\na<b>&c ' é\n"}
    assert done.exit_code == 2
    # The shell names the line of a fault as if nothing stood before it.
    assert "line 2: nosuchcommand" in json.loads(bash(box, "true\nnosuchcommand", "bash").text)["output"]
    assert json.loads(bash(box, "cat <<EOF\nx\nEOF", "bash").text) == {"returncode": 0, "output": "x\n"}


@pytest.mark.parametrize("chars", [9_999, 10_000, 10_001, 50_000])
def test_minis_long_outputs(tmp_path, chars):
    output = "".join(str(number % 10) for number in range(chars))
    with tools(tmp_path, {}, syntax="bash", run=Scripted(stdout=output)) as bench:
        text = bash(bench.box, "x", "bash").text
    whole = {"returncode": 0, "output": output}
    cut = {
        "returncode": 0,
        "output_head": output[:5000],
        "output_tail": output[-5000:],
        "elided_chars": chars - 10_000,
        "warning": "Output too long.",
    }
    assert json.loads(text) == (whole if chars < 10_000 else cut)
    assert list(json.loads(text)) == list(whole if chars < 10_000 else cut)


@NEEDS_SANDBOX
@pytest.mark.parametrize("stream", [1, 2])
def test_minis_elided_characters_are_counted_in_all_that_was_written(sandboxed, stream):
    box = sandboxed("bash", output_bytes=20_000)
    done = json.loads(bash(box, f"head -c 150000 /dev/zero | tr '\\0' x >&{stream}", "bash").text)
    assert done["elided_chars"] == 150_000 - 10_000
    assert (done["output_head"], done["output_tail"]) == ("x" * 5_000, "x" * 5_000)


@NEEDS_SANDBOX
def test_minis_timeout(sandboxed):
    done = bash(sandboxed("bash", wall_s=1.0), "echo begun; sleep 60", "bash")
    failure = "An error occurred while executing the command: Command 'echo begun; sleep 60' timed out after 1 seconds"
    escaped = json.dumps(failure).replace("'", "\\u0027")
    assert done.text == f'{{\n  "returncode": -1,\n  "output": "begun\\n", "exception_info": {escaped}\n}}'
    assert json.loads(done.text) == {"returncode": -1, "output": "begun\n", "exception_info": failure}
    assert (done.timed_out, done.exit_code, done.error) == (True, -1, "wall time")


MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@NEEDS_SANDBOX
def test_minis_end(sandboxed):
    done = bash(sandboxed("bash"), f"echo {MARK}", "bash")
    assert (done.finished, done.kind, done.text) == (True, "finish", "")
    done = bash(sandboxed("bash"), f"echo {MARK} && cat a.py", "bash")
    assert (done.finished, done.text) == (True, "x = 1\n")


@pytest.mark.parametrize(
    ("result", "finished"),
    [
        ({"stdout": f"\n  {MARK}  \nrest"}, True),
        ({"stdout": MARK, "exit_code": 1}, False),
        ({"stdout": MARK, "exit_code": -1, "stopped": "output"}, False),
        ({"stdout": f"first\n{MARK}"}, False),
        ({"stdout": f"{MARK} now"}, False),
        ({"stdout": ""}, False),
    ],
)
def test_what_ends_minis_task(tmp_path, result, finished):
    with tools(tmp_path, {}, syntax="bash", run=Scripted(**result)) as bench:
        assert bash(bench.box, "x", "bash").finished is finished


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (ToolCall("python", {}), "Unknown tool 'python'."),
        (ToolCall("bash", {}), "`command` is required"),
        (ToolCall("bash", {"command": " "}), "`command` is required"),
        (ToolCall("bash", {"command": 3}), "expected a text, got a number"),
        (ToolCall("bash", {"cmd": "ls"}), "Unknown parameter 'cmd' of bash. Allowed parameters: command."),
        (ToolCall("file_editor", {}), "Unknown tool 'file_editor'."),
    ],
)
def test_minis_faults(tmp_path, call, part):
    with tools(tmp_path, {}, syntax="bash") as bench:
        done = bench.box.call(call)
    assert done.text.startswith("Tool call error:\n\n<error>\n")
    assert part in done.text
    assert done.error
