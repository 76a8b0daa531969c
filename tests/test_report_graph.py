"""The graph of states that `rtmc report` draws: nodes and edges by hand, and that no two nodes lie on one another."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rtmc.report.graph import state_graph


def by_hand(rollouts, verdicts=None, **limits):
    """A graph of rollouts that are written as lists of (state, action), the last state by itself."""
    rows, state, action, after = [], [], [], []
    for path in rollouts:
        rows.append(list(range(len(state), len(state) + len(path) - 1)))
        for (here, did), following in pairwise(path):
            state.append(here)
            action.append(did)
            after.append(following[0] if isinstance(following, tuple) else following)
    return state_graph(rows, state, action, after, verdicts or ["success"] * len(rollouts), **limits)


def test_rollouts_that_meet_share_a_node():
    # 0 -a-> 1 -b-> end 3; 0 -a-> 1 -c-> 2 -b-> end 3, once lost and once won
    graph = by_hand(
        [[(0, 7), (1, 8), 3], [(0, 7), (1, 9), (2, 8), 3], [(0, 7), (1, 8), 3]], ["success", "failure", "success"]
    )
    nodes = [(node.kind, node.states, node.verdict, node.rows, node.column) for node in graph.nodes]
    assert nodes == [
        ("state", [0], "", [0, 2, 5], 0),
        ("state", [1], "", [1, 3, 6], 1),
        ("end", [3], "success", [1, 6], 2),
        ("state", [2], "", [4], 2),
        ("end", [3], "failure", [4], 3),
    ]
    edges = [(edge.source, edge.target, edge.action, edge.rows) for edge in graph.edges]
    assert edges == [(0, 1, 7, [0, 2, 5]), (1, 2, 8, [1, 6]), (1, 3, 9, [3]), (3, 4, 8, [4])]
    assert [node.row for node in graph.nodes] == [0.5, 0.5, 0, 1, 1]
    assert not graph.folded
    assert graph.left_out == 0


def test_states_that_recur():
    graph = by_hand([[(0, 1), (0, 2), (1, 3), (0, 4), (2, 5), -1]])
    assert [(node.states, node.column) for node in graph.nodes] == [([0], 0), ([1], 1), ([2], 3), ([], 4)]
    edges = [(edge.source, edge.target, edge.action, edge.rows) for edge in graph.edges]
    assert edges == [(0, 0, -1, [0]), (0, 1, 2, [1]), (1, 0, 3, [2]), (0, 2, 4, [3]), (2, 3, 5, [4])]


def test_runs_of_one_rollout_are_folded():
    paths = [[(0, 1), (1, 1), (2, 1), (9, 1), (3, 1), 4], [(0, 2), (9, 1), 8]]
    plain, folded = by_hand(paths), by_hand(paths, fold_above=2)
    assert [node.kind for node in plain.nodes].count("fold") == 0
    assert [(node.kind, node.states, node.rows) for node in folded.nodes] == [
        ("state", [0], [0, 5]),
        ("fold", [1, 2], [1, 2]),
        ("state", [9], [3, 6]),
        ("state", [3], [4]),
        ("end", [4], [4]),
        ("end", [8], [6]),
    ]
    assert folded.folded
    assert (1, 1) not in {(edge.source, edge.target) for edge in folded.edges}
    assert folded.nodes[2].column == 1  # the second rollout comes to 9 in one step


def test_the_most_visited_are_drawn():
    paths = [[(0, at % 2), (10 + at % 2, at), (100 + at, 1), 500 + at] for at in range(40)]
    graph = by_hand(paths, drawn=3, fold_above=1000)
    assert [node.states for node in graph.nodes] == [[0], [10], [11]]
    assert graph.left_out == 80
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, 1), (0, 2)]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=8), max_size=8),
    st.sampled_from([0, 5, 100]),
    st.sampled_from([1, 4, 100]),
)
def test_no_two_nodes_lie_on_one_another(rollouts, fold_above, drawn):
    graph = by_hand([[*path, 99] for path in rollouts], fold_above=fold_above, drawn=drawn)
    places = [(node.column, node.row) for node in graph.nodes]
    assert len(set(places)) == len(places)
    assert all(abs(a[1] - b[1]) >= 1 for a in places for b in places if a[0] == b[0] and a is not b)
    steps = sum(len(path) for path in rollouts)
    if drawn == 100:
        assert sorted(row for node in graph.nodes if node.kind != "end" for row in node.rows) == list(range(steps))
        assert sum(len(node.rows) for node in graph.nodes if node.kind == "end") == sum(map(bool, rollouts))
    if fold_above == 100 and drawn == 100:
        assert sorted(row for edge in graph.edges for row in edge.rows) == list(range(steps))


def test_a_rollout_of_ten_thousand_steps():
    graph = by_hand([[*((at, 0) for at in range(10_000)), 10_000]], fold_above=20_000, drawn=20_000)
    assert len(graph.nodes) == 10_001
