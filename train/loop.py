"""The training loop: collect, credit, update, record.

One step: fresh tasks are drawn, each is played by a group of rollouts, the rollouts become a step table, an estimator
reads every step's advantage off it, the advantages go to the sampled tokens, and the clipped loss moves the adapter.
What this is not: a place for options. They live in `config.py`; the pieces live in their own files.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rtmc
from rtmc.errors import RtmcError
from rtmc.train.build import Parts
from rtmc.train.collect import Episode, acting_of, successes
from rtmc.train.config import Config
from rtmc.train.evaluate import HELD_OUT, Evaluated, evaluate
from rtmc.train.interrupt import Interrupt
from rtmc.train.learner import Batch, Learner, UpdateStats
from rtmc.train.record import Recorder


class TrainingStopped(RtmcError, RuntimeError):
    """Training cannot go on; the message says why and what to change."""


@dataclass(frozen=True)
class Credited:
    """A step's turns with their advantages, and what the pooling saw."""

    batch: Batch
    metrics: dict[str, float]


def credit(config: Config, groups: Sequence[Sequence[Episode]]) -> Credited:
    """Advantages of every turn of the groups, by the configured estimator.

    Uniform groups (all outcomes equal) are left out of the batch where `credit.filter_uniform` says so, and counted.
    """
    outcomes = [np.asarray([e.rollout.reward for e in group]) for group in groups]
    uniform = [bool(np.nanmax(o) == np.nanmin(o)) if np.isfinite(o).any() else True for o in outcomes]
    kept = [group for group, same in zip(groups, uniform, strict=True) if not (same and config.credit.filter_uniform)]
    episodes = [e for group in kept for e in group if e.turns]
    metrics = {"uniform_groups": float(np.mean(uniform))}
    if not episodes:
        return Credited(Batch([], torch.zeros(0), np.zeros(0, np.int64)), metrics)
    table = rtmc.tabulate(
        [e.rollout for e in episodes],
        signatures=config.credit.signatures,
        valid_reward=config.credit.valid_reward,
        invalid_reward=config.credit.invalid_reward,
        validation_bonus=config.credit.validation_bonus,
    )
    estimate = rtmc.estimate(table, config.method, **config.credit.options)
    # Rows of the table back to the order of the turns.
    place = {
        (int(r), int(t)): row
        for row, (r, t) in enumerate(zip(table.rollout.tolist(), table.index.tolist(), strict=True))
    }
    rows = [place[r, t] for r, e in enumerate(episodes) for t in range(len(e.turns))]
    advantage = estimate.advantage[torch.as_tensor(rows)]
    rollout = np.concatenate([np.full(len(e.turns), r) for r, e in enumerate(episodes)])
    metrics["advantage_std"] = float(advantage.std(correction=0))
    metrics["zero_advantage"] = float((advantage == 0).float().mean())
    if estimate.visits is not None:
        metrics["single_visit"] = float((estimate.visits <= 1).float().mean())
    return Credited(Batch([t for e in episodes for t in e.turns], advantage, rollout), metrics)


class Trainer:
    """A run: everything that changes is in `state()`."""

    def __init__(self, parts: Parts, learner: Learner, recorder: Recorder, interrupt: Interrupt) -> None:
        self.config = parts.config
        self.parts = parts
        self.learner = learner
        self.recorder = recorder
        self.interrupt = interrupt
        self.acting = acting_of(parts.config)
        self.step = 0
        self.skipped_updates = 0
        self.next_seed = 0
        self.moving = False  # weights are between two steps: not a state to save
        self.evaluations: list[tuple[int, Evaluated]] = []

    def run(self) -> None:
        """Train to `config.steps`; evaluate before and after. What can be resumed starts with the first evaluation."""
        if not self.evaluations:
            self.evaluate()
            self.checkpoint()
        while self.step < self.config.steps:
            self.one_step()
            if self.step == self.config.steps:
                break
            every = self.config.evaluation.every
            if every and self.step % every == 0:
                self.evaluate()
            if self.step % self.config.checkpoint_every == 0:
                self.checkpoint()
        if self.evaluations[-1][0] != self.step:
            self.evaluate()
        self.checkpoint()

    def checkpoint(self) -> Path:
        return self.recorder.checkpoint(self)

    def forget(self) -> None:
        """Drop what is cached. A resumed run then computes exactly what this one goes on to compute, and as tasks are
        fresh every step, little is lost."""
        self.parts.policy.forget()
        self.parts.collector.weights_changed()
        self.parts.held_out.weights_changed()

    def one_step(self) -> None:
        config = self.config
        began = time.perf_counter()
        seeds, next_seed = self.fresh_tasks(config.tasks_per_step)
        collector = self.parts.collector
        asked, answered, read = collector.asked, collector.answered, self.parts.policy.store.computed_tokens
        groups = collector.play(
            seeds, config.group_size, self.acting, draw=(2, config.seed, self.step), on_turn=self._on_turn
        )
        collected = time.perf_counter()
        credited = credit(config, groups)
        stats = self._update(credited.batch)
        # Only a whole step counts: interrupted before this line, it is done again in full.
        self.step, self.next_seed = self.step + 1, next_seed
        found = successes(groups)
        lengths = [len(e.turns) for group in groups for e in group]
        errors = sum(e.rollout.error is not None for group in groups for e in group)
        metrics: dict[str, Any] = {
            "success": float(found.mean()),
            "turns": float(np.mean(lengths)),
            "errors": errors,
            "turns_shared": 1 - (collector.answered - answered) / max(1, collector.asked - asked),
            "context_tokens": self.parts.policy.store.computed_tokens - read,
            **credited.metrics,
            "learning_rate": self.learner.learning_rate(self.step - 1),
            "collect_seconds": collected - began,
            "update_seconds": time.perf_counter() - collected,
            "skipped_updates": self.skipped_updates,
        }
        if stats is not None:
            metrics |= {k: v for k, v in dataclasses.asdict(stats).items() if k != "skipped"}
        self.recorder.step(self.step, metrics, groups)
        self.moving = False
        self.forget()
        self._stop_if_broken()
        self.interrupt.check()

    def _on_turn(self, unfinished: int, total: int) -> None:
        self.recorder.on_turn(unfinished, total)
        self.interrupt.check()

    def _on_evaluation(self, done: int, total: int) -> None:
        self.recorder.on_evaluation(done, total)
        self.interrupt.check()

    def _update(self, batch: Batch) -> UpdateStats | None:
        if not batch.turns:
            return None
        rng = np.random.default_rng([3, self.config.seed, self.step])
        self.moving = True
        stats = self.learner.update(batch, self.step, rng)
        self.skipped_updates += stats.skipped
        return stats

    def _stop_if_broken(self) -> None:
        if self.learner.bad_in_a_row < self.config.optim.max_bad_updates:
            return
        saved = self.checkpoint()
        raise TrainingStopped(
            f"{self.learner.bad_in_a_row} updates in a row had a loss or gradient that was not finite, and were "
            f"skipped; {saved} holds the adapter without them. Lower `optim.lr` (now {self.config.optim.lr:g}) or "
            '`optim.grad_norm`, or use `model.dtype = "float32"`, and go on with `--resume`'
        )

    def fresh_tasks(self, count: int) -> tuple[list[int], int]:
        """Task seeds not yet used in this run, none of which starts like a held-out task; and where to go on."""
        base = np.random.default_rng([4, self.config.seed]).integers(HELD_OUT)
        seeds: list[int] = []
        following, refused = self.next_seed, 0
        while len(seeds) < count:
            seed = int((base + following) % HELD_OUT)
            following += 1
            if self.parts.collector.first_observation(seed) not in self.parts.held_out_texts:
                seeds.append(seed)
                refused = 0
                continue
            refused += 1
            if refused > 1000:
                raise TrainingStopped(
                    "more than 1000 tasks in a row start like a held-out one: the environment has too few tasks for "
                    f"{self.config.evaluation.tasks} held-out ones. Lower `evaluation.tasks` or widen `env.kwargs`"
                )
        return seeds, following

    def evaluate(self) -> Evaluated:
        result = evaluate(
            self.parts.held_out,
            self.acting,
            self.config.evaluation.tasks,
            greedy=self.config.evaluation.greedy,
            progress=self._on_evaluation,
            on_turn=lambda unfinished, total: self.interrupt.check(),
        )
        self.forget()
        self.evaluations.append((self.step, result))
        self.recorder.evaluation(self.step, result)
        return result

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the adapter."""
        return {
            "step": self.step,
            "next_seed": self.next_seed,
            "skipped_updates": self.skipped_updates,
            "optimizer": self.learner.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state (its adapter is in the model already)."""
        self.step, self.next_seed = int(state["step"]), int(state["next_seed"])
        self.skipped_updates = int(state["skipped_updates"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        for group in self.learner.optimizer.param_groups:
            group["weight_decay"] = self.config.optim.weight_decay  # the configuration's word, not the checkpoint's
        self.recorder.resume(self.step)
        self.evaluations = [
            (int(e["step"]), Evaluated.from_json(e)) for e in self.recorder.history if e["kind"] == "evaluation"
        ]

    def summary(self) -> dict[str, Any]:
        """First and last evaluation, as plain values."""
        (first_step, first), (last_step, last) = self.evaluations[0], self.evaluations[-1]
        return {
            "method": self.config.method,
            "seed": self.config.seed,
            "steps": self.step,
            "start": {"step": first_step, **first.to_json()},
            "end": {"step": last_step, **last.to_json()},
            "skipped_updates": self.skipped_updates,
        }
