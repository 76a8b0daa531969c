"""The engines' estimators of the benchmark give the engines' numbers, and its cases agree. Speeds are not tested."""

import json
from pathlib import Path

import pytest
import torch

import rtmc

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import bench_estimators

    return bench_estimators


def test_the_engines_are_the_engines(bench, shared):
    import engine_estimators
    import step_credit

    cases = json.loads((shared / "vectors" / "verl_grpo_rloo.json").read_text())["cases"]
    assert cases
    for case in cases:
        given = case["inputs"]
        lengths = torch.tensor(given["lens"])
        place = torch.arange(given["L"])
        mask = (place < lengths[:, None]).float()
        rewards = torch.where(place == lengths[:, None] - 1, torch.tensor(given["scores"])[:, None], 0.0)
        groups = step_credit.as_objects(given["group"])
        expected = torch.tensor(case["outputs"]["grpo_std"])
        for engine in (engine_estimators.grpo_loop, engine_estimators.grpo_vectorised):
            torch.testing.assert_close(engine(rewards, mask, groups), expected, rtol=1e-5, atol=1e-5)


def test_the_candidates_of_a_case_agree(bench):
    cases = list(bench.cases(quick=True))
    assert {case.name.split(",")[0] for case in cases} >= {"GRPO", "GiGPO", *(info.name for info in rtmc.estimators())}
    for case in cases:
        results = [work() for work in case.candidates.values()]
        assert torch.isfinite(results[0]).all(), case.name
        for other in results[1:]:
            assert case.agree(results[0], other) <= case.bound, case.name


def test_the_tests_of_what_is_measured_exist(bench):
    assert [name for name in bench.TESTS if not (BENCH.parent / name).is_file()] == []
