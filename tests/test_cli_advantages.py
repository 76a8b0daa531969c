"""`rtmc advantages`: numbers against a count by hand, what is printed and written, and one line for bad input."""

import csv
import gzip
import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import rtmc
from rtmc import Ending
from rtmc.cli import main
from rtmc.logs.credit import credit_logs
from tests.logsamples import FILES


def chat(task, rollout, actions, reward, **more):
    """A rollout whose observations are what was done last, so that equal beginnings meet."""
    messages = []
    for place, action in enumerate(actions):
        seen = actions[place - 1] if place else "start"
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": action}]
    return {"task_id": task, "rollout_id": rollout, "messages": messages, "reward": reward, **more}


# Two rollouts part at the second step: with gamma = 1 and no prior, Q - V is (1, 0) - 1/2 there and 0 before.
FORK = [chat("fork", "good", ["a", "b"], 1.0), chat("fork", "bad", ["a", "c"], 0.0)]
PLAIN = ["--set", "rtmc.gamma=1", "--set", "rtmc.prior_visits=0", "--signatures", "text"]


def lines(path, records, name="log.jsonl"):
    file = path / name
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(file)


def run(capsys, *words):
    status = main(["advantages", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys, *words):
    """The one line of a refusal."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("rtmc advantages: ")
    return err


def test_the_credit_of_a_fork(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    status, text, err = run(capsys, lines(tmp_path, FORK), *PLAIN, "-o", out)
    assert (status, err) == (0, "")
    records = [json.loads(record) for record in out.read_text().splitlines()]
    common = {"task_id": "fork"}
    assert records == [
        common | {"rollout_id": "good", "step": 0, "state": "start", "action": "a", "return": 1.0, "q": 0.5, "v": 0.5,
                  "visits": 2, "advantage": 0.0},
        common | {"rollout_id": "good", "step": 1, "state": "a", "action": "b", "return": 1.0, "q": 1.0, "v": 0.5,
                  "visits": 2, "advantage": 0.5},
        common | {"rollout_id": "bad", "step": 0, "state": "start", "action": "a", "return": 0.0, "q": 0.5, "v": 0.5,
                  "visits": 2, "advantage": 0.0},
        common | {"rollout_id": "bad", "step": 1, "state": "a", "action": "c", "return": 0.0, "q": 0.0, "v": 0.5,
                  "visits": 2, "advantage": -0.5},
    ]  # fmt: skip
    assert list(records[0]) == [
        *common,
        "rollout_id",
        "step",
        "state",
        "action",
        "return",
        "q",
        "v",
        "visits",
        "advantage",
    ]
    row = next(line for line in text.splitlines() if line.startswith("rtmc "))
    assert row.replace(" %", "").split()[3:] == ["2", "2", "50.0", "4", "2", "0.0", "0.2500", "0.5000", "50.0"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_several_methods_in_every_file_format(tmp_path, capsys, suffix):
    out = tmp_path / "sub" / f"out.{suffix}"
    words = [lines(tmp_path, FORK), "--signatures", "text", "--method", "grpo_step", "--method", "rtmc", "-o", out]
    assert run(capsys, *words)[0] == 0
    table = rtmc.tabulate(rtmc.read_rollouts(tmp_path / "log.jsonl"), "text", 0, 0, 0, dtype=torch.float64)
    wanted = {name: rtmc.estimate(table, name) for name in ("grpo_step", "rtmc")}
    if suffix == "jsonl":
        records = [json.loads(record) for record in out.read_text().splitlines()]
        found = {name: [record["advantage"][name] for record in records] for name in wanted}
    else:
        pandas = pytest.importorskip("pandas", reason="needs the extra `report`")
        pytest.importorskip("pyarrow", reason="needs the extra `report`")
        frame = pandas.read_csv(out) if suffix == "csv" else pandas.read_parquet(out)
        names = ["task_id", "rollout_id", "step", "state", "action", "return", "q", "v", "visits"]
        assert list(frame.columns) == [*names, "advantage_grpo_step", "advantage_rtmc"]
        found = {name: frame[f"advantage_{name}"].tolist() for name in wanted}
        records = frame.to_dict("records")
    for name, estimate in wanted.items():
        assert found[name] == estimate.advantage.tolist()
    # q and its kin are of the method that has them, though it was not asked for first.
    for key, column in (("q", "q"), ("v", "v"), ("visits", "visits"), ("return", "returns")):
        assert [record[key] for record in records] == getattr(wanted["rtmc"], column).tolist()
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_a_method_without_values_has_null(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(capsys, lines(tmp_path, FORK), "--method", "grpo", "--signatures", "text", "-o", f"{out}.jsonl")[0] == 0
    record = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert [record[key] for key in ("return", "q", "v", "visits")] == [None] * 4
    assert isinstance(record["advantage"], float)
    assert run(capsys, lines(tmp_path, FORK), "--method", "grpo", "--signatures", "text", "-o", f"{out}.csv")[0] == 0
    with open(f"{out}.csv", newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["q"] == ""


def test_json_is_one_document_and_nothing_else(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    strange = chat("fork", "odd", ["a", "\ud800\u2028"], None)
    path = lines(tmp_path, [*FORK, strange])
    status, text, err = run(capsys, path, "--json", *PLAIN, "-o", out, "--method", "rtmc", "--method", "grpo")
    assert (status, err) == (0, "")
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["rewards"] == {"known": 2, "unknown": 1, "from_sidecar": 0}
    assert document["signatures"] == {"chosen_by_form": False, "rollouts": {"text": 3}}
    assert document["formats"] == {"rtmc": 3}
    assert len(document["steps"]) == 6
    assert document["steps"] == [json.loads(record) for record in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert document["steps"][5]["advantage"] == {"rtmc": 0.0, "grpo": 0.0}
    assert document["notes"] == ["the reward of 1 of 3 rollouts is unknown: their advantages are 0; give --rewards"]
    assert [(m["method"], m["task_id"]) for m in document["methods"]] == [("rtmc", None), ("grpo", None)]
    assert run(capsys, path, "--signatures", "text", "-o", tmp_path / "x.csv")[0] == 0
    assert "\\ud800" in (tmp_path / "x.csv").read_text(encoding="utf-8")


def test_tasks_are_listed_while_they_are_few(tmp_path, capsys):
    few = [chat(f"t{k}", r, ["a"], float(r == "x")) for k in range(3) for r in "xy"]
    _, text, _ = run(capsys, lines(tmp_path, few), "--signatures", "text")
    assert [line.split()[1] for line in text.splitlines() if line.startswith("rtmc ")] == ["t0", "t1", "t2", "all"]
    many = [chat(f"t{k}", r, ["a"], float(r == "x")) for k in range(30) for r in "xy"]
    _, text, _ = run(capsys, lines(tmp_path, many), "--signatures", "text")
    assert [line.split()[1] for line in text.splitlines() if line.startswith("rtmc ")] == ["all"]


def test_signatures_are_chosen_by_the_form_and_said(tmp_path, capsys):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    status, text, _ = run(capsys, tmp_path, "--json")
    assert status == 0
    document = json.loads(text)
    assert document["signatures"]["chosen_by_form"] is True
    assert set(document["signatures"]["rollouts"]) == {"swe", "qa", "household", "text"}
    _, text, _ = run(capsys, tmp_path)
    assert "chosen by the form of the logs" in text
    # Tasks of one kind get what they would get alone.
    _, alone, _ = run(capsys, tmp_path / "search.jsonl", "--json")
    steps = [step for step in document["steps"] if step["rollout_id"] == "search:1"]
    assert json.loads(alone)["steps"] == steps
    assert len(steps) == 3


def test_rewards_from_a_sidecar(tmp_path, capsys):
    path = lines(tmp_path, [chat("fork", "good", ["a", "b"], None), chat("fork", "bad", ["a", "c"], 1.0)])
    sidecar = tmp_path / "r.json"
    sidecar.write_text(json.dumps({"fork": {"good": 1, "bad": 0, "other": 1}, "none": {"x": 1}}))
    _, text, _ = run(capsys, path, *PLAIN, "--rewards", sidecar, "--json")
    document = json.loads(text)
    assert [step["advantage"] for step in document["steps"]] == [0.0, 0.5, 0.0, -0.5]
    assert document["rewards"] == {"known": 2, "unknown": 0, "from_sidecar": 2}
    assert document["notes"] == ["2 of 4 rewards name no rollout that was read, first 'fork/other'"]
    # How a rollout ended goes by the sidecar's reward, not by the one it replaces.
    credit = credit_logs([path], rewards=[sidecar])
    assert credit.table.ending.tolist() == [Ending.SUCCESS, Ending.FAILURE]
    _, text, _ = run(capsys, path, *PLAIN)
    assert "note: the reward of 1 of 2 rollouts is unknown" in text


def test_swe_agent_with_results_of_the_harness(tmp_path, capsys, shared):
    logs = shared / "data" / "sweagent"
    _, text, _ = run(capsys, logs, "--json")
    document = json.loads(text)
    assert document["rewards"]["known"] == 0  # submitted is not solved
    assert all(step["advantage"] == 0 for step in document["steps"])
    assert any("reward of all rollouts is unknown" in note for note in document["notes"])
    results = tmp_path / "run.json"
    results.write_text(
        json.dumps({"resolved_ids": ["pydicom__pydicom-1458"], "unresolved_ids": ["SWE-agent__test-repo-i1", "x__y-1"]})
    )
    one = tmp_path / "one.csv"
    one.write_text(
        "task_id,rollout_id,reward\n"
        "marshmallow-code__marshmallow-1867,marshmallow-1867.replace,1\n"
        "marshmallow-code__marshmallow-1867,marshmallow-1867.windowed,0\n"
    )
    words = [logs, "--json", "--rewards", results, "--rewards", one, "--method", "grpo"]
    document = json.loads(run(capsys, *words)[1])
    assert document["rewards"] == {"known": 4, "unknown": 0, "from_sidecar": 4}
    of = {step["rollout_id"]: step["advantage"] for step in document["steps"]}
    assert of["marshmallow-1867.replace"] == pytest.approx(2**-0.5, abs=1e-5)  # z-score of (1, 0), ddof 1
    assert of["marshmallow-1867.windowed"] == pytest.approx(-(2**-0.5), abs=1e-5)
    assert any(
        note.startswith("1 of 5 rewards name no rollout that was read, first 'x__y-1'") for note in document["notes"]
    )


def test_step_rewards_are_filled_in_when_asked(tmp_path, capsys):
    answers = ["You see a mug.", "Nothing happens."]
    messages = []
    for answer in answers:
        messages += [{"role": "assistant", "content": "do"}, {"role": "user", "content": answer}]
    path = lines(tmp_path, [{"task_id": "t", "rollout_id": "r", "messages": messages, "reward": 1.0}])
    words = [path, "--json", "--set", "rtmc.gamma=1", "--signatures", "text"]
    without = json.loads(run(capsys, *words)[1])
    assert [step["return"] for step in without["steps"]] == [1.0, 1.0]
    filled = json.loads(run(capsys, *words, "--step-rewards")[1])
    assert [step["return"] for step in filled["steps"]] == pytest.approx([1.0, 0.995])
    # What a log says of validity counts when asked for, too, and only then.
    said = json.loads(Path(path).read_text()) | {
        "meta": {"rtmc": {"valid": [False, None], "validation": [True, False]}}
    }
    words[0] = lines(tmp_path, [said])
    assert [step["return"] for step in json.loads(run(capsys, *words)[1])["steps"]] == [1.0, 1.0]
    filled = json.loads(run(capsys, *words, "--step-rewards")[1])
    assert [step["return"] for step in filled["steps"]] == pytest.approx([1.04, 0.995])
    # A step that checks the agent's own work gets the bonus: here the second of three, with a valid step before it.
    logs = tmp_path / "logs"
    logs.mkdir()
    calls = [
        [{"function": {"name": "bash", "arguments": {"command": c}}}] for c in ("ls", "pytest tests/test_a.py", "ls")
    ]
    messages = [
        m for c in calls for m in ({"role": "assistant", "tool_calls": c}, {"role": "tool", "content": "1 passed"})
    ]
    path = lines(logs, [{"task_id": "t", "rollout_id": "r", "messages": messages, "reward": 0.0}])
    words = [path, "--json", "--set", "rtmc.gamma=1", "--step-rewards"]
    found = json.loads(run(capsys, *words)[1])
    assert found["signatures"]["rollouts"] == {"swe": 1}
    assert [step["return"] for step in found["steps"]] == pytest.approx([0.065, 0.06, 0.005])
    assert [step["return"] for step in json.loads(run(capsys, *words[:-1])[1])["steps"]] == [0.0, 0.0, 0.0]


def test_malformed_records_can_be_skipped_and_are_counted(tmp_path, capsys):
    path = Path(lines(tmp_path, FORK))
    path.write_text(path.read_text() + '{"task_id": "fork", "mess\n' + json.dumps(FORK[0]) + "\n")
    line = refused(capsys, path, *PLAIN)
    assert f"{path}:3: not JSON" in line
    status, text, err = run(capsys, path, *PLAIN, "--skip-bad")
    assert (status, err) == (0, "")
    assert f"note: 2 malformed records were skipped, first {path}:3: not JSON" in text
    document = json.loads(run(capsys, path, *PLAIN, "--skip-bad", "--json")[1])
    assert document["skipped"] == 2
    assert [step["advantage"] for step in document["steps"]] == [0.0, 0.5, 0.0, -0.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no rollout was found; the file is empty"),
        (b"\n\n", "no rollout was found; the file is empty"),
        (json.dumps(FORK[0]).encode()[:50], "log.jsonl:1: not JSON"),
        (b"no log at all\n", "log.jsonl:1: not JSON"),
        (b'{"task_id": "\xff"}', "log.jsonl:1: not UTF-8"),
        ((json.dumps(FORK[0]) + "\n").encode() * 2, "log.jsonl:2: rollout 'good' of task 'fork' is on line 1 already"),
        (gzip.compress(json.dumps(FORK[0]).encode())[:40], "damaged gzip"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_files(tmp_path, capsys, content, message):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    out = tmp_path / "out.jsonl"
    assert message in refused(capsys, path, "-o", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "rtcm"], "unknown estimator 'rtcm'; did you mean `rtmc`"),
        (["--method", "rtmc", "--method", "rtmc"], "--method rtmc is given twice"),
        (["--set", "gamma=1"], "'gamma=1' is not METHOD.OPTION=VALUE"),
        (["--set", "grpo.eps=1"], "`grpo` is none of the methods asked for: rtmc"),
        (["--set", "rtmc.gama=1"], "did you mean `gamma`"),
        (["--set", "rtmc.gamma=high"], "option `gamma` must be a finite number"),
        (["--signatures", "sew"], "unknown signature 'sew'; did you mean `swe`"),
        (["--format", "sweagnt"], "unknown rollout format 'sweagnt'; did you mean `sweagent`"),
        (["--rewards", "none.json"], "none.json: No such file"),
        (["-o", "x.txt"], "x.txt: unknown suffix '.txt'"),
        (["--skipbad"], "did you mean `--skip-bad`"),
        (["none.jsonl"], "none.jsonl: No such file"),
    ],
)
def test_bad_words(tmp_path, capsys, words, message):
    assert message in refused(capsys, lines(tmp_path, FORK), *words)


def test_a_method_whose_input_is_missing(tmp_path, capsys, monkeypatch):
    import rtmc.methods.registry

    rtmc.estimators()  # so that what is restored afterwards has the built-in ones
    monkeypatch.setattr(rtmc.methods.registry, "_registered", dict(rtmc.methods.registry._registered))
    rtmc.register_estimator("needy", lambda table: table.reward, needs=["judge"])
    assert "estimator `needy` needs the score `judge`" in refused(capsys, lines(tmp_path, FORK), "--method", "needy")


def test_no_files_at_all(capsys):
    assert "FILE" in refused(capsys)


def test_writing_is_all_or_nothing(tmp_path, capsys, monkeypatch):
    import rtmc.logs.credit

    out = tmp_path / "out.jsonl"
    path = lines(tmp_path, FORK)
    assert run(capsys, path, *PLAIN, "-o", out)[0] == 0
    before = out.read_bytes()

    def fails(self):
        yield from ()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rtmc.logs.credit.Credit, "records", fails)
    assert "No space left" in refused(capsys, path, *PLAIN, "-o", out)
    assert out.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log.jsonl", "out.jsonl"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_only_on_a_terminal(tmp_path, capsys, monkeypatch):
    pytest.importorskip("rich", reason="the bar needs the extra `report`")
    words = [lines(tmp_path, FORK), *PLAIN]
    status, plain, err = run(capsys, *words)
    assert (status, err) == (0, "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert run(capsys, *words)[:2] == (0, plain)
    assert "reading" in terminal.getvalue()


def test_numbers_of_one_are_told_in_the_singular(tmp_path, capsys):
    record = {**FORK[0], "messages": FORK[0]["messages"][:2]}
    status, text, _ = run(capsys, lines(tmp_path, [record]), *PLAIN, "-o", tmp_path / "new" / "x.csv")
    assert status == 0
    assert "\n1 step written to " in text
    assert f"note: the folder {tmp_path / 'new'} was not there and was made" in text
    assert "note: 1 task has a single rollout" in text
    assert not re.search(r"\b1 (?:steps|tasks|rollouts) (?:written|of|have)", text)


def test_verdicts_of_several_runs_go_to_their_runs(tmp_path, capsys):
    for run_name, resolved in (("A", True), ("B", False)):
        (tmp_path / "logs" / run_name).mkdir(parents=True)
        (tmp_path / "logs" / run_name / "owner__repo-6.traj").write_text(FILES["owner__repo-6.traj"])
        report = tmp_path / "eval" / f"x{run_name}" / "owner__repo-6" / "report.json"
        report.parent.mkdir(parents=True)
        report.write_text(json.dumps({"owner__repo-6": {"resolved": resolved}}))
    assert "give them as --rewards RUN=FILE" in refused(capsys, tmp_path / "logs", "--rewards", tmp_path / "eval")
    words = [word for name in "AB" for word in ("--rewards", f"{name}={tmp_path}/eval/x{name}")]
    status, text, _ = run(capsys, tmp_path / "logs", *words, "--json")
    assert status == 0
    returns = {step["rollout_id"]: step["return"] for step in json.loads(text)["steps"]}
    assert list(returns) == ["A/owner__repo-6", "B/owner__repo-6"]
    assert [value > 0.5 for value in returns.values()] == [True, False]
    # One verdict for both is told.
    _, text, _ = run(capsys, tmp_path / "logs", "--rewards", tmp_path / "eval" / "xA")
    assert "note: 1 task has one reward for several rollouts, and each of them got it: if it is one run's" in text
