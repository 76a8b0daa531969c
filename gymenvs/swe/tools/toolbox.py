"""The tools of one episode: a call in, an observation out.

    toolbox = Toolbox(tree, sandbox.run, syntax="r2e")
    result = toolbox.answer(message)          # or .call(ToolCall(...))

Nothing that an agent writes raises: what cannot be done is an observation that says what is wanted. What does raise is
a fault of the program: a wrong option, or an error of `run` itself. The editor and the search start no process.

The frame of an observation, in the syntaxes `r2e` and `tools`, is R2E-Gym's: "Execution output of [NAME]:", for
commands after "Exit code: N"; `finish` answers "<<< Finished >>>". In the syntax `bash` the observation is
mini-swe-agent's JSON. The line end that printing adds to a tool's text is left out.

Source: R2E-Gym (agenthub/observation, agenthub/environment).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rtmc.gymenvs.swe.actions import Invalid, ToolCall, read_action
from rtmc.gymenvs.swe.paths import TreeError, TreeFolder
from rtmc.gymenvs.swe.tools.editor import COMMANDS, Editor
from rtmc.gymenvs.swe.tools.file_editor import FileEditor
from rtmc.gymenvs.swe.tools.helptexts import tool_names
from rtmc.gymenvs.swe.tools.history import EditHistory, Saved
from rtmc.gymenvs.swe.tools.parameters import ALIASES, checked
from rtmc.gymenvs.swe.tools.results import Shown, ToolError, ToolLimits, ToolResult, clean, quote, tree_fault
from rtmc.gymenvs.swe.tools.search import search
from rtmc.gymenvs.swe.tools.shell import Run, execute_bash, mini_bash
from rtmc.gymenvs.swe.tools.str_replace_editor import StrReplaceEditor

_EDITORS: dict[str, type[Editor]] = {"file_editor": FileEditor, "str_replace_editor": StrReplaceEditor}
FINISHED = "<<< Finished >>>"
_MISUSED = 2  # R2E-Gym's `execute_bash` is a program, which ends so where its arguments are not as they should be


class Toolbox:
    """The tools over a tree.

    Args:
        tree: the agent's tree (a WorkTree, or any TreeFolder).
        run: runs a shell command in the sandbox over that tree, within its limits: `Sandbox.run`, its limits bound.
        syntax: `r2e` or `tools` (file_editor or str_replace_editor, search, execute_bash, finish), or `bash`.
        editor: `file_editor` (R2E-Gym) or `str_replace_editor` (SWE-agent).
        limits: sizes.

    Raises:
        ValueError: the syntax or the editor is unknown.
    """

    def __init__(
        self,
        tree: TreeFolder,
        run: Run,
        syntax: str = "r2e",
        editor: str = "file_editor",
        limits: ToolLimits | None = None,
    ) -> None:
        self.names = tool_names(syntax, editor)
        self.syntax = syntax
        self.limits = limits or ToolLimits()
        self._tree = tree
        self._run = run
        self._history = EditHistory(self.limits.undo_steps, self.limits.undo_bytes)
        self._editor = _EDITORS[editor](tree, self._history, self.limits)

    def snapshot(self) -> Saved:
        """What the tools remember (the editor's undo history): immutable, picklable, at most `undo_bytes`."""
        return self._history.snapshot()

    def restore(self, saved: Saved) -> None:
        """Go back to a snapshot, of this toolbox or of another one with the same options."""
        self._history.restore(saved)

    def answer(self, message: str) -> ToolResult:
        """Read a message and carry out its call."""
        action = read_action(message, self.syntax)
        if isinstance(action, Invalid):
            return ToolResult(clean(action.observation), "invalid", error=action.reason)
        return self.call(action)

    def call(self, call: ToolCall) -> ToolResult:
        """Carry out a call. Its text is the observation, whatever the call is."""
        name = ALIASES.get(call.name, call.name)
        if name not in self.names:
            return self._unknown_tool(call.name)
        if name == "finish":
            return ToolResult(FINISHED, "finish", finished=True)
        try:
            result = self._carried_out(name, checked(name, call.arguments))
        except ToolError as error:
            kind = self._kind(name, call.arguments)
            code = _MISUSED if name == "execute_bash" else None
            reason = str(error).removeprefix("\n").removeprefix("ERROR: ")
            result = ToolResult(str(error), kind, error=reason, exit_code=code)
            if self.syntax == "bash":
                return replace(result, text=f"Tool call error:\n\n<error>\n{clean(result.text)}\n</error>")
        if self.syntax == "bash":
            return result
        text = f"Execution output of [{name}]:\n{clean(result.text)}"
        if result.exit_code is not None:
            text = f"Exit code: {result.exit_code}\n{text}"
        return replace(result, text=text)

    def _carried_out(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name == "bash":
            return mini_bash(self._run, arguments, self.limits)
        if name == "execute_bash":
            return execute_bash(self._run, arguments, self.limits)
        kind = self._kind(name, arguments)
        try:
            shown: Shown = (
                search(self._tree, arguments, self.limits) if name == "search" else self._editor.call(arguments)
            )
        except (TreeError, OSError) as error:  # the tree changed meanwhile, or refuses a folder on the way
            raise ToolError(f"ERROR: The path {tree_fault(error)}.") from error
        return ToolResult(shown.text, kind, viewed=shown.viewed)

    def _kind(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name in _EDITORS:
            command = arguments.get("command")
            return command if isinstance(command, str) and command in COMMANDS else "invalid"
        return "search" if name == "search" else "bash"

    def _unknown_tool(self, name: str) -> ToolResult:
        shown = clean(quote(name, self.limits.quoted_chars))
        error = f"there is no tool {shown!r}; there are {', '.join(self.names)}"
        if self.syntax == "bash":
            return ToolResult(f"Tool call error:\n\n<error>\nUnknown tool '{shown}'.\n</error>", "invalid", error=error)
        text = (
            f"Execution output of [{shown}]:\nInvalid Action: input action must be one of allowed actions \n "
            f"Allowed actions: {list(self.names)} \n Input action: {shown}\t"
        )
        return ToolResult(text, "invalid", error=error)
