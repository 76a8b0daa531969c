"""`rtmc train` and `rtmc evaluate`: words into calls of `rtmc.train.run`."""

import argparse
import os
import re

from rtmc.cli.command import Command, Parser, UsageError, add_json

# A folder named `a=b` is still a path when it is written with its slash: `./a=b/run.toml`.
_OVERRIDE = re.compile(r"[A-Za-z_][\w.-]*=", re.ASCII)


def prepare_threads() -> None:
    """Let idle OpenMP threads sleep: spinning ones starve each other as soon as anything else runs on the machine.

    Has to come before torch is imported; what the environment says already stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def split_words(words: list[str], what: str) -> tuple[str | None, list[str]]:
    """(first word, the `key=value` words): the first is optional, and any later word must be an override."""
    first = words[0] if words and not _OVERRIDE.match(words[0]) else None
    overrides = words if first is None else words[1:]
    for word in overrides:
        if not _OVERRIDE.match(word):
            raise UsageError(f"unexpected word {word!r}: after {what} come settings written key=value")
    return first, overrides


def _train_arguments(parser: Parser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG key=value",
        help="a shipped configuration's name (demo) or a .toml file, then settings that replace its own",
    )
    parser.add_argument("--run", metavar="DIR", help="folder of the run (default: one under runs/)")
    parser.add_argument("--resume", metavar="RUN", help="go on with the run in this folder")
    add_json(parser)


def _train(arguments: argparse.Namespace) -> int:
    config, overrides = split_words(arguments.words, "CONFIG")
    if config is None and arguments.resume is None:
        raise UsageError("name a configuration (`rtmc train demo`) or a run to go on with (`--resume RUN`)")
    prepare_threads()
    from rtmc.train.run import train_command

    return train_command(config, overrides, arguments.run, arguments.resume, arguments.json)


def _evaluate_arguments(parser: Parser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="RUN key=value", help="a run's folder, then settings that replace its own"
    )
    add_json(parser)


def _evaluate(arguments: argparse.Namespace) -> int:
    run, overrides = split_words(arguments.words, "RUN")
    if run is None:
        raise UsageError("name the folder of a run first: `rtmc evaluate RUN key=value`")
    prepare_threads()
    from rtmc.train.run import evaluate_command

    return evaluate_command(run, overrides, arguments.json)


TRAIN = Command("train", "train a LoRA policy in an environment", _train_arguments, _train)
EVALUATE = Command("evaluate", "measure a trained run on fixed tasks", _evaluate_arguments, _evaluate)
