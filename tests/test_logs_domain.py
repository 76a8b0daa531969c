"""Which signatures fit a log, and which of its steps were valid."""

import json

import pytest

from rtmc import Rollout, Step, read_rollouts
from rtmc.logs.domain import signatures_for
from rtmc.logs.validity import is_refused, mark_valid
from tests.logsamples import ALFWORLD_GAME, FILES


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("chat.jsonl", "qa"),
        ("owner__repo-6.traj", "swe"),
        ("mini.traj.json", "swe"),
        ("r2e.jsonl", "swe"),
        ("r2e.txt", "swe"),
        ("search.jsonl", "qa"),
        ("alfworld.txt", "household"),
        ("react.txt", "qa"),
        ("sharegpt.json", "text"),
        ("anthropic.jsonl", "swe"),
    ],
)
def test_the_form_of_a_log_tells_its_signatures(tmp_path, name, domain):
    path = tmp_path / name
    path.write_text(FILES[name])
    assert {signatures_for(rollout) for rollout in read_rollouts(path)} == {domain}


@pytest.mark.parametrize(
    ("steps", "domain"),
    [
        ([], "text"),
        ([Step("x", "a", tool_calls=[call("frobnicate")])], "text"),
        ([Step("x", "a", tool_calls=[call("search", query="x")])], "qa"),
        ([Step("x", "a", tool_calls=[call("search", q="x")]), Step("", "", tool_calls=[call("execute_bash")])], "swe"),
        ([Step("x", "a", tool_calls=[call("functions.bash")])], "swe"),
        ([Step("x", "a", tool_calls=[call("Read", file_path="a.py"), call("Edit", file_path="a.py")])], "swe"),
        ([Step("x", "<read_file>\n<path>a.py</path>\n</read_file>")], "swe"),
        ([Step("x", "a", tool_calls=[{"function": 5}, {}, {"name": ["x"]}])], "text"),
        ([Step("x", "look\n```bash\nls\n```")], "swe"),
        ([Step("x", "I write\n```python\nx\n```")], "text"),
        ([Step("x", "<think>x</think><search>y</search>")], "qa"),
        ([Step("x", "Action 1: Search[y]")], "qa"),
        ([Step(ALFWORLD_GAME, "go to shelf 1")], "household"),
        ([Step("x", "a", state_key="s", action_key="a")], "env"),
        ([Step("x", "a", state_key="s", action_key="a"), Step("x", "<search>y</search>")], "qa"),
    ],
)
def test_a_chat_is_told_by_its_tools_and_texts(steps, domain):
    assert signatures_for(Rollout("t", "r", steps)) == domain


def test_a_format_of_the_user_s_own_is_no_format():
    assert signatures_for(Rollout("t", "r", [Step("x", "y")], meta={"format": "mine"})) == "text"
    assert signatures_for(Rollout("t", "r", [Step("x", "y")], meta={"format": ["alfworld"]})) == "text"


@pytest.mark.parametrize(
    "answer",
    [
        "Your proposed edit has introduced new syntax error(s). Please read this error message carefully",
        "No replacement was performed, old_str `x` did not appear verbatim in /testbed/a.py.",
        "No replacement was performed. Multiple occurrences of old_str `x` in lines [1, 2].",
        "\nNothing happens.",
        "Execution output of [file_editor]:\nERROR: No occurrences of 'x' found in a.py for replacement.",
        "Execution output of [file_editor]:\nERROR: File already exists at: a.py. Cannot overwrite with 'create'.",
        "Bash command 'cd' is not allowed. Please use a different command or tool.",
        "You forgot to use a function call in your response. \nYOU MUST USE a function call",
        "My previous action is invalid. If I want to search, ...",
        "Please always provide EXACTLY ONE action in triple backticks, found 0 actions.",
        "Invalid action: jump[x]",
        "Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>].",
    ],
)
def test_a_refusal(answer):
    assert is_refused(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "1 failed, 2 passed",
        "Traceback (most recent call last):\nValueError: invalid action",
        "Could not find [Wolf and Sheep]. Similar: ['x']",
        "Exit code: 1\nExecution output of [execute_bash]:\nERROR: file not found: x.py",
        "ERROR: Could not find a version that satisfies the requirement x",
        "usage: prog [-h]",
        "On the shelf 1, you see nothing.",
        "def f():\n    return 'Nothing happens.'",
        "<returncode>1</returncode>\n<output>\n</output>",
    ],
)
def test_no_refusal(answer):
    assert not is_refused(answer)


def test_only_what_a_step_does_not_say_is_filled_in():
    steps = [
        Step("", "a", answer="Nothing happens."),
        Step("", "b", answer="You see a mug."),
        Step("", "c", answer="Nothing happens.", valid=True),
        Step("", "d", answer="You see a mug.", valid=False),
        Step("", "e"),
    ]
    mark_valid(Rollout("t", "r", steps))
    assert [step.valid for step in steps] == [False, True, True, False, True]


def test_the_real_refusals(shared):
    refused = {}
    for rollout in read_rollouts(shared / "data" / "sweagent"):
        mark_valid(rollout)
        refused[rollout.rollout_id] = [place for place, step in enumerate(rollout.steps) if not step.valid]
    # By eye: the edits that the linter sent back.
    assert refused == {
        "marshmallow-1867.replace": [6],
        "marshmallow-1867.windowed": [6],
        "pydicom-1458.windowed": [5, 6, 7],
        "test-repo-1c2844": [],
    }
