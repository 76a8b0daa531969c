"""The editors of two families: those with verbs that name the file in each call (Anthropic's `str_replace_editor`,
R2E-Gym's `file_editor`, OpenHands), and SWE-agent's windowed ones, which act on the file opened before.

The same functions serve structured calls and command lines (`str_replace_editor view f --view_range 1 9`,
`edit 3:5 ...`). What this is not: tools of a single purpose are in `rtmc.signatures.tools`.
"""

from __future__ import annotations

import re
from typing import Any

from rtmc.signatures.arguments import CONTENT, NEW, OLD, PATHS, behind, number, pick, span_of, text_of, viewed
from rtmc.signatures.calls import Call
from rtmc.signatures.effects import Effect, Understood
from rtmc.signatures.keys import word_set
from rtmc.signatures.tools import tool_effects

WINDOWED = word_set(
    "open goto scroll_up scroll_down create edit insert set_cursors search_dir search_file find_file get_symbols "
    "filemap view_map submit"
)
NAMED_EDITORS = word_set("str_replace_editor edit_anthropic file_editor str_replace_based_edit_tool")
# `edit 3:5` or a bare `edit`, the text up to a line `end_of_edit`.
_END_OF_EDIT = re.compile(r"\Aedit(?:[ \t]+(\d{1,9}):(\d{1,9}))?[ \t]*\n(.*?)\n?end_of_edit\s*\Z", re.S)


def understood_call(call: Call) -> Understood:
    """What a call that is no shell command does; a tool nobody knows is `execute` with its name."""
    name, given = call.name, {k.lower(): v for k, v in call.arguments.items() if isinstance(k, str)}
    if name in NAMED_EDITORS or ("path" in given and text_of(given, "command") in _VERBS):
        return Understood(_named_editor(given))
    if name in WINDOWED and not (name == "create" and pick(given, CONTENT) is not None):
        windowed = _windowed_call(name, given)
        if windowed is not None:
            return windowed
    return Understood(tuple(tool_effects(name, given)))


def understood_words(words: list[str], body: str | None) -> Understood | None:
    """The same for a command line's words (and its heredoc); None where the line is no editor's."""
    name = words[0]
    if name in NAMED_EDITORS:
        return Understood(_named_editor(_options(words[1:])))
    if name in WINDOWED:
        return _windowed(name, words[1:], body)
    return None


def understood_edit_block(text: str) -> Understood | None:
    """`edit [a:b]` with its text on the following lines, ended by `end_of_edit`; None for any other text."""
    match = _END_OF_EDIT.match(text)
    if not match:
        return None
    lines = (int(match[1]), int(match[2])) if match[1] else None
    return _edited(Effect("modify", None, "range" if lines else "cursors", lines=lines, new=match[3]))


def _edited(effect: Effect) -> Understood:
    return Understood((effect,), window=True)


# Editors that name the file.

_VERBS = ("view", "create", "str_replace", "insert", "undo_edit")


def _named_editor(given: dict[str, Any]) -> tuple[Effect, ...]:
    verb, path = text_of(given, "command") or "", pick(given, PATHS) or ""
    if verb == "view":
        return (viewed(path, span_of(given)),)
    if verb == "create":
        return (Effect("create", path, "overwrite", new=pick(given, CONTENT) or ""),)
    if verb == "insert":
        return (Effect("modify", path, "insert", lines=behind(given), new=pick(given, NEW) or ""),)
    if verb == "str_replace":
        return (Effect("modify", path, "replace", old=pick(given, OLD) or "", new=pick(given, NEW) or ""),)
    if verb == "undo_edit":
        return (Effect("modify", path, "undo"),)
    return (Effect("execute", path, verb),)


def _options(words: list[str]) -> dict[str, Any]:
    """`verb path --name value ...` as arguments; an option takes what follows up to the next known one."""
    known = ("--file_text", "--old_str", "--new_str", "--insert_line", "--view_range")
    given: dict[str, Any] = {}
    plain: list[str] = []
    name = ""
    for word in words:
        key, mark, value = word.partition("=")
        if word in known or (mark and key in known):
            name = key[2:]
            given[name] = value if mark else None
        elif name:
            given[name] = word if given[name] is None else f"{given[name]} {word}"
        else:
            plain.append(word)
    return {**dict(zip(("command", "path"), plain, strict=False)), **{k: v or "" for k, v in given.items()}}


# Windowed editors.


def _windowed(name: str, words: list[str], body: str | None) -> Understood:
    first = words[0] if words else ""
    second = words[1] if len(words) > 1 else ""
    numbers = re.fullmatch(r"(\d{1,9}):(\d{1,9})", first)
    if name == "submit":
        return Understood((Effect("finish"),))
    if name == "open":
        line = number(second)
        return _edited(Effect("view", first, "window", lines=None if line is None else (line, line)))
    if name == "goto":
        line = number(first)
        return _edited(Effect("view", None, "window", lines=None if line is None else (line, line)))
    if name in ("scroll_up", "scroll_down"):
        return _edited(Effect("view", None, "window"))
    if name in ("get_symbols", "filemap", "view_map"):
        return _edited(Effect("view", first or None, "map"))
    if name == "set_cursors":
        low, high = number(first), number(second)
        cursors = None if low is None or high is None else (low, high)
        return Understood((Effect("view", None, "cursors", lines=cursors),), window=True, cursors=cursors)
    if name == "create":
        return _edited(Effect("create", first, "open", new=""))
    if name == "insert":
        return _edited(Effect("modify", None, "insert", new=first if words else body or ""))
    if name == "search_file":
        return Understood((Effect("search", second or None, "text", term=first),), window=True)
    if name in ("search_dir", "find_file"):
        return Understood((Effect("search", second, "name" if name == "find_file" else "text", term=first),))
    if numbers:  # edit a:b
        lines = (int(numbers[1]), int(numbers[2]))
        text = second if len(words) > 1 else re.sub(r"\n?end_of_edit\s*\Z", "", body or "").removesuffix("\n")
        return _edited(Effect("modify", None, "range", lines=lines, new=text))
    if len(words) > 1:
        return _edited(Effect("modify", None, "replace", old=first, new=second))
    return _edited(Effect("modify", None, "window", new=first if words else body or ""))


def _windowed_call(name: str, given: dict[str, Any]) -> Understood | None:
    """A windowed command given as a structured call; None where its arguments are another tool's."""
    old, path = pick(given, OLD), pick(given, ("path", "filename", "file", "file_path"))
    if name == "open":
        line = pick(given, ("line_number", "line"))
        return _windowed("open", [path or "", *([line] if line else [])], None)
    if name == "goto":
        return _windowed("goto", [pick(given, ("line_number", "line")) or ""], None)
    if name == "create":
        return _windowed("create", [path or ""], None)
    if name == "set_cursors":
        return _windowed(name, [pick(given, ("start_line",)) or "", pick(given, ("end_line",)) or ""], None)
    if name == "insert":
        return None if path else _windowed("insert", [pick(given, ("text", *NEW)) or ""], None)
    if name in ("search_dir", "search_file", "find_file"):
        term = pick(given, ("search_term", "file_name", "pattern", "query", "name")) or ""
        return _windowed(name, [term, pick(given, ("dir", "file", "path")) or ""], None)
    if name == "edit":
        if path:
            return None
        new = pick(given, NEW) or ""
        if old is not None:
            return _windowed("edit", [old, new], None)
        low, high = number(given.get("start_line")), number(given.get("end_line"))
        span = span_of(given) if low is None else (low, low if high is None else high)
        if span is None:
            return _edited(Effect("modify", None, "cursors", new=new))
        return _edited(Effect("modify", None, "range", lines=span, new=new))
    return _windowed(name, [path] if path else [], None)
