"""Runs the kernel cases in Triton's interpreter, through the public ops; one JSON line a case.

A process of its own: TRITON_INTERPRET is read when kernels are defined. It shows the arithmetic of the kernels, not
races or launch limits.
"""

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["RTMC_BACKEND"] = "triton"
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.kernel_cases import all_cases, poison_fresh_memory

    # numpy, which the interpreter computes with, warns where a device does not.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="numpy")
    poison_fresh_memory()
    for name, body in all_cases():
        began = time.perf_counter()
        try:
            body("cpu")
            error = None
        except Exception:
            error = traceback.format_exc()
        seconds = round(time.perf_counter() - began, 2)
        print(json.dumps({"case": name, "error": error, "seconds": seconds}), flush=True)
