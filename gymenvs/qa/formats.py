"""The records of the public question sets: which fields tell them apart, and what a question takes from each.

A schema's `read` gives the arguments of `Question`. Fields as the data sets publish them: HotpotQA (Yang et al. 2018)
and 2WikiMultihopQA (Ho et al. 2020), each in the original and in the Hugging Face form; MuSiQue (Trivedi et al. 2022);
Bamboogle (Press et al. 2023); NQ-open (Lee et al. 2019); TriviaQA (Joshi et al. 2017), both forms; PopQA (Mallen et al.
2023); FlashRAG's jsonl; Search-R1's parquet.

MuSiQue-Full gives most questions twice under one id: once with passages that answer it, once (`answerable` false) with
some of them taken away, where the right answer is that there is none. The second is read as a question of its own: id
`...#unanswerable`, kind `unanswerable`, answers `NO_ANSWERS` (what its field `answer` says is right of the first
alone).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

UNANSWERABLE = "unanswerable"  # the kind of such questions
NO_ANSWERS = ("noanswer", "no answer", "unanswerable")  # what is right of them
Record = Mapping[str, Any]


class Schema(NamedTuple):
    """`matches`: whether a record is of this kind, by the names of its fields; `read`: what it says."""

    matches: Callable[[Record], bool]
    read: Callable[[Record], dict[str, Any]]


def detect(record: Record) -> str:
    """The first schema that the record matches. Raises ValueError where there is none."""
    for name, schema in SCHEMAS.items():
        if schema.matches(record):
            return name
    raise ValueError(
        f"fields {', '.join(map(repr, list(record)[:12]))} are those of no known question set; known are "
        f"{', '.join(SCHEMAS)}"
    )


def _has(*names: str) -> Callable[[Record], bool]:
    return lambda record: all(name in record for name in names)


def _text(record: Record, *names: str) -> str:
    """The first of the fields that is there. Raises ValueError where none is, or it is no text."""
    for name in names:
        if name in record:
            value = record[name]
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"field `{name}`: wanted text, got {_short(value)}")
            return value.strip()
    raise ValueError(f"field `{names[0]}` is missing")


def _texts(value: Any, field: str) -> tuple[str, ...]:
    """One text or a list of some; empty ones are left out, doubles too. Raises ValueError where nothing is left."""
    listed = [value] if isinstance(value, str) else value
    if hasattr(listed, "tolist"):
        listed = listed.tolist()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"field `{field}`: wanted a text or a list of texts, got {_short(value)}")
    found = tuple(dict.fromkeys(one.strip() for one in listed if one.strip()))
    if not found:
        raise ValueError(f"field `{field}`: wanted at least one answer, got {_short(value)}")
    return found


def _field(record: Record, name: str) -> Any:
    """The field. Raises ValueError where it is missing."""
    if name not in record:
        raise ValueError(f"field `{name}` is missing")
    return record[name]


def _id(record: Record, *names: str) -> dict[str, str]:
    for name in names:
        value = record.get(name)
        if isinstance(value, bool) or (value is not None and not isinstance(value, (str, int))):
            raise ValueError(f"field `{name}`: wanted a text or a number, got {_short(value)}")
        if value is not None and str(value).strip():
            return {"id": str(value)}
    return {}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _pairs(value: Any, field: str, columns: tuple[str, str]) -> list[tuple[Any, Any]]:
    """Pairs, from a list of them or from an object of two columns (Hugging Face's form)."""
    if isinstance(value, Mapping):
        first, second = (value.get(name) for name in columns)
        if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
            return list(zip(first, second, strict=True))
    elif isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in value):
        return [(one[0], one[1]) for one in value]
    raise ValueError(f"field `{field}`: wanted a list of pairs, or columns {columns}, got {_short(value)}")


def _hotpot(record: Record) -> dict[str, Any]:
    support, context = [], []
    for title, sentence in _pairs(record.get("supporting_facts") or [], "supporting_facts", ("title", "sent_id")):
        if not isinstance(title, str) or isinstance(sentence, bool) or not isinstance(sentence, int):
            raise ValueError(f"field `supporting_facts`: wanted a title and a number, got {_short((title, sentence))}")
        support.append((title, sentence))
    for title, sentences in _pairs(record.get("context") or [], "context", ("title", "sentences")):
        if not isinstance(title, str) or not isinstance(sentences, (list, tuple)):
            raise ValueError(f"field `context`: wanted a title and its sentences, got {_short((title, sentences))}")
        context.append((title, "".join(map(str, sentences))))
    if record.get("answer") is None:
        raise ValueError("field `answer` is missing (a test file has none: take the dev file)")
    return {
        **_id(record, "_id", "id"),
        "text": _text(record, "question"),
        "answers": _texts(record["answer"], "answer"),
        "kind": record["type"] if isinstance(record.get("type"), str) else "",
        "hops": len({title for title, _ in support}) or None,
        "support": tuple(dict.fromkeys(support)),
        "context": tuple(context),
    }


def _musique(record: Record) -> dict[str, Any]:
    paragraphs = record.get("paragraphs") or []
    if not isinstance(paragraphs, list) or not all(isinstance(one, dict) for one in paragraphs):
        raise ValueError(f"field `paragraphs`: wanted a list of objects, got {_short(paragraphs)}")
    aliases = record.get("answer_aliases") or []
    if not isinstance(aliases, (list, tuple)):
        raise ValueError(f"field `answer_aliases`: wanted a list of texts, got {_short(aliases)}")
    steps = record.get("question_decomposition") or ()
    if not isinstance(steps, (list, tuple)):
        raise ValueError(f"field `question_decomposition`: wanted a list of steps, got {_short(steps)}")
    support = [one.get("idx", at) for at, one in enumerate(paragraphs) if one.get("is_supporting")]
    if not all(isinstance(idx, int) and not isinstance(idx, bool) for idx in support):
        raise ValueError(f"field `paragraphs`: wanted whole numbers as `idx`, got {_short(support)}")
    answerable = record.get("answerable", True)
    if not isinstance(answerable, bool):
        raise ValueError(f"field `answerable`: wanted true or false, got {_short(answerable)}")
    name = _id(record, "id")
    if not answerable:
        name = {key: f"{value}#{UNANSWERABLE}" for key, value in name.items()}
    return {
        **name,
        "text": _text(record, "question"),
        "answers": _texts([_text(record, "answer"), *aliases], "answer_aliases") if answerable else NO_ANSWERS,
        "kind": "" if answerable else UNANSWERABLE,
        "hops": len(steps) or None,
        "support": tuple((idx,) for idx in support),
        "context": tuple((str(one.get("title", "")), _text(one, "paragraph_text")) for one in paragraphs),
    }


def _trivia(record: Record) -> dict[str, Any]:
    upper = "Answer" in record
    answer = _field(record, "Answer" if upper else "answer")
    value, aliases = ("Value", "Aliases") if upper else ("value", "aliases")
    if not isinstance(answer, Mapping):
        raise ValueError(f"field `Answer`: wanted an object, got {_short(answer)}")
    others = answer.get(aliases)
    others = [] if others is None else others.tolist() if hasattr(others, "tolist") else others
    if not isinstance(others, (list, tuple)):
        raise ValueError(f"field `Answer.{aliases}`: wanted a list of texts, got {_short(others)}")
    return {
        **_id(record, "QuestionId", "question_id"),
        "text": _text(record, "Question", "question"),
        "answers": _texts([_text(answer, value), *others], f"Answer.{aliases}"),
    }


def _popqa(record: Record) -> dict[str, Any]:
    answers = _field(record, "possible_answers")
    if isinstance(answers, str):
        try:
            answers = json.loads(answers)
        except ValueError:
            raise ValueError(f"field `possible_answers`: wanted a JSON list, got {_short(answers)}") from None
    return {
        **_id(record, "id"),
        "text": _text(record, "question"),
        "answers": _texts(answers, "possible_answers"),
        "kind": record["prop"] if isinstance(record.get("prop"), str) else "",
    }


def _flashrag(record: Record) -> dict[str, Any]:
    metadata = record.get("metadata")
    kind = metadata.get("type") if isinstance(metadata, Mapping) else None
    return {
        **_id(record, "id"),
        "text": _text(record, "question"),
        "answers": _texts(_field(record, "golden_answers"), "golden_answers"),
        "kind": kind if isinstance(kind, str) else "",
    }


def _search_r1(record: Record) -> dict[str, Any]:
    rule = _field(record, "reward_model")
    truth = rule.get("ground_truth") if isinstance(rule, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if target is None:
        raise ValueError(f"field `reward_model.ground_truth.target` is missing, got {_short(rule)}")
    extra = record.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    name = _id(record, "id")
    if not name and extra.get("index") is not None:
        name = {"id": "/".join(str(extra[key]) for key in ("split", "index") if extra.get(key) is not None)}
    return {
        **name,
        "text": _text(record, "question") if record.get("question") else _posed(_field(record, "prompt")),
        "answers": _texts(target, "reward_model.ground_truth.target"),
        "kind": record["data_source"] if isinstance(record.get("data_source"), str) else "",
    }


def _posed(prompt: Any) -> str:
    """The question at the end of a prompt: after the last `Question:`, or else all of the last message."""
    messages: Sequence[Any] = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    content = last.get("content") if isinstance(last, Mapping) else messages
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"field `prompt`: wanted chat messages, got {_short(prompt)}")
    return re.split(r"\bQuestion:", content)[-1].strip()


def _plain(record: Record) -> dict[str, Any]:
    upper = "Answer" in record and "answer" not in record
    name = next((one for one in ("Answer", "answer", "answers") if one in record), "answer")
    if name not in record:
        raise ValueError("field `answer` is missing")
    return {
        **_id(record, "id", "ID", "_id", "question_id"),
        "text": _text(record, *(("Question", "question") if upper else ("question", "Question"))),
        "answers": _texts(record[name], name),
    }


def _dict_answer(record: Record) -> bool:
    return isinstance(record.get("Answer", record.get("answer")), Mapping)


# The first that matches counts: what is told by more fields stands before what is told by fewer.
SCHEMAS = {
    "rtmc": Schema(_has("text", "answers"), dict),
    "search-r1": Schema(_has("prompt", "reward_model"), _search_r1),
    "flashrag": Schema(_has("question", "golden_answers"), _flashrag),
    "musique": Schema(lambda r: _has("question", "paragraphs")(r) or "answer_aliases" in r, _musique),
    "2wiki": Schema(_has("question", "supporting_facts", "evidences"), _hotpot),
    "hotpotqa": Schema(lambda r: "question" in r and ("supporting_facts" in r or "context" in r), _hotpot),
    "triviaqa": Schema(_dict_answer, _trivia),
    "popqa": Schema(_has("question", "possible_answers"), _popqa),
    "bamboogle": Schema(_has("Question", "Answer"), _plain),
    "nq-open": Schema(_has("question", "answer"), _plain),
    "plain": Schema(_has("question", "answers"), _plain),
}
