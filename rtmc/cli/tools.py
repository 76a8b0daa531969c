"""`rtmc estimators`, `rtmc bench` and `rtmc doctor`: what there is, how fast it is, whether it works here."""

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

from rtmc.cli.command import Command, Parser, UsageError, add_json, one_of, print_json

_BENCHES = ("credit", "estimators", "kernels", "envs", "explore", "logs", "qa", "sandbox", "signatures", "swe")


_ABOUT_ESTIMATORS = """The estimators: what each needs beyond group, rollout, index and outcome, its options, source.

With NAME, all about that one: formula, options and defaults, what `parity` sets, source, departures. With --for, which
of them a step table can feed, and what the others lack: each is run on it with its defaults. With --bias, the expected
policy gradient of each in a small world, summed over everything that can be sampled, beside the true one."""


def _estimators_arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an estimator, to be described")
    parser.add_argument(
        "--for", dest="table", metavar="TABLE", help="a parquet file of StepTable.save, or a log of rollouts"
    )
    parser.add_argument("--bias", action="store_true", help="print the exact bias of each")
    parser.add_argument(
        "--rollouts", type=int, metavar="N", help="with --bias: rollouts in a group, 2 to 6 (default: 3)"
    )
    add_json(parser)


def _estimators(arguments: argparse.Namespace) -> int:
    if arguments.name is not None and (arguments.bias or arguments.table is not None):
        raise UsageError("NAME goes without --bias and --for: ask one at a time")
    if arguments.bias and arguments.table is not None:
        raise UsageError("--bias and --for are two questions: ask one at a time")
    if arguments.rollouts is not None and not arguments.bias:
        raise UsageError("--rollouts goes with --bias")
    if arguments.bias:
        return _bias(3 if arguments.rollouts is None else arguments.rollouts, arguments.json)
    if arguments.table is not None:
        return _feeds(arguments.table, arguments.json)
    import rtmc

    records = rtmc.estimators()
    if arguments.name is not None:
        from rtmc.methods.registry import describe

        text = describe(arguments.name)  # raises for an unknown name
        record = next(record for record in records if record.name == arguments.name)
        if arguments.json:
            print_json(dataclasses.asdict(record) | {"description": text})
        else:
            print(text)
    elif arguments.json:
        print_json([dataclasses.asdict(record) for record in records])
    else:
        print(records)
    return 0


def _bias(rollouts: int, as_json: bool) -> int:
    from rtmc.diagnosis.bias import biases, text

    found = biases(rollouts)
    if as_json:
        print_json([dataclasses.asdict(line) for line in found])
    else:
        print(text(found))
    return 0


def _feeds(path: str, as_json: bool) -> int:
    from rtmc.diagnosis.feeds import feeds, notes, read_table

    table = read_table(path)
    found, told = feeds(table), list(notes(table))
    if as_json:
        estimators = [dataclasses.asdict(feed) | {"feeds": feed.feeds} for feed in found]
        form = "chains" if table.parent is None else "tree"
        scores = sorted(table.scores)
        print_json(
            {"table": table.summary() | {"form": form, "scores": scores}, "estimators": estimators, "notes": told}
        )
        return 0
    print(table)
    width = max((len(feed.method) for feed in found), default=0)
    for feed in found:
        zero = "" if feed.zero is None else f", {feed.zero:.1%} of the advantages are 0"
        print(f"{feed.method:<{width}}  {f'yes{zero}' if feed.feeds else f'no: {feed.reason}'}")
    for note in told:
        print(f"note: {note}")
    return 0


def _bench_arguments(parser: Parser) -> None:
    parser.add_argument(
        "names", nargs="+", type=one_of("benchmark", _BENCHES), metavar="NAME", help=", ".join(_BENCHES)
    )
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds")
    add_json(parser)


def _bench(arguments: argparse.Namespace) -> int:
    script = checkout() / "bench" / "run.py"
    if not script.is_file():
        raise UsageError(
            f"the benchmarks are not part of the installed package ({script} is no file): "
            "run it in a checkout whose package is installed with `make install`"
        )
    options = [f"--{name}" for name in ("quick", "json") if getattr(arguments, name)]
    return subprocess.run([sys.executable, str(script), *arguments.names, *options], cwd=script.parents[1]).returncode


def checkout() -> Path:
    """The folder that holds the package `rtmc`: the repository's root in a checkout."""
    return Path(__file__).resolve().parents[2]


def _doctor(arguments: argparse.Namespace) -> int:
    from rtmc.cli.sandboxes import sandbox_findings
    from rtmc.doctor import examine, report, works

    findings = [*examine(), *sandbox_findings()]
    if arguments.json:
        print_json({"works": works(findings), "findings": [finding.to_dict() for finding in findings]})
    else:
        print(report(findings))
    return 0 if works(findings) else 1


ESTIMATORS = Command(
    "estimators",
    "list the estimators, what they need and their options",
    _estimators_arguments,
    _estimators,
    _ABOUT_ESTIMATORS,
)
BENCH = Command("bench", "run the benchmarks (needs a checkout)", _bench_arguments, _bench)
DOCTOR = Command("doctor", "say what works on this machine and how to get the rest", add_json, _doctor)
