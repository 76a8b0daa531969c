"""What a message asks for: both forms, strictly."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.qa.actions import read_action, write_action


@pytest.mark.parametrize(
    ("message", "kind", "text", "well_formed"),
    [
        ("<think>hm</think><search> who is it </search>", "search", "who is it", True),
        ("<think>hm</think>\n<answer>Paris</answer>\n", "answer", "Paris", True),
        ("<search>q</search>", "search", "q", False),
        ("I look. <search>q</search>", "search", "q", False),
        ("<think>a</think>x<answer>b</answer>", "answer", "b", False),
        ("<think>try <search>x</search> later</think><answer>y</answer>", "answer", "y", True),
        ("thought opened in the prompt</think><search>q</search>", "search", "q", False),
        ("<search>a < b & c > d</search>", "search", "a < b & c > d", False),
        ("<search>Málaga\nпорт 北京 🚢</search>", "search", "Málaga\nпорт 北京 🚢", False),
        ("<think></think><search>q</search><think>more</think>", "search", "q", False),
    ],
)
def test_tags(message, kind, text, well_formed):
    assert read_action(message) == (kind, text, well_formed)


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("", "no <search>"),
        ("Paris", "no <search>"),
        ("<search>a</search><answer>b</answer>", "2 actions"),
        ("<search>a</search><search>b</search>", "2 actions"),
        ("<search>a", "do not close"),
        ("a</search>", "do not close"),
        ("<search>a</answer>", "do not close"),
        ("<search><answer>a</answer></search>", "2 actions"),
        ("<search>a</search></search>", "do not close"),
        ("</search>a<search>", "do not close"),
        ("<think><search>a</search></think>", "outside of the thought"),
        ("<think>never closed <search>a</search>", "outside of the thought"),
        ("<search> \n </search>", "query is empty"),
        ("<answer></answer>", "answer is empty"),
        ("<search>" + "x" * 100_000 + "</search>", "100000 characters"),
        ("<Search>a</Search>", "no <search>"),
        ("<think>a</think><search>a</search><think><answer>b</answer></think><search>c</search>", "2 actions"),
    ],
)
def test_bad_tags_say_what_is_wrong(message, part):
    act = read_action(message)
    assert act.kind == "invalid"
    assert part in act.text


def test_loose_reading_takes_the_first_closed_tag():
    def read(text):
        return read_action(text, loose=True)[:2]

    assert read("<think><search>a</search></think><answer>b</answer>") == ("search", "a")
    assert read("<search>open <answer>b</answer>") == ("answer", "b")
    assert read("nothing")[0] == "invalid"


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        ("search(who wrote it)", "search", "who wrote it"),
        ('I think so.\nsearch("who (really) wrote it?")', "search", "who (really) wrote it?"),
        ("lookup('Paris')", "lookup", "Paris"),
        ("finish(answer='The Nile')", "answer", "The Nile"),
        ('search(query = "a \\"b\\"")', "search", 'a "b"'),
        ("search(don't stop)", "search", "don't stop"),
        ('search("A \\"B\\"), finish(c")', "search", 'A "B"), finish(c'),
        ('search(who sang "A", "B" and C)', "search", 'who sang "A", "B" and C'),
        ("search(The Who (band), Tommy (1969))", "search", "The Who (band), Tommy (1969)"),
        ("search((band) Who)", "search", "(band) Who"),
        ("search(what is a == b in re.search(x))", "search", "what is a == b in re.search(x)"),
        ("search(query=who, when)", "search", "who, when"),
        ("lookup(B'nai B'rith)", "lookup", "B'nai B'rith"),
        ('<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>', "search", "x"),
        ('{"name": "finish", "arguments": {"answer": "x"}}', "answer", "x"),
        (
            '{"type": "function", "function": {"name": "lookup", "arguments": "{\\"keyword\\": \\"k\\"}"}}',
            "lookup",
            "k",
        ),
        ("<think>search(a)</think>\nfinish(b)", "answer", "b"),
    ],
)
def test_tool_calls(message, kind, text):
    assert read_action(message, "tools")[:2] == (kind, text)


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("search(a)\nsearch(b)", "2 tool calls"),
        ('<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>\nfinish(b)', "2 tool calls"),
        ("<tool_call>{'name': 'search'}</tool_call>", "no JSON"),
        ("{broken", "no JSON"),
        ('{"name": "browse", "arguments": {"query": "x"}}', "one of search, lookup, finish"),
        ('{"name": "search", "arguments": ["x"]}', "object of arguments"),
        ('{"name": "search", "arguments": {"q": "x"}}', "`query`"),
        ('{"name": "search", "arguments": {"query": 3}}', "`query`"),
        ('{"name": "search", "arguments": {"query": "x", "k": 3}}', "one argument"),
        ("search()", "query is empty"),
        ('search("a", "b")', "takes one text"),
        ("search('a', 3)", "takes one text"),
        ('search(query="a", k=3)', "takes one text"),
        ("search(query=a, k=3)", "takes one text"),
        ("search(a, k = 3)", "takes one text"),
        ("search(q=a)", "takes one text"),
        ("search(query=query=a)", "takes one text"),
        ("search(a) finish(b)", "takes one text"),
        ("search(a); finish(b)", "takes one text"),
        ('search("a") finish("b")', "takes one text"),
        ('finish("a", b)', "takes one text"),
        ('search(["a"])', "takes one text"),
        ('search({"query": "a"})', "takes one text"),
        ('search(("a", "b"))', "takes one text"),
        ('search("a" "b")', "takes one text"),
        ('search("A" and "B" together)', "takes one text"),
        ('search("a)', "takes one text"),
        ("search('\\x')", "takes one text"),
        ('{"name": ["search"], "arguments": {"query": "x"}}', "one of search, lookup, finish"),
        ('{"name": {}, "arguments": {"query": "x"}}', "one of search, lookup, finish"),
        ('{"name": null}', "one of search, lookup, finish"),
        ("Let me search for it.", "no call"),
        ("<search>q</search>", "no call"),
        ("[" * 100_000, "no call"),
        ('{"a":' * 100_000, "no JSON"),
    ],
)
def test_bad_tool_calls(message, part):
    act = read_action(message, "tools")
    assert act.kind == "invalid"
    assert part in act.text


@given(
    st.text(max_size=200) | st.text(alphabet="<>/searchnwt ki()\"'{}:,", max_size=60),
    st.sampled_from(["tags", "tools"]),
)
def test_any_text_is_one_action_or_invalid(message, form):
    act = read_action(message, form)
    assert act.kind in ("search", "answer", "lookup", "invalid")
    assert act.text
    assert act.kind != "invalid" or not act.well_formed


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["search", "query", "finish"])
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "arguments", "function", "query", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(ANY_JSON, ANY_JSON, ANY_JSON)
def test_no_json_value_is_more_than_an_invalid_action(whole, name, arguments):
    for value in (whole, {"name": name, "arguments": arguments}, {"function": {"name": name, "arguments": arguments}}):
        text = json.dumps(value)
        for message in (text, f"<tool_call>{text}</tool_call>", f"search({text})"):
            assert read_action(message, "tools").kind in ("search", "lookup", "answer", "invalid")


def test_a_sign_in_the_answer_is_no_tag():
    assert read_action("<think>a</think><answer>x < y</answer>") == ("answer", "x < y", True)
    assert read_action("<think>1 < 2</think><search>a <b> c</search>") == ("search", "a <b> c", True)
    assert not read_action("<think>a</think>b</think><answer>x</answer>").well_formed


@given(st.text(min_size=1, max_size=50).filter(lambda t: t.strip() and "<" not in t))
def test_what_is_written_is_read(text):
    for kind, form in [
        ("search", "tags"),
        ("answer", "tags"),
        ("search", "tools"),
        ("lookup", "tools"),
        ("answer", "tools"),
    ]:
        assert read_action(write_action(kind, text, form), form)[:2] == (kind, text.strip())


@pytest.mark.parametrize(
    "piece", ["<think>", "<search>", "</think>", "<answer></search>", "search(", "<tool_call>", "<"]
)
def test_a_long_message_costs_little(piece):
    message = piece * 50_000
    began = time.process_time()
    for form in ("tags", "tools"):
        read_action(message, form)
        read_action(message, "tags", loose=True)
    assert time.process_time() - began < 5


def test_bad_arguments():
    with pytest.raises(ValueError, match="'xml'"):
        read_action("x", "xml")
    with pytest.raises(TypeError, match="int"):
        read_action(3)
