"""How answers are graded: normalisation, exact match, F1, supporting facts and the joint scores.

The rules are those that SQuAD 1.1, HotpotQA and MuSiQue share, on the 0 to 1 scale:

    normalize_answer(x) = lower case -> drop ASCII punctuation -> drop the words a, an, the -> single spaces
    EM(p, golds)        = max over golds g of [form(p) = form(g)]
    F1(p, golds)        = max over golds g of 2 P R / (P + R),  P = o / |form(p)|,  R = o / |form(g)|

with o the size of the overlap of the two multisets of words, and F1 = 0 where one of the two is `yes`, `no` or
`noanswer` and they differ (HotpotQA). `form` is `normalize_answer` but for one rule of ours:

Degenerate texts. Normalisation leaves nothing of "A", "The" or "?". The official scripts then call every such
prediction right (and an empty one too), and the model that says "A" of a gold "A." may lose. Here a text that would
normalise to nothing is compared in the first of these forms that is not empty: with its articles kept, with its
punctuation kept too. So the gold "A" is matched by "a" and "A.", by nothing empty and by no "B"; a prediction
without any character but blanks is never right.

Sources: the evaluation scripts of SQuAD 1.1 (Rajpurkar et al. 2016), HotpotQA (Yang et al. 2018), MuSiQue (Trivedi et
al. 2022). What this is not: a judge of meaning.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})


class Overlap(NamedTuple):
    """F1 with its parts, each from 0 to 1."""

    f1: float
    precision: float
    recall: float


class SupportScore(NamedTuple):
    """How well the supporting facts were named: `em` is 0.0 or 1.0, the others are from 0 to 1."""

    em: float
    f1: float
    precision: float
    recall: float


def normalize_answer(text: str) -> str:
    """The official normal form: lower case, no ASCII punctuation, no articles, single spaces, in this order.

    Idempotent. It may be empty: grading then compares other forms, see the module.

    Raises:
        TypeError: `text` is no string.
    """
    _want_text("text", text)
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def graded_form(text: str) -> str:
    """What is compared: `normalize_answer(text)`, or for a degenerate text the first form that is not empty.

    Raises:
        TypeError: `text` is no string.
    """
    lower = text.lower() if isinstance(text, str) else text
    return normalize_answer(text) or " ".join(lower.translate(_PUNCTUATION).split()) or " ".join(lower.split())


def exact_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1.0 if the prediction equals one of the golds after normalisation, else 0.0.

    Args:
        prediction: the answer given.
        golds: one right answer, or all its accepted wordings (at least one).

    Raises:
        TypeError: something is no text. ValueError: there is no gold.
    """
    form = graded_form(prediction)
    return float(bool(form) and any(form == graded_form(gold) for gold in _as_golds(golds)))


def f1(prediction: str, golds: str | Sequence[str]) -> float:
    """The F1 of words, from 0 to 1, best over the golds. Arguments and errors as in `exact_match`."""
    return best_overlap(prediction, golds).f1


def best_overlap(prediction: str, golds: str | Sequence[str]) -> Overlap:
    """F1, precision and recall against the gold with the best F1 (the first of equals)."""
    form = graded_form(prediction)
    overlaps = (_overlap(form, graded_form(gold)) for gold in _as_golds(golds))
    return max(overlaps, key=lambda one: round(one.f1, 12))  # equal fractions may differ in the last bit


def sub_exact_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1.0 if a normalised gold occurs in the normalised prediction, character by character, else 0.0.

    A degenerate gold has to be the whole prediction: the letter `a` occurs in almost any text.
    """
    form, said = graded_form(prediction), normalize_answer(prediction)
    for gold in _as_golds(golds):
        wanted = normalize_answer(gold)
        # Not in `form`: "he" stands in "the", which normalises to nothing.
        if (wanted and wanted in said) or (form and form == graded_form(gold)):
            return 1.0
    return 0.0


def support_score(predicted: Iterable[Hashable], gold: Iterable[Hashable]) -> SupportScore:
    """Scores of a set of supporting facts, e.g. (title, sentence number) pairs or paragraph numbers.

    Precision (recall) is 0 where nothing is predicted (wanted); EM is 1 where the sets are equal.
    """
    named, wanted = set(predicted), set(gold)
    hits = len(named & wanted)
    precision = hits / len(named) if named else 0.0
    recall = hits / len(wanted) if wanted else 0.0
    return SupportScore(float(named == wanted), _harmonic(precision, recall), precision, recall)


def joint_score(em: float, answer: Overlap, support: SupportScore) -> SupportScore:
    """HotpotQA's joint scores: precisions and recalls are multiplied, and F1 is taken of the products."""
    precision, recall = answer.precision * support.precision, answer.recall * support.recall
    return SupportScore(em * support.em, _harmonic(precision, recall), precision, recall)


class Prediction(NamedTuple):
    """What a system said of one question. `answer` None = nothing; `support` None = it names no supporting facts."""

    answer: str | None
    support: frozenset[Hashable] | None = None


class Gold(NamedTuple):
    """What is right of one question. `support` empty = the data set names no supporting facts."""

    answers: tuple[str, ...]
    support: frozenset[Hashable] = frozenset()


def evaluate(predictions: Mapping[str, Prediction], golds: Mapping[str, Gold]) -> dict[str, float | int]:
    """Mean scores over all golds, by the id of the question.

    A question without an answer counts as wrong and is counted in `missing`, as in HotpotQA's script; supporting facts
    that are named for it are scored all the same, but not its joint scores. The scores
    `sp_*` and `joint_*` are there if any gold names supporting facts and any prediction does; they are means over the
    golds that name some, and a prediction that names none has an empty set.

    Returns:
        `questions`, `missing`, `em`, `f1`, `precision`, `recall`, `sub_em`, and where told `sp_em`, `sp_f1`,
        `sp_precision`, `sp_recall`, `joint_em`, `joint_f1`, `joint_precision`, `joint_recall`.

    Raises:
        ValueError: there are no golds, or a prediction has an id that no gold has.
    """
    if not golds:
        raise ValueError("evaluate: there are no gold answers; at least one question is wanted")
    strange = [name for name in predictions if name not in golds]
    if strange:
        raise ValueError(
            f"evaluate: {len(strange)} of {len(predictions)} predictions have an id that no question has, "
            f"the first {strange[0]!r}; ids of the questions are like {next(iter(golds))!r}"
        )
    supported = [name for name, gold in golds.items() if gold.support]
    with_support = bool(supported) and any(one.support is not None for one in predictions.values())
    sums: Counter[str] = Counter()
    missing = 0
    for name, gold in golds.items():
        said = predictions.get(name, Prediction(None))
        told: dict[str, float] = {}
        if said.answer is None:
            missing += 1
        else:
            em, overlap = exact_match(said.answer, gold.answers), best_overlap(said.answer, gold.answers)
            told |= {"em": em, **overlap._asdict(), "sub_em": sub_exact_match(said.answer, gold.answers)}
        if with_support and gold.support:
            support = support_score(said.support or (), gold.support)
            told |= {f"sp_{key}": value for key, value in support._asdict().items()}
            if said.answer is not None:
                told |= {f"joint_{key}": value for key, value in joint_score(em, overlap, support)._asdict().items()}
        sums.update(told)  # a Counter adds floats as well
    names = ["em", "f1", "precision", "recall", "sub_em"]
    scores: dict[str, float | int] = {"questions": len(golds), "missing": missing}
    scores |= {name: sums[name] / len(golds) for name in names}
    if with_support:
        pairs = [f"{kind}_{key}" for kind in ("sp", "joint") for key in SupportScore._fields]
        scores |= {name: sums[name] / len(supported) for name in pairs}
    return scores


def _overlap(form: str, gold: str) -> Overlap:
    if (form in _CLOSED or gold in _CLOSED) and form != gold:
        return Overlap(0.0, 0.0, 0.0)
    mine, wanted = Counter(form.split()), Counter(gold.split())
    shared = (mine & wanted).total()
    if not shared:
        return Overlap(0.0, 0.0, 0.0)
    precision, recall = shared / mine.total(), shared / wanted.total()
    return Overlap(_harmonic(precision, recall), precision, recall)


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _as_golds(golds: str | Sequence[str]) -> Sequence[str]:
    listed = (golds,) if isinstance(golds, str) else golds
    if not isinstance(listed, (list, tuple)):
        raise TypeError(f"golds: wanted a string or a list of strings, got {type(golds).__name__}")
    if not listed:
        raise ValueError("golds: the list is empty; at least one right answer is wanted")
    for gold in listed:
        _want_text("golds", gold)
    return listed


def _want_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: wanted a string, got {type(value).__name__}: {value!r}")
