"""Where to branch next: the arithmetic of hindsight-guided exploration (TreeHCA), and of two simpler rules.

    import rtmc

    chosen = rtmc.explore.select(table, budget=2)           # histories to revisit, worst first
    for row, group in zip(chosen.row.tolist(), chosen.group.tolist()):
        ...                                                 # from the turn `row` (-1: from the prompt of `group`)
                                                            # sample N turns, execute them, score them
        index, probability = rtmc.explore.draw(log_rho, generator)
        weight = rtmc.explore.pool_weight(probability, N)   # the score `pool_weight` of the turn that goes on

A turn whose hindsight score dropped, log rho < `threshold`, marks the history it was taken from: that history is
revisited, and the turn with all below it stays. Of the N candidates sampled there one is drawn with
p_i = rho_i / sum rho and carried on to a verdict; the others are dropped.

What this is not: it samples no text and grows no tree. That the threshold is on log rho, and on log rho alone, and that
the sibling penalty makes a history less likely to be revisited, are choices: what could be read of the paper gives the
numbers -0.14 and 0.05 without the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.methods.tree import parents
from rtmc.methods.treehca import SMOOTHINGS, hindsight_scores
from rtmc.table import StepTable

RULES = ("hindsight", "entropy", "random")


class Selection(NamedTuple):
    """Histories to revisit, the one to visit first in front; each (n,) int64.

    row     row of the turn that ends the history, -1 = the prompt itself
    group   group it belongs to
    """

    row: Tensor
    group: Tensor


class Draw(NamedTuple):
    """One candidate: its place, and the probability with which it was drawn."""

    index: int  # type: ignore[assignment]  # the contract's name hides tuple.index
    probability: float


def select(
    table: StepTable,
    budget: int,
    *,
    rule: str = "hindsight",
    per: str = "group",
    threshold: float = -0.14,
    penalty: float = 0.05,
    penalty_sign: int = 1,
    eps_smooth: float = 0.05,
    smoothing: str = "additive",
    generator: torch.Generator | None = None,
) -> Selection:
    """The parents to branch from, at most `budget` of them, each once.

    table          StepTable, a tree or chains; outcomes are not read
    budget         how many, at least 0: of each group with per="group", of all with per="table"
    rule           "hindsight"  log rho of each completed turn (score `answer_score`, and `root_score` for first turns,
                                which otherwise mark nothing); only turns with log rho < `threshold` mark their parent
                   "entropy"    the turns the policy was least sure of (score `entropy`), as AT2PO ranks; no threshold
                   "random"     any parent, each equally likely; needs `generator`
    penalty, penalty_sign
                   a parent ranks by the lowest of log rho + penalty_sign * penalty * extra over the turns that mark it,
                   extra being its children beyond the first; with "entropy" by the highest of entropy -
                   penalty_sign * penalty * extra. +1: histories that were revisited come later; -1: earlier
    eps_smooth, smoothing
                   of rho, as for the estimator `treehca`

    Among equals the shallower comes first, then the lower row. Turns without a score mark nothing.

    Returns a Selection, on the table's device. Raises EstimatorError (a ValueError) for a missing score or an argument
    out of range, TableError for a table that breaks its contract.
    """
    _check_arguments(budget, rule, per, threshold, penalty, penalty_sign, eps_smooth, smoothing, generator)
    table.validate()
    rows, groups, device = len(table), table.n_groups, table.device
    parent = parents(table)
    # Every history is a node: that of a row its number, that of a group's prompt one above all rows.
    node = torch.where(parent >= 0, parent, rows + table.group[table.rollout])
    nodes = rows + groups
    extra = (torch.bincount(node, minlength=nodes) - 1).clamp(min=0)[node].double()
    if rule == "random":
        if generator is None:
            raise EstimatorError(
                "rule='random' needs `generator`, a torch.Generator: it is what makes a run repeatable"
            )
        key = torch.rand(nodes, generator=generator, dtype=torch.float64, device=generator.device).to(device)[node]
    elif rule == "entropy":
        key = penalty_sign * penalty * extra - _score(table, "entropy", rule).double()
    else:
        _score(table, "answer_score", rule)
        log_rho = hindsight_scores(table, eps_smooth, smoothing, "rtmc.explore.select")
        key = torch.where(log_rho < threshold, log_rho + penalty_sign * penalty * extra, math.nan)

    lowest = torch.full((nodes,), math.inf, dtype=torch.float64, device=device)
    lowest.scatter_reduce_(0, node, key.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf), "amin")
    depth = torch.cat([table.index + 1, table.index.new_zeros(groups)])
    group = torch.cat([table.group[table.rollout], torch.arange(groups, device=device)])
    # Least significant first: three stable sorts make one by rank, depth and row.
    order = torch.argsort(depth, stable=True)
    order = order[torch.argsort(lowest[order], stable=True)]
    order = order[lowest[order] < math.inf]
    order = order[:budget] if per == "table" else order[_rank_within(group[order], groups) < budget]
    return Selection(torch.where(order < rows, order, -1), group[order])


def draw(candidate_scores: Tensor | Sequence[float], generator: Any) -> Draw:
    """One of N candidates, candidate i with probability exp(score_i) / sum_j exp(score_j).

    candidate_scores   (N,) log rho of the candidates, as treehca's `log_rho`; only differences matter, so that log
                       answer scores will do for candidates of one history. -inf = never
    generator          torch.Generator, or what has numpy's or the standard library's `random()`; one number is drawn

    Returns `(index, probability)`. Raises TypeError or ValueError for no candidate, scores that are NaN or +inf, or
    all -inf.
    """
    of_torch = isinstance(generator, torch.Generator)
    if not of_torch and not callable(getattr(generator, "random", None)):
        raise TypeError(
            f"`generator` must be a torch.Generator, or have a method random(), got {type(generator).__name__}"
        )
    scores = torch.as_tensor(candidate_scores, dtype=torch.float64).detach().cpu()
    if scores.dim() != 1 or len(scores) == 0:
        raise ValueError(f"`candidate_scores` must be (N,) with N of at least 1, got shape {tuple(scores.shape)}")
    if bool((torch.isnan(scores) | (scores == math.inf)).any()) or bool((scores == -math.inf).all()):
        raise ValueError(
            f"`candidate_scores` must be finite, or -inf for a candidate never to be drawn, and not all -inf; got "
            f"{scores.tolist()}"
        )
    probability = torch.softmax(scores, 0)
    if of_torch:
        point = float(torch.rand((), generator=generator, dtype=torch.float64, device=generator.device))
    else:
        point = float(generator.random())
    reached = probability.cumsum(0)
    # Scaled by the last sum and kept below it, so that rounding can pick neither none nor one of probability 0.
    below = min(point * float(reached[-1]), math.nextafter(float(reached[-1]), 0.0))
    index = int(torch.searchsorted(reached, below, right=True))
    return Draw(index, float(probability[index]))


def pool_weight(probability: float, candidates: int) -> float:
    """1 / (N p): importance weight of a turn drawn with probability `probability` from `candidates` = N turns.

    E[f / (N p)] over pools sampled from the policy and draws is the policy's E[f], for any N. Turns sampled from the
    policy itself have weight 1. Raises EstimatorError for a probability outside (0, 1] or N below 1.
    """
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise EstimatorError(f"`candidates` must be an integer of at least 1, got {candidates!r}")
    if isinstance(probability, bool) or not isinstance(probability, Real) or not 0 < probability <= 1:
        raise EstimatorError(f"`probability` must be a number in (0, 1], got {probability!r}")
    return 1.0 / (candidates * float(probability))


def _rank_within(group: Tensor, groups: int) -> Tensor:
    """(n,) how many of the same group stand before each."""
    order = torch.argsort(group, stable=True)
    sizes = torch.bincount(group, minlength=groups)
    begins = sizes.cumsum(0) - sizes
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - begins[group[order]]
    return rank


def _score(table: StepTable, name: str, rule: str) -> Tensor:
    if name not in table.scores:
        there = ", ".join(f"`{score}`" for score in sorted(table.scores)) or "none"
        raise EstimatorError(
            f"rule={rule!r} needs the score `{name}`, which the table lacks (its scores: {there}); give it as a key of "
            "the rows in StepTable.from_rows, or choose another rule"
        )
    return table.scores[name]


def _check_arguments(
    budget: object,
    rule: object,
    per: object,
    threshold: object,
    penalty: object,
    penalty_sign: object,
    eps_smooth: object,
    smoothing: object,
    generator: object,
) -> None:
    def number(value: object, low: float, high: float) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high

    whole = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    large = 1e300
    rules = (
        ("budget", budget, whole, "an integer of at least 0"),
        ("rule", rule, rule in RULES, " or ".join(map(repr, RULES))),
        ("per", per, per in ("group", "table"), "'group' or 'table'"),
        ("threshold", threshold, number(threshold, -math.inf, math.inf), "a number"),
        ("penalty", penalty, number(penalty, -large, large), "a finite number"),
        ("penalty_sign", penalty_sign, penalty_sign in (1, -1), "1 or -1"),
        ("eps_smooth", eps_smooth, number(eps_smooth, 0.0, 1.0), "a number in [0, 1]"),
        ("smoothing", smoothing, smoothing in SMOOTHINGS, " or ".join(map(repr, SMOOTHINGS))),
        ("generator", generator, generator is None or isinstance(generator, torch.Generator), "a torch.Generator"),
    )
    for name, value, right, wanted in rules:
        if not right:
            raise EstimatorError(f"`{name}` must be {wanted}, got {value!r}")
