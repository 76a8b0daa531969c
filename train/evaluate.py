"""Evaluation on held-out tasks: success with its interval, sampled and greedy, on the same seeds every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from rtmc.train.acting import Acting
from rtmc.train.collect import Collector, Episode, successes

# Seeds of tasks: training draws below, evaluation from here on, so that no seed serves both.
HELD_OUT = 2**30


@dataclass(frozen=True)
class Rate:
    """A success rate: `count` of `total`, with the Wilson interval at 95 % (Wilson 1927)."""

    count: int
    total: int

    @property
    def value(self) -> float:
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        ci = binomtest(self.count, self.total).proportion_ci(0.95, method="wilson")
        return float(ci.low), float(ci.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.3f} [{low:.3f}, {high:.3f}] ({self.count}/{self.total})"

    def to_json(self) -> dict[str, float]:
        low, high = self.interval
        return {"success": self.value, "low": low, "high": high, "count": self.count, "total": self.total}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Rate:
        return cls(int(value["count"]), int(value["total"]))


@dataclass(frozen=True)
class Evaluated:
    """Results of one evaluation; `turns` is the mean length of the sampled episodes, `errors` how many episodes broke
    (they count as failures)."""

    sampled: Rate
    greedy: Rate | None
    turns: float
    by_type: dict[str, Rate]
    errors: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "sampled": self.sampled.to_json(),
            "greedy": self.greedy.to_json() if self.greedy else None,
            "turns": self.turns,
            "errors": self.errors,
            "by_type": {name: rate.to_json() for name, rate in self.by_type.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Evaluated:
        greedy = value["greedy"]
        return cls(
            Rate.from_json(value["sampled"]),
            Rate.from_json(greedy) if greedy else None,
            float(value["turns"]),
            {name: Rate.from_json(rate) for name, rate in value["by_type"].items()},
            int(value["errors"]),
        )


def held_out_seeds(count: int) -> list[int]:
    return list(range(HELD_OUT, HELD_OUT + count))


def evaluate(
    collector: Collector,
    acting: Acting,
    tasks: int,
    *,
    greedy: bool = True,
    batch: int = 32,
    progress: Callable[[int, int], None] | None = None,
    on_turn: Callable[[int, int], None] | None = None,
) -> Evaluated:
    """Play each held-out task once by sampling and, if asked, once greedily.

    The draws are fixed by the task's seed, so two evaluations differ by the weights alone.
    """
    seeds = held_out_seeds(tasks)
    sampled, greedily, lengths = [], [], []
    kinds: dict[str, list[bool]] = {}
    done = errors = 0
    for part in _batches(seeds, batch):
        groups = collector.play(part, 1, acting, (1,), on_turn)
        errors += sum(episode.rollout.error is not None for (episode,) in groups)
        outcome = successes(groups)
        sampled.append(outcome)
        for (episode,), success in zip(groups, outcome, strict=True):
            lengths.append(len(episode.turns))
            kinds.setdefault(_kind(episode), []).append(bool(success))
        if greedy:
            groups = collector.play(part, 1, replace(acting, greedy=True), (1,), on_turn)
            errors += sum(episode.rollout.error is not None for (episode,) in groups)
            greedily.append(successes(groups))
        done += len(part)
        if progress is not None:
            progress(done, len(seeds))
    return Evaluated(
        _rate(sampled),
        _rate(greedily) if greedy else None,
        float(np.mean(lengths)),
        {kind: Rate(sum(found), len(found)) for kind, found in sorted(kinds.items())},
        errors,
    )


def _kind(episode: Episode) -> str:
    """The row of the table by type: the task's id without its number, and its hops where it has any."""
    parts = episode.rollout.task_id.split("/")
    kind = "/".join(parts[:-1]) or parts[0]
    if episode.hops is None:
        return kind
    hops = f"{episode.hops} hop{'s' if episode.hops != 1 else ''}"
    return f"{kind}, {hops}" if len(parts) > 1 else hops


def _batches(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(seeds), size):
        yield seeds[first : first + size]


def _rate(parts: list[np.ndarray]) -> Rate:
    flat = np.concatenate(parts)
    return Rate(int(flat.sum()), len(flat))
