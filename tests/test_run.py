"""Whole runs with a tiny random model: learning, resuming, refusing, stopping."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rtmc
from rtmc import Stop, read_rollouts
from rtmc.cli import main
from rtmc.train import config as configuration
from rtmc.train.build import build
from rtmc.train.learner import Learner
from rtmc.train.loop import Trainer, TrainingStopped
from rtmc.train.run import train_command
from tests import copyworld, tiny

BASE = """
steps = 4
tasks_per_step = 2
group_size = 4
checkpoint_every = 2
[lora]
rank = 2
[env]
id = "rtmc.gymenvs:rtmc/Household-v0"
kwargs = { split = "tiny", max_turns = 4, observation = "knowledge" }
[prompt]
history = 0
[optim]
lr = 1e-3
[evaluation]
tasks = 4
[budget]
threads = 1
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def base(tmp_path: Path, model_folder: Path) -> list[str]:
    path = tmp_path / "run.toml"
    path.write_text(BASE + f'[model]\nname = "{model_folder}"\n', encoding="utf-8")
    return [str(path)]


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _timeless(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if not k.endswith("_seconds")} for e in _metrics(run)]


def test_a_run_leaves_a_whole_folder(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "--run", str(run)]) == 0
    text = capsys.readouterr().out
    for part in ("step 4/4", "held-out after step 0", "before RL", "after RL", "Next:", "curve.png", "adapter"):
        assert part in text
    for name in ("config.toml", "metrics.jsonl", "curve.png", "report.html", "adapter/adapter_config.json"):
        assert (run / name).stat().st_size > 0
    assert list((run / "tensorboard").iterdir())
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["step-2", "step-4"]
    rollouts = read_rollouts(run / "rollouts" / "step-1.jsonl")
    assert len(rollouts) == 8
    assert len({r.task_id for r in rollouts}) == 2
    entries = _metrics(run)
    assert [e["kind"] for e in entries] == ["evaluation", "train", "train", "train", "train", "evaluation"]
    page = (run / "report.html").read_text()
    assert "Held-out tasks" in page
    assert page.count("<img") == 1
    assert configuration.load(run / "config.toml").steps == 4


def test_json_prints_one_document(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *base, "steps=1", "--run", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["steps"] == 1
    assert summary["start"]["sampled"]["total"] == summary["end"]["sampled"]["total"] == 4
    assert main(["evaluate", str(tmp_path / "out"), "evaluation.tasks=3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 1
    assert found["sampled"]["total"] == 3


def test_resuming_equals_never_having_stopped(base: list[str], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # Step rewards alone move a random model that never succeeds.
    moving = "credit.filter_uniform=false"
    assert train_command(base[0], [moving], str(whole), None, False) == 0
    assert train_command(base[0], [moving, "steps=2"], str(parts), None, False) == 0
    assert train_command(None, ["steps=4"], None, str(parts), False) == 0
    # The shorter run evaluated at its own end; everything else is equal, bit for bit.
    assert [e for e in _timeless(parts) if e["kind"] == "train"] == [
        e for e in _timeless(whole) if e["kind"] == "train"
    ]
    a, b = (torch.load(r / "checkpoints" / "step-4" / "state.pt", weights_only=True) for r in (whole, parts))
    assert all(torch.equal(a["adapter"][k], b["adapter"][k]) for k in a["adapter"])
    assert any(v.abs().max() > 0 for k, v in a["adapter"].items() if "lora_B" in k)


def test_a_saved_adapter_is_the_trained_policy(base: list[str], tmp_path: Path, model_folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = tmp_path / "out"
    assert train_command(base[0], ["credit.filter_uniform=false"], str(run), None, False) == 0
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(plain, run / "adapter")
    state = torch.load(run / "checkpoints" / "step-4" / "state.pt", weights_only=True)["adapter"]
    own = {k.replace(".default", ""): v for k, v in loaded.state_dict().items() if "lora_" in k}
    assert own.keys() == state.keys()
    assert any(v.abs().max() > 0 for k, v in own.items() if "lora_B" in k)
    assert all(torch.equal(own[k], state[k]) for k in own)


def test_the_other_road_chat_free_text_whole_context(tmp_path: Path, model_folder: Path) -> None:
    """Ordinary LoRA training: a chat of free text, the adapter on every token, a KL term, one turn a ratio."""
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        method = "grpo_step"
        steps = 2
        tasks_per_step = 2
        group_size = 3
        model = {{ name = "{model_folder}" }}
        lora = {{ rank = 2, adapt = "all" }}
        prompt = {{ format = "chat", system = "Play." }}
        act = {{ mode = "free", max_new_tokens = 5, temperature = 0.8 }}
        credit = {{ signatures = "text", filter_uniform = false }}
        loss = {{ kl = 0.01, ratio = "turn", aggregate = "rollout-mean" }}
        optim = {{ lr = 1e-3, epochs = 2, warmup_steps = 1 }}
        evaluation = {{ tasks = 2 }}
        [env]
        kwargs = {{ split = "tiny", max_turns = 3 }}
        """,
        encoding="utf-8",
    )
    assert train_command(str(path), [], str(tmp_path / "out"), None, False) == 0
    steps = [e for e in _metrics(tmp_path / "out") if e["kind"] == "train"]
    assert [e["updates"] for e in steps] == [2, 2]
    assert steps[1]["kl"] > 0
    assert all(e["grad_norm"] > 0 for e in steps)


def test_a_trained_policy_can_be_watched(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "steps=1", "--run", str(run)]) == 0
    capsys.readouterr()
    assert main(["play", "household", "--model", str(run), "--seed", "3", "--max-turns", "2"]) == 0
    text = capsys.readouterr().out
    assert "after step 1, task tiny/" in text
    assert "Task: " in text
    assert len([line for line in text.splitlines() if line.startswith("> ")]) == 2
    assert "after 2 turns" in text
    task = "tiny/pick_and_place_simple/4"
    assert main(["play", "household", "--model", str(run), "--task", task]) == 0
    assert f"task {task}" in capsys.readouterr().out
    assert main(["play", "household", "--model", str(tmp_path / "none")]) == 2
    assert "no such run folder" in capsys.readouterr().err


@pytest.mark.slow
def test_reinforcement_learning_learns(tmp_path: Path, model_folder: Path) -> None:
    """A random model learns to name the thing asked for: success far above the start, on tasks drawn fresh."""
    copyworld.register()
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        steps = 80
        tasks_per_step = 8
        group_size = 8
        [model]
        name = "{model_folder}"
        [lora]
        rank = 8
        alpha = 32.0
        adapt = "all"
        [env]
        id = "{copyworld.ID}"
        [loss]
        entropy = 0.05
        [optim]
        lr = 2e-3
        [evaluation]
        tasks = 1
        greedy = false
        [budget]
        threads = 1
        """,
        encoding="utf-8",
    )
    assert train_command(str(path), [], str(tmp_path / "out"), None, False) == 0
    success = [e["success"] for e in _metrics(tmp_path / "out") if e["kind"] == "train"]
    # A policy that doesn't read what is asked for names the right one of the four words in a quarter of its tries.
    assert len(copyworld.WORDS) == 4
    assert np.mean(success[:5]) < 0.6
    assert np.mean(success[-15:]) > 0.8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=rtcm"], "unknown estimator 'rtcm'; did you mean `rtmc`"),
        (["env.id=rtmc.gymenvs:rtmc/Houshold-v0"], "Houshold-v0"),
        (['env.kwargs={split="tinny"}'], "tinny"),
        (
            [f'env.id="{copyworld.ID}"', "env.kwargs={fail_at=-1}"],
            "its first task cannot start: RuntimeError: the world broke",
        ),
        (["model.name=/no/such/folder"], "/no/such/folder: no such folder"),
        (["model.device=cuda"], "no GPU") if not torch.cuda.is_available() else (["steps=0"], "`steps`"),
        (["credit.options={gama=1}"], "gama"),
        (["credit.signatures=envv"], "envv"),
        (["prompt.format=chat"], "prompt.history"),
        (["act.mode=free", 'act.hide=["look"]'], "act.hide"),
        (["group_size=1"], "nothing would be learned"),
        (["budget.threads=9999"], "`budget.threads`"),
        (["env.id=CartPole-v1", "env.kwargs={}"], "info lacks task_id"),
        (['env.kwargs={task="tiny/pick_and_place_simple/1"}'], "too few tasks"),
        (["credit.valid_reward=nan"], "finite number"),
        (['credit.options={method="grpo"}'], "named by `method`"),
        (["prompt.examples=1", "env.id=tests/Copy-v0", "env.kwargs={}"], "no expert"),
        (["stps=3"], "unknown key 'stps'; did you mean `steps`"),
        (["lora.layers=99"], "lora.layers"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    copyworld.register()
    run = tmp_path / "out"
    assert main(["train", *base, *words, "--run", str(run)]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not run.exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "steps=1", "--run", str(run)]) == 0
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["train", *base, "steps=1", "--run", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_resuming_with_another_model_is_refused(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "steps=1", "--run", str(run)]) == 0
    other = tiny.folder(tmp_path / "other", seed=4)
    kept = (run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()
    assert main(["train", f"model.name={other}", "steps=2", "--resume", str(run)]) == 2
    assert "another base model" in capsys.readouterr().err
    assert ((run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()) == kept


def test_resuming_says_what_would_not_be_the_same_run(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "steps=1", "--run", str(run)]) == 0
    for words, message in (
        (["lora.alpha=32"], "`lora.alpha` 16.0"),
        (["steps=0"], "`steps`"),
        (["evaluation.tasks=9"], "would not be held out"),
        (["--run", str(tmp_path / "other")], "leave `--run"),
    ):
        assert main(["train", "steps=2", *words, "--resume", str(run)]) == 2
        assert message in capsys.readouterr().err
    assert main(["evaluate", str(run), "evaluation.tasks=9"]) == 2
    assert "would not be held out" in capsys.readouterr().err
    # A last line cut off by a full disk is dropped; a broken one in the middle is named.
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert main(["train", "steps=2", "--resume", str(run)]) == 0
    assert [e["step"] for e in _metrics(run) if e["kind"] == "train"] == [1, 2]
    (run / "metrics.jsonl").write_text("nonsense\n" + (run / "metrics.jsonl").read_text())
    assert main(["train", "steps=3", "--resume", str(run)]) == 2
    assert "metrics.jsonl, line 1" in capsys.readouterr().err


def test_resuming_between_checkpoints_equals_never_having_stopped(base: list[str], tmp_path: Path) -> None:
    """Ctrl-C saves wherever the run stands; going on from there changes no bit either."""
    from rtmc.train.interrupt import Interrupt

    moving = ["credit.filter_uniform=false", "checkpoint_every=100"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train_command(base[0], moving, str(whole), None, False) == 0
    checks = iter(range(10**9))

    def ctrl_c_in_step_three(self: Interrupt) -> None:
        if (parts / "metrics.jsonl").exists() and len(_metrics(parts)) == 3 and next(checks) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interrupt, "check", ctrl_c_in_step_three)
        assert train_command(base[0], moving, str(parts), None, False) == 130
    assert len(_metrics(parts)) == 3
    assert train_command(None, [], None, str(parts), False) == 0
    assert _timeless(parts) == _timeless(whole)


def test_evaluation_may_use_other_tasks_than_training(base: list[str], tmp_path: Path) -> None:
    run = tmp_path / "out"
    words = ["steps=1", 'evaluation.kwargs={split="tiny_unseen", max_turns=3}']
    assert train_command(base[0], words, str(run), None, False) == 0
    start, train, _ = _metrics(run)
    assert all(name.startswith("tiny_unseen/") for name in start["by_type"])
    assert start["turns"] <= 3
    assert {r.task_id.split("/")[0] for r in read_rollouts(run / "rollouts" / "step-1.jsonl")} == {"tiny"}
    assert train["turns"] == 4


def test_training_tasks_never_start_like_held_out_ones(tmp_path: Path, model_folder: Path) -> None:
    copyworld.register()
    settings = configuration.parse(
        {
            "model": {"name": str(model_folder)},
            "lora": {"rank": 2},
            "env": {"id": copyworld.ID, "kwargs": {"numbered": False}},
            "evaluation": {"tasks": 1},
        }
    )
    parts = build(settings, lambda text: None)
    learner = Learner(parts.policy, settings.optim, settings.loss, 1, 100)
    trainer = Trainer(parts, learner, None, None)  # type: ignore[arg-type]  # drawing tasks records nothing
    (held_out,) = parts.held_out_texts
    seeds, following = trainer.fresh_tasks(40)
    assert following > 40
    texts = {parts.collector.first_observation(seed) for seed in seeds}
    assert texts == {f"wants {word}" for word in copyworld.WORDS} - {held_out}
    parts.held_out_texts = frozenset(f"wants {word}" for word in copyworld.WORDS)
    with pytest.raises(TrainingStopped, match="too few tasks"):
        trainer.fresh_tasks(1)


def test_tasks_that_cannot_start_are_data_of_a_run(base: list[str], tmp_path: Path) -> None:
    """Also among the held-out tasks, and where training looks for tasks that start otherwise than those."""
    copyworld.register()
    run = tmp_path / "out"
    world = [f'env.id="{copyworld.ID}"', "env.kwargs={broken_every=2}", "tasks_per_step=4", "steps=2"]
    assert train_command(base[0], world, str(run), None, False) == 0
    rollouts = [r for step in (1, 2) for r in read_rollouts(run / "rollouts" / f"step-{step}.jsonl")]
    broken = [r for r in rollouts if r.error]
    assert {r.error for r in broken} == {"reset: RuntimeError: the world broke"}
    assert {r.stop for r in broken} == {Stop.ERROR}
    assert 0 < len(broken) < len(rollouts)
    assert len({r.task_id for r in broken}) == 4  # every second of eight seeds


def test_one_folder_one_process(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "out"
    assert main(["train", *base, "steps=2", "--run", str(run)]) == 0
    with (run / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["train", "steps=3", "--resume", str(run)]) == 2
        assert "another process" in capsys.readouterr().err
    assert main(["train", "steps=1", "--resume", str(run)]) == 2
    assert "2 steps are done already" in capsys.readouterr().err
    assert main(["train", "steps=3", "--resume", str(run)]) == 0
    assert "the base model reads what stands before" in (run / "adapter" / "README.md").read_text()


def test_no_space_left(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert main(["train", *base, "--run", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert "No space left" in error
    assert len(error.splitlines()) == 1
    assert not any((tmp_path / "out" / "checkpoints").iterdir())
    # Nothing that could be gone on with was left, so the folder may be used again.
    monkeypatch.undo()
    assert main(["train", *base, "steps=1", "--run", str(tmp_path / "out")]) == 0
    assert [e["step"] for e in _metrics(tmp_path / "out")] == [0, 1, 1]


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(base: list[str], tmp_path: Path) -> None:
    run = tmp_path / "out"
    command = [sys.executable, "-m", "rtmc", "train", *base, "steps=1000", "checkpoint_every=1000", "--run", str(run)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(_metrics(run)) >= 4:
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"rtmc train --resume {run}" in out
    steps = [e["step"] for e in _metrics(run) if e["kind"] == "train"]
    assert (run / "checkpoints" / f"step-{steps[-1]}" / "state.pt").exists()
    assert main(["train", "--resume", str(run), f"steps={steps[-1] + 1}"]) == 0


def test_training_stops_with_an_explanation_after_several_bad_updates(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "test-nan" not in {e.name for e in rtmc.estimators()}:
        rtmc.register_estimator("test-nan", lambda table: torch.full((len(table),), math.nan))
    run = tmp_path / "out"
    words = [*base, "method=test-nan", "credit.filter_uniform=false", "optim.max_bad_updates=2", "optim.minibatch=400"]
    assert main(["train", *words, "--run", str(run)]) == 2
    error = capsys.readouterr().err
    assert "2 updates in a row" in error
    assert "Lower `optim.lr`" in error
    assert [e["skipped_updates"] for e in _metrics(run) if e["kind"] == "train"] == [1, 2]
    assert (run / "checkpoints" / "step-2" / "state.pt").exists()
