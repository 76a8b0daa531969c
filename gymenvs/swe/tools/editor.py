"""What the two editors share: paths, reading, writing, undo, and the texts that follow an edit.

Both work on the tree alone and start no process. They know only files under the tree's place in the sandbox; what a
command left elsewhere (in /tmp, say) is out of their reach, and they say so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

from rtmc.gymenvs.swe.paths import Entry, NotFolder, NotFound, OutsideTree, TreeError, TreeFolder
from rtmc.gymenvs.swe.tools.filetext import FileText, lines_of, numbered
from rtmc.gymenvs.swe.tools.history import EditHistory
from rtmc.gymenvs.swe.tools.results import Shown, ToolError, ToolLimits, Viewed, clip, quote, tree_fault

COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
CONTEXT_LINES = 4
_AFTER_REPLACE = "Review the changes and make sure they are as expected. Edit the file again if necessary."
_AFTER_INSERT = (
    "Review the changes and make sure they are as expected (correct indentation, no duplicate lines, etc). "
    "Edit the file again if necessary."
)


class Editor(ABC):
    """One of the two editors over a tree. `call` takes checked arguments; a refusal is a ToolError."""

    name: ClassVar[str]
    view_chars: ClassVar[int]

    def __init__(self, tree: TreeFolder, history: EditHistory, limits: ToolLimits) -> None:
        self.tree = tree
        self.history = history
        self.limits = limits
        self.chars = self.view_chars if limits.view_chars is None else limits.view_chars

    def call(self, arguments: Mapping[str, Any]) -> Shown:
        """Carry out a command. Arguments that were not given are missing or None."""
        command = arguments.get("command")
        if command not in COMMANDS:
            raise ToolError(self.unknown_command(command))
        path = arguments.get("path")
        if path is None or not path.strip():
            raise ToolError(self.missing("path", command))
        if "\0" in path:
            raise ToolError(self.fault(f"The path {path!r} holds a NUL byte, which no path can."))
        shown = str(PurePosixPath(path))
        entry = self.checked_path(shown, command)
        if command == "view":
            assert entry is not None
            return self.view_folder(shown, entry, arguments) if entry.is_folder else self.view(shown, arguments)
        run: dict[str, Callable[[str, Mapping[str, Any]], Shown]] = {
            "create": self.create,
            "str_replace": self.str_replace,
            "insert": self.insert,
            "undo_edit": self.undo,
        }
        return run[command](shown, arguments)

    # What each editor says in its own words

    @abstractmethod
    def unknown_command(self, command: str | None) -> str:
        """The refusal of a command that there is not, or of none."""

    @abstractmethod
    def fault(self, what: str) -> str:
        """A refusal that the tool copied has no text for."""

    @abstractmethod
    def missing(self, parameter: str, command: str) -> str:
        """The refusal of a command without a parameter that it needs."""

    @abstractmethod
    def no_undo(self, path: str) -> str:
        """The refusal of an undo without an edit."""

    @abstractmethod
    def checked_path(self, path: str, command: str) -> Entry | None:
        """What the path leads to. Raises ToolError where the command cannot be used on it."""

    @abstractmethod
    def view_folder(self, path: str, entry: Entry, arguments: Mapping[str, Any]) -> Shown:
        """The folders and files up to two levels below."""

    @abstractmethod
    def view(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        """A file with its lines numbered."""

    @abstractmethod
    def create(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        """Make a file that is not there yet."""

    @abstractmethod
    def str_replace(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        """Replace a text that occurs once."""

    @abstractmethod
    def insert(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        """Put lines behind a line."""

    def undo(self, path: str, arguments: Mapping[str, Any]) -> Shown:
        place = self.located(path)
        saved = self.history.last(place)
        if saved is None:
            raise ToolError(self.no_undo(path))
        self.write(path, saved)
        self.history.drop(place)
        text = FileText(saved).text
        listing, viewed = self.listing(text, path, place)
        return Shown(f"Last edit to {path} undone successfully. {listing}".rstrip("\n"), viewed)

    # The tree

    def entry_of(self, path: str) -> Entry | None:
        """What the path leads to; None if nothing is there."""
        try:
            return self.tree.entry(path)
        except (NotFound, NotFolder):
            return None
        except (TreeError, OSError) as error:
            raise ToolError(self.fault(self._path_fault(path, error))) from error

    def located(self, path: str) -> str:
        """The path in the tree, links resolved: the same file has one history by whatever name."""
        try:
            return self.tree.locate(path)
        except (TreeError, OSError) as error:
            raise ToolError(self.fault(self._path_fault(path, error))) from error

    def _path_fault(self, path: str, error: TreeError | OSError) -> str:
        if isinstance(error, OutsideTree):
            return f"The path '{path}' lies outside of {self.tree.inside}. Only files under it can be used."
        return f"The path '{quote(path, self.limits.quoted_chars)}' {tree_fault(error)}."

    def read(self, path: str) -> tuple[bytes, FileText]:
        try:
            content = self.tree.read(path, limit=self.limits.file_bytes)
        except (TreeError, OSError) as error:
            raise ToolError(self.fault(f"Failed to read file {path}: it {tree_fault(error)}")) from error
        text = FileText(content)
        if text.binary:
            what = "it holds NUL bytes, so it is no text. Use a command to look into it."
            raise ToolError(self.fault(f"Failed to read file {path}: {what}"))
        return content, text

    def write(self, path: str, content: bytes) -> None:
        if len(content) > self.limits.file_bytes:
            what = f"it would have {len(content)} bytes, over the limit of {self.limits.file_bytes}"
            raise ToolError(self.fault(f"Failed to write file {path}: {what}"))
        try:
            self.tree.write(path, content)
        except (TreeError, OSError) as error:
            raise ToolError(self.fault(f"Failed to write file {path}: it {tree_fault(error)}")) from error

    # Texts

    def quoted(self, text: str) -> str:
        return quote(text, self.limits.quoted_chars)

    def listing(self, text: str, what: str, place: str, first: int = 1) -> tuple[str, tuple[Viewed, ...]]:
        """`cat -n` of a text, cut to the editor's size, and which lines of the file it shows."""
        kept = clip(text, self.chars)
        shown = f"Here's the result of running `cat -n` on {what}:\n{numbered(kept, first)}\n"
        lines = len(lines_of(text[: self.chars]))
        return shown, ((place, ((first, first + lines - 1),) if lines else ()),)

    def edited(self, path: str, what: str, new_text: str, line: int, added: int, after: str) -> Shown:
        """The text after an edit: the lines `line` to `line` + `added` (from 0) among four lines of context."""
        first = max(0, line - CONTEXT_LINES)
        snippet = "\n".join(new_text.split("\n")[first : line + added + CONTEXT_LINES + 1])
        listing, viewed = self.listing(snippet, what, self.located(path), first + 1)
        return Shown(f"The file {path} has been edited. {listing}{after}", viewed)

    def replaced(self, path: str, old_text: str, new_text: str, at: int, new: str) -> Shown:
        """The text after old_text[at:] had a piece become `new`, both with "\\n" line ends."""
        line = old_text.count("\n", 0, at)
        return self.edited(path, f"a snippet of {path}", new_text, line, new.count("\n"), _AFTER_REPLACE)

    def inserted(self, path: str, insert_line: int, new: str) -> Shown:
        """Put the lines of `new` behind line `insert_line`, save the old content and say so."""
        content, old = self.read(path)
        new = old.as_written(new)
        lines = old.text.split("\n")
        at = sum(len(line) + 1 for line in lines[:insert_line])
        if insert_line < len(lines):
            changed = old.with_replaced(at, at, f"{new}\n")
        else:  # behind the last line, which has no end to stand before
            changed = old.with_replaced(len(old.text), len(old.text), f"\n{new}")
        self.write(path, changed)
        self.history.push(self.located(path), content)
        # The lines shown are those of before around those of `new`: four of either side, as many as there are.
        first = max(0, insert_line - CONTEXT_LINES)
        around = lines[first:insert_line] + new.split("\n") + lines[insert_line : insert_line + CONTEXT_LINES]
        what = "a snippet of the edited file"
        listing, viewed = self.listing("\n".join(around), what, self.located(path), first + 1)
        return Shown(f"The file {path} has been edited. {listing}{_AFTER_INSERT}", viewed)
