"""Each op of kernels/ on every device here, beside its torch reference and what a user would write in plain torch.

"reference" is the public op under ``RTMC_BACKEND=reference``. The plain peers do the same work with the functions torch
has for it (for the policy loss also under ``torch.compile``); where torch has none, the reference is the only peer.
GB/s counts the bytes an op cannot avoid: every input read once, every output written once.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch
from measure import Case

from rtmc.kernels.broadcast import broadcast_to_tokens
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.policy_loss import policy_loss
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.rollout_tree import rollout_tree_advantages
from rtmc.kernels.segments import segment_stats

TESTS = [
    f"tests/test_{op}.py"
    for op in ("returns", "ids", "segments", "rollout_tree", "broadcast", "token_weights", "policy_loss")
]
NOTES: list[str] = []


def reference(work: Callable) -> Callable:
    """``work`` with every op run by its reference."""

    def run():
        with patch.dict(os.environ, RTMC_BACKEND="reference"):
            return work()

    return run


def compiled(function: Callable, *args) -> Callable | None:
    """``torch.compile(function)`` once it has run on ``args``; None, with a note, where no compiler works here."""
    try:
        fast = torch.compile(function)
        fast(*args)
    except Exception as error:  # what a missing compiler raises differs between torch releases
        NOTES.append(f"no torch.compile on this machine: {str(error).strip().splitlines()[0][:200]}")
        return None
    return fast


def largest(ours, other) -> float:
    """The largest relative difference over (tuples of) tensors, scaled by each tensor's largest entry."""
    pairs = zip(ours, other, strict=True) if isinstance(ours, tuple) else [(ours, other)]
    errors = [0.0]
    for a, b in pairs:
        a, b = a.detach().double(), b.detach().double()
        if a.numel():
            errors.append(((a - b).abs().nan_to_num(0).max() / b.abs().nan_to_num(0).max().clamp(min=1e-30)).item())
            if not torch.equal(a.isnan(), b.isnan()):
                return float("inf")
    return max(errors)


def rollouts(steps: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(reward, offsets) of rollouts of 50 steps."""
    g = torch.Generator().manual_seed(0)
    offsets = torch.arange(0, steps + 1, 50)
    return torch.randn(steps, generator=g).to(device), offsets.to(device)


def returns_case(quick: bool, device: str) -> Case:
    steps = 100_000 if quick else 1_000_000
    reward, offsets = rollouts(steps, device)
    work = partial(discounted_returns, reward, offsets, 0.99)

    def plain():
        """One step of every rollout at a time, as on a padded (R, 50) batch."""
        running, out = torch.zeros(steps // 50, device=device), torch.empty(steps // 50, 50, device=device)
        padded = reward.view(-1, 50)
        for t in range(49, -1, -1):
            running = padded[:, t] + 0.99 * running
            out[:, t] = running
        return out.view(-1)

    candidates = {"discounted_returns": work, "padded loop in torch": plain}
    return Case(f"returns, {steps:,} steps", candidates, device, steps * 8 + offsets.numel() * 8, largest, 1e-5)


def ids_case(quick: bool, device: str) -> Case:
    steps = 100_000 if quick else 1_000_000
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 300, (steps,), generator=g).to(device) for _ in range(2))
    candidates = {
        "dense_ids": lambda: dense_ids(a, b),
        "torch.unique of rows": lambda: torch.unique(torch.stack([a, b], 1), dim=0, return_inverse=True)[1],
    }

    def mismatched(ours, other) -> float:
        """Ids by first appearance against sorted ones: both count the same, and so do the pairs of the two."""
        ids, count = ours
        pairs = torch.unique(ids * (int(other.max()) + 1) + other).numel()
        return abs(int(count) - pairs) + abs(int(count) - int(other.max()) - 1)

    name = f"dense_ids of two keys, {steps:,} rows"
    return Case(name, candidates, device, steps * 24, mismatched, 0)


def segments_case(quick: bool, device: str) -> Case:
    steps, count = (20_000, 500) if quick else (1_000_000, 5000)  # none stays empty
    g = torch.Generator().manual_seed(0)
    values = torch.randn(steps, generator=g).to(device)
    ids = torch.randint(0, count, (steps,), generator=g).to(device)

    def ours():
        stats = segment_stats(values, ids, count)
        return stats.mean, stats.var, stats.min, stats.max

    def plain():
        """Two passes in float64, as ours; index_add is not repeatable on CUDA."""
        wide = values.double()
        n = torch.zeros(count, dtype=torch.float64, device=device).index_add(0, ids, torch.ones_like(wide))
        mean = torch.zeros_like(n).index_add(0, ids, wide) / n
        var = torch.zeros_like(n).index_add(0, ids, (wide - mean[ids]) ** 2) / n
        low, high = (
            torch.full((count,), start, device=device).scatter_reduce(0, ids, values, reduce)
            for start, reduce in ((torch.inf, "amin"), (-torch.inf, "amax"))
        )
        return mean, var, low, high

    candidates = {"segment_stats": ours, "index_add in torch": plain}
    if quick:  # a loop over segments in Python: minutes at the full size
        candidates["reference"] = reference(ours)
    return Case(f"segment_stats, {steps:,} rows in {count:,}", candidates, device, steps * 12, largest, 1e-5)


def rollout_tree_case(quick: bool, device: str) -> Case:
    steps = 6_400 if quick else 25_600
    g = torch.Generator().manual_seed(0)
    reward, offsets = rollouts(steps, device)
    count = offsets.numel() - 1
    args = {
        "reward": reward,
        "outcome": torch.randint(0, 2, (count,), generator=g).float().to(device),
        "offsets": offsets,
        "rollout_group": (torch.arange(count) // 64).to(device),
        "state": torch.randint(0, 2000, (steps,), generator=g).to(device),
        "action": torch.randint(0, 5, (steps,), generator=g).to(device),
    }

    def ours():
        return tuple(rollout_tree_advantages(**args, gamma=0.99, prior_visits=2.0, prior="success_rate"))

    candidates = {"rollout_tree_advantages": ours, "reference": reference(ours)}
    return Case(f"rollout_tree, {steps:,} steps", candidates, device, steps * 52, largest, 1e-5)


def tokens_of(quick: bool, device: str):
    """(tokens, steps, step_of_token): steps of 64 tokens, the last 16 of each belonging to no step."""
    tokens = 2**17 if quick else 2**20
    at = torch.arange(tokens)
    return tokens, tokens // 64, torch.where(at % 64 < 48, at // 64, -1).to(device)


def broadcast_case(quick: bool, device: str) -> Case:
    tokens, steps, step = tokens_of(quick, device)
    g = torch.Generator().manual_seed(0)
    values = torch.randn(steps, generator=g).to(device).requires_grad_()
    upstream = torch.randn(tokens, generator=g).to(device)

    def forward_backward(function):
        out = function()
        return out, torch.autograd.grad(out, values, upstream)[0]

    ours = partial(forward_backward, lambda: broadcast_to_tokens(values, step))
    plain = partial(forward_backward, lambda: torch.where(step >= 0, values[step.clamp(min=0)], 0.0))
    candidates = {"broadcast_to_tokens": ours, "gather in torch": plain, "reference": reference(ours)}
    name = f"broadcast and its gradient, {tokens:,} tokens"
    return Case(name, candidates, device, tokens * 24 + steps * 8, largest, 1e-5)


def policy_loss_case(quick: bool, device: str) -> Case:
    tokens, steps, step = tokens_of(quick, device)
    g = torch.Generator().manual_seed(0)
    old, noise, other = (torch.randn(tokens, generator=g).to(device) for _ in range(3))
    advantage = torch.randn(steps, generator=g).to(device)
    logprob, ref = (old + 0.2 * noise).requires_grad_(), old + 0.2 * other
    rollout = (torch.arange(tokens) // 4096).to(device)

    def ours():
        loss, _ = policy_loss(logprob, old, advantage, step, rollout, ref, kl=0.01)
        return loss, torch.autograd.grad(loss, logprob)[0]

    def plain_loss(new, old, advantage, step, ref):
        mask = step >= 0
        a = advantage[step.clamp(min=0)]
        ratio = (new - old).clamp(-20, 20).exp()
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
        y = (ref - new).clamp(-20, 20)
        loss = loss + 0.01 * (y.exp() - y - 1).clamp(-10, 10)
        return (loss * mask).sum() / mask.sum()

    def with_gradient(function):
        def run():
            loss = function(logprob, old, advantage, step, ref)
            return loss, torch.autograd.grad(loss, logprob)[0]

        return run

    candidates = {"policy_loss": ours, "plain torch": with_gradient(plain_loss), "reference": reference(ours)}
    fast = compiled(plain_loss, logprob, old, advantage, step, ref)
    if fast is not None:
        candidates["plain torch, torch.compile"] = with_gradient(fast)
    # Ours reports nine statistics besides; the peers only the loss.
    return Case(f"policy loss and its gradient, {tokens:,} tokens", candidates, device, tokens * 44, largest, 1e-5)


def cases(quick: bool) -> Iterator[Case]:
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for make in (
            returns_case,
            ids_case,
            segments_case,
            rollout_tree_case,
            broadcast_case,
            policy_loss_case,
        ):
            yield make(quick, device)
