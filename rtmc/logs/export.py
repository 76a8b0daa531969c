"""Step records as a file: JSON lines, CSV or parquet, by the suffix of its name; there whole or not at all.

What this is not: it computes nothing. JSON lines have `advantage` as a number, or as an object method -> number where
there are several; CSV and parquet have a column `advantage_METHOD` for each.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from rtmc.atomic import atomic_path
from rtmc.errors import RolloutError, unknown_name
from rtmc.logs.credit import COLUMNS, Credit, flat
from rtmc.logs.detect import is_step
from rtmc.logs.rewards import split_run
from rtmc.logs.source import STDIN, log_files

_CHUNK = 50_000


def write_credit(credit: Credit, path: str | PathLike[str]) -> None:
    """Write one record a step; an older file of that name is replaced.

    Raises RolloutError for a suffix that names no format, ModuleNotFoundError where parquet is asked for without
    pyarrow, OSError where the file cannot be written.
    """
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}
    write = writers[check_suffix(path)]
    with atomic_path(path) as part:
        write(credit, part)


def check_suffix(path: str | PathLike[str]) -> str:
    """The suffix of `path`, if it names a format that can be written here. Raises as `write_credit` does."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".jsonl", ".csv", ".parquet"):
        raise RolloutError(f"{path}: {unknown_name('suffix', suffix or 'none', ['.jsonl', '.csv', '.parquet'])}")
    if suffix == ".parquet":
        import pyarrow.parquet  # noqa: F401 - asked for here, so that its absence is told before the work
    return suffix


def check_output(
    path: str | PathLike[str], inputs: Iterable[str | PathLike[str]], rewards: Iterable[str | PathLike[str]] = ()
) -> None:
    """Refuse an output that would replace what is read: a log, a log in a folder, a file of rewards (also as
    `RUN=FILE`). The steps that an earlier run wrote among the logs may be written anew.

    Raises RolloutError that names the file; OSError for an input that is not there.
    """
    out = Path(path)
    if not out.exists():
        return
    for given in (*inputs, *(split_run(reward)[1] for reward in rewards)):
        if str(given) == STDIN:
            continue
        folder = Path(given).is_dir()
        files = log_files(Path(given))[0] if folder else [Path(given)]
        if any(file.exists() and file.samefile(out) for file in files) and not (folder and _holds_steps(out)):
            where = f"is read from the folder {given}" if folder else "is read"
            raise RolloutError(f"{out}: this file {where} and would be replaced; choose another name for the output")


def note_of_folder(path: str | PathLike[str]) -> list[str]:
    """A note that the folder of an output is made, asked for before it is written; none where the folder is there."""
    folder = Path(path).parent
    return [] if folder.exists() else [f"the folder {folder} was not there and was made"]


def _holds_steps(path: Path) -> bool:
    """Whether a file begins with a step as it is written here."""
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        return is_step(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _write_jsonl(credit: Credit, path: Path) -> None:
    single = len(credit.methods) == 1
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in credit.records():
            record = flat(record, single)
            try:
                line = json.dumps(record, ensure_ascii=False, allow_nan=False)
                line.encode("utf-8")
            except UnicodeEncodeError:  # a lone surrogate (raw bytes of some tool) exists in JSON only as an escape
                line = json.dumps(record, allow_nan=False)
            file.write(line + "\n")


def _rows(credit: Credit) -> Iterator[dict[str, Any]]:
    """Records as flat rows, their texts with lone surrogates as escapes, which neither CSV nor parquet can hold."""
    for record in credit.records():
        advantages = record.pop("advantage")
        row = record | {f"advantage_{name}": value for name, value in advantages.items()}
        yield {key: _encodable(value) if isinstance(value, str) else value for key, value in row.items()}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _names(credit: Credit) -> list[str]:
    return [*COLUMNS, *(f"advantage_{name}" for name in credit.methods)]


def _write_csv(credit: Credit, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _names(credit))
        writer.writeheader()
        writer.writerows(_rows(credit))


def _write_parquet(credit: Credit, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = dict.fromkeys(("task_id", "rollout_id", "state", "action"), pa.string())
    kinds |= {"step": pa.int64(), "visits": pa.int64()}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in _names(credit)])
    rows = _rows(credit)
    with pq.ParquetWriter(path, schema) as writer:
        while chunk := list(islice(rows, _CHUNK)):
            writer.write_table(pa.Table.from_pylist(chunk, schema))
