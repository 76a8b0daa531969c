"""Grading of answers: hand-worked cases, what the official rules say, and properties of any text."""

import math
import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.qa.metrics import (
    Gold,
    Overlap,
    Prediction,
    best_overlap,
    evaluate,
    exact_match,
    f1,
    joint_score,
    normalize_answer,
    sub_exact_match,
    support_score,
)


def official(text):
    """SQuAD's four steps as the paper's script takes them, one after the other and each on its own."""
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a-an the", "aan"),  # punctuation goes first and joins words
        ("the-end", "theend"),
        ("U.S.", "us"),
        ("An apple a day", "apple day"),
        ("“Quoted” — text", "“quoted” — text"),  # only ASCII punctuation goes
        ("Éa the", "éa"),
        ("A", ""),
        ("2, 3", "2 3"),
    ],
)
def test_the_normal_form(text, form):
    assert normalize_answer(text) == form


@given(st.text() | st.text(alphabet="aAnthe THE.'-éΣς 0123", max_size=30))
def test_normalisation_is_official_and_idempotent(text):
    assert normalize_answer(text) == official(text)
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


@pytest.mark.parametrize("text", ["2, 3", "[1, 2]", "12 May 1905", "1,000.5", "a, b and the c", "May the 4th"])
def test_lists_numbers_and_dates_survive_a_second_pass(text):
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text) != ""


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "score"),
    [
        ("the Eiffel tower", "Eiffel Tower", 1, 1),
        ("tower", ["Eiffel Tower"], 0, 2 / 3),
        ("Eiffel", ["Tower", "Eiffel"], 1, 1),
        ("a b c d", ["b c"], 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # `a` is an article
        ("x x y", ["x y y"], 0, 2 / 3),  # multisets: one x, one y are shared
        ("yes", ["yes it is"], 0, 0),  # HotpotQA's rule
        ("yes", ["no"], 0, 0),
        ("Yes.", ["yes"], 1, 1),
        ("noanswer x", ["noanswer"], 0, 0),
        ("", ["x"], 0, 0),
        ("   ", ["   "], 0, 0),
    ],
)
def test_em_and_f1_by_hand(prediction, golds, em, score):
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(score)


@pytest.mark.parametrize("gold", ["A", "The", "a", "?", "...", "an", "A.", "!"])
def test_a_degenerate_gold_is_matched_by_itself_alone(gold):
    assert exact_match(gold, [gold]) == f1(gold, [gold]) == sub_exact_match(gold, [gold]) == 1
    for other in ("B", "", " ", "Paris", "a cat", "the the", ",", "An" if gold != "an" else "A"):
        assert exact_match(other, [gold]) == 0
        assert sub_exact_match(other, [gold]) == 0
    assert exact_match("", ["The", "A"]) == 0


def test_a_degenerate_gold_in_other_dress():
    assert exact_match("a", ["A."]) == exact_match('"The"', ["the"]) == 1
    assert exact_match("?", ["!"]) == 0


TEXTS = st.text(max_size=20) | st.text(alphabet="ab the.yesno ", max_size=20)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_em_is_at_most_f1_and_both_lie_in_0_1(prediction, golds):
    em, score = exact_match(prediction, golds), f1(prediction, golds)
    assert em in (0.0, 1.0)
    assert 0 <= em <= score <= 1
    assert em <= sub_exact_match(prediction, golds)


@given(TEXTS, TEXTS)
def test_f1_is_symmetric(one, other):
    there, back = best_overlap(one, other), best_overlap(other, one)
    assert math.isclose(there.f1, back.f1, abs_tol=1e-15)
    assert (there.precision, there.recall) == (back.recall, back.precision)


@given(TEXTS, TEXTS)
def test_f1_where_the_official_one_is_defined(one, other):
    """Against a count of words, where nothing is degenerate and nothing is yes or no."""
    a, b = official(one).split(), official(other).split()
    if not a or not b or {"yes", "no", "noanswer"} & {" ".join(a), " ".join(b)}:
        return
    shared = sum((Counter(a) & Counter(b)).values())
    assert f1(one, other) == pytest.approx(2 * shared / (len(a) + len(b)))


@pytest.mark.parametrize(
    ("prediction", "gold", "hit"),
    [
        ("It is Paris.", "paris", 1),
        ("Pari", "Paris", 0),
        ("", "x", 0),
        ("the", "He", 0),
        ("an", "N", 0),
        ("The", "the", 1),
        ("A.", "a", 1),
        ("the hen", "He", 1),
    ],
)
def test_sub_em(prediction, gold, hit):
    assert sub_exact_match(prediction, gold) == hit


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: exact_match("x", []), ValueError, "at least one"),
        (lambda: exact_match("x", [1]), TypeError, "golds"),
        (lambda: exact_match(None, ["x"]), TypeError, "NoneType"),
        (lambda: f1("x", {"x"}), TypeError, "set"),
        (lambda: normalize_answer(3), TypeError, "int"),
    ],
)
def test_bad_arguments(call, error, part):
    with pytest.raises(error, match=part):
        call()


def test_supporting_facts_by_hand():
    gold = {("A", 0), ("B", 1)}
    assert support_score([("A", 0), ("C", 2), ("A", 0)], gold) == (0.0, 0.5, 0.5, 0.5)
    assert support_score(gold, gold) == (1.0, 1.0, 1.0, 1.0)
    assert support_score([], gold) == (0.0, 0.0, 0.0, 0.0)


def test_joint_scores_multiply_precision_and_recall():
    joint = joint_score(0.0, Overlap(2 / 3, 1.0, 0.5), support_score([("A", 0)], {("A", 0), ("B", 1)}))
    # precision 1 * 1, recall 1/2 * 1/2
    assert joint == (0.0, pytest.approx(2 * 0.25 / 1.25), 1.0, 0.25)


def test_evaluate_by_hand():
    golds = {
        "1": Gold(("Paris",), frozenset({("A", 0), ("B", 1)})),
        "2": Gold(("The Nile", "Nile River"), frozenset({("C", 0)})),
        "3": Gold(("yes",)),
        "4": Gold(("x",)),
    }
    said = {
        "1": Prediction("paris", frozenset({("A", 0), ("B", 1)})),
        "2": Prediction("the Nile river basin"),
        "3": Prediction("no"),
    }
    scores = evaluate(said, golds)
    assert (scores["questions"], scores["missing"]) == (4, 1)
    assert scores["em"] == 1 / 4
    # Question 2: `nile river basin` against `nile river`: precision 2/3, recall 1.
    assert scores["f1"] == pytest.approx((1 + 0.8) / 4)
    assert scores["precision"] == pytest.approx((1 + 2 / 3) / 4)
    assert scores["sub_em"] == 2 / 4
    # Two questions name supporting facts; of the second the prediction names none.
    assert scores["sp_em"] == scores["sp_f1"] == scores["joint_em"] == scores["joint_f1"] == 1 / 2


def test_supporting_facts_are_scored_without_an_answer():
    """As HotpotQA's script has it: `sp` by itself, the joint scores where both are told."""
    golds = {"1": Gold(("x",), frozenset({("A", 0)})), "2": Gold(("y",), frozenset({("B", 0), ("C", 1)}))}
    scores = evaluate(
        {"1": Prediction(None, frozenset({("A", 0)})), "2": Prediction("y", frozenset({("B", 0)}))}, golds
    )
    assert (scores["missing"], scores["em"], scores["sp_em"], scores["joint_em"]) == (1, 0.5, 0.5, 0.0)
    assert scores["sp_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["joint_f1"] == pytest.approx((2 / 3) / 2)


def test_evaluate_without_support_has_no_such_scores():
    assert "sp_em" not in evaluate({"1": Prediction("x")}, {"1": Gold(("x",), frozenset({("A", 0)}))})


def test_evaluate_refuses():
    with pytest.raises(ValueError, match="no gold"):
        evaluate({}, {})
    with pytest.raises(ValueError, match="'7'"):
        evaluate({"7": Prediction("x")}, {"1": Gold(("x",))})
