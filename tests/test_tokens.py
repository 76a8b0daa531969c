"""Which step a token belongs to: runs of a mask, packed lengths, spans; against a loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.broadcast import broadcast_to_tokens
from rtmc.tokens import row_and_tokens, steps_from_lengths, steps_from_mask, steps_from_spans


def by_hand(mask: list[list[int]], lengths: list[int] | None = None) -> list[list[int]]:
    """The same by walking over the tokens."""
    number, found = -1, []
    for row, tokens in enumerate(mask):
        before, out = 0, []
        for place, token in enumerate(tokens):
            inside = token and (lengths is None or place < lengths[row])
            number += bool(inside and not before)
            out.append(number if inside else -1)
            before = inside
        found.append(out)
    return found


MASKS = st.integers(1, 9).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=1, max_size=5)
)


@settings(max_examples=200, deadline=None)
@given(MASKS, st.randoms(use_true_random=False), st.sampled_from([torch.bool, torch.int64, torch.float32]))
def test_runs_are_the_steps(mask, random, dtype):
    lengths = [random.randint(0, len(mask[0])) for _ in mask]
    tensor = torch.tensor(mask).to(dtype)
    assert steps_from_mask(tensor).tolist() == by_hand(mask)
    assert steps_from_mask(tensor, torch.tensor(lengths)).tolist() == by_hand(mask, lengths)
    assert steps_from_mask(tensor[0]).tolist() == by_hand(mask[:1])[0]


def test_model_tokens_and_not_the_span_from_first_to_last():
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]])
    row, tokens = row_and_tokens(steps_from_mask(mask))
    assert row.tolist() == [0, 0]
    assert tokens.tolist() == [4, 5]


def test_the_first_target_of_a_response_is_trained():
    # P P P R R: the credit falls on the two response tokens, the first included.
    step = steps_from_mask(torch.tensor([[0, 0, 0, 1, 1]]))
    assert broadcast_to_tokens(torch.tensor([2.5]), step).tolist() == [[0, 0, 0, 2.5, 2.5]]


def test_padding_of_ones_is_padding():
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1]])
    assert steps_from_mask(mask, [4, 6]).tolist() == [[0, 0, -1, 1, -1, -1], [2, -1, 3, 3, 3, 3]]


def test_filler_after_the_end_is_filler_by_length_not_by_id():
    # Ids [5, 6, EOS, EOS, EOS] of length 3: all were told apart by the length alone.
    assert steps_from_mask(torch.ones(1, 5), [3]).tolist() == [[0, 0, 0, -1, -1]]


def test_a_run_ends_with_its_row():
    assert steps_from_mask(torch.ones(2, 2)).tolist() == [[0, 0], [1, 1]]


def test_nothing_sampled():
    step = steps_from_mask(torch.zeros(2, 3))
    assert (step == -1).all()
    assert [column.tolist() for column in row_and_tokens(step)] == [[], []]
    assert steps_from_mask(torch.zeros(0, 3)).shape == (0, 3)
    assert steps_from_mask(torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize(
    ("mask", "lengths", "error", "text"),
    [
        ([[1]], None, TypeError, "must be a tensor, got list"),
        (torch.zeros(1, 1, 1), None, ValueError, r"got \(1, 1, 1\)"),
        (torch.tensor([[0.5]]), None, ValueError, "0 and 1 only"),
        (torch.tensor([[-1]]), None, ValueError, "0 and 1 only"),
        (torch.ones(2, 3), [3], ValueError, r"\(2,\), got \(1,\)"),
        (torch.ones(2, 3), [3, 4], ValueError, "row 1 has 4 tokens"),
        (torch.ones(1, 3), [-1], ValueError, "row 0 has -1"),
        (torch.ones(1, 3), [1.5], TypeError, "integers"),
    ],
)
def test_a_mask_that_is_none(mask, lengths, error, text):
    with pytest.raises(error, match=text):
        steps_from_mask(mask, lengths)


@pytest.mark.parametrize(
    ("lengths", "total", "wanted"),
    [
        ([2, 0, 3], None, [0, 0, 2, 2, 2]),
        ([2, 0, 3], 7, [0, 0, 2, 2, 2, -1, -1]),
        ([], 2, [-1, -1]),
        ([], None, []),
    ],
)
def test_packed_steps(lengths, total, wanted):
    assert steps_from_lengths(lengths, total).tolist() == wanted
    assert steps_from_lengths(torch.tensor(lengths, dtype=torch.int64), total).dtype == torch.int64


@pytest.mark.parametrize(
    ("lengths", "total", "error", "text"),
    [
        ([1, -2], None, ValueError, "step 1 has -2"),
        ([3, 2], 4, ValueError, "add up to 5 tokens, more than `total`, 4"),
        ([1.0], None, TypeError, "integers"),
        ([[1]], None, ValueError, r"shape \(S,\)"),
    ],
)
def test_lengths_that_are_none(lengths, total, error, text):
    with pytest.raises(error, match=text):
        steps_from_lengths(lengths, total)


def test_spans():
    assert steps_from_spans([(1, 3), (3, 3), (4, 5)], 6).tolist() == [-1, 0, 0, -1, 2, -1]
    assert steps_from_spans([[(0, 2)], [], [(0, 1), (1, 2)]], 2).tolist() == [[0, 0], [-1, -1], [1, 2]]
    assert steps_from_spans([], 2).tolist() == [-1, -1]


@settings(max_examples=50, deadline=None)
@given(MASKS)
def test_spans_of_the_runs_are_the_runs(mask):
    step = steps_from_mask(torch.tensor(mask))
    spans = []
    for row in step:
        numbers = sorted(set(row.tolist()) - {-1})
        places = [(row == number).nonzero()[:, 0] for number in numbers]
        spans.append([(int(place[0]), int(place[-1]) + 1) for place in places])
    assert torch.equal(steps_from_spans(spans, step.shape[1]), step)


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([(0, 2), (1, 3)], r"span 1: got \(1, 3\); wanted start <= stop, from 2"),
        ([(0, 9)], "to 4"),
        ([(2, 1)], "start <= stop"),
        ([[(0, 1)], [(3, 5)]], "row 1, span 0"),
        ([[(0, 1), 3]], "row 0, span 1: got 3; wanted a pair"),
    ],
)
def test_spans_that_are_none(spans, text):
    with pytest.raises(ValueError, match=text):
        steps_from_spans(spans, 4)


def test_a_step_without_tokens_has_no_row():
    row, tokens = row_and_tokens(steps_from_spans([[(0, 1), (1, 1), (1, 2)]], 3))
    assert row.tolist() == [0, -1, 0]
    assert tokens.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"\(B, T\)"):
        row_and_tokens(torch.zeros(3, dtype=torch.int64))
