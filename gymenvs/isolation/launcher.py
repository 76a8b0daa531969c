"""The program of the backend `unshare`: runs as a process of its own and starts one sandboxed command after another.

    python -I -S launcher.py <socket descriptor> <number of the process that started it>

It has one thread, so it may fork, and it imports the standard library alone. A request comes over the socket with the
descriptors [stdin, stdout, stderr, report, gate]; the answer is the exit code. For each request three processes stand
between this one and the command:

    launcher -- outer: makes the namespaces, waits for the first, ends with its code
                  `-- first: process 1 of the new process namespace; mounts, reports its set-up, waits at the gate
                        `-- the command: gives up what it was allowed, and executes

The outer process writes `pid N`, the first `ready` or `error TEXT` to `report`. Each dies with its parent, and the
launcher when the process that started it is gone; the end of the first is the end of all in its namespace.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
NEW_USER, NEW_NS, NEW_PID, NEW_NET = 0x10000000, 0x20000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ALL_DESCRIPTORS = 1 << 16
INOTIFY_INSTANCES = 16  # of a command, where they count as those of the user who runs this: 128 for all
ROOT_OPTIONS = "mode=755,size=64m,nr_inodes=10k"
# Landlock's rights: execute, write, read, list; then remove and make of each kind; later versions add more.
EXECUTE, WRITE, READ, LIST = 1, 2, 4, 8
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15


def call(result: int, what: str) -> int:
    """The result of a C function, or its error with what it was for."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: Any) -> int:
    return call(LIBC.syscall(ctypes.c_long(number), *arguments), what)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call(
        LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mounting {source} {target}"
    )


def restrict_mount(target: str, attributes: int, deep: bool) -> None:
    """Adds attributes to a mount and, where `deep`, to all below it."""
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = AT_RECURSIVE if deep else 0
    syscall(f"restricting {target}", MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))


def die_with_parent(parent: int) -> None:
    call(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def serve(channel: socket.socket, starter: int) -> None:
    """Takes requests until the other side closes or is gone."""
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    starter_end = os.pidfd_open(starter)
    if os.getppid() != starter:
        return
    while True:
        request, descriptors = receive(channel, starter_end)
        if request is None:
            return
        child = start(request, descriptors)
        end = os.pidfd_open(child)
        gone = select.poll()
        for descriptor in (end, starter_end, channel.fileno()):
            gone.register(descriptor, select.POLLIN)
        if [descriptor for descriptor, _ in gone.poll()] != [end]:
            os.kill(child, signal.SIGKILL)  # whoever asked is gone; the rest dies with it
            os.waitpid(child, 0)
            return
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.sendall(struct.pack("=i", code if code >= 0 else 128 - code))


def start(request: dict[str, Any], descriptors: list[int]) -> int:
    """Forks the outer process of a request; as root, writes the users of its namespace, which it may not itself."""
    me = os.getpid()
    made_read, made_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        guarded(lambda: outer(request, descriptors, me, made_write, go_read), descriptors[3])
    os.close(made_write)
    if os.read(made_read, 1):  # else it ended, and the report says why
        try:
            for name in ("uid_map", "gid_map") if request["maps"] else ():
                with open(f"/proc/{child}/{name}", "w") as file:
                    file.write(request["maps"])
            os.write(go_write, b".")
        except OSError as error:
            text = f"error the users of a namespace ({error.strerror})\n"
            with contextlib.suppress(BrokenPipeError):  # it ended in between, and whoever asked is gone
                os.write(descriptors[3], text.encode())
    for descriptor in [*descriptors, made_read, go_read, go_write]:
        os.close(descriptor)
    return child


def receive(channel: socket.socket, starter_end: int) -> tuple[dict[str, Any] | None, list[int]]:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(starter_end, select.POLLIN)
    data, descriptors, length = b"", array.array("i"), 8
    while len(data) < length:
        if channel.fileno() not in [descriptor for descriptor, _ in poll.poll()]:
            return None, []
        part, extra, _, _ = channel.recvmsg(1 << 16, socket.CMSG_LEN(16 * 4))
        if not part:
            return None, []
        for _, _, content in extra:
            descriptors.frombytes(content[: len(content) // 4 * 4])
        data += part
        if length == 8 and len(data) >= 8:
            length = 8 + struct.unpack("=Q", data[:8])[0]
    return json.loads(data[8:]), list(descriptors)


def guarded(work: Any, report: int) -> None:
    """Runs the work of a child to its end; what goes wrong is reported."""
    try:
        work()
    except BaseException as error:
        os.write(report, b"error " + str(error).encode(errors="replace") + b"\n")
    finally:
        os._exit(1)


def outer(request: dict[str, Any], descriptors: list[int], launcher: int, made: int, go: int) -> None:
    user, group = os.geteuid(), os.getegid()
    for door in request["doors"]:
        with open(door, "w") as file:
            file.write("0")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where the machine itself runs out of memory, this goes first
    if request["maker"]:
        os.setresgid(*[request["maker"]] * 3)
        os.setresuid(*[request["maker"]] * 3)
    call(LIBC.unshare(NEW_USER), "a user namespace (unshare)")
    die_with_parent(launcher)
    os.write(made, b".")
    if not os.read(go, 1):
        os._exit(1)  # what kept the users from being written is reported
    if not request["maps"]:
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    call(LIBC.unshare(NEW_NS | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP), "namespaces (unshare)")
    child = os.fork()
    if child == 0:
        guarded(lambda: first(request, descriptors), descriptors[3])
    os.write(descriptors[3], f"pid {child}\n".encode())
    os.closerange(0, ALL_DESCRIPTORS)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def first(request: dict[str, Any], descriptors: list[int]) -> None:
    # Should the parent be gone already, so is whoever opens the gate: the read below comes to nothing.
    call(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    call(LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")  # the inside cannot look into it
    os.umask(0o022)
    socket.sethostname("sandbox")
    loopback_up()
    if not request["maker"]:  # else they are counted apart already
        with contextlib.suppress(OSError), open("/proc/sys/user/max_inotify_instances", "w") as file:
            file.write(str(INOTIFY_INSTANCES))
    build(request["steps"])
    report, gate = descriptors[3], descriptors[4]
    os.write(report, b"ready\n")
    if os.read(gate, 1) != b".":
        os._exit(1)
    child = os.fork()
    if child == 0:
        execute(request, descriptors)
    os.closerange(0, ALL_DESCRIPTORS)
    drop_capabilities()
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("=16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def build(steps: list[list[Any]]) -> None:
    """The root of the inside. The host's lies at /old and the new one grows at /new until the old is let go."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name in ("old", "new"):
        os.mkdir(f"/tmp/{name}")
    syscall("pivot_root", PIVOT_ROOT, b"/tmp", b"/tmp/old")
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, ROOT_OPTIONS)
    for kind, inside, source, size in steps:
        take(kind, "/new" + inside if inside != "/" else "/new", source, size)
    os.chdir("/new")
    syscall("pivot_root", PIVOT_ROOT, b".", b".")
    call(LIBC.umount2(b".", MNT_DETACH), "letting the old root go")
    os.chdir("/")


def take(kind: str, target: str, source: str, size: int) -> None:
    """One step of the view; see view.Step."""
    if kind == "symlink":
        os.symlink(source, target)
    elif kind == "file":
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(source)
    elif kind == "folder":
        os.makedirs(target, exist_ok=True)
    elif kind == "seal":
        restrict_mount(target, ATTR_RDONLY, deep=False)
    elif kind in ("bind", "bind-read-only"):
        place(target, os.path.isdir("/old" + source))
        mount("/old" + source, target, None, MS_BIND | MS_REC)
        flags = ATTR_NOSUID | ATTR_NODEV | (ATTR_RDONLY if kind == "bind-read-only" else 0)
        restrict_mount(target, flags, deep=True)
    elif kind == "proc":
        os.mkdir(target)
        mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    elif kind == "dev":
        devices(target)
    elif kind == "tmpfs":
        os.makedirs(target, exist_ok=True)
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}")
    else:
        raise ValueError(f"no step of the kind {kind!r} is known")


def place(target: str, is_folder: bool) -> None:
    """Something to mount on."""
    if is_folder:
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def devices(target: str) -> None:
    os.mkdir(target)
    mount("tmpfs", target, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        place(f"{target}/{name}", is_folder=False)
        mount(f"/old/dev/{name}", f"{target}/{name}", None, MS_BIND)
        restrict_mount(f"{target}/{name}", ATTR_NOSUID | ATTR_NOEXEC, deep=False)
    for name, source in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{source}", f"{target}/{name}")
    os.mkdir(f"{target}/pts")
    mount("devpts", f"{target}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,max=64")
    os.symlink("pts/ptmx", f"{target}/ptmx")


def execute(request: dict[str, Any], descriptors: list[int]) -> None:
    """Becomes the command. Does not return."""
    words = request["words"]
    try:
        for at, descriptor in enumerate(os.dup(descriptor) for descriptor in descriptors[:3]):
            descriptors[at] = descriptor
        for at in range(3):
            os.dup2(descriptors[at], at)
        os.closerange(3, ALL_DESCRIPTORS)
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a child would inherit that
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request["folder"])
        for kind, pair in request["rlimits"]:
            resource.setrlimit(kind, pair)
        for capability in range(64):
            LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        if request["maps"]:
            os.setresgid(1000, 1000, 1000)
            os.setresuid(1000, 1000, 1000)
        drop_capabilities()
        call(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        fence(request["writable"])
        filter_ = bytes.fromhex(request["filter"])
        buffer = ctypes.create_string_buffer(filter_, len(filter_))
        program = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(buffer))
        call(LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0), "the filter of system calls")
        os.execvpe(words[0], words, request["variables"])
    except OSError as error:
        os.write(2, f"sandbox: {words[0]}: {error.strerror or error}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(126)


def drop_capabilities() -> None:
    header = struct.pack("=II", 0x20080522, 0)
    call(LIBC.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)), "capset")


def fence(writable: list[str]) -> None:
    """Landlock: reading everywhere, writing only where the view allows it.

    Left out below version 2, which refuses every move of a file between folders; the mounts alone hold then.
    """
    version = LIBC.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 2:
        return
    rights = (1 << 14) - 1 | (TRUNCATE if version >= 3 else 0) | (IOCTL_DEV if version >= 5 else 0)
    # From version 6 on also no signals to, and no abstract Unix sockets of, processes outside.
    attributes = struct.pack("=QQQ", rights, 0, 3) if version >= 6 else struct.pack("=Q", rights)
    ruleset = syscall("landlock", LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    of_files = EXECUTE | WRITE | READ | TRUNCATE | IOCTL_DEV
    allowed = {"/": EXECUTE | READ | LIST, "/dev": EXECUTE | READ | LIST | WRITE | TRUNCATE | IOCTL_DEV}
    allowed |= dict.fromkeys(writable, rights & ~MAKE_CHAR & ~MAKE_BLOCK)
    for place_, right in allowed.items():
        folder = os.open(place_, os.O_PATH | os.O_CLOEXEC)
        right &= rights if os.path.isdir(place_) else of_files & rights
        rule = struct.pack("=Qi", right, folder)
        syscall("landlock", LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
        os.close(folder)
    syscall("landlock", LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the starter decides
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
