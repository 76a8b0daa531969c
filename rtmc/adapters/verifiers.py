"""verifiers and prime-rl: message graphs, whose branches are the tree of a task's rollouts (made for verifiers 0.4).

To paste, with `traces` the traces of several attempts at each task:

    import rtmc.adapters.verifiers as credit

    estimate = credit.set_advantages(traces, "rtmc", gamma=0.99)
    for trace in traces:
        for branch in trace.branches:  # what prime-rl trains on
            print(branch.token_ids, branch.advantages)

A step is a node that the model sampled. `set_advantages` writes `node.advantages`, one number a sampled token, as
prime-rl's own algorithms do; nodes that lie on no trainable branch stay None.

unit        "branch": every trainable branch is a rollout, and what branches share is one node of a tree, as treehca,
            at2po and tree_grpo need it; methods made for chains see each branch whole. "trace": a trace is one rollout,
            its sampled nodes in the order they were made; for traces whose branches are contexts of one attempt
            (compaction, sub-agents) and not attempts of their own
outcome     the reward of the trace, also for every branch of it. A trace without a reward (it failed before it was
            scored) is unknown and counts as absent. `outcome=` gives another, by trace and last node of the branch
group       the task's key, or its content hash; `group=` gives another
keys        state = everything said before the message, action = the message, by content and without the ids of tool
            calls; so two attempts share a state while they read and wrote the same. `keys=` gives coarser ones, rewards
            and scores (`answer_score`, `entropy`, ...), by trace and node

This file reads attributes only: a trace read from a record, or an object of the same form, does as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from rtmc.errors import TableError
from rtmc.methods.registry import estimate
from rtmc.table import StepTable
from rtmc.types import Estimate

__all__ = ["set_advantages", "table_from_traces"]

Keys = Callable[[Any, int], Mapping[str, Any]]
_OF_ROLLOUT = ("group", "rollout", "index", "outcome", "ending", "parent", "tree", "tokens")


def set_advantages(
    traces: Sequence[Any],
    method: str,
    *,
    unit: Literal["branch", "trace"] = "branch",
    group: Callable[[Any], Hashable] | None = None,
    outcome: Callable[[Any, int], float] | None = None,
    keys: Keys | None = None,
    **options: Any,
) -> Estimate:
    """Write the credit of every sampled node of `traces` and return the estimate, one row a node.

    The arguments are those of `table_from_traces`; `options` those of the method. Raises as it and `rtmc.estimate` do.
    """
    table, nodes = table_from_traces(traces, unit=unit, group=group, outcome=outcome, keys=keys)
    found = estimate(table, method, **options)
    for (trace, node), advantage in zip(nodes, found.advantage.tolist(), strict=True):
        sampled = traces[trace].nodes[node]
        sampled.advantages = [advantage] * sum(map(bool, sampled.mask))
    return found


def table_from_traces(
    traces: Sequence[Any],
    *,
    unit: Literal["branch", "trace"] = "branch",
    group: Callable[[Any], Hashable] | None = None,
    outcome: Callable[[Any, int], float] | None = None,
    keys: Keys | None = None,
) -> tuple[StepTable, list[tuple[int, int]]]:
    """The step table of some traces, and (trace, node) of each of its rows.

    See the head of this file for the arguments. A branch that ends inside another one (with a prompt that was never
    answered) is no rollout of its own; a trace without a sampled node is a rollout without steps. The score `tree` is
    the trace's number: a trace is one tree.

    Raises TableError (a ValueError) for a graph that is none, a group that is not known, and keys that are none.
    """
    if unit not in ("branch", "trace"):
        raise TableError(f"`unit` must be 'branch' or 'trace', got {unit!r}")
    rows: list[dict[str, Any]] = []
    nodes: list[tuple[int, int]] = []
    empty: list[dict[str, Any]] = []
    for number, trace in enumerate(traces):
        name = _group(trace, number) if group is None else group(trace)
        states = _states(trace, number)
        paths = _paths(trace)
        if unit == "trace":
            paths = [sorted({node for path in paths for node in path})] if paths else []
        row_of: dict[int, int] = {}
        for branch, path in enumerate(paths):
            shared = {
                "group": name,
                "rollout": (number, branch),
                "outcome": _reward(trace) if outcome is None else float(outcome(trace, path[-1])),
                "ending": "truncated" if getattr(trace, "is_truncated", False) else None,
            }
            for index, node in enumerate(path):
                if node in row_of:
                    continue
                row_of[node] = len(rows)
                row: dict[str, Any] = {
                    "state": states[node],
                    "action": _digest(b"", _content(trace.nodes[node].message)),
                }
                row |= _given(keys, trace, number, node) | shared
                tokens = sum(map(bool, trace.nodes[node].mask)) if trace.nodes[node].token_ids else 1
                row |= {"index": index, "tokens": tokens, "tree": number}
                if unit == "branch":
                    row["parent"] = row_of[path[index - 1]] if index else -1
                rows.append(row)
                nodes.append((number, node))
        if not paths:
            empty.append({"group": name, "rollout": (number, 0), "outcome": _reward(trace)})
    return StepTable.from_rows(rows, empty_rollouts=empty), nodes


def _given(keys: Keys | None, trace: Any, number: int, node: int) -> dict[str, Any]:
    found = {} if keys is None else keys(trace, node)
    if not isinstance(found, Mapping):
        raise TableError(f"trace {number}, node {node}: `keys` gave {type(found).__name__}, wanted a mapping")
    for name in found:
        if name in _OF_ROLLOUT:
            raise TableError(f"trace {number}, node {node}: `keys` gave `{name}`, which is read from the graph")
    return dict(found)


def _paths(trace: Any) -> list[list[int]]:
    """Sampled nodes of every trainable branch, root first; none that ends inside another."""
    inner = {node.parent for node in trace.nodes}
    leaves = [place for place in range(len(trace.nodes)) if place not in inner]
    paths: list[list[int]] = []
    for leaf, branch in zip(leaves, trace.branches, strict=True):
        if branch.trainable:
            path = [node for node in _upwards(trace, leaf) if trace.nodes[node].sampled][::-1]
            if path:
                paths.append(path)
    passed = {node for path in paths for node in path[:-1]}
    ends: dict[int, list[int]] = {}
    for path in paths:
        if path[-1] not in passed:
            ends.setdefault(path[-1], path)
    return list(ends.values())


def _upwards(trace: Any, node: int | None) -> Iterator[int]:
    while node is not None:
        yield node
        node = trace.nodes[node].parent


def _states(trace: Any, number: int) -> list[bytes]:
    """For every node a digest of all messages before it, in the order of the graph."""
    after: list[bytes] = []
    before: list[bytes] = []
    for place, node in enumerate(trace.nodes):
        if node.parent is not None and not 0 <= node.parent < place:
            raise TableError(
                f"trace {number}, node {place}: its parent is {node.parent}; a parent stands before its node"
            )
        before.append(b"" if node.parent is None else after[node.parent])
        after.append(_digest(before[-1], _content(node.message)))
    return before


def _content(message: Any) -> Any:
    """What a message says, without ids that differ from run to run."""
    calls = _get(message, "tool_calls") or []
    return [
        _get(message, "role"),
        _plain(_get(message, "content")) or "",
        _get(message, "reasoning_content"),
        [[_get(call, "name"), _arguments(_get(call, "arguments"))] for call in calls],
    ]


def _arguments(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _digest(before: bytes, content: Any) -> bytes:
    return blake2b(before + json.dumps(content, sort_keys=True, default=str).encode(), digest_size=16).digest()


def _group(trace: Any, number: int) -> Hashable:
    name = trace.task.key if trace.task.key is not None else trace.task.hash
    if name is None:
        raise TableError(
            f"trace {number}: its task has neither key nor hash; say with `group=` what it is compared with"
        )
    return str(name)


def _reward(trace: Any) -> float:
    """The trace's reward; NaN where nothing was scored."""
    scored = [reward for reward in trace.rewards.values() if reward is not None]
    return float(trace.reward) if scored else math.nan
