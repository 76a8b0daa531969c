"""The arguments of tools under the names that agents have for them: files, lines, old and new text.

What this is not: what a tool does with them is for `rtmc.signatures.editors` and `rtmc.signatures.tools`.
"""

from __future__ import annotations

import re
from typing import Any

from rtmc.signatures.effects import Effect

PATHS = (
    *("path", "file_path", "filename", "file", "target_file", "filepath", "absolutepath", "absolute_path", "dir"),
    *("directory", "dir_path", "directory_path", "relative_workspace_path", "notebook_path", "targetfile"),
)
OLD = (
    *("old_str", "old_string", "search", "old", "old_text", "target_content", "oldtext", "oldstring", "to_replace"),
    "old_content",
)
NEW = (
    *("new_str", "new_string", "replace", "new", "new_text", "replacement_text", "replacement", "newtext"),
    *("newstring", "new_content", "text"),
)
CONTENT = ("file_text", "content", "contents", "file_content", "text", "new_content", "new_str", "code_edit", "code")
_STARTS = ("start_line", "startline", "offset", "line_start", "start", "start_line_one_indexed")
_ENDS = ("end_line", "endline", "line_end", "end", "end_line_one_indexed", "end_line_one_indexed_inclusive")


def span_of(given: dict[str, Any]) -> tuple[int, int] | None:
    """First and last line that the arguments name, -1 = to the end; None where they name none."""
    value = given.get("view_range", given.get("line_range", given.get("lines")))
    if isinstance(value, str):
        value = re.findall(r"-?\d{1,9}", value)
    if isinstance(value, (list, tuple)) and value:
        numbers = [number(v) for v in value[:2]]
        if numbers[0] is None:
            return None
        return numbers[0], -1 if len(numbers) < 2 or numbers[1] is None else numbers[1]
    start = next((number(given[k]) for k in _STARTS if k in given), None)
    end = next((number(given[k]) for k in _ENDS if k in given), None)
    limit = number(given.get("limit"))
    if start is None and end is None and limit is None:
        return None
    start = 1 if start is None else max(start, 1)
    return start, (-1 if limit is None else start + limit - 1) if end is None else end


def behind(given: dict[str, Any]) -> tuple[int, int] | None:
    """The empty range behind the line that an insertion names; None where it names none."""
    line = next(
        (number(given[k]) for k in ("insert_line", "line_number", "line", "insert_at_line") if k in given), None
    )
    return None if line is None or line < 0 else (line + 1, line)


def viewed(path: str, lines: tuple[int, int] | None) -> Effect:
    """The effect of a look at a file, or at some lines of it."""
    whole = lines is None or lines == (1, -1)
    return Effect("view", path, "full") if whole else Effect("view", path, "partial", lines=lines)


def pick(given: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the arguments that is there, as text."""
    for name in names:
        value = given.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
    return None


def text_of(given: dict[str, Any], name: str) -> str | None:
    """The argument, if it is a text."""
    value = given.get(name)
    return value if isinstance(value, str) else None


def number(value: Any) -> int | None:
    """A whole number, also written as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 10**9 else None
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.A) else None
