"""One call for every estimator, and the register behind it.

What this is not: no estimator lives here, and none is special-cased here. The register checks names, options
and inputs, hands the method its rows in the order it asked for, and puts the result back into the caller's
row order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from rtmc.errors import EstimatorError, unknown_name
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import Option
from rtmc.table import StepTable
from rtmc.table.steptable import ROLLOUT_COLUMNS, STEP_COLUMNS
from rtmc.types import Estimate

Method = Callable[..., "Estimate | Tensor"]

_BUILT_IN = ("rtmc.methods.grpo", "rtmc.methods.rtmc")
_COLUMNS = (*STEP_COLUMNS, *ROLLOUT_COLUMNS)
_registered: dict[str, _Entry] = {}


@dataclass(frozen=True)
class EstimatorInfo:
    """What `rtmc.estimators()` says of one method.

    name      for `rtmc.estimate(table, name)`
    needs     columns and scores it reads beyond group, rollout, index and outcome
    options   keyword -> default
    wanted    keyword -> what a value must be, in words
    source    the paper or code it follows
    """

    name: str
    needs: tuple[str, ...]
    options: dict[str, Any] = field(hash=False)
    wanted: dict[str, str] = field(hash=False)
    source: str

    def __str__(self) -> str:
        options = ", ".join(f"{name}={default!r}" for name, default in self.options.items())
        return f"{self.name}({options})  needs: {', '.join(self.needs) or '-'}  source: {self.source}"


class EstimatorList(list[EstimatorInfo]):
    """A list of `EstimatorInfo` that prints as a table."""

    def __str__(self) -> str:
        cells = [("method", "needs", "options", "source")]
        for info in self:
            options = ", ".join(f"{name}={default!r}" for name, default in info.options.items())
            cells.append((info.name, ", ".join(info.needs) or "-", options or "-", info.source))
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
            for row in cells
        )


@dataclass(frozen=True)
class _Entry:
    name: str
    function: Method
    needs: tuple[str, ...]
    options: dict[str, Option]
    source: str
    rows: Literal["time", "table"]


def register_estimator(
    name: str,
    function: Method | None = None,
    *,
    needs: Sequence[str] = (),
    options: Mapping[str, Option] | None = None,
    source: str = "",
    rows: Literal["time", "table"] = "time",
) -> Any:
    """Make a method known to `rtmc.estimate` under `name`; without `function` this is a decorator.

    function   called as `function(table, **options)`; returns an `Estimate`, or the advantages alone, a
               (rows,) tensor
    needs      columns and scores it reads beyond group, rollout, index and outcome; `parent` and scores must
               be there
    options    keyword -> `rtmc.methods.options.Option`; by default the keyword-only arguments of `function`
               that have a default, unchecked
    source     the paper or code it follows
    rows       "time": the method gets chains in time order, in float64 (`StepTable.time_order`), and its
               result is put back in the caller's row order; in a tree a node shared by several leaves gets
               the mean over its leaves. "table": the method gets the caller's table as it is.

    Raises EstimatorError (a ValueError) for a name that is taken, TypeError for what cannot be called.
    """
    if function is None:

        def decorate(decorated: Method) -> Method:
            register_estimator(name, decorated, needs=needs, options=options, source=source, rows=rows)
            return decorated

        return decorate
    if not isinstance(name, str) or not name:
        raise TypeError(f"`name` must be a string that is not empty, got {name!r}")
    if not callable(function):
        raise TypeError(f"`function` must be callable, got {type(function).__name__}")
    if rows not in ("time", "table"):
        raise EstimatorError(f"`rows` must be 'time' or 'table', got {rows!r}")
    if not function.__module__.startswith("rtmc.methods."):
        _load()  # so that a built-in name is taken even before its first use
    if name in _registered:
        raise EstimatorError(f"the estimator name {name!r} is taken; choose another")
    known = dict(options) if options is not None else _options_of(function)
    _registered[name] = _Entry(name, function, tuple(needs), known, source, rows)
    return function


def _options_of(function: Method) -> dict[str, Option]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: Option(p.default) for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def _load() -> dict[str, _Entry]:
    for module in _BUILT_IN:
        import_module(module)
    return _registered


def estimators() -> EstimatorList:
    """Every method that `rtmc.estimate` knows, by name; prints as a table."""
    return EstimatorList(
        EstimatorInfo(
            entry.name,
            entry.needs,
            {name: option.default for name, option in entry.options.items()},
            {name: option.wanted for name, option in entry.options.items()},
            entry.source,
        )
        for entry in sorted(_load().values(), key=lambda entry: entry.name)
    )


def estimate(table: StepTable, method: str, **options: Any) -> Estimate:
    """Credit of every step of `table` by `method`.

    table     StepTable of S steps, rows in any order, on any device
    method    a name of `rtmc.estimators()`
    options   keywords of that method

    Returns an `Estimate` whose columns are (S,), in the table's row order, dtype and device. Sums run in
    float64 and are rounded once. A rollout with a NaN outcome counts as absent: its steps get advantage 0 and
    shift no baseline.

    Raises EstimatorError (a ValueError) for an unknown method or option (near names are told), a value out of
    range, or a missing `parent` or score; TableError for a table that breaks its contract.
    """
    if not isinstance(table, StepTable):
        raise TypeError(f"`table` must be a StepTable, got {type(table).__name__}; build one with StepTable.from_rows")
    known = _load()
    if method not in known:
        raise EstimatorError(unknown_name("estimator", method, known))
    entry = known[method]
    settings = {name: option.default for name, option in entry.options.items()}
    for name, value in options.items():
        if name not in entry.options:
            raise EstimatorError(f"estimator `{method}`: {unknown_name('option', name, entry.options)}")
        try:
            settings[name] = entry.options[name].accept(name, value)
        except ValueError as error:
            raise EstimatorError(f"estimator `{method}`: {error}") from None
    if entry.rows == "table":
        table.validate()
        _check_needs(table, entry)
        return _finish(entry, entry.function(table, **settings), len(table)).map(lambda x: _round(x, table))
    ordered, row = table.time_order()  # checks the table
    _check_needs(table, entry)
    result = _finish(entry, entry.function(ordered, **settings), len(ordered))
    back = _back_to_rows(table, ordered, row)
    return result.map(lambda column: _round(back(column), table))


def advantages(table: StepTable, method: str, **options: Any) -> Tensor:
    """`estimate(table, method, **options).advantage`, (S,)."""
    return estimate(table, method, **options).advantage


def _check_needs(table: StepTable, entry: _Entry) -> None:
    for name in entry.needs:
        if name == "parent":
            if table.parent is None:
                raise EstimatorError(
                    f"estimator `{entry.name}` needs the column `parent`; give every row the row number of the "
                    "preceding turn (-1 for a child of the prompt) in StepTable.from_rows"
                )
        elif name not in _COLUMNS and name not in table.scores:
            there = ", ".join(f"`{score}`" for score in sorted(table.scores)) or "none"
            raise EstimatorError(
                f"estimator `{entry.name}` needs the score `{name}`, which the table lacks (its scores: {there}); give "
                f"it as a key of the rows in StepTable.from_rows, or set table.scores['{name}'] to a "
                f"({len(table)},) tensor"
            )


def _finish(entry: _Entry, result: Estimate | Tensor, rows: int) -> Estimate:
    """The method's result as an Estimate of (rows,) columns."""
    found = Estimate(result) if isinstance(result, Tensor) else result
    if not isinstance(found, Estimate):
        raise TypeError(f"estimator `{entry.name}` returned {type(found).__name__}, wanted an Estimate or a tensor")
    for name, column in found.items():
        if column.shape != (rows,):
            raise EstimatorError(
                f"estimator `{entry.name}` returned `{name}` of shape {tuple(column.shape)}, wanted ({rows},), "
                "one number a row"
            )
    return found


def _round(column: Tensor, table: StepTable) -> Tensor:
    return column.to(table.dtype) if column.is_floating_point() else column


def _back_to_rows(table: StepTable, ordered: StepTable, row: Tensor) -> Callable[[Tensor], Tensor]:
    """Function that takes a column over path rows to one over table rows.

    Chains: a permutation. Trees: the mean over the paths a row is in, those with an unknown outcome left out
    unless there is no other.
    """
    if table.parent is None:
        place = torch.arange(len(row), device=row.device)
        if torch.equal(row, place):
            return lambda column: column
        # A gather by the inverse costs half of a scatter, and rounding first moves half the bytes.
        place = torch.empty_like(row).scatter_(0, row, place)
        return lambda column: _round(column, table).index_select(0, place)

    known = ordered.known[ordered.rollout]
    any_known = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    any_known[row[known]] = True
    ids = torch.where(known | ~any_known[row], row, -1)

    def mean(column: Tensor) -> Tensor:
        return segment_stats(column.double(), ids, len(table)).mean

    return mean
