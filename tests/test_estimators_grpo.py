"""grpo, dr_grpo, rloo, grpo_step against the engines' own numbers and plain arithmetic."""

import math
import random
import statistics

import pytest
import torch

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases


def of_outcomes(outcomes, groups=None, lengths=None, dtype=torch.float64):
    """One rollout an outcome, `lengths` steps each."""
    groups = groups or [0] * len(outcomes)
    lengths = lengths or [1] * len(outcomes)
    rows = [
        {"group": g, "rollout": r, "index": t, "state": "s", "action": "a", "outcome": o}
        for r, (o, g, n) in enumerate(zip(outcomes, groups, lengths, strict=True))
        for t in range(n)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verl_vectors(dtype, shared):
    for given, wanted in vector_cases(shared, "verl_grpo_rloo"):
        table = of_outcomes(given["scores"], given["group"], given["lens"], dtype)
        for name, method, options in [
            ("grpo_std", "grpo", {"parity": "verl"}),
            ("dr_grpo_no_std", "dr_grpo", {"parity": "verl"}),
            ("rloo", "rloo", {"parity": "verl"}),
            ("rloo_vectorized", "rloo", {}),
            ("reinforce_pp_baseline", "dr_grpo", {"whiten": True, "parity": "verl"}),
        ]:
            found = rtmc.advantages(table, method, **options)
            expected = [x for row, n in zip(wanted[name], given["lens"], strict=True) for x in row[:n]]
            # The vectors themselves are float32.
            torch.testing.assert_close(found.double(), torch.tensor(expected).double(), rtol=0, atol=1e-5)


def test_whitening_counts_tokens_over_all_groups():
    """A row of k tokens counts as k rows of one; masked rows and unknown outcomes do not count."""
    outcomes, groups = [1.0, 0.0, 0.5, 2.0, math.nan], [0, 0, 1, 1, 1]
    tokens = [3, 1, 0, 2, 7]
    rows = [
        {"group": g, "rollout": r, "index": 0, "state": "s", "action": "a", "outcome": o, "tokens": n}
        for r, (o, g, n) in enumerate(zip(outcomes, groups, tokens, strict=True))
    ]
    found = rtmc.estimate(StepTable.from_rows(rows, dtype=torch.float64), "dr_grpo", whiten=True)
    centred = [0.5, -0.5, -0.75, 0.75, 0.0]
    assert found.parts["episode"].tolist() == centred
    counted = [0.5] * 3 + [-0.5] + [0.75] * 2
    spread = math.sqrt(statistics.variance(counted) + 1e-8)
    expected = [(value - statistics.fmean(counted)) / spread for value in centred[:4]]
    assert found.advantage.tolist() == pytest.approx([*expected, 0.0], abs=1e-12)
    by_token = of_outcomes(outcomes, groups, lengths=[max(n, 1) for n in tokens])
    by_token.tokens[by_token.rollout == 2] = 0
    alike = rtmc.advantages(by_token, "dr_grpo", whiten=True)
    assert alike[[0, 3, 4, 5]].tolist() == pytest.approx(found.advantage[:4].tolist(), abs=1e-12)


@pytest.mark.parametrize("outcomes", [[0.3, 0.3, 0.3], [math.nan] * 2, [1.0], [1.0, math.nan]])
def test_whitening_where_nothing_differs(outcomes):
    found = rtmc.advantages(of_outcomes(outcomes), "dr_grpo", whiten=True)
    assert found.tolist() == [0.0] * len(outcomes)
    raw = rtmc.advantages(of_outcomes([0.3]), "dr_grpo", whiten=True, parity="verl")
    assert raw.tolist() == [0.0]  # one token has no variance; verl's function refuses it


def test_a_group_of_one_is_raw_before_verl_whitens():
    """Scores 0.3 alone, and 1, 0: verl whitens 0.3, 0.5, -0.5; without parity 0, 0.5, -0.5."""
    table = of_outcomes([0.3, 1.0, 0.0], ["x", "y", "y"])
    for parity, centred in ((None, [0.0, 0.5, -0.5]), ("verl", [0.3, 0.5, -0.5])):
        spread = math.sqrt(statistics.variance(centred) + 1e-8)
        expected = [(value - statistics.fmean(centred)) / spread for value in centred]
        found = rtmc.advantages(table, "dr_grpo", whiten=True, parity=parity)
        assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_against_the_standard_library():
    rng = random.Random(5)
    outcomes = [rng.gauss(3, 2) for _ in range(12)]
    groups = [k % 3 for k in range(12)]
    table = of_outcomes(outcomes, groups, lengths=[1 + k % 4 for k in range(12)])
    for ddof, spread in ((1, statistics.stdev), (0, statistics.pstdev)):
        expected = []
        for outcome, group in zip(outcomes, groups, strict=True):
            own = [o for o, g in zip(outcomes, groups, strict=True) if g == group]
            expected.append((outcome - statistics.fmean(own)) / (spread(own) + 0.01))
        found = rtmc.advantages(table, "grpo", ddof=ddof, eps=0.01)
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64)[table.rollout], rtol=1e-12, atol=1e-12
        )


def test_leave_one_out_by_enumeration():
    outcomes = [0.2, -1.0, 3.5, 0.7]
    expected = [o - statistics.fmean(outcomes[:k] + outcomes[k + 1 :]) for k, o in enumerate(outcomes)]
    found = rtmc.advantages(of_outcomes(outcomes), "rloo")
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("parity", "value"),
    [
        (None, 0.70710578),
        ("verl", 0.70710578),
        ("verl_agent", 0.70710578),
        ("skyrl", 0.70710578),
        ("rllm", 0.999998),
        ("trl", 0.70700679),
        ("roll", 0.70710578),
        ("openrlhf", 0.70710678),
        ("prime_rl", 0.5),
        ("tinker", 0.5),
    ],
)
def test_engines_on_one_success_and_one_failure(parity, value):
    found = rtmc.advantages(of_outcomes([1.0, 0.0]), "grpo", parity=parity).tolist()
    assert found == pytest.approx([value, -value], abs=1e-8)


@pytest.mark.parametrize("parity", [None, "trl", "roll", "openrlhf", "prime_rl", "tinker"])
def test_a_group_of_one_is_zero(parity):
    assert rtmc.advantages(of_outcomes([0.3]), "grpo", parity=parity).tolist() == [0.0]
    assert rtmc.advantages(of_outcomes([0.3, math.nan]), "grpo", parity=parity).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("parity", ["verl", "verl_agent", "skyrl", "rllm"])
def test_a_group_of_one_is_the_raw_score_where_the_engine_says_so(parity):
    for outcomes in ([0.3], [0.3, math.nan]):
        found = rtmc.advantages(of_outcomes(outcomes), "grpo", parity=parity).tolist()
        assert found == pytest.approx([0.3 / (1 + 1e-6), 0.0][: len(outcomes)], abs=1e-12)


@pytest.mark.parametrize("method", ["dr_grpo", "rloo"])
def test_a_group_of_one_without_a_deviation(method):
    table = of_outcomes([0.3])
    assert rtmc.advantages(table, method).tolist() == [0.0]
    assert rtmc.advantages(table, method, parity="verl").tolist() == [0.3]


def test_roll_drops_a_spread_of_rounding():
    outcomes = [0.5, 0.5 + 1e-7]
    assert rtmc.advantages(of_outcomes(outcomes), "grpo", parity="roll").tolist() == [0.0, 0.0]
    assert rtmc.advantages(of_outcomes(outcomes), "grpo", parity="verl")[1] > 0.01


def test_unknown_outcomes_do_not_shift_the_baseline():
    found = rtmc.advantages(of_outcomes([math.nan, 0.0, 1.0, 1.0]), "dr_grpo")
    assert found.tolist() == pytest.approx([0.0, -2 / 3, 1 / 3, 1 / 3])


def test_a_large_mean_keeps_the_difference():
    base = 1e6
    found = rtmc.advantages(of_outcomes([base, base + 1], dtype=torch.float32), "dr_grpo")
    assert found.tolist() == [-0.5, 0.5]


def test_empty_rollouts_count_in_the_group():
    rows = [{"group": 0, "rollout": 0, "index": 0, "state": 0, "action": 0, "outcome": 1.0}]
    table = StepTable.from_rows(rows, [{"group": 0, "rollout": 1, "outcome": 0.0}])
    assert rtmc.advantages(table, "dr_grpo").tolist() == [0.5]


def with_rewards():
    """Two rollouts, rewards chosen so that G (gamma 1/2) is 1, 2 | -1."""
    spec = [(0, 0, 0.0, 1.5), (0, 1, 0.5, 1.5), (1, 0, -1.0, 0.0)]
    rows = [
        {"group": 0, "rollout": r, "index": t, "state": "s", "action": "a", "reward": w, "outcome": o}
        for r, t, w, o in spec
    ]
    return StepTable.from_rows(rows, dtype=torch.float64)


def test_step_returns_by_hand():
    found = rtmc.estimate(with_rewards(), "grpo_step", gamma=0.5, eps=0.0)
    assert found.returns.tolist() == [1.0, 2.0, -1.0]
    mean, std = 2 / 3, statistics.stdev([1.0, 2.0, -1.0])
    expected = [(g - mean) / std for g in (1.0, 2.0, -1.0)]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(found.parts["step"], found.advantage)


def test_the_sum_is_grpo_plus_weighted_steps():
    table = with_rewards()
    found = rtmc.estimate(table, "grpo_step", gamma=0.5, mode="sum", weight=0.25)
    grpo = rtmc.advantages(table, "grpo")
    steps = rtmc.advantages(table, "grpo_step", gamma=0.5)
    assert torch.equal(found.parts["episode"], grpo)
    assert torch.equal(found.parts["step"], steps)
    torch.testing.assert_close(found.advantage, grpo + 0.25 * steps, rtol=0, atol=1e-15)
    assert torch.equal(rtmc.advantages(table, "grpo_step", mode="sum", weight=0.0), grpo)


def test_equal_returns_give_zero_steps():
    table = of_outcomes([0.1, 0.1, 0.1])
    assert rtmc.advantages(table, "grpo_step", eps=0.0).tolist() == [0.0] * 3
    assert rtmc.advantages(of_outcomes([1.0]), "grpo_step").tolist() == [0.0]
