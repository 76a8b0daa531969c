"""Advantages of a step's turns: from rollouts or trees, by the configured estimator, to what the learner takes.

What this is not: an estimator (rtmc/methods), or the loss (learner.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import rtmc
from rtmc.train.acting import Turn
from rtmc.train.collect import Episode
from rtmc.train.config import Config
from rtmc.train.learner import Batch
from rtmc.train.turn_forest import Forest
from rtmc.types import Estimate


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
    uniform = [_uniform(o) for o in outcomes]
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
    metrics |= _seen(dataclasses.replace(estimate, advantage=advantage))
    return Credited(Batch([t for e in episodes for t in e.turns], advantage, rollout), metrics)


def credit_forest(config: Config, forest: Forest) -> Credited:
    """Advantages of every turn of the trees, each turn once, by the configured estimator.

    Tasks with equal outcomes are treated as above. `tree_grpo` compares the leaves below each child of the prompt,
    other methods all leaves of the prompt (`Forest.table`). The correction for exploration is the estimator's, in the
    values; a drawn turn's own gradient is not weighed, as far as the paper is known.
    """
    outcomes = [
        np.asarray([math.nan if forest.paths[p].error else forest.paths[p].reward for p in root.rollouts])
        for root in forest.roots
    ]
    uniform = [_uniform(o) for o in outcomes]
    kept = [t for t, same in enumerate(uniform) if not (same and config.credit.filter_uniform)]
    scores = [node.after.score for node in forest.nodes if not math.isnan(node.after.score)]
    metrics = {
        "uniform_groups": float(np.mean(uniform)),
        "sampled_tokens": float(forest.tokens),
        "branches": float(sum(candidate.node is not None for candidate in forest.candidates)),
        "candidates": float(len(forest.candidates)),
        # Share of the tasks whose first chains left nothing of the budget for the rule.
        "unexplored": float(np.mean([root.chain_tokens >= config.explore.budget_tokens for root in forest.roots])),
    }
    if scores:
        metrics["answer_score"] = float(np.mean(scores))
    nodes = [forest.nodes[node] for node in forest.rows(kept)]
    if not nodes:
        return Credited(Batch([], torch.zeros(0), np.zeros(0, np.int64)), metrics)
    table = forest.table("chain" if config.method == "tree_grpo" else "prompt", tasks=kept)
    estimate = rtmc.estimate(table, config.method, **config.credit.options)
    turns = [node.move.data for node in nodes]
    assert all(isinstance(turn, Turn) for turn in turns)  # a model's moves have one
    rollout = np.unique([node.rollout for node in nodes], return_inverse=True)[1]
    return Credited(Batch(turns, estimate.advantage, rollout), metrics | _seen(estimate))


def _uniform(outcomes: np.ndarray) -> bool:
    """Whether the known outcomes of a task are all equal: nothing is to be learned from a comparison."""
    return bool(np.nanmax(outcomes) == np.nanmin(outcomes)) if np.isfinite(outcomes).any() else True


def _seen(estimate: Estimate) -> dict[str, float]:
    advantage = estimate.advantage
    metrics = {
        "advantage_std": float(advantage.std(correction=0)),
        "zero_advantage": float((advantage == 0).float().mean()),
    }
    if estimate.visits is not None:
        metrics["single_visit"] = float((estimate.visits <= 1).float().mean())
    return metrics
