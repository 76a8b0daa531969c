"""The prefix tree of ragged token rows: which tokens stand at the end of the same prefix.

Row n is token_ids[offsets[n] : offsets[n+1]], and belongs to group[n]. For tokens i of row n and k of row m,

    node[i] = node[k]  iff  group[n] = group[m] and the two rows agree up to and including these tokens

so a node is a token with all that stands before it, nodes are numbered 0, 1, ... as they first appear in row
order, and the node above a token's is that of the token before it in the row (none at the row's first token).
The rows that share a token and all before it are those in which its node appears.

CPU, O(T): every row walks the tree from its group's root. A node remembers its first child; the others, at most
one a row, lie in an open-addressing table of (node, token). Equal prefixes cost two reads a token, in order.

CUDA, O(T) and one sort of T int64 keys: a token's key is a 64-bit hash of its group and prefix (a running sum
of hashed (token, position)), equal keys become one id, and then every token is compared with the first of its
id: the same token, and the token before it in the same id. By induction that is equality of prefixes. Where
one comparison fails, two prefixes collided, and all is done again under another hash: a collision costs time,
never truth. The host waits twice where none does: for the check of the offsets, and for this one.

Not here: which rows form a group, masks, statistics of the nodes.

Source: the prefix tree of TEMPO (arXiv 2509.18314), whose walk over all pairs of rows is O(N^2 L).
"""

import torch

from rtmc.kernels.backend import (
    as_numpy,
    cdiv,
    check_integers,
    check_offsets,
    check_tensor,
    jit,
    launch,
    lazy_njit,
    register_op,
    tl,
)
from rtmc.kernels.ids import dense_ids, ids_and_firsts_triton

__all__ = ["prefix_groups"]

_BLOCK = 512
# One collides with probability T^2 / 2^65; all of them only if the comparison is wrong.
_ATTEMPTS = 16


def _prefix_groups_reference(token_ids: torch.Tensor, offsets: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    check_offsets("offsets", offsets, token_ids.shape[0], "token")
    tokens, bounds = token_ids.tolist(), offsets.tolist()
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    nodes = [
        seen.setdefault((member, tuple(tokens[begin : i + 1])), len(seen))
        for begin, end, member in zip(bounds[:-1], bounds[1:], group.tolist(), strict=True)
        for i in range(begin, end)
    ]
    return torch.tensor(nodes, dtype=torch.int64, device=token_ids.device)


@jit
def _mix(h):
    """All 64 bits of ``h`` on all 64 of the result, in int64 arithmetic that wraps: odd multipliers and shifts."""
    h = h * 0x2545F4914F6CDD1D
    h = h ^ ((h >> 29) & 0x7FFFFFFFF)
    h = h * 0x1B873593CC9E2D51
    return h ^ ((h >> 32) & 0xFFFFFFFF)


@jit
def _hash_tokens_kernel(tokens_T, row_T, offsets_N1, hash_T, T, seed, BLOCK: tl.constexpr):
    """hash_T[i]: of token i and its place in its row."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < T
    row = tl.load(row_T + at, mask=inside, other=0)
    place = at - tl.load(offsets_N1 + row, mask=inside, other=0)
    token = tl.load(tokens_T + at, mask=inside, other=0).to(tl.int64)
    start = _mix(tl.cast(seed, tl.int64) + 0x632BE59BD9B4E019)
    tl.store(hash_T + at, _mix(_mix(token + start) + place), mask=inside)


@jit
def _hash_prefixes_kernel(sum_T, row_T, offsets_N1, group_N, key_T, T, seed, BLOCK: tl.constexpr):
    """key_T[i]: of the group and of what the hashes of the row add up to; ``sum_T`` runs over all rows."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < T
    row = tl.load(row_T + at, mask=inside, other=0)
    begin = tl.load(offsets_N1 + row, mask=inside, other=0)
    before = tl.load(sum_T + begin - 1, mask=inside & (begin > 0), other=0)
    own = tl.load(sum_T + at, mask=inside, other=0) - before
    group = tl.load(group_N + row, mask=inside, other=0)
    tl.store(key_T + at, _mix(own + _mix(group + tl.cast(seed, tl.int64))), mask=inside)


@jit
def _compare_kernel(tokens_T, row_T, offsets_N1, group_N, ids_T, first_T, wrong_1, T, BLOCK: tl.constexpr):
    """``wrong_1`` becomes 1 where a token does not continue what the first token of its id (``first_T``) does."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < T
    first = tl.load(first_T + tl.load(ids_T + at, mask=inside, other=0), mask=inside, other=0)
    row = tl.load(row_T + at, mask=inside, other=0)
    other = tl.load(row_T + first, mask=inside, other=0)
    begins = at == tl.load(offsets_N1 + row, mask=inside, other=0)
    other_begins = first == tl.load(offsets_N1 + other, mask=inside, other=0)
    above = tl.load(ids_T + at - 1, mask=inside & (begins == 0), other=-1)
    other_above = tl.load(ids_T + first - 1, mask=inside & (other_begins == 0), other=-1)
    wrong = tl.load(tokens_T + at, mask=inside, other=0) != tl.load(tokens_T + first, mask=inside, other=0)
    wrong = wrong | (above != other_above)
    wrong = wrong | (tl.load(group_N + row, mask=inside, other=0) != tl.load(group_N + other, mask=inside, other=0))
    # Whoever writes, writes the same.
    tl.store(wrong_1 + tl.zeros_like(at), tl.full(at.shape, 1, tl.int32), mask=inside & wrong)


def _prefix_keys(
    tokens: torch.Tensor, row: torch.Tensor, offsets: torch.Tensor, group: torch.Tensor, attempt: int
) -> torch.Tensor:
    """(T,) int64: equal where group and prefix are, and hardly ever elsewhere. ``attempt`` picks the hash."""
    size = tokens.shape[0]
    grid = (cdiv(size, _BLOCK),)
    seed = 0x3C6EF372FE94F82B * (attempt + 1) % 2**63
    hashes, keys = torch.empty_like(row), torch.empty_like(row)
    launch(_hash_tokens_kernel, grid, tokens, row, offsets, hashes, size, seed, BLOCK=_BLOCK)
    launch(_hash_prefixes_kernel, grid, hashes.cumsum(0), row, offsets, group, keys, size, seed, BLOCK=_BLOCK)
    return keys


def _prefix_groups_triton(token_ids: torch.Tensor, offsets: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    size = token_ids.shape[0]
    check_offsets("offsets", offsets, size, "token")
    tokens, offsets, group = token_ids.contiguous(), offsets.contiguous(), group.contiguous()
    place = torch.arange(size, device=tokens.device)
    # Right of equal offsets: rows without tokens are passed over.
    row = torch.searchsorted(offsets, place, right=True) - 1
    for attempt in range(_ATTEMPTS):
        ids, _, _ = ids_and_firsts_triton([_prefix_keys(tokens, row, offsets, group, attempt)])
        first = torch.full_like(place, size).scatter_reduce(0, ids, place, "amin")
        wrong = torch.zeros(1, dtype=torch.int32, device=tokens.device)
        grid = (cdiv(size, _BLOCK),)
        launch(_compare_kernel, grid, tokens, row, offsets, group, ids, first, wrong, size, BLOCK=_BLOCK)
        if not wrong.item():
            return ids
    raise RuntimeError(f"{_ATTEMPTS} hashes of 64 bits each gave two different prefixes one key")


@lazy_njit
def _prefix_numba(tokens, offsets, group, first_child, token_of, slots, nodes):
    """``group``: dense ids, group g having node T + g for a root. ``first_child`` and ``slots`` (a power of two, more
    than 2 N, of rows node, token, child) come as -1."""
    mask = slots.shape[0] - 1
    count = 0
    for n in range(len(group)):
        node = len(tokens) + group[n]
        for i in range(offsets[n], offsets[n + 1]):
            token = tokens[i]
            child = first_child[node]
            if child < 0:
                child = count
                first_child[node] = child
            elif token_of[child] != token:
                h = (node * 0x2545F4914F6CDD1D) ^ token
                h *= 0x1B873593CC9E2D51
                h ^= (h >> 29) & 0x7FFFFFFFF
                h *= 0x2545F4914F6CDD1D
                slot = (h >> 32) & mask
                while slots[slot, 2] >= 0 and not (slots[slot, 0] == node and slots[slot, 1] == token):
                    slot = (slot + 1) & mask
                child = slots[slot, 2]
                if child < 0:
                    child = count
                    slots[slot, 0], slots[slot, 1], slots[slot, 2] = node, token, child
            if child == count:
                token_of[child] = token
                count += 1
            nodes[i] = child
            node = child


def _prefix_groups_cpu(token_ids: torch.Tensor, offsets: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    size = token_ids.shape[0]
    check_offsets("offsets", offsets, size, "token")
    roots, count = dense_ids(group)
    nodes, token_of = torch.empty(2, size, dtype=torch.int64).unbind(0)
    first_child = torch.full((size + int(count),), -1, dtype=torch.int64)
    slots = torch.full((1 << (2 * group.shape[0] + 1).bit_length(), 3), -1, dtype=torch.int64)
    parts = [part.numpy() for part in (first_child, token_of, slots, nodes)]
    _prefix_numba(as_numpy(token_ids), as_numpy(offsets), roots.numpy(), *parts)
    return nodes.clone()


_op = register_op(
    "prefix_groups",
    "(Tensor token_ids, Tensor offsets, Tensor group) -> Tensor",
    reference=_prefix_groups_reference,
    triton=_prefix_groups_triton,
    numba=_prefix_groups_cpu,
    fake=lambda token_ids, offsets, group: token_ids.new_empty(token_ids.shape, dtype=torch.int64),
)


def prefix_groups(token_ids: torch.Tensor, offsets: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Node of every token in the prefix tree of its row's group (definition: top of this file).

    Parameters
    ----------
    token_ids : (T,) int64 or int32
        Tokens of all rows, one row after the other; any values. Any strides.
    offsets : (N+1,) int64, or int32, which is widened
        Row n is tokens offsets[n] : offsets[n+1]; equal neighbours are a row without tokens.
    group : (N,) int64 or int32
        Group of each row; any values.

    Returns
    -------
    (T,) int64 : 0, 1, ... by first appearance. Exact: equal node means equal prefix.

    Raises TypeError or ValueError for a wrong dtype, shape, device, or offsets that are no partition.
    """
    check_tensor("token_ids", token_ids, dtypes=(torch.int64, torch.int32), shape=("T",))
    offsets = check_integers("offsets", offsets, shape=("N+1",), device=token_ids.device)
    if offsets.shape[0] == 0:
        raise ValueError("`offsets`: got no element; wanted N+1 of them (a table without rows has [0])")
    group = check_integers("group", group, shape=(offsets.shape[0] - 1,), device=token_ids.device)
    return _op(token_ids, offsets, group)
