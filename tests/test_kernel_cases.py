"""The kernel cases through the public ops on each device (numba on the CPU, Triton on CUDA)."""

from collections.abc import Callable

import pytest

from tests.kernel_cases import all_cases

CASES = all_cases()


@pytest.mark.parametrize("body", [body for _, body in CASES], ids=[name for name, _ in CASES])
def test_case(body: Callable[[str], None], device: str) -> None:
    body(device)
