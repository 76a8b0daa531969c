"""Trees at once in threads and processes, and what is left of them: nothing, however their process ends."""

import fcntl
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from rtmc.gymenvs.swe import places
from rtmc.gymenvs.swe.places import mounts_below, trees_folder
from rtmc.gymenvs.swe.tree import WorkTree, probe_layers, sweep_leftovers

LAYERS = ["overlay", "copy"]
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=LAYERS)
def layer(request):
    why = probe_layers()[request.param]
    if why:
        pytest.skip(f"no {request.param} layer here: {why}")
    return request.param


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    for k in range(20):
        (folder / f"m{k}.py").write_text(f"k = {k}\n")
    return folder


def episode(base: Path, place: Path, layer: str, number: int) -> str:
    """An agent's turns in a tree of its own; what it leaves must be its own work alone."""
    with WorkTree(base, layer=layer, place=place) as tree:
        snapshots = []
        for turn in range(5):
            tree.write(f"m{turn}.py", f"{number} {turn}\n".encode())
            tree.write(f"new/{number}/{turn}", b"", parents=True)
            snapshots.append(tree.snapshot())
        tree.restore(snapshots[number % 5])
        want = [f"m{turn}.py" for turn in range(number % 5 + 1)]
        want += [f"new/{number}/{turn}" for turn in range(number % 5 + 1)]
        assert sorted(change.path for change in tree.changes()) == sorted(want)
        for turn in range(number % 5 + 1):
            assert tree.read(f"m{turn}.py") == f"{number} {turn}\n".encode()
        other = WorkTree.from_snapshot(base, pickle.loads(pickle.dumps(snapshots[-1])), layer=layer, place=place)
        mark = other.fingerprint()
        other.close()
        return mark


def test_sixteen_at_once(base, tmp_path, layer):
    numbers = list(range(16))
    alone = [episode(base, tmp_path, layer, number) for number in numbers]
    assert len(set(alone)) == 16
    arguments = [base] * 16, [tmp_path] * 16, [layer] * 16, numbers
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(episode, *arguments)) == alone
    # Spawned: a fork of a process with threads is no way to start others.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        assert list(processes.map(episode, *arguments)) == alone
    assert not trees_folder(tmp_path).exists()
    assert {file.name: file.read_text() for file in base.iterdir()} == {f"m{k}.py": f"k = {k}\n" for k in range(20)}


def used_trees(base: Path, place: Path, layer: str) -> list[WorkTree]:
    """Three trees, with what is not easily removed."""
    made = [WorkTree(base, layer=layer, place=place) for _ in range(3)]
    for tree in made:
        tree.write("deep/" * 50 + "f", b"x", parents=True)
        (tree.root / "deep").chmod(0)
    return made


class Child:
    """A forked process, past its first word `ready` or whatever `work` tells by its argument; then it waits."""

    def __init__(self, work: Callable[[Callable[[str], None]], object]) -> None:
        told, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(told)
            try:
                held = work(lambda word: os.write(tell, f"{word}\n".encode()))
                os.write(tell, b"ready\n")
                time.sleep(100)
                del held
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(tell)
        with os.fdopen(told) as words:
            self.word = words.readline().strip()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


AT_THE_END = """
import sys
from pathlib import Path
from tests.test_swe_tree_leftovers import used_trees
base, place, end, *layers = sys.argv[1:]
held = [used_trees(Path(base), Path(place), layer) for layer in layers]
if end == "raise":
    raise KeyError("an error that nobody catches")
"""


@pytest.mark.parametrize("end", ["exit", "raise"])
def test_nothing_is_left_at_the_interpreter_s_end(base, tmp_path, end):
    layers = [layer for layer in LAYERS if not probe_layers()[layer]]
    words = [sys.executable, "-c", AT_THE_END, str(base), str(tmp_path), end, *layers]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "nobody catches" in done.stderr) == ((1, True) if end == "raise" else (0, False))
    assert not trees_folder(tmp_path).exists()
    assert mounts_below(tmp_path) == []


def test_what_a_killed_process_left_is_swept(base, tmp_path, layer):
    living = Child(lambda _: used_trees(base, tmp_path, layer))
    killed = Child(lambda _: used_trees(base, tmp_path, layer))
    mine = WorkTree(base, layer=layer, place=tmp_path)
    mine.write("mine", b"kept")
    top = trees_folder(tmp_path)
    assert len(os.listdir(top)) == 3
    killed.kill()
    each = 2 if layer == "overlay" else 0  # the tree, and its memory where there is enough
    assert len(os.listdir(top)) == 3
    assert (len(mounts_below(top)) > 4) == bool(each)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sweep_leftovers(tmp_path) == 1
        assert sweep_leftovers(tmp_path) == 0
    assert len(os.listdir(top)) == 2
    assert mine.read("mine") == b"kept"
    # The living one's trees stand, and go with it.
    folder = next(path for path in top.iterdir() if path.name.startswith(f"{living.pid}-"))
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "2"]
    assert (folder / "0" / "tree" / "m0.py").read_text() == "k = 0\n"
    living.kill()

    # Another process' first tree sweeps, without being asked.
    def first(tell) -> None:
        places._swept.clear()
        places._homes.clear()
        WorkTree(base, layer=layer, place=tmp_path).close()
        tell(",".join(path.name.split("-")[0] for path in top.iterdir()))

    another = Child(first)
    another.kill()
    assert another.word == str(os.getpid())
    assert mine.read("mine") == b"kept"
    mine.close()
    assert not top.exists()


def test_a_forked_child_leaves_its_parent_s_trees(base, tmp_path, layer):
    """It ends, sweeps, and makes its own."""
    with WorkTree(base, layer=layer, place=tmp_path) as tree:

        def work(tell) -> None:
            tree.close()
            assert sweep_leftovers(tmp_path) == 0
            with WorkTree(base, layer=layer, place=tmp_path) as own:
                own.write("own", b"")

        child = Child(work)
        child.kill()
        assert child.word == "ready"
        tree.write("x", b"still here")
        assert tree.changes()
    assert not trees_folder(tmp_path).exists()


def test_a_child_that_works_on_when_its_parent_was_killed(base, tmp_path, layer):
    """It keeps the trees that it took along for as long as it lives; then they are swept."""

    def work(tell) -> object:
        tree = WorkTree(base, layer=layer, place=tmp_path)
        inner = Child(lambda _: None)
        tell(f"{inner.pid} {tree.root}")
        return tree

    child = Child(work)
    pid, _, root = child.word.partition(" ")
    child.kill()
    assert sweep_leftovers(tmp_path) == 0
    assert Path(root, "m0.py").read_text() == "k = 0\n"
    os.kill(int(pid), signal.SIGKILL)
    until = time.monotonic() + 10
    while sweep_leftovers(tmp_path) == 0 and time.monotonic() < until:
        time.sleep(0.02)
    assert not trees_folder(tmp_path).exists()


def test_a_process_that_closed_its_descriptors(base, tmp_path, layer):
    """The lock is gone with them; the folder's name still tells that the process lives. The next tree locks again."""
    with WorkTree(base, layer=layer, place=tmp_path) as tree:
        lock = next(
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.realpath(f"/proc/self/fd/{name}") == str(tree.root.parents[1])
        )
        os.close(lock)
        reused = os.open(os.devnull, os.O_RDONLY)  # the number may soon be something else's
        assert swept_by_another(tmp_path) == "0"
        assert (tree.root / "m0.py").read_text() == "k = 0\n"
        with WorkTree(base, layer=layer, place=tmp_path):
            again = os.open(tree.root.parents[1], os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(again)
    os.close(reused)
    assert not trees_folder(tmp_path).exists()


def swept_by_another(place: Path) -> str:
    other = Child(lambda tell: tell(str(sweep_leftovers(place))))
    other.kill()
    return other.word


def test_a_process_of_another_namespace_is_known_by_its_lock(base, tmp_path):
    """Its number means nothing here, even where a process of ours has it."""
    with WorkTree(base, layer="copy", place=tmp_path):
        top = trees_folder(tmp_path)
        (mine,) = top.iterdir()
        pid, started, namespace, mark = mine.name.split("-")
        names = [f"{pid}-{started}-{int(namespace) + 1}-{mark}", f"{pid}-{int(started) + 1}-{namespace}-{mark}", "odd"]
        for name in names:
            (top / name / "0").mkdir(parents=True)
        lock = os.open(top / names[0], os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_leftovers(tmp_path) == 2
        assert {path.name for path in top.iterdir()} == {mine.name, names[0]}
        os.close(lock)
        assert sweep_leftovers(tmp_path) == 1
        assert [path.name for path in top.iterdir()] == [mine.name]


def test_a_mount_tells_nothing_of_this_package(base, tmp_path):
    """A sandbox's commands read the mounts that are shown to them."""
    if probe_layers()["overlay"]:
        pytest.skip(f"no overlay here: {probe_layers()['overlay']}")
    with WorkTree(base, layer="overlay", place=tmp_path) as tree:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (found,) = [line.split(" - ")[1] for line in lines if line.split()[4] == str(tree.root)]
    assert found.startswith("overlay overlay ")
    assert "rtmc" not in found


def test_a_tree_that_nobody_holds_goes(base, tmp_path, layer):
    WorkTree(base, layer=layer, place=tmp_path)
    assert not trees_folder(tmp_path).exists()


def test_a_folder_of_someone_else_is_not_used(base, tmp_path):
    top = trees_folder(tmp_path)
    top.mkdir()
    top.chmod(0o777)
    with pytest.raises(PermissionError, match="nobody else"):
        WorkTree(base, layer="copy", place=tmp_path)
    top.rmdir()
    (tmp_path / "elsewhere").mkdir()
    top.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        WorkTree(base, layer="copy", place=tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_cannot_be_swept_is_warned_of(base, tmp_path, monkeypatch):
    Child(lambda _: used_trees(base, tmp_path, "copy")).kill()

    def refuse(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("rtmc.gymenvs.swe.places.remove_folder", refuse)
        with pytest.warns(UserWarning, match="Input/output error"):
            assert sweep_leftovers(tmp_path) == 0
    assert sweep_leftovers(tmp_path) == 1


def test_overlay_where_the_temporary_folder_is_an_overlay(base, tmp_path):
    """As in a container: the upper layer then lies in memory."""
    if probe_layers()["overlay"]:
        pytest.skip(f"no overlay here: {probe_layers()['overlay']}")
    with WorkTree(base, layer="overlay", place=tmp_path) as outer:
        inner_base, place = outer.root / "inner", outer.root / "tmp"
        inner_base.mkdir()
        place.mkdir()
        (inner_base / "f").write_text("f\n")
        with WorkTree(inner_base, place=place) as tree:
            assert tree.layer == "overlay"
            tree.write("f", b"g\n")
            assert [change.kind for change in tree.changes()] == ["modified"]
        with pytest.raises(OSError, match="overlay"):
            WorkTree(inner_base, layer="overlay", memory=False, place=place)
        assert not trees_folder(place).exists()
    assert mounts_below(tmp_path) == []


def test_a_fork_of_a_thousand_files_is_quick(tmp_path, layer):
    """The target is 100 ms; ten times that is allowed here, where other work may share the processors."""
    base = tmp_path / "base"
    for k in range(1000):
        file = base / f"p{k % 25}" / f"s{k % 5}" / f"m{k}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"value = {k}\n" * 100)
    with WorkTree(base, layer=layer, place=tmp_path) as tree:
        first = tree.snapshot()
        for k in range(5):
            tree.write(f"p{k}/s{k}/m{k}.py", b"changed\n")
        second = tree.snapshot()
        begun = time.perf_counter()
        for _ in range(3):
            tree.restore(first)
            tree.restore(second)
            assert tree.snapshot() == second
        assert time.perf_counter() - begun < 9 * 1.0
