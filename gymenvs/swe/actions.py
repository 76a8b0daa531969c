"""What a message of the agent asks for: one tool call, in one of three syntaxes.

    r2e     <function=NAME><parameter=KEY>VALUE</parameter>...</function>            R2E-Gym's function-call text
    tools   <tool_call>{"name": "NAME", "arguments": {...}}</tool_call>              JSON tool calls
    bash    one block fenced by ```mswea_bash_command, or the tool call of `bash`    mini-swe-agent

Rules, the same in each: a thought `<think>...</think>` before the call is no action (also one that was opened in the
prompt, and one that is never closed); what cannot be read is an `Invalid` with the text that tells the agent what is
wanted; no text raises. Reading takes time linear in the message. What the syntaxes do with the hard cases:

- Several calls. r2e: the first one counts, as in R2E-Gym. tools: exactly one is wanted. bash: exactly one block.
- r2e: values are stripped, and end at the first `</parameter>`; a closing tag that is left over says that a value held
  one, and the call is refused rather than carried out with half a value. `</function>` may stand inside a value. The
  call's own `</function>` may be missing where nothing follows (samplers stop at it and drop it). A parameter given
  twice is refused.
- tools: the message may also be the bare JSON object, a message object with `tool_calls`, or a list of one call;
  `arguments` may be a JSON string; line ends may stand raw inside strings. A key given twice is refused.
- bash: blocks fenced by ```bash count where there is none of the other kind. Commands are stripped.

Here nothing is known of the tools: names and arguments are checked where the call is carried out.

Source: R2E-Gym (agenthub/action, observation), mini-swe-agent 2 (models/utils/actions_text, actions_toolcall).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SYNTAXES = ("r2e", "tools", "bash")
MAX_MESSAGE = 4 << 20  # characters
FINISH_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CONTINUE_MSG = (
    "\nYou forgot to use a function call in your response. \nYOU MUST USE A FUNCTION CALL IN EACH RESPONSE.\n\n"
    "IMPORTANT: YOU SHOULD NEVER ASK FOR HUMAN HELP.\n"
)

_FORM = {
    "r2e": "<function=NAME>\n<parameter=KEY>VALUE</parameter>\n</function>",
    "tools": '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>',
    "bash": "```mswea_bash_command\nCOMMAND\n```",
}
_CANNOT_CARRY = {
    "r2e": "r2e carries texts without white space at their ends and without `</parameter>`, under keys without <, >",
    "tools": "tools carries JSON values with text keys; NaN and infinities are none",
    "bash": "bash carries one text, `command` of the tool `bash`, without white space at its ends and without a line "
    "that begins with ```",
}
# A name is short, so that a missing `>` costs no second pass over the message.
_FUNCTION = re.compile(r"<function\s*=([^<>]{1,200})>")
_PARAMETER = re.compile(r"<parameter\s*=([^<>]{1,200})>")
_CLOSED = "</parameter>"
_REST_OF_LINE = re.compile(r"[^\S\n]*\n")
_FENCES = ("mswea_bash_command", "bash")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name and its arguments: texts in `r2e` and `bash`, JSON values in `tools`."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Invalid:
    """A message that is no call. `reason`: one line, for logs; `observation`: what the agent is told."""

    reason: str
    observation: str


class _Unreadable(Exception):
    """Why the message is no call; its text is the reason."""


def read_action(text: str, syntax: str = "r2e") -> ToolCall | Invalid:
    """The call that a message makes.

    Args:
        text: what the agent wrote, up to 4 Mi characters.
        syntax: `r2e`, `tools` or `bash`.

    Raises:
        ValueError: the syntax is unknown. TypeError: the message is no text.
    """
    _check_syntax(syntax)
    if not isinstance(text, str):
        raise TypeError(f"actions: a message is text, got {type(text).__name__}: {text!r}")
    if len(text) > MAX_MESSAGE:
        return _invalid(f"the message has {len(text)} characters; at most {MAX_MESSAGE} are read", syntax)
    if syntax == "bash":
        return _read_bash(text)
    try:
        return _read_r2e(text) if syntax == "r2e" else _read_tools(_after_thought(text, "<tool_call>"))
    except _Unreadable as fault:
        return _invalid(str(fault), syntax)


def write_action(call: ToolCall, syntax: str = "r2e") -> str:
    """The message that makes this call: `read_action(write_action(call, syntax), syntax) == call`.

    In `r2e` a number, a truth value or a list is written as JSON and read back as that text; the tools take both.

    Raises:
        ValueError: the syntax is unknown, or cannot carry the call (r2e: a text with white space at its ends or with
            `</parameter>`; bash: anything but one command, or a command with a line that begins with ```).
    """
    _check_syntax(syntax)
    expected = call
    if syntax == "r2e":
        expected = ToolCall(call.name, {key: _as_text(value) for key, value in call.arguments.items()})
        lines = [f"<parameter={key}>{value}</parameter>" for key, value in expected.arguments.items()]
        text = "\n".join([f"<function={call.name}>", *lines, "</function>"])
    elif syntax == "tools":
        try:
            body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as fault:
            raise ValueError(f"actions: {fault}: {_CANNOT_CARRY[syntax]}") from fault
        text = f"<tool_call>\n{body}\n</tool_call>"
    else:
        text = f"```{_FENCES[0]}\n{call.arguments.get('command')}\n```"
    if read_action(text, syntax) != expected:
        raise ValueError(f"actions: the syntax cannot carry {_cut(repr(call), 300)}: {_CANNOT_CARRY[syntax]}")
    return text


def _check_syntax(syntax: str) -> None:
    if syntax not in SYNTAXES:
        raise ValueError(f"actions: syntax={syntax!r} is none of {', '.join(map(repr, SYNTAXES))}")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as fault:
        raise ValueError(f"actions: {fault}: {_CANNOT_CARRY['r2e']}") from fault


def _invalid(reason: str, syntax: str) -> Invalid:
    return Invalid(
        reason, f"The function call could not be read: {reason}.\nWanted is one call in this form:\n\n{_FORM[syntax]}"
    )


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."


def _after_thought(message: str, mark: str) -> str:
    """The message without the thought that begins it. A `</think>` behind the first call is part of an argument."""
    if message.lstrip().startswith("<think>"):
        return message.partition("</think>")[2]
    thought, closed, rest = message.partition("</think>")
    begun = mark in thought or thought.lstrip().startswith(("{", "["))
    return rest if closed and not begun else message


def _read_r2e(text: str) -> ToolCall | Invalid:
    message = _after_thought(text, "<function")
    opened = _FUNCTION.search(message)
    name = opened[1].strip() if opened else ""
    if opened is None or not name:
        return Invalid("no function call", CONTINUE_MSG)
    arguments: dict[str, Any] = {}
    at = opened.end()
    end = message.find("</function>", at)
    while True:
        if 0 <= end < at:  # it stood inside a value
            end = message.find("</function>", at)
        found = _PARAMETER.search(message, at)
        stop = end if end >= 0 else len(message)
        last = found is None or stop < found.start()
        stop = stop if found is None else min(stop, found.start())
        if _CLOSED in message[at:stop] or (last and _half_a_value(message[stop:])):
            where = f"`{next(reversed(arguments))}`" if arguments else "the name"
            raise _Unreadable(f"{_CLOSED} stands once too often after {where}; a value cannot hold that tag")
        if found is None or last:
            if end < 0 and message[at:].strip():
                raise _Unreadable("the call is not closed by </function>")
            return ToolCall(name, arguments)
        key = found[1].strip()
        closing = message.find(_CLOSED, found.end())
        if closing < 0:
            raise _Unreadable(f"the parameter `{key}` is not closed by {_CLOSED}")
        if key in arguments:
            raise _Unreadable(f"the parameter `{key}` is given twice")
        arguments[key] = message[found.end() : closing].strip()
        at = closing + len(_CLOSED)


def _half_a_value(after: str) -> bool:
    """Whether a closing tag without its opening one, and the end of a call, follow: then `</parameter></function>`
    stood inside a value."""
    closing = after.find(_CLOSED)
    if closing < 0 or after.find("</function>", closing) < 0:
        return False
    opened = _PARAMETER.search(after)
    return opened is None or opened.start() > closing


def _read_tools(message: str) -> ToolCall:
    body = message.strip()
    at = body.find("<tool_call>")
    if at < 0 and not body.startswith(("{", "[")):
        raise _Unreadable("there is no tool call in the message")
    if at < 0 or body.startswith(("{", "[")):
        value, end = _decoded(body, 0)
        if body[end:].strip():
            raise _Unreadable("text follows the JSON of the tool call")
        return _call_of(value)
    start = at + len("<tool_call>")
    value, end = _decoded(body, start + len(body[start:]) - len(body[start:].lstrip()))
    rest = body[end:].lstrip()
    if rest and not rest.startswith("</tool_call>"):
        raise _Unreadable("the tool call is not closed by </tool_call>")
    if "<tool_call>" in rest:
        raise _Unreadable(f"there are {1 + rest.count('<tool_call>')} tool calls in the message; one is wanted")
    return _call_of(value)


def _decoded(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder(object_pairs_hook=_without_twins, strict=False).raw_decode(text, at)
    except (ValueError, RecursionError) as fault:
        what = fault.msg if isinstance(fault, json.JSONDecodeError) else str(fault)
        raise _Unreadable(f"the tool call is no JSON ({_cut(what, 200)})") from fault


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        once: set[str] = set()
        for key, _ in pairs:
            if key in once:
                raise ValueError(f"the key {key!r} is given twice")
            once.add(key)
    return found


def _call_of(value: Any, bare: str = "") -> ToolCall:
    """The call in a JSON value. `bare`: the tool whose arguments an object without a name is."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    if isinstance(value, list):
        if len(value) != 1:
            raise _Unreadable(f"there are {len(value)} tool calls in the message; one is wanted")
        value = value[0]
    if not isinstance(value, dict):
        raise _Unreadable("a tool call is an object with `name` and `arguments`")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    if bare and "name" not in value and "arguments" not in value:
        return ToolCall(bare, value)
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _Unreadable("a tool call has the `name` of a tool, a text")
    arguments: Any = next((value[key] for key in ("arguments", "parameters") if value.get(key) is not None), {})
    if isinstance(arguments, str):
        text = arguments.strip()
        arguments, end = _decoded(text, 0) if text else ({}, 0)
        if text[end:].strip():
            raise _Unreadable("text follows the JSON of `arguments`")
    if not isinstance(arguments, dict):
        raise _Unreadable("the `arguments` of a tool call are an object")
    return ToolCall(name.strip(), arguments)


def _read_bash(text: str) -> ToolCall | Invalid:
    message = _after_thought(text, "```")
    for label in _FENCES:
        blocks = list(_fenced(message, label))
        if len(blocks) == 1 and blocks[0]:
            return ToolCall("bash", {"command": blocks[0]})
        if blocks:
            return _not_one_block(len(blocks) if len(blocks) > 1 else 0)
    body = message.strip()
    if not body.startswith(("{", "[")) and "<tool_call>" not in body:
        return _not_one_block(0)
    try:
        if body.startswith("{") and "<tool_call>" not in body:
            value, end = _decoded(body, 0)
            return _call_of(value, "bash") if not body[end:].strip() else _not_one_block(0)
        return _read_tools(body)
    except _Unreadable as fault:
        return Invalid(str(fault), f"Tool call error:\n\n<error>\n{fault}\n</error>\n\n{_ONE_BLOCK}")


_ONE_BLOCK = (
    f"To end the task, give the command `echo {FINISH_LINE}` and no other.\n"
    "Otherwise write your thoughts, and then the one command in this form:\n\n"
    "```mswea_bash_command\n<action>\n```"
)


def _not_one_block(found: int) -> Invalid:
    return Invalid(
        f"{found} commands in the message; one is wanted",
        f"Please always provide EXACTLY ONE action in triple backticks, found {found} actions.\n{_ONE_BLOCK}",
    )


def _fenced(text: str, label: str) -> Iterator[str]:
    """What stands in each closed block with this label, stripped."""
    mark = "```" + label
    at = text.find(mark)
    while at >= 0:
        opened = _REST_OF_LINE.match(text, at + len(mark))
        if opened is None:  # a longer label
            at = text.find(mark, at + len(mark))
            continue
        closing = text.find("\n```", opened.end() - 1)
        if closing < 0:
            return
        yield text[opened.end() : closing].strip()
        at = text.find(mark, closing + 4)
