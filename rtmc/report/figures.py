"""The report's figures as images, for papers and slides: the states of a task, its advantages, the quadrants.

What this is not: everything. Images are drawn of the first tasks in the page's order; the page has them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rtmc.atomic import atomic_path
from rtmc.logs.credit import Credit
from rtmc.report.data import Keys, names_of, rounded, rows_by_rollout, task_graph, task_order, value_method, verdicts
from rtmc.report.graph import StateGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS = 8  # tasks of which there are images
ROLLOUTS = 16  # rollouts in the image of a task's advantages
LABELLED = 60  # actions in the image of a task's states, up to which they are named
THRESHOLD = 0.01  # of the RTMC paper's quadrants
QUADRANTS = ("both +", "X -, Y +", "X +, Y -", "both -", "near zero")
_COLOURS = {"success": "#1565c0", "failure": "#c2410c", "unknown": "#8b929b"}
_QUADRANT_COLOURS = ("#1565c0", "#a1c1e6", "#e7b39d", "#c2410c", "#dfe3e8")


def write_figures(credit: Credit, folder: str | PathLike[str]) -> list[Path]:
    """Write `NUMBER-TASK-states.png` and `NUMBER-TASK-advantages.png` of the first tasks, and `quadrants.png` where
    there are two methods. Returns the paths.

    Raises ModuleNotFoundError without matplotlib, OSError where a file cannot be written.
    """
    folder = Path(folder)
    table = credit.table
    rows, told, keys = rows_by_rollout(table), verdicts(table), Keys.of(table)
    ids, tasks = names_of(table.rollout_names), names_of(table.group_names)
    made: list[tuple[str, Figure]] = []
    for place, (task, members) in enumerate(task_order(table, told)[:TASKS], 1):
        start = f"{place:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', tasks[task])[:60]}"
        graph = task_graph(keys, rows, told, members, drawn=120)
        if graph.nodes:
            name, column = _coloured_by(credit)
            outcome, actions = table.outcome[table.rollout], names_of(table.action_names)
            made.append((f"{start}-states.png", _states(graph, column, outcome, name, tasks[task], actions)))
            shown = [at for at in members if rows[at]][:ROLLOUTS]
            made.append(
                (
                    f"{start}-advantages.png",
                    _advantages(credit, [(ids[at], rows[at], told[at]) for at in shown], tasks[task]),
                )
            )
    if len(credit.methods) > 1:
        made.append(("quadrants.png", _quadrants(credit, told)))
    written = []
    for name, figure in made:
        path = folder / name
        with atomic_path(path) as part:
            figure.savefig(part, format="png")
        written.append(path)
    return written


def quadrant_counts(x: Tensor, y: Tensor, threshold: float = THRESHOLD) -> list[int]:
    """How many steps fall into each of `QUADRANTS`: by the signs of the two advantages where both are larger than the
    threshold, else near zero."""
    large = (x.abs() > threshold) & (y.abs() > threshold)
    signs = [(x > 0) & (y > 0), (x < 0) & (y > 0), (x > 0) & (y < 0), (x < 0) & (y < 0)]
    return [*(int((sign & large).sum()) for sign in signs), int((~large).sum())]


def compared(methods: Sequence[str]) -> tuple[int, int]:
    """Places of the methods X and Y that are compared first: Y is `rtmc` and X `grpo_step`, where they are there."""
    y = methods.index("rtmc") if "rtmc" in methods else 1
    x = methods.index("grpo_step") if "grpo_step" in methods and methods.index("grpo_step") != y else int(y == 0)
    return x, y


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(text: str, length: int = 60) -> str:
    """Text for matplotlib, to which dollars mean a formula."""
    line = " ".join(text.split())
    cut = line if len(line) <= length else line[: length - 3] + "..."
    return cut.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")


def _coloured_by(credit: Credit) -> tuple[str, Tensor]:
    method = value_method(credit)
    q = None if method is None else credit.estimates[method].q
    if q is not None:
        return f"Q ({method})", q
    first = credit.methods[0]
    return f"advantage ({first})", credit.estimates[first].advantage


def _ink(face: Any) -> str:
    """Black or white, whichever is read better on a colour (its luminance by ITU-R BT.709)."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(face)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "white"


def _states(graph: StateGraph, column: Tensor, outcome: Tensor, name: str, task: str, actions: Sequence[str]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import FancyArrowPatch

    known = ~outcome.isnan()

    def value(rows: list[int]) -> float | None:
        """Mean over the rows whose reward is known."""
        some = torch.tensor(rows)
        some = some[known[some]]
        return float(column[some].mean()) if len(some) else None

    values = [value(edge.rows) for edge in graph.edges]
    found = [number for number in values if number is not None]
    ramp = LinearSegmentedColormap.from_list("credit", ["#c2410c", "#b4bcc6", "#1565c0"])
    low, high = min(found, default=0.0), max(found, default=0.0)
    # Where all values are one, it is drawn as the middle.
    scale = Normalize(low, high) if high > low else Normalize(low - 1, low + 1)
    paint = [_COLOURS["unknown"] if number is None else ramp(scale(number)) for number in values]
    deepest, widest = max(node.column for node in graph.nodes), max(node.row for node in graph.nodes)
    labelled = len(graph.edges) <= LABELLED
    figure = _figure(min(24, 2.5 + (1.8 if labelled else 1.3) * deepest), min(40, 1.6 + 0.55 * (widest + 1)))
    taken: set[tuple[int, float]] = set()
    axes = figure.add_subplot()
    most = max((len(edge.rows) for edge in graph.edges), default=1)
    for edge, shade in zip(graph.edges, paint, strict=True):
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        width = 1 + 5 * len(edge.rows) / most
        if edge.source == edge.target:
            axes.plot(source.column, source.row - 0.3, "o", ms=9, mfc="none", mec=shade, mew=width / 2, zorder=1)
            continue
        back = target.column <= source.column
        axes.add_patch(
            FancyArrowPatch(
                (source.column, source.row),
                (target.column, target.row),
                connectionstyle=f"arc3,rad={0.4 if back else 0.0}",
                arrowstyle="-",
                linestyle="--" if back else "-",
                linewidth=width,
                color=shade,
                zorder=1,
            )
        )
        if labelled and not back:
            # Before the state that the action leads to, beside its line; further away where another label is.
            away = 1 if target.row > source.row else -1
            beside = target.row + 0.14 * away
            while (target.column, round(beside, 2)) in taken:
                beside += 0.22 * away
            taken.add((target.column, round(beside, 2)))
            told = "several actions" if edge.action < 0 else _plain(actions[edge.action], 24)
            place = {"ha": "right", "va": "top" if away > 0 else "bottom", "zorder": 4}
            axes.text(target.column - 0.16, beside, told, fontsize=5.5, color="0.25", **place)
    for node in graph.nodes:
        end = node.kind == "end"
        number = value(node.rows)
        face = "white" if end else _COLOURS["unknown"] if number is None else ramp(scale(number))
        edge_colour = _COLOURS[node.verdict] if end else "#5b6470"
        axes.plot(
            node.column,
            node.row,
            "s" if end else "o",
            ms=15,
            mfc=face,
            mec=edge_colour,
            mew=1.6 if end else 0.8,
            zorder=2,
        )
        text = {"success": "+", "failure": "x", "unknown": "?"}[node.verdict] if end else str(len(node.rows))
        ink = _ink(face)
        axes.text(node.column, node.row, text, ha="center", va="center", fontsize=8, color=ink, zorder=3)
    axes.set(xlabel="step at which a state is first reached", title=_plain(task), yticks=[], xlim=(-0.5, deepest + 0.5))
    axes.set_ylim(widest + 0.8, -0.8)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    if found:
        figure.colorbar(ScalarMappable(scale, ramp), ax=axes, label=name, shrink=0.8)
    return figure


def _advantages(credit: Credit, rollouts: list[tuple[str, list[int], str]], task: str) -> Any:
    from matplotlib.ticker import MaxNLocator

    figure = _figure(3.2 * len(credit.methods) + 1, 0.9 * len(rollouts) + 1)
    grid = figure.subplots(len(rollouts), len(credit.methods), sharex=True, sharey="col", squeeze=False)
    for line, (name, rows, verdict) in zip(grid, rollouts, strict=True):
        for axes, found in zip(line, credit.estimates.values(), strict=True):
            heights = rounded(found.advantage[rows], 5)
            axes.bar(range(len(rows)), heights, color=_COLOURS[verdict])
            axes.axhline(0, color="0.6", linewidth=0.6)
            if not any(heights):
                middle = {"ha": "center", "va": "bottom", "transform": axes.transAxes, "color": "0.4"}
                axes.text(0.5, 0.55, "0 in every step", fontsize=7, **middle)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.tick_params(labelsize=7)
        line[0].set_ylabel(_plain(name, 22), rotation=0, ha="right", va="center", fontsize=8)
    for axes, method in zip(grid[0], credit.methods, strict=True):
        axes.set_title(method, fontsize=10)
    for axes, found in zip(grid[0], credit.estimates.values(), strict=True):
        if not any(rounded(found.advantage[[row for _, rows, _ in rollouts for row in rows]])):
            axes.set(ylim=(-1, 1), yticks=[0])  # shared down the column; else the axis would show the rounding of 0
    for axes in grid[-1]:
        axes.set_xlabel("step", fontsize=8)
    figure.suptitle(f"{_plain(task)}: advantages (blue success, orange failure, grey unknown)", fontsize=10)
    return figure


def _quadrants(credit: Credit, told: list[str]) -> Any:
    x, y = compared(credit.methods)
    first, second = (list(credit.estimates.values())[at].advantage for at in (x, y))
    owner = credit.table.rollout
    present = [verdict for verdict in _COLOURS if verdict in told]
    figure = _figure(8, 1.2 + 0.9 * len(present))
    axes = figure.add_subplot()
    for place, verdict in enumerate(present):
        rows = torch.tensor([name == verdict for name in told])[owner]
        counts = quadrant_counts(first[rows], second[rows])
        left, total = 0.0, max(sum(counts), 1)
        for name, count, colour in zip(QUADRANTS, counts, _QUADRANT_COLOURS, strict=True):
            axes.barh(place, 100 * count / total, left=left, color=colour, label=name if place == 0 else None)
            if count / total > 0.06:
                middle = {"ha": "center", "va": "center", "color": _ink(colour)}
                axes.text(left + 50 * count / total, place, str(count), fontsize=8, **middle)
            left += 100 * count / total
    axes.set_yticks(range(len(present)), present)
    axes.invert_yaxis()
    axes.set(
        xlabel="% of the steps",
        xlim=(0, 100),
        title=f"X = {credit.methods[x]}, Y = {credit.methods[y]}, |A| > {THRESHOLD}",
    )
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)
    return figure
