"""Work trees with what is not ordinary: times and bytecode, sizes, special files, closed folders, other owners."""

import dataclasses
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.errors import NotRegular, TooLarge, TreeError
from rtmc.gymenvs.swe.layers import Stamp
from rtmc.gymenvs.swe.tree import LayerUnavailable, WorkTree, probe_layers
from tests.swe_trees import LAYER_NAMES, LAYERS, open_folder, run_as_nobody, state, trees, write_base


@pytest.fixture(params=LAYERS, ids=LAYER_NAMES)
def make(request, tmp_path):
    with trees(*request.param, tmp_path) as made:
        yield made


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path)


@pytest.fixture
def open_place():
    with open_folder() as folder:
        yield folder


def test_fingerprints_tell_content_and_not_the_way(base, make):
    one, two = make(base), make(base)
    marks = {one.fingerprint()}
    one.write("x", b"1")
    one.write("pkg/m.py", b"changed")
    two.write("pkg/m.py", b"changed first")
    two.write("pkg/m.py", b"changed")
    time.sleep(0.01)
    two.write("x", b"1")
    assert one.fingerprint() == two.fingerprint()
    for change in (
        lambda: one.write("x", b"2"),
        lambda: one.write("x", b"2", mode=0o755),
        lambda: one.remove("x"),
        lambda: one.make_link("x", "2"),
        lambda: (one.remove("x"), one.write("y", b"2")),
        lambda: one.remove("README"),
    ):
        marks.add(one.fingerprint())
        change()
        assert one.fingerprint() not in marks
    (two.root / "pkg" / "__pycache__").mkdir()
    (two.root / ".git" / "new").write_text("x")
    mark = two.fingerprint()
    two.remove("x")
    two.remove(".git/new")
    two.write("x", b"1")
    assert two.fingerprint() == mark


def test_what_is_written_at_once_is_seen(base, make, monkeypatch):
    """Same size, same modification time, the next microsecond: content is compared until the clock has moved on."""

    def coarse(info):
        # As older kernels keep it: the change time is that of the last tick of the clock.
        return Stamp(info.st_ino, info.st_ctime_ns // 10_000_000, info.st_size, info.st_mode)

    monkeypatch.setattr("rtmc.gymenvs.swe.layers.stamp_of", coarse)
    monkeypatch.setattr("rtmc.gymenvs.swe.tree.stamp_of", coarse)
    for _ in range(20):
        tree = make(base)
        file = tree.root / "pkg" / "m.py"
        with open(file, "r+b") as opened:
            opened.write(b"b")
        os.utime(file, (10**9, 10**9))
        assert tree.changes() == (("pkg/m.py", "modified"),)
        first = tree.fingerprint()
        with open(file, "r+b") as opened:
            opened.write(b"c")
        os.utime(file, (10**9, 10**9))
        assert tree.fingerprint() != first
        tree.close()


def test_snapshots_do_not_change(base, make):
    tree = make(base)
    tree.write("x", b"1")
    kept = tree.snapshot()
    held = pickle.dumps(kept)
    tree.write("x", b"2")
    assert pickle.dumps(kept) == held
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept.base = ""
    assert hash(kept) == hash(pickle.loads(held))
    assert kept.size_bytes == 1
    with pytest.raises(TypeError, match="snapshot"):
        pickle.dumps(tree)


def test_a_commit_belongs_to_the_snapshot(base, make):
    tree = make(base)
    (tree.root / ".git" / "HEAD").write_text("detached\n")
    shutil.rmtree(tree.root / ".git" / "objects")
    kept = tree.snapshot()
    assert tree.changes() == ()
    other = make(base, kept)
    assert other.read(".git/HEAD") == b"detached\n"
    assert not other.exists(".git/objects")


def test_another_base(base, make, tmp_path):
    tree = make(base)
    copy = tmp_path / "copy"
    shutil.copytree(base, copy, symlinks=True)
    shutil.rmtree(copy / ".git")  # not what a base is known by
    make(copy).restore(tree.snapshot())
    other = tmp_path / "other"
    shutil.copytree(base, other, symlinks=True)
    (other / "README").write_text("longer than it was\n")
    with pytest.raises(ValueError, match="another base"):
        make(other).restore(tree.snapshot())
    with pytest.raises(TreeError, match="no folder"):
        make(tmp_path / "nowhere")
    (other / ("d/" * 120)).mkdir(parents=True)
    with pytest.raises(TreeError, match="deeper than 100"):
        make(other).snapshot()
    with pytest.raises(ValueError, match="auto, overlay, copy"):
        make(base, layer="zfs")


def test_what_no_snapshot_holds_is_named(base, make):
    tree = make(base)
    root = tree.root
    os.mkfifo(root / "pipe")
    (root / "README").unlink()
    os.mkfifo(root / "README")
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(root)  # a socket's path is short
    try:
        listener.bind("sock")
    finally:
        os.chdir("/")
    level = "d" * 20
    deep = f"{level}/" * 300  # longer than any path
    handle = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir(level, dir_fd=handle)
        below = os.open(level, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    kept = tree.snapshot()
    listener.close()
    ignored = dict(kept.ignored)
    assert ignored.pop("README") == ignored.pop("pipe") == "pipe"
    assert ignored.pop("sock") == "socket"
    ((cut, why),) = ignored.items()
    assert deep.startswith(cut + "/")
    assert (why, cut.count("/")) == ("too deep", 99)
    assert ("README", "deleted") in tree.changes()
    with pytest.raises(NotRegular):
        tree.read("pipe")
    other = make(base, kept)
    assert not other.exists("README")
    assert not other.exists("pipe")
    assert other.is_folder(cut)
    tree.restore(kept)
    assert list((root / cut).iterdir()) == []  # nor does it come back by restoring in place
    start = make(base).snapshot()
    tree.restore(start)
    assert state(root) == state(base)


def test_a_sparse_gigabyte(base, make):
    """It takes neither memory nor time: zeros are none of a snapshot's bytes."""
    tree = make(base)
    with open(tree.root / "big", "wb") as file:
        file.seek(700_000_001)
        file.write(b"end")
        file.truncate(1 << 30)
    start = time.perf_counter()
    kept = tree.snapshot()
    mark = tree.fingerprint()
    assert len(pickle.dumps(kept)) < 300_000
    other = make(base, kept)
    assert (other.root / "big").stat().st_size == 1 << 30
    assert (other.root / "big").stat().st_blocks < 10_000
    with other.open("big") as file:
        file.seek(700_000_000)
        assert file.read(5) == b"\0end\0"
    assert other.fingerprint() == mark
    assert "Binary files /dev/null and b/big differ" in tree.diff()
    assert time.perf_counter() - start < 5.0
    # The same content without a hole has the same hash.
    (tree.root / "zeros").write_bytes(bytes(100_000) + b"x" + bytes(199_999))
    with open(other.root / "zeros", "wb") as file:
        file.truncate(300_000)
        file.seek(100_000)
        file.write(b"x")
    assert tree.fingerprint() == other.fingerprint()


def test_too_much_for_a_snapshot(base, make):
    tree = make(base)
    tree.write("a", b"a" * 70_000)
    tree.write("b", b"b" * 70_000)
    with pytest.raises(TooLarge, match="'b'"):
        tree.snapshot(limit=100_000)
    assert tree.snapshot(limit=140_000).size_bytes == 140_000


def test_a_small_tree_holds_no_more(base):
    if probe_layers()["overlay"]:
        pytest.skip(f"no overlay here: {probe_layers()['overlay']}")
    with WorkTree(base, layer="overlay", memory=True, size_bytes=1 << 20) as tree:
        with pytest.raises(OSError, match="No space"):
            (tree.root / "big").write_bytes(b"x" * (2 << 20))
        (tree.root / "big").unlink()
        tree.write("f0", b"x" * (400 << 10))
        tree.write("f1", b"x" * (400 << 10))
        with pytest.raises(TooLarge, match="used up"):
            tree.write("f2", b"x" * (400 << 10))
        kept = tree.snapshot()
        assert not tree.exists("f2")
    with WorkTree(base, layer="overlay", memory=True, size_bytes=500 << 10) as tree, pytest.raises(TooLarge):
        tree.restore(kept)


def test_times_and_bytecode(base, make):
    """A source of the same second and size: each fork runs its own."""
    environment = {"PATH": os.environ["PATH"]}

    def run(tree: WorkTree) -> str:
        command = [sys.executable, "-c", "import pkg.m; print(pkg.m.a)"]
        done = subprocess.run(command, cwd=tree.root, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    tree = make(base)
    snapshots = {}
    for value in "234":
        (tree.root / "pkg" / "m.py").write_text(f"a = {value}\n")
        os.utime(tree.root / "pkg" / "m.py", (1_500_000_000, 1_500_000_000))
        shutil.rmtree(tree.root / "pkg" / "__pycache__", ignore_errors=True)
        assert run(tree) == value
        snapshots[value] = tree.snapshot()
    assert list((tree.root / "pkg" / "__pycache__").glob("m.*.pyc"))
    for value in "324423":
        tree.restore(snapshots[value])
        assert (tree.root / "pkg" / "m.py").stat().st_mtime == 1_500_000_000
        assert run(tree) == value
    # Bytecode of another content under an unchanged source, as when a shell wrote it and took it back.
    tree.restore(snapshots["2"])
    (tree.root / "pkg" / "m.py").write_text("a = 9\n")
    os.utime(tree.root / "pkg" / "m.py", (1_500_000_000, 1_500_000_000))
    assert run(tree) == "9"
    (tree.root / "pkg" / "m.py").write_text("a = 2\n")
    os.utime(tree.root / "pkg" / "m.py", (1_500_000_000, 1_500_000_000))
    assert run(tree) == "9"  # stale, by Python's own rule
    tree.restore(snapshots["2"])
    assert run(tree) == "2"


def test_what_permissions_close(base, open_place):
    """Without root's powers: a folder that nobody may enter is read, restored, and removed in the end."""
    base = shutil.copytree(base, open_place / "base", symlinks=True)

    def work() -> None:
        with WorkTree(base, layer="copy", place=open_place) as tree:
            start = tree.snapshot()
            assert start.nodes == ()
            root = tree.root
            (root / "pkg" / "sub" / "n.py").write_text("secret\n")
            (root / "pkg" / "sub" / "n.py").chmod(0)
            (root / "pkg" / "sub").chmod(0)
            (root / "pkg").chmod(0o555)
            (root / "tests").chmod(0)
            kept = tree.snapshot()
            modes = {name: (root / name).stat().st_mode & 0o777 for name in ("pkg", "tests")}
            assert modes == {"pkg": 0o555, "tests": 0}
            assert dict(tree.changes()) == {"pkg/sub/n.py": "modified"}
            tree.restore(start)
            assert state(root) == state(base)
            tree.restore(kept)
            assert tree.snapshot() == kept
            assert {name: (root / name).stat().st_mode & 0o777 for name in ("pkg", "tests")} == modes
        assert not (open_place / f"rtmc-trees-{os.getuid()}").exists()

    run_as_nobody(work)


def test_a_root_and_bytecode_that_permissions_close(base, open_place):
    """Without root's powers: neither the tree's own permissions nor those of its bytecode keep us out."""
    base = shutil.copytree(base, open_place / "base", symlinks=True)

    def work() -> None:
        with WorkTree(base, layer="copy", place=open_place) as tree:
            start, root = tree.snapshot(), tree.root
            (root / "README").write_text("other\n")
            (root / "pkg" / "__init__.py").write_text("other = 1\n")
            (root / "pkg" / "__pycache__").mkdir()
            cached = root / "pkg" / "__pycache__" / "__init__.cpython-311.pyc"
            cached.touch()
            for closed, inner in ((0, 0), (0o300, 0o555), (0o555, 0)):
                cached.parent.chmod(inner)
                root.chmod(closed)
                kept, print_ = tree.snapshot(), tree.fingerprint()
                assert dict(tree.changes()) == {"README": "modified", "pkg/__init__.py": "modified"}
                assert "+other = 1" in tree.diff()
                assert root.stat().st_mode & 0o777 == closed
                tree.write("top", b"") if closed & 0o300 == 0o300 else None
                tree.restore(start)
                assert state(root) == state(base)
                assert root.stat().st_mode & 0o777 == base.stat().st_mode & 0o777
                assert not cached.exists()
                tree.restore(kept)
                assert root.stat().st_mode & 0o777 == closed == kept.root_mode
                assert (tree.snapshot(), tree.fingerprint()) == (kept, print_)
                root.chmod(0o755)
                cached.parent.mkdir()
                cached.touch()
            cached.parent.chmod(0o555)
            tree.write("pkg/__init__.py", b"c = 1\n")  # the editor's way too
            assert not cached.exists()
            assert cached.parent.stat().st_mode & 0o777 == 0o555

    run_as_nobody(work)


def test_the_root_s_permissions(base, make):
    tree = make(base)
    usual = base.stat().st_mode & 0o777
    start = tree.snapshot()
    assert start.root_mode is None
    for mode in (0, 0o555, 0o1777, 0o700):
        tree.root.chmod(mode)
        kept = tree.snapshot()
        assert (kept.root_mode, kept.nodes, kept == start) == (mode & 0o777, (), False)
        tree.restore(start)
        assert tree.root.stat().st_mode & 0o7777 == usual
        assert tree.snapshot() == start
        assert make(base, kept).root.stat().st_mode & 0o7777 == mode & 0o777
    assert base.stat().st_mode & 0o777 == usual


def test_names_of_one_file_are_parted(base, make):
    """What one episode linked, the next one does not write through; also links from what no snapshot holds."""
    (base / "pkg/sub/__init__.py").touch()  # as pkg/__init__.py is
    tree = make(base)
    start = tree.snapshot()

    def link(source: str, name: str) -> None:
        (tree.root / name).unlink(missing_ok=True)
        os.link(tree.root / source, tree.root / name)

    (tree.root / "pkg" / "__pycache__").mkdir()
    link("pkg/m.py", "pkg/__pycache__/held.pyc")
    link("pkg/sub/n.py", "new.py")
    (tree.root / "tests/test_m.py").write_bytes((base / "README").read_bytes())
    link("README", "tests/test_m.py")
    kept = tree.snapshot()
    for goal in (kept, start, kept):
        tree.restore(goal)
        whole = state(tree.root)
        names = [path for path, entry in whole.items() if entry[0] == "file"]
        for name in names:
            assert (tree.root / name).stat().st_nlink == 1, name
            (tree.root / name).write_text(f"of {name}\n")
        assert all((tree.root / name).read_text() == f"of {name}\n" for name in names)
        tree.restore(goal)
        assert state(tree.root) == whole
        assert tree.snapshot() == goal
        link("pkg/__init__.py", "pkg/sub/__init__.py")
        assert dict(tree.changes()) == ({} if goal == start else {"new.py": "added", "tests/test_m.py": "modified"})
    tree.restore(start)
    assert state(tree.root) == state(base)


def test_overlay_needs_root(base, open_place):
    base = shutil.copytree(base, open_place / "base", symlinks=True)

    def work() -> None:
        with pytest.raises(LayerUnavailable, match="CAP_SYS_ADMIN"):
            WorkTree(base, layer="overlay", place=open_place)
        with WorkTree(base, place=open_place) as tree:
            assert tree.layer == "copy"
        assert probe_layers(open_place)["overlay"]

    run_as_nobody(work)


def test_owner(open_place, base, make):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    tree = make(base, owner=(12345, 23456), place=open_place)
    tree.write("pkg/m.py", b"changed")
    tree.write("new/f", b"", parents=True)
    (tree.root / "README").unlink()
    kept = tree.snapshot()
    start = make(base).snapshot()
    tree.restore(start)
    tree.restore(kept)
    for folder, subfolders, files in os.walk(tree.root):
        for name in [".", *subfolders, *files]:
            info = Path(folder, name).lstat()
            assert (info.st_uid, info.st_gid) == (12345, 23456), name
    other = make(base, kept, owner=(23456, 12345))
    assert other.snapshot() == kept
    assert (other.root / "new" / "f").stat().st_uid == 23456

    def work() -> None:
        os.stat(tree.root / "pkg" / "m.py")  # the way to the tree is open

    run_as_nobody(work)
