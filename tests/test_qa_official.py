"""Scores of answers against the official rules, written here from the papers' formulas in exact fractions.

SQuAD 1.1 and HotpotQA: answers, supporting facts and joint scores of whole files. MuSiQue-Full: predictions stand in
the order of the questions; of two questions with one id, that without an answer is graded by `predicted_answerable`.
"""

import json
import random
import string
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.qa.metrics import (
    Gold,
    Prediction,
    best_overlap,
    evaluate,
    exact_match,
    f1,
    joint_score,
    support_score,
)
from rtmc.gymenvs.qa.scoring import evaluate_files

CLOSED = {"yes", "no", "noanswer"}
# No text that normalises to nothing: there the project's rule differs from the official one, and says so.
WORDS = ["nile", "river", "the", "a", "yes", "no", "noanswer", "1905", "U.S.", "Nile,", "delta", "delta's"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join).filter(lambda text: words(text))
FACTS = st.frozensets(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)), max_size=4)


def words(text):
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in bare.split() if word not in ("a", "an", "the")]


def harmonic(precision, recall):
    return 2 * precision * recall / (precision + recall) if precision + recall else Fraction(0)


def answer_scores(prediction, gold):
    """(EM, F1, precision, recall) of one gold by HotpotQA's rule."""
    mine, right = words(prediction), words(gold)
    same = mine == right
    if not same and {" ".join(mine), " ".join(right)} & CLOSED:
        return Fraction(0), Fraction(0), Fraction(0), Fraction(0)
    common = sum(min(mine.count(word), right.count(word)) for word in set(mine))
    precision, recall = Fraction(common, len(mine)), Fraction(common, len(right))
    return Fraction(same), harmonic(precision, recall), precision, recall


def fact_scores(named, right):
    hits = sum(fact in right for fact in named)
    missed = sum(fact not in named for fact in right)
    precision = Fraction(hits, len(named)) if named else Fraction(0)
    recall = Fraction(hits, hits + missed) if hits + missed else Fraction(0)
    return Fraction(hits == len(named) and not missed), harmonic(precision, recall), precision, recall


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
@example("nile nile river river", ["nile river river river river", "nile nile"])  # both have an F1 of 2/3
def test_answers_by_the_official_formulas(prediction, golds):
    by_gold = [answer_scores(prediction, gold) for gold in golds]
    assert exact_match(prediction, golds) == max(em for em, *_ in by_gold)
    best = max(by_gold, key=lambda scores: scores[1])
    assert f1(prediction, golds) == pytest.approx(float(best[1]), abs=1e-12)
    # Precision and recall are those of the first gold with the best F1, not each the best of some gold.
    assert best_overlap(prediction, golds) == pytest.approx(tuple(map(float, best[1:])), abs=1e-12)


@pytest.mark.parametrize("closed", sorted(CLOSED))
def test_a_closed_answer_has_no_part_right(closed):
    for one, other in ((closed, f"{closed} nile"), (f"nile {closed}", closed)):
        assert best_overlap(one, other) == (0, 0, 0)
        assert best_overlap(f"{one} x", f"{other} x").f1 > 0  # it is the whole answer that is closed
    assert best_overlap(f"The {closed}!", closed.upper()) == (1, 1, 1)
    # Of several golds, one that is closed does not spoil the others.
    assert f1("nile", [closed, "nile delta"]) == pytest.approx(2 / 3)


@given(FACTS, FACTS, TEXTS, TEXTS)
def test_facts_and_joint_scores_by_the_official_formulas(named, right, prediction, gold):
    facts = fact_scores(named, right)
    assert support_score(named, right) == pytest.approx(tuple(map(float, facts)), abs=1e-12)
    em, _, precision, recall = answer_scores(prediction, gold)
    both = precision * facts[2], recall * facts[3]
    joint = joint_score(exact_match(prediction, gold), best_overlap(prediction, gold), support_score(named, right))
    assert joint == pytest.approx((em * facts[0], harmonic(*both), *both), abs=1e-12)


def hotpot(predictions, facts, golds):
    """HotpotQA's evaluation of a whole file: sums over the questions, divided by their number."""
    total = Counter()
    for name, (answer, right) in golds.items():
        answered, named = name in predictions, name in facts
        if answered:
            scores = answer_scores(predictions[name], answer)
            total.update(dict(zip(("em", "f1", "precision", "recall"), scores, strict=True)))
        if named:
            sp = fact_scores(facts[name], right)
            total.update(dict(zip(("sp_em", "sp_f1", "sp_precision", "sp_recall"), sp, strict=True)))
        if answered and named:
            both = scores[2] * sp[2], scores[3] * sp[3]
            joint = scores[0] * sp[0], harmonic(*both), *both
            total.update(dict(zip(("joint_em", "joint_f1", "joint_precision", "joint_recall"), joint, strict=True)))
    return {name: total[name] / len(golds) for name in total}


@settings(deadline=None)
@given(st.data())
def test_whole_files_by_hotpotqa_s_evaluation(data):
    golds = data.draw(
        st.dictionaries(st.sampled_from("12345"), st.tuples(TEXTS, FACTS.filter(bool)), min_size=1), label="golds"
    )
    predictions = data.draw(st.dictionaries(st.sampled_from(sorted(golds)), TEXTS), label="predictions")
    facts = data.draw(st.dictionaries(st.sampled_from(sorted(golds)), FACTS, min_size=1), label="facts")
    said = {name: Prediction(predictions.get(name), facts.get(name)) for name in predictions.keys() | facts.keys()}
    scores = evaluate(said, {name: Gold((answer,), right) for name, (answer, right) in golds.items()})
    assert scores["missing"] == len(golds) - len(predictions)
    wanted = hotpot(predictions, facts, golds)
    for name in scores.keys() - {"questions", "missing", "sub_em"}:
        assert scores[name] == pytest.approx(float(wanted.get(name, 0)), abs=1e-12), name


def musique(number, answerable, aliases=()):
    paragraphs = [
        {"idx": idx, "title": "T", "paragraph_text": "x", "is_supporting": idx in (1, 2) and (answerable or idx == 1)}
        for idx in range(4)
    ]
    return {
        "id": f"2hop__{number}",
        "question": f"Who is {number}?",
        "answer": f"ana {number}",
        "answer_aliases": list(aliases),
        "answerable": answerable,
        "paragraphs": paragraphs,
    }


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", range(6))
def test_predictions_of_musique_full_stand_in_the_order_of_the_questions(tmp_path, seed):
    """As in MuSiQue's script: line by line, answers and support of what has an answer, the other by its verdict."""
    rng = random.Random(seed)
    golds = [musique(n, answerable, ["anna"]) for n in range(8) for answerable in (True, False)]
    rng.shuffle(golds)
    said = [
        {
            "id": gold["id"],
            "predicted_answer": rng.choice([gold["answer"], "anna", f"ana {gold['id'][6:]} dorr", "bob"]),
            "predicted_support_idxs": rng.sample(range(4), rng.randint(0, 3)),
            "predicted_answerable": rng.random() < 0.5,
        }
        for gold in golds
    ]
    scores = evaluate_files(lines(tmp_path / "pred.jsonl", said), lines(tmp_path / "gold.jsonl", golds))
    em = sp_f1 = right = Fraction(0)
    for gold, one in zip(golds, said, strict=True):
        if not gold["answerable"]:
            right += not one["predicted_answerable"]
            continue
        em += max(answer_scores(one["predicted_answer"], wording)[0] for wording in (gold["answer"], "anna"))
        sp_f1 += fact_scores(set(one["predicted_support_idxs"]), {1, 2})[1]
    assert 0 < em < 8
    assert 0 < right < 8
    assert (scores["questions"], scores["missing"]) == (16, 0)
    assert scores["em"] == pytest.approx(float((em + right) / 16))
    assert scores["sp_f1"] == pytest.approx(float(sp_f1 / 8))


GOLDS = [musique(1, True), musique(1, False), musique(2, False), musique(2, True), musique(3, False)]
WITHOUT = {"predicted_answer": "", "predicted_answerable": False}


@pytest.mark.parametrize(
    ("said", "em", "missing"),
    [
        # Once for both: of the question with an answer, wherever it stands.
        ([{"id": "2hop__2", "predicted_answer": "ana 2"}], 1, 4),
        ([{"id": "2hop__1", "predicted_answer": "ana 1"}, {"id": "2hop__1#unanswerable", "answer": "no answer"}], 2, 3),
        ([{"id": "2hop__1", "answer": "ana 1"}, {"id": "2hop__1", "answer": "noanswer"}], 2, 3),
        ([{"id": "2hop__1", "answer": "noanswer"}, {"id": "2hop__1", "answer": "ana 1"}], 0, 3),
        ([{"id": "2hop__2", **WITHOUT}, {"id": "2hop__2", "predicted_answer": "ana 2"}], 2, 3),
        # A verdict counts, not the words beside it; where there is an answer, the words.
        ([{"id": "2hop__3", "predicted_answer": "ana 3", "predicted_answerable": False}], 1, 4),
        ([{"id": "2hop__3", "predicted_answer": "noanswer", "predicted_answerable": True}], 0, 4),
        ([{"id": "2hop__1", "predicted_answer": "ana 1", "predicted_answerable": False}], 1, 4),
    ],
)
def test_which_twin_a_prediction_is_of(tmp_path, said, em, missing):
    gold = lines(tmp_path / "gold.jsonl", GOLDS)
    scores = evaluate_files(lines(tmp_path / "pred.jsonl", said), gold)
    assert (scores["em"] * 5, scores["missing"]) == (pytest.approx(em), missing)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([{"id": "2hop__1", "answer": "x"}] * 3, "record 2: the question '2hop__1' was answered before"),
        ([{"id": "2hop__3", "answer": "x"}] * 2, "record 1: no question of .* has the id '2hop__3'"),
        (
            [{"id": "2hop__1", "answer": "x"}] * 2 + [{"id": "2hop__1#unanswerable", "answer": "x"}],
            "record 3: the question '2hop__1#unanswerable' was answered before",
        ),
        ([{"id": "2hop__1", "answer": "x", "predicted_answerable": "no"}], "record 1: field `predicted_answerable`"),
    ],
)
def test_what_names_no_twin_is_refused(tmp_path, said, message):
    gold = lines(tmp_path / "gold.jsonl", GOLDS)
    with pytest.raises(ValueError, match=message):
        evaluate_files(lines(tmp_path / "pred.jsonl", said), gold)
