"""OpenHands' sessions: events, pairs of them, and the chats that data sets made of them."""

import copy
import json
import math

import pytest

from rtmc import RolloutError, read_rollouts, write_rollouts
from rtmc.logs import LogReader
from rtmc.rollouts import Stop
from rtmc.signatures import get_signature
from tests import logsamples
from tests.logsamples import OPENHANDS, OPENHANDS_PAIRS, TRAJECTORY_CHAT
from tests.test_signatures_swe import told


def read(tmp_path, *values, name="output.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    reader = LogReader([path])
    return list(reader), dict(reader.formats)


def test_events(tmp_path):
    (rollout,), formats = read(tmp_path, OPENHANDS)
    assert formats == {"openhands": 1}
    assert (rollout.task_id, rollout.system) == ("owner__repo-10", "You are an agent.")
    assert math.isnan(rollout.reward)
    # One reply of the model is one step, and each of its calls has its own answer, in whatever order they come.
    assert [step.action for step in rollout.steps] == ["I look.", "I change it.", "Done."]
    assert rollout.steps[0].observation == "Fix it in /workspace/repo."
    calls = [[call["function"] for call in step.tool_calls] for step in rollout.steps]
    assert [[call["name"] for call in step] for step in calls] == [
        ["execute_bash", "execute_bash"],
        ["str_replace_editor"],
        ["finish"],
    ]
    assert json.loads(calls[0][1]["arguments"]) == {"command": "cat a.py"}  # as the model's reply has them
    assert calls[1][0]["arguments"] == logsamples.EDIT  # of the event, without what is the framework's own
    ends = "\n[Current working directory: /workspace/repo]\n[Command finished with exit code 0]"
    assert [(r.text, r.failed) for r in rollout.steps[0].replies] == [(f"a.py{ends}", None), (f"x = 1{ends}", None)]
    assert rollout.steps[1].replies[0].failed is True
    states, actions = told(rollout)
    # printf "x = 1y = 1" | md5sum
    assert actions == ["search@.", "modify:replace:8a97@a.py:error", "finish"]
    assert states[-1].startswith(".:S|a.py:Vf|(")


def test_events_alone_and_pairs(tmp_path):
    (rollout,), _ = read(tmp_path, OPENHANDS)
    for name, value in (("events.json", OPENHANDS["history"]), ("events.jsonl", OPENHANDS["history"])):
        (alone,), formats = read(tmp_path, value, name=name)
        assert formats == {"openhands": 1}
        assert alone.steps == rollout.steps
        assert alone.task_id.startswith("you-are-an-agent-fix-it-in")
    paired = {**OPENHANDS, "history": [[event] for event in OPENHANDS["history"]]}
    assert read(tmp_path, paired)[0] == [rollout]


def test_older_pairs(tmp_path):
    (rollout,), _ = read(tmp_path, OPENHANDS_PAIRS)
    assert (rollout.reward, rollout.truncated, rollout.stop) == (0.0, True, Stop.TRUNCATED)
    assert [step.action for step in rollout.steps] == ["I look.", "", "Is that all?"]
    assert rollout.steps[0].answer == "a.py\n[Command finished with exit code 1]"
    assert rollout.steps[1].tool_calls[0]["function"]["arguments"] == {"path": "/r/a.py", "command": "view"}
    assert rollout.steps[2].answer == "Go on."
    assert told(rollout)[1] == ["search@.", "view:full@a.py", "think"]


def test_a_session_reads_back_as_it_is_written(tmp_path):
    rollouts, _ = read(tmp_path, OPENHANDS, OPENHANDS_PAIRS)
    rollouts[1].rollout_id = "2"
    write_rollouts(tmp_path / "again.jsonl", rollouts)
    again = read_rollouts(tmp_path / "again.jsonl")
    assert [r.steps for r in again] == [r.steps for r in rollouts]
    signature = get_signature("swe")
    assert [told(r, signature) for r in again] == [told(r, signature) for r in rollouts]


@pytest.mark.parametrize(
    ("more", "reward"),
    [
        ({"report": {"resolved": True}}, 1.0),
        ({"test_result": {"report": {"resolved": False}}}, 0.0),
        ({"score": 2}, 2.0),
    ],
)
def test_a_verdict_in_the_file(tmp_path, more, reward):
    assert read(tmp_path, {**OPENHANDS, **more})[0][0].reward == reward


@pytest.mark.parametrize(
    ("error", "truncated", "stop"),
    [
        ("RuntimeError: Agent reached maximum iteration in headless mode", True, Stop.TRUNCATED),
        ("AgentStuckInLoopError: Agent got stuck in a loop", True, Stop.TRUNCATED),
        ("There was an unexpected error while running the agent", False, Stop.ERROR),
        ("", False, Stop.UNKNOWN),
        (None, False, Stop.UNKNOWN),
    ],
)
def test_how_a_session_ended(tmp_path, error, truncated, stop):
    (rollout,), _ = read(tmp_path, {**OPENHANDS, "error": error})
    assert (rollout.truncated, rollout.stop) == (truncated, stop)


@pytest.mark.parametrize("history", [None, []])
def test_an_instance_that_crashed(tmp_path, history):
    """As the evaluation writes it after its retries: a rollout without a step, which ended in an error."""
    crashed = {"instance_id": "owner__repo-11", "test_result": {}, "instruction": None, "metadata": None}
    crashed |= {"history": history, "metrics": None, "error": "Maximum retries (5) reached: no image"}
    found, formats = read(tmp_path, OPENHANDS, crashed)
    assert formats == {"openhands": 2}
    assert (found[1].task_id, found[1].steps, found[1].stop) == ("owner__repo-11", [], Stop.ERROR)
    assert "Maximum retries (5) reached: no image" in found[1].error


def test_a_chat_under_the_name_trajectory(tmp_path):
    for more in ({}, {"info": {"x": 1}}):
        (rollout,), formats = read(tmp_path, {**TRAJECTORY_CHAT, **more})
        assert formats == {"chat": 1}
        assert (rollout.task_id, rollout.rollout_id, rollout.reward) == ("owner__repo-11", "run-3", 1.0)
        assert rollout.system == "You are an agent."
        assert [(s.action, s.answer) for s in rollout.steps] == [("", "a.py"), ("Done.", None)]
        assert told(rollout)[1] == ["search@.", "think"]


def test_what_is_no_event_is_named(tmp_path):
    broken = copy.deepcopy(OPENHANDS)
    broken["history"][3] = 7
    with pytest.raises(
        RolloutError, match=r"output\.jsonl:1: `history\[3\]` must be an event or a pair of them, got a"
    ):
        read(tmp_path, broken)
