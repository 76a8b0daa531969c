"""`graphhca`: closed-form hindsight credit on the graph of states (GraphHCA, arXiv 2609.35084).

Where success depends on the state alone, the hindsight ratio of an action that leads from s to x is Phi(x) / Phi(s),
Phi(s) being the probability of success from s under the policy that acted. Over the graph of the group's known
rollouts (rtmc/methods/graph.py), with its edge frequencies,

    Phi(s) = gamma_bar E[Phi(x)]      1 at success ends, 0 at failure ends
    Psi(s) = log max(Phi(s), floor)
    l_t    = Psi(x_t) - Psi(s_t)                               sums over a rollout to Psi(end) - Psi(start)
    step   = (l - mean) / std over all steps that leave s; 0 if there is one alone, or std = 0
    A      = episode_weight * GRPO + step_weight * step

gamma_bar discounts the propagation and is not the task's. GRPO is that of rtmc/methods/grpo.py with the same `ddof` and
`eps`: with step_weight = 0 the two are the same, bit for bit.

Choices where the paper is silent: `ddof` of both standard deviations is 0; no eps is added (`eps` adds one, to
GRPO's alone); a rollout's end is a private node ("virtual"), so that a truncated rollout does not make the last state
it saw a failure for the others; frequencies are those of (s, x), which covers worlds that are not deterministic.
terminal="state" is what a third party's port does. `power` is the paper's ablation, the power mean over successors.

What it gives at the edges: a group of failures has Phi = 0 everywhere and credit 0. A group of successes has GRPO 0 but
steps that differ: gamma_bar prefers the shorter way. A group of one has credit only at states it visits twice. A spread
of l that the error bound of Phi could explain counts as none. Keep `floor` below gamma_bar^T, T the longest rollout, or
early steps lose their credit.

What this is not: for stochastic worlds the ratio is an average over what followed; credit then includes luck.
"""

from __future__ import annotations

import torch

from rtmc.kernels.segments import segment_stats
from rtmc.methods.graph import GRAPH_OPTIONS, episode_term, noise, of_steps, potential, state_graph
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, z_score
from rtmc.table import StepTable
from rtmc.types import Estimate


@register_estimator(
    "graphhca",
    needs=("state", "action", "next_state"),
    options=GRAPH_OPTIONS,
    source="GraphHCA, arXiv 2609.35084",
)
def graphhca(
    table: StepTable,
    gamma_bar: float,
    floor: float,
    step_weight: float,
    episode_weight: float,
    ddof: int,
    eps: float,
    terminal: str,
    power: float,
) -> Estimate:
    """A = episode_weight * GRPO + step_weight * z(log-potential gained), see the head of this file.

    gamma_bar        discount of the propagation, in [0, 1)
    floor            eps_f, the least Phi whose logarithm is taken
    ddof, eps        of GRPO: (R - mean) / (std + eps); `ddof` also of the step term
    terminal         "virtual" or "state", see rtmc/methods/graph.py
    power            w of Phi(s) = gamma_bar E[Phi(x)^w]^(1/w); infinity = the best successor

    Returns advantage, q (Phi(x)), v (Phi(s)), visits (steps that leave s), parts `episode` and `step` (before their
    weights), `credit` (l) and `potential` (Psi(s)). Steps of rollouts with an unknown outcome have 0 everywhere.
    """
    graph = state_graph(table, terminal)
    phi, tol = potential(graph, gamma_bar, power)
    psi = phi.clamp(min=floor).log()
    before, after = (of_steps(psi, nodes, graph.known) for nodes in (graph.source, graph.target))
    credit = after - before
    # Psi(s) is the same for all that leave s, so l is standardised as Psi(x) is, which loses no digits.
    centred = centre(after, graph.ids, graph.segments, ddof)
    step = torch.where(centred.std > noise(tol, floor), z_score(centred, 0.0), 0.0)
    episode = episode_term(table, ddof, eps)
    return Estimate(
        episode_weight * episode + step_weight * step,
        q=of_steps(phi, graph.target, graph.known),
        v=of_steps(phi, graph.source, graph.known),
        visits=of_steps(segment_stats(after, graph.ids, graph.segments).count, graph.source, graph.known).long(),
        parts={"episode": episode, "step": step, "credit": credit, "potential": before},
    )
