"""Records of a file, one at a time: JSON lines, a JSON list, an object that holds one, CSV, TSV, or parquet.

What the file is, its first bytes say. A JSON list is read piece by piece, so that a file of half a gigabyte costs the
memory of its longest record.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_PIECE = 1 << 20  # characters read at once
_LISTS = ("Data", "data", "questions", "rows")  # names of the list in an object that holds one


def read_records(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The records of the file.

    Raises:
        ValueError: the file is empty, is cut off, or is no UTF-8 text of a known form; the place is named.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    with path.open("rb") as raw:
        start = raw.read(4)
    if start == b"PAR1":
        yield from _parquet(path)
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            first = _first_character(file, path)
            if first == "[":
                yield from _json_list(file, path)
            elif first == "{":
                yield from _json_objects(file, path)
            else:
                yield from _table(file, path)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: this is no UTF-8 text (byte {error.start} of a piece)") from None


def _first_character(file: TextIO, path: Path) -> str:
    """The first character that is no blank; the file stands before it afterwards."""
    while True:
        at = file.tell()
        one = file.read(1)
        if not one:
            raise ValueError(f"{path}: the file is empty")
        if not one.isspace():
            file.seek(at)
            return one


def _json_list(file: TextIO, path: Path) -> Iterator[Any]:
    decoder, buffer, at, number, ended = json.JSONDecoder(), "", 1, 0, False
    buffer = file.read(_PIECE)
    while True:
        while at < len(buffer) and (buffer[at].isspace() or buffer[at] == ","):
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            record, end = decoder.raw_decode(buffer, at)
            # A number at the very end may go on in the next piece; every other value closes itself.
            whole = end < len(buffer) or ended
        except (ValueError, RecursionError):
            whole = False
        if whole:
            yield record
            number, at = number + 1, end
            continue
        if ended:
            raise ValueError(f"{path}, record {number + 1}: the JSON is broken or cut off")
        # Pieces double with what is waiting, so that one long record is not parsed a thousand times.
        piece = file.read(max(_PIECE, len(buffer) - at))
        ended = not piece
        buffer, at = buffer[at:] + piece, 0


def _json_objects(file: TextIO, path: Path) -> Iterator[Any]:
    """JSON lines; or, where the first line is no whole object, one object that holds the list."""
    first = file.readline()
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        record = None
    listed = [name for name in _LISTS if record and isinstance(record.get(name), list)]
    if record is not None and not listed:
        yield record
        for number, line in enumerate(file, 2):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise ValueError(f"{path}, line {number}: this is no JSON") from None
            yield record
        return
    if record is None:
        try:
            record = json.loads(first + file.read())
        except (ValueError, RecursionError):
            raise ValueError(f"{path}, line 1: this is no JSON") from None
    for name in _LISTS:
        if isinstance(record.get(name), list):
            yield from record[name]
            return
    yield record


def _table(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    header = file.readline()
    separator = "\t" if "\t" in header else ","
    if separator not in header:
        raise ValueError(f"{path}: this is no JSON, no parquet and no table with a header of several columns")
    names = next(csv.reader(io.StringIO(header), delimiter=separator))
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
    for number, row in enumerate(csv.reader(file, delimiter=separator), 2):
        if not row:
            continue
        if len(row) != len(names):
            raise ValueError(f"{path}, line {number}: {len(row)} columns, the header has {len(names)}")
        yield dict(zip(names, row, strict=True))


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "parquet needs the package `pyarrow`: pip install 'rtmc[report]'", name=error.name
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: this parquet file cannot be read ({error})") from None
