"""Splicing a module's text: whatever it is written with, an edit changes its own bytes and no other."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.mutate.text import Edit, Source, changed_only, differences


def comparison(source: Source) -> ast.Compare:
    return next(node for node in ast.walk(source.tree) if isinstance(node, ast.Compare))


@pytest.mark.parametrize(
    "data",
    [
        b"def f(a):\n    return a < 1  # why\n",
        b"def f(a):\r\n    return a < 1\r\n",
        b"def f(a):\r    return a < 1\r",
        b"\xef\xbb\xbfdef f(a):\n\treturn a < 1",
        "def f(a):\n    return 'äöü€𝄞' if a < 1 else ''\n".encode(),
        "# -*- coding: latin-1 -*-\ndef f(a):\n    return 'äöü' if a < 1 else 'ß'\n".encode("latin-1"),
        "x = '\u2028 \x0b \x0c \x1c'\nif x  \\\n   < 1: pass\n".encode(),
        b"\x0c\ndef f(a):\n    s = '''\n\r\n'''\n    return (a #\n  < 1)\n",
        b"f'{1}' ; y = 3 < 1\n",
    ],
)
def test_nothing_but_the_edit_changes(data):
    source = Source(data, "m.py")
    node = comparison(source)
    start, end = source.span(node.comparators[0])
    assert source.text(start, end) == "1"
    changed = source.splice([Edit(start, end, "42")])
    # The byte that stands for the 1 behind the comparison's sign, found without the tree.
    at = data.index(b"1", data.index(b"<"))
    assert changed == data[:at] + b"42" + data[at + 1 :]
    assert source.splice([]) == data


def test_a_column_counts_bytes_of_utf_8():
    source = Source("名 = 'ü'; y = 名 + 'é'\n".encode(), "m.py")
    binary = next(node for node in ast.walk(source.tree) if isinstance(node, ast.BinOp))
    assert source.of(binary) == "名 + 'é'"
    assert source.of(binary.right) == "'é'"


def test_edits_go_in_together_and_must_not_overlap():
    source = Source(b"a = b + c\n")
    assert source.splice([Edit(8, 9, "dd"), Edit(0, 1, "xyz")]) == b"xyz = b + dd\n"
    with pytest.raises(ValueError, match="overlap at byte 5"):
        source.splice([Edit(4, 7, ""), Edit(5, 6, "")])


@pytest.mark.parametrize(
    "data", [b"def f(:\n", b"x = '\xff'\n", b"# coding: no-such-codec\n", b"a\0b", b"(" * 500 + b")" * 500]
)
def test_what_is_no_module(data):
    with pytest.raises(ValueError, match=r"broken\.py: this is no Python module"):
        Source(data, "broken.py")


def test_a_comment_between_nodes_hides_its_signs():
    source = Source(b"y = (a  # < not this\n     < b)\n")
    node = comparison(source)
    gap = source.gap(source.span(node.left)[1], source.span(node.comparators[0])[0])
    assert gap.count(b"<") == 1
    assert len(gap) == len(b"  # < not this\n     < ")


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ("a = 1", "a  =  1 # x", []),
        ("a = 1", "a = True", [("body", 0, "value", "value")]),
        ("a = 0.0", "a = -0.0", [("body", 0, "value")]),
        ("a = b + c", "a = b - c", [("body", 0, "value", "op")]),
        ("a = 1\nb = 2", "a = 1", [("body",)]),
        ("f(a, b)", "f(b, a)", [("body", 0, "value", "args", 0, "id"), ("body", 0, "value", "args", 1, "id")]),
        ("a = b * c + d", "a = b + c + d", [("body", 0, "value", "left", "op")]),
        ("a = b + c * d", "a = b + c + d", [("body", 0, "value", "left"), ("body", 0, "value", "right")]),
    ],
)
def test_differences_are_the_highest_places(old, new, paths):
    found = differences(ast.parse(old), ast.parse(new))
    assert sorted(map(str, found)) == sorted(map(str, paths))


def test_a_change_elsewhere_is_seen():
    source = Source(b"a = b + c * d\n")
    product = ("body", 0, "value", "right")
    assert changed_only(source, b"a = b + c // d\n", [product])
    assert not changed_only(source, b"a = b + c + d\n", [product])  # precedence turned the tree round
    assert not changed_only(source, b"a = b + c * d  # same\n", [product])
    assert not changed_only(source, b"a = b + c * d)\n", [product])
    assert not changed_only(source, b"a = b - c // d\n", [product])


@given(st.text(st.characters(codec="utf-8", exclude_characters="'\\\n\r\0"), max_size=30), st.sampled_from("\n\r"))
def test_any_text_before_the_site(text, end):
    data = f"s = '{text}'{end}t = '{text}' if s == 5 else 6{end}".encode()
    source = Source(data)
    start, stop = source.span(comparison(source).comparators[0])
    assert source.utf8[start:stop] == b"5"
    assert source.splice([Edit(start, stop, "7")]) == data[:start] + b"7" + data[stop:]
