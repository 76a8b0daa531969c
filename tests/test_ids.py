"""`dense_ids`: hand-worked ids, collisions of hashes, properties, refusals.

The sizes around a block and every backend: ``tests/kernel_cases/ids.py``.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.ids import dense_ids

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def test_hand_worked(device, backend):
    group = torch.tensor([5, 5, 2, 5, 2], device=device)
    state = torch.tensor([-1, 9, -1, -1, 9], device=device)
    ids, count = dense_ids(group, state)
    assert ids.tolist() == [0, 1, 2, 0, 3]
    assert count.item() == 4
    assert ids.dtype == count.dtype == torch.int64
    assert ids.device.type == count.device.type == device
    assert dense_ids(state)[0].tolist() == [0, 1, 0, 0, 1]


def test_no_rows(device, backend):
    ids, count = dense_ids(torch.zeros(0, dtype=torch.int64, device=device))
    assert ids.shape == (0,)
    assert count.item() == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]) | INT64, st.integers(0, 2)), max_size=60))
def test_ids_agree_exactly_where_tuples_do(rows):
    keys = [torch.tensor([row[k] for row in rows], dtype=torch.int64) for k in range(2)]
    ids, count = dense_ids(*keys)
    found = ids.tolist()
    pairs = list(zip(found, rows, strict=True))
    assert all((a == b) == (x == y) for a, x in pairs for b, y in pairs)
    # By first appearance: each new id is one more than the largest before.
    firsts = [i for k, i in enumerate(found) if i not in found[:k]]
    assert firsts == list(range(int(count)))


def test_many_keys_with_equal_low_bits():
    """Multiples of large powers of two, which a weak hash sends to one slot."""
    step = torch.arange(20_000) << 43
    ids, count = dense_ids(step, step.flip(0))
    assert torch.equal(ids, torch.arange(20_000))
    assert count.item() == 20_000


def test_strides(device, backend):
    base = torch.randint(0, 3, (40, 2), device=device)
    views = (base[::2, 0], base.t()[1, ::2], base[:1, 0].expand(20))
    got, count = dense_ids(*views)
    want, want_count = dense_ids(*(v.contiguous() for v in views))
    assert torch.equal(got, want)
    assert count == want_count


def test_the_table_grows_past_its_first_size():
    """Two keys of 1,000 values each: more pairs than the first table holds, and most of them twice."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 1000, (3000,), generator=g).repeat(2) for _ in range(2))
    seen: dict[tuple[int, int], int] = {}
    truth = [seen.setdefault(pair, len(seen)) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    ids, count = dense_ids(a, b)
    assert ids.tolist() == truth
    assert count.item() == len(seen) > 2048


def test_int32_keys_give_the_ids_of_int64_ones(device, backend):
    a = torch.tensor([2**31 - 1, -(2**31), 5, 2**31 - 1], device=device)
    b = torch.tensor([7, 7, 7, 7], device=device)
    want, _ = dense_ids(a, b)
    assert torch.equal(dense_ids(a.int(), b.int())[0], want)
    assert torch.equal(dense_ids(a.int(), b)[0], want)
    assert want.tolist() == [0, 1, 2, 0]


def test_opcheck(device):
    keys = [torch.tensor([3, 3, 1], device=device), torch.tensor([0, 1, 0], device=device)]
    torch.library.opcheck(torch.ops.rtmc.dense_ids, (keys,))


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ((), TypeError, "got no key"),
        ((torch.zeros(2),), ValueError, r"`keys\[0\]`: got float32.*wanted int64"),
        ((torch.zeros(2).long(), torch.zeros(3).long()), ValueError, r"`keys\[1\]`: .*\(3,\).*\(2,\)"),
        ((torch.zeros(2).long(), torch.zeros(2).short()), ValueError, r"`keys\[1\]`: got int16.*int64 or int32"),
        (
            (torch.zeros(2).long(), torch.zeros(2, dtype=torch.int64, device="meta")),
            ValueError,
            r"`keys\[1\]`: .*on meta; wanted .* on cpu",
        ),
        (([1, 2],), TypeError, r"`keys\[0\]`: got list"),
    ],
)
def test_refusals(keys, error, message):
    with pytest.raises(error, match=message):
        dense_ids(*keys)
