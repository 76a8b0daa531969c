"""Repositories whose .gitattributes have files checked out otherwise than stored: as `git clone` and `git apply` do."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.patch import PatchError, apply_patch, patched
from rtmc.gymenvs.swe.repository import PreparationError, prepare
from rtmc.gymenvs.swe.sources import Clone, Embedded, Folder
from rtmc.gymenvs.swe.task import SWETask
from rtmc.gymenvs.swe.tree import WorkTree

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
CLEAN = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
CODE = "# $Id$\ndef add(a, b):\n    return a - b\n\n\ndef keep():\n    return 1\n"
STORED = {"pkg/q.py": CODE, "notes.txt": "one\ntwo\nthree\n", "tests/test_q.py": "# old\n"}
FIXED = {"pkg/q.py": CODE.replace("a - b", "a + b"), "notes.txt": "one\n2\nthree\n", "pkg/new.py": "x = 1\ny = 2\n"}
TESTS = {"tests/test_q.py": "# old\nimport pkg\n", "tests/test_r.py": "def test_r():\n    pass\n"}
ATTRIBUTES = {
    "every line end": "* text=auto eol=crlf\n",
    "some": "*.txt text eol=crlf\n",
    "a folder's own": {"pkg/.gitattributes": "*.py eol=crlf\n", "tests/.gitattributes": "* crlf\n"},
    "none to convert": "* text=auto\n",
    "keywords": "*.py ident\n",
    "encoding": "*.txt text working-tree-encoding=UTF-16LE eol=crlf\n",
    "a filter of nobody's": "* filter=mine\n",
    "the fix brings them": "",
}


def git(*words: str, cwd: Path, stdin: str = "") -> str:
    done = subprocess.run(["git", *words], cwd=cwd, env=CLEAN, input=stdin.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def commit(repository: Path, files: dict[str, str]) -> str:
    """Stores these bytes as they are. Gives the commit."""
    for name, text in files.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(text.encode())
        name_of = git("hash-object", "-w", "--no-filters", name, cwd=repository).strip()
        git("update-index", "--add", "--cacheinfo", f"100644,{name_of},{name}", cwd=repository)
    git("commit", "--quiet", "-m", "c", cwd=repository)
    return git("rev-parse", "HEAD", cwd=repository).strip()


def contents(root: Path) -> dict[str, bytes]:
    files = (one for one in root.rglob("*") if one.is_file() and ".git" not in one.relative_to(root).parts)
    return {str(one.relative_to(root)): one.read_bytes() for one in files}


@pytest.fixture(params=ATTRIBUTES)
def record(request, tmp_path):
    """A clone, its first commit, and patches between the commits as a data set has them."""
    repository, attributes = tmp_path / "repository", ATTRIBUTES[request.param]
    repository.mkdir()
    git("init", "--quiet", cwd=repository)
    own = attributes if isinstance(attributes, dict) else {".gitattributes": attributes}
    names = [commit(repository, STORED | own)]
    brought = {} if attributes else {".gitattributes": "* eol=crlf\n"}
    names += [commit(repository, FIXED | brought), commit(repository, TESTS)]
    patches = [git("diff", old, new, cwd=repository) for old, new in itertools.pairwise(names)]
    return repository, names[0], *patches


def checkout(repository: Path, name: str, place: Path) -> Path:
    git("clone", "--quiet", "--no-checkout", str(repository), str(place), cwd=repository)
    git("reset", "--quiet", "--hard", name, cwd=place)
    return place


@pytest.mark.parametrize("kind", ["clone", "folder"])
def test_a_repository_is_played_as_a_checkout_of_it(record, tmp_path, kind):
    repository, name, patch, test_patch = record
    there = checkout(repository, name, tmp_path / "there")
    source = Clone(str(repository), name) if kind == "clone" else Folder(str(there))
    task = SWETask(
        task_id="t",
        problem_statement="bug",
        source=source,
        fail_to_pass=("tests/test_q.py::t",),
        patch=patch,
        test_patch=test_patch,
    )
    prepared = prepare(task, tmp_path / "cache")
    assert contents(prepared.base) == contents(there)

    git("apply", "-", cwd=there, stdin=test_patch)
    laid = {path: text if isinstance(text, bytes) else text.encode() for path, text in prepared.task.test_files.items()}
    assert laid == {path: contents(there)[path] for path in TESTS}

    fixed = checkout(repository, name, tmp_path / "fixed")
    git("apply", "-", cwd=fixed, stdin=patch)
    with WorkTree(prepared.base, layer="copy") as tree:
        apply_patch(tree, prepared.task.patch)
        assert contents(tree.root) == contents(fixed)
        handed_in = tree.diff()
    if any(mark in content for content in contents(fixed).values() for mark in (b"$Id: ", b"\0")):
        return  # a diff of bytes: git forgives other line ends alone
    again = checkout(repository, name, tmp_path / "again")  # what an agent hands in is a patch for that checkout
    git("apply", "-", cwd=again, stdin=handed_in)
    assert contents(again) == contents(fixed)


def test_a_task_s_own_files_are_as_they_are(tmp_path):
    files = {".gitattributes": "* eol=crlf\n", "a.py": "x\ny\n"}
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-x\n+z\n y\n"
    task = SWETask(task_id="t", problem_statement="bug", source=Embedded(files), fail_to_pass=("t.py::t",), patch=patch)
    prepared = prepare(task, tmp_path)
    assert (prepared.base / "a.py").read_bytes() == b"x\ny\n"
    assert prepared.task.patch == patch
    assert patched(prepared.base, patch)["a.py"][1].content == b"z\ny\n"


def test_a_filter_of_the_tree_is_never_run(tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    git("init", "--quiet", cwd=root)
    git("config", "filter.mine.clean", f"touch {tmp_path}/ran; cat", cwd=root)
    git("config", "filter.mine.smudge", f"touch {tmp_path}/ran; cat", cwd=root)
    (root / ".gitattributes").write_text("* filter=mine eol=crlf\n")
    (root / "a").write_bytes(b"x\r\n")
    assert apply_patch(root, "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n", convert=True) == ("a",)
    assert (root / "a").read_bytes() == b"y\r\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "patch", "said"),
    [
        (b"a\nb\nc\nd\n", "@@ -1,2 +1,2 @@\n a\n-b\n+B\n", r"a hunk without a line of context behind .* file's end"),
        (b"a\r\nb\r\nc\r\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", r"they are, with other line ends"),
        (b"a\nq\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", r"line 1 changes are not there$"),
    ],
)
def test_why_lines_that_seem_to_be_there_are_not_found(tmp_path, content, patch, said):
    (tmp_path / "a").write_bytes(content)
    patch = f"--- a/a\n+++ b/a\n{patch}"
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, env=CLEAN, input=patch.encode(), capture_output=True)
    assert done.returncode == 1  # git itself refuses it
    with pytest.raises(PatchError, match=said):
        apply_patch(tmp_path, patch)


def test_a_path_that_leads_out_is_told_with_task_and_field(tmp_path):
    out = "--- a/../../x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b\n"
    for field in ("patch", "test_patch", "bug_patch"):
        with pytest.raises(PreparationError, match=rf"task 't': field `{field}`.*its path '\.\./\.\./x' leads out of"):
            prepare(
                SWETask(
                    task_id="t",
                    problem_statement="bug",
                    source=Embedded({"a": "a\n"}),
                    fail_to_pass=("t.py::t",),
                    **{field: out},
                ),
                tmp_path / field,
            )
