"""crbc and graft against dense solves, the formulas over dictionaries, and what smoothing on the graph amounts to."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError
from tests.test_estimators_graphhca import random_rollouts, table_of

SEEDS = st.integers(0, 10**6)
BETA = 0.95


def solved(rollouts):
    """(edges with their actions, V of every state and of the two ends) by a dense linear system."""
    edges = []
    for steps, outcome in rollouts:
        for t, (s, a, x) in enumerate(steps):
            edges.append((s, a, x if t < len(steps) - 1 else ("won" if outcome > 0 else "lost")))
    states = sorted({s for s, _, _ in edges} | {x for _, _, x in edges if x not in ("won", "lost")})
    system, right = np.eye(len(states)), np.zeros(len(states))
    for s, _, x in edges:
        share = BETA / sum(e[0] == s for e in edges)
        if x == "won":
            right[states.index(s)] += share
        elif x != "lost":
            system[states.index(s), states.index(x)] -= share
    return edges, dict(zip(states, np.linalg.solve(system, right), strict=True)) | {"won": 1.0, "lost": 0.0}


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, sigma_min=st.sampled_from([1e-6, 0.1]))
def test_crbc_against_a_dense_solve(seed, sigma_min):
    rollouts = random_rollouts(seed, unknown=0.0)
    edges, value = solved(rollouts)
    found = rtmc.estimate(table_of(rollouts), "crbc", sigma_min=sigma_min)
    for k, (s, a, _) in enumerate(edges):
        q = {
            action: BETA * np.mean([value[x] for state, b, x in edges if (state, b) == (s, action)])
            for action in {b for state, b, _ in edges if state == s}
        }
        taken = [b for state, b, _ in edges if state == s]
        sigma = math.sqrt(sum(taken.count(b) / len(taken) * (q[b] - value[s]) ** 2 for b in q))
        step = 0.0 if len(q) < 2 or sigma < 1e-11 else (q[a] - value[s]) / max(sigma, sigma_min)
        assert found.q[k].item() == pytest.approx(q[a], abs=1e-11)
        assert found.v[k].item() == pytest.approx(value[s], abs=1e-11)
        assert found.parts["step"][k].item() == pytest.approx(step, abs=1e-6)
        assert found.visits[k].item() == len(taken)
        assert found.action_visits[k].item() == taken.count(a)
    torch.testing.assert_close(found.advantage, found.parts["episode"] + found.parts["step"], rtol=0, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, lam=st.sampled_from([0.0, 0.5, 1.0]))
def test_graft_against_a_dense_solve(seed, lam):
    rollouts = random_rollouts(seed, unknown=0.0)
    edges, value = solved(rollouts)
    deltas = [BETA * value[x] - value[s] for s, _, x in edges]
    credit, at = [], 0
    for steps, _ in rollouts:
        own = deltas[at : at + len(steps)]
        credit += [sum((BETA * lam) ** k * d for k, d in enumerate(own[t:])) for t in range(len(own))]
        at += len(steps)
    found = rtmc.estimate(table_of(rollouts), "graft", lam=lam)
    assert found.parts["credit"].tolist() == pytest.approx(credit, abs=1e-11)
    for k, (s, _, _) in enumerate(edges):
        here = [c for c, edge in zip(credit, edges, strict=True) if edge[0] == s]
        std = float(np.std(here))
        step = (credit[k] - float(np.mean(here))) / max(std, 1e-6) if std > 1e-11 else 0.0
        assert found.parts["step"][k].item() == pytest.approx(step, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_smoothing_over_graph_successors_adds_nothing(seed):
    """Hop by hop over all steps that leave the states reached: the mean residual is 0, as the head of crbc.py says."""
    rollouts = random_rollouts(seed, unknown=0.0)
    edges, value = solved(rollouts)
    for _, _, reached in edges:
        frontier = {reached}
        for _ in range(6):
            further = [edge for edge in edges if edge[0] in frontier]
            if not further:
                break
            assert np.mean([BETA * value[x] - value[s] for s, _, x in further]) == pytest.approx(0, abs=1e-12)
            frontier = {x for _, _, x in further}


def test_luck_after_one_action_is_not_credited_by_crbc():
    rollouts = [([("s", 0, "t")], 1.0), ([("s", 0, "t")], 0.0), ([("s", 1, "t")], 0.0), ([("s", 1, "t")], 0.0)]
    found = rtmc.estimate(table_of(rollouts), "crbc", episode_weight=0.0)
    assert found.advantage.tolist() == pytest.approx([1, 1, -1, -1])
    lucky = rtmc.advantages(table_of(rollouts), "graft", episode_weight=0.0)
    assert lucky[0].item() > 1.5
    assert lucky[1:].tolist() == pytest.approx([lucky[1].item()] * 3)


@pytest.mark.parametrize("method", ["crbc", "graft"])
def test_options_of_graphhca_are_taken(method):
    known = {info.name: info.options for info in rtmc.estimators()}
    assert {name: known[method][name] for name in known["graphhca"]} == known["graphhca"]
    table = table_of(random_rollouts(3, unknown=0.0))
    alike = rtmc.advantages(table, method, floor=0.5)  # no logarithm, so no least argument of one
    assert torch.equal(alike, rtmc.advantages(table, method))
    with pytest.raises(EstimatorError, match=f"^estimator `{method}`: option `floor` must be a finite number in"):
        rtmc.advantages(table, method, floor=0.0)


@pytest.mark.parametrize("method", ["crbc", "graft"])
def test_edges(method):
    assert rtmc.advantages(table_of([([("s", 0, "x")], 1.0)]), method).tolist() == [0.0]
    failed = table_of([([("s", 0, "x")], 0.0), ([("s", 1, "x")], 0.0)])
    assert rtmc.advantages(failed, method).tolist() == [0.0, 0.0]
    unknown = table_of([([("s", 0, "x")], math.nan), ([("s", 1, "x")], math.nan)])
    found = rtmc.estimate(unknown, method)
    assert all((column == 0).all() for _, column in found.items())
    huge = table_of([([("s", 0, "x")], 1e30), ([("s", 1, "x")], 1e-30)])
    assert torch.isfinite(rtmc.advantages(huge, method)).all()
