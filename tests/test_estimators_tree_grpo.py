"""tree_grpo against the authors' numbers and a plain loop over leaves."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases
from tests.trees import children_of, leaves_below, random_tree, reordered, table_of, tree_rows, z_leaves

SEEDS = st.integers(0, 10**6)


@pytest.mark.parametrize("by_score", [True, False])
def test_authors_numbers(shared, by_score):
    for given_, wanted in vector_cases(shared, "tree_grpo"):
        names = sorted(set(given_["tree"]))
        rows = []
        for k, (score, prompt, tree) in enumerate(zip(given_["scores"], given_["prompt"], given_["tree"], strict=True)):
            row = {"group": prompt, "rollout": k, "index": 0, "state": 0, "action": k, "outcome": score, "parent": -1}
            if by_score:
                row["tree"] = names.index(tree)
            rows.append(row)
        if not by_score:  # every tree hangs below a first turn of its own
            first = {}
            for row, tree in zip(list(rows), given_["tree"], strict=True):
                if tree not in first:
                    first[tree] = len(rows)
                    rows.append({**row, "action": tree})
                row |= {"index": 1, "state": tree, "parent": first[tree]}
        table = StepTable.from_rows(rows)
        count = len(given_["scores"])
        found = rtmc.estimate(table, "tree_grpo")
        for part in ("inter", "inner"):
            assert found.parts[part][:count].tolist() == pytest.approx(wanted[part], rel=1e-5)
        assert found.advantage[:count].tolist() == pytest.approx(wanted["tree(sum)"], rel=1e-5)
        inner = rtmc.advantages(table, "tree_grpo", mode="inner")
        assert inner[:count].tolist() == pytest.approx(wanted["inner"], rel=1e-5)
        twice = rtmc.advantages(table, "tree_grpo", mode="2norm")
        assert twice[:count].tolist() == pytest.approx(wanted["tree_2norm"], rel=1e-5)


@pytest.mark.parametrize("mode", ["tree", "inner", "2norm"])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_against_a_loop_over_leaves(mode, seed):
    nodes = random_tree(seed)
    trees = [leaves_below(nodes, top) for top in children_of(nodes)[None]]
    inter = z_leaves(nodes, [leaves_below(nodes, None)], 1)
    scored = nodes
    if mode == "2norm":
        scored = [{**node, "outcome": inter.get(node["node"], math.nan)} for node in nodes]
    inner = z_leaves(scored, trees, 1)
    credit = {leaf: inner[leaf] + (inter[leaf] if mode == "tree" else 0.0) for leaf in inter}
    found = rtmc.advantages(table_of(nodes), "tree_grpo", mode=mode)
    for node, value in zip(nodes, found.tolist(), strict=True):
        below = [credit[leaf] for leaf in leaves_below(nodes, node["node"]) if leaf in credit]
        assert value == pytest.approx(sum(below) / len(below) if below else 0.0, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_permuting_rows_changes_no_bit(seed):
    rows = tree_rows(random_tree(seed))
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    straight = rtmc.estimate(StepTable.from_rows(rows), "tree_grpo")
    shuffled = rtmc.estimate(StepTable.from_rows(reordered(rows, order)), "tree_grpo")
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name


def test_a_single_leaf_gives_zero_and_with_parity_the_raw_score():
    nodes = [{"node": "a", "parent": None, "outcome": 3.0}]
    assert rtmc.advantages(table_of(nodes), "tree_grpo").tolist() == [0.0]
    raw = rtmc.estimate(table_of(nodes), "tree_grpo", parity="verl")
    assert raw.parts["inter"].tolist() == raw.parts["inner"].tolist() == pytest.approx([3 / (1 + 1e-6)])
    assert raw.advantage.tolist() == pytest.approx([6.0], rel=1e-5)


def test_chains_are_refused_with_the_fix():
    table = table_of([{"node": "a", "parent": None, "outcome": 1.0}])
    table.parent = None
    with pytest.raises(EstimatorError, match="`tree_grpo` needs the column `parent`"):
        rtmc.estimate(table, "tree_grpo")
