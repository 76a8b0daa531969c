"""Where things are kept that are made once, and what is said where they cannot be."""

import os
import pwd
import re
import subprocess

import pytest

from rtmc.gymenvs.cachefolder import cache_folder, make_folder
from rtmc.gymenvs.qa.retrieval.folder import build_folder
from rtmc.gymenvs.swe import repository, sdists
from rtmc.gymenvs.swe.runtime import python_runtime
from rtmc.gymenvs.swe.task import Embedded, Sdist, SWETask

TASK = SWETask("a", "It is wrong.", Embedded({"a.py": ""}), fail_to_pass=("test_a.py::test_a",))


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder("qa") == tmp_path / "own/qa"
    monkeypatch.delenv("RTMC_CACHE")
    assert cache_folder() == tmp_path / "xdg/rtmc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("swe") == tmp_path / ".cache/rtmc/swe"


@pytest.fixture
def homeless(monkeypatch):
    """A user with a number alone, as in many containers."""

    def nobody(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "RTMC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "ask", [cache_folder, repository.cache_folder, python_runtime, lambda: repository.prepare(TASK)]
)
def test_a_user_without_a_home(homeless, ask):
    with pytest.raises(
        OSError, match=rf"the user {os.getuid()} has no home folder .*; RTMC_CACHE names another folder"
    ):
        ask()


@pytest.mark.parametrize(
    "make",
    [
        make_folder,
        lambda place: python_runtime(("pytest",), place),
        lambda place: repository.prepare(TASK, place),
        lambda place: sdists.fetch(Sdist("toolz", "1.0"), place),
        lambda place: build_folder(place / "x", {}, lambda _: None),
    ],
    ids=["make_folder", "runtime", "prepare", "sdists", "index"],
)
def test_a_cache_that_cannot_be_written(tmp_path, make, monkeypatch):
    # A file stands in the way: that stops root as well, whom no mode of a folder stops.
    (tmp_path / "file").write_text("")
    run = subprocess.run

    def no_registry(command, **options):
        assert "pip" not in command, "the registry was asked"
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", no_registry)
    place = tmp_path / "file" / "cache"
    with pytest.raises(OSError, match=rf"{re.escape(str(place))}\S* cannot be written \(Not a directory\); RTMC_CACHE"):
        make(place)


def test_a_folder_that_is_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(OSError, match="cannot be written; RTMC_CACHE"):
        make_folder(tmp_path)
