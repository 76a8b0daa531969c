"""The tests laid over a copy of the agent's tree: what decides is as the task has it, whatever the agent did there.

    laid = lay_over(task, base, root, changes)

Put back as the base has them, or removed where the base has none:
- test files: `test_*.py`, `*_test.py`, `tests.py`, every `conftest.py`, and whatever lies in a folder `tests` or
  `test` that holds such files; files that the gold patch changes are the agent's own business and stay;
- pytest's configuration: `pytest.ini`, `tox.ini` and their kind; `setup.cfg` and `pyproject.toml` where their part for
  pytest was changed, or cannot be read;
- what Python or pytest would load by itself: `sitecustomize.py`, `usercustomize.py`, `*.pth`, metadata of packages
  (entry points are plugins), packages named as the runner's, and new modules in the place of one of the standard
  library or of an installed package that the tests import;
- compiled files: every `__pycache__`, stray `*.pyc`, `.pytest_cache`.

Then the task's `test_files` are written, and its hidden files that they do not hold are taken away.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rtmc.gymenvs.swe.grading.configuration import CONFIGURATION, SHARED_CONFIGURATION, differs, named_plugins
from rtmc.gymenvs.swe.grading.names import files_of
from rtmc.gymenvs.swe.grading.shadows import RUNNER_NAMES, imported_names, is_loaded, metadata_of, roots_of, shadowed
from rtmc.gymenvs.swe.treefiles import remove

__all__ = ["Laid", "lay_over"]

_TEST_NAME = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py")
_TEST_FOLDERS = frozenset({"tests", "test", "r2e_tests", "testsuite"})
_GOLD = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)", re.MULTILINE)
_MOST_PROTECTED = 400  # files of one test folder


@dataclass(slots=True)
class Laid:
    """What was done.

    Attributes:
        protected: path -> SHA-256 of the Python files and configuration that the tests consist of.
        changed: paths the agent added or modified that are still its own: the code under test.
        suspicions: what no fix has need of, though the agent did it.
        metadata: packages' metadata that the tree had from the beginning.
        plugins: modules that the task's own configuration makes plugins of pytest.
    """

    protected: dict[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    suspicions: list[str] = field(default_factory=list)
    metadata: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def lay_over(
    task: Any,
    base: Path,
    root: Path,
    changes: Iterable[tuple[str, str]],
    owner: tuple[int, int] | None = None,
    packages: Collection[str] = (),
) -> Laid:
    """Lays the tests of `task` over `root`, a copy of the agent's tree in which nothing runs.

    Args:
        task: a complete `SWETask` (`test_patch` already turned into `test_files`).
        base: the agent's starting folder.
        root: the copy.
        changes: (path, kind) of what differs between the two, kind "added", "modified", "deleted" or "mode".
        owner: (uid, gid) of what is written; None = ours.
        packages: top-level names of what the task's Python has installed.

    Raises:
        ValueError: a test file of the task lies outside the tree, or in the place of a folder that the tree has.
    """
    for path in task.test_files:
        if (base / path).is_dir():
            raise ValueError(f"task {task.task_id!r:.80}: field `test_files`: {path!r} is a folder of the tree")
    laid = Laid()
    rules = _Rules(task, base)
    own: list[str] = []
    added: list[str] = []
    _purge(root, base)
    for path, kind in changes:
        in_base = os.path.lexists(base / path)
        if path in task.test_files:
            continue
        special = _loads_itself(path, base) or _configures(path, base, root, in_base)
        if special or rules.decides(path):
            if _tells(path):
                laid.suspicions.append(
                    f"{path} was {'removed' if kind == 'deleted' else 'made' if not in_base else kind}"
                )
            if in_base:
                _restore(base, root, path, owner)
            elif special or not rules.harmless(path):
                _remove(root, path)
        elif kind != "deleted":
            own.append(path)
            if not in_base:
                added.append(path)
    for path in task.hidden_files:
        if path not in task.test_files:
            _remove(root, path)
    for path, content in task.test_files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        _place(base, root, path, data, owner)
    texts = []
    for path in _deciding(task, root, rules):
        data = _read(root, path)
        if data is not None:
            laid.protected[path] = hashlib.sha256(data).hexdigest()
            if path.endswith(".py"):
                texts.append(data.decode("utf-8", "replace"))
    roots = roots_of(task.env)
    taken = _take_shadows(root, base, added, roots, texts, packages) if added else {}
    laid.suspicions += [f"{top} was made, in place of what the tests import" for top in dict.fromkeys(taken.values())]
    laid.changed = tuple(path for path in own if path not in taken)
    laid.suspicions += [f"{path} is compiled code" for path in laid.changed if path.endswith((".so", ".pyd"))]
    laid.metadata = tuple(metadata_of(base, roots))
    points = [f"{path}/entry_points.txt" for path in laid.metadata]
    laid.plugins = tuple(sorted(named_plugins(root, laid.protected) | named_plugins(base, points)))
    return laid


def _take_shadows(
    root: Path, base: Path, added: list[str], roots: tuple[str, ...], texts: list[str], packages: Collection[str]
) -> dict[str, str]:
    """Takes new modules away that stand in place of others which the tests import: path -> top of its module."""
    names = imported_names(texts)
    found = {path: top for path in added if (top := shadowed(path, base, roots, names, packages))}
    for path in found:
        _remove(root, path)
    return found


class _Rules:
    def __init__(self, task: Any, base: Path) -> None:
        self.base, self.tests = base, tuple(task.test_files)
        self.gold = set(_GOLD.findall(task.patch)) - set(task.test_files)
        self._folders: dict[str, bool] = {}

    def decides(self, path: str) -> bool:
        """Whether the path is of the tests. `changes` names a folder only where it became something else."""
        if path in self.gold:
            return False
        if _TEST_NAME.fullmatch(PurePosixPath(path).name):
            # A new module that is merely named so may be part of a fix; the tests of the task are known by name.
            return PurePosixPath(path).name == "conftest.py" or os.path.lexists(self.base / path) or self._inside(path)
        return self._inside(path) or self.is_folder(path)

    def harmless(self, path: str) -> bool:
        """New data beside the tests, which nothing reads that decides."""
        name = PurePosixPath(path).name
        return not name.endswith((".py", ".pyc", ".so", ".pth", ".ini", ".cfg", ".toml")) and not self.is_folder(path)

    def _inside(self, path: str) -> bool:
        return any(self.is_folder(str(parent)) for parent in PurePosixPath(path).parents if str(parent) != ".")

    def is_folder(self, path: str) -> bool:
        if PurePosixPath(path).name not in _TEST_FOLDERS:
            return False
        if path not in self._folders:
            own = any(one.startswith(f"{path}/") for one in self.tests)
            self._folders[path] = own or any(_TEST_NAME.fullmatch(name) for name in _names_below(self.base / path))
        return self._folders[path]


def _names_below(folder: Path) -> Iterator[str]:
    for _, _, files in os.walk(folder):
        yield from files


def _loads_itself(path: str, base: Path) -> bool:
    """Whether Python or pytest would load the path without being asked, in place of something else."""
    if is_loaded(path):
        return True
    parts = PurePosixPath(path).parts
    for at, part in enumerate(parts[:3]):
        name = part.split(".")[0]
        if name in RUNNER_NAMES and (at == 0 or parts[at - 1] in ("src", "lib") or "custom" in name):
            top = "/".join(parts[: at + 1])
            return not os.path.lexists(base / top)
    return False


def _configures(path: str, base: Path, root: Path, in_base: bool) -> bool:
    name = PurePosixPath(path).name
    if name not in SHARED_CONFIGURATION:
        return name in CONFIGURATION
    return differs(path, _read(base, path) if in_base else None, _read(root, path), os.path.lexists(root / path))


def _tells(path: str) -> bool:
    """Whether touching the path is worth a word: editing tests is what a good engineer does, this is not."""
    name = PurePosixPath(path).name
    return name == "conftest.py" or (
        not _TEST_NAME.fullmatch(name)
        and (
            is_loaded(path)
            or name in CONFIGURATION
            or name in SHARED_CONFIGURATION
            or any(part.split(".")[0] in RUNNER_NAMES for part in PurePosixPath(path).parts)
        )
    )


def _purge(root: Path, base: Path) -> None:
    """Compiled code and caches: a stale or planted `.pyc` would run in place of the source beside it."""
    root.chmod(stat.S_IMODE(root.stat().st_mode) | 0o700)
    for folder, subfolders, files in os.walk(root):
        inner = Path(folder).relative_to(root)
        # No test stays out of reach by permissions. A folder is seen here before it is listed itself.
        for name, wanted in (*((one, 0o700) for one in subfolders), *((one, 0o400) for one in files)):
            full = Path(folder, name)
            mode = full.lstat().st_mode
            if (mode & wanted) != wanted and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                full.chmod(stat.S_IMODE(mode) | wanted)
        for name in [one for one in subfolders if one in ("__pycache__", ".pytest_cache")]:
            _remove(root, str(inner / name))
        subfolders[:] = [one for one in subfolders if one not in ("__pycache__", ".pytest_cache", ".git")]
        for name in files:
            if name.lower().endswith((".pyc", ".pyo", ".pth")) and not os.path.lexists(base / inner / name):
                _remove(root, str(inner / name))


def _deciding(task: Any, root: Path, rules: _Rules) -> list[str]:
    """The Python files and configuration of the tests that will run, as they lie in the copy."""
    ids = files_of((*task.fail_to_pass, *task.pass_to_pass))
    found = dict.fromkeys(path for path in (*task.test_files, *ids) if path.endswith(".py"))
    for path in list(found):
        for parent in PurePosixPath(path).parents:
            folder = "" if str(parent) == "." else f"{parent}/"
            for name in ("conftest.py", "__init__.py", *CONFIGURATION, *SHARED_CONFIGURATION):
                if name == "__init__.py" and not rules.is_folder(str(parent)):
                    continue
                found.setdefault(f"{folder}{name}")
            if rules.is_folder(str(parent)):
                inner = sorted(one.relative_to(root).as_posix() for one in (root / folder).rglob("*.py"))
                found.update(dict.fromkeys(inner[:_MOST_PROTECTED]))
    return [path for path in found if (root / path).is_file() and not (root / path).is_symlink()]


def _read(root: Path, path: str) -> bytes | None:
    """The content of a plain file; None = there is none. Links are not followed: who knows where they lead."""
    full = root / path
    try:
        if not stat.S_ISREG(full.lstat().st_mode):
            return None
        return full.read_bytes()
    except OSError:
        return None


def _remove(root: Path, path: str) -> None:
    if any((root / parent).is_symlink() for parent in PurePosixPath(path).parents if str(parent) != "."):
        return  # it lies behind a link: nothing of that name is in the tree itself
    remove(root / path)


def _restore(base: Path, root: Path, path: str, owner: tuple[int, int] | None) -> None:
    source = base / path
    if source.is_symlink():
        _make_way(base, root, path, owner)
        os.symlink(os.readlink(source), root / path)
    elif source.is_dir():
        if (root / path).is_symlink() or not (root / path).is_dir():
            _make_way(base, root, path, owner)
            (root / path).mkdir()
            _own(root / path, owner)
    else:
        _place(base, root, path, source.read_bytes(), owner, source.stat().st_mode & 0o777)


def _place(
    base: Path, root: Path, path: str, data: bytes, owner: tuple[int, int] | None, mode: int | None = None
) -> None:
    target = _make_way(base, root, path, owner)
    if mode is None:
        known = base / path
        mode = known.stat().st_mode & 0o777 if known.is_file() else 0o644
    with open(target, "xb") as file:
        file.write(data)
    os.chmod(target, mode)
    _own(target, owner)


def _make_way(base: Path, root: Path, path: str, owner: tuple[int, int] | None) -> Path:
    """Where `path` is to be made: its folders are real ones in the tree (or links the base has), the place is free.

    Raises:
        ValueError: a link of the base leads out of the tree.
    """
    parts = PurePosixPath(path).parts
    if not parts or PurePosixPath(path).is_absolute() or ".." in parts:
        raise ValueError(f"the test file {path!r} lies outside the tree")
    here = root
    for at, part in enumerate(parts[:-1]):
        here = here / part
        same = base.joinpath(*parts[: at + 1])
        if here.is_symlink():
            if same.is_symlink() and os.readlink(same) == os.readlink(here):
                here = here.resolve()
                if not here.is_relative_to(root.resolve()):
                    raise ValueError(f"the test file {path!r} lies behind a link that leads out of the tree")
                continue
            here.unlink()
        elif os.path.lexists(here) and not here.is_dir():
            here.unlink()
        if not here.is_dir():
            here.mkdir()
            _own(here, owner)
    target = here / parts[-1]
    remove(target)
    return target


def _own(path: Path, owner: tuple[int, int] | None) -> None:
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)
