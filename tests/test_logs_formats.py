"""The formats of logs: what each form of record, written by hand, becomes; and the real logs."""

import json
import math

import pytest

from rtmc import RolloutError, Stop, read_rollouts, write_rollouts
from rtmc.logs import FORMATS, LogReader
from tests import logsamples
from tests.logsamples import FILES


def read(tmp_path, name, content=None, format="auto"):
    """(rollouts, formats met) of one file."""
    path = tmp_path / name
    path.write_text(FILES[name] if content is None else content, encoding="utf-8")
    reader = LogReader([path], format)
    rollouts = list(reader)
    return rollouts, dict(reader.formats)


def record(value):
    return json.dumps(value) + "\n"


def steps(rollout):
    return [(s.observation, s.action, s.answer) for s in rollout.steps]


@pytest.mark.parametrize(
    ("name", "form", "rollouts"),
    [
        ("chat.jsonl", "rtmc", 1),
        ("owner__repo-6.traj", "sweagent", 1),
        ("mini.traj.json", "mini-swe-agent", 1),
        ("r2e.jsonl", "r2e-gym", 1),
        ("r2e.txt", "r2e-gym", 1),
        ("search.jsonl", "search-r1", 1),
        ("search.txt", "search-r1", 1),
        ("alfworld.txt", "alfworld", 2),
        ("alfworld.jsonl", "alfworld", 1),
        ("react.txt", "react", 1),
        ("sharegpt.json", "chat", 1),
        ("anthropic.jsonl", "chat", 1),
    ],
)
def test_the_format_is_told_from_the_content(tmp_path, name, form, rollouts):
    found, formats = read(tmp_path, name)
    assert formats == {form: rollouts}
    # The name says nothing: the same content under another name, and under the format's own.
    other = "x.txt" if name.endswith((".json", ".jsonl", ".traj")) else "x.jsonl"
    again, formats = read(tmp_path, other, FILES[name])
    assert formats == {form: rollouts}
    named, _ = read(tmp_path, name, format=form)
    assert [steps(r) for r in again] == [steps(r) for r in named] == [steps(r) for r in found]
    for rollout in found:
        assert len(rollout.steps) >= 2
        # An answer is what the next step sees.
        assert all(a.answer == b.observation for a, b in zip(rollout.steps, rollout.steps[1:], strict=False))
    # Every rollout can be kept in our own format, and is the same when it is read from there.
    write_rollouts(tmp_path / "own.jsonl", found)
    assert read_rollouts(tmp_path / "own.jsonl") == found


def test_parallel_calls_are_one_step(tmp_path):
    calls = [{"id": f"c{k}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for k in (1, 2)]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]
    (rollout,), _ = read(tmp_path, "x.jsonl", record({"task_id": "t", "messages": messages}))
    assert steps(rollout) == [("go", "", "one\ntwo")]
    assert rollout.steps[0].tool_calls == calls
    # The same in Anthropic's parts, both results in one message.
    uses = [{"type": "tool_use", "id": f"u{k}", "name": "f", "input": {"k": k}} for k in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"u{k}", "content": text} for k, text in ((1, "one"), (2, "two"))]
    messages = [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    (rollout,), _ = read(tmp_path, "x.jsonl", record({"task_id": "t", "messages": messages}))
    assert [(s.action, s.answer) for s in rollout.steps] == [("", "onetwo")]
    assert [call["function"] for call in rollout.steps[0].tool_calls] == [
        {"name": "f", "arguments": {"k": 1}},
        {"name": "f", "arguments": {"k": 2}},
    ]


def test_odd_chats_are_read(tmp_path):
    messages = [
        {"role": "tool", "content": "a result no call asked for"},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": None},
        {"role": "assistant", "content": "no answer", "reasoning_content": "because"},
        {"role": "assistant", "content": ["a", {"type": "text", "text": "b"}, {"type": "image_url", "image_url": {}}]},
    ]
    (rollout,), _ = read(tmp_path, "x.jsonl", record({"task_id": "t", "messages": messages}))
    assert steps(rollout) == [("a result no call asked for", "", ""), ("", "no answer", None), ("", "ab", None)]
    assert rollout.steps[0].tool_calls == [{"type": "function", "function": {"name": "old", "arguments": "{}"}}]
    assert rollout.steps[1].thought == "because"
    assert math.isnan(rollout.reward)


def test_chats_without_a_task_go_by_their_beginning(tmp_path):
    def chat(question, answer):
        return {
            "prompt": [{"role": "user", "content": question}],
            "completion": [{"role": "assistant", "content": answer}],
            "score": 1,
        }

    rollouts, formats = read(
        tmp_path, "x.jsonl", "".join(map(record, [chat("a?", "1"), chat("a?", "2"), chat("b?", "1")]))
    )
    assert formats == {"chat": 3}
    assert rollouts[0].task_id == rollouts[1].task_id != rollouts[2].task_id
    assert [r.rollout_id for r in rollouts] == ["x:1", "x:2", "x:3"]
    assert rollouts[0].reward == 1.0
    # Not only by its first words.
    long = "Which of the many rivers of the old continent is the longest, "
    rollouts, _ = read(tmp_path, "x.jsonl", "".join(map(record, [chat(long + "a?", "1"), chat(long + "b?", "1")])))
    assert rollouts[0].task_id != rollouts[1].task_id
    # Chats with no id at all are asked for one, unless the format is named.
    bare = record({"messages": [{"role": "assistant", "content": "x"}]})
    with pytest.raises(RolloutError, match=r"no `task_id`.*format 'chat'"):
        read(tmp_path, "x.jsonl", bare)
    (rollout,), _ = read(tmp_path, "x.jsonl", bare, format="chat")
    assert rollout.task_id
    whole, formats = read(tmp_path, "x.json", json.dumps([{"role": "assistant", "content": "x"}], indent=1))
    assert (formats, len(whole)) == ({"chat": 1}, 1)
    stored = record({"instance_id": "i", "messages": json.dumps([{"role": "assistant", "content": "x"}])})
    assert read(tmp_path, "x.jsonl", stored)[0][0].steps[0].action == "x"


def test_sweagent(tmp_path):
    (rollout,), _ = read(tmp_path, "owner__repo-6.traj")
    assert (rollout.task_id, rollout.rollout_id) == ("owner__repo-6", "owner__repo-6")
    assert math.isnan(rollout.reward)  # submitted is not solved
    assert rollout.stop is Stop.UNKNOWN
    assert rollout.system == "You are a programmer."
    assert rollout.steps[0].observation == "ISSUE: it breaks."  # and not the demonstration
    assert [s.action for s in rollout.steps] == ["open src/a.py 3\n", "edit 3:3\n return\nend_of_edit\n", "submit\n"]
    assert [s.thought for s in rollout.steps] == ["Look.\n", "Mend.", "Done."]
    # An unknown command is one all the same.
    strange = json.loads(FILES["owner__repo-6.traj"])
    strange["trajectory"][0]["action"] = "frobnicate --all"
    (rollout,), _ = read(tmp_path, "x.traj", json.dumps(strange))
    assert rollout.steps[0].action == "frobnicate --all"
    assert rollout.steps[0].tool_calls[0]["function"]["arguments"] == {"command": "frobnicate --all"}


@pytest.mark.parametrize(
    ("status", "stop", "truncated"),
    [
        ("submitted", Stop.UNKNOWN, False),
        ("submitted (exit_cost)", Stop.TRUNCATED, True),
        ("exit_context", Stop.TRUNCATED, True),
        ("exit_format", Stop.UNKNOWN, False),
        ("exit_environment_error", Stop.ERROR, False),
    ],
)
def test_how_a_sweagent_run_ended(tmp_path, status, stop, truncated):
    value = json.loads(FILES["owner__repo-6.traj"])
    value["info"]["exit_status"] = status
    (rollout,), _ = read(tmp_path, "x.traj", json.dumps(value))
    assert (rollout.stop, rollout.truncated) == (stop, truncated)
    assert rollout.meta["exit_status"] == status


@pytest.mark.parametrize(
    ("config", "name", "task"),
    [
        ({"problem_statement": {"id": "o__r-1"}}, "x.traj", "o__r-1"),
        (json.dumps({"problem_statement": {"id": "o__r-1"}}), "x.traj", "o__r-1"),
        ({"env": {"deployment": {"image": "swebench/sweb.eval.x86_64.o-o_1776_r-2:latest"}}}, "x.traj", "o-o__r-2"),
        ("no JSON", "repo-5.again.traj", "owner__repo-5"),
        (None, "repo-5.again.traj", "owner__repo-5"),
        (None, "other-5.traj", "other-5"),
        (None, "run.traj", "run"),
    ],
)
def test_the_task_of_a_sweagent_run(tmp_path, config, name, task):
    value = json.loads(FILES["owner__repo-6.traj"]) | {"replay_config": config}
    (rollout,), _ = read(tmp_path, name, json.dumps(value))
    assert rollout.task_id == task
    assert rollout.rollout_id == name.removesuffix(".traj")


def test_sweagent_data_sets_in_chat_form(tmp_path):
    items = [
        {"role": "system", "system_prompt": "S", "text": None},
        {"role": "user", "text": "fix"},
        {"role": "ai", "text": "look\n```\nls\n```"},
        {"role": "user", "text": "a.py"},
    ]
    value = {"instance_id": "o__r-3", "trajectory": items, "target": True, "exit_status": "submitted"}
    (rollout,), formats = read(tmp_path, "x.jsonl", record(value))
    assert formats == {"sweagent": 1}
    assert (rollout.task_id, rollout.rollout_id, rollout.reward, rollout.system) == ("o__r-3", "x:1", 1.0, "S")
    assert steps(rollout) == [("fix", "look\n```\nls\n```", "a.py")]


def test_miniswe(tmp_path):
    (rollout,), _ = read(tmp_path, "mini.traj.json")
    assert (rollout.task_id, rollout.rollout_id) == ("owner__repo-7", "mini")
    assert math.isnan(rollout.reward)
    assert steps(rollout)[0][1:] == (
        logsamples.MINI["messages"][2]["content"],
        logsamples.MINI["messages"][3]["content"],
    )
    limited = json.loads(FILES["mini.traj.json"])
    limited["info"] = {"exit_status": "LimitsExceeded", "instance_id": "o__r-1"}
    limited["messages"][2] = {"role": "assistant", "content": "", "extra": {"actions": [{"command": "ls"}]}}
    del limited["instance_id"]
    (rollout,), _ = read(tmp_path, "x.traj.json", json.dumps(limited))
    assert (rollout.stop, rollout.task_id, rollout.steps[0].action) == (Stop.TRUNCATED, "o__r-1", "ls")


def test_r2egym(tmp_path):
    (rollout,), _ = read(tmp_path, "r2e.jsonl")
    assert (rollout.task_id, rollout.reward, rollout.stop) == ("owner__repo-8", 0.0, Stop.FAILURE)
    assert rollout.steps[0].observation == "It breaks."
    assert rollout.steps[0].thought == "Look around."
    (text,), _ = read(tmp_path, "r2e.txt")
    assert [s.action for s in text.steps] == [s.action for s in rollout.steps]
    assert [s.answer for s in text.steps] == [s.answer for s in rollout.steps]
    assert text.steps[0].observation == "Fix the bug in a.py."
    # The same behind a chat template's markers, as engines dump it.
    marked = "<|im_start|>user\nFix it.<|im_end|>\n"
    for step in rollout.steps:
        marked += f"<|im_start|>assistant\n{step.action}<|im_end|>\n<|im_start|>user\n{step.answer}<|im_end|>\n"
    (dump,), _ = read(tmp_path, "x.jsonl", record({"prompt": "", "response": marked, "reward": 1, "uid": "u"}))
    assert steps(dump) == [
        ("Fix it.", rollout.steps[0].action, rollout.steps[0].answer),
        (rollout.steps[0].answer, rollout.steps[1].action, rollout.steps[1].answer),
    ]
    assert (dump.reward, dump.rollout_id) == (1.0, "u")


def test_searchr1(tmp_path):
    (rollout,), _ = read(tmp_path, "search.jsonl")
    assert rollout.reward == 1.0
    assert [s.action for s in rollout.steps] == [
        "<think>I must look.</think>\n<search> capital of Austria </search>",
        "<search>Vienna",
        "<think>Now I know.</think><answer> Vienna </answer>",
    ]
    assert rollout.steps[0].answer == ('<information>Doc 1(Title: "Vienna") Vienna is the capital.\n</information>')
    assert rollout.steps[1].answer.startswith("My previous action is invalid.")
    assert rollout.steps[1].answer.endswith("Let me try again.")
    assert rollout.steps[2].answer is None
    # The whole text with its prompt, example answer included, and one message in our own format: the same steps.
    prompt = (
        "Answer inside <answer> and </answer>, for example <answer> Beijing </answer>. Question: capital of Austria?\n"
    )
    (text,), _ = read(tmp_path, "x.txt", prompt + logsamples.SEARCH_R1_TEXT)
    assert [s.action for s in text.steps] == [s.action for s in rollout.steps]
    assert text.task_id == rollout.task_id
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": logsamples.SEARCH_R1_TEXT}]
    (own,), formats = read(tmp_path, "x.jsonl", record({"task_id": "t", "messages": messages}))
    assert formats == {"rtmc": 1}
    assert [s.action for s in own.steps] == [s.action for s in rollout.steps]
    assert own.steps[0].observation == prompt


def test_alfworld(tmp_path):
    rollouts, _ = read(tmp_path, "alfworld.txt")
    assert [(r.rollout_id, r.reward) for r in rollouts] == [("alfworld:1", 1.0), ("alfworld:2", 0.0)]
    assert rollouts[0].task_id.startswith("put-some-mug-on-shelf-")  # the examples' pan is no rollout
    assert rollouts[1].task_id.startswith("put-some-cup-on-shelf-")
    looked = "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert [(s.action, s.answer) for s in rollouts[0].steps] == [
        ("think: First I need to find a mug.", "OK."),
        ("go to cabinet 1", "The cabinet 1 is closed."),
        ("dance", "Nothing happens."),
        ("look", looked),
    ]
    intro = rollouts[0].steps[0].observation
    assert intro.startswith("You are in the middle of a room.")
    assert intro.endswith("Your task is to: put some mug on shelf.")
    # The same game in another file is the same task; without a verdict its reward is unknown.
    (again,), _ = read(tmp_path, "again.txt", logsamples.ALFWORLD_GAME)
    assert again.task_id == rollouts[0].task_id
    assert math.isnan(again.reward)


def test_alfworld_against_the_engine(tmp_path, shared):
    """Transcripts as ReAct would print them, made of episodes that the real engine played."""
    for file in sorted((shared / "alfworld").glob("*.json")):
        episode = json.loads(file.read_text())
        text = episode["observation"] + "\n"
        for step in episode["steps"]:
            text += f"> {step['command']}\n{step['feedback'].strip()}\n"
        (rollout,), formats = read(tmp_path, "x.txt", text)
        assert formats == {"alfworld": 1}
        assert [s.action for s in rollout.steps] == [step["command"].strip() for step in episode["steps"]]
        assert [s.answer or "" for s in rollout.steps] == [step["feedback"].strip() for step in episode["steps"]]


def test_react(tmp_path):
    (rollout,), _ = read(tmp_path, "react.txt")
    assert [(s.thought, s.action) for s in rollout.steps] == [
        ("I need to search Wolf and Sheep.", "Search[Wolf and Sheep]"),
        ("Then the film.", "Finish[Cannes]"),
    ]
    assert rollout.reward == 0.0
    two = logsamples.REACT_TEXT + logsamples.REACT_TEXT.replace("INCORRECT", "CORRECT").replace("Which film", "What")
    rollouts, _ = read(tmp_path, "x.txt", two)
    assert [r.reward for r in rollouts] == [0.0, 1.0]
    assert [r.rollout_id for r in rollouts] == ["x:1", "x:2"]


def test_real_trajectories_of_sweagent(shared):
    rollouts = {r.rollout_id: r for r in read_rollouts(shared / "data" / "sweagent")}
    for file in (shared / "data" / "sweagent").glob("*.traj"):
        raw = json.loads(file.read_text(encoding="utf-8"))
        rollout = rollouts[file.name.removesuffix(".traj")]
        assert [s.action for s in rollout.steps] == [item["action"] for item in raw["trajectory"]]
        assert [s.answer for s in rollout.steps] == [item["observation"] for item in raw["trajectory"]]
        assert [s.observation for s in rollout.steps[1:]] == [item["observation"] for item in raw["trajectory"][:-1]]
        assert "ISSUE" in rollout.steps[0].observation
        assert "DEMONSTRATION" not in rollout.steps[0].observation
        assert rollout.system
        assert math.isnan(rollout.reward)
    same = [r for r in rollouts.values() if r.rollout_id.startswith("marshmallow-1867")]
    assert {r.task_id for r in same} == {"marshmallow-code__marshmallow-1867"}
    assert rollouts["pydicom-1458.windowed"].task_id == "pydicom__pydicom-1458"


def test_every_format_has_a_sample(tmp_path):
    met = set()
    for name in FILES:
        met |= set(read(tmp_path, name)[1])
    assert met == set(FORMATS)


NO_BEGINNING = (
    "I look.\n<function=search>\n<parameter=search_term>foo</parameter>\n</function>\nExecution output of [search]:\nNo"
)


def test_rollouts_that_begin_with_nothing_are_of_no_common_task(tmp_path):
    """What isn't known to be one task is not compared: each is named by its place, or the instance of its file."""
    text = json.dumps({"output": NO_BEGINNING, "reward": 1.0})
    files = {
        "a/log.txt": NO_BEGINNING,
        "b/log.txt": NO_BEGINNING,
        "owner__repo-7.txt": NO_BEGINNING,
        "step-1.jsonl": f"{text}\n{text}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    tasks = [rollout.task_id for rollout in LogReader([tmp_path])]
    assert len(set(tasks)) == len(tasks) == 5
    assert "owner__repo-7" in tasks
    assert {str(tmp_path / "a/log.txt"), str(tmp_path / "step-1.jsonl") + ":2"} <= set(tasks)
    # What begins with the same words is of one task, wherever it stands.
    (tmp_path / "c.txt").write_text("Fix it.\n\n" + NO_BEGINNING)
    (tmp_path / "d.txt").write_text("Fix  it.\n\n" + NO_BEGINNING)
    first, second = (rollout.task_id for rollout in LogReader([tmp_path / "c.txt", tmp_path / "d.txt"]))
    assert first == second


def test_a_prompt_and_a_completion_as_texts_are_one_turn(tmp_path):
    path = tmp_path / "log.jsonl"
    records = [
        {"prompt": "Capital?", "completion": answer, "reward": reward} for answer, reward in (("Paris", 1), ("Lyon", 0))
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    rollouts = read_rollouts(path)
    assert [[(step.observation, step.action) for step in rollout.steps] for rollout in rollouts] == [
        [("Capital?", "Paris")],
        [("Capital?", "Lyon")],
    ]
    assert len({rollout.task_id for rollout in rollouts}) == 1
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
