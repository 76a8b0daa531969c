"""Runs the kernel cases in Triton's interpreter, through the public ops; one JSON line a case, with what it launched.

Names of op files as arguments run theirs alone. Processes of their own, as many as there are cores: TRITON_INTERPRET is
read when kernels are defined. It shows the arithmetic of the kernels, not races or launch limits.
"""

import functools
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

LAUNCHED: set[str] = set()


def record_launches() -> None:
    """From now on ``LAUNCHED`` collects names; before the op files take their own reference to ``launch``."""
    from rtmc.kernels import backend

    launch = backend.launch

    def recording_launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
        LAUNCHED.add(kernel.fn.__name__)
        launch(kernel, *args, **kwargs)

    backend.launch = recording_launch


@functools.cache
def chosen_cases() -> list[tuple[str, Callable[[str], None]]]:
    from tests.kernel_cases import all_cases

    return [case for case in all_cases() if not sys.argv[1:] or case[0].split(":")[0] in sys.argv[1:]]


def line_of(at: int) -> str:
    name, body = chosen_cases()[at]
    LAUNCHED.clear()
    began, error = time.perf_counter(), None
    try:
        body("cpu")
    except Exception:
        error = traceback.format_exc()
    seconds = round(time.perf_counter() - began, 2)
    return json.dumps({"case": name, "kernels": sorted(LAUNCHED), "error": error, "seconds": seconds})


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["RTMC_BACKEND"] = "triton"
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    record_launches()
    from tests.kernel_cases import poison_fresh_memory

    # numpy, which the interpreter computes with, warns where a device does not.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="numpy")
    poison_fresh_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(min(cores, 8), multiprocessing.get_context("fork")) as pool:
        for line in pool.map(line_of, range(len(chosen_cases()))):
            print(line, flush=True)
