"""What every command is made of: its name, its parser and the function that runs it.

What this is not: argparse's sub-parsers. Each command parses its own words, so that options may stand between
`key=value` words, an unknown option gets near names, and a bad line costs one line of text and no usage dump.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rtmc.errors import RtmcError, unknown_name


class UsageError(RtmcError, ValueError):
    """The words after `rtmc` make no command."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors; it remembers its options so that a misspelt one gets near names."""

    def __init__(self, prog: str, description: str) -> None:
        self.known_options: list[str] = []
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        self.known_options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


@dataclass(frozen=True)
class Command:
    """One command of `rtmc`.

    name, summary: as the overview lists them. arguments: adds the arguments to a parser. run: does the work
    and returns the exit status.
    """

    name: str
    summary: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]
    description: str = ""

    def parser(self) -> Parser:
        parser = Parser(f"rtmc {self.name}", self.description or f"{self.summary[0].upper()}{self.summary[1:]}.")
        self.arguments(parser)
        return parser

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read the command's words. Raises UsageError for anything it does not know."""
        parser = self.parser()
        arguments, rest = parser.parse_known_intermixed_args(words)
        for word in rest:
            if word.startswith("-"):
                parser.error(unknown_name("option", word.split("=", 1)[0], parser.known_options))
            parser.error(f"unexpected word {word!r}")
        return arguments


def one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    """An argument type: one of `names`; anything else is an error with near names."""
    known = list(names)

    def check(word: str) -> str:
        if word not in known:
            raise argparse.ArgumentTypeError(unknown_name(kind, word, known))
        return word

    return check


def add_json(parser: Parser) -> None:
    """The option every command with an answer has."""
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def print_json(document: Any) -> None:
    """One JSON document on standard output. NaN and the infinities, which JSON lacks, become null.

    What the output's encoding cannot hold (a lone surrogate, which stands for a raw byte of some tool) is escaped.
    """
    finite = _finite(document)
    text = json.dumps(finite, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(finite, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
