"""Cases of ``prefix_groups``: a dictionary of (group, prefix as a tuple)."""

import functools
from unittest import mock

import torch

from rtmc.kernels import prefix
from rtmc.kernels.prefix import prefix_groups
from tests.kernel_cases import PLACES, AotCase, offsets_of


def by_tuples(rows, group):
    """Node of every token of ``rows`` (lists of ints): prefixes numbered as they first come."""
    seen: dict[tuple[int, ...], int] = {}
    return [
        seen.setdefault((g, *row[: j + 1]), len(seen))
        for row, g in zip(rows, group, strict=True)
        for j in range(len(row))
    ]


def random_rows(seed, rows, longest, vocabulary, groups, least=0):
    """Small vocabularies share long prefixes; tokens and groups of both signs, far apart."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, longest + 1, (rows,), generator=g).tolist()
    tokens = [(torch.randint(-vocabulary, vocabulary, (n,), generator=g) * (2**30 + 1)).tolist() for n in lengths]
    return tokens, (torch.randint(-groups, groups, (rows,), generator=g) * (2**60 + 3)).tolist()


def check(device, rows, group, dtype=torch.int64, place=lambda t: t):
    flat = torch.tensor([t for row in rows for t in row], dtype=dtype)
    arguments = (flat, offsets_of(len(row) for row in rows), torch.tensor(group, dtype=torch.int64))
    nodes = prefix_groups(*(place(t.to(device)) for t in arguments))
    assert nodes.dtype == torch.int64
    assert nodes.tolist() == by_tuples(rows, group)


def check_collisions(device):
    """A hash of three bits has to be found out and given up for the next; the CPU's table compares keys itself."""
    real, attempts = prefix._prefix_keys, []

    def weak(*arguments):
        attempts.append(arguments[-1])
        return real(*arguments) & (7 if len(attempts) < 3 else -1)

    rows, group = random_rows(8, rows=9, longest=12, vocabulary=2, groups=2)
    with mock.patch.object(prefix, "_prefix_keys", weak):
        check(device, rows, group)
    assert attempts in ([], [0, 1, 2])


def check_every_comparison(device):
    """One key for all tokens, or for all of one place: what the comparison must see is then the token, the row's begin,
    the id before, the group; each pair of rows differs in one of them alone."""
    real = prefix._prefix_keys
    pairs = {
        "token": ([[5], [6]], [0, 0]),
        "begin": ([[5, 5]], [0]),
        "group": ([[5], [5]], [0, 1]),
        "before": ([[1, 9], [2, 9]], [0, 0]),
    }
    for name, (rows, group) in pairs.items():
        attempts = []

        def weak(tokens, row, offsets, group, attempt, name=name, attempts=attempts):
            attempts.append(attempt)
            if attempt:
                return real(tokens, row, offsets, group, attempt)
            # "before": rows apart in their first tokens and together in the second.
            keys = torch.tensor([0, 7, 1, 7]) if name == "before" else torch.zeros(tokens.shape[0], dtype=torch.int64)
            return keys.to(tokens.device)

        with mock.patch.object(prefix, "_prefix_keys", weak):
            check(device, rows, group)
        assert attempts in ([], [0, 1]), name


def cases():
    yield "no rows", functools.partial(check, rows=[], group=[])
    yield "rows without tokens", functools.partial(check, rows=[[], [], []], group=[1, 1, 2])
    yield "one token", functools.partial(check, rows=[[7]], group=[-4])
    for tokens in (511, 512, 513, 1023, 1024, 1025):
        yield f"one row of {tokens}", functools.partial(check, rows=[[t % 3 for t in range(tokens)]], group=[0])
    for seed, vocabulary in ((1, 1), (2, 2), (3, 1000)):
        rows, group = random_rows(seed, rows=40, longest=30, vocabulary=vocabulary, groups=2)
        yield f"{2 * vocabulary} tokens", functools.partial(check, rows=rows, group=group)
    same = [list(range(200))] * 5 + [[*range(100), 7, *range(100)]] * 2
    yield "long shared prefixes", functools.partial(check, rows=same, group=[0, 0, 1, 0, 1, 1, 0])
    many = [[3, t, t % 4, t % 2] for t in range(150)] * 2
    yield "many branches at one node", functools.partial(check, rows=many, group=[9] * 300)
    small = [[1, 2, 3], [1, 2], [], [1, 2, 4], [2, 1, 3]]
    yield "int32 tokens", functools.partial(check, rows=small, group=[0, 0, 0, 0, 0], dtype=torch.int32)
    rows, group = random_rows(4, rows=12, longest=9, vocabulary=1, groups=1)
    for name, place in PLACES.items():
        if name == "int32":
            rows, group = small, [3, 3, -4, 3, 3]
        yield name, functools.partial(check, rows=rows, group=group, place=place)
    yield "collisions", check_collisions
    yield "every comparison", check_every_comparison


def aot():
    for token in ("i64", "i32"):
        blocks = {"BLOCK": prefix._BLOCK}
        yield AotCase(prefix._hash_tokens_kernel, f"*{token} *i64 *i64 *i64 i32 i64", blocks)
        yield AotCase(prefix._compare_kernel, f"*{token} *i64 *i64 *i64 *i64 *i64 *i32 i32", blocks)
    yield AotCase(prefix._hash_prefixes_kernel, "*i64 *i64 *i64 *i64 *i64 i32 i64", {"BLOCK": prefix._BLOCK})
