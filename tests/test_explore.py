"""Which histories are revisited, and the draw among candidates."""

import math
import random

import numpy as np
import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from tests.trees import joined, reordered, table_of, tree_rows

# log rho with eps 0.05: b -1.61 (0.1+.05)/(0.7+.05), c 0.2, d of c's children below the threshold, e not.
NODES = [
    {"node": "a", "parent": None, "answer_score": 0.7, "root_score": 0.9, "entropy": 0.4},
    {"node": "b", "parent": "a", "answer_score": 0.1, "outcome": 0.0, "entropy": 0.9},
    {"node": "c", "parent": "a", "answer_score": 0.9, "entropy": 0.2},
    {"node": "d", "parent": "c", "answer_score": 0.6, "outcome": 1.0, "entropy": 0.3},
    {"node": "e", "parent": "c", "answer_score": 0.95, "outcome": 1.0, "entropy": 0.8},
]


def pairs(selection):
    return list(zip(selection.row.tolist(), selection.group.tolist(), strict=True))


def test_a_drop_marks_its_parent():
    table = table_of(NODES)
    log_rho = {"a": math.log(0.75 / 0.95), "b": math.log(0.15 / 0.75), "d": math.log(0.65 / 0.95)}
    assert log_rho["b"] < log_rho["d"] < log_rho["a"] < -0.14
    # b drops most, then d, then a, which marks the prompt.
    assert pairs(rtmc.explore.select(table, budget=5)) == [(0, 0), (2, 0), (-1, 0)]
    assert pairs(rtmc.explore.select(table, budget=1)) == [(0, 0)]
    assert pairs(rtmc.explore.select(table, budget=0)) == []
    assert pairs(rtmc.explore.select(table, budget=5, threshold=-1.0)) == [(0, 0)]
    # Without a score of the prompt first turns mark nothing.
    bare = table_of([{k: v for k, v in node.items() if k != "root_score"} for node in NODES])
    assert pairs(rtmc.explore.select(bare, budget=5)) == [(0, 0), (2, 0)]
    unscored = table_of([{**node, "answer_score": math.nan} for node in NODES])
    assert pairs(rtmc.explore.select(unscored, budget=5)) == []


def test_the_penalty_moves_histories_with_siblings():
    # Both drop alike; the history with two children was revisited once already.
    nodes = [
        {"node": "a", "parent": None, "answer_score": 0.8},
        {"node": "a1", "parent": "a", "answer_score": 0.4, "outcome": 0.0},
        {"node": "a2", "parent": "a", "answer_score": 0.9, "outcome": 0.0},
        {"node": "b", "parent": None, "answer_score": 0.8},
        {"node": "b1", "parent": "b", "answer_score": 0.41, "outcome": 0.0},
    ]
    table = table_of(nodes)
    assert math.log(0.46 / 0.45) < 0.05
    assert pairs(rtmc.explore.select(table, budget=2, penalty=0.0)) == [(0, 0), (3, 0)]
    assert pairs(rtmc.explore.select(table, budget=2)) == [(3, 0), (0, 0)]
    assert pairs(rtmc.explore.select(table, budget=2, penalty_sign=-1)) == [(0, 0), (3, 0)]


def test_budget_of_each_group_and_of_all():
    rows = joined(tree_rows(NODES, "g"), tree_rows([{**n, "answer_score": n["answer_score"] / 2} for n in NODES], "h"))
    table = StepTable.from_rows(rows, dtype=torch.float64)
    each = rtmc.explore.select(table, budget=1)
    assert sorted(each.group.tolist()) == [0, 1]
    whole = rtmc.explore.select(table, budget=3, per="table")
    assert len(whole.row) == 3
    assert pairs(whole) == pairs(rtmc.explore.select(table, budget=100))[:3]


def test_rows_in_another_order_select_the_same_histories():
    rows = joined(tree_rows(NODES, "g"), tree_rows([{**n, "answer_score": n["answer_score"] / 2} for n in NODES], "h"))
    order = random.Random(3).sample(range(len(rows)), len(rows))
    straight = rtmc.explore.select(StepTable.from_rows(rows), budget=4)
    table = StepTable.from_rows(reordered(rows, order))
    shuffled = rtmc.explore.select(table, budget=4)
    names = [(order[r] if r >= 0 else -1, table.group_names[g]) for r, g in pairs(shuffled)]
    assert names == [(r, ["g", "h"][g]) for r, g in pairs(straight)]


def test_chains_are_trees_without_branches():
    rows = [
        {"group": 0, "rollout": 0, "index": t, "state": t, "action": t, "answer_score": p, "outcome": 0.0}
        for t, p in enumerate([0.5, 0.1, 0.2])
    ]
    assert pairs(rtmc.explore.select(StepTable.from_rows(rows[::-1]), budget=2)) == [(2, 0)]


def test_entropy_ranks_the_least_sure_turns_parents():
    table = table_of(NODES)
    # b .9 - .05 marks a, e .8 - .05 marks c, a .4 marks the prompt.
    assert pairs(rtmc.explore.select(table, budget=5, rule="entropy")) == [(0, 0), (2, 0), (-1, 0)]


def test_random_is_uniform_over_histories_and_repeatable():
    table = table_of(NODES)
    generator = torch.Generator().manual_seed(5)
    counts = {}
    for _ in range(600):
        (chosen,) = pairs(rtmc.explore.select(table, budget=1, rule="random", generator=generator))
        counts[chosen] = counts.get(chosen, 0) + 1
    assert set(counts) == {(-1, 0), (0, 0), (2, 0)}
    # 200 each; five standard deviations of a binomial are 58.
    assert max(abs(count - 200) for count in counts.values()) < 58
    first, again = (
        pairs(rtmc.explore.select(table, 3, rule="random", generator=torch.Generator().manual_seed(1)))
        for _ in range(2)
    )
    assert first == again


def test_draw_follows_the_softmax_of_log_rho():
    rho = [1.4, 0.7, 0.45]
    wanted = [r / sum(rho) for r in rho]
    generator = torch.Generator().manual_seed(0)
    counts = [0, 0, 0]
    for _ in range(3000):
        index, probability = rtmc.explore.draw([math.log(r) for r in rho], generator)
        assert probability == pytest.approx(wanted[index], abs=1e-15)
        counts[index] += 1
    for count, p in zip(counts, wanted, strict=True):
        assert abs(count - 3000 * p) < 5 * math.sqrt(3000 * p * (1 - p))
    assert rtmc.explore.draw([-math.inf, 2.0], generator) == (1, 1.0)
    # Only differences matter, and large scores do not overflow.
    assert rtmc.explore.draw([1e4, 1e4 - 800], generator) == (0, 1.0)
    for other in (np.random.default_rng(0), random.Random(0)):
        assert rtmc.explore.draw(torch.zeros(4), other).probability == 0.25


class _Edge:
    def __init__(self, point):
        self.point = point

    def random(self):
        return self.point


def test_draw_at_the_ends_of_the_interval():
    scores = [-math.inf, 0.1, 0.2, 0.3, -math.inf]
    assert rtmc.explore.draw(scores, _Edge(0.0)).index == 1
    assert rtmc.explore.draw(scores, _Edge(1 - 2**-53)).index == 3
    assert rtmc.explore.draw(scores, _Edge(1.0)).index == 3


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        ([], ValueError, r"got shape \(0,\)"),
        ([[0.0]], ValueError, r"got shape \(1, 1\)"),
        ([math.nan, 0.0], ValueError, "must be finite"),
        ([math.inf, 0.0], ValueError, "must be finite"),
        ([-math.inf], ValueError, "not all -inf"),
    ],
)
def test_bad_candidates(scores, error, message):
    with pytest.raises(error, match=message):
        rtmc.explore.draw(scores, torch.Generator())


def test_bad_calls():
    table = table_of(NODES)
    for name, value in {
        "budget": -1,
        "rule": "best",
        "per": "tree",
        "threshold": math.nan,
        "penalty": "0.05",
        "penalty_sign": 0,
        "eps_smooth": 2.0,
        "smoothing": "none",
        "generator": 3,
    }.items():
        with pytest.raises(EstimatorError, match=f"`{name}` must be"):
            rtmc.explore.select(table, **{"budget": 1, name: value})
    with pytest.raises(EstimatorError, match="needs `generator`"):
        rtmc.explore.select(table, 1, rule="random")
    bare = table_of([{"node": "a", "parent": None, "outcome": 1.0}])
    for rule, score in (("hindsight", "answer_score"), ("entropy", "entropy")):
        with pytest.raises(EstimatorError, match=f"rule='{rule}' needs the score `{score}`"):
            rtmc.explore.select(bare, 1, rule=rule)
    with pytest.raises(TypeError, match="`generator`"):
        rtmc.explore.draw([0.0], None)
    for probability, candidates in ((0.0, 2), (1.5, 2), (0.5, 0), (0.5, 2.0)):
        with pytest.raises(EstimatorError, match="must be"):
            rtmc.explore.pool_weight(probability, candidates)


def test_an_empty_table_selects_nothing():
    table = StepTable.from_rows([])
    assert pairs(rtmc.explore.select(table, 3, rule="random", generator=torch.Generator())) == []
