"""Trees of turns as the tree methods see them: nodes, leaves, values carried up from the leaves.

A node is a row of the table; above the children of the prompt stands the prompt, as one more node. A leaf is where a
rollout ends. A rollout that ends on a turn others went on from (a truncated one, say) gets a leaf of its own below
that turn, so that its outcome counts. Rollouts with an unknown outcome are absent leaves; rollouts without rows have
none.

What this is not: the backup itself (rtmc/kernels/tree_backup.py), or an estimator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.segments import segment_stats
from rtmc.kernels.tree_backup import tree_backup
from rtmc.methods.relative import centre, z_score
from rtmc.table import StepTable


class Forest(NamedTuple):
    """V nodes: the S rows of the table, then the roots, then the leaves of rollouts that end on an inner row.

    parent      (V,) node above; -1 at a root
    root        (S,) the root's number 0..roots-1 for each row
    last        (R,) last row of each rollout, -1 = it has none
    leaf        (R,) node at which each rollout ends, -1 = none
    leaves      (V,) known leaves at or below the node; 0 = the node is absent
    roots       number of roots
    """

    parent: Tensor
    root: Tensor
    last: Tensor
    leaf: Tensor
    leaves: Tensor
    roots: int

    @property
    def known(self) -> Tensor:
        """(S,) bool: a known leaf stands at or below the row."""
        return self.leaves[: len(self.root)] > 0


def parents(table: StepTable) -> Tensor:
    """(S,) row of the preceding turn, -1 for a child of the prompt; of chains too."""
    if table.parent is not None:
        return table.parent
    place = table.offsets()[table.rollout] + table.index
    row = torch.empty_like(place).scatter_(0, place, torch.arange(len(table), device=table.device))
    return torch.where(table.index > 0, row[(place - 1).clamp(min=0)], -1)


def tree_ids(table: StepTable, method: str, by_prompt: bool) -> tuple[Tensor, int]:
    """(S,) number of each row's tree and the number of trees, in the words of the score `tree` where there is one.

    by_prompt   without that score: True = all that stands below one prompt is a tree; False = one child of the
                prompt with all below it is

    Raises EstimatorError for a `tree` that is not finite, or differs between a row and its parent.
    """
    group, parent = table.group[table.rollout], parents(table)
    inner = parent >= 0
    if "tree" in table.scores:
        score = table.scores["tree"]
        bad = ~torch.isfinite(score) | (inner & (score != score[parent.clamp(min=0)]))
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            raise EstimatorError(
                f"estimator `{method}`: row {row}, score `tree`: got {score[row].item()}; every row needs the number "
                "of its tree, the same as its parent's: correct it, or leave the score out"
            )
        ids, count = dense_ids(group, torch.unique(score, return_inverse=True)[1])
        return ids, int(count)
    if by_prompt:
        return group, table.n_groups
    ids, count = dense_ids(topmost(parent))
    return ids, int(count)


def topmost(parent: Tensor) -> Tensor:
    """(S,) the row without a parent above each row, itself included; log2(depth) rounds."""
    above = torch.where(parent >= 0, parent, torch.arange(len(parent), device=parent.device))
    while not torch.equal(further := above[above], above):
        above = further
    return above


def forest(table: StepTable, root: Tensor, roots: int) -> Forest:
    """The forest of a table whose rows belong to `root` (S,), a number below `roots`."""
    parent, rows, device = parents(table), len(table), table.device
    length = torch.zeros_like(table.group).scatter_reduce_(0, table.rollout, table.index + 1, "amax")
    ends = (table.index + 1 == length[table.rollout]).nonzero().squeeze(1)
    last = torch.full_like(table.group, -1)
    last[table.rollout[ends]] = ends

    inner = torch.zeros(rows, dtype=torch.bool, device=device)
    inner[parent[parent >= 0]] = True
    inside = ((last >= 0) & inner[last.clamp(min=0)] if rows else last >= 0).nonzero().squeeze(1)
    leaf = last.clone()
    leaf[inside] = rows + roots + torch.arange(len(inside), device=device)

    above = torch.cat([torch.where(parent >= 0, parent, rows + root), parent.new_full((roots,), -1), last[inside]])
    # A path a rollout: how many of the known ones pass through each row.
    paths, row = table.time_order()
    through = torch.bincount(row[table.known[paths.rollout]], minlength=rows)
    known_ends = table.known[inside].long()
    below = torch.zeros(roots, dtype=torch.int64, device=device)
    counted = (leaf >= 0) & table.known
    below.index_add_(0, root[last[counted]], torch.ones_like(last[counted]))
    return Forest(above, root, last, leaf, torch.cat([through, below, known_ends]), roots)


def spread(trees: Forest, of_rollout: Tensor) -> Tensor:
    """(V,) values for `tree_backup`: that of each rollout (R,) at its leaf, NaN where a root has nothing below it."""
    value = torch.full(trees.parent.shape, torch.nan, dtype=torch.float64, device=of_rollout.device)
    there = trees.leaf >= 0
    value[trees.leaf[there]] = of_rollout[there]
    return value


def back_up(trees: Forest, of_rollout: Tensor, mode: str, log_weight: Tensor | None = None) -> Tensor:
    """(V,) value of every node, 0 where it is absent; `of_rollout` (R,) is NaN where unknown."""
    return tree_backup(spread(trees, of_rollout), trees.parent, log_weight, mode).nan_to_num(nan=0.0)


def leaf_scores(
    outcome: Tensor, ids: Tensor, count: int, ddof: int, eps: float, std: bool = True, raw_single: bool = False
) -> Tensor:
    """(R,) outcomes relative to the known ones of their segment, NaN where `ids` is -1.

    (R - mean) / (std + eps), or R - mean; 0 for a single one and where all are equal. With `raw_single` a single one
    keeps its mean 0 and std 1: R / (1 + eps), or R.
    """
    centred = centre(outcome, ids, count, ddof)
    value = z_score(centred, eps) if std else centred.difference
    if raw_single:
        value = torch.where(centred.members == 1, outcome / (1 + eps) if std else outcome, value)
    return torch.where(ids < 0, torch.nan, value)


def level_where_missing(trees: Forest, log_weight: Tensor) -> Tensor:
    """`log_weight` (V,), 0 for all siblings of which a known one has NaN: what is not known is not weighed."""
    missing = torch.isnan(log_weight) & (trees.leaves > 0) & (trees.parent >= 0)
    level = torch.zeros_like(missing)
    level[trees.parent[missing]] = True
    level = (trees.parent < 0) | level[trees.parent.clamp(min=0)] | torch.isnan(log_weight)
    return torch.where(level, 0.0, log_weight)


def along_path(parent: Tensor, values: Tensor) -> Tensor:
    """(V,) sum of `values` over each node and all nodes above it; log2(depth) rounds."""
    total, above = values, parent
    while bool((above >= 0).any()):
        at = above.clamp(min=0)
        total, above = (
            total + torch.where(above >= 0, total[at], 0.0),
            torch.where(above >= 0, above[at], -1),
        )
    return total


def mean_over_leaves(table: StepTable, of_rollout: Tensor) -> Tensor:
    """(S,) mean of `of_rollout` (R,) over the known rollouts whose path a row is on; 0 where there is none."""
    paths, row = table.time_order()
    ids = torch.where(table.known[paths.rollout], row, -1)
    return segment_stats(of_rollout[paths.rollout], ids, len(table)).mean.nan_to_num(nan=0.0)
