"""What the cases of ops/ share: the reference and the compiler as candidates, the error between two results, inputs."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

NOTES: list[str] = []  # printed below the table


def reference(work: Callable[[], Any]) -> Callable[[], Any]:
    """``work`` with every op run by its reference."""

    def run():
        with patch.dict(os.environ, RTMC_BACKEND="reference"):
            return work()

    return run


def compiled(function: Callable, *args: Any) -> Callable | None:
    """``torch.compile(function)`` once it has run on ``args``; None, with a note, where no compiler works here."""
    try:
        fast = torch.compile(function)
        fast(*args)
    except Exception as error:  # what a missing compiler raises differs between torch releases
        NOTES.append(f"no torch.compile on this machine: {str(error).strip().splitlines()[0][:200]}")
        return None
    return fast


def largest(ours: Any, other: Any) -> float:
    """The largest relative difference over (tuples of) tensors, scaled by each tensor's largest entry; infinite where
    NaN stands in other places."""
    pairs = zip(ours, other, strict=True) if isinstance(ours, tuple) else [(ours, other)]
    errors = [0.0]
    for a, b in pairs:
        a, b = a.detach().double(), b.detach().double()
        if a.numel():
            errors.append(((a - b).abs().nan_to_num(0).max() / b.abs().nan_to_num(0).max().clamp(min=1e-30)).item())
            if not torch.equal(a.isnan(), b.isnan()):
                return float("inf")
    return max(errors)


def tokens_of(quick: bool, device: str) -> tuple[int, int, torch.Tensor]:
    """(tokens, steps, step_of_token): steps of 64 tokens, the last 16 of each belonging to no step."""
    tokens = 2**17 if quick else 2**20
    at = torch.arange(tokens)
    return tokens, tokens // 64, torch.where(at % 64 < 48, at // 64, -1).to(device)


def rollouts(steps: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(reward, offsets) of rollouts of 50 steps."""
    g = torch.Generator().manual_seed(0)
    offsets = torch.arange(0, steps + 1, 50)
    return torch.randn(steps, generator=g).to(device), offsets.to(device)
