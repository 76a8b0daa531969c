"""`tree_backup`: hand-worked trees, the peers' own numbers, gradients, depth, permutations, refusals.

The sizes around a block, odd weights and every backend: ``tests/kernel_cases/tree_backup.py``.
"""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.tree_backup import TREE_BACKUPS, tree_backup
from tests.kernel_cases import close
from tests.kernel_cases.tree_backup import by_paths, permuted, random_forest, star

NAN, INF = math.nan, math.inf


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def f64(values, device="cpu"):
    return torch.tensor(values, dtype=torch.float64, device=device)


def test_hand_worked(device, backend):
    # Node 4 is a root above 0 and 2; 0 above 1, 3 and 5. Node 6 is a tree of its own. Weights 1 and 3; 1, 2 and 5.
    parent = torch.tensor([4, 0, 4, 0, -1, 0, -1], device=device)
    value = f64([NAN, 8.0, 2.0, 16.0, 77.0, 24.0, -3.0], device)
    log_weight = f64([1.0, 1.0, 3.0, 2.0, 1.0, 5.0, 1.0], device).log()
    found = {mode: tree_backup(value, parent, log_weight, mode) for mode in TREE_BACKUPS}
    b = (8 + 2 * 16 + 5 * 24) / 8
    close(found["weighted"], f64([b, 8, 2, 16, (b + 3 * 2) / 4, 24, -3]), rtol=1e-15)
    assert torch.equal(found["softmax"], found["weighted"])
    assert found["mean"].tolist() == [16, 8, 2, 16, 9, 24, -3]
    assert found["leaf_mean"].tolist() == [16, 8, 2, 16, 12.5, 24, -3]
    assert torch.equal(tree_backup(value, parent, mode="mean"), found["mean"])


def test_an_unknown_leaf_is_absent(device, backend):
    # Root 0 above 1 (leaves 3, 4 unknown), 2 (leaves 5 unknown, 6), and 7.
    parent = torch.tensor([-1, 0, 0, 1, 1, 2, 2, 0], device=device)
    value = f64([0.0, 0.0, 0.0, NAN, NAN, NAN, 6.0, 2.0], device)
    log_weight = f64([0.0, 500.0, 0.0, 0.0, 0.0, 300.0, 0.0, math.log(3)], device)
    expected = {"weighted": 3.0, "softmax": 3.0, "mean": 4.0, "leaf_mean": 4.0}
    for mode, root in expected.items():
        found = tree_backup(value, parent, log_weight, mode)
        close(found, f64([root, NAN, 6, NAN, NAN, NAN, 6, 2]), rtol=1e-15)


@pytest.mark.parametrize("mode", TREE_BACKUPS)
def test_removing_an_unknown_leaf_changes_no_bit(device, backend, mode):
    value, parent, log_weight = random_forest(80, 5, reach=6)
    leaves = [v for v in range(80) if v not in set(parent.tolist())][::3]
    value[leaves] = NAN
    kept = torch.tensor([v for v in range(80) if v not in leaves])
    # The rows kept stand first, so that the others can be cut off. A node all of whose leaves go becomes one itself.
    value, parent, log_weight = permuted(value, parent, log_weight, torch.cat([kept, torch.tensor(leaves)]))
    whole = tree_backup(value.to(device), parent.to(device), log_weight.to(device), mode)
    bare = set(range(len(kept))) - set(parent[: len(kept)].tolist())
    value[[v for v in bare if v in set(parent[len(kept) :].tolist())]] = NAN
    cut = tree_backup(*(t[: len(kept)].to(device) for t in (value, parent, log_weight)), mode=mode)
    assert torch.equal(cut.nan_to_num(77.0), whole[: len(kept)].nan_to_num(77.0))
    assert not torch.equal(whole, tree_backup(torch.randn(80).double().to(device), parent.to(device), log_weight, mode))


def test_weights_of_any_size(device, backend):
    parent = torch.tensor([-1, 0, 0, 0], device=device)
    value = f64([0.0, 4.0, 8.0, 1.0], device)
    for shift in (-1000.0, -69.0, 0.0, 69.0, 1000.0):
        got = tree_backup(value, parent, f64([0.0, shift, shift, shift - 2000.0], device))
        assert got[0].item() == 6.0
    big, small = math.log(1e30), math.log(1e-30)
    close(tree_backup(value, parent, f64([0.0, big, small, -INF], device))[0], f64(4 + 4e-60), rtol=1e-15)
    close(tree_backup(value, parent, f64([0.0, small, small + math.log(3), -INF], device))[0], f64(7.0), rtol=1e-13)


def test_siblings_all_of_weight_zero_count_alike(device, backend):
    parent = torch.tensor([-1, 0, 0, 0], device=device)
    log_weight = f64([0.0, -INF, -INF, 5.0], device)
    assert tree_backup(f64([0.0, 4.0, 8.0, NAN], device), parent, log_weight)[0].item() == 6.0
    assert tree_backup(f64([0.0, 4.0, 8.0, 1.0], device), parent, log_weight)[0].item() == 1.0


def test_at2po(shared):
    modes = {"child_mean": "mean", "child_softmax": "softmax", "leaf_mean": "leaf_mean"}
    for case in json.loads((shared / "vectors" / "at2po_backup.json").read_text())["cases"]:
        rows = case["inputs"]["rows"]
        names = [row["node"] for row in rows]
        # The prompt, their root, comes last.
        parent = [names.index(row["parent"]) if row["parent"] else len(names) for row in rows] + [-1]
        value = f64([row.get("outcome", NAN) for row in rows] + [NAN])
        entropy = f64([row["entropy"] for row in rows] + [NAN])
        got = tree_backup(value, torch.tensor(parent), entropy, modes[case["inputs"]["mode"]])
        expected = f64([case["outputs"][name] for name in [*names, "root"]])
        close(got, expected, rtol=1e-12)


def treehca_leaves(inputs, inner):
    """Leaf values as the fork makes them: z-scores over the group's leaves, centred only, or raw."""
    score = f64(inputs["score"])
    leaves = score[[v for v in range(len(score)) if v not in inner]]
    options = inputs["options"]
    if options.get("leaf_baseline") == "none":
        return score
    centred = score - leaves.mean()
    return centred / (leaves.std() + 1e-6) if options.get("norm", True) else centred


def test_treehca_development_fork(shared):
    for case in json.loads((shared / "vectors" / "treehca_coauthor_dev.json").read_text())["cases"]:
        inputs = case["inputs"]
        names = inputs["node"]
        parent = torch.tensor([names.index(above) if above in names else -1 for above in inputs["parent"]])
        inner = set(parent.tolist())
        if "q" in case["outputs"]:
            got, expected = tree_backup(f64(inputs["score"]), parent, mode="mean"), case["outputs"]["q"]
        else:
            below = torch.zeros(len(names), dtype=torch.float64)
            for leaf in (v for v in range(len(names)) if v not in inner):
                while leaf >= 0:
                    below[leaf] += 1
                    leaf = int(parent[leaf])
            log_weight = -f64(inputs["p_gt"]).clamp(1e-6, 1).log()
            if inputs["options"].get("subtree_size_weight", True):
                log_weight += below.log()
            got = tree_backup(treehca_leaves(inputs, inner), parent, log_weight)
            expected = case["outputs"]["snis_node_adv"]
        close(got, f64([expected[name] for name in names]), rtol=2e-6, atol=1e-7)


def test_tree_grpo(shared):
    """Its two baselines are leaf means: of the prompt and of the tree; the deviations too (sample, hence n / (n-1))."""
    for case in json.loads((shared / "vectors" / "tree_grpo.json").read_text())["cases"]:
        scores, outputs = f64(case["inputs"]["scores"]), case["outputs"]
        count = len(scores)
        for name, keys in (("inter", case["inputs"]["prompt"]), ("inner", case["inputs"]["tree"])):
            roots = sorted(set(keys))
            above = torch.tensor([count + roots.index(key) for key in keys])
            parent = torch.cat([above, torch.full((len(roots),), -1)])
            size = torch.bincount(above, minlength=len(parent))[above]

            def mean_of(x, parent=parent, above=above, roots=roots):
                return tree_backup(torch.cat([x, f64([NAN] * len(roots))]), parent, mode="leaf_mean")[above]

            deviation = scores - mean_of(scores)
            std = (mean_of(deviation**2) * size / (size - 1)).sqrt()
            close(deviation / (std + 1e-6), f64(outputs[name]), rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.sampled_from([1, 3, INF]), st.sampled_from(TREE_BACKUPS), st.integers(0, 2**32))
def test_any_row_order_gives_the_same_bits(nodes, reach, mode, seed):
    value, parent, log_weight = random_forest(nodes, seed, reach=reach, unknown=0.2, spread=30.0)
    value *= 10.0 ** torch.randint(-15, 15, (nodes,))
    order = torch.randperm(nodes)
    for dtype in (torch.float32, torch.float64):
        first = tree_backup(value.to(dtype), parent, log_weight, mode)
        moved = permuted(value.to(dtype), parent, log_weight, order)
        assert torch.equal(tree_backup(*moved, mode=mode).nan_to_num(7e30), first[order].nan_to_num(7e30))


def test_many_siblings_in_any_order(device, backend):
    value, parent, log_weight = star(3000)
    value *= 10.0 ** torch.randint(-15, 15, value.shape)
    order = torch.randperm(3001)
    for mode in ("weighted", "mean", "leaf_mean"):
        first = tree_backup(value.to(device), parent.to(device), log_weight.to(device), mode)
        moved = tree_backup(*(t.to(device) for t in permuted(value, parent, log_weight, order)), mode=mode)
        assert torch.equal(moved, first[order.to(device)])
        close(first[-1], by_paths(value, parent, log_weight, mode)[-1], rtol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(TREE_BACKUPS), st.integers(0, 2**32))
def test_weights_sum_to_one_and_shift_with_the_siblings(nodes, mode, seed):
    value, parent, log_weight = random_forest(nodes, seed, reach=5, unknown=0.2)
    found = tree_backup(value, parent, log_weight, mode)
    # Constants go up unchanged, and all between the least and the largest leaf.
    constant = tree_backup(torch.where(value.isnan(), NAN, 2.5).double(), parent, log_weight, mode)
    close(constant.nan_to_num(2.5), f64([2.5] * nodes), rtol=1e-14)
    leaves = value[[v for v in range(nodes) if v not in set(parent.tolist())]]
    known = found[~found.isnan()]
    if len(known):
        assert leaves[~leaves.isnan()].min() - 1e-12 <= known.min()
        assert known.max() <= leaves[~leaves.isnan()].max() + 1e-12
    shift = torch.cat([torch.randn(nodes), torch.zeros(1)])[parent] * 100
    close(tree_backup(value, parent, log_weight + shift, mode), found, rtol=1e-11, atol=1e-11)


def test_a_chain_of_a_million(device):
    nodes = 1_000_000
    parent = torch.arange(1, nodes + 1)
    parent[-1] = -1
    value = torch.zeros(nodes, device=device)
    value[0] = 3.25
    value.requires_grad_()
    out = tree_backup(value, parent.to(device), torch.randn(nodes, device=device))
    assert (out == 3.25).all()
    out.sum().backward()
    assert value.grad[0] == nodes
    assert not value.grad[1:].any()


@pytest.mark.parametrize("mode", TREE_BACKUPS)
def test_gradients(device, backend, mode):
    value, parent, log_weight = random_forest(14, 2, reach=4)
    value, log_weight = value.to(device).requires_grad_(), log_weight.to(device).requires_grad_()
    parent = parent.to(device)
    assert torch.autograd.gradcheck(lambda x: tree_backup(x, parent, log_weight.detach(), mode), (value,))
    if mode in ("weighted", "softmax"):
        assert torch.autograd.gradcheck(lambda x, w: tree_backup(x, parent, w, mode), (value, log_weight))


def test_the_gradient_is_the_transpose(device, backend):
    value, parent, log_weight = random_forest(50, 6, reach=5, unknown=0.2)
    parent, log_weight = parent.to(device), log_weight.to(device)
    x, g = torch.randn(2, 50, dtype=torch.float64, device=device).unbind(0)
    x = torch.where(value.isnan().to(device), NAN, x).requires_grad_()
    out = tree_backup(x, parent, log_weight)
    (back,) = torch.autograd.grad(out, x, g * ~out.isnan())
    close((back * x.detach().nan_to_num()).sum(), (g * out.detach().nan_to_num()).sum(), rtol=1e-12)
    assert not back[x.isnan()].any()


def test_gradients_keep_their_dtypes_and_stop_at_minus_infinity(device, backend):
    value = torch.tensor([0.0, 4.0, 8.0], dtype=torch.bfloat16, device=device, requires_grad=True)
    log_weight = torch.tensor([0.0, -INF, -INF], device=device, requires_grad=True)
    out = tree_backup(value, torch.tensor([-1, 0, 0], device=device), log_weight)
    out[0].backward()
    assert out.dtype == value.grad.dtype == torch.bfloat16
    assert value.grad.tolist() == [0.0, 0.5, 0.5]
    assert log_weight.grad.tolist() == [0.0, 0.0, 0.0]
    again = tree_backup(value, torch.tensor([-1, 0, 0], device=device), mode="mean")
    (once,) = torch.autograd.grad(again.square().sum(), value, create_graph=True)
    with pytest.raises(RuntimeError, match="tree_backup_adjoint"):
        once.sum().backward()


def test_the_input_stays_as_it_was(device, backend):
    value, parent, log_weight = (t.to(device) for t in random_forest(20, 1, reach=3))
    before = [t.clone() for t in (value, parent, log_weight)]
    for mode in TREE_BACKUPS:
        out = tree_backup(value, parent, log_weight, mode)
        assert out.data_ptr() != value.data_ptr()
        assert all(torch.equal(a, b) for a, b in zip(before, (value, parent, log_weight), strict=True))


def test_int32_parents(device, backend):
    value, parent, log_weight = (t.to(device) for t in random_forest(20, 1, reach=3))
    value.requires_grad_()
    want, got = (tree_backup(value, ids, log_weight) for ids in (parent, parent.int()))
    assert torch.equal(want, got)
    assert torch.equal(*(torch.autograd.grad(out.sum(), value)[0] for out in (want, got)))


def test_opcheck(device):
    value, parent, log_weight = (t.to(device) for t in random_forest(9, 3, reach=3))
    value, log_weight = value.requires_grad_(), log_weight.requires_grad_()
    torch.library.opcheck(torch.ops.rtmc.tree_backup, (value, parent, log_weight, False))
    torch.library.opcheck(torch.ops.rtmc.tree_backup, (value.float(), parent, None, True))
    share = torch.rand(9, dtype=torch.float64, device=device)
    torch.library.opcheck(torch.ops.rtmc.tree_backup_adjoint, (torch.randn_like(share), parent, share))


VALUE, PARENT, WEIGHT = torch.ones(4), torch.tensor([-1, 0, 0, 1]), torch.zeros(4)


def changed(tensor, at, value):
    return torch.where(torch.arange(len(tensor)) == at, value, tensor)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], PARENT, WEIGHT), TypeError, "`value`: got list"),
        ((VALUE.long(), PARENT, WEIGHT), ValueError, "`value`: got int64"),
        ((VALUE[None], PARENT, WEIGHT), ValueError, r"`value`: .*\(1, 4\)"),
        ((VALUE, PARENT.short(), WEIGHT), ValueError, "`parent`: got int16.*wanted int64 or int32"),
        ((VALUE, PARENT, WEIGHT, ["mean"]), ValueError, r"`mode`: got \['mean'\]; wanted one of 'weighted', 'mean'"),
        ((VALUE.to_sparse(), PARENT, WEIGHT), ValueError, "`value`: got a tensor of layout sparse_coo; wanted a dense"),
        ((VALUE, PARENT[:3], WEIGHT), ValueError, r"`parent`: .*\(3,\).*\(4,\)"),
        ((VALUE, PARENT.to("meta"), WEIGHT), ValueError, "`parent`: .*on meta; wanted .* on cpu"),
        ((VALUE, PARENT, WEIGHT.long()), ValueError, "`log_weight`: got int64"),
        ((VALUE, PARENT, WEIGHT[:3], "mean"), ValueError, r"`log_weight`: .*\(3,\).*\(4,\)"),
        ((VALUE, PARENT, WEIGHT.to("meta")), ValueError, "`log_weight`: .*on meta; wanted .* on cpu"),
        ((VALUE, PARENT), TypeError, "`log_weight`: got None.*'weighted'"),
        ((VALUE, PARENT, None, "softmax"), TypeError, "`log_weight`: got None.*'softmax'"),
        ((VALUE, PARENT, WEIGHT, "median"), ValueError, "`mode`: got 'median'; wanted one of 'weighted', 'mean'"),
        ((VALUE, PARENT, WEIGHT, 3), ValueError, "`mode`: got 3"),
        ((VALUE, changed(PARENT, 2, -2), WEIGHT), ValueError, "`parent`: node 2 has -2; wanted -1 .* 0 to 3"),
        ((VALUE, changed(PARENT, 3, 4), WEIGHT), ValueError, "`parent`: node 3 has 4; wanted"),
        ((VALUE, changed(PARENT, 1, 1), WEIGHT), ValueError, "`parent`: node 1 has 1; wanted .* another node"),
        ((VALUE, torch.tensor([-1, 3, 0, 1]), WEIGHT), ValueError, "`parent`: node 1 is its own ancestor"),
        ((VALUE, torch.tensor([2, 3, 1, 2]), None, "mean"), ValueError, "`parent`: node 1 is its own ancestor"),
        ((changed(VALUE, 2, INF), PARENT, WEIGHT), ValueError, "`value`: leaf 2 has inf"),
        ((changed(VALUE.double(), 3, -1e300), PARENT, WEIGHT), ValueError, r"`value`: leaf 3 has -1e\+300"),
        (
            (VALUE, PARENT, changed(WEIGHT, 2, NAN)),
            ValueError,
            "`log_weight`: node 2 has nan; wanted a number, or -inf",
        ),
        ((VALUE, PARENT, changed(WEIGHT, 3, INF), "softmax"), ValueError, "`log_weight`: node 3 has inf"),
        ((VALUE, PARENT, torch.tensor([0.0, NAN, -INF, 0.0])), ValueError, "`log_weight`: node 1 has nan"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        tree_backup(*arguments)


def test_what_is_not_looked_at_is_not_refused(backend):
    """The value of an inner node, the weight of a root, weights where a mode has none."""
    value, log_weight = changed(VALUE, 0, INF), changed(WEIGHT, 0, NAN)
    assert tree_backup(value, PARENT, log_weight).tolist() == [1.0] * 4
    assert tree_backup(value, PARENT, torch.full((4,), NAN), "leaf_mean").tolist() == [1.0] * 4
