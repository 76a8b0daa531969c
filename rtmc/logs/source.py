"""Files of logs as records: gzip, lines, whole documents, and the place of each for messages.

What this is not: it knows nothing of formats but whether a file is JSON lines, one JSON document or text. A file
is never held whole unless it is one document or a text; of JSON lines one line is held at a time.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, NoReturn

from rtmc.errors import RolloutError

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj", ".txt", ".log")
# A folder may hold anything; of these kinds are logs. A file that is named is read whatever its suffix.
FOLDER_SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj", ".txt")
# The name under which standard input is given, and where it lies.
STDIN = "-"
_STDIN = Path("/dev/stdin")
_BOM = b"\xef\xbb\xbf"
_HEAD = 1 << 16


@dataclass(frozen=True)
class Place:
    """Where a record stands: a file, a line (from 1 on; None = the whole file) and an item of a list there; `alone`
    where the one line is all there is."""

    path: Path
    line: int | None = None
    item: int | None = None
    alone: bool = False

    def __str__(self) -> str:
        where = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return where if self.item is None else f"{where}, item {self.item}"

    @property
    def stem(self) -> str:
        """The file's name without the suffixes of logs and of gzip."""
        name = self.path.name.removesuffix(".gz")
        while (suffix := next((s for s in _SUFFIXES if name.endswith(s) and name != s), None)) is not None:
            name = name.removesuffix(suffix)
        return name

    @property
    def file_id(self) -> str:
        """Id of the rollout of a format that has one a file: the stem, if the file holds no other."""
        return self.stem if self.alone and self.item is None else self.default_id

    @property
    def default_id(self) -> str:
        """Id of a rollout that has none: the stem, and the line or the item where a file holds several."""
        parts = [self.stem, *(str(n) for n in (self.line, self.item) if n is not None)]
        return ":".join(parts)


@dataclass(frozen=True)
class Record:
    """One JSON value of a file, its text (for a log that is no JSON), or the error met in its place; `foreign` where
    the file begins like no log at all."""

    place: Place
    value: Any = None
    text: str | None = None
    error: RolloutError | None = None
    foreign: bool = False


def log_files(path: Path) -> tuple[list[Path], bool]:
    """(files to read in sorted order, whether they were looked for in a folder). "-" is standard input.

    Raises RolloutError for a folder without a file of a log's suffix, FileNotFoundError for what is not there.
    """
    if str(path) == STDIN:
        return [_STDIN], False
    if not path.is_dir():
        path.stat()
        return [path], False
    files = sorted(
        found
        for found in path.rglob("*")
        if found.is_file() and found.name.removesuffix(".gz").endswith(FOLDER_SUFFIXES)
    )
    if not files:
        kinds = ", ".join(f"`*{suffix}`" for suffix in FOLDER_SUFFIXES[1:])
        raise RolloutError(f"{path}: no `*.jsonl` file in this folder, nor in one below, nor {kinds}, nor any `.gz`")
    return files, True


def parse_json(raw: bytes, place: Place, first_line: int = 1) -> Any:
    """The value of a UTF-8 JSON text.

    Raises RolloutError with the place, and the line and the column within it, for bytes that are not UTF-8, text
    that is not JSON, a key given twice in one object, and nesting deeper than the parser can go.
    """
    text = _decoded(raw, place)
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        _not_json(error, place, first_line)
    except RecursionError:
        raise RolloutError(f"{place}: nested too deeply to be a rollout") from None
    except ValueError as error:  # a number of thousands of digits, a key given twice
        raise RolloutError(f"{place}: not valid JSON: {error}") from None


def _loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key `{twice[:80]}` comes twice in one object")
    return found


def _decoded(raw: bytes, place: Place) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        line = "" if place.line is not None else f"line {number}, "
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise RolloutError(
            f"{place}: not UTF-8 text ({line}byte {column}: 0x{raw[error.start]:02x}); logs are read as UTF-8"
        ) from None


def _not_json(error: json.JSONDecodeError, place: Place, first_line: int) -> NoReturn:
    where = f"column {error.colno}"
    if place.line is None:
        where = f"line {error.lineno + first_line - 1}, {where}"
    cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
    hint = "; it ends too early: was it cut off?" if cut else ""
    raise RolloutError(f"{place}: not JSON ({error.msg}, {where}){hint}") from None


class LogFile:
    """One file, read as records.

    path       the file; gzip is told by its first bytes
    is_text    whether the beginning of a file that is no JSON is a log in text form
    progress   called with the number of bytes of the file that were read so far (compressed bytes for gzip)
    """

    def __init__(
        self, path: Path, is_text: Callable[[str], bool], progress: Callable[[int], None] | None = None
    ) -> None:
        self.path = path
        self._is_text = is_text
        self._progress = progress
        self._line = 0

    def records(self) -> Iterator[Record]:
        """Every record; a malformed one is a Record with an error, and reading goes on after it."""
        with BufferedReader(FileIO(self.path), _HEAD) as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            stream: Any = gzip.GzipFile(fileobj=file) if packed else file
            try:
                yield from self._records(stream, file)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                place = Place(self.path, self._line + 1)
                yield Record(place, error=RolloutError(f"{place}: damaged gzip data ({error}); the rest is lost"))
            self._tell(file)

    def _tell(self, file: BufferedReader[Any]) -> None:
        # A pipe has no place to tell.
        if self._progress is not None and file.seekable():
            self._progress(file.tell())

    def _records(self, stream: Any, file: BufferedReader[Any]) -> Iterator[Record]:
        lines = self._lines(stream, file)
        first = next(lines, None)
        if first is None:
            return
        number, raw = first
        foreign = raw.lstrip()[:1] not in (b"{", b"[")
        if foreign and (text := self._as_text(number, raw, stream)) is not None:
            yield text
            return
        second = next(lines, None)
        one = _attempt(raw, Place(self.path, number, alone=second is None))
        if foreign and one.error is not None:
            one = replace(one, foreign=True)
        if second is None:
            yield one
            return
        following = _attempt(second[1], Place(self.path, second[0]))
        if one.error is not None and not isinstance(following.value, dict) and _is_open(raw):
            # A value that opens on one line and closes on a later one: the file is a document, not lines.
            blank = b"\n" * (second[0] - number - 1)
            yield from self._document(number, raw + blank + second[1] + stream.read())
            return
        yield one
        yield following
        for number, raw in lines:
            yield _attempt(raw, Place(self.path, number))

    def _lines(self, stream: Any, file: BufferedReader[Any]) -> Iterator[tuple[int, bytes]]:
        """(line number, bytes) of every line that is not blank. Only a line feed ends a line: JSON strings may hold
        other characters that str.splitlines would cut at."""
        for raw in stream:
            if self._line == 0:
                raw = raw.removeprefix(_BOM)
            self._line += 1
            if self._line % 64 == 0 or len(raw) > _HEAD:
                self._tell(file)
            if not raw.isspace() and raw:
                yield self._line, raw

    def _as_text(self, number: int, raw: bytes, stream: Any) -> Record | None:
        """The whole file as one text, if it begins like a log in text form; else None, with the stream as it was."""
        head = raw
        if len(head) < _HEAD:
            peeked = stream.peek(_HEAD)[:_HEAD]
            head += peeked
        if not self._is_text(head.decode("utf-8", "replace").replace("\r\n", "\n")):
            return None
        place = Place(self.path)
        try:
            text = _decoded(b"\n" * (number - 1) + raw + stream.read(), place)
        except RolloutError as error:
            return Record(place, error=error)
        return Record(place, text=text.replace("\r\n", "\n"))

    def _document(self, first_line: int, raw: bytes) -> Iterator[Record]:
        """The values of a file that is no JSON lines: one document, or several one after the other."""
        place = Place(self.path)
        try:
            value = parse_json(raw, place, first_line)
        except RolloutError as error:
            if "Extra data" not in str(error):
                yield Record(place, error=error)
                return
        else:
            yield Record(place, value)
            return
        text = _decoded(raw, place)
        decoder = json.JSONDecoder(object_pairs_hook=_object)
        at = 0
        while (at := _skip_space(text, at)) < len(text):
            here = Place(self.path, first_line + text.count("\n", 0, at))
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                yield Record(here, error=RolloutError(f"{here}: not JSON ({error}); the rest of the file is lost"))
                return
            yield Record(here, value)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _attempt(raw: bytes, place: Place) -> Record:
    try:
        return Record(place, parse_json(raw, place))
    except RolloutError as error:
        return Record(place, error=error)


def _is_open(raw: bytes) -> bool:
    """Whether a line could be the beginning of a longer value: JSON as far as it goes."""
    try:
        _loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc.rstrip())
    except (ValueError, RecursionError):
        return False
    return False
