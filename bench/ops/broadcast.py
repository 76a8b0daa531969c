"""`broadcast_to_tokens` and its gradient beside an indexing expression."""

from collections.abc import Iterator
from functools import partial

import torch
from measure import Case
from peers import largest, reference, tokens_of

from rtmc.kernels.broadcast import broadcast_to_tokens


def cases(quick: bool, device: str) -> Iterator[Case]:
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
    yield Case(name, candidates, device, tokens * 24 + steps * 8, largest, 1e-5)
