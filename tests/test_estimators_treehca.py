"""treehca against the development fork's numbers, a recursion over dictionaries, and exact enumeration."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases
from tests.trees import (
    backed_up,
    children_of,
    is_known,
    joined,
    leaves_below,
    random_tree,
    reordered,
    table_of,
    tree_rows,
    z_leaves,
)

SEEDS = st.integers(0, 10**6)
# Options of the fork's function in ours; `norm` is in the words of the stored cases.
FORK = {
    "weight_temp": lambda value: {"score_power": value},
    "max_weight_ratio": lambda value: {"cap": value if value > 0 else None},
    "subtree_size_weight": lambda value: {"leaf_power": float(value)},
    "leaf_baseline": lambda value: {"leaf_norm": None if value == "none" else "group"},
    "norm": lambda value: {"leaf_std": value},
}


def fork_nodes(given_):
    inner = set(given_["parent"])
    nodes = []
    for name, parent, p, score in zip(given_["node"], given_["parent"], given_["p_gt"], given_["score"], strict=True):
        nodes.append(
            {"node": name, "parent": parent if parent in given_["node"] else None, "answer_score": p}
            | ({} if name in inner else {"outcome": score})
        )
    return nodes


def test_development_fork(shared):
    for given_, wanted in vector_cases(shared, "treehca_coauthor_dev"):
        table = table_of(fork_nodes(given_))
        if "snis_node_adv" in wanted:
            switches = {}
            for name, value in given_["options"].items():
                switches |= FORK[name](value)
            found = rtmc.advantages(table, "treehca", parity="dev_fork", **switches)
            expected = [wanted["snis_node_adv"][name] for name in given_["node"]]
            assert found.tolist() == pytest.approx(expected, rel=1e-5)
            # The same, composed of the options that parity stands for.
            options = {"eps_smooth": 0.0, "leaf_power": 1.0, "leaf_norm": "group"} | switches
            assert torch.equal(rtmc.advantages(table, "treehca", **options), found)
        if "aux" in wanted:
            found = rtmc.estimate(
                table,
                "treehca",
                parity="dev_fork",
                advantage={"hindsight": "hindsight_q", "td": "td_q"}[given_["aux_mode"]],
                max_inv_ratio=given_["max_inv_ratio"],
            )
            for name, column in (("q", found.q), ("aux", found.parts["aux"])):
                expected = [wanted[name][node] for node in given_["node"]]
                assert column.tolist() == pytest.approx(expected, rel=1e-9)
            blend = 0.7 * found.parts["episode"] + 0.3 * found.parts["aux"]
            torch.testing.assert_close(found.advantage, blend, rtol=1e-15, atol=1e-15)


def test_the_forks_switches_by_hand():
    """Prompt -> a -> {b, c -> {d, e}} with p = 1/2, 1/4 | 1/8, so that 1/p weighs b, c as 1 to 2, d, e as 1 to 4."""
    spec = [("a", None, 0.5, None), ("b", "a", 0.5, 1.0), ("c", "a", 0.25, None), ("d", "c", 0.5, 1.0)]
    spec += [("e", "c", 0.125, 0.0)]
    nodes = [
        {"node": name, "parent": parent, "answer_score": p} | ({} if outcome is None else {"outcome": outcome})
        for name, parent, p, outcome in spec
    ]

    def fork(nodes=nodes, **switches):
        return rtmc.advantages(table_of(nodes), "treehca", parity="dev_fork", **switches).tolist()

    # leaf_baseline none, subtree_size_weight false: c = 1/5, a = (1 + 2/5) / 3; with sizes c weighs 2 * 2.
    assert fork(leaf_norm=None, leaf_power=0.0) == pytest.approx([1.4 / 3, 1, 0.2, 1, 0])
    assert fork(leaf_norm=None) == pytest.approx([1.8 / 5, 1, 0.2, 1, 0])
    assert fork(leaf_norm=None, leaf_power=1) == fork(leaf_norm=None)
    assert fork(leaf_norm=None, leaf_power=0, score_power=2.0)[2] == pytest.approx(1 / 17)
    centred = [x - 2 / 3 for x in fork(leaf_norm=None, leaf_power=0)]
    assert fork(leaf_std=False, leaf_power=0.0) == pytest.approx(centred)
    deviation = math.sqrt(1 / 3) + 1e-6
    assert fork(leaf_power=0.0) == pytest.approx([x / deviation for x in centred])
    assert fork(leaf_norm="group", weights="inverse_score", eps_smooth=0.0) == fork()
    # A group of a single leaf: its raw score, with mean 0 and deviation 1, under every switch.
    alone = [{"node": "a", "parent": None, "answer_score": 0.5}]
    alone += [{"node": "b", "parent": "a", "answer_score": 0.5, "outcome": 3.0}]
    for leaf_power in (0.0, 1.0):
        assert fork(alone, leaf_power=leaf_power) == pytest.approx([3 / (1 + 1e-6)] * 2, rel=1e-12)
        assert fork(alone, leaf_power=leaf_power, leaf_std=False) == [3.0, 3.0]
        assert fork(alone, leaf_power=leaf_power, leaf_norm=None) == [3.0, 3.0]
    # p is clipped to [1e-6, 1]: of a score of 0 the weight is 1e6, beside 2 and 8.
    nodes[1]["answer_score"] = 0.0
    assert fork(leaf_norm=None, leaf_power=0)[0] == pytest.approx((1e6 + 4 * 0.2) / (1e6 + 4), rel=1e-12)


def test_td_q_by_hand():
    nodes = [
        {"node": "a", "parent": None},
        {"node": "b", "parent": "a", "outcome": 1.0},
        {"node": "c", "parent": "a"},
        {"node": "d", "parent": "c", "outcome": 0.0},
        {"node": "e", "parent": "c", "outcome": 1.0},
    ]
    found = rtmc.estimate(table_of(nodes), "treehca", weights="uniform", advantage="td_q")
    assert found.q.tolist() == [0.75, 1.0, 0.5, 0.0, 1.0]
    assert found.parts["aux"].tolist() == [0.0, 0.25, -0.25, -0.5, 0.5]


@pytest.mark.parametrize("weights", ["inverse_score", "pool_corrected", "uniform"])
@pytest.mark.parametrize("leaf_norm", ["tree", "group", None])
@pytest.mark.parametrize("cap", [None, 1.2])
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, leaf_power=st.sampled_from([0.0, 1.0, 0.5]), score_power=st.sampled_from([1.0, 2.0]))
def test_against_a_recursion(weights, leaf_norm, cap, seed, leaf_power, score_power):
    nodes = random_tree(seed)
    by_name = {node["node"]: node for node in nodes}
    whole = leaves_below(nodes, None)
    sets = [whole] if leaf_norm == "group" else [leaves_below(nodes, top) for top in children_of(nodes)[None]]
    leaf_value = z_leaves(nodes, sets, 1 if leaf_norm == "group" else 0)
    if leaf_norm is None:
        leaf_value = {leaf: by_name[leaf]["outcome"] for leaf in leaf_value}

    def rho(name):
        above = by_name[name]["parent"]
        before = 1.0 if above is None else by_name[above]["answer_score"] + 0.05
        return (by_name[name]["answer_score"] + 0.05) / before

    def weight(siblings):
        if weights == "pool_corrected":
            w = {c: by_name[c]["pool_weight"] for c in siblings}
        elif weights == "uniform" or any(math.isnan(by_name[c]["answer_score"]) for c in siblings):
            w = dict.fromkeys(siblings, 1.0)
        else:
            w = {c: (by_name[c]["answer_score"] + 0.05) ** -score_power for c in siblings}
        w = {c: x * sum(leaf in leaf_value for leaf in leaves_below(nodes, c)) ** leaf_power for c, x in w.items()}
        limit = math.inf if cap is None else cap * sum(w.values()) / len(w)
        return {c: min(x, limit) for c, x in w.items()}

    expected = backed_up(nodes, leaf_value, weight)
    found = rtmc.estimate(
        table_of(nodes),
        "treehca",
        weights=weights,
        leaf_norm=leaf_norm,
        cap=cap,
        leaf_power=leaf_power,
        score_power=score_power,
        advantage="diff_parent",
    )
    below = children_of(nodes)
    for k, node in enumerate(nodes):
        name, above = node["node"], node["parent"]
        if not is_known(nodes, name):
            assert found.advantage[k].item() == found.parts["weight"][k].item() == 0.0
            continue
        assert found.parts["value"][k].item() == pytest.approx(expected[name], abs=1e-11)
        assert found.advantage[k].item() == pytest.approx(expected[name] - expected[above], abs=1e-11)
        siblings = weight([c for c in below[above] if is_known(nodes, c)])
        assert found.parts["weight"][k].item() == pytest.approx(siblings[name] / sum(siblings.values()))
        if above is not None and not math.isnan(log_rho := math.log(rho(name))):
            assert found.parts["log_rho"][k].item() == pytest.approx(log_rho, abs=1e-12)
        else:
            assert found.parts["log_rho"][k].item() == 0.0


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_divided_by_the_number_of_children(seed):
    nodes = random_tree(seed)
    by_name = {node["node"]: node for node in nodes}
    expected = backed_up(
        nodes,
        {name: node.get("outcome") for name, node in by_name.items()},
        lambda siblings: {c: by_name[c]["pool_weight"] for c in siblings},
        by_number=True,
    )
    options = {"weights": "pool_corrected", "divisor": "children", "leaf_norm": None}
    found = rtmc.estimate(table_of(nodes), "treehca", **options).parts
    for k, node in enumerate(nodes):
        if is_known(nodes, node["node"]):
            assert found["value"][k].item() == pytest.approx(expected[node["node"]], abs=1e-11)
            assert found["parent_value"][k].item() == pytest.approx(expected[node["parent"]], abs=1e-11)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, options=st.sampled_from([{}, {"leaf_norm": "group", "cap": 1.1}, {"advantage": "hindsight_q"}]))
def test_permuting_rows_changes_no_bit(seed, options):
    rows = joined(tree_rows(random_tree(seed), "g"), tree_rows(random_tree(seed + 1), "h"))
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    straight = rtmc.estimate(StepTable.from_rows(rows), "treehca", **options)
    shuffled = rtmc.estimate(StepTable.from_rows(reordered(rows, order)), "treehca", **options)
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name
    alone = rtmc.advantages(StepTable.from_rows(tree_rows(random_tree(seed), "g")), "treehca", **options)
    assert torch.equal(straight.advantage[: len(alone)], alone)


# A tree of turns whose every number is known: two actions at each of two depths.
POLICY = {(): (0.7, 0.3), (0,): (0.4, 0.6), (1,): (0.9, 0.1)}
SCORE = {(0,): 0.2, (1,): 0.6, (0, 0): 0.1, (0, 1): 0.5, (1, 0): 0.3, (1, 1): 0.9}
OUTCOME = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 0.25, (1, 1): 2.0}
ON_POLICY = sum(POLICY[()][a] * POLICY[(a,)][b] * OUTCOME[a, b] for a in (0, 1) for b in (0, 1))


def branches(history, pool=2):
    """Every way to revisit `history`: (probability, chosen action, weight 1 / (N p))."""
    for actions in itertools.product((0, 1), repeat=pool):
        of_pool = math.prod(POLICY[history][a] for a in actions)
        log_rho = torch.tensor([math.log(SCORE[(*history, a)] + 0.05) for a in actions], dtype=torch.float64)
        chances = torch.softmax(log_rho, 0).tolist()
        for action, chance in zip(actions, chances, strict=True):
            yield of_pool * chance, action, rtmc.explore.pool_weight(chance, pool)


def every_tree():
    """(probability, nodes) of all trees: a rollout, a branch at the prompt with a rollout, and a branch below that."""
    for a, b in itertools.product((0, 1), repeat=2):
        for p_branch, c, w_branch in branches(()):
            for d in (0, 1):
                for p_below, e, w_below in branches((c,)):
                    chance = POLICY[()][a] * POLICY[(a,)][b] * p_branch * POLICY[(c,)][d] * p_below
                    yield (
                        chance,
                        [
                            {"node": "o", "parent": None, "answer_score": SCORE[(a,)], "pool_weight": 1.0},
                            {"node": "o1", "parent": "o", "answer_score": SCORE[a, b], "outcome": OUTCOME[a, b]},
                            {"node": "s", "parent": None, "answer_score": SCORE[(c,)], "pool_weight": w_branch},
                            {"node": "s1", "parent": "s", "answer_score": SCORE[c, d], "outcome": OUTCOME[c, d]},
                            {
                                "node": "s2",
                                "parent": "s",
                                "answer_score": SCORE[c, e],
                                "pool_weight": w_below,
                                "outcome": OUTCOME[c, e],
                            },
                        ],
                    )


def test_expectation_over_all_pools_and_draws_is_the_on_policy_value():
    chances, trees = zip(*every_tree(), strict=True)
    assert math.fsum(chances) == pytest.approx(1, abs=1e-14)
    rows = joined(*(tree_rows(nodes, group) for group, nodes in enumerate(trees)))
    table = StepTable.from_rows(rows, dtype=torch.float64)

    def expected(**options):
        found = rtmc.estimate(table, "treehca", leaf_norm=None, **options)
        prompt = found.parts["parent_value"][::5]
        return math.fsum(c * v for c, v in zip(chances, prompt.tolist(), strict=True))

    assert expected(weights="pool_corrected", divisor="children") == pytest.approx(ON_POLICY, abs=1e-13)
    assert abs(expected(weights="uniform") - ON_POLICY) > 0.01
    assert abs(expected(weights="inverse_score") - ON_POLICY) > 1e-3
    # Divided by the sum of the weights it is a ratio of two estimates: nearer than no correction, not exact.
    bias = abs(expected(weights="pool_corrected") - ON_POLICY)
    assert 1e-6 < bias < abs(expected(weights="uniform") - ON_POLICY)


def test_finite_pool_identity():
    policy, rho, f = (0.5, 0.3, 0.2), (1.4, 0.7, 0.45), (1.5, 0.0, 0.25)
    corrected = uncorrected = 0.0
    for i, j in itertools.product(range(3), repeat=2):
        total = rho[i] + rho[j]
        for chosen in (i, j):
            chance = policy[i] * policy[j] * rho[chosen] / total
            corrected += chance * rtmc.explore.pool_weight(rho[chosen] / total, 2) * f[chosen]
            uncorrected += chance * f[chosen]
    assert corrected == pytest.approx(0.8, abs=1e-14)
    assert abs(uncorrected - 0.8) > 0.05


def test_rollouts_that_do_not_branch_need_a_common_tree():
    nodes = [{"node": k, "parent": None, "answer_score": 0.5, "outcome": float(k == 0)} for k in range(4)]
    assert rtmc.advantages(table_of(nodes), "treehca").tolist() == [0.0] * 4
    by_group = rtmc.advantages(table_of(nodes), "treehca", leaf_norm="group")
    assert by_group.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    one_tree = table_of([node | {"tree": 0} for node in nodes])
    root3 = math.sqrt(3)
    assert rtmc.advantages(one_tree, "treehca").tolist() == pytest.approx([root3] + [-1 / root3] * 3, abs=1e-5)


def test_rho_of_first_turns_needs_a_root_score():
    nodes = [{"node": "a", "parent": None, "answer_score": 0.5, "outcome": 1.0}]
    assert rtmc.estimate(table_of(nodes), "treehca").parts["log_rho"].tolist() == [0.0]
    nodes[0]["root_score"] = 0.2
    found = rtmc.estimate(table_of(nodes), "treehca").parts["log_rho"]
    assert found.tolist() == pytest.approx([math.log(0.55 / 0.25)])
    for smoothing, expected in (("convex", 0.525 / 0.24), ("clamp", 0.5 / 0.2)):
        found = rtmc.estimate(table_of(nodes), "treehca", smoothing=smoothing).parts["log_rho"]
        assert found.tolist() == pytest.approx([math.log(expected)])


def test_edges():
    one = [{"node": "a", "parent": None, "outcome": 3.0, "answer_score": 0.5}]
    assert rtmc.advantages(table_of(one), "treehca").tolist() == [0.0]
    assert rtmc.advantages(table_of(one), "treehca", leaf_norm=None).tolist() == [3.0]
    assert rtmc.advantages(table_of(one), "treehca", parity="dev_fork").tolist() == pytest.approx([3.0], rel=1e-5)
    equal = [{"node": "a", "parent": None, "answer_score": 0.5}] + [
        {"node": k, "parent": "a", "outcome": 0.1, "answer_score": 0.1 * k} for k in range(1, 4)
    ]
    assert rtmc.advantages(table_of(equal), "treehca").tolist() == [0.0] * 4
    # Equal scores: the plain mean, and with leaf_power 1 the mean over leaves.
    nodes = [
        {"node": "a", "parent": None},
        {"node": "b", "parent": "a", "outcome": 1.0},
        {"node": "c", "parent": "a"},
        {"node": "d", "parent": "c", "outcome": 0.0},
        {"node": "e", "parent": "c", "outcome": 0.0},
    ]
    nodes = [{**node, "answer_score": 0.3} for node in nodes]
    for power, expected in ((0.0, 1 / 2), (1.0, 1 / 3)):
        found = rtmc.advantages(table_of(nodes), "treehca", leaf_norm=None, leaf_power=power)
        assert found.tolist() == pytest.approx([expected, 1, 0, 0, 0])
    # A probability that underflowed is one too.
    nodes[1]["answer_score"] = 0.0
    found = rtmc.advantages(table_of(nodes), "treehca", leaf_norm=None, eps_smooth=0.0)
    assert found[0].item() == pytest.approx(1 / (1 + 1e-6 / 0.3))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"answer_score": 1.5}, {}, r"^estimator `treehca`: row 0, score `answer_score`: got 1.5.* in \[0, 1\]"),
        ({"answer_score": -0.5}, {}, r"got -0.5; .* in \[0, 1\]"),
        ({"pool_weight": 0.0}, {"weights": "pool_corrected"}, "row 0, score `pool_weight`: got 0.0"),
        ({}, {"weights": "pool_corrected"}, "needs the score `pool_weight`: 1 / "),
        ({}, {"divisor": "children"}, "divisor='children' needs"),
        ({}, {"divisor": "children", "weights": "pool_corrected", "cap": 2.0}, "cap=2.0"),
        ({}, {"parity": "dev_fork", "eps_smooth": 0.1}, "^estimator `treehca`: parity='dev_fork' has `eps_smooth` 0.0"),
        ({}, {"parity": "dev_fork", "eps_smooth": 0.05}, "has `eps_smooth` 0.0, got 0.05; leave `eps_smooth` out"),
        ({}, {"parity": "dev_fork", "leaf_norm": "tree"}, "has `leaf_norm` 'group' or None, got 'tree'"),
        ({}, {"parity": "dev_fork", "leaf_power": 2.0}, "has `leaf_power` 1.0 or 0.0, got 2.0"),
        ({}, {"parity": "dev_fork", "weights": "uniform"}, "has `weights` 'inverse_score', got 'uniform'"),
        ({}, {"cap": 0.0}, "`cap` must be None or a finite number above 0"),
        ({}, {"leaf_norm": "forest"}, "`leaf_norm` must be 'tree', 'group' or None"),
    ],
)
def test_bad_input_is_named(change, options, message):
    table = table_of([{"node": "a", "parent": None, "outcome": 1.0, "answer_score": 0.5} | change])
    with pytest.raises(EstimatorError, match=message):
        rtmc.estimate(table, "treehca", **options)


def test_missing_scores_are_named():
    table = table_of([{"node": "a", "parent": None, "outcome": 1.0}])
    with pytest.raises(EstimatorError, match=r"needs the score `answer_score`.*weights='uniform'"):
        rtmc.estimate(table, "treehca")
    assert rtmc.advantages(table, "treehca", weights="uniform", leaf_norm=None).tolist() == [1.0]
