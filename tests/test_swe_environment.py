"""A prepared folder's own Python: shown to the tests as it is, without a copy of it in the agent's tree."""

import os
import shutil
import subprocess
import sys

import pytest

from rtmc.gymenvs.sandbox import open_sandbox
from rtmc.gymenvs.swe.repository import PreparationError, prepare
from rtmc.gymenvs.swe.task import Folder, SWETask
from tests.sandbox_help import NEEDS_SANDBOX


def make_task(folder, python):
    return SWETask("t", "It is wrong.", Folder(str(folder), python), ("test_a.py::test_x",), setup_command="python -V")


@pytest.fixture
def folder(tmp_path):
    """A folder with a virtual environment in it, which has a package that this one lacks."""
    path = tmp_path / "ready"
    path.mkdir()
    (path / "a.py").write_text("x = 1\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path / "envs/.venv")], check=True)
    (package,) = (path / "envs/.venv/lib").glob("python*/site-packages")
    (package / "only_there.py").write_text("value = 7\n")
    return path


@NEEDS_SANDBOX
@pytest.mark.parametrize("inside", [True, False], ids=["in the folder", "beside it"])
def test_the_folder_s_own_python_runs_inside(tmp_path, folder, inside):
    if not inside:
        shutil.move(folder / "envs/.venv", tmp_path / "venv")
        python = str(tmp_path / "venv/bin/python")
    else:
        python = "envs/.venv/bin/python"
    prepared = prepare(make_task(folder, python), tmp_path / "cache")
    assert (prepared.base / "envs/.venv").is_symlink() == inside
    code = "import only_there, a, sys; print(only_there.value, a.x, sys.prefix != sys.base_prefix)"
    with open_sandbox(prepared.base, **prepared.runtime.options()) as sandbox:
        for name in ["python", "envs/.venv/bin/python"] if inside else ["python"]:
            assert sandbox.run([name, "-c", code]).stdout == "7 1 True\n"
        assert sandbox.run(["python", "-c", "import rtmc"]).exit_code == 1
        assert sandbox.run("echo x > $(python -c 'import only_there; print(only_there.__file__)')").exit_code != 0
        if inside and (prepared.base / ".git").exists():
            assert sandbox.run("git status --porcelain").stdout == ""


def test_what_is_no_interpreter_is_said(tmp_path, folder):
    for python in ("nowhere/python", "a.py"):
        with pytest.raises(PreparationError, match=f"task 't': python='{python}' cannot be run as an interpreter"):
            prepare(make_task(folder, python), tmp_path / "cache")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs to run in a virtual environment")
def test_this_process_s_own_environment_is_refused(tmp_path, folder):
    # It holds this package, and with it what fixes the shipped tasks.
    with pytest.raises(PreparationError, match="is the environment that this process runs in"):
        prepare(make_task(folder, sys.executable), tmp_path / "cache")
    os.symlink(sys.prefix, folder / "sly")
    with pytest.raises(PreparationError, match="is the environment that this process runs in"):
        prepare(make_task(folder, "sly/bin/python"), tmp_path / "cache")
