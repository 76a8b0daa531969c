"""SWE-agent's `str_replace_editor` (Anthropic's editing tool): its five commands, messages and limits.

Paths have to be absolute. `str_replace` finds the text with tabs expanded on both sides, as the original does, and so
do the numbered lines shown; but the file keeps its tabs, where the original writes the expanded text back. Files keep
their line ends, byte order mark and bytes that are no UTF-8 as well. After an edit four lines of context are shown on
either side. Where the wanted text has several lines and occurs several times, the lines named are those on which it
begins (the original names none).

`undo_edit` brings back what the file held before the last edit, whatever a command did to it since; after `create`
that is the text created, as there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, ClassVar

from rtmc.gymenvs.swe.paths import Entry
from rtmc.gymenvs.swe.tools.editor import COMMANDS, Editor
from rtmc.gymenvs.swe.tools.filetext import unexpanded_span
from rtmc.gymenvs.swe.tools.results import Shown, ToolError, Viewed, clip

_MOST_LINES = 200  # named of a text that occurs again and again


class StrReplaceEditor(Editor):
    """See the module."""

    name: ClassVar[str] = "str_replace_editor"
    view_chars: ClassVar[int] = 16_000

    def fault(self, what: str) -> str:
        return what

    def unknown_command(self, command: str | None) -> str:
        shown = "" if command is None else f"{self.quoted(command)}"
        allowed = ", ".join(f'"{name}"' for name in COMMANDS)
        return f"Unrecognized command {shown}. The allowed commands for the {self.name} tool are: {allowed}"

    def missing(self, parameter: str, command: str) -> str:
        return f"Parameter `{parameter}` is required for command: {command}"

    def no_undo(self, path: str) -> str:
        return f"No edit history found for {path}."

    def checked_path(self, path: str, command: str) -> Entry | None:
        shown = self.quoted(path)
        if not path.startswith("/"):
            meant = posixpath.join(self.tree.inside, shown)
            what = f"The path {shown} is not an absolute path, it should start with `/`. Maybe you meant {meant}?"
            raise ToolError(what)
        entry = self.entry_of(path)
        if entry is None and command != "create":
            raise ToolError(f"The path {shown} does not exist. Please provide a valid path.")
        if entry is not None and command == "create":
            raise ToolError(f"File already exists at: {path}. Cannot overwrite files using command `create`.")
        if entry is not None and entry.is_folder and command != "view":
            what = f"The path {path} is a directory and only the `view` command can be used on directories"
            raise ToolError(what)
        return entry

    def view_folder(self, path: str, entry: Entry, arguments: Mapping[str, Any]) -> Shown:
        if arguments.get("view_range") is not None:
            raise ToolError("The `view_range` parameter is not allowed when `path` points to a directory.")
        names = [path]
        viewed: list[Viewed] = [(entry.path, ())]
        below = f"{entry.path}/" if entry.path else ""
        for found in self.tree.walk(path, depth=2):
            names.append(posixpath.join(path, found.path.removeprefix(below)))
            viewed.append((found.path, ()))
            if len(names) >= self.limits.folder_entries:
                break
        title = f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden items:\n"
        return Shown(clip(title + "\n".join(names), self.chars), tuple(viewed))

    def view(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        text = self.read(path)[1].text
        asked = arguments.get("view_range")
        first = 1
        if asked is not None:
            lines = text.split("\n")
            first, last = self.checked_range(asked, len(lines))
            text = "\n".join(lines[first - 1 : last])
        listing, viewed = self.listing(text, path, self.located(path), first)
        return Shown(listing.removesuffix("\n"), viewed)

    def checked_range(self, asked: list[int], lines: int) -> tuple[int, int]:
        first, last = asked
        wrong = ""
        if not 1 <= first <= lines:
            wrong = f"Its first element `{first}` should be within the range of lines of the file: {[1, lines]}"
        elif last > lines:
            wrong = f"Its second element `{last}` should be smaller than the number of lines in the file: `{lines}`"
        elif last != -1 and last < first:
            wrong = f"Its second element `{last}` should be larger or equal than its first `{first}`"
        if wrong:
            raise ToolError(f"Invalid `view_range`: {asked}. {wrong}")
        return first, lines if last == -1 else last

    def create(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        text = arguments.get("file_text")
        if text is None:
            raise ToolError(self.missing("file_text", "create"))
        parent = posixpath.dirname(path)
        found = self.entry_of(parent)
        if found is None or not found.is_folder:
            raise ToolError(f"The parent directory {parent} does not exist. Please create it first.")
        content = text.encode()
        self.write(path, content)
        self.history.push(self.located(path), content)
        return Shown(f"File created successfully at: {path}")

    def str_replace(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        old_str, new_str = arguments.get("old_str"), arguments.get("new_str") or ""
        if old_str is None:
            raise ToolError(self.missing("old_str", "str_replace"))
        content, old = self.read(path)
        expanded = old.text.expandtabs()
        wanted = old.as_written(old_str).expandtabs()
        found = expanded.count(wanted) if wanted or expanded else 0
        if found == 0:
            what = f"old_str `{self.quoted(wanted)}` did not appear verbatim in {path}."
            raise ToolError(f"No replacement was performed, {what}")
        if found > 1:
            lines = _begins_on(expanded, wanted)
            what = (
                f"Multiple occurrences of old_str `{self.quoted(wanted)}` in lines {lines}. Please ensure it is unique"
            )
            raise ToolError(f"No replacement was performed. {what}")
        new = old.as_written(new_str)
        if new.expandtabs() == wanted:
            same = self.quoted(wanted)
            raise ToolError(f"No replacement was performed, old_str `{same}` is the same as new_str `{same}`.")
        place = expanded.index(wanted)
        start, end, before, after = unexpanded_span(old.text, expanded, place, place + len(wanted))
        new = before + new + after
        new_text = old.text[:start] + new + old.text[end:]
        self.write(path, old.with_replaced(start, end, new))
        self.history.push(self.located(path), content)
        return self.replaced(path, old.text, new_text, start, new)

    def insert(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        new, insert_line = arguments.get("new_str"), arguments.get("insert_line")
        if insert_line is None:
            raise ToolError(self.missing("insert_line", "insert"))
        if new is None:
            raise ToolError(self.missing("new_str", "insert"))
        lines = self.read(path)[1].text.count("\n") + 1
        if not 0 <= insert_line <= lines:
            what = f"{insert_line}. It should be within the range of lines of the file: {[0, lines]}"
            raise ToolError(f"Invalid `insert_line` parameter: {what}")
        return self.inserted(path, insert_line, new)


def _begins_on(text: str, wanted: str) -> list[int]:
    """The numbers of the lines on which a text begins, each once, the first `_MOST_LINES` of them."""
    if not wanted:
        return list(range(1, min(text.count("\n") + 1, _MOST_LINES) + 1))
    lines: list[int] = []
    line, done = 1, 0
    at = text.find(wanted)
    while at >= 0 and len(lines) < _MOST_LINES:
        line += text.count("\n", done, at)
        done = at
        if not lines or lines[-1] != line:
            lines.append(line)
        at = text.find(wanted, at + len(wanted))
    return lines
