"""Actions that the environment did not run, or stopped: an error in the action key, and no effect in the state."""

import pytest

from rtmc.logs.validity import is_refused
from rtmc.signatures.refusals import not_run, stopped
from tests.swe_replays import call
from tests.test_signatures_swe import NONE, of

# Texts as the environments print them.
NOT_RUN = {
    "SWE-agent, syntax": "Your bash command contained syntax errors and was NOT executed. Please fix the syntax errors "
    "and try again. Here is the output of `bash -n`:\nbash: -c: line 1: unexpected EOF while looking for matching `''",
    "SWE-agent, blocked": "Operation 'rm src/a.py' is not supported by this environment.",
    "SWE-agent, interactive": "Interactive operation 'vim' is not supported by this environment",
    "SWE-agent, budget": "Exit due to cost limit",
    "R2E-Gym": "Bash command 'cd' is not allowed. Please use a different command or tool.",
    "R2E-Gym, label": "Execution output of [execute_bash]:\nBash command 'nohup' is not allowed. Please use another.",
    "mini 1": "Please always provide EXACTLY ONE action in triple backticks, found 2 actions.",
    "mini 2": "Format error:\n\n<error>\nFound 2 actions\n</error>\nPlease always provide EXACTLY ONE action",
    "mini 2, tools": "<error>\nTool call error: no tool of that name\n</error>",
    "a loop of tools": "Error: Unknown tool bash",
}
STOPPED = {
    "SWE-agent 0": "EXECUTION TIMED OUT BECAUSE NO OUTPUT WAS PRODUCED FOR MORE THAN 30 SECONDS. PLEASE REFINE",
    "SWE-agent 0, old": "some output\nEXECUTION TIMED OUT",
    "SWE-agent 0, restart": "\nCOMMAND FAILED TO EXECUTE. RESTARTING PROCESS.",
    "SWE-agent 1": "The command 'rm src/a.py' was cancelled because it took more than 30 seconds. Please try a "
    "different command that completes more quickly.",
    "SWE-agent 1, long": "The command '" + "x = 1\n" * 5000 + "' was cancelled because it took more than 30 seconds.",
    "mini 1": "The last command <command>rm src/a.py</command> timed out and has been killed.\nThe output was:\n",
    "mini 2": "<returncode>-1</returncode>\n<output>\nAn error occurred while executing the command: Command 'x' timed "
    "out after 30 seconds\n</output>",
    "R2E-Gym": "Exit code: -1\nExecution output of [execute_bash]:\nThe command took too long to execute (>120s)",
    "others": "[Command timed out after 60 s]",
    "killed": "loading\nKilled\n",
}
CHANGES = {
    "rm src/a.py": "fileop:delete@src/a.py",
    "sed -i 's/a/b/' src/a.py": "modify:replace:187e@src/a.py",
    "cat > new.py <<'E'\nx=1\nE": "create:a255@new.py",
    "mv src/a.py b.py": "fileop:move@src/a.py",
    "cat src/a.py": "view:full@src/a.py",
    "grep -n x src/a.py": "search@src/a.py",
    "pip install x": "install@x",
    "python slow.py": "execute@slow.py",
}


@pytest.mark.parametrize("answer", [*NOT_RUN.values(), *STOPPED.values()], ids=[*NOT_RUN, *(f"{k}!" for k in STOPPED)])
def test_what_was_not_done_changes_nothing(answer):
    for command, key in CHANGES.items():
        states, actions = of((command, answer))
        assert actions == [f"{key}:error"]
        assert states[-1] == NONE


def test_texts_are_told_apart():
    assert all(not_run(f"\n{text}") and not stopped(f"\n{text}") for text in NOT_RUN.values())
    assert all(not not_run(f"\n{text}") for text in STOPPED.values())
    # A program may speak of the like.
    for text in ("12 passed\nOperation 'x' is not supported", "Killed 3 bugs", "a\nKilled\nb", "NOT executed"):
        assert not not_run(f"\n{text}")
        assert not stopped(f"\n{text}")
        assert of(("rm src/a.py", text))[1] == ["fileop:delete@src/a.py"]


def test_a_stopped_test_run_failed_and_one_that_was_not_run_is_not_counted():
    for answer in STOPPED.values():
        states, actions = of(("pytest tests/test_a.py", answer))
        assert actions == ["test@tests/test_a.py:error"]
        assert states[-1].startswith("(test_fail_count=1,")
    for answer in NOT_RUN.values():
        states, actions = of(("pytest tests/test_a.py", answer))
        assert actions == ["test@tests/test_a.py:error"]
        assert states[-1] == NONE


SLOW = STOPPED["SWE-agent 1"]


@pytest.mark.parametrize(
    ("line", "answer", "state"),
    [
        # Done before the program that took long, and held back behind it.
        ("rm a.py && python slow.py", SLOW, f"a.py:D|{NONE}"),
        ("python slow.py; rm a.py", SLOW, NONE),
        ("sed -i s/a/b/ a.py; pytest; rm b.py", SLOW, f"a.py:M:187e|{NONE.replace('fail_count=0', 'fail_count=1')}"),
        # A run whose summary is there has ended.
        (
            "pytest t; python slow.py; rm b.py",
            "=== 1 passed in 0.1s ===\nEXECUTION TIMED OUT",
            NONE.replace("pass_count=0", "pass_count=1"),
        ),
        # What is killed lets the shell go on.
        ("python slow.py; rm a.py", "Killed", f"a.py:D|{NONE}"),
        ("python slow.py && rm a.py", "Killed", NONE),
    ],
)
def test_which_of_several_commands_was_stopped(line, answer, state):
    assert of((line, answer))[0][-1] == state


def test_a_folder_is_not_entered_by_a_command_that_was_not_run():
    answer = NOT_RUN["SWE-agent, syntax"]
    assert of(("cd src && rm 'a.py", answer), ("cat a.py", "x"))[1][1] == "view:full@a.py"


@pytest.mark.parametrize("answer", [NOT_RUN["mini 2, tools"], STOPPED["R2E-Gym"]])
def test_editors_that_were_not_run(answer):
    editor = {"path": "/testbed/a.py", "old_str": "a", "new_str": "b"}
    for command in ("view", "str_replace", "create"):
        states, actions = of((call("str_replace_editor", command=command, **editor), answer))
        assert actions[0].endswith("@a.py:error")
        assert states[-1] == NONE


def test_two_blocks_of_which_none_was_run():
    from rtmc import Rollout, Step
    from tests.test_signatures_swe import told

    text = "THOUGHT: x\n\n```bash\nrm src/a.py\n```\n\n```bash\ncat src/b.py\n```"
    states, actions = told(Rollout("t", "r", [Step("", text, answer=NOT_RUN["mini 1"])]))
    assert actions == ["view:full@src/b.py:error"]
    assert states[-1] == NONE


def test_what_was_not_run_is_no_valid_step():
    assert all(map(is_refused, NOT_RUN.values()))
    assert not any(map(is_refused, STOPPED.values()))


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("str_replace_editor view /testbed/x.py --view_range 900 950", "Invalid `view_range`: [900, 950]. Its first"),
        ("str_replace_editor view /testbed/x.py --view_range 9", "ERROR:\nInvalid `view_range` parameter: [9]."),
    ],
)
def test_a_range_outside_of_the_file_shows_nothing(given, answer):
    states, actions = of((given, answer))
    assert actions[0].endswith(":error")
    assert states[-1] == NONE
