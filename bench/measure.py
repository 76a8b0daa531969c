"""Timing, tables and the results file, for every benchmark of this folder.

Candidates of one case are timed in turns, round after round, so that a slow moment of the machine hits them all; what
is reported is the median of the rounds with the 20th and 80th percentile. On CUDA each round writes 256 MB first, so
that nothing is read from the cache the round before filled, and time is taken between events.

Not here: what is measured.
"""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results.jsonl"
PATIENCE = 2.0


class Case(NamedTuple):
    """One comparison: ``candidates`` do the same work, the first is ours, the second the peer it is divided by."""

    name: str
    candidates: dict[str, Callable[[], Any]]
    device: str = "cpu"
    bytes_moved: int = 0  # read and written at the least, once each; 0 = not a matter of bandwidth
    agree: Callable[[Any, Any], float] | None = None  # (ours, another's) -> error, with `bound`
    bound: float = 0.0
    memory: bool = False  # also record the most memory each candidate holds besides its inputs
    rows: int = 0  # of the input, for a time per row; 0 = none is told


def seconds_of(candidates: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call after one warm-up (compilation): ``rounds`` of them, but of a candidate that would take more
    than ``PATIENCE`` seconds in all fewer, at least 3."""
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device=device) if device == "cuda" else None
    for work in candidates.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for taken in range(rounds):
        for name, work in candidates.items():
            if taken >= 3 and sum(times[name]) > PATIENCE:
                continue
            if flush is None:
                began = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - began)
            else:
                flush.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                work()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) / 1e3)
    return times


def measure(case: Case, rounds: int) -> list[dict[str, Any]]:
    """One record a candidate. Raises AssertionError where a candidate's result differs from ours: no speed of a wrong
    result is reported."""
    ours = next(iter(case.candidates))
    errors: dict[str, float | None] = dict.fromkeys(case.candidates)
    if case.agree is not None:
        result = case.candidates[ours]()
        for name, work in case.candidates.items():
            if name != ours:
                error = case.agree(result, work())
                errors[name] = error
                if not error <= case.bound:
                    raise AssertionError(f"{case.name}: {ours} and {name} differ by {error:.3g} > {case.bound:.3g}")
    held: dict[str, int | None] = dict.fromkeys(case.candidates)
    if case.memory:
        from memory import peak_extra_bytes

        held = {name: peak_extra_bytes(work, case.device) for name, work in case.candidates.items()}
    records = []
    times = seconds_of(case.candidates, case.device, rounds)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        ordered = sorted(taken)
        records.append(
            {
                "case": case.name,
                "candidate": name,
                "device": case.device,
                "rounds": len(taken),
                "median_ms": medians[name] * 1e3,
                "p20_ms": ordered[int(0.2 * (len(taken) - 1))] * 1e3,
                "p80_ms": ordered[-1 - int(0.2 * (len(taken) - 1))] * 1e3,
                "ours_is_faster_by": medians[name] / medians[ours],
                "ns_per_row": medians[name] / case.rows * 1e9 if case.rows else None,
                "bytes_moved": case.bytes_moved or None,
                "gb_per_s": case.bytes_moved / medians[name] / 1e9 if case.bytes_moved else None,
                "differs_by": errors[name],
                "peak_extra_bytes": held[name],
            }
        )
    return records


def surroundings() -> dict[str, Any]:
    """Where and with what a run was made."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    def release(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "--short", "HEAD"),
        "changed": git("status", "--porcelain", "--untracked-files=no") != "",
        "python": platform.python_version(),
        "versions": {package: release(package) for package in ("torch", "triton", "numba", "numpy")},
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] \
        if info.exists() else []  # fmt: skip
    return names[0] if names else platform.processor() or platform.machine()


def table(records: Iterable[dict[str, Any]]) -> str:
    """The records as aligned text."""
    titles = (
        "case",
        "candidate",
        "median ms",
        "p20",
        "p80",
        "ns/row",
        "GB/s",
        "bytes",
        "/ ours",
        "differs by",
        "peak MB",
    )
    rows: list[tuple[str, ...]] = [titles]
    last = None
    for r in records:
        label = r["case"] if r["device"] == "cpu" else f"{r['case']} [{r['device']}]"
        rows.append(
            (
                "" if label == last else label,
                r["candidate"],
                f"{r['median_ms']:.3f}",
                f"{r['p20_ms']:.3f}",
                f"{r['p80_ms']:.3f}",
                "" if r["ns_per_row"] is None else f"{r['ns_per_row']:.1f}",
                "" if r["gb_per_s"] is None else f"{r['gb_per_s']:.1f}",
                "" if r["bytes_moved"] is None else f"{r['bytes_moved']:.2e}",
                f"{r['ours_is_faster_by']:.2f}x",
                "" if r["differs_by"] is None else f"{r['differs_by']:.1e}",
                "" if r["peak_extra_bytes"] is None else f"{r['peak_extra_bytes'] / 1e6:.1f}",
            )
        )
        last = label
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if c < 2 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def append(name: str, records: Iterable[dict[str, Any]]) -> Path:
    """Add the records of benchmark ``name``, one JSON line each, to the results file."""
    where = surroundings()
    with RESULTS.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"bench": name, **record, **where}) + "\n")
    return RESULTS
