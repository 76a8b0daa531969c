"""What a message asks for, in the three syntaxes: worked cases, round trips, and texts of any kind."""

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.actions import CONTINUE_MSG, MAX_MESSAGE, SYNTAXES, Invalid, ToolCall, read_action, write_action

SEARCH = ToolCall("search", {"search_term": "x"})


def r2e(*parameters: str, name: str = "search") -> str:
    return f"<function={name}>\n" + "\n".join(parameters) + "\n</function>"


def reason(text: str, syntax: str) -> str:
    action = read_action(text, syntax)
    assert isinstance(action, Invalid), action
    assert action.observation
    assert "\n" not in action.reason
    return action.reason


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("<function=finish></function>", ToolCall("finish")),
        (r2e("<parameter=search_term>x</parameter>"), SEARCH),
        ("I look.\n" + r2e("  <parameter=search_term>\n  x \n</parameter>") + "\nDone.", SEARCH),
        ("<function = search ><parameter = search_term >x</parameter></function>", SEARCH),
        # samplers stop at </function> and drop it
        ("<function=search><parameter=search_term>x</parameter>\n", SEARCH),
        # the first call counts
        (
            r2e("<parameter=search_term>x</parameter>") + r2e("<parameter=cmd>rm</parameter>", name="execute_bash"),
            SEARCH,
        ),
        (
            r2e("<parameter=file_text>a </function> b <function=c> d</parameter>"),
            ToolCall("search", {"file_text": "a </function> b <function=c> d"}),
        ),
        (
            r2e("<parameter=a>1 <parameter=b>2</parameter>"),
            ToolCall("search", {"a": "1 <parameter=b>2"}),
        ),
        ("<think>maybe <function=finish></function></think>" + r2e("<parameter=search_term>x</parameter>"), SEARCH),
        ("thought opened in the prompt</think>" + r2e("<parameter=search_term>x</parameter>"), SEARCH),
        (
            r2e("<parameter=file_text>a</think>b<think>c</parameter>"),
            ToolCall("search", {"file_text": "a</think>b<think>c"}),
        ),
        (r2e("prose between", "<parameter=search_term>x</parameter>", "prose"), SEARCH),
        (r2e("<parameter=view_range>[1, 20]</parameter>"), ToolCall("search", {"view_range": "[1, 20]"})),
        (r2e("<parameter=a></parameter>"), ToolCall("search", {"a": ""})),
        (r2e("<parameter=a>1</parameter>") + " I closed it by `</parameter>`.", ToolCall("search", {"a": "1"})),
        (r2e("<parameter=a>\x00\ud800é\r\n\t北</parameter>"), ToolCall("search", {"a": "\x00\ud800é\r\n\t北"})),
    ],
)
def test_r2e(text, call):
    assert read_action(text, "r2e") == call


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (r2e("<parameter=a>1</parameter>", "<parameter=a>1</parameter>"), "`a` is given twice"),
        (r2e("<parameter=a>1"), "`a` is not closed"),
        (r2e("<parameter=a>x</parameter> y</parameter>"), "too often after `a`"),
        (r2e("<parameter=a>x</parameter></function> y</parameter>"), "too often after `a`"),
        (r2e("</parameter>"), "too often after the name"),
        ("<function=search> and then I would", "not closed by </function>"),
        ("<function=search><parameter=a>1</parameter> and so on", "not closed by </function>"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text, part):
    assert part in reason(text, "r2e")
    assert "<parameter=KEY>VALUE</parameter>" in read_action(text, "r2e").observation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "<function>",
        "<function=>x</function>",
        "<function= ></function>",
        "<think><function=finish></function>",
    ],
)
def test_no_call_gets_r2e_gyms_reminder(text):
    assert read_action(text, "r2e") == Invalid("no function call", CONTINUE_MSG)
    assert CONTINUE_MSG.startswith("\nYou forgot to use a function call in your response. ")


CALL = ToolCall("file_editor", {"command": "view", "view_range": [1, 20]})
JSON = '{"name": "file_editor", "arguments": {"command": "view", "view_range": [1, 20]}}'


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (f"<tool_call>\n{JSON}\n</tool_call>", CALL),
        (f"I look at it.\n<tool_call>{JSON}", CALL),
        (JSON, CALL),
        (f"[{JSON}]", CALL),
        (JSON.replace('"arguments"', '"parameters"'), CALL),
        (json.dumps({"name": CALL.name, "arguments": json.dumps(CALL.arguments)}), CALL),
        (json.dumps({"content": "hm", "tool_calls": [{"function": json.loads(JSON), "id": "1"}]}), CALL),
        ('{"name": "finish"}', ToolCall("finish")),
        ('{"name": "finish", "arguments": null}', ToolCall("finish")),
        ('{"name": "finish", "arguments": ""}', ToolCall("finish")),
        ('{"name": "a", "arguments": {"t": "1\n2"}}', ToolCall("a", {"t": "1\n2"})),
        (
            '<tool_call>{"name": "a", "arguments": {"t": "</tool_call>"}}</tool_call>',
            ToolCall("a", {"t": "</tool_call>"}),
        ),
        ('{"name": "a", "arguments": {"t": "<tool_call>"}}', ToolCall("a", {"t": "<tool_call>"})),
        ('{"name": "a", "arguments": {"t": "</think>"}}', ToolCall("a", {"t": "</think>"})),
        (f"<think>or <tool_call>{{}}</tool_call></think>{JSON}", CALL),
    ],
)
def test_tools(text, call):
    assert read_action(text, "tools") == call


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no tool call"),
        ("view it", "no tool call"),
        (f"<tool_call>{JSON}</tool_call><tool_call>{JSON}</tool_call>", "2 tool calls"),
        (f"[{JSON}, {JSON}]", "2 tool calls"),
        ("[]", "0 tool calls"),
        ('{"tool_calls": []}', "0 tool calls"),
        ("<tool_call>{</tool_call>", "no JSON"),
        ("{'name': 'a'}", "no JSON"),
        ('{"name": "a"} and', "text follows"),
        (f"<tool_call>{JSON} so", "not closed"),
        ('{"name": 3}', "`name`"),
        ('{"arguments": {}}', "`name`"),
        ('["a"]', "an object"),
        ('{"name": "a", "arguments": [1]}', "an object"),
        ('{"name": "a", "arguments": "[1]"}', "an object"),
        ('{"name": "a", "arguments": "{} x"}', "text follows"),
        ('{"name": "a", "arguments": {"k": 1, "k": 2}}', "'k' is given twice"),
        ("[" * 100_000, "no JSON"),
        ('{"name": "a", "arguments": ' + "9" * 10_000 + "}", "no JSON"),
    ],
)
def test_bad_tools(text, part):
    assert part in reason(text, "tools")


def block(command: str, label: str = "mswea_bash_command") -> str:
    return f"```{label}\n{command}\n```"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("THOUGHT: look\n\n" + block("ls -la"), "ls -la"),
        (block("  ls  "), "ls"),
        (block("cat <<'EOF' > a\n\n  x\nEOF"), "cat <<'EOF' > a\n\n  x\nEOF"),
        (block("ls", "bash"), "ls"),
        ("Like\n" + block("rm x", "bash") + "\nbut\n" + block("ls"), "ls"),
        ("<think>" + block("rm x") + "</think>" + block("ls"), "ls"),
        ("```mswea_bash_command  \n\nls\n```", "ls"),
        ("```bashful\nno\n```\n" + block("ls", "bash"), "ls"),
        ('{"command": "ls"}', "ls"),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', "ls"),
        ('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}', "ls"),
    ],
)
def test_bash(text, command):
    assert read_action(text, "bash") == ToolCall("bash", {"command": command})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ls", 0),
        ("", 0),
        (block(""), 0),
        (block(" \n "), 0),
        ("```mswea_bash_command\nls", 0),
        (block("ls") + "\n" + block("pwd"), 2),
        (block("ls", "bash") * 3, 3),
        ("```python\nls\n```", 0),
        ("```mswea_bash_command ls```", 0),
    ],
)
def test_not_one_block(text, found):
    action = read_action(text, "bash")
    assert isinstance(action, Invalid)
    first = action.observation.splitlines()[0]
    assert first == f"Please always provide EXACTLY ONE action in triple backticks, found {found} actions."
    assert "`echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`" in action.observation


def test_a_message_over_the_limit_is_refused():
    assert str(MAX_MESSAGE + 1) in reason("x" * (MAX_MESSAGE + 1), "r2e")


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    "text",
    [
        "<function=" * 100_000,
        "<function=a>" + "<parameter=b>" * 80_000,
        "<function=a>" + "".join(f"<parameter=p{n}></parameter>" for n in range(30_000)),
        "<function=a>" + "</function><parameter=b>" * 40_000,
        "```bash" * 140_000,
        "```bash\n" * 120_000,
        "```bash\nls\n```\n" * 60_000,
        "```bash" + " " * 1_000_000,
        "<tool_call>" * 90_000,
        '<tool_call>{"name": "a"}' * 40_000,
        "{" * 1_000_000,
        '{"name": "a", "arguments": {' + ",".join(f'"k{n}": 1' for n in range(60_000)) + ', "k1": 2}}',
        "<think>" * 140_000,
        "</think>" * 120_000,
        "<function" + " " * 1_000_000,
        "<function=" + " " * 1_000_000,
    ],
    ids=range(16),
)
def test_a_megabyte_is_read_in_linear_time(text, syntax):
    # A quadratic reader takes minutes here; the bound is far above what a loaded machine needs.
    start = time.perf_counter()
    read_action(text, syntax)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_programmers_errors(syntax):
    with pytest.raises(TypeError, match="a message is text, got int"):
        read_action(3, syntax)
    with pytest.raises(ValueError, match="syntax='xml' is none of 'r2e', 'tools', 'bash'"):
        read_action("", "xml")


# Round trips

TAGS = [
    "<function=a>",
    "</function>",
    "<parameter=b>",
    "</parameter",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "```",
    "\n```",
    "{",
    '"',
    "\\",
]
TEXTS = st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=8)), max_size=6).map("".join)
NAMES = st.text("abcdefgh_", min_size=1, max_size=10)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(NAMES, st.dictionaries(NAMES, TEXTS, max_size=4))
def test_what_r2e_can_carry_comes_back(name, arguments):
    call = ToolCall(name, arguments)
    carried = all(value == value.strip() and "</parameter>" not in value for value in arguments.values())
    if carried:
        assert read_action("A thought.\n" + write_action(call, "r2e"), "r2e") == call
    else:
        with pytest.raises(ValueError, match="r2e carries texts without white space at their ends"):
            write_action(call, "r2e")


PIECES = st.sampled_from(
    ["<parameter=a>", "<parameter = b >", "<parameter=c>", "</parameter>", "<function=g>", " ", "\n", "x<", ">"]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=10).map("".join))
def test_what_is_read_is_what_r2e_gyms_patterns_find(body):
    text = f"<function=f>{body}</function>"
    found = re.findall(r"<parameter\s*=\s*([^>]+)>(.*?)</parameter>", text, re.DOTALL)
    action = read_action(text, "r2e")
    if isinstance(action, ToolCall):
        assert action == ToolCall("f", {key.strip(): value.strip() for key, value in found})
    else:  # refused only where those patterns lose something: a tag left over, a value given twice
        keys = [key.strip() for key, _ in found]
        rest = re.sub(r"<parameter\s*=\s*([^>]+)>(.*?)</parameter>", "", text, flags=re.DOTALL)
        assert len(set(keys)) < len(keys) or "parameter" in rest


@settings(deadline=None)
@given(NAMES, st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_json_can_carry_comes_back(name, arguments):
    call = ToolCall(name, arguments)
    assert read_action(write_action(call, "tools"), "tools") == call


@settings(deadline=None)
@given(TEXTS)
def test_what_a_block_can_carry_comes_back(command):
    call = ToolCall("bash", {"command": command})
    carried = command == command.strip() != "" and not any(line.startswith("```") for line in command.split("\n"))
    if carried:
        assert read_action("A thought.\n\n" + write_action(call, "bash"), "bash") == call
    else:
        with pytest.raises(ValueError, match="bash carries one text"):
            write_action(call, "bash")


def test_writing():
    call = ToolCall("file_editor", {"command": "view", "view_range": [1, -1], "insert_line": 3, "concise": True})
    text = write_action(call, "r2e")
    assert text == (
        "<function=file_editor>\n<parameter=command>view</parameter>\n<parameter=view_range>[1, -1]</parameter>\n"
        "<parameter=insert_line>3</parameter>\n<parameter=concise>true</parameter>\n</function>"
    )
    assert read_action(text).arguments == {
        "command": "view",
        "view_range": "[1, -1]",
        "insert_line": "3",
        "concise": "true",
    }
    for syntax, bad in [
        ("tools", {"a": float("nan")}),
        ("tools", {"a": {1, 2}}),
        ("r2e", {"a": {1}}),
        ("bash", {"cmd": "ls"}),
    ]:
        with pytest.raises(ValueError, match=f"{syntax} carries"):
            write_action(ToolCall("bash", bad), syntax)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([*TAGS, "<parameter=b>", "</parameter>", block("ls"), "<function=x", "[", "]", ","]),
            st.text(max_size=5),
        ),
        max_size=12,
    ),
    st.sampled_from(SYNTAXES),
)
def test_no_text_raises(pieces, syntax):
    action = read_action("".join(pieces), syntax)
    assert isinstance(action, (ToolCall, Invalid))
    if isinstance(action, Invalid):
        assert action.reason
        assert action.observation.strip()
