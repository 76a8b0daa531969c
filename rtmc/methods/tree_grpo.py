"""`tree_grpo`: GRPO over the leaves of the prompt and over the leaves of each tree (arXiv 2509.21240).

A leaf is a rollout with its outcome R. With z(x) = (x - mean) / (std + 1e-6), sample standard deviation,

    inter   z of R over all leaves of the prompt          mode "tree"    A = inter + inner
    inner   z of R over the leaves of its own tree        mode "inner"   A = inner
                                                          mode "2norm"   A = z of inter over the leaves of the tree

The prompts of Tree-GRPO have several trees each; a tree here is one child of the prompt with all below it, unless the
score `tree` (a number a row) says otherwise.

What this is not: one number a rollout. There a whole trajectory gets the leaf's A, and a shared prefix occurs once for
every leaf below it; here a shared turn is one row and gets the mean over its leaves, which gives the same gradient
where the loss weighs it by their number.

Departure: a prompt, or a tree, with a single known leaf gives 0, as nothing was compared. parity="verl" gives the
authors' number, the raw score.
"""

from __future__ import annotations

import torch

from rtmc.methods.options import choice
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import known_groups
from rtmc.methods.tree import forest, leaf_scores, mean_over_leaves, tree_ids
from rtmc.table import StepTable
from rtmc.types import Estimate

_EPS = 1e-6


@register_estimator(
    "tree_grpo",
    needs=("parent",),
    options={"mode": choice("tree", ("tree", "inner", "2norm")), "parity": choice(None, ("verl",))},
    source="Tree-GRPO, arXiv 2509.21240",
    rows="table",
)
def tree_grpo(table: StepTable, mode: str, parity: str | None) -> Estimate:
    """A = z over the prompt + z over the tree, see the head of this file.

    mode     "tree" (the authors' scripts), "inner", "2norm"
    parity   "verl" = the raw score for a single leaf

    Returns advantage, parts `inter` and `inner` (in mode "2norm" `inner` is the advantage). A rollout without rows
    counts among the prompt's leaves and is in no tree.
    """
    outcome, groups = table.outcome.double(), known_groups(table)
    ids, trees = tree_ids(table, "tree_grpo", by_prompt=False)
    last = forest(table, table.group[table.rollout], table.n_groups).last
    tree = torch.where((last >= 0) & table.known, ids[last.clamp(min=0)], -1) if len(table) else last
    raw = parity is not None
    inter = leaf_scores(outcome, groups, table.n_groups, 1, _EPS, raw_single=raw)
    inner = leaf_scores(inter if mode == "2norm" else outcome, tree, trees, 1, _EPS, raw_single=raw)
    parts = {"inter": mean_over_leaves(table, inter), "inner": mean_over_leaves(table, inner)}
    advantage = parts["inner"] if mode != "tree" else mean_over_leaves(table, inter + inner)
    return Estimate(advantage, parts=parts)
