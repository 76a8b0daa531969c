"""The rollouts of one task as a graph of states: what is a node, what an edge, and where each is drawn.

A node is a state key, an edge an action from one state to the next; rollouts that come to the same key share the node.
What ends is drawn too: one node for the rollouts that end after the same state with the same verdict. Keys may recur,
so this is a graph and not always a tree. It is drawn in columns:

    column of a node    the least number of nodes that any rollout passes before it (its first depth)
    row of a node       that of a tree: each node hangs on the node from which it was first reached at that depth;
                        leaves take the rows 0, 1, 2, ..., every other node the middle of what hangs on it

so no two nodes lie on one another, and edges that run backwards or skip columns are those that a tree would lack.

What this is not: the credit. Values are looked up from the rows of the step table that a node or an edge stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FOLD_ABOVE = 60  # nodes from which on runs of states that one rollout alone visits are drawn as one
DRAWN = 400  # nodes that are drawn at most


@dataclass
class Node:
    """A place in the drawing.

    kind     "state"; "fold" for a run of states that one rollout alone visits; "end"
    states   ids of the states it stands for; of an end, the state that the last steps led to, if it is known
    verdict  of an end: "success", "failure" or "unknown"
    rows     rows of the table: steps that stand in it; of an end, the last steps of the rollouts
    column, row   place in the drawing
    """

    kind: str
    states: list[int]
    verdict: str = ""
    rows: list[int] = field(default_factory=list)
    column: int = 0
    row: float = 0.0


@dataclass
class Edge:
    """An action from node to node: `source`, `target` are places in the list of nodes, `rows` the steps that took it.

    Steps that stay in their state are one edge with the action -1; else each action has its own. What goes on within a
    run that is drawn as one has none.
    """

    source: int
    target: int
    action: int
    rows: list[int] = field(default_factory=list)


@dataclass
class StateGraph:
    """Nodes and edges that are drawn; `left_out` nodes are not, those that the fewest rollouts visit."""

    nodes: list[Node]
    edges: list[Edge]
    folded: bool = False
    left_out: int = 0


def state_graph(
    rollouts: Sequence[Sequence[int]],
    state: Sequence[int],
    action: Sequence[int],
    next_state: Sequence[int],
    verdict: Sequence[str],
    fold_above: int = FOLD_ABOVE,
    drawn: int = DRAWN,
) -> StateGraph:
    """The graph of one task.

    rollouts                    rows of the table of each rollout in time order; rollouts without steps are passed over
    state, action, next_state   columns of the table
    verdict                     of each rollout, as of `Node`
    """
    kept = [number for number, rows in enumerate(rollouts) if rows]
    visitors: dict[int, set[int]] = {}
    for number in kept:
        for row in rollouts[number]:
            visitors.setdefault(state[row], set()).add(number)
    ends = {number: _end(rollouts[number], state, action, next_state, verdict[number]) for number in kept}
    folded = len(visitors) + len(set(ends.values())) > fold_above

    nodes: list[Node] = []
    places: dict[object, int] = {}
    paths: list[list[int]] = []  # of each rollout, the node of each step and the end
    runs: dict[int, int] = {}  # lone state -> number of its run

    def place(name: object, kind: str, number: int) -> int:
        at = places.setdefault(name, len(nodes))
        if at == len(nodes):
            nodes.append(Node(kind, [], verdict[number] if kind == "end" else ""))
        return at

    for number in kept:
        path: list[int] = []
        run: int | None = None
        for row in rollouts[number]:
            if folded and len(visitors[state[row]]) == 1:
                run = runs.setdefault(state[row], row if run is None else run)
                at = place(("run", run), "state", number)
            else:
                run = None
                at = place(("state", state[row]), "state", number)
            node = nodes[at]
            if state[row] not in node.states:
                node.states.append(state[row])
                node.kind = "state" if len(node.states) == 1 else "fold"
            node.rows.append(row)
            path.append(at)
        last = rollouts[number][-1]
        at = place(ends[number], "end", number)
        nodes[at].states = [next_state[last]] if next_state[last] >= 0 else []
        nodes[at].rows.append(last)
        paths.append([*path, at])
    parent = _columns(nodes, paths)
    order = _most_visited(nodes, paths, drawn)
    _rows(nodes, parent, order)
    edges = _edges(nodes, paths, [rollouts[number] for number in kept], action)
    new = {at: place for place, at in enumerate(order)}
    shown = [Edge(new[e.source], new[e.target], e.action, e.rows) for e in edges if e.source in new and e.target in new]
    return StateGraph([nodes[at] for at in order], shown, folded, len(nodes) - len(order))


def _end(
    rows: Sequence[int], state: Sequence[int], action: Sequence[int], after: Sequence[int], verdict: str
) -> object:
    """What makes two ends the same; where the last state is not known, the last state and action that are."""
    last = rows[-1]
    return ("end", verdict, after[last]) if after[last] >= 0 else ("end", verdict, state[last], action[last])


def _columns(nodes: list[Node], paths: list[list[int]]) -> dict[int, int]:
    """Set the columns; for each node but the first of a path, the node from which it was reached at that depth."""
    parent: dict[int, int] = {}
    seen: set[int] = set()
    for path in paths:
        passed = [at for place, at in enumerate(path) if place == 0 or path[place - 1] != at]
        for column, at in enumerate(passed):
            if at in seen and nodes[at].column <= column:
                continue
            seen.add(at)
            nodes[at].column = column
            parent.pop(at, None)
            if column:
                parent[at] = passed[column - 1]
    return parent


def _most_visited(nodes: list[Node], paths: list[list[int]], drawn: int) -> list[int]:
    """The nodes to draw, in the order in which they were met."""
    visits = Counter(at for path in paths for at in set(path))
    first = sorted(range(len(nodes)), key=lambda at: (-visits[at], nodes[at].column, at))
    return sorted(first[:drawn])


def _rows(nodes: list[Node], parent: Mapping[int, int], order: list[int]) -> None:
    """Set the rows of the nodes in `order`: leaves below one another, the rest in the middle of what hangs on it."""
    below: dict[int, list[int]] = {at: [] for at in order}
    roots: list[int] = []
    for at in order:
        (below[parent[at]] if parent.get(at) in below else roots).append(at)
    for children in below.values():
        children.sort(key=lambda at: (-len(nodes[at].rows), at))
    leaves = 0
    # A stack and not recursion: a rollout may have ten thousand steps.
    stack = [(at, False) for at in reversed(roots)]
    while stack:
        at, done = stack.pop()
        if done:
            nodes[at].row = (nodes[below[at][0]].row + nodes[below[at][-1]].row) / 2
        elif below[at]:
            stack += [(at, True), *((child, False) for child in reversed(below[at]))]
        else:
            nodes[at].row = leaves
            leaves += 1


def _edges(
    nodes: list[Node], paths: list[list[int]], rollouts: list[Sequence[int]], action: Sequence[int]
) -> list[Edge]:
    found: dict[tuple[int, int, int], Edge] = {}
    for path, rows in zip(paths, rollouts, strict=True):
        for row, source, target in zip(rows, path, path[1:], strict=False):
            if source == target and nodes[source].kind == "fold":
                continue
            did = -1 if source == target else action[row]
            found.setdefault((source, target, did), Edge(source, target, did)).rows.append(row)
    return list(found.values())
