"""What a sandbox promises: commands, input, output, limits, the view, the refusals; attacks are in their own file."""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rtmc.gymenvs import sandbox as rooms
from rtmc.gymenvs.isolation import bubblewrap, cgroups, users
from rtmc.gymenvs.isolation.contract import Probe
from rtmc.gymenvs.sandbox import Limits, SandboxError, open_sandbox, probe_sandboxes
from tests.sandbox_help import BACKENDS, TOKEN, Shared, left_behind, need

EVERY = (*BACKENDS, "plain")


@pytest.fixture(scope="module")
def shared_boxes(tmp_path_factory):
    boxes = Shared(tmp_path_factory.mktemp("sandbox"))
    yield boxes
    boxes.close()


@pytest.fixture
def tree(request, tmp_path):
    """The sandbox's, where the test has one."""
    for name in {"box", "isolated"} & set(request.fixturenames):
        return request.getfixturevalue(name)._layout.tree
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def opened(tree, backend, **options):
    need(backend)
    return open_sandbox(tree, backend=backend, trusted=backend == "plain", **options)


@pytest.fixture(params=EVERY)
def box(request, shared_boxes):
    with shared_boxes.box(request.param) as sandbox:
        yield sandbox


@pytest.fixture(params=BACKENDS)
def isolated(request, shared_boxes):
    with shared_boxes.box(request.param) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("echo a; echo b >&2; exit 3", 3, "a\n", "b\n"),
        (["/bin/echo", "a b", "$HOME", ";"], 0, "a b $HOME ;\n", ""),
        ("kill -9 $$", 137, "", ""),
        ("kill -TERM $$", 143, "", ""),
        ("a=(1 2); echo ${a[1]}", 0, "2\n", "") if os.path.exists("/bin/bash") else ("echo 2", 0, "2\n", ""),
        ("printf 'caf\\303\\251 \\377'", 0, "café \ufffd", ""),
        ("", 0, "", ""),
    ],
)
def test_a_command(box, command, code, out, err):
    done = box.run(command)
    assert (done.exit_code, done.stdout, done.stderr) == (code, out, err)
    assert (done.timed_out, done.stopped) == (False, None)
    assert 0 < done.seconds < 10


def test_each_command_starts_anew(box):
    box.run("echo kept > file; cd /; export A=1; x=2; umask 077; echo t > /tmp/t")
    done = box.run("pwd; echo $A $x; umask; ls /tmp/t; cat file")
    kept = str(box._layout.tree) if box.backend == "plain" else "/testbed"
    assert done.stdout.replace("/tmp/t\n", "") == f"{kept}\n\n0022\nkept\n"
    if box.backend != "plain":
        assert "/tmp/t" not in done.stdout
    Path("/tmp/t").unlink(missing_ok=True)


def test_what_is_written_in_the_tree_is_there(box, tree):
    assert box.run("mkdir -p a/b && echo text > a/b/c && ln -s c a/b/d").exit_code == 0
    assert (tree / "a/b/d").read_text() == "text\n"
    (tree / "from-outside").write_text("x")
    assert box.run("cat from-outside").stdout == "x"


def test_a_program_that_is_not_there(box):
    if box.backend == "plain":
        with pytest.raises(SandboxError, match="no-such-program"):
            box.run(["no-such-program"])
    else:
        done = box.run(["no-such-program"])
        assert done.exit_code in (1, 127)
        assert "no-such-program" in done.stderr
    assert box.run("no-such-program").exit_code == 127


def test_the_input(box):
    data = secrets.token_bytes(3) + b"\0\n" + b"x" * 300_000
    assert box.run("wc -c", stdin=data).stdout.strip() == str(len(data))
    assert box.run("head -c 2 | wc -c", stdin=data).stdout.strip() == "2"  # the rest is never read
    assert box.run("cat").stdout == ""
    assert box.run("exec 0<&-; sleep 0.1", stdin=data).exit_code == 0


def test_both_streams_at_once(box):
    done = box.run("for i in $(seq 3000); do echo out$i; echo err$i >&2; done")
    assert done.stdout == "".join(f"out{i}\n" for i in range(1, 3001))
    assert done.stderr == "".join(f"err{i}\n" for i in range(1, 3001))


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1999, 5000, 15_999])
def test_long_output_keeps_head_and_tail(box, size):
    text = "".join(chr(ord("a") + at % 26) for at in range(size))
    done = box.run("cat", stdin=text.encode(), limits=Limits(output_bytes=1000))
    if size <= 1000:
        assert done.stdout == text
    else:
        note = f"\n[... {size - 1000} bytes left out ...]\n"
        assert done.stdout == text[:500] + note + text[-500:]
    assert done.stopped is None


def test_environment_and_folder(tree, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    for backend in EVERY:
        with opened(tree, backend, env={"A": "1", "B": "a b\n$c"}, path=["/opt/bin"]) as box:
            text = box.run("env -0", env={"A": "2", "C": ""}).stdout
            found = dict(item.split("=", 1) for item in text.split("\0") if item)
            assert (found["A"], found["B"], found["C"]) == ("2", "a b\n$c", "")
            assert found["PATH"].startswith("/opt/bin:/usr/local/bin:/usr/bin")
            names = {"A", "B", "C", "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "LANG", "TERM", "PWD", "SHLVL", "_"}
            assert set(found) - names == ({"RTMC_SANDBOX_RUN"} if backend == "plain" else set())
            box.run("mkdir -p 'a b'")
            assert box.run("pwd", cwd="/testbed/a b").stdout.endswith("/a b\n")


def test_a_command_longer_than_the_kernel_takes(box):
    line = 'é"`$(\\\n'  # nothing of it means anything between single quotes
    text = "x='" + line * 40_000 + '\'; printf %s "$x" | wc -c; echo "$0"; exit 7'
    assert len(text.encode()) > 131_072
    done = box.run(text)
    short = box.run('echo "$0"')
    assert done.exit_code == 7
    assert done.stdout.split("\n")[1] == short.stdout.strip()
    assert int(done.stdout.split("\n")[0]) == len((line * 40_000).encode())


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"command": "echo \0"}, ValueError, "NUL byte at 5"),
        ({"command": ["a", "b\0"]}, ValueError, "argument 1"),
        ({"command": []}, ValueError, "empty argument list"),
        ({"command": ["a", 1]}, TypeError, "argument 1 is 1"),
        ({"command": ["a", "x" * 200_000]}, ValueError, "stdin"),
        ({"command": "true", "cwd": "relative"}, ValueError, "'relative'"),
        ({"command": "true", "cwd": "/testbed/../etc"}, ValueError, r"'\.\.'"),
        ({"command": "true", "env": {"A=B": "x"}}, ValueError, "'A=B'"),
        ({"command": "true", "env": {"": "x"}}, ValueError, "name"),
        ({"command": "true", "env": {"A": "x\0"}}, ValueError, "NUL"),
        ({"command": "true", "env": {"A": 1}}, TypeError, "'A': 1"),
        ({"command": "true", "mounts": [(Path("/no/such/file"), "/x")]}, ValueError, "/no/such/file"),
        ({"command": "true", "mounts": [(Path("/usr"), "x")]}, ValueError, "'x'"),
        ({"command": "true", "writable": [(Path("/usr"), "/testbed/x")]}, ValueError, "/testbed/x"),
    ],
)
def test_bad_arguments(isolated, arguments, error, match):
    with pytest.raises(error, match=match):
        isolated.run(**arguments)
    assert isolated.run("echo ok").stdout == "ok\n"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"inside": "testbed"}, ValueError, "'testbed'"),
        ({"inside": "/usr"}, ValueError, "'/usr'"),
        ({"inside": "/a/../b"}, ValueError, r"\.\."),
        ({"readable": [Path("/no/such")]}, ValueError, "/no/such"),
        ({"readable": [(Path("/usr"), "/testbed/x")]}, ValueError, "/testbed/x"),
        ({"readable": [Path(rooms.__file__).resolve().parents[1]]}, ValueError, "answers"),
        ({"hidden": ["/testbed/x"]}, ValueError, "/testbed/x"),
        ({"path": ["bin"]}, ValueError, "'bin'"),
        ({"path": ["/a:/b"]}, ValueError, "'/a:/b'"),
        ({"env": {"A": None}}, TypeError, "'A': None"),
        ({"backend": "docker"}, ValueError, "'docker'.*bwrap, unshare, plain"),
        ({"backend": "plain"}, SandboxError, "trusted=True"),
    ],
)
def test_bad_options(tree, options, error, match):
    with pytest.raises(error, match=match):
        open_sandbox(tree, **options)


def test_a_tree_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ValueError, match="no folder"):
            open_sandbox(wrong)


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_bytes", "processes", "output_bytes"])
def test_bad_limits(field):
    for wrong in (0, -1, True, "1", None, float("nan"), float("inf")):
        with pytest.raises((ValueError, TypeError), match=field):
            Limits(**{field: wrong})


@pytest.mark.parametrize("backend", EVERY)
def test_closed(tree, backend):
    box = opened(tree, backend)
    box.close()
    box.close()
    with pytest.raises(SandboxError, match="closed"):
        box.run("true")


def test_readable_hidden_mounts_writable(isolated, tree, tmp_path):
    shown, masked, file, out = (tmp_path / name for name in ("shown", "shown/masked", "file", "out"))
    masked.mkdir(parents=True)
    out.mkdir()
    for path in (shown / "a", masked / "b", file):
        path.write_text(path.name)
    hidden = ["/data/masked", "/data/a", "/data/missing", "/usr/share"]
    with open_sandbox(tree, backend=isolated.backend, readable=[(shown, "/data"), shown], hidden=hidden) as box:
        done = box.run(
            f"ls /data /data/masked; cat /data/a; ls /usr/share | wc -l; cat {shown}/a; touch /data/x /data/masked/x"
        )
        assert done.stdout == "/data:\na\nmasked\n\n/data/masked:\n0\na"
        assert done.stderr.count("Read-only file system") == 2
        if users.is_root():  # another's files: the folder is given to whom the inside is
            os.chown(out, *box.owner)
        done = box.run(
            "cat /x/y; echo new > /out/new; echo x >> /x/y", mounts=[(file, "/x/y")], writable=[(out, "/out")]
        )
        assert (done.stdout, (out / "new").read_text(), file.read_text()) == ("file", "new\n", "file")
        assert box.run("ls /x /out").stdout == ""


def test_secrets_below_what_is_shown(tree, tmp_path, monkeypatch, isolated):
    shown = tmp_path / "shown"
    for name in ("cache/task.json", "records/r", "open/o"):
        (shown / name).parent.mkdir(parents=True)
        (shown / name).write_text("answer")
    (shown / "tasks.jsonl").write_text("answer")
    monkeypatch.setenv("RTMC_CACHE", str(shown / "cache"))
    secret = [shown / "records", shown / "tasks.jsonl"]
    options = {"readable": [(shown, "/data")], "secret": secret, "backend": isolated.backend}
    with open_sandbox(tree, **options) as sandbox:
        done = sandbox.run("cd /data; ls -A cache records; cat open/o cache/* records/* tasks.jsonl; touch cache/x")
        assert done.stdout.split() == ["cache:", "records:", "answer"]


def test_mounts_below_the_tree(isolated, tree, tmp_path):
    (tree / "tests").mkdir()
    (tree / "tests/test_a.py").write_text("agent's")
    (tree / "link").symlink_to("tests")
    (tmp_path / "hidden.py").write_text("ours")
    done = isolated.run(
        "cat tests/test_a.py; echo x > tests/test_a.py; rm -rf tests; cat tests/test_a.py",
        mounts=[(tmp_path / "hidden.py", "/testbed/tests/test_a.py")],
    )
    assert done.stdout == "oursours"
    assert isolated.run("cat tests/test_a.py").stdout == "agent's"
    for wrong in ("/testbed/link/test_a.py", "/testbed/tests/missing.py", "/testbed/tests"):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            isolated.run("true", mounts=[(tmp_path / "hidden.py", wrong)])
    assert sorted(path.name for path in tree.iterdir()) == ["link", "tests"]


def test_many_commands_at_once(box):
    token = secrets.token_hex(8)

    def one(number):
        return box.run(
            f"echo {number}; sleep 0.1; cat; echo err{number} >&2; exit {number}",
            stdin=b"x" * number,
            env={TOKEN: token},
        )

    with ThreadPoolExecutor(16) as pool:
        for number, done in enumerate(pool.map(one, range(16))):
            assert (done.exit_code, done.stdout, done.stderr) == (
                number,
                f"{number}\n" + "x" * number,
                f"err{number}\n",
            )
    assert left_behind(token) == []


def test_a_thread_that_ends_takes_no_command_along(isolated):
    """The kernel ties "dies with its parent" to the thread that started a process."""
    thread = threading.Thread(target=isolated.run, args=("true",))
    thread.start()
    thread.join()
    assert isolated.run("sleep 0.1; echo ok").stdout == "ok\n"


def test_no_descriptors_are_left(box):
    box.run("true")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        box.run("yes | head -c 300000", stdin=b"x")
        box.run("exec 1>&-; sleep 0.05")
        box.run(["no-such-program"]) if box.backend != "plain" else None
        with pytest.raises(ValueError, match="cwd"):
            box.run("true", cwd="x")
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the listing's own


def test_descriptors_are_not_handed_in(isolated):
    with open("/etc/hostname") as file:
        os.set_inheritable(file.fileno(), True)
        # `ls` opens the folder itself.
        assert isolated.run(["/bin/ls", "/proc/self/fd"]).stdout.split() == ["0", "1", "2", "3"]


def test_processes_die_with_the_one_that_opened_the_sandbox(isolated, tree):
    token = secrets.token_hex(8)
    script = f"""
import sys
from pathlib import Path
from rtmc.gymenvs.sandbox import open_sandbox
box = open_sandbox(Path({str(tree)!r}), backend={isolated.backend!r}, env={{{TOKEN!r}: {token!r}}})
print(box.run("echo ready").stdout, end="", flush=True)
box.run("setsid sleep 998 & trap '' TERM HUP; nohup sleep 999; true")
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout.readline() == "ready\n"
            until = time.monotonic() + 20
            while len(left_behind(token)) < 3 and time.monotonic() < until:
                time.sleep(0.02)
            assert len(left_behind(token)) >= 3
        finally:
            starter.send_signal(signal.SIGKILL)
    assert left_behind(token, patience_s=5.0) == []
    places = cgroups.places()
    if places is None:
        return
    name = f"-{starter.pid}-"
    assert any(name in path.name for path in places.parents["pids"].iterdir())
    cgroups.sweep(set(places.parents.values()))
    assert not any(name in path.name for parent in places.parents.values() for path in parent.iterdir())
    assert isolated.run("echo ok").stdout == "ok\n"  # one of a living process is left alone


@pytest.mark.parametrize("at", ["users.maps", "_Job.let_go"])
def test_a_starter_that_dies_during_the_set_up(isolated, tree, at):
    """What is left by then waits without a command, and the next start ends it."""
    if at == "users.maps" and not users.is_root():
        pytest.skip("only root writes the users of a namespace")
    module = "bubblewrap" if isolated.backend == "bwrap" else "namespaces"
    script = f"""
import os, time
from pathlib import Path
from rtmc.gymenvs.isolation import {module}, users
from rtmc.gymenvs.isolation.{module} import _Job
from rtmc.gymenvs.sandbox import open_sandbox
box = open_sandbox(Path({str(tree)!r}), backend={isolated.backend!r})
box.run("true")
{at} = lambda *_: os.kill(os.getpid(), 9)
box.run("touch ran; sleep 600; true")
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    time.sleep(0.1)
    assert not (tree / "ran").exists()
    bubblewrap.sweep()
    until = time.monotonic() + 5
    while (found := commands(str(tree), "sleep 600")) and time.monotonic() < until:
        time.sleep(0.02)
    assert found == []


def commands(*texts):
    """Command lines of processes that hold one of these texts, this one's left out."""
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if name != str(os.getpid()) and any(text in line for text in texts):
            found.append(line)
    return found


def test_groups_are_gone_after_close(isolated):
    places = cgroups.places()
    if places is None:
        pytest.skip("no control group can be made here")
    isolated.run("true")
    mine = f"-{os.getpid()}-"

    def groups():
        return {path for parent in places.parents.values() for path in parent.iterdir() if mine in path.name}

    before = groups()
    with open_sandbox(isolated._layout.tree, backend=isolated.backend) as box:
        box.run("sleep 100 &")
        assert groups() > before
    assert groups() == before


def test_probes_say_what_is_missing(tree, monkeypatch):
    found = probe_sandboxes()
    assert list(found) == ["bwrap", "unshare", "plain"]
    assert all(probe.why for probe in found.values())
    monkeypatch.setattr(rooms, "_probed", {})
    monkeypatch.setenv("PATH", "/nowhere")
    assert not probe_sandboxes()["bwrap"].works
    with pytest.raises(SandboxError, match=r"bwrap.*install the package bubblewrap"):
        open_sandbox(tree, backend="bwrap")


def test_auto_never_comes_to_plain_by_itself(tree, monkeypatch):
    monkeypatch.setattr(rooms, "_probed", {name: Probe(name == "plain", f"{name} told") for name in EVERY})
    with pytest.raises(SandboxError, match=r"bwrap: bwrap told; unshare: unshare told.*trusted=True"):
        open_sandbox(tree)
    with open_sandbox(tree, trusted=True) as box:
        assert box.backend == "plain"


def test_auto_takes_the_first_that_works(tree):
    works = [name for name in BACKENDS if probe_sandboxes()[name].works]
    if not works:
        pytest.skip("no backend that isolates works here")
    with open_sandbox(tree, trusted=True) as box:
        assert box.backend == works[0]


def test_plain_ends_what_the_command_left(tree):
    token = secrets.token_hex(8)
    with opened(tree, "plain", env={TOKEN: token}) as box:
        done = box.run("setsid nohup sleep 997 >/dev/null 2>&1 & (setsid sleep 996 &) ; echo out")
        assert done.stdout == "out\n"
        assert left_behind(token) == []
        done = box.run("setsid sleep 995 & sleep 994", limits=Limits(wall_s=0.3))
        assert done.timed_out
        assert left_behind(token) == []
