"""`prefix_groups`: hand-worked trees, TEMPO's sets over all pairs, properties, refusals.

The sizes around a block, collisions and every backend: ``tests/kernel_cases/prefix.py``.
"""

import json
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.prefix import prefix_groups
from tests.kernel_cases import offsets_of
from tests.kernel_cases.prefix import by_tuples


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def nodes_of(rows, group, device="cpu"):
    """The op's answer as one list a row."""
    flat = torch.tensor([t for row in rows for t in row], dtype=torch.int64, device=device)
    offsets = offsets_of(len(row) for row in rows).to(device)
    nodes = prefix_groups(flat, offsets, torch.tensor(group, dtype=torch.int64, device=device))
    return [part.tolist() for part in nodes.split([len(row) for row in rows])]


def test_hand_worked(device, backend):
    # Two rows part at their third token, one is a prefix of them, one starts otherwise, one is of another group.
    rows = [[5, 6, 7], [5, 6, 8, 7], [5, 6], [], [6, 6, 7], [5, 6]]
    assert nodes_of(rows, [3, 3, 3, 3, 3, -1], device) == [[0, 1, 2], [0, 1, 3, 4], [0, 1], [], [5, 6, 7], [8, 9]]


def test_a_row_that_was_a_leaf_gets_children(device, backend):
    rows = [[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 4]]
    assert nodes_of(rows, [0] * 5, device) == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.lists(st.sampled_from([0, 1, -(2**63), 2**63 - 1]), max_size=7))))
def test_nodes_agree_exactly_where_prefixes_do(table):
    group, rows = [g for g, _ in table], [row for _, row in table]
    assert [n for row in nodes_of(rows, group) for n in row] == by_tuples(rows, group)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=9), st.randoms())
def test_moving_rows_relabels_consistently(rows, random):
    group = [random.randrange(2) for _ in rows]
    order = random.sample(range(len(rows)), len(rows))
    before = nodes_of(rows, group)
    after = nodes_of([rows[i] for i in order], [group[i] for i in order])
    pairs = {pair for i, moved in zip(order, after, strict=True) for pair in zip(before[i], moved, strict=True)}
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=9))
def test_nodes_form_a_tree(rows):
    """A node stands at one depth, below one node, bears one token, and is numbered after the node above it."""
    known: dict[int, tuple[int, int, int]] = {}
    for row, nodes in zip(rows, nodes_of(rows, [0] * len(rows)), strict=True):
        for depth, (token, node) in enumerate(zip(row, nodes, strict=True)):
            above = nodes[depth - 1] if depth else -1
            assert known.setdefault(node, (depth, above, token)) == (depth, above, token)
            assert above < node
    assert set(known) == set(range(len(known)))


def test_the_credit_of_tempo(shared):
    """TEMPO's term mean_B - mean_P from the nodes: B = the rows of a token's node, P = those of the one before."""
    for case in json.loads((shared / "vectors" / "tempo.json").read_text())["cases"]:
        rows, scores, mask = (case["inputs"][key] for key in ("responses", "scores", "mask"))
        nodes = nodes_of(rows, [0] * len(rows))
        expected = case["outputs"]["norm_std_False"]
        for i, own in enumerate(nodes):
            sharing, walking = list(range(len(rows))), True
            for j, node in enumerate(own):
                both = [k for k, other in enumerate(nodes) if j < len(other) and other[j] == node]
                term = statistics.fmean(scores[k] for k in both) - statistics.fmean(scores[k] for k in sharing)
                sharing = both
                walking = walking and mask[i][j] == 1
                term *= walking
                plain = scores[i] - statistics.fmean(scores)
                assert mask[i][j] * (plain + term) == pytest.approx(expected[i][j], abs=1e-6)


def test_long_shared_prefixes(device):
    """64 rows that share all but their last token."""
    body = torch.randint(0, 50_000, (20_000,))
    flat = torch.cat([torch.cat([body, torch.tensor([n])]) for n in range(64)])
    nodes = prefix_groups(flat.to(device), (torch.arange(65) * 20_001).to(device), torch.zeros(64).long().to(device))
    rows = nodes.cpu().view(64, 20_001)
    assert torch.equal(rows[:, :-1], torch.arange(20_000).expand(64, -1))
    assert torch.equal(rows[:, -1], 20_000 + torch.arange(64))


def test_the_input_stays_as_it_was(device, backend):
    arguments = [torch.tensor([4, 4, 4]), torch.tensor([0, 1, 3]), torch.tensor([7, 7])]
    placed = [t.clone().to(device) for t in arguments]
    prefix_groups(*placed)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(arguments, placed, strict=True))


def test_int32_offsets_and_groups(device, backend):
    tokens, offsets, group = (
        torch.tensor(t, device=device) for t in ([4, 4, 5, 4], [0, 1, 3, 4], [2**31 - 1, 7, 2**31 - 1])
    )
    assert prefix_groups(tokens, offsets.int(), group.int()).tolist() == [0, 1, 2, 0]
    assert prefix_groups(tokens, offsets, group).tolist() == [0, 1, 2, 0]


def test_opcheck(device):
    arguments = (torch.tensor([1, 2, 1]), torch.tensor([0, 2, 3]), torch.tensor([0, 0]))
    torch.library.opcheck(torch.ops.rtmc.prefix_groups, tuple(t.to(device) for t in arguments))
    arguments = (arguments[0].int(), *arguments[1:])
    torch.library.opcheck(torch.ops.rtmc.prefix_groups, tuple(t.to(device) for t in arguments))


TOKENS, OFFSETS, GROUP = torch.arange(3), torch.tensor([0, 1, 3]), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1], OFFSETS, GROUP), TypeError, "`token_ids`: got list"),
        ((TOKENS.float(), OFFSETS, GROUP), ValueError, "`token_ids`: got float32.*wanted int64 or int32"),
        ((TOKENS[None], OFFSETS, GROUP), ValueError, r"`token_ids`: .*\(1, 3\)"),
        ((TOKENS, OFFSETS.short(), GROUP), ValueError, "`offsets`: got int16.*wanted int64 or int32"),
        ((TOKENS, OFFSETS, GROUP.byte()), ValueError, "`group`: got uint8.*wanted int64 or int32"),
        ((TOKENS.to_sparse(), OFFSETS, GROUP), ValueError, "`token_ids`: got a tensor of layout sparse_coo; wanted a"),
        ((TOKENS, OFFSETS[:0], GROUP), ValueError, "`offsets`: got no element"),
        (
            (TOKENS, torch.tensor([0, 1, 2]), GROUP),
            ValueError,
            "`offsets`: they run from 0 to 2; .*token.* 0 to 3 .*number of tokens",
        ),
        ((TOKENS, torch.tensor([1, 1, 3]), GROUP), ValueError, "`offsets`: they run from 1 to 3"),
        ((TOKENS, torch.tensor([0, 4, 3]), GROUP), ValueError, "`offsets`: they decrease"),
        ((TOKENS, OFFSETS, GROUP.float()), ValueError, "`group`: got float32.*wanted int64"),
        ((TOKENS, OFFSETS, GROUP[:1]), ValueError, r"`group`: .*\(1,\).*\(2,\)"),
        ((TOKENS, OFFSETS.to("meta"), GROUP), ValueError, "`offsets`: .*on meta; wanted .* on cpu"),
        ((TOKENS, OFFSETS, GROUP.to("meta")), ValueError, "`group`: .*on meta; wanted .* on cpu"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        prefix_groups(*arguments)
