"""The loops of the tree backup: from the leaves up, and from the roots down.

Each ``climb_*`` gives (b (V,), share (V,)) in float64, each ``descend_*`` the adjoint (V,); formulas, rules and
order of work: ``tree_backup.py``. ``log_weight`` None: every weight is 1. ``leaves``: the mean over leaves, by
sums and counts of leaves instead of weights and values.

Here too: the checks that read values, which every backend makes before and after. Not here: the reference, the
op, the gradient's formula.
"""

import math

import torch

from rtmc.kernels.backend import as_numpy, cdiv, jit, launch, lazy_njit, next_power_of_2, tl
from rtmc.kernels.segments import grid_constants, grid_parts, magnitude, rows_by_segment

__all__ = ["climb_numba", "climb_triton", "descend_numba", "descend_triton", "refuse_bad_nodes", "refuse_bad_results"]

_LARGEST = 2.0**900  # of what an exact sum holds
_INF = tl.constexpr(float("inf"))
_BLOCK = 1024


def refuse_bad_nodes(value: torch.Tensor, parent: torch.Tensor, width: torch.Tensor) -> int:
    """The largest of ``width`` (V,), the numbers of children, once every parent is a row and every leaf a number.

    ``value`` in float64. Waits for the device once.
    """
    if parent.shape[0] == 0:
        return 0
    nodes = torch.arange(parent.shape[0], device=parent.device)
    stray = (parent < -1) | (parent >= parent.shape[0]) | (parent == nodes)
    huge = (width == 0) & (value.abs() >= _LARGEST)
    wrong, widest = torch.stack([(stray | huge).any().long(), width.max()]).tolist()
    if wrong and stray.any():
        node = int(stray.nonzero()[0])
        wanted = f"-1 (a root) or another node, 0 to {parent.shape[0] - 1}"
        raise ValueError(f"`parent`: node {node} has {int(parent[node])}; wanted {wanted}")
    if wrong:
        node = int(huge.nonzero()[0])
        raise ValueError(f"`value`: leaf {node} has {float(value[node])}; wanted a number of size below 2^900, or NaN")
    return widest


def refuse_bad_results(unfinished: torch.Tensor, share: torch.Tensor, log_weight: torch.Tensor | None) -> None:
    """``unfinished`` (V,) bool: nodes that wait for a child for ever. Waits for the device once."""
    no_number = share.isnan()
    if not (unfinished | no_number).any():
        return
    if unfinished.any():
        raise ValueError(f"`parent`: node {int(unfinished.nonzero()[0])} is its own ancestor; wanted a forest")
    assert log_weight is not None  # else shares are numbers
    node = int((no_number & ~(log_weight < math.inf)).nonzero()[0])
    raise ValueError(f"`log_weight`: node {node} has {float(log_weight[node])}; wanted a number, or -inf for weight 0")


@jit
def _child_terms(
    at, end, top, children_V, log_weight_V, out_V, total_V, mass_V, WEIGHTED: tl.constexpr, LEAVES: tl.constexpr
):
    """(child, its term of the numerator, its term of the denominator, is it known) for a block of children.
    ``top`` (block): the largest log weight of the known siblings, infinite where one of them is NaN."""
    inside = at < end
    child = tl.load(children_V + at, mask=inside, other=0)
    if LEAVES:
        total = tl.load(total_V + child, mask=inside, other=0.0)
        mass = tl.load(mass_V + child, mask=inside, other=0.0)
        known = mass > 0.0
    else:
        b = tl.load(out_V + child, mask=inside, other=float("nan"))
        known = b == b
        mass = tl.where(known, 1.0, 0.0).to(tl.float64)
        if WEIGHTED:
            weight = tl.exp(tl.load(log_weight_V + child, mask=known, other=0.0) - top)
            mass = tl.where(known & (top > -_INF), weight, mass)
        total = mass * tl.where(known, b, 0.0)
    return child, total, mass, known


@jit
def _backup_kernel(
    parent_V,
    log_weight_V,
    starts_V1,
    children_V,
    pending_V,
    out_V,
    share_V,
    total_V,
    mass_V,
    WEIGHTED: tl.constexpr,
    LEAVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a node; those of leaves climb. ``pending_V`` (int32) counts down the children that are to come.

    The counter's atomic releases what this program stored below and acquires what the siblings' programs
    stored, so the last to arrive sees all of it; the others stop. On a cycle nobody is ever last.
    """
    node = tl.program_id(0).to(tl.int64)
    above = tl.load(parent_V + node)
    climbing = (tl.load(starts_V1 + node) == tl.load(starts_V1 + node + 1)) & (above >= 0)
    zero = tl.zeros((BLOCK,), tl.float64)
    while climbing:
        # The stores of all threads of the program stand before the release.
        tl.debug_barrier()
        last = tl.atomic_add(pending_V + above, -1) == 1
        if last:
            start = tl.load(starts_V1 + above)
            end = tl.load(starts_V1 + above + 1)
            lane = start + tl.arange(0, BLOCK)
            top = zero - _INF
            number = zero
            for done in range(0, end - start, BLOCK):
                child, _, _, known = _child_terms(
                    lane + done, end, zero, children_V, log_weight_V, out_V, total_V, mass_V, False, LEAVES
                )
                number += tl.where(known, 1.0, 0.0)
                if WEIGHTED:
                    weight = tl.load(log_weight_V + child, mask=known, other=-_INF)
                    top = tl.maximum(top, tl.where(weight == weight, weight, _INF))
            highest = zero + tl.max(top, 0)
            n = tl.sum(number, 0).to(tl.int64)

            bound_total = zero
            bound_mass = zero
            for done in range(0, end - start, BLOCK):
                _, total, mass, _ = _child_terms(
                    lane + done, end, highest, children_V, log_weight_V, out_V, total_V, mass_V, WEIGHTED, LEAVES
                )
                bound_total = tl.maximum(bound_total, magnitude(total))
                bound_mass = tl.maximum(bound_mass, magnitude(mass))
            most_total = tl.max(bound_total, 0)
            most_mass = tl.max(bound_mass, 0)
            # Leaves stay below 2^900, and shares below 1: no sum is scaled.
            c1_total, c2_total, down = grid_constants(most_total, n)
            c1_mass, c2_mass, _unscaled = grid_constants(most_mass, n)

            hi_total = zero
            lo_total = zero
            hi_mass = zero
            lo_mass = zero
            for done in range(0, end - start, BLOCK):
                _, total, mass, _ = _child_terms(
                    lane + done, end, highest, children_V, log_weight_V, out_V, total_V, mass_V, WEIGHTED, LEAVES
                )
                hi, lo = grid_parts(total, c1_total, c2_total, down)
                hi_total += hi
                lo_total += lo
                hi, lo = grid_parts(mass, c1_mass, c2_mass, down)
                hi_mass += hi
                lo_mass += lo
            sum_total = tl.sum(hi_total, 0) + tl.sum(lo_total, 0)
            sum_mass = tl.sum(hi_mass, 0) + tl.sum(lo_mass, 0)

            for done in range(0, end - start, BLOCK):
                child, _, mass, known = _child_terms(
                    lane + done, end, highest, children_V, log_weight_V, out_V, total_V, mass_V, WEIGHTED, LEAVES
                )
                share = tl.where(known, mass / sum_mass, 0.0)
                tl.store(share_V + child, share, mask=lane + done < end)
            tl.store(out_V + above, sum_total / sum_mass)
            if LEAVES:
                tl.store(total_V + above, sum_total)
                tl.store(mass_V + above, sum_mass)
            above = tl.load(parent_V + above)
        climbing = last & (above >= 0)


@jit
def _adjoint_kernel(sum_V, factor_V, jump_V, new_sum_V, new_factor_V, new_jump_V, V, BLOCK: tl.constexpr):
    """One round: what stands for the next 2^k ancestors of a node comes to stand for 2^(k+1)."""
    node = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = node < V
    jump = tl.load(jump_V + node, mask=inside, other=-1)
    going = jump >= 0
    factor = tl.load(factor_V + node, mask=inside, other=0.0)
    total = tl.load(sum_V + node, mask=inside, other=0.0)
    total = tl.where(going, total + factor * tl.load(sum_V + jump, mask=going, other=0.0), total)
    tl.store(new_sum_V + node, total, mask=inside)
    tl.store(new_factor_V + node, factor * tl.load(factor_V + jump, mask=going, other=0.0), mask=inside)
    tl.store(new_jump_V + node, tl.load(jump_V + jump, mask=going, other=-1), mask=inside)


def climb_triton(
    value: torch.Tensor, parent: torch.Tensor, log_weight: torch.Tensor | None, leaves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    value = value.double().contiguous()
    nodes = parent.shape[0]
    children, starts = rows_by_segment(parent, nodes)
    width = starts.diff()
    widest = refuse_bad_nodes(value, parent, width)
    out, share = value.clone(), torch.zeros_like(value)
    pending = width.int()
    known = ((width == 0) & ~value.isnan()).double()
    total = torch.where(known > 0, value, 0.0) if leaves else out
    block = min(max(next_power_of_2(widest), 32), 1024)
    launch(
        _backup_kernel,
        (nodes,),
        parent.contiguous(),
        out if log_weight is None else log_weight.double().contiguous(),
        starts,
        children,
        pending,
        out,
        share,
        total,
        known,
        WEIGHTED=log_weight is not None,
        LEAVES=leaves,
        BLOCK=block,
        num_warps=1 if block <= 128 else 4,
    )
    refuse_bad_results(pending > 0, share, log_weight)
    return out, share


def descend_triton(grad: torch.Tensor, parent: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    nodes = parent.shape[0]
    now = [grad.double().contiguous(), share.contiguous(), parent.contiguous()]
    # A node has at most nodes - 1 ancestors.
    for _ in range(max(nodes - 1, 0).bit_length()):
        then = [torch.empty_like(part) for part in now]
        launch(_adjoint_kernel, (cdiv(nodes, _BLOCK),), *now, *then, nodes, BLOCK=_BLOCK)
        now = then
    return now[0].clone()


@lazy_njit
def _grid_numba(bound, n):
    """``_grid_constants_numba`` of segment_loop.py, below 2^900; numba's cache follows no call into another file."""
    exponent = max(math.frexp(bound)[1], -1022) if bound > 0.0 else -1022
    log_n = math.frexp(float(n + 2))[1]
    first = min(max(exponent + 1023 + log_n, 1), 2045)
    return math.ldexp(1.5, first - 1023), math.ldexp(1.5, max(first - 53 + log_n, 1) - 1023)


@lazy_njit
def _children_numba(parent, starts, children, cursor):
    """Children of v: children[starts[v] : starts[v+1]]; parents out of range are left out. All come zeroed."""
    nodes = len(parent)
    for v in range(nodes):
        if 0 <= parent[v] < nodes:
            starts[parent[v] + 1] += 1
    for v in range(nodes):
        starts[v + 1] += starts[v]
        cursor[v] = starts[v]
    for v in range(nodes):
        if 0 <= parent[v] < nodes:
            children[cursor[parent[v]]] = v
            cursor[parent[v]] += 1


@lazy_njit
def _combine_numba(v, starts, children, log_weight, weighted, leaves, out, share, total, mass):
    """Node v from its children, all of them done. ``total`` and ``mass``: a child's terms of the quotient."""
    n = 0
    top = -math.inf
    for i in range(starts[v], starts[v + 1]):
        c = children[i]
        if leaves:
            n += mass[c] > 0.0
        elif out[c] == out[c]:
            n += 1
            if weighted:
                weight = log_weight[c]
                top = max(top, weight if weight == weight else math.inf)
    most_total = 0.0
    most_mass = 0.0
    for i in range(starts[v], starts[v + 1]):
        c = children[i]
        if not leaves:
            known = out[c] == out[c]
            mass[c] = 1.0 if known else 0.0
            if known and weighted and top != -math.inf:
                mass[c] = math.exp(log_weight[c] - top)
            total[c] = mass[c] * out[c] if known else 0.0
        # NaN, from a log weight that is none, is no bound: the sums are NaN on any grid.
        most_total = abs(total[c]) if abs(total[c]) > most_total else most_total
        most_mass = mass[c] if mass[c] > most_mass else most_mass
    sum_total = math.nan
    sum_mass = math.nan
    if n > 0:
        c1_total, c2_total = _grid_numba(most_total, n)
        c1_mass, c2_mass = _grid_numba(most_mass, n)
        hi_total, lo_total, hi_mass, lo_mass = 0.0, 0.0, 0.0, 0.0
        for i in range(starts[v], starts[v + 1]):
            c = children[i]
            hi = (total[c] + c1_total) - c1_total
            hi_total += hi
            lo_total += ((total[c] - hi) + c2_total) - c2_total
            hi = (mass[c] + c1_mass) - c1_mass
            hi_mass += hi
            lo_mass += ((mass[c] - hi) + c2_mass) - c2_mass
        sum_total = hi_total + lo_total
        sum_mass = hi_mass + lo_mass
    for i in range(starts[v], starts[v + 1]):
        c = children[i]
        absent = n == 0 or (mass[c] == 0.0 if leaves else out[c] != out[c])
        share[c] = 0.0 if absent else mass[c] / sum_mass
    out[v] = sum_total / sum_mass
    if leaves:
        total[v] = 0.0 if n == 0 else sum_total
        mass[v] = 0.0 if n == 0 else sum_mass


@lazy_njit
def _backup_numba(parent, log_weight, weighted, leaves, starts, children, pending, out, share, total, mass):
    """Every leaf climbs while the node above has no other child to wait for, as the programs of ``_backup_kernel`` do:
    a node is combined right after its last child. ``pending`` ends positive exactly on the cycles."""
    for v in range(len(parent)):
        pending[v] = starts[v + 1] - starts[v]
        if pending[v] == 0 and out[v] == out[v]:
            mass[v] = 1.0
            total[v] = out[v]
    for leaf in range(len(parent)):
        if starts[leaf] < starts[leaf + 1]:
            continue
        above = parent[leaf]
        while above >= 0:
            pending[above] -= 1
            if pending[above] > 0:
                break
            _combine_numba(above, starts, children, log_weight, weighted, leaves, out, share, total, mass)
            above = parent[above]


@lazy_njit
def _adjoint_numba(parent, share, done, path, adjoint):
    """``adjoint`` comes in as the gradient; ``done`` as False."""
    for start in range(len(parent)):
        length = 0
        v = start
        while v >= 0 and not done[v]:
            path[length] = v
            length += 1
            v = parent[v]
        for i in range(length - 1, -1, -1):
            v = path[i]
            done[v] = True
            if parent[v] >= 0:
                adjoint[v] += share[v] * adjoint[parent[v]]


def climb_numba(
    value: torch.Tensor, parent: torch.Tensor, log_weight: torch.Tensor | None, leaves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    nodes = parent.shape[0]
    out = value.detach().double().clone(memory_format=torch.contiguous_format)
    share, total, mass = torch.zeros(3, nodes, dtype=torch.float64).unbind(0)
    starts = torch.zeros(nodes + 1, dtype=torch.int64)
    children, pending = torch.zeros(2, nodes, dtype=torch.int64).unbind(0)
    above = as_numpy(parent)
    _children_numba(above, starts.numpy(), children.numpy(), pending.numpy())
    refuse_bad_nodes(out, parent, starts.diff())
    scores = out.numpy() if log_weight is None else as_numpy(log_weight, torch.float64)
    parts = [part.numpy() for part in (starts, children, pending, out, share, total, mass)]
    _backup_numba(above, scores, log_weight is not None, leaves, *parts)
    refuse_bad_results(pending > 0, share, log_weight)
    return out, share.clone()


def descend_numba(grad: torch.Tensor, parent: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    adjoint = grad.detach().double().clone(memory_format=torch.contiguous_format)
    done, path = torch.zeros(parent.shape, dtype=torch.bool), torch.empty(parent.shape, dtype=torch.int64)
    _adjoint_numba(as_numpy(parent), as_numpy(share), done.numpy(), path.numpy(), adjoint.numpy())
    return adjoint
