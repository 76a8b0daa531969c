"""Training on explored trees: whole runs with a tiny random model, and what such a run refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rtmc
from rtmc import read_rollouts
from rtmc.cli import main
from rtmc.train import config as configuration
from rtmc.train.build import RunError, build
from rtmc.train.collect import successes
from rtmc.train.credit import credit_forest
from rtmc.train.references import ExploreError
from rtmc.train.run import train_command
from tests import copyworld, tiny

HOUSEHOLD = """
method = "treehca"
steps = 2
tasks_per_step = 2
group_size = 2
checkpoint_every = 1
[lora]
rank = 2
[env]
id = "rtmc/Household-v0"
kwargs = { split = "tiny", max_turns = 4, observation = "knowledge" }
[prompt]
history = 0
[credit]
filter_uniform = false
[explore]
rule = "hindsight"
budget_tokens = 60
threshold = 1.0
[optim]
lr = 1e-3
[evaluation]
tasks = 2
[budget]
threads = 1
"""
SEARCH = HOUSEHOLD.replace("rtmc/Household-v0", "rtmc/SearchQA-v0").replace(
    '{ split = "tiny", max_turns = 4, observation = "knowledge" }', "{ max_turns = 2, instructions = false }"
)
SEARCH = SEARCH.replace("[credit]", '[act]\nmode = "free"\nmax_new_tokens = 8\n[credit]').replace(
    "history = 0", "history = 2"
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def household(tmp_path: Path, model_folder: Path) -> str:
    return _written(tmp_path, HOUSEHOLD, model_folder)


def _written(folder: Path, text: str, model: Path) -> str:
    path = folder / "run.toml"
    path.write_text(text + f'[model]\nname = "{model}"\n', encoding="utf-8")
    return str(path)


def _steps(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in e.items() if not k.endswith("_seconds")} for e in lines if e["kind"] == "train"]


def _parts(path: str, *overrides: str) -> Any:
    return build(configuration.load(path, list(overrides)), lambda text: None)


@pytest.mark.parametrize("text", [HOUSEHOLD, SEARCH], ids=["household", "search-qa"])
def test_a_run_explores_and_moves(text: str, tmp_path: Path, model_folder: Path) -> None:
    run = tmp_path / "out"
    assert main(["train", _written(tmp_path, text, model_folder), "--run", str(run)]) == 0
    for number, entry in enumerate(_steps(run), 1):
        assert entry["sampled_tokens"] >= 2 * 60
        assert 0 < entry["answer_score"] <= 1
        assert entry["updates"] >= 1
        rollouts = read_rollouts(run / "rollouts" / f"step-{number}.jsonl")
        assert len({r.task_id for r in rollouts}) == 2
        assert len(rollouts) >= 4
        assert all("answer_score" in step.scores for r in rollouts for step in r.steps)
        assert entry["branches"] == sum("branch" in r.meta for r in rollouts)
    assert sum(entry["branches"] for entry in _steps(run)) > 0


def test_resuming_equals_never_having_stopped(household: str, tmp_path: Path) -> None:
    # A world that is never solved gives no advantage: the entropy bonus moves the weights.
    moving = ["loss.entropy=0.05"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train_command(household, moving, str(whole), None, False) == 0
    assert train_command(household, [*moving, "steps=1"], str(parts), None, False) == 0
    assert train_command(None, ["steps=2"], None, str(parts), False) == 0
    assert _steps(parts) == _steps(whole)
    a, b = (torch.load(r / "checkpoints" / "step-2" / "state.pt", weights_only=True) for r in (whole, parts))
    assert all(torch.equal(a["adapter"][k], b["adapter"][k]) for k in a["adapter"])


@pytest.mark.parametrize("method", ["treehca", "tree_grpo", "at2po"])
def test_every_turn_gets_the_advantage_of_its_row(method: str, household: str) -> None:
    parts = _parts(household, f"method={method}", "credit.options={}")
    try:
        forest = parts.explorer.run([3, 4], (1,))
        # A verdict for every rollout, so that there is something to compare.
        for path in forest.paths:
            path.reward = float(path.number % 2)
        credited = credit_forest(parts.config, forest)
        table = forest.table("chain" if method == "tree_grpo" else "prompt")
        wanted = rtmc.advantages(table, method)
        assert torch.equal(credited.batch.advantage, wanted)
        assert wanted.abs().max() > 0
        rows = forest.rows([0, 1])
        assert [forest.nodes[row].move.data for row in rows] == list(credited.batch.turns)
        assert len(np.unique(credited.batch.rollout)) == len({forest.nodes[row].rollout for row in rows})
        # A task whose outcomes are equal is left out where the configuration says so.
        for path in (path for path in forest.paths if path.task == 0):
            path.reward = 1.0
        filtered = credit_forest(_parts_config(parts.config, filter_uniform=True), forest)
        assert filtered.metrics["uniform_groups"] == 0.5
        assert len(filtered.batch.turns) == len(forest.rows([1]))
        assert successes(forest.episodes()).sum() == 0
    finally:
        parts.close()


def _parts_config(config: configuration.Config, **credit: Any) -> configuration.Config:
    return config.model_copy(update={"credit": config.credit.model_copy(update=credit)})


def test_a_learner_takes_what_exploration_gives(household: str) -> None:
    """The recorded log-probabilities are those the learner computes: of branches too."""
    parts = _parts(household, "lora.adapt=all")
    try:
        forest = parts.explorer.run([3], (1,))
        assert any(node.pool_weight != 1 for node in forest.nodes)
        for node in forest.nodes:
            turn = node.move.data
            with torch.no_grad():
                flat = parts.policy.score([turn.request]).logprob.numpy()
            np.testing.assert_allclose(turn.logprob[turn.sampled], flat[turn.edges[turn.sampled]], atol=3e-5)
            assert node.move.tokens == int(turn.sampled.sum())
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["explore.rule=off", "method=rtmc"], RunError, "`explore.budget_tokens` belongs to an exploration"),
        (["credit.valid_reward=1.0"], RunError, "`credit.valid_reward` is of plain rollouts"),
        (["explore.wrapper=answer"], RunError, "`explore.wrapper`: a reference's `wrapper` must be a text with one"),
        ([f'env.id="{copyworld.ID}"', "env.kwargs={}"], ExploreError, "CopyWorld needs snapshot and restore"),
        (
            [f'env.id="{copyworld.ID}"', "env.kwargs={}", "explore.rule=chains"],
            ExploreError,
            "no reference answer is known for CopyWorld",
        ),
    ],
)
def test_what_cannot_be_explored_is_refused(household: str, overrides: list[str], error: type, message: str) -> None:
    copyworld.register()
    with pytest.raises(error, match=message):
        _parts(household, *overrides)


@pytest.mark.parametrize("method", ["treehca", "tree_grpo", "at2po"])
def test_a_tree_method_without_trees_says_what_it_needs(method: str, household: str) -> None:
    with pytest.raises(RunError, match=rf"{method}.*`explore.rule=hindsight`"):
        _parts(household, "explore=none", f"method={method}")
