"""git without anything of the user's: a commit's files out of a clone or a bundle, and a fresh one-commit repository.

Every call has an environment and a configuration of its own: no hooks, filters, aliases or templates, no network, no
prompts. A clone's own configuration is never read either: its objects are borrowed by a new, empty repository, which
also means that nothing is written into the clone. Submodules come out as empty folders, LFS files as their pointers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 900.0  # for one call: unpacking the largest bundles takes minutes
_WHEN = "2000-01-01T00:00:00+00:00"
_WHO = ("rtmc", "rtmc@localhost")
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = false\n"
_HASH = re.compile(r"[0-9a-f]{4,64}")


class PreparationError(ValueError):
    """A task's tree cannot be made: what is missing, what failed, and what would do."""


def have_git() -> bool:
    """Whether there is a git to call."""
    return shutil.which("git") is not None


def run_git(*arguments: str, where: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs git and returns its output.

    Args:
        where: begins the message of an error.

    Raises:
        PreparationError: there is no git, it fails, or it takes longer than `LIMIT_S`.
    """
    clean = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(cwd),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_AUTHOR_NAME": _WHO[0],
        "GIT_AUTHOR_EMAIL": _WHO[1],
        "GIT_AUTHOR_DATE": _WHEN,
        "GIT_COMMITTER_NAME": _WHO[0],
        "GIT_COMMITTER_EMAIL": _WHO[1],
        "GIT_COMMITTER_DATE": _WHEN,
        **(env or {}),
    }
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", *arguments]
    try:
        done = subprocess.run(
            command, cwd=cwd, env=clean, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise PreparationError(f"{where}: this needs `git`, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise PreparationError(f"{where}: `git {arguments[0]}` took longer than {LIMIT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PreparationError(f"{where}: `git {arguments[0]}` failed: {' / '.join(said[-3:]) or done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def commit_of(source: Path, commit: str, where: str) -> str:
    """The full name of a commit in a clone or a bundle. Raises PreparationError where it is not there."""
    with tempfile.TemporaryDirectory(prefix="rtmc-git-") as place:
        return _resolve(_borrow(source, Path(place), where), source, commit, where)


def export(source: Path, commit: str, target: Path, where: str) -> str:
    """Writes a commit's files into an empty folder, as a checkout has them.

    Unlike `git archive` it leaves nothing out: `export-ignore` often names the tests.

    Args:
        source: a clone, with or without a working tree, or a bundle.
        commit: its name there, in full or shortened.
        target: an existing, empty folder.

    Returns:
        the commit's full name.

    Raises:
        PreparationError: the source is no repository, or lacks the commit or some of its files.
    """
    with tempfile.TemporaryDirectory(prefix="rtmc-git-") as place:
        store = _borrow(source, Path(place), where)
        full = _resolve(store, source, commit, where)
        env = {"GIT_DIR": str(store), "GIT_WORK_TREE": str(target.resolve()), "GIT_INDEX_FILE": f"{place}/index"}
        run_git("read-tree", full, where=where, cwd=target, env=env)
        run_git("checkout-index", "--all", "--quiet", where=where, cwd=target, env=env)
    return full


def _borrow(source: Path, place: Path, where: str) -> Path:
    """A new bare repository in `place` that sees the objects and the refs of `source`."""
    store = place / "store"
    run_git("init", "--quiet", "--bare", "--template=", str(store), where=where, cwd=place)
    if source.is_file():
        listed = run_git("bundle", "unbundle", str(source.resolve()), where=f"{where}: {source}", cwd=store)
        refs = [line.split(" ", 1) for line in listed.splitlines()]
        for name, ref in refs:
            if ref == "HEAD":
                (store / "HEAD").write_text(f"{name}\n", encoding="ascii")
        kept = sorted(f"{name} {ref}\n" for name, ref in refs if ref.startswith("refs/"))
        (store / "packed-refs").write_text("".join(kept), encoding="utf-8")
        return store
    own = _git_folder(source, where)
    common = own
    if (own / "commondir").is_file():  # a linked working tree
        common = own / (own / "commondir").read_text(encoding="utf-8").strip()
    objects = (common / "objects").resolve()
    if not objects.is_dir():
        raise PreparationError(f"{where}: {str(source)!r} is no git repository: there is no {str(objects)!r}")
    (store / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (store / "objects" / "info" / "alternates").write_text(f"{objects}\n", encoding="utf-8")
    for name in ("packed-refs", "shallow"):
        if (common / name).is_file():
            shutil.copyfile(common / name, store / name)
    if (common / "refs").is_dir():
        shutil.copytree(common / "refs", store / "refs", dirs_exist_ok=True)
    if (own / "HEAD").is_file():
        shutil.copyfile(own / "HEAD", store / "HEAD")
    return store


def _git_folder(source: Path, where: str) -> Path:
    """The git folder of a clone; `.git` may be a file that names it."""
    marker = source / ".git"
    if marker.is_file():
        text = marker.read_text(encoding="utf-8", errors="surrogateescape").strip()
        if not text.startswith("gitdir: "):
            raise PreparationError(f"{where}: {str(marker)!r} is a file that names no git folder")
        return source / text.removeprefix("gitdir: ")
    if marker.is_dir():
        return marker
    if (source / "HEAD").is_file():
        return source
    raise PreparationError(f"{where}: {str(source)!r} is no git clone and no bundle")


def _resolve(store: Path, source: Path, commit: str, where: str) -> str:
    names = [commit]
    if not _HASH.fullmatch(commit):
        names += [f"refs/heads/{commit}", f"refs/tags/{commit}", f"refs/remotes/origin/{commit}"]
    for name in names:
        try:
            found = run_git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", where=where, cwd=store)
        except PreparationError:
            continue
        return found.strip()
    raise PreparationError(
        f"{where}: the commit {commit!r} is not in {str(source)!r}; fetch it there (`git fetch origin {commit}`, or "
        f"`git fetch --unshallow` in a shallow clone; a bundle is made anew with it)"
    )


class Commit:
    """A one-commit repository of a folder, kept beside it until `finish`: what runs there meanwhile cannot touch it.

    commit = Commit(tree)
    commit.add_all()  # every file that came with the source, ignored ones too
    ...  # a setup writes build products
    commit.finish()  # what is new and not ignored comes in as well
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree.resolve()
        self._place = tree.resolve().parent / f".{tree.name}.git"
        self._env = {"GIT_DIR": str(self._place), "GIT_WORK_TREE": str(self.tree)}
        self._git("init", "--quiet", "--template=", "--initial-branch=main")
        (self._place / "config").write_text(_CONFIG, encoding="ascii")

    def add_all(self, *, forced: bool = True) -> None:
        """Takes in every file; with `forced` also those that `.gitignore` names. Raises PreparationError."""
        self._git("add", "--all", *(["--force"] if forced else []), ".")

    def finish(self, left_out: Sequence[str] = ()) -> None:
        """Takes in what is new, commits and moves the repository into the folder.

        Args:
            left_out: paths that the repository is to know nothing of.

        Raises:
            PreparationError: git fails.
        """
        if left_out:
            (self._place / "info").mkdir(exist_ok=True)
            (self._place / "info" / "exclude").write_text("".join(f"/{one}\n" for one in left_out), encoding="utf-8")
            self._git("rm", "--cached", "--quiet", "--ignore-unmatch", "--", *left_out)
        self._git("add", "--all", ".")
        self._git("commit", "--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign", "-m", "Start")
        # One pack instead of an object a file: the agent's tree is copied for every episode.
        self._git("-c", "pack.threads=1", "repack", "-a", "-d", "-q")
        for name in ("COMMIT_EDITMSG", "logs", "branches", "description"):
            path = self._place / name
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        os.replace(self._place, self.tree / ".git")

    def _git(self, *arguments: str) -> str:
        return run_git(*arguments, where=f"{self.tree}", cwd=self.tree, env=self._env)
