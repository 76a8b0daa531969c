"""The tools' parameters: one table that checks arguments, and gives the JSON schemas and the help texts.

Texts in a call's arguments stand for numbers, lists and truth values where a parameter wants these, since R2E-Gym's
call syntax has only texts ("12", "[1, 20]", "true").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rtmc.gymenvs.swe.tools.results import ToolError, has_surrogates, quote

_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_RANGE = re.compile(r"[\[(]?\s*([+-]?[0-9]{1,15})(?:\s*,\s*|\s+)([+-]?[0-9]{1,15})\s*[\])]?")
_QUOTED_CHARS = 200


class Parameter(NamedTuple):
    """`kind`: `text`, `number`, `range` (two numbers) or `flag`."""

    kind: str
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()


class Tool(NamedTuple):
    help: str
    parameters: Mapping[str, Parameter]


_EDITING: dict[str, Parameter] = {
    "command": Parameter(
        "text",
        "What to do: `view` a file or folder, `create` a file, replace a text in a file (`str_replace`), `insert` "
        "lines into a file, or take back the last edit of a file (`undo_edit`).",
        True,
        ("view", "create", "str_replace", "insert", "undo_edit"),
    ),
    "path": Parameter("text", "The file or folder, as an absolute path.", True),
    "file_text": Parameter("text", "For `create`: what the new file holds."),
    "old_str": Parameter(
        "text", "For `str_replace`: the text to be replaced, exactly as in the file, where it stands only once."
    ),
    "new_str": Parameter(
        "text", "For `str_replace`: the text to put in its place (none deletes it). For `insert`: the lines to insert."
    ),
    "insert_line": Parameter("number", "For `insert`: the number of the line to insert behind; 0 is the beginning."),
    "view_range": Parameter(
        "range", "For `view` of a file: first and last line to show, from 1; a last line of -1 is the end."
    ),
}
_SEE_WHOLE = "A file that exists cannot be created; long answers are cut. Every edit shows the lines around it."
TOOLS: dict[str, Tool] = {
    "file_editor": Tool(
        f"Views, creates and edits files. Long Python files are shown without the bodies of their functions unless a "
        f"`view_range` is given; other files than Python's are not shown. {_SEE_WHOLE}",
        {
            **_EDITING,
            "concise": Parameter("flag", "For `view` of a Python file: leave out the bodies of its functions."),
            "enable_linting": Parameter("flag", "Refuse an edit that leaves a Python file with a syntax error."),
            "python_only": Parameter("flag", "For `view`: only folders and Python files; true unless given."),
        },
    ),
    "str_replace_editor": Tool(f"Views, creates and edits files. {_SEE_WHOLE}", _EDITING),
    "search": Tool(
        "Finds a text: in a folder, how many lines of which Python files hold it; in a file, the lines themselves.",
        {
            "search_term": Parameter("text", "The text to find, taken literally, within a line.", True),
            "path": Parameter("text", "The folder or file to search; the whole repository unless given."),
            "python_only": Parameter("flag", "In a folder: only Python files; true unless given."),
        },
    ),
    "execute_bash": Tool(
        "Runs a command in a new shell in the repository's root and gives its exit code and output. Only files stay "
        "from one command to the next. There is no network and no input; a command that runs too long is stopped.",
        {"cmd": Parameter("text", "The command, or several joined by &&.", True)},
    ),
    "finish": Tool(
        "Ends the task: call it once, when the work is done.",
        {
            "command": Parameter("text", "`submit`.", choices=("submit",)),
            "result": Parameter("text", "What was done, in a sentence or two."),
        },
    ),
    "bash": Tool("Runs a bash command.", {"command": Parameter("text", "The bash command to run.", True)}),
}
# Other names that data sets and models use for the same.
ALIASES = {"submit": "finish"}
_OTHER_NAMES = {("execute_bash", "command")}


def checked(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as texts, whole numbers, pairs of numbers and truth values; those that are None are left out.

    Raises:
        ToolError: a parameter that the tool does not have, or a value that is not of its kind.
    """
    known = TOOLS[tool].parameters
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = "text" if (tool, name) in _OTHER_NAMES else known[name].kind if name in known else ""
        if not kind:
            shown = quote(str(name), _QUOTED_CHARS)
            raise ToolError(f"ERROR: Unknown parameter '{shown}' of {tool}. Allowed parameters: {', '.join(known)}.")
        if value is not None and not (kind in ("range", "number", "flag") and _is_blank(value)):
            found[name] = _READERS[kind](name, value)
    return found


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in ("", "None", "null")


def _wrong(name: str, value: Any, wanted: str) -> ToolError:
    return ToolError(f"ERROR: Invalid {name} {quote(repr(value), _QUOTED_CHARS)}: {wanted}.")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, f"expected a text, got {_kind(value)}")
    if has_surrogates(value):
        raise ToolError(f"ERROR: Invalid {name}: it holds half of a surrogate pair, which is no character.")
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 10**15:
        raise _wrong(name, value, "expected a whole number")
    return value


def _range(name: str, value: Any) -> list[int]:
    wanted = "expected two whole numbers, [first line, last line]"
    if isinstance(value, str):
        pair = _RANGE.fullmatch(value.strip())
        if pair is None:
            raise _wrong(name, value, wanted)
        return [int(pair[1]), int(pair[2])]
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise _wrong(name, value, wanted)
    try:
        return [_number(name, each) for each in value]
    except ToolError:
        raise _wrong(name, value, wanted) from None


def _flag(name: str, value: Any) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "1", "yes", 1, True):
        return True
    if word in ("false", "0", "no", 0, False):
        return False
    raise _wrong(name, value, "expected true or false")


def _kind(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


_READERS = {"text": _text, "number": _number, "range": _range, "flag": _flag}
