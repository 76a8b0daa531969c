"""Root-to-leaf paths of a tree of turns.

The path of a rollout is what it sampled itself, preceded by what it branched from. Methods made for chains
see these paths; a node shared by several rollouts is in each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtmc.errors import TableError

if TYPE_CHECKING:
    from rtmc.table.steptable import StepTable


def leaf_paths(table: StepTable) -> tuple[Tensor, Tensor]:
    """Rows of every rollout's path, root first.

    Returns `(row, rollout)`, each (P,) int64, sorted by rollout and then by depth; P is the sum of the paths'
    lengths. A rollout without rows of its own has no path. The table must have passed `validate`.

    Raises TableError for a table without `parent`.
    """
    if table.parent is None:
        raise TableError("this table has no `parent` column: its rollouts are chains already")
    length = torch.zeros_like(table.group)
    length.scatter_reduce_(0, table.rollout, table.index + 1, "amax")
    deepest = torch.full_like(table.group, -1)
    last = table.index + 1 == length[table.rollout]
    deepest[table.rollout[last]] = last.nonzero().squeeze(1)

    offsets = torch.cat([length.new_zeros(1), length.cumsum(0)])
    total = int(offsets[-1])
    row = torch.empty(total, dtype=torch.int64, device=table.device)
    rollout = torch.repeat_interleave(torch.arange(table.n_rollouts, device=table.device), length, output_size=total)
    # One pass a level, all rollouts at once: from the deepest row up to the child of the prompt.
    node, ends = deepest[deepest >= 0], offsets[:-1][deepest >= 0]
    while node.numel():
        row[ends + table.index[node]] = node
        above = table.parent[node]
        node, ends = above[above >= 0], ends[above >= 0]
    return row, rollout
