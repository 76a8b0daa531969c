"""`discounted_returns` beside one step of every rollout at a time on a padded batch."""

from collections.abc import Iterator
from functools import partial

import torch
from measure import Case
from peers import largest, rollouts

from rtmc.kernels.returns import discounted_returns


def cases(quick: bool, device: str) -> Iterator[Case]:
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
    yield Case(f"returns, {steps:,} steps", candidates, device, steps * 8 + offsets.numel() * 8, largest, 1e-5)
