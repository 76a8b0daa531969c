"""`rollout_tree_advantages`: hand-worked trees, a port's numbers, properties, unknown outcomes, refusals.

Random trees against exact fractions, on every backend and by both ways of the table:
``tests/kernel_cases/rollout_tree.py``.
"""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.rollout_tree import rollout_tree_advantages
from tests.kernel_cases import offsets_of
from tests.kernel_cases.rollout_tree import check_limit, random_tree

NAN = math.nan


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def tree_of(rollouts, device="cpu", dtype=torch.float64):
    """``rollouts``: (group, outcome, [(state, action[, reward])]) with any hashable keys."""
    ids: dict[object, int] = {}
    steps = [step for _, _, path in rollouts for step in path]
    columns = {
        "reward": torch.tensor([step[2] if len(step) > 2 else 0.0 for step in steps], dtype=dtype),
        "outcome": torch.tensor([outcome for _, outcome, _ in rollouts], dtype=dtype),
        "offsets": offsets_of([len(path) for _, _, path in rollouts]),
        "rollout_group": torch.tensor([group for group, _, _ in rollouts], dtype=torch.int64),
        "state": torch.tensor([ids.setdefault(("s", s[0]), len(ids)) for s in steps], dtype=torch.int64),
        "action": torch.tensor([ids.setdefault(("a", s[1]), len(ids)) for s in steps], dtype=torch.int64),
    }
    return {name: column.to(device) for name, column in columns.items()}


def run(tree, gamma=1.0, prior_visits=2.0, prior="success_rate", first_visit=True):
    return rollout_tree_advantages(**tree, gamma=gamma, prior_visits=prior_visits, prior=prior, first_visit=first_visit)


FIGURE = [
    (0, 1.0, [("root", "A"), ("sA", "C"), ("sAC", "E")]),
    (0, 0.0, [("root", "A"), ("sA", "D")]),
    (0, 1.0, [("root", "B"), ("sB", "C")]),
    (0, 0.0, [("root", "A"), ("sA", "C"), ("sAC", "F")]),
]


def test_worked_example_without_prior(device, backend):
    got = run(tree_of(FIGURE, device), prior_visits=0.0)
    wanted = [-1 / 6, 1 / 6, 1 / 2, -1 / 6, -1 / 3, 1 / 2, 0, -1 / 6, 1 / 6, -1 / 2]
    assert got.advantage.tolist() == pytest.approx(wanted, abs=1e-15)
    assert got.visits.tolist() == [4, 3, 2, 4, 3, 4, 1, 4, 3, 2]
    assert got.action_visits.tolist() == [3, 2, 1, 3, 1, 1, 1, 3, 2, 1]
    assert got.returns.tolist() == [1, 1, 1, 0, 0, 1, 1, 0, 0, 0]


def test_worked_example_with_prior(device, backend):
    got = run(tree_of(FIGURE, device))
    v = [0.5, 0.4, 0.5, 0.5, 0.4, 0.5, 2 / 3, 0.5, 0.4, 0.5]
    q = [1 / 3, 0.5, 1, 1 / 3, 0, 1, 1, 1 / 3, 0.5, 0]
    assert got.v.tolist() == pytest.approx(v, abs=1e-15)
    assert got.q.tolist() == pytest.approx(q, abs=1e-15)
    assert got.advantage.tolist() == pytest.approx([a - b for a, b in zip(q, v, strict=True)], abs=1e-15)
    assert got.advantage[[1, 4, 6]].tolist() == pytest.approx([0.1, -0.4, 1 / 3], abs=1e-15)


def test_numbers_of_a_port(shared, device, backend):
    cases = json.loads((shared / "vectors" / "rtmc_thirdparty_port.json").read_text())["cases"]
    assert cases
    for case in cases:
        inputs = case["inputs"]
        rollouts = [(0, r["reward"], r["steps"]) for r in inputs["group"]]
        got = run(tree_of(rollouts, device), gamma=inputs["gamma"], prior_visits=inputs["n_prior"])
        wanted = [x for path in case["outputs"]["adv_raw"] for x in path]
        assert got.advantage.tolist() == pytest.approx(wanted, rel=1e-13, abs=1e-15)


def test_group_of_one(device, backend):
    got = run(tree_of([(4, 1.0, [("s", "a"), ("t", "b")])], device), gamma=0.5)
    # Q = V = G and P = R: two thirds of G - R.
    assert got.advantage.tolist() == pytest.approx([2 / 3 * (0.5 - 1.0), 0.0], abs=1e-15)


def test_a_repeated_pair_counts_once_and_shares_its_value(device, backend):
    rollouts = [(0, 1.0, [("s", "a"), ("s", "a"), ("s", "b")]), (0, 0.0, [("s", "a")])]
    got = run(tree_of(rollouts, device), gamma=0.5, prior_visits=0.0)
    # First visits: a with 0.25 and 0, b with 1. N(s) counts both actions of the first rollout.
    assert got.visits.tolist() == [3] * 4
    assert got.action_visits.tolist() == [2, 2, 1, 2]
    assert got.q.tolist() == [0.125, 0.125, 1.0, 0.125]
    assert got.v.tolist() == pytest.approx([1.25 / 3] * 4, abs=1e-15)
    every = run(tree_of(rollouts, device), gamma=0.5, prior_visits=0.0, first_visit=False)
    assert every.action_visits.tolist() == [3, 3, 1, 3]
    assert every.q.tolist() == [0.25, 0.25, 1.0, 0.25]
    assert every.v.tolist() == [1.75 / 4] * 4


def test_priors_and_rollouts_without_steps(device, backend):
    tree = tree_of([(0, 1.0, [("s", "a", 0.5)]), (0, 0.0, []), (0, 1.0, [])], device)
    # success rate 2/3; mean return (1.5 + 0 + 1) / 3
    assert run(tree).v.tolist() == pytest.approx([(1.5 + 2 * 2 / 3) / 3], abs=1e-15)
    assert run(tree, prior="mean_return").v.tolist() == pytest.approx([(1.5 + 2 * 2.5 / 3) / 3], abs=1e-15)


def test_an_unknown_outcome_is_absent(device, backend):
    known = [(0, 1.0, [("s", "a")]), (0, 0.0, [("s", "b")])]
    got = run(tree_of([*known, (0, NAN, [("s", "a", 0.25), ("s", "c", 7.0)])], device))
    alone = run(tree_of(known, device))
    assert torch.equal(got.advantage[:2], alone.advantage)
    assert got.advantage[2:].tolist() == [0.0, 0.0]
    assert got.visits.tolist() == [2, 2, 2, 2]
    assert got.action_visits.tolist() == [1, 1, 1, 0]
    assert got.returns.tolist() == [1.0, 0.0, 7.25, 7.0]
    assert got.q[2:].tolist() == [1.0, got.v[3].item()]
    nobody = run(tree_of([(0, NAN, [("s", "a")]), (1, NAN, [])], device))
    assert all(column.tolist() == [0.0] for column in nobody)


def test_equal_ids_of_different_groups_are_different_states(device, backend):
    one, two = [(0, 1.0, [("s", "a")]), (0, 0.0, [("s", "b")])], [(9, 1.0, [("s", "a")]), (9, 1.0, [("s", "a")])]
    together = run(tree_of([one[0], two[0], one[1], two[1]], device), prior_visits=0.0)
    assert together.advantage.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert together.visits.tolist() == [2, 2, 2, 2]


def test_a_prior_that_is_no_number_stays_in_its_group(device, backend):
    tree = tree_of([(0, 1.0, [("s", "a", NAN)]), (0, 1.0, [("t", "a")]), (1, 1.0, [("s", "a")])], device)
    got = run(tree)
    assert got.advantage[0].isnan()
    assert got.advantage[1:].isfinite().all()
    by_return = run(tree, prior="mean_return")
    assert by_return.v.isnan().tolist() == [True, True, False]
    assert by_return.q[1:].tolist() == [1.0, 1.0]
    assert by_return.advantage.isnan().tolist() == [True, True, False]


def rebuilt(tree, order):
    """The same table with its rollouts in another order, and the rows that carries along."""
    spans = [range(a, b) for a, b in zip(tree["offsets"].tolist(), tree["offsets"].tolist()[1:], strict=False)]
    rows = torch.tensor([t for r in order for t in spans[r]], dtype=torch.int64)
    moved = {name: tree[name][rows] for name in ("reward", "state", "action")}
    moved |= {name: tree[name][torch.tensor(order)] for name in ("outcome", "rollout_group")}
    moved["offsets"] = offsets_of([len(spans[r]) for r in order])
    return moved, rows


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.randoms(), st.sampled_from(["success_rate", "mean_return"]), st.booleans())
def test_moving_rollouts_and_mixing_groups_changes_no_bit(seed, random, prior, first_visit):
    tree = random_tree(seed, rollouts=14, groups=3, longest=12)
    order = random.sample(range(14), 14)
    moved, rows = rebuilt(tree, order)
    options = {"gamma": 0.93, "prior": prior, "first_visit": first_visit}
    for a, b in zip(run(tree, **options), run(moved, **options), strict=True):
        assert torch.equal(a[rows], b)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_group_alone_gets_the_same_bits(seed):
    tree = random_tree(seed, rollouts=9, groups=3, longest=10)
    whole = run(tree, gamma=0.9)
    for group in set(tree["rollout_group"].tolist()):
        members = [r for r, g in enumerate(tree["rollout_group"].tolist()) if g == group]
        alone, rows = rebuilt(tree, members)
        for a, b in zip(whole, run(alone, gamma=0.9), strict=True):
            assert torch.equal(a[rows], b)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_without_prior_the_advantages_of_a_state_balance(seed):
    """sum_a N(s,a) A(s,a) = 0 where prior_visits = 0."""
    tree = random_tree(seed, rollouts=10, groups=2, longest=8, unknown=0.0)
    got = run(tree, gamma=0.9, prior_visits=0.0)
    group = tree["rollout_group"].repeat_interleave(tree["offsets"].diff())
    sums: dict[tuple, dict[int, float]] = {}
    for t in range(len(group)):
        key = (group[t].item(), tree["state"][t].item())
        term = got.action_visits[t].item() * got.advantage[t].item()
        sums.setdefault(key, {})[tree["action"][t].item()] = term
    assert all(sum(terms.values()) == pytest.approx(0.0, abs=1e-12) for terms in sums.values())


@pytest.mark.parametrize("strength", [0.5, 2.0, 7.0])
def test_states_seen_once_shrink_towards_the_success_rate(device, strength):
    rollouts = [(0, float(r % 3 == 0), [((r, t), 0) for t in range(4)]) for r in range(6)]
    got = run(tree_of(rollouts, device), prior_visits=strength)
    won = torch.tensor([float(r % 3 == 0) for r in range(6)]).repeat_interleave(4).double()
    wanted = strength / (1 + strength) * (won - 1 / 3)
    torch.testing.assert_close(got.advantage.cpu(), wanted, rtol=1e-14, atol=1e-15)


def test_float32_is_the_float64_result_rounded_once(device):
    tree = random_tree(7, rollouts=12, groups=2, longest=9)
    tree = {**tree, "reward": tree["reward"].float().double()}
    tree = {name: column.to(device) for name, column in tree.items()}
    wide, narrow = run(tree, gamma=0.9), run({**tree, "reward": tree["reward"].float()}, gamma=0.9)
    for a, b in zip(wide, narrow, strict=True):
        assert torch.equal(a.to(b.dtype), b)


def test_strides(device, backend):
    tree = {name: c.to(device) for name, c in random_tree(3, 6, 2, 6).items()}
    views = {name: torch.stack([c, c], 1)[:, 1] for name, c in tree.items()}
    for a, b in zip(run(tree), run(views), strict=True):
        assert torch.equal(a, b)
    constant = {**tree, "action": tree["action"][:1].expand(len(tree["action"]))}
    solid = {**constant, "action": constant["action"].contiguous()}
    for a, b in zip(run(constant), run(solid), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("longer", "launches"), [(0, 1), (1, 14)])
def test_around_the_largest_group_of_one_launch(device, longer, launches):
    """1,024 and 1,025 rows beside a small group. The interpreter needs long for that: its cases put the limit at 64."""
    check_limit(device, ([900, 124 + longer], [5, 0, 9]), launches, limit=1024)


def test_int32_keys_and_unaligned_rows(device, backend):
    tree = {name: c.to(device) for name, c in random_tree(3, 6, 2, 6).items()}
    tree["state"] = tree["state"] // 2**40
    narrow = {name: c if c.is_floating_point() else c.int() for name, c in tree.items()}
    shifted = {name: torch.cat([c[:1], c])[1:] for name, c in tree.items()}
    for other in (narrow, shifted):
        assert all(torch.equal(a, b) for a, b in zip(run(tree), run(other), strict=True))


@pytest.mark.parametrize("odd", [NAN, math.inf, -math.inf])
def test_returns_that_are_no_numbers_stay_in_their_cells(device, backend, odd):
    """Rollouts of one group through 8, 9 (the odd one), through 1, 2 and again 1, 2: by hand at gamma 0.9, prior 2/3.
    State 1 has returns 1.9 and 2.8, state 2 has 1 and 2; V' = (4.7 + 4/3) / 4 and (3 + 4/3) / 4."""
    rollouts = [
        (0, 1.0, [(8, 0, 0.0), (9, 0, odd)]),
        (0, 0.0, [(1, 1, 1.0), (2, 1, 1.0)]),
        (0, 1.0, [(1, 2, 1.0), (2, 2, 1.0)]),
    ]
    got = run(tree_of(rollouts, device), gamma=0.9)
    assert not got.q[:2].isfinite().any()
    assert not got.advantage[:2].isfinite().any()
    assert got.q[2:].tolist() == pytest.approx([1.9, 1.0, 2.8, 2.0], abs=1e-15)
    v = [(4.7 + 4 / 3) / 4, (3 + 4 / 3) / 4] * 2
    assert got.v[2:].tolist() == pytest.approx(v, abs=1e-15)
    advantage = [0.39166666666666666, -0.08333333333333333, 1.2916666666666667, 0.9166666666666666]
    assert got.advantage[2:].tolist() == pytest.approx(advantage, abs=1e-15)


@pytest.mark.parametrize("odd", [NAN, math.inf])
def test_sums_beside_what_is_no_number_are_exact_still(device, backend, odd):
    """1e16 + 1 - 1e16 + 1 = 2 in whichever order the rollouts come."""
    gains = [1e16, 1.0, -1e16, 1.0]
    for order in itertools.permutations(range(4)):
        rollouts = [(0, 0.0, [("s", "a", gains[k])]) for k in order]
        rollouts.insert(order[0], (0, 0.0, [("t", "a", odd)]))
        got = run(tree_of(rollouts, device), prior_visits=0.0)
        assert sorted(got.q[got.q.isfinite()].tolist()) == [0.5] * 4
        assert sorted(got.v[got.v.isfinite()].tolist()) == [0.5] * 4


def test_infinities_of_both_signs_in_one_cell(device, backend):
    """inf and -inf make NaN in whichever order, in the state; each pair of its own keeps its sign."""
    for signs in ((1, -1), (-1, 1)):
        rollouts = [(0, 0.0, [("s", k, sign * math.inf)]) for k, sign in enumerate(signs)]
        got = run(tree_of([*rollouts, (0, 1.0, [("t", "a")])], device))
        assert got.q[:2].tolist() == [sign * math.inf for sign in signs]
        assert got.v.isnan().tolist() == [True, True, False]
        assert got.q[2].item() == 1.0


def test_opcheck(device):
    tree = {name: c.to(device) for name, c in random_tree(3, 4, 2, 4).items()}
    torch.library.opcheck(torch.ops.rtmc.rollout_tree_advantages, (*tree.values(), 0.9, 2.0, "success_rate", False))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"reward": torch.ones(10).long()}, ValueError, "`reward`: got int64"),
        ({"outcome": torch.ones(3)}, ValueError, r"`offsets`: .*\(5,\).*\(4,\)"),
        ({"offsets": torch.tensor([0, 3, 5, 7, 9])}, ValueError, "`offsets`: they run from 0 to 9"),
        ({"rollout_group": torch.zeros(4)}, ValueError, "`rollout_group`: got float32"),
        ({"state": torch.zeros(9).long()}, ValueError, r"`state`: .*\(9,\).*\(10,\)"),
        ({"action": torch.zeros(10).short()}, ValueError, "`action`: got int16.*wanted int64 or int32"),
        ({"state": torch.zeros(10, device="meta").long()}, ValueError, "`state`: .*on meta; wanted .*on cpu"),
        ({"offsets": torch.tensor([0, 3, 5, 4, 10])}, ValueError, "`offsets`: they decrease"),
        ({"prior_visits": math.nan}, ValueError, "`prior_visits`: got nan"),
        ({"gamma": -0.1}, ValueError, "`gamma`: got -0.1"),
        ({"prior_visits": -1}, ValueError, "`prior_visits`: got -1"),
        ({"prior_visits": math.inf}, ValueError, "`prior_visits`: got inf"),
        ({"prior": ["mean_return"]}, ValueError, "`prior`: got .'mean_return'.; wanted one of 'success_rate'"),
        ({"prior_visits": 10**400}, ValueError, "`prior_visits`: got an integer of 1329 bits"),
        ({"state": torch.zeros(10).long().to_sparse()}, ValueError, "`state`: got a tensor of layout sparse_coo"),
        ({"prior": "mean"}, ValueError, "`prior`: got 'mean'; wanted one of 'success_rate', 'mean_return'"),
        ({"first_visit": 1}, TypeError, "`first_visit`: got 1"),
    ],
)
def test_refusals(change, error, message, backend):
    arguments = {**tree_of(FIGURE), "gamma": 1.0, "prior_visits": 2.0, "prior": "success_rate", **change}
    with pytest.raises(error, match=message):
        rollout_tree_advantages(**arguments)


@pytest.mark.parametrize("prior_visits", [0.1, 1 / 3, 1e8, 1e50])
def test_prior_visits_that_float32_cannot_hold(prior_visits: float) -> None:
    """Three rollouts through one state, outcomes 1, 0, 0: V' = (1 + n / 3) / (3 + n) = 1/3 for every n."""
    reward = torch.zeros(3, dtype=torch.float64)
    outcome = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    rows = torch.arange(3)
    tree = rollout_tree_advantages(
        reward, outcome, torch.arange(4), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), rows,
        1.0, prior_visits, "success_rate",
    )  # fmt: skip
    torch.testing.assert_close(tree.v, torch.full((3,), 1 / 3, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(tree.advantage, outcome - 1 / 3, rtol=1e-12, atol=0)
