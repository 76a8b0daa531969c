"""Compiles the kernels ahead of time for GPUs that need not be here; one JSON line a kernel and target.

Shows that each compiles, and reads the register spills: from ``ptxas -v`` on the PTX (NVIDIA) and from
``.vgpr_spill_count`` in the assembly (AMD). A process of its own, because the interpreter must be off.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any


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
    # As at run time: tensors start at multiples of 16 bytes.
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


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.kernel_cases import all_aot

    for case in all_aot():
        for label, target in targets():
            began = time.perf_counter()
            spilled, error = None, None
            try:
                spilled = spills(compile_case(case, target), target)
            except Exception:
                error = traceback.format_exc()
            line = {
                "kernel": case.kernel.__name__,
                "constexprs": {k: str(v) for k, v in case.constexprs.items()},
                "target": label,
                "spills": spilled,
                "may_spill": case.may_spill,
                "error": error,
                "seconds": round(time.perf_counter() - began, 2),
            }
            print(json.dumps(line), flush=True)
