"""Commits out of clones and bundles: all of the commit, nothing of the user's git, nothing written into the clone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rtmc.gymenvs.swe import gitstore
from rtmc.gymenvs.swe.gitstore import Commit, PreparationError, commit_of, export

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

FILES = {
    "pkg/core.py": "old\n",
    "tests/test_core.py": "hidden\n",
    "crlf.txt": "a\r\nb\r\n",
    "name with\nline": "x\n",
    ".gitattributes": "tests export-ignore\n*.py filter=evil diff=evil\nversion.txt export-subst\n",
    "version.txt": "$Format:%H$\n",
    ".gitignore": "*.log\n",
    "kept.log": "tracked though ignored\n",
}


def git(cwd, *arguments):
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(["git", *arguments], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A clone of two commits, the later of which fixes the bug; `evil` is written if any of its own commands runs."""
    path = tmp_path / "clone"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    for name, content in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content.encode())
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("pkg/core.py")
    git(path, "add", "-A", "-f")
    git(path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(path, "commit", "-q", "-m", "First")
    git(path, "tag", "-a", "v1", "-m", "v1")
    (path / "pkg/core.py").write_text("the fix\n")
    git(path, "commit", "-q", "-am", "Fix it")
    evil = f"touch {tmp_path / 'evil'}"
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        (path / ".git/hooks").mkdir(exist_ok=True)
        (path / ".git/hooks" / hook).write_text(f"#!/bin/sh\n{evil}\n")
        (path / ".git/hooks" / hook).chmod(0o755)
    for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv", "core.sshCommand"):
        git(path, "config", key, f"sh -c '{evil}; cat'")
    git(path, "config", "core.autocrlf", "true")
    return path


def tree_of(path):
    found = {}
    for folder, folders, files in os.walk(path):
        for name in [*files, *folders]:
            one = Path(folder, name)
            if one.is_symlink():
                found[one.relative_to(path).as_posix()] = f"-> {os.readlink(one)}"
            elif one.is_file():
                found[one.relative_to(path).as_posix()] = one.read_bytes().decode()
    return found


def state_of(path):
    return {one: (info.st_mtime_ns, info.st_size) for one in path.rglob("*") if (info := one.lstat())}


WANTED = {**FILES, "run.sh": "#!/bin/sh\n", "link": "-> pkg/core.py"}


def test_a_commit_comes_out_whole(clone, tmp_path):
    first = git(clone, "rev-parse", "v1^{commit}")
    before = state_of(clone)
    (tmp_path / "out").mkdir()
    assert export(clone, first[:9], tmp_path / "out", "here") == first
    assert tree_of(tmp_path / "out") == WANTED
    assert (tmp_path / "out/sub").is_dir()  # a submodule is an empty folder, and nothing is fetched for it
    assert os.access(tmp_path / "out/run.sh", os.X_OK)
    assert state_of(clone) == before
    assert not (tmp_path / "evil").exists()


def test_the_trap_works(clone, tmp_path):
    # What the test above relies on: the clone's own git would have run the commands.
    git(clone, "checkout", "-q", "v1")
    assert (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", ["bare", "bundle", "worktree", "shallow", "packed", "alternates"])
def test_every_kind_of_clone(clone, tmp_path, kind):
    first, other = git(clone, "rev-parse", "v1^{commit}"), tmp_path / "other"
    if kind == "bundle":
        git(clone, "bundle", "create", "-q", str(other), "--all", "HEAD")
    elif kind == "worktree":
        git(clone, "worktree", "add", "-q", "--detach", "--no-checkout", str(other), "main")
    elif kind == "shallow":
        git(tmp_path, "clone", "-q", "--depth", "1", "--no-checkout", "--branch", "v1", f"file://{clone}", str(other))
    elif kind == "packed":
        git(clone, "gc", "-q")
        other = clone
    else:
        option = "--bare" if kind == "bare" else "--shared"
        git(tmp_path, "clone", "-q", option, "--no-checkout", str(clone), str(other))
    (tmp_path / "out").mkdir()
    assert export(other, first[:8], tmp_path / "out", "here") == first
    assert tree_of(tmp_path / "out") == WANTED
    assert commit_of(other, "v1", "here") == first
    if kind != "shallow":
        assert commit_of(other, "HEAD", "here") == git(clone, "rev-parse", "main")


def test_what_is_missing_is_said(clone, tmp_path):
    with pytest.raises(PreparationError, match=r"here: the commit '0{40}' is not in '.*clone'; fetch it there"):
        commit_of(clone, "0" * 40, "here")
    with pytest.raises(PreparationError, match=r"here: the commit 'nowhere' is not in"):
        commit_of(clone, "nowhere", "here")
    (tmp_path / "plain").mkdir()
    with pytest.raises(PreparationError, match=r"here: '.*plain' is no git clone and no bundle"):
        commit_of(tmp_path / "plain", "HEAD", "here")
    (tmp_path / "cut.bundle").write_bytes(b"# v2 git bundle\n")
    with pytest.raises(PreparationError, match=r"here: .*cut.bundle: `git bundle` failed"):
        commit_of(tmp_path / "cut.bundle", "HEAD", "here")
    broken = git(clone, "rev-parse", "v1:pkg/core.py")
    os.unlink(clone / ".git/objects" / broken[:2] / broken[2:])
    (tmp_path / "out").mkdir()
    with pytest.raises(PreparationError, match=r"here: `git checkout-index` failed: .*unable to read"):
        export(clone, "v1", tmp_path / "out", "here")


def test_without_git_it_is_said(clone, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not gitstore.have_git()
    with pytest.raises(PreparationError, match=r"here: this needs `git`, which is not installed"):
        commit_of(clone, "HEAD", "here")


def test_a_git_that_hangs_is_stopped(clone, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(gitstore, "LIMIT_S", 0.3)
    with pytest.raises(PreparationError, match=r"here: `git init` took longer than 0.3 s"):
        commit_of(clone, "HEAD", "here")


def make_commit(folder):
    commit = Commit(folder)
    commit.add_all()
    (folder / "built.txt").write_text("by the setup\n")
    (folder / "built.log").write_text("ignored\n")
    commit.finish()
    return git(folder, "-c", f"safe.directory={folder}", "rev-parse", "HEAD")


def test_the_same_files_make_the_same_commit(tmp_path):
    names = []
    for place in ("a", "b"):
        folder = tmp_path / place
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_bytes(content.encode())
        names.append(make_commit(folder))
    assert names[0] == names[1]
    assert git(folder, "status", "--porcelain") == ""
    assert set(git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")) - {""} == {*FILES, "built.txt"}
    assert git(folder, "log", "--format=%an %ae %aI %s") == "rtmc rtmc@localhost 2000-01-01T00:00:00+00:00 Start"
    assert not (folder / ".git/hooks").exists()
    assert not [one for one in (folder / ".git/objects").iterdir() if len(one.name) == 2]  # packed: few files to copy
    assert git(folder, "fsck", "--strict") == ""


def test_a_tree_s_own_configuration_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "tree"))
    (tmp_path / "tree").mkdir()
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'evil'}\ncat\n")
    script.chmod(0o755)
    settings = f'[filter "evil"]\n\tclean = {script}\n[core]\n\tfsmonitor = {script}\n'
    for name in (".gitconfig", "config"):
        (tmp_path / "tree" / name).write_text(settings)
    (tmp_path / "tree/.gitattributes").write_text("* filter=evil\n")
    make_commit(tmp_path / "tree")
    assert not (tmp_path / "evil").exists()


def test_a_repository_in_the_making_cannot_be_reached(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a").write_text("a\n")
    commit = Commit(folder)
    commit.add_all()
    assert not (folder / ".git").exists()
    commit.finish(left_out=("venv",))
    (folder / "venv").symlink_to("/elsewhere")
    assert git(folder, "status", "--porcelain") == ""
