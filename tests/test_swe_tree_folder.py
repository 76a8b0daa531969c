"""Reading, writing, removing and walking in a tree: atomically, without waiting, at any depth."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.folders import remove_folder, walk_folder
from rtmc.gymenvs.swe.paths import (
    Entry,
    IsFolder,
    NoAccess,
    NotFolder,
    NotFound,
    NotRegular,
    OutsideTree,
    TooLarge,
    TreeFolder,
)
from tests.swe_trees import open_folder, run_as_nobody, write_tree


@pytest.fixture
def root(tmp_path):
    return write_tree(tmp_path)


@pytest.fixture
def tree(root):
    opened = TreeFolder(root)
    yield opened
    opened.close()


@pytest.fixture
def open_place():
    with open_folder() as folder:
        yield folder


def test_what_would_hang_is_refused(tree, root):
    os.mkfifo(root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "sock"))
    os.symlink("/dev/zero", root / "zero")
    start = time.perf_counter()
    for use in (tree.read, tree.open, lambda path: tree.write(path, b"x")):
        for path in ("pipe", "sock"):
            with pytest.raises(NotRegular):
                use(path)
        with pytest.raises(OutsideTree):
            use("zero")
    listener.close()
    assert time.perf_counter() - start < 2.0
    if os.geteuid() == 0:
        os.mknod(root / "null", 0o20666, os.makedev(1, 5))
        with pytest.raises(NotRegular):
            tree.read("null")


def test_a_sparse_gigabyte_costs_nothing(tree, root):
    with open(root / "big", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(TooLarge, match="1073741824 bytes"):
        tree.read("big")
    with tree.open("big") as file:
        assert file.read(4) == b"\0" * 4
    assert tree.entry("big").size == 1 << 30
    small = TreeFolder(root, size_bytes=10)
    with pytest.raises(TooLarge, match="11 bytes"):
        small.write("f", b"x" * 11)
    assert not (root / "f").exists()
    small.close()


def test_writing(tree, root):
    assert tree.write("pkg/new.py", b"\xff\r\n") == "pkg/new.py"
    assert (root / "pkg" / "new.py").stat().st_mode & 0o7777 == 0o644
    (root / "run").write_text("x")
    (root / "run").chmod(0o4751)
    os.link(root / "run", root / "other name")
    tree.write("run", b"new")
    assert (root / "run").stat().st_mode & 0o7777 == 0o751  # the set-user-id bit goes
    assert (root / "other name").read_text() == "x"
    with pytest.raises(NotFound):
        tree.write("x/y/z", b"")
    assert tree.write("x/y/z", b"", parents=True) == "x/y/z"
    assert (root / "x" / "y").stat().st_mode & 0o777 == 0o755
    tree.write("/testbed/bin/run", b"#!", parents=True, mode=0o755)
    assert (root / "bin" / "run").stat().st_mode & 0o777 == 0o755
    for path in ("pkg", "", "/testbed"):
        with pytest.raises(IsFolder):
            tree.write(path, b"x")
    with pytest.raises(NotFolder):
        tree.write("top.txt/x/y", b"x", parents=True)
    odd = "new\nline \udcff"
    tree.write(odd, b"odd")
    assert os.fsencode(odd) in os.listdir(os.fsencode(root))
    assert tree.read(odd) == b"odd"
    assert not [name for name in os.listdir(root) if name.startswith(".rtmc")]


def test_a_write_that_fails_leaves_the_old(tree, root, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(TooLarge, match="space is used up"):
        tree.write("top.txt", b"new")
    assert (root / "top.txt").read_text() == "top\n"
    assert sorted(os.listdir(root)) == ["pkg", "top.txt"]


def test_python_never_runs_the_old_bytecode(tree, root):
    """An edit in the second and with the size of the source that was compiled."""

    def run() -> str:
        command = [sys.executable, "-c", "import m; print(m.f())"]
        environment = {"PATH": os.environ["PATH"]}  # nothing in it that forbids bytecode
        done = subprocess.run(command, cwd=root / "pkg", env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(text: str) -> None:
        tree.write("pkg/m.py", text.encode())
        os.utime(root / "pkg" / "m.py", (10**9, 10**9))

    write("def f(): return 1 + 2\n")
    assert run() == "3"
    assert list((root / "pkg" / "__pycache__").glob("m.*.pyc"))
    (root / "pkg" / "m.py").write_text("def f(): return 1 - 2\n")
    os.utime(root / "pkg" / "m.py", (10**9, 10**9))
    assert run() == "3"  # so Python does it, when nobody clears the bytecode
    write("def f(): return 1 - 2\n")
    assert run() == "-1"


def test_removing(tree, root):
    tree.remove("top.txt")
    with pytest.raises(NotFound):
        tree.remove("top.txt")
    with pytest.raises(IsFolder):
        tree.remove("pkg")
    with pytest.raises(IsFolder):
        tree.remove("", recursive=True)
    with pytest.raises(OutsideTree):
        tree.remove("..", recursive=True)
    os.symlink(root.parent / "outside", root / "pkg" / "away")
    tree.remove("pkg", recursive=True)
    assert os.listdir(root) == []
    assert (root.parent / "outside" / "f").exists()
    assert tree.make_folder("a/b/c", parents=True) == "a/b/c"
    tree.write("a/f", b"")
    tree.remove_empty("a/b/c")
    assert os.listdir(root / "a") == ["f"]


def test_walking(tree, root):
    (root / ".hidden" / "x").mkdir(parents=True)
    os.symlink("pkg", root / "link")
    os.symlink("/", root / "pkg" / "slash")
    assert [entry.path for entry in tree.walk()] == [
        "link",
        "pkg",
        "pkg/m.py",
        "pkg/slash",
        "pkg/sub",
        "pkg/sub/n.py",
        "top.txt",
    ]
    assert [entry.path for entry in tree.walk("/testbed/link", depth=1)] == ["pkg/m.py", "pkg/slash", "pkg/sub"]
    assert [entry.path for entry in tree.walk(depth=1, hidden=True)] == [".hidden", "link", "pkg", "top.txt"]
    assert Entry("pkg", True, 0, False) in tree.walk()
    assert Entry("top.txt", False, 4, False) in tree.walk()
    assert next(entry for entry in tree.walk() if entry.path == "link").is_link
    assert tree.is_folder("link")
    assert not tree.is_folder("top.txt")
    assert not tree.is_folder("nope")
    with pytest.raises(NotFolder):
        list(tree.walk("top.txt"))
    with pytest.raises(NotFound):
        list(tree.walk("nope"))


def _dig(folder: Path, depth: int, branch: bool) -> None:
    """Folders in folders, deeper than a path can say."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
        if branch:
            os.mkdir("e", dir_fd=handle)
            os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)


@pytest.mark.parametrize("branch", [False, True])
def test_depth_beyond_any_path(branch):
    """2,100 levels: walked as far as paths go, with few descriptors, and removed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many disks take a millisecond a folder
    with tempfile.TemporaryDirectory(prefix="rtmc-deep-", dir=memory) as name:
        _walk_and_remove(Path(name), branch)


def _walk_and_remove(root: Path, branch: bool) -> None:
    tree = TreeFolder(root)
    (root / "pkg").mkdir()
    _dig(root / "pkg", 2100, branch)
    held = len(os.listdir("/proc/self/fd"))
    most = 0
    for count, entry in enumerate(tree.walk()):
        assert len(os.fsencode(entry.path)) < 4096 + 10
        if count % 500 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert most - held < 80
    whole = os.open(root, os.O_RDONLY)
    assert sum(1 for _ in walk_folder(whole)) == 2100 * (3 if branch else 1) + 1
    os.close(whole)
    tree.remove("pkg", recursive=True)
    assert os.listdir(root) == []
    tree.close()


def test_removing_what_permissions_close(open_place):
    """As a user who is not root, where permissions bind."""

    def work() -> None:
        root = open_place / "own"
        (root / "a" / "b" / "c").mkdir(parents=True)
        (root / "a" / "b" / "f").write_text("f")
        for folder in ("a/b/c", "a/b", "a"):
            (root / folder).chmod(0)
        tree = TreeFolder(root)
        with pytest.raises(NoAccess):
            tree.read("a/b/f")
        assert [entry.path for entry in tree.walk()] == ["a"]
        handle = os.open(root, os.O_RDONLY)
        assert [found.path for found in walk_folder(handle, force=True)] == ["a", "a/b", "a/b/c", "a/b/f"]
        assert (root / "a").stat().st_mode & 0o777 == 0  # as it was
        remove_folder(handle, "a")
        assert os.listdir(root) == []

    run_as_nobody(work)


def test_owner(root):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    tree = TreeFolder(root, owner=(12345, 23456))
    tree.write("a/b/f", b"", parents=True)
    tree.make_link("a/l", "f")
    tree.write("top.txt", b"")
    for path in ("a", "a/b", "a/b/f", "a/l", "top.txt"):
        info = (root / path).lstat()
        assert (info.st_uid, info.st_gid) == (12345, 23456), path
    tree.close()
    plain = TreeFolder(root)
    plain.write("top.txt", b"again")  # whoever had it keeps it
    assert (root / "top.txt").stat().st_uid == 12345
    plain.close()
