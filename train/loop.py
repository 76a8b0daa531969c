"""The training loop: collect, credit, update, record.

One step: fresh tasks are drawn, each is played by a group of rollouts or explored as a tree, these become a step table,
an estimator reads every step's advantage off it, the advantages go to the sampled tokens, and the clipped loss moves
the adapter.
What this is not: a place for options. They live in `config.py`; the pieces live in their own files.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rtmc.errors import RtmcError
from rtmc.train.acting import acting_of
from rtmc.train.build import SETTING_NAMES, Parts
from rtmc.train.collect import Episode, successes
from rtmc.train.credit import Credited, credit, credit_forest
from rtmc.train.evaluate import HELD_OUT, Evaluated, evaluate
from rtmc.train.interrupt import Interrupt
from rtmc.train.learner import Batch, Learner, UpdateStats
from rtmc.train.record import Recorder
from rtmc.train.revisit import notes


class TrainingStopped(RtmcError, RuntimeError):
    """Training cannot go on; the message says why and what to change."""


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
        self.noted: set[str] = set()  # kinds of `notes` that were said: each is, once a run

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
        actor = self.parts.collector.actor
        asked, answered, read = actor.asked, actor.answered, self.parts.policy.store.computed_tokens
        groups, credited, collected = self._gather(seeds)
        stats = self._update(credited.batch)
        # Only a whole step counts: interrupted before this line, it is done again in full.
        self.step, self.next_seed = self.step + 1, next_seed
        found = successes(groups)
        lengths = [len(e.rollout.steps) for group in groups for e in group]
        errors = sum(e.rollout.error is not None for group in groups for e in group)
        metrics: dict[str, Any] = {
            "success": float(found.mean()),
            "turns": float(np.mean(lengths)),
            "errors": errors,
            "turns_shared": 1 - (actor.answered - answered) / max(1, actor.asked - asked),
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

    def _gather(self, seeds: Sequence[int]) -> tuple[Sequence[Sequence[Episode]], Credited, float]:
        """The tasks' rollouts, their turns with advantages, and when the rollouts were done."""
        config, draw = self.config, (2, self.config.seed, self.step)
        if self.parts.explorer is None:
            groups = self.parts.collector.play(seeds, config.group_size, self.acting, draw, self._on_turn)
            collected = time.perf_counter()
            return groups, credit(config, groups), collected
        explorer = self.parts.explorer
        explorer.on_turn = lambda tokens, budget: self._on_turn(max(0, budget - tokens), budget)
        forest = explorer.run(seeds, draw)
        collected = time.perf_counter()
        for kind, note in notes(forest, explorer.settings, SETTING_NAMES).items():
            if kind not in self.noted:
                self.recorder.say(f"step {self.step + 1}: {note}")
            self.noted.add(kind)
        return forest.episodes(), credit_forest(config, forest), collected

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
