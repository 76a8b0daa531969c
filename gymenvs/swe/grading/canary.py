"""Canaries: tests that must fail, laid among the real ones for one run, with names and values nobody can know.

A report in which a canary passes or is missing was not made by running tests. They use each way by which tests tell:
the bare assert, `pytest.raises`, `pytest.approx`, and unittest's methods; whoever makes failures pass by patching one
of them makes its canary pass as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Canary", "make_canaries"]

# No name of a canary tells it from a test.
_WORDS: tuple[str, ...] = (
    "parse",
    "format",
    "merge",
    "round",
    "split",
    "order",
    "limit",
    "empty",
    "nested",
    "copy",
    "index",
    "update",
)
_WORDS += (
    "config",
    "reader",
    "writer",
    "loads",
    "dumps",
    "basic",
    "errors",
    "types",
    "cache",
    "state",
    "value",
    "path",
)
_WORDS += ("items", "string", "number", "date", "list", "keys", "filter", "group", "match", "close", "reset", "equal")
_PREFIX = "CANARY_PREFIX"  # the guard puts the task's own prefix of test functions here


@dataclass(frozen=True, slots=True)
class Canary:
    """One file of canaries.

    Attributes:
        path: where in the tree it lies while the tests run.
        source: its text.
        at: place among the files that pytest is given.
        tokens: ending of each test's name -> a text that its failure has to show.
    """

    path: str
    source: str
    at: int
    tokens: Mapping[str, str]


def make_canaries(files: Sequence[str], number: int) -> tuple[Canary, ...]:
    """`number` files of four to six canaries each, beside the given test files of the tree."""
    folders = sorted({file.rpartition("/")[0] for file in files}) or [""]
    return tuple(_canary(secrets.choice(folders)) for _ in range(number))


def _canary(folder: str) -> Canary:
    tokens: dict[str, str] = {}

    def fresh() -> tuple[str, str]:
        while (name := _words(3)) in tokens:
            continue
        tokens[name] = token = secrets.token_hex(6)
        return name, token

    lines = ["import unittest", "", "import pytest", "", ""]
    functions = [_plain, _raises, _approx, _contains]
    methods = [_equal, _raises_method, _true]
    for write in secrets.SystemRandom().sample(functions, 3):
        name, token = fresh()
        lines += [f"def {_PREFIX}_{name}():", *(f"    {line}" for line in write(token)), "", ""]
    lines += [f"class Test{_words(2).title().replace('_', '')}(unittest.TestCase):"]
    for write in secrets.SystemRandom().sample(methods, 2):
        name, token = fresh()
        lines += [f"    def test_{name}(self):", *(f"        {line}" for line in write(token)), ""]
    path = f"test_{_words(3)}.py"
    return Canary(f"{folder}/{path}" if folder else path, "\n".join(lines), secrets.randbelow(1000), tokens)


def _words(number: int) -> str:
    return "_".join(secrets.SystemRandom().sample(_WORDS, number))


def _plain(token: str) -> list[str]:
    a = secrets.randbelow(10**6)
    return [f"found, wanted = {a}, {a + 1 + secrets.randbelow(99)}", f'assert found == wanted, "{token}"']


def _contains(token: str) -> list[str]:
    return [f'assert "{secrets.token_hex(2)}" in ["{token}"]']


def _raises(token: str) -> list[str]:
    return [f'with pytest.raises(ValueError, match="{token}"):', f'    raise ValueError("not {token[::-1]}x")']


def _approx(token: str) -> list[str]:
    a = secrets.randbelow(10**6)
    return [f'assert {a}.25 == pytest.approx({a}.75, abs=1e-3), "{token}"']


def _equal(token: str) -> list[str]:
    return [f'self.assertEqual({secrets.randbelow(10**6)}, -1, "{token}")']


def _true(token: str) -> list[str]:
    return [f'self.assertTrue("{secrets.token_hex(2)}" == "{token}", "{token}")']


def _raises_method(token: str) -> list[str]:
    return [f'with self.assertRaises(KeyError, msg="{token}"):', "    pass"]
