"""The curve and the page at the end of a run, made from `metrics.jsonl` alone (so they can be made again)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from rtmc.atomic import atomic_path
from rtmc.train.config import Config


def read_metrics(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(training steps, evaluations) of a run's metrics file, in order."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [e for e in entries if e["kind"] == "train"], [e for e in entries if e["kind"] == "evaluation"]


def write_curve(folder: Path, config: Config) -> Path:
    """`curve.png`: success on fresh training tasks step by step, and on held-out tasks with intervals."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps, evaluations = read_metrics(folder)
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if steps:
        x = np.asarray([e["step"] for e in steps])
        y = np.asarray([e["success"] for e in steps])
        axes.plot(x, y, ".", color="0.7", label="training tasks (fresh each step), sampled")
        width = min(9, len(y))
        if width >= 3:
            mean = np.convolve(y, np.ones(width) / width, mode="valid")
            axes.plot(
                x[width // 2 : width // 2 + len(mean)],
                mean,
                color="0.5",
                label=f"the same, mean of {width} steps",
            )
    for kind, colour, shift in (("sampled", "C0", -0.15), ("greedy", "C1", 0.15)):
        points = [(e["step"], e[kind]) for e in evaluations if e.get(kind)]
        if not points:
            continue
        at = np.asarray([step for step, _ in points], dtype=float)
        value = np.asarray([p["success"] for _, p in points])
        low = value - np.asarray([p["low"] for _, p in points])
        high = np.asarray([p["high"] for _, p in points]) - value
        axes.errorbar(
            at + shift,
            value,
            yerr=[low, high],
            color=colour,
            marker="o",
            linestyle="-" if len(points) > 2 else "none",  # a line between two points would claim what lies between
            capsize=3,
            label=f"held-out tasks, {kind} (95 %)",
        )
    axes.set(
        xlabel="update step",
        ylabel="share of tasks solved",
        ylim=(-0.02, 1.02),
        title=f"{config.method} on {config.env.id.rsplit(':', 1)[-1]}, seed {config.seed}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    path = folder / "curve.png"
    with atomic_path(path) as part:
        figure.savefig(part, format="png")
    return path


def write_report(folder: Path, config: Config, seconds: float) -> Path:
    """`report.html`: one page that stands alone (the curve is inside it)."""
    from jinja2 import Environment, PackageLoader

    from rtmc.train.config import to_toml

    steps, evaluations = read_metrics(folder)
    ends = [evaluations[0], evaluations[-1]] if len(evaluations) > 1 else evaluations
    first, last = ends[0]["sampled"], ends[-1]["sampled"]
    facts: list[tuple[str, str]] = [
        ("time since the start (or the resuming)", f"{seconds / 60:.1f} min"),
        ("update steps", str(len(steps))),
    ]
    if steps:
        facts += [
            ("rollouts a step", str(config.tasks_per_step * config.group_size)),
            ("uniform groups, mean share", f"{np.mean([e['uniform_groups'] for e in steps]):.2f}"),
            ("updates skipped (not finite)", str(steps[-1]["skipped_updates"])),
            ("rollouts that ended in an error", str(sum(e["errors"] for e in steps))),
        ]
        single = [e["single_visit"] for e in steps if e.get("single_visit") is not None]
        if single:
            facts.append(("steps at states visited once, mean share", f"{np.mean(single):.2f}"))
    page = (
        Environment(autoescape=True, loader=PackageLoader("rtmc.train", ""))
        .get_template("report.html.j2")
        .render(
            title=f"{config.method} on {config.env.id.rsplit(':', 1)[-1]}",
            lead=(
                f"Sampled success on held-out tasks went from {first['success']:.3f} to {last['success']:.3f} "
                f"in {len(steps)} update steps."
            ),
            curve=base64.b64encode((folder / "curve.png").read_bytes()).decode(),
            tasks=first["total"],
            evaluations=evaluations,
            ends=ends,
            kinds=sorted(set.intersection(*(set(e["by_type"]) for e in ends))),
            facts=facts,
            configuration=to_toml(config),
        )
    )
    path = folder / "report.html"
    with atomic_path(path) as part:
        part.write_text(page, encoding="utf-8")
    return path
