"""hgpo against verl-agent's numbers, a plain dictionary of histories, and hand-worked levels."""

import random
import statistics

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases


def of_case(given, dtype):
    seen, rows = {}, []
    for state, rollout, value, outcome in zip(
        given["obs"], given["traj"], given["step_returns"], given["episode"], strict=True
    ):
        index = seen[rollout] = seen.get(rollout, -1) + 1
        row = {"group": 0, "rollout": rollout, "index": index, "state": state, "action": "a"}
        rows.append(row | {"returns": value, "outcome": outcome})
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verl_agent_vectors(dtype, shared):
    for given, wanted in vector_cases(shared, "hgpo"):
        found = rtmc.advantages(
            of_case(given, dtype),
            "hgpo",
            history=given["history_length"],
            alpha=given["alpha"],
            std=given["mode"] == "mean_std_norm",
            base=given["base_group"],
            parity="verl_agent",
        )
        torch.testing.assert_close(found, torch.tensor(wanted["adv_per_row"], dtype=dtype), rtol=1e-5, atol=1e-6)


def rows_of(paths, outcomes, rewards=None):
    return [
        {"group": 0, "rollout": r, "index": t, "state": s, "action": "a", "outcome": outcomes[r]}
        | {"reward": rewards[r][t] if rewards else 0.0}
        for r, path in enumerate(paths)
        for t, s in enumerate(path)
    ]


@pytest.mark.parametrize(
    ("std", "base", "parity"), [(True, True, None), (False, False, None), (True, True, "verl_agent")]
)
def test_against_a_dictionary(std, base, parity):
    rng = random.Random(7)
    paths = [[rng.randrange(2) for _ in range(rng.randrange(1, 6))] for _ in range(8)]
    outcomes = [rng.choice([0.0, 1.0]) for _ in paths]
    rewards = [[rng.gauss(0, 0.1) for _ in path] for path in paths]
    table = StepTable.from_rows(rows_of(paths, outcomes, rewards), dtype=torch.float64)
    found = rtmc.estimate(table, "hgpo", history=2, alpha=0.5, std=std, base=base, parity=parity)

    totals = [sum(own) + outcome for own, outcome in zip(rewards, outcomes, strict=True)]
    per_row = [total for total, path in zip(totals, paths, strict=True) for _ in path]
    over = per_row if parity else totals
    returns, groups = {}, {}
    for r, path in enumerate(paths):
        value = outcomes[r]
        for t in range(len(path) - 1, -1, -1):
            value = rewards[r][t] + (value if t == len(path) - 1 else 0.95 * value)
            returns[r, t] = value
            for k in range(1, min(3, t + 1) + 1):
                groups.setdefault(tuple(path[t - k + 1 : t + 1]), []).append((r, t))
    expected = []
    for r, path in enumerate(paths):
        for t in range(len(path)):
            levels = []
            if base:
                z = (totals[r] - statistics.fmean(over)) / ((statistics.stdev(over) + 1e-6) if std else 1)
                levels.append((0, z))
            for k in range(1, min(3, t + 1) + 1):
                own = [returns[member] for member in groups[tuple(path[t - k + 1 : t + 1])]]
                if len(own) > 1:
                    spread = statistics.pstdev(own) + 1e-6 if std else 1
                    levels.append((k, (returns[r, t] - statistics.fmean(own)) / spread))
            weights = [(k + 1) ** 0.5 for k, _ in levels]
            total = sum(weights) + (1e-6 if parity else 0)
            expected.append(sum(w * a for w, (_, a) in zip(weights, levels, strict=True)) / total if levels else 0.0)
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-6 if parity else 1e-9)  # there in float32
    torch.testing.assert_close(found.parts["episode"] + found.parts["step"], found.advantage, rtol=0, atol=1e-15)


def test_a_level_of_average_return_counts_by_default_only():
    """State s: returns 0, 2, 1 (mean 1); (p, s) is shared by the third and the fourth step that ends in s."""
    rows = rows_of([["s"], ["s"], ["p", "s"], ["p", "s"]], [0.0, 2.0, 1.0, 1.0])
    rows[2] |= {"reward": 0.0}
    table = StepTable.from_rows(rows, dtype=torch.float64)
    for row, value in zip(rows, [0.0, 2.0, 5.0, 1.0, 7.0, 1.0], strict=True):
        row["returns"] = value
    table = StepTable.from_rows(rows, dtype=torch.float64)
    options = {"std": False, "base": False, "alpha": 1.0, "history": 1}
    # Level 1 of s: 0, 2, 1, 1 around 1; level 1 of p: 5, 7 around 6; level 2 of (p, s): 1, 1, exactly 0.
    assert rtmc.advantages(table, "hgpo", **options).tolist() == [-1.0, 1.0, -1.0, 0.0, 1.0, 0.0]
    rows[5]["returns"] = 3.0  # s: 0, 2, 1, 3 around 1.5; (p, s): 1, 3 around 2
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = rtmc.advantages(table, "hgpo", **options).tolist()
    assert found == pytest.approx([-1.5, 0.5, -1.0, (2 * -0.5 + 3 * -1) / 5, 1.0, (2 * 1.5 + 3 * 1) / 5])
    rows[3]["returns"] = rows[5]["returns"] = 3.0  # s: 0, 2, 3, 3 around 2; (p, s) exactly 0
    table = StepTable.from_rows(rows, dtype=torch.float64)
    assert rtmc.advantages(table, "hgpo", **options).tolist() == pytest.approx([-2.0, 0.0, -1.0, 0.4, 1.0, 0.4])
    quirk = rtmc.advantages(table, "hgpo", parity="verl_agent", **options).tolist()
    assert quirk == pytest.approx([-2.0, 0.0, -1.0, 1.0, 1.0, 1.0], abs=1e-5)


def test_an_average_outcome_counts_by_default_only():
    """The second rollout is average, so level 0 is exactly 0 and weighs 1 beside level 1, which weighs 2."""
    rows = rows_of([["s"], ["s"], ["t"]], [0.0, 0.5, 1.0])
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = rtmc.advantages(table, "hgpo", std=False).tolist()
    assert found == pytest.approx([(-0.5 + 2 * -0.25) / 3, 2 * 0.25 / 3, 0.5])
    quirk = rtmc.advantages(table, "hgpo", std=False, parity="verl_agent").tolist()
    assert quirk == pytest.approx([(-0.5 + 2 * -0.25) / 3, 0.25, 0.5], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("returns", [[0.9, 0.95, 1.0], [0.1, 0.2, 0.3], [0.7, 0.8, 0.9]])
def test_parity_drops_a_level_that_is_zero_in_single_precision(returns, dtype):
    """The second return is average: in float32 its level is exactly 0, in float64 a rounding is left of it."""
    rows = [row | {"returns": value} for row, value in zip(rows_of([["s"]] * 3, [1.0, 0.0, 1.0]), returns, strict=True)]
    table = StepTable.from_rows(rows, dtype=dtype)
    quirk = rtmc.advantages(table, "hgpo", std=False, parity="verl_agent").tolist()
    step = [value - statistics.fmean(returns) for value in returns]
    expected = [(1 / 3 + 2 * step[0]) / 3, -2 / 3, (1 / 3 + 2 * step[2]) / 3]
    assert quirk == pytest.approx(expected, abs=2e-6)
    found = rtmc.advantages(table, "hgpo", std=False).tolist()
    assert found == pytest.approx([expected[0], -2 / 9, expected[2]], abs=2e-6)


def peers_level(values, std, ddof):
    """A group's level as the authors' code has it: one float32 tensor, its mean and its deviation."""
    own = torch.tensor(values, dtype=torch.float32)
    centred = own - own.mean()
    return (centred / (own.std(correction=ddof) + 1e-6) if std else centred).tolist()


@pytest.mark.parametrize("std", [False, True])
def test_parity_is_the_authors_arithmetic(std):
    """Evenly spaced and equal numbers, of which one is their mean but for a rounding: levels 0 and 1 of 400 tasks."""
    rng = random.Random(17)
    rows, expected = [], []
    for group in range(400):
        size = rng.choice([2, 3, 3, 3, 5, 7, 9, 17])
        outcomes, values = (
            [
                round(rng.choice([0.05, 0.1, 0.3]) * (k + 1) * rng.choice([0, 1]), 2)
                for k in rng.sample(range(size), size)
            ]
            if group % 3
            else [rng.choice([0.9, 0.95, 0.7])] * size
            for _ in range(2)
        )
        if group % 2:
            outcomes, values = ([start + k * step for k in range(size)] for start, step in ((0.1, 0.1), (0.7, 0.05)))
        base, step = peers_level(outcomes, std, 1), peers_level(values, std, 0)
        for r, (outcome, value) in enumerate(zip(outcomes, values, strict=True)):
            row = {"group": group, "rollout": r, "index": 0, "state": "s", "action": "a"}
            rows.append(row | {"outcome": outcome, "returns": value})
            weight = (base[r] != 0) + 2 * (step[r] != 0)
            expected.append((base[r] + 2 * step[r]) / (weight + 1e-6))
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = rtmc.advantages(table, "hgpo", std=std, parity="verl_agent").tolist()
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_parity_refuses_what_float32_does_not_hold():
    table = StepTable.from_rows(rows_of([["s"], ["s"]], [1e39, 0.0]), dtype=torch.float64)
    assert torch.isfinite(rtmc.advantages(table, "hgpo")).all()
    with pytest.raises(EstimatorError, match=r"^estimator `hgpo`: parity='verl_agent' computes in float32.* 1e\+39"):
        rtmc.advantages(table, "hgpo", parity="verl_agent")


def test_a_long_history_is_the_whole_past():
    rows = rows_of([["s", "t", "u"], ["s", "t", "u"], ["s", "x", "u"]], [1.0, 0.0, 0.0])
    table = StepTable.from_rows(rows, dtype=torch.float64)
    assert torch.equal(rtmc.advantages(table, "hgpo", history=2), rtmc.advantages(table, "hgpo", history=10**6))
    assert not torch.equal(rtmc.advantages(table, "hgpo", history=2), rtmc.advantages(table, "hgpo", history=1))


def test_a_state_seen_once_is_left_to_the_base():
    rows = rows_of([["s"], ["t"], ["u"]], [1.0, 0.0, 0.0])
    table = StepTable.from_rows(rows, dtype=torch.float64)
    assert rtmc.advantages(table, "hgpo", base=False).tolist() == [0.0] * 3
    assert torch.equal(rtmc.advantages(table, "hgpo"), rtmc.advantages(table, "grpo"))
    one = StepTable.from_rows(rows_of([["s", "t"]], [1.0]))
    assert rtmc.advantages(one, "hgpo").tolist() == [0.0, 0.0]
