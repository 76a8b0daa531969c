"""Cases of ``dense_ids``: a dictionary numbers tuples in the order in which they come."""

import functools

import torch

from rtmc.kernels.ids import dense_ids
from tests.kernel_cases import PLACES, AotCase


def check(device, rows, keys, spread, strided=False, place=None, factor=2**33 + 1):
    torch.manual_seed(rows)
    columns = [torch.randint(-spread, spread + 1, (rows,)) * factor for _ in range(keys)]
    seen: dict[tuple[int, ...], int] = {}
    truth = [seen.setdefault(row, len(seen)) for row in zip(*(c.tolist() for c in columns), strict=True)]
    on_device = [c.to(device) for c in columns]
    if strided:
        on_device = [torch.stack([c, c], 1)[:, 1] for c in on_device]
    if place is not None:
        on_device = [place(c) for c in on_device]
    ids, count = dense_ids(*on_device)
    assert ids.tolist() == truth
    assert count.shape == ()
    assert int(count) == len(seen)


def check_expanded(device):
    key = torch.tensor([3, 3, 1, 3], device=device)
    assert dense_ids(key[:1].expand(4), key)[0].tolist() == [0, 0, 1, 0]


def cases():
    for rows in (0, 1, 1023, 1024, 1025):
        yield f"{rows} rows", functools.partial(check, rows=rows, keys=2, spread=5, strided=False)
    for keys in (1, 3):
        yield f"{keys} keys", functools.partial(check, rows=700, keys=keys, spread=3, strided=True)
    yield "all equal", functools.partial(check, rows=300, keys=2, spread=0, strided=False)
    yield "nearly all different", functools.partial(check, rows=900, keys=2, spread=10**6, strided=False)

    for name, place in PLACES.items():
        # Keys that need all their bits, or as many as an int32 has.
        factor = 2**29 if name == "int32" else 2**33 + 1
        yield name, functools.partial(check, rows=200, keys=2, spread=3, place=place, factor=factor)
    yield "expanded", check_expanded


def aot():
    from rtmc.kernels.ids import _BLOCK, _mark_runs_kernel, _spread_ids_kernel

    for keys in (1, 2, 3):
        yield AotCase(_mark_runs_kernel, "*i64 *i64 *i64 *i64 i32", {"KEYS": keys, "BLOCK": _BLOCK})
    # A size of 1 reaches the kernel as a compile-time constant.
    yield AotCase(_mark_runs_kernel, "*i64 *i64 *i64 *i64", {"S": 1, "KEYS": 2, "BLOCK": _BLOCK})
    yield AotCase(_spread_ids_kernel, "*i64 *i64 *i64 *i64 i32", {"BLOCK": _BLOCK})
