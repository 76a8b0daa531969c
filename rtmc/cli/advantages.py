"""`rtmc advantages`: the credit of every step of logs, as a summary, as one JSON document, as a file."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rtmc.cli.command import Command, Parser, UsageError, add_json, print_json

if TYPE_CHECKING:
    from rtmc.logs.credit import Credit
    from rtmc.rollouts import Rollout

_DESCRIPTION = """Credit of every step of agent logs.

Read are rollouts as JSON lines, SWE-agent and mini-swe-agent trajectories, OpenHands' events, R2E-Gym, Search-R1,
ALFWorld and ReAct transcripts, and chats with tool calls; which it is, is told from the content. A folder stands for
every log in it.

OUT has one record a step: task_id, rollout_id, step, state, action, return, q, v, visits, advantage; where a rollout's
reward is unknown, return, q, v and visits are null. The default method is rtmc."""

_LEGEND = (
    "known: rollouts with a reward; success: share of them above 0; seen once: share of the states that one step alone "
    "visits; A: advantage, what a step was worth beside the others in its state"
)


def add_log_arguments(parser: Parser) -> None:
    """What every command that reads logs and credits their steps takes."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="logs, folders of them, or - (standard input)")
    parser.add_argument(
        "--method",
        action="append",
        metavar="M",
        help="a method (`rtmc estimators` lists them); may be given several times (default: see above)",
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
        metavar="[RUN=]FILE",
        help="rewards by task_id and rollout_id (JSON or CSV), or results of the SWE-bench harness; RUN says whose "
        "they are, by the name of a run's folder",
    )
    parser.add_argument(
        "--step-rewards", action="store_true", help="+0.005 a valid step, -0.005 an invalid one, +0.05 a validation"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave malformed records out, and say how many")
    parser.add_argument("--format", default="auto", metavar="F", help="read every file in this format")


def _arguments(parser: Parser) -> None:
    add_log_arguments(parser)
    parser.add_argument("-o", "--output", metavar="OUT", help="write the steps to this .jsonl, .csv or .parquet file")
    parser.add_argument(
        "--quality", action="store_true", help="say how much the signatures merge, with examples (holds all texts)"
    )
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


def chosen_methods(arguments: argparse.Namespace, default: Sequence[str] = ("rtmc",)) -> dict[str, dict[str, Any]]:
    """Method -> its options, of `--method` and `--set`; the methods `default` where none is named."""
    methods: dict[str, dict[str, Any]] = {}
    for name in arguments.method or default:
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
    methods = chosen_methods(arguments)
    from rtmc.logs.credit import credit_logs
    from rtmc.logs.export import check_output, check_suffix, note_of_folder, write_credit

    if arguments.output is not None:
        check_suffix(arguments.output)
        check_output(arguments.output, arguments.files, arguments.rewards)
    held: list[Rollout] = []
    with reading_progress() as progress:
        credit = credit_logs(
            arguments.files,
            methods,
            arguments.signatures,
            arguments.rewards,
            arguments.step_rewards,
            arguments.skip_bad,
            arguments.format,
            progress,
            held.append if arguments.quality else None,
        )
    quality = None
    if arguments.quality:
        from rtmc.signatures.quality import signature_quality

        first = credit.methods[0]
        quality = signature_quality(held, table=credit.table, method=first, **methods[first])
    if arguments.output is not None:
        made = note_of_folder(arguments.output)
        write_credit(credit, arguments.output)
        credit.notes += made
    if arguments.json:
        print_json(credit.to_dict() | ({} if quality is None else {"quality": quality.to_json()}))
        return 0
    for line in _report(credit, arguments.step_rewards):
        print(printable(line))
    for note in credit.notes:
        print(printable(f"note: {note}"))
    if quality is not None:
        print(printable(f"\nsignature quality\n{quality}"))
    if arguments.output is not None:
        print(printable(f"{_counted(len(credit.table), 'step')} written to {arguments.output}"))
    return 0


@contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None] | None]:
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
    """What was read, a line a method and task, and the steps that mattered most."""
    document = credit.table
    formats = ", ".join(f"{count} {name}" for name, count in credit.formats.most_common())
    tasks = len(document.group_names or ())
    counts = (
        f"{_counted(document.n_rollouts, 'rollout')} of {_counted(tasks, 'task')}, {_counted(len(document), 'step')}"
    )
    yield f"{counts} ({formats}; files: {credit.files})"
    unknown = document.n_rollouts - credit.known
    sources = f" ({credit.from_sidecar} of them from --rewards)" if credit.from_sidecar else ""
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
    yield _LEGEND
    for method in credit.methods:
        yield ""
        yield from _steps(credit, method)


def _steps(credit: "Credit", method: str) -> Iterator[str]:
    """The steps that mattered most by a method, and why others have none."""
    largest = credit.largest(method)
    if largest:
        yield f"{method}: the largest advantages"
        rows = [("A", "task", "rollout", "step", "action")]
        for found in largest:
            more = f" (and {_counted(found['steps'] - 1, 'step')} like it)" if found["steps"] > 1 else ""
            where = _cut(found["task_id"]), _cut(found["rollout_id"]), str(found["step"])
            rows.append((f"{found['advantage']:+.4f}", *where, f"{_cut(found['action'], 80)}{more}"))
        yield from _aligned(rows, (0, 3))
    reasons = [f"{count} {reason}" for reason, count in credit.zeros(method).items() if count]
    if reasons:
        yield f"{method}: A = 0 in {_counted(sum(credit.zeros(method).values()), 'step')}: {', '.join(reasons)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    yield from _aligned(cells, range(2, len(head)))


def _aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """The rows as lines, the columns `right` to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for line in rows:
        padded = (c.rjust(w) if at in right else c.ljust(w) for at, (c, w) in enumerate(zip(line, widths, strict=True)))
        yield "  ".join(padded).rstrip()


def _cut(text: str, limit: int = 40) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def printable(text: str) -> str:
    """The text with what standard output's encoding lacks as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


ADVANTAGES = Command("advantages", "credit of every step of agent logs", _arguments, _run, _DESCRIPTION)
