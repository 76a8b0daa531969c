"""The system-call filter of the isolating backends, as a classic BPF program.

It is the second wall: namespaces take the network, the files and the other processes away, and the filter takes away
the calls with which a kernel fault or a new namespace could give them back. Refused, with EPERM unless said otherwise:

* mounts, new namespaces (`unshare`, `setns`, `clone` with such flags; `clone3` says ENOSYS, as its flags lie in memory,
  and C libraries then call `clone`), `chroot`, handles of files;
* sockets of any family but Unix, IPv4 and IPv6 (EAFNOSUPPORT): a vsock socket, for one, is bound to no network
  namespace and would reach a virtual machine's host;
* tracing and memory of other processes, BPF, performance counters, io_uring, userfaultfd, keys, modules, the clock,
  power, swap, accounting, quotas;
* mode bits setuid and setgid, which would outlive the sandbox in the work tree;
* `fallocate` (EOPNOTSUPP, as of a file system that has none; C libraries then write): with it a command takes gigabytes
  of disk between two looks;
* writing extended attributes, access lists among them (EOPNOTSUPP too, which copying programs pass over): no snapshot
  holds them, so they would carry notes and permissions from one episode to the next;
* where no cgroup counts them (`count_memory`), memory that no process shows: memfd and System V shared memory.

Calls of another architecture than the process's own (int 0x80, x32) end it. The filter holds for threads and children
and cannot be taken off.
"""

from __future__ import annotations

import errno
import os
import struct

# name -> (x86_64, aarch64); None where the machine has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
}
_HIDDEN_MEMORY: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
}
_NOT_THERE: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435), "openat2": (437, 437)}
_NOT_SUPPORTED: dict[str, tuple[int | None, int | None]] = {
    "fallocate": (285, 47),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
}
# (call, which argument is the mode, which holds open flags or None)
_MODES: tuple[tuple[tuple[int | None, int | None], int, int | None], ...] = (
    ((90, None), 1, None),  # chmod
    ((91, 52), 1, None),  # fchmod
    ((268, 53), 2, None),  # fchmodat
    ((452, 452), 2, None),  # fchmodat2
    ((85, None), 1, None),  # creat
    ((2, None), 2, 1),  # open
    ((257, 56), 3, 2),  # openat
    ((133, None), 1, None),  # mknod
    ((259, 33), 2, None),  # mknodat
)
_SOCKET, _SOCKETPAIR, _CLONE = (41, 198), (53, 199), (56, 220)
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_SUID_SGID = 0o6000
_O_CREAT = 0o100
_O_TMPFILE = 0o20000000

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH
_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def supported() -> bool:
    """Whether this machine's system calls are known here."""
    return os.uname().machine in _MACHINES


def _argument(index: int) -> int:
    """Offset of an argument's low half in `struct seccomp_data` on a little-endian machine."""
    return 16 + 8 * index


def program(count_memory: bool = False, machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, ready for `bwrap --seccomp` or prctl(PR_SET_SECCOMP).

    `count_memory` also refuses the memory that a sum over processes does not see.

    Raises:
        ValueError: the machine's system calls are not known here.
    """
    machine = machine or os.uname().machine
    if machine not in _MACHINES:
        raise ValueError(f"no table of system calls for {machine}; there are {', '.join(_MACHINES)}")
    column, architecture = _MACHINES[machine]
    code: list[tuple[int, int, int, int]] = []

    def add(operation: int, value: int, yes: int = 0, no: int = 0) -> None:
        code.append((operation, yes, no, value))

    def refuse(error: int) -> None:
        add(_RETURN, _ERRNO | error)

    add(_LOAD, 4)
    add(_EQUAL, architecture, yes=1)
    add(_RETURN, _KILL)
    add(_LOAD, 0)
    if machine == "x86_64":  # the x32 calls share the architecture and start here
        add(_GREATER_EQUAL, 0x40000000, no=1)
        add(_RETURN, _KILL)
    refused = {**_CALLS, **(_HIDDEN_MEMORY if count_memory else {})}
    for table, error in ((refused, errno.EPERM), (_NOT_THERE, errno.ENOSYS), (_NOT_SUPPORTED, errno.EOPNOTSUPP)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                add(_EQUAL, number, no=1)
                refuse(error)
    for numbers in (_SOCKET, _SOCKETPAIR):
        add(_EQUAL, numbers[column], no=3 + len(_FAMILIES))
        add(_LOAD, _argument(0))
        for at, family in enumerate(_FAMILIES):
            add(_EQUAL, family, yes=len(_FAMILIES) - at)
        refuse(errno.EAFNOSUPPORT)
        add(_RETURN, _ALLOW)
    add(_EQUAL, _CLONE[column], no=4)
    add(_LOAD, _argument(0))
    add(_ANY_BIT, _NAMESPACES, no=1)
    refuse(errno.EPERM)
    add(_RETURN, _ALLOW)
    for mode_numbers, mode, flags in _MODES:
        if (number := mode_numbers[column]) is None:
            continue
        add(_EQUAL, number, no=4 if flags is None else 6)
        if flags is not None:  # without O_CREAT the mode is whatever lay in the register
            add(_LOAD, _argument(flags))
            add(_ANY_BIT, _O_CREAT | _O_TMPFILE, no=3)
        add(_LOAD, _argument(mode))
        add(_ANY_BIT, _SUID_SGID, no=1)
        refuse(errno.EPERM)
        add(_RETURN, _ALLOW)
    add(_RETURN, _ALLOW)
    return b"".join(struct.pack("=HBBI", *line) for line in code)
