"""The gold patch as an agent would play it: edits by the editor's own calls, then the end of the task.

What this is not: a way around the tools. Every message goes through them like an agent's; a file that an edit cannot
bring about (one that repeats itself, a binary one) is written by a shell command.
"""

from __future__ import annotations

import base64
import difflib
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rtmc.gymenvs.swe.actions import FINISH_LINE, ToolCall, write_action
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.patchtext import touched
from rtmc.gymenvs.swe.paths import NotFound, TreeFolder
from rtmc.gymenvs.swe.repository import Prepared


class _Edit(NamedTuple):
    old: str
    new: str


def gold_actions(prepared: Prepared, tree: TreeFolder, syntax: str, editor: str) -> list[str]:
    """Messages that bring the files of the gold patch from what `tree` has to what the patch makes, then finish.

    Raises:
        PatchError: the patch does not apply to the task's starting folder.
    """
    plan: list[str] = []
    for path, after in _patched(prepared).items():
        try:
            before: bytes | None = tree.read(path)
        except NotFound:
            before = None
        if before != after:
            plan += _messages(f"{tree.inside}/{path}", before, after, syntax, editor)
    return [*plan, finish_action(syntax)]


def finish_action(syntax: str) -> str:
    """The message that ends a task."""
    if syntax == "bash":
        return shell_action(f"echo {FINISH_LINE}", syntax)
    return write_action(ToolCall("finish", {"command": "submit"}), syntax)


def shell_action(command: str, syntax: str) -> str:
    """The message that runs a command. Raises ValueError where the syntax cannot carry it."""
    if syntax == "bash":
        return write_action(ToolCall("bash", {"command": command}), syntax)
    return write_action(ToolCall("execute_bash", {"cmd": command}), syntax)


def _patched(prepared: Prepared) -> dict[str, bytes | None]:
    """Path -> content after the gold patch; None = the patch removes it."""
    patch = prepared.task.patch
    names = sorted({name for one in touched(patch) for name in (one.old, one.new) if name is not None})
    with tempfile.TemporaryDirectory(prefix="rtmc-gold-") as scratch:
        for name in names:
            if (prepared.base / name).is_file():
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / name).write_bytes((prepared.base / name).read_bytes())
        apply_patch(Path(scratch), patch)
        files = {name: Path(scratch) / name for name in names}
        return {name: file.read_bytes() if file.is_file() else None for name, file in files.items()}


def _messages(path: str, before: bytes | None, after: bytes | None, syntax: str, editor: str) -> Iterator[str]:
    if after is None:
        yield shell_action(f"rm -- {shlex.quote(path)}", syntax)
        return
    try:
        calls = [] if syntax == "bash" else list(_editor_calls(path, before, after.decode("utf-8")))
        messages = [write_action(ToolCall(editor, call), syntax) for call in calls]
    except ValueError:  # no UTF-8, no edit that names one place, or a text that the syntax cannot carry
        messages = []
    if messages:
        yield from messages
        return
    folder, name = shlex.quote(path.rpartition("/")[0]), shlex.quote(path)
    content = base64.b64encode(after).decode("ascii")
    yield shell_action(f"mkdir -p {folder} && printf %s {content} | base64 -d > {name}", syntax)


def _editor_calls(path: str, before: bytes | None, after: str) -> Iterator[dict[str, str]]:
    if before is None:
        yield {"command": "create", "path": path, "file_text": after}
        return
    if b"\r" in before or b"\t" in before:  # editors differ in what they make of these
        raise ValueError("tabs or carriage returns")
    for edit in _edits(before.decode("utf-8"), after):
        yield {"command": "str_replace", "path": path, "old_str": edit.old, "new_str": edit.new}


def _edits(before: str, after: str) -> Iterator[_Edit]:
    """Replacements, one after the other, each of a text that occurs once, that lead from `before` to `after`.

    Raises:
        ValueError: there are none.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changed = [
        code for code in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"
    ]
    # From the end to the start: the places of the edits still to come stay where they are.
    text = before
    for _, i1, i2, j1, j2 in reversed(changed):
        edit = next(_widened(text, old, new, i1, i2, j1, j2), None)
        if edit is None:
            raise ValueError("no text around this change occurs once")
        text = text.replace(edit.old, edit.new, 1)
        yield edit
    if text != after:
        raise ValueError("the edits do not lead to the file")


def _widened(text: str, old: list[str], new: list[str], i1: int, i2: int, j1: int, j2: int) -> Iterator[_Edit]:
    for more in range(1, max(i1, len(old) - i2) + 1):
        head, tail = "".join(old[max(0, i1 - more) : i1]), "".join(old[i2 : i2 + more])
        one, other = head + "".join(old[i1:i2]) + tail, head + "".join(new[j1:j2]) + tail
        # Blanks at the ends are dropped on the way: they must be the same on both sides.
        front, back = len(one) - len(one.lstrip()), len(one) - len(one.rstrip())
        same = (front, back) == (len(other) - len(other.lstrip()), len(other) - len(other.rstrip()))
        if same and one.strip() and other.strip() and text.count(one.strip()) == 1:
            yield _Edit(one.strip(), other.strip())
