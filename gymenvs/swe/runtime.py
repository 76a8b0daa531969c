"""A Python for the inside of a sandbox: the interpreter that runs this, and of its packages only those named.

Never the virtual environment or site-packages as they are: the folder of this very package holds the gold patches of
the shipped tasks. The interpreter's own prefix (its programs and the standard library) is shown with every folder of
packages in it masked. The named distributions, and what they need, are copied file by file, as their installation lists
them, into a small virtual environment in the cache, which is shown at `INSIDE`. So `python`, `python -m pytest` and
`pytest` run there, also with `-I` and whatever PYTHONPATH says.
"""

from __future__ import annotations

import compileall
import glob
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtmc.gymenvs.cachefolder import cache_folder, make_folder

INSIDE = "/opt/python"
_FORM = 2  # of the cached folder
_OWN = "rtmc"
_TRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """What `open_sandbox` needs so that there is a Python inside.

    python    inside path of the interpreter
    readable  (host path, inside path) to show read-only
    hidden    inside paths to mask
    path      folders for the front of PATH
    env       variables
    """

    python: str
    readable: tuple[tuple[Path, str], ...]
    hidden: tuple[str, ...]
    path: tuple[str, ...]
    env: Mapping[str, str]

    def options(self) -> dict[str, Any]:
        """The keyword arguments for `open_sandbox`."""
        return {"readable": self.readable, "hidden": self.hidden, "path": self.path, "env": dict(self.env)}


def python_runtime(packages: Sequence[str] = ("pytest",), cache: Path | None = None) -> Runtime:
    """This interpreter with the named distributions and their dependencies, and no others.

    Args:
        packages: names as pip takes them, without versions; installed beside this package.
        cache: where the copies are kept, by default `runtime/` in `$RTMC_CACHE`, or in `rtmc/` of `$XDG_CACHE_HOME` or
            of `~/.cache`. A folder is made once for a set of distributions and versions.

    Raises:
        ValueError: a distribution is not installed, is this package, is installed in editable form or does not list
            its files; the message says which.
        OSError: the cache cannot be written; the message names RTMC_CACHE.
        RuntimeError: the Python that was put together does not start; the message has what it said.
    """
    found = _closure(packages)
    place = _made(found, cache or cache_folder("runtime"))
    prefix = os.path.abspath(sys.base_prefix)
    readable = [(place, INSIDE)]
    for shown in dict.fromkeys((prefix, os.path.realpath(prefix))):
        if not shown.startswith("/usr/") and shown != "/usr":
            readable.insert(0, (Path(shown), shown))
    env = {
        "VIRTUAL_ENV": INSIDE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
    }
    return Runtime(f"{INSIDE}/bin/python", tuple(readable), _package_folders(prefix), (f"{INSIDE}/bin",), env)


def shown_distributions(packages: Sequence[str] = ("pytest",)) -> tuple[str, ...]:
    """Canonical names of all distributions that can be read inside a runtime of these. Raises as `python_runtime`."""
    return tuple(_closure(packages))


def _closure(packages: Sequence[str]) -> dict[str, importlib.metadata.Distribution]:
    """Canonical name -> distribution, for all that is named and all that it needs here; sorted by name."""
    try:
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name
    except ImportError:
        raise ValueError("python_runtime reads requirements with `packaging`: pip install packaging") from None
    if isinstance(packages, str):
        raise TypeError(f"python_runtime: `packages` is {packages!r}; wanted several names, such as ({packages!r},)")
    found: dict[str, importlib.metadata.Distribution] = {}
    pending: list[tuple[str, frozenset[str], str]] = []
    for name in packages:
        wanted = Requirement(name)
        pending.append((wanted.name, frozenset(wanted.extras), "python_runtime"))
    done: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, extras, asked_by = pending.pop()
        key = str(canonicalize_name(name))
        if key == _OWN:
            raise ValueError(f"{asked_by} asks for {name!r}: this package holds answers and is never shown inside")
        if (key, extras) in done:
            continue
        done.add((key, extras))
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"{asked_by} asks for {name!r}, which is not installed: pip install {name}") from None
        found[key] = one
        for text in one.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                pending.append((needed.name, frozenset(needed.extras), name))
    return dict(sorted(found.items()))


def _files(name: str, one: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """(path below site-packages, host file) of what a distribution consists of; programs and caches left out."""
    direct = json.loads(one.read_text("direct_url.json") or "{}")
    if direct.get("dir_info", {}).get("editable"):
        raise ValueError(f"python_runtime: {name!r} is installed in editable form; install it by `pip install PATH`")
    if one.files is None:
        raise ValueError(f"python_runtime: the installation of {name!r} does not list its files; install it with pip")
    for file in one.files:
        place = os.path.normpath(str(file))
        if place.startswith(("..", "/")) or "__pycache__" in place.split("/") or place.endswith(".pyc"):
            continue
        host = Path(str(one.locate_file(file)))
        if host.is_file():
            yield place, host


def _made(found: Mapping[str, importlib.metadata.Distribution], cache: Path) -> Path:
    """The cached virtual environment of these distributions, made if it is not there."""
    python = _interpreter()
    files = {name: list(_files(name, one)) for name, one in found.items()}
    told = [_FORM, sys.version, python]
    told += [[name, one.version, one.read_text("RECORD") or ""] for name, one in found.items()]
    place = cache / hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]
    if place.is_dir():
        return place
    make_folder(cache)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
    try:
        _fill(fresh, python, found, files)
        _try(fresh)
        try:
            fresh.rename(place)
        except OSError:
            if not place.is_dir():  # else another process made it meanwhile
                raise
        return place
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # renamed by now, if all went well


def _fill(
    fresh: Path,
    python: str,
    found: Mapping[str, importlib.metadata.Distribution],
    files: Mapping[str, list[tuple[str, Path]]],
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs, packages = fresh / "bin", fresh / "lib" / version / "site-packages"
    programs.mkdir()
    packages.mkdir(parents=True)
    (fresh / "pyvenv.cfg").write_text(f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3", version):
        (programs / name).symlink_to(python)
    for place, host in (pair for pairs in files.values() for pair in pairs):
        target = packages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(host, target)
        os.utime(target, (0, 0))
    for one in found.values():
        for point in one.entry_points:
            if point.group == "console_scripts":
                module, _, function = point.value.partition("[")[0].strip().partition(":")
                text = f"import sys\nfrom {module} import {function.split('.')[0]}\nsys.exit({function}())\n"
                script = programs / point.name
                script.write_text(f"#!/usr/bin/env {version}\n{text}")
    compileall.compile_dir(packages, quiet=2, stripdir=str(fresh), prependdir=INSIDE)
    # Whatever the umask: the sandbox's user is another one, and other processes use the same cache.
    for folder, _, names in os.walk(fresh):
        os.chmod(folder, 0o755)
        for name in names:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), 0o755 if folder == str(programs) else 0o644)


def _try(fresh: Path) -> None:
    """Starts the new Python once, so that one which cannot run is told here and not by tests that fail.

    Raises:
        RuntimeError: it ends with an error.
    """
    program = fresh / "bin" / "python"
    try:
        done = subprocess.run(
            [program, "-I", "-c", ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={},
            timeout=_TRY_S,
            check=False,
        )
        why = done.stderr.decode(errors="replace").strip()[-500:] if done.returncode else ""
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, why = True, str(error)
    if failed:
        raise RuntimeError(f"python_runtime: the copy of {os.path.realpath(program)} does not start: {why}")


def _interpreter() -> str:
    """The real file of the base interpreter."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    real = os.path.realpath(base)
    if not os.path.isfile(real):
        raise ValueError(f"python_runtime: the base interpreter {base!r} is no file")
    return real


def _package_folders(prefix: str) -> tuple[str, ...]:
    """Every folder of installed packages, and of other environments, in what is shown."""
    patterns = [
        f"{root}/lib*/python3*/{kind}-packages"
        for root in (prefix, os.path.realpath(prefix), "/usr", "/usr/local")
        for kind in ("site", "dist")
    ]
    patterns += [f"{root}/{name}" for root in (prefix, os.path.realpath(prefix)) for name in ("envs", "pkgs")]
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    found += [sysconfig.get_path(name, vars={"base": prefix, "platbase": prefix}) for name in ("purelib", "platlib")]
    # A link is no place to mount on; its target is masked where it is shown itself.
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found if os.path.isdir(path)))
