"""Patches against git itself: what `diff` writes, `git apply` takes; what a hostile tree holds is never run."""

import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.difftext import MOST_EDITS, unquoted
from rtmc.gymenvs.swe.patch import PatchError, apply_patch, make_patch
from rtmc.gymenvs.swe.paths import TreeFolder
from rtmc.gymenvs.swe.tree import WorkTree

GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None, reason="needs git")
CLEAN = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}

# What a tree may hold: path -> ("file", content, executable) or ("link", target). Names that need quotes, names that
# are a file here and a folder there.
NAMES = ["a", "b c", "ü", 'q"x', "n\nl", "t\tb", "back\\slash", "\udcff", "d", " lead", "--- a", ".gitattributes"]
LINES = [b"", b"x", b"y", b"\r", b"- x", b"-- x", b"@@ -1 +1 @@", b"\\ No newline at end of file", b"\xc3\xbc"]
text = st.lists(st.sampled_from(LINES), max_size=14).flatmap(
    lambda lines: st.sampled_from([b"\n".join(lines), b"".join(line + b"\n" for line in lines)])
)
content = st.one_of(text, st.binary(max_size=200), st.sampled_from([b"", b"\0", b"a\0b\n" * 40, b"\xff\n", b"x"]))
thing = st.one_of(
    st.tuples(st.just("file"), content, st.booleans()),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"../x", b"/etc/passwd", b"\xff", b"d/a"])),
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


def _consistent(state: dict) -> dict:
    """Without what lies below a file or link."""
    return {
        path: what
        for path, what in state.items()
        if not any("/".join(path.split("/")[:depth]) in state for depth in range(1, path.count("/") + 1))
    }


states = st.dictionaries(paths, thing, max_size=6).map(_consistent)


def put(root: Path, state: dict) -> None:
    for path, what in state.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if what[0] == "link":
            os.symlink(what[1], os.fsencode(file))
        else:
            file.write_bytes(what[1])
            file.chmod(0o755 if what[2] else 0o644)


def held(root: Path) -> dict:
    """The state of a folder, read plainly."""
    found = {}
    for folder, subfolders, files in os.walk(root):
        for name in [*subfolders, *files]:
            file = Path(folder, name)
            path = str(file.relative_to(root))
            if file.is_symlink():
                found[path] = ("link", os.fsencode(os.readlink(file)))
            elif file.is_file():
                found[path] = ("file", file.read_bytes(), bool(file.stat().st_mode & 0o100))
    return found


def clear(root: Path) -> None:
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def folder_for_link(old: dict, new: dict) -> bool:
    """Whether the new state has a folder where the old one has a link."""
    folders = {str(folder) for path in new for folder in Path(path).parents}
    return any(old[path][0] == "link" for path in folders & old.keys())


def git_apply(folder: Path, patch: str, *flags: str) -> subprocess.CompletedProcess:
    environment = CLEAN | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--whitespace=nowarn", *flags, "-"]
    return subprocess.run(command, cwd=folder, input=patch.encode(), env=environment, capture_output=True)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(old=states, new=states, shared=states)
@example(  # a folder for a link that leads to a link
    old={"a": ("link", b"\xff"), "b c": ("link", b"a")},
    new={"a": ("file", b"", False), "b c/b c/a": ("file", b"", False)},
    shared={"a": ("file", b"", False), "\udcff/b c": ("link", b"a")},
)
@example(  # a folder for a link that leads to itself; one that stays leads into it
    old={"a": ("link", b"a"), "b c": ("link", b"a")},
    new={"a/d": ("file", b"x\n", True)},
    shared={"d": ("link", b"d/a")},
)
def test_the_diff_makes_the_tree_of_the_base(tmp_path, old, new, shared):
    """git apply(base, diff) == tree, apply_patch(base, diff) == tree, and back again."""
    old, new = _consistent(shared | old), _consistent(shared | new)
    folder = Path(tmp_path, os.urandom(6).hex())
    base, gits, ours = folder / "base", folder / "gits", folder / "ours"
    for copy in (base, gits, ours):
        copy.mkdir(parents=True)
        put(copy, old)
    with WorkTree(base, layer="copy", place=folder) as tree:
        clear(tree.root)
        put(tree.root, new)
        patch = tree.diff()
        assert [change.path for change in tree.changes()] == sorted(
            path for path in {*old, *new} if old.get(path) != new.get(path)
        )
    assert bool(patch) == (old != new)
    if patch:
        done = git_apply(gits, patch)
        refused = re.search(rb"beyond a symbolic link|Too many levels of symbolic links", done.stderr)
        if not (refused and folder_for_link(old, new)):  # git's own fault: it follows the link that is about to go
            assert done.returncode == 0, done.stderr.decode()
            assert held(gits) == new
    changed = apply_patch(ours, patch)
    assert held(ours) == new
    assert list(changed) == sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    apply_patch(ours, patch, reverse=True)
    assert held(ours) == old
    shutil.rmtree(folder)


@settings(max_examples=150, deadline=None)
@given(
    old=st.lists(st.sampled_from("abc"), max_size=40),
    new=st.lists(st.sampled_from("abc"), max_size=40),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_hunks_are_the_shortest(old, new, ends):
    """As many lines leave and come as the longest common subsequence leaves over."""
    before = "\n".join(old) + "\n" * (ends[0] and bool(old))
    after = "\n".join(new) + "\n" * (ends[1] and bool(new))
    patch = make_patch({"f": before}, {"f": after})
    a, b = before.splitlines(True), after.splitlines(True)
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            longest[i + 1][j + 1] = longest[i][j] + 1 if x == y else max(longest[i][j + 1], longest[i + 1][j])
    body = patch.split("\n@@", 1)[-1].splitlines() if "\n@@" in patch else []
    assert sum(line.startswith("-") for line in body) == len(a) - longest[-1][-1]
    assert sum(line.startswith("+") for line in body) == len(b) - longest[-1][-1]


def test_a_diff_of_much_is_still_right(tmp_path):
    """Beyond MOST_EDITS the middle is replaced whole."""
    lines = [f"line {k % 7}\n" for k in range(4 * MOST_EDITS)]
    new = ["head\n", *(line if k % 2 else f"other {k}\n" for k, line in enumerate(lines)), "tail\n"]
    put(tmp_path, {"f": ("file", "".join(lines).encode(), False)})
    apply_patch(tmp_path, make_patch({"f": "".join(lines)}, {"f": "".join(new)}))
    assert (tmp_path / "f").read_text() == "".join(new)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_quoted_as_git_reads_them(tmp_path, name):
    """`git apply --numstat -z` gives the name back."""
    patch = make_patch({}, {f"dir/{name}": "x\n"})
    listed = git_apply(tmp_path, patch, "--numstat", "-z")
    assert os.fsdecode(listed.stdout) == f"1\t0\tdir/{name}\0"
    header = next(line for line in patch.split("\n") if line.startswith("+++ "))
    assert unquoted(header[4:].removesuffix("\t")) == f"b/dir/{name}"


def test_offsets_are_found_and_context_is_wanted(tmp_path):
    old = "".join(f"{k}\n" for k in range(30))
    patch = make_patch({"f": old}, {"f": old.replace("20\n", "twenty\n")})
    (tmp_path / "f").write_text("more\n" * 5 + old)
    assert apply_patch(tmp_path, patch) == ("f",)
    assert (tmp_path / "f").read_text() == "more\n" * 5 + old.replace("20\n", "twenty\n")
    with pytest.raises(PatchError, match="hunk at line 18") as failed:
        apply_patch(tmp_path, patch)
    assert (failed.value.path, failed.value.line) == ("f", 18)
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.path, again.line) == (str(failed.value), "f", 18)


def test_all_or_nothing(tmp_path):
    """One file of three doesn't fit: none is changed."""
    files = {name: f"{name}\n" for name in "abc"}
    patch = make_patch(files, {name: f"{name} changed\n" for name in "abc"})
    for name in "abc":
        (tmp_path / name).write_text(files[name] if name != "b" else "other\n")
    with pytest.raises(PatchError, match="'b'"):
        apply_patch(tmp_path, patch)
    assert {name: (tmp_path / name).read_text() for name in "abc"} == files | {"b": "other\n"}


def test_a_write_that_fails_is_taken_back(tmp_path):
    """A file is to take the place of a folder that isn't empty: git in its scratch cannot know."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "kept").write_text("kept\n")
    (tmp_path / "a").write_text("a\n")
    before = held(tmp_path)
    with pytest.raises(PatchError, match="is a folder"):
        apply_patch(tmp_path, make_patch({"a": "a\n"}, {"a": "b\n", "d": "file\n"}))
    assert held(tmp_path) == before


def test_permissions_other_than_git_s_are_kept(tmp_path):
    (tmp_path / "f").write_text("x\n")
    (tmp_path / "f").chmod(0o640)
    apply_patch(tmp_path, make_patch({"f": "x\n"}, {"f": "y\n"}))
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    apply_patch(tmp_path, "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o755


def test_plain_diffs_renames_and_copies(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "f").write_text("one\ntwo\n")
    assert apply_patch(tmp_path, b"--- x/f\n+++ x/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n".replace(b"x/f", b"a/x/f")) == (
        "x/f",
    )
    copy = "diff --git a/x/f b/y/g h\nsimilarity index 100%\ncopy from x/f\ncopy to y/g h\n"
    assert apply_patch(tmp_path, copy) == ("y/g h",)
    rename = "diff --git a/x/f b/z\nsimilarity index 100%\nrename from x/f\nrename to z\n"
    assert apply_patch(tmp_path, rename) == ("x/f", "z")
    assert held(tmp_path) == dict.fromkeys(("y/g h", "z"), ("file", b"one\n2\n", False))
    assert not (tmp_path / "x").exists()  # emptied, as git has it
    assert apply_patch(tmp_path, "\n") == ()


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        (make_patch({}, {"../out": "x\n"}), "invalid path"),
        (make_patch({}, {"/etc/rtmc-test": "x\n"}), "invalid path"),
        (make_patch({}, {".git/config": "x\n"}), "invalid path"),
        (make_patch({}, {"sub/.git/hooks/pre-commit": "x\n"}), "invalid path"),
        (make_patch({}, {"away/new": "x\n"}), "symbolic link"),
        (make_patch({"away/there": "secret\n"}, {"away/there": "x\n"}), "symbolic link"),
        (make_patch({"out": "secret\n"}, {"out": "x\n"}), "wrong type"),
        (make_patch({"pipe": "x\n"}, {"pipe": "y\n"}), "pipe, socket or device"),
        (make_patch({"nowhere": "x\n"}, {"nowhere": "y\n"}), "No such file"),
        (make_patch({}, {"there": "x\n"}), "already exists"),
        ("no patch at all", "No valid patches"),
        ("--- a/there\n+++ b/there\n@@ -1,5 +1 @@\n x\n", "corrupt patch"),
        (b"\xff\xfe\0\0", "No valid patches"),
    ],
)
def test_what_cannot_be_applied(tmp_path, patch, says):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("secret\n")
    root = tmp_path / "tree"
    root.mkdir()
    (root / "there").write_text("t\n")
    os.symlink(outside, root / "away")
    os.symlink(outside / "there", root / "out")
    os.mkfifo(root / "pipe")
    before = held(tmp_path)
    with pytest.raises(PatchError, match=says):
        apply_patch(root, patch)
    assert held(tmp_path) == before
    assert not Path("/etc/rtmc-test").exists()


def test_a_link_made_by_the_patch_leads_nowhere(tmp_path):
    """A patch that makes a link out of the tree and writes through it in its next part."""
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "tree"
    root.mkdir()
    link = (
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n"
        f"@@ -0,0 +1 @@\n+{outside}\n\\ No newline at end of file\n"
    )
    with pytest.raises(PatchError, match="symbolic link"):
        apply_patch(root, link + make_patch({}, {"l/x": "x\n"}))
    assert list(outside.iterdir()) == []
    assert not (root / "l").is_symlink()
    assert apply_patch(root, link) == ("l",)  # alone it is a file of the tree like another
    assert os.readlink(root / "l") == str(outside)


HOSTILE = """[core]
\tfsmonitor = {run}
\thooksPath = {hooks}
\tattributesFile = .gitattributes
\tautocrlf = true
[filter "evil"]
\tclean = {run}
\tsmudge = {run}
\trequired = true
[diff "evil"]
\ttextconv = {run}
\tcommand = {run}
[apply]
\twhitespace = fix
"""


def test_nothing_of_the_tree_s_git_is_run(tmp_path):
    """Not its filters, monitors, hooks, text conversions, line ends; a git that runs in the tree does run them."""
    root, mark, hooks = tmp_path / "tree", tmp_path / "ran", tmp_path / "tree" / "hooks"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], env=CLEAN, check=True)
    hooks.mkdir()
    run = root / "run.sh"
    run.write_text(f"#!/bin/sh\necho ran >> {mark}\ncat\n")
    run.chmod(0o755)
    shutil.copy(run, hooks / "applypatch-msg")
    shutil.copy(run, hooks / "post-index-change")
    (root / ".git" / "config").write_text(HOSTILE.format(run=run, hooks=hooks))
    (root / ".gitattributes").write_text("* filter=evil diff=evil text eol=crlf ident working-tree-encoding=UTF-16\n")
    (root / "f.txt").write_bytes(b"one $Id$\r\ntwo \n")
    plain = subprocess.run(["git", "-C", str(root), "add", "f.txt"], env=CLEAN, capture_output=True)
    assert mark.exists(), plain.stderr.decode()  # the trap works
    mark.unlink()
    (root / ".git" / "index").unlink(missing_ok=True)
    old = {"f.txt": "one $Id$\r\ntwo \n", ".gitattributes": (root / ".gitattributes").read_text()}
    new = {"f.txt": "one $Id$\r\nTWO \r\n", ".gitattributes": "* text eol=crlf ident filter=evil\n"}
    patch = make_patch(old, new)
    with WorkTree(root, layer="copy", place=tmp_path) as tree:
        apply_patch(tree, patch)
        assert {name: tree.read(name).decode() for name in new} == new
        assert {change.path for change in tree.changes()} == set(new)
        assert tree.diff() == patch
        tree.fingerprint()
        tree.restore(tree.snapshot())
        apply_patch(tree, patch, reverse=True)
        assert tree.changes() == ()
    assert not mark.exists()


def test_the_tree_s_git_on_path_is_not_run(tmp_path, monkeypatch):
    root, mark = tmp_path / "tree", tmp_path / "ran"
    root.mkdir()
    (root / "git").write_text(f"#!/bin/sh\necho ran > {mark}\n")
    (root / "git").chmod(0o755)
    monkeypatch.chdir(root)
    apply_patch(root, make_patch({}, {"f": "x\n"}))
    assert not mark.exists()


def test_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="git"):
        apply_patch(tmp_path, make_patch({}, {"f": "x\n"}))


def test_trees_and_tree_folders(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "m.py").write_text("a = 1\n")
    patch = make_patch({"m.py": "a = 1\n"}, {"m.py": "a = 2\n", "new/n.py": ""})
    with WorkTree(base, place=tmp_path) as tree:
        assert apply_patch(tree, patch) == ("m.py", "new/n.py")
        assert tree.read("m.py") == b"a = 2\n"
        assert (base / "m.py").read_text() == "a = 1\n"
        folder = TreeFolder(tree.root)
        apply_patch(folder, patch, reverse=True)
        folder.close()
        assert tree.changes() == ()
