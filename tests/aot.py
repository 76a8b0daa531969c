"""Compiles the kernels ahead of time for GPUs that need not be here; one JSON line a kernel and target.

Shows that each compiles, and reads from what comes out the register spills (``ptxas -v`` on the PTX for NVIDIA,
``.vgpr_spill_count`` in the assembly for AMD), the loads and stores that move 128 bits at a time, and addresses made
of 32-bit numbers. A process of its
own, because the interpreter must be off; the compilations are shared out among as many processes as there are cores,
and what Triton's cache on disk still holds is not compiled again.
"""

import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

WIDE = {
    "cuda": {
        "loads": r"\bld\.global\S*\.(?:v4\.[bfu]32|v2\.[bfu]64)",
        "stores": r"\bst\.global\S*\.(?:v4\.[bfu]32|v2\.[bfu]64)",
    },
    "hip": {"loads": r"\b(?:global|buffer|flat)_load_dwordx4", "stores": r"\b(?:global|buffer|flat)_store_dwordx4"},
}


def targets() -> list[tuple[str, Any]]:
    from triton.backends.compiler import GPUTarget

    return [
        ("sm_80", GPUTarget("cuda", 80, 32)),
        ("sm_90", GPUTarget("cuda", 90, 32)),
        ("sm_100", GPUTarget("cuda", 100, 32)),
        ("gfx942", GPUTarget("hip", "gfx942", 64)),
    ]


def compile_case(case: Any, target: Any) -> Any:
    import triton
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    types = iter(case.types.split())
    signature = {name: "constexpr" if name in case.constexprs else next(types) for name in names}
    left = list(types)
    if left:
        raise ValueError(f"{case.kernel.__name__}: {left} are types of no argument")
    # As at run time: tensors start at multiples of 16 bytes. Lengths have no such property: a run may have any.
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(case.kernel, signature, case.constexprs, attrs)
    return triton.compile(source, target=target, options={"num_warps": case.num_warps, "enable_fp_fusion": False})


def spills(compiled: Any, target: Any) -> int:
    """Bytes (NVIDIA: stores + loads) or registers (AMD) that do not fit."""
    if target.backend == "hip":
        return int(re.findall(r"\.vgpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])[0])
    import triton.backends.nvidia

    folder = Path(triton.backends.nvidia.__file__).parent / "bin"
    # PTX of a version that only the newer assembler reads comes out for sm_90 and up; older releases carry one.
    newer = folder / "ptxas-blackwell"
    ptxas = newer if target.arch >= 90 and newer.exists() else folder / "ptxas"
    suffix = "a" if target.arch >= 90 else ""
    with tempfile.TemporaryDirectory() as scratch:
        ptx = Path(scratch) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        log = subprocess.run(
            [ptxas, "-v", f"--gpu-name=sm_{target.arch}{suffix}", ptx, "-o", Path(scratch) / "kernel.cubin"],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))


def wide_accesses(compiled: Any, target: Any) -> dict[str, int]:
    """How many instructions load or store 128 bits of global memory at a time."""
    code = compiled.asm["amdgcn" if target.backend == "hip" else "ptx"]
    return {kind: len(re.findall(pattern, code)) for kind, pattern in WIDE[target.backend].items()}


def narrow_addresses(ttir: str) -> list[str]:
    """Additions to a pointer of an int32 that is no constant: past 2^31 elements it would have wrapped."""
    constants = set(re.findall(r"(%[\w-]+) = arith\.constant", ttir))
    added = re.findall(r"(tt\.addptr %[\w#-]+, (%[\w#-]+) : .*?, (?:i32|tensor<[0-9x]*xi32>)) loc", ttir)
    return [line for line, offset in added if offset not in constants]


@functools.cache
def jobs() -> list[tuple[Any, str, Any]]:
    """(case, label, target) in the order of the lines. Each process makes them for itself."""
    from tests.kernel_cases import all_aot

    only = sys.argv[1:]
    cases = [case for case in all_aot() if not only or case.kernel.__name__ in only]
    return [(case, *target) for case in cases for target in targets()]


def line_of(at: int) -> str:
    case, label, target = jobs()[at]
    began = time.perf_counter()
    spilled, wide, narrow, error = None, None, None, None
    try:
        compiled = compile_case(case, target)
        spilled, wide = spills(compiled, target), wide_accesses(compiled, target)
        narrow = narrow_addresses(compiled.asm["ttir"])
    except Exception:
        error = traceback.format_exc()
    line = {
        "kernel": case.kernel.__name__,
        "constexprs": {k: str(v) for k, v in case.constexprs.items()},
        "target": label,
        "spills": spilled,
        "wide": wide,
        "wanted_wide": {"loads": case.wide, "stores": case.wide_stores if case.wide else 0},
        "narrow": narrow,
        "error": error,
        "seconds": round(time.perf_counter() - began, 2),
    }
    return json.dumps(line)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Forked before anything is compiled: the imports are paid once.
    with ProcessPoolExecutor(min(cores, 8), multiprocessing.get_context("fork")) as pool:
        for line in pool.map(line_of, range(len(jobs()))):
            print(line, flush=True)
