"""The most memory a piece of work holds beyond what was held before it began.

On CUDA: what torch's allocator handed out, its high-water mark less its level at the start. Memory of libraries
(cuBLAS workspaces are torch's own and count; a context does not) is not seen.

On the CPU: the resident set of this process, its high-water mark (reset through /proc/self/clear_refs) less its level
at the start, after freed memory went back to the system. All threads and libraries count, and so does what ``work``
returns. The error is a few MB: pages that the allocator kept, free and resident, and the kernel's counts, which are
brought up to date in batches. Run the work once before, where its first call compiles or loads libraries.

Not here: time (measure.py).
"""

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["peak_extra_bytes"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _resident(field: str) -> int:
    """Bytes of a line of /proc/self/status, which counts in units of 1,024."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{_STATUS} has no line {field}: peak memory on the CPU cannot be measured here")
    return int(found[1]) * 1024


def _peak_resident(work: Callable[[], Any]) -> int:
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library than glibc keeps freed memory, or does not
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")
    except OSError as error:
        raise RuntimeError(f"{_CLEAR} cannot be written ({error}): peak memory on the CPU needs Linux") from None
    before = _resident("VmRSS")
    result = work()
    peak = _resident("VmHWM")
    del result
    return max(peak - before, 0)


def peak_extra_bytes(work: Callable[[], Any], device: str) -> int:
    """Peak of the memory that ``work()`` adds, in bytes (what is counted: head of this file).

    Raises ValueError for a device that is neither "cpu" nor a CUDA device, RuntimeError where the system does not tell.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return _peak_resident(work)
    if kind != "cuda":
        raise ValueError(f"`device`: got {device!r}; wanted 'cpu' or 'cuda'")
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = work()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    del result
    return peak - before
