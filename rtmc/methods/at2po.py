"""`at2po`: values carried up a tree of turns, weighted by how unsure the policy was (arXiv 2601.04767).

A leaf is a rollout with its outcome R. With c the children of a node and e their `entropy`,

    V(leaf) = (R - mean) / (std + 1e-6) over the leaves of the tree, population standard deviation; or R
    V(node) = sum_c softmax(e)(c) V(c)     backup "child_softmax" (the authors' script)
              mean_c V(c)                         "child_mean"
              mean of V over the leaves below     "leaf_mean"

    A(node) = V(node)                                             advantage "node_value" (the authors' script)
              V(node) - V(parent)                                           "diff_parent"
              V(node) - V(root)                                             "diff_global"
              2 V(node) - V(parent) - V(root)                               "diff_localglobal"

`entropy` is the mean negative log-probability of the tokens sampled in the turn, as in the authors' code. The root is
the prompt itself, so that the parent of a first turn is the root.

The tree whose leaves are compared is all that stands below the prompt, as in the authors' code, where a tree has a
root of its own for the prompt; a score `tree` splits it, and then each tree has its own root. (Not one child of the
prompt with all below it: plain rollouts from the prompt, a star, would then never be compared, where here they get
GRPO's numbers.)

What this is not: AT2PO's loss, which is the turn ratio of rtmc/kernels/policy_loss.py. A shared turn is one row and has
one value; there it is repeated for every leaf.

Edges: a tree with a single known leaf, or with equal ones, has leaves of value 0 under `leaf_norm`. Among siblings of
which one has no entropy (NaN) all weigh alike. A turn without a known leaf below it gets 0 and weighs nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.methods.options import choice, flag
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import known_groups
from rtmc.methods.tree import Forest, back_up, forest, leaf_scores, level_where_missing, tree_ids
from rtmc.table import StepTable
from rtmc.types import Estimate

_EPS = 1e-6
_MODES = {"child_softmax": "softmax", "child_mean": "mean", "leaf_mean": "leaf_mean"}


@register_estimator(
    "at2po",
    needs=("parent", "entropy"),
    unless={"entropy": {"backup": ("child_mean", "leaf_mean")}},
    options={
        "backup": choice("child_softmax", tuple(_MODES)),
        "advantage": choice("node_value", ("node_value", "diff_parent", "diff_global", "diff_localglobal")),
        "leaf_norm": flag(True),
    },
    source="AT2PO, arXiv 2601.04767",
    rows="table",
)
def at2po(table: StepTable, backup: str, advantage: str, leaf_norm: bool) -> Estimate:
    """A turn's credit is its value, or its gain over parent or root, see the head of this file.

    backup      how a value is made of the children's; only "child_softmax" reads `entropy`
    advantage   what is made of the values
    leaf_norm   False: a leaf's value is the outcome itself

    Returns advantage, q (V of the turn), parts `value`, `parent_value`, `root_value` (the V's).

    Raises EstimatorError for an infinite entropy.
    """
    ids, count = tree_ids(table, "at2po", by_prompt=True)
    trees = forest(table, ids, count)
    value = back_up(trees, _leaves(table, trees, leaf_norm), _MODES[backup], _log_weight(table, trees, backup))
    own = value[: len(table)]
    above = torch.where(trees.known, value[trees.parent[: len(table)]], 0.0)
    root = torch.where(trees.known, value[len(table) + trees.root], 0.0)
    credit = {
        "node_value": lambda: own,
        "diff_parent": lambda: own - above,
        "diff_global": lambda: own - root,
        "diff_localglobal": lambda: (own - root) + (own - above),
    }[advantage]()
    return Estimate(credit, q=own, parts={"value": own, "parent_value": above, "root_value": root})


def _leaves(table: StepTable, trees: Forest, leaf_norm: bool) -> Tensor:
    """(R,) value of each rollout's leaf, NaN where unknown."""
    outcome = table.outcome.double()
    if not leaf_norm:
        return outcome
    if "tree" not in table.scores:
        return leaf_scores(outcome, known_groups(table), table.n_groups, 0, _EPS)
    ids = torch.where((trees.last >= 0) & table.known, trees.root[trees.last], -1) if len(table) else trees.last
    return leaf_scores(outcome, ids, trees.roots, 0, _EPS)


def _log_weight(table: StepTable, trees: Forest, backup: str) -> Tensor | None:
    """(V,) logarithm of each node's weight among its siblings; None where the backup has none."""
    if backup != "child_softmax":
        return None
    entropy = table.scores["entropy"].double()
    if bool(torch.isinf(entropy).any()):
        row = int(torch.isinf(entropy).to(torch.int8).argmax())
        raise EstimatorError(
            f"estimator `at2po`: row {row}, score `entropy`: got {entropy[row].item()}; it must be the mean negative "
            "log-probability of the turn's tokens, or NaN where it was not measured"
        )
    # Roots have no siblings; the leaf of a rollout that ended on an inner row sampled nothing, so it has no entropy.
    others = len(trees.parent) - len(table)
    return level_where_missing(trees, torch.cat([entropy, entropy.new_full((others,), torch.nan)]))
