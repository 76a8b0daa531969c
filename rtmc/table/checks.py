"""The rules of a step table, each with a message that names the row, the column, what came and the fix.

Every rule is one vectorised test over a column; only a failing one is looked at row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtmc.errors import TableError
from rtmc.types import Ending

if TYPE_CHECKING:
    from rtmc.table.steptable import StepTable

_INT_STEPS = ("rollout", "index", "state", "action", "next_state", "tokens")
_FLOATS = (torch.float32, torch.float64)


def check_table(table: StepTable) -> None:
    """Raise TableError at the first rule that `table` breaks."""
    _check_forms(table)
    _check_rollouts(table)
    _check_steps(table)
    _check_names(table)
    if table.parent is None:
        _check_chains(table)
    else:
        _check_tree(table, table.parent)
    group = table.group.index_select(0, table.rollout)
    for kind, columns in (("state", (table.state, table.next_state)), ("action", (table.action,))):
        _check_ids_by_group(table, kind, columns, group)


def _first(bad: Tensor) -> int | None:
    """Number of the first True, or None."""
    return int(bad.to(torch.int8).argmax()) if bool(bad.any()) else None


def _reject(bad: Tensor, column: str, values: Tensor, rule: str, row_word: str = "row") -> None:
    row = _first(bad)
    if row is not None:
        raise TableError(f"{row_word} {row}, column `{column}`: got {values[row].item()}; {rule}")


def _reject_outside(low: int, high: int | None, column: str, values: Tensor, rule: str, row_word: str = "row") -> None:
    """Reject values below ``low`` or above ``high``. One pass for the ends; rows are looked at only where one fails."""
    if values.numel() == 0:
        return
    least, most = torch.stack(values.aminmax()).tolist()
    if least < low or (high is not None and most > high):
        bad = values < low
        _reject(bad if high is None else bad | (values > high), column, values, rule, row_word)


def _check_forms(table: StepTable) -> None:
    """Types, dtypes, shapes and devices."""
    steps, rollouts = table.rollout, table.group
    wanted: dict[str, tuple[Tensor, torch.dtype | None]] = dict.fromkeys(_INT_STEPS, (steps, torch.int64))
    wanted |= {"reward": (steps, None), "group": (rollouts, torch.int64), "outcome": (rollouts, None)}
    wanted |= {"ending": (rollouts, torch.int8)}
    if table.parent is not None:
        wanted["parent"] = (steps, torch.int64)
    for name, (like, dtype) in wanted.items():
        column = getattr(table, name)
        if not isinstance(column, Tensor):
            raise TableError(f"column `{name}`: got {type(column).__name__}; it must be a torch tensor")
        if column.dim() != 1 or not isinstance(like, Tensor) or column.shape != like.shape:
            size = f"({'R' if like is rollouts else 'S'},)"
            raise TableError(
                f"column `{name}`: got shape {tuple(column.shape)}; it must be {size}, "
                f"one entry a {'rollout' if like is rollouts else 'step'}"
            )
        if dtype is not None and column.dtype != dtype:
            raise TableError(f"column `{name}`: got {column.dtype}; convert it with .to({dtype})")
    if table.reward.dtype not in _FLOATS:
        raise TableError(f"column `reward`: got {table.reward.dtype}; it must be torch.float32 or torch.float64")
    if table.outcome.dtype != table.reward.dtype:
        raise TableError(
            f"column `outcome`: got {table.outcome.dtype} beside a `reward` of {table.reward.dtype}; "
            "both carry the table's dtype, convert one of them"
        )
    for name, score in table.scores.items():
        if name in wanted or name in ("parent", "scores"):
            raise TableError(f"score `{name}` has the name of a column; give the score another name")
        if not isinstance(score, Tensor) or score.shape != steps.shape:
            got = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
            raise TableError(f"score `{name}`: got {got}; it must be a tensor of shape ({len(table)},)")
        if not score.is_floating_point():
            raise TableError(f"score `{name}`: got {score.dtype}; convert it to {table.dtype}")
    for name, column in table.columns().items():
        if column.device != table.device:
            raise TableError(
                f"column `{name}` is on {column.device}, `rollout` on {table.device}; use table.to(device)"
            )


def _check_rollouts(table: StepTable) -> None:
    groups = table.n_groups
    _reject_outside(
        0,
        groups - 1,
        "group",
        table.group,
        f"a group id must be in 0..{groups - 1}",
        "rollout",
    )
    _reject(
        torch.isinf(table.outcome),
        "outcome",
        table.outcome,
        "it must be finite, or NaN where the verifier's reward is unknown",
        "rollout",
    )
    codes = ", ".join(f"{ending.value} ({ending.name.lower()})" for ending in Ending)
    _reject_outside(
        0,
        max(Ending),
        "ending",
        table.ending,
        f"it must be one of {codes}",
        "rollout",
    )


def _check_steps(table: StepTable) -> None:
    rollouts = table.n_rollouts
    _reject_outside(
        0,
        rollouts - 1,
        "rollout",
        table.rollout,
        f"it must name a row of the rollout table, 0..{rollouts - 1} (the table has {rollouts} rollouts)",
    )
    _reject_outside(0, None, "index", table.index, "steps are numbered 0, 1, 2, ... within their rollout")
    for name in ("state", "action"):
        _reject_outside(0, None, name, getattr(table, name), "an id must be 0 or more; drop steps without one")
    _reject_outside(
        -1,
        None,
        "next_state",
        table.next_state,
        "it must be a state id, or -1 where it is not known",
    )
    # NaN is the least and the most of a column that has one.
    if table.reward.numel() and not bool(torch.stack(table.reward.aminmax()).isfinite().all()):
        _reject(~torch.isfinite(table.reward), "reward", table.reward, "a step reward must be finite; use 0 for none")
    _reject_outside(0, None, "tokens", table.tokens, "a count of policy tokens must be 0 or more")


def _check_names(table: StepTable) -> None:
    for kind, columns in (("state", ("state", "next_state")), ("action", ("action",))):
        names = getattr(table, f"{kind}_names")
        for column in columns if names is not None else ():
            _reject_outside(
                -1,
                len(names) - 1,
                column,
                getattr(table, column),
                f"`{kind}_names` has {len(names)} entries; add the missing names",
            )
    if table.rollout_names is not None and len(table.rollout_names) != table.n_rollouts:
        raise TableError(
            f"`rollout_names` has {len(table.rollout_names)} entries for {table.n_rollouts} rollouts; give one each"
        )


def _rollout_text(table: StepTable, row: int) -> str:
    rollout = int(table.rollout[row])
    return f"rollout {table.name_of('rollout', rollout)!r}"


def _check_chains(table: StepTable) -> None:
    offsets = table.offsets()
    counts = offsets.diff().index_select(0, table.rollout)
    row = _first(table.index >= counts)
    if row is not None:
        raise TableError(
            f"row {row}, column `index`: got {int(table.index[row])}; {_rollout_text(table, row)} has "
            f"{int(counts[row])} steps, so its indices must be 0..{int(counts[row]) - 1} without gaps: number them anew"
        )
    _check_unique(table, offsets.index_select(0, table.rollout) + table.index)


def _check_unique(table: StepTable, place: Tensor) -> None:
    # As many places as rows: none is left over where no two rows share one.
    taken = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    if bool(taken.scatter_(0, place, True).all()):
        return
    row = _first(torch.bincount(place, minlength=len(table))[place] > 1)
    if row is not None:
        raise TableError(
            f"row {row}, column `index`: got {int(table.index[row])}, which another row of {_rollout_text(table, row)} "
            "has too; number the steps 0, 1, 2, ... and give different rollouts different names"
        )


def _check_tree(table: StepTable, parent: Tensor) -> None:
    rows = len(table)
    _reject(
        (parent < -1) | (parent >= rows),
        "parent",
        parent,
        f"it must be a row number in 0..{rows - 1}, or -1 for a child of the prompt",
    )
    inner = parent >= 0
    above = parent.clamp(min=0)
    depth = torch.where(inner, table.index[above] + 1, 0)
    row = _first(table.index != depth)
    if row is not None:
        raise TableError(
            f"row {row}, column `index`: got {int(table.index[row])}; its parent is row {int(parent[row])}, so its "
            f"depth is {int(depth[row])} (a child of the prompt has depth 0): correct `index` or `parent`"
        )
    group = table.group[table.rollout]
    _reject(
        inner & (group[above] != group),
        "parent",
        parent,
        "a parent must belong to the same group as its child",
    )
    # Within a rollout the rows it sampled itself form one chain, each the parent of the next.
    first = torch.full_like(table.group, torch.iinfo(torch.int64).max)
    first.scatter_reduce_(0, table.rollout, table.index, "amin")
    offset = table.index - first[table.rollout]
    offsets = table.offsets()
    counts = offsets.diff()[table.rollout]
    own = inner & (table.rollout[above] == table.rollout)
    row = _first((offset >= counts) | ((offset > 0) & ~own))
    if row is not None:
        raise TableError(
            f"row {row}, column `parent`: got {int(parent[row])}; the rows of {_rollout_text(table, row)} must form "
            "one chain, each the parent of the next: give a branch a rollout name of its own"
        )
    _check_unique(table, offsets[table.rollout] + offset)


def _check_ids_by_group(table: StepTable, kind: str, columns: tuple[Tensor, ...], group: Tensor) -> None:
    """No id may be seen in two groups: pooled statistics would mix tasks. ``group``: (S,) group of each row."""
    if len(table) == 0:
        return
    ids = columns
    largest = max(int(column.max()) for column in columns)
    if largest >= 4 * len(columns) * len(table) + 1024:
        # Sparse ids, such as hashes, would need a table of their own size.
        values, inverse = torch.unique(torch.cat(columns), return_inverse=True)
        ids = (inverse - int((values < 0).sum())).split(len(table))
        largest = values.numel()
    seen = torch.full((largest + 2,), -1, dtype=torch.int64, device=group.device)  # place 0 is that of id -1
    for column in ids:
        seen.scatter_(0, column + 1, group)
    for place, column in enumerate(ids):
        row = _first((seen.index_select(0, column + 1) != group) & (column >= 0))
        if row is not None:
            name = kind if place == 0 else f"next_{kind}"
            raise TableError(
                f"row {row}, column `{name}`: got {int(columns[place][row])}, an id that another group uses too; "
                "ids of different groups must differ: build with StepTable.from_rows, or number (group, key) pairs "
                "with rtmc.kernels.ids.dense_ids"
            )
