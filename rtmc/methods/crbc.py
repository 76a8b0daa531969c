"""`crbc` and `graft`: two more readings of the graph of states that GraphHCA uses.

Both work on the graph of rtmc/methods/graph.py and its fixed point V (there Phi), with b = gamma_bar and mu(a|s) the
frequency of action a at s.

    crbc    'Cross-Rollout Bellman Closure'
            Q(s,a) = b E[V(x) | s, a]        V(s) = sum_a mu(a|s) Q(s,a)        sigma(s)^2 = sum_a mu(a|s) (Q - V)^2
            step   = (Q - V) / max(sigma, sigma_min), 0 at states of one action

    graft   GRAFT, arXiv 2609.28963
            d_t  = b V(x_t) - V(s_t)
            D_t  = d_t + b lam D_{t+1} along the rollout
            step = (D - mean) / max(std, sigma_min) over all steps that leave s, 0 where they are equal

    A = episode_weight * GRPO + step_weight * step

crbc does not tell successors of one action apart: luck stays out of the credit. graft and graphhca do.

GRAFT smooths d over the successors on the graph, as GAE does over a rollout. On the fixed point that adds nothing: the
mean of d over all steps that leave s is b E[V(x)] - V(s) = 0 at every state, hence so is every later term. What is left
is d itself, which is the default here, lam = 0; lam > 0 smooths along the rollout's own steps, where terms do not
cancel.

Choices where the texts are silent: sigma_min is 1e-6; both are centred and scaled with population statistics, `ddof`
being GRPO's and graft's; ends, frequencies and GRPO are as for graphhca (private ends, truncation is failure). GRAFT as
its paper has it is episode_weight = 0.

What these are not: the finite-depth family of CRBC, or GraphGPO's distances (graphhca with power = infinity is close).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtmc.kernels.ids import dense_ids
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.segments import segment_stats
from rtmc.methods.graph import GRAPH_OPTIONS, Graph, episode_term, of_steps, potential, state_graph
from rtmc.methods.options import number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import Centred, centre
from rtmc.table import StepTable
from rtmc.types import Estimate

_OPTIONS = {**GRAPH_OPTIONS, "sigma_min": number(1e-6, 0.0)}


class _Solved(NamedTuple):
    """A graph with its values. `now`, `then` (P,): V of a step's state, b V of where it leads; `error` bounds V's."""

    graph: Graph
    now: Tensor
    then: Tensor
    error: float


def _solve(table: StepTable, terminal: str, gamma_bar: float, power: float) -> _Solved:
    graph = state_graph(table, terminal)
    value, error = potential(graph, gamma_bar, power)
    now, then = (of_steps(value, nodes, graph.known) for nodes in (graph.source, graph.target))
    return _Solved(graph, now, gamma_bar * then, error)


def _scaled(centred: Centred, sigma_min: float, error: float) -> Tensor:
    """difference / max(std, sigma_min), 0 where the error of the values could be all of the difference."""
    step = centred.difference / centred.std.clamp(min=sigma_min)
    return torch.where((centred.difference == 0) | (centred.std <= 4 * error), 0.0, step)


@register_estimator(
    "crbc",
    needs=("state", "action", "next_state"),
    options=_OPTIONS,
    source="Cross-Rollout Bellman Closure, sister paper of GraphHCA (arXiv 2609.35084)",
)
def crbc(
    table: StepTable,
    gamma_bar: float,
    floor: float,
    step_weight: float,
    episode_weight: float,
    ddof: int,
    eps: float,
    terminal: str,
    power: float,
    sigma_min: float,
) -> Estimate:
    """A = episode_weight * GRPO + step_weight * (Q - V) / max(sigma, sigma_min), see the head of this file.

    sigma_min      least sigma, on the scale of values in [0, 1]
    floor          taken, as by `graphhca`, and without effect: no logarithm is taken here
    other options  as of `graphhca`; with power other than 1, V is the mean of Q all the same

    Returns advantage, q, v, visits, action_visits, parts `episode` and `step`. Steps of rollouts with an unknown
    outcome have 0 everywhere.
    """
    graph, _, then, error = _solve(table, terminal, gamma_bar, power)
    pairs, count = dense_ids(graph.ids, table.action)
    pairs = torch.where(graph.known, pairs, -1)
    actions = segment_stats(then, pairs, int(count))
    q = of_steps(actions.mean, pairs.clamp(min=0), graph.known)
    centred = centre(q, graph.ids, graph.segments, ddof=0)
    states = segment_stats(q, graph.ids, graph.segments)
    step = _scaled(centred, sigma_min, error)
    episode = episode_term(table, ddof, eps)
    return Estimate(
        episode_weight * episode + step_weight * step,
        q=q,
        v=of_steps(states.mean, graph.source, graph.known),
        visits=of_steps(states.count, graph.source, graph.known).long(),
        action_visits=of_steps(actions.count, pairs.clamp(min=0), graph.known).long(),
        parts={"episode": episode, "step": step},
    )


@register_estimator(
    "graft",
    needs=("state", "action", "next_state"),
    options={**_OPTIONS, "lam": number(0.0, 0.0, 1.0)},
    source="GRAFT, arXiv 2609.28963",
)
def graft(
    table: StepTable,
    gamma_bar: float,
    floor: float,
    step_weight: float,
    episode_weight: float,
    ddof: int,
    eps: float,
    terminal: str,
    power: float,
    sigma_min: float,
    lam: float,
) -> Estimate:
    """A = episode_weight * GRPO + step_weight * (D - mean) / max(std, sigma_min), see the head of this file.

    sigma_min      least std, on the scale of values in [0, 1]
    floor          taken, as by `graphhca`, and without effect: no logarithm is taken here
    lam            smoothing along the rollout's own steps, in [0, 1]
    other options  as of `graphhca`

    Returns advantage, q (b V(x)), v (V(s)), visits, parts `episode`, `step` and `credit` (D). Steps of rollouts with
    an unknown outcome have 0 everywhere.
    """
    graph, now, then, error = _solve(table, terminal, gamma_bar, power)
    credit = then - now
    if lam:
        credit = discounted_returns(credit, table.offsets(), gamma_bar * lam)
        compared = credit
    else:
        compared = then  # V(s) is the same for all that leave s
    centred = centre(compared, graph.ids, graph.segments, ddof)
    step = _scaled(centred, sigma_min, error)
    episode = episode_term(table, ddof, eps)
    return Estimate(
        episode_weight * episode + step_weight * step,
        q=then,
        v=now,
        visits=of_steps(segment_stats(then, graph.ids, graph.segments).count, graph.source, graph.known).long(),
        parts={"episode": episode, "step": step, "credit": credit},
    )
