"""What the page shows, as one JSON value: tasks with their graphs, rollouts, steps, and where methods differ.

    methods      names, in the order asked for
    value        the method whose returns, Q, V and visits the steps show; null where none has any
    tasks        id, rollouts (numbers), graph (graph.py; null without steps); those with both verdicts come first
    rollouts     columns: id, task, first (row of the first step), steps, outcome (null = unknown), verdict, ending,
                 answer (text of the last answer, -1 = none)
    steps        columns: state, action (texts of the keys), saw, thought, did (texts; -1 = none), return, q, v,
                 visits, action_visits (null, or a list with null where there is no number)
    advantages   one column of the steps a method
    differ       "X,Y" (numbers of methods, X < Y) -> [row, steps like it] where the two differ most

The texts are those of the collector's store; block.py puts both together and sees to it that they fit. Rows of the
steps are in the order read, those of one rollout together.

What this is not: the page. Nothing here is HTML.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rtmc.logs.credit import Credit
from rtmc.report.graph import DRAWN, StateGraph, state_graph
from rtmc.report.texts import Collector
from rtmc.table import StepTable
from rtmc.types import Ending

DIFFER = 40  # rows of the table of differences, for each two methods


def page_data(credit: Credit, collector: Collector) -> tuple[dict[str, Any], set[int]]:
    """The value described above, and the numbers of the texts that the table of differences shows.

    Raises ValueError where the collector has seen other rollouts than those of `credit`.
    """
    table = credit.table
    rows = rows_by_rollout(table)
    _check_same(table, rows, collector)
    store = collector.store
    states, actions = (
        [store.add(str(name)) for name in names or ()] for names in (table.state_names, table.action_names)
    )
    steps: dict[str, Any] = {
        "state": [states[at] for at in table.state.tolist()],
        "action": [actions[at] for at in table.action.tolist()],
        "saw": [at for found in collector.rollouts for at in found.saw],
        "thought": [at for found in collector.rollouts for at in found.thought],
        "did": [at for found in collector.rollouts for at in found.did],
    }
    keys = Keys.of(table)
    source = value_method(credit)
    values = None if source is None else credit.estimates[source]
    # What a method fills in for a rollout that counts as absent is no value of its steps.
    known = ~table.outcome[table.rollout].isnan()
    for name in ("returns", "q", "v", "visits", "action_visits"):
        column = None if values is None else getattr(values, name)
        steps["return" if name == "returns" else name] = (
            None if column is None else rounded(column.double().where(known, math.nan))
        )
    advantages = [found.advantage for found in credit.estimates.values()]
    differ = {
        f"{x},{y}": most_different(table, advantages[x], advantages[y])
        for x, y in combinations(range(len(advantages)), 2)
    }
    told = verdicts(table)
    answers = {(found.rollout.task_id, found.rollout.rollout_id): found.answer for found in collector.rollouts}
    ids = names_of(table.rollout_names)
    groups = names_of(table.group_names)
    group = table.group.tolist()
    data = {
        "methods": credit.methods,
        "value": source,
        "tasks": [
            {
                "id": groups[task],
                "rollouts": members,
                "graph": _graph_json(task_graph(keys, rows, told, members), states, actions),
            }
            for task, members in task_order(table, told)
        ],
        "rollouts": {
            "id": ids,
            "first": [members[0] if members else 0 for members in rows],
            "steps": [len(members) for members in rows],
            "outcome": rounded(table.outcome),
            "verdict": told,
            "ending": [Ending(code).name.lower() for code in table.ending.tolist()],
            "answer": [answers[groups[task], name] for task, name in zip(group, ids, strict=True)],
        },
        "steps": steps,
        "advantages": [rounded(column, 5) for column in advantages],
        "differ": differ,
    }
    told_rows = {row for pairs in differ.values() for row, _ in pairs}
    return data, {at for row in told_rows for at in (steps["saw"][row], steps["did"][row])}


def rows_by_rollout(table: StepTable) -> list[list[int]]:
    """Rows of each rollout in time order; empty for one without steps."""
    found: list[list[int]] = [[] for _ in range(table.n_rollouts)]
    places = sorted(zip(table.rollout.tolist(), table.index.tolist(), range(len(table)), strict=True))
    for rollout, _, row in places:
        found[rollout].append(row)
    return found


def _check_same(table: StepTable, rows: list[list[int]], collector: Collector) -> None:
    """The collector's rollouts are the table's, and the rows stand in their order."""
    groups, names, group = names_of(table.group_names), names_of(table.rollout_names), table.group.tolist()
    known = {(groups[group[at]], names[at]): members for at, members in enumerate(rows)}
    row = 0
    for found in collector.rollouts:
        length = len(found.did)
        members = known.pop((found.rollout.task_id, found.rollout.rollout_id), None)
        if members != list(range(row, row + length)):
            raise ValueError(
                f"`collector`: {found.rollout.name}, {length} steps, is not what row {row} of the table begins; "
                "give the collector that `credit_logs` was given as `on_rollout`"
            )
        row += length
    if known:
        raise ValueError(f"`collector` has not seen {len(known)} rollouts of the table, first {next(iter(known))}")


def names_of(names: Sequence[Hashable] | None) -> list[str]:
    """The names as text."""
    return [str(name) for name in names or ()]


def rounded(column: Tensor, digits: int = 4) -> list[float | int | None]:
    """Numbers of a column with so many significant digits; None for one that is not finite."""
    return [_short(value, digits) for value in column.tolist()]


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    # What is left of a zero after sums in floating point is drawn as zero, not as the largest bar there is.
    number = 0.0 if abs(value) < 1e-12 else float(f"{value:.{digits}g}")
    return int(number) if number == int(number) else number


def value_method(credit: Credit) -> str | None:
    """The first method with Q, else the first with V or returns, as in the records of `rtmc advantages`."""
    some = {name: (e.q is not None, e.v is not None or e.returns is not None) for name, e in credit.estimates.items()}
    ranked = [name for name, has in some.items() if has[0]] + [name for name, has in some.items() if has[1]]
    return ranked[0] if ranked else None


def verdicts(table: StepTable) -> list[str]:
    """Of each rollout "success", "failure", or "unknown" where no outcome is known."""
    pairs = zip(table.outcome.tolist(), table.ending.tolist(), strict=True)
    return ["unknown" if math.isnan(o) else "success" if e == Ending.SUCCESS else "failure" for o, e in pairs]


def task_order(table: StepTable, told: Sequence[str]) -> list[tuple[int, list[int]]]:
    """(group, its rollouts): those with both verdicts first, where there is credit to assign; then those with most."""
    members: list[list[int]] = [[] for _ in names_of(table.group_names)]
    for rollout, task in enumerate(table.group.tolist()):
        members[task].append(rollout)

    def rank(task: int) -> tuple[bool, int, int]:
        mixed = {"success", "failure"} <= {told[at] for at in members[task]}
        return not mixed, -len(members[task]), task

    return [(task, members[task]) for task in sorted(range(len(members)), key=rank)]


class Keys(NamedTuple):
    """The columns of keys, as lists."""

    state: list[int]
    action: list[int]
    next_state: list[int]

    @classmethod
    def of(cls, table: StepTable) -> Keys:
        return cls(table.state.tolist(), table.action.tolist(), table.next_state.tolist())


def task_graph(
    keys: Keys, rows: Sequence[Sequence[int]], told: Sequence[str], members: Sequence[int], drawn: int = DRAWN
) -> StateGraph:
    """The graph of the rollouts `members`, at most `drawn` nodes of it."""
    return state_graph([rows[at] for at in members], *keys, [told[at] for at in members], drawn=drawn)


def _graph_json(graph: StateGraph, states: list[int], actions: list[int]) -> dict[str, Any] | None:
    if not graph.nodes:
        return None
    nodes = [asdict(node) | {"states": [states[at] for at in node.states]} for node in graph.nodes]
    edges = [asdict(edge) | {"action": actions[edge.action] if edge.action >= 0 else -1} for edge in graph.edges]
    return {"nodes": nodes, "edges": edges, "folded": graph.folded, "left_out": graph.left_out}


def most_different(table: StepTable, x: Tensor, y: Tensor, count: int = DIFFER) -> list[tuple[int, int]]:
    """(row, steps like it) of the steps on which two methods' advantages differ most, most first.

    Methods have scales of their own, so each advantage is divided by the root mean square of its method's over all
    steps; a method whose advantages are all 0 stays at 0. Steps of one state and action with equal advantages are told
    once, by the first of them. Steps on which the methods agree exactly are left out.
    """
    gap = (_scaled(x) - _scaled(y)).abs()
    alike: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(table.state.tolist(), table.action.tolist(), rounded(x, 5), rounded(y, 5), strict=True)
    for row, key in enumerate(keys):
        alike.setdefault(key, []).append(row)
    size = gap.tolist()
    first = sorted(
        (members[0] for members in alike.values() if size[members[0]] > 0), key=lambda row: (-size[row], row)
    )
    times = {members[0]: len(members) for members in alike.values()}
    return [(row, times[row]) for row in first[:count]]


def _scaled(column: Tensor) -> Tensor:
    scale = torch.sqrt((column.double() ** 2).mean()) if len(column) else torch.tensor(0.0)
    return column.double() / scale if scale > 0 else column.double()
