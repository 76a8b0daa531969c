"""The text of a made task: tells the behaviour, keeps the place to itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.mutate.issue import gives_away, write_issue
from rtmc.gymenvs.swe.mutate.mutants import Mutant

MUTANT = Mutant(
    "src/shop/prices.py", "operator", (("total", 3),), b"", (("return found - discount",), ("return found + discount",))
)


def note(**changes):
    return {
        "test": "tests/test_shop.py::test_total",
        "exception": "AssertionError",
        "message": "assert 106 == 100\n +  where 106 = total([100, 3], discount=3)",
        "inside": False,
        "parameters": {},
        "statement": "assert total(prices, discount=3) == expected",
        "before": ["prices = [100, 3]"],
        "values": {"prices": "[100, 3]", "expected": "100"},
        "depth": 1,
        **changes,
    }


def test_inputs_expected_and_actual():
    text = write_issue([note()], MUTANT, 3)
    assert text is not None
    assert text.splitlines()[0] == "Wrong result of `total(prices, discount=3)`"
    assert "    prices = [100, 3]\n    assert total(prices, discount=3) == expected\n" in text
    assert "where\n\n    expected = 100\n" in text
    assert "What I get:\n\n    106 == 100\n      where 106 = total([100, 3], discount=3)\n" in text
    assert text.endswith("I see this in 2 more cases of the same kind.\n")


def test_a_traceback_without_the_package_s_frames():
    text = write_issue([note(exception="KeyError", message="'a'", inside=True)], MUTANT, 1)
    assert text is not None
    assert text.splitlines()[0] == "KeyError from `total(prices, discount=3)`"
    expected = [
        "    Traceback (most recent call last):",
        "      assert total(prices, discount=3) == expected",
        "          ... frames inside the package left out ...",
        "    KeyError: 'a'",
    ]
    assert "\n".join(expected) in text


def test_an_error_that_is_missing():
    statement = "with pytest.raises(ValueError):\n    total(None)"
    text = write_issue(
        [note(exception="Failed", message="DID NOT RAISE <class 'ValueError'>", statement=statement)], MUTANT, 1
    )
    assert text is not None
    assert text.splitlines()[0] == "No error from `total(None)`"
    assert "DID NOT RAISE" in text


def test_addresses_and_modules_of_classes_go():
    message = "assert <shop.prices.Bill object at 0x7f00deadbeef> == <function f at 0x7f00deadbeef>"
    text = write_issue([note(message=message)], MUTANT, 1)
    assert text is not None
    assert "<Bill> == <function f>" in text


@pytest.mark.parametrize(
    "secret", ["prices.py", "src/shop/prices.py", "shop.prices", "return found - discount", "return found + discount"]
)
def test_what_would_give_the_place_away(secret):
    # In the steps before: the failing statement alone is shown. In what came: another case is; or there is no text.
    text = write_issue([note(before=[f"x = {secret!r}"])], MUTANT, 1)
    assert text is not None
    assert "prices = " not in text.split("where")[0]
    assert not gives_away(text, MUTANT)
    other = note(test="tests/test_shop.py::test_other", statement="assert other(1) == 2", before=[])
    text = write_issue([note(message=f"assert {secret}"), other], MUTANT, 2)
    assert text is not None
    assert text.startswith("Wrong result of `other(1)`")
    assert not gives_away(text, MUTANT)
    assert write_issue([note(message=f"assert {secret}")], MUTANT, 1) is None


def test_nothing_was_seen():
    assert write_issue([], MUTANT, 1) is None
    assert write_issue([note(statement="")], MUTANT, 1) is None


PIECES = st.sampled_from(
    [
        "",
        "prices.py",
        "return found - discount",
        "shop.prices",
        "a = 1",
        "assert f(x) == 1",
        "<shop.prices.X object>",
        "(",
        "\n",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=4).map(" ".join)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "test": st.sampled_from(["t::a", "t::b", "t::a[1]"]),
                "exception": st.sampled_from(["AssertionError", "Failed", "KeyError"]),
                "message": TEXTS,
                "inside": st.booleans(),
                "parameters": st.dictionaries(st.sampled_from(["x", "y"]), TEXTS, max_size=2),
                "statement": TEXTS,
                "before": st.lists(TEXTS, max_size=2),
                "values": st.dictionaries(st.sampled_from(["x", "z"]), TEXTS, max_size=2),
                "depth": st.none() | st.integers(1, 5),
            }
        ),
        max_size=4,
    )
)
def test_no_text_gives_the_place_away(notes):
    text = write_issue(notes, MUTANT, len(notes))
    if text is not None:
        for secret in ("prices.py", "shop.prices", "shop/prices", *MUTANT.lines[0], *MUTANT.lines[1]):
            assert secret not in text
