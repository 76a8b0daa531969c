"""Tests against the real engines: each file runs in its engine's own environment (`make test-engines`)."""

import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def pasted_lines(module: ModuleType) -> str:
    """The first indented block of a module's docstring: the lines that it tells a user to paste."""
    lines = (module.__doc__ or "").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("    "))
    end = next(place for place in range(start, len(lines)) if lines[place] and not lines[place].startswith("    "))
    return textwrap.dedent("\n".join(lines[start:end]))


@pytest.fixture
def paste() -> Callable[..., dict[str, Any]]:
    """Run a module's lines to paste with some names given, and return what they define."""

    def run(module: ModuleType, **names: Any) -> dict[str, Any]:
        source = pasted_lines(module)
        assert len([line for line in source.splitlines() if line.strip()]) <= 14, "the lines to paste are few"
        exec(compile(source, module.__name__, "exec"), names)
        return names

    return run
