"""What a prepared task adds to the task as read: the gold patch, the files of the tests; and the bug in the tree."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from rtmc.gymenvs.swe import patchtext, treefiles
from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.gitstore import PreparationError, have_git
from rtmc.gymenvs.swe.patch import PatchError, apply_patch
from rtmc.gymenvs.swe.sources import SdistFix
from rtmc.gymenvs.swe.task import SWETask

R2E_RUNNER = "run_tests.sh"  # of R2E-Gym's images: how the repository's tests are run there


def complete(task: SWETask, tree: Path, later: Path | None, where: str) -> SWETask:
    """The task with its gold patch and all files that are laid over the tree for grading. Puts the bug into the tree.

    Args:
        tree: the source's files, nothing hidden yet.
        later: the files of the release in `task.fix`.

    Raises:
        PreparationError: a patch does not apply, or the later release is not what the task says.
    """
    tests: dict[str, bytes | str] = {}
    for name in task.hidden_files:
        tests |= treefiles.read_below(tree, name)
    if task.test_patch:
        tests |= _after(tree, task.test_patch, f"{where}: field `test_patch`")
    patch = task.patch
    if task.fix is not None and later is not None:
        patch = gold_patch(task.fix, tree, later, where)
        for name in task.fix.test_files:
            data = treefiles.read(later, name)
            if data is None:
                raise PreparationError(f"{where}: {task.fix.name} {task.fix.version} has no file {name!r}")
            tests[name] = data
    if task.bug_patch:
        try:
            patch = patch or patchtext.reverse(task.bug_patch)
        except ValueError as error:
            raise PreparationError(f"{where}: field `bug_patch`: {error}") from None
        _apply(tree, task.bug_patch, f"{where}: field `bug_patch`")
    files = {name: treefiles.content_of(one) if isinstance(one, bytes) else one for name, one in tests.items()}
    runner = task.test_parser == "r2e" and R2E_RUNNER in files
    return task.replace(
        patch=patch,
        fix=None,
        bug_patch="",
        test_patch="",
        test_files={**files, **task.test_files},
        test_command=f"bash {R2E_RUNNER}" if runner else task.test_command,
    )


def gold_patch(fix: SdistFix, tree: Path, later: Path, where: str) -> str:
    """The hunks of `fix` in the difference between two releases. Raises PreparationError."""
    parts = []
    for name, hunks in fix.hunks.items():
        old, new = _text(tree, name, where), _text(later, name, where)
        if old == new:
            raise PreparationError(f"{where}: {name!r} is the same in {fix.name} {fix.version}; it cannot hold the fix")
        patch = make_patch({} if old is None else {name: old}, {} if new is None else {name: new})
        try:
            parts.append(patchtext.pick(patch, hunks) if hunks else patch)
        except ValueError as error:
            raise PreparationError(f"{where}: {name!r} in {fix.name} {fix.version}: {error}") from None
    patch = "".join(parts)
    found = hashlib.sha256(patch.encode("utf-8")).hexdigest()
    if fix.patch_sha256 and found != fix.patch_sha256:
        raise PreparationError(f"{where}: the gold patch has the SHA-256 {found}, wanted {fix.patch_sha256}")
    return patch


def _text(folder: Path, name: str, where: str) -> str | None:
    data = treefiles.read(folder, name)
    if data is None:
        return None
    content = treefiles.content_of(data)
    if isinstance(content, bytes):
        raise PreparationError(f"{where}: {name!r} is no UTF-8 text; a patch of it cannot be told")
    return content


def check_patch(task: SWETask, tree: Path, where: str) -> None:
    """Raises PreparationError where the gold patch, if there is one, does not apply to the agent's tree. Without git,
    which applies it, nothing is checked: only whoever plays the gold patch needs it."""
    if task.patch and have_git():
        with treefiles.scratch() as place:
            # Of the tree only what the patch touches: a trial on it all would cost a copy.
            for name in _named(task.patch, f"{where}: field `patch`"):
                file = treefiles.within(tree, name)
                if file.is_symlink() or file.is_file():
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, place / name, follow_symlinks=False)
            _apply(place, task.patch, f"{where}: field `patch`, the gold patch")


def _named(patch: str, where: str) -> list[str]:
    """The files that a patch reads or writes."""
    try:
        touched = patchtext.touched(patch)
    except ValueError as error:
        raise PreparationError(f"{where}: {error}") from None
    return list(dict.fromkeys(name for one in touched for name in (one.old, one.new) if name is not None))


def hide(tree: Path, names: Sequence[str]) -> None:
    """Removes files and folders from the tree."""
    for name in names:
        treefiles.remove(treefiles.within(tree, name))


def _apply(tree: Path, patch: str, where: str, *, reverse: bool = False) -> tuple[str, ...]:
    """The paths that the patch changed."""
    try:
        return apply_patch(tree, patch, reverse=reverse)
    except (PatchError, RuntimeError) as error:
        raise PreparationError(f"{where}: {error}") from None


def _after(tree: Path, patch: str, where: str) -> dict[str, bytes]:
    """The files that a patch leaves behind; the tree stays as it is."""
    found = {name: treefiles.read(tree, name) for name in _apply(tree, patch, where)}
    _apply(tree, patch, where, reverse=True)
    return {name: data for name, data in found.items() if data is not None}
