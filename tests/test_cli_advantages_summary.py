"""`rtmc advantages` beyond its numbers: what it names, what it refuses to replace, what it says of missing inputs."""

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli_advantages import FORK, PLAIN, chat, lines, refused, run


@pytest.mark.parametrize("method", ["gae", "hcapo", "igpo", "istar", "vineppo"])
def test_what_a_log_can_say_of_a_score_that_a_method_needs(tmp_path, capsys, method):
    message = refused(capsys, lines(tmp_path, FORK), "--signatures", "text", "--method", method)
    assert "from_rows" not in message
    score = re.search(r"needs the score `(\w+)`", message)[1]
    assert f'"scores": [{{"{score}": 0.5}}, ...]' in message
    # What the message proposes is taken.
    told = [{**record, "meta": {"rtmc": {"scores": [{score: 0.5}] * 2}}} for record in FORK]
    assert run(capsys, lines(tmp_path, told, "told.jsonl"), "--signatures", "text", "--method", method)[0] == 0


@pytest.mark.parametrize("method", ["at2po", "tree_grpo", "treehca"])
def test_logs_hold_no_trees(tmp_path, capsys, method):
    message = refused(capsys, lines(tmp_path, FORK), "--method", method)
    assert "logs hold one rollout after the other" in message
    assert "from_rows" not in message


def test_the_output_never_replaces_what_is_read(tmp_path, capsys):
    log = Path(lines(tmp_path, FORK))
    rewards = tmp_path / "rw.csv"
    rewards.write_text("task_id,rollout_id,reward\nfork,good,1\n")
    linked = tmp_path / "other.jsonl"
    linked.symlink_to(log)
    before = log.read_bytes(), rewards.read_bytes()
    for words in (
        [log, "-o", log],
        [log, "-o", linked],
        [linked, "-o", log],
        [tmp_path, "-o", log],
        [log, "--rewards", rewards, "-o", rewards],
    ):
        assert "would be replaced; choose another name" in refused(capsys, *words)
    assert (log.read_bytes(), rewards.read_bytes()) == before


def test_a_folder_may_hold_the_steps_of_an_earlier_run(tmp_path, capsys):
    lines(tmp_path, FORK)
    out = tmp_path / "steps.jsonl"
    assert run(capsys, tmp_path, *PLAIN, "-o", out)[0] == 0
    first = out.read_bytes()
    status, text, _ = run(capsys, tmp_path, *PLAIN, "-o", out)
    assert status == 0
    assert out.read_bytes() == first
    assert "1 file is no log and was passed over" in text
    assert "the credit of a step, as `rtmc advantages -o` writes it" in refused(capsys, out)


def test_steps_of_unknown_reward_have_no_values(tmp_path, capsys):
    path = lines(tmp_path, [*FORK, chat("fork", "none", ["a", "b"], None)])
    out = tmp_path / "o.csv"
    steps = json.loads(run(capsys, path, *PLAIN, "--json", "-o", out)[1])["steps"]
    for step in steps:
        values = [step[key] for key in ("return", "q", "v", "visits")]
        assert (values == [None] * 4) is (step["rollout_id"] == "none")
    assert [step["advantage"] for step in steps[4:]] == [0.0, 0.0]
    with open(out, newline="", encoding="utf-8") as file:
        assert [row["q"] for row in csv.DictReader(file)] == ["0.5", "1.0", "0.5", "0.0", "", ""]


def test_the_steps_that_mattered_are_named(tmp_path, capsys):
    uniform = [chat("even", name, ["p", "q"], 1.0) for name in "xy"]
    once = [chat("fork", "none", ["a", "b"], None)]
    _, text, _ = run(capsys, lines(tmp_path, [*FORK, *uniform, *once]), *PLAIN)
    told = [line.split() for line in text.splitlines()]
    at = told.index(["rtmc:", "the", "largest", "advantages"])
    assert told[at + 2 : at + 4] == [["+0.5000", "fork", "good", "1", "b"], ["-0.5000", "fork", "bad", "1", "c"]]
    assert (
        "rtmc: A = 0 in 8 steps: 2 in rollouts of unknown reward, 4 in tasks whose rollouts all got the same "
        "reward, 2 where the steps taken in the state fared alike\n"
    ) in text
    assert "seen once: share of the states that one step alone visits" in text


def test_equal_steps_are_named_once(tmp_path, capsys):
    many = [chat("t", f"g{k}", ["a", "b"], 1.0) for k in range(3)] + [chat("t", "bad", ["a", "c"], 0.0)]
    _, text, _ = run(capsys, lines(tmp_path, many), *PLAIN)
    assert "b (and 2 steps like it)" in text


def test_counts_are_said_as_they_are(tmp_path, capsys):
    path = lines(tmp_path, FORK)
    sidecar = tmp_path / "rw.json"
    sidecar.write_text(json.dumps({"fork": {"good": None, "bad": 1}}))
    _, text, _ = run(capsys, path, "--rewards", sidecar, *PLAIN)
    assert text.startswith("2 rollouts of 1 task, 4 steps (")
    assert "rewards: 1 known (1 of them from --rewards), 1 unknown" in text


def test_the_quality_of_the_signatures_on_request(tmp_path, capsys):
    words = [lines(tmp_path, FORK), *PLAIN, "--quality"]
    assert "visited by several rollouts: 100.0 % of the states" in run(capsys, *words)[1]
    quality = json.loads(run(capsys, *words, "--json")[1])["quality"]
    assert (quality["steps"], quality["states"], quality["zero_advantage"]) == (4, 2, 0.5)
    assert "quality" not in json.loads(run(capsys, *words[:-1], "--json")[1])


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="no /dev/stdin")
@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read(tmp_path, name, packed):
    content = Path(lines(tmp_path, FORK)).read_bytes()
    code = "import sys; from rtmc.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "advantages", name, *PLAIN, "--json"],
        input=gzip.compress(content) if packed else content,
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    assert [step["advantage"] for step in json.loads(done.stdout)["steps"]] == [0.0, 0.5, 0.0, -0.5]
