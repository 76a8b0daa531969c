"""Where an exploration goes back to, and how likely each candidate is: `rtmc.explore` on a forest that grows.

And what is to be said of an exploration that went nowhere (`notes`).

What this is not: the arithmetic itself (rtmc/explore.py), or the growing (explore.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import rtmc.explore as arithmetic
from rtmc.methods.treehca import SMOOTHINGS, hindsight_scores
from rtmc.table import StepTable
from rtmc.train.references import ExploreError
from rtmc.train.turn_forest import Forest, Place

RULES = (*arithmetic.RULES, "none")
# Another name of a rule; what is kept is the one of RULES.
ALSO = {"chains": "none"}


@dataclass(frozen=True)
class Settings:
    """What `rtmc.train.explore.explore` is told, checked: its docstring says what each means."""

    rule: str = "hindsight"
    budget: int = 1000
    chains: int = 4
    candidates: int | None = None
    per_round: int = 1
    threshold: float = -0.14
    penalty: float = 0.05
    penalty_sign: int = 1
    eps_smooth: float = 0.05
    smoothing: str = "additive"

    def __post_init__(self) -> None:
        if self.rule not in (*RULES, *ALSO):
            raise ExploreError(f"`rule` must be {' or '.join(map(repr, RULES))}, got {self.rule!r}")
        object.__setattr__(self, "rule", ALSO.get(self.rule, self.rule))
        for name, least in (("budget", 0), ("chains", 1), ("candidates", 1), ("per_round", 1)):
            value = getattr(self, name)
            if name == "candidates" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ExploreError(f"`{name}` must be an integer of at least {least}, got {value!r}")
        if self.smoothing not in SMOOTHINGS:
            raise ExploreError(f"`smoothing` must be {' or '.join(map(repr, SMOOTHINGS))}, got {self.smoothing!r}")
        limits = {"eps_smooth": (0.0, 1.0), "threshold": (-math.inf, math.inf), "penalty": (-1e300, 1e300)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ExploreError(f"`{name}` must be a number in [{low:g}, {high:g}], got {value!r}")
        if self.penalty_sign not in (1, -1):
            raise ExploreError(f"`penalty_sign` must be 1 or -1, got {self.penalty_sign!r}")

    @property
    def pool(self) -> int:
        """N."""
        return self.candidates or (2 if self.rule == "hindsight" else 1)


def histories(forest: Forest, task: int, settings: Settings, seed: Sequence[int]) -> list[Place]:
    """What the rule revisits for a task next, at most `per_round` places that the environment can be taken back to.

    seed   fixes the order of rule "random"
    """
    rows, root = forest.rows([task]), forest.roots[task].place
    if settings.rule == "none" or not rows or root is None:
        return []
    generator = None
    if settings.rule == "random":
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))
    # A table of this task alone: two tasks of one id would be one group of a table of both.
    chosen = arithmetic.select(
        forest.table(dtype=torch.float64, tasks=[task]),
        len(rows) + 1,
        rule=settings.rule,
        threshold=settings.threshold,
        penalty=settings.penalty,
        penalty_sign=settings.penalty_sign,
        eps_smooth=settings.eps_smooth,
        smoothing=settings.smoothing,
        generator=generator,
    )
    places = [root if row < 0 else forest.nodes[rows[row]].after for row in chosen.row.tolist()]
    return [place for place in places if place.snapshot is not None][: settings.per_round]


def log_rho(before: float, scores: Sequence[float], settings: Settings) -> list[float]:
    """log rho of candidates with answer scores `scores`, taken at a history of score `before`.

    0 for all where one of these is NaN: without a score each is as likely as any.
    """
    rows = [
        {"group": 0, "rollout": c, "index": 0, "state": 0, "action": c, "answer_score": p, "root_score": before}
        for c, p in enumerate(scores)
    ]
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = hindsight_scores(table, settings.eps_smooth, settings.smoothing, "rtmc.train.explore")
    return [0.0] * len(rows) if bool(torch.isnan(found).any()) else found.tolist()


def notes(forest: Forest, settings: Settings, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of an exploration did not happen, and what would change that: kind -> one line; empty where all is well.

    "start"      no task could start
    "budget"     the first chains took the whole budget of at least half the tasks: these were not explored
    "threshold"  hindsight marked no turn of any task: all was chains

    names   what the caller calls a setting, where not by its name in `Settings`
    """

    def name(setting: str) -> str:
        return f"`{(names or {}).get(setting, setting)}`"

    found = {}
    started = [t for t, root in enumerate(forest.roots) if root.place is not None]
    if forest.roots and not started:
        found["start"] = (
            f"none of {len(forest.roots)} tasks could start, so that nothing was played: {forest.roots[0].error}"
        )
    took = [forest.roots[t].chain_tokens for t in started]
    spent = [tokens for tokens in took if tokens >= settings.budget > 0]
    if spent and 2 * len(spent) >= len(started):
        between = f"{min(spent)}" if min(spent) == max(spent) else f"{min(spent)} to {max(spent)}"
        found["budget"] = (
            f"{name('budget')} is {settings.budget} tokens a task; the first chains ({name('chains')} = "
            f"{settings.chains}) took {between} in {len(spent)} of {len(started)} tasks, which were "
            f"explored no further: raise {name('budget')}"
        )
    explored = any(tokens < settings.budget for tokens in took)
    if settings.rule == "hindsight" and explored and not forest.candidates:
        lowest = _lowest(forest, settings)
        if math.isnan(lowest):
            found["threshold"] = (
                "no turn has a score of the reference answer before and after it, so that nothing branched"
            )
        elif not lowest < settings.threshold:
            found["threshold"] = (
                f"no turn fell below {name('threshold')} = {settings.threshold:g} (the lowest log rho was "
                f"{lowest:.2g}), so that nothing branched: lower {name('eps_smooth')} (now {settings.eps_smooth:g}), "
                f"or raise {name('threshold')}"
            )
    return found


def _lowest(forest: Forest, settings: Settings) -> float:
    """The lowest log rho of all completed turns, NaN where none has one."""
    table = forest.table(dtype=torch.float64)
    found = hindsight_scores(table, settings.eps_smooth, settings.smoothing, "rtmc.train.explore")
    found = found[~torch.isnan(found)]
    return float(found.min()) if len(found) else math.nan
