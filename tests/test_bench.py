"""The benchmarks' own machinery: names, disagreement, statistics, the results file. Speeds are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import measure

    return measure


def test_a_name_that_does_not_exist():
    run = subprocess.run([sys.executable, BENCH / "run.py", "kernel"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "'kernel' does not exist" in run.stderr
    assert "credit, " in run.stderr
    assert run.stdout == ""


def test_no_speed_of_a_wrong_result(measure):
    case = measure.Case("sum", {"ours": lambda: 1.0, "peer": lambda: 1.5}, agree=lambda a, b: abs(a - b), bound=0.1)
    with pytest.raises(AssertionError, match=r"sum: ours and peer differ by 0\.5 > 0\.1"):
        measure.measure(case, rounds=3)
    nan = case._replace(candidates={"ours": lambda: float("nan"), "peer": lambda: 1.0})
    with pytest.raises(AssertionError, match="differ by nan"):
        measure.measure(nan, rounds=3)


def test_records_hold_medians_percentiles_and_ratios(measure, monkeypatch):
    taken = {"ours": [4.0, 1.0, 2.0, 3.0, 5.0, 6.0], "peer": [9.0] * 6}
    monkeypatch.setattr(measure, "seconds_of", lambda *_: taken)
    case = measure.Case("x", dict.fromkeys(taken, int), bytes_moved=7_000_000_000)
    ours, peer = measure.measure(case, rounds=6)
    assert (ours["median_ms"], ours["p20_ms"], ours["p80_ms"]) == (3500, 2000, 5000)
    assert ours["gb_per_s"] == pytest.approx(2)
    assert (ours["ours_is_faster_by"], peer["ours_is_faster_by"]) == (1, pytest.approx(9 / 3.5))
    assert "2.57x" in measure.table([ours, peer])


def test_memory_is_recorded_where_it_is_asked_for(measure, monkeypatch):
    import memory

    monkeypatch.setattr(memory, "peak_extra_bytes", lambda work, device: 3_000_000 if work is int else 1_000_000)
    case = measure.Case("x", {"ours": int, "peer": float}, rows=1000, memory=True)
    ours, peer = measure.measure(case, rounds=3)
    assert (ours["peak_extra_bytes"], peer["peak_extra_bytes"]) == (3_000_000, 1_000_000)
    assert ours["ns_per_row"] == pytest.approx(ours["median_ms"] * 1e3)
    assert " 3.0" in measure.table([ours, peer])
    (plain,) = measure.measure(measure.Case("x", {"ours": int}), rounds=3)
    assert (plain["peak_extra_bytes"], plain["ns_per_row"], plain["bytes_moved"]) == (None, None, None)


def test_every_op_measured_has_tests_and_cases(measure):
    import bench_kernels

    assert {"returns", "ids", "segments", "rollout_tree", "broadcast", "policy_loss"} <= set(bench_kernels.OPS)
    for op in bench_kernels.OPS:
        assert callable(bench_kernels.module_of(op).cases)
    missing = [test for test in bench_kernels.TESTS if not (BENCH.parent / test).is_file()]
    assert missing == []


def test_the_peer_in_numpy_agrees(measure):
    import step_credit

    import rtmc

    columns = step_credit.steps_of_groups(3, 4, 9, shuffled=True, dtype=torch.float64)
    arrays = {name: column.numpy() for name, column in columns.items()}
    ours = rtmc.advantages(rtmc.StepTable(**columns), "rtmc")
    peer = torch.from_numpy(step_credit.rtmc_in_numpy(arrays, 0.99, 2.0))
    torch.testing.assert_close(ours, peer, rtol=0, atol=1e-12)


def test_the_peer_row_by_row_is_gigpo(measure, shared):
    """Its numbers are those of the method's own code."""
    import step_credit

    cases = json.loads((shared / "vectors" / "gigpo.json").read_text())["cases"]
    assert cases
    for case in cases:
        given, wanted = case["inputs"], case["outputs"]
        paths = list(zip(given["group_by_traj"], given["obs_by_traj"], given["rewards_by_traj"], strict=True))
        rows = {
            "reward": torch.tensor([x for _, _, rewards in paths for x in rewards]),
            "episode_return": torch.tensor([float(sum(rewards)) for _, _, rewards in paths for _ in rewards]),
            "group": step_credit.as_objects([group for group, names, _ in paths for _ in names]),
            "observation": step_credit.as_objects([name for _, names, _ in paths for name in names]),
            "rollout": step_credit.as_objects([r for r, (_, names, _) in enumerate(paths) for _ in names]),
        }
        for std, name in ((False, "mean_norm_adv_per_row"), (True, "mean_std_norm_adv_per_row")):
            found = step_credit.gigpo_row_by_row(rows, given["gamma"], std)
            torch.testing.assert_close(found, torch.tensor(wanted[name]), rtol=0, atol=1e-6)


def test_a_slow_candidate_is_run_less_often(measure, monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE", 0.0)
    times = measure.seconds_of({"a": int, "b": int}, "cpu", 10)
    assert [len(t) for t in times.values()] == [3, 3]


def test_results_are_appended(measure, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results.jsonl")
    for _ in range(2):
        path = measure.append("x", [{"case": "c", "median_ms": 1.0}])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["bench"] == "x"
    assert {"commit", "versions", "cpu", "gpu", "time"} <= set(lines[0])


def test_the_peer_dictionary_by_hand(monkeypatch):
    """Two rollouts share a state and part there: Q - (W + 2 P) / (N + 2) with P = 1/2 gives +-1/2."""
    monkeypatch.syspath_prepend(str(BENCH))
    import bench_credit

    group = [
        {"steps": [("s", "a", 0.0)], "outcome": 1.0},
        {"steps": [("s", "b", 0.0)], "outcome": 0.0},
    ]
    assert bench_credit.dictionary_advantages([group], 0.99, 2.0) == [0.5, -0.5]
