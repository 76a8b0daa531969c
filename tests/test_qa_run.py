"""The shipped configuration of Search QA from end to end, small: it trains, reports, resumes, evaluates and plays.

The model is a tiny random one with room for the prompts that the configuration makes; what is changed beside it is the
size alone, and where a random model gives exploration nothing to do, the threshold.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rtmc import read_rollouts
from rtmc.cli import main
from rtmc.train import config as configuration
from tests import tiny

pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
# A random model's turns tell nothing of the answer: every turn marks its history.
SMALL = (
    "lora.layers=1",
    "steps=2",
    "checkpoint_every=1",
    "act.max_new_tokens=4",
    "explore.budget_tokens=40",
    "explore.threshold=1.0",
    "credit.filter_uniform=false",
    "group_size=2",
    "evaluation.tasks=2",
    "budget.threads=1",
)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tiny.folder(tmp_path_factory.mktemp("model") / "tiny")
    shape = json.loads((folder / "config.json").read_text())
    shape["max_position_embeddings"] = 8192  # positions are rotary: no weight depends on it
    (folder / "config.json").write_text(json.dumps(shape))
    return [f"model.name={folder}", *SMALL]


@pytest.fixture(scope="module")
def whole(changes: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "whole"
    assert main(["train", "search-qa", *changes, "--run", str(run)]) == 0
    return run


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == kind]
    return [{k: v for k, v in line.items() if not k.endswith("_seconds")} for line in found]


def test_it_explores_and_every_number_is_one(whole: Path) -> None:
    steps = metrics(whole, "train")
    assert [entry["step"] for entry in steps] == [1, 2]
    for number, entry in enumerate(steps, 1):
        assert all(math.isfinite(value) for key, value in entry.items() if key != "kind"), entry
        assert entry["branches"] > 0
        assert entry["unexplored"] == 0
        assert entry["sampled_tokens"] >= 2 * 40
        assert entry["updates"] >= 1
        assert entry["errors"] == entry["skipped_updates"] == 0
        assert entry["turns_shared"] == 0
        assert 0 < entry["answer_score"] < 1
        rollouts = read_rollouts(whole / "rollouts" / f"step-{number}.jsonl")
        assert {rollout.task_id.split("/")[0] for rollout in rollouts} == {"train"}
        assert len({rollout.task_id for rollout in rollouts}) == 2
        assert sum("branch" in rollout.meta for rollout in rollouts) == entry["branches"]
        assert all("answer_score" in step.scores for rollout in rollouts for step in rollout.steps)


def test_it_leaves_a_report_and_a_curve(whole: Path) -> None:
    assert (whole / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert "treehca on rtmc/SearchQA-v0" in page
    assert page.count("<img") == 1
    assert "in 2 update steps" in page
    assert 'rule = "hindsight"' in page.replace("&#34;", '"')
    evaluations = metrics(whole, "evaluation")
    assert [entry["step"] for entry in evaluations] == [0, 2]
    for entry in evaluations:
        assert entry["sampled"]["total"] == 2
        assert entry["greedy"] is None  # as the configuration has it
        assert all(kind.startswith("valid, 1 hop") for kind in entry["by_type"])


def test_resuming_it_equals_never_having_stopped(whole: Path, changes: list[str], tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    assert main(["train", "search-qa", *changes, "steps=1", "--run", str(parts)]) == 0
    assert main(["train", "--resume", str(parts), "steps=2"]) == 0
    assert metrics(parts, "train") == metrics(whole, "train")
    a, b = (
        torch.load(run / "checkpoints" / "step-2" / "state.pt", weights_only=True)["adapter"] for run in (whole, parts)
    )
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(value.abs().max() > 0 for name, value in a.items() if "lora_B" in name)
    assert (parts / "report.html").stat().st_size > 0


def test_it_plays_and_is_evaluated(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A task of the split that training never draws from, as the configuration says of its held-out tasks.
    assert main(["play", "search-qa", "--model", str(whole)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"after step 2, task valid/\d+$", text, re.MULTILINE)
    assert "Question: " in text
    assert re.search(r"after [1-3] turns, reward [\d.]+$", text, re.MULTILINE)
    for words, task in (
        (["--seed", "3"], "train/"),
        (["--split", "train"], "train/"),
        (["--split", "valid", "--seed", "3"], "valid/"),
        (["--task", "train/7", "--max-turns", "1"], "train/7\n"),
    ):
        assert main(["play", "search-qa", "--model", str(whole), *words]) == 0
        assert f"after step 2, task {task}" in capsys.readouterr().out
    assert main(["play", "household", "--model", str(whole)]) == 2
    assert "was trained in rtmc.gymenvs:rtmc/SearchQA-v0" in capsys.readouterr().err
    assert main(["evaluate", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["sampled"]["total"]) == (2, 2)


def test_the_shipped_sizes_leave_room_to_explore() -> None:
    config = configuration.load("search-qa")
    turns = config.env.kwargs["max_turns"]
    assert config.group_size * turns * config.act.max_new_tokens < config.explore.budget_tokens
    assert config.evaluation.kwargs == {"split": "valid"}
    assert (config.method, config.explore.rule, config.credit.options) == (
        "treehca",
        "hindsight",
        {"weights": "pool_corrected"},
    )
