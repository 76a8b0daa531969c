"""Control groups that bound the memory and the processes of a command: version 1 or 2, where we may make them.

A group is a folder below the one this process is in (version 2 allows it only below one that holds no processes, so
the nearest folder above that hands the two controllers on). Its name tells whose it is, so that groups of a process
that was killed are found and removed at the next start: `rtmc-<identity of the process>-<number>`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rtmc.gymenvs.isolation.contract import Limits, SandboxError

_NAME = re.compile(r"rtmc-(\d+-\d+-\d+)-\d+")
_NEEDED = ("memory", "pids")
_numbers = itertools.count()
_lock = threading.Lock()
_places: dict[str, Places | None] = {}


@dataclass(frozen=True, slots=True)
class Places:
    """Where groups are made: the version, and the parent folder of each controller."""

    version: int
    parents: dict[str, Path]


@dataclass(slots=True)
class Group:
    """One group: a folder a controller (the same one twice in version 2)."""

    version: int
    folders: dict[str, Path]

    def limit(self, limits: Limits, overhead: int) -> None:
        """Sets the bounds; `overhead` processes are the sandbox's own."""
        memory, pids = self.folders["memory"], self.folders["pids"]
        (pids / "pids.max").write_text(str(limits.processes + overhead))
        if self.version == 2:
            (memory / "memory.max").write_text(str(limits.memory_bytes))
            with contextlib.suppress(OSError):  # absent without swap accounting
                (memory / "memory.swap.max").write_text("0")
            with contextlib.suppress(OSError):
                (memory / "memory.oom.group").write_text("1")
            return
        swap = memory / "memory.memsw.limit_in_bytes"
        with contextlib.suppress(OSError):  # must never be below the memory's: lifted first, then set
            swap.write_text("-1")
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            swap.write_text(str(limits.memory_bytes))

    def add(self, pid: int) -> None:
        """Moves a process in; its children are born inside."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def doors(self) -> list[str]:
        """Files to which a process of one thread writes "0" to move itself in; none in version 2.

        That is cheap. To move another process (`add`) the kernel first waits until all processors have passed through
        a quiet moment: 10 ms here, for each controller.
        """
        return [str(folder / "tasks") for folder in self.folders.values()] if self.version == 1 else []

    def ooms(self) -> int:
        """How many processes the kernel has ended here for want of memory, since the group was made."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _field(self.folders["memory"] / name, "oom_kill")

    def refusals(self) -> int:
        """How often a fork failed here at the bound, since the group was made."""
        return _field(self.folders["pids"] / "pids.events", "max")

    def kill(self) -> bool:
        """Sends SIGKILL to all that is inside; whether anything was."""
        found = False
        for folder in set(self.folders.values()):
            for word in _read(folder / "cgroup.procs").split():
                found = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(word), signal.SIGKILL)
        return found

    def empty(self, patience_s: float = 5.0) -> None:
        """Ends what is left inside and waits until nothing is.

        Raises:
            SandboxError: something outlived the patience.
        """
        until = time.monotonic() + patience_s
        while self.kill():
            if time.monotonic() > until:
                raise SandboxError(f"processes in the control group {self.folders['pids']} do not end")
            time.sleep(0.002)

    def remove(self) -> None:
        """Ends what is inside and removes the folders."""
        self.empty()
        for folder in set(self.folders.values()):
            _remove(folder)


def make(places: Places) -> Group:
    """A new group.

    Raises:
        OSError: it cannot be made.
    """
    mine = f"rtmc-{identity()}-{next(_numbers)}"
    group = Group(places.version, {name: parent / mine for name, parent in places.parents.items()})
    try:
        for folder in set(group.folders.values()):
            folder.mkdir()
    except OSError:
        for folder in set(group.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return group


class Pool:
    """The groups of one sandbox: a command takes one and gives it back empty; as many as commands at once."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._free: list[Group] = []

    def take(self) -> Group:
        with self._lock:
            if self._free:
                return self._free.pop()
        try:
            return make(self._places)
        except OSError as error:
            raise SandboxError(
                f"no control group could be made below {self._places.parents['pids']}: {error}"
            ) from None

    def give(self, group: Group) -> None:
        with self._lock:
            self._free.append(group)

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for group in free:
            group.remove()


def places() -> Places | None:
    """Where groups can be made, or None; looked up once a process, after the leftovers of others were removed."""
    with _lock:
        if "found" not in _places:
            _places["found"] = _find()
        return _places["found"]


def start_time(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot: with the pid it names one process for ever."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):  # ended, and not yet asked for its exit code
        return None
    return int(fields[19])


def identity() -> str:
    """What names this process for ever: `<pid namespace>-<pid>-<start time>`."""
    return f"{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether the process of an `identity` has ended. One of another namespace cannot be asked: False.

    Raises:
        ValueError: it is no such name.
    """
    namespace, pid, started = (int(part) for part in name.split("-"))
    return namespace == pid_namespace() and start_time(pid) != started


def sweep(mounts: set[Path]) -> int:
    """Removes groups whose maker is gone, with what still runs in them; how many."""
    removed = 0
    for mount in mounts:
        for folder, names, _ in os.walk(mount):
            for name, maker in [(name, found[1]) for name in names if (found := _NAME.fullmatch(name))]:
                names.remove(name)
                if is_gone(maker):
                    stale = Path(folder) / name
                    with contextlib.suppress(OSError, SandboxError):
                        Group(1, {"pids": stale}).empty()
                        stale.rmdir()
                        removed += 1
    return removed


def _find() -> Places | None:
    mounts = _mounts()
    own = {
        name or "unified": path
        for line in _read(Path("/proc/self/cgroup")).splitlines()
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    found = None
    if all(name in mounts for name in _NEEDED):
        found = Places(1, {name: _own(mounts[name], own.get(name, "/")) for name in _NEEDED})
    elif "unified" in mounts:
        found = _unified(mounts["unified"], own.get("unified", "/"))
    if found is None:
        return None
    sweep({mounts[name][0] for name in (_NEEDED if found.version == 1 else ("unified",))})
    try:
        trial = make(found)
    except OSError:
        return None
    try:
        trial.limit(Limits(), 0)
        return found
    except OSError:
        return None
    finally:
        trial.remove()


def _unified(mount: tuple[Path, str], own: str) -> Places | None:
    folder = _own(mount, own)
    while True:
        if set(_NEEDED) <= set(_read(folder / "cgroup.controllers").split()):
            missing = [name for name in _NEEDED if name not in _read(folder / "cgroup.subtree_control").split()]
            try:
                if missing:
                    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))
                if os.access(folder, os.W_OK):
                    return Places(2, dict.fromkeys(_NEEDED, folder))
            except OSError:
                pass  # it holds processes, or is not ours
        if folder == mount[0]:
            return None
        folder = folder.parent


def _mounts() -> dict[str, tuple[Path, str]]:
    """Controller (or "unified") -> (mount point, the hierarchy's folder that is mounted there)."""
    found: dict[str, tuple[Path, str]] = {}
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("unified", (Path(point), root))
        elif kind == "cgroup":
            for name in set(options.split(",")) & set(_NEEDED):
                found[name] = (Path(point), root)
    return found


def _own(mount: tuple[Path, str], path: str) -> Path:
    point, root = mount
    inner = os.path.relpath(path, root)
    folder = point if inner.startswith("..") else point / inner
    return folder if folder.is_dir() else point


def _remove(folder: Path) -> None:
    for _ in range(200):  # the kernel lets go of a process a moment after its end
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.005)


def _field(file: Path, name: str) -> int:
    for line in _read(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def pid_namespace() -> int:
    """Which namespace this process's number is of."""
    return os.stat("/proc/self/ns/pid").st_ino
