"""`rtmc advantages`: the credit of every step of logs, as a summary, as one JSON document, as a file."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rtmc.cli.command import Command, Parser, UsageError, add_json, print_json

if TYPE_CHECKING:
    from rtmc.logs.credit import Credit

_DESCRIPTION = """Credit of every step of agent logs.

Read are rollouts as JSON lines, SWE-agent and mini-swe-agent trajectories, R2E-Gym, Search-R1, ALFWorld and ReAct
transcripts, and chats with tool calls; which it is, is told from the content. A folder stands for every log in it.

OUT has one record a step: task_id, rollout_id, step, state, action, return, q, v, visits, advantage."""


def _arguments(parser: Parser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="logs, or folders of them; gzip is seen by itself")
    parser.add_argument(
        "--method",
        action="append",
        metavar="M",
        help="a method (`rtmc estimators` lists them); may be given several times (default: rtmc)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="METHOD.OPTION=VALUE",
        help="an option of a method, for instance rtmc.gamma=0.95",
    )
    parser.add_argument(
        "--signatures",
        default="auto",
        metavar="S",
        help="what makes states and actions the same: text, swe, qa, ... (default: auto, what fits each log)",
    )
    parser.add_argument(
        "--rewards",
        action="append",
        default=[],
        metavar="FILE",
        help="rewards by task_id and rollout_id (JSON or CSV), or results of the SWE-bench harness",
    )
    parser.add_argument(
        "--step-rewards", action="store_true", help="+0.005 a valid step, -0.005 an invalid one, +0.05 a validation"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave malformed records out, and say how many")
    parser.add_argument("--format", default="auto", metavar="F", help="read every file in this format")
    parser.add_argument("-o", "--output", metavar="OUT", help="write the steps to this .jsonl, .csv or .parquet file")
    add_json(parser)


def _setting(word: str) -> tuple[str, str, Any]:
    """(method, option, value) of METHOD.OPTION=VALUE; the value is JSON where it can be, else text."""
    name, equals, text = word.partition("=")
    method, dot, option = name.partition(".")
    if not (equals and dot and method and option):
        raise argparse.ArgumentTypeError(f"{word!r} is not METHOD.OPTION=VALUE, for instance rtmc.gamma=0.95")
    try:
        return method, option, json.loads(text)
    except (ValueError, RecursionError):
        return method, option, {"True": True, "False": False, "None": None}.get(text, text)


def _methods(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    methods: dict[str, dict[str, Any]] = {}
    for name in arguments.method or ["rtmc"]:
        if name in methods:
            raise UsageError(f"--method {name} is given twice")
        methods[name] = {}
    for method, option, value in arguments.set:
        if method not in methods:
            raise UsageError(
                f"--set {method}.{option}: `{method}` is none of the methods asked for: {', '.join(methods)}"
            )
        methods[method][option] = value
    return methods


def _run(arguments: argparse.Namespace) -> int:
    methods = _methods(arguments)
    from rtmc.logs.credit import credit_logs
    from rtmc.logs.export import check_suffix, write_credit

    if arguments.output is not None:
        check_suffix(arguments.output)
    with _progress() as progress:
        credit = credit_logs(
            arguments.files,
            methods,
            arguments.signatures,
            arguments.rewards,
            arguments.step_rewards,
            arguments.skip_bad,
            arguments.format,
            progress,
        )
    if arguments.output is not None:
        write_credit(credit, arguments.output)
    if arguments.json:
        print_json(credit.to_dict())
        return 0
    for line in _report(credit, arguments.step_rewards):
        print(_printable(line))
    for note in credit.notes:
        print(_printable(f"note: {note}"))
    if arguments.output is not None:
        print(f"{len(credit.table)} steps written to {arguments.output}")
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while a terminal watches and rich is installed; else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:  # a bar is a comfort, and its package an extra
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report(credit: "Credit", step_rewards: bool) -> Iterator[str]:
    """What was read, then a line a method and task."""
    document = credit.table
    formats = ", ".join(f"{count} {name}" for name, count in credit.formats.most_common())
    tasks = len(document.group_names or ())
    yield f"{document.n_rollouts} rollouts of {tasks} tasks, {len(document)} steps ({formats}; files: {credit.files})"
    unknown = document.n_rollouts - credit.known
    sources = f", {credit.from_sidecar} from --rewards" if credit.from_sidecar else ""
    filled = "; step rewards filled in" if step_rewards else ""
    yield f"rewards: {credit.known} known{sources}, {unknown} unknown{filled}"
    chosen = " (chosen by the form of the logs; --signatures sets them)" if credit.chosen else ""
    names = ", ".join(
        name if len(credit.signatures) == 1 else f"{name} for {count}"
        for name, count in credit.signatures.most_common()
    )
    yield f"signatures: {names}{chosen}"
    yield ""
    yield from _table(credit.summary())


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Aligned text: names to the left, numbers to the right."""
    head = (
        "method",
        "task",
        "rollouts",
        "known",
        "success",
        "steps",
        "states",
        "seen once",
        "mean |A|",
        "max |A|",
        "A = 0",
    )
    cells = [head]
    for row in rows:
        cells.append(
            (
                row["method"],
                "all tasks" if row["task_id"] is None else _cut(row["task_id"]),
                str(row["rollouts"]),
                str(row["known"]),
                _share(row["success"]),
                str(row["steps"]),
                str(row["states"]),
                _share(row["once"]),
                _decimal(row["mean_abs"]),
                _decimal(row["max_abs"]),
                _share(row["zero"]),
            )
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for line in cells:
        padded = (c.ljust(w) if at < 2 else c.rjust(w) for at, (c, w) in enumerate(zip(line, widths, strict=True)))
        yield "  ".join(padded).rstrip()


def _cut(text: str, limit: int = 40) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _printable(text: str) -> str:
    """The text with what standard output's encoding lacks as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


ADVANTAGES = Command("advantages", "credit of every step of agent logs", _arguments, _run, _DESCRIPTION)
