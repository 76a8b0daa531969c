"""The command line `rtmc`: which command was asked for, and what becomes of its errors.

What this is not: the work. A command's file turns words into a call and the answer into text; the call lives
in the room it belongs to and is imported only when the command runs, so that `rtmc --help` loads no torch.
This is the one place in `rtmc/` that reaches up to `rtmc.train` and `rtmc.gymenvs`.

Exit status: what the command returns (0 = done), 2 for bad input or a missing package, 130 after Ctrl-C, 141
when whoever read the output stopped reading. An error of the input is one line on standard error, with
RTMC_DEBUG=1 the traceback as well. Anything else is a fault of this library and keeps its traceback.
"""

import os
import sys
import traceback
from collections.abc import Sequence

from rtmc import __version__
from rtmc.cli.advantages import ADVANTAGES
from rtmc.cli.command import Command, UsageError
from rtmc.cli.explain import explain
from rtmc.cli.qa import EVALUATE, SERVE_SEARCH
from rtmc.cli.report import REPORT
from rtmc.cli.swe import MAKE_SWE_TASKS
from rtmc.cli.swe_check import CHECK_SWE_TASKS
from rtmc.cli.tools import BENCH, DOCTOR, ESTIMATORS
from rtmc.cli.training import TRAIN
from rtmc.cli.worlds import ENVS, PLAY
from rtmc.errors import unknown_name

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        ADVANTAGES,
        REPORT,
        TRAIN,
        EVALUATE,
        PLAY,
        ENVS,
        MAKE_SWE_TASKS,
        CHECK_SWE_TASKS,
        SERVE_SEARCH,
        ESTIMATORS,
        BENCH,
        DOCTOR,
    )
}

__all__ = ["COMMANDS", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. `argv`: the words after `rtmc`, if not the process's."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except SystemExit as end:  # argparse leaves this way after --help
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print("rtmc: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 141
    except Exception as error:
        line = explain(error, f"rtmc {name}" if name in COMMANDS else "rtmc")
        if line is None:
            raise
        if os.environ.get("RTMC_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        print(line, file=sys.stderr)
        _drop_unwritable_stdout()
        return 2


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(), end="")
        return 0
    if words[0] == "--version":
        print(f"rtmc {__version__}")
        return 0
    if words[0] not in COMMANDS:
        kind = "option" if words[0].startswith("-") else "command"
        known = ["--help", "--version"] if kind == "option" else COMMANDS
        raise UsageError(unknown_name(kind, words[0], known))
    command = COMMANDS[words[0]]
    return command.run(command.parse(words[1:]))


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "usage: rtmc COMMAND ...",
        "",
        "Step-level credit assignment for language-model agents.",
        "",
        *(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()),
        "",
        "rtmc COMMAND --help tells a command's arguments; rtmc --version the version.",
        "RTMC_DEBUG=1 shows the traceback behind a one-line error.",
    ]
    return "\n".join(lines) + "\n"


def _drop_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush does not fail as well."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is no file here (a test's capture), so nothing is pending
        return


def _drop_unwritable_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
