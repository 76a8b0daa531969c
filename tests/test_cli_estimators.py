"""`rtmc estimators`: the list, what a table can feed, the table of biases; and one line for bad input."""

import json
import math

import pytest
import torch

import rtmc
from rtmc import StepTable
from rtmc.cli import main
from rtmc.diagnosis.feeds import feeds, notes

pytest.importorskip("pyarrow", reason="step tables are saved with the extra `report`")

STEP = {"group": 0, "index": 0, "state": "s"}
ROWS = [STEP | {"rollout": 0, "action": "a", "outcome": 1.0}, STEP | {"rollout": 1, "action": "b", "outcome": 0.0}]


def saved(path, rows, **more):
    StepTable.from_rows([row | more for row in rows], dtype=torch.float64).save(path / "table.parquet")
    return str(path / "table.parquet")


def answers(text):
    """Method -> what the command says of it."""
    lines = (tuple(line.split(maxsplit=1)) for line in text.splitlines()[1:] if not line.startswith("note: "))
    return dict(lines)


def test_what_a_table_can_feed(tmp_path, capsys):
    assert main(["estimators", "--for", saved(tmp_path, ROWS, value=0.5)]) == 0
    text = capsys.readouterr().out
    found = answers(text)
    assert set(found) == {info.name for info in rtmc.estimators()}
    assert found["grpo"] == "yes, 0.0% of the advantages are 0"
    assert found["gae"].startswith("yes")
    assert found["hcapo"].startswith(
        "no: needs the score `hindsight_logprob`, which the table lacks (its scores: `value`)"
    )
    assert "mean token log-probability" in found["hcapo"]
    assert found["hcapo"].endswith("no option does without it")
    assert found["tree_grpo"].startswith("no: needs the column `parent`")
    assert text.splitlines()[0].startswith("StepTable(steps=2, rollouts=2, chains")
    assert "note: every step reward is 0" in text


def test_the_same_as_json(tmp_path, capsys):
    assert main(["estimators", "--json", "--for", saved(tmp_path, ROWS)]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {entry["method"]: entry for entry in document["estimators"]}
    assert found["gae"]["lacks"] == ["value"]
    assert found["gae"]["feeds"] is False
    assert found["rtmc"] == {"method": "rtmc", "lacks": [], "reason": "", "zero": 0.0, "feeds": True}
    assert document["table"]["form"] == "chains"
    assert document["table"]["rollouts"] == 2


def test_what_a_tree_can_feed(tmp_path):
    tree = [row | {"parent": -1} for row in ROWS]
    found = {feed.method: feed for feed in feeds(StepTable.from_rows(tree))}
    assert found["tree_grpo"].feeds
    assert found["at2po"].lacks == ("entropy",)
    assert "with backup='child_mean' or backup='leaf_mean' it is not needed" in found["at2po"].reason
    table = StepTable.from_rows(tree)
    assert rtmc.advantages(table, "at2po", backup="child_mean").tolist() == pytest.approx([1.0, -1.0], abs=1e-5)


def test_a_score_with_holes_does_not_feed():
    rows = [ROWS[0] | {"value": math.nan}, ROWS[1] | {"value": 0.5}]
    found = {feed.method: feed for feed in feeds(StepTable.from_rows(rows))}
    assert found["gae"].lacks == ()
    assert "the score `value` is nan at step 0" in found["gae"].reason
    assert found["vineppo"].feeds  # to which NaN means that there is none


def test_what_holds_for_every_method():
    def of(rows):
        return " / ".join(notes(StepTable.from_rows(rows)))

    assert of(ROWS) == "every step reward is 0: methods that read `reward` see the outcome alone"
    assert "no outcome is known" in of([row | {"outcome": math.nan} for row in ROWS])
    assert "1 of 2 outcomes are unknown" in of([ROWS[0] | {"outcome": math.nan}, ROWS[1]])
    assert "every group has one rollout" in of([row | {"group": row["rollout"]} for row in ROWS])
    assert "no state recurs" in of([row | {"state": row["rollout"], "reward": 1.0} for row in ROWS])
    assert of([row | {"reward": 1.0} for row in ROWS]) == ""
    assert "no steps" in of([])


def test_a_log_is_a_table_too(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    turns = [{"role": "user", "content": "start"}, {"role": "assistant", "content": "go"}]
    records = [{"task_id": "t", "rollout_id": str(r), "messages": turns, "reward": float(r)} for r in range(2)]
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["estimators", "--for", str(log)]) == 0
    found = answers(capsys.readouterr().out)
    assert found["rtmc"].startswith("yes")
    assert found["gae"].startswith("no: needs the score `value`")


def test_one_of_them_is_described(capsys):
    assert main(["estimators", "gigpo"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("A = A_E + step_weight A_S")
    assert "Defaults: gamma=0.95, std=False, step_weight=1.0, similarity=None" in text
    assert "  similarity   None or a number in [0, 1]\n" in text
    assert "Source: GiGPO, arXiv 2505.10978; verl-agent.\n" in text
    assert 'Departures from the authors\' code, which parity="verl_agent" undoes' in text
    assert main(["estimators", "treehca", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "treehca"
    assert record["engines"]["dev_fork"]["leaf_norm"] == ["group", None]
    assert record["description"].startswith("A turn's credit is its value")


def test_the_biases_as_text_and_json(capsys):
    assert main(["estimators", "--bias", "--rollouts", "2"]) == 0
    text = capsys.readouterr().out
    assert main(["estimators", "--bias", "--rollouts", "2", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["method"] for record in records} == {info.name for info in rtmc.estimators()}
    line = next(line for line in text.splitlines() if line.startswith("rloo"))
    assert line.split() == ["rloo", "-", "2", "rollouts", "1.000", "1.000", "0.000"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for"], "--for"),
        (["--for", "none.parquet"], "none.parquet: No such file"),
        (["--for", "none.jsonl"], "none.jsonl: No such file"),
        (["--for", "x", "--bias"], "one at a time"),
        (["GRPO"], "unknown estimator 'GRPO'; did you mean `grpo`? (known: "),
        (["grpo", "--bias"], "NAME goes without --bias and --for"),
        (["grpo", "rtmc"], "unexpected word 'rtmc'"),
        (["--rollouts", "3"], "--rollouts goes with --bias"),
        (["--bias", "--rollouts", "9"], "`rollouts` must be an integer in [2, 6], got 9"),
        (["--bias", "--rollouts", "many"], "'many'"),
        (["--fro", "x"], "did you mean `--for`"),
    ],
)
def test_bad_words(words, message, capsys):
    assert main(["estimators", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("rtmc estimators: ")
    assert message in err


def test_a_parquet_file_that_is_no_table(tmp_path, capsys):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"no parquet")
    assert main(["estimators", "--for", str(path)]) == 2
    assert f"{path}: not a parquet file" in capsys.readouterr().err
