"""Rollouts and their JSON-lines file."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc import Ending, Rollout, RolloutError, Step, Stop, read_rollouts, write_rollouts


def small(**more):
    steps = [
        Step("You see a door.", "open door", state_key="s0", action_key="open", valid=True, tokens=3),
        Step("It is open.", "go", state_key="s1", action_key="go", next_state_key="s2", valid=False, reward=-0.1),
    ]
    return Rollout("task", "0", steps, **more)


@pytest.mark.parametrize(
    ("facts", "stop", "ending"),
    [
        ({"reward": 1.0}, Stop.SUCCESS, Ending.SUCCESS),
        ({"reward": 0.0}, Stop.FAILURE, Ending.FAILURE),
        ({"reward": 0.0, "truncated": True}, Stop.TRUNCATED, Ending.TRUNCATED),
        ({"reward": 0.0, "stop": "truncated"}, Stop.TRUNCATED, Ending.TRUNCATED),
        ({"reward": 0.0, "error": "the sandbox died"}, Stop.ERROR, Ending.TRUNCATED),
        ({"reward": 1.0, "truncated": True, "stop": Stop.SUCCESS}, Stop.SUCCESS, Ending.SUCCESS),
        ({}, Stop.UNKNOWN, Ending.FAILURE),
    ],
)
def test_stop_and_ending(facts, stop, ending):
    rollout = small(**facts)
    assert rollout.stop is stop
    assert rollout.ending is ending
    assert rollout.truncated is (stop is Stop.TRUNCATED or facts.get("truncated", False))
    assert Rollout.from_json(rollout.to_json()) == rollout


def test_a_rollout_may_grow_after_it_was_made():
    rollout = Rollout("task", "0", [])
    rollout.steps += [Step("one", "a"), Step("two", "b")]
    rollout.reward = 1.0
    assert rollout.ending is Ending.SUCCESS
    assert rollout.to_json()["meta"]["rtmc"]["stop"] == "success"
    assert rollout.steps[0].answer == "two"
    assert rollout.stop is Stop.SUCCESS


def test_answers_and_token_counts_follow_from_the_rest():
    rollout = small(token_ids=[[1, 2, 3, 4], []])
    assert [step.answer for step in rollout.steps] == ["It is open.", None]
    assert [step.tokens for step in rollout.steps] == [3, 0]


def test_json_form():
    value = small(reward=1.0, system="Be brief.", meta={"seed": 3}).to_json()
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert [(m["role"], m["content"]) for m in value["messages"]] == [
        ("system", "Be brief."),
        ("user", "You see a door."),
        ("assistant", "open door"),
        ("user", "It is open."),
        ("assistant", "go"),
    ]
    assert value["reward"] == 1.0
    assert value["truncated"] is False
    assert value["step_rewards"] == [0.0, -0.1]
    assert value["meta"]["seed"] == 3
    assert value["meta"]["rtmc"]["state_key"] == ["s0", "s1"]


def test_unknown_reward_is_null():
    assert small().to_json()["reward"] is None


TEXT = st.text(max_size=8)
KEY = st.none() | TEXT
STEPS = st.builds(
    Step,
    observation=TEXT,
    action=TEXT,
    state_key=KEY,
    action_key=KEY,
    next_state_key=KEY,
    valid=st.none() | st.booleans(),
    reward=st.floats(-1, 1),
    tokens=st.none() | st.integers(0, 9),
    validation=st.booleans(),
    answer=KEY,
    thought=KEY,
    tool_calls=st.lists(
        st.fixed_dictionaries({"id": TEXT, "function": st.fixed_dictionaries({"name": TEXT})}), max_size=2
    ),
    scores=st.dictionaries(TEXT, st.floats(-1, 1), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=4),
    reward=st.floats(-1, 1),
    truncated=st.booleans(),
    stop=st.none() | st.sampled_from(Stop),
    error=KEY,
    system=KEY,
    meta=st.dictionaries(TEXT, TEXT | st.integers(), max_size=2),
    with_tokens=st.booleans(),
)
def test_round_trip(tmp_path_factory, steps, reward, truncated, stop, error, system, meta, with_tokens):
    ids = [[7] * k for k in range(len(steps))] if with_tokens else None
    meta.pop("rtmc", None)
    rollout = Rollout("t", "r", steps, reward, truncated, stop, error, ids, meta, system)
    again = Rollout.from_json(json.loads(json.dumps(rollout.to_json())))
    assert again == rollout
    assert again.to_json() == rollout.to_json()
    path = tmp_path_factory.mktemp("rollouts") / "x.jsonl"
    write_rollouts(path, [rollout])
    assert read_rollouts(path) == [rollout]


def test_a_file_of_the_plain_chat_format(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Question"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "assistant", "content": "Answer"},
    ]
    lines = [
        {"task_id": 4, "messages": messages, "split": "test"},
        {"task_id": 4, "rollout_id": "b", "messages": [], "reward": 1, "truncated": True, "meta": {"rank": 2}},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    first, second = read_rollouts(path)
    assert (first.task_id, first.rollout_id, first.system) == ("4", "log:1", "S")
    assert math.isnan(first.reward)
    assert [(s.observation, s.action, s.answer) for s in first.steps] == [
        ("Question", "", "one\ntwo"),
        ("one\ntwo", "Answer", None),
    ]
    assert first.steps[0].tool_calls == [call]
    assert first.meta == {"split": "test"}
    assert (second.steps, second.stop, second.meta) == ([], Stop.TRUNCATED, {"rank": 2})
    # What was read is written as it was.
    assert first.to_json()["messages"] == messages


def test_messages_that_no_longer_match_the_steps():
    rollout = Rollout.from_json(small().to_json())
    rollout.steps[1].action = "stay"
    with pytest.raises(RolloutError, match="disagree from step 1"):
        rollout.to_json()
    rollout.messages = None
    assert Rollout.from_json(rollout.to_json()) == rollout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "a rollout is a JSON object.*got a list"),
        ('{"messages": []}', "no `task_id`"),
        ('{"task_id": "a"}', "no `messages`"),
        ('{"task_id": "", "messages": []}', "`task_id` must be a string that is not empty"),
        ('{"task_id": "a", "messages": [], "rewards": 1}', "unknown key `rewards`; did you mean `reward`"),
        ('{"task_id": "a", "messages": [], "reward": "1"}', "`reward` must be a number, got a string"),
        ('{"task_id": "a", "messages": [], "reward": true}', "`reward` must be a number, got a boolean"),
        ('{"task_id": "a", "messages": [], "reward": Infinity}', "`reward` is inf"),
        ('{"task_id": "a", "messages": [], "truncated": 1}', "`truncated` must be a boolean"),
        ('{"task_id": "a", "messages": {}}', "`messages` must be a list"),
        ('{"task_id": "a", "messages": [{"content": ""}]}', r"`messages\[0\]` must be an object with a string `role`"),
        ('{"task_id": "a", "messages": [{"role": "user", "content": 5}]}', "`content` must be a string"),
        ('{"task_id": "a", "messages": [{"role": "assistant", "tool_calls": "x"}]}', "`tool_calls` must be a list"),
        (
            '{"task_id": "a", "messages": [], "step_rewards": [1]}',
            "`step_rewards` must be a list of 0 entries.*1 entries",
        ),
        ('{"task_id": "a", "messages": [{"role": "assistant"}], "token_ids": [["x"]]}', r"`token_ids\[0\]`"),
        ('{"task_id": "a", "messages": [{"role": "assistant"}], "token_ids": [null]}', r"`token_ids\[0\]`"),
        ('{"task_id": "a", "messages": [], "meta": {"rtmc": {"stop": "sucess"}}}', "did you mean `success`"),
        ('{"task_id": "a", "messages": [], "meta": {"rtmc": 1}}', "`meta.rtmc`"),
        (
            '{"task_id": "a", "messages": [{"role": "assistant"}], "meta": {"rtmc": {"valid": [1]}}}',
            r"`meta\.rtmc\.valid\[0\]` must be a boolean or null, got a number",
        ),
        ('{"task_id": "a", "messages": [], "seed": 1, "meta": {"seed": 2}}', "`seed` stands beside `meta` and in it"),
        ('{"task_id": "t", "rollout_id": "0", "messages": []}', "is on line 1 already"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "log.jsonl"
    path.write_text('{"task_id": "t", "rollout_id": "0", "messages": []}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(RolloutError, match=message) as caught:
        read_rollouts(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


def test_unknown_format_and_other_bytes(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"task_id": "\xff"}')
    with pytest.raises(RolloutError, match="not UTF-8"):
        read_rollouts(path)
    with pytest.raises(RolloutError, match="unknown rollout format 'rtcm'; did you mean `rtmc`"):
        read_rollouts(path, format="rtcm")
    with pytest.raises(FileNotFoundError):
        read_rollouts(tmp_path / "none.jsonl")


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a"):
        write_rollouts(tmp_path / f"{name}.jsonl", [Rollout("t", name, [])])
    assert [rollout.rollout_id for rollout in read_rollouts(tmp_path)] == ["a", "b"]
    write_rollouts(tmp_path / "c.jsonl", [Rollout("t", "a", [])])
    with pytest.raises(RolloutError, match="comes twice"):
        read_rollouts(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RolloutError, match=r"no `\*\.jsonl` file"):
        read_rollouts(tmp_path / "empty")


def test_writing_is_all_or_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    write_rollouts(path, [small()])
    before = path.read_bytes()
    with pytest.raises(RolloutError, match="rollout '1' of task 'task' cannot be written"):
        write_rollouts(path, [small(), Rollout("task", "1", [], meta={"x": object()})])
    with pytest.raises(RolloutError, match="comes twice"):
        write_rollouts(path, [small(), small()])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]
    with pytest.raises(TypeError, match="must be a Rollout"):
        write_rollouts(path, [{}])


def test_raw_bytes_and_odd_line_ends_survive(tmp_path):
    path = tmp_path / "log.jsonl"
    rollout = Rollout("t", "r", [Step("a\u2028b\x0cc\r\n", "\ud800 raw")], reward=0.0)
    write_rollouts(path, [rollout])
    assert read_rollouts(path) == [rollout]


def test_real_logs_read_and_write_back(tmp_path, shared):
    path = shared / "data" / "hotpot_react.jsonl"
    rollouts = read_rollouts(path)
    raw = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rollouts) == len(raw)
    for rollout, value in zip(rollouts, raw, strict=True):
        assert len(rollout.steps) == sum(m["role"] == "assistant" for m in value["messages"])
        assert rollout.reward == value["reward"]
    write_rollouts(tmp_path / "copy.jsonl", rollouts)
    assert read_rollouts(tmp_path / "copy.jsonl") == rollouts
    copied = [json.loads(line) for line in (tmp_path / "copy.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [value["messages"] for value in copied] == [value["messages"] for value in raw]
