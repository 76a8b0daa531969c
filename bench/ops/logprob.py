"""`token_logprobs` and its gradient to the hidden states beside `log_softmax` of whole logits; both with `policy_loss`.

The weight is frozen, as under LoRA. On CUDA the states are bfloat16 and the peers' logits float32. The most memory that
each holds besides its inputs is recorded. Liger's fused cross-entropy is a peer where `liger_kernel` is installed: its
mean over the tokens, as it gives gradients for a scalar alone.
"""

import importlib.util
from collections.abc import Iterator

import torch
from measure import Case
from peers import NOTES, compiled, largest

from rtmc.kernels.logprob import token_logprobs
from rtmc.kernels.policy_loss import policy_loss


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight.t()).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]


def cases(quick: bool, device: str) -> Iterator[Case]:
    """At full size whole logits alone stand beside ours: a pass over them takes seconds on two cores. The compiler's
    candidate has a smaller case of its own."""
    small, full = (256, 16_000, 256), (2048, 151_936, 896)  # the latter the sizes of Qwen2.5-0.5B
    for tokens, vocabulary, size in [small] if quick else [small, full]:
        yield from cases_of(tokens, vocabulary, size, device, every=(tokens, vocabulary, size) == small)


def cases_of(tokens: int, vocabulary: int, size: int, device: str, every: bool) -> Iterator[Case]:
    """``every``: with the compiler's and Liger's candidates."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, size, generator=g).to(device, dtype).requires_grad_()
    weight = (torch.randn(vocabulary, size, generator=g) / size**0.5).to(device, dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=g).to(device)
    # The halves' gradients: one rounding of each coefficient and one of the result.
    bound = 1e-4 if dtype == torch.float32 else 2e-2
    shape = f"{tokens:,} tokens, {vocabulary:,} words, hidden {size}"
    # Once each: states, weight and targets read; log-probabilities and the states' gradient written.
    moved = (2 * hidden.numel() + weight.numel()) * dtype.itemsize + tokens * 12
    more = {"bytes_moved": moved, "agree": largest, "bound": bound, "memory": True, "rows": tokens}

    def mean_of(score):
        def run():
            logprob = score(hidden, weight, targets)
            return logprob.detach(), torch.autograd.grad(logprob.mean(), hidden)[0]

        return run

    candidates = {
        "token_logprobs": mean_of(lambda h, w, y: token_logprobs(h, w, y)[0]),
        "whole logits in torch": mean_of(plain),
    }
    fast = compiled(plain, hidden, weight, targets) if every else None
    if fast is not None:
        candidates["the same, torch.compile"] = mean_of(fast)
    yield Case(f"logprob and gradient, {shape}", candidates, device, **more)

    liger = liger_loss(device) if every or device == "cuda" else None
    if liger is not None:

        def scalar(loss_of):
            def run():
                loss = loss_of()
                return loss.detach(), torch.autograd.grad(loss, hidden)[0]

            return run

        candidates = {
            "token_logprobs": scalar(lambda: -token_logprobs(hidden, weight, targets)[0].mean()),
            "Liger fused linear cross-entropy": scalar(lambda: liger(weight, hidden, targets)),
        }
        yield Case(f"cross-entropy and gradient, {shape}", candidates, device, **more)

    step = torch.arange(tokens, device=device) // 64
    rollout = torch.zeros_like(step)
    advantage = torch.randn(int(step[-1]) + 1, generator=g).to(device)
    with torch.no_grad():
        old = token_logprobs(hidden, weight, targets)[0]

    def loss_of(score):
        def run():
            # A fifth of the tokens is masked, as a prompt is: ours leaves them out of the products.
            loss, _ = policy_loss(score(hidden), old, advantage, masked, rollout)
            return loss.detach(), torch.autograd.grad(loss, hidden)[0]

        return run

    masked = torch.where(torch.arange(tokens, device=device) % 5 == 0, -1, step)
    ignored = torch.where(masked < 0, -100, targets)
    candidates = {
        "token_logprobs": loss_of(lambda h: token_logprobs(h, weight, ignored)[0]),
        "whole logits in torch": loss_of(lambda h: plain(h, weight, targets)),
    }
    more["bytes_moved"] += tokens * 28  # old log-probabilities, two ids, the loss's gradient there and back
    yield Case(f"logprob, policy loss, gradient, {shape}", candidates, device, **more)


def liger_loss(device: str):
    """Liger's (weight, hidden, targets) -> mean loss, or None with a note where it cannot run."""
    if device != "cuda" or importlib.util.find_spec("liger_kernel") is None:
        why = "its kernels need CUDA" if device != "cuda" else "liger_kernel is not installed"
        NOTES.append(f"no Liger beside token_logprobs on {device}: {why}")
        return None
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()
