"""The Python of the inside: it runs tests, it has the named packages alone, and nothing of this package is seen."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.runtime import INSIDE, python_runtime
from tests.sandbox_help import BACKENDS, Shared

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    return python_runtime(cache=tmp_path_factory.mktemp("runtimes"))


@pytest.fixture(scope="module")
def shared_boxes(tmp_path_factory, runtime):
    boxes = Shared(tmp_path_factory.mktemp("runtime"), **runtime.options())
    yield boxes
    boxes.close()


@pytest.fixture(params=[*BACKENDS, "plain"])
def box(request, shared_boxes):
    with shared_boxes.box(request.param) as sandbox:
        yield sandbox


@pytest.fixture(params=BACKENDS)
def isolated(request, shared_boxes):
    with shared_boxes.box(request.param) as sandbox:
        yield sandbox


def test_it_runs_tests(box):
    box.run("printf 'def test_a():\\n    assert 1\\ndef test_b():\\n    assert 1 == 2\\n' > test_it.py")
    for command in ("python -m pytest -q", "pytest -q"):
        done = box.run(command)
        assert done.exit_code == 1, done.stderr
        assert "1 failed, 1 passed" in done.stdout
    assert "1 failed, 1 passed" in box.run("python3 -I -B -m pytest -q").stdout
    done = box.run([f"{INSIDE}/bin/python", "-c", "import sys; print(sys.version)"])
    assert done.stdout.strip() == sys.version
    assert not list(Path(box._layout.tree).rglob("*.pyc"))


def test_it_has_only_what_was_named(box):
    done = box.run(
        ["python", "-c", "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"]
    )
    found = set(done.stdout.split())
    assert {"pytest", "pluggy", "iniconfig", "packaging"} <= found
    assert found <= {"pytest", "pluggy", "iniconfig", "packaging", "pygments"}
    for module in ("rtmc", "numpy", "torch", "pip", "gymenvs"):
        assert f"No module named '{module}'" in box.run(["python", "-c", f"import {module}"]).stderr


def test_nothing_of_this_package_can_be_read(isolated):
    done = isolated.run(
        f"cat {ROOT}/pyproject.toml {Path(__file__)}; ls {ROOT} {Path.home()}/.cache; "
        "find / -xdev -not -path '/proc/*' \\( -iname '*rtmc*' -o -name 'sandbox.py' \\) 2>/dev/null; "
        "grep -rl 'step-level credit assignment' /opt /testbed / --include=METADATA --include='*.py' -s | head -3"
    )
    assert done.stdout == ""
    cached = str(next(source for source, inside in isolated._layout.readable if inside == INSIDE))
    assert isolated.run(f"ls -d {cached}").exit_code != 0


def test_homes_show_no_more_than_the_way_to_the_interpreter(isolated, runtime):
    ways = [inside for _, inside in runtime.readable]
    script = textwrap.dedent(
        """
        import os, sys
        for top in ("/root", "/home"):
            for folder, folders, files in os.walk(top):
                for name in folders + files:
                    path = os.path.join(folder, name)
                    if not any(way == path or way.startswith(path + "/") for way in sys.argv[1:]):
                        print(path)
                folders[:] = [name for name in folders if os.path.join(folder, name) not in sys.argv[1:]]
        """
    )
    done = isolated.run(["python", "-c", script, *ways])
    assert (done.stdout, done.stderr) == ("", "")


def test_packages_of_the_base_interpreter_are_masked(isolated, runtime):
    assert runtime.hidden
    for folder in runtime.hidden:
        done = isolated.run(["/bin/ls", "-A", folder])
        assert (done.exit_code, done.stdout) == (0, ""), folder


def test_it_is_made_once(tmp_path):
    first = python_runtime(cache=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert python_runtime(cache=tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert len(list(tmp_path.iterdir())) == 1
    assert python_runtime(("iniconfig",), cache=tmp_path) != first


def test_several_at_once_make_one(tmp_path):
    script = "from pathlib import Path; from rtmc.gymenvs.swe.runtime import python_runtime\n"
    script += f"python_runtime(('iniconfig',), Path({str(tmp_path)!r}))"
    makers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [maker.wait() for maker in makers] == [0] * 2
    assert len(list(tmp_path.iterdir())) == 1


def test_dependencies_and_markers(tmp_path):
    names = os.listdir(
        next(python_runtime(("pytest", "hypothesis"), cache=tmp_path).readable[-1][0].glob("lib/*/site-packages"))
    )
    assert {"pytest", "hypothesis", "sortedcontainers"} <= set(names)
    assert not {"colorama", "numpy", "exceptiongroup"} & set(names)  # of other systems, or of extras not asked for


@pytest.mark.parametrize(
    ("packages", "error", "match"),
    [
        (("no-such-distribution",), ValueError, "'no-such-distribution', which is not installed: pip install"),
        (("rtmc",), ValueError, "never shown"),
        (("RTMC",), ValueError, "never shown"),
        ("pytest", TypeError, "several names"),
    ],
)
def test_bad_packages(tmp_path, packages, error, match):
    with pytest.raises(error, match=match):
        python_runtime(packages, cache=tmp_path)


def made_distribution(folder, name, *, files=None, direct=""):
    """A distribution as pip leaves it, without its list of files where `files` is None."""
    place = folder / f"{name}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if files is not None:
        (place / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if direct:
        (place / "direct_url.json").write_text(direct)


def test_installations_that_cannot_be_copied(tmp_path, monkeypatch):
    made_distribution(tmp_path / "site", "unlisted")
    made_distribution(tmp_path / "site", "editable", files=(), direct='{"url": "x", "dir_info": {"editable": true}}')
    made_distribution(tmp_path / "site", "reaching", files=("ok.py", "../../../outside.py", "/etc/hostname"))
    (tmp_path / "site/ok.py").write_text("")
    (tmp_path / "outside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ValueError, match="'unlisted' does not list its files"):
        python_runtime(("unlisted",), cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="'editable' is installed in editable form"):
        python_runtime(("editable",), cache=tmp_path / "cache")
    place = python_runtime(("reaching",), cache=tmp_path / "cache").readable[-1][0]
    assert [path.name for path in place.rglob("*.py")] == ["ok.py"]


@pytest.mark.parametrize("mask", [0o077, 0o007, 0o000])
def test_whoever_makes_it_others_can_read_it(tmp_path, mask):
    before = os.umask(mask)
    try:
        place = python_runtime(("iniconfig",), cache=tmp_path).readable[-1][0]
    finally:
        os.umask(before)
    modes = {path.relative_to(place): path.lstat().st_mode & 0o777 for path in [place, *place.rglob("*")]}
    for path, mode in modes.items():
        program = path.parts[:1] == ("bin",) or (place / path).is_dir()
        assert (place / path).is_symlink() or mode == (0o755 if program else 0o644), path
    assert modes[Path("pyvenv.cfg")] == 0o644


def test_a_python_that_does_not_start_is_an_error(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no library of it >&2; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(broken))
    with pytest.raises(RuntimeError, match=r"python_runtime: the copy of .*/python does not start: no library of it"):
        python_runtime(("iniconfig",), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
