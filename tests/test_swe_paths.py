"""Paths that never leave the tree: against the kernel's own resolution, against races, against what hangs."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.paths import (
    BadPath,
    NotFolder,
    NotFound,
    OutsideTree,
    TreeError,
    TreeFolder,
)
from tests.swe_trees import write_tree


@pytest.fixture
def root(tmp_path):
    return write_tree(tmp_path)


@pytest.fixture
def tree(root):
    opened = TreeFolder(root)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("pkg/m.py", "pkg/m.py"),
        ("/testbed/pkg/m.py", "pkg/m.py"),
        ("//testbed///pkg/./m.py", "pkg/m.py"),
        ("pkg/sub/../m.py", "pkg/m.py"),
        ("/testbed/../testbed/pkg/m.py", "pkg/m.py"),
        ("../testbed/pkg/m.py", "pkg/m.py"),
        ("/../../testbed/top.txt", "top.txt"),
        ("", ""),
        (".", ""),
        ("/testbed", ""),
        ("/testbed/", ""),
        ("pkg/..", ""),
        ("pkg/sub/", "pkg/sub"),
        ("pkg/sub/..", "pkg"),
        ("new", "new"),
        ("pkg/new.py", "pkg/new.py"),
    ],
)
def test_paths_inside(tree, path, resolved):
    assert tree.locate(path) == resolved


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/etc/passwd", OutsideTree),
        ("/testbed/../etc/passwd", OutsideTree),
        ("../secret", OutsideTree),
        ("..", OutsideTree),
        ("/", OutsideTree),
        ("/testbedx/f", OutsideTree),
        ("/testbe", OutsideTree),
        ("pkg/../../secret", OutsideTree),
        ("../../../../etc/passwd", OutsideTree),
        ("~/f", NotFound),
        ("nope/f", NotFound),
        ("top.txt/f", NotFolder),
        ("top.txt/", NotFolder),
        ("top.txt/..", NotFolder),
        ("a\0b", BadPath),
        ("x" * 300, BadPath),
        ("x/" * 3000, BadPath),
        ("\ud800", BadPath),
    ],
)
def test_paths_that_are_none(tree, path, error):
    with pytest.raises(error) as refused:
        tree.read(path)
    assert type(refused.value) is error
    assert isinstance(refused.value, TreeError)
    assert isinstance(refused.value, ValueError)


def test_paths_of_another_type(tree):
    with pytest.raises(TypeError, match="bytes"):
        tree.read(b"top.txt")
    with pytest.raises(ValueError, match="absolute"):
        TreeFolder(tree.root, inside="testbed")
    with pytest.raises(ValueError, match="absolute"):
        TreeFolder(tree.root, inside="/a/../b")


def test_a_tree_at_the_root(root):
    tree = TreeFolder(root, inside="/")
    assert tree.locate("/pkg/m.py") == tree.locate("/../../pkg/m.py") == tree.locate("../pkg/m.py") == "pkg/m.py"
    tree.close()
    with pytest.raises(ValueError, match="closed"):
        tree.read("top.txt")


@pytest.mark.parametrize(
    ("link", "target", "path", "resolved"),
    [
        ("l", "pkg", "l/m.py", "pkg/m.py"),
        ("l", "pkg/m.py", "l", "pkg/m.py"),
        ("l", "/testbed/pkg", "l/sub/../m.py", "pkg/m.py"),
        ("pkg/l", "../top.txt", "pkg/l", "top.txt"),
        ("pkg/l", "../../testbed/top.txt", "pkg/l", "top.txt"),
        ("l", ".", "l/l/l/top.txt", "top.txt"),
        ("l", "pkg/sub/..", "l/m.py", "pkg/m.py"),
        ("l", "pkg/sub", "l/../m.py", "pkg/m.py"),
        ("l", "nowhere", "l", "nowhere"),
        ("l", "/etc/passwd", "l", None),
        ("l", "../secret", "l", None),
        ("l", "../outside", "l/f", None),
        ("pkg/l", "/testbed/../etc", "pkg/l/passwd", None),
    ],
)
def test_links(tree, root, link, target, path, resolved):
    os.symlink(target, root / link)
    if resolved is None:
        for use in (tree.read, tree.entry, lambda p: tree.write(p, b"x"), tree.exists, lambda p: list(tree.walk(p))):
            with pytest.raises(OutsideTree):
                use(path)
        assert (root.parent / "secret").read_text() == "secret\n"
        if path == link:
            assert tree.is_link(path)
            tree.remove(path)  # the link itself
            assert not os.path.lexists(root / link)
    else:
        assert tree.locate(path) == resolved
        tree.write(path, b"written\n")
        assert (root / resolved).read_bytes() == b"written\n"
        assert (root / link).is_symlink()


def test_loops_of_links(tree, root):
    os.symlink("b", root / "a")
    os.symlink("a", root / "b")
    os.symlink("self", root / "self")
    deep = root / "deep"
    for _ in range(200):
        deep.mkdir()
        deep = deep / "d"
    # Each link goes down 200 folders and up again, 39 times over in the next.
    os.symlink("deep/" + "d/" * 198 + "../" * 199, root / "c0")
    for k in range(1, 39):
        os.symlink(f"c{k - 1}/" * 100 + ".", root / f"c{k}")
    start = time.perf_counter()
    for path in ("a", "self", "a/x", "self/x", "c38/top.txt"):
        with pytest.raises(BadPath):
            tree.read(path)
    assert time.perf_counter() - start < 5.0


names = st.sampled_from(["a", "b", "c", "..", ".", "", "/testbed"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    links=st.dictionaries(
        st.sampled_from(["a", "b", "c", "a/b", "a/c", "b/a", "b/c"]),
        st.lists(names, min_size=1, max_size=4).map("/".join),
        max_size=5,
    ),
    path=st.lists(names, min_size=1, max_size=6).map("/".join),
)
def test_resolution_is_the_kernel_s(tmp_path, links, path):
    """The kernel, asked in a root where the tree lies at /testbed, comes to the same file or fails as we do."""
    top = tmp_path / os.urandom(4).hex()
    root = top / "testbed"
    root.mkdir(parents=True)
    for link, target in sorted(links.items()):
        with contextlib.suppress(OSError):
            (root / link).parent.mkdir(exist_ok=True)
            # Written for the tree; the kernel, without a changed root, needs absolute ones spelled out.
            os.symlink(target, root / link)
    for name in ("a", "b"):
        with contextlib.suppress(OSError):
            (root / name).mkdir()
            (root / name / "c").write_text("c")

    truth: str | None = None
    with contextlib.suppress(OSError, _Out):
        truth = os.path.relpath(_in_root(top, path), root).removeprefix("./")
        truth = "" if truth == "." else truth
        if truth.startswith(".."):
            truth = None
    tree = TreeFolder(root)
    try:
        ours: str | None = tree.entry(path).path
    except TreeError:
        ours = None
    finally:
        tree.close()
    assert ours == truth


class _Out(Exception):
    pass


def _in_root(top: Path, path: str) -> str:
    """Resolve by openat2 with RESOLVE_IN_ROOT from `top`, where the tree is /testbed."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    how = (ctypes.c_uint64 * 3)(os.O_PATH, 0, 0x10 | 0x02)  # RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
    handle = os.open(top, os.O_PATH)
    try:
        inside = path if path.startswith("/") else f"/testbed/{path}"
        opened = libc.syscall(437, handle, os.fsencode(inside), ctypes.byref(how), ctypes.sizeof(how))
        if opened < 0:
            number = ctypes.get_errno()
            if number == 38:
                pytest.skip("this kernel has no openat2")
            raise OSError(number, os.strerror(number))
        try:
            return os.readlink(f"/proc/self/fd/{opened}")
        finally:
            os.close(opened)
    finally:
        os.close(handle)


def test_a_folder_swapped_for_a_link_leaks_nothing(tree, root):
    """While another thread swaps a folder with a link out of the tree, no read ever gives the file outside."""
    (root / "real").mkdir()
    (root / "real" / "f").write_text("ours\n")
    os.symlink(root.parent / "outside", root / "evil")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.rename(root / "real", root / "real2")
                os.rename(root / "evil", root / "real")
                os.rename(root / "real", root / "evil")
                os.rename(root / "real2", root / "real")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            try:
                seen.add(tree.read("real/f"))
                tree.write("real/w", b"w")
            except TreeError as error:
                seen.add(type(error).__name__.encode())
    finally:
        stop.set()
        thread.join()
    assert b"ours\n" in seen
    assert seen <= {b"ours\n", b"OutsideTree", b"NotFound", b"NotFolder", b"BadPath", b"TreeError"}
    assert sorted(path.name for path in (root.parent / "outside").iterdir()) == ["f"]


def test_a_file_swapped_for_a_link_or_a_pipe(tree, root):
    """While another thread swaps the file itself, no read gives the file outside, and none waits for the pipe."""
    (root / "file").write_text("ours\n")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.symlink(root.parent / "secret", root / "next")
            os.rename(root / "next", root / "file")
            os.mkfifo(root / "next")
            os.rename(root / "next", root / "file")
            (root / "next").write_text("ours\n")
            os.rename(root / "next", root / "file")

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    seen = set()
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            try:
                seen.add(tree.read("file"))
            except TreeError as error:
                seen.add(type(error).__name__.encode())
    finally:
        stop.set()
        thread.join()
    assert {b"ours\n", b"OutsideTree", b"NotRegular"} <= seen
    assert seen <= {b"ours\n", b"OutsideTree", b"NotRegular", b"BadPath"}
