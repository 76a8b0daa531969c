"""Values of the leaves of a forest, carried up to every node.

With l = log_weight, b(v) = value(v) at a leaf (a node without children) and, at a node with children c,

    weighted, softmax   b(v) = sum_c e^{l(c)} b(c) / sum_c e^{l(c)}
    mean                b(v) = mean of b(c) over the children
    leaf_mean           b(v) = mean of value over the leaves below v

A softmax of l is the average with weights e^l, so the two names run one code. The largest l among siblings is
taken off before the exponential: weights of e^-1000 beside e^1000 neither vanish together nor overflow.

Not known, not weighed
----------------------
A leaf of value NaN is absent: it takes no part, weights are normalised over the siblings that are known, and a
node without a known leaf below it is NaN and absent in its turn. l = -inf is the weight 0; where all known
siblings have it, nothing tells them apart and they count alike (the plain mean). The value of an inner node
and the weight of a root are not looked at.

Order
-----
Rows stand in any order. Siblings are added by the exact sums of ``segments.py`` in float64, so the order of
rows changes no bit. A leaf climbs while it is the last child to arrive (a counter a node tells): O(V), no
recursion, no depths. On the CPU one leaf after the other; on CUDA one program a leaf, so one launch does any
depth and any number of trees, a chain being walked by one program. Which program climbs on depends on the
race, what it adds up does not. The host waits twice, for the checks before and after.

Gradient: b is linear in the values. With share(c) = e^{l(c)} / sum over known siblings (leaf_mean: the leaves
below c over those below the siblings), the transpose goes down from the roots, one parent a node, no sum:

    a(v) = g(v) + share(v) a(parent(v))        dL/dvalue(leaf) = a(leaf)
                                               dL/dl(c) = share(c) a(parent) (b(c) - b(parent))

CUDA does that in log2(V) rounds of pointer jumping, without a wait.

Not here: where weights come from (scores, entropies), normalised leaf values, advantages.

Source: the normalised backup of TreeHCA and ``child_softmax``, ``child_mean``, ``leaf_mean`` of AT2PO (arXiv
2601.04767).
"""

import math

import torch

from rtmc.kernels.backend import FLOAT_DTYPES, check_integers, check_tensor, choose, register_op
from rtmc.kernels.tree_climb import (
    climb_numba,
    climb_triton,
    descend_numba,
    descend_triton,
    refuse_bad_nodes,
    refuse_bad_results,
)

__all__ = ["TREE_BACKUPS", "tree_backup"]

TREE_BACKUPS = ("weighted", "mean", "leaf_mean", "softmax")


def _leaves_first(parent: list[int]) -> tuple[list[int], list[list[int]], list[bool]]:
    """(nodes with children before parents, children of each node, is the node on a cycle)."""
    children: list[list[int]] = [[] for _ in parent]
    for node, above in enumerate(parent):
        if above >= 0:
            children[above].append(node)
    waiting = [len(below) for below in children]
    order = [node for node, below in enumerate(children) if not below]
    for node in order:  # grows meanwhile
        above = parent[node]
        if above >= 0:
            waiting[above] -= 1
            if waiting[above] == 0:
                order.append(above)
    return order, children, [left > 0 for left in waiting]


def _tree_backup_reference(
    value: torch.Tensor, parent: torch.Tensor, log_weight: torch.Tensor | None, leaves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    value = value.double()
    refuse_bad_nodes(value, parent, (parent == torch.arange(parent.shape[0], device=parent.device)[:, None]).sum(1))
    order, children, unfinished = _leaves_first(parent.tolist())
    device = value.device
    out, share = value.tolist(), [0.0] * value.shape[0]
    below = [[] if children[node] or math.isnan(out[node]) else [out[node]] for node in range(len(out))]
    scores = [0.0] * len(out) if log_weight is None else log_weight.double().tolist()
    for node in order:
        if not children[node]:
            continue
        known = [c for c in children[node] if not math.isnan(out[c])]
        below[node] = [x for c in known for x in below[c]] if leaves else [0.0] * len(known)
        top = max((scores[c] if scores[c] == scores[c] else math.inf for c in known), default=-math.inf)
        if leaves:
            weights = [float(len(below[c])) for c in known]
        else:
            weights = [1.0 if top == -math.inf else math.exp(scores[c] - top) for c in known]
        # fsum rounds the exact sum, whatever the order.
        total = math.fsum(below[node] if leaves else [w * out[c] for w, c in zip(weights, known, strict=True)])
        mass = math.fsum(weights)
        out[node] = total / mass if known else math.nan
        for w, c in zip(weights, known, strict=True):
            share[c] = w / mass
    shares = torch.tensor(share, dtype=torch.float64, device=device)
    refuse_bad_results(torch.tensor(unfinished, dtype=torch.bool, device=device), shares, log_weight)
    return torch.tensor(out, dtype=torch.float64, device=device), shares


def _tree_adjoint_reference(grad: torch.Tensor, parent: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    above, adjoint = parent.tolist(), grad.double().clone()
    for node in reversed(_leaves_first(above)[0]):
        if above[node] >= 0:
            adjoint[node] += share[node] * adjoint[above[node]]
    return adjoint


def _backup_fake(
    value: torch.Tensor, parent: torch.Tensor, log_weight: torch.Tensor | None, leaves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    out, share = (value.new_empty(value.shape, dtype=torch.float64) for _ in range(2))
    return out, share


def _backup_setup(ctx, inputs, output):
    value, parent, log_weight, ctx.leaves = inputs
    out, share = output
    ctx.mark_non_differentiable(share)
    ctx.value_dtype = value.dtype
    ctx.save_for_backward(parent, log_weight, out, share)


def _backup_bwd(ctx, grad, _):
    parent, log_weight, out, share = ctx.saved_tensors
    adjoint = _adjoint_op(grad, parent, share)
    known = ~out.isnan()
    # One more row for the -1 of the roots.
    inner = torch.zeros(parent.shape[0] + 1, dtype=torch.bool, device=parent.device)
    inner[parent] = True
    grad_value = torch.where(known & ~inner[:-1], adjoint, 0.0).to(ctx.value_dtype)
    grad_weight = None
    if log_weight is not None:
        above = parent.clamp_min(0)
        moves = known & (parent >= 0) & (log_weight > -math.inf)
        slope = adjoint[above] * share * (out - out[above])
        grad_weight = torch.where(moves, slope, 0.0).to(log_weight.dtype)
    return grad_value, None, grad_weight, None


_op = register_op(
    "tree_backup",
    "(Tensor value, Tensor parent, Tensor? log_weight, bool leaves) -> (Tensor, Tensor)",
    reference=_tree_backup_reference,
    triton=climb_triton,
    numba=climb_numba,
    fake=_backup_fake,
    backward=_backup_bwd,
    setup_context=_backup_setup,
)

# Its parents have been checked by the op above.
_adjoint_op = register_op(
    "tree_backup_adjoint",
    "(Tensor grad, Tensor parent, Tensor share) -> Tensor",
    reference=_tree_adjoint_reference,
    triton=descend_triton,
    numba=descend_numba,
    fake=lambda grad, parent, share: torch.empty_like(share, memory_format=torch.contiguous_format),
)


def tree_backup(
    value: torch.Tensor, parent: torch.Tensor, log_weight: torch.Tensor | None = None, mode: str = "weighted"
) -> torch.Tensor:
    """Value of every node of a forest from the values of its leaves (formulas and rules: top of this file).

    Parameters
    ----------
    value : (V,) float16, bfloat16, float32 or float64
        Read at the leaves; NaN = unknown, absent. Any strides, any row order.
    parent : (V,) int64, or int32, which is widened
        Row of each node's parent, -1 for a root. Any number of trees, any depth.
    log_weight : (V,) floating, optional
        Logarithm of each node's weight among its siblings; -inf = weight 0. The modes "weighted" and
        "softmax" need it, the others do not look at it.
    mode : "weighted", "softmax" (the same), "mean" or "leaf_mean"

    Returns
    -------
    (V,) in the dtype of ``value``, computed in float64 and rounded once; any permutation of the rows gives the
    same bits. Differentiable (once) in ``value`` and ``log_weight``; where -inf stands the gradient is 0.

    Raises TypeError or ValueError for a wrong dtype, shape, device or mode; a parent out of range; a node that
    is its own ancestor; a leaf's value that is infinite, or 2^900 and more; a log weight of NaN or +inf at a
    node that has a parent and a known value. The message names the node.
    """
    check_tensor("value", value, dtypes=FLOAT_DTYPES, shape=("V",))
    parent = check_integers("parent", parent, shape=tuple(value.shape), device=value.device)
    choose("mode", mode, TREE_BACKUPS)
    weighted = mode in ("weighted", "softmax")
    if weighted and log_weight is None:
        raise TypeError(f"`log_weight`: got None; wanted a tensor (V,), which mode {mode!r} averages by")
    if log_weight is not None:
        check_tensor("log_weight", log_weight, dtypes=FLOAT_DTYPES, shape=tuple(value.shape), device=value.device)
    out, _ = _op(value, parent, log_weight if weighted else None, mode == "leaf_mean")
    return out.to(value.dtype)
