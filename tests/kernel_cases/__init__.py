"""Cases of the kernels, one file an op, found by its place here. A file may define

``cases()``: (name, body) pairs. ``body(device)`` calls the public op and raises where it differs from a truth
computed elsewhere in float64; sizes up to about 2,000. The bodies run on the CPU and on CUDA
(``tests/test_kernel_cases.py``) and in Triton's interpreter (``tests/interpreter.py``).

``aot()``: ``AotCase`` entries, what to compile ahead of time (``tests/aot.py``). Every function named ``*_kernel``
in ``kernels/`` needs one, and a case that launches it in the interpreter; ``tests/test_aot.py`` and
``tests/test_interpreter.py`` fail without.

``samples()``: (name of the op, its arguments) pairs for ``tests/test_ops.py``, beside the calls that it records while
the cases run; for what no case shows, such as an argument that requires a gradient.
"""

import ast
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch


class AotCase(NamedTuple):
    """One compilation: ``types`` of the run-time arguments in order ("*fp32", "i64", ...), constexprs by name."""

    kernel: Any
    types: str
    constexprs: dict[str, Any]
    num_warps: int = 4
    wide: int = 0  # at least so many loads must move 128 bits at a time on every target
    wide_stores: int = 1  # and so many stores, where ``wide`` asks for loads


def modules() -> list[ModuleType]:
    stems = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    return [importlib.import_module(f"{__name__}.{stem}") for stem in stems]


def all_cases() -> list[tuple[str, Callable[[str], None]]]:
    return [
        (f"{module.__name__.split('.')[-1]}: {name}", body)
        for module in modules()
        if hasattr(module, "cases")
        for name, body in module.cases()
    ]


def all_aot() -> list[AotCase]:
    return [case for module in modules() if hasattr(module, "aot") for case in module.aot()]


def kernel_names() -> set[str]:
    """Every Triton kernel of ours: the jitted functions named ``*_kernel`` at the top of a file in ``kernels/``."""
    return {
        node.name
        for path in (Path(__file__).resolve().parents[2] / "kernels").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith("_kernel")
        and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def all_samples() -> list[tuple[str, tuple[Any, ...]]]:
    return [sample for module in modules() if hasattr(module, "samples") for sample in module.samples()]


def close(got: torch.Tensor, truth: torch.Tensor, rtol: float, atol: float = 0.0) -> None:
    """``got`` against a float64 truth, NaN equal to NaN; says where they differ most."""
    torch.testing.assert_close(got.double().cpu(), truth.double().cpu(), rtol=rtol, atol=atol, equal_nan=True)


def offsets_of(lengths: Iterable[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


# Where the elements of a one-dimensional tensor may lie, with others between or before them.
PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every second": lambda t: torch.stack([t, t.flip(0)], 1).reshape(-1)[::2],
    "transposed": lambda t: torch.stack([t.flip(0), t]).t()[:, 1],
    "unaligned": lambda t: torch.cat([t[-1:], t])[t[-1:].shape[0] :],
    "int32": lambda t: t.int() if t.dtype == torch.int64 else t,
}


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with values that no result contains: NaN, or a number far outside every table."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min // 3)


def poison_fresh_memory(setattr_: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on torch's uninitialised tensors are poisoned, so an element that a kernel forgets shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        original = getattr(owner, name)
        setattr_(owner, name, lambda *a, _original=original, **k: poison(_original(*a, **k)))
