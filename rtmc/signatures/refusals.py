"""What an environment says in the place of an answer: it did not run the action, or it stopped it.

Not run: the message was malformed, the shell's syntax was, the command is not allowed. Nothing happened, whatever the
action says. Stopped: it took too long, or was killed. Of a line with a program in it (a run, a test, an installation,
a search) the first that does not tell how it ended is taken to be what was stopped, since nothing else takes long;
else the first command. What stood before it was done, itself and what follows not; only one that was killed lets the
shell go on. A log does not tell more: that a stopped command did half its work is possible, and unknown.

What this is not: the failure of a command that ran (rtmc/signatures/answers.py).
Source: the texts of SWE-agent 0.x and 1.x, mini-swe-agent 1.x and 2.x, R2E-Gym, and OpenHands.
"""

from __future__ import annotations

import re

# How an answer begins whose action was not run; each is an environment's own text.
NOT_RUN = (
    # SWE-agent: no command, several of them, a blocked one, one that is no shell; a budget that is used up
    r"Your output was not formatted correctly",
    r"Your output could not be parsed",
    r"Your last output (?:did not use any tool calls|used multiple tool calls)",
    r"Your (?:bash )?command contained syntax errors and was NOT executed",
    r"(?:Interactive o|O)peration '.{0,300}?' is not supported",
    r"Exit due to \w",
    # R2E-Gym: no call, a blocked command
    r"You forgot to use a function call in your response",
    r"Bash command '[^'\n]*' is not allowed",
    # mini-swe-agent: not exactly one command
    r"Please always provide EXACTLY ONE action",
    r"Format error\b",
    r"No tool calls found in the response",
    r"(?:<error>\s*)?Tool call error",
    # plain tool loops
    r"(?:Error: )?(?:Unknown|Invalid) (?:tool|function)\b",
)
_LABEL = re.compile(
    r"\s*(?:(?:<returncode>.*</returncode>|Exit code: .*|<output>|<error>)\s*)*"
    r"(?:(?:Execution output of \[\w+\]|OBSERVATION|Observation):\s*)?"
)
_NOT_RUN = re.compile("|".join(f"(?:{words})" for words in NOT_RUN), re.S)
# The command stands between these, and may be long.
_QUOTED = (
    ("The command '", "' was cancelled because it took more than"),
    ("The last command <command>", "</command> timed out"),
    ("An error occurred while executing the command: ", "timed out"),
)
_STOPPED = (
    r"(?:EXECUTION TIMED OUT|COMMAND FAILED TO EXECUTE|BROKEN PIPE ERROR|EXECUTION FAILED OR COMMAND MALFORMED"
    r"|\[?[Cc]ommand timed out\b|(?:The|Your) command (?:took too long|timed out|was cancelled because it took))"
)
_STOPPED_AT_ONCE, _STOPPED_LATER = re.compile(_STOPPED), re.compile(rf"\n{_STOPPED}")
_KILLED = re.compile(r"\nKilled\s*(?:</output>\s*)?\Z")
_END = 500


def _begin(text: str) -> int:
    label = _LABEL.match(text, 0, 400)
    return label.end() if label else 0


def not_run(text: str) -> bool:
    """Whether an answer says that nothing was run; `text` is its beginning, or all of it."""
    return _NOT_RUN.match(text, _begin(text)) is not None


def stopped(text: str) -> bool:
    """Whether an answer (as `answers.ends` gives it) says that the whole action was stopped."""
    at = _begin(text)
    if any(text.startswith(start, at) and end in text for start, end in _QUOTED):
        return True
    late = max(0, len(text) - _END)
    return _STOPPED_AT_ONCE.match(text, at) is not None or _STOPPED_LATER.search(text, late) is not None


def killed(text: str) -> bool:
    """Whether an answer (as `answers.ends` gives it) says that one program was killed."""
    return _KILLED.search(text, max(0, len(text) - _END)) is not None
