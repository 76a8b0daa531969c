"""at2po against the authors' numbers, a recursion over dictionaries, and GRPO on a star."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases
from tests.trees import backed_up, is_known, leaves_below, random_tree, reordered, table_of, tree_rows, z_leaves

SEEDS = st.integers(0, 10**6)
LEAF_NORM = "leaf_value_norm(ddof0,eps1e-6)"


def test_authors_numbers(shared):
    for given_, wanted in vector_cases(shared, "at2po_backup"):
        table = table_of(given_["rows"])
        found = rtmc.estimate(table, "at2po", backup=given_["mode"], leaf_norm=given_[LEAF_NORM])
        root = wanted["root"]
        assert found.parts["root_value"].tolist() == pytest.approx([root] * len(table), rel=1e-9)
        expected = [wanted[row["node"]] for row in given_["rows"]]
        assert found.advantage.tolist() == pytest.approx(expected, rel=1e-9)
        for name, of in {
            "diff_parent": lambda v, parent, root: v - parent,
            "diff_global": lambda v, parent, root: v - root,
            "diff_localglobal": lambda v, parent, root: (v - root) + (v - parent),
        }.items():
            credit = rtmc.advantages(table, "at2po", backup=given_["mode"], leaf_norm=given_[LEAF_NORM], advantage=name)
            above = [root if row["parent"] is None else wanted[row["parent"]] for row in given_["rows"]]
            expected = [
                of(wanted[row["node"]], parent, root) for row, parent in zip(given_["rows"], above, strict=True)
            ]
            assert credit.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("backup", ["child_softmax", "child_mean", "leaf_mean"])
@pytest.mark.parametrize("leaf_norm", [True, False])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_against_a_recursion(backup, leaf_norm, seed):
    nodes = random_tree(seed)
    by_name = {node["node"]: node for node in nodes}
    leaves = [leaf for leaf in leaves_below(nodes, None) if not math.isnan(by_name[leaf]["outcome"])]
    value = z_leaves(nodes, [leaves], 0) if leaf_norm else {leaf: by_name[leaf]["outcome"] for leaf in leaves}

    def weight(siblings):
        if backup == "leaf_mean":
            return {c: sum(leaf in value for leaf in leaves_below(nodes, c)) for c in siblings}
        entropy = {c: by_name[c]["entropy"] for c in siblings}
        if backup == "child_mean" or any(math.isnan(e) for e in entropy.values()):
            return dict.fromkeys(siblings, 1.0)
        return {c: math.exp(e) for c, e in entropy.items()}

    expected = backed_up(nodes, value, weight)
    found = rtmc.estimate(table_of(nodes), "at2po", backup=backup, leaf_norm=leaf_norm, advantage="diff_localglobal")
    for k, node in enumerate(nodes):
        name, above = node["node"], node["parent"]
        if not is_known(nodes, name):
            assert [column[k].item() for _, column in found.items()] == [0.0] * 5
            continue
        assert found.parts["value"][k].item() == pytest.approx(expected[name], abs=1e-12)
        gain = 2 * expected[name] - expected[above] - expected[None]
        assert found.advantage[k].item() == pytest.approx(gain, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_a_star_is_grpo(seed):
    rng = random.Random(seed)
    outcomes = [rng.choice([0.0, 1.0, rng.gauss(0, 1), math.nan]) for _ in range(rng.randrange(1, 7))]
    star = table_of([{"node": k, "parent": None, "outcome": o} for k, o in enumerate(outcomes)])
    credit = rtmc.advantages(star, "at2po", backup="child_mean")
    assert torch.equal(credit, rtmc.advantages(star, "grpo", ddof=0))
    # One turn below which everything hangs changes nothing for the leaves.
    below = [{"node": "a", "parent": None}] + [{"node": k, "parent": "a", "outcome": o} for k, o in enumerate(outcomes)]
    assert torch.equal(rtmc.advantages(table_of(below), "at2po", backup="child_mean")[1:], credit)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, double=st.booleans())
def test_permuting_rows_changes_no_bit(seed, double):
    rows = tree_rows(random_tree(seed))
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    dtype = torch.float64 if double else torch.float32
    straight = rtmc.estimate(StepTable.from_rows(rows, dtype=dtype), "at2po")
    shuffled = rtmc.estimate(StepTable.from_rows(reordered(rows, order), dtype=dtype), "at2po")
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name


def test_a_tree_score_splits_the_prompt():
    outcomes = [1.0, 0.0, 5.0, 7.0]
    nodes = [{"node": k, "parent": None, "outcome": o, "entropy": 1.0, "tree": k // 2} for k, o in enumerate(outcomes)]
    found = rtmc.estimate(table_of(nodes), "at2po", leaf_norm=False)
    assert found.parts["root_value"].tolist() == [0.5, 0.5, 6.0, 6.0]
    sign = rtmc.advantages(table_of(nodes), "at2po")
    assert sign.tolist() == pytest.approx([1, -1, -1, 1], rel=1e-5)


def test_a_rollout_that_ends_where_another_went_on_counts():
    rows = [
        {
            "group": 0,
            "rollout": "cut",
            "index": 0,
            "state": 0,
            "action": 0,
            "parent": -1,
            "outcome": 0.0,
            "entropy": 1.0,
        },
        {"group": 0, "rollout": "on", "index": 1, "state": 1, "action": 1, "parent": 0, "outcome": 1.0, "entropy": 1.0},
        {"group": 0, "rollout": "b", "index": 0, "state": 0, "action": 2, "parent": -1, "outcome": 1.0, "entropy": 1.0},
    ]
    table = StepTable.from_rows(rows, dtype=torch.float64)
    found = rtmc.estimate(table, "at2po", backup="child_mean", leaf_norm=False)
    assert found.advantage.tolist() == [0.5, 1.0, 1.0]
    # The leaf of the cut rollout sampled nothing: it has no entropy, so it and its sibling weigh alike.
    assert rtmc.advantages(table, "at2po", leaf_norm=False).tolist() == [0.5, 1.0, 1.0]


def test_edges():
    one = [{"node": "a", "parent": None, "outcome": 3.0, "entropy": 0.5}]
    assert rtmc.advantages(table_of(one), "at2po").tolist() == [0.0]
    equal = [{"node": k, "parent": None, "outcome": 0.1, "entropy": 0.5} for k in range(3)]
    assert rtmc.advantages(table_of(equal), "at2po").tolist() == [0.0] * 3
    huge = [{"node": k, "parent": None, "outcome": o, "entropy": 0.5} for k, o in enumerate([1e30, 0.0])]
    assert rtmc.advantages(table_of(huge), "at2po").tolist() == pytest.approx([1, -1])


def test_missing_inputs_are_named():
    table = table_of([{"node": "a", "parent": None, "outcome": 1.0}])
    with pytest.raises(EstimatorError, match=r"needs the score `entropy`.*backup='child_mean'"):
        rtmc.estimate(table, "at2po")
    table.parent = None
    with pytest.raises(EstimatorError, match="needs the column `parent`"):
        rtmc.estimate(table, "at2po", backup="child_mean")
    infinite = table_of([{"node": "a", "parent": None, "outcome": 1.0, "entropy": math.inf}])
    with pytest.raises(EstimatorError, match="row 0, score `entropy`: got inf"):
        rtmc.estimate(infinite, "at2po")
    mixed = [{"node": "a", "parent": None, "tree": 0}, {"node": "b", "parent": "a", "tree": 1, "outcome": 1.0}]
    with pytest.raises(EstimatorError, match=r"row 1, score `tree`: got 1\.0"):
        rtmc.estimate(table_of(mixed), "at2po", backup="child_mean")
