"""istar against the authors' numbers, enumeration, and hand-worked baselines."""

import statistics

import pytest
import torch

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases


def of_steps(rewards, outcomes, groups=None, dtype=torch.float64):
    groups = groups or [0] * len(outcomes)
    rows = [
        {"group": groups[r], "rollout": r, "index": t, "state": "s", "action": "a", "outcome": outcomes[r]}
        | {"prm_reward": w}
        for r, own in enumerate(rewards)
        for t, w in enumerate(own)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors(dtype, shared):
    for given, wanted in vector_cases(shared, "istar"):
        seen, rows = {}, []
        for outcome, reward, rollout in zip(
            given["episode_reward_per_row"], given["step_reward_per_row"], given["traj"], strict=True
        ):
            index = seen[rollout] = seen.get(rollout, -1) + 1
            row = {"group": given["group"], "rollout": rollout, "index": index, "state": "s", "action": "a"}
            rows.append(row | {"outcome": outcome, "prm_reward": reward})
        table = StepTable.from_rows(rows, dtype=dtype)
        forms = {
            "rloo": {},
            "combined": {},
            "grpo_mean_norm": {"base": "grpo", "std": False},
            "grpo_mean_std": {"base": "grpo"},
        }
        for name, options in forms.items():
            options |= {"step_weight": given["step_advantage_w"], "parity": "verl_agent"}
            found = rtmc.estimate(table, "istar", **options)
            torch.testing.assert_close(
                found.advantage, torch.tensor(wanted[name], dtype=dtype), rtol=1e-5, atol=1e-6, msg=name
            )
            if name == "rloo":
                alone = torch.tensor(wanted["rloo_process_only"], dtype=dtype)
                torch.testing.assert_close(found.parts["step"], alone, rtol=1e-5, atol=1e-6)


def test_all_steps_is_leave_one_out():
    rewards = [[0.3, -0.1], [0.2, 0.05, -0.4], [0.6]]
    flat = [r for own in rewards for r in own]
    expected = [r - statistics.fmean(flat[:k] + flat[k + 1 :]) for k, r in enumerate(flat)]
    found = rtmc.estimate(of_steps(rewards, [1.0, 0.0, 1.0]), "istar", step_baseline="all_steps")
    assert found.parts["step"].tolist() == pytest.approx(expected, abs=1e-12)


def test_the_first_row_is_no_leave_one_out_for_later_steps():
    table = of_steps([[1.0, 5.0], [3.0]], [1.0, 0.0])
    # First rows 1 and 3: 2 (r - 2).
    assert rtmc.estimate(table, "istar").parts["step"].tolist() == [-2.0, 6.0, 2.0]
    assert rtmc.estimate(table, "istar").parts["episode"].tolist() == [1.0, 1.0, -1.0]


def test_a_baseline_of_one():
    table = of_steps([[0.5, 0.25]], [1.0])
    assert rtmc.advantages(table, "istar").tolist() == [0.0, 0.0]
    assert rtmc.advantages(table, "istar", base="grpo").tolist() == [0.0, 0.0]
    assert rtmc.advantages(table, "istar", parity="verl_agent").tolist() == [1.5, 1.25]
    raw = rtmc.advantages(table, "istar", base="grpo", parity="verl_agent")
    assert raw.tolist() == pytest.approx([1.5, 1.25], abs=2e-6)


def test_equal_first_steps_do_not_blow_up():
    table = of_steps([[0.1, 0.3], [0.1], [0.1]], [1.0, 0.0, 0.0])
    assert rtmc.estimate(table, "istar", base="grpo").parts["step"].tolist() == [0.0] * 4
    quirk = rtmc.estimate(table, "istar", base="grpo", parity="verl_agent").parts["step"].tolist()
    assert quirk == pytest.approx([0.0, 2e5, 0.0, 0.0])
    centred = rtmc.estimate(table, "istar", base="grpo", std=False).parts["step"].tolist()
    assert centred == pytest.approx([0.0, 0.2, 0.0, 0.0])


def test_batch_norm_divides_by_the_largest_reward():
    rewards = [[1.0, -4.0], [2.0]]
    table = of_steps(rewards, [1.0, 0.0])
    plain = rtmc.estimate(table, "istar").parts["step"]
    scaled = rtmc.estimate(table, "istar", batch_norm=True).parts["step"]
    torch.testing.assert_close(scaled, plain / (4 + 1e-6), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("base", "method"), [("rloo", "rloo"), ("grpo", "grpo")])
def test_without_step_term_it_is_the_base(base, method):
    table = of_steps([[0.3, -0.1], [0.2], [0.6]], [1.0, 0.0, 0.25])
    assert torch.equal(rtmc.advantages(table, "istar", step_weight=0.0, base=base), rtmc.advantages(table, method))
