"""What holds for every estimator on chains: gigpo, hgpo, hcapo, gae, vineppo, igpo, igrpo, istar."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError, StepTable

METHODS = [
    ("gigpo", {}),
    ("gigpo", {"std": True, "parity": "verl_agent"}),
    ("hgpo", {}),
    ("hgpo", {"std": False, "base": False, "history": 1, "parity": "verl_agent"}),
    ("hcapo", {}),
    ("hcapo", {"smooth": True, "statistics": "same_index", "ddof": 1, "eps": 1e-6}),
    ("gae", {}),
    ("gae", {"whiten": True}),
    ("vineppo", {}),
    ("igpo", {}),
    ("igpo", {"norm": "joint", "reward_mode": "logprob", "gamma": 0.9}),
    ("igpo", {"norm": "original"}),
    ("igpo", {"norm": "original_discounted", "gamma": 0.5}),
    ("igrpo", {}),
    ("igrpo", {"reward_mode": "avg", "norm": "original", "gamma": 0.9}),
    ("igrpo", {"reward_mode": "max"}),
    ("istar", {}),
    ("istar", {"base": "grpo", "step_baseline": "all_steps", "batch_norm": True}),
]
IDS = [f"{name}-{'-'.join(str(value) for value in options.values())}" for name, options in METHODS]
# Scaled by a statistic of the whole table, so a group's numbers depend on the others.
WHOLE_TABLE = ("whiten", "batch_norm")
# Nothing is compared within a group: a group of one has credit like any other.
ALONE = ("gae", "vineppo")
SCORES = {"gae": "value", "vineppo": "value", "hcapo": "hindsight_logprob", "istar": "prm_reward"}
SCORES |= {"igpo": "answer_score", "igrpo": "answer_score"}


def step(group, rollout, index, outcome, **more):
    """One row with every score that a method here reads."""
    row = {"group": group, "rollout": rollout, "index": index, "state": "s", "action": "a", "outcome": outcome}
    row |= {"value": 0.5, "hindsight_logprob": -1.0, "answer_score": 0.25, "root_score": 0.1, "prm_reward": 0.5}
    return row | more


def random_rows(seed, unknown=0.2):
    """Rows of three groups with states that recur, awkward numbers, masked rows and unknown outcomes."""
    rng = random.Random(seed)
    return [
        step(
            g,
            r,
            t,
            outcome,
            state=rng.randrange(3),
            action=rng.randrange(2),
            reward=rng.gauss(0, 0.1),
            tokens=rng.choice([0, 1, 5]),
            value=rng.gauss(0, 1),
            hindsight_logprob=-rng.expovariate(1),
            answer_score=rng.uniform(0.01, 1),
            root_score=0.1,
            prm_reward=rng.gauss(0, 1),
        )
        for g in range(3)
        for r in range(4)
        for outcome in [math.nan if rng.random() < unknown else rng.choice([0.0, 1.0, rng.gauss(0, 1)])]
        for t in range(rng.randrange(1, 5))
    ]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
@settings(max_examples=8, deadline=None)
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


@pytest.mark.parametrize(("method", "options"), [m for m in METHODS if not any(name in m[1] for name in WHOLE_TABLE)])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_group_alone_and_among_others_is_the_same(method, options, seed):
    rows = random_rows(seed)
    both = rtmc.advantages(StepTable.from_rows(rows), method, **options)
    for group in range(3):
        own = [k for k, row in enumerate(rows) if row["group"] == group]
        alone = rtmc.advantages(StepTable.from_rows([rows[k] for k in own]), method, **options)
        assert torch.equal(both[own], alone)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_unknown_outcomes_are_absent(method, options, seed):
    rows = random_rows(seed, unknown=0.5)
    absent = [k for k, row in enumerate(rows) if math.isnan(row["outcome"])]
    for k in absent:  # what an absent row holds does not matter
        rows[k][SCORES.get(method, "prm_reward")] = math.nan
    found = rtmc.estimate(StepTable.from_rows(rows, dtype=torch.float64), method, **options)
    for name, column in found.items():
        assert torch.isfinite(column.double()).all(), name
    assert (found.advantage[absent] == 0).all()
    known = [k for k in range(len(rows)) if k not in set(absent)]
    if known:
        rest = rtmc.advantages(StepTable.from_rows([rows[k] for k in known], dtype=torch.float64), method, **options)
        assert torch.equal(found.advantage[known], rest)


@pytest.mark.parametrize(("method", "options"), [m for m in METHODS if m[0] not in ALONE and "parity" not in m[1]])
def test_seven_unknown_and_one_known_compare_nothing(method, options):
    rows = [step(0, r, 0, math.nan if r < 7 else 1.0) for r in range(8)]
    assert rtmc.advantages(StepTable.from_rows(rows), method, **options).tolist() == [0.0] * 8


@pytest.mark.parametrize(("method", "options"), [m for m in METHODS if m[0] not in ALONE], ids=str)
def test_equal_rollouts_give_exactly_zero(method, options):
    # The float64 mean of three times 0.1 is not 0.1.
    rows = [step(0, r, 0, 0.1) for r in range(3)]
    assert rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), method, **options).tolist() == [0.0] * 3


@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
def test_empty_tables_and_empty_rollouts(method, options):
    names = ("value", "hindsight_logprob", "answer_score", "root_score", "prm_reward")
    for empty in ([], [{"group": 0, "rollout": r, "outcome": r} for r in range(2)]):
        table = StepTable.from_rows([], empty)
        table.scores = {name: torch.zeros(0) for name in names}
        assert rtmc.advantages(table, method, **options).shape == (0,)
    rows = [step(0, 0, t, 1.0) for t in range(2)]
    table = StepTable.from_rows(rows, [{"group": 0, "rollout": 1, "outcome": 0.0}])
    assert torch.isfinite(rtmc.advantages(table, method, **options)).all()


@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize(("method", "options"), METHODS, ids=IDS)
def test_very_large_and_very_small_numbers(method, options, size):
    rows = [
        step(0, r, t, r * size, reward=t * size, value=t * size, prm_reward=(r - t) * size)
        for r in range(3)
        for t in range(2)
    ]
    for dtype in (torch.float32, torch.float64):
        assert torch.isfinite(rtmc.advantages(StepTable.from_rows(rows, dtype=dtype), method, **options)).all()


@pytest.mark.parametrize(("method", "score"), SCORES.items())
def test_a_missing_score_is_named(method, score):
    rows = [step(0, r, t, float(r)) for r in range(2) for t in range(3)]
    bare = [{name: value for name, value in row.items() if name != score} for row in rows]
    with pytest.raises(EstimatorError, match=f"needs the score `{score}`"):
        rtmc.estimate(StepTable.from_rows(bare), method)
    if method == "igrpo":  # read only with `premature`
        return
    rows[4][score] = math.inf
    with pytest.raises(EstimatorError, match=f"`{score}` is inf at step 1 of rollout 1"):
        rtmc.estimate(StepTable.from_rows(rows), method)
