"""What a task's test command asks for: pytest with arguments, which the guard can run, or a shell command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rtmc.gymenvs.swe.grading.names import files_of

__all__ = ["pytest_arguments", "script_command", "with_files"]

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_SCRIPT = re.compile(r"(?:(?:/bin/)?(?:ba)?sh +)?(?:\./|/testbed/)?([\w.-]+\.sh)(?: +2>&1)?")
_SHELL = re.compile(r"[;&|<>`$(){}\n*?~]")
# Options of pytest whose value is the next word: a path among these is no file to test.
_TAKES_VALUE = frozenset(
    {"-k", "-m", "-p", "-c", "-o", "-W", "-n", "-r", "--tb", "--rootdir", "--ignore", "--ignore-glob", "--deselect"}
    | {"--maxfail", "--durations", "--color", "--cov", "--cov-report", "--cov-config", "--log-level", "--import-mode"}
    | {"--basetemp", "--confcutdir", "--junitxml", "--override-ini", "--capture", "--timeout", "--verbosity"}
    | {"--config-file", "--pythonwarnings", "--dist", "--show-capture"}
)


def pytest_arguments(command: str) -> tuple[dict[str, str], list[str]] | None:
    """The variables and pytest's arguments of a plain call of pytest; None = the command needs a shell.

    Plain are `pytest ...`, `py.test ...` and `python -m pytest ...`, after any number of `NAME=value`. Warning filters
    of Python (`-W ...`) become pytest's; of a command with another option of Python the shell is left in charge.
    """
    if not command.strip():
        return {}, []
    quoted = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command)
    if _SHELL.search(re.sub(r"\[[^\]\s]*\]", "", quoted)):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    variables: dict[str, str] = {}
    while words and (named := _VARIABLE.fullmatch(words[0])):
        variables[named[1]] = named[2]
        words.pop(0)
    if not words:
        return None
    program, rest = words[0], words[1:]
    if program in ("pytest", "py.test"):
        return variables, rest
    if not _PYTHON.fullmatch(program):
        return None
    warnings: list[str] = []
    while rest and rest[0] in ("-W", "-B", "-u"):
        if rest[0] == "-W" and len(rest) > 1:
            warnings += ["-W", rest[1]]
            rest = rest[2:]
        else:
            rest = rest[1:]
    if rest[:2] == ["-m", "pytest"]:
        return variables, [*warnings, *rest[2:]]
    return None


def script_command(command: str, files: Mapping[str, str | bytes]) -> str:
    """The one command of a script that the command calls, where the script is a test file and holds no other.

    R2E-Gym's tasks are run by such a script; read here, its call of pytest runs under the guard as any other.
    """
    called = _SCRIPT.fullmatch(command)
    text = files.get(called[1]) if called else None
    if not isinstance(text, str):
        return command
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "set -"))]
    return lines[0] if len(lines) == 1 and pytest_arguments(lines[0]) is not None else command


def with_files(arguments: Sequence[str], tests: Sequence[str], tree: Path) -> list[str]:
    """The arguments with the files of the given tests behind them, unless they name something of the tree already."""
    named = False
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in _TAKES_VALUE:
            skip = True
        elif not word.startswith("-"):
            named = named or "::" in word or (tree / word).exists()
    return [*arguments] if named else [*arguments, *files_of(tests)]
