"""`treehca`: hindsight-weighted values carried up a tree of turns (TreeHCA, Mukherjee et al.).

Input: `answer_score` p of every turn, the probability in [0, 1] of the reference answer after it (exp of the mean
log-probability of the answer's tokens; a p that underflowed to 0 counts as 1e-6 where nothing smooths it). With
eps = `eps_smooth`, the hindsight score of a turn c that takes history h to h' is

    rho(c) = (p(h') + eps) / (p(h) + eps)

p(h) of a first turn is the score `root_score` of its row (the prompt's own p) where the table has one; otherwise first
turns have no rho. Values are carried up over the children c of a node:

    V(node) = sum_c u(c) V(c) / sum_c u(c),    u(c) = n(c)^leaf_power * w(c)

    weights "inverse_score"    w = rho^-score_power; siblings share p(h), which therefore cancels
            "pool_corrected"   w = the score `pool_weight`: 1 for a turn sampled from the policy (NaN counts as 1),
                               1 / (N p_I) for one that exploration drew with probability p_I from N candidates
                               (rtmc.explore.pool_weight gives it)
            "uniform"          w = 1
    n(c) = known leaves below c; `cap` = k first limits u(c) to k times the siblings' mean u

    V(leaf) = (R - mean) / (std + 1e-6) over the leaves of its tree, population std     leaf_norm "tree"
              the same over the leaves of the prompt, sample std                                  "group"
              R, the outcome                                                                      None

    A(turn) = V(turn)  advantage "node_value"        V(turn) - V(parent)  "diff_parent"

A tree is one child of the prompt with all below it, unless the score `tree` says otherwise; the parent of a first turn
is the prompt. A tree with a single known leaf, or with equal ones, has leaves of value 0: where prompts are answered by
rollouts that do not branch, use leaf_norm="group", or give the score `tree` one value a prompt.

The finite pool. Of candidates y_1..y_N sampled from the policy, I is drawn with p_I = rho_I / sum rho. Then
E[f(y_I) / (N p_I)] = E_policy[f], exactly, for any N. With divisor="children" (for "pool_corrected" alone) a node's
value is sum_c u(c) V(c) / number of children, which keeps that: with leaf_norm=None its expectation over all pools and
draws is the on-policy value. The default divides by the weights' sum, as in the paper's normalised backup: less
variance, exact in the limit only. Either way the draw alone is corrected, not the choice *where* to explore: a history
that is revisited because its first child did badly still keeps that child.

What is not known: neither the paper's whole text nor the authors' release could be had. Smoothing, leaf values and the
form of A are choices; the figures give the normalised inverse-score weights and the draw. A co-author's development
fork has an earlier variant, which parity="dev_fork" gives: p clipped to [1e-6, 1] without smoothing, weights
"inverse_score", leaf_power 1, leaf_norm "group" with the raw score for a single leaf. Its own switches are, beside
parity="dev_fork":

    subtree_size_weight: false   leaf_power=0          weight_temp: x         score_power=x
    leaf_baseline: none          leaf_norm=None        max_weight_ratio: x    cap=x (None for 0 and less)
    norm: false                  leaf_std=False        aux_mode: hindsight    advantage="hindsight_q"
    max_inv_ratio: x             max_inv_ratio=x       aux_mode: td           advantage="td_q"

leaf_norm=None leaves no statistic, so that `leaf_std` and the single leaf have nothing to change; leaf_std=False with
a single leaf is the raw score itself. What the fork has no switch for is refused. It also has

    advantage "hindsight_q"   A = episode_weight GRPO + aux_weight aux,  aux = Q(turn) (1 - min(p(h) / p(h'), k))
              "td_q"                                                     aux = Q(turn) - Q(parent)

with Q the plain mean carried up from the outcomes, k = `max_inv_ratio`, and aux 0 for first turns (except with
`root_score`, "hindsight_q" alone). GRPO of a shared turn is the mean over its leaves. Not offered: the fork's filter of
leaves that its allocator stopped.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.segments import segment_stats
from rtmc.methods.grpo import ENGINES, Rules, grpo_of_rollouts
from rtmc.methods.options import Option, choice, flag, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import known_groups
from rtmc.methods.tree import (
    Forest,
    along_path,
    back_up,
    forest,
    leaf_scores,
    level_where_missing,
    mean_over_leaves,
    parents,
    tree_ids,
)
from rtmc.table import StepTable
from rtmc.types import Estimate

SMOOTHINGS = ("additive", "convex", "clamp")
_EPS = 1e-6
_LEAST_SCORE = 1e-6  # the development fork's floor; it only bites without smoothing
_Q = ("hindsight_q", "td_q")
_FORK = {
    "eps_smooth": (0.0,),
    "weights": ("inverse_score",),
    "leaf_power": (1.0, 0.0),
    "leaf_norm": ("group", None),
    "advantage": ("node_value", *_Q),
    "smoothing": ("additive",),
    "divisor": ("weights",),
}


def _positive(value: Any) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return value is None or (real and 0 < float(value) < math.inf)


@register_estimator(
    "treehca",
    needs=("parent", "answer_score"),
    unless={"answer_score": {"weights": ("uniform", "pool_corrected")}},
    options={
        "eps_smooth": number(0.05, 0.0, 1.0),
        "weights": choice("inverse_score", ("inverse_score", "pool_corrected", "uniform")),
        "leaf_power": number(0.0, 0.0),
        "leaf_norm": Option("tree", "'tree', 'group' or None", lambda value: value in ("tree", "group", None)),
        "advantage": choice("node_value", ("node_value", "diff_parent", *_Q)),
        "smoothing": choice("additive", SMOOTHINGS),
        "score_power": number(1.0, 0.0),
        "cap": Option(None, "None or a finite number above 0", _positive),
        "divisor": choice("weights", ("weights", "children")),
        "leaf_std": flag(True),
        "max_inv_ratio": number(2.0, 0.0),
        "episode_weight": number(0.7),
        "aux_weight": number(0.3),
        "parity": choice(None, ("dev_fork",)),
    },
    source="TreeHCA (Mukherjee et al.); backup and variants after a co-author's development fork",
    rows="table",
    engines={"dev_fork": _FORK},
)
def treehca(table: StepTable, **options: Any) -> Estimate:
    """A turn's credit is its value, or its gain over the parent, see the head of this file.

    eps_smooth      eps, in [0, 1]; p never counts as less than 1e-6, so that a score of 0 has a logarithm
    smoothing       "additive" p + eps; "convex" (1 - eps) p + eps; "clamp" max(p, eps)
    leaf_std        False: leaf values are centred only
    other options   see the head of this file

    Returns advantage, q (V of the turn, Q in the two q variants), parts `value`, `parent_value` (the V's or Q's),
    `weight` (the turn's share in its parent's value) and `log_rho` (0 where there is no score); in the q variants
    also `episode` and `aux`, before they are weighted.

    Among siblings of which a known one has no answer_score all w are 1. A turn without a known leaf below gets 0.

    Raises EstimatorError for scores out of range, weights="pool_corrected" without `pool_weight`, or options that do
    not go together.
    """
    fork = options["parity"] is not None
    _check(options)
    trees = forest(table, table.group[table.rollout], table.n_groups)
    first = trees.parent[: len(table)] >= len(table)
    log_p = _log_score(table, "answer_score", options["eps_smooth"], options["smoothing"])
    log_rho = hindsight_scores(table, options["eps_smooth"], options["smoothing"])

    def below(value: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row itself, and of the node above it; 0 where the row is absent."""
        return value[: len(table)], torch.where(trees.known, value[trees.parent[: len(table)]], 0.0)

    if options["advantage"] in _Q:
        own, above = below(back_up(trees, table.outcome.double(), "mean"))
        if options["advantage"] == "td_q":
            aux = torch.where(first, 0.0, own - above)
        else:
            inverse = torch.exp(-log_rho).clamp(max=options["max_inv_ratio"])
            aux = torch.where(torch.isnan(inverse) | (first & fork), 0.0, own * (1 - inverse))
        aux = torch.where(trees.known, aux, 0.0)
        rules = ENGINES["verl"] if fork else Rules(1, _EPS)
        episode = mean_over_leaves(table, _grpo(table, rules))
        credit = options["episode_weight"] * episode + options["aux_weight"] * aux
        parts = {"value": own, "parent_value": above, "episode": episode, "aux": aux, "log_rho": log_rho.nan_to_num()}
        return Estimate(credit, q=own, parts=parts)

    log_u = _log_weights(table, trees, log_p, options)
    leaves = _leaf_values(table, trees, options["leaf_norm"], options["leaf_std"], fork)
    if options["divisor"] == "children":
        # sum_c u(c) V(c) / K is a plain mean of values that carry the product of the weights above them.
        carried = along_path(trees.parent, log_u)
        ends = trees.parent[len(table) + trees.roots :]
        carried[len(table) + trees.roots :] = carried[ends]  # no turn of their own, so no weight
        at = trees.leaf.clamp(min=0)
        weight = torch.where(trees.leaf >= 0, carried[at], 0.0).exp() if len(table) else torch.ones_like(leaves)
        value = back_up(trees, leaves * weight, "mean") / carried.exp()
    else:
        value = back_up(trees, leaves, "weighted", log_u)
    own, above = below(value)
    credit = own if options["advantage"] == "node_value" else own - above
    share = _shares(trees, log_u).nan_to_num(nan=0.0)[: len(table)]
    parts = {"value": own, "parent_value": above, "weight": share, "log_rho": log_rho.nan_to_num()}
    return Estimate(credit, q=own, parts=parts)


def hindsight_scores(
    table: StepTable, eps_smooth: float, smoothing: str = "additive", caller: str = "estimator `treehca`"
) -> Tensor:
    """(S,) float64 log rho of every turn; NaN where it, or what it is compared with, was not scored.

    Reads `answer_score`, and `root_score` on first turns. Raises EstimatorError, which begins with `caller`, for a
    score outside [0, 1].
    """
    after = _log_score(table, "answer_score", eps_smooth, smoothing, caller)
    prompt = _log_score(table, "root_score", eps_smooth, smoothing, caller)
    parent = parents(table)
    return after - (torch.where(parent >= 0, after[parent.clamp(min=0)], prompt) if len(table) else prompt)


def _log_score(table: StepTable, name: str, eps: float, smoothing: str, caller: str = "estimator `treehca`") -> Tensor:
    """(S,) log of the smoothed score, NaN where there is none."""
    if name not in table.scores:
        return torch.full((len(table),), torch.nan, dtype=torch.float64, device=table.device)
    score = table.scores[name].double()
    bad = (score < 0) | (score > 1)
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise EstimatorError(
            f"{caller}: row {row}, score `{name}`: got {score[row].item()}; it must be a probability in [0, 1], exp "
            f"of the mean log-probability of the answer's tokens (0 counts as {_LEAST_SCORE} where nothing smooths it; "
            "NaN = not measured)"
        )
    smooth = {"additive": score + eps, "convex": (1 - eps) * score + eps, "clamp": score.clamp(min=eps)}[smoothing]
    return smooth.clamp(min=_LEAST_SCORE).log()


def _check(options: dict[str, Any]) -> None:
    exact = options["weights"] == "pool_corrected" and not options["leaf_power"] and options["cap"] is None
    if options["divisor"] == "children" and not exact:
        raise EstimatorError(
            "estimator `treehca`: divisor='children' needs weights with a mean of 1, which only "
            f"weights='pool_corrected' without `leaf_power` and `cap` has; got weights={options['weights']!r}, "
            f"leaf_power={options['leaf_power']!r}, cap={options['cap']!r}"
        )


def _grpo(table: StepTable, rules: Rules) -> Tensor:
    return grpo_of_rollouts(table.time_order()[0], rules)  # there in float64


def _log_weights(table: StepTable, trees: Forest, log_p: Tensor, options: dict[str, Any]) -> Tensor:
    """(V,) log u of every node; 0 at roots."""
    rows, nodes = len(table), len(trees.parent)
    log_u = torch.zeros(nodes, dtype=torch.float64, device=table.device)
    if options["weights"] == "inverse_score":
        log_u[:rows] = -options["score_power"] * log_p
        # A rollout that ended on an inner row has that row's history, and so its score.
        log_u[rows + trees.roots :] = log_u[trees.parent[rows + trees.roots :]]
        log_u = level_where_missing(trees, log_u)
    elif options["weights"] == "pool_corrected":
        log_u[:rows] = _pool_weights(table).log()
    if options["leaf_power"]:
        log_u = log_u + options["leaf_power"] * torch.where(trees.leaves > 0, trees.leaves, 1).double().log()
    if options["cap"] is None:
        return log_u
    # u is known up to a factor the siblings share; relative to the largest nothing overflows.
    ids, count = _siblings(trees)
    top = segment_stats(log_u, ids, count).max[ids.clamp(min=0)]
    least = math.log(options["cap"]) + segment_stats((log_u - top).exp(), ids, count).mean.log()[ids.clamp(min=0)] + top
    return torch.where(ids < 0, log_u, torch.minimum(log_u, least))


def _siblings(trees: Forest) -> tuple[Tensor, int]:
    """(V,) the node above each known node, -1 for roots and for absent nodes; the number of nodes."""
    return torch.where(trees.leaves > 0, trees.parent, -1), len(trees.parent)


def _shares(trees: Forest, log_u: Tensor) -> Tensor:
    """(V,) weight of each known node among its known siblings."""
    ids, count = _siblings(trees)
    at = ids.clamp(min=0)
    u = torch.where(ids < 0, 0.0, (log_u - segment_stats(log_u, ids, count).max[at]).exp())
    return torch.where(ids < 0, 0.0, u / segment_stats(u, ids, count).sum[at])


def _pool_weights(table: StepTable) -> Tensor:
    if "pool_weight" not in table.scores:
        raise EstimatorError(
            "estimator `treehca`: weights='pool_corrected' needs the score `pool_weight`: 1 / (N p) for a turn that "
            "rtmc.explore.draw picked with probability p from N candidates (rtmc.explore.pool_weight gives it), 1 or "
            "NaN for all others; weights='inverse_score' does without"
        )
    weight = table.scores["pool_weight"].double()
    bad = (weight <= 0) | torch.isinf(weight)
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise EstimatorError(
            f"estimator `treehca`: row {row}, score `pool_weight`: got {weight[row].item()}; it must be finite "
            "and above 0"
        )
    return torch.where(torch.isnan(weight), 1.0, weight)


def _leaf_values(table: StepTable, trees: Forest, norm: str | None, std: bool, raw_single: bool) -> Tensor:
    """(R,) value of each rollout's leaf, NaN where unknown."""
    outcome = table.outcome.double()
    if norm is None:
        return outcome
    if norm == "group":
        return leaf_scores(outcome, known_groups(table), table.n_groups, 1, _EPS, std, raw_single)
    ids, count = tree_ids(table, "treehca", by_prompt=False)
    tree = torch.where((trees.last >= 0) & table.known, ids[trees.last], -1) if len(table) else trees.last
    return leaf_scores(outcome, tree, count, 0, _EPS, std)
