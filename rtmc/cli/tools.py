"""`rtmc estimators`, `rtmc bench` and `rtmc doctor`: what there is, how fast it is, whether it works here."""

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

from rtmc.cli.command import Command, Parser, UsageError, add_json, one_of, print_json

_BENCHES = ("credit", "kernels", "envs", "logs", "signatures")


def _estimators(arguments: argparse.Namespace) -> int:
    import rtmc

    records = rtmc.estimators()
    if arguments.json:
        print_json([dataclasses.asdict(record) for record in records])
    else:
        print(records)
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
    from rtmc.doctor import examine, report, works

    findings = examine()
    if arguments.json:
        print_json({"works": works(findings), "findings": [finding.to_dict() for finding in findings]})
    else:
        print(report(findings))
    return 0 if works(findings) else 1


ESTIMATORS = Command("estimators", "list the estimators, what they need and their options", add_json, _estimators)
BENCH = Command("bench", "run the benchmarks (needs a checkout)", _bench_arguments, _bench)
DOCTOR = Command("doctor", "say what works on this machine and how to get the rest", add_json, _doctor)
