"""Degenerate input, a test a cell: every registered estimator on every kind of degenerate_cells.py, and the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import rtmc
from rtmc import StepTable
from tests import degenerate_cells
from tests.degenerate_cells import EVERYWHERE, KINDS, NEUTRAL, ONE_STEP, REPEATED, WITH_OPTION, Member, cell, extreme
from tests.estimator_cases import ALL, INFO, is_tree, label, scores_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "estimators.md"
ROWS = [*INFO, *WITH_OPTION]
EACH = pytest.mark.parametrize("method", ROWS)


def credit(row: str, members: list[Member], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Advantages by a row of the table: a method, or a method with an option."""
    method, options = WITH_OPTION.get(row, (row, {}))
    return rtmc.advantages(degenerate_cells.table_of(method, members, dtype), method, **options)


@EACH
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_the_cell(method, kind):
    found = credit(method, kind.members).tolist()
    assert found == pytest.approx(cell(kind, method), abs=degenerate_cells.TOLERANCE)
    for value, wanted in zip(found, cell(kind, method), strict=True):
        if wanted == 0:
            assert value == 0, "a documented 0 is exact"


@EACH
def test_a_nan_outcome_is_absent(method):
    known = ONE_STEP.members
    with_unknown = [known[0], Member([("s", "a"), ("s", "b")], math.nan), known[1]]
    found = credit(method, with_unknown)
    assert found[1:3].tolist() == [0.0, 0.0]
    assert torch.equal(found[[0, 3]], credit(method, known))


@EACH
def test_duplicates_get_equal_credit(method):
    first, other = REPEATED.members
    found = credit(method, [first, other, first])
    assert torch.isfinite(found).all()
    assert found[:2].tolist() == found[3:].tolist()


@EACH
def test_a_truncated_member_is_a_failed_one(method):
    first, other = REPEATED.members
    truncated, failed = (credit(method, [first, other._replace(ending=end)]) for end in ("truncated", "failure"))
    assert torch.equal(truncated, failed)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("x", [1e30, 1e-30])
def test_rewards_of_1e30_and_1e_30(method, x, dtype):
    found = credit(method, [Member([("s", "a")], x), Member([("s", "b")], 0.0)], dtype)
    wanted = extreme(method, x)
    zero = x * 1e-6 if x < 1 and method.split(",")[0] in degenerate_cells.LINEAR else 1e-20 if x < 1 else 1e-6
    assert found.tolist() == pytest.approx(wanted, rel=1e-5, abs=zero)


@pytest.mark.parametrize("method", INFO)
def test_a_million_identical_steps(method):
    """1,000 rollouts of 1,000 steps, all of one state and one action; every other rollout fails."""
    rollouts, steps = 1000, 1000
    rows = rollouts * steps
    outcome = (torch.arange(rollouts) % 2).double()
    index = torch.arange(steps).repeat(rollouts)
    row = torch.arange(rows)
    table = StepTable(
        rollout=row // steps,
        index=index,
        state=torch.zeros(rows, dtype=torch.int64),
        action=torch.zeros(rows, dtype=torch.int64),
        next_state=torch.where(index == steps - 1, -1, 0),
        reward=torch.zeros(rows, dtype=torch.float64),
        tokens=torch.ones(rows, dtype=torch.int64),
        group=torch.zeros(rollouts, dtype=torch.int64),
        outcome=outcome,
        ending=outcome.to(torch.int8),
        parent=torch.where(index == 0, -1, row - 1) if is_tree(method) else None,
        scores={name: torch.full((rows,), NEUTRAL[name], dtype=torch.float64) for name in scores_of(method)},
    )
    found = rtmc.advantages(table, method).view(rollouts, steps)
    assert torch.isfinite(found).all()
    for end in (0, 1):
        assert torch.equal(found[end::2], found[end].expand(rollouts // 2, steps))


VARIANTS = pytest.mark.parametrize(("method", "options"), ALL, ids=map(label, ALL))


@VARIANTS
def test_rollouts_without_rows(method, options):
    """Outcomes, and not a single step."""
    members = [Member([], 1.0), Member([], 0.0)]
    table = degenerate_cells.table_of(method, members)
    table.scores = {name: torch.zeros(0, dtype=torch.float64) for name in scores_of(method)}
    table.parent = torch.zeros(0, dtype=torch.int64) if is_tree(method) else None
    found = rtmc.estimate(table, method, **options)
    assert {name: column.shape for name, column in found.items()} == {name: (0,) for name, _ in found.items()}


@VARIANTS
def test_no_outcome_is_known(method, options):
    members = [Member([("s", "a"), ("t", "b")], math.nan), Member([("s", "b")], math.nan), Member([], math.nan)]
    table = degenerate_cells.table_of(method, members)
    assert rtmc.advantages(table, method, **options).tolist() == [0.0] * 3
    if "similarity" in INFO[method].options:
        found = rtmc.estimate(table, method, similarity=0.9, **options)
        for name, column in found.items():
            assert name == "returns" or column.tolist() == [0.0] * 3


def test_the_page_has_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert degenerate_cells.render() in page, "write the output of `python -m tests.degenerate_cells` into the page"


def test_every_method_of_the_table_is_registered():
    assert set(degenerate_cells.methods()) == set(ROWS)
    assert len(EVERYWHERE) == 4


def test_a_method_without_a_cell_fails_by_name():
    with pytest.raises(AssertionError, match="no cell for `novel` under 'one step'"):
        cell(ONE_STEP, "novel")
