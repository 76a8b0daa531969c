"""Dense ids for rows that agree in all their keys.

    ids[i] = ids[j]  iff  keys[k][i] = keys[k][j] for every k

numbered 0, 1, ... in the order in which a key tuple first appears, so the numbering does not depend on the
keys' values and a row that is the first of its kind bears an id larger than all before it.

Not here: what a key means. ``dense_ids(group, state)`` makes states of different groups different.

CPU: one pass over an open-addressing table that compares all keys, so a hash collision costs time, never
truth. It grows with the number of ids, not of rows, so few ids stay in the cache; stable sorts, as CUDA takes
them, cost more than twice as much there (bench/ops/ids.py times both). CUDA: stable sorts from the last key to
the first, then neighbours are compared; no atomics, so no race to lose.
"""

import numpy as np
import torch

from rtmc.kernels.backend import (
    as_numpy,
    cdiv,
    check_integers,
    jit,
    launch,
    lazy_njit,
    register_op,
    tl,
)

__all__ = ["dense_ids"]

_BLOCK = 512


def _ids_reference(keys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    seen: dict[tuple[int, ...], int] = {}
    rows = zip(*(key.tolist() for key in keys), strict=True)
    ids = torch.tensor([seen.setdefault(row, len(seen)) for row in rows], dtype=torch.int64)
    return ids.to(keys[0].device), torch.tensor(len(seen), device=keys[0].device)


@jit
def _mark_runs_kernel(keys_KS, order_S, start_S, first_S, S, KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """Per sorted position: where does a run of equal key tuples start (else 0), and which row is its first?

    ``first_S`` is indexed by row and comes in as zeros. The sort is stable, so the head of a run is its
    first row.
    """
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < S
    row = tl.load(order_S + position, mask=inside, other=0)
    before = tl.load(order_S + position - 1, mask=inside & (position > 0), other=0)
    head = position == 0
    for k in tl.static_range(KEYS):
        here = tl.load(keys_KS + k * tl.cast(S, tl.int64) + row, mask=inside, other=0)
        there = tl.load(keys_KS + k * tl.cast(S, tl.int64) + before, mask=inside, other=0)
        head = head | (here != there)
    tl.store(start_S + position, tl.where(head, position, 0), mask=inside)
    tl.store(first_S + row, tl.full(row.shape, 1, tl.int64), mask=inside & head)


@jit
def _spread_ids_kernel(order_S, start_S, rank_S, ids_S, S, BLOCK: tl.constexpr):
    """ids[row] = number of first rows up to the first row of its run, less one."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < S
    row = tl.load(order_S + position, mask=inside, other=0)
    start = tl.load(start_S + position, mask=inside, other=0)
    first = tl.load(order_S + start, mask=inside, other=0)
    rank = tl.load(rank_S + first, mask=inside, other=1)
    tl.store(ids_S + row, rank - 1, mask=inside)


def ids_and_firsts_triton(keys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids (S,), count 0-d, first (S,) int64 0/1: is the row the first of its kind), by Triton launches."""
    table = torch.stack(keys)
    size = table.shape[1]
    first = torch.zeros(size, dtype=torch.int64, device=table.device)
    if size == 0:
        return first, first.sum(), first.clone()
    order = torch.arange(size, device=table.device)
    for key in table.flip(0):
        order = order[torch.sort(key[order], stable=True).indices]
    start, ids = torch.empty_like(order), torch.empty_like(order)
    grid = (cdiv(size, _BLOCK),)
    launch(_mark_runs_kernel, grid, table, order, start, first, size, KEYS=table.shape[0], BLOCK=_BLOCK)
    start = torch.cummax(start, 0).values
    rank = torch.cumsum(first, 0)
    launch(_spread_ids_kernel, grid, order, start, rank, ids, size, BLOCK=_BLOCK)
    return ids, rank[-1].clone(), first


def _ids_triton(keys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, count, _ = ids_and_firsts_triton(keys)
    return ids, count


@lazy_njit
def _ids_mix(h, key):
    """An odd multiplier and two shifts mix all 64 bits of int64 arithmetic that wraps."""
    h = (h ^ key) * 0x2545F4914F6CDD1D
    h ^= (h >> 29) & 0x7FFFFFFFF
    h *= 0x1B873593CC9E2D51
    return h ^ ((h >> 32) & 0xFFFFFFFF)


@lazy_njit
def _ids_hash(keys, ids_S):
    """``keys``: a tuple of K arrays (S,) int64. Fills the ids and returns their count.

    At most half of the slots are taken. The keys of each id are kept side by side: those of its first row would lie
    anywhere in the inputs.
    """
    slots = np.full(1024, -1, np.int64)
    seen = np.empty((512, len(keys)), np.int64)
    mask = len(slots) - 1
    count = 0
    for i in range(len(ids_S)):
        slot = 0
        for key in keys:
            slot = _ids_mix(slot, key[i])
        slot &= mask
        while True:
            found = slots[slot]
            if found < 0:
                break
            same = True
            for k, key in enumerate(keys):
                same = same and key[i] == seen[found, k]
            if same:
                break
            slot = (slot + 1) & mask
        if found >= 0:
            ids_S[i] = found
            continue
        slots[slot] = count
        ids_S[i] = count
        for k, key in enumerate(keys):
            seen[count, k] = key[i]
        count += 1
        if count == len(seen):
            slots = np.full(4 * len(slots), -1, np.int64)
            mask = len(slots) - 1
            larger = np.empty((len(slots) // 2, len(keys)), np.int64)
            larger[:count] = seen
            seen = larger
            for known in range(count):
                slot = 0
                for k in range(len(keys)):
                    slot = _ids_mix(slot, seen[known, k])
                slot &= mask
                while slots[slot] >= 0:
                    slot = (slot + 1) & mask
                slots[slot] = known
    return count


def _ids_numba(keys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.empty(keys[0].shape[0], dtype=torch.int64)
    count = _ids_hash(tuple(as_numpy(key) for key in keys), ids.numpy())
    return ids, torch.tensor(count)


def _ids_fake(keys: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(keys[0], memory_format=torch.contiguous_format), keys[0].new_empty(())


_op = register_op(
    "dense_ids",
    "(Tensor[] keys) -> (Tensor, Tensor)",
    reference=_ids_reference,
    triton=_ids_triton,
    numba=_ids_numba,
    fake=_ids_fake,
)


def dense_ids(*keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids 0, 1, ... by first appearance of the key tuple (definition: top of this file).

    Parameters
    ----------
    *keys : each (S,) int64, or int32, which is widened
        At least one; any values, any strides, one device.

    Returns
    -------
    ids : (S,) int64
    count : 0-d int64 on the keys' device; the number of different tuples (0 for S = 0).

    Raises TypeError or ValueError for no key, a wrong dtype, length or device.
    """
    if not keys:
        raise TypeError("`dense_ids`: got no key; wanted at least one tensor (S,) int64")
    wide = [check_integers("keys[0]", keys[0], shape=("S",))]
    for k, key in enumerate(keys[1:], start=1):
        wide.append(check_integers(f"keys[{k}]", key, shape=tuple(keys[0].shape), device=keys[0].device))
    return _op(wide)
