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
    # The sizes of Qwen2.5-0.5B. Two cores take 3 seconds a pass over 512 tokens.
    tokens, vocabulary, size = (256, 16_000, 256) if quick else (2048 if device == "cuda" else 512, 151_936, 896)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, size, generator=g).to(device, dtype).requires_grad_()
    weight = (torch.randn(vocabulary, size, generator=g) / size**0.5).to(device, dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=g).to(device)

    def mean_of(score):
        def run():
            logprob = score(hidden, weight, targets)
            return logprob.detach(), torch.autograd.grad(logprob.mean(), hidden)[0]

        return run

    candidates = {
        "token_logprobs": mean_of(lambda h, w, y: token_logprobs(h, w, y)[0]),
        "log_softmax of whole logits": mean_of(plain),
    }
    fast = compiled(plain, hidden, weight, targets)
    if fast is not None:
        candidates["the same, torch.compile"] = mean_of(fast)
    # The halves' gradients: one rounding of each coefficient and one of the result.
    bound = 1e-4 if dtype == torch.float32 else 2e-2
    shape = f"{tokens:,} tokens, {vocabulary:,} words, hidden {size}"
    yield Case(f"logprob and gradient, {shape}", candidates, device, 0, largest, bound, memory=True, rows=tokens)

    liger = liger_loss(device)
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
        yield Case(
            f"cross-entropy and gradient, {shape}", candidates, device, 0, largest, bound, memory=True, rows=tokens
        )

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
        "log_softmax of whole logits": loss_of(lambda h: plain(h, weight, targets)),
    }
    yield Case(
        f"logprob, policy loss, gradient, {shape}", candidates, device, 0, largest, bound, memory=True, rows=tokens
    )


def liger_loss(device: str):
    """Liger's (weight, hidden, targets) -> mean loss, or None with a note where it cannot run."""
    if device != "cuda" or importlib.util.find_spec("liger_kernel") is None:
        why = "its kernels need CUDA" if device != "cuda" else "liger_kernel is not installed"
        NOTES.append(f"no Liger beside token_logprobs on {device}: {why}")
        return None
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()
