"""Each op of kernels/ on every device here, beside its torch reference and what a user would write in plain torch.

The cases of an op are in ops/<op>.py: ``cases(quick, device)`` yields ``measure.Case``. Every file there is taken;
``TESTS`` names the tests run first where they are not tests/test_<op>.py alone.

"reference" is the public op under ``RTMC_BACKEND=reference``. The plain peers do the same work with the functions torch
has for it. GB/s counts the bytes an op cannot avoid: every input read once, every output written once.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import peers
import torch
from measure import Case

OPS = sorted(path.stem for path in (Path(__file__).parent / "ops").glob("*.py"))
NOTES = peers.NOTES


def module_of(op: str) -> ModuleType:
    return importlib.import_module(f"ops.{op}")


TESTS = [test for op in OPS for test in getattr(module_of(op), "TESTS", [f"tests/test_{op}.py"])]


def cases(quick: bool) -> Iterator[Case]:
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for op in OPS:
            yield from module_of(op).cases(quick, device)
