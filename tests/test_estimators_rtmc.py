"""rtmc against a third party's numbers, a plain dictionary of exact fractions, and hand-worked trees."""

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases

# Four rollouts: (path of actions, outcome); a state is the path so far.
FIGURE = [("ACE", 1), ("AD", 0), ("BC", 1), ("ACF", 0)]


def of_paths(paths, dtype=torch.float64):
    rows = [
        {"group": 0, "rollout": r, "index": t, "state": path[:t], "action": action, "outcome": outcome}
        for r, (path, outcome) in enumerate(paths)
        for t, action in enumerate(path)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_third_party_port(dtype, tolerance, shared):
    for given_, wanted in vector_cases(shared, "rtmc_thirdparty_port"):
        rows = [
            {"group": 0, "rollout": r, "index": t, "state": s, "action": a, "outcome": member["reward"]}
            for r, member in enumerate(given_["group"])
            for t, (s, a) in enumerate(member["steps"])
        ]
        table = StepTable.from_rows(rows, dtype=dtype)
        options = {"gamma": given_["gamma"], "prior_visits": given_["n_prior"]}
        for name, normalize in (("adv_raw", False), ("adv_div_std", True)):
            found = rtmc.advantages(table, "rtmc", normalize=normalize, **options)
            expected = torch.tensor([x for member in wanted[name] for x in member], dtype=dtype)
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
        found = rtmc.estimate(table, "rtmc", **options)
        cells = {(s, a): (n, w) for s, a, n, w in wanted["table"]}
        for row, n, q in zip(rows, found.action_visits.tolist(), found.q.tolist(), strict=True):
            count, total = cells[row["state"], row["action"]]
            assert n == count
            assert q == pytest.approx(total / count, abs=tolerance)


def test_worked_example_without_a_prior():
    found = rtmc.estimate(of_paths(FIGURE), "rtmc", gamma=1.0, prior_visits=0)
    expected = [-1 / 6, 1 / 6, 1 / 2, -1 / 6, -1 / 3, 1 / 2, 0, -1 / 6, 1 / 6, -1 / 2]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-15)
    assert found.visits.tolist() == [4, 3, 2, 4, 3, 4, 1, 4, 3, 2]
    assert found.action_visits.tolist() == [3, 2, 1, 3, 1, 1, 1, 3, 2, 1]


def test_worked_example_with_a_prior():
    found = rtmc.estimate(of_paths(FIGURE), "rtmc", gamma=1.0, prior_visits=2)
    assert found.advantage.tolist() == pytest.approx([-1 / 6, 0.1, 0.5, -1 / 6, -0.4, 0.5, 1 / 3, -1 / 6, 0.1, -0.5])
    assert found.v.tolist()[1] == pytest.approx(0.4)
    torch.testing.assert_close(found.advantage, found.q - found.v, rtol=0, atol=1e-15)


def reference(rollouts, gamma, prior_visits, prior, first_visit):
    """The formulas as they are written, in exact fractions: advantage, q, v, N(s), N(s, a) of every step."""
    paths = []
    for steps, outcome in rollouts:
        total, returns = Fraction(outcome), []
        for _, _, reward in reversed(steps):
            total = Fraction(reward) + total if not returns else Fraction(reward) + gamma * total
            returns.append(total)
        paths.append(returns[::-1])
    visits, sums = {}, {}
    for (steps, _), returns in zip(rollouts, paths, strict=True):
        seen = set()
        for (s, a, _), value in zip(steps, returns, strict=True):
            if first_visit and (s, a) in seen:
                continue
            seen.add((s, a))
            visits[s, a] = visits.get((s, a), 0) + 1
            sums[s, a] = sums.get((s, a), Fraction(0)) + value
    if prior == "success_rate":
        base = sum(Fraction(outcome) for _, outcome in rollouts) / len(rollouts)
    else:
        base = sum(returns[0] for returns in paths) / len(paths)
    found = []
    for steps, _ in rollouts:
        for s, a, _ in steps:
            n_s = sum(n for (state, _), n in visits.items() if state == s)
            w_s = sum(w for (state, _), w in sums.items() if state == s)
            q = sums[s, a] / visits[s, a]
            v = (w_s + prior_visits * base) / (n_s + prior_visits)
            found.append((q - v, q, v, n_s, visits[s, a]))
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(0), Fraction(63, 64)]),
    prior_visits=st.sampled_from([0, 1, 2, 5]),
    prior=st.sampled_from(["success_rate", "mean_return"]),
    first_visit=st.booleans(),
)
def test_against_exact_fractions(seed, gamma, prior_visits, prior, first_visit):
    rng = random.Random(seed)
    rollouts = [
        (
            [(rng.randrange(3), rng.randrange(2), rng.randrange(-4, 5) / 16) for _ in range(rng.randrange(1, 6))],
            rng.choice([0.0, 1.0, 0.25]),
        )
        for _ in range(rng.randrange(1, 6))
    ]
    rows = [
        {"group": "g", "rollout": r, "index": t, "state": s, "action": a, "reward": w, "outcome": outcome}
        for r, (steps, outcome) in enumerate(rollouts)
        for t, (s, a, w) in enumerate(steps)
    ]
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = rtmc.estimate(
        table, "rtmc", gamma=float(gamma), prior_visits=prior_visits, prior=prior, first_visit=first_visit
    )
    expected = reference(rollouts, gamma, prior_visits, prior, first_visit)
    for column, values in zip(
        (found.advantage, found.q, found.v, found.visits, found.action_visits), zip(*expected, strict=True), strict=True
    ):
        assert column.tolist() == pytest.approx([float(value) for value in values], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_without_a_prior_the_visits_of_a_state_balance(seed):
    rng = random.Random(seed)
    paths = [("".join(rng.choice("AB") for _ in range(rng.randrange(1, 5))), rng.random()) for _ in range(6)]
    table = of_paths(paths)
    found = rtmc.estimate(table, "rtmc", prior_visits=0)
    # Cumulative states: each cell is visited once a rollout, so the rows of a state are its visits.
    sums = torch.zeros(len(table.state_names), dtype=torch.float64).index_add(0, table.state, found.advantage)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-12)


def test_states_of_their_own_share_the_prior():
    paths = [("abc", 1.0), ("xyz", 0.0), ("pqr", 0.0)]
    rows = [
        {"group": 0, "rollout": r, "index": t, "state": (path, t), "action": a, "outcome": o}
        for r, (path, o) in enumerate(paths)
        for t, a in enumerate(path)
    ]
    found = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), "rtmc", gamma=1.0, prior_visits=3)
    expected = [3 / 4 * (o - 1 / 3) for _, o in paths for _ in range(3)]
    assert found.tolist() == pytest.approx(expected, abs=1e-15)


def test_uniform_groups():
    table = of_paths([("AB", 1), ("AC", 1)])
    kept = rtmc.estimate(table, "rtmc")
    assert (kept.advantage != 0).any()
    filtered = rtmc.estimate(table, "rtmc", filter_uniform=True)
    assert filtered.advantage.tolist() == [0.0] * 4
    assert torch.equal(filtered.q, kept.q)
    mixed = of_paths([("AB", 1), ("AC", 0)])
    assert torch.equal(rtmc.advantages(mixed, "rtmc", filter_uniform=True), rtmc.advantages(mixed, "rtmc"))
    single = of_paths([("AB", 1)])
    assert rtmc.advantages(single, "rtmc", filter_uniform=True).tolist() == [0.0, 0.0]


def test_a_group_of_one():
    found = rtmc.advantages(of_paths([("AB", 1)]), "rtmc", gamma=0.5)
    assert found.tolist() == pytest.approx([2 / 3 * (0.5 - 1.0), 0.0], abs=1e-15)


def test_normalisation_keeps_signs_and_gives_unit_spread_about_the_mean():
    table = of_paths(FIGURE)
    plain = rtmc.advantages(table, "rtmc")
    scaled = rtmc.advantages(table, "rtmc", normalize=True)
    assert torch.equal(plain.sign(), scaled.sign())
    assert scaled.std(correction=0).item() == pytest.approx(1.0)


def test_a_spread_of_rounding_is_not_blown_up():
    table = of_paths([("A", 0.5), ("B", 0.5 + 1e-9)])
    plain = rtmc.advantages(table, "rtmc")
    assert (plain != 0).all()
    assert torch.equal(rtmc.advantages(table, "rtmc", normalize=True), plain)


def test_an_empty_rollout_counts_in_the_prior_alone():
    rows = [{"group": 0, "rollout": 0, "index": 0, "state": 0, "action": 0, "outcome": 1.0}]
    empty = [{"group": 0, "rollout": 1, "outcome": 0.0}]
    found = rtmc.estimate(StepTable.from_rows(rows, empty, dtype=torch.float64), "rtmc")
    assert found.visits.tolist() == [1]
    assert found.advantage.tolist() == pytest.approx([2 / 3 * (1 - 0.5)])
