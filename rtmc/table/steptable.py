"""`StepTable`: the steps of many rollouts as columns, and the checks that make them trustworthy.

What this is not: it computes no credit (rtmc/methods), reads no logs (rtmc/rollouts.py) and knows no text
beyond the keys it was given. Building from dicts is in build.py, parquet and pandas in storage.py, trees in
paths.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rtmc.errors import TableError
from rtmc.table.checks import check_table

if TYPE_CHECKING:
    import pandas as pd

STEP_COLUMNS = ("rollout", "index", "state", "action", "next_state", "reward", "tokens")
ROLLOUT_COLUMNS = ("group", "outcome", "ending")
NAMED = ("state", "action", "group", "rollout")  # kinds of ids that have `<kind>_names`


# Floats are compared by their bits: NaN equals itself, 0 and -0 differ.
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    bits = _BITS.get(a.dtype)
    return torch.equal(a, b.detach()) if bits is None else torch.equal(a.view(bits), b.detach().view(bits))


@dataclass(eq=False, repr=False)
class StepTable:
    """S steps of R rollouts as torch columns, in any row order and on any one device.

    rollout      (S,) int64   row of the rollout table
    index        (S,) int64   0-based depth of the step in its rollout, without gaps
    state        (S,) int64   id of the state key; ids of different groups never match
    action       (S,) int64   id of the action key, likewise
    next_state   (S,) int64   id of the state after the step; -1 where it is not known (last steps)
    reward       (S,) float   step reward, the outcome not included; float32 or float64, the table's dtype
    tokens       (S,) int64   policy tokens in the step; 0 = fully masked
    group        (R,) int64   group of each rollout, 0..G-1
    outcome      (R,) float   verifier's reward in the table's dtype; NaN = unknown
    ending       (R,) int8    `Ending`
    parent       (S,) int64   row of the preceding turn, -1 for a child of the prompt; None = rollouts are
                 chains
    scores       name -> (S,) float, further inputs of single methods

    `state_names[id]`, `action_names[id]`, `group_names[id]`, `rollout_names[row]` give the keys back; None
    where the table was made from bare ids. Trees: the prompt is no row, each turn is one row, a rollout is a
    leaf and its own rows bear its number; `parent` may point into the rollout it branched from.
    """

    rollout: Tensor
    index: Tensor
    state: Tensor
    action: Tensor
    next_state: Tensor
    reward: Tensor
    tokens: Tensor
    group: Tensor
    outcome: Tensor
    ending: Tensor
    parent: Tensor | None = None
    scores: dict[str, Tensor] = field(default_factory=dict)
    state_names: Sequence[Hashable] | None = None
    action_names: Sequence[Hashable] | None = None
    group_names: Sequence[Hashable] | None = None
    rollout_names: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        self._checked: tuple[dict[tuple[str, str], Tensor], dict[str, int]] | None = None
        self._ordered: tuple[StepTable, Tensor] | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        empty_rollouts: Iterable[Mapping[str, Any]] = (),
        dtype: torch.dtype = torch.float32,
    ) -> StepTable:
        """Build a table from one mapping a step.

        rows             `group`, `rollout`, `index`, `state`, `action` are required; keys may be any hashable
                         values (compared as Python compares them). Optional: `reward` (0), `tokens` (1),
                         `next_state` (the state of the following step), `parent` (a row number of this call,
                         -1 for a child of the prompt), `outcome`, `ending` (`Ending`, its name or its code;
                         by default success where the outcome is above 0, else failure). None means absent.
                         Every other key is a numeric score; NaN where a row lacks it.
        empty_rollouts   rollouts without steps: `group`, `rollout`, and `outcome`, `ending` if known
        dtype            torch.float32 or torch.float64

        A rollout is named by `group` and `rollout` together. `outcome` and `ending` may stand on any of its
        rows. If nothing in the call carries an outcome all are 0; if only some do, the others are NaN.

        Raises TableError (a ValueError) that names the row, the column and the fix.
        """
        from rtmc.table.build import table_from_rows

        return table_from_rows(cls, rows, empty_rollouts, dtype)

    def __len__(self) -> int:
        return self.rollout.shape[0]

    def __repr__(self) -> str:
        form = "tree" if self.parent is not None else "chains"
        extra = f", scores={sorted(self.scores)}" if self.scores else ""
        return (
            f"StepTable(steps={len(self)}, rollouts={self.n_rollouts}, {form}, "
            f"dtype={str(self.dtype).removeprefix('torch.')}, device={self.device}{extra})"
        )

    @property
    def n_rollouts(self) -> int:
        """R, the rollouts without steps included."""
        return self.group.shape[0]

    @property
    def n_groups(self) -> int:
        """G: the number of names where there are names, else one above the largest group id."""
        if self.group_names is not None:
            return len(self.group_names)
        return int(self.group.max()) + 1 if self.n_rollouts else 0

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of `reward` and `outcome`, and of every estimate made from this table."""
        return self.reward.dtype

    @property
    def device(self) -> torch.device:
        """The device all columns are on."""
        return self.rollout.device

    @property
    def known(self) -> Tensor:
        """(R,) bool: the verifier's reward of the rollout is known."""
        return ~torch.isnan(self.outcome)

    def offsets(self) -> Tensor:
        """(R+1,) int64: rollout r holds offsets[r+1] - offsets[r] rows; its rows, once in time order."""
        counts = torch.bincount(self.rollout, minlength=self.n_rollouts)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def columns(self) -> dict[str, Tensor]:
        """Every column by name; scores under their own names, `parent` only where there is one."""
        named = {name: getattr(self, name) for name in (*STEP_COLUMNS, *ROLLOUT_COLUMNS)}
        if self.parent is not None:
            named["parent"] = self.parent
        return named | self.scores

    def to(self, device: torch.device | str) -> StepTable:
        """The same table with every column on `device`; names are shared, not copied."""
        return self._map(lambda column: column.to(device))

    def _map(self, change: Any) -> StepTable:
        changed = {name: change(getattr(self, name)) for name in (*STEP_COLUMNS, *ROLLOUT_COLUMNS)}
        parent = None if self.parent is None else change(self.parent)
        return replace(
            self,
            **changed,
            parent=parent,
            scores={name: change(score) for name, score in self.scores.items()},
        )

    def validate(self) -> StepTable:
        """Check every column and return the table itself.

        A table that passed is not checked again while its content stays the same.

        Raises TableError (a ValueError) that names the row, the column, what came and the fix.
        """
        if not isinstance(self.scores, dict):
            raise TableError(f"`scores` is a {type(self.scores).__name__}; it must be a dict of name -> (S,) tensor")
        for name, column in self.columns().items():
            if not isinstance(column, torch.Tensor):
                raise TableError(
                    f"column `{name}` is a {type(column).__name__}; it must be a tensor: torch.as_tensor(...) makes one"
                )
        if self._unchanged():
            return self
        check_table(self)
        self._ordered = None
        self._checked = self._content()
        return self

    def _parts(self) -> tuple[dict[tuple[str, str], Tensor], dict[str, int]]:
        """Every column and score by kind and name, and the length of every list of names (-1 = none)."""
        named = {("column", name): getattr(self, name) for name in (*STEP_COLUMNS, *ROLLOUT_COLUMNS)}
        if self.parent is not None:
            named["column", "parent"] = self.parent
        lists = {kind: getattr(self, f"{kind}_names") for kind in NAMED}
        lengths = {kind: -1 if keys is None else len(keys) for kind, keys in lists.items()}
        return named | {("score", name): score for name, score in self.scores.items()}, lengths

    def _content(self) -> tuple[dict[tuple[str, str], Tensor], dict[str, int]]:
        columns, lengths = self._parts()
        return {name: column.detach().clone() for name, column in columns.items()}, lengths

    def _unchanged(self) -> bool:
        """Whether the table still holds, bit for bit, what was checked. Comparing costs far less than checking, and
        sees writes that torch does not count (through numpy, or `.data`)."""
        if self._checked is None:
            return False
        (before, lengths_before), (now, lengths) = self._checked, self._parts()
        return (
            lengths == lengths_before
            and before.keys() == now.keys()
            and all(_same_bits(before[name], column) for name, column in now.items())
        )

    def time_order(self) -> tuple[StepTable, Tensor]:
        """The steps as chains in time order, in float64, and where each came from.

        Returns `(table, row)`: `table` holds P rows sorted by rollout and then by index, `row` (P,) int64 is
        the row of this table that each is a copy of. A tree is unrolled into its root-to-leaf paths first, so
        a row may occur once for every leaf below it; then P > S. Floating columns are float64: estimators sum
        in it and the result is rounded once.

        Raises TableError where the table does not pass `validate`.
        """
        self.validate()
        if self._ordered is None or self._checked is None:
            self._ordered = self._sort()
        return self._ordered

    def _sort(self) -> tuple[StepTable, Tensor]:
        if self.parent is not None:
            from rtmc.table.paths import leaf_paths

            row, rollout = leaf_paths(self)
            counts = torch.bincount(rollout, minlength=self.n_rollouts)
            offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        else:
            # Indices run 0, 1, ... without gaps, so the place of a row is known and nothing is sorted.
            offsets = self.offsets()
            place = offsets.index_select(0, self.rollout) + self.index
            row = torch.arange(len(self), device=self.device)
            if not torch.equal(place, row):
                row = torch.empty_like(place).scatter_(0, place, row)
            rollout = self.rollout.index_select(0, row)
        return _TimeOrdered.of(self, row, rollout, offsets), row

    def summary(self) -> dict[str, int]:
        """Counts a user wants beside the numbers: steps, rollouts, groups, and the members that are special.

        `unknown`: rollouts with a NaN outcome; `truncated`, `empty`: rollouts cut short, rollouts without
        steps; `uniform`: groups whose known outcomes are all equal; `single`: groups with exactly one known
        outcome.
        """
        from rtmc.kernels.segments import segment_stats
        from rtmc.types import Ending

        self.validate()
        ids = torch.where(self.known, self.group, -1)
        stats = segment_stats(self.outcome.double(), ids, self.n_groups)
        return {
            "steps": len(self),
            "rollouts": self.n_rollouts,
            "groups": self.n_groups,
            "unknown": int((~self.known).sum()),
            "truncated": int((self.ending == Ending.TRUNCATED).sum()),
            "empty": int((self.offsets().diff() == 0).sum()),
            "uniform": int((stats.min == stats.max).sum()),
            "single": int((stats.count == 1).sum()),
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table to one parquet file, whole or not at all. Needs pyarrow (`rtmc[report]`)."""
        from rtmc.table.storage import save_table

        save_table(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> StepTable:
        """Read a table that `save` wrote, bit for bit. Raises TableError naming the file where it is not one."""
        from rtmc.table.storage import load_table

        return load_table(cls, path)

    def to_pandas(self) -> pd.DataFrame:
        """One row a step with keys in place of ids; `StepTable.from_rows(df.to_dict("records"))` takes it
        back.

        Columns: group, rollout, index, state, action, next_state (None where unknown), reward, tokens,
        outcome, ending (name), parent (trees only), then the scores. Rollouts without steps have no row.
        """
        from rtmc.table.storage import table_to_pandas

        return table_to_pandas(self)

    def name_of(self, kind: str, number: int) -> Hashable:
        """Key behind an id (`kind` is "state", "action", "group" or "rollout"), or the id where there are no names."""
        names: Sequence[Hashable] | None = getattr(self, f"{kind}_names", None)
        if names is None:
            return number
        if not 0 <= number < len(names):
            raise TableError(f"no {kind} has id {number}: ids run from 0 to {len(names) - 1}")
        return names[number]


class _TimeOrdered(StepTable):
    """What `StepTable.time_order` gives: a column of steps is brought into order when it is first read, because most
    methods read two or three of them.

    It is taken from the copies that were checked, so that a write to the caller's table in between does not show.
    Rows that are in time order already stay where they are. Made by `of`; the constructor is `StepTable`'s, so that
    `dataclasses.replace` gives a table with every column.
    """

    _known_offsets: Tensor | None = None
    _row: Tensor
    _moved: bool
    _columns: dict[str, Tensor]

    @classmethod
    def of(cls, table: StepTable, row: Tensor, rollout: Tensor, offsets: Tensor) -> StepTable:
        """The rows `row` of a table that passed its checks; `rollout` and `offsets` are those of the result."""
        if table._checked is None:
            raise RuntimeError("only a table that was checked is put in order: call `time_order`")
        ordered = cls.__new__(cls)
        ordered._row, ordered._known_offsets = row, offsets
        ordered._moved = len(row) != len(table) or not torch.equal(row, torch.arange(len(row), device=row.device))
        ordered._columns = {name: table._checked[0]["column", name] for name in STEP_COLUMNS}
        ordered.rollout = rollout
        ordered.group, ordered.ending, ordered.outcome = table.group, table.ending, table.outcome.double()
        ordered.parent = None
        ordered.scores = {name: ordered._pick(table._checked[0]["score", name]) for name in table.scores}
        for kind in NAMED:
            setattr(ordered, f"{kind}_names", getattr(table, f"{kind}_names"))
        ordered.__post_init__()
        return ordered

    def _pick(self, column: Tensor) -> Tensor:
        picked = column.index_select(0, self._row) if self._moved else column
        return picked.double() if picked.is_floating_point() else picked

    def __getattr__(self, name: str) -> Any:
        if name not in STEP_COLUMNS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        column = self._pick(self._columns[name])
        setattr(self, name, column)
        return column

    def offsets(self) -> Tensor:
        # A table that `replace` made may have other rows.
        return super().offsets() if self._known_offsets is None else self._known_offsets.clone()
