"""`policy_loss` and its gradient beside the same formula in plain torch, also under `torch.compile`.

The peers compute loss and gradient alone; ours also returns the nine numbers of ``PolicyLossStats``.
"""

from collections.abc import Iterator

import torch
from measure import Case
from peers import compiled, largest, reference, tokens_of

from rtmc.kernels.policy_loss import policy_loss

TESTS = ["tests/test_token_weights.py", "tests/test_policy_loss.py", "tests/test_policy_loss_inputs.py"]


def cases(quick: bool, device: str) -> Iterator[Case]:
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
    yield Case(f"policy loss and its gradient, {tokens:,} tokens", candidates, device, tokens * 44, largest, 1e-5)
