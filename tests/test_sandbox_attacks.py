"""Attacks on the machine's means, each contained and the sandbox usable afterwards, on every backend that isolates.

This file holds the dangerous ones and can be run alone, in a machine or control group that may be lost:
``python -m pytest tests/test_sandbox_attacks.py``. Limits are small, so that a hole shows before it hurts. Where
control groups hold memory and processes, the tests of these two run a second time without them.
"""

import ctypes
import os
import secrets
import shutil
import threading
import time
from pathlib import Path

import pytest

from rtmc.gymenvs.isolation import bubblewrap, cgroups, supervise, users
from rtmc.gymenvs.isolation.launcher import INOTIFY_INSTANCES
from rtmc.gymenvs.sandbox import Limits, open_sandbox
from tests.sandbox_help import BACKENDS, PYTHON, TOKEN, Shared, contained, left_behind, need, python
from tests.swe_trees import open_folder, run_as_nobody

MB = 1 << 20
LIMITS = Limits(
    wall_s=20.0, cpu_s=15, memory_bytes=192 * MB, processes=40, file_bytes=24 * MB, disk_bytes=64 * MB, open_files=64
)


@pytest.fixture(scope="module")
def shared_boxes(tmp_path_factory):
    boxes = Shared(tmp_path_factory.mktemp("attacks"), limits=LIMITS)
    yield boxes
    boxes.close()


@pytest.fixture(params=BACKENDS)
def box(request, shared_boxes, tmp_path):
    if "bounds" in request.fixturenames:  # which a sandbox takes when it is opened
        with contained(request.param, tmp_path / "tree", LIMITS) as sandbox:
            yield sandbox
    else:
        with shared_boxes.box(request.param) as sandbox:
            yield sandbox


@pytest.fixture
def open_place():
    with open_folder() as folder:
        yield folder


@pytest.fixture(params=["control groups", "rlimits"])
def bounds(request, monkeypatch):
    """What holds memory and processes; named before `box` by the tests that run with both."""
    monkeypatch.setattr(supervise, "_AT_BOUND_S", 0.3)  # a bomb goes on until then
    if request.param == "rlimits":
        monkeypatch.setattr(cgroups, "places", lambda: None)
    elif cgroups.places() is None:
        pytest.skip("no control group can be made here")
    return request.param


@pytest.mark.parametrize(
    "bomb",
    [
        ":(){ :|:& };: ; sleep 5",
        f"{PYTHON} -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
    ],
)
def test_fork_bomb(bounds, box, bomb):
    most = 0
    done_now = threading.Event()

    def count():
        nonlocal most
        while not done_now.is_set():
            most = max(most, len(left_behind(token)))
            time.sleep(0.02)

    token = secrets.token_hex(8)
    counting = threading.Thread(target=count)
    counting.start()
    try:
        done = box.run(bomb, env={TOKEN: token}, limits=Limits(wall_s=4.0, processes=30, memory_bytes=192 * MB))
    finally:
        done_now.set()
        counting.join()
    assert done.seconds < 8
    assert 2 <= most <= 30
    assert left_behind(token) == []


def test_memory_bomb_in_one_process(bounds, box):
    done = python(box, "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))")
    if bounds == "control groups":
        assert (done.exit_code, done.stopped) == (-1, "memory")
    else:  # the ceiling of the address space may come first
        assert done.stopped == "memory" or "MemoryError" in done.stderr
    assert done.seconds < 15


def test_memory_bomb_of_many_processes(bounds, box):
    """Each below any limit of a process, together above the sandbox's."""
    done = python(
        box,
        """
        import os, time
        for _ in range(12):
            if os.fork() == 0:
                held = bytearray(b"x" * (32 << 20))
                time.sleep(30)
        time.sleep(30)
        """,
    )
    assert (done.exit_code, done.stopped) == (-1, "memory")
    assert done.seconds < 15


def test_memory_that_no_process_shows(bounds, box):
    """Anonymous files and System V shared memory are counted by control groups, and refused without them."""
    done = python(
        box,
        """
        import os
        try:
            made = os.memfd_create("x")
            for _ in range(512):
                os.write(made, b"x" * (1 << 20))
            print("wrote it all")
        except PermissionError:
            print("refused")
        """,
        limits=Limits(memory_bytes=192 * MB, file_bytes=1024 * MB),
    )
    assert "wrote it all" not in done.stdout
    assert (done.stopped == "memory") if bounds == "control groups" else (done.stdout == "refused\n")


def test_threads_are_counted(bounds, box):
    done = python(
        box,
        """
        import threading, time
        started = 0
        try:
            for _ in range(200):
                threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
                started += 1
        except RuntimeError:
            pass
        print(started, flush=True)
        import os; os._exit(0)
        """,
    )
    assert 5 < int(done.stdout) < LIMITS.processes  # the main thread counts


def test_disk_fill_of_the_tree(box):
    done = python(box, "for i in range(1000):\n  open(f'f{i}', 'wb').write(b'x' * (8 << 20))")
    assert (done.exit_code, done.stopped) == (-1, "disk")
    box.run("rm -f f*")


@pytest.mark.parametrize("how", ["cp", "fallocate"])
def test_disk_fill_before_anyone_looks(box, how):
    """It has ended before the first look; what is then full can be emptied and not be filled further."""
    if how == "cp":
        done = box.run("head -c 20M /dev/zero > a; cp a b; cp a c; cp a d; echo end")
    else:
        source = (
            "import os\nfor i in range(40): os.posix_fallocate(os.open(f'f{i}', os.O_CREAT | os.O_RDWR), 0, 20 << 20)"
        )
        done = python(box, source)
    assert (done.exit_code, done.stopped) == (-1, "disk")
    tree = box._layout.tree
    held = used(tree)
    assert LIMITS.tree_bytes < held < 20 * LIMITS.tree_bytes
    for command in (
        "head -c 20M /dev/zero > more",
        "cat a a > more",
        f'{PYTHON} -c \'open("more", "wb").write(b"x" * 9999)\'',
    ):
        done = box.run(command)
        assert (done.exit_code, done.stopped) == (-1, "disk")
        assert used(tree) <= held + 16384
    done = box.run("rm -f *; ls; echo made room")
    assert (done.exit_code, done.stopped, done.stdout) == (0, None, "made room\n")


def used(tree):
    return sum(path.stat().st_blocks * 512 for path in tree.iterdir())


def test_disk_fill_by_files_without_a_name(box):
    done = python(
        box,
        """
        import os, time
        held = []
        for i in range(20):
            held.append(open(f"f{i}", "wb"))
            os.unlink(f"f{i}")
            held[-1].write(b"x" * (8 << 20))
            held[-1].flush()
        time.sleep(15)
        """,
    )
    assert (done.exit_code, done.stopped) == (-1, "disk")


def test_disk_fill_by_mappings_of_files_without_a_name(box):
    done = python(
        box,
        """
        import ctypes, os, time
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        for i in range(20):
            file = os.open(f"f{i}", os.O_RDWR | os.O_CREAT)
            os.unlink(f"f{i}")
            os.write(file, b"x" * (8 << 20))
            assert libc.mmap(None, 4096, 1, 2, file, 0) not in (None, 2**64 - 1)
            os.close(file)
        time.sleep(15)
        """,
    )
    assert (done.exit_code, done.stopped) == (-1, "disk")


@pytest.mark.parametrize("make", ["os.mkdir(f'd{i}')", "os.symlink('x' * 3000, f'd{i}')"])
def test_a_full_tree_does_not_grow_by_what_is_no_file(box, make):
    limits = Limits(disk_bytes=8 * MB, file_bytes=8 * MB, wall_s=30)
    done = box.run("head -c 7M /dev/zero > a; sync", limits=limits)
    assert done.stopped == "disk"
    for _ in range(2):
        source = f"import os, uuid\nos.mkdir(n := str(uuid.uuid4()))\nos.chdir(n)\nfor i in range(10**6): {make}"
        began = time.monotonic()
        done = python(box, source, limits=limits)
        assert (done.exit_code, done.stopped) == (-1, "disk")
        assert time.monotonic() - began < 15
    done = box.run("rm -rf *; echo made room", limits=Limits(wall_s=60))
    assert (done.stopped, done.stdout) == (None, "made room\n")


def test_disk_fill_by_many_small_files(box):
    done = python(
        box,
        """
        import os
        for i in range(10**6):
            if i % 1000 == 0:
                os.makedirs(f"d{i}")
            os.close(os.open(f"d{i // 1000 * 1000}/{i}", os.O_CREAT))
        """,
        limits=Limits(wall_s=20, disk_bytes=2 * MB),
    )
    assert (done.exit_code, done.stopped) == (-1, "disk")
    box.run("rm -rf d*")


def test_tmp_and_shm_are_small(box):
    done = box.run("head -c 200M /dev/zero > /tmp/a; head -c 200M /dev/zero > /dev/shm/a; ls -s /tmp /dev/shm")
    assert (
        done.stderr.count("No space left") + done.stderr.count("File size limit") + done.stderr.count("too large") >= 1
    )
    assert done.stopped is None
    assert box.run("ls -A /tmp /dev/shm").stdout.split() == ["/dev/shm:", "/tmp:"]


def test_file_of_one_gigabyte(box):
    done = box.run("head -c 1G /dev/zero > big; truncate -s 1G sparse; echo end")
    assert done.stdout == "end\n"
    assert (box.run("stat -c %s big").stdout or "0\n") <= f"{LIMITS.file_bytes}\n"
    assert box.run("stat -c %s sparse").stdout in ("", "0\n")
    box.run("rm -f big sparse")


@pytest.mark.parametrize("command", ["yes", "yes >&2", "cat /dev/zero", "yes | head -c 400M"])
def test_endless_output(box, command):
    began = time.monotonic()
    done = box.run(command, limits=Limits(output_bytes=65536))
    assert (done.exit_code, done.stopped) == (-1, "output")
    assert time.monotonic() - began < 10
    for text in (done.stdout, done.stderr):
        assert len(text) <= 65536 + 100


@pytest.mark.parametrize(
    "command",
    [
        "sleep 999 & echo out",
        "setsid sleep 999 & echo out",
        "nohup sleep 999 & echo out",
        "setsid nohup sh -c 'trap \"\" TERM HUP INT; (sleep 999 &) ; sleep 999' >/dev/null 2>&1 & echo out",
        "(setsid sh -c 'sleep 999 & exec 1>&- 2>&- ; wait' &) ; sleep 0.2; echo out",
    ],
)
def test_background_processes_end_with_the_command(bounds, box, command):
    done = box.run(command)
    assert (done.exit_code, done.stdout) == (0, "out\n")
    assert done.seconds < 5


def test_processes_end_at_the_wall_time(bounds, box):
    done = box.run(
        "echo out; trap '' TERM INT HUP; setsid sleep 999 & while :; do sleep 1; done", limits=Limits(wall_s=0.5)
    )
    assert (done.exit_code, done.timed_out, done.stopped, done.stdout) == (-1, True, "wall time", "out\n")
    assert done.seconds < 5


def test_cpu_is_bounded(box):
    done = box.run("while :; do :; done", limits=Limits(wall_s=10, cpu_s=1))
    assert done.exit_code in (128 + 9, 128 + 24)
    assert done.seconds < 8


def test_kernel_counts_by_user_are_not_shared(box, tmp_path):
    """A command that takes every inotify instance it can get takes none from root or from another sandbox."""
    if not users.is_root():
        pytest.skip("as another user than root the counts are that user's")
    take = "import ctypes, sys\nlibc = ctypes.CDLL(None)\ntaken = 0\n"
    take += "while taken < 2000 and libc.inotify_init() >= 0: taken += 1\n"
    greedy = threading.Thread(
        target=python,
        args=(box, take + "open('taken', 'w').write(str(taken))\nsys.stdin.read()\nimport time; time.sleep(0.6)"),
        kwargs={"limits": Limits(open_files=4096)},
    )
    greedy.start()
    try:
        file, until = box._layout.tree / "taken", time.monotonic() + 10
        while not (file.exists() and file.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        most = int(Path("/proc/sys/user/max_inotify_instances").read_text())
        assert int(file.read_text()) in (most, 2000)  # all there were for it
        instance = ctypes.CDLL(None).inotify_init()
        assert instance >= 0
        os.close(instance)
        with contained(box.backend, tmp_path / "other") as other:
            assert python(other, take.replace("2000", "8") + "print(taken)").stdout == "8\n"
    finally:
        greedy.join()


def test_inotify_instances_are_bounded_as_another_user(open_place, monkeypatch):
    def work() -> None:
        (open_place / "tree").mkdir()
        with open_sandbox(open_place / "tree", backend="bwrap") as one:
            if not bubblewrap._apart(shutil.which("bwrap")):
                return
            source = "import ctypes\nlibc, taken = ctypes.CDLL(None), 0\n"
            source += "while libc.inotify_init() >= 0: taken += 1\nprint(taken)"
            assert python(one, source).stdout == f"{INOTIFY_INSTANCES}\n"

    need("bwrap")
    monkeypatch.setattr(cgroups, "places", lambda: None)  # root's
    run_as_nobody(work)


def test_reading_the_input(box):
    done = box.run("read line; echo $?; cat; head -c 1 | wc -c", limits=Limits(wall_s=5))
    assert (done.stdout, done.stopped) == ("1\n0\n", None)
    done = python(box, "input()")
    assert "EOFError" in done.stderr


def test_deep_folders(box):
    done = python(
        box,
        """
        import os
        for i in range(400):  # past the longest path twice
            os.mkdir("d" * 20)
            os.chdir("d" * 20)
        open("end", "w").write("x")
        import time; time.sleep(0.4)
        print("made")
        """,
    )
    assert (done.stdout, done.stopped) == ("made\n", None)
    done = box.run("rm -rf dddddddddddddddddddd; ls -A")
    assert done.stdout == ""
