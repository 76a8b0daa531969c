"""Every op of the namespace, whatever it computes: what `torch.library` wants, and what an op must leave alone.

The arguments are those of the calls that the kernel cases make (``tests/kernel_cases``), recorded here, and what
those files give as ``samples()``. An op that appears in neither fails. That the results are right is not asked here.
"""

import contextlib
import functools
import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from rtmc.kernels import backend
from tests.kernel_cases import all_cases, all_samples

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path.stem for path in (ROOT / "kernels").glob("*.py"))
for stem in FILES:
    importlib.import_module(f"rtmc.kernels.{stem}")
OPS = sorted(name for name in backend.registered_ops() if not name.startswith("test_"))
LARGEST = 600  # elements of a sample's largest tensor
ENOUGH = 3  # samples of one op with finite results, and as many others
PRODUCTS = ("token_logprobs",)  # ops in which a matrix product does the work


def name_of(overload: Any) -> str:
    return overload.name().split("::")[1].split(".")[0]


class Recorder(TorchDispatchMode):
    """Keeps the arguments of calls to our ops, a few of each kind (dtypes, ranks, what is None or requires grad)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace != "rtmc" or kwargs:
            return out
        leaves = tree_flatten(args)[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(t.numel() > 1 for t in tensors) and all(t.numel() <= LARGEST for t in tensors):
            kind = (
                *((leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else leaf is None for leaf in leaves),
                all(t.isfinite().all() for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)),
            )
            kept = self.calls.setdefault(name_of(func), {})
            if kind not in kept and sum(each[-1] == kind[-1] for each in kept) < ENOUGH:
                kept[kind] = copied(args, grad=True)
        return out


def copied(args: tuple[Any, ...], grad: bool = False) -> tuple[Any, ...]:
    """Fresh tensors of the same strides; with ``grad`` those requiring one that did."""
    leaves, form = tree_flatten(args)
    fresh = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad and grad) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]
    return tree_unflatten(fresh, form)


@functools.cache
def recorded() -> dict[str, list[tuple[Any, ...]]]:
    with Recorder() as recorder:
        for _, body in all_cases():
            with contextlib.suppress(Exception):  # a case that fails does so in test_kernel_cases.py
                body("cpu")
    found = {name: list(kinds.values()) for name, kinds in recorder.calls.items()}
    for name, args in all_samples():
        found.setdefault(name, []).append(args)
    return found


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> Any:
    return backend.registered_ops()[request.param].overload


def samples_of(op: Any, grad: bool = False) -> list[tuple[Any, ...]]:
    found = recorded().get(name_of(op), [])
    assert found, f"`{name_of(op)}`: no kernel case calls it with 2 to {LARGEST} elements, and no samples() has it"
    return [copied(args, grad) for args in found]


def results(op: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(op(*args))[0] if isinstance(leaf, torch.Tensor)]


def same_bits(ours: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
        for a, b in zip(ours, others, strict=True)
    )


def same(op: Any, ours: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit by bit; but a matrix library sums in an order that strides and alignment decide."""
    if not name_of(op).startswith(PRODUCTS):
        return same_bits(ours, others)
    for a, b in zip(ours, others, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    return True


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes, so that NaN equals NaN and 0 differs from -0."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def test_every_op_file_registers_what_it_should() -> None:
    sources = {stem: (ROOT / "kernels" / f"{stem}.py").read_text() for stem in FILES}
    written = sum(text.count("= register_op(") for text in sources.values())
    assert len(OPS) == written
    assert set(OPS) <= set(dir(torch.ops.rtmc)) | {str(op) for op in torch.ops.rtmc}


def test_opcheck(op) -> None:
    """Of finite results, because opcheck takes no NaN for equal; and with a gradient where the op has one."""
    differentiable = backend.registered_ops()[name_of(op)].differentiable
    checked = 0
    for args in samples_of(op, grad=differentiable):
        if all(out.isfinite().all() for out in results(op, args)):
            torch.library.opcheck(op, args)
            checked += 1
    assert checked, "no sample has a finite result"


def test_the_fake_has_the_real_shapes_and_dtypes(op) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for args in samples_of(op):
        real = results(op, args)
        with FakeTensorMode() as mode:
            leaves, form = tree_flatten(args)
            leaves = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in leaves]
            fake = results(op, tree_unflatten(leaves, form))
        described = [[(t.dtype, tuple(t.shape), t.device) for t in some] for some in (fake, real)]
        assert described[0] == described[1]


def test_equal_calls_give_equal_bits_and_change_no_argument(op) -> None:
    for args in samples_of(op):
        kept = [leaf.detach().clone() for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)]
        first, second = results(op, args), results(op, args)
        assert same_bits(first, second)
        after = [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)]
        assert same_bits(kept, after)
        places = {leaf.untyped_storage().data_ptr() for leaf in after if leaf.numel()}
        assert all(out.untyped_storage().data_ptr() not in places for out in first if out.numel())


STRIDES = {
    "every second": lambda t: torch.stack([t, t], -1).reshape(*t.shape[:-1], -1)[..., ::2],
    "spread out": lambda t: torch.stack([t, t, t], -1)[..., 1],
    "transposed": lambda t: t.mT.contiguous().mT,
    "unaligned": lambda t: torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape),
}


@pytest.mark.parametrize("how", STRIDES)
def test_strides_change_no_bit(op, how) -> None:
    for args in samples_of(op):
        leaves, form = tree_flatten(args)
        moved = [
            STRIDES[how](leaf.detach())
            if isinstance(leaf, torch.Tensor) and leaf.dim() >= (2 if how == "transposed" else 1) and leaf.numel()
            else leaf
            for leaf in leaves
        ]
        again = tree_unflatten(moved, form)
        assert same(op, results(op, args), results(op, again))


def test_expanded_arguments_change_no_bit(op) -> None:
    """One argument at a time becomes its first entry, repeated without memory, against the same repeated in memory."""
    for args in samples_of(op):
        leaves, form = tree_flatten(args)
        for at, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or not leaf.dtype.is_floating_point or leaf.numel() < 2:
                continue
            spread = leaf.detach().reshape(-1)[:1].reshape((1,) * leaf.dim()).expand(leaf.shape)
            assert 0 in spread.stride()
            pair = [tree_unflatten([*leaves[:at], t, *leaves[at + 1 :]], form) for t in (spread, spread.clone())]
            assert same(op, *(results(op, each) for each in pair))


def test_faults_are_found() -> None:
    """What the checks above compare with, on an op that takes every tensor for contiguous and overwrites it."""

    def careless(x: torch.Tensor) -> torch.Tensor:
        flat = torch.as_strided(x, (x.numel(),), (1,))
        doubled = 2 * flat.reshape(x.shape)
        flat[0] = -1
        return doubled

    faulty = backend.register_op(
        "test_ops_careless", "(Tensor x) -> Tensor", reference=careless, triton=careless, numba=careless,
        fake=torch.empty_like,
    )  # fmt: skip
    x = torch.arange(12.0).reshape(3, 4)
    right = [2 * x]
    for how, move in STRIDES.items():
        moved = move(x)
        assert torch.equal(moved, x), how
        assert not moved.is_contiguous() or moved.storage_offset() == 1, how
        assert same_bits(right, [faulty(moved)]) == moved.is_contiguous(), how
    kept = x.clone()
    faulty(x)
    assert not same_bits([kept], [x])
    assert not same_bits([torch.zeros(1)], [-torch.zeros(1)])
    assert not same_bits([x], [x.double()])
    assert same_bits([torch.tensor(math.nan)], [torch.tensor(math.nan)])
