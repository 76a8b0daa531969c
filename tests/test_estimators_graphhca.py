"""graphhca against a third party's numbers, a dense solve, and the closed form's properties."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases

SEEDS = st.integers(0, 10**6)


def rows_of(rollouts, group=0):
    """Rows of (transitions, outcome) pairs; a transition is (state, action, next state)."""
    return [
        {"group": group, "rollout": r, "index": t, "state": s, "action": a, "next_state": x, "outcome": outcome}
        for r, (steps, outcome) in enumerate(rollouts)
        for t, (s, a, x) in enumerate(steps)
    ]


def table_of(rollouts, dtype=torch.float64):
    return StepTable.from_rows(rows_of(rollouts), dtype=dtype)


def random_rollouts(seed, unknown=0.2, states=4):
    """Walks over a few states, the last step to one of them too; 0/1 outcomes, some unknown."""
    rng = random.Random(seed)
    rollouts = []
    for _ in range(rng.randrange(1, 6)):
        path = [rng.randrange(states) for _ in range(rng.randrange(2, 7))]
        steps = [(s, rng.randrange(2), x) for s, x in itertools.pairwise(path)]
        rollouts.append((steps, math.nan if rng.random() < unknown else float(rng.randrange(2))))
    return rollouts


def test_third_partys_numbers(shared):
    for given_, wanted in vector_cases(shared, "graphhca_thirdparty_port"):
        rollouts = [(member["transitions"], float(member["success"])) for member in given_["rollouts"]]
        options = {"gamma_bar": given_["gamma_bar"], "floor": given_["floor"], "terminal": "state"}
        found = rtmc.estimate(table_of(rollouts), "graphhca", **options)
        for name, of in {
            "values": (found.v, found.q),
            "potentials": (found.parts["potential"], found.parts["potential"] + found.parts["credit"]),
        }.items():
            for column, place in zip(of, (0, 2), strict=True):
                expected = [wanted[name][step[place]] for steps, _ in rollouts for step in steps]
                assert column.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert found.parts["credit"].tolist() == pytest.approx(wanted["credits"], rel=1e-9, abs=1e-9)
        assert found.parts["step"].tolist() == pytest.approx(wanted["step_advantages"], rel=1e-9, abs=1e-9)
        torch.testing.assert_close(found.advantage, found.parts["episode"] + found.parts["step"], rtol=0, atol=1e-15)


def reference(rollouts, terminal, gamma_bar, floor):
    """(Phi(s), credit, step) of every step: a dense linear system and plain lists. Absent steps give 0."""
    known = [(steps, outcome) for steps, outcome in rollouts if not math.isnan(outcome)]
    edges, pinned = [], {"won": 1.0, "lost": 0.0}
    for steps, outcome in known:
        for t, (s, _, x) in enumerate(steps):
            last = t == len(steps) - 1
            end = ("won" if outcome > 0 else "lost") if last and terminal == "virtual" else x
            edges.append((s, end))
            if last and terminal == "state":
                pinned[x] = max(pinned.get(x, 0.0), float(outcome > 0))
    names = sorted({name for edge in edges for name in edge} | set(pinned), key=str)
    system, right = np.eye(len(names)), np.zeros(len(names))
    for i, name in enumerate(names):
        reached = [x for s, x in edges if s == name]
        if name in pinned:
            right[i] = pinned[name]
            continue
        for x in reached:
            system[i, names.index(x)] -= gamma_bar / len(reached)
    phi = dict(zip(names, np.linalg.solve(system, right), strict=True))
    psi = {name: math.log(max(value, floor)) for name, value in phi.items()}
    gains = {}
    for s, x in edges:
        gains.setdefault(s, []).append(psi[x] - psi[s])
    found, at = [], 0
    for steps, outcome in rollouts:
        for s, _, _ in steps:
            if math.isnan(outcome):
                found.append((0.0, 0.0, 0.0))
                continue
            credit = psi[edges[at][1]] - psi[s]
            at += 1
            std = float(np.std(gains[s]))
            found.append((phi[s], credit, (credit - float(np.mean(gains[s]))) / std if std > 1e-9 else 0.0))
    return found


@pytest.mark.parametrize("terminal", ["virtual", "state"])
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_against_a_dense_solve(terminal, seed):
    rollouts = random_rollouts(seed)
    found = rtmc.estimate(table_of(rollouts), "graphhca", terminal=terminal)
    expected = reference(rollouts, terminal, 0.95, 0.01)
    for column, place in ((found.v, 0), (found.parts["credit"], 1), (found.parts["step"], 2)):
        assert column.tolist() == pytest.approx([row[place] for row in expected], abs=1e-7)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, ddof=st.sampled_from([0, 1]), eps=st.sampled_from([0.0, 1e-6]))
def test_without_steps_it_is_grpo_bit_for_bit(seed, ddof, eps):
    table = table_of(random_rollouts(seed))
    grpo = rtmc.advantages(table, "grpo", ddof=ddof, eps=eps)
    assert torch.equal(rtmc.advantages(table, "graphhca", step_weight=0.0, ddof=ddof, eps=eps), grpo)
    assert torch.equal(rtmc.advantages(table, "crbc", step_weight=0.0, ddof=ddof, eps=eps), grpo)


@pytest.mark.parametrize("terminal", ["virtual", "state"])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_credits_telescope(terminal, seed):
    rollouts = random_rollouts(seed, unknown=0.0)
    found = rtmc.estimate(table_of(rollouts), "graphhca", terminal=terminal)
    potential, at = found.parts["potential"].tolist(), 0
    pinned = {steps[-1][2]: 0.0 for steps, _ in rollouts}
    pinned |= {steps[-1][2]: 1.0 for steps, outcome in rollouts if outcome > 0}
    for steps, outcome in rollouts:
        end = outcome if terminal == "virtual" else pinned[steps[-1][2]]
        total = math.fsum(found.parts["credit"][at : at + len(steps)].tolist())
        assert total == pytest.approx(math.log(max(end, 0.01)) - potential[at], abs=1e-11)
        at += len(steps)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_mean_credit_at_a_state_is_bounded(seed):
    # Jensen: the mean of log Phi(x) is at most log of the mean, which is log(Phi(s) / gamma_bar). At gamma_bar 1 that
    # is E_q[l] = -KL(q || h) <= 0.
    found = rtmc.estimate(table_of(random_rollouts(seed, unknown=0.0)), "graphhca", floor=1e-12)
    table = table_of(random_rollouts(seed, unknown=0.0))
    for state in table.state.unique():
        here = table.state == state
        if (found.q[here] > 1e-9).all():
            assert found.parts["credit"][here].mean().item() <= -math.log(0.95) + 1e-9


@settings(max_examples=15, deadline=None)
@given(
    seed=SEEDS, method=st.sampled_from(["graphhca", "crbc", "graft"]), terminal=st.sampled_from(["virtual", "state"])
)
def test_permuting_rows_and_joining_groups_changes_no_bit(seed, method, terminal):
    one, two = rows_of(random_rollouts(seed), "g"), rows_of(random_rollouts(seed + 1), "h")
    rows = one + two
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    straight = rtmc.estimate(StepTable.from_rows(rows), method, terminal=terminal)
    shuffled = rtmc.estimate(StepTable.from_rows([rows[k] for k in order]), method, terminal=terminal)
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name
    alone = rtmc.estimate(StepTable.from_rows(one), method, terminal=terminal)
    for (name, column), (_, other) in zip(straight.items(), alone.items(), strict=True):
        assert torch.equal(column[: len(one)], other), name


@pytest.mark.parametrize("method", ["graphhca", "crbc", "graft"])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_unknown_rollouts_are_absent(method, seed):
    rollouts = random_rollouts(seed, unknown=0.5)
    found = rtmc.advantages(table_of(rollouts), method)
    known = torch.tensor([not math.isnan(outcome) for steps, outcome in rollouts for _ in steps])
    assert (found[~known] == 0).all()
    if known.any():
        rest = table_of([member for member in rollouts if not math.isnan(member[1])])
        assert torch.equal(found[known], rtmc.advantages(rest, method))


def test_groups_of_one_kind():
    short, long = [("s", 0, "x")], [("s", 1, "t"), ("t", 0, "x")]
    failed = rtmc.estimate(table_of([(short, 0.0), (long, 0.0)]), "graphhca")
    assert failed.advantage.tolist() == failed.parts["credit"].tolist() == failed.v.tolist() == [0.0] * 3
    # All succeed: GRPO says nothing, the shorter way is preferred.
    won = rtmc.estimate(table_of([(short, 1.0), (long, 1.0)]), "graphhca")
    assert won.parts["episode"].tolist() == [0.0] * 3
    assert won.advantage.tolist() == pytest.approx([1.0, -1.0, 0.0])
    # A group of one: nothing but states it visits twice.
    alone = rtmc.estimate(table_of([([("s", 0, "s"), ("s", 1, "t"), ("t", 0, "x")], 1.0)]), "graphhca")
    assert alone.parts["episode"].tolist() == [0.0] * 3
    assert alone.advantage.tolist() == pytest.approx([-1.0, 1.0, 0.0])
    assert alone.visits.tolist() == [2, 2, 1]


def test_truncation_is_a_failure_of_its_own_end_alone():
    rows = rows_of([([("s", 0, "t")], 0.0), ([("s", 0, "t"), ("t", 0, "x")], 1.0)])
    rows[0]["ending"] = "truncated"
    table = StepTable.from_rows(rows, dtype=torch.float64)
    virtual = rtmc.estimate(table, "graphhca")
    assert virtual.v.tolist() == pytest.approx([0.95 * 0.95 * 0.5] * 2 + [0.95])
    pinned = rtmc.estimate(table, "graphhca", terminal="state")
    assert pinned.v.tolist() == pytest.approx([0.0, 0.0, 0.0])  # t is where the truncated rollout was cut
    # An end whose name is not known is private with either.
    unnamed = [{**row, "next_state": None} if row["index"] == 0 and row["rollout"] == 0 else row for row in rows]
    again = rtmc.estimate(StepTable.from_rows(unnamed, dtype=torch.float64), "graphhca", terminal="state")
    assert again.v.tolist() == pytest.approx(virtual.v.tolist())


def test_equal_potentials_reached_through_cycles_are_no_signal():
    # Half of a's steps stay, half succeed; half of c's go to a, half succeed: both are worth 0.95 / (2 - 0.95), but
    # that of a is the limit of sweeps and that of c one more sweep.
    rollouts = [
        ([("s", 0, "a"), ("a", 0, "a"), ("a", 1, "x")], 1.0),
        ([("s", 1, "c"), ("c", 0, "a"), ("a", 0, "a"), ("a", 1, "x")], 1.0),
        ([("c", 1, "x")], 1.0),
    ]
    for method in ("graphhca", "crbc", "graft"):
        found = rtmc.estimate(table_of(rollouts), method)
        assert found.q[[0, 3]].tolist() == pytest.approx([found.q[0].item()] * 2, abs=1e-12)
        assert found.parts["step"][[0, 3]].tolist() == [0.0, 0.0]
    assert rtmc.estimate(table_of(rollouts), "graphhca").q[0].item() == pytest.approx(0.95 / 1.05, abs=1e-12)


def test_powers_lean_to_the_best_successor():
    rollouts = [([("s", 0, "t"), ("t", 0, "x")], 1.0), ([("s", 1, "u"), ("u", 0, "x")], 0.0)]
    values = [rtmc.estimate(table_of(rollouts), "graphhca", power=w).v[0].item() for w in (1.0, 4.0, math.inf)]
    assert values == pytest.approx([0.95**2 / 2, 0.95**2 * 0.5 ** (1 / 4), 0.95**2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma_bar": 1.0}, "`gamma_bar` must be a number of at least 0 and below 1, got 1.0"),
        ({"floor": 0.0}, "`floor`"),
        ({"terminal": "private"}, "`terminal` must be 'virtual' or 'state'"),
        ({"power": 0.0}, "`power`"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(EstimatorError, match=message):
        rtmc.estimate(table_of([([("s", 0, "x")], 1.0)]), "graphhca", **options)


def test_empty_tables_and_rollouts():
    assert rtmc.advantages(StepTable.from_rows([]), "graphhca").shape == (0,)
    rows = rows_of([([("s", 0, "x")], 1.0)])
    table = StepTable.from_rows(rows, [{"group": 0, "rollout": "none", "outcome": 0.0}], dtype=torch.float64)
    assert rtmc.advantages(table, "graphhca").tolist() == [1.0]
