"""`rtmc.estimate`: the register, and the rules that hold for every estimator."""

import json
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import Estimate, EstimatorError, StepTable, TableError
from rtmc.methods.options import choice, flag, number, whole

METHODS = [
    ("grpo", {}),
    ("grpo", {"ddof": 0, "eps": 0.0}),
    ("dr_grpo", {}),
    ("rloo", {}),
    ("grpo_step", {}),
    ("grpo_step", {"mode": "sum", "weight": 0.5}),
    ("rtmc", {}),
    ("rtmc", {"prior": "mean_return", "first_visit": False, "normalize": True, "filter_uniform": True}),
]
IDS = [f"{name}-{len(options)}" for name, options in METHODS]


def chain(group, rollout, keys, outcome, rewards=None, **more):
    """Rows of one rollout; `keys` are (state, action) pairs."""
    rewards = rewards or [0.0] * len(keys)
    return [
        {
            "group": group,
            "rollout": rollout,
            "index": t,
            "state": s,
            "action": a,
            "reward": r,
            "outcome": outcome,
            **more,
        }
        for t, ((s, a), r) in enumerate(zip(keys, rewards, strict=True))
    ]


def random_rows(seed, groups=3, rollouts=4, unknown=0.2):
    """Rows of a few groups with states and actions that recur, awkward numbers and unknown outcomes."""
    rng = random.Random(seed)
    rows = []
    for g in range(groups):
        for r in range(rollouts):
            keys = [(rng.randrange(3), rng.randrange(2)) for _ in range(rng.randrange(1, 5))]
            outcome = math.nan if rng.random() < unknown else rng.choice([0.0, 1.0, rng.gauss(0, 1)])
            rows += chain(g, r, keys, outcome, [rng.gauss(0, 0.1) for _ in keys])
    return rows


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), double=st.booleans())
def test_permuting_rows_changes_no_bit(method, options, seed, double):
    rows = random_rows(seed)
    dtype = torch.float64 if double else torch.float32
    order = list(range(len(rows)))
    random.Random(seed + 1).shuffle(order)
    straight = rtmc.estimate(StepTable.from_rows(rows, dtype=dtype), method, **options)
    shuffled = rtmc.estimate(StepTable.from_rows([rows[k] for k in order], dtype=dtype), method, **options)
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_group_alone_and_among_others_is_the_same(method, options, seed):
    rows = random_rows(seed)
    both = rtmc.advantages(StepTable.from_rows(rows), method, **options)
    for group in range(3):
        own = [k for k, row in enumerate(rows) if row["group"] == group]
        alone = rtmc.advantages(StepTable.from_rows([rows[k] for k in own]), method, **options)
        assert torch.equal(both[own], alone)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_unknown_outcomes_are_absent(method, options, seed):
    rows = random_rows(seed, unknown=0.5)
    found = rtmc.estimate(StepTable.from_rows(rows, dtype=torch.float64), method, **options)
    known = [k for k, row in enumerate(rows) if not math.isnan(row["outcome"])]
    for _, column in found.items():
        assert torch.isfinite(column.double()).all()
    absent = [k for k in range(len(rows)) if k not in set(known)]
    assert (found.advantage[absent] == 0).all()
    if known:
        rest = rtmc.advantages(StepTable.from_rows([rows[k] for k in known], dtype=torch.float64), method, **options)
        assert torch.equal(found.advantage[known], rest)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
def test_seven_unknown_and_one_known(method, options):
    rows = [row for r in range(8) for row in chain(0, r, [("s", "a")], math.nan if r < 7 else 1.0)]
    credit = rtmc.advantages(StepTable.from_rows(rows), method, **options)
    assert credit.tolist() == [0.0] * 8  # a group of one: nothing was compared


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
def test_nobody_known(method, options):
    table = StepTable.from_rows(chain(0, 0, [("s", "a"), ("t", "a")], math.nan, [0.5, 0.25]))
    assert rtmc.advantages(table, method, **options).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
def test_empty_tables_and_empty_rollouts(method, options):
    assert rtmc.advantages(StepTable.from_rows([]), method, **options).shape == (0,)
    empty = [{"group": 0, "rollout": r, "outcome": r} for r in range(2)]
    assert rtmc.advantages(StepTable.from_rows([], empty), method, **options).shape == (0,)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "rloo"])
def test_all_equal_outcomes_give_exactly_zero(method):
    # The float64 mean of three times 0.1 is not 0.1.
    rows = [row for r in range(3) for row in chain(0, r, [("s", "a")], 0.1)]
    for eps in (0.0, 1e-6):
        credit = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), method, eps=eps)
        assert credit.tolist() == [0.0] * 3


def test_groups_of_different_scale_are_centred_each():
    outcomes = {"high": [9.0, 10.0, 11.0], "low": [-1.0, 0.0, 1.0]}
    rows = [row for g, values in outcomes.items() for r, o in enumerate(values) for row in chain(g, r, [("s", "a")], o)]
    credit = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), "grpo", eps=0.0)
    assert credit.tolist() == [-1.0, 0.0, 1.0] * 2


def test_interleaved_groups():
    rows = [row for r, g in enumerate("ABABAB") for row in chain(g, r, [("s", "a")], float(r))]
    interleaved = rtmc.advantages(StepTable.from_rows(rows), "grpo")
    sorted_rows = sorted(rows, key=lambda row: row["group"])
    in_order = rtmc.advantages(StepTable.from_rows(sorted_rows), "grpo")
    assert interleaved[0::2].tolist() == in_order[:3].tolist()
    assert interleaved[1::2].tolist() == in_order[3:].tolist()


def test_a_node_shared_by_leaves_gets_the_mean_over_its_leaves():
    """prompt -> a -> {l1, l2}, prompt -> b -> l3, prompt -> l4, with four outcomes."""
    spec = [("a", 0, 0, -1), ("l1", 0, 1, 0), ("l2", 1, 1, 0), ("b", 2, 0, -1), ("l3", 2, 1, 3), ("l4", 3, 0, -1)]
    outcomes = [1.0, 0.0, 0.0, 1.0]
    rows = [
        {
            "group": 0,
            "rollout": r,
            "index": i,
            "state": f"before {name}" if i else "prompt",
            "action": name,
            "parent": p,
            "outcome": outcomes[r],
        }
        for name, r, i, p in spec
    ]
    tree = StepTable.from_rows(rows, dtype=torch.float64)
    assert rtmc.advantages(tree, "dr_grpo").tolist() == [0.0, 0.5, -0.5, -0.5, -0.5, 0.5]
    # The same rollouts written out as chains.
    paths = {0: ["a", "l1"], 1: ["a", "l2"], 2: ["b", "l3"], 3: ["l4"]}
    chains = [
        row
        for r, names in paths.items()
        for row in chain(0, r, [(f"before {n}" if t else "prompt", n) for t, n in enumerate(names)], outcomes[r])
    ]
    flat = rtmc.estimate(StepTable.from_rows(chains, dtype=torch.float64), "rtmc")
    found = rtmc.estimate(tree, "rtmc")
    shared = flat.advantage[[0, 2]]
    expected = torch.stack([shared.mean(), *flat.advantage[[1, 3, 4, 5, 6]]])
    torch.testing.assert_close(found.advantage, expected, rtol=0, atol=1e-15)
    assert found.visits.tolist() == [4.0, 1.0, 1.0, 4.0, 1.0, 4.0]
    # A leaf without a verdict does not count in the mean.
    rows[2]["outcome"] = math.nan
    unknown = StepTable.from_rows(rows, dtype=torch.float64)
    torch.testing.assert_close(
        rtmc.advantages(unknown, "dr_grpo"),
        torch.tensor([1 / 3, 1 / 3, 0, -2 / 3, -2 / 3, 1 / 3], dtype=torch.float64),
        rtol=0,
        atol=1e-15,
    )


def test_result_has_the_tables_dtype_and_row_order():
    rows = random_rows(3)
    for dtype in (torch.float32, torch.float64):
        found = rtmc.estimate(StepTable.from_rows(rows, dtype=dtype), "rtmc")
        assert {column.dtype for name, column in found.items() if "visits" not in name} == {dtype}
        assert found.visits.dtype == found.action_visits.dtype == torch.int64


def test_single_precision_is_the_double_result_rounded_once():
    rows = random_rows(11)
    for row in rows:  # inputs that both precisions hold
        row["reward"] = round(row["reward"] * 256) / 256
        row["outcome"] = round(row["outcome"] * 256) / 256 if not math.isnan(row["outcome"]) else math.nan
    for method, options in METHODS:
        single = rtmc.advantages(StepTable.from_rows(rows), method, **options)
        double = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), method, **options)
        assert torch.equal(single, double.float()), method


def test_the_columns_whose_difference_is_the_advantage():
    rows = [row | {"value": 0.25 * (k % 3), "tokens": int(k % 4 > 0)} for k, row in enumerate(random_rows(5))]
    table = StepTable.from_rows(rows, dtype=torch.float64)
    known, policy = table.known[table.rollout], table.tokens > 0
    for method in ("rtmc", "vineppo"):
        found = rtmc.estimate(table, method)
        torch.testing.assert_close(found.advantage[known], (found.q - found.v)[known], rtol=0, atol=1e-15)
    found = rtmc.estimate(table, "gae")
    here = known & policy
    torch.testing.assert_close(found.advantage[here], (found.returns - found.v)[here], rtol=0, atol=1e-15)


def test_the_list_of_estimators():
    listed = rtmc.estimators()
    names = [info.name for info in listed]
    assert names == sorted(names)
    assert {"grpo", "dr_grpo", "rloo", "grpo_step", "rtmc"} <= set(names)
    by_name = {info.name: info for info in listed}
    assert by_name["rtmc"].options == {
        "gamma": 0.99,
        "prior_visits": 2.0,
        "prior": "success_rate",
        "first_visit": True,
        "filter_uniform": False,
        "normalize": False,
    }
    assert by_name["rtmc"].needs == ("state", "action", "reward")
    assert by_name["grpo"].options == {"ddof": 1, "eps": 1e-6, "parity": None}
    lines = str(listed).splitlines()
    assert len(lines) == len(listed) + 1
    assert "prior_visits=2.0" in str(listed)
    json.dumps([info.options for info in listed])


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("gropo", {}, "unknown estimator 'gropo'; did you mean `grpo`"),
        ("rtmc", {"gama": 1}, "estimator `rtmc`: unknown option 'gama'; did you mean `gamma`"),
        ("rtmc", {"gamma": 1.5}, r"option `gamma` must be a finite number in \[0, 1\], got 1\.5"),
        ("rtmc", {"gamma": math.nan}, "`gamma`"),
        ("rtmc", {"gamma": True}, "`gamma`"),
        ("rtmc", {"gamma": "0.9"}, "`gamma`"),
        ("rtmc", {"prior_visits": -1}, "of at least 0, got -1"),
        ("rtmc", {"prior": "mean"}, "`prior` must be 'success_rate' or 'mean_return', got 'mean'"),
        ("rtmc", {"normalize": 1}, "True or False, got 1"),
        ("grpo", {"ddof": 2}, r"an integer in \[0, 1\], got 2"),
        ("grpo", {"parity": "vrl"}, "`parity` must be None or 'verl'"),
        ("GRPO", {}, "unknown estimator 'GRPO'; did you mean `grpo`\\? "),
        ("Tree-GRPO", {}, "did you mean `tree_grpo`\\? "),
        ("TRTMC", {}, "did you mean `rtmc`"),
        ("rtmc", {"GAMMA": 1}, "unknown option 'GAMMA'; did you mean `gamma`\\? "),
        (
            "grpo",
            {"parity": "trl", "eps": 0.1},
            "^estimator `grpo`: parity='trl' has `eps` 0.0001, got 0.1; leave",
        ),
        ("grpo", {"parity": "rllm", "ddof": 1}, "parity='rllm' has `ddof` 0, got 1"),
        ("grpo", {"parity": "tinker", "eps": 1e-6}, "parity='tinker' has `eps` 0.0, got 1e-06"),
        ("gae", {"parity": "verl", "whiten": False}, "parity='verl' has `whiten` True, got False"),
        ("grpo_step", {"mode": "mean"}, "`mode`"),
    ],
)
def test_bad_calls_are_named(method, options, message):
    table = StepTable.from_rows(chain(0, 0, [("s", "a")], 1.0))
    with pytest.raises(EstimatorError, match=message) as caught:
        rtmc.estimate(table, method, **options)
    assert isinstance(caught.value, ValueError)


def test_bad_tables():
    with pytest.raises(TypeError, match="StepTable"):
        rtmc.estimate([{}], "grpo")
    table = StepTable.from_rows(chain(0, 0, [("s", "a")], 1.0))
    table.index = torch.tensor([4])
    with pytest.raises(TableError, match="`index`"):
        rtmc.advantages(table, "grpo")


@pytest.fixture
def registered(monkeypatch):
    """A register that forgets what the test adds."""
    from rtmc.methods import registry

    monkeypatch.setattr(registry, "_registered", dict(registry._load()))


@pytest.mark.usefixtures("registered")
def test_a_users_own_estimator():
    @rtmc.register_estimator("last-step", needs=("value",), source="here")
    def last_step(table, *, scale=2.0):
        """`scale` times the outcome on the last step of each rollout, in time order."""
        last = table.offsets()[table.rollout + 1] - 1
        at = torch.arange(len(table))
        return torch.where(at == last, table.outcome[table.rollout] * scale, 0.0)

    rows = chain(0, "x", [("s", "a"), ("t", "b")], 1.0, value=0.5) + chain(0, "y", [("s", "a")], 3.0, value=0.5)
    table = StepTable.from_rows(rows[::-1])
    assert rtmc.advantages(table, "last-step").tolist() == [6.0, 2.0, 0.0]
    assert rtmc.advantages(table, "last-step", scale=1.0).tolist() == [3.0, 1.0, 0.0]
    info = next(info for info in rtmc.estimators() if info.name == "last-step")
    assert info.options == {"scale": 2.0}
    with pytest.raises(EstimatorError, match="taken"):
        rtmc.register_estimator("last-step", last_step)
    with pytest.raises(EstimatorError, match="taken"):
        rtmc.register_estimator("rtmc", last_step)
    del table.scores["value"]
    with pytest.raises(EstimatorError, match=r"needs the score `value`, which the table lacks \(its scores: none\)"):
        rtmc.estimate(table, "last-step")


@pytest.mark.usefixtures("registered")
def test_what_a_users_estimator_may_see_and_return():
    table = StepTable.from_rows(chain(0, 0, [("s", "a"), ("t", "b")], 1.0)[::-1])
    seen = []

    def method(given):
        seen.append(given)
        return Estimate(given.reward, parts={"step": given.reward})

    rtmc.register_estimator("as-it-is", method, rows="table")
    assert rtmc.estimate(table, "as-it-is").parts["step"].shape == (2,)
    assert seen[0] is table
    rtmc.register_estimator("too-short", lambda given: given.reward[:1])
    with pytest.raises(EstimatorError, match=r"returned `advantage` of shape \(1,\), wanted \(2,\)"):
        rtmc.estimate(table, "too-short")
    rtmc.register_estimator("nothing", lambda given: None)
    with pytest.raises(TypeError, match="returned NoneType"):
        rtmc.estimate(table, "nothing")
    rtmc.register_estimator("of-trees", method, needs=("parent",))
    with pytest.raises(EstimatorError, match="needs the column `parent`"):
        rtmc.estimate(table, "of-trees")
    with pytest.raises(EstimatorError, match="'time' or 'table'"):
        rtmc.register_estimator("odd", method, rows="any")
    with pytest.raises(TypeError):
        rtmc.register_estimator("", method)
    with pytest.raises(TypeError):
        rtmc.register_estimator("odd", 5)


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (number(0.5, 0.0, 1.0), [0, 1, 0.3], [-0.1, 1.1, math.inf, math.nan, "0", True, None]),
        (whole(1, 0, 3), [0, 3], [4, -1, 1.0, False]),
        (flag(True), [True, False], [0, "yes", None]),
        (choice("a", ("a", "b")), ["a", "b"], [None, "c", True]),
        (choice(None, ("a",)), ["a", None], ["b", False]),
    ],
)
def test_options_accept_what_they_say(option, good, bad):
    for value in good:
        assert option.accept("x", value) is value
    for value in bad:
        with pytest.raises(ValueError, match="option `x` must be"):
            option.accept("x", value)
