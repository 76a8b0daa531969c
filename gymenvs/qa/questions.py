"""Questions with their answers, and the files people have them in.

    for question in read_questions("hotpot_dev_distractor_v1.json"): ...

Read are the files of HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, NQ-open, TriviaQA, PopQA, FlashRAG, Search-R1
(parquet) and plain `question` / `answer` records; `formats` has the schemas. The kind of a file is told by what stands
in it, not by its name; one file holds one kind of record. Files are read record by record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rtmc.gymenvs.qa.formats import SCHEMAS, detect
from rtmc.gymenvs.qa.recordfile import read_records


@dataclass(frozen=True)
class Question:
    """One task of Search QA.

    Attributes:
        id: unique in its file.
        text: the question.
        answers: the right answer in every accepted wording, at least one; the first is the reference.
        kind: as the data set calls it (`bridge`, `comparison`, ...); "" = not told.
        hops: passages that have to be read; None = not told.
        support: supporting facts as the data set names them: (title, sentence number) of HotpotQA and 2Wiki,
            (paragraph number,) of MuSiQue, (title,) of the embedded set.
        searches: queries that find the answer one after the other, where they are known (the embedded set).
        context: (title, text) of the passages that the record brings along.

    Raises:
        ValueError: an attribute is empty that must not be. TypeError: one is of another type.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    kind: str = ""
    hops: int | None = None
    support: tuple[tuple[str | int, ...], ...] = ()
    searches: tuple[str, ...] = ()
    context: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("id", "text"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"Question: `{name}` must be text, got {getattr(self, name)!r}")
            if not getattr(self, name).strip():
                raise ValueError(f"Question: `{name}` is empty")
        if not isinstance(self.answers, tuple) or not all(isinstance(answer, str) for answer in self.answers):
            raise TypeError(f"Question {self.id}: `answers` must be a tuple of texts, got {self.answers!r}")
        if not any(answer.strip() for answer in self.answers):
            raise ValueError(f"Question {self.id}: `answers` has no text; at least one right answer is wanted")
        if not isinstance(self.kind, str):
            raise self._wrong("kind", "text")
        if self.hops is not None:
            if isinstance(self.hops, bool) or not isinstance(self.hops, int):
                raise self._wrong("hops", "a whole number or None")
            if self.hops < 1:
                raise ValueError(f"Question {self.id}: `hops` must be at least 1, got {self.hops}")
        if not isinstance(self.searches, tuple) or not all(isinstance(one, str) for one in self.searches):
            raise self._wrong("searches", "a tuple of texts")
        if not _all_tuples(self.support, (str, int)):
            raise self._wrong("support", "a tuple of tuples of texts and whole numbers")
        if not _all_tuples(self.context, (str,)) or not all(len(one) == 2 for one in self.context):
            raise self._wrong("context", "a tuple of pairs (title, text)")

    def _wrong(self, name: str, wanted: str) -> TypeError:
        return TypeError(f"Question {self.id}: `{name}` must be {wanted}, got {repr(getattr(self, name))[:80]}")

    def to_json(self) -> dict[str, Any]:
        """A JSON object; what is not told is left out."""
        value = json.loads(json.dumps(asdict(self)))
        return {key: item for key, item in value.items() if item not in ("", None, [])}

    @classmethod
    def from_json(cls, value: str | Mapping[str, Any]) -> Question:
        """The question of a JSON object (or its text), as `to_json` gives it, or a record of a known data set.

        Raises:
            ValueError: it is none; the field is named.
        """
        record = value
        if isinstance(value, str):
            try:
                record = json.loads(value)
            except ValueError:
                raise ValueError(f"Question: this is no JSON object: {value[:80]!r}") from None
        if not isinstance(record, Mapping):
            raise ValueError(f"Question: wanted a JSON object, got {type(record).__name__}")
        try:
            if "text" in record and "answers" in record:
                return cls._own(record)
            return _question(detect(record), record, "0")
        except TypeError as error:  # of a JSON value, the wrong type is a wrong value
            raise ValueError(str(error)) from None

    @classmethod
    def _own(cls, record: Mapping[str, Any]) -> Question:
        known = cls.__dataclass_fields__
        strange = [name for name in record if name not in known]
        if strange:
            raise ValueError(f"Question: unknown field {strange[0]!r}; there are {', '.join(known)}")
        if "id" not in record:
            raise ValueError("Question: field `id` is missing")
        values = {name: _frozen(item) for name, item in record.items()}
        return cls(**values)


def read_questions(path: str | os.PathLike[str], format: str = "auto") -> Iterator[Question]:
    """The questions of a file, in its order, one at a time.

    Args:
        path: JSON lines, a JSON list, CSV or TSV, also packed with gzip, or parquet; told apart by content.
        format: a name of `SCHEMAS`, or `auto`: told by the fields of the first record.

    Raises:
        ValueError: the file or a record is of no known kind, a field is missing or wrong, or an id comes twice; the
            message names file, record and field. FileNotFoundError: there is no such file.
    """
    if format != "auto" and format not in SCHEMAS:
        raise ValueError(f"read_questions: format={format!r} is none of 'auto', {', '.join(map(repr, SCHEMAS))}")
    seen: set[str] = set()
    chosen = format
    for number, record in enumerate(read_records(path)):
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"a question is an object, got {type(record).__name__}")
            if chosen == "auto":
                chosen = detect(record)
            question = _question(chosen, record, str(number))
            if question.id in seen:
                raise ValueError(f"the id {question.id!r} came before; ids of a file are unique")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, record {number + 1}: {error}") from None
        seen.add(question.id)
        yield question


def _question(schema: str, record: Mapping[str, Any], default_id: str) -> Question:
    if schema == "rtmc":
        return Question._own({"id": default_id, **record})
    return Question(**{"id": default_id, **SCHEMAS[schema].read(record)})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _all_tuples(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, tuple) and all(isinstance(part, kinds) and not isinstance(part, bool) for part in one)
        for one in value
    )
