"""`bench/gpu.py`, which needs a GPU to tell anything: that it walks its road, ends as it says, and survives a part."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setenv("OUT", str(tmp_path))
    import gpu

    return gpu


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path):
    """From the checkout's root and without our package on the path, as on a bare machine."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OUT": str(tmp_path)}
    command = [sys.executable, "-P", str(SCRIPT), "--device", "cpu", "--quick"]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=590)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    lines = lines_of(tmp_path)
    assert lines[0]["part"] == "where"
    ends = {line["part"]: line for line in lines if "held" in line}
    assert list(ends) == ["cases", "rtmc", "broadcast", "loss", "logprob", "compile", "step"]
    assert all(line["held"] and line["error"] is None for line in ends.values())
    assert any(line.get("of_copy_bandwidth", 0) > 0 for line in lines if line["part"] == "broadcast")
    peaks = [line["peak_extra_bytes"] for line in lines if line["part"] == "logprob" and "candidate" in line]
    assert len(peaks) == 2
    # What was to be reached, and on a GPU whether it is.
    targets = {line["part"]: line["target"] for line in lines if "target" in line}
    assert targets == {"rtmc": "one launch of ours", "broadcast": 0.8, "loss": 0.7}
    assert all(line["reached"] is None for line in lines if "target" in line)
    # Whatever became of a reference, its op was timed beside something.
    compared = [line for line in lines if line["part"] == "compile" and "held" not in line]
    assert not any("skipped" in line for line in compared)
    for line in compared:
        case = line["instead"] if "instead" in line else line["case"]
        assert (
            len({other["candidate"] for other in compared if other.get("case") == case and "median_ms" in other}) == 2
        )
    counted = [line for line in lines if "launches" in line]
    assert counted
    assert all("CUDA alone" in line["skipped"] for line in counted)


def test_without_cuda_it_says_so_in_one_line(gpu, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1
    assert "no CUDA device" in said.err
    assert not list(tmp_path.iterdir())


def test_a_part_that_does_not_exist(gpu, capsys):
    assert gpu.main(["losses", "--device", "cpu"]) == 2
    assert "no part 'losses'; there are: cases, rtmc" in capsys.readouterr().err


def test_a_failing_part_leaves_the_others_running(gpu, monkeypatch, tmp_path, capsys):
    def faulty(place):
        yield {"seen": 1}
        raise ZeroDivisionError("planted")

    def slow(place):
        yield {"seen": 2}
        time.sleep(60)

    def good(place):
        yield {"seen": place.device}

    parts = {"faulty": (faulty, 5), "slow": (slow, 0.05), "good": (good, 5)}
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--device", "cpu"]) == 1
    ends = {line["part"]: line for line in lines_of(tmp_path) if "held" in line}
    assert [ends[name]["held"] for name in parts] == [False, False, True]
    assert "planted" in ends["faulty"]["error"]
    assert "TimeoutError: took more than" in ends["slow"]["error"]
    assert "planted" in capsys.readouterr().err
    assert [line["seen"] for line in lines_of(tmp_path) if "seen" in line] == [1, 2, "cpu"]


def test_an_op_without_a_reference_that_compiles_stands_beside_its_peer(gpu, monkeypatch):
    import measure

    def ours():
        return torch.ones(3)

    def peer():
        return torch.zeros(3) + 1

    case = measure.Case("planted", {"op": ours, "numpy": ours, "sums in torch": peer, "the same, torch.compile": ours})
    place = gpu.Place("cpu", True)
    lines = list(gpu.beside_peer(place, case))
    assert [line["candidate"] for line in lines] == ["op", "torch.compile of sums in torch"]

    def refuse(work):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", refuse)
    why, *lines = gpu.beside_peer(place, case)
    assert "no compiler" in why["why"]
    assert [line["candidate"] for line in lines] == ["op", "sums in torch"]
    with pytest.raises(AssertionError, match="no candidate in plain torch"):
        list(gpu.beside_peer(place, case._replace(candidates={"op": ours, "numpy": ours})))


def test_every_op_of_the_benchmark_has_a_peer_in_plain_torch(gpu):
    import bench_kernels

    for stem in bench_kernels.OPS:
        _, *others = next(bench_kernels.module_of(stem).cases(True, "cpu")).candidates
        assert [name for name in others if "torch" in name and "compile" not in name], stem


def test_a_share_of_the_copy_is_judged_on_a_gpu_alone(gpu, monkeypatch):
    lines = [{"gb_per_s": 100.0}, {"gb_per_s": 75.0}]
    monkeypatch.setattr(gpu, "copy_of", lambda place, numbers: (None, 0))
    for device, target, reached in (("cuda", 0.7, True), ("cuda", 0.8, False), ("cpu", 0.7, None)):
        given = iter(lines)
        monkeypatch.setattr(gpu, "timed", lambda *_, given=given: iter([next(given)]))
        _, ours = gpu.beside_copy(gpu.Place(device, False), "x", None, 1, target)
        assert (ours["of_copy_bandwidth"], ours["target"], ours["reached"]) == (0.75, target, reached)


def sleep_under(limit, seconds):
    with limit:
        time.sleep(seconds)


def test_a_limit_inside_a_limit(gpu):
    with gpu.limit(30):
        with pytest.raises(TimeoutError, match=r"more than 0\.05 s"), gpu.limit(0.05):
            time.sleep(5)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"more than 0\.1 s"), gpu.limit(0.1):  # noqa: PT012  (limits nest)
            sleep_under(gpu.limit(20), 0.01)
            time.sleep(5)
        assert time.monotonic() - began < 4


def test_the_budgets_stay_under_six_minutes(gpu):
    assert sum(seconds for _, seconds in gpu.PARTS.values()) < 360
    assert all(callable(work) for work, _ in gpu.PARTS.values())


def test_a_wrong_kernel_fails_the_part(gpu, monkeypatch):
    """The bfloat16 step finds an advantage of the wrong sign; the cases report each failure and then fail."""
    from rtmc.kernels import policy_loss as module

    right = module.policy_loss
    monkeypatch.setattr(module, "policy_loss", lambda new, old, a, *rest: right(new, old, -a, *rest))
    with pytest.raises(AssertionError, match="the bfloat16 step is off"):
        list(gpu.step(gpu.Place("cpu", True)))
    from tests import kernel_cases

    monkeypatch.setattr(kernel_cases, "all_cases", lambda: [("returns: planted", lambda device: 1 / 0)])
    lines = gpu.cases(gpu.Place("cpu", True))
    assert "ZeroDivisionError" in next(lines)["error"]
    assert next(lines) == {"cases": 1, "failed": 1}
    with pytest.raises(AssertionError, match="1 of 1"):
        next(lines)
