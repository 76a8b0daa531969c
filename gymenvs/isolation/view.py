"""What the inside of a sandbox sees, as a list of steps that every isolating backend carries out.

Nothing is there that no step put there: the system's programs and libraries read-only (/usr and what stands beside it),
an /etc of a few files of our own making, /proc and /dev of the sandbox, a /tmp of limited size that is empty at each
command, the work tree, and what the caller names. No home, no /var, /run, /sys, /opt, /mnt; the root itself and /dev
are sealed read-only at the end. What holds answers is masked wherever it would be seen: this package's own folder, the
cache of the environments (their prepared tasks lie in it), and what the caller names as secret.
What the kernel itself tells of a mount stays to be read in /proc/self/mountinfo: the host path of each folder shown.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rtmc.gymenvs.cachefolder import cache_folder
from rtmc.gymenvs.isolation.contract import Limits

OWN_FOLDER = Path(__file__).resolve().parents[2]
SHM_BYTES = 64 << 20
LONG_COMMAND = "/run/command"
# The kernel takes arguments up to 128 KiB each; a longer command is read from a file.
_LONGEST_ARGUMENT = 100_000
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_FROM_ETC = ("/etc/ld.so.cache", "/etc/localtime")  # copied, as a file is cheaper than a mount
_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


class Step(NamedTuple):
    """One step: `kind` is bind, bind-read-only, tmpfs, file, symlink, proc, dev or seal; `inside` where.

    `source` is the host path of a bind, the target of a symlink or the text of a file; `size` bytes of a tmpfs.
    """

    kind: str
    inside: str
    source: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """What a sandbox was opened with, checked; `steps` makes the list for one command."""

    tree: Path
    inside: str
    readable: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    path: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secret: tuple[str, ...] = ()

    def environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        """All variables of a command: nothing is inherited from this process."""
        base = {
            "PATH": ":".join((*self.path, *_PATH)),
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "USER": "agent",
            "LOGNAME": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        return base | dict(self.env) | checked_environment(extra)

    def steps(
        self,
        limits: Limits,
        ids: tuple[int, int],
        mounts: Sequence[tuple[Path, str]] = (),
        writable: Sequence[tuple[Path, str]] = (),
        files: Mapping[str, str] | None = None,
    ) -> list[Step]:
        """The view of one command; `ids` are the user and the group that the inside runs as.

        Raises:
            ValueError: a mount's path is not absolute, is missing on the host, or lies below something writable.
        """
        system = _system()
        shown = [*((step.source, step.inside) for step in system if step.kind == "bind-read-only"), *self.readable]
        extra = []
        for kind, name, pairs in (("bind-read-only", "mounts", mounts), ("bind", "writable", writable)):
            for host, place in pairs:
                source, inside = _mount(host, place, name)
                extra.append(Step(kind, inside, source))
        open_to_writes = [self.inside, *(step.inside for step in extra if step.kind == "bind")]
        for step in extra:
            if above := next((one for one in open_to_writes if _below(step.inside, one)), None):
                self._check_in_tree(step, above)
        etc = _etc(*ids) | dict(files or {})
        steps = [
            *system,
            *(Step("file", name, text) for name, text in etc.items()),
            *(Step("bind-read-only", name, name) for name in ("/etc/alternatives",) if os.path.isdir(name)),
            Step("proc", "/proc"),
            Step("dev", "/dev"),
            Step("tmpfs", "/dev/shm", size=min(SHM_BYTES, limits.tmp_bytes)),
            Step("tmpfs", "/tmp", size=limits.tmp_bytes),
            *(Step("bind-read-only", inside, source) for source, inside in self.readable),
            Step("bind", self.inside, str(self.tree)),
            *_masks(shown, self.hidden, _secrets(self.secret)),
            *extra,
            Step("seal", "/proc"),  # else a command could say that the kernel should end others first for memory
            Step("seal", "/dev"),
            Step("seal", "/"),
        ]
        return _with_parents(steps)

    def mounts_in_tree(self, mounts: Sequence[tuple[Path, str]]) -> bool:
        """Whether any of them lies below the tree."""
        return any(_below(os.path.normpath(place), self.inside) for _, place in mounts)

    def _check_in_tree(self, step: Step, above: str) -> None:
        """A mount point that had to be made would be made by us, along a path in which a command may put a link."""
        wanted = "wanted a mount point in the tree that is there, reached through no link, of the same kind"
        if above != self.inside or step.kind == "bind":
            raise ValueError(f"`writable` has {step.inside!r} below {above!r}, which is writable")
        place = self.tree
        for part in Path(step.inside).relative_to(self.inside).parts:
            place = place / part
            if place.is_symlink() or not place.exists():
                what = "is a link" if place.is_symlink() else "does not exist"
                raise ValueError(f"`mounts` has {step.inside!r}: {str(place)!r} {what}; {wanted}")
        if place.is_dir() != os.path.isdir(step.source) or not (place.is_dir() or place.is_file()):
            raise ValueError(f"`mounts` has {step.inside!r}: {str(place)!r} is of another kind; {wanted}")


def make_layout(
    tree: Path,
    inside: str,
    readable: Sequence[Path | tuple[Path, str]],
    hidden: Sequence[str],
    path: Sequence[str],
    env: Mapping[str, str] | None,
    secret: Sequence[Path] = (),
) -> Layout:
    """Checks what `open_sandbox` was given; relative host paths are taken from the working folder.

    Raises:
        ValueError, TypeError: the place, what came and what is wanted.
    """
    folder = Path(os.path.realpath(tree))
    if not folder.is_dir():
        raise ValueError(f"open_sandbox: `tree` is {str(tree)!r}, which is no folder")
    inside = checked_inside(inside, "inside")
    if inside in {"/", "/proc", "/dev", "/etc", "/usr"}:
        raise ValueError(f"open_sandbox: `inside` is {inside!r}; wanted a place of its own, such as /testbed")
    pairs = []
    for entry in readable:
        source, place = entry if isinstance(entry, tuple) else (entry, os.path.abspath(entry))
        real, place = _mount(Path(source), place, "readable")
        if Path(real) == OWN_FOLDER:
            raise ValueError(f"open_sandbox: `readable` has {real!r}, the folder of this package, which holds answers")
        if _below(place, inside) or place == inside:
            raise ValueError(f"open_sandbox: `readable` has {place!r}, which lies at or below the tree at {inside!r}")
        pairs.append((real, place))
    masked = tuple(checked_inside(name, "hidden") for name in hidden)
    for name in masked:
        if _below(name, inside):
            raise ValueError(f"open_sandbox: `hidden` has {name!r} below the tree; leave it out of the tree instead")
    for entry_ in path:
        if not isinstance(entry_, str) or not entry_.startswith("/") or ":" in entry_ or "\0" in entry_:
            raise ValueError(f"open_sandbox: `path` has {entry_!r}; wanted absolute inside paths without a colon")
    variables = tuple(checked_environment(env).items())
    return Layout(folder, inside, tuple(pairs), masked, tuple(path), variables, tuple(map(os.path.abspath, secret)))


def checked_inside(path: str, name: str) -> str:
    """A clean absolute inside path.

    Raises:
        ValueError, TypeError: it is not one.
    """
    if not isinstance(path, str):
        raise TypeError(f"`{name}` has {path!r}; wanted an absolute inside path as text")
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"`{name}` has {path!r}; wanted an absolute inside path without '..' and NUL")
    return os.path.normpath("/" + path.lstrip("/"))


def checked_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """The variables, as a dict.

    Raises:
        ValueError, TypeError: one that no process can have.
    """
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"`env` has {name!r}: {value!r}; wanted text to text")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"`env` has {name!r}: {value!r}; wanted a name without '=' and no NUL in either")
    return dict(env or {})


def arguments(command: str | Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The argument list to execute, and the files it needs: a command past the kernel's limit is read from one.

    Raises:
        ValueError, TypeError: a NUL byte, no argument, or arguments that no process can be started with.
    """
    if isinstance(command, str):
        if "\0" in command:
            raise ValueError(f"command: NUL byte at {command.index(chr(0))}; a shell's text cannot hold one")
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        if len(os.fsencode(command)) <= _LONGEST_ARGUMENT:
            return [shell, "-c", command], {}
        return [shell, "-c", f". {LONG_COMMAND}"], {LONG_COMMAND: command}
    words = list(command)
    if not words:
        raise ValueError("command: an empty argument list; wanted a program and its arguments")
    for at, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"command: argument {at} is {word!r}; wanted text")
        if "\0" in word:
            raise ValueError(f"command: NUL byte in argument {at}")
        if len(os.fsencode(word)) > _LONGEST_ARGUMENT:
            raise ValueError(f"command: argument {at} has {len(word)} characters; give long data on `stdin`")
    return words, {}


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _mount(source: Path, inside: str, name: str) -> tuple[str, str]:
    real = os.path.realpath(source)
    if not os.path.exists(real):
        raise ValueError(f"`{name}` has {str(source)!r}, which does not exist")
    return real, checked_inside(inside, name)


def _with_parents(steps: list[Step]) -> list[Step]:
    """The same with a step before each bind for the folders above it, which would else be closed as they are outside.

    Folders that a mount before it brings along are left alone; one in memory brings none.
    """
    made = {"/"}
    mounted: list[Step] = []
    found: list[Step] = []
    for step in steps:
        if step.kind in ("bind", "bind-read-only"):
            for parent in reversed(Path(step.inside).parents):
                name = str(parent)
                over = next((one for one in mounted[::-1] if name == one.inside or _below(name, one.inside)), None)
                if name not in made and (over is None or over.kind == "tmpfs"):
                    found.append(Step("folder", name))
                    made.add(name)
        if step.kind in ("bind", "bind-read-only", "proc", "dev", "tmpfs"):
            mounted.append(step)
        found.append(step)
    return found


def _system() -> list[Step]:
    steps = []
    for name in _SYSTEM:
        if os.path.islink(name):
            steps.append(Step("symlink", name, os.readlink(name)))
        elif os.path.isdir(name):
            steps.append(Step("bind-read-only", name, name))
    return steps


def _secrets(named: Sequence[str]) -> list[Path]:
    """The host paths that nobody inside may read, links resolved."""
    found = [OWN_FOLDER, *(Path(os.path.realpath(path)) for path in named)]
    with contextlib.suppress(OSError):  # there is no cache: nothing to hide
        found.append(Path(os.path.realpath(cache_folder())))
    return found


def _masks(shown: Sequence[tuple[str, str]], hidden: Sequence[str], secrets: Sequence[Path]) -> list[Step]:
    """An empty sealed folder over each hidden or secret folder that is there, a device that cannot be opened over a
    file.
    """
    places = list(hidden)
    for secret in secrets:
        for source, inside in shown:
            # What is shown from within a secret was named for it, such as a runtime that lies in the cache.
            if secret.is_relative_to(source) and secret != Path(source):
                places.append(os.path.normpath(os.path.join(inside, secret.relative_to(source))))
    steps = []
    for place in dict.fromkeys(places):
        # The last bind that covers the place is the one seen.
        over = [(source, inside) for source, inside in shown if place == inside or _below(place, inside)]
        if not over:
            continue
        source, inside = over[-1]
        host = os.path.normpath(os.path.join(source, os.path.relpath(place, inside)))
        if os.path.realpath(host) != host and os.path.exists(host):
            raise ValueError(f"`hidden` has {place!r}, a link to {os.path.realpath(host)!r}; name the real place")
        try:
            is_folder = stat.S_ISDIR(os.lstat(host).st_mode)
        except OSError:
            continue  # nothing there to hide
        if is_folder:
            steps += [Step("tmpfs", place, size=4096), Step("seal", place)]
        else:
            steps.append(Step("bind-read-only", place, "/dev/null"))
    return steps


def _etc(user: int, group: int) -> dict[str, str]:
    copied = {}
    for name in _FROM_ETC:
        with contextlib.suppress(OSError):
            copied[name] = os.fsdecode(Path(name).read_bytes())
    return copied | {
        "/etc/passwd": "root:x:0:0:root:/nonexistent:/bin/sh\nsetup:x:1:1:setup:/nonexistent:/bin/sh\n"
        f"agent:x:{user}:{group}:agent:/tmp:/bin/sh\n",
        "/etc/group": f"root:x:0:\nsetup:x:1:\nagent:x:{group}:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
