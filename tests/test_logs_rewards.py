"""Rewards from a file beside the logs: the forms it may have, what it matches, what is wrong with it."""

import json
import math

import pytest

from rtmc import Rollout, RolloutError
from rtmc.logs.rewards import Rewards

_MODEL = "model_name_or_path"


def read(tmp_path, content, name="rewards.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return Rewards.read([path])


def reward(rewards, task, rollout="only"):
    return rewards.of(Rollout(task, rollout, []))


@pytest.mark.parametrize(
    "content",
    [
        {"t": {"a": 1.0, "b": 0}, "u": {"a": None}},
        {"t": {"a": True, "b": False}, "u": {"a": math.nan}},
        [
            {"task_id": "t", "rollout_id": "a", "reward": 1},
            {"task_id": "t", "rollout_id": "b", "reward": 0},
            {"task_id": "u", "rollout_id": "a", "reward": None},
        ],
        '{"task_id": "t", "rollout_id": "a", "reward": 1}\n\n{"task_id": "t", "rollout_id": "b", "reward": 0}\n'
        '{"task_id": "u", "rollout_id": "a", "reward": null}\n',
        "task_id,rollout_id,reward\nt,a,1.0\nt,b,0\nu,a,\n",
        "\ufeffrollout_id, reward ,task_id,note\r\na,true,t,x\r\nb,False,t,\r\na,nan,u,\r\n",
        "instance_id;rollout_id;resolved\nt;a;true\nt;b;0\nu;a;\n",
        "instance_id\trollout_id\tscore\nt\ta\t1\nt\tb\t0\nu\ta\tNone\n",
    ],
    ids=["nested", "verdicts", "list", "lines", "CSV", "CSV, other order, BOM, CRLF", "semicolons", "tabs"],
)
def test_by_task_and_rollout(tmp_path, content):
    rewards = read(tmp_path, content)
    assert len(rewards) == 3
    assert reward(rewards, "t", "a") == 1.0
    assert rewards.unmatched == ["t/b", "u/a"]
    assert reward(rewards, "t", "b") == 0.0
    assert math.isnan(reward(rewards, "u", "a"))
    assert reward(rewards, "u", "b") is None
    assert reward(rewards, "a", "t") is None
    assert rewards.unmatched == []
    assert rewards.shared == []


@pytest.mark.parametrize("content", [{"t": 1, "a": 0.5}, "task_id,reward\nt,1\na,0.5\n"])
def test_by_one_name(tmp_path, content):
    rewards = read(tmp_path, content)
    assert reward(rewards, "x", "a") == 0.5  # the rollout's
    assert rewards.unmatched == ["t"]
    assert reward(rewards, "t", "1") == 1.0  # the task's
    assert reward(rewards, "t", "1") == 1.0
    assert rewards.shared == []
    assert reward(rewards, "t", "2") == 1.0
    assert rewards.shared == ["t"]
    assert reward(rewards, "x", "x") is None


def test_by_both_in_one_name(tmp_path):
    rewards = read(tmp_path, {"t/a": 1, "t": 0})
    assert reward(rewards, "t", "a") == 1.0
    assert reward(rewards, "t", "b") == 0.0


def test_results_of_the_swebench_harness(tmp_path):
    rewards = read(
        tmp_path,
        {
            "total_instances": 6,
            "submitted_ids": ["r", "u", "e", "x"],
            "completed_ids": ["r", "u", "c"],
            "incomplete_ids": ["i"],
            "empty_patch_ids": ["e"],
            "resolved_ids": ["r"],
            "unresolved_ids": ["u"],
            "error_ids": ["x"],
            "schema_version": 2,
        },
    )
    assert {task: reward(rewards, task) for task in "rueci"} == {
        "r": 1.0,
        "u": 0.0,
        "e": 0.0,
        "c": 0.0,
        "i": pytest.approx(math.nan, nan_ok=True),
    }
    assert math.isnan(reward(rewards, "x"))  # no verdict is no failure
    assert reward(rewards, "other") is None


def test_older_results_of_the_harness(tmp_path):
    lists = {"no_generation": ["n"], "no_logs": ["l"], "with_logs": ["a", "b"], "applied": ["a"], "resolved": ["a"]}
    rewards = read(tmp_path, lists)
    assert [reward(rewards, task) for task in "anb"] == [1.0, 0.0, 0.0]
    assert math.isnan(reward(rewards, "l"))


def test_reports_of_single_instances(tmp_path):
    report = {"patch_is_None": False, "patch_exists": True, "resolved": True, "tests_status": {}}
    for name, resolved in (("o__r-1", True), ("o__r-2", False)):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps({name: {**report, "resolved": resolved}}))
    rewards = Rewards.read([tmp_path / "logs"])
    assert (reward(rewards, "o__r-1"), reward(rewards, "o__r-2")) == (1.0, 0.0)
    assert reward(Rewards.read([tmp_path / "logs" / "o__r-2" / "report.json"]), "o__r-2") == 0.0
    (tmp_path / "none").mkdir()
    with pytest.raises(RolloutError, match=r"no `report\.json`"):
        Rewards.read([tmp_path / "none"])


def test_files_that_differ_about_a_rollout(tmp_path):
    for name, value in (("1.json", 0), ("2.json", 1), ("3.json", 1)):
        (tmp_path / name).write_text(json.dumps({"t": {"a": value}}))
    paths = [tmp_path / name for name in ("1.json", "2.json", "3.json")]
    assert reward(Rewards.read(paths[1:]), "t", "a") == 1.0
    for order in (paths, paths[::-1]):
        with pytest.raises(RolloutError, match=r"'t/a' has two rewards that differ .*\d\.json says .*\d\.json says"):
            reward(Rewards.read(order), "t", "a")
    assert reward(Rewards.read(paths), "t", "b") is None
    assert len(Rewards.read([])) == 0


def instance_report(folder, resolved, task="o__r-1"):
    (folder / task).mkdir(parents=True)
    (folder / task / "report.json").write_text(json.dumps({task: {"resolved": resolved}}))


@pytest.fixture
def runs(tmp_path):
    """Three runs of one task, each in its folder; the verdicts of two of them, each under the run's name."""
    logs = [tmp_path / "logs" / run / "o__r-1" / "o__r-1.traj" for run in ("A", "B", "C")]
    for log in logs:
        log.parent.mkdir(parents=True)
    instance_report(tmp_path / "eval" / "A" / "model", True)
    instance_report(tmp_path / "eval" / "B" / "model", False)
    return tmp_path, logs


def of_runs(logs, *given):
    rewards = Rewards.read(given)
    rewards.know(logs)
    return [rewards.of(Rollout("o__r-1", f"{log.parts[-3]}/o__r-1", []), log) for log in logs], rewards


def test_a_report_is_of_the_run_whose_name_it_bears(runs):
    folder, logs = runs
    for given in (["eval"], ["eval/A", "eval/B"], ["eval/B", "eval/A"]):
        assert of_runs(logs, *(folder / path for path in given))[0] == [1.0, 0.0, None]
    only = of_runs(logs, folder / "eval" / "B" / "model" / "o__r-1" / "report.json")
    assert only[0] == [None, 0.0, None]
    assert only[1].shared == []


def test_a_report_is_of_the_run_that_is_named(runs):
    folder, logs = runs
    found, _ = of_runs(logs, f"C={folder / 'eval' / 'A'}", f"A={folder / 'eval' / 'B'}")
    assert found == [0.0, None, 1.0]
    results = folder / "results.json"
    results.write_text(json.dumps({"resolved_ids": ["o__r-1"], "unresolved_ids": []}))
    assert of_runs(logs, f"B/o__r-1={results}")[0] == [None, 1.0, None]  # by the rollout's id
    (folder / "B=x.json").write_text(json.dumps({"o__r-1": 0.5}))
    assert of_runs(logs, folder / "B=x.json")[0] == [0.5] * 3  # a file of that name is there


@pytest.mark.parametrize(
    ("name", "more"), [("m.B.json", {}), ("B/r.json", {}), ("r.json", {"run_id": "B"}), ("r.json", {_MODEL: "B"})]
)
def test_results_bear_the_name_of_a_run(runs, name, more):
    folder, logs = runs
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"resolved_ids": ["o__r-1"], **more}))
    assert of_runs(logs, folder / name)[0] == [None, 1.0, None]


def test_verdicts_of_which_nothing_tells_the_run(runs):
    folder, logs = runs
    instance_report(folder / "one" / "x" / "model", True)
    found, rewards = of_runs(logs, folder / "one")
    assert found == [1.0] * 3
    assert rewards.shared == ["o__r-1"]
    instance_report(folder / "two" / "y" / "model", False)
    for order in (("one", "two"), ("two", "one")):
        with pytest.raises(RolloutError, match=r"differ for the rollout 'A/o__r-1'.*give them as --rewards RUN=FILE"):
            of_runs(logs, *(folder / name for name in order))
    with pytest.raises(RolloutError, match="RUN=FILE"):
        of_runs(logs, f"A={folder / 'one'}", f"A={folder / 'two'}")
    # A folder that all logs lie in tells none of them from another.
    instance_report(folder / "three" / "logs" / "model", False)
    assert of_runs(logs, folder / "three")[0] == [0.0] * 3


def test_no_verdict_gives_way_to_one(tmp_path):
    for name, value in (("1.json", {"error_ids": ["t"], "resolved_ids": []}), ("2.json", {"resolved_ids": ["t"]})):
        (tmp_path / name).write_text(json.dumps(value))
    for order in (("1.json", "2.json"), ("2.json", "1.json")):
        assert reward(Rewards.read([tmp_path / name for name in order]), "t") == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("{", "not JSON"),
        ('{"t": "1"}', "the reward of 't' must be a number, true, false or null; got a string"),
        ('{"t": {"a": [1]}}', "the reward of 't', 'a' must be a number.*got a list"),
        ('{"t": {"a": Infinity}}', "is inf; it must be finite"),
        ('[{"reward": 1}]', "entry 0 has neither `task_id` nor `rollout_id`"),
        ('[{"task_id": "t"}]', "entry 0 has no `reward`"),
        ("[5]", "entry 0 must be an object.*got a number"),
        ('{"resolved_ids": [1]}', "`resolved_ids` must be a list of instance ids, got a number in it"),
        ("name,value\nx,1\n", "neither JSON nor a CSV with the head line `task_id,rollout_id,reward`.*'name,value'"),
        (
            "task_id,reward\nt,1\nu,good\n",
            "rewards.json:3: `reward` must be a number, true, false or empty; got 'good'",
        ),
        ("task_id,reward\n,1\n", "rewards.json:2: .*neither `task_id`"),
        ("task_id,reward\nt,1\nu\n", "rewards.json:3: the line ends before `reward`"),
        ("task_id,reward\nt,1,2\n", "rewards.json:2: the line has more values"),
        ("task_id,reward,reward\nt,1,2\n", "rewards.json:1: two columns have one name"),
        ('task_id,reward\nt,"1\n', r"rewards\.json:\d: "),
        ('{"t": 1}\n{"t" 2}\n', r"rewards\.json:2: not JSON"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, message):
    with pytest.raises(RolloutError, match=message) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "rewards.json"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "task_id,rollout_id,reward\nt,a,1\nt,b,0\nt,a,0\n",
            "'t/a' comes twice with different rewards: 1 on line 2, 0 on line 4",
        ),
        ("task_id,reward\nt,1\nt,\n", "'t' comes twice with different rewards: 1 on line 2, nan on line 3"),
        (
            '{"task_id": "t", "rollout_id": "a", "reward": 1}\n\n{"task_id": "t", "rollout_id": "a", "reward": 0}\n',
            "1 on line 1, 0 on line 3",
        ),
        ([{"task_id": "t", "reward": 1}, {"task_id": "t", "reward": 0}], "1 on entry 0, 0 on entry 1"),
    ],
)
def test_a_pair_comes_twice(tmp_path, content, message):
    with pytest.raises(RolloutError, match=message):
        read(tmp_path, content)


def test_the_same_reward_may_come_twice(tmp_path):
    assert len(read(tmp_path, "task_id,rollout_id,reward\nt,a,1\nt,a,1.0\nt,b,\nt,b,nan\n")) == 2
    with pytest.raises(RolloutError, match=r":1: .*expected"):
        read(tmp_path, 'task_id,"reward"x\nt,1\n')
