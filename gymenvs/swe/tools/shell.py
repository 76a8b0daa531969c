"""Commands: R2E-Gym's `execute_bash` and mini-swe-agent's `bash`, each in a fresh shell that `run` starts.

Nothing stays from one call to the next but the files: no working folder, no variables. What `run` limits (time,
memory, output) ends the command, and the text says which limit it was.

Source: R2E-Gym (agenthub/tools/execute_bash, agenthub/runtime), mini-swe-agent 2.4 (config/mini.yaml, environments).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from rtmc.gymenvs.isolation.contract import Completed
from rtmc.gymenvs.swe.actions import FINISH_LINE
from rtmc.gymenvs.swe.tools.results import ToolError, ToolLimits, ToolResult, clean, cut_middle, quote

# The line that stands for the middle of a stream that is longer than a sandbox keeps: see `Completed`.
_LEFT_OUT = re.compile(r"\n\[\.\.\. ([0-9]{1,15}) bytes left out \.\.\.\]\n")
BLOCKED = ("cd", "ipython", "jupyter", "pip", "nohup")  # as first word
Run = Callable[[str], Completed]


def command_of(arguments: Mapping[str, Any], *names: str) -> str:
    """The command, given under one of the names. Raises ToolError if it is missing, empty or holds a NUL byte."""
    given = next((arguments[name] for name in names if arguments.get(name) is not None), "")
    if not given.strip():
        raise ToolError(f"The parameter `{names[0]}` is required: the command to run, not empty.")
    if "\0" in given:
        raise ToolError(f"The parameter `{names[0]}` holds a NUL byte, which no command can.")
    return str(given)


def execute_bash(run: Run, arguments: Mapping[str, Any], limits: ToolLimits) -> ToolResult:
    """R2E-Gym's tool; `text` is without the frame that names exit code and tool."""
    command = command_of(arguments, "cmd", "command")
    first = command.split()[0]
    if first in BLOCKED:
        what = f"Bash command '{first}' is not allowed. Please use a different command or tool."
        return ToolResult(what, "bash", error=what, exit_code=1)
    done = run(command)
    if done.timed_out:
        text = f"The command took too long to execute (>{limits.command_s:g}s)"
        return ToolResult(text, "bash", error="wall time", exit_code=-1, timed_out=True)
    # The space behind the first output is the original's: it prints the output and a line end as two words.
    text = f"[STDOUT]\n\n{clean(done.stdout).strip()} \n\n[STDERR]\n\n{clean(done.stderr).strip()}"
    if done.exit_code != 0:
        text = f"Error executing command:\n\n{text}"
    if done.stopped is not None:
        text = f"The command was stopped: it went over the limit of {done.stopped}.\n{text}"
    text = cut_middle(text, limits.command_lines, limits.command_chars)
    return ToolResult(text, "bash", error=done.stopped, exit_code=done.exit_code)


def mini_bash(run: Run, arguments: Mapping[str, Any], limits: ToolLimits) -> ToolResult:
    """mini-swe-agent's tool: the observation is JSON, errors stand among the output.

    The task ends when a command succeeds whose output begins with the line `FINISH_LINE`; the text is then what follows
    that line. `elided_chars` counts what the sandbox did not keep too, a byte as a character; of a command
    that was stopped for its output, what it wrote until then.
    """
    command = command_of(arguments, "command")
    done = run(f"exec 2>&1; {command}")  # on the command's own line: the shell's line numbers stay right
    output = clean(done.stdout + done.stderr)
    unkept = _unkept(done.stdout) + _unkept(done.stderr)
    first, _, rest = output.lstrip().partition("\n")
    if first.strip() == FINISH_LINE and done.exit_code == 0 and done.stopped is None:
        return ToolResult(rest, "finish", exit_code=0, finished=True)
    stopped = done.stopped or ("wall time" if done.timed_out else None)
    failure, named = "", quote(command, limits.quoted_chars)
    if done.timed_out:
        failure = f"Command '{named}' timed out after {limits.command_s:g} seconds"
    elif stopped is not None:
        failure = f"Command '{named}' was stopped: it went over the limit of {stopped}"
    exit_code = -1 if stopped else done.exit_code
    if failure:
        failure = f"An error occurred while executing the command: {failure}"
    text = _observation(exit_code, output, unkept, failure, limits)
    return ToolResult(text, "bash", error=stopped, exit_code=exit_code, timed_out=done.timed_out)


def _unkept(stream: str) -> int:
    """How many characters more a stream had than are here, by the note in its middle; a command may print one too."""
    notes = list(_LEFT_OUT.finditer(stream))
    if not notes:
        return 0
    note = min(notes, key=lambda one: abs(one.start() + one.end() - len(stream)))
    return int(note[1]) - len(note[0])


def _observation(exit_code: int, output: str, unkept: int, failure: str, limits: ToolLimits) -> str:
    fields: list[str] = [f'"returncode": {exit_code}']
    if len(output) < limits.output_chars:
        fields.append(f'"output": {_json(output)}')
    else:
        half = limits.output_chars // 2
        fields.append(f'"output_head": {_json(output[:half])}')
        fields.append(f'"output_tail": {_json(output[-half:])}')
        fields.append(f'"elided_chars": {len(output) + unkept - 2 * half}')
        fields.append('"warning": "Output too long."')
    text = ",\n  ".join(fields)
    if failure:
        text += f', "exception_info": {_json(failure)}'
    return f"{{\n  {text}\n}}"


def _json(text: str) -> str:
    """As the original's template filter writes it: ASCII, and none of the characters that HTML minds."""
    written = json.dumps(text)
    for character in "<>&'":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written
