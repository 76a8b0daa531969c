"""One call for every estimator, and the register behind it.

What this is not: no estimator lives here, and none is special-cased here. The register checks names, options
and inputs, hands the method its rows in the order it asked for, and puts the result back into the caller's
row order.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from rtmc.errors import EstimatorError, unknown_name
from rtmc.kernels.segments import segment_stats
from rtmc.methods.describe import text_of
from rtmc.methods.inputs import Waivers, check_group_sizes, missing_inputs, missing_text
from rtmc.methods.options import Engines, Option, resolve
from rtmc.table import StepTable
from rtmc.types import Estimate

Method = Callable[..., "Estimate | Tensor"]

_BUILT_IN = (
    "rtmc.methods.at2po",
    "rtmc.methods.crbc",
    "rtmc.methods.gae",
    "rtmc.methods.gigpo",
    "rtmc.methods.graphhca",
    "rtmc.methods.grpo",
    "rtmc.methods.hcapo",
    "rtmc.methods.hgpo",
    "rtmc.methods.igpo",
    "rtmc.methods.igrpo",
    "rtmc.methods.istar",
    "rtmc.methods.rtmc",
    "rtmc.methods.tempo",
    "rtmc.methods.tree_grpo",
    "rtmc.methods.treehca",
    "rtmc.methods.vineppo",
)
_ARGUMENTS = ("table", "method", "rollouts_per_group")  # of `estimate`: no option may have their names
_registered: dict[str, _Entry] = {}


@dataclass(frozen=True)
class EstimatorInfo:
    """What `rtmc.estimators()` says of one method.

    name      for `rtmc.estimate(table, name)`
    needs     columns and scores it reads beyond group, rollout, index and outcome
    options   keyword -> default
    wanted    keyword -> what a value must be, in words
    source    the paper or code it follows
    unless    input of `needs` -> option -> values with which the method does without that input
    engines   value of `parity` -> option -> the values that this engine knows, the first of them its own
    """

    name: str
    needs: tuple[str, ...]
    options: dict[str, Any] = field(hash=False)
    wanted: dict[str, str] = field(hash=False)
    source: str
    unless: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict, hash=False)
    engines: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict, hash=False)

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
    meanings: Mapping[str, str]
    unless: Waivers
    engines: Engines
    text: str


def register_estimator(
    name: str,
    function: Method | None = None,
    *,
    needs: Sequence[str] | Mapping[str, str] = (),
    options: Mapping[str, Option] | None = None,
    source: str = "",
    rows: Literal["time", "table"] = "time",
    unless: Waivers | None = None,
    engines: Engines | None = None,
) -> Any:
    """Make a method known to `rtmc.estimate` under `name`; without `function` this is a decorator.

    function   called as `function(table, **options)`; returns an `Estimate`, or the advantages alone, a
               (rows,) tensor
    needs      columns and scores it reads beyond group, rollout, index and outcome; `parent` and scores must
               be there. A mapping gives the meaning of each, for the message where it is missing
    options    keyword -> `rtmc.methods.options.Option`; by default the keyword-only arguments of `function`
               that have a default, unchecked
    source     the paper or code it follows
    rows       "time": the method gets chains in time order, in float64 (`StepTable.time_order`), and its
               result is put back in the caller's row order; in a tree a node shared by several leaves gets
               the mean over its leaves. "table": the method gets the caller's table as it is.
    unless     input of `needs` -> option -> values with which the method does without that input
    engines    value of the option `parity` -> option -> the values that this engine knows, the first of them its own:
               used where the caller does not give the option; any other value that is given is refused

    A method of the library gets its needs, options, defaults, source and the head of its file appended to its
    docstring: the text of `describe`.

    Raises EstimatorError (a ValueError) for a name that is taken, an option named like an argument of `estimate`, or
    an `unless` that speaks of what is not there; TypeError for what cannot be called.
    """
    if function is None:

        def decorate(decorated: Method) -> Method:
            register_estimator(
                name,
                decorated,
                needs=needs,
                options=options,
                source=source,
                rows=rows,
                unless=unless,
                engines=engines,
            )
            return decorated

        return decorate
    if not isinstance(name, str) or not name:
        raise TypeError(f"`name` must be a string that is not empty, got {name!r}")
    if not callable(function):
        raise TypeError(f"`function` must be callable, got {type(function).__name__}")
    if isinstance(needs, str):
        raise TypeError(
            f"`needs` must be a sequence of names or a mapping of names to meanings, got the text {needs!r}"
        )
    if rows not in ("time", "table"):
        raise EstimatorError(f"`rows` must be 'time' or 'table', got {rows!r}")
    ours = (getattr(function, "__module__", None) or "").startswith("rtmc.methods.")
    if not ours:
        _load()  # so that a built-in name is taken even before its first use
    if name in _registered:
        raise EstimatorError(f"the estimator name {name!r} is taken; choose another")
    known = dict(options) if options is not None else _options_of(function)
    for option in _ARGUMENTS:
        if option in known:
            raise EstimatorError(
                f"estimator `{name}`: an option may not be named `{option}`, as an argument of estimate"
            )
    for need, of_need in (unless or {}).items():
        if need not in needs:
            raise EstimatorError(f"estimator `{name}`: `unless` speaks of {need!r}, which is not in `needs`")
        for option in of_need:
            if option not in known:
                raise EstimatorError(f"estimator `{name}`: `unless`: {unknown_name('option', option, known)}")
    for parity, of_engine in (engines or {}).items():
        for option, values in of_engine.items():
            if option not in known:
                raise EstimatorError(f"estimator `{name}`: `engines`: {unknown_name('option', option, known)}")
            if "parity" not in known or not known["parity"].check(parity) or not all(map(known[option].check, values)):
                raise EstimatorError(
                    f"estimator `{name}`: `engines` gives parity={parity!r} the `{option}` {values!r}, which the "
                    f"options `parity` and `{option}` do not both accept"
                )
    meanings = dict(needs) if isinstance(needs, Mapping) else {}
    waivers: Waivers = dict(unless or {})
    of_engines: Engines = dict(engines or {})
    text = text_of(name, function.__doc__, tuple(needs), meanings, known, source, waivers, of_engines)
    if ours:
        head = inspect.cleandoc(sys.modules[function.__module__].__doc__ or "")
        text += f"\n\nThe head of {function.__module__}:\n\n{head}"
        function.__doc__ = text
    _registered[name] = _Entry(name, function, tuple(needs), known, source, rows, meanings, waivers, of_engines, text)
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
            {need: dict(waivers) for need, waivers in entry.unless.items()},
            {parity: dict(of_engine) for parity, of_engine in entry.engines.items()},
        )
        for entry in sorted(_load().values(), key=lambda entry: entry.name)
    )


def estimate(table: StepTable, method: str, *, rollouts_per_group: int | None = None, **options: Any) -> Estimate:
    """Credit of every step of `table` by `method`.

    table     StepTable of S steps, rows in any order, on any device
    method    a name of `rtmc.estimators()`
    options   keywords of that method
    rollouts_per_group   how many rollouts were sampled for each task, where the caller knows it. If it is above 1 and
              yet every rollout is a group of its own, the group ids are wrong, and that is an error. Groups that
              lack members are none

    Returns an `Estimate` whose columns are (S,), in the table's row order, dtype and device. Sums run in
    float64 and are rounded once. A rollout with a NaN outcome counts as absent: its steps get advantage 0 and
    shift no baseline.

    Raises EstimatorError (a ValueError) for an unknown method or option (near names are told), a value out of
    range, or a missing `parent` or score; TableError for a table that breaks its contract.
    """
    if not isinstance(table, StepTable):
        raise TypeError(f"`table` must be a StepTable, got {type(table).__name__}; build one with StepTable.from_rows")
    entry = _entry(method)
    for name in options:
        if name not in entry.options:
            raise EstimatorError(f"estimator `{method}`: {unknown_name('option', name, entry.options)}")
    try:
        settings = resolve(entry.options, options, entry.engines)
    except ValueError as error:
        raise EstimatorError(f"estimator `{method}`: {error}") from None
    if entry.rows == "table":
        table.validate()
        _check_inputs(table, entry, settings, rollouts_per_group)
        return _finish(entry, entry.function(table, **settings), len(table)).map(lambda x: _round(x, table))
    ordered, row = table.time_order()  # checks the table
    _check_inputs(table, entry, settings, rollouts_per_group)
    result = _finish(entry, entry.function(ordered, **settings), len(ordered))
    back = _back_to_rows(table, ordered, row)
    return result.map(lambda column: _round(back(column), table))


def advantages(table: StepTable, method: str, **options: Any) -> Tensor:
    """`estimate(table, method, **options).advantage`, (S,)."""
    return estimate(table, method, **options).advantage


def describe(method: str) -> str:
    """What a method computes, its needs, options, defaults and source, as `rtmc estimators NAME` prints it.

    Raises EstimatorError (a ValueError) for an unknown method.
    """
    return _entry(method).text


def lacking(table: StepTable, method: str) -> tuple[str, ...]:
    """Inputs that `method`, with its default options, needs and `table` lacks."""
    entry = _entry(method)
    return missing_inputs(table, entry.needs, entry.unless, {name: o.default for name, o in entry.options.items()})


def _entry(method: str) -> _Entry:
    if not isinstance(method, str):
        raise TypeError(f"`method` must be the name of an estimator, got {type(method).__name__}")
    known = _load()
    if method not in known:
        raise EstimatorError(unknown_name("estimator", method, known))
    return known[method]


def _check_inputs(table: StepTable, entry: _Entry, settings: Mapping[str, Any], per_group: int | None) -> None:
    if per_group is not None:
        check_group_sizes(table, per_group)
    for name in missing_inputs(table, entry.needs, entry.unless, settings):
        raise EstimatorError(f"estimator `{entry.name}` {missing_text(table, name, entry.meanings, entry.unless)}")


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
