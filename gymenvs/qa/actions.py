"""What a message of the agent asks for: a search, a lookup or an answer, in one of two forms.

Tags (Search-R1): `<think>...</think><search>query</search>` or `<answer>answer</answer>`. Tool calls: exactly one of

    search(query)                                       on a line of its own
    <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>
    {"name": "search", "arguments": {"query": "..."}}   the whole message; arguments may be a JSON string

for the tools `search(query)`, `lookup(keyword)`, `finish(answer)`. On a line the argument, which `query=` may
precede, is
one string literal in `"` or `'`, or bare text. Bare text may hold commas, quotation marks and brackets that pair, as in
`search(The Who (band), "Tommy")`; it is a fault, because it is code and no text, where it
    begins with a quotation mark, `[` or `{`, also behind `(`     search("a", b)   search(["a"])   search("a" "b")
    closes a bracket that it did not open                         search(a) finish(b)   search(a); finish(b)
    begins with `name=`, or holds `, name=`                       search(q=a)   search(a, k=3)
A text of such a kind is asked for as a string literal.

Strict reading, for both: what stands between `<think>` and `</think>` is thought and never an action (also what stands
before a `</think>` that was opened in the prompt, and after a `<think>` that is not closed); the rest has to hold one
action and no more; tags have to close; an action needs an argument. Anything else is an `Act` of the kind `invalid`
that says what is wrong. `loose=True` takes Search-R1's own rule for tags instead: the first closed tag anywhere.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any, NamedTuple

FORMS = ("tags", "tools")
TOOLS = {"search": "query", "lookup": "keyword", "finish": "answer"}
_TAG_ACTIONS = ("search", "answer")

# A thought that is not closed reaches to the end. What is not closed is never searched for twice: time is linear.
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_TAG = re.compile(r"<(/?)(search|answer)>")
_CALL_LINE = re.compile(r"^[ \t]*(search|lookup|finish)\((.*)\)[ \t]*$", re.MULTILINE)
_WELL_TAGGED = re.compile(
    r"\s*<think>(?:[^<]|<(?!/think>))*</think>\s*<(search|answer)>(?:[^<]|<(?!/?(?:think|search|answer)>))*</\1>\s*"
)
_LITERAL = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_CODE = re.compile(r"[\s(]*[\"'\[{]|\w+\s*=(?!=)")
_KEYWORD = re.compile(r",\s*\w+\s*=(?!=)")


class Act(NamedTuple):
    """One action. `kind`: `search`, `lookup`, `answer` or `invalid`; `text`: its argument, stripped, or what is wrong.

    `well_formed`: the message was a thought and the action with nothing around them (for tool calls: the call and its
    thought, any text before it counting as thought).
    """

    kind: str
    text: str
    well_formed: bool = False


def read_action(message: str, form: str = "tags", *, loose: bool = False, max_chars: int = 2000) -> Act:
    """The action of a message.

    Args:
        message: what the agent wrote.
        form: `tags` or `tools`.
        loose: with `tags`, the first closed tag counts, whatever stands around it.
        max_chars: a longer argument is invalid.

    Raises:
        ValueError: the form is unknown. TypeError: the message is no text.
    """
    if form not in FORMS:
        raise ValueError(f"actions: form={form!r} is none of {', '.join(map(repr, FORMS))}")
    if not isinstance(message, str):
        raise TypeError(f"actions: a message is text, got {type(message).__name__}: {message!r}")
    reader = _read_call if form == "tools" else _read_loosely if loose else _read_tags
    act = reader(message)
    if act.kind == "invalid":
        return act
    if not act.text:
        return Act("invalid", f"the {_argument(act.kind)} is empty")
    if len(act.text) > max_chars:
        return Act("invalid", f"the {_argument(act.kind)} has {len(act.text)} characters; at most {max_chars} are read")
    return act


def write_action(kind: str, text: str, form: str = "tags") -> str:
    """The message that asks for this, the way `read_action` reads it. `kind`: `search`, `lookup` or `answer`."""
    if form == "tags":
        return f"<{kind}>{text}</{kind}>"
    return f"{'finish' if kind == 'answer' else kind}({json.dumps(text, ensure_ascii=False)})"


def _argument(kind: str) -> str:
    return {"search": "query", "lookup": "keyword"}.get(kind, kind)


def _without_thought(message: str) -> str:
    opened = message.find("<think>")
    closed = message.find("</think>")
    if closed >= 0 and (opened < 0 or closed < opened):
        message = message[closed + len("</think>") :]
    return _THOUGHT.sub(" ", message)


def _read_loosely(message: str) -> Act:
    first: tuple[int, str, str] | None = None
    for name in _TAG_ACTIONS:
        _, opened, rest = message.partition(f"<{name}>")
        text, closed, _ = rest.partition(f"</{name}>")
        at = len(message) - len(rest)
        if opened and closed and (first is None or at < first[0]):
            first = (at, name, text)
    if first is None:
        return Act("invalid", "no closed <search> or <answer> tag")
    return Act(first[1], first[2].strip(), _WELL_TAGGED.fullmatch(message) is not None)


def _read_tags(message: str) -> Act:
    rest = _without_thought(message)
    tags = list(_TAG.finditer(rest))
    names = [tag[0] for tag in tags]
    if not names:
        return Act("invalid", "no <search> or <answer> tag outside of the thought")
    if sum(not tag[1] for tag in tags) > 1:
        return Act("invalid", f"{sum(not tag[1] for tag in tags)} actions in one message; one is wanted")
    if len(tags) != 2 or tags[0][1] or names[1] != f"</{tags[0][2]}>":
        return Act("invalid", f"the tags {' '.join(names[:6])} do not close one action")
    text = rest[tags[0].end() : tags[1].start()].strip()
    return Act(tags[0][2], text, _WELL_TAGGED.fullmatch(message) is not None)


def _read_call(message: str) -> Act:
    rest = _without_thought(message).strip()
    blocks, outside = _blocks(rest)
    lines = list(_CALL_LINE.finditer(outside))
    if len(blocks) + len(lines) > 1:
        return Act("invalid", f"{len(blocks) + len(lines)} tool calls in one message; one is wanted")
    if blocks:
        return _of_json(blocks[0], rest.endswith("</tool_call>"))
    if lines:
        name, written = lines[0].groups()
        argument = _bare_argument(written.strip(), TOOLS[name])
        if argument is None:
            return Act("invalid", f"{name}(...) takes one text, its {TOOLS[name]}, bare or as one string literal")
        return _act(name, argument, rest.endswith(lines[0][0].strip()))
    if rest.startswith("{"):
        return _of_json(rest, True)
    return Act("invalid", f"no call of {', '.join(f'{name}({what})' for name, what in TOOLS.items())}")


def _blocks(text: str) -> tuple[list[str], str]:
    """What stands in each `<tool_call>` block that is closed, and the text around the blocks."""
    blocks: list[str] = []
    outside: list[str] = []
    while True:
        before, opened, rest = text.partition("<tool_call>")
        block, closed, after = rest.partition("</tool_call>")
        if not (opened and closed):
            return blocks, "\n".join([*outside, text])
        outside.append(before)
        blocks.append(block)
        text = after
        if len(blocks) > 1:  # too many already
            return blocks, "\n".join([*outside, text])


def _bare_argument(written: str, keyword: str) -> str | None:
    """The argument of a call on a line, by the rule of the module. None = it is not one text."""
    written = re.sub(rf"^{keyword}\s*=\s*", "", written)
    if _LITERAL.fullmatch(written):
        try:
            return str(ast.literal_eval(written))
        except (ValueError, SyntaxError, MemoryError):  # a broken escape
            return None
    if _CODE.match(written) or _KEYWORD.search(written):
        return None
    depth = 0
    for bracket in re.findall(r"[()]", written):
        depth += 1 if bracket == "(" else -1
        if depth < 0:
            return None
    return written


def _of_json(text: str, well_formed: bool) -> Act:
    try:
        call: Any = json.loads(text)
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            call = call["function"]
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return Act("invalid", "the tool call is no JSON")
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or name not in TOOLS or not isinstance(arguments, dict):
        return Act("invalid", f"a tool call names one of {', '.join(TOOLS)} and has an object of arguments")
    value = arguments.get(TOOLS[name])
    if not isinstance(value, str) or len(arguments) != 1:
        return Act("invalid", f"{name} takes one argument, `{TOOLS[name]}`, a text")
    return _act(name, value, well_formed)


def _act(name: str, text: str, well_formed: bool) -> Act:
    return Act("answer" if name == "finish" else name, text.strip(), well_formed)
