"""Files of predictions against files of questions: what `rtmc evaluate qa PRED GOLD` computes.

A prediction is a JSON object a line: `id` (or `question`: the question's text) and `answer` (or `prediction`,
`predicted_answer`), and where the system names supporting facts `sp` (or `supporting_facts`: pairs of title and
sentence number; `predicted_support_idxs`: paragraph numbers). HotpotQA's own file is read as well: one object with
`answer`, ids to answers, and `sp`, ids to pairs; as in its script, an id may stand in one of them alone.

MuSiQue-Full gives both twins of a question one id (`formats`). As in its script (Trivedi et al. 2022), a prediction
file that has such an id twice has it in the order of the questions, and of the twin without an answer
`predicted_answerable` is graded, where it stands: false is right. That twin's supporting facts are not scored. Its
script's answer scores are means over the questions that have an answer; ours are over all.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtmc.gymenvs.qa.formats import NO_ANSWERS, UNANSWERABLE
from rtmc.gymenvs.qa.metrics import Gold, Prediction, evaluate
from rtmc.gymenvs.qa.questions import Question, read_questions
from rtmc.gymenvs.qa.recordfile import read_records

_ANSWERS = ("answer", "prediction", "predicted_answer", "pred")
_NO_ANSWER = object()  # an id that HotpotQA's file names in `sp` alone
_SUPPORT = ("sp", "supporting_facts", "predicted_support_idxs")
_ANSWERABLE = "predicted_answerable"


def evaluate_files(
    predictions: str | os.PathLike[str], golds: str | os.PathLike[str], format: str = "auto"
) -> dict[str, float | int]:
    """The scores of `metrics.evaluate`, of a file of predictions against a file that `read_questions` reads.

    Raises:
        ValueError: a record is broken, an id is unknown or comes twice; file, record and field are named.
        FileNotFoundError: a file is missing.
    """
    known: dict[str, Gold] = {}
    by_text: dict[str, str] = {}
    twins: dict[str, list[str]] = {}  # our ids of the questions that have an id in the file, in its order
    unanswerable = set()
    for question in read_questions(golds, format):
        lacks = _lacks_answer(question)
        known[question.id] = Gold(question.answers, frozenset() if lacks else frozenset(question.support))
        # A text that comes twice names no question.
        by_text[question.text] = "" if question.text in by_text else question.id
        twins.setdefault(question.id.removesuffix(f"#{UNANSWERABLE}") if lacks else question.id, []).append(question.id)
        if lacks:
            unanswerable.add(question.id)
    records = [(where, _name(record, by_text, where), record) for where, record in _records(Path(predictions))]
    times = Counter(name for _, name, _ in records)
    said: dict[str, Prediction] = {}
    for where, told, record in records:
        same = twins.get(told, [])
        # Once for both, it is the question with an answer; else as often as in the file of questions, in its order.
        name = next((one for one in same if one not in said), told) if times[told] == len(same) else told
        if name not in known:
            raise ValueError(f"{where}: no question of {golds} has the id {name!r}; its ids are like {_first(known)!r}")
        if name in said:
            raise ValueError(f"{where}: the question {name!r} was answered before")
        answerable, answer = _answerable(record, where), _answer(record, where)
        if name in unanswerable and answerable is not None:
            answer = "" if answerable else NO_ANSWERS[0]
        said[name] = Prediction(answer, _support(record, where))
    return evaluate(said, known)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    number = 0
    for number, record in enumerate(read_records(path), 1):
        where = f"{path}, record {number}"
        if not isinstance(record, Mapping):
            raise ValueError(f"{where}: a prediction is an object, got {type(record).__name__}")
        if number == 1 and isinstance(record.get("answer"), Mapping):
            yield from _hotpot(record, path)
            return
        yield where, record


def _hotpot(record: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    support = record.get("sp") or {}
    if not isinstance(support, Mapping):
        raise ValueError(f"{path}, field `sp`: wanted an object of ids, got {type(support).__name__}")
    answers = record["answer"]
    for name in dict.fromkeys([*answers, *support]):
        facts = {"sp": support[name]} if name in support else {}
        yield f"{path}, id {name!r}", {"id": name, "answer": answers.get(name, _NO_ANSWER), **facts}


def _name(record: Mapping[str, Any], by_text: dict[str, str], where: str) -> str:
    name = record.get("id", record.get("_id"))
    if name is not None and not isinstance(name, bool) and isinstance(name, (str, int)):
        return str(name)
    text = record.get("question")
    if isinstance(text, str) and by_text.get(text.strip()):
        return by_text[text.strip()]
    raise ValueError(f"{where}: field `id` is missing (or `question`, the text of exactly one question)")


def _answer(record: Mapping[str, Any], where: str) -> str | None:
    for field in _ANSWERS:
        if field in record:
            value = record[field]
            if value is _NO_ANSWER:
                return None
            # No answer is an answer: it is wrong.
            if value is None or isinstance(value, str):
                return value or ""
            raise ValueError(f"{where}: field `{field}`: wanted a text, got {json.dumps(value)[:80]}")
    raise ValueError(f"{where}: field `answer` is missing")


def _lacks_answer(question: Question) -> bool:
    """Whether it is MuSiQue-Full's twin without an answer."""
    return question.kind == UNANSWERABLE and question.id.endswith(f"#{UNANSWERABLE}")


def _answerable(record: Mapping[str, Any], where: str) -> bool | None:
    """What MuSiQue's predictions say of whether there is an answer; None: nothing."""
    value = record.get(_ANSWERABLE)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{where}: field `{_ANSWERABLE}`: wanted true or false, got {json.dumps(value)[:80]}")
    return value


def _support(record: Mapping[str, Any], where: str) -> frozenset[tuple[str | int, ...]] | None:
    for field in _SUPPORT:
        if record.get(field) is None:
            continue
        facts = record[field]
        if isinstance(facts, list):
            facts = [tuple(one) if isinstance(one, list) else (one,) for one in facts]
            if all(isinstance(part, (str, int)) for fact in facts for part in fact):
                return frozenset(facts)
        raise ValueError(f"{where}: field `{field}`: wanted a list of [title, sentence number] or of numbers")
    return None


def _first(known: Mapping[str, Any]) -> str | None:
    return next(iter(known), None)
