"""The benchmarks' own machinery: names, disagreement, statistics, the results file. Speeds are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_slow_candidate_is_run_less_often(measure, monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE", 0.0)
    times = measure.seconds_of({"a": int, "b": int}, "cpu", 10)
    assert [len(t) for t in times.values()] == [3, 3]


def test_results_are_appended(measure, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
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
