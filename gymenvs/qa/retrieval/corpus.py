"""Corpora: JSON lines of passages, and a folder that holds many of them without holding them in memory.

A line is an object with `id` (text or number; without it, the number of the line from 0) and either `contents`
(heading, line end, text: Search-R1, FlashRAG, Pyserini), or `text` with an optional `title` (BEIR, with `_id`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from rtmc.gymenvs.qa.recordfile import open_packed
from rtmc.gymenvs.qa.retrieval.base import Passage, RetrievalError

_TEXTS, _ENDS = "passages.jsonl", "ends.npy"


def read_corpus(path: str | os.PathLike[str]) -> Iterator[Passage]:
    """The passages of a file, one a line; blank lines are passed over.

    Raises:
        ValueError: a line is no JSON object, has no text, or has an id that came before; it names file, line and
            field. Or there is no passage at all, once the end is reached.
    """
    seen: set[str] = set()
    with open_packed(Path(path)) as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            where = f"{path}, line {number + 1}"
            try:
                passage = _passage(json.loads(line.decode("utf-8" if number else "utf-8-sig")), number)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: {error}") from None
            if passage.id in seen:
                raise ValueError(f"{where}: the id {passage.id!r} came before; ids of a corpus are unique")
            seen.add(passage.id)
            yield passage
    if not seen:
        raise ValueError(f'{path}: the corpus holds no passage; wanted JSON lines of {{"id": ..., "contents": ...}}')


def _passage(record: Any, number: int) -> Passage:
    if not isinstance(record, dict):
        raise ValueError(f"a passage is a JSON object, got {type(record).__name__}")
    name = record.get("id", record.get("_id", number))
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ValueError(f"field `id`: wanted a string or a number, got {name!r}")
    for field in ("contents", "text"):
        value = record.get(field)
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"field `{field}`: wanted text, got {value!r}")
        if field == "contents":
            return Passage(str(name), value)
        title = record.get("title") or ""
        if not isinstance(title, str):
            raise ValueError(f"field `title`: wanted text, got {title!r}")
        return Passage.made(str(name), title, value)
    raise ValueError(f"no text: a field `contents` or `text` is wanted, there are {', '.join(map(repr, record))}")


def corpus_line(passage: Passage) -> str:
    """The passage as a line of a corpus, its line end included."""
    return json.dumps({"id": passage.id, "contents": passage.contents}, ensure_ascii=False) + "\n"


class PassageFile(Sequence[Passage]):
    """Passages by number, read from a memory-mapped file when asked for: `write` makes the folder, this opens it.

    Raises:
        ValueError: a file of the folder is missing, or is not as long as the other one says.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._ends = np.load(Path(folder) / _ENDS, mmap_mode="r")
            size = (Path(folder) / _TEXTS).stat().st_size
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{folder}: the index is damaged ({error}); build it anew") from None
        if self._ends.ndim != 1 or self._ends.dtype != np.int64 or size != (self._ends[-1] if len(self._ends) else 0):
            raise ValueError(f"{folder}: the index is damaged ({_ENDS} and {_TEXTS} disagree); build it anew")
        with (Path(folder) / _TEXTS).open("rb") as file:
            self._text: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if len(self) else b""

    @staticmethod
    def write(folder: str | os.PathLike[str], passages: Iterable[Passage]) -> str:
        """Write the passages; the hexadecimal SHA-256 of what was written is their fingerprint."""
        ends, at, digest = [], 0, hashlib.sha256()
        with (Path(folder) / _TEXTS).open("wb") as file:
            for passage in passages:
                line = corpus_line(passage).encode("utf-8", "backslashreplace")
                digest.update(line)
                at += file.write(line)
                ends.append(at)
        np.save(Path(folder) / _ENDS, np.asarray(ends, dtype=np.int64))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> Passage: ...
    @overload
    def __getitem__(self, at: slice) -> list[Passage]: ...
    def __getitem__(self, at: int | slice) -> Passage | list[Passage]:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"passage {at} of {len(self)}")
        begin = int(self._ends[number - 1]) if number else 0
        try:
            record = json.loads(self._text[begin : int(self._ends[number])])
            return Passage(record["id"], record["contents"])
        except (ValueError, KeyError, TypeError):
            raise RetrievalError(f"passage {number} of the index is damaged; build it anew") from None
