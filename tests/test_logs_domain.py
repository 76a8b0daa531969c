"""Which signatures fit a log, and which of its steps were valid."""

import json
import os
import threading

import pytest

from rtmc import Rollout, Step, read_rollouts
from rtmc.logs.credit import credit_logs
from rtmc.logs.domain import Choice, signatures_for
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


def mixed_task() -> list[dict]:
    """Three rollouts search before they answer, and are right; three answer at once, and are wrong."""
    records = []
    for at in range(3):
        looked = [
            {"role": "user", "content": "Capital?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", **call("search", query="capital")}]},
            {"role": "tool", "tool_call_id": "1", "content": "Paris is the capital."},
            {"role": "assistant", "content": "Paris"},
        ]
        at_once = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lyon"}]
        records.append({"task_id": "q", "rollout_id": f"s{at}", "reward": 1.0, "messages": looked})
        records.append({"task_id": "q", "rollout_id": f"d{at}", "reward": 0.0, "messages": at_once})
    return records


def test_rollouts_of_a_task_are_compared_by_one_name(tmp_path):
    """The first turn, whether to search, is one decision: half of the rollouts take each way, and one way wins."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in mixed_task()))
    told = []
    credit = credit_logs([path], on_rollout=told.append)
    assert credit.signatures == {"qa": 6}
    assert len(told) == credit.known == 6  # each once, though the file was read twice
    assert not [note for note in credit.notes if "--signatures" in note]
    first = [record for record in credit.records() if record["step"] == 0]
    assert {record["state"] for record in first} == {"asked:|seen:"}
    assert {record["action"] for record in first} == {"search:capital", "answer:lyon"}
    for record in first:  # V = 1/2, Q = 1 and 0, drawn together a little by the prior
        right = 0.5 if record["action"] == "search:capital" else -0.5
        assert record["advantage"]["rtmc"] == pytest.approx(right, abs=0.02)


def test_a_pipe_is_not_read_again_and_says_so(tmp_path):
    fifo = tmp_path / "log.jsonl"
    os.mkfifo(fifo)
    text = "".join(json.dumps(record) + "\n" for record in mixed_task())
    writer = threading.Thread(target=fifo.write_text, args=(text,), daemon=True)
    writer.start()
    credit = credit_logs([fifo], {"grpo": {}})
    writer.join()
    assert credit.signatures == {"qa": 3, "text": 3}
    (note,) = (note for note in credit.notes if "--signatures" in note)
    assert "1 task has rollouts that ask for different signatures" in note
    assert "'q' (qa for 3, text for 3)" in note


@pytest.mark.parametrize(
    ("names", "agreed"),
    [
        (["text", "text", "qa"], "qa"),
        (["swe", "qa", "swe", "text"], "swe"),
        (["swe", "qa"], "qa"),
        (["env", "text"], "text"),
        (["env", "qa"], "qa"),
    ],
)
def test_the_name_that_a_task_gets(names, agreed):
    steps = {
        "text": [Step("x", "a")],
        "qa": [Step("x", "<search>y</search>")],
        "swe": [Step("x", "a", tool_calls=[call("bash")])],
        "env": [Step("x", "a", state_key="s", action_key="a")],
    }
    choice = Choice()
    assert [choice(Rollout("t", str(at), steps[name])) for at, name in enumerate(names)] == names
    choice(Rollout("other", "r", steps["text"]))
    choice(Rollout("t", "empty", []))
    assert choice.agreed() == {"t": agreed}
    again = Choice(choice.agreed())
    assert {again(Rollout("t", str(at), steps[name])) for at, name in enumerate(names)} == {agreed}
    assert not again.mixed
