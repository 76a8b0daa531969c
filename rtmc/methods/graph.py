"""The graph of states that a group's rollouts share, and how near to success each state is.

The steps of the known rollouts of a group are pooled: nodes are states, a step goes from `state` to `next_state` (the
following step's state where that is -1). What ends a rollout is a choice, `terminal`:

    "virtual"   the last step goes to a private end, success or failure, whatever its `next_state`. No state of the
                world is pinned, so a state that one rollout was cut at can still be worth something
    "state"     the last step's `next_state` is itself the end and pinned, for all rollouts that pass there; success
                wins over failure. Where it is not known (-1) the end is private

Success is an `ending` of success; failure and truncation are both failure.

The potential Phi is the fixed point of rtmc/kernels/graph_potential.py: the discounted probability of success of a walk
that follows the frequencies seen.

What this is not: an estimator; those are graphhca.py and crbc.py.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rtmc.kernels.graph_potential import graph_potential
from rtmc.kernels.ids import dense_ids
from rtmc.methods.grpo import Rules, grpo_of_rollouts
from rtmc.methods.options import Option, choice, number, whole
from rtmc.table import StepTable
from rtmc.types import Ending

_FAILED, _SUCCEEDED = -1, -2  # keys of private ends; states are 0 and more
_TOL = 1e-13


def _power(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def _below_one(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < 1


# Options of every method on the graph, with GraphHCA's defaults.
GRAPH_OPTIONS = {
    "gamma_bar": Option(0.95, "a number of at least 0 and below 1", _below_one),
    "floor": number(0.01, 1e-300, 1.0),
    "step_weight": number(1.0),
    "episode_weight": number(1.0),
    "ddof": whole(0, 0, 1),
    "eps": number(0.0, 0.0),
    "terminal": choice("virtual", ("virtual", "state")),
    "power": Option(1.0, "a number above 0, or infinity for the best successor alone", _power),
}


class Graph(NamedTuple):
    """States of all groups as nodes, and where each of the P steps goes.

    source, target   (P,) node of a step's state and of what it leads to; 0 on steps that are absent
    known            (P,) bool: the rollout's outcome is known; the other steps are absent
    goal             (nodes,) 1 success end, -1 failure end, 0 otherwise
    offsets          (G+1,) nodes offsets[g] : offsets[g+1] are those of group g
    """

    source: Tensor
    target: Tensor
    known: Tensor
    goal: Tensor
    offsets: Tensor

    @property
    def segments(self) -> int:
        """Number of nodes as segments of steps; 1 where no step is known, so that there is one to look at."""
        return max(len(self.goal), 1)

    @property
    def ids(self) -> Tensor:
        """(P,) source of each step, -1 where it is absent."""
        return torch.where(self.known, self.source, -1)


def state_graph(table: StepTable, terminal: str) -> Graph:
    """The graph of a table in time order (`StepTable.time_order`)."""
    rollout, offsets, rows = table.rollout, table.offsets(), len(table)
    last = torch.arange(rows, device=table.device) == offsets[rollout + 1] - 1
    succeeded = table.ending[rollout] == Ending.SUCCESS
    end = torch.where(succeeded, _SUCCEEDED, _FAILED)
    following = torch.where(last, end, table.state.roll(-1))
    target = torch.where(table.next_state >= 0, table.next_state, following)
    if terminal == "virtual":
        target = torch.where(last, end, target)

    known = table.known[rollout]
    steps = known.nonzero().squeeze(1)
    group = table.group[rollout[steps]]
    key = torch.cat([table.state[steps], target[steps]])
    group = torch.cat([group, group])
    node, count = dense_ids(group, key)
    # The kernel wants the nodes of a graph side by side.
    group_of_node = torch.zeros(int(count), dtype=torch.int64, device=table.device)
    group_of_node[node] = group
    order = torch.argsort(group_of_node, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=table.device)
    node = place[node]
    sizes = torch.bincount(group_of_node, minlength=table.n_groups)

    goal = torch.zeros(int(count), dtype=torch.int64, device=table.device)
    ends = node[len(steps) :][last[steps]]
    won = succeeded[steps][last[steps]]
    goal[ends[~won]] = -1
    goal[ends[won]] = 1
    source, reached = torch.zeros_like(rollout), torch.zeros_like(rollout)
    source[steps], reached[steps] = node[: len(steps)], node[len(steps) :]
    return Graph(source, reached, known, goal, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def potential(graph: Graph, gamma_bar: float, power: float = 1.0) -> tuple[Tensor, float]:
    """(nodes,) Phi in [0, 1], float64, and a bound on its error."""
    leaves = graph.known & (of_steps(graph.goal, graph.source, graph.known) == 0)  # what leaves an end says nothing
    source, target = graph.source[leaves], graph.target[leaves]
    # What float64 can promise (head of the kernel), with room.
    least = 4 * (2.0**-50 + (len(graph.goal) + len(source)) * 2.0**-62)
    tol = max(_TOL, least / (1 - gamma_bar ** min(power, 1.0)) / min(power, 1.0))
    tol = min(tol, 1.0)
    count = torch.ones_like(source)
    return graph_potential(source, target, count, graph.offsets, graph.goal, gamma_bar, power, tol), tol


def of_steps(values: Tensor, nodes: Tensor, known: Tensor) -> Tensor:
    """(P,) value of each step's node, 0 where the step is absent."""
    if len(values) == 0:
        return torch.zeros(len(nodes), dtype=torch.float64, device=nodes.device)
    return torch.where(known, values[nodes], 0.0)


def episode_term(table: StepTable, ddof: int, eps: float) -> Tensor:
    """(P,) GRPO's advantage of each step's rollout."""
    return grpo_of_rollouts(table, Rules(ddof, eps))[table.rollout]


def noise(tol: float, least: float) -> float:
    """Spread of log Phi that may be nothing but the error of Phi, where Phi is at least `least`."""
    return max(1e-12, 4 * tol / least) if least > 0 else math.inf
