"""The real Triton kernels, run by the interpreter through the public ops. See ``tests/interpreter.py``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel_cases import kernel_names

pytest.importorskip("triton", reason="Triton is not installed here")
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_every_case_holds_in_the_interpreter() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "interpreter.py"], capture_output=True, text=True, env=env, timeout=500
    )
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    failures = [f"{r['case']}\n{r['error']}" for r in results if r["error"]]
    assert not failures, "\n".join(failures)
    launched = {name for r in results for name in r["kernels"]}
    assert launched == kernel_names(), sorted(kernel_names() ^ launched)
