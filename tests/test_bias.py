"""The exact biases: against automatic differentiation, theory, and a group enumerated by hand; and the page."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from rtmc.cli import main
from rtmc.diagnosis import bias, world

PAGE = Path(__file__).resolve().parents[1] / "docs" / "estimators.md"


def lines(rollouts=2):
    return {(line.method, *line.options.items()): line for line in bias.biases(rollouts)}


def test_paths_are_all_that_can_happen():
    ways = world.paths()
    assert len({way.steps for way in ways}) == len(ways) == 9
    assert math.fsum(way.probability for way in ways) == pytest.approx(1.0, abs=1e-15)
    assert math.fsum(way.probability * way.outcome for way in ways) == pytest.approx(world.value(0))


def test_the_true_gradient_is_that_of_automatic_differentiation():
    """J by dynamic programming on tensors, from the last state to the first."""
    logits = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in world.LOGITS]
    values = {world.SUCCESS: torch.tensor(1.0), world.FAILURE: torch.tensor(0.0)}
    for state in reversed(range(len(world.MOVES))):
        chances = torch.softmax(logits[state], 0)
        values[state] = sum(p * values[to] for p, to in zip(chances, world.MOVES[state], strict=True))
    values[0].backward()
    assert values[0].item() == pytest.approx(world.value(0), abs=1e-15)
    found = bias.true_gradient().view(len(logits), -1)
    for row, parameter in zip(found, logits, strict=True):
        assert row[: len(parameter)].tolist() == pytest.approx(parameter.grad.tolist(), abs=1e-15)
        assert (row[len(parameter) :] == 0).all()


@pytest.mark.parametrize("rollouts", [2, 3])
def test_what_theory_says(rollouts):
    found = lines(rollouts)
    for unbiased in ("rloo", "gae", "vineppo"):  # leave-one-out, and exact values
        line = found[unbiased,]
        assert (line.cosine, line.scale, line.bias) == pytest.approx((1.0, 1.0, 0.0), abs=1e-12)
    # A baseline that contains the rollout shortens the gradient by its share, (N - 1) / N.
    line = found["dr_grpo",]
    share = 1 / rollouts
    assert (line.cosine, line.scale, line.bias) == pytest.approx((1.0, 1 - share, share), abs=1e-12)
    # Of two verdicts a z-score knows the sign alone: +-2^-1/2 where they differ, that is dr_grpo times 2^1/2.
    if rollouts == 2:
        assert found["grpo",].scale == pytest.approx(2**0.5 * found["dr_grpo",].scale, rel=1e-5)


@pytest.mark.parametrize("method", ["gigpo", "rtmc"])
def test_the_sum_over_multisets_is_that_over_ordered_groups(method):
    """Every ordered pair of paths as a table of its own."""
    total = torch.zeros_like(bias.true_gradient())
    for pair in itertools.product(world.paths(), repeat=2):
        rows = [
            {"group": 0, "rollout": r, "index": t, "state": s, "action": a, "outcome": way.outcome}
            for r, way in enumerate(pair)
            for t, (s, a) in enumerate(way.steps)
        ]
        credit = rtmc.advantages(StepTable.from_rows(rows, dtype=torch.float64), method).tolist()
        first = len(pair[0].steps)
        for way, own in zip(pair, (credit[:first], credit[first:]), strict=True):
            part = torch.tensor(world.gradient(way.steps, own), dtype=torch.float64).flatten()
            total += pair[0].probability * pair[1].probability * part / 2
    true = bias.true_gradient()
    wanted = ((total - true).norm() / true.norm()).item()
    assert lines()[method,].bias == pytest.approx(wanted, abs=1e-12)


def test_the_trees_hold_all_that_can_be_sampled():
    trees = bias._trees()
    # The first turns of a group weigh one together, and each first action what the policy gives it.
    first = trees.table.index == 0
    assert trees.weight[first].sum().item() == pytest.approx(1.0, abs=1e-14)
    action = torch.tensor([trees.table.action_names[a] for a in trees.table.action.tolist()])
    for number, probability in enumerate(world.policy()[0]):
        assert trees.weight[first & (action == number)].sum().item() == pytest.approx(probability, abs=1e-14)
    # With each rollout's own outcome as its credit, the estimate is unbiased: no baseline, nothing shared.
    paths, row = trees.table.time_order()
    leaves = torch.bincount(row, minlength=len(trees.table))
    outcome = torch.zeros(len(trees.table), dtype=torch.float64).index_add_(0, row, paths.outcome[paths.rollout])
    expected = bias.expected_gradient(trees, outcome / leaves)
    torch.testing.assert_close(expected, bias.true_gradient(), rtol=0, atol=1e-14)


def test_a_method_that_cannot_run_says_why(monkeypatch):
    from rtmc.methods import registry

    monkeypatch.setattr(registry, "_registered", dict(registry._load()))
    rtmc.register_estimator("judged", lambda table: table.reward, needs={"judge": "a judge's mark of the step"})
    line = lines()["judged",]
    assert math.isnan(line.bias)
    assert "needs the score `judge`" in line.reason
    assert "a judge's mark of the step" in line.reason
    assert "needs the score `judge`" in next(row for row in bias.text([line]).splitlines() if row.startswith("judged"))


@pytest.mark.parametrize("rollouts", [1, 7, 2.0, True])
def test_bad_group_sizes(rollouts):
    with pytest.raises(EstimatorError, match=r"`rollouts` must be an integer in \[2, 6\]"):
        bias.biases(rollouts)


NUMBER = re.compile(r"-?\d+\.\d{3}")


def test_the_page_shows_what_the_command_prints(capsys):
    assert main(["estimators", "--bias"]) == 0
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert NUMBER.sub("#", shown) == NUMBER.sub("#", printed), (
        "write the output of `rtmc estimators --bias` into docs/estimators.md"
    )
    # Another machine may round the last digit the other way.
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (shown, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1.1e-3)
    assert len(numbers[0]) >= 3 * len(rtmc.estimators())
