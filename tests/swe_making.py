"""A package of two files to make SWE tasks of, and the command that makes them."""

from pathlib import Path

import pytest

from rtmc.cli.swe import MAKE_SWE_TASKS


def run(*words: str) -> int:
    return MAKE_SWE_TASKS.run(MAKE_SWE_TASKS.parse(words))


def lay(folder: Path, code: str, tests: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`mine/` with its tests in `folder`, which becomes the working folder."""
    (folder / "mine").mkdir()
    (folder / "mine" / "mine.py").write_text(code)
    (folder / "mine" / "test_mine.py").write_text(tests)
    monkeypatch.chdir(folder)
    return folder
