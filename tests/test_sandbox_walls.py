"""Attempts to see, reach or change what is outside, each without result and the sandbox usable afterwards.

On every backend that isolates: files, links, secrets, sockets, other processes, programs and start-up files put in the
way of later commands, system calls.
"""

import errno
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import time

import pytest

from rtmc.gymenvs.isolation import bubblewrap, cgroups, users
from rtmc.gymenvs.sandbox import SandboxError, open_sandbox
from tests.sandbox_help import BACKENDS, NEEDS_SANDBOX, PYTHON, Shared, contained, python


@pytest.fixture(scope="module")
def shared_boxes(tmp_path_factory):
    boxes = Shared(tmp_path_factory.mktemp("walls"))
    yield boxes
    boxes.close()


@pytest.fixture(params=BACKENDS)
def box(request, shared_boxes):
    with shared_boxes.box(request.param) as sandbox:
        yield sandbox


def test_writing_outside_the_tree(box, tmp_path):
    (tmp_path / "outside").write_text("host")
    places = (
        "/ /usr /usr/bin /etc /etc/passwd /dev /dev/x /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness /root /home"
    )
    for place in f"{places} {tmp_path} {tmp_path}/outside".split():
        done = box.run(["/bin/sh", "-c", 'if [ -d "$1" ]; then : > "$1/new"; else : > "$1"; fi', "sh", place])
        assert done.exit_code != 0, place
    assert (tmp_path / "outside").read_text() == "host"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]


def test_links_out_of_the_tree(box, tmp_path):
    (tmp_path / "secret").write_text("host")
    back = os.path.relpath(tmp_path, box._layout.tree)
    done = box.run(
        f"ln -s {tmp_path}/secret a; ln -s / root; ln -s {back}/secret up; cat a up root{tmp_path}/secret; echo x > a"
    )
    assert "host" not in done.stdout
    assert (tmp_path / "secret").read_text() == "host"


def test_secrets_of_the_host_are_not_seen(box, tmp_path, monkeypatch):
    secret = "s" + secrets.token_hex(16)
    monkeypatch.setenv("SOME_KEY", secret)
    (tmp_path / "secret").write_text(secret)
    with contained(box.backend, tmp_path / "tree") as fresh:  # opened when there was something to inherit
        done = fresh.run(
            f"cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ; env; cat /etc/shadow; cat {tmp_path}/secret; "
            f"ls {os.path.dirname(__file__)} /root /home /var /run /sys /work; ls -d /proc/{os.getpid()}/cwd/.."
        )
    assert secret not in done.stdout + done.stderr
    assert os.path.basename(__file__) not in done.stdout
    numbers = [int(name) for name in box.run("cd /proc; echo [0-9]*").stdout.split()]
    assert len(numbers) <= 3
    assert max(numbers) < 20


def test_first_process_cannot_be_reached(box):
    done = box.run(
        "cat /proc/1/environ; ls -l /proc/1/fd /proc/1/root/; readlink /proc/1/exe; chmod 755 /proc/1/exe; "
        "kill -9 1; echo end"
    )
    assert done.stdout.endswith("end\n")
    if os.geteuid() == 0:  # else it is the same user, without a right that the command does not have itself
        assert done.stderr.count("ermi") + done.stderr.count("denied") >= 3


def test_no_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + secrets.token_hex(8))
        abstract.listen()
        done = python(
            box,
            f"""
            import socket
            def tried(family, address, kind=socket.SOCK_STREAM):
                try:
                    with socket.socket(family, kind) as one:
                        one.settimeout(2)
                        one.connect(address)
                        print("connected", family, address)
                except OSError as error:
                    print("no:", error)
            tried(socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]}))
            tried(socket.AF_INET, ("8.8.8.8", 53))
            tried(socket.AF_INET, ("8.8.8.8", 53), socket.SOCK_DGRAM)
            tried(socket.AF_INET6, ("::1", {server.getsockname()[1]}))
            tried(socket.AF_UNIX, {abstract.getsockname()!r})
            for number in (16, 17, 38, 40, 44):  # netlink, packet, alg, vsock, xdp
                try:
                    socket.socket(number, socket.SOCK_RAW).close()
                    print("opened", number)
                except OSError as error:
                    print("no:", error)
            """,
        )
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("no:") for line in lines)


def test_sockets_within_the_command_work(box):
    """Test suites talk to themselves; that loopback is the sandbox's own, one for each command."""
    done = python(
        box,
        """
        import socket
        with socket.create_server(("127.0.0.1", 8080)) as server:
            with socket.create_connection(("127.0.0.1", 8080)) as one:
                server.accept()[0].send(b"hello")
                print(one.recv(10))
        """,
    )
    assert done.stdout == "b'hello'\n"


def test_killing_the_parent(box):
    done = box.run(f"kill -9 $PPID; kill -9 {os.getpid()}; kill -9 -1; echo end")
    assert done.stopped is None
    assert done.seconds < 5


@pytest.mark.parametrize("name", ["a\nb", "a b'\"$(id)", "-rf", "ü\udcff"])
def test_strange_names(box, name):
    done = box.run(["/bin/sh", "-c", 'mkdir -- "$1" && : > "$1/file\n2"', "sh", f"./{name}"])
    assert done.exit_code == 0
    done = box.run("pwd; ls", cwd=f"/testbed/{name}")
    assert done.stdout.endswith("file\n2\n")
    assert done.stdout.encode("utf-8", "replace").startswith(f"/testbed/{name}".encode("utf-8", "replace")[:10])


def test_programs_of_the_tree_do_not_stand_in_for_the_systems(box):
    box.run("for p in python3 pytest sh bash ls cat git; do printf '#!/bin/sh\\necho fake\\n' > $p; chmod +x $p; done")
    done = box.run("cp python3 /usr/bin/python3; cp sh /bin/sh; cp sh /usr/local/bin/; export PATH=/testbed:$PATH; ls")
    assert done.stdout == "fake\n"  # in the command that asked for it
    done = box.run("type -p ls bash sh; ls -d /usr; sh -c 'echo real'")
    assert done.stdout.split()[-2:] == ["/usr", "real"]
    assert "fake" not in done.stdout
    assert "/testbed" not in done.stdout


def test_start_files_of_python_in_the_tree(box):
    for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "json.py", "socket.py"):
        box.run(f"echo 'import os; os.system(\"echo ran {name} >> /testbed/ran\")' > {name}")
    box.run(
        "cd; mkdir -p .local/lib/python3.11/site-packages; "
        "echo 'import os; os.abort()' > .local/lib/python3.11/site-packages/x.pth"
    )
    box.run("echo 'import sitecustomize' > x.pth")
    tree = box._layout.tree
    with open_sandbox(tree, backend=box.backend) as another:  # starts programs of ours with the tree in sight
        done = another.run([PYTHON, "-c", "print('real')"])
    assert (done.stdout, done.stderr) == ("real\n", "")
    assert not (tree / "ran").exists()


def test_preloaded_libraries(box):
    box.run("echo broken > evil.so")
    done = box.run("export LD_PRELOAD=/testbed/evil.so; echo /testbed/evil.so > /etc/ld.so.preload; ls -d /usr")
    assert "LD_PRELOAD" in done.stderr or "ld.so" in done.stderr
    done = box.run("ls -d /usr; env")
    assert (done.stdout.splitlines()[0], done.stderr) == ("/usr", "")
    assert "LD_PRELOAD" not in done.stdout


def test_git_configuration_does_not_last(box):
    if box.run("type git").exit_code != 0:
        pytest.skip("there is no git inside")
    box.run(
        "git init -q . && cd .git/hooks && printf '#!/bin/sh\\ntouch /testbed/hooked\\n' > post-commit && chmod +x *"
    )
    box.run("git config --global alias.status '!touch /testbed/aliased'; git config --global core.pager false")
    done = box.run("git config --global --list; git config --system --list; git status --short | head -1")
    assert "alias" not in done.stdout
    assert box.run("ls").stdout == ""


@pytest.mark.parametrize(
    "call",
    [
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "libc.unshare(0x10000000)",
        "libc.unshare(0x20000)",
        "libc.setns(0, 0)",
        "libc.chroot(b'/tmp')",
        "libc.ptrace(16, 1, 0, 0)",
        "libc.syscall(425, 8, ctypes.create_string_buffer(256))",  # io_uring_setup
        "libc.syscall(321 if x86 else 280, 0, ctypes.create_string_buffer(256), 64)",  # bpf
        "libc.syscall(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)",  # clone with a new user namespace
        "libc.chmod(b'/testbed/file', 0o4755)",
        "libc.open(b'/testbed/new', 0o101, 0o6755)",
        "libc.syscall(248 if x86 else 217, b'user', b'x', b'y', 1, -3)",  # add_key
        "libc.setuid(0)",
        "libc.chmod(b'/dev/full', 0o666)",
        "libc.umount2(b'/testbed', 2)",
    ],
)
def test_refused_system_calls(box, call):
    done = python(
        box,
        f"""
        import ctypes, os
        libc, x86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64"
        open("/testbed/file", "w").close()
        result = {call}
        print(result, os.strerror(ctypes.get_errno()))
        """,
    )
    refusals = ["Operation not permitted", "Function not implemented"]
    refusals += ["Invalid argument"] if call == "libc.setuid(0)" else []  # root is no user of the inside at all
    assert done.stdout in [f"-1 {refusal}\n" for refusal in refusals], done.stderr


def test_clone3_falls_back_and_foreign_calls_end_the_process(box):
    done = python(
        box,
        """
        import ctypes, os, errno
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(435, 0, 0)
        print(errno.errorcode[ctypes.get_errno()], flush=True)
        if os.uname().machine == "x86_64":
            libc.syscall(0x40000000 + 39)  # getpid of the x32 table
            print("not reached")
        """,
    )
    assert done.stdout == "ENOSYS\n"


def test_mode_bits_that_would_outlast_the_sandbox(box):
    box.run("cp /bin/sh sh; chmod u+s sh; chmod 2755 .; install -m 4755 /bin/sh sh2; umask 0; mkdir -m 6777 d")
    for path in box._layout.tree.rglob("*"):
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID), path
    box.run("rm -rf sh sh2 d")


def test_attributes_that_would_outlast_the_sandbox(box):
    acl = "struct.pack('<I', 2) + b''.join(struct.pack('<HHI', tag, 0, 2**32 - 1) for tag in (1, 4, 32))"
    done = python(
        box,
        f"""
        import errno, os, struct
        for name, value in (("user.note", b"x"), ("system.posix_acl_default", {acl})):
            for target in (".", os.open(".", os.O_RDONLY)):
                for call in (lambda: os.setxattr(target, name, value), lambda: os.removexattr(target, name)):
                    try:
                        call()
                    except OSError as error:
                        print(errno.errorcode[error.errno])
        """,
    )
    assert done.stdout.split() == [errno.errorcode[errno.EOPNOTSUPP]] * 8
    done = box.run("echo 1 > a; cp -a a b && cp --preserve=mode,timestamps a c && install -m 600 a d && cat b c d")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "1\n" * 3, "")
    box.run("rm a b c d")


def test_it_cannot_put_itself_behind_others_when_memory_runs_out(box):
    done = box.run("echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj; echo 5 > /proc/$$/oom_adj")
    assert done.stdout == "1000\n"


def test_streams_by_name(box):
    done = box.run("echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin | tee /dev/fd/2", stdin=b"in\n")
    assert (done.stdout, done.stderr) == ("out\nin\n", "err\nin\n")


def test_ten_thousand_arguments(box):
    words = ["/bin/sh", "-c", 'printf "%s\\0" "$#" "$1" "$2" "$3" "$10000"; exit 9', "sh"]
    words += ["", "a 'b' \"c\" $d\n`e`", "\udcff\\", *["x"] * 9_997]
    done = box.run(words)
    assert done.exit_code == 9
    assert done.stdout.split("\0")[:3] == ["10000", "", "a 'b' \"c\" $d\n`e`"]
    assert done.stdout.split("\0")[3] == "\ufffd\\"


def test_what_is_readable_below_tmp(box, tmp_path):
    """Its parents lie in the sandbox's own /tmp, and have to be open to the command."""
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("seen")
    places = [(shown, "/tmp/a/b/venv"), (shown / "file", "/tmp/c/d/file"), (shown, "/dev/shm/e/f")]
    with open_sandbox(box._layout.tree, backend=box.backend, readable=places) as another:
        done = another.run(
            "cat /tmp/a/b/venv/file /tmp/c/d/file /dev/shm/e/f/file; ls /tmp; echo x > /tmp/own && cat /tmp/own"
        )
    assert (done.stdout, done.stderr) == ("seenseenseena\nc\nx\n", "")


def test_a_start_in_another_process_namespace_ends_nothing(box, tmp_path):
    """As in a container that shares no process numbers with us: its sandboxes are none of ours to sweep."""
    if not users.is_root():
        pytest.skip("takes root")
    (tmp_path / "tree").mkdir()
    script = f"""
from pathlib import Path
from rtmc.gymenvs.isolation import bubblewrap, cgroups, users
from rtmc.gymenvs.sandbox import SandboxError, open_sandbox
with open_sandbox(Path({str(tmp_path / "tree")!r}), backend={box.backend!r}) as one:
    print(one.run("touch began; while [ ! -e end ]; do sleep 0.02; done; echo survived").stdout, end="")
"""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as live:
        try:
            until = time.monotonic() + 20
            while not (tmp_path / "tree/began").exists() and time.monotonic() < until:
                time.sleep(0.02)
            bubblewrap.sweep()
            cgroups.sweep(set(places.parents.values()) if (places := cgroups.places()) else set())
            time.sleep(0.1)
            (tmp_path / "tree/end").touch()
            assert live.stdout.read() == "survived\n"
        finally:
            live.kill()


@NEEDS_SANDBOX
def test_a_forked_child_leaves_its_parent_s_sandbox_alone(box):
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(SandboxError, match="belongs to the process that opened it"):
                box.run("true")
            box.close()
            os._exit(0)
        finally:
            os._exit(1)
    done = box.run("sleep 1; echo parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (done.stdout, done.exit_code) == ("parent\n", 0)
    assert box.run("echo still").stdout == "still\n"


def test_root_without_its_powers_is_told_what_it_lacks():
    """As root of most containers: no command runs with root's number for want of another, and the reason is given."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, and setpriv of util-linux")
    script = "import sys; from rtmc.gymenvs.isolation import users; from rtmc.gymenvs.sandbox import probe_sandboxes\n"
    script += "if sys.argv[1:]: users.lacking = lambda: None\n"
    script += "print(*(f'{name}|{probe.works}|{probe.why}' for name, probe in probe_sandboxes().items()), sep='\\n')"
    for powers, what in (("sys_admin", "CAP_SYS_ADMIN"), ("setuid", "CAP_SETUID"), ("chown", "CAP_CHOWN")):
        words = ["setpriv", f"--bounding-set=-{powers}", sys.executable, "-c", script]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [line.split("|")[:2] for line in told] == [["bwrap", "False"], ["unshare", "False"], ["plain", "True"]]
        assert all("|root here has no " + what in line or "no program bwrap" in line for line in told[:2])
    began = time.monotonic()  # whatever else is refused is a reason too, and comes at once
    words = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", script, "untold"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "could not set the sandbox up: the users of a namespace (Operation not permitted)" in told[1]
    assert time.monotonic() - began < 20


def test_the_tree_is_given_to_the_agent(tmp_path):
    if not users.is_root():
        pytest.skip("only root hands a tree over")
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/c").write_text("x")
    (tree / "a/out").symlink_to("/etc/hostname")
    before = os.stat("/etc/hostname").st_uid
    with open_sandbox(tree) as box:
        assert box.owner == users.owner()
        assert box.run("echo y >> a/b/c; touch a/b/d; stat -c %u a/b/c a/b/d").stdout == "1000\n1000\n"
    assert (tree / "a/b/c").stat().st_uid == users.AGENT
    assert (tree / "a/out").lstat().st_uid == users.AGENT
    assert os.stat("/etc/hostname").st_uid == before
