"""Records of a file, one at a time: JSON lines, a JSON list, an object that holds one, CSV, TSV, or parquet.

What the file is, its first bytes say; all but parquet may be packed with gzip. A JSON list is read piece by piece, so
that a file of half a gigabyte costs the
memory of its longest record.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

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
    with open_packed(path) as packed, io.TextIOWrapper(packed, encoding="utf-8-sig", newline="") as file:
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
        except PACKING_ERRORS as error:
            raise ValueError(f"{path}: this gzip file is broken or cut off ({error})") from None


# What reading a gzip file that is broken or cut off raises.
PACKING_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


def open_packed(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked where it begins as a gzip file does, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


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
    decoder, buffer, at, number, ended = json.JSONDecoder(), file.read(_PIECE), 1, 0, False
    between = False  # a value was read, and no comma after it yet
    while True:
        while at < len(buffer) and buffer[at].isspace():
            at += 1
        mark = buffer[at : at + 1]
        if between and mark == ",":
            between, at = False, at + 1
            continue
        if mark == "]" and (between or not number):
            _nothing_more(file, buffer[at + 1 :], path)
            return
        if between and mark:
            raise ValueError(f"{path}, record {number + 1}: wanted ',' or ']' before it, got {mark!r}")
        try:
            record, end = decoder.raw_decode(buffer, at)
            # A number at the very end may go on in the next piece; every other value closes itself.
            whole = end < len(buffer) or ended
        except (ValueError, RecursionError):
            whole = False
        if whole:
            yield record
            number, at, between = number + 1, end, True
            continue
        if ended:
            raise ValueError(f"{path}, record {number + 1}: the JSON is broken or cut off")
        # Pieces double with what is waiting, so that one long record is not parsed a thousand times.
        piece = file.read(max(_PIECE, len(buffer) - at))
        ended = not piece
        buffer, at = buffer[at:] + piece, 0


def _nothing_more(file: TextIO, rest: str, path: Path) -> None:
    rest = rest or file.read(_PIECE)
    while rest:
        if rest.strip():
            raise ValueError(f"{path}: after the list's end stands {rest.strip()[:40]!r}; wanted nothing more")
        rest = file.read(_PIECE)


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
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
    number = 1
    try:
        names = next(csv.reader(io.StringIO(header), delimiter=separator))
        for number, row in enumerate(csv.reader(file, delimiter=separator), 2):
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(f"{path}, line {number}: {len(row)} columns, the header has {len(names)}")
            yield dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, after line {number}: this table cannot be read ({error})") from None


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
