"""`graph_potential`: hand-worked graphs, sums over paths, sparse solves, the promised error, order, refusals.

The sizes around a block, every power and every backend: ``tests/kernel_cases/graph_potential.py``.
"""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, identity
from scipy.sparse.csgraph import dijkstra
from scipy.sparse.linalg import spsolve

from rtmc.kernels.graph_potential import graph_potential
from tests.kernel_cases import offsets_of
from tests.kernel_cases.graph_potential import by_definition, frequencies, random_graphs


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def potential(rows, goal, gamma_bar, device="cpu", **options):
    """One graph from (source, target, count) rows, as a list of floats."""
    source, target, count = torch.tensor(rows, device=device).reshape(-1, 3).long().unbind(1)
    offsets = torch.tensor([0, len(goal)], device=device)
    goal = torch.tensor(goal, device=device)
    return graph_potential(source, target, count, offsets, goal, gamma_bar, **options).tolist()


def matrix(source, target, count, goal):
    """Row-stochastic sparse matrix of what leaves ordinary nodes."""
    table = frequencies(source, target, count, goal)
    entries = [(s, t, p) for s, row in table.items() for t, p in row.items()]
    s, t, p = zip(*entries, strict=True)
    return csr_matrix((p, (s, t)), shape=(len(goal), len(goal)))


def test_a_chain_counts_its_steps(device, backend):
    # 0 -> 1 -> 2 = success; 3 = failure; 0 -> 3 once in four.
    got = potential([(0, 1, 3), (1, 2, 5), (0, 3, 1)], [0, 0, 1, -1], 0.5, device)
    assert got == [0.75 * 0.25, 0.5, 1.0, 0.0]


def test_loops_in_closed_form(device, backend):
    # 0 stays with 3/4: Phi = g/4 / (1 - 3g/4). 1 and 2 lead to each other, 2 to the success with 1/2:
    # Phi(1) = g Phi(2), Phi(2) = g (Phi(1) + 1) / 2.
    g = 0.9
    got = potential([(0, 0, 3), (0, 3, 1), (1, 2, 1), (2, 1, 2), (2, 3, 2)], [0, 0, 0, 1], g, device, tol=1e-11)
    second = g / (2 - g * g)
    assert got == pytest.approx([g / 4 / (1 - 0.75 * g), g * second, second, 1.0], abs=1e-11)


def test_what_reaches_no_success_is_worth_nothing(device, backend):
    # 0: nothing leaves it. 1, 2: a closed cycle. 3: leads to the failure. 4: its only row says nothing (count 0).
    rows = [(1, 2, 1), (2, 1, 1), (3, 5, 1), (4, 6, 0)]
    assert potential(rows, [0, 0, 0, 0, 0, -1, 1], 0.95, device) == [0.0] * 6 + [1.0]


def test_a_graph_without_success_is_zero(device, backend):
    assert potential([(0, 1, 2), (1, 0, 1), (1, 2, 1)], [0, 0, -1], 0.95, device) == [0.0] * 3


def test_what_leaves_an_end_is_ignored(device, backend):
    rows = [(0, 1, 1), (0, 2, 1), (1, 2, 7), (2, 1, 7)]
    assert potential(rows, [0, 1, -1], 0.5, device) == [0.25, 1.0, 0.0]


def test_virtual_ends_leave_the_last_state_ordinary(device, backend):
    # Rollout 0 stops in state 1 at the step limit, rollout 1 goes on from there and succeeds. 2, 3: their own ends.
    rows = [(0, 1, 2), (1, 2, 1), (1, 3, 1)]
    assert potential(rows, [0, 0, -1, 1], 0.5, device) == [0.125, 0.25, 0.0, 1.0]


def test_rows_of_one_pair_add_up(device, backend):
    together = potential([(0, 1, 7), (0, 2, 3)], [0, 1, -1], 0.9, device)
    apart = potential([(0, 2, 1), (0, 1, 3), (0, 2, 2), (0, 1, 4), (0, 1, 0)], [0, 1, -1], 0.9, device)
    assert together == apart
    assert together[0] == pytest.approx(0.63, abs=1e-15)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 7.5, math.inf])
def test_one_step_of_the_power_mean_by_hand(device, backend, power):
    # Node 3 is worth 0.8, node 2 is worth 0.64; node 0 goes to 3 with 1/4 and to 2 with 3/4.
    got = potential([(0, 3, 1), (0, 2, 3), (2, 3, 1), (3, 1, 1)], [0, 1, 0, 0], 0.8, device, power=power, tol=1e-12)
    mean = 0.8 if power == math.inf else (0.25 * 0.8**power + 0.75 * 0.64**power) ** (1 / power)
    assert got == pytest.approx([0.8 * mean, 1.0, 0.64, 0.8], abs=1e-12)


def test_the_sum_over_all_paths(device, backend):
    """On a graph without cycles: sum over paths to a success of the product of frequencies times gamma^length."""
    g = torch.Generator().manual_seed(0)
    nodes = 9
    pairs = [(a, b) for a, b in itertools.combinations(range(nodes), 2) if torch.rand(1, generator=g) < 0.5]
    rows = [(a, b, int(torch.randint(1, 5, (1,), generator=g))) for a, b in pairs]
    goal = [0] * (nodes - 3) + [1, -1, 1]
    table = frequencies(*torch.tensor(rows).unbind(1), torch.tensor(goal))

    def walks(node, weight):
        if goal[node] == 1:
            yield weight
        for successor, p in table.get(node, {}).items():
            yield from walks(successor, weight * 0.9 * p)

    truth = [math.fsum(walks(node, 1.0)) for node in range(nodes)]
    assert sum(0 < value < 1 for value in truth) >= 4
    assert potential(rows, goal, 0.9, device) == pytest.approx(truth, abs=1e-14)


@pytest.mark.parametrize("gamma_bar", [0.95, 0.999])
def test_against_a_sparse_solve(device, gamma_bar):
    graphs = random_graphs([300] * 8 + [0, 1, 3000], seed=11)
    goal = graphs[-1]
    system = identity(len(goal), format="csc") - gamma_bar * matrix(*graphs[:3], goal).tocsc()
    truth = torch.from_numpy(spsolve(system, (goal > 0).double().numpy()))
    got = graph_potential(*(t.to(device) for t in graphs), gamma_bar).cpu()
    assert (got - truth).abs().max() <= 1e-6
    # Sweeps start from below and rise.
    assert (got <= truth + 1e-13).all()
    assert ((got > 0.01) & (got < 0.99)).sum() > 200


def test_the_largest_successor_counts_the_fewest_steps(device):
    graphs = random_graphs([60, 400, 5], seed=12)
    goal = graphs[-1]
    steps = dijkstra(matrix(*graphs[:3], goal).T, indices=torch.nonzero(goal > 0).squeeze(1).numpy(), unweighted=True)
    truth = 0.95 ** torch.from_numpy(steps).amin(0)
    got = graph_potential(*(t.to(device) for t in graphs), 0.95, math.inf).cpu()
    # gamma^400 is below the tolerance; what is above it is a product of d rounded factors.
    assert (got - truth).abs().max() <= 1e-6
    near = truth > 1e-4
    torch.testing.assert_close(got[near], truth[near], rtol=1e-13, atol=0)


def test_a_larger_power_leans_to_the_better_successor(device):
    graphs = tuple(t.to(device) for t in random_graphs([80], seed=13))
    powers = [0.25, 1.0, 1.5, 4.0, 50.0, math.inf]
    values = [graph_potential(*graphs, 0.9, power, 1e-9) for power in powers]
    for lower, higher in itertools.pairwise(values):
        assert (lower <= higher + 1e-9).all()
        assert (lower < higher - 1e-4).any()


def slow(nodes, stay):
    """A chain whose nodes mostly stay, so that values creep: the last change says little about the error."""
    chain = torch.arange(nodes - 1)
    source, target = torch.cat([chain, chain]), torch.cat([chain, chain + 1])
    count = torch.cat([torch.full((nodes - 1,), stay), torch.ones(nodes - 1, dtype=torch.int64)])
    goal = torch.zeros(nodes, dtype=torch.int64)
    goal[-1] = 1
    return source, target, count, torch.tensor([0, nodes]), goal


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6, 1e-9])
def test_the_true_error_is_below_the_tolerance(device, tol, power):
    graphs = slow(6, 99)
    truth = by_definition(*graphs, 0.99, 1.0)
    if power != 1.0:
        # u = Phi^power solves the linear equation with gamma^power.
        truth = by_definition(*graphs, 0.99**power, 1.0) ** (1 / power)
    got = graph_potential(*(t.to(device) for t in graphs), 0.99, power, tol).cpu()
    assert (got - truth).abs().max() <= tol


def test_a_rule_that_looks_at_the_change_alone_would_stop_too_early():
    """The graph above does tell the rules apart: sweeps that stop at a change of tol are off by more."""
    source, target, count, _, goal = slow(6, 99)
    p = torch.from_numpy(matrix(source, target, count, goal).toarray())
    fixed = (goal > 0).double()
    x, change, tol = fixed, 1.0, 1e-4
    while change > tol:
        x, before = fixed + 0.99 * p @ x, x
        change = (x - before).abs().max().item()
    truth = torch.linalg.solve(torch.eye(6).double() - 0.99 * p, fixed)
    assert (x - truth).abs().max() > 10 * tol


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.sampled_from([0.5, 1.0, 3.0]))
def test_any_order_numbering_and_split_gives_the_same_bits(seed, sizes, power):
    source, target, count, offsets, goal = random_graphs(sizes, edges_per_node=1.0, seed=seed)
    one = graph_potential(source, target, count, offsets, goal, 0.9, power, 1e-3)
    g = torch.Generator().manual_seed(seed)
    graphs = torch.randperm(len(sizes), generator=g).tolist()
    moved = offsets_of([sizes[k] for k in graphs])
    number = torch.zeros_like(goal)
    for place, k in enumerate(graphs):
        number[offsets[k] : offsets[k + 1]] = torch.randperm(sizes[k], generator=g) + moved[place]
    # Each count is split over two rows as well.
    part = (count * torch.rand(count.shape, generator=g)).long()
    rows = torch.randperm(2 * len(source), generator=g)
    ends = (number[torch.cat([ids, ids])[rows]] for ids in (source, target))
    marks = torch.zeros_like(goal).scatter_(0, number, goal)
    other = graph_potential(*ends, torch.cat([part, count - part])[rows], moved, marks, 0.9, power, 1e-3)
    assert torch.equal(other[number], one)


def test_a_plain_sum_would_not_pass():
    """Frequencies of one row do tell orders apart when they are added as floats."""
    terms = [0.1, 0.2, 0.3, 0.25, 0.15]
    assert len({sum(order) for order in itertools.permutations(terms)}) > 1


def test_equal_futures_have_equal_bits(device):
    """Nodes that reach the same values with the same frequencies differ in no bit, whatever their numbers."""
    tree = [(0, 10, 1), (0, 11, 2), (0, 12, 4), (1, 13, 4), (1, 15, 1), (1, 14, 2)]
    leaves = [(10 + k, 16, 1) for k in range(6)] + [(10 + k, 17, 1 + k % 3) for k in range(3)]
    leaves += [(15, 17, 1), (14, 17, 2), (13, 17, 3)]
    got = potential(tree + leaves, [0] * 16 + [1, -1], 0.95, device)
    assert got[0] == got[1] > 0


def test_a_graph_does_not_look_at_the_others(device):
    sizes = [30, 0, 7, 200, 1]
    source, target, count, offsets, goal = random_graphs(sizes, seed=14)
    together = graph_potential(*(t.to(device) for t in (source, target, count, offsets, goal)), 0.95).cpu()
    for begin, end in itertools.pairwise(offsets.tolist()):
        mine = (source >= begin) & (source < end)
        alone = (source[mine] - begin, target[mine] - begin, count[mine], torch.tensor([0, end - begin]))
        got = graph_potential(*(t.to(device) for t in (*alone, goal[begin:end])), 0.95).cpu()
        assert torch.equal(got, together[begin:end])


def test_a_port_of_the_paper(shared, device, backend):
    """Potentials of another implementation, which pins the last state of a rollout; a success wins over a failure."""
    cases = json.loads((shared / "vectors" / "graphhca_thirdparty_port.json").read_text())["cases"]
    assert cases
    for case in cases:
        number: dict[str, int] = {}
        rows, marks = [], {}
        for rollout in case["inputs"]["rollouts"]:
            for state, _, successor in rollout["transitions"]:
                rows.append([number.setdefault(name, len(number)) for name in (state, successor)] + [1])
            last = rollout["transitions"][-1][2]
            marks[last] = max(marks.get(last, -1), 1 if rollout["success"] else -1)
        goal = [marks.get(name, 0) for name in number]
        got = potential(rows, goal, case["inputs"]["gamma_bar"], device, tol=1e-11)
        # The port stops its own sweeps at about 1e-10.
        want = case["outputs"]["values"]
        assert dict(zip(number, got, strict=True)) == pytest.approx(want, abs=1e-9)


def test_strides(device, backend):
    source, target, count, offsets, goal = (t.to(device) for t in random_graphs([20, 9], seed=15))
    want = graph_potential(source, target, count, offsets, goal, 0.9)
    edges = torch.stack([source, target, count], 1)
    marks = torch.stack([goal, goal], 1)
    bounds = torch.stack([offsets, offsets], 1)
    assert torch.equal(graph_potential(*edges.unbind(1), bounds[:, 1], marks[:, 0], 0.9), want)
    ones = torch.ones(1, dtype=torch.int64, device=device)
    got = graph_potential(source, target, ones.expand(len(source)), offsets, goal, 0.9)
    assert torch.equal(got, graph_potential(source, target, torch.ones_like(source), offsets, goal, 0.9))


@pytest.mark.parametrize("counts", [torch.int64, torch.int32, torch.float64, torch.float16])
@pytest.mark.parametrize("rows", [([0], [1], [1]), ([0, 1], [1, 0], [0, 0]), ([0, 0], [0, 1], [5, 5])])
def test_rows_none_of_which_counts(device, backend, counts, rows):
    """All from ends, or of count 0: no edge is left, and every node keeps what its mark says."""
    source, target, count = (torch.tensor(t, device=device) for t in rows)
    bounds = torch.tensor([0, 2], device=device)
    goal = torch.tensor([1, 0], device=device)
    assert graph_potential(source, target, count.to(counts), bounds, goal, 0.95).tolist() == [1.0, 0.0]


def test_a_count_of_zero_beside_a_goal(device, backend):
    one = torch.tensor([0, 1], device=device)
    arguments = (one[:1], one[1:], one[:1], torch.tensor([0, 2], device=device), one, 0.95)
    assert graph_potential(*arguments).tolist() == [0.0, 1.0]


def test_integer_counts_near_their_largest_add_up_in_any_order(device, backend):
    """2^53 + 1 + 1 is no sum of floats: in doubles it is 2^53 one way round and 2^53 + 2 the other."""
    target, count = torch.tensor([2, 2, 3, 3, 2]), torch.tensor([2**53, 1, 1, 2**53, 1])
    bounds, goal = torch.tensor([0, 4], device=device), torch.tensor([0, 0, 1, -1], device=device)
    found = set()
    for order in itertools.permutations(range(5)):
        rows = list(order)
        ids = torch.zeros(5, dtype=torch.int64, device=device)
        arguments = (ids, target[rows].to(device), count[rows].to(device), bounds, goal)
        found.add(graph_potential(*arguments, 0.5)[0].item())
    assert len(found) == 1
    # (2^53 + 2) / (2^54 + 3), each of them rounded to float64 once.
    assert found.pop() == pytest.approx(0.5 * ((2**53 + 2) / (2**54 + 3)), rel=2**-51, abs=0)


def test_int32_offsets(device, backend):
    source, target, count, offsets, goal = (t.to(device) for t in random_graphs([20, 9], seed=15))
    want = graph_potential(source, target, count, offsets, goal, 0.9)
    narrow = (t.int() for t in (source, target, count, offsets, goal))
    assert torch.equal(graph_potential(*narrow, 0.9), want)


def test_the_input_stays_as_it_was(device, backend):
    graphs = tuple(t.to(device) for t in random_graphs([20, 9], seed=16))
    before = tuple(t.clone() for t in graphs)
    graph_potential(*graphs, 0.9)
    assert all(torch.equal(a, b) for a, b in zip(graphs, before, strict=True))


def test_no_gradient(device):
    source, target, count, offsets, goal = (t.to(device) for t in random_graphs([9], seed=17))
    got = graph_potential(source, target, count.double().requires_grad_(), offsets, goal, 0.9)
    with pytest.raises(RuntimeError):
        got.sum().backward()


def test_opcheck(device):
    graphs = tuple(t.to(device) for t in random_graphs([6, 4], seed=18))
    torch.library.opcheck(torch.ops.rtmc.graph_potential, (*graphs, 0.9))
    torch.library.opcheck(torch.ops.rtmc.graph_potential, (*graphs, 0.9, 2.0, 1e-3))


S, T, N = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 3]), torch.tensor([1, 2, 3])
OFFSETS, GOAL = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, -1])
GRAPH = (S, T, N, OFFSETS, GOAL)


def changed(place, value):
    return (*GRAPH[:place], value, *GRAPH[place + 1 :], 0.9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (changed(0, [0, 1, 2]), TypeError, "`source`: got list"),
        (changed(0, S.double()), ValueError, "`source`: got float64.*wanted int64 or int32"),
        (changed(0, torch.tensor([0, 1, 4])), ValueError, "`source`: got 4 in row 2; wanted a node, 0 to 3"),
        (changed(1, torch.tensor([1, -1, 3])), ValueError, "`target`: got -1 in row 1; wanted a node, 0 to 3"),
        (changed(1, torch.tensor([1, 1, 0])), ValueError, "`target`: row 2 goes from node 2 of graph 1 to node 0 of"),
        (changed(1, T[:2]), ValueError, r"`target`: .*\(2,\).*\(3,\)"),
        (changed(1, T.to("meta")), ValueError, "`target`: .*on meta; wanted .*on cpu"),
        (changed(2, N.bool()), ValueError, "`count`: got bool"),
        (changed(2, torch.tensor([1, -1, 1])), ValueError, "`count`: got -1 in row 1; wanted a number of transitions"),
        (changed(2, torch.tensor([1.0, 1.0, math.nan])), ValueError, "`count`: got nan in row 2"),
        (changed(2, torch.tensor([math.inf, 1.0, 1.0])), ValueError, "`count`: got inf in row 0"),
        (changed(2, torch.tensor([1.0, math.inf, 1.0]).half()), ValueError, "`count`: got inf in row 1"),
        (changed(3, OFFSETS.short()), ValueError, "`node_offsets`: got int16.*wanted int64 or int32"),
        (changed(0, S.to_sparse()), ValueError, "`source`: got a tensor of layout sparse_coo; wanted a dense"),
        (changed(2, torch.tensor([1, 2**53 + 1, 1])), ValueError, "`count`: got 9007199254740993 in row 1; wanted"),
        (
            (
                *(torch.zeros(512).long(),) * 2,
                torch.full((512,), 2**53),
                torch.tensor([0, 1]),
                torch.zeros(1).long(),
                0.9,
            ),
            ValueError,
            "`count`: got integers of sum 4611686018427387904; wanted one below 2",
        ),
        (changed(3, OFFSETS[:0]), ValueError, "`node_offsets`: got no element"),
        (
            changed(3, torch.tensor([0, 2, 3])),
            ValueError,
            "`node_offsets`: they run from 0 to 3; .*node.* 0 to 4 .*number of nodes",
        ),
        (changed(3, torch.tensor([0, 3, 2, 4])), ValueError, "`node_offsets`: they decrease"),
        (changed(4, torch.tensor([0, 1, 2, 0])), ValueError, "`goal`: got 2 in row 2; wanted 1"),
        (changed(4, torch.tensor([0, 1, math.nan, 0])), ValueError, "`goal`: got nan in row 2"),
        (changed(4, GOAL[None]), ValueError, r"`goal`: .*\(1, 4\)"),
        ((*GRAPH, 1.0), ValueError, r"`gamma_bar`: got 1.0; wanted a number in \[0.0, 1.0\)"),
        ((*GRAPH, -0.1), ValueError, "`gamma_bar`: got -0.1"),
        ((*GRAPH, torch.tensor(0.9)), TypeError, "`gamma_bar`: got tensor"),
        ((*GRAPH, 0.9, 0.0), ValueError, r"`power`: got 0.0; wanted a number in \(0.0, inf\]"),
        ((*GRAPH, 0.9, math.nan), ValueError, "`power`: got nan"),
        ((*GRAPH, 0.9, 1.0, 0.0), ValueError, "`tol`: got 0.0"),
        ((*GRAPH, 0.9, 1.0, 1e-15), ValueError, "`tol`: got 1e-15; wanted at least 1.8e-14"),
        ((*GRAPH, 1 - 1e-12), ValueError, "`tol`: got 1e-06; wanted at least"),
        ((*GRAPH, 0.9, 1e-17), ValueError, "`tol`: got 1e-06; wanted at least inf"),
        ((S, T, N, torch.tensor([0]), GOAL[:0], 0.9), ValueError, "`source`: got 0 in row 0; wanted no row"),
        ((S[:0], T[:0], N[:0], torch.tensor([0, 1]), torch.tensor([3]), 0.9), ValueError, "`goal`: got 3 in row 0"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        graph_potential(*arguments)
