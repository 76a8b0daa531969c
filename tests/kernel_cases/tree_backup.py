"""Cases of ``tree_backup``: every path from a known leaf to an ancestor, with the product of its shares."""

import functools
import math

import torch

from rtmc.kernels.tree_backup import TREE_BACKUPS, tree_backup
from rtmc.kernels.tree_climb import climb_numba
from tests.kernel_cases import PLACES, AotCase, close

NAN, INF = math.nan, math.inf


def by_paths(value, parent, log_weight=None, mode="weighted"):
    """(V,) float64: sum over known leaves of value times the shares on the way up, leaf by leaf."""
    up, x = parent.tolist(), value.double().tolist()
    scores = [0.0] * len(up) if log_weight is None or mode == "mean" else log_weight.double().tolist()
    leaves = [v for v in range(len(up)) if v not in set(up) and not math.isnan(x[v])]
    paths = []
    for leaf in leaves:
        path = [leaf]
        while up[path[-1]] >= 0:
            path.append(up[path[-1]])
        paths.append(path)
    families: dict[int, list[int]] = {}
    for v in sorted({v for path in paths for v in path}):
        families.setdefault(up[v], []).append(v)
    share = {}
    for family in families.values():
        top = max(scores[c] for c in family)
        weights = [1.0 if top == -INF else math.exp(scores[c] - top) for c in family]
        share.update({c: w / math.fsum(weights) for c, w in zip(family, weights, strict=True)})
    terms: dict[int, list[tuple[float, float]]] = {}
    for path in paths:
        product = 1.0
        for below, v in zip([None, *path], path, strict=False):
            product *= 1.0 if below is None else share[below]
            terms.setdefault(v, []).append((product, x[path[0]]))
    out = torch.full((len(up),), NAN, dtype=torch.float64)
    for v, pairs in terms.items():
        out[v] = math.fsum(b if mode == "leaf_mean" else p * b for p, b in pairs)
        out[v] /= len(pairs) if mode == "leaf_mean" else 1.0
    return out


def random_forest(nodes, seed, reach=INF, unknown=0.0, spread=1.0):
    """(value, parent, log_weight) in float64 and any row order. ``reach``: how far back a parent may stand (small =
    deep); about one node in 15 is a root."""
    g = torch.Generator().manual_seed(seed)
    back = (torch.rand(nodes, generator=g) * torch.arange(nodes).clamp(max=reach)).long() + 1
    parent = torch.arange(nodes) - back
    parent[torch.rand(nodes, generator=g) < 1 / 15] = -1
    value = torch.randn(nodes, generator=g, dtype=torch.float64)
    value[torch.rand(nodes, generator=g) < unknown] = NAN
    log_weight = torch.randn(nodes, generator=g, dtype=torch.float64) * spread
    return permuted(value, parent.clamp(min=-1), log_weight, torch.randperm(nodes, generator=g))


def permuted(value, parent, log_weight, order):
    """The same forest with row order[i] as row i."""
    new_row = torch.cat([torch.argsort(order), torch.tensor([-1])])  # the last for the parents -1
    return value[order], new_row[parent[order]], log_weight[order]


def star(children, seed=0):
    """A root, row ``children``, above that many leaves."""
    g = torch.Generator().manual_seed(seed)
    parent = torch.cat([torch.full((children,), children), torch.tensor([-1])])
    value, log_weight = torch.randn(2, children + 1, generator=g, dtype=torch.float64)
    return value, parent, log_weight


def check(device, forest, modes=TREE_BACKUPS, dtype=torch.float64, place=lambda t: t):
    value, parent, log_weight = forest
    value, log_weight = value.to(dtype), log_weight.to(dtype)
    for mode in modes:
        got = tree_backup(*(place(t.to(device)) for t in (value, parent, log_weight)), mode=mode)
        assert got.dtype == dtype
        assert got.shape == value.shape
        # One rounding to the dtype; in float64 a product of shares is rounded once a level on either side.
        truth = by_paths(value, parent, log_weight, mode)
        close(got, truth, rtol=torch.finfo(dtype).eps, atol=200 * 2.0**-52)


def check_expanded(device):
    """Children of one node, all of one value and one weight."""
    parent = torch.tensor([-1, 0, 0, 0], device=device)
    value, log_weight = (torch.tensor([x], device=device).expand(4) for x in (0.75, -2.0))
    for mode in TREE_BACKUPS:
        assert tree_backup(value, parent, log_weight, mode).tolist() == [0.75] * 4
    chains = tree_backup(value, parent[:1].expand(4), log_weight)  # roots alone
    assert chains.tolist() == [0.75] * 4


def check_order(device):
    """Any row order, the same bits, with values and weights over many orders of magnitude; nearly the same in numba."""
    for value, parent, log_weight in (star(70), random_forest(30, 7, reach=4, unknown=0.2, spread=20.0)):
        nodes = value.shape[0]
        g = torch.Generator().manual_seed(nodes)
        value *= 10.0 ** torch.randint(-12, 12, value.shape, generator=g)
        for mode in ("weighted", "mean", "leaf_mean"):
            first = tree_backup(value.to(device), parent.to(device), log_weight.to(device), mode)
            for _ in range(2):
                order = torch.randperm(nodes, generator=g)
                again = tree_backup(*(t.to(device) for t in permuted(value, parent, log_weight, order)), mode=mode)
                assert torch.equal(again.cpu().nan_to_num(77.0), first.cpu()[order].nan_to_num(77.0))
            weighted = mode == "weighted"
            twin, _ = climb_numba(value, parent, log_weight if weighted else None, mode == "leaf_mean")
            if weighted:  # the backends' exponentials differ in the last bit
                close(first, twin, rtol=1e-13, atol=1e-3)
            else:
                assert torch.equal(first.cpu().nan_to_num(77.0), twin.nan_to_num(77.0))


def check_gradient(device):
    """The adjoint against the matrix of the backup, one leaf's value at a time."""
    value, parent, log_weight = random_forest(40, 3, reach=4, unknown=0.2)
    upstream = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for mode in TREE_BACKUPS:
        x, w = (t.clone().to(device).requires_grad_() for t in (value, log_weight))
        out = tree_backup(x, parent.to(device), w, mode)
        (out.nan_to_num(0.0) * upstream.to(device)).sum().backward()
        inner = set(parent.tolist())
        for v in range(40):
            unit = torch.where(value.isnan(), NAN, 0.0)
            if v in inner or value[v].isnan():
                assert x.grad[v] == 0
                continue
            unit[v] = 1.0
            expected = (by_paths(unit, parent, log_weight, mode).nan_to_num(0.0) * upstream).sum()
            close(x.grad[v], expected, rtol=1e-13, atol=1e-14)
        if mode in ("mean", "leaf_mean"):
            assert w.grad is None
        else:
            # A weight as a number: central differences of the truth.
            for v in range(0, 40, 7):
                step = torch.zeros(40, dtype=torch.float64)
                step[v] = 1e-4
                ends = [by_paths(value, parent, log_weight + sign * step, mode).nan_to_num(0.0) for sign in (1, -1)]
                close(w.grad[v], ((ends[0] - ends[1]) * upstream).sum() / 2e-4, rtol=1e-6, atol=1e-7)


def check_odd_weights(device):
    """-inf for some siblings, for all, for the one whose value is not known; 1e30 beside 1e-30; +-1000."""
    parent = torch.tensor([-1, 0, 0, -1, 3, 3, -1, 6, 6, -1, 9, 9, -1, 12, 12, 12])
    value = [NAN, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, NAN, 5.0, 0.0, 1.0, 3.0, 0.0, 1.0, 5.0, NAN]
    tiny = math.log(1e-30)
    log_weight = [
        NAN,
        -INF,
        0,
        INF,
        -INF,
        -INF,
        NAN,
        1000,
        -1000,
        NAN,
        1000,
        -1000,
        NAN,
        tiny,
        tiny + math.log(3),
        -tiny,
    ]
    value, log_weight = (torch.tensor(t, dtype=torch.float64, device=device) for t in (value, log_weight))
    got = tree_backup(value, parent.to(device), log_weight)
    expected = [2, 1, 2, 1.5, 1, 2, 5, NAN, 5, 1, 1, 3, 4, 1, 5, NAN]
    close(got, torch.tensor(expected), rtol=1e-13)


def cases():
    for nodes in (0, 1, 2, 33):
        yield f"{nodes} nodes", functools.partial(check, forest=random_forest(nodes, nodes, unknown=0.1))
    few = ("weighted", "leaf_mean")
    for children in (31, 32, 33, 1023, 1024, 1025):
        modes = few[:1] if children > 33 else few
        yield f"{children} children", functools.partial(check, forest=star(children), modes=modes)
    yield "a chain", functools.partial(check, forest=random_forest(40, 0, reach=1), modes=few)
    yield "deep", functools.partial(check, forest=random_forest(40, 1, reach=3, unknown=0.3))
    yield "nobody known", functools.partial(check, forest=random_forest(50, 2, unknown=1.1))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        yield f"{dtype}", functools.partial(check, forest=random_forest(30, 4, unknown=0.1), modes=few, dtype=dtype)
    for name, place in PLACES.items():
        yield name, functools.partial(check, forest=random_forest(25, 5, unknown=0.1), modes=few, place=place)
    yield "expanded", check_expanded
    yield "any order", check_order
    yield "gradient", check_gradient
    yield "odd weights", check_odd_weights


def aot():
    from rtmc.kernels.tree_climb import _BLOCK, _adjoint_kernel, _backup_kernel

    types = "*i64 *fp64 *i64 *i64 *i32 *fp64 *fp64 *fp64 *fp64"
    for weighted, leaves, block in ((True, False, 32), (True, False, 1024), (False, False, 32), (False, True, 1024)):
        constexprs = {"WEIGHTED": weighted, "LEAVES": leaves, "BLOCK": block}
        yield AotCase(_backup_kernel, types, constexprs, num_warps=1 if block <= 128 else 4)
    yield AotCase(_adjoint_kernel, "*fp64 *fp64 *i64 *fp64 *fp64 *i64 i32", {"BLOCK": _BLOCK})
