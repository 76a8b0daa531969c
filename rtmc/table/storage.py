"""A step table on disk (parquet) and as a pandas frame.

The parquet file holds the steps as columns; the rollout table and the keys behind the ids stand in the file's
metadata as compressed JSON, so that one file is the whole table. Keys may be strings, integers, floats,
booleans, None, bytes and tuples of these; anything else is refused by name rather than turned into text.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Hashable, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rtmc.atomic import atomic_path
from rtmc.errors import MissingPackageError, TableError
from rtmc.types import Ending

if TYPE_CHECKING:
    import pandas as pd

    from rtmc.table.steptable import StepTable

_FORMAT = 1
_METADATA = b"rtmc.step_table"
_KINDS = ("state", "action", "group", "rollout")
_SCORE = "score."  # columns of scores bear this prefix, so that no name collides with a column of ours


def _need(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise MissingPackageError(f"{what} needs {name}: pip install 'rtmc[report]'") from error


def save_table(table: StepTable, path: str | PathLike[str]) -> None:
    """See `StepTable.save`."""
    pyarrow, parquet = _need("pyarrow", "saving a step table"), _need("pyarrow.parquet", "saving a step table")
    table.validate()
    steps = {name: column for name, column in table.columns().items() if column.shape == table.rollout.shape}
    steps = {name: steps[name] for name in steps if name not in ("group", "outcome", "ending")}
    named = {f"{_SCORE}{name}" if name in table.scores else name: column for name, column in steps.items()}
    whole = {
        "format": _FORMAT,
        "dtype": str(table.dtype).removeprefix("torch."),
        "group": table.group.tolist(),
        "outcome": [None if math.isnan(value) else value for value in table.outcome.tolist()],
        "ending": table.ending.tolist(),
        "names": {kind: _encoded(getattr(table, f"{kind}_names"), kind) for kind in _KINDS},
    }
    packed = base64.b64encode(zlib.compress(json.dumps(whole).encode()))
    arrow = pyarrow.table({name: column.cpu().numpy() for name, column in named.items()})
    with atomic_path(path) as part:
        parquet.write_table(arrow.replace_schema_metadata({_METADATA: packed}), part)


def load_table(kind: type[StepTable], path: str | PathLike[str]) -> StepTable:
    """See `StepTable.load`."""
    pyarrow, parquet = _need("pyarrow", "loading a step table"), _need("pyarrow.parquet", "loading a step table")
    path = Path(path)
    try:
        arrow = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise TableError(f"{path}: not a parquet file ({error}); StepTable.save writes one") from None
    packed = (arrow.schema.metadata or {}).get(_METADATA)
    if packed is None:
        raise TableError(f"{path}: a parquet file, but not a step table; StepTable.save writes one")
    try:
        whole = json.loads(zlib.decompress(base64.b64decode(packed)))
        if whole["format"] != _FORMAT:
            raise TableError(f"{path}: format {whole['format']} of the step table; this version reads format {_FORMAT}")
        dtype = {"float32": torch.float32, "float64": torch.float64}[whole["dtype"]]
        steps: dict[str, Any] = {name: torch.from_numpy(arrow[name].to_numpy().copy()) for name in arrow.column_names}
        scores = {name.removeprefix(_SCORE): steps.pop(name) for name in list(steps) if name.startswith(_SCORE)}
        names: dict[str, Any] = {f"{name}_names": _decoded(whole["names"][name]) for name in _KINDS}
        outcome = [math.nan if value is None else value for value in whole["outcome"]]
        table = kind(
            **steps,
            scores=scores,
            group=torch.tensor(whole["group"], dtype=torch.int64),
            outcome=torch.tensor(outcome, dtype=torch.float64).to(dtype),
            ending=torch.tensor(whole["ending"], dtype=torch.int8),
            **names,
        )
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{path}: a damaged step table ({type(error).__name__}: {error}); save it anew") from None
    try:
        return table.validate()
    except TableError as error:
        raise TableError(f"{path}: {error}") from None


def _encoded(names: Sequence[Hashable] | None, kind: str) -> list[Any] | None:
    if names is None:
        return None
    try:
        return [_encode(key) for key in names]
    except TypeError as error:
        raise TableError(
            f"a {kind} key cannot be saved: {error}; use strings, numbers, bytes or tuples of them"
        ) from None


def _encode(key: Hashable) -> Any:
    """JSON for a key: itself for text, integers, booleans and None; a one-entry object for what JSON lacks."""
    if key is None or type(key) in (str, int, bool):
        return key
    if type(key) is float:
        return {"float": key.hex()}
    if type(key) is bytes:
        return {"bytes": base64.b64encode(key).decode()}
    if type(key) is tuple:
        return {"tuple": [_encode(entry) for entry in key]}
    raise TypeError(f"{key!r} is a {type(key).__name__}")


def _decoded(names: list[Any] | None) -> list[Hashable] | None:
    return None if names is None else [_decode(value) for value in names]


def _decode(value: Any) -> Hashable:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_decode(entry) for entry in content)
    return float.fromhex(content) if kind == "float" else base64.b64decode(content)


def table_to_pandas(table: StepTable) -> pd.DataFrame:
    """See `StepTable.to_pandas`."""
    pandas = _need("pandas", "StepTable.to_pandas")
    table.validate()
    rollout = table.rollout.cpu()

    def named(kind: str, ids: torch.Tensor) -> Any:
        keys = [None if number < 0 else table.name_of(kind, number) for number in ids.tolist()]
        return pandas.Series(keys, dtype=object)

    endings = [Ending(code).name.lower() for code in table.ending.tolist()]
    columns = {
        "group": named("group", table.group.cpu()[rollout]),
        "rollout": named("rollout", rollout),
        "index": table.index.cpu().numpy(),
        "state": named("state", table.state),
        "action": named("action", table.action),
        "next_state": named("state", table.next_state),
        "reward": table.reward.cpu().numpy(),
        "tokens": table.tokens.cpu().numpy(),
        "outcome": table.outcome.cpu()[rollout].numpy(),
        "ending": [endings[row] for row in rollout.tolist()],
    }
    if table.parent is not None:
        columns["parent"] = table.parent.cpu().numpy()
    return pandas.DataFrame(columns | {name: score.cpu().numpy() for name, score in table.scores.items()})
