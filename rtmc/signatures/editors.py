"""Editor tools: what a call of a file viewer, an editor, a search tool does, by its arguments rather than its name.

Two families: editors that name the file in each call (Anthropic's `str_replace_editor`, R2E-Gym's `file_editor`,
OpenHands, read/write/edit tools), and SWE-agent's windowed ones, which act on the file opened before. The same
functions serve structured calls and command lines (`str_replace_editor view f --view_range 1 9`, `edit 3:5 ...`).
"""

from __future__ import annotations

import re
from typing import Any

from rtmc.signatures.calls import Call
from rtmc.signatures.edits import block_texts, patch_effects
from rtmc.signatures.effects import Effect, Understood
from rtmc.signatures.keys import short_hash, word_set
from rtmc.signatures.scripts import calls_in_code, python_effects

WINDOWED = word_set(
    "open goto scroll_up scroll_down create edit insert set_cursors search_dir search_file find_file get_symbols "
    "filemap view_map submit"
)
NAMED_EDITORS = word_set("str_replace_editor edit_anthropic file_editor str_replace_based_edit_tool")
# Scope of a call whose arguments cannot be read: its text, by a hash.
UNREAD = "text-"
_THINK = word_set("think thought reflect plan note task_tracker update_plan todowrite")
_FINISH = word_set(
    "submit finish final_answer complete attempt_completion task_complete done exit submit_patch exit_forfeit"
)
_READ = word_set("read read_file view_file view open_file cat show_file viewfile readfile")
_WRITE = word_set("write write_file create_file save_file writefile create write_to_file")
_SEARCH = word_set(
    "search grep glob find ls list_dir list_files search_files codebase_search grep_search find_files search_code "
    "list_directory file_search search_dir search_file find_file"
)
_EDIT = word_set(
    "edit edit_file str_replace replace replace_in_file search_replace multiedit apply_diff search_and_replace "
    "edit_file_by_replace string_replace"
)
_INSERT = word_set(
    "insert insert_lines insert_content insert_content_at_line append append_file append_to_file add_lines"
)
_PYTHON = word_set("ipython execute_ipython_cell python run_python jupyter run_python_code python_interpreter")
_TEST = word_set("run_tests run_test test pytest runtests")
_PATHS = ("path", "file_path", "filename", "file", "target_file", "filepath", "absolutepath", "dir", "directory")
_OLD = ("old_str", "old_string", "search", "old", "old_text", "target_content", "oldtext", "to_replace")
_NEW = (
    *("new_str", "new_string", "replace", "new", "new_text", "replacement_text", "replacement", "newtext"),
    *("new_content", "text"),
)
_CONTENT = ("file_text", "content", "contents", "text", "new_str", "code_edit")
# Names of the arguments of OpenHands' functions that a cell calls, in their order.
_CELL_ARGUMENTS = {
    "open_file": ("path", "line_number"),
    "create_file": ("path",),
    "edit_file_by_replace": ("path", "to_replace", "new_content"),
    "insert_content_at_line": ("path", "line_number", "content"),
    "append_file": ("path", "content"),
    "edit_file_by_line": ("path", "start_line", "end_line", "content"),
    "search_dir": ("search_term", "path"),
    "search_file": ("search_term", "path"),
    "find_file": ("search_term", "path"),
    "goto_line": ("line_number",),
    "scroll_down": (),
    "scroll_up": (),
}
# `edit 3:5` or a bare `edit`, the text up to a line `end_of_edit`.
_END_OF_EDIT = re.compile(r"\Aedit(?:[ \t]+(\d{1,9}):(\d{1,9}))?[ \t]*\n(.*?)\n?end_of_edit\s*\Z", re.S)


def understood_call(call: Call) -> Understood:
    """What a call that is no shell command does; a tool nobody knows is `execute` with its name."""
    name, given = call.name, {k.lower(): v for k, v in call.arguments.items() if isinstance(k, str)}
    if name in NAMED_EDITORS or ("path" in given and _text(given, "command") in _VERBS):
        return Understood(_named_editor(given))
    if name in WINDOWED and not (name == "create" and _pick(given, _CONTENT) is not None):
        windowed = _windowed_call(name, given)
        if windowed is not None:
            return windowed
    return Understood(tuple(_by_name(name, given)))


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
    verb, path = _text(given, "command") or "", _pick(given, _PATHS) or ""
    if verb == "view":
        return (_view(path, _range(given)),)
    if verb == "create":
        return (Effect("create", path, "overwrite", new=_pick(given, _CONTENT) or ""),)
    if verb == "insert":
        return (Effect("modify", path, "insert", new=_pick(given, _NEW) or ""),)
    if verb == "str_replace":
        return (Effect("modify", path, "replace", old=_pick(given, _OLD) or "", new=_pick(given, _NEW) or ""),)
    if verb == "undo_edit":
        return (Effect("modify", path, "undo"),)
    return (Effect("execute", path, verb),)


def _view(path: str, lines: tuple[int, int] | None) -> Effect:
    whole = lines is None or lines == (1, -1)
    return Effect("view", path, "full") if whole else Effect("view", path, "partial", lines=lines)


def _range(given: dict[str, Any]) -> tuple[int, int] | None:
    value = given.get("view_range", given.get("line_range", given.get("lines")))
    if isinstance(value, str):
        value = re.findall(r"-?\d{1,9}", value)
    if isinstance(value, (list, tuple)) and value:
        numbers = [_number(v) for v in value[:2]]
        if numbers[0] is None:
            return None
        return numbers[0], -1 if len(numbers) < 2 or numbers[1] is None else numbers[1]
    start = next((_number(given[k]) for k in ("start_line", "startline", "offset", "line_start") if k in given), None)
    end = next((_number(given[k]) for k in ("end_line", "endline", "line_end") if k in given), None)
    limit = _number(given.get("limit"))
    if start is None and end is None and limit is None:
        return None
    start = 1 if start is None else max(start, 1)
    return start, (-1 if limit is None else start + limit - 1) if end is None else end


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
        line = _number(second)
        return _edited(Effect("view", first, "window", lines=None if line is None else (line, line)))
    if name == "goto":
        line = _number(first)
        return _edited(Effect("view", None, "window", lines=None if line is None else (line, line)))
    if name in ("scroll_up", "scroll_down"):
        return _edited(Effect("view", None, "window"))
    if name in ("get_symbols", "filemap", "view_map"):
        return _edited(Effect("view", first or None, "map"))
    if name == "set_cursors":
        low, high = _number(first), _number(second)
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
    old, path = _pick(given, _OLD), _pick(given, ("path", "filename", "file", "file_path"))
    if name == "open":
        line = _pick(given, ("line_number", "line"))
        return _windowed("open", [path or "", *([line] if line else [])], None)
    if name == "goto":
        return _windowed("goto", [_pick(given, ("line_number", "line")) or ""], None)
    if name == "create":
        return _windowed("create", [path or ""], None)
    if name == "set_cursors":
        return _windowed(name, [_pick(given, ("start_line",)) or "", _pick(given, ("end_line",)) or ""], None)
    if name == "insert":
        return None if path else _windowed("insert", [_pick(given, ("text", *_NEW)) or ""], None)
    if name in ("search_dir", "search_file", "find_file"):
        term = _pick(given, ("search_term", "file_name", "pattern", "query", "name")) or ""
        return _windowed(name, [term, _pick(given, ("dir", "file", "path")) or ""], None)
    if name == "edit":
        if path:
            return None
        new = _pick(given, _NEW) or ""
        if old is not None:
            return _windowed("edit", [old, new], None)
        low, high = _number(given.get("start_line")), _number(given.get("end_line"))
        span = _range(given) if low is None else (low, low if high is None else high)
        if span is None:
            return _edited(Effect("modify", None, "cursors", new=new))
        return _edited(Effect("modify", None, "range", lines=span, new=new))
    return _windowed(name, [path] if path else [], None)


# Tools known by their name.


def _by_name(name: str, given: dict[str, Any]) -> list[Effect]:
    path = _pick(given, _PATHS)
    if name in _THINK:
        return [Effect("think")]
    if name in _FINISH:
        return [Effect("finish")]
    if name == "unparsed":
        return [Effect("execute", "", f"{UNREAD}{short_hash(_text(given, 'text') or '')}")]
    if name in _PYTHON:
        code = _pick(given, ("code", "input", "text", "command")) or ""
        cell = [effect for call in calls_in_code(code) for effect in _cell_call(*call)]
        if cell:
            return cell
        return [*python_effects(code), Effect("execute", "", "python", new=code)]
    if name in _TEST:
        return [Effect("test", path or "")]
    if name == "apply_patch" or (name == "edit" and "patch" in given):
        patch = _pick(given, ("patch", "input", "diff", "text")) or ""
        return patch_effects(patch, shell=False) or [Effect("modify", path or "", "patch", new=patch)]
    if name in _EDIT or (path and _pick(given, _OLD) is not None):
        edits = given.get("edits")
        diff = block_texts(_text(given, "diff") or _text(given, "diffs") or "")
        if diff:
            edits = [{"old_str": old, "new_str": new} for old, new in diff]
        pairs = edits if isinstance(edits, list) else [given]
        pairs = [{str(k).lower(): v for k, v in pair.items()} for pair in pairs if isinstance(pair, dict)]
        old, new = ("\n".join(_pick(pair, names) or "" for pair in pairs) for names in (_OLD, _NEW))
        if name == "search_replace" and not old.strip():
            return [Effect("create", path or "", "overwrite", new=new)]
        return [Effect("modify", path or "", "replace", old=old, new=new)]
    if name in _SEARCH:
        return [Effect("search", path or "", term=_pick(given, ("search_term", "pattern", "query", "regex")) or "")]
    if name in _READ and path is not None:
        return [_view(path, _range(given))]
    if name in _WRITE and path is not None:
        return [Effect("create", path, "overwrite", new=_pick(given, _CONTENT) or "")]
    if name in _INSERT and path is not None:
        return [Effect("modify", path, "insert", new=_pick(given, (*_NEW, *_CONTENT)) or "")]
    if name in ("undo_edit", "undo") and path is not None:
        return [Effect("modify", path, "undo")]
    if name in ("delete_file", "delete", "remove_file") and path is not None:
        return [Effect("fileop", path, "delete")]
    return [Effect("execute", path or "", re.sub(r"[^\w-]", "_", name)[:40])]


def _cell_call(name: str, given: list[object], named: dict[str, object]) -> list[Effect]:
    """The effects of a function that a cell calls; none for one that nobody knows."""
    if name not in _CELL_ARGUMENTS:
        return []
    arguments: dict[str, Any] = {
        **dict(zip(_CELL_ARGUMENTS[name], given, strict=False)),
        **{"path" if key in _PATHS else key: value for key, value in named.items()},
    }
    path = _pick(arguments, _PATHS)
    if name == "open_file":
        line = _number(arguments.get("line_number"))
        return [Effect("view", path, "window", lines=None if line is None else (line, line))]
    if name in ("goto_line", "scroll_down", "scroll_up"):
        return [Effect("view", None, "window")]
    if name == "create_file":
        return [Effect("create", path, "open", new="")]
    if name == "edit_file_by_line":
        low, high = _number(arguments.get("start_line")), _number(arguments.get("end_line"))
        span = None if low is None or high is None else (low, high)
        return [Effect("modify", path, "range", lines=span, new=_pick(arguments, _CONTENT) or "")]
    return _by_name(name, arguments)


def _pick(given: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the arguments that is there, as text."""
    for name in names:
        value = given.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
    return None


def _text(given: dict[str, Any], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 10**9 else None
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.A) else None
