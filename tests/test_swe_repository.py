"""The agent's starting folder: what is in it and what is not, made once, whole or not at all."""

import multiprocessing
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rtmc.gymenvs.sandbox import open_sandbox
from rtmc.gymenvs.swe import repository
from rtmc.gymenvs.swe.formats import task_of
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.repository import PreparationError, prepare
from rtmc.gymenvs.swe.task import Clone, Embedded, Folder, Image, SWETask
from tests.sandbox_help import NEEDS_SANDBOX

with_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

CORE = "def double(n):\n    return n + n\n"
BROKEN = "def double(n):\n    return n + 1\n"
TEST = "from core import double\n\n\ndef test_double():\n    assert double(3) == 6  # SECRET\n"
FIX = "--- a/core.py\n+++ b/core.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return n + 1\n+    return n + n\n"
FILES = {"core.py": BROKEN, "tests/test_core.py": TEST, "README": "Doubles.\n"}


def make_task(**changes):
    values = {
        "task_id": "double",
        "problem_statement": "It is wrong.",
        "source": Embedded(FILES),
        "patch": FIX,
        "fail_to_pass": ("tests/test_core.py::test_double",),
        "hidden_files": ("tests/test_core.py",),
    }
    return SWETask(**{**values, **changes})


def everything_in(folder):
    """All bytes of a tree that somebody could read, git's objects unpacked."""
    found = b""
    for path in folder.rglob("*"):
        found += path.as_posix().encode() + b"\n"
        if path.is_file() and not path.is_symlink():
            found += path.read_bytes()
    if (folder / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", f"safe.directory={folder}", "cat-file", "--batch-all-objects", "--batch"],
            cwd=folder,
            capture_output=True,
            check=True,
        )
        found += listed.stdout
    return found


def files_in(folder):
    return {
        one.relative_to(folder).as_posix(): one.read_text()
        for one in folder.rglob("*")
        if one.is_file() and ".git" not in one.relative_to(folder).parts
    }


def test_an_embedded_task(tmp_path):
    prepared = prepare(make_task(), tmp_path)
    assert files_in(prepared.base) == {"core.py": BROKEN, "README": "Doubles.\n"}
    assert prepared.task.test_files == {"tests/test_core.py": TEST}
    assert prepared.task.patch == FIX
    assert prepared.runtime.env["PYTHONPATH"] == "/testbed"
    assert tmp_path in prepared.base.parents
    again = prepare(make_task(), tmp_path)
    assert again == prepared


@with_git
def test_neither_fix_nor_hidden_test_is_anywhere_in_the_tree(tmp_path):
    readable = everything_in(prepare(make_task(), tmp_path).base)
    assert b"Doubles." in readable  # what is there is found by this search
    assert b"n + 1" in readable
    assert b"SECRET" not in readable
    assert b"n + n" not in readable


@with_git
def test_two_machines_make_the_same_repository(tmp_path):
    heads = [(prepare(make_task(), tmp_path / one).base / ".git/refs/heads/main").read_text() for one in "ab"]
    assert heads[0] == heads[1]


def test_another_task_gets_another_folder(tmp_path):
    first = prepare(make_task(), tmp_path)
    for change in (
        {"source": Embedded({**FILES, "README": "Other.\n"})},
        {"hidden_files": ()},
        {"task_id": "other"},
        {"test_files": {"tests/test_more.py": "x"}},
    ):
        other = prepare(make_task(**change), tmp_path)
        assert other.base != first.base
    # What changes neither the tree nor the grading shares the folder.
    said = prepare(make_task(problem_statement="In other words."), tmp_path)
    assert (said.base, said.task.problem_statement) == (first.base, "In other words.")


def test_given_test_files_go_before_the_source_s_own(tmp_path):
    prepared = prepare(make_task(test_files={"tests/test_core.py": "better\n", "bin": b"\0\xff"}), tmp_path)
    assert prepared.task.test_files == {"tests/test_core.py": "better\n", "bin": b"\0\xff"}


@with_git
def test_a_test_patch_becomes_whole_files(tmp_path):
    change = (
        "--- a/tests/test_core.py\n+++ b/tests/test_core.py\n@@ -5 +5 @@\n"
        "-    assert double(3) == 6  # SECRET\n+    assert double(3) == 6\n"
        "--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1 @@\n+def test_new(): pass\n"
    )
    prepared = prepare(make_task(test_patch=change, hidden_files=()), tmp_path)
    assert prepared.task.test_patch == ""
    new = TEST.replace("  # SECRET", "")
    assert prepared.task.test_files == {"tests/test_core.py": new, "tests/test_new.py": "def test_new(): pass\n"}
    assert files_in(prepared.base) == FILES  # the agent has the old ones
    with pytest.raises(PreparationError, match=r"task 'double': field `test_patch`: the patch does not apply to"):
        prepare(make_task(test_patch=change.replace("double(3)", "double(4)")), tmp_path)


@with_git
def test_swe_smith_s_bug_is_put_in(tmp_path):
    bug = FIX.replace("-    return n + 1\n+    return n + n", "-    return n + n\n+    return n + 1")
    record = {
        "instance_id": "own__er.0123abcd.op__1",
        "repo": "swesmith/own__er.0123abcd",
        "patch": bug,
        "problem_statement": "",
        "image_name": "x",
        "FAIL_TO_PASS": ["tests/test_core.py::test_double"],
        "PASS_TO_PASS": [],
    }
    task = task_of(record).replace(source=Embedded({**FILES, "core.py": CORE}))
    prepared = prepare(task, tmp_path)
    assert files_in(prepared.base) == {"core.py": BROKEN, "README": "Doubles.\n"}
    assert prepared.task.test_files == {"tests/test_core.py": TEST}
    for name, one in (("told", task), ("not told", task.replace(patch=""))):
        copy = shutil.copytree(prepared.base, tmp_path / name)
        apply_patch(copy, prepare(one, tmp_path).task.patch)
        assert (copy / "core.py").read_text() == CORE


@with_git
def test_a_clone_s_commit_without_its_future(tmp_path):
    clone = tmp_path / "clone"
    clone.mkdir()
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*run, "init", "-q", "-b", "main"], cwd=clone, check=True)
    for text in (BROKEN, CORE):
        for name, content in {**FILES, "core.py": text}.items():
            (clone / name).parent.mkdir(exist_ok=True)
            (clone / name).write_text(content)
        subprocess.run([*run, "add", "-A"], cwd=clone, check=True)
        subprocess.run([*run, "commit", "-q", "-m", "SECRET plan"], cwd=clone, check=True)
    task = make_task(source=Image("some/image:latest", "own/er", "main^"))
    prepared = prepare(task, tmp_path / "cache", repos={"own/er": clone})
    assert files_in(prepared.base) == {"core.py": BROKEN, "README": "Doubles.\n"}
    readable = everything_in(prepared.base)
    assert b"n + n" not in readable
    assert b"SECRET" not in readable
    (tmp_path / "all").mkdir()
    clone.rename(tmp_path / "all/own__er")
    again = prepare(task, tmp_path / "cache", repos=tmp_path / "all")  # the same commit, wherever it lies
    assert again.base == prepared.base
    with pytest.raises(PreparationError, match=r"task 'double': the commit '0{40}' is not in"):
        prepare(make_task(source=Clone(str(tmp_path / "all/own__er"), "0" * 40)), tmp_path / "cache")


def test_a_needed_image_is_named(tmp_path):
    task = make_task(source=Image("swebench/sweb.eval.x86_64.own_1776_er-1:latest", "own/er", "0123abc"))
    with pytest.raises(PreparationError) as caught:
        prepare(task, tmp_path)
    wanted = (
        "'double'",
        "'swebench/sweb.eval.x86_64.own_1776_er-1:latest'",
        "the commit 0123abc",
        "'own/er'",
        "folder",
    )
    for part in wanted:
        assert part in str(caught.value)
    with pytest.raises(PreparationError, match=r"it runs in a container image, and .* of such names: a folder copied"):
        prepare(make_task(source=Image("")), tmp_path)
    with pytest.raises(ValueError, match=r"repos: 'own/er' should lie at '.*nowhere', where there is nothing"):
        prepare(task, tmp_path, repos={"own/er": tmp_path / "nowhere"})
    (tmp_path / "plain").mkdir()
    with pytest.raises(ValueError, match=r"repos: 'own/er' lies at .* no git clone and no bundle; a prepared folder"):
        prepare(task, tmp_path, repos={"own/er": tmp_path / "plain"})


def make_folder(path):
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    (path / ".git").mkdir()
    (path / ".git/SECRET").write_text("SECRET")
    (path / "tests/__pycache__").mkdir()
    (path / "tests/__pycache__/test_core.cpython-311.pyc").write_bytes(b"SECRET")
    (path / "link").symlink_to("core.py")
    return path


def test_a_prepared_folder_is_copied(tmp_path):
    folder = make_folder(tmp_path / "ready")
    before = {one: one.lstat().st_mtime_ns for one in folder.rglob("*")}
    task = make_task(source=Folder(str(folder)), patch="")
    prepared = prepare(task, tmp_path / "cache")
    assert files_in(prepared.base) == {"core.py": BROKEN, "README": "Doubles.\n", "link": BROKEN}
    assert os.readlink(prepared.base / "link") == "core.py"
    assert not list(prepared.base.rglob("__pycache__"))
    assert {one: one.lstat().st_mtime_ns for one in folder.rglob("*")} == before
    assert prepare(task, tmp_path / "cache").base == prepared.base
    (folder / "core.py").write_text(BROKEN + "\n")
    changed = prepare(task, tmp_path / "cache")
    assert (changed.base / "core.py").read_text() == BROKEN + "\n"
    os.mkfifo(folder / "pipe")
    with pytest.raises(PreparationError, match=r"'pipe' in .* is a device, a socket or a pipe"):
        prepare(task, tmp_path / "cache")
    with pytest.raises(PreparationError, match=r"there is no folder '.*nowhere'"):
        prepare(make_task(source=Folder(str(tmp_path / "nowhere"))), tmp_path / "cache")


def test_r2e_s_own_runner_is_hidden_and_used(tmp_path):
    folder = make_folder(tmp_path / "ready")
    (folder / "r2e_tests").mkdir()
    (folder / "r2e_tests/test_1.py").write_text("SECRET")
    (folder / "run_tests.sh").write_text("python -m pytest r2e_tests  # SECRET\n")
    hidden = ("run_tests.sh", "r2e_tests")
    task = make_task(
        source=Folder(str(folder)),
        hidden_files=hidden,
        test_parser="r2e",
        test_command="python -m pytest r2e_tests",
        expected={"test_a": "PASSED"},
        fail_to_pass=(),
    )
    prepared = prepare(task, tmp_path / "cache")
    assert set(files_in(prepared.base)) == {*FILES, "link"}
    assert set(prepared.task.test_files) == {"run_tests.sh", "r2e_tests/test_1.py"}
    assert prepared.task.test_command == "bash run_tests.sh"


def test_what_lies_behind_a_link_is_not_taken_for_a_hidden_test(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("PRIVATE")
    folder = make_folder(tmp_path / "ready")
    (folder / "out").symlink_to(tmp_path / "private")
    with pytest.raises(PreparationError, match="'out/key' lies behind a link that leads out of the tree"):
        prepare(make_task(source=Folder(str(folder)), hidden_files=("out/key",)), tmp_path / "cache")
    assert (tmp_path / "private/key").exists()


@NEEDS_SANDBOX
def test_a_setup_runs_in_the_sandbox(tmp_path):
    plant = (
        "mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit && mkdir -p tests && echo again > tests/test_core.py"
    )
    look = f'test ! -e {tmp_path} && python -c \'import core; open("built.txt", "w").write(str(core.double(2)))\''
    task = make_task(setup_command=f"{look} && {plant} && test $HELLO = there", env={"HELLO": "there"})
    prepared = prepare(task, tmp_path)
    assert files_in(prepared.base) == {"core.py": BROKEN, "README": "Doubles.\n", "built.txt": "3"}
    assert not (prepared.base / ".git/hooks").exists()
    with open_sandbox(prepared.base, **prepared.runtime.options()) as sandbox:
        assert sandbox.run("git status --porcelain").stdout == ""


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sleep 60 & sleep 60", "`setup_command` ran longer than setup_timeout_s = 1.5 s"),
        ("echo what is wrong >&2; exit 3", "`setup_command` ended with exit code 3: what is wrong"),
        ("exit 4", "`setup_command` ended with exit code 4: it printed nothing"),
    ],
)
def test_a_setup_that_hangs_or_fails_leaves_nothing(tmp_path, command, said):
    start = time.monotonic()
    with pytest.raises(PreparationError, match=f"task 'double': {said}"):
        prepare(make_task(setup_command=command, setup_timeout_s=1.5), tmp_path)
    assert time.monotonic() - start < 20
    assert [one.suffix for one in (tmp_path / "trees").iterdir()] == [".lock"]


def prepared_base(cache):
    return str(prepare(make_task(), cache).base)


def test_many_at_once_make_it_once(tmp_path, monkeypatch):
    made, bases = [], []
    make = repository._Maker.make
    monkeypatch.setattr(
        repository._Maker, "make", lambda self, home: (made.append(home), time.sleep(0.1), make(self, home))
    )
    threads = [threading.Thread(target=lambda: bases.append(prepared_base(tmp_path))) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (len(made), len(bases), len(set(bases))) == (1, 6, 1)


def test_processes_share_it(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        bases = pool.map(prepared_base, [tmp_path] * 4)
    assert len(set(bases)) == 1
    assert files_in(Path(bases[0])) == {"core.py": BROKEN, "README": "Doubles.\n"}


def test_what_a_killed_process_left_is_made_anew(tmp_path):
    home = prepare(make_task(), tmp_path).base.parent
    shutil.rmtree(home)
    part = home.parent / f".{home.name}.part"
    (part / "tree/.tree.git").mkdir(parents=True)
    (part / "tree/core.py").write_text("half")
    assert files_in(prepare(make_task(), tmp_path).base) == {"core.py": BROKEN, "README": "Doubles.\n"}
    assert not part.exists()


def test_without_git_there_is_no_repository(tmp_path, monkeypatch):
    with_it = prepare(make_task(), tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    prepared = prepare(make_task(), tmp_path)
    assert files_in(prepared.base) == files_in(with_it.base)
    assert not (prepared.base / ".git").exists()
    with pytest.raises(PreparationError, match="takes git"):
        prepare(make_task(test_patch=FIX), tmp_path)


def test_packages_below_src_are_found(tmp_path):
    files = {f"src/{name}" if name == "core.py" else name: content for name, content in FILES.items()}
    prepared = prepare(make_task(source=Embedded(files), patch="", env={"MINE": "1"}), tmp_path)
    assert prepared.runtime.env["PYTHONPATH"] == "/testbed/src:/testbed"
    assert prepared.runtime.env["MINE"] == "1"
    own = prepare(make_task(env={"PYTHONPATH": "/testbed/lib"}), tmp_path)
    assert own.runtime.env["PYTHONPATH"] == "/testbed/lib"


def test_a_package_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(PreparationError, match=r"task 'double': .*'no-such-package-here', which is not installed"):
        prepare(make_task(python_packages=("no-such-package-here",)), tmp_path)


def test_the_cache_is_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "mine"))
    assert repository.cache_folder() == tmp_path / "mine/swe"
    monkeypatch.delenv("RTMC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert repository.cache_folder() == tmp_path / "xdg/rtmc/swe"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (FIX.replace("n + 1", "n + 7"), "task 'double': field `patch`, the gold patch: .*core.py"),
        (FIX.replace("core.py", "none.py"), "task 'double': field `patch`, the gold patch: .*none.py"),
        ("no patch at all", "task 'double': field `patch`"),
    ],
)
def test_a_gold_patch_that_does_not_apply_is_refused(tmp_path, patch, said):
    with pytest.raises(PreparationError, match=said):
        prepare(make_task(patch=patch), tmp_path)
    assert [one.name for one in (tmp_path / "trees").iterdir() if not one.name.endswith(".lock")] == []
    base = prepare(make_task(), tmp_path).base  # one that does leaves the tree as it is
    assert (base / "core.py").read_text() == BROKEN
    prepare(make_task(patch=""), tmp_path)  # none is known


def test_a_gold_patch_over_links_modes_and_new_files(tmp_path):
    root = tmp_path / "source"
    root.mkdir()
    (root / "run.sh").write_text("true\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("run.sh")
    patch = (
        "diff --git a/run.sh b/sub/run.sh\nsimilarity index 100%\nrename from run.sh\nrename to sub/run.sh\n"
        "diff --git a/link b/link\nindex f45d4ba..2b0d0d1 120000\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-run.sh\n"
        "\\ No newline at end of file\n+sub/run.sh\n\\ No newline at end of file\n"
        "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    )
    prepared = prepare(make_task(source=Folder(str(root)), patch=patch, hidden_files=()), tmp_path / "cache")
    assert (prepared.base / "run.sh").stat().st_mode & 0o111
    (root / "new").write_text("x\n")
    with pytest.raises(PreparationError, match=r"the gold patch: .*new"):
        prepare(make_task(source=Folder(str(root)), patch=patch, hidden_files=()), tmp_path / "cache")


def test_a_commit_that_is_none_is_told_with_the_task(tmp_path):
    task = make_task(source=Image("", "a/b", "--help"))
    with pytest.raises(
        PreparationError, match="task 'double': field `base_commit`: wanted a commit of a git repository"
    ):
        prepare(task, tmp_path, repos={})


def test_what_is_no_task_is_refused(tmp_path):
    with pytest.raises(TypeError, match="prepare: wanted an SWETask, got str"):
        prepare("double", tmp_path)
