"""The ground under every op: which code runs, how an op is registered, how arguments are checked.

What it has to give, in order of weight:

1. Importing an op file works where Triton cannot be installed (macOS) and never imports numba: Triton's
   names are replaced by a shim that only refuses to launch, and numba is imported by the first CPU call.
2. The device of the tensors picks the code: CPU runs numba, CUDA Triton. ``RTMC_BACKEND`` overrides that:

   =============  =====================================================================================
   unset          the device decides
   ``triton``     CPU tensors too take the Triton launch (needs ``TRITON_INTERPRET=1``), so the interpreter
                  runs the real kernels through the public ops
   ``reference``  the plain-torch reference of every op, on any device
   =============  =====================================================================================

   Anything else, and a request that cannot be met, is an error; nothing falls back in silence.
3. An op is registered once with ``torch.library`` (CPU, CUDA, fake for ``torch.compile``, autograd where it
   has a gradient), so ``torch.ops.rtmc.<name>`` and ``torch.library.opcheck`` work.
4. A wrong argument raises ``TypeError`` (what it is) or ``ValueError`` (its dtype, shape, device, value)
   before a launch; the message names the argument, what came and what is wanted.

Not here: arithmetic. Kernels import nothing of the other rooms.
"""

import functools
import importlib.util
import os
import struct
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:  # Triton publishes wheels for Linux alone
    HAS_TRITON = False

    class _AbsentLanguage:
        """Stands for ``triton.language`` so that kernel files, which name ``tl.constexpr``, can be evaluated."""

        @staticmethod
        def constexpr(value: Any) -> Any:
            return value

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Any

    tl = _AbsentLanguage()

__all__ = [
    "FLOAT_DTYPES",
    "HAS_TRITON",
    "as_numpy",
    "backend_for",
    "bits_of",
    "cdiv",
    "check_integers",
    "check_number",
    "check_offsets",
    "check_range",
    "check_tensor",
    "choose",
    "jit",
    "launch",
    "lazy_njit",
    "next_power_of_2",
    "number_of",
    "register_op",
    "registered_ops",
    "tl",
]

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INT_DTYPES = (torch.int64, torch.int32)
_ENV = "RTMC_BACKEND"
_NAMESPACE = "rtmc"


class _AbsentKernel:
    """What ``@jit`` gives where Triton is not installed: importable, not launchable."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__

    def __getitem__(self, grid: object) -> Any:
        raise RuntimeError(
            f"`{self.fn.__name__}` is a Triton kernel and Triton is not installed here; "
            "install it (Linux: pip install triton) or use CPU tensors with RTMC_BACKEND unset"
        )


def jit(fn: Callable[..., Any]) -> Any:
    """``triton.jit``, or a shim that refuses to launch where Triton is absent."""
    return triton.jit(fn) if HAS_TRITON else _AbsentKernel(fn)


def interpreting() -> bool:
    """True when Triton kernels defined now run in Triton's interpreter (``TRITON_INTERPRET=1``)."""
    return HAS_TRITON and bool(triton.knobs.runtime.interpret)


def launch(kernel: Any, grid: Sequence[int], *args: Any, num_warps: int = 4, **constexprs: Any) -> None:
    """Run ``kernel`` on ``grid``; an empty grid is no launch.

    FP fusion is off on every target: a fused multiply-add rounds once where the numba twin and the reference
    round twice, and Triton's own default for it changes between releases.

    The tensors among ``args`` must lie on one device; the launch happens on that device's current stream.
    """
    if any(size == 0 for size in grid):
        return
    device = next((a.device for a in args if isinstance(a, torch.Tensor)), None)
    if device is not None and device.type == "cuda":
        # Triton launches on the current device, which need not be the tensors' one.
        with torch.cuda.device(device):
            kernel[tuple(grid)](*args, num_warps=num_warps, enable_fp_fusion=False, **constexprs)
    else:
        kernel[tuple(grid)](*args, num_warps=num_warps, enable_fp_fusion=False, **constexprs)


@jit
def number_of(bits):
    """float64 from its bits: a Python float would reach the kernel as float32, a tensor would be one launch more."""
    return tl.cast(bits, tl.int64).to(tl.float64, bitcast=True)


def bits_of(number: float) -> int:
    """The int64 that ``number_of`` turns back into ``number``."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


def cdiv(a: int, b: int) -> int:
    """ceil(a / b) for b > 0."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Smallest power of two >= max(n, 1)."""
    return 1 << max(n - 1, 0).bit_length()


_noted_the_cache = False


def _note_the_cache(text: str) -> None:
    """A warning, once a process: without the cache everything works, and the first calls take seconds."""
    global _noted_the_cache
    if not _noted_the_cache:
        _noted_the_cache = True
        warnings.warn(text, RuntimeWarning, stacklevel=4)


class LazyJit:
    """A function that numba compiles at its first call, with the machine code cached on disk.

    ``py_func`` is the plain Python function. Another ``LazyJit`` of the same file may be called from inside: it
    is handed to numba compiled. One of another file raises TypeError, because numba's disk cache looks at the
    caller's file alone and would go on running the callee as it was.
    """

    def __init__(self, py_func: Callable[..., Any]) -> None:
        self.py_func = py_func
        self._dispatcher: Any = None
        functools.update_wrapper(self, py_func)

    def dispatcher(self) -> Any:
        if self._dispatcher is None:
            import numba

            source = self.py_func
            callees = {}
            for name in source.__code__.co_names:
                callee = source.__globals__.get(name)
                if isinstance(callee, LazyJit):
                    if callee.py_func.__code__.co_filename != source.__code__.co_filename:
                        raise TypeError(
                            f"`{source.__name__}` calls `{name}` of another file, which numba's cache cannot follow; "
                            "move it here or call it from Python"
                        )
                    callees[name] = callee.dispatcher()
            fn = types.FunctionType(
                source.__code__, {**source.__globals__, **callees}, source.__name__, source.__defaults__
            )
            fn.__module__, fn.__qualname__ = source.__module__, source.__qualname__
            # numpy's error model: x / 0 is inf or NaN, as in torch, not a ZeroDivisionError.
            options = {"error_model": "numpy", "nogil": True}
            asked = numba.config.CACHE_DIR
            try:
                self._dispatcher = numba.njit(cache=True, **options)(fn)
            except RuntimeError:  # numba's word for: no folder for the cache can be written
                self._dispatcher = numba.njit(**options)(fn)
                _note_the_cache(
                    f"no folder for numba's cache can be written (NUMBA_CACHE_DIR is {asked or 'unset'}): every "
                    "process compiles anew; set NUMBA_CACHE_DIR to a folder that can be written"
                )
            else:
                kept = self._dispatcher.stats.cache_path
                if asked and not os.path.realpath(kept).startswith(os.path.realpath(asked) + os.sep):
                    _note_the_cache(f"NUMBA_CACHE_DIR={asked} cannot be written; compiled code is kept in {kept}")
        return self._dispatcher

    def came_from_disk(self) -> bool | None:
        """Whether each variant called so far was read from numba's cache, none compiled; None before the first call."""
        if self._dispatcher is None or not self._dispatcher.signatures:
            return None
        return sum(self._dispatcher.stats.cache_hits.values()) == len(self._dispatcher.signatures)

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher()(*args)


def lazy_njit(fn: Callable[..., Any]) -> LazyJit:
    """Decorator: ``numba.njit(cache=True)`` at the first call instead of at import. See ``LazyJit``."""
    return LazyJit(fn)


def as_numpy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
    """A C-contiguous numpy array of a CPU tensor of any strides, cast to ``dtype`` if given."""
    return tensor.detach().to(dtype or tensor.dtype).contiguous().numpy()


def requested_backend() -> str | None:
    """``RTMC_BACKEND`` as "triton", "reference" or None (unset or empty). Raises ValueError otherwise."""
    value = os.environ.get(_ENV, "")
    if value == "":
        return None
    if value not in ("triton", "reference"):
        raise ValueError(f"{_ENV}={value!r}: wanted 'triton', 'reference' or the variable unset (the device decides)")
    return value


@functools.cache
def _has_numba() -> bool:
    """Looked for once: the search through sys.path takes longer than a small op."""
    return importlib.util.find_spec("numba") is not None


def backend_for(device_type: str, needs_numba: bool = True) -> str:
    """The code that ops on ``device_type`` ("cpu" or "cuda") run now: "numba", "triton" or "reference".

    ``needs_numba``: whether the CPU code of the op at hand is numba's, not torch's. Raises RuntimeError when what is
    asked for cannot run here (Triton absent; Triton on CPU tensors without the interpreter; numba absent and needed).
    Reads the environment at each call, so a test can switch it.
    """
    request = requested_backend()
    if request == "reference":
        return "reference"
    if request is None and device_type == "cpu":
        if needs_numba and not _has_numba():
            raise RuntimeError(f"ops on CPU tensors need numba: pip install numba, or set {_ENV}=reference")
        return "numba"
    if not HAS_TRITON:
        wanted = f"{_ENV}=triton was asked for" if request else f"the tensors are on {device_type}"
        raise RuntimeError(f"{wanted} and Triton is not installed: pip install triton, or set {_ENV}=reference")
    if device_type == "cpu" and not interpreting():
        raise RuntimeError(
            f"{_ENV}=triton on CPU tensors runs the kernels in Triton's interpreter: "
            "set TRITON_INTERPRET=1 before the process starts, or unset it"
        )
    return "triton"


class RegisteredOp(NamedTuple):
    overload: Any  # torch.ops.rtmc.<name>.default
    differentiable: bool
    reference: Callable[..., Any]


_OPS: dict[str, RegisteredOp] = {}


def register_op(
    name: str,
    schema: str,
    *,
    reference: Callable[..., Any],
    triton: Callable[..., Any],
    numba: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    needs_numba: bool = True,
) -> Callable[..., Any]:
    """Register ``torch.ops.rtmc.<name>`` and return it as a callable.

    Parameters
    ----------
    name, schema
        e.g. ``"x"``, ``"(Tensor a, SymInt n, Tensor? w=None) -> Tensor"``. The op mutates nothing and its
        outputs alias no input (return ``t.clone()`` where a result would be an input).
    reference, triton, numba
        Implementations with the schema's arguments, positional. ``triton`` is a Python function that
        launches (``launch``), ``numba`` one that converts (``as_numpy``) and calls a ``lazy_njit`` function
        or, where a matrix product does the work, torch itself. Both may assume nothing about strides.
    fake
        Shapes, dtypes and devices of the outputs, from tensors without data. Argument checks belong to the
        public Python function in front of the op, so that they hold for every backend and while tracing.
    backward, setup_context
        As ``torch.library.register_autograd``; without them a backward pass through the op raises.
    needs_numba
        False where ``numba`` calls torch alone, so that the op runs where numba is not installed.
    """
    implementations = {"reference": reference, "triton": triton, "numba": numba}

    def whole(args: tuple[Any, ...]) -> tuple[Any, ...]:
        # The dispatcher drops trailing arguments that equal the schema's defaults.
        missing = op._opoverload._schema.arguments[len(args) :]
        return args + tuple(argument.default_value for argument in missing)

    def run_on_cpu(*args: Any) -> Any:
        return implementations[backend_for("cpu", needs_numba)](*whole(args))

    def run_on_cuda(*args: Any) -> Any:
        return implementations[backend_for("cuda")](*whole(args))

    def run_fake(*args: Any) -> Any:
        return fake(*whole(args))

    op = torch.library.custom_op(
        f"{_NAMESPACE}::{name}", run_on_cpu, mutates_args=(), device_types="cpu", schema=schema
    )
    op.register_kernel("cuda")(run_on_cuda)
    op.register_fake(run_fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    _OPS[name] = RegisteredOp(op._opoverload, backward is not None, reference)
    return op


def registered_ops() -> dict[str, RegisteredOp]:
    """By name, the ops of the files imported so far."""
    return dict(_OPS)


def _shape_text(shape: Sequence[int | str]) -> str:
    return "(" + ", ".join(str(d) for d in shape) + ("," if len(shape) == 1 else "") + ")"


def check_tensor(
    name: str,
    tensor: object,
    *,
    dtypes: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[int | str] | None = None,
    device: torch.device | None = None,
) -> None:
    """Refuse ``tensor`` unless dtype, shape and device are as wanted.

    ``shape`` holds integers (that size) and strings (any size, the letter of the docs): ``("R+1",)``,
    ``(n, "H")``. ``device``: the device of the op's first tensor. Raises TypeError (no tensor) or ValueError; a sparse
    tensor, which has no strides, is refused as such.
    """
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"`{name}`: got {type(tensor).__name__}; wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise ValueError(f"`{name}`: got a tensor of layout {layout}; wanted a dense one (`.to_dense()` makes it)")
    fits = tensor.dtype in allowed
    if shape is not None:
        fits &= tensor.dim() == len(shape) and all(
            isinstance(want, str) or got == want for got, want in zip(tensor.shape, shape, strict=True)
        )
    if device is not None:
        fits &= tensor.device == device
    if not fits:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        if shape is not None:
            wanted += f" of shape {_shape_text(shape)}"
        if device is not None:
            wanted += f" on {device}"
        came = f"{str(tensor.dtype).removeprefix('torch.')} of shape {_shape_text(tuple(tensor.shape))}"
        raise ValueError(f"`{name}`: got {came} on {tensor.device}; wanted {wanted}")


def check_integers(
    name: str, tensor: torch.Tensor, *, shape: Sequence[int | str] | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """``tensor`` (ids, offsets, rows) as int64: int64 itself, or int32, widened. Raises as ``check_tensor``."""
    check_tensor(name, tensor, dtypes=_INT_DTYPES, shape=shape, device=device)
    return tensor.long()


def choose(name: str, value: object, words: Iterable[str]) -> None:
    """Refuse a ``value`` (of any kind, hashable or not) that is not among ``words``. Raises ValueError."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"`{name}`: got {value!r}; wanted one of {', '.join(map(repr, words))}")


def check_number(name: str, value: float) -> float:
    """``float(value)`` of a number of Python's or numpy's.

    Raises TypeError for anything else, ValueError for an integer past float64.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"`{name}`: got {value!r} ({type(value).__name__}); wanted a number")
    try:
        return float(value)
    except OverflowError:
        bits = int(value).bit_length()
        raise ValueError(f"`{name}`: got an integer of {bits} bits; wanted a number that float64 can hold") from None


def check_range(
    name: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> float:
    """``float(value)`` if it lies between ``low`` and ``high``; else ValueError (NaN never lies there).

    TypeError where it is no number of Python's or numpy's.
    """
    number = check_number(name, value)
    if not ((number > low if low_open else number >= low) and (number < high if high_open else number <= high)):
        left, right = "(" if low_open else "[", ")" if high_open else "]"
        raise ValueError(f"`{name}`: got {value!r}; wanted a number in {left}{low}, {high}{right}")
    return number


def check_offsets(name: str, offsets: torch.Tensor, total: int, what: str = "row") -> None:
    """Refuse offsets that do not start at 0, decrease, or do not end at ``total``, the number of ``what``s.

    Reads the values: on CUDA that waits for the device once. A wrong offset would make a kernel read outside
    its tensor, so the wait is worth it. Call it from the implementations, never from the fake.
    """
    first, last, decreasing = torch.stack(
        [offsets[0], offsets[-1], (offsets.diff() < 0).any().to(offsets.dtype)]
    ).tolist()
    if first != 0 or last != total or decreasing:
        fault = "they decrease" if decreasing else f"they run from {first} to {last}"
        raise ValueError(
            f"`{name}`: {fault}; wanted non-decreasing {what} numbers from 0 to {total} (the number of {what}s)"
        )
