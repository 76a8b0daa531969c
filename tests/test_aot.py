"""Every kernel compiles for the GPUs we name, without register spills. See ``tests/aot.py``."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    kernels = {
        node.name
        for path in (ROOT / "kernels").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith("_kernel")
        and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
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
    assert [r for r in results if r["spills"] and not r["may_spill"]] == []
