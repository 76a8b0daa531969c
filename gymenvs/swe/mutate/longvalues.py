"""Long values in a task's text: code that makes the same value in short lines, and shown text with its middle left out.

What stands in code is never cut: `written` gives an expression that evaluates to the very same value. What was printed
is no code; a reader has to see that something is missing there, and how much.
"""

import ast
import pprint
import re
from typing import Any

LONGEST = 200  # characters of a value or of a line that are left as they are
_WIDTH = 100
_HEAD, _TAIL = 120, 40
# A unit of one to eight characters, at least ten times over: the shortest unit that does.
_REPEATED = re.compile(r"(.{1,8}?)\1{9,}", re.DOTALL)


def written(text: str) -> str:
    """An expression of the same value as the literal `text`, in short lines; `text` itself where that cannot be."""
    if len(text) <= LONGEST:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    made = _repeated(value) if isinstance(value, (str, bytes)) else ""
    if made:
        return made
    shown = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    return shown if _same(shown, value) else text


def _repeated(value: Any) -> str:
    """`'0.0.' + '1' * 3900`, where that is short."""
    plain = value if isinstance(value, str) else value.decode("latin-1")
    parts, at = [], 0
    for found in _REPEATED.finditer(plain):
        if found.start() > at:
            parts.append(repr(value[at : found.start()]))
        unit = value[found.start() : found.start() + len(found[1])]
        parts.append(f"{unit!r} * {len(found[0]) // len(found[1])}")
        at = found.end()
    if at < len(plain):
        parts.append(repr(value[at:]))
    made = " + ".join(parts)
    return made if len(made) <= LONGEST else ""


def _same(text: str, value: object) -> bool:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return repr(found) == repr(value)


def shortened(text: str) -> str:
    """Text with the middle of each long line left out, and said to be."""
    return "\n".join(_short(line) for line in text.split("\n"))


def _short(line: str) -> str:
    out = len(line) - _HEAD - _TAIL
    return line if len(line) <= LONGEST else f"{line[:_HEAD]} [... {out} characters left out ...] {line[-_TAIL:]}"
