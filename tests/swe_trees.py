"""What tests of work trees share: a base, trees on each layer, a plain reading of a folder, a user without powers."""

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.tree import WorkTree, probe_layers

LAYERS = [("overlay", True), ("overlay", False), ("copy", None)]
LAYER_NAMES = ["overlay-memory", "overlay-disk", "copy"]


@contextmanager
def trees(kind: str, memory: bool | None, tmp_path: Path) -> Iterator[Callable[..., WorkTree]]:
    """What makes trees of one layer, and closes them in the end."""
    why = probe_layers()[kind]
    if why:
        pytest.skip(f"no {kind} layer here: {why}")
    open_trees = []

    def made(base: Path, snapshot=None, **options) -> WorkTree:
        options = {"layer": kind, "memory": memory, "place": tmp_path} | options
        tree = WorkTree.from_snapshot(base, snapshot, **options) if snapshot else WorkTree(base, **options)
        open_trees.append(tree)
        return tree

    yield made
    for tree in open_trees:
        tree.close()
    assert not (tmp_path / f"rtmc-trees-{os.getuid()}").exists()


def write_base(tmp_path: Path) -> Path:
    """A small repository, all of it old."""
    folder = tmp_path / "a base: with, odd \\ name"
    for path, content in {
        "pkg/__init__.py": "",
        "pkg/m.py": "a = 1\n",
        "pkg/sub/n.py": "n = 1\n",
        "pkg/sub/deep/o.py": "o\n",
        "tests/test_m.py": "def test(): pass\n",
        "README": "read\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/objects/00/abc": "object\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    os.symlink("pkg", folder / "link")
    os.symlink("/etc", folder / "away")
    for path in folder.rglob("*"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    return folder


def state(root: Path) -> dict[str, tuple]:
    """All that a snapshot promises to keep but times, read plainly."""
    found = {}
    for folder, subfolders, files in os.walk(root):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        for name in [*subfolders, *files]:
            file = Path(folder, name)
            info = file.lstat()
            path = str(file.relative_to(root))
            if file.is_symlink():
                found[path] = ("link", os.readlink(file))
            elif file.is_dir():
                found[path] = ("folder", info.st_mode & 0o777)
            elif file.is_file():
                found[path] = ("file", info.st_mode & 0o777, file.read_bytes())
    return found


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user comes to; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="rtmc-open-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def run_as_nobody(work: Callable[[], None]) -> None:
    """In a forked child without root's powers; where we are not root, as we are."""
    if os.geteuid() != 0:
        work()
        return
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write_tree(tmp_path: Path) -> Path:
    """A tree beside secrets."""
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret\n")
    folder = tmp_path / "tree"
    (folder / "pkg" / "sub").mkdir(parents=True)
    (folder / "pkg" / "m.py").write_text("m\n")
    (folder / "pkg" / "sub" / "n.py").write_text("n\n")
    (folder / "top.txt").write_text("top\n")
    return folder
