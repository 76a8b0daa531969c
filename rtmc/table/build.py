"""From mappings, one a step, to the columns of a step table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rtmc.errors import TableError
from rtmc.types import Ending

if TYPE_CHECKING:
    from rtmc.table.steptable import StepTable

_REQUIRED = ("group", "rollout", "index", "state", "action")
_OPTIONAL = ("reward", "tokens", "next_state", "parent", "outcome", "ending")
_OF_ROLLOUT = ("group", "rollout", "outcome", "ending")


class _Numbering:
    """Ids 0, 1, 2, ... for keys, by first appearance."""

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}

    def number(
        self, keys: Sequence[Any], column: str, word: str = "row", rows: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of `keys`; a pair (group, key) keeps equal keys of different groups apart. `rows` numbers the keys."""
        ids = self.ids
        try:
            numbers = [ids.setdefault(key, len(ids)) for key in keys]
        except TypeError:
            self._reject(keys, column, word, rows)
            raise
        # Keys that hash by identity or are unequal to themselves would make every step a state of its own.
        if any(_never_matches(key) for key in ids):
            self._reject(keys, column, word, rows)
        return numbers

    def _reject(self, keys: Sequence[Any], column: str, word: str, rows: Sequence[int] | None) -> None:
        """Raise TableError for the first key that cannot be one."""
        for place, key in enumerate(keys):
            where = f"{word} {place if rows is None else rows[place]}, column `{column}`"
            try:
                hash(key)
            except TypeError as error:
                raise TableError(
                    f"{where}: the key cannot be hashed ({error}); use a string, an int or a tuple of them"
                ) from None
            if _never_matches(key):
                raise TableError(
                    f"{where}: two equal keys of this kind never match (a tensor, or NaN); use a string, an int or a "
                    "tuple of them"
                )


def _never_matches(key: Any) -> bool:
    if isinstance(key, tuple):
        return any(map(_never_matches, key))
    return isinstance(key, Tensor) or (isinstance(key, float) and key != key)


def table_from_rows(
    kind: type[StepTable],
    rows: Iterable[Mapping[str, Any]],
    empty_rollouts: Iterable[Mapping[str, Any]],
    dtype: torch.dtype,
) -> StepTable:
    """See `StepTable.from_rows`."""
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"`dtype` must be torch.float32 or torch.float64, got {dtype}")
    rows, empty = (
        _as_mappings(rows, "row", "rows"),
        _as_mappings(empty_rollouts, "empty rollout", "empty_rollouts"),
    )
    _check_keys(rows, "row", _REQUIRED)
    _check_keys(empty, "empty rollout", ("group", "rollout"), allowed=_OF_ROLLOUT)

    groups, rollouts, states, actions = _Numbering(), _Numbering(), _Numbering(), _Numbering()
    group_of_row = groups.number([row["group"] for row in rows], "group")
    rollout = rollouts.number(list(zip(group_of_row, (row["rollout"] for row in rows), strict=True)), "rollout")
    with_steps = len(rollouts.ids)
    group_of_empty = groups.number([row["group"] for row in empty], "group", "empty rollout")
    empty_ids = rollouts.number(
        list(zip(group_of_empty, (row["rollout"] for row in empty), strict=True)), "rollout", "empty rollout"
    )
    _check_empty(empty, empty_ids, with_steps)
    state = states.number(list(zip(group_of_row, (row["state"] for row in rows), strict=True)), "state")
    action = actions.number(list(zip(group_of_row, (row["action"] for row in rows), strict=True)), "action")
    index = _integers(rows, "index")

    verdicts = [*zip(rollout, rows, strict=True), *zip(empty_ids, empty, strict=True)]
    outcome = _outcomes(verdicts, len(rollouts.ids), len(rows))
    ending = _endings(verdicts, outcome, len(rows))
    parent = _parents(rows, rollout, index) if any(row.get("parent") is not None for row in rows) else None
    score_names = {name for row in rows for name in row} - {*_REQUIRED, *_OPTIONAL}

    table = kind(
        rollout=_int64(rollout),
        index=_int64(index),
        state=_int64(state),
        action=_int64(action),
        next_state=torch.full((len(rows),), -1, dtype=torch.int64),
        reward=_floats(rows, "reward", 0.0, dtype),
        tokens=_int64(_integers(rows, "tokens", 1)),
        group=_int64([group for group, _ in rollouts.ids]),
        outcome=torch.tensor(outcome, dtype=torch.float64).to(dtype),
        ending=torch.tensor(ending, dtype=torch.int8),
        parent=parent,
        scores={name: _floats(rows, name, math.nan, dtype) for name in sorted(score_names)},
        state_names=[key for _, key in states.ids],
        action_names=[key for _, key in actions.ids],
        group_names=list(groups.ids),
        rollout_names=[key for _, key in rollouts.ids],
    )
    table.validate()  # rows and their order are sound from here on
    table.next_state = _next_states(table, rows, group_of_row, states)
    table.state_names = [key for _, key in states.ids]
    return table.validate()


def _as_mappings(rows: Iterable[Mapping[str, Any]], word: str, argument: str) -> list[Mapping[str, Any]]:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise TypeError(f"`{argument}` must be an iterable of mappings, got {type(rows).__name__}")
    rows = list(rows)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"{word} {number}: got {type(row).__name__}, wanted a mapping of column names to values")
    return rows


def _check_keys(
    rows: list[Mapping[str, Any]], word: str, required: Sequence[str], allowed: Sequence[str] | None = None
) -> None:
    for number, row in enumerate(rows):
        for name in required:
            if row.get(name) is None:
                raise TableError(f"{word} {number} has no `{name}`; every {word} needs {', '.join(required)}")
        for name in row:
            if not isinstance(name, str):
                raise TableError(f"{word} {number}: {name!r} is no column name; use strings")
            if allowed is not None and name not in allowed:
                raise TableError(f"{word} {number} has `{name}`; it may only have {', '.join(allowed)}")


def _check_empty(empty: list[Mapping[str, Any]], ids: list[int], with_steps: int) -> None:
    seen: set[int] = set()
    for number, rollout in enumerate(ids):
        if rollout < with_steps or rollout in seen:
            what = "has steps among the rows" if rollout < with_steps else "is listed twice"
            raise TableError(
                f"empty rollout {number}, column `rollout`: {empty[number]['rollout']!r} of group "
                f"{empty[number]['group']!r} {what}; list only rollouts without steps, each once"
            )
        seen.add(rollout)


def _int64(values: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def _column(rows: list[Mapping[str, Any]], name: str, default: Any) -> list[Any]:
    values = [row.get(name) for row in rows]
    return [default if value is None else value for value in values]


def _integers(rows: list[Mapping[str, Any]], name: str, default: int | None = None) -> list[int]:
    values = _column(rows, name, default)
    for row, value in enumerate(values):
        if not _is_integer(value):
            raise TableError(f"row {row}, column `{name}`: got {value!r}; it must be an integer")
        if not -(2**63) <= int(value) < 2**63:
            raise TableError(f"row {row}, column `{name}`: got {value!r}; it must fit into 64 bits")
    return [int(value) for value in values]


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not -(2**1023) < value < 2**1023:
        return False  # no float holds it
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)


def _floats(rows: list[Mapping[str, Any]], name: str, default: float, dtype: torch.dtype) -> Tensor:
    values = _column(rows, name, default)
    for row, value in enumerate(values):
        if not _is_number(value):
            role = "" if name in _OPTIONAL else " (a key that is no column is read as a score)"
            raise TableError(f"row {row}, column `{name}`: got {value!r}; it must be a number{role}")
    return torch.from_numpy(np.array([float(value) for value in values], dtype=np.float64)).to(dtype)


def _collect(
    verdicts: list[tuple[int, Mapping[str, Any]]], name: str, n_rows: int, read: Callable[[Any, str], Any]
) -> dict[int, Any]:
    """The value of a rollout-level column by rollout; two rows that differ are an error."""
    found: dict[int, tuple[Any, str]] = {}
    for number, (rollout, row) in enumerate(verdicts):
        given = row.get(name)
        if given is None:
            continue
        where = f"row {number}" if number < n_rows else f"empty rollout {number - n_rows}"
        value = read(given, where)
        before, first = found.setdefault(rollout, (value, where))
        if not (before == value or (before != before and value != value)):
            raise TableError(
                f"{where}, column `{name}`: got {given!r}, but {first} of the same rollout ({row['rollout']!r} of "
                f"group {row['group']!r}) says {before!r}; a rollout has one {name}"
            )
    return {rollout: value for rollout, (value, _) in found.items()}


def _outcomes(verdicts: list[tuple[int, Mapping[str, Any]]], count: int, n_rows: int) -> list[float]:
    def read(value: Any, where: str) -> float:
        if not _is_number(value):
            raise TableError(f"{where}, column `outcome`: got {value!r}; it must be a number, or NaN if unknown")
        return float(value)

    known = _collect(verdicts, "outcome", n_rows, read)
    missing = math.nan if known else 0.0
    return [known.get(rollout, missing) for rollout in range(count)]


def _endings(verdicts: list[tuple[int, Mapping[str, Any]]], outcome: list[float], n_rows: int) -> list[int]:
    def read(value: Any, where: str) -> Ending:
        try:
            return Ending[value.upper()] if isinstance(value, str) else Ending(value)
        except (KeyError, ValueError):
            names = ", ".join(f"{ending.name.lower()!r}" for ending in Ending)
            raise TableError(f"{where}, column `ending`: got {value!r}; it must be one of {names}") from None

    given = _collect(verdicts, "ending", n_rows, read)
    return [
        int(given.get(rollout, Ending.SUCCESS if reward > 0 else Ending.FAILURE))
        for rollout, reward in enumerate(outcome)
    ]


def _parents(rows: list[Mapping[str, Any]], rollout: list[int], index: list[int]) -> Tensor:
    """Row of the preceding turn; a row that names none follows its own rollout's previous step or the prompt."""
    place = {key: row for row, key in enumerate(zip(rollout, index, strict=True))}
    parents = []
    for row, values in enumerate(rows):
        given = values.get("parent")
        if given is None:
            given = -1 if index[row] == 0 else place.get((rollout[row], index[row] - 1))
            if given is None:
                raise TableError(
                    f"row {row} has no `parent`, and its rollout has no step {index[row] - 1}; name the row it "
                    "branched from"
                )
        if not _is_integer(given):
            raise TableError(f"row {row}, column `parent`: got {given!r}; it must be a row number, or -1")
        parents.append(int(given))
    return _int64(parents)


def _next_states(
    table: StepTable, rows: list[Mapping[str, Any]], group_of_row: list[int], states: _Numbering
) -> Tensor:
    """The key given, else the state of the following step (in a tree: of the first child), else -1."""
    following = torch.full_like(table.state, -1)
    if table.parent is None:
        place = table.offsets()[table.rollout] + table.index
        follows = place + 1 < table.offsets()[table.rollout + 1]
        at = torch.empty_like(place)
        at[place] = torch.arange(len(table))
        following[follows] = table.state[at[place[follows] + 1]]
    else:
        # Written last to first, so that what stays is the first child in row order; a child in the rollout's
        # own chain is written after all others.
        child = torch.arange(len(table)).flip(0)
        child = child[table.parent[child] >= 0]
        own = table.rollout[table.parent[child]] == table.rollout[child]
        for some in (child[~own], child[own]):
            for row in some.tolist():
                following[table.parent[row]] = table.state[row]
    given = [row for row, values in enumerate(rows) if values.get("next_state") is not None]
    keys = [(group_of_row[row], rows[row]["next_state"]) for row in given]
    following[given] = _int64(states.number(keys, "next_state", rows=given))
    return following
