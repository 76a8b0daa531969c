"""What an exploration leaves: turns as trees, from which step tables, rollouts and the trainer's episodes are read.

A node is a completed turn: what the policy wrote, and what the environment answered. A rollout is a path from the
prompt to a verdict; the nodes it sampled itself bear its number, and what stands before them belongs to the rollout it
branched from. What this is not: it samples nothing and assigns no credit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rtmc.rollouts import Rollout, Step, Stop
from rtmc.table import StepTable
from rtmc.train.acting import Turn
from rtmc.train.collect import Episode
from rtmc.train.references import Reference

PROMPT = -1
TREES = ("prompt", "chain")


@dataclass(frozen=True)
class Move:
    """A turn as the policy takes it.

    text     what the environment is told
    tokens   policy tokens sampled, 0 where every one was forced
    entropy  how unsure the policy was, for the score `entropy`; NaN = not measured
    data     the agent's own; the trainer needs a `Turn`
    """

    text: str
    tokens: int = 1
    entropy: float = math.nan
    data: Any = None


@dataclass(eq=False)  # a moment is itself, not what looks like it
class Place:
    """A moment of an episode: the prompt of `task`, or what stands after the turn `node`.

    `history` is the agent's own, `snapshot` what the environment forks from (None: it cannot), `reward` the sum so far,
    `score` the likelihood of the reference answer, `info` the environment's, `ended` its verdict.
    """

    task: int
    node: int
    observation: str
    info: Mapping[str, Any]
    history: Any
    snapshot: Any = None
    reward: float = 0.0
    score: float = math.nan
    ended: Stop | None = None


@dataclass
class Node:
    """A completed turn. `parent` is a node or PROMPT, `before` and `after` the moments around it; `pool_weight` is
    1 / (N p) for a turn drawn from N candidates with probability p, 1 for one the policy sampled."""

    parent: int
    rollout: int
    depth: int
    before: Place
    move: Move
    after: Place
    pool_weight: float = 1.0


@dataclass
class Path:
    """A rollout: the nodes it sampled itself, and how it ended. `start` is the node it branched from, or PROMPT."""

    task: int
    index: int  # in the forest's `paths`
    number: int  # among the task's rollouts
    start: int
    nodes: list[int] = field(default_factory=list)
    reward: float = math.nan
    stop: Stop | None = None
    error: str | None = None


@dataclass(frozen=True)
class Candidate:
    """One candidate of a draw: `probability` it was drawn with, 0 for one that the environment could not execute,
    whose `error` says why. `node`: its number if it was drawn, else None: it was dropped, and is no row of a table."""

    parent: int
    task: int
    text: str
    tokens: int
    score: float
    probability: float
    node: int | None = None
    error: str | None = None


@dataclass
class Root:
    """A task: `key` as it was asked for, `reference` (None: not scored), `tokens` sampled for it, dropped ones
    included, `chain_tokens` those of the first chains, and its moment before the first turn (None where the environment
    could not start; `error` says why)."""

    key: Any
    task_id: str
    place: Place | None = None
    reference: Reference | None = None
    tokens: int = 0
    chain_tokens: int = 0
    error: str | None = None
    rollouts: list[int] = field(default_factory=list)


@dataclass
class Forest:
    """The trees of all tasks: `nodes` in the order in which they were completed, parents first."""

    roots: list[Root] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Policy tokens sampled in all."""
        return sum(root.tokens for root in self.roots)

    def nodes_of(self, task: int) -> list[int]:
        """The nodes of a task, in order."""
        return [node for path in self.roots[task].rollouts for node in self.paths[path].nodes]

    def lineage(self, path: Path) -> list[int]:
        """Every node from the prompt to the rollout's end."""
        above, node = [], path.start
        while node != PROMPT:
            above.append(node)
            node = self.nodes[node].parent
        return above[::-1] + path.nodes

    def table(
        self, tree: str = "prompt", dtype: torch.dtype = torch.float32, tasks: Sequence[int] | None = None
    ) -> StepTable:
        """The step table of `tasks` (all by default): one row a node, in the order of `rows(tasks)`.

        Columns beside the usual ones: `parent`; the scores `entropy`, `pool_weight`, `tree`; and, where there was a
        reference answer, `answer_score` and, on first turns, `root_score`. `state`, `action` and `next_state` are the
        environment's keys; raw text where it gives none. The outcome is the sum of the rewards, NaN for a rollout that
        ended in an error; step rewards are 0. Where no turn was completed the table has no row, but these columns.

        tree   what the score `tree` calls one: "prompt" = all that stands below a prompt, as AT2PO and TreeHCA, which
               shares its protocol, compare leaves; "chain" = each child of the prompt with all below it, Tree-GRPO's

        Raises ValueError for another `tree`.
        """
        if tree not in TREES:
            raise ValueError(f"`tree` must be {' or '.join(map(repr, TREES))}, got {tree!r}")
        tasks = range(len(self.roots)) if tasks is None else tasks
        chosen = self.rows(tasks)
        place = {node: row for row, node in enumerate(chosen)}
        rows: list[dict[str, Any]] = []
        for node in chosen:
            rows.append(self._row(self.nodes[node], place))
            if tree == "prompt":
                rows[-1]["tree"] = self.nodes[node].before.task
            else:
                above = self.nodes[node].parent
                rows[-1]["tree"] = place[node] if above == PROMPT else rows[place[above]]["tree"]
        empty = [self._verdict(self.paths[p]) for t in tasks for p in self.roots[t].rollouts if not self.paths[p].nodes]
        table = StepTable.from_rows(rows, empty, dtype=dtype)
        if rows:
            return table
        names = ("entropy", "pool_weight", "tree", "answer_score", "root_score")
        nothing = {name: torch.zeros(0, dtype=dtype) for name in names}
        return dataclasses.replace(table, parent=torch.zeros(0, dtype=torch.int64), scores=nothing)

    def rows(self, tasks: Sequence[int]) -> list[int]:
        """The nodes in the order of the rows of `table(tasks=tasks)`: parents first."""
        return sorted(node for task in tasks for node in self.nodes_of(task))

    def rollouts(self) -> list[Rollout]:
        """Every rollout from the prompt to its end, for a file of rollouts.

        A shared beginning is in each rollout that goes on from it: `meta["branch"]` names the rollout that sampled it
        and the number of the first step that is this rollout's own. Scores stand with the steps.

        What a reader of the file gets are chains. `rtmc.tabulate` and `rtmc advantages` do not read `meta["branch"]`:
        their table has no `parent`, so that the tree methods (`treehca`, `tree_grpo`, `at2po`) refuse it, and it has
        the steps of a shared beginning once for each rollout, so that other methods count these turns, and their
        states' visits, as often. The dropped candidates are in no rollout. Credit that counts each turn once is that
        of `table()`, which the trainer takes.
        """
        return [self._rollout(path) for path in self.paths]

    def episodes(self) -> list[list[Episode]]:
        """One list a task: the rollouts, with the turns of the nodes they sampled themselves."""
        found = []
        for root in self.roots:
            group = []
            for p in root.rollouts:
                turns = [self.nodes[node].move.data for node in self.paths[p].nodes]
                group.append(Episode(self._rollout(self.paths[p]), [turn for turn in turns if isinstance(turn, Turn)]))
            found.append(group)
        return found

    def name(self, path: Path) -> str:
        """The rollout's id: unique among all, also where two tasks have one id."""
        return f"{path.task}-{path.number}"

    def _verdict(self, path: Path) -> dict[str, Any]:
        told = Rollout("", "", [], path.reward, stop=path.stop, error=path.error)
        outcome = math.nan if path.error is not None else path.reward
        group = self.roots[path.task].task_id
        return {"group": group, "rollout": self.name(path), "outcome": outcome, "ending": told.ending}

    def _row(self, node: Node, place: Mapping[int, int]) -> dict[str, Any]:
        state, action, after = keys_of(node)
        row = self._verdict(self.paths[node.rollout]) | {
            "index": node.depth,
            "state": state,
            "action": action,
            "next_state": after,
            "tokens": node.move.tokens,
            "parent": PROMPT if node.parent == PROMPT else place[node.parent],
        }
        return row | self._scores(node)

    def _scores(self, node: Node) -> dict[str, float]:
        found = {"entropy": node.move.entropy, "pool_weight": node.pool_weight}
        if self.roots[node.before.task].reference is not None:
            found["answer_score"] = node.after.score
            if node.parent == PROMPT:
                found["root_score"] = node.before.score
        return found

    def _rollout(self, path: Path) -> Rollout:
        steps, ids = [], []
        for number in self.lineage(path):
            node = self.nodes[number]
            state, action, after = keys_of(node)
            step = Step(
                observation=node.before.observation,
                action=node.move.text,
                state_key=state,
                action_key=action,
                next_state_key=after,
                valid=node.after.info.get("valid"),
                validation=bool(node.after.info.get("validation", False)),
                tokens=node.move.tokens,
                answer=node.after.observation,
                scores={name: score for name, score in self._scores(node).items() if not math.isnan(score)},
            )
            steps.append(step)
            turn = node.move.data
            ids.append(list(turn.request.sampled) if isinstance(turn, Turn) and turn.request.sampled else None)
        meta: dict[str, Any] = {}
        if path.start != PROMPT:
            above = self.paths[self.nodes[path.start].rollout]
            meta["branch"] = {"of": self.name(above), "first_own_step": self.nodes[path.start].depth + 1}
        told = [one for one in ids if one is not None]
        return Rollout(
            self.roots[path.task].task_id,
            self.name(path),
            steps,
            path.reward,
            stop=path.stop,
            error=path.error,
            token_ids=told if told and len(told) == len(ids) else None,
            meta=meta,
        )


def keys_of(node: Node) -> tuple[str, str, str]:
    """(state, action, state after) as the environment names them; raw text where it does not."""
    action = node.after.info.get("action_key")
    return _state_key(node.before), node.move.text if action is None else str(action), _state_key(node.after)


def _state_key(place: Place) -> str:
    key = place.info.get("state_key")
    return place.observation if key is None else str(key)
