"""The agent's starting folder, made once per task and kept.

    prepared = prepare(task)
    prepared.base  # the tree: read it, copy it, lay an overlay over it; never write into it
    prepared.task  # the task with everything that grading needs filled in

The tree has what the source has, less the hidden files, and a `.git` with a single commit. Neither the fix nor the
hidden tests are in it: not in a file, not in git's objects. They are kept beside it, in a file that no sandbox shows.
What pytest itself is made of (iniconfig, packaging, pluggy, pygments) can be read inside as it is installed here: a
task over an older release of one of these shows its fix.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtmc.gymenvs import cachefolder
from rtmc.gymenvs.isolation import users
from rtmc.gymenvs.sandbox import Limits, SandboxError, open_sandbox
from rtmc.gymenvs.swe import completion, gitstore, sdists, treefiles
from rtmc.gymenvs.swe.environment import own_environment
from rtmc.gymenvs.swe.formats import with_repository
from rtmc.gymenvs.swe.gitstore import PreparationError
from rtmc.gymenvs.swe.repos import Repos
from rtmc.gymenvs.swe.runtime import Runtime, python_runtime
from rtmc.gymenvs.swe.sources import Clone, Embedded, Folder, Image, Sdist
from rtmc.gymenvs.swe.task import SWETask

__all__ = ["PreparationError", "Prepared", "cache_folder", "prepare"]

INSIDE = "/testbed"
_FORM = 3  # of what a prepared folder holds: another number makes all of them anew

# What is installed does not change while a process lives, and reading it takes longer than all else at a reset.
_runtimes: dict[tuple[tuple[str, ...], str], Runtime] = {}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task that is ready to be played.

    Attributes:
        base: the starting tree on this machine. Read-only by convention: every episode works on a layer or a copy.
        task: the task, complete: `patch` is the gold patch where it can be known, and `test_files` has every file that
            is laid over the tree for grading (those of `test_patch` and of the hidden files as well).
        runtime: the Python that its tests run with, for `open_sandbox(base, inside="/testbed", **runtime.options())`;
            its variables hold PYTHONPATH and the task's own.
    """

    base: Path
    task: SWETask
    runtime: Runtime


def cache_folder() -> Path:
    """`swe/` in `$RTMC_CACHE`, or in `rtmc/` of `$XDG_CACHE_HOME` or of `~/.cache`. Raises OSError without a home."""
    return cachefolder.cache_folder("swe")


def prepare(
    task: SWETask,
    cache: str | os.PathLike[str] | None = None,
    *,
    repos: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    sdist_folder: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    trusted: bool = False,
) -> Prepared:
    """Makes the starting folder of a task, or finds the one made before.

    A folder is made aside and renamed when it is whole; of several processes and threads that want the same one, the
    first makes it and the others wait.

    Args:
        cache: folder for what is kept; None = `cache_folder()`.
        repos: where clones and prepared folders lie, for a task that names an image; see `repos.Repos`.
        sdist_folder: looked into for source archives before the registry is asked.
        backend, trusted: of the sandbox that `setup_command` runs in; see `open_sandbox`.

    Raises:
        PreparationError: (a ValueError) the task's image is needed and nothing stands for it; a clone lacks the commit;
            an archive cannot be fetched; a patch does not apply; the setup fails or runs past its limit. Nothing
            half-made is left.
        OSError: the cache cannot be written; the message names RTMC_CACHE. TypeError: `task` is none.
    """
    if not isinstance(task, SWETask):
        raise TypeError(f"prepare: wanted an SWETask, got {type(task).__name__}")
    place = Path(cache) if cache is not None else cache_folder()
    where = f"task {task.task_id!r:.80}"
    if repos is not None:
        try:
            task = with_repository(task, Repos(repos))
        except ValueError as error:
            raise PreparationError(f"{where}: {error}") from None
    if isinstance(task.source, Image):
        raise PreparationError(_needs_image(task.source, task.task_id, where))
    runtime, links = _runtime(task, where)
    folders = Path(sdist_folder) if sdist_folder is not None else None
    maker = _Maker(task, place, folders, runtime, links, backend, trusted, where)
    home = place / "trees" / maker.name()
    if not home.is_dir():
        with _alone(home):
            if not home.is_dir():
                maker.make(home)
    complete = maker.completed(home)
    return Prepared(home / "tree", complete, maker.runtime_for(home / "tree"))


def _needs_image(source: Image, task_id: str, where: str) -> str:
    image = f"the container image {source.image!r}" if source.image else "a container image"
    ways = [
        f"a folder copied out of the image, under the name {task_id!r} (`Folder(path, python=...)` names its Python)"
    ]
    if source.repo:
        at = f" that has the commit {source.commit}" if source.commit else ""
        url = f" (git clone https://github.com/{source.repo})" if source.repo.count("/") == 1 else ""
        ways.insert(0, f"a clone or bundle{at}, under the name {source.repo!r}{url}")
    return (
        f"{where}: it runs in {image}, and images are not run here. What would do, as `repos={{name: path}}` or as "
        f"`repos=folder` of such names: {'; or '.join(ways)}"
    )


def _runtime(task: SWETask, where: str) -> tuple[Runtime, dict[str, str]]:
    """What runs the tests, and links that the tree needs to it: path in the tree -> what it points to."""
    python = getattr(task.source, "python", "")
    if python:
        inside = Path(task.source.path) if isinstance(task.source, Folder) else None
        return own_environment(python, inside, where)
    packages = ("pytest", *task.python_packages)
    key = (packages, str(cache_folder()))
    runtime = _runtimes.get(key)
    if runtime is None or not all(host.exists() for host, _ in runtime.readable):
        try:
            runtime = _runtimes[key] = python_runtime(packages)
        except ValueError as error:
            raise PreparationError(f"{where}: {error}") from None
    return runtime, {}


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Holds the lock of a prepared folder. The system lets it go when its holder dies."""
    cachefolder.make_folder(home.parent)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Maker:
    """One task on its way to a folder."""

    def __init__(
        self,
        task: SWETask,
        cache: Path,
        sdist_folder: Path | None,
        runtime: Runtime,
        links: dict[str, str],
        backend: str,
        trusted: bool,
        where: str,
    ) -> None:
        self.task, self.cache, self.sdist_folder, self.where = task, cache, sdist_folder, where
        self.runtime, self.links, self.backend, self.trusted = runtime, links, backend, trusted
        self.identity = self._identity()

    def name(self) -> str:
        """Of the folder: the same for all that makes the same tree and the same grading."""
        task = self.task
        values = {
            "form": _FORM,
            "source": self.identity,
            "git": gitstore.have_git(),
            "fix": self._archive_hash(task.fix) if task.fix is not None else None,
            "links": self.links,
        }
        own = (
            "bug_patch",
            "test_patch",
            "patch",
            "hidden_files",
            "setup_command",
            "env",
            "fix",
            "test_files",
            "test_command",
        )
        stated = {name: value for name, value in task.to_json().items() if name in own}
        text = json.dumps([values, stated], sort_keys=True)
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", task.task_id)[:60].strip("-.") or "task"
        return f"{readable}-{hashlib.sha256(text.encode('utf-8')).hexdigest()[:24]}"

    def _identity(self) -> Any:
        source = self.task.source
        if isinstance(source, Embedded):
            return [[name, _hash(content)] for name, content in sorted(source.files.items())]
        if isinstance(source, Clone):
            return gitstore.commit_of(Path(source.path), source.commit, self.where)
        if isinstance(source, Folder):
            return [str(Path(source.path).resolve()), treefiles.stamp(Path(source.path))]
        return self._archive_hash(source)

    def _archive_hash(self, release: Any) -> str:
        return sdists.fetch(release, self.cache / "sdists", self.sdist_folder)[1]

    def make(self, home: Path) -> None:
        """Makes the folder `home`, whole or not at all. Raises as `prepare`."""
        aside = home.parent / f".{home.name}.part"
        treefiles.remove(aside)  # of a process that was killed; the lock is held
        aside.mkdir(parents=True)
        try:
            tree = aside / "tree"
            forced = self._write(tree)
            treefiles.drop(tree, {".git"})
            task = completion.complete(self.task, tree, self._later(aside), self.where)
            completion.hide(tree, task.hidden_files)
            task = completion.check_patch(task, tree, self.where)
            treefiles.remove(aside / "later")
            commit = None
            if gitstore.have_git():
                commit = gitstore.Commit(tree)
                commit.add_all(forced=forced)
            if self.task.setup_command:
                self._set_up(tree)
                completion.hide(tree, task.hidden_files)
                treefiles.drop(tree, {".git", *treefiles.BYTECODE})
            if commit is not None:
                commit.finish(left_out=tuple(self.links))
            if (owner := users.owner()) is not None:
                treefiles.give(tree, owner)  # once here, not by every sandbox: a layer over the tree stays empty
            (aside / "task.json").write_text(json.dumps(task.to_json()), encoding="utf-8")
            aside.rename(home)
        finally:
            treefiles.remove(aside)

    def completed(self, home: Path) -> SWETask:
        """The complete task, from beside the tree."""
        kept = SWETask.from_json((home / "task.json").read_bytes(), str(home / "task.json"))
        names = ("patch", "bug_patch", "test_patch", "test_files", "test_command", "fix")
        meta = dict(self.task.meta)
        if isinstance(self.task.source, Sdist):
            meta["sdist_sha256"] = self.identity
        return self.task.replace(meta=meta, **{name: getattr(kept, name) for name in names})

    def runtime_for(self, tree: Path) -> Runtime:
        """The runtime with the task's variables; packages below `src/` are found as an installation would find them."""
        folders = [f"{INSIDE}/src", INSIDE] if (tree / "src").is_dir() else [INSIDE]
        env = {**self.runtime.env, "PYTHONPATH": os.pathsep.join(folders), **self.task.env}
        return replace(self.runtime, env=env)

    def _write(self, tree: Path) -> bool:
        """Writes the source's files into a new folder; whether all of them belong to the repository."""
        source = self.task.source
        if isinstance(source, Embedded):
            tree.mkdir()
            treefiles.write(tree, source.files)
        elif isinstance(source, Clone):
            tree.mkdir()
            gitstore.export(Path(source.path), source.commit, tree, self.where)
        elif isinstance(source, Folder):
            treefiles.copy_folder(Path(source.path), tree, self.links)
            for name, target in self.links.items():
                (tree / name).symlink_to(target)
            return False
        elif isinstance(source, Sdist):
            archive, _ = sdists.fetch(source, self.cache / "sdists", self.sdist_folder)
            sdists.unpack(archive, tree, self.where)
        return True

    def _later(self, aside: Path) -> Path | None:
        """The release that brought the fix, unpacked."""
        if self.task.fix is None:
            return None
        archive, _ = sdists.fetch(self.task.fix, self.cache / "sdists", self.sdist_folder)
        sdists.unpack(archive, aside / "later", self.where)
        return aside / "later"

    def _set_up(self, tree: Path) -> None:
        limit = self.task.setup_timeout_s
        limits = Limits(wall_s=limit, cpu_s=max(1, int(limit)))
        options = self.runtime_for(tree).options()
        try:
            with open_sandbox(
                tree, inside=INSIDE, backend=self.backend, trusted=self.trusted, limits=limits, **options
            ) as sandbox:
                done = sandbox.run(self.task.setup_command)
        except SandboxError as error:
            raise PreparationError(f"{self.where}: `setup_command` needs a sandbox: {error}") from None
        if done.timed_out:
            raise PreparationError(f"{self.where}: `setup_command` ran longer than setup_timeout_s = {limit:g} s")
        if done.exit_code != 0:
            why = f"was stopped ({done.stopped})" if done.stopped else f"ended with exit code {done.exit_code}"
            said = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise PreparationError(f"{self.where}: `setup_command` {why}: {said or 'it printed nothing'}")


def _hash(content: str | bytes) -> str:
    data = content.encode("utf-8") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()
