"""tempo against the authors' numbers and a loop over pairs of responses."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import StepTable
from tests.estimator_cases import vector_cases

SEEDS = st.integers(0, 10**6)


def token_rows(responses, scores, masks, group=0):
    return [
        {"group": group, "rollout": r, "index": t, "state": t, "action": token, "tokens": mask, "outcome": scores[r]}
        for r, (tokens, bits) in enumerate(zip(responses, masks, strict=True))
        for t, (token, mask) in enumerate(zip(tokens, bits, strict=True))
    ]


def test_authors_numbers(shared):
    for given_, wanted in vector_cases(shared, "tempo"):
        rows = token_rows(given_["responses"], given_["scores"], given_["mask"])
        for name, std in (("norm_std_True", True), ("norm_std_False", False)):
            found = rtmc.advantages(StepTable.from_rows(rows), "tempo", std=std)
            expected = [value for row in wanted[name] for value in row]
            assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


def reference(responses, scores, masks, std):
    """The rule as it is told: a walk along each response with the set of those that agree so far."""
    known = [r for r, score in enumerate(scores) if not math.isnan(score)]
    values = [scores[r] for r in known]
    found = []
    mean = sum(values) / len(values) if values else 0.0
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    scale = spread + 1e-6 if std else 1.0
    for r, (tokens, mask) in enumerate(zip(responses, masks, strict=True)):
        together, walking = list(known), True
        for j, (token, bit) in enumerate(zip(tokens, mask, strict=True)):
            walking = walking and bit > 0
            if r not in known or not bit or len(set(values)) < 2:
                found.append(0.0)
                continue
            extra = 0.0
            if walking:
                agree = [m for m in together if len(responses[m]) > j and responses[m][j] == token]
                extra = sum(scores[m] for m in agree) / len(agree) - sum(scores[m] for m in together) / len(together)
                together = agree
            found.append((scores[r] - mean + extra) / scale)
    return found


def random_group(seed, unknown=0.2):
    rng = random.Random(seed)
    responses = [[rng.randrange(2) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(1, 6))]
    masks = [[int(rng.random() < 0.85) for _ in tokens] for tokens in responses]
    scores = [math.nan if rng.random() < unknown else rng.choice([0.0, 1.0, rng.gauss(0, 1)]) for _ in responses]
    return responses, scores, masks


@pytest.mark.parametrize("std", [True, False])
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_against_a_walk(std, seed):
    group = random_group(seed)
    found = rtmc.estimate(StepTable.from_rows(token_rows(*group), dtype=torch.float64), "tempo", std=std)
    assert found.advantage.tolist() == pytest.approx(reference(*group, std), rel=1e-9, abs=1e-9)
    both = found.parts["episode"] + found.parts["prefix"]
    assert torch.equal(found.advantage[found.advantage != 0], both[found.advantage != 0])


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_permuting_rows_and_joining_groups_changes_no_bit(seed):
    one, two = token_rows(*random_group(seed), "g"), token_rows(*random_group(seed + 1), "h")
    order = random.Random(seed).sample(range(len(one) + len(two)), len(one) + len(two))
    both = rtmc.advantages(StepTable.from_rows(one + two), "tempo")
    shuffled = rtmc.advantages(StepTable.from_rows([(one + two)[k] for k in order]), "tempo")
    assert torch.equal(both[order], shuffled)
    assert torch.equal(both[: len(one)], rtmc.advantages(StepTable.from_rows(one), "tempo"))


def test_the_middle_outcome_still_gets_its_prefix_term():
    # R - mean is 0 for the second response; what its first token says is not.
    rows = token_rows([[1, 3], [1, 4], [2, 5]], [0.0, 0.5, 1.0], [[1, 1]] * 3)
    found = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), "tempo", std=False)
    assert found.tolist() == pytest.approx([-0.75, -0.75, -0.25, 0.25, 1.0, 0.5])


def test_a_group_of_one_and_equal_outcomes_give_zero():
    for outcomes in ([2.0], [0.1] * 3, [math.nan, 1.0]):
        rows = token_rows([[1, k] for k in range(len(outcomes))], outcomes, [[1, 1]] * len(outcomes))
        for std in (True, False):
            found = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), "tempo", std=std)
            assert found.tolist() == [0.0] * len(rows)
