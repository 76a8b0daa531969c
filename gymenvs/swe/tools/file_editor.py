"""R2E-Gym's `file_editor`: its five commands, messages and limits.

Where it differs from the original, on purpose:

- files keep their line ends, byte order mark and bytes that are no UTF-8 (the original rewrites all of them);
- only "\\n" ends a line, in every command (there `view` also counts form feeds and the like, `insert` does not);
- `view_range` in a condensed view is checked against the file's lines, not against the lines of the condensed view;
- `python_only=false` and `enable_linting=false` do what they say (there the first is dropped, the second read as true);
- a Python file of more than 400,000 characters is not condensed, and an edit of one not linted: it is refused;
- folders are listed in order, links are named and not followed.

`undo_edit` brings back what the file held before the last edit, whatever a command did to it since; after `create`
that is an empty file, as there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, ClassVar

from rtmc.gymenvs.swe.paths import Entry, NotFolder, NotFound, TreeError
from rtmc.gymenvs.swe.tools.condensed import MOST_CHARS, condensed_lines, parse_python
from rtmc.gymenvs.swe.tools.editor import COMMANDS, Editor
from rtmc.gymenvs.swe.tools.filetext import lines_of
from rtmc.gymenvs.swe.tools.results import Shown, ToolError, Viewed, clip, tree_fault

CONDENSED_OVER = 110  # lines; a longer Python file is shown condensed where no range is asked for
_LINT_ERROR = (
    "Your proposed edit has introduced new syntax error(s).\n"
    "Please read this error message carefully and then retry editing the file.\nERRORS:\n"
)


class FileEditor(Editor):
    """See the module."""

    name: ClassVar[str] = "file_editor"
    view_chars: ClassVar[int] = 10_000

    def fault(self, what: str) -> str:
        return f"ERROR: {what}"

    def result_fault(self, what: str) -> str:
        """The original prints an empty output before these."""
        return f"\nERROR: {what}"

    def unknown_command(self, command: str | None) -> str:
        if command is None:
            return self.fault(f"Missing required parameter 'command'. Allowed commands: {', '.join(COMMANDS)}.")
        shown = self.quoted(command)
        return self.fault(f"Unrecognized command '{shown}'. Allowed commands: {', '.join(COMMANDS)}.")

    def missing(self, parameter: str, command: str) -> str:
        if (parameter, command) == ("file_text", "create"):
            return self.fault("Cannot create file without 'file_text' parameter.")
        return self.fault(f"Missing required parameter '{parameter}' for '{command}'.")

    def no_undo(self, path: str) -> str:
        return self.fault(f"No previous edits found for {path} to undo.")

    def checked_path(self, path: str, command: str) -> Entry | None:
        entry = self.entry_of(path)
        if command == "create":
            if entry is not None:
                raise ToolError(self.fault(f"File already exists at: {path}. Cannot overwrite with 'create'."))
        elif entry is None:
            raise ToolError(self.fault(f"The path '{self.quoted(path)}' does not exist."))
        elif entry.is_folder and command != "view":
            what = f"The path '{path}' is a directory. Only 'view' can be used on directories."
            raise ToolError(self.fault(what))
        return entry

    def view_folder(self, path: str, entry: Entry, arguments: Mapping[str, Any]) -> Shown:
        python_only = arguments.get("python_only") is not False
        names = [path]
        viewed: list[Viewed] = [(entry.path, ())]
        below = f"{entry.path}/" if entry.path else ""
        for found in self.tree.walk(path, depth=2):
            if found.is_folder or not python_only or found.path.endswith(".py"):
                names.append(posixpath.join(path, found.path.removeprefix(below)))
                viewed.append((found.path, ()))
            if len(names) >= self.limits.folder_entries:
                break
        title = f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden:\n"
        return Shown(clip(title + "\n".join(names), self.chars), tuple(viewed))

    def view(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        python = path.endswith(".py") and posixpath.basename(path) != ".py"
        if not python and arguments.get("python_only") is not False:
            what = "Viewing non-Python files is disallowed for saving context."
            raise ToolError(self.result_fault(f"ERROR: {what} File '{posixpath.basename(path)}' is not a .py file."))
        text = self.read(path)[1].text
        lines = lines_of(text)
        asked = arguments.get("view_range")
        first, last = self.checked_range(asked, len(lines)) if asked is not None else (1, len(lines))
        concise = arguments.get("concise") is True or (asked is None and len(lines) > CONDENSED_OVER)
        rows = [(number, line, True) for number, line in enumerate(lines[first - 1 : last], first)]
        if python and concise and len(text) <= MOST_CHARS:
            try:
                condensed = condensed_lines(text, path)
            except SyntaxError as error:
                raise ToolError(self.fault(f"Syntax error for file {path}: {error}")) from error
            rows = [row for row in condensed if first <= row[0] <= last]
            title = (
                f"Here is a condensed view for file: {path}; [Note: Useful for understanding file structure in a "
                "concise manner. Please use specific view_range without concise cmd if you want to explore further "
                "into the relevant parts.]\n"
            )
        else:
            title = f"Here's the result of running `cat -n` on the file: {path}:\n"
        shown: list[str] = []
        room = self.chars - len(title)
        for number, line, _ in rows:
            shown.append(f"{number:6d} {line}")
            room -= len(shown[-1]) + 1
            if room < 0:  # the rest is clipped
                break
        numbers = [number for number, _, of_file in rows[: len(shown)] if of_file]
        return Shown(clip(title + "\n".join(shown), self.chars), ((self.located(path), runs_of(numbers)),))

    def checked_range(self, asked: list[int], lines: int) -> tuple[int, int]:
        start, end = asked
        if not 1 <= start <= lines:
            what = f"Invalid view_range {asked}: start line must be in [1, {lines}]"
            raise ToolError(self.result_fault(what))
        if end != -1 and not start <= end <= lines:
            what = f"Invalid view_range {asked}: end must be >= start and <= {lines}, or -1 to view until end."
            raise ToolError(self.result_fault(what))
        return start, lines if end == -1 else end

    def create(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        text = arguments.get("file_text")
        if text is None:
            raise ToolError(self.missing("file_text", "create"))
        self.lint(path, text, arguments)
        content = text.encode()
        try:
            if len(content) > self.limits.file_bytes:
                raise ToolError(
                    self.fault(
                        f"Error creating file at {path}: it would have {len(content)} bytes, over the limit of "
                        f"{self.limits.file_bytes}"
                    )
                )
            self.tree.write(path, content)
        except (NotFound, NotFolder) as error:
            what = (
                "[Errno 2] No such file or directory" if isinstance(error, NotFound) else "[Errno 20] Not a directory"
            )
            reason = f"{what}: '{path}'"
            raise ToolError(self.fault(f"Error creating file at {path}: {reason}")) from error
        except (TreeError, OSError) as error:
            raise ToolError(self.fault(f"Error creating file at {path}: it {tree_fault(error)}")) from error
        place = self.located(path)
        self.history.push(place, b"")
        listing, viewed = self.listing(text, path, place)
        after = "Review the file and make sure that it is as expected. Edit the file if necessary."
        return Shown(f"File created at {path}. {listing}{after}", viewed)

    def str_replace(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        old_str, new_str = arguments.get("old_str"), arguments.get("new_str") or ""
        if old_str is None:
            raise ToolError(self.missing("old_str", "str_replace"))
        content, old = self.read(path)
        wanted = old.as_written(old_str)
        found = old.text.count(wanted) if wanted or old.text else 0
        if found == 0:
            what = f"No occurrences of '{self.quoted(old_str)}' found in {path} for replacement."
            raise ToolError(self.fault(what))
        if found > 1:
            what = f"Multiple occurrences of '{self.quoted(old_str)}' found in {path}. "
            raise ToolError(self.fault(what + "Please ensure it is unique before using str_replace."))
        at = old.text.index(wanted)
        new = old.as_written(new_str)
        new_text = old.text[:at] + new + old.text[at + len(wanted) :]
        self.lint(path, new_text, arguments)
        self.write(path, old.with_replaced(at, at + len(wanted), new))
        self.history.push(self.located(path), content)
        return self.replaced(path, old.text, new_text, at, new)

    def insert(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        new, insert_line = arguments.get("new_str"), arguments.get("insert_line")
        if new is None:
            raise ToolError(self.missing("new_str", "insert"))
        if insert_line is None:
            raise ToolError(self.missing("insert_line", "insert"))
        old = self.read(path)[1]
        lines = old.text.split("\n")
        if not 0 <= insert_line <= len(lines):
            raise ToolError(self.fault(f"Invalid insert_line {insert_line}. Must be in [0, {len(lines)}]."))
        new = old.as_written(new)
        self.lint(path, "\n".join([*lines[:insert_line], new, *lines[insert_line:]]), arguments)
        return self.inserted(path, insert_line, new)

    def lint(self, path: str, text: str, arguments: Mapping[str, Any]) -> None:
        """Refuse an edit of a Python file that leaves it unparsable, if that was asked for."""
        if arguments.get("enable_linting") is not True or not path.endswith(".py"):
            return
        if len(text) > MOST_CHARS:
            what = f"The file would have {len(text)} characters; with enable_linting at most {MOST_CHARS} are parsed."
            raise ToolError(self.fault(what))
        try:
            parse_python(text, path)
        except SyntaxError as error:
            raise ToolError(self.result_fault(f"{_LINT_ERROR}{error}")) from error


def runs_of(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as (first, last) of each run without a gap."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
