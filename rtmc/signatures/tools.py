"""Tools of a single purpose: what a call of a viewer, an editor, a search tool does, by its name or its arguments.

Names that are known say what a tool does. A tool nobody knows is told by its arguments and the words in its name: old
and new text make an edit, a file with a content a new file, a query a search, a file alone a look at it where the name
says so. What is left is `execute` with the tool's name.
"""

from __future__ import annotations

import re
from typing import Any

from rtmc.signatures.arguments import CONTENT, NEW, OLD, PATHS, behind, number, pick, span_of, text_of, viewed
from rtmc.signatures.edits import block_texts, patch_effects
from rtmc.signatures.effects import ONLY, Effect, Swap
from rtmc.signatures.keys import short_hash, word_set
from rtmc.signatures.scripts import calls_in_code, python_effects

# Scope of a call whose arguments cannot be read: its text, by a hash.
UNREAD = "text-"
_THINK = word_set("think thought reflect plan note task_tracker update_plan todowrite sequentialthinking todo_write")
_FINISH = word_set(
    "submit finish final_answer complete attempt_completion task_complete done exit submit_patch exit_forfeit "
    "task_done verifiedfinish finish_task mark_task_complete"
)
_READ = word_set(
    "read read_file view_file view open_file cat show_file viewfile readfile viewcode read_many_files "
    "get_file_contents get_file_content"
)
_WRITE = word_set("write write_file create_file save_file writefile create write_to_file createfile new_file")
_SEARCH = word_set(
    "search grep glob find ls list_dir list_files search_files codebase_search grep_search find_files search_code "
    "list_directory file_search search_dir search_file find_file search_file_content findfunction findclass "
    "findcodesnippet semanticsearch listfiles get_repo_structure codebase_retrieval"
)
_EDIT = word_set(
    "edit edit_file str_replace replace replace_in_file search_replace multiedit apply_diff search_and_replace "
    "edit_file_by_replace string_replace stringreplace edit_lines edit_file_by_line json_edit_tool multi_edit"
)
_INSERT = word_set(
    "insert insert_lines insert_content insert_content_at_line append append_file append_to_file add_lines "
    "appendstring insertlines"
)
_MOVE = word_set("move_file rename_file mv move rename copy_file cp")
_DELETE = word_set("delete_file delete remove_file deletefile remove_files")
_PYTHON = word_set("ipython execute_ipython_cell python run_python jupyter run_python_code python_interpreter")
_TEST = word_set("run_tests run_test test pytest runtests")
# How words in the names of tools that nobody knows may begin.
_LOOKS = re.compile(r"(?:^|_)(?:read|view|open|show|cat|get|fetch|content)")
_LISTS = re.compile(r"(?:^|_)(?:list|tree|struct|director|folder|ls)")
_SEEKS = re.compile(r"(?:^|_)(?:search|find|grep|glob|lookup|locate|symbol|definition|reference|retriev)")
_MAKES = re.compile(r"(?:^|_)(?:creat|writ|save|new|overwrit)")
_ADDS = re.compile(r"(?:^|_)(?:insert|append|add|prepend)")
_CHANGES = re.compile(r"(?:^|_)(?:edit|replac|modif|updat|patch|chang|fix|apply)")
_MOVES = re.compile(r"(?:^|_)(?:mov|renam|cop)")
_REMOVES = re.compile(r"(?:^|_)(?:delet|remov|unlink)")
_OUTSIDE = re.compile(r"(?:^|_)(?:web|brows|internet|http|url|google|bing|memory|image|ask|user)")
_TERMS = (
    *("search_term", "pattern", "query", "regex", "term", "function_name", "class_name", "code_snippet", "symbol"),
    *("keyword", "keywords", "glob", "file_name", "file_pattern", "information_request", "search_query"),
)
_SOURCES = ("source", "source_path", "src", "old_path", "from", "from_path", "oldpath", "source_file")
_TARGETS = ("destination", "destination_path", "dest", "dst", "new_path", "to", "to_path", "target", "newpath")
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


def tool_effects(name: str, given: dict[str, Any]) -> list[Effect]:
    """The effects of a tool with these arguments, their names in lower case."""
    name = name.replace("-", "_")
    path = pick(given, PATHS)
    if name in _THINK:
        return [Effect("think")]
    if name in _FINISH:
        return [Effect("finish")]
    if name == "unparsed":
        return [Effect("execute", "", f"{UNREAD}{short_hash(text_of(given, 'text') or '')}")]
    if name in _PYTHON:
        code = pick(given, ("code", "input", "text", "command")) or ""
        cell = [effect for call in calls_in_code(code) for effect in _cell_call(*call)]
        if cell:
            return cell
        return [*python_effects(code), Effect("execute", "", "python", new=code)]
    if name in _TEST:
        return [Effect("test", path or next(iter(_listed(given)), ("", None))[0])]
    if name == "apply_patch" or (name == "edit" and "patch" in given):
        patch = pick(given, ("patch", "input", "diff", "text")) or ""
        return patch_effects(patch, shell=False) or [Effect("modify", path or "", "patch", new=patch)]
    found = _known(name, given, path) or _told_by_arguments(name, given, path)
    return found or [Effect("execute", path or "", re.sub(r"[^\w-]", "_", name)[:40])]


def _known(name: str, given: dict[str, Any], path: str | None) -> list[Effect]:
    if name in _EDIT and text_of(given, "operation") not in ("view", "get", "read"):
        return _edited(name, given, path)
    if name in _SEARCH:
        return [Effect("search", path or "", term=pick(given, _TERMS) or "")]
    if name in _READ:
        several = [viewed(one, span) for one, span in _listed(given)]
        return several if path is None else [viewed(path, span_of(given))]
    if name in _WRITE and path is not None:
        return [Effect("create", path, "overwrite", new=pick(given, CONTENT) or "")]
    if name in _INSERT and path is not None:
        return [_inserted(given, path)]
    if name in ("undo_edit", "undo") and path is not None:
        return [Effect("modify", path, "undo")]
    if name in _DELETE:
        gone = [path] if path is not None else [one for one, _ in _listed(given)]
        return [Effect("fileop", one, "delete") for one in gone]
    if name in _MOVE:
        return _moved(name, given, path)
    return []


def _told_by_arguments(name: str, given: dict[str, Any], path: str | None) -> list[Effect]:
    """The effects of a tool whose name is not known; none where its arguments do not tell them."""
    if path is not None and pick(given, OLD) is not None and pick(given, NEW) is not None:
        return _edited(name, given, path)
    if _OUTSIDE.search(name):
        return []
    moved = _moved(name, given, path) if _MOVES.search(name) else []
    if moved:
        return moved
    content = pick(given, CONTENT)
    if path is not None and content is not None:
        if _ADDS.search(name):
            return [_inserted(given, path)]
        if span_of(given) is not None or _CHANGES.search(name):
            return _edited(name, given, path)
        return [Effect("create", path, "overwrite", new=content)] if _MAKES.search(name) else []
    if _REMOVES.search(name) and path is not None:
        return [Effect("fileop", path, "delete")]
    if pick(given, _TERMS) is not None and (_SEEKS.search(name) or _LISTS.search(name)):
        return [Effect("search", path or "", term=pick(given, _TERMS) or "")]
    if path is not None and content is None and _LISTS.search(name):
        return [Effect("search", path)]
    if _LOOKS.search(name) and (path is not None or _listed(given)):
        return [viewed(path, span_of(given))] if path is not None else [viewed(*one) for one in _listed(given)]
    if given and given.keys() <= {"thought", "plan", "todos", "reasoning", "thoughts"}:
        return [Effect("think")]
    return []


def _listed(given: dict[str, Any]) -> list[tuple[str, tuple[int, int] | None]]:
    """(file, lines) of each file in a list of files, given by name or with the lines of each."""
    found: list[tuple[str, tuple[int, int] | None]] = []
    for key in ("files", "paths", "file_paths", "test_files"):
        for entry in given[key] if isinstance(given.get(key), list) else []:
            if isinstance(entry, str):
                found.append((entry, None))
            elif isinstance(entry, dict):
                inner = {str(k).lower(): v for k, v in entry.items()}
                path = pick(inner, PATHS)
                found += [(path, span_of(inner))] if path is not None else []
    return found


def _inserted(given: dict[str, Any], path: str) -> Effect:
    text = pick(given, (*NEW, *CONTENT)) or ""
    return Effect("modify", path, "insert", lines=behind(given), new=text)


def _moved(name: str, given: dict[str, Any], path: str | None) -> list[Effect]:
    source, target = pick(given, _SOURCES) or path, pick(given, _TARGETS)
    scope = "copy" if name.startswith(("cop", "cp")) else "move"
    return [Effect("fileop", source, scope, target=target)] if source and target else []


def _edited(name: str, given: dict[str, Any], path: str | None) -> list[Effect]:
    """An edit by old and new text, several at once, by search/replace blocks, or of a range of lines."""
    span = span_of(given)
    new = pick(given, (*NEW, *CONTENT))
    if span is not None and span[0] > 0 and new is not None and pick(given, OLD) is None:
        last = span[1] if span[1] >= 0 else span[0]
        return [Effect("modify", path or "", "range", lines=(span[0], last), new=new)]
    if "json_path" in given:
        return [Effect("modify", path or "", "replace", new=f"{given['json_path']} {given.get('value')}")]
    edits = given.get("edits")
    diff = block_texts(text_of(given, "diff") or text_of(given, "diffs") or "")
    if diff:
        edits = [{"old_str": old, "new_str": new} for old, new in diff]
    pairs = edits if isinstance(edits, list) else [given]
    pairs = [{str(k).lower(): v for k, v in pair.items()} for pair in pairs if isinstance(pair, dict)]
    swaps = tuple(
        Swap(pick(p, OLD) or "", pick(p, NEW) or "", 0 if p.get("replace_all") is True else ONLY) for p in pairs
    )
    if name == "search_replace" and not any(swap.old.strip() for swap in swaps):
        return [Effect("create", path or "", "overwrite", new="\n".join(swap.new for swap in swaps))]
    if new is not None and not any(swap.old for swap in swaps):
        return [Effect("modify", path or "", "replace", new=new)]  # what it replaces is not told
    return [Effect("modify", path or "", "replace", swaps=swaps)]


def _cell_call(name: str, given: list[object], named: dict[str, object]) -> list[Effect]:
    """The effects of a function that a cell calls; none for one that nobody knows."""
    if name not in _CELL_ARGUMENTS:
        return []
    arguments: dict[str, Any] = {
        **dict(zip(_CELL_ARGUMENTS[name], given, strict=False)),
        **{"path" if key in PATHS else key: value for key, value in named.items()},
    }
    path = pick(arguments, PATHS)
    if name == "open_file":
        line = number(arguments.get("line_number"))
        return [Effect("view", path, "window", lines=None if line is None else (line, line))]
    if name in ("goto_line", "scroll_down", "scroll_up"):
        return [Effect("view", None, "window")]
    if name == "create_file":
        return [Effect("create", path, "open", new="")]
    if name == "edit_file_by_line":
        low, high = number(arguments.get("start_line")), number(arguments.get("end_line"))
        span = None if low is None or high is None else (low, high)
        return [Effect("modify", path, "range", lines=span, new=pick(arguments, CONTENT) or "")]
    return tool_effects(name, arguments)
