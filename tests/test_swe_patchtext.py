"""Patches as text, against git itself: what it writes we list, reverse and pick from, and it applies the outcome."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.patchtext import Touched, pick, reverse, touched

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git, the other implementation")

# Carriage returns, form feeds and lines that look like a patch's own are ordinary content.
LINE = st.sampled_from(
    ["a", "b", "", "c\r", "d\x0ce", "-- x", "++ y", "@@ -1 +1 @@", "diff --git a/q b/q", "\\ No", "ü"]
)
TEXT = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=12), st.sampled_from(["", "\n"]))


def git(*arguments, cwd, data=None):
    env = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(cwd),
    }
    done = subprocess.run(["git", *arguments], cwd=cwd, env=env, input=data, capture_output=True)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape")


def difference(name, old, new):
    return make_patch({} if old is None else {name: old}, {} if new is None else {name: new})


def put(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def got(folder):
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def apply(folder, patch):
    git("apply", "--whitespace=nowarn", "-", cwd=folder, data=patch.encode("utf-8", "surrogateescape"))


@settings(max_examples=60, deadline=None)
@given(TEXT, TEXT, st.sampled_from(["x.txt", "a b.txt", 'q"\t.txt', "ü.txt"]))
def test_git_applies_what_we_write_and_its_reverse(tmp_path_factory, old, new, name):
    place = tmp_path_factory.mktemp("patch")
    put(place / "t", {name: old})
    patch = difference(name, old, new)
    if old == new:
        assert patch == ""
        return
    assert touched(patch) == (Touched(name, name),)
    apply(place / "t", patch)
    assert got(place / "t") == {name: new.encode()}
    apply(place / "t", reverse(patch))
    assert got(place / "t") == {name: old.encode()}
    assert reverse(reverse(patch)) == patch


@pytest.mark.parametrize("content", ["", "x\n", "no end"])
def test_files_come_and_go(tmp_path, content):
    put(tmp_path / "t", {"keep": "k"})
    patch = difference("sub/x", None, content)
    assert touched(patch) == (Touched(None, "sub/x"),)
    assert touched(reverse(patch)) == (Touched("sub/x", None),)
    apply(tmp_path / "t", patch)
    assert got(tmp_path / "t") == {"keep": b"k", "sub/x": content.encode()}
    apply(tmp_path / "t", reverse(patch))
    assert got(tmp_path / "t") == {"keep": b"k"}
    assert difference("sub/x", content, None) == reverse(patch)


def test_hunks_can_be_chosen(tmp_path):
    old = [f"{k}\n" for k in range(60)]
    new = [*old[:5], "five\n", *old[6:30], *old[31:], "more\n"]
    before, after = "".join(old), "".join(new)
    whole = difference("x", before, after)
    assert whole.count("\n@@ ") == 3
    assert pick(whole, (1, 2, 3)) == "".join(line for line in whole.splitlines(True) if not line.startswith("index "))
    put(tmp_path / "t", {"x": before})
    patch = pick(whole, (2, 3))
    apply(tmp_path / "t", patch)
    assert got(tmp_path / "t")["x"].decode() == "".join([*old[:30], *old[31:], "more\n"])
    # The second hunk takes a line away, so the third one begins a line earlier; the first one, left out, moves nothing.
    assert "\n@@ -58,3 +57,4 @@\n" in patch
    with pytest.raises(ValueError, match="hunk 4 is wanted, the patch has 3"):
        pick(whole, (1, 4))
    with pytest.raises(ValueError, match="wanted a patch of one text file, got one of 2"):
        pick(whole + whole, (1,))


@settings(max_examples=40, deadline=None)
@given(TEXT, TEXT, st.sets(st.integers(1, 2)))
def test_picked_hunks_have_the_numbers_git_would_give_them(tmp_path_factory, first, second, chosen):
    gap = "".join(f"{k}\n" for k in range(9))
    first, second = ("".join(f"{line}\n" for line in one.split("\n")) for one in (first, second))
    old, new = f"{gap}x\n{gap}y\n", f"{gap}{first}{gap}{second}"
    parts = [first if 1 in chosen else "x\n", second if 2 in chosen else "y\n"]
    whole = difference("t", old, new)
    if whole.count("\n@@ ") != 2:
        return  # what is new looks like what lies between
    place = tmp_path_factory.mktemp("pick")
    put(place / "t", {"t": old})
    apply(place / "t", pick(whole, sorted(chosen))) if chosen else None
    assert got(place / "t")["t"].decode() == f"{gap}{parts[0]}{gap}{parts[1]}"


def test_git_s_own_patches_are_listed_and_reversed(tmp_path):
    before = {
        "changed.py": "a\nb\nc\n",
        "gone.py": "x\n",
        "moved/old name.py": "1\n2\n3\n4\n5\n",
        "bin": b"\0\1\2" * 50,
        "mode.sh": "run\n",
        "ü\t.txt": "u\n",
        "empty": "",
    }
    after = {
        "changed.py": "a\nB\nc",
        "new.py": "y\n",
        "moved/new name.py": "1\n2\n3\n4\nfive\n",
        "bin": b"\0\3\2" * 50,
        "mode.sh": "run\n",
        "ü\t.txt": "v\n",
        "born empty": "",
    }
    put(tmp_path / "t", before)
    git("init", "-q", cwd=tmp_path / "t")
    git("add", "-A", cwd=tmp_path / "t")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", cwd=tmp_path / "t")
    for name in before:
        (tmp_path / "t" / name).unlink()
    for name, content in after.items():
        (tmp_path / "t" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "t" / "mode.sh").chmod(0o755)
    git("add", "-A", cwd=tmp_path / "t")
    patch = git("diff", "--cached", "--binary", "-M", cwd=tmp_path / "t")
    assert "rename from" in patch
    assert "GIT binary patch" in patch
    assert set(touched(patch)) == {
        Touched("changed.py", "changed.py"),
        Touched("gone.py", None),
        Touched(None, "new.py"),
        Touched("bin", "bin"),
        Touched("moved/old name.py", "moved/new name.py"),
        Touched("mode.sh", "mode.sh"),
        Touched("ü\t.txt", "ü\t.txt"),
        Touched("empty", "born empty"),
    }
    shutil.rmtree(tmp_path / "t" / ".git")
    apply(tmp_path / "t", reverse(patch))
    assert got(tmp_path / "t") == {
        name: one if isinstance(one, bytes) else one.encode() for name, one in before.items()
    }
    assert not os.access(tmp_path / "t" / "mode.sh", os.X_OK)
    assert reverse(reverse(patch)) == patch


def test_patches_of_other_programs(tmp_path):
    plain = "Some words first.\n\n--- a/x.py\t2020-01-01\n+++ b/x.py\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    two = plain + "--- a/y.py\n+++ b/y.py\n@@ -1,2 +1,2 @@\n-- a/z\n+- b/z\n \n"
    assert touched(two) == (Touched("x.py", "x.py"), Touched("y.py", "y.py"))
    put(tmp_path / "t", {"x.py": "b\n", "y.py": "- b/z\n\n"})
    apply(tmp_path / "t", reverse(two))
    assert got(tmp_path / "t") == {"x.py": b"a\n", "y.py": b"- a/z\n\n"}
    assert touched("") == ()
    assert touched("no patch at all\n") == ()


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1: a hunk stands before the name"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n", "line 3: the hunk's lines are not as many"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n+c\n", "line 3: the hunk's lines are not as many"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "line 1: the file has no name"),
        ("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "line 1: the two names of the file differ"),
        ("--- a/\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "line 1: a file without a name"),
    ],
)
def test_what_is_no_patch_is_said(patch, said):
    with pytest.raises(ValueError, match=f"^patch, {said}"):
        touched(patch)


def test_what_cannot_be_taken_back_is_said():
    for patch in (
        "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n",
        "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n",
    ):
        assert touched(patch) == (Touched("x", "x"),)
        with pytest.raises(ValueError, match="content is not told"):
            reverse(patch)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        LINE | st.sampled_from(["--- a/x", "+++ b/x", "@@ -1,2 +1 @@", "+a", "-b", " c", "rename from q"]), max_size=12
    )
)
def test_no_text_gives_another_error_than_the_documented_one(lines):
    said = ""
    try:
        reverse("\n".join(lines))
    except ValueError as error:
        said = str(error)
    assert not said or said.startswith("patch, line ")
