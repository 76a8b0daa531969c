"""Every kernel compiles for the GPUs we name, without register spills, the streaming ones with 128-bit accesses.

See ``tests/aot.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel_cases import kernel_names

pytest.importorskip("triton", reason="Triton is not installed here")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def results() -> list[dict]:
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "RTMC_BACKEND")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "aot.py"], capture_output=True, text=True, env=env, timeout=560
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_has_a_case_on_every_target(results: list[dict]) -> None:
    kernels = kernel_names()
    assert kernels
    for target in ("sm_80", "sm_90", "sm_100", "gfx942"):
        compiled = {r["kernel"] for r in results if r["target"] == target}
        assert kernels == compiled, f"{target}: not compiled: {sorted(kernels - compiled)}"


@pytest.mark.slow
def test_every_case_compiles(results: list[dict]) -> None:
    failed = [f"{r['kernel']} {r['constexprs']} {r['target']}\n{r['error']}" for r in results if r["error"]]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_no_case_spills(results: list[dict]) -> None:
    assert [r for r in results if r["spills"]] == []


@pytest.mark.slow
def test_addresses_are_made_of_64_bit_numbers(results: list[dict]) -> None:
    """Ids, offsets and strides past 2^31 elements: whatever is added to a pointer is int64, or a constant."""
    assert [(r["kernel"], r["narrow"]) for r in results if r["narrow"]] == []


def test_a_narrow_address_is_found() -> None:
    from tests.aot import narrow_addresses

    text = """
    %one = arith.constant 1 : i32 loc(#loc1)
    %wide = tt.addptr %p, %a : !tt.ptr<f32>, i64 loc(#loc2)
    %next = tt.addptr %p, %one : !tt.ptr<f32>, i32 loc(#loc3)
    %bad = tt.addptr %p, %b : !tt.ptr<f32>, i32 loc(#loc4)
    %worse_1 = tt.addptr %q_2, %c_3 : tensor<8x!tt.ptr<i64>>, tensor<8xi32> loc(#loc5)
    %fine = tt.addptr %q_2, %c_3 : tensor<8x!tt.ptr<i64>>, tensor<8xi64> loc(#loc5)
    """
    found = narrow_addresses(text)
    assert [line.split(" : ")[0] for line in found] == ["tt.addptr %p, %b", "tt.addptr %q_2, %c_3"]


@pytest.mark.slow
def test_streaming_kernels_move_128_bits_at_a_time(results: list[dict]) -> None:
    """Whatever the length: the block that lies whole inside has a path without a mask."""
    wanted = [r for r in results if r["wanted_wide"]["loads"] and not r["error"]]
    narrow = [r for r in wanted if any(r["wide"][kind] < r["wanted_wide"][kind] for kind in ("loads", "stores"))]
    assert not narrow, narrow
    assert {r["kernel"] for r in wanted} == {
        "_broadcast_to_tokens_kernel",
        "_token_loss_kernel",
        "_logprob_partials_kernel",
        "_logprob_coefficients_kernel",
    }
    # The pattern tells narrow from wide: a kernel that gathers along an order stores one number at a time.
    assert [r["wide"]["stores"] for r in results if r["kernel"] == "_sum_over_tokens_kernel"].count(0) > 0


@pytest.mark.slow
def test_compiling_stays_affordable(results: list[dict]) -> None:
    """Processor seconds of all compilations; what the cache on disk holds is not compiled again."""
    slowest = sorted(results, key=lambda r: -r["seconds"])[:5]
    assert sum(r["seconds"] for r in results) < 480, slowest
