"""Commands in a sandbox: one call opens it around a work tree, with the best backend that works on this machine.

    with open_sandbox(Path("repository")) as sandbox:
        done = sandbox.run("python -m pytest -q", limits=Limits(wall_s=60))

Inside there is no network, no home, no variable of this process, no other process; the system is read-only and only
the tree and an empty /tmp can be written; memory, processes, CPU, files, output and time are bounded from outside; and
when `run` returns nothing of the command is left. Each backend's module says how far that goes. This is *not* a wall
against a kernel fault: hostile code of unknown origin belongs in a virtual machine.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rtmc.gymenvs.isolation import bubblewrap, cgroups, namespaces, plain, view
from rtmc.gymenvs.isolation.contract import STOPS, Completed, Limits, Probe, Sandbox, SandboxError

__all__ = ["STOPS", "Completed", "Limits", "Probe", "Sandbox", "SandboxError", "open_sandbox", "probe_sandboxes"]

_BACKENDS: dict[str, tuple[Callable[[], str | None], Callable[[view.Layout, Limits], Sandbox]]] = {
    "bwrap": (bubblewrap.missing, bubblewrap.BubblewrapSandbox),
    "unshare": (namespaces.missing, namespaces.NamespaceSandbox),
    "plain": (plain.missing, plain.PlainSandbox),
}
_PROBE_LIMITS = Limits(wall_s=20.0)
_lock = threading.Lock()
_probed: dict[str, Probe] = {}


def open_sandbox(
    tree: Path,
    *,
    inside: str = "/testbed",
    readable: Sequence[Path | tuple[Path, str]] = (),
    hidden: Sequence[str] = (),
    secret: Sequence[Path] = (),
    path: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    backend: str = "auto",
    trusted: bool = False,
    limits: Limits | None = None,
) -> Sandbox:
    """Opens a sandbox around a folder.

    Args:
        tree: the host folder that is mounted read-write at `inside`. It must exist and stays when the sandbox closes.
        inside: where the commands see it, and start.
        readable: host paths shown read-only, at the same place or at (host path, inside path).
        hidden: inside paths masked by an empty folder.
        secret: host paths of folders and files masked wherever they lie below something shown; this package's own
            folder and the cache of the environments always are. What `readable` itself names is shown all the same.
        path: folders put before the system's in PATH.
        env: variables of every command, beside PATH, HOME, TMPDIR, USER, LOGNAME, LANG, TERM.
        backend: "auto", "bwrap", "unshare" or "plain".
        trusted: allows "plain", which isolates nothing; "auto" comes to it last.
        limits: of every command, unless `run` is given others.

    Raises:
        ValueError, TypeError: an argument that cannot be met; the message names it.
        SandboxError: the backend, or every one that isolates, does not work here; the message says why and what would
            help.
    """
    limits = limits or Limits()
    layout = view.make_layout(tree, inside, readable, hidden, path, env, secret)
    if backend not in ("auto", *_BACKENDS):
        raise ValueError(f"open_sandbox: `backend` is {backend!r}; wanted one of auto, {', '.join(_BACKENDS)}")
    if backend == "plain" and not trusted:
        raise SandboxError("sandbox backend 'plain' isolates nothing: it takes `trusted=True`, for code you trust")
    names = [backend] if backend != "auto" else [name for name in _BACKENDS if name != "plain" or trusted]
    for name in names:
        if _probe(name).works:
            return _BACKENDS[name][1](layout, limits)
    reasons = "; ".join(f"{name}: {_probe(name).why}" for name in names)
    advice = "" if trusted else ". `trusted=True` runs commands without isolation, for code you trust"
    what = "no sandbox works here" if backend == "auto" else f"sandbox backend {backend!r} does not work here"
    raise SandboxError(f"{what} ({reasons}){advice}")


def probe_sandboxes() -> dict[str, Probe]:
    """Backend -> whether it works on this machine and how it bounds, or what is missing and how to get it.

    Each is tried with one command, once a process. "plain" works wherever Linux does, and only with `trusted=True`.
    """
    return {name: _probe(name) for name in _BACKENDS}


def _probe(name: str) -> Probe:
    with _lock:
        if name not in _probed:
            _probed[name] = _try(name)
        return _probed[name]


def _try(name: str) -> Probe:
    missing, backend = _BACKENDS[name]
    if reason := missing():
        return Probe(False, reason)
    with tempfile.TemporaryDirectory(prefix="rtmc-probe-") as folder:
        layout = view.make_layout(Path(folder), "/testbed", (), (), (), None)
        try:
            with backend(layout, _PROBE_LIMITS) as sandbox:
                done = sandbox.run("echo works > file && cat file", cwd="/testbed")
        except (SandboxError, OSError) as error:
            return Probe(False, str(error))
    if done.stdout != "works\n":
        return Probe(
            False, f"a first command ended with {done.exit_code}: {done.stderr.strip() or done.stdout.strip()}"
        )
    if name == "plain":
        return Probe(True, "isolates nothing; only with trusted=True")
    bounds = "control groups" if cgroups.places() else "rlimits and looks 20 times a second (no control groups)"
    return Probe(True, f"memory and processes are bounded by {bounds}")
