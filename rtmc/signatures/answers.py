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


_STATUS_KEYS = ("returncode", "exit_code", "exitCode", "exit_status")
_OUTPUT_KEYS = ("output", "output_head", "output_tail", "stdout", "stderr")
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
        "verification failed",
        "patch does not apply",
        "old_str is the same",
    ],
    r"Usage: |(?:ERROR|Error|error)\b[: ]|<(?:tool_use_)?error>|Invalid |File .{1,300} not found|Text not found",
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
    r"(?:ERROR|Error)\b[: ]|File .{1,300} not found|Cannot open|Invalid `\w+`|Usage: ",
)
# A program's own complaint, with the shell's name and line before it or not.
_COMPLAINT = re.compile(
    r"\n(?:(?:/\S{1,80}/)?(?:ba|z|da)?sh: |-bash: )?(?:line \d+: |\d+: )?((?:/\S{1,80}/)?[\w.+-]{1,40}): ([^\n]{1,400})"
)
_SHELL_COMPLAINT = re.compile(r"\n(?:(?:/\S{1,80}/)?(?:ba|z|da)?sh|-bash): (?:line \d+: |\d+: )?([^\n]{1,400})")
_UNKNOWN_COMMAND = re.compile(r"\n(?:[^\n:]{0,80}: ){0,3}([\w./+-]{1,80}): (?:command )?not found")
_PATCHING = re.compile(
    r"\n(?:(?P<file>[Pp]atching file|Checking patch)|(\d+) out of (\d+) hunks? (?:FAILED|failed))[ ']*([^\n']*)"
)
_FRAME = re.compile(r'\n\s*File "([^"\n]{1,300})", line \d+')
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
        "ImportError while loading conftest",
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
_CURSORS = ("<<<<< START CURSOR >>>>>", "<<<<< END CURSOR >>>>>")
_TAB_LINE = re.compile(r"^ {0,9}(\d{1,9})[\t ](.*)$", re.M)
_FOLDER = re.compile(r"\(Current directory: (/[^\n()]{0,300})\)|\[Current working directory: (/[^\n\]]{0,300})\]")
_WRAPPING = re.compile(
    r"^(?:<returncode>.*|</?output>|Exit code: .*|Execution output of \[.*|\[STD(?:OUT|ERR)\]|\[(?:The c|C)ommand .*"
    r"|\[Current working .*|\[Python Interpreter.*)$",
    re.M,
)


# Output without a line end at its own, as mini-swe-agent frames it.
_UNENDED = re.compile(r"([^\n>])(?=</output>\s*\Z)")


def plain(answer: str) -> str:
    """The answer as text with plain line ends; the JSON forms of mini-swe-agent and of Codex are spelled out."""
    if answer.startswith("{") and any(f'"{key}"' in answer for key in _STATUS_KEYS):
        try:
            told = json.loads(answer, strict=False)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            more = told.get("metadata")
            status = next(
                (
                    x[key]
                    for x in (told, more)
                    if isinstance(x, dict)
                    for key in _STATUS_KEYS
                    if type(x.get(key)) is int
                ),
                None,
            )
            parts = [told.get(key) for key in _OUTPUT_KEYS]
            # As mini-swe-agent writes it in its text form.
            head = "" if status is None else f"<returncode>{status}</returncode>\n"
            if status is not None or any(parts):
                answer = head + "\n".join(str(part) for part in parts if part)
    answer = answer.replace("\r\n", "\n") if "\r" in answer else answer
    return _UNENDED.sub(r"\1\n", answer)


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
        # All skipped ends with status 0, none chosen with 5.
        return status == 0 or (status is None and any("skipped" in s for s in summaries))
    if _CRASH.within(text):
        return False
    return True if status == 0 else None


def test_runs(text: str) -> list[bool]:
    """Whether each of the test runs that have a summary of pytest's passed, in order."""
    return [
        not ("failed" in s.replace("xfailed", "") or "error" in s) and any(w in s for w in ("passed", "skipped", "xf"))
        for s in _PYTEST.findall(text)
    ]


def ran(text: str, status: int | None) -> bool:
    """Whether a program ended well: by its exit status, else by what it printed."""
    return status == 0 if status is not None else not _CRASH.within(text)


def refused(text: str) -> bool:
    """Whether an editor refused the edit."""
    return _REFUSED.within(text)


def complaints(text: str) -> list[tuple[str, str]]:
    """(program, line) of what programs and the shell say of their own failures; the shell is "sh"."""
    found = [(m[1].rpartition("/")[2], m[2]) for m in _COMPLAINT.finditer(text)]
    if "sh: " in text:
        found += [("sh", m[1]) for m in _SHELL_COMPLAINT.finditer(text)]
    return found


def unknown_commands(text: str) -> set[str]:
    """Commands that the shell did not find."""
    return {m[1] for m in _UNKNOWN_COMMAND.finditer(text)} if "not found" in text else set()


def crashed_scripts(text: str) -> list[str]:
    """The outermost file of each traceback, "" for one that shows none."""
    found = []
    for part in text.split("Traceback (most recent call last)")[1:]:
        frame = _FRAME.search(part, 0, 2000)
        found.append(frame[1] if frame else "")
    return found


def patched_files(text: str) -> tuple[list[str], set[str]]:
    """(files that `patch` or `git apply -v` names, those of which every hunk failed)."""
    files: list[str] = []
    failed: set[str] = set()
    if "atching file" not in text and "Checking patch" not in text:
        return files, failed
    for found in _PATCHING.finditer(text):
        if found["file"]:
            files.append(found[4].strip().removesuffix("...").strip())
        elif files and found[2] and found[2] == found[3]:
            failed.add(files[-1])
    return files, failed


def complains(line: str) -> bool:
    """Whether a line that begins with a reader's name says that it could not read."""
    return any(word in line for word in _READ_WORDS)


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


def cursors(answer: str) -> tuple[int, int] | None:
    """The lines between the marks of a windowed editor's cursors; None where they are not both shown."""
    start, end = answer.find(_CURSORS[0]), answer.find(_CURSORS[1])
    if not 0 <= start < end:
        return None
    numbers = [int(found[1]) for found in _COLON_LINE.finditer(answer, start, end)]
    return (numbers[0], numbers[-1]) if numbers else None


def folder(text: str) -> str | None:
    """The working directory that the answer tells."""
    if "directory: /" not in text:
        return None
    found = _last(_FOLDER, text)
    return (found[1] or found[2]).strip() if found else None


def fresh_shell(text: str) -> bool:
    """Whether the answer is of an agent that starts a new shell for every command (mini-swe-agent, R2E-Gym)."""
    return "<returncode>" in text or '"returncode":' in text or "\nExecution output of [" in text
