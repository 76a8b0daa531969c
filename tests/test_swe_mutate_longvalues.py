"""Long values: what stands in code is the very same value, what was printed says that something is left out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.mutate.issue import write_issue
from rtmc.gymenvs.swe.mutate.longvalues import LONGEST, shortened, written
from tests.test_swe_mutate_issue import MUTANT, case

texts = st.lists(st.tuples(st.text(max_size=6), st.integers(1, 400)), max_size=4).map(
    lambda parts: "".join(text * number for text, number in parts)
)
values = st.recursive(
    texts | texts.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(values)
def test_code_makes_the_same_value(value):
    made = eval(written(repr(value)))
    assert repr(made) == repr(value)


@given(st.text(max_size=3000))
def test_text_in_code_has_short_lines(text):
    assert max(map(len, written(repr(text)).split("\n"))) <= LONGEST


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (repr("0.0.0-" + "1" * 3900), "'0.0.0-' + '1' * 3900"),
        (repr("ab" * 500 + "c"), "'ab' * 500 + 'c'"),
        (repr(b"\0" * 1000), "b'\\x00' * 1000"),
        (repr("1" * 50), repr("1" * 50)),
        ("[" + "1, " * 5000 + "...", "[" + "1, " * 5000 + "..."),  # cut off: no literal
    ],
)
def test_what_repeats_itself_is_multiplied(text, code):
    assert written(text) == code


@given(texts)
def test_printed_text_is_whole_or_says_what_is_left_out(text):
    for line, short in zip(text.split("\n"), shortened(text).split("\n"), strict=True):
        if len(line) <= LONGEST:
            assert short == line
            continue
        told = re.fullmatch(r"(.*) \[\.\.\. (\d+) characters left out \.\.\.\] (.*)", short, re.DOTALL)
        assert told is not None
        head, number, tail = told.groups()
        assert line.startswith(head)
        assert line.endswith(tail)
        assert len(head) + int(number) + len(tail) == len(line)


def test_a_task_s_text_has_short_lines():
    long = f"assert 1 == -1\n +  where 1 = total('0.0-{'1' * 3900}')"
    text = write_issue([case(message=long)], MUTANT, 1)
    assert text is not None
    assert max(map(len, text.split("\n"))) <= LONGEST + 50
    assert "characters left out" in text
    raised = write_issue([case(exception="KeyError", message="x" * 3000, inside=True)], MUTANT, 1)
    assert raised is not None
    assert max(map(len, raised.split("\n"))) <= LONGEST + 50
