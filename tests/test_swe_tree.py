"""Work trees and their forks, the same on both layers: what a plain reading of the folder says is the truth."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.errors import OutsideTree
from tests.swe_trees import LAYER_NAMES, LAYERS, state, trees, write_base


@pytest.fixture(params=LAYERS, ids=LAYER_NAMES)
def make(request, tmp_path):
    with trees(*request.param, tmp_path) as made:
        yield made


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path)


def test_a_tree_is_the_base_and_leaves_it_alone(base, make):
    before = state(base)
    tree = make(base)
    assert state(tree.root) == before
    assert {p: (tree.root / p).lstat().st_mtime for p in before} == {p: (base / p).lstat().st_mtime for p in before}
    assert tree.root.stat().st_mode == base.stat().st_mode
    assert (tree.changes(), tree.diff(), tree.snapshot().nodes) == ((), "", ())
    shutil.rmtree(tree.root / "pkg")
    (tree.root / "README").write_text("changed")
    (tree.root / "run.sh").chmod(0)
    (tree.root / "new").write_text("new")
    assert state(base) == before
    tree.close()
    tree.close()
    with pytest.raises(ValueError, match="closed"):
        tree.snapshot()
    assert state(base) == before


def test_changes(base, make):
    tree = make(base)
    root = tree.root
    (root / "pkg" / "m.py").write_text("a = 2\n")  # the same size, at once after the copy
    (root / "added").write_text("")
    (root / "tests" / "test_m.py").unlink()
    (root / "run.sh").chmod(0o644)
    (root / "README").chmod(0o600)  # git doesn't know
    os.utime(root / "pkg" / "sub" / "n.py")
    (root / "pkg" / "sub" / "deep" / "o.py").write_text("o\n")  # written anew, the same
    shutil.rmtree(root / "empty")
    (root / "made").mkdir()
    (root / "link").unlink()
    os.symlink("tests", root / "link")
    for folder in (".pytest_cache", "pkg/__pycache__", ".mypy_cache"):
        (root / folder).mkdir()
        (root / folder / "x").write_text("x")
    (root / ".git" / "HEAD").write_text("else")
    (root / "sourceless.pyc").write_text("a module all the same")
    found = dict(tree.changes())
    assert found == {
        "pkg/m.py": "modified",
        "added": "added",
        "tests/test_m.py": "deleted",
        "run.sh": "mode",
        "link": "modified",
        "sourceless.pyc": "added",
    }
    assert list(found) == sorted(found)
    assert tree.changes() == tree.changes()


def test_a_link_in_place_of_a_folder_and_back(base, make):
    tree = make(base)
    start = tree.snapshot()
    shutil.rmtree(tree.root / "pkg")
    os.symlink("/etc", tree.root / "pkg")
    (tree.root / "away").unlink()
    (tree.root / "away").mkdir()
    (tree.root / "away" / "passwd").write_text("ours\n")  # the base's link leads to a file of this name
    (tree.root / "README").unlink()
    (tree.root / "README").mkdir()
    assert {(path, kind) for path, kind in tree.changes()} == {
        ("pkg", "added"),
        ("pkg/__init__.py", "deleted"),
        ("pkg/m.py", "deleted"),
        ("pkg/sub/n.py", "deleted"),
        ("pkg/sub/deep/o.py", "deleted"),
        ("away", "deleted"),
        ("away/passwd", "added"),
        ("README", "deleted"),
    }
    kept, was = tree.snapshot(), state(tree.root)
    with pytest.raises(OutsideTree):
        tree.read("pkg/passwd")
    tree.restore(start)
    assert state(tree.root) == state(base)
    tree.restore(kept)
    assert state(tree.root) == was
    assert tree.snapshot() == kept


def test_a_removed_folder_made_again(base, make):
    """The overlay marks such a folder opaque, and not the folders made in it."""
    tree = make(base)
    shutil.rmtree(tree.root / "pkg")
    (tree.root / "pkg" / "sub").mkdir(parents=True)
    (tree.root / "pkg" / "m.py").write_text("a = 1\n")
    assert dict(tree.changes()) == {
        "pkg/__init__.py": "deleted",
        "pkg/sub/n.py": "deleted",
        "pkg/sub/deep/o.py": "deleted",
    }
    kept, was = tree.snapshot(), state(tree.root)
    other = make(base, pickle.loads(pickle.dumps(kept)))
    assert state(other.root) == was


names = st.sampled_from(["pkg", "sub", "m.py", "n.py", "deep", "empty", "link", "new", "README", "é\n", "\udcfe"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
steps = st.one_of(
    st.tuples(st.just("write"), paths, st.sampled_from(["a = 1\n", "a = 2\n", "", "x" * 70_000])),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o644, 0o755, 0o700, 0o1777, 0o4755])),
    st.tuples(st.just("link"), paths, st.sampled_from(["/etc", "pkg", "new"])),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("mkdir"), paths, st.none()),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("hard link"), paths, paths),
    st.tuples(st.just("fifo"), paths, st.none()),
    st.tuples(st.just("snapshot"), st.just(""), st.none()),
    st.tuples(st.just("restore"), st.just(""), st.integers(0, 5)),
)


def act(root: Path, what: str, path: str, more) -> None:
    """What a shell in the sandbox could do; what the system refuses is left undone."""
    file = root / path
    try:
        if os.path.realpath(file.parent) != str(root) and not os.path.realpath(file.parent).startswith(f"{root}/"):
            return
        if what == "write" and not file.is_symlink() and not file.is_fifo():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(more)
        elif what == "chmod" and not file.is_symlink():
            file.chmod(more)
        elif what == "link":
            os.symlink(more, file)
        elif what == "remove":
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file)
            else:
                file.unlink()
        elif what == "mkdir":
            file.mkdir(parents=True)
        elif what == "rename":
            shutil.move(file, root / more)  # as mv
        elif what == "hard link":
            os.link(file, root / more, follow_symlinks=False)
        elif what == "fifo":
            os.mkfifo(file)
    except (OSError, shutil.Error):
        pass


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(todo=st.lists(steps, max_size=25))
def test_any_walk_of_snapshots_and_restores(base, make, todo):
    """Whatever was done between: after a restore the tree is as it was, in place, in another tree, on other layers."""
    tree = make(base)
    kept = [(tree.snapshot(), state(tree.root), tree.fingerprint())]
    for what, path, more in todo:
        if what == "snapshot":
            kept.append((tree.snapshot(), state(tree.root), tree.fingerprint()))
        elif what == "restore":
            snapshot, was, mark = kept[more % len(kept)]
            tree.restore(snapshot)
            assert state(tree.root) == was
            assert tree.snapshot() == snapshot
            assert tree.fingerprint() == mark
            assert not any(file.is_fifo() for file in tree.root.rglob("*"))
        else:
            act(tree.root, what, path, more)
    last, was, mark = tree.snapshot(), state(tree.root), tree.fingerprint()
    for options in ({}, {"layer": "copy"}):
        other = make(base, pickle.loads(pickle.dumps(last)), **options)
        # Bits beyond the permissions are no part of it.
        assert state(other.root) == was
        assert (other.snapshot(), other.fingerprint(), other.diff()) == (last, mark, tree.diff())
        other.close()
    tree.close()
