"""gae against verl's numbers, the recursion written out, and its limits."""

import math
import random

import pytest
import torch

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases


def of_tokens(rewards, values, masks, dtype=torch.float64, **more):
    rows = [
        {"group": r, "rollout": r, "index": t, "state": "s", "action": "a", "reward": w, "value": v, "tokens": int(m)}
        | {name: column[r] for name, column in more.items()}
        for r, own in enumerate(zip(rewards, values, masks, strict=True))
        for t, (w, v, m) in enumerate(zip(*own, strict=True))
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verl_vectors(dtype, shared):
    for given, wanted in vector_cases(shared, "verl_gae"):
        masks = given["response_mask"]
        table = of_tokens(given["token_level_rewards"], given["values"], masks, dtype)
        returns, whitened = (
            torch.tensor(wanted[name], dtype=dtype).flatten() for name in ("returns", "advantages_whitened")
        )
        found = rtmc.estimate(table, "gae", gamma=given["gamma"], lam=given["lam"], parity="verl")
        torch.testing.assert_close(found.advantage, whitened, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.returns, returns, rtol=1e-5, atol=1e-6)
        white = rtmc.advantages(table, "gae", gamma=given["gamma"], lam=given["lam"], whiten=True)
        expected = whitened * torch.tensor(masks, dtype=dtype).flatten()
        torch.testing.assert_close(white, expected, rtol=1e-5, atol=1e-6)


def test_against_the_recursion():
    rng = random.Random(2)
    lengths = [1, 4, 7]
    masks = [[rng.random() < 0.6 for _ in range(n)] for n in lengths]
    rewards = [[rng.gauss(0, 1) for _ in own] for own in masks]
    values = [[rng.gauss(0, 1) if m else math.nan for m in own] for own in masks]
    outcomes = [rng.gauss(0, 1) for _ in lengths]
    found = rtmc.estimate(of_tokens(rewards, values, masks, outcome=outcomes), "gae", gamma=0.9, lam=0.8)
    expected = []
    for own, of_rollout, critic, outcome in zip(masks, rewards, values, outcomes, strict=True):
        ahead, following, last, out = 0.0, 0.0, True, []
        for m, r, v in zip(own[::-1], of_rollout[::-1], critic[::-1], strict=True):
            if m:
                delta = r + (outcome if last else 0.0) + 0.9 * following - v
                ahead, following, last = delta + 0.9 * 0.8 * ahead, v, False
            out.append(ahead if m else 0.0)
        expected += out[::-1]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.isfinite(found.returns).all()


def test_lambda_one_is_the_return_minus_the_value():
    table = of_tokens([[0.5, 0.0, 1.0]], [[0.2, 0.4, 0.1]], [[1, 1, 1]], outcome=[2.0])
    found = rtmc.estimate(table, "gae", lam=1.0)
    assert found.advantage.tolist() == pytest.approx([3.3, 2.6, 2.9])
    assert found.returns.tolist() == pytest.approx([3.5, 3.0, 3.0])
    one_step = rtmc.advantages(table, "gae", lam=0.0)
    assert one_step.tolist() == pytest.approx([0.5 + 0.4 - 0.2, 0.1 - 0.4, 3.0 - 0.1])


def test_the_outcome_lands_on_the_last_row_of_the_policy():
    table = of_tokens([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]], [[1, 1, 0]], outcome=[1.0])
    assert rtmc.advantages(table, "gae", lam=1.0).tolist() == [1.0, 1.0, 0.0]
    nothing = of_tokens([[0.0, 0.0]], [[0.0, 0.0]], [[0, 0]], outcome=[1.0])
    assert rtmc.advantages(nothing, "gae", parity="verl").tolist() == [0.0, 0.0]


def test_whitening_a_single_row_and_equal_rows():
    assert rtmc.advantages(of_tokens([[3.0]], [[0.0]], [[1]]), "gae", whiten=True).tolist() == [0.0]
    equal = of_tokens([[0.1]] * 3, [[0.0]] * 3, [[1]] * 3)
    assert rtmc.advantages(equal, "gae", whiten=True).tolist() == [0.0] * 3
    white = rtmc.advantages(of_tokens([[1.0], [2.0], [6.0]], [[0.0]] * 3, [[1]] * 3), "gae", whiten=True)
    assert float(white.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(white.std()) == pytest.approx(1.0, abs=1e-6)
