"""One run of a tree's tests in a fresh sandbox, reported as far as possible past the reach of the code under test.

A plain call of pytest (the default, and any `python -m pytest ...` of a task) runs under `guard`: signed results over
a pipe, canaries, checks of the runner. Any other command (Django's runner, SymPy's, a script) runs in a shell as it
is, and what it prints is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtmc.gymenvs.sandbox import Completed, Limits, open_sandbox
from rtmc.gymenvs.swe import checks
from rtmc.gymenvs.swe.grading.canary import make_canaries
from rtmc.gymenvs.swe.grading.command import pytest_arguments, with_files
from rtmc.gymenvs.swe.grading.logs import PARSERS
from rtmc.gymenvs.swe.grading.names import files_of
from rtmc.gymenvs.swe.grading.report import TestReport, TestResult
from rtmc.gymenvs.swe.grading.stream import Channel, read_channel
from rtmc.gymenvs.swe.tree import IGNORED

__all__ = ["run_tests"]

# Until the guard has loaded the runner, no folder of the tree is on the path: not even the working folder. The guard's
# parts find each other by their names here, and are no modules of the process afterwards.
_LAUNCH = """import sys
sys.path[:] = [path for path in sys.path if path]
import json, types
read = sys.stdin.buffer.read
parts = []
for name, size in json.loads(sys.stdin.buffer.readline()):
    part = sys.modules[name] = types.ModuleType(name)
    exec(compile(read(size), "<rtmc guard>", "exec"), vars(part))
    parts.append(part)
told = json.loads(read())
for name in [name for name in sys.modules if name.startswith("rtmc")]:
    del sys.modules[name]
main, part = part.main, None
main(told, parts)
"""
_PARTS = ("origin", "trust", "vary", "asked", "comparisons", "equal", "genuine", "session", "watch", "guard")
_OUTPUT = 32 << 20  # bytes of each stream: results and the printed log


def run_tests(
    tree: Path,
    tests: Sequence[str] = (),
    *,
    runtime: Any,
    command: str = "",
    parser: str = "pytest",
    canaries: int = 0,
    base: Path | None = None,
    changed: Collection[str] = (),
    protected: Mapping[str, str] | None = None,
    known: Mapping[str, Collection[str]] | None = None,
    guarded: bool = True,
    inside: str = "/testbed",
    backend: str = "auto",
    trusted: bool = False,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
) -> TestReport:
    """Runs tests of a tree and says what each gave. A failing, hanging or crashing run is a report, not an error.

    Args:
        tree: the folder, mounted writable at `inside`; what the tests write stays there.
        tests: files, or ids whose files are run whole; () = what pytest finds by itself.
        runtime: the Python of the task and what it needs: `python`, `readable`, `hidden`, `path`, `env`.
        command: the task's own command; "" = `python -m pytest -rA` on the files.
        parser: how printed output is read where the command is no plain call of pytest; a name in `logs.PARSERS`.
        canaries: files of tests that have to fail, laid beside the tests for this run; needs `tests`.
        base: the tree as the agent got it; None = nobody is suspected.
        changed: paths in the tree that an agent made or changed; acts of these against the runner void the report.
        protected: path -> SHA-256 of the files that tests consist of, as laid. One that is another afterwards voids
            the report.
        known: what the tree had from the beginning: `metadata` (paths of packages' metadata), `plugins` (modules that
            the task makes plugins of pytest).
        guarded: False runs even a plain call of pytest in a shell: for a tree that is itself pytest or a part of it.
        backend, trusted: as in `open_sandbox`.
        limits: of the whole run; by default those of `Limits`, with room for output.
        env: variables beyond the runtime's.

    Raises:
        ValueError: an unknown parser, a test in a file of no possible name, or an argument that the sandbox refuses.
        SandboxError: there is no sandbox.
    """
    plain = pytest_arguments(command)
    if parser not in PARSERS:
        raise ValueError(f"run_tests: parser={parser!r} is none of {', '.join(PARSERS)}")
    tree = Path(tree)
    if not tree.is_dir():
        raise ValueError(f"run_tests: `tree` is {str(tree)!r}, which is no folder")
    if too_long := [one for one in files_of(tests) if plain is not None and not checks.fits(one)]:
        raise ValueError(f"run_tests: `tests`: wanted files of the tree, got {too_long[0]!r:.60}...")
    limits = limits or Limits()
    limits = replace(limits, output_bytes=max(limits.output_bytes, _OUTPUT))
    variables = {**runtime.env, **(env or {})}
    with open_sandbox(
        tree,
        inside=inside,
        readable=runtime.readable,
        hidden=runtime.hidden,
        path=runtime.path,
        env=variables,
        backend=backend,
        trusted=trusted,
        limits=limits,
    ) as sandbox:
        if plain is None or not guarded or parser not in ("pytest", "r2e"):
            done = sandbox.run(command or shlex.join(["python", "-m", "pytest", "-rA", *files_of(tests)]))
            report = _printed(done, parser)
        else:
            own, arguments = plain
            files = files_of(tests)
            birds = make_canaries(files, canaries) if files else ()
            key = secrets.token_bytes(32)
            # Where there are no mounts, the inside is the machine: its paths are the host's.
            mounted = ((tree.resolve(), inside), *runtime.readable) if sandbox.backend == "plain" else ()
            place = _seen_at(inside, mounted)
            paths = {**variables, **own}.get("PYTHONPATH", "").split(":")
            folders = [_seen_at(one, mounted) for one in paths if one]
            outside = [one for one in folders if not f"{one}/".startswith(f"{place}/") and one.startswith("/")]
            told = {
                "key": key.hex(),
                "inside": place,
                "arguments": ["-rA", *with_files(arguments, tests, tree)],
                "path": folders,
                "outside": outside,
                "variables": {"PYTHONPATH": ":".join(folders)} if folders else {},
                "canaries": [{"path": one.path, "source": one.source, "at": one.at} for one in birds],
                "protected": dict(protected or {}),
                "changed": sorted(changed),
                "ignored": sorted(IGNORED),
                **{name: sorted((known or {}).get(name, ())) for name in ("metadata", "plugins")},
                "before": _before(base, changed),
                "watch": bool(protected),
                "junit": f"/tmp/{secrets.token_hex(8)}.xml",
            }
            texts = _texts(tree, protected or {})
            program = [runtime.python, "-s", "-B", "-c", _LAUNCH]
            try:
                done = sandbox.run(program, stdin=_input(told), env={**own, "PYTHONPATH": ":".join(outside)})
            finally:
                for one in birds:
                    with contextlib.suppress(OSError):  # code under test may have put anything in a folder's place
                        (tree / one.path).unlink()
            channel = read_channel(
                done.stdout.encode("utf-8", "replace"),
                key,
                inside=place,
                canaries=birds,
                base=base,
                changed=changed,
                protected=protected or {},
                texts=texts,
            )
            report = _signed(done, channel, place)
    altered = [path for path, wanted in (protected or {}).items() if _digest(tree / path) != wanted]
    if altered:
        report = replace(report, forged=(*report.forged, f"{altered[0]} was changed while the tests ran"))
    return report


def _before(base: Path | None, changed: Iterable[str]) -> dict[str, str]:
    """The texts that changed sources had: by them a function is known that the agent left as it was."""
    found = {}
    for path in changed if base is not None else ():
        source = Path(base or ".", path)
        if path.endswith(".py") and source.is_file() and not source.is_symlink():
            found[path] = source.read_text("utf-8", "replace")
    return found


def _texts(tree: Path, paths: Iterable[str]) -> dict[str, str]:
    found = (path for path in paths if path.endswith(".py") and (tree / path).is_file())
    return {path: (tree / path).read_text("utf-8", "replace") for path in found}


def _digest(path: Path) -> str:
    """SHA-256 of a plain file, "" where there is none (any more)."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seen_at(path: str, mounted: Sequence[tuple[Path, str]]) -> str:
    """The host's path of an inside path, by the (host path, inside path) pairs of what is not really mounted."""
    for host, inside in mounted:
        if path == inside or path.startswith(f"{inside}/"):
            return f"{host}{path[len(inside) :]}"
    return path


@lru_cache(maxsize=1)
def _parts() -> list[tuple[str, bytes]]:
    return [(f"{__package__}.{name}", Path(__file__).with_name(f"{name}.py").read_bytes()) for name in _PARTS]


def _input(told: Mapping[str, Any]) -> bytes:
    sizes = json.dumps([(name, len(text)) for name, text in _parts()]).encode()
    return b"".join([sizes, b"\n", *(text for _, text in _parts()), json.dumps(told).encode()])


_CONFTEST = re.compile(r"^ImportError while loading conftest '([^'\n]+)'\.\n(.*)", re.MULTILINE | re.DOTALL)


def _signed(done: Completed, channel: Channel, inside: str) -> TestReport:
    collection = dict(channel.collection_errors)
    if channel.fault:
        collection.setdefault("", channel.fault)
    if channel.interrupted:
        collection.setdefault("", f"the session was broken off from inside: {channel.interrupted}")
    # A conftest.py that cannot be loaded ends pytest before a session: its output alone tells.
    if not channel.results and (found := _CONFTEST.search(done.stderr)):
        collection.setdefault(found[1].removeprefix(f"{inside}/"), found[2].strip())
    return TestReport(
        results=channel.results,
        collection_errors=collection,
        complete=channel.status is not None and done.stopped is None and not channel.interrupted,
        exit_code=channel.status if channel.status is not None else done.exit_code,
        stopped=done.stopped,
        running=channel.running,
        forged=tuple(channel.forged),
        suspicions=tuple(channel.suspicions),
        log=done.stderr,
        seconds=done.seconds,
        facts=channel.facts,
    )


def _printed(done: Completed, parser: str) -> TestReport:
    log = done.stdout + ("\n" if done.stdout and not done.stdout.endswith("\n") else "") + done.stderr
    statuses = PARSERS[parser](log)
    errors = {name: "it could not be collected" for name, status in statuses.items() if _is_file(name, status)}
    return TestReport(
        results={name: TestResult(status) for name, status in statuses.items() if name not in errors},
        collection_errors=errors,
        complete=done.stopped is None,
        exit_code=done.exit_code,
        stopped=done.stopped,
        guarded=False,
        log=log,
        seconds=done.seconds,
    )


def _is_file(name: str, status: str) -> bool:
    """Whether a line of a log is about a test file or module that could not be loaded."""
    loader = "unittest.loader._FailedTest" in name or "unittest.loader.ModuleSkipped" in name
    return status == "ERROR" and (loader or (name.endswith(".py") and "::" not in name))
