"""`rtmc play WORLD --model RUN`: one episode by a trained policy, turn by turn, with what else it considered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rtmc.rollouts import Stop
from rtmc.train import checkpoint
from rtmc.train import config as configuration
from rtmc.train.acting import acting_of
from rtmc.train.build import build
from rtmc.train.collect import Episode
from rtmc.train.evaluate import HELD_OUT
from rtmc.train.policy import Policy

# Below this share of the probability a command is not worth a line.
_WORTH_TELLING = 0.05


def watch(run: Path, env_id: str, changes: dict[str, Any], seed: int | None, say: Callable[[str], None]) -> bool:
    """Play one episode with the newest checkpoint of `run`, sampled as in training; whether it succeeded.

    `changes` replace the run's own environment arguments; `seed` names task and draws among the training's tasks. By
    default it is a held-out one, of those that `evaluation.kwargs` name, but where `changes` name the task.
    Raises CheckpointError or ConfigError for a folder that holds no run, ValueError for a run of another world.
    """
    start = checkpoint.latest(run)
    settings = configuration.load(run / "config.toml")
    if settings.env.id.rsplit(":", 1)[-1] != env_id.rsplit(":", 1)[-1]:
        raise ValueError(f"{run}: was trained in {settings.env.id}, not in {env_id}")
    values = settings.model_dump()
    if seed is None and "task" not in changes:
        values["env"]["kwargs"] |= settings.evaluation.kwargs
    values["env"]["kwargs"] |= changes
    parts = build(configuration.parse(values, str(run / "config.toml")), say, evaluated=False)
    try:
        step = checkpoint.load(start, parts.model)["step"]
        task = HELD_OUT if seed is None else seed
        ((episode,),) = parts.collector.play([task], 1, acting_of(settings), draw=(5, task))
        say(f"{run} after step {step}, task {episode.rollout.task_id}")
        for line in _lines(episode, parts.policy):
            say(line)
    finally:
        parts.close()
    return episode.rollout.stop is Stop.SUCCESS


def _lines(episode: Episode, policy: Policy) -> Iterator[str]:
    for turn, step in zip(episode.turns, episode.rollout.steps, strict=True):
        yield f"\n{step.observation}"
        if turn.request.choices is None:
            yield f"> {step.action}"
            continue
        probabilities = np.exp(policy.answer([turn.request])[0].command)
        for p, command in sorted(zip(probabilities, turn.request.choices.commands, strict=True), reverse=True):
            if p >= _WORTH_TELLING or command == step.action:
                yield f"{'>' if command == step.action else ' '} {command}   {p:.2f}"
    rollout = episode.rollout
    if rollout.steps:
        yield f"\n{rollout.steps[-1].answer}"
    yield f"\n{rollout.error or rollout.stop} after {len(rollout.steps)} turns, reward {rollout.reward:g}"
