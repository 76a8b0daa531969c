"""Cases of ``rollout_tree_advantages``: RTMC in exact fractions, straight from its definition."""

import contextlib
import functools
import itertools
import math
import unittest.mock
from collections import defaultdict
from fractions import Fraction

import torch

from rtmc.kernels import ids, returns, segments, tree_group, tree_table
from rtmc.kernels.backend import backend_for, launch
from rtmc.kernels.rollout_tree import _tree_reference, rollout_tree_advantages
from rtmc.kernels.tree_loop import tree_numba
from tests.kernel_cases import PLACES, AotCase, close, offsets_of

FIELDS = ("advantage", "q", "v", "returns", "visits", "action_visits")


def random_tree(seed, rollouts, groups, longest, states=5, actions=3, unknown=0.2):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (rollouts,), generator=g)
    offsets = offsets_of(lengths.tolist())
    rows = int(offsets[-1])
    outcome = torch.randint(0, 2, (rollouts,), generator=g).double()
    outcome[torch.rand(rollouts, generator=g) < unknown] = math.nan
    return {
        "reward": torch.randn(rows, generator=g, dtype=torch.float64) * 0.1,
        "outcome": outcome,
        "offsets": offsets,
        "rollout_group": torch.randint(0, groups, (rollouts,), generator=g) * 7 - 3,
        "state": torch.randint(-1, states, (rows,), generator=g) * 2**40,
        "action": torch.randint(0, actions, (rows,), generator=g),
    }


def exact(tree, gamma, prior_visits, prior, first_visit):
    """Column name -> list, from fractions."""
    gamma, strength = Fraction(gamma), Fraction(prior_visits)
    offsets, group = tree["offsets"].tolist(), tree["rollout_group"].tolist()
    state, action = tree["state"].tolist(), tree["action"].tolist()
    outcome = tree["outcome"].tolist()
    gain = [Fraction(x) for x in tree["reward"].tolist()]
    paths = [range(a, b) for a, b in itertools.pairwise(offsets)]
    starts, by_state, by_pair = defaultdict(list), defaultdict(list), defaultdict(list)
    for path, g, won in zip(paths, group, outcome, strict=True):
        known = not math.isnan(won)
        if known and len(path):
            gain[path[-1]] += Fraction(won)
        for t in reversed(path[:-1]):
            gain[t] += gamma * gain[t + 1]
        if known:
            by_return = prior == "mean_return" and len(path)
            starts[g].append(gain[path[0]] if by_return else Fraction(won))
            pairs = [(state[t], action[t]) for t in path]
            for k, t in enumerate(path):
                if not first_visit or pairs[k] not in pairs[:k]:
                    by_state[g, state[t]].append(gain[t])
                    by_pair[g, state[t], action[t]].append(gain[t])
    totals = {cell: sum(gains) for cells in (by_state, by_pair) for cell, gains in cells.items()}
    out: dict[str, list[float]] = {field: [] for field in FIELDS}
    for path, g, won in zip(paths, group, outcome, strict=True):
        p = sum(starts[g]) / len(starts[g]) if starts[g] else Fraction(0)
        for t in path:
            in_state, in_pair = (g, state[t]), (g, state[t], action[t])
            n_s, n_sa = len(by_state[in_state]), len(by_pair[in_pair])
            v = (totals.get(in_state, 0) + strength * p) / (n_s + strength) if n_s + strength else Fraction(0)
            q = totals[in_pair] / n_sa if n_sa else v
            advantage = q - v if not math.isnan(won) else Fraction(0)
            row = (advantage, q, v, gain[t], n_s, n_sa)
            for field, value in zip(FIELDS, row, strict=True):
                out[field].append(float(value))
    return out


def same_bits(one, other):
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.cpu().nan_to_num(nan=0.5), b.cpu().nan_to_num(nan=0.5)) for a, b in pairs)


def numba_of(tree, gamma=0.97, prior_visits=2.0, prior="success_rate", first_visit=True):
    """The numba loop, whatever the backend: it has to give the bits of the kernels."""
    return tree_numba(*tree.values(), gamma, prior_visits, prior, first_visit)


def check(device, tree, gamma=0.97, prior_visits=2.0, prior="success_rate", first_visit=True, paths=("",)):
    truth = exact(tree, gamma, prior_visits, prior, first_visit)
    arguments = {name: tensor.to(device) for name, tensor in tree.items()}
    arguments["state"] = torch.stack([arguments["state"]] * 2, 1)[:, 1]
    results = []
    saved = tree_group.LARGEST_BLOCK
    for path in paths:
        try:
            tree_group.LARGEST_BLOCK = 0 if path == "sorted" else saved
            got = rollout_tree_advantages(
                **arguments, gamma=gamma, prior_visits=prior_visits, prior=prior, first_visit=first_visit
            )
        finally:
            tree_group.LARGEST_BLOCK = saved
        results.append(got)
        for field in FIELDS:
            value = getattr(got, field)
            assert value.shape == tree["reward"].shape
            # A few float64 roundings, then one to the reward's dtype.
            unit = torch.finfo(tree["reward"].dtype).eps
            close(value, torch.tensor(truth[field], dtype=torch.float64), rtol=max(unit, 1e-13), atol=1e-13)
    results.append(numba_of(tree, gamma, prior_visits, prior, first_visit))
    for other in results[1:]:
        assert same_bits(results[0], other), "the paths differ"


def both_ways(arguments, **options):
    """By one launch and by sorted cells; on the CPU the same loop twice."""
    results = []
    for limit in (tree_group.LARGEST_BLOCK, 0):
        with unittest.mock.patch.object(tree_group, "LARGEST_BLOCK", limit):
            results.append(rollout_tree_advantages(**arguments, **options))
    assert same_bits(*results), "the paths differ"
    return results[0]


def check_odd(device, value, prior, outcome):
    """A return that is no number, by a reward or an outcome: the cells that count it and no other, and P where it
    enters that."""
    options = {"gamma": 0.9, "prior_visits": 2.0, "prior": prior, "first_visit": True}
    tree = random_tree(6, rollouts=10, groups=2, longest=8, unknown=0.0)
    offsets, groups = tree["offsets"].tolist(), tree["rollout_group"].tolist()
    hit = next(r for r in range(10) if offsets[r + 1] - offsets[r] >= 4)
    begin, row = offsets[hit], offsets[hit] + 2
    end = offsets[hit + 1] if outcome else row + 1  # of the returns that are no numbers
    if outcome:
        tree["outcome"][hit] = value
    else:
        tree["reward"][row] = value
    got = both_ways({name: column.to(device) for name, column in tree.items()}, **options)
    assert same_bits(got, numba_of(tree, **options))

    of_row = torch.tensor(groups).repeat_interleave(tree["offsets"].diff()).tolist()
    keys = list(zip(of_row, tree["state"].tolist(), tree["action"].tolist(), strict=True))
    counted = {keys[t] for t in range(begin, end) if keys[t] not in keys[begin:t]}
    in_prior = outcome or prior == "mean_return"
    odd_q = [key in counted for key in keys]
    odd_v = [key[:2] in {c[:2] for c in counted} or (in_prior and key[0] == groups[hit]) for key in keys]
    assert (~got.q.isfinite()).tolist() == odd_q
    assert (~got.v.isfinite()).tolist() == odd_v
    assert (~got.advantage.isfinite()).tolist() == [q or v for q, v in zip(odd_q, odd_v, strict=True)]
    assert not all(odd_q[t] for t in range(len(keys)) if of_row[t] == groups[hit])
    for a, b in zip(got, _tree_reference(*tree.values(), *options.values()), strict=True):
        close(a, b, rtol=1e-13, atol=1e-13)


def check_odd_keeps_bits(device):
    """NaN in place of a return that is not the largest moves no bit of the cells it is not in."""
    options = {"gamma": 0.5, "prior_visits": 2.0, "prior": "success_rate"}
    reward = torch.tensor([0.1, 0.2, 0.3, 7.0, 0.6, 1 / 3], dtype=torch.float64)
    tree = {
        "outcome": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), "offsets": torch.tensor([0, 2, 4, 6]),
        "rollout_group": torch.zeros(3, dtype=torch.int64), "state": torch.tensor([8, 9, 1, 2, 1, 2]),
        "action": torch.tensor([0, 0, 1, 1, 2, 2]),
    }  # fmt: skip
    tree = {name: column.to(device) for name, column in tree.items()}
    whole = both_ways({"reward": reward.to(device), **tree}, **options)
    for value in (math.nan, math.inf, -math.inf):
        reward[1] = value
        got = both_ways({"reward": reward.to(device), **tree}, **options)
        assert all(torch.equal(a[2:], b[2:]) for a, b in zip(got, whole, strict=True))
        assert not got.q[:2].isfinite().any()


def check_large(device):
    """Returns up to the largest number: sums that pass float64 on their way, and one that does for good."""
    top = torch.finfo(torch.float64).max
    reward = torch.tensor([top, top, -top, -top, top, top, 1.0], dtype=torch.float64)
    tree = {
        "reward": reward, "outcome": torch.zeros(7, dtype=torch.float64), "offsets": torch.arange(8),
        "rollout_group": torch.tensor([0, 0, 0, 0, 0, 0, 1]), "state": torch.tensor([1, 1, 1, 1, 2, 2, 1]),
        "action": torch.zeros(7, dtype=torch.int64),
    }  # fmt: skip
    options = {"gamma": 0.9, "prior_visits": 0.0, "prior": "success_rate", "first_visit": True}
    got = both_ways({name: column.to(device) for name, column in tree.items()}, **options)
    assert got.q.tolist() == [0.0] * 4 + [math.inf] * 2 + [1.0]
    assert same_bits(got, numba_of(tree, **options))
    for a, b in zip(got, _tree_reference(*tree.values(), *options.values()), strict=True):
        close(a, b, rtol=0)


def check_place(device, place):
    """``place`` puts every column elsewhere, or makes it narrower."""
    tree = random_tree(3, 8, 2, 6)
    tree["state"] //= 2**40
    options = {"gamma": 0.9, "prior_visits": 2.0, "prior": "success_rate", "first_visit": True}
    got = both_ways({name: place(column.to(device)) for name, column in tree.items()}, **options)
    truth = exact(tree, *options.values())
    for field, column in zip(FIELDS, got, strict=True):
        close(column, torch.tensor(truth[field], dtype=torch.float64), rtol=1e-13, atol=1e-13)


def check_expanded(device):
    """One reward, one action and one outcome for all."""
    tree = random_tree(3, 8, 2, 6)
    tree |= {name: tree[name][:1].nan_to_num(1.0) for name in ("reward", "outcome", "action")}
    sizes = {"reward": len(tree["state"]), "outcome": 8, "action": len(tree["state"])}
    tree = {name: column.to(device) for name, column in tree.items()}
    options = {"gamma": 0.9, "prior_visits": 2.0, "prior": "mean_return"}
    spread = {**tree, **{name: tree[name].expand(size) for name, size in sizes.items()}}
    solid = {name: column.contiguous() for name, column in spread.items()}
    assert same_bits(both_ways(spread, **options), both_ways(solid, **options))


def check_large_group(device):
    """One group of more rows than a block: the sorted path by its own choice."""
    tree = random_tree(5, rollouts=24, groups=1, longest=110, states=9, actions=4)
    assert len(tree["reward"]) > tree_group.LARGEST_BLOCK
    check(device, tree, gamma=0.5)


def tree_of_lengths(*groups):
    """Groups of rollouts of these lengths, the groups' rollouts taken in turns."""
    turns = sorted((k, g, length) for g, lengths in enumerate(groups) for k, length in enumerate(lengths))
    g = torch.Generator().manual_seed(len(turns))
    rows = sum(length for _, _, length in turns)
    return {
        "reward": torch.randn(rows, generator=g, dtype=torch.float64),
        "outcome": torch.randint(0, 2, (len(turns),), generator=g).double(),
        "offsets": offsets_of([length for _, _, length in turns]),
        "rollout_group": torch.tensor([group for _, group, _ in turns]),
        "state": torch.randint(0, 40, (rows,), generator=g),
        "action": torch.randint(0, 3, (rows,), generator=g),
    }


def check_limit(device, groups, launches, limit=64):
    """Around the largest group of one launch, ``limit`` rows: how many launches, and the bits of the numba loop."""
    tree = tree_of_lengths(*groups)
    seen = []

    def counting(kernel, *args, **options):
        seen.append(getattr(kernel, "__name__", str(kernel)))
        launch(kernel, *args, **options)

    with contextlib.ExitStack() as patches:
        for module in (ids, segments, returns, tree_group, tree_table):
            patches.enter_context(unittest.mock.patch.object(module, "launch", counting))
        patches.enter_context(unittest.mock.patch.object(tree_group, "LARGEST_BLOCK", limit))
        got = rollout_tree_advantages(
            **{name: column.to(device) for name, column in tree.items()},
            gamma=0.97, prior_visits=2.0, prior="success_rate",
        )  # fmt: skip
    if backend_for(torch.device(device).type) == "triton":
        assert len(seen) == launches, seen
    assert same_bits(got, numba_of(tree))
    # The reference sums in another way, so it agrees to rounding alone.
    truth = _tree_reference(*tree.values(), 0.97, 2.0, "success_rate", True)
    for a, b in zip(got, truth, strict=True):
        close(a, b, rtol=1e-9, atol=1e-11)


def cases():
    few = [5, 0, 9]
    limits = {"a block of rows": ([40, 24], few), "one long rollout": ([64],), "40 rollouts": ([1] * 40, few)}
    for name, groups in limits.items():
        yield f"{name}: one launch", functools.partial(check_limit, groups=groups, launches=1)
    # Returns, two kinds of cells and the rows; ids of groups, states, pairs and visits in two each; prior and bound.
    yield "one row more beside few", functools.partial(check_limit, groups=([40, 25], few), launches=14)
    tree = random_tree(1, rollouts=12, groups=3, longest=9)
    for prior in ("success_rate", "mean_return"):
        for first_visit in (True, False):
            for prior_visits in (0.0, 2.0):
                name = f"{prior}, first_visit {first_visit}, prior_visits {prior_visits:g}"
                yield name, functools.partial(
                    check, tree=tree, prior=prior, first_visit=first_visit, prior_visits=prior_visits,
                    paths=("group", "sorted"),
                )  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        yield f"{dtype}", functools.partial(check, tree={**tree, "reward": tree["reward"].to(dtype)})
    wide = random_tree(2, rollouts=20, groups=2, longest=40)
    yield "wider groups", functools.partial(check, tree=wide, gamma=1.0, paths=("group", "sorted"))
    yield "one more than a block", check_large_group
    yield "no rows", functools.partial(check, tree=random_tree(3, 3, 2, 0))
    yield "no rollouts", functools.partial(check, tree=random_tree(3, 0, 1, 0))
    yield "nobody known", functools.partial(check, tree=random_tree(4, 6, 2, 5, unknown=1.1), paths=("group", "sorted"))

    for value, outcome in ((math.nan, False), (math.inf, False), (-math.inf, True)):
        for prior in ("success_rate", "mean_return"):
            name = f"{'outcome' if outcome else 'reward'} {value}, {prior}"
            yield name, functools.partial(check_odd, value=value, prior=prior, outcome=outcome)
    yield "bits beside what is no number", check_odd_keeps_bits
    yield "returns near the largest number", check_large
    for name, place in PLACES.items():
        yield name, functools.partial(check_place, place=place)
    yield "expanded", check_expanded


def aot():
    from rtmc.kernels.tree_group import _group_kernel
    from rtmc.kernels.tree_table import _BLOCK, _CHAINS, _cell_kernel, _chain_kernel, _read_kernel

    types = "*{0} *i64 *i64 *fp64 *i64 *i64 *i64 i64 i64 *{0} *i64 {1}"
    kinds = [("fp32", block, True) for block in (64, 128, 256, 512, 1024)] + [("fp64", 1024, False)]
    for scalar, block, choice in kinds:
        constexprs = {"BY_RETURN": not choice, "FIRST": choice, "BLOCK": block, "MEMBERS": 32}
        warps = max(block // 64, 1)
        yield AotCase(_group_kernel, types.format(scalar, "i32 i32"), constexprs, num_warps=warps)
    # A size of 1 reaches the kernel as a compile-time constant.
    constexprs = {"R": 1, "S": 1, "BY_RETURN": True, "FIRST": True, "BLOCK": 32, "MEMBERS": 32}
    yield AotCase(_group_kernel, types.format("fp32", ""), constexprs, num_warps=1)
    for scalar in ("fp32", "fp64"):
        yield AotCase(_chain_kernel, f"*{scalar} *fp64 *i64 i64 *fp64 i32", {"BLOCK": _CHAINS}, num_warps=1)
    types = "*fp64 *i64 *i64 *i64 *i64 *fp64 *i64 *i64 *fp64"
    yield AotCase(_cell_kernel, types, {"BLOCK": 128}, num_warps=1)
    types = "*i64 *i64 *i64 *i64 *fp64 *i64 *fp64 *i64 *fp64 *fp64 i64 *fp32 *i64 i32"
    yield AotCase(_read_kernel, types, {"BLOCK": _BLOCK})
