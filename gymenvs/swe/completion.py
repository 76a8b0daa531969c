"""What a prepared task adds to the task as read: the gold patch, the files of the tests; and the bug in the tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rtmc.gymenvs.swe import patchtext, treefiles
from rtmc.gymenvs.swe.gitstore import PreparationError, have_git
from rtmc.gymenvs.swe.hunks import gold_patch
from rtmc.gymenvs.swe.patch import PatchError, apply_patch, patched, write_patch
from rtmc.gymenvs.swe.sources import Clone, Folder
from rtmc.gymenvs.swe.task import SWETask

R2E_RUNNER = "run_tests.sh"  # of R2E-Gym's images: how the repository's tests are run there


def complete(task: SWETask, tree: Path, later: Path | None, where: str) -> SWETask:
    """The task with its gold patch and all files that are laid over the tree for grading. Puts the bug into the tree.

    Patches of a clone's or a folder's files are applied as git would in that checkout: a `.gitattributes` may have
    given it other line ends than the patch has.

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
        tests |= _after(tree, task, f"{where}: field `test_patch`")
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
        with _told(f"{where}: field `bug_patch`"):
            apply_patch(tree, task.bug_patch, convert=_is_checkout(task))
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


def check_patch(task: SWETask, tree: Path, where: str) -> SWETask:
    """The task, whose gold patch, if there is one, fits the bytes of the agent's tree: one that git would convert on
    the way is written anew. Without git, which applies it, nothing is checked: only whoever plays the gold patch needs
    it.

    Raises:
        PreparationError: the patch does not apply.
    """
    if not task.patch or not have_git():
        return task
    with _told(f"{where}: field `patch`, the gold patch"):
        if not _is_checkout(task):
            patched(tree, task.patch)
            return task
        wanted = patched(tree, task.patch, convert=True)
        try:
            plain = patched(tree, task.patch)
        except PatchError:
            plain = {}
    if plain == wanted:
        return task
    return task.replace(patch=write_patch((path, *sides) for path, sides in wanted.items()))


def _is_checkout(task: SWETask) -> bool:
    """Whether git wrote the files, with conversions; a release's archive and a task's own files are as they are."""
    return isinstance(task.source, (Clone, Folder))


def hide(tree: Path, names: Sequence[str]) -> None:
    """Removes files and folders from the tree."""
    for name in names:
        treefiles.remove(treefiles.within(tree, name))


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Makes what is wrong with a patch an error of the task."""
    try:
        yield
    except (PatchError, RuntimeError) as error:
        raise PreparationError(f"{where}: {error}") from None


def _after(tree: Path, task: SWETask, where: str) -> dict[str, bytes]:
    """The regular files that the test patch leaves behind; the tree stays as it is."""
    with _told(where):
        made = patched(tree, task.test_patch, convert=_is_checkout(task))
    return {
        path: blob.content
        for path, (_, blob) in made.items()
        if blob is not None and blob.content is not None and blob.mode != 0o120000
    }
