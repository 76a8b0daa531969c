"""What an environment's answer says of the action: exit status, test outcomes, refused edits, lines shown.

What counts are words of the programs themselves. An answer is read at its beginning and its end only, where they stand,
and regular expressions start at line ends, so that a long answer costs little more than a short one.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass

# An answer is read whole up to this length, then its beginning and its end (where summaries stand).
_HEAD, _TAIL = 3000, 6000


@dataclass(frozen=True, slots=True)
class _Signs:
    """Words that tell something anywhere in an answer, and ways in which a line of it may begin."""

    words: tuple[str, ...]
    lines: re.Pattern[str]

    def within(self, text: str) -> bool:
        return any(word in text for word in self.words) or self.lines.search(text) is not None


def _signs(words: list[str], lines: str) -> _Signs:
    # With the line end as a fixed first character the search skips from line to line.
    return _Signs(tuple(words), re.compile(rf"\n(?:{lines})"))


# As environments tell it, at the beginning or on a line of its own; a program may speak of exit codes too.
_EXIT = re.compile(
    r"<returncode>\s*(-?\d{1,10})\s*</returncode>"
    r"|\n[\[(]?(?:The )?(?:[Cc]ommand|[Pp]rocess) (?:finished|completed|exited) with (?:exit )?(?:code|status):? "
    r"(-?\d{1,10})\b"
    r"|\n[\[(]?[Ee]xit[ _](?:code|status)(?: is)?[:= ] ?(-?\d{1,10})\b"
)
_REFUSED = _signs(
    [
        "introduced new syntax error",
        "changes have NOT been applied",
        "edit was not applied",
        "o changes were made",
        "No replacement was performed",
        "No occurrences of",
        "Multiple occurrences of",
        "No file open",
        "No files open",
        "ile already exists",
        "Cannot overwrite",
        "tring not found",
        "String to replace not",
        "not an absolute path",
        "does not exist",
        "Search text must not be empty",
        "No edit history",
        "block failed",
        "failed to match",
        "patch does not apply",
        "old_str is the same",
    ],
    r"Usage: |(?:ERROR|Error|error)\b[: ]|<(?:tool_use_)?error>|Invalid |File .{1,300} not found|Text not found",
)
_PROGRAMS = r"sed|cat|patch|git|tee|cp|mv|rm|head|tail|ls|nl|grep|find|touch|mkdir|awk|cd|less|bash|sh|python3?"
_SHELL_ERROR = _signs(
    ["command not found", "Error executing command:", "syntax error near unexpected"],
    rf"(?:(?:/\S{{1,80}}/)?(?:ba|z)?sh: |-bash: )?(?:line \d+: )?(?:{_PROGRAMS}|error|fatal): |Error: "
    r"|Traceback \(most",
)
_READ_ERROR = re.compile(
    rf"\n(?:[^\n:]{{0,40}}: ){{0,2}}(?:{_PROGRAMS}): [^\n]*(?:No such file|[Ii]s a directory|Permission denied"
    r"|[Nn]ot a directory|unknown|can't read|cannot|unterminated)|\n[^\n]{0,80}: command not found|\nfatal: "
)
_READ_WORDS = ("No such", "directory", "denied", "unknown", "can't", "cannot", "not found", "fatal", "unterminated")
_MISSING = _signs(
    [
        "o such file or directory",
        "does not exist",
        "No file open",
        "No files open",
        "s a directory",
        "Permission denied",
    ],
    r"(?:ERROR|Error)\b[: ]|File .{1,300} not found|Cannot open|Invalid `\w+` parameter|Usage: ",
)
_CRASH = _signs(
    [
        "command not found",
        "can't open file",
        "Error executing command:",
        "Segmentation fault",
        "core dumped",
        "No such file or directory",
        "timed out",
        "took too long",
        "Permission denied",
    ],
    r"Traceback \(most recent call last\):|[\w.]{0,80}(?:Error|Exception): |make: \*\*\*|(?:ERROR|error)(?:\[\w+\])?: "
    r"|E\d{3} |fatal: ",
)
_COUNTS = r"\d+ (?:failed|passed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun|subtests passed)"
_PYTEST = re.compile(rf"\n=*\s*((?:{_COUNTS})(?:, {_COUNTS})*) in \d")
_FAILED = _signs(
    [
        "no tests ran",
        "test result: FAILED",
        "***Test Failed***",
        "evaluation failed",
        "\nRan 0 tests",
        "collected 0 items",
        "INTERNALERROR",
        "\nERROR: not found",
        "file or directory not found",
        "FAILURES!",
    ],
    r"FAILED(?: \(.*\)|\s*(?:\n|\Z))|FAILED \S+(?:::|\.py)|ERROR(?: collecting|: |\s+\S+\.py)|FAIL(?:: |\b)"
    r"|Tests?:\s+\d+ failed"
    r"|--- FAIL|\s*[1-9]\d* failing\b|make: \*\*\*|=+ (?:ERRORS|FAILURES) =+",
)
_PASSED = _signs(
    ["test result: ok", "congratulations :)", "All tests passed"],
    r"OK(?: \(.*\))?\s*(?:\n|\Z)|Tests:\s+(?:\d+ skipped, )?\d+ passed|\s*[1-9]\d* passing\b|ok\s+\S+|PASS(?:ED)?\b",
)
_HEADER = re.compile(r"\[File: (.{1,500}?) \((\d{1,9}) lines total\)\]")
_COLON_LINE = re.compile(r"^(\d{1,9}):(.*)$", re.M)
_TAB_LINE = re.compile(r"^ {0,9}(\d{1,9})[\t ](.*)$", re.M)
_FOLDER = re.compile(r"\(Current directory: (/[^\n()]{0,300})\)|\[Current working directory: (/[^\n\]]{0,300})\]")
_WRAPPING = re.compile(
    r"^(?:<returncode>.*|</?output>|Exit code: .*|Execution output of \[.*|\[STD(?:OUT|ERR)\]|\[(?:The c|C)ommand .*"
    r"|\[Current working .*|\[Python Interpreter.*)$",
    re.M,
)


def plain(answer: str) -> str:
    """The answer as text with plain line ends; mini-swe-agent's JSON form is spelled out."""
    if answer.startswith("{") and '"returncode"' in answer:
        try:
            told = json.loads(answer, strict=False)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            parts = (told.get(key) for key in ("output", "output_head", "output_tail"))
            answer = f"<returncode>{told.get('returncode')}</returncode>\n" + "\n".join(str(p) for p in parts if p)
    return answer.replace("\r\n", "\n") if "\r" in answer else answer


def ends(answer: str) -> str:
    """The part of an answer that is read; a line end stands before its first line."""
    if len(answer) <= _HEAD + _TAIL:
        return f"\n{answer}"
    return f"\n{answer[:_HEAD]}\n{answer[-_TAIL:]}"


def exit_status(text: str) -> int | None:
    """The exit status that the answer tells, at its beginning or else last at its end; None = not told."""
    found = _EXIT.search(text, 0, 100) or _last(_EXIT, text[-500:])
    return None if found is None else int(found[1] or found[2] or found[3])


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), 1)), None)


def run_passed(text: str, status: int | None) -> bool | None:
    """Whether a test run passed: False where a summary or the exit status tells of a failure (a pipe may hide the
    status, a later command the summary), True where either tells of success, None where nothing does."""
    summaries = _PYTEST.findall(text)
    if any("failed" in s.replace("xfailed", "") or "error" in s for s in summaries) or _FAILED.within(text):
        return False
    if status not in (None, 0):
        return False
    if any("passed" in s or "xfailed" in s for s in summaries) or _PASSED.within(text):
        return True
    if summaries:
        return status == 0  # all skipped or deselected
    if _CRASH.within(text):
        return False
    return True if status == 0 or text.strip() == "" else None


def ran(text: str, status: int | None) -> bool:
    """Whether a program ended well: by its exit status, else by what it printed."""
    return status == 0 if status is not None else not _CRASH.within(text)


def refused(text: str) -> bool:
    """Whether an editor refused the edit."""
    return _REFUSED.within(text)


def shell_failed(text: str, status: int | None, last: bool) -> bool:
    """Whether a shell command that reads or writes files failed; the exit status is the last command's."""
    if status == 0:
        return False
    return _SHELL_ERROR.within(text) or (last and status is not None)


def reading_failed(text: str, status: int | None, last: bool) -> bool:
    """Whether a shell command that only reads failed. What it read may itself speak of errors, so only the programs'
    own complaints count, and the exit status where it is this command's."""
    if status == 0:
        return False
    if last and status is not None:
        return True
    return any(word in text for word in _READ_WORDS) and _READ_ERROR.search(text) is not None


def missing(text: str) -> bool:
    """Whether a viewer or a search tool found no such file."""
    return _MISSING.within(text[:600])


def is_listing(text: str) -> bool:
    """Whether the answer to a view lists a folder."""
    return "files and directories up to" in text[:200]


def header(text: str) -> tuple[str, int] | None:
    """(file, number of lines) of a windowed editor's answer."""
    match = _HEADER.search(text) if "[File: " in text else None
    return (match[1].strip(), int(match[2])) if match else None


def shown_lines(answer: str, first: int = 0) -> dict[int, str]:
    """Lines of a file that the answer shows, by number: with numbers before them (windowed editor, `cat -n`, `nl`), or
    else plain from line `first` on, if that is not 0."""
    lines: dict[int, str] = {}
    at = 0
    match = _HEADER.search(answer)
    pattern = _COLON_LINE if match else _TAB_LINE
    for found in pattern.finditer(answer, match.end() if match else 0):
        number = int(found[1])
        if lines and not 0 < number - at <= 2:
            if match:  # the next window: what the file was before, or would have been
                break
            continue
        lines[number] = found[2].rstrip("\r")
        at = number
    if first > 0 and match is None:
        body = _WRAPPING.sub("", answer).strip("\n").split("\n")
        if 2 * len(lines) < len(body):
            return dict(enumerate(body, first))
    return lines


def folder(text: str) -> str | None:
    """The working directory that the answer tells."""
    if "directory: /" not in text:
        return None
    found = _last(_FOLDER, text)
    return (found[1] or found[2]).strip() if found else None


def fresh_shell(text: str) -> bool:
    """Whether the answer is of an agent that starts a new shell for every command (mini-swe-agent, R2E-Gym)."""
    return "<returncode>" in text or '"returncode":' in text or "\nExecution output of [" in text
