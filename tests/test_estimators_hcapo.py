"""hcapo against the arithmetic of its formulas and hand-worked rollouts."""

import math

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases


def of_logprobs(logprobs, outcomes, groups=None, dtype=torch.float64):
    groups = groups or [0] * len(outcomes)
    rows = [
        {"group": groups[r], "rollout": r, "index": t, "state": "s", "action": "a", "outcome": outcomes[r]}
        | {"hindsight_logprob": m}
        for r, own in enumerate(logprobs)
        for t, m in enumerate(own)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_vectors(dtype, tolerance, shared):
    for given, wanted in vector_cases(shared, "hcapo_by_formula"):
        found = rtmc.estimate(
            of_logprobs(given["mean_token_hindsight_logprob"], given["R"], dtype=dtype),
            "hcapo",
            gamma=given["gamma"],
            step_weight=given["omega"],
            temperature=given["T_temp"],
            clip=given["clip"],
            smooth=given["smooth_alpha"] is not None,
        )
        for column, name in ((found.parts["rho"], "rho"), (found.q, "Q_H"), (found.advantage, "adv")):
            expected = torch.tensor([x for own in wanted[name] for x in own], dtype=dtype)
            torch.testing.assert_close(column, expected, rtol=tolerance, atol=tolerance)


def test_smoothing_reads_the_next_value_as_it_was():
    # Equal log-probabilities: rho = 1, so Q = gamma^(steps that remain).
    table = of_logprobs([[-1.0] * 3, [-1.0]], [1.0, 0.0])
    found = rtmc.estimate(table, "hcapo", gamma=0.5, smooth=True)
    assert found.q.tolist() == pytest.approx([0.375, 0.75, 1.0, 0.0])
    assert found.returns.tolist() == [0.25, 0.5, 1.0, 0.0]


def test_success_is_not_harmed_and_failure_is():
    table = of_logprobs([[-1.0, -1.0], [-1.0]], [1.0, 0.0])
    # Q = 1/2, 1 | 0: mean 1/2, so the first step would get 0 and the failed one is below.
    found = rtmc.estimate(table, "hcapo", gamma=0.5)
    spread = math.sqrt(0.5 / 3)
    assert found.parts["step"].tolist() == pytest.approx([0.0, 0.5 / spread, -0.5 / spread])
    assert found.parts["episode"].tolist() == [1.0, 1.0, -1.0]
    low = rtmc.estimate(of_logprobs([[-1.0] * 4, [-1.0] * 2], [1.0, 1.0]), "hcapo", gamma=0.5)
    assert low.parts["step"].min() == 0.0
    assert low.parts["episode"].tolist() == [0.0] * 6


def test_statistics_of_equal_index():
    table = of_logprobs([[-1.0, -1.0], [-1.0, -1.0]], [1.0, 3.0])
    found = rtmc.estimate(table, "hcapo", gamma=0.5, statistics="same_index")
    # Index 0: Q = 0.5, 1.5; index 1: Q = 1, 3. Each pair is one deviation around its mean; successes keep no minus.
    assert found.parts["step"].tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0])


def test_one_rollout_is_zero_although_its_steps_differ():
    assert rtmc.advantages(of_logprobs([[-0.1, -3.0, -1.0]], [1.0]), "hcapo").tolist() == [0.0] * 3


def test_very_unlikely_actions_do_not_underflow():
    found = rtmc.estimate(of_logprobs([[-1e5, -1e5], [-1.0]], [1.0, 0.0]), "hcapo")
    assert found.parts["rho"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("clip", [(1.2, 0.8), (0.8,), 1.0, "ab", (-0.1, 1.0), (0.8, math.nan)])
def test_bad_clips_are_named(clip):
    with pytest.raises(EstimatorError, match="`clip` must be two finite numbers"):
        rtmc.estimate(of_logprobs([[-1.0]], [1.0]), "hcapo", clip=clip)
    with pytest.raises(EstimatorError, match="`temperature` must be a finite number above 0"):
        rtmc.estimate(of_logprobs([[-1.0]], [1.0]), "hcapo", temperature=0)
