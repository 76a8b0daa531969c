"""The text of a made task: tells the behaviour, keeps the place to itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.mutate.issue import Case, gives_away, write_issue
from rtmc.gymenvs.swe.mutate.mutants import Mutant
from rtmc.gymenvs.swe.mutate.snippet import Snippet

MUTANT = Mutant(
    "src/shop/prices.py", "operator", (("total", 3),), b"", (("return found - discount",), ("return found + discount",))
)
SETTING = "from shop import total\n\nexpected = 100"


def case(statement="assert total(prices, discount=3) == expected", before="prices = [100, 3]", expected="", **changes):
    note = {
        "test": "tests/test_shop.py::test_total",
        "exception": "AssertionError",
        "message": "assert 106 == 100\n +  where 106 = total([100, 3], discount=3)",
        "inside": False,
        "parameters": {"expected": "100"},
        "values": {"prices": "[100, 3]", "expected": "100"},
        "ours": ["total"],
        **changes,
    }
    return Case(note, Snippet(f"{SETTING}\n\n{before}\n{statement}", SETTING, statement, expected))


def title(*cases) -> str:
    text = write_issue(cases, MUTANT, 1)
    assert text is not None
    return text.splitlines()[0]


def test_inputs_expected_and_actual():
    text = write_issue([case()], MUTANT, 3)
    assert text is not None
    assert text.splitlines()[0] == "Wrong result of `total([100, 3], discount=3)`"
    assert "    prices = [100, 3]\n    assert total(prices, discount=3) == expected\n" in text
    assert "I expect `total(prices, discount=3) == expected` to hold.\n" in text
    assert "What I get:\n\n    106 == 100\n      where 106 = total([100, 3], discount=3)\n" in text
    assert text.endswith("I see this in 2 more cases of the same kind.\n")


def test_a_traceback_without_the_package_s_frames():
    text = write_issue([case(exception="KeyError", message="'a'", inside=True)], MUTANT, 1)
    assert text is not None
    assert text.splitlines()[0] == "KeyError from `total([100, 3], discount=3)`"
    expected = [
        "    Traceback (most recent call last):",
        "      assert total(prices, discount=3) == expected",
        "          ... frames inside the package left out ...",
        "    KeyError: 'a'",
    ]
    assert "\n".join(expected) in text


@pytest.mark.parametrize(
    ("statement", "changes", "wanted", "said"),
    [
        # A loop over a builtin: what the loop calls is named, with the value it had.
        ("assert total(n) == 2 * n", {"values": {"n": "4"}}, "Wrong result of `total(4)`", "    n = 4"),
        ("assert len(total(1)) == len([2])", {}, "`len(total(1)) == len([2])` does not hold", "106 == 100"),
        ("assert b.size == 5", {}, "`b.size == 5` does not hold", "106 == 100"),
        ("assert helper(3) == 5", {}, "`helper(3) == 5` does not hold", "106 == 100"),
        ("self.assertEqual(total(1), 2)", {}, "Wrong result of `total(1)`", "I expect `total(1) == 2` to hold."),
        ("assert not total(1)", {}, "Wrong result of `total(1)`", "I expect `not total(1)` to hold."),
        (
            "assert total(1) == Total(1)",
            {"message": "assert Total(1) == Total(1)"},
            "`total(1) == Total(1)` does not hold",
            "Total(1) == Total(1)",
        ),
        ("helper(3)", {"exception": "KeyError"}, "KeyError in plain use", "KeyError: "),
        ("import shop", {"exception": "OSError"}, "OSError from `import shop`", "OSError: "),
    ],
)
def test_what_the_title_names(statement, changes, wanted, said):
    text = write_issue([case(statement, **changes)], MUTANT, 1)
    assert text is not None
    assert text.splitlines()[0] == wanted
    assert said in text


def test_a_function_that_the_code_defines_is_not_the_package_s():
    own = case("assert f(1) is True", "@total\ndef f(x):\n    return False\n", ours=["f", "total"])
    assert title(own) == "`f(1) is True` does not hold"


@pytest.mark.parametrize(
    ("statement", "changes", "wanted", "said"),
    [
        (
            "total(None)",
            {"exception": "Failed", "message": "DID NOT RAISE <class 'ValueError'>"},
            "No ValueError from `total(None)`",
            "I expect `ValueError` to be raised there, and no error comes.",
        ),
        (
            "self.assertRaises(ValueError, total, -3)",
            {"message": "ValueError not raised by total"},
            "No ValueError from `total(-3)`",
            "and no error comes.",
        ),
        (
            "total(None)",
            {"exception": "KeyError", "message": "1"},
            "KeyError instead of ValueError from `total(None)`",
            "I expect `ValueError` to be raised there; `KeyError` comes:",
        ),
        (
            "total(None)",
            {"message": "Regex pattern did not match."},
            "Wrong text of ValueError from `total(None)`",
            "I expect `ValueError` there, and with another text.",
        ),
    ],
)
def test_an_error_that_is_expected(statement, changes, wanted, said):
    text = write_issue([case(statement, expected="ValueError", **changes)], MUTANT, 1)
    assert text is not None
    assert text.splitlines()[0] == wanted
    assert said in text


def test_addresses_and_modules_of_classes_go():
    message = (
        "assert <shop.prices.Bill object at 0x7f00deadbeef> == <function f.<locals>.g at 0x7f00deadbeef>\n"
        " +  where <function total at 0x7f00deadbeef> = shop.total"
    )
    text = write_issue([case(message=message)], MUTANT, 1)
    assert text is not None
    assert "<Bill> == <function f.g>" in text
    assert "= shop.total" not in text


@pytest.mark.parametrize(
    "secret", ["prices.py", "src/shop/prices.py", "shop.prices", "return found - discount", "return found + discount"]
)
def test_what_would_give_the_place_away(secret):
    assert write_issue([case(before=f"x = {secret!r}")], MUTANT, 1) is None
    assert write_issue([case(message=f"assert {secret}")], MUTANT, 1) is None
    assert write_issue([case(), case(message=f"assert {secret}")], MUTANT, 2) is None


def test_an_import_may_name_the_module():
    text = write_issue([case(before="from shop.prices import total")], MUTANT, 1)
    assert text is not None
    assert not gives_away("    import shop.prices as p\n", MUTANT)
    assert gives_away("import shop.prices\nshop.prices.total\n", MUTANT)


PIECES = st.sampled_from(
    [
        "",
        "prices.py",
        "return found - discount",
        "shop.prices",
        "a = 1",
        "assert f(x) == 1",
        "<shop.X object>",
        "(",
        "\n",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=4).map(" ".join)


@given(
    st.lists(
        st.builds(
            case,
            TEXTS,
            TEXTS,
            expected=st.sampled_from(["", "KeyError"]),
            exception=st.sampled_from(["AssertionError", "Failed", "KeyError"]),
            message=TEXTS,
            inside=st.booleans(),
            parameters=st.dictionaries(st.sampled_from(["x", "y"]), TEXTS, max_size=2),
            values=st.dictionaries(st.sampled_from(["x", "z"]), TEXTS, max_size=2),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_text_gives_the_place_away(cases):
    text = write_issue(cases, MUTANT, len(cases))
    if text is not None:
        imports = ("import ", "from ")
        rest = "\n".join(line for line in text.split("\n") if not line.strip().startswith(imports))
        assert "shop.prices" not in rest
        for secret in ("prices.py", "shop/prices", *MUTANT.lines[0], *MUTANT.lines[1]):
            assert secret not in text
