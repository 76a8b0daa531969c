"""The commands `rtmc train` and `rtmc evaluate`: from a configuration to a finished run folder.

What this is not: the loop (`loop.py`), nor the making of its parts (`build.py`). This file owns a run's folder: when
one may be started or gone on with, what is said, and what is left at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rich.console import Console

from rtmc.train import checkpoint
from rtmc.train import config as configuration
from rtmc.train.acting import acting_of
from rtmc.train.build import Parts, RunError, build
from rtmc.train.evaluate import evaluate
from rtmc.train.interrupt import Interrupt
from rtmc.train.learner import Learner
from rtmc.train.loop import Trainer
from rtmc.train.record import Recorder
from rtmc.train.report import write_curve, write_report

# What `rtmc play` calls our environments.
_WORLDS = {"rtmc/Household-v0": "household", "rtmc/SearchQA-v0": "search-qa", "rtmc/SWE-v0": "swe"}


def train_command(config: str | None, overrides: list[str], run: str | None, resume: str | None, as_json: bool) -> int:
    """`rtmc train`: returns the exit status (0; 130 after Ctrl-C, with a checkpoint written)."""
    console = Console(stderr=as_json)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    start = None
    if resume is not None:
        if run is not None:
            raise RunError(f"`--resume {resume}` goes on in its own folder: leave `--run {run}` away")
        folder = Path(resume)
        start = checkpoint.latest(folder)
        settings = configuration.load(config or folder / "config.toml", overrides)
        _check_held_out(folder, settings)
    elif config is not None:
        settings = configuration.load(config, overrides)
        folder = Path(run) if run else Path("runs") / f"{Path(config).stem}-{settings.method}-{settings.seed}"
        if checkpoint.checkpoints(folder / "checkpoints"):
            raise RunError(
                f"{folder}: holds a run already; go on by `rtmc train --resume {shlex.quote(str(folder))}`, or name "
                "another `--run`"
            )
    else:
        raise RunError("name a configuration file, or `--resume RUN`")

    parts = build(settings, say)
    interrupt = Interrupt()
    lock = None
    try:
        state = checkpoint.load(start, parts.model) if start is not None else None
        if state is not None and state["step"] > settings.steps:
            raise RunError(f"{folder}: {state['step']} steps are done already, `steps` = {settings.steps} is fewer")
        lock = _lock(folder)
        configuration.save(settings, folder / "config.toml")
        with Recorder(folder, settings.steps, console, settings.keep_checkpoints) as recorder:
            learner = Learner(
                parts.policy, settings.optim, settings.loss, settings.steps, 2 * settings.budget.pack_tokens
            )
            trainer = Trainer(parts, learner, recorder, interrupt)
            if state is None:
                recorder.start_afresh()
            else:
                trainer.restore(state)
                say(f"going on after step {trainer.step} ({start})")
            _announce(parts, folder, say)
            began = time.perf_counter()
            try:
                with interrupt.armed():
                    trainer.run()
            except KeyboardInterrupt:
                _interrupted(trainer, folder, say)
                return 130
            seconds = time.perf_counter() - began
        _save_adapter(parts, folder / "adapter")
        curve = write_curve(folder, settings)
        report = write_report(folder, settings, seconds)
        if as_json:
            print(json.dumps({"run": str(folder), "seconds": seconds, **trainer.summary()}))
        _conclude(trainer, folder, [folder / "adapter", curve, report], seconds, say)
        return 0
    finally:
        parts.close()
        if lock is not None:
            lock.close()


def _lock(folder: Path) -> IO[str]:
    """Hold the run's folder until the returned file is closed; the system lets go of it when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunError(f"{folder}: another process is training in this folder") from None
    return file


def _save_adapter(parts: Parts, folder: Path) -> None:
    parts.model.save_pretrained(str(folder))
    config = parts.config
    reads = "every token"
    if config.lora.adapt == "turn":
        reads = (
            f"the last {parts.form.cue} token(s) of the prompt and the action; the base model reads what stands before"
        )
    card = (
        f"# LoRA adapter for {config.model.name}\n\n"
        f"Trained by `{config.method}` on `{config.env.id}`, seed {config.seed}. It is meant to be on for {reads} "
        f'(`lora.adapt = "{config.lora.adapt}"`). `rtmc play` and `rtmc evaluate` apply it so.\n'
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _command() -> str:
    """How this program is called from here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "rtmc" or shutil.which("rtmc"):
        return "rtmc"
    return shlex.quote(os.path.relpath(called))


def _interrupted(trainer: Trainer, folder: Path, say: Callable[[str], None]) -> None:
    if trainer.moving:
        say("interrupted twice, in the middle of an update: nothing of this step is kept")
    else:
        say(f"interrupted after step {trainer.step}; saved {trainer.checkpoint()}")
    if checkpoint.checkpoints(folder / "checkpoints"):
        say(f"go on with: {_command()} train --resume {shlex.quote(str(folder))}")


def _check_held_out(folder: Path, settings: configuration.Config) -> None:
    """Refuse to call tasks held out that the run's training did not leave out."""
    own = configuration.load(folder / "config.toml")
    if settings.evaluation.tasks > own.evaluation.tasks or settings.evaluation.kwargs != own.evaluation.kwargs:
        raise RunError(
            f"{folder}: its training left out {own.evaluation.tasks} tasks (arguments {own.evaluation.kwargs}); "
            "others would not be held out from it (`evaluation.tasks`, `evaluation.kwargs`)"
        )


def _announce(parts: Parts, folder: Path, say: Callable[[str], None]) -> None:
    config = parts.config
    trainable = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    say(
        f"{config.method} with {config.model.name} on {config.env.id.rsplit(':', 1)[-1]} {config.env.kwargs}: "
        f"{config.steps} steps of {config.tasks_per_step} tasks x {config.group_size} rollouts, "
        f"{trainable:,} trainable weights, {parts.policy.forward.device}; run folder {folder}"
    )


def _conclude(trainer: Trainer, folder: Path, made: list[Path], seconds: float, say: Callable[[str], None]) -> None:
    (_, first), (last_step, last) = trainer.evaluations[0], trainer.evaluations[-1]
    say(f"\n{last.sampled.total} held-out tasks, success with 95 % intervals:")
    say(f"  before RL  sampled {first.sampled}" + (f"   greedy {first.greedy}" if first.greedy else ""))
    say(f"  after RL   sampled {last.sampled}" + (f"   greedy {last.greedy}" if last.greedy else ""))
    apart = last.sampled.interval[0] > first.sampled.interval[1]
    say(
        f"{last_step} update steps in {seconds / 60:.1f} minutes. Sampled success "
        + ("rose: the intervals are apart." if apart else "did not clearly rise: the intervals overlap.")
    )
    if not any(e["kind"] == "train" and e.get("updates") for e in trainer.recorder.history):
        say(
            "No group of rollouts was mixed, so no weight moved: easier tasks, or a larger `group_size`, give a signal."
        )
    if unbranched := _never_branched(trainer):
        say(unbranched)
    say("wrote " + ", ".join(str(path) for path in made))
    say(_next(trainer.config, folder))


def _never_branched(trainer: Trainer) -> str | None:
    """What to say of a run by hindsight whose trees are chains."""
    explore = trainer.config.explore
    steps = [e for e in trainer.recorder.history if e["kind"] == "train"]
    if explore.rule != "hindsight" or not steps or any(e.get("candidates") for e in steps):
        return None
    if all(e.get("unexplored") == 1 for e in steps):
        return (
            f"No rollout branched in {len(steps)} steps: the first chains took `explore.budget_tokens` = "
            f"{explore.budget_tokens}; raise it, or lower `group_size` (now {trainer.config.group_size})."
        )
    return (
        f"No rollout branched in {len(steps)} steps: no turn fell below `explore.threshold` = {explore.threshold:g}; "
        f"lower `explore.eps_smooth` (now {explore.eps_smooth:g}), or raise the threshold."
    )


def _next(config: configuration.Config, folder: Path) -> str:
    """What can be done with a finished run; what is named works for its configuration."""
    command, run = _command(), shlex.quote(str(folder))
    advice = [f"go on training (`{command} train --resume {run} steps={2 * config.steps}`)"]
    if config == configuration.load("demo", [f'method="{config.method}"', f"seed={config.seed}"]):
        other = "grpo" if config.method != "grpo" else "rtmc"
        advice.insert(0, f"compare with another estimator on the same budget (`make demo METHOD={other}`)")
    world = _WORLDS.get(config.env.id.rpartition(":")[2])
    if world is not None:
        advice.append(f"watch it act (`{command} play {world} --model {run}`)")
    told = ", ".join(advice[:-1]) + (", or " if len(advice) > 1 else "") + advice[-1]
    return f"Next: {told}."


def evaluate_command(run: str, overrides: list[str], as_json: bool) -> int:
    """`rtmc evaluate RUN`: the run's newest checkpoint on its held-out tasks."""
    console = Console(stderr=as_json)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    folder = Path(run)
    start = checkpoint.latest(folder)
    settings = configuration.load(folder / "config.toml", overrides)
    _check_held_out(folder, settings)
    parts = build(settings, say)
    try:
        step = checkpoint.load(start, parts.model)["step"]
        result = evaluate(
            parts.held_out,
            acting_of(settings),
            settings.evaluation.tasks,
            greedy=settings.evaluation.greedy,
            progress=lambda done, total: say(f"  held-out tasks {done}/{total}"),
        )
    finally:
        parts.close()
    if as_json:
        print(json.dumps({"run": run, "step": step, **result.to_json()}))
        return 0
    say(f"{settings.evaluation.tasks} held-out tasks after step {step}: sampled {result.sampled}")
    if result.greedy is not None:
        say(f"greedy {result.greedy}")
    for kind, rate in result.by_type.items():
        say(f"  {kind:<48} {rate}")
    if result.errors:
        say(f"{result.errors} episodes broke and count as failures")
    return 0
