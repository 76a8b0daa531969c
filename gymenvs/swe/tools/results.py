"""What a tool gives back, the limits it keeps to, and how its texts are cut and cleaned.

Cutting is the projects' own: R2E-Gym keeps the first and the last 40 lines of a command's output and the first 10,000
characters of what the editor shows; SWE-agent's editor shows 16,000; mini-swe-agent keeps 5,000 characters of either
end. Two cuts are ours, for outputs that those rules let through whole: lines of a command without end
(`command_chars`) and an argument quoted in an error (`quoted_chars`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from rtmc.gymenvs.swe.paths import TreeError

CLIPPED = (
    "<response clipped><NOTE>To save on context only part of this file has been shown to you. You should retry this "
    "tool after you have searched inside the file with `grep -n` in order to find the line numbers of what you are "
    "looking for.</NOTE>"
)
_RULE = "-" * 50
_CUT_MIDDLE = f"\n{_RULE}\n<Observation truncated in middle for saving context>\n{_RULE}\n"
# Escape sequences of a terminal (colours, moves, titles), carriage returns, and what no UTF-8 text can hold.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\^_])|\r")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")

# (path in the tree, ((first line, last line), ...)); no lines: its name alone was shown.
Viewed = tuple[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Sizes, in characters, lines or bytes as the names say.

    `view_chars`: of what the editor or a search shows; None = 10,000 for `file_editor`, 16,000 for
    `str_replace_editor`. `command_s` is named in the text of a timeout; whoever binds `run` sets the same limit there.
    """

    view_chars: int | None = None
    command_lines: int = 40  # kept of either end
    command_chars: int = 100_000
    output_chars: int = 10_000  # mini-swe-agent's; half of it is kept of either end
    quoted_chars: int = 2_000
    command_s: float = 120.0
    file_bytes: int = 8 << 20  # the largest file that is viewed, edited, created or searched
    folder_entries: int = 20_000
    search_files: int = 20_000
    search_bytes: int = 64 << 20
    matched_files: int = 100
    undo_steps: int = 64
    undo_bytes: int = 8 << 20  # as stored, compressed

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"ToolLimits: {name} = {value!r}: want a positive number")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave.

    `text`: the observation. `error`: why the tool did not do what was asked, None if it did (a command that ran and
    failed is no error: see `exit_code`). `exit_code`: of a command, -1 if it was stopped, else None. `kind`: `view`,
    `create`, `str_replace`, `insert`, `undo_edit`, `search`, `bash`, `finish` or `invalid`. `viewed`: what was shown,
    as (path in the tree, ((first line, last line), ...)); no lines: its name alone.
    """

    text: str
    kind: str
    error: str | None = None
    exit_code: int | None = None
    timed_out: bool = False
    finished: bool = False
    viewed: tuple[Viewed, ...] = ()


class Shown(NamedTuple):
    """What an editor or a search says when it did as asked."""

    text: str
    viewed: tuple[Viewed, ...] = ()


class ToolError(Exception):
    """A call that a tool refuses; its text is the observation."""


def clean(text: str) -> str:
    """The text without terminal codes and carriage returns; surrogates, which no UTF-8 holds, become U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", _TERMINAL.sub("", text))


def has_surrogates(text: str) -> bool:
    return _LONE_SURROGATE.search(text) is not None


def clip(text: str, chars: int) -> str:
    """The first characters and, where some were left out, the editors' note."""
    return text if len(text) <= chars else text[:chars] + CLIPPED


def quote(text: str, chars: int) -> str:
    """An argument as an error shows it: long ones without their middle."""
    if len(text) <= chars:
        return text
    return f"{text[: chars // 2]}... [{len(text) - chars // 2 * 2} characters left out] ...{text[-(chars // 2) :]}"


def cut_middle(text: str, lines: int, chars: int) -> str:
    """The first and the last `lines` lines; of what is still over `chars` characters, the two ends."""
    rows = text.splitlines()
    if len(rows) > 2 * lines:
        text = "\n".join(rows[:lines]) + _CUT_MIDDLE + "\n".join(rows[-lines:])
    if len(text) > chars:
        text = text[: chars // 2] + _CUT_MIDDLE + text[-(chars // 2) :]
    return text


def tree_fault(error: TreeError | OSError) -> str:
    """What is wrong with a path, without the host's name of it."""
    return error.what if isinstance(error, TreeError) else f"cannot be used: {error.strerror}"
