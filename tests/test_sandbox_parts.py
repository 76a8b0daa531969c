"""The parts of the sandbox by themselves: the filter in an interpreter of its own, streams, disk, groups, the view."""

import errno
import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest

from rtmc.gymenvs.isolation import bubblewrap, cgroups, seccomp, view
from rtmc.gymenvs.isolation.contract import Limits
from rtmc.gymenvs.isolation.disk import Disk, added
from rtmc.gymenvs.isolation.rlimits import wanted
from rtmc.gymenvs.isolation.supervise import Capture
from rtmc.gymenvs.isolation.watch import descendants, shared_out, unlinked, usage
from tests.sandbox_help import PYTHON
from tests.swe_trees import open_folder, run_as_nobody

ALLOW, KILL = "allow", "kill"
# Of each machine: its number in the kernel's AUDIT_ARCH, and system calls by their kernel tables.
MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0,
            "clone": 56,
            "socket": 41,
            "mount": 165,
            "chmod": 90,
            "openat": 257,
            "memfd_create": 319,
            "fallocate": 285,
            "setxattr": 188,
            "lsetxattr": 189,
            "fsetxattr": 190,
            "getxattr": 191,
            "removexattr": 197,
            "setxattrat": 463,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "read": 63,
            "clone": 220,
            "socket": 198,
            "mount": 40,
            "fchmodat": 53,
            "openat": 56,
            "memfd_create": 279,
            "fallocate": 47,
            "setxattr": 5,
            "lsetxattr": 6,
            "fsetxattr": 7,
            "getxattr": 8,
            "removexattr": 14,
            "setxattrat": 463,
        },
    ),
}


def decided(program, architecture, number, *arguments):
    """What a classic BPF program says to a system call, step by step as the kernel's documentation has it."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at, held = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:  # load a word
            (held,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:  # return
            if value == 0x7FFF0000:
                return ALLOW
            return KILL if value == 0x80000000 else errno.errorcode[value & 0xFFFF]
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += yes if holds else no


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("count_memory", [False, True])
def test_the_filter(machine, count_memory):
    architecture, calls = MACHINES[machine]
    program = seccomp.program(count_memory, machine)
    assert len(program) // 8 <= 4096  # the kernel's limit

    def say(name, *arguments):
        return decided(program, architecture, calls[name], *arguments)

    assert say("read") == ALLOW
    assert say("mount") == "EPERM"
    assert say("clone", 0x11) == ALLOW
    assert say("clone", 0x003D0F00) == ALLOW  # a thread's flags
    for bit in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert say("clone", bit | 0x11) == "EPERM"
    assert [say("socket", family) for family in (1, 2, 10)] == [ALLOW] * 3
    assert {say("socket", family) for family in (0, 3, 16, 17, 38, 40, 44)} == {"EAFNOSUPPORT"}
    creates = 0o100 | 0o1
    assert say("openat", 0, 0, creates, 0o644) == ALLOW
    assert say("openat", 0, 0, creates, 0o4755) == "EPERM"
    assert say("openat", 0, 0, 0, 0o6755) == ALLOW  # no file is made, and the mode means nothing
    chmod, before = ("chmod", 1) if "chmod" in calls else ("fchmodat", 2)
    assert say(chmod, *[0] * before, 0o1777) == ALLOW
    assert say(chmod, *[0] * before, 0o2755) == "EPERM"
    assert say("memfd_create") == ("EPERM" if count_memory else ALLOW)
    assert decided(program, architecture, 435) == "ENOSYS"
    for name in ("fallocate", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "setxattrat"):
        assert say(name) == errno.errorcode[errno.EOPNOTSUPP]
    assert say("getxattr") == ALLOW
    assert decided(program, 0x40000003, 0) == KILL  # a 32-bit call
    if machine == "x86_64":
        assert decided(program, architecture, 0x40000000) == KILL


def test_every_call_is_in_one_table_alone():
    for column in range(2):
        tables = [seccomp._CALLS, seccomp._HIDDEN_MEMORY, seccomp._NOT_THERE, seccomp._NOT_SUPPORTED]
        numbers = [pair[column] for table in tables for pair in table.values()]
        numbers += [pair[column] for pair, _, _ in seccomp._MODES]
        numbers += [pair[column] for pair in (seccomp._SOCKET, seccomp._SOCKETPAIR, seccomp._CLONE)]
        numbers = [number for number in numbers if number is not None]
        assert len(numbers) == len(set(numbers))


def test_an_unknown_machine():
    with pytest.raises(ValueError, match="no table of system calls for riscv64"):
        seccomp.program(machine="riscv64")


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
@pytest.mark.parametrize("piece", [1, 3, 64])
def test_a_stream_is_kept_at_both_ends(limit, piece):
    for size in (0, 1, limit - 1, limit, limit + 1, 3 * limit + 5):
        data = bytes(97 + at % 26 for at in range(size))
        capture = Capture(limit)
        for at in range(0, size, piece):
            capture.add(data[at : at + piece])
        assert capture.total == size
        if size <= limit:
            assert capture.text() == data.decode()
        else:
            head, tail = data[: limit // 2].decode(), data[size - (limit - limit // 2) :].decode()
            assert capture.text() == f"{head}\n[... {size - limit} bytes left out ...]\n{tail}"


def total(tree, since, enough=1 << 40):
    return next(value for value in added(str(tree), since, enough) if value is not None)


def test_what_was_added_to_a_tree(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/old").write_bytes(b"x" * 50_000)
    (tmp_path / "outside").symlink_to("/usr")
    later = time.time() + 0.01
    time.sleep(0.03)
    assert total(tmp_path, later) == 0
    (tmp_path / "a/b/new").write_bytes(b"x" * 100_000)
    found = total(tmp_path, later)
    on_disk = (tmp_path / "a/b/new").stat().st_blocks * 512
    assert on_disk <= found <= on_disk + 3 * 8192  # and the folder it was put in
    os.utime(tmp_path / "a/b/new", (0, 0))  # the time of change cannot be set back
    assert total(tmp_path, later) == found
    assert total(tmp_path / "missing", later) == 0


def test_many_entries_come_in_turns_and_end_early(tmp_path, monkeypatch):
    monkeypatch.setattr("rtmc.gymenvs.isolation.disk._LOOKS_A_TURN", 100)
    for number in range(250):
        (tmp_path / str(number)).touch()
    values = list(added(str(tmp_path), 0, 1 << 40))
    assert values[:-1] == [None, None]
    assert values[-1] >= 250 * 512
    assert list(added(str(tmp_path), 0, 60 * 512))[-1] > 60 * 512


def test_a_tree_is_walked_when_it_could_have_grown_over_its_limit(tmp_path, monkeypatch):
    walks = []
    monkeypatch.setattr("rtmc.gymenvs.isolation.disk.added", lambda *told: walks.append(told) or added(*told))
    disk = Disk(str(tmp_path), time.time() - 0.05)
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    os.sync()
    assert not disk.passed(1 << 40, 0.0)  # far from the limit, whatever others write there meanwhile
    assert (walks, disk.total) == ([], 0)
    assert disk.passed(2 << 20, 0.0)
    assert len(walks) == 1
    assert disk.is_full(2 << 20)
    assert not disk.is_full(4 << 20)
    (tmp_path / "a").unlink()
    assert not disk.is_full(2 << 20)
    # After enough running time without a reason: something else may have made room meanwhile.
    disk.cost_s, before = 0.5, len(walks)
    assert not disk.passed(1 << 40, 9.0)
    assert len(walks) == before
    (tmp_path / "b").write_bytes(b"x" * (3 << 20))
    assert not disk.passed(1 << 40, 2.0)
    assert len(walks) == before + 1
    assert disk.total >= 3 << 20


def test_folders_too_deep_to_follow_count_as_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("rtmc.gymenvs.isolation.disk._LONGEST_STEP", 40)
    monkeypatch.setattr("rtmc.gymenvs.isolation.disk._DEEPEST_STEPS", 3)
    place = tmp_path
    for _ in range(5):
        place = place / ("d" * 15)
    place.mkdir(parents=True)
    (place / "file").write_bytes(b"x" * 9000)
    assert total(tmp_path, 0) >= 9000
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        place = place / ("d" * 15)
    place.mkdir(parents=True)
    assert total(tmp_path, 0, enough=1 << 40) == (1 << 40) + 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_closed_folders_of_ours_are_looked_into():
    """Without root's powers, and only if asked: their modes are as before."""

    def work(place) -> None:
        for mode in (0o300, 0o400, 0):
            outer = place / f"{mode:o}"
            (outer / "in/deeper").mkdir(parents=True)
            (outer / "in/deeper/f").write_bytes(b"x" * 500_000)
            (outer / "in/deeper").chmod(mode)
            outer.chmod(mode)
        assert total(place, 0) < 500_000
        found = next(value for value in added(str(place), 0, 1 << 40, True) if value is not None)
        assert 1_500_000 <= found < 1_700_000
        for mode in (0o300, 0o400, 0):
            assert (place / f"{mode:o}").stat().st_mode & 0o777 == mode
            found = next(value for value in added(str(place / f"{mode:o}"), 0, 1 << 40, True) if value is not None)
            assert 500_000 <= found < 600_000  # the top of what is walked may be closed too
            assert (place / f"{mode:o}").stat().st_mode & 0o777 == mode
            (place / f"{mode:o}").chmod(mode | 0o500)
            assert (place / f"{mode:o}/in/deeper").stat().st_mode & 0o777 == mode
        assert next(value for value in added(str(place), 0, 1000, True) if value is not None) > 1000  # ends early
        assert (place / "0/in/deeper").stat().st_mode & 0o777 == 0

    with open_folder() as place:
        run_as_nobody(lambda: work(place))


def test_processes_that_hide_their_files_are_known():
    """Without root's powers: one that hid its descriptors may hold more than is seen, the first process aside."""
    waits = "print(flush=True)\ninput()"
    hides = f"import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{waits}"

    def work() -> None:
        device = os.stat("/").st_dev
        started = [
            subprocess.Popen([PYTHON, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for script in (waits, hides)  # not this process: what its libraries have mapped cannot be asked
        ]
        with started[0] as plain, started[1] as hidden:
            for child in started:
                child.stdout.readline()
            assert unlinked([plain.pid], device)[1] is False
            assert unlinked([plain.pid, hidden.pid], device)[1] is True
            assert unlinked([hidden.pid, plain.pid], device)[1] is False
            for child in started:
                child.stdin.close()

    run_as_nobody(work)


def test_processes_are_counted_with_their_memory():
    program = "import os, time; x = bytearray(b'x' * 40_000_000); os.fork() or os.setsid(); os.write(1, b'1\\n')"
    program += "; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(4) == b"1\n1\n"
            pids = descendants(process.pid)
            assert len(pids) == 2
            used = usage(pids)
            assert used.tasks == 2
            assert 80e6 < used.resident < 300e6
            assert 40e6 < shared_out(pids) < 80e6  # the two share what neither wrote since
            assert used.cpu_s > 0
        finally:
            for pid in descendants(process.pid):
                os.kill(pid, 9)


def test_a_start_ends_only_what_lost_its_starter():
    """By the starter's number, start time and process namespace; a number of another namespace means nothing here."""
    here, elsewhere = cgroups.pid_namespace(), cgroups.pid_namespace() + 1
    me, started = os.getpid(), cgroups.start_time(os.getpid())
    starters = [f"{here}-{me}-{started}", f"{here}-{me}-{started + 1}", f"{elsewhere}-{me}-{started + 1}", "odd"]
    children = [subprocess.Popen(["sleep", "60"], env={"SANDBOX_OWNER": starter}) for starter in starters]
    try:
        assert bubblewrap.sweep() >= 1
        assert children[1].wait(5) == -9
        time.sleep(0.05)
        assert [child.poll() for child in children] == [None, -9, None, None]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_nobody_waited_for_is_gone():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert cgroups.start_time(child.pid) is None
    child.wait()


def test_rlimits():
    import resource

    group = cgroups.Group(2, {})
    bound = wanted(Limits(cpu_s=7, processes=5), group, 1, counted_alone=True)
    assert bound[resource.RLIMIT_CPU] == (7, 8)
    assert bound[resource.RLIMIT_CORE] == (0, 0)
    assert resource.RLIMIT_AS not in bound
    bound = wanted(Limits(processes=5, memory_bytes=1 << 30), None, 1, counted_alone=True)
    assert bound[resource.RLIMIT_NPROC] == (6, 6)
    assert bound[resource.RLIMIT_AS] == (3 << 30, 3 << 30)
    assert wanted(Limits(processes=5), None, 1, counted_alone=False)[resource.RLIMIT_NPROC][0] > 6


def test_where_groups_of_version_2_are_made(tmp_path):
    """The nearest folder above that hands both controllers on; a fake hierarchy, files as the kernel has them."""
    inner = tmp_path / "user/session"
    inner.mkdir(parents=True)
    for folder, controllers, handed_on in (
        (tmp_path, "cpu memory pids", "cpu memory pids"),
        (tmp_path / "user", "cpu memory pids", "memory pids"),
        (inner, "memory", ""),
    ):
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(handed_on)
    found = cgroups._unified((tmp_path, "/"), "/user/session")
    assert found == cgroups.Places(2, {"memory": tmp_path / "user", "pids": tmp_path / "user"})
    (tmp_path / "user/cgroup.controllers").write_text("cpu")
    assert cgroups._unified((tmp_path, "/"), "/user/session").parents["pids"] == tmp_path
    (tmp_path / "cgroup.controllers").write_text("cpu")
    assert cgroups._unified((tmp_path, "/"), "/user/session") is None


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_group_is_told(tmp_path, version):
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "pids.events").write_text("max 9\n")
    group = cgroups.Group(version, {"memory": tmp_path, "pids": tmp_path})
    group.limit(Limits(memory_bytes=1 << 20, processes=10), overhead=2)
    assert (tmp_path / "pids.max").read_text() == "12"
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    assert (tmp_path / name).read_text() == str(1 << 20)
    assert (group.ooms(), group.refusals()) == (2, 9)


def layout(tmp_path, **options):
    (tmp_path / "tree").mkdir(exist_ok=True)
    told = {"inside": "/testbed", "readable": (), "hidden": (), "path": (), "env": None} | options
    return view.make_layout(tmp_path / "tree", **told)


def test_the_view_hides_the_package_wherever_it_is_shown(tmp_path, monkeypatch):
    shown = tmp_path / "shown"
    (shown / "lib/package").mkdir(parents=True)
    monkeypatch.setattr(view, "OWN_FOLDER", shown / "lib/package")
    steps = layout(tmp_path, readable=[(shown, "/data"), (shown / "lib", "/more")]).steps(Limits(), (1000, 1000))
    masks = [step.inside for step in steps if step.kind == "tmpfs" and step.size == 4096]
    assert masks == ["/data/lib/package", "/more/package"]
    kinds = [step.kind for step in steps]
    assert kinds[-2:] == ["seal", "seal"]
    with pytest.raises(ValueError, match="answers"):
        layout(tmp_path, readable=[shown / "lib/package"])


def test_the_view_hides_the_cache_and_secrets_wherever_they_are_shown(tmp_path, monkeypatch):
    shown = tmp_path / "shown"
    (shown / "cache/runtime").mkdir(parents=True)
    (shown / "records").mkdir()
    (shown / "tasks.jsonl").write_text("{}")
    (tmp_path / "alias").symlink_to(shown)
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "alias/cache"))
    readable = [(shown, "/data"), (shown / "cache/runtime", "/opt/python")]
    secret = [tmp_path / "alias/records", shown / "tasks.jsonl", shown / "absent", tmp_path / "elsewhere"]
    steps = layout(tmp_path, readable=readable, secret=secret).steps(Limits(), (1000, 1000))
    masks = [step.inside for step in steps if step.kind == "tmpfs" and step.size == 4096]
    assert sorted(masks) == ["/data/cache", "/data/records"]
    assert [step.inside for step in steps if step.source == "/dev/null"] == ["/data/tasks.jsonl"]
    assert [step.source for step in steps if step.inside == "/opt/python"] == [str(shown / "cache/runtime")]
    monkeypatch.delenv("RTMC_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pathlib.Path, "home", lambda: shown)
    (shown / ".cache/rtmc").mkdir(parents=True)
    steps = layout(tmp_path, readable=readable).steps(Limits(), (1000, 1000))
    assert [step.inside for step in steps if step.kind == "tmpfs" and step.size == 4096] == ["/data/.cache/rtmc"]


def test_a_hidden_link_is_refused(tmp_path):
    (tmp_path / "shown/real").mkdir(parents=True)
    (tmp_path / "shown/link").symlink_to("real")
    with pytest.raises(ValueError, match="name the real place"):
        layout(tmp_path, readable=[(tmp_path / "shown", "/data")], hidden=["/data/link"]).steps(Limits(), (1, 1))


def test_the_view_names_no_home_and_no_variable_file(tmp_path):
    steps = layout(tmp_path).steps(Limits(), (1000, 1000))
    tops = {"/" + step.inside.split("/")[1] for step in steps}
    assert tops <= {
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/nix",
        "/gnu",
        "/etc",
        "/proc",
        "/dev",
        "/tmp",
        "/testbed",
        "/",
    }
    binds = [step for step in steps if step.kind == "bind"]
    assert [(step.inside, step.source) for step in binds] == [("/testbed", str((tmp_path / "tree").resolve()))]
    etc = {step.inside for step in steps if step.inside.startswith("/etc/")}
    assert not etc & {"/etc/shadow", "/etc/ssh", "/etc/ssl", "/etc/environment", "/etc/hostname", "/etc/resolv.conf"}


def test_every_pair_of_bounds_fits_the_disk():
    for size in (1, 4096, 1 << 20, 1 << 30):
        limits = Limits(disk_bytes=size)
        assert limits.tmp_bytes + limits.tree_bytes <= max(size, 8192)
