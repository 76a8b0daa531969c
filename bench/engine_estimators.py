"""How engines compute GRPO's advantages, written plainly from their description, on their inputs.

Both take what a trainer's batch holds: ``token_reward`` and ``mask``, (B, T) tensors with one rollout a row, and
``uid``, a (B,) numpy array of objects that names each row's group. Both return (B, T) advantages.

GiGPO's pass as its authors' trainer does it is in step_credit.py.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

EPS = 1e-6


def grpo_loop(token_reward: torch.Tensor, mask: torch.Tensor, uid: np.ndarray) -> torch.Tensor:
    """A dictionary of lists of scores keyed by group, then row after row (verl, ``grpo``)."""
    scores = token_reward.sum(dim=-1)
    by_group: dict[Any, list[torch.Tensor]] = defaultdict(list)
    for row in range(len(scores)):
        by_group[uid[row]].append(scores[row])
    mean, std = {}, {}
    for name, members in by_group.items():
        if len(members) == 1:
            mean[name], std[name] = torch.tensor(0.0), torch.tensor(1.0)
        else:
            together = torch.stack(members)
            mean[name], std[name] = torch.mean(together), torch.std(together)
    for row in range(len(scores)):
        scores[row] = (scores[row] - mean[uid[row]]) / (std[uid[row]] + EPS)
    return scores.unsqueeze(-1) * mask


def grpo_vectorised(token_reward: torch.Tensor, mask: torch.Tensor, uid: np.ndarray) -> torch.Tensor:
    """Sums and sums of squares scattered by group number (verl, ``grpo_vectorized``)."""
    scores = token_reward.sum(dim=-1)
    group = torch.from_numpy(np.unique(uid, return_inverse=True)[1])
    count = torch.bincount(group).to(scores.dtype)
    total = torch.zeros_like(count).index_add_(0, group, scores)
    squares = torch.zeros_like(count).index_add_(0, group, scores * scores)
    mean = total / count
    variance = (squares - total * mean) / (count - 1).clamp(min=1)
    std = variance.clamp(min=0).sqrt()
    mean, std = torch.where(count == 1, 0.0, mean), torch.where(count == 1, 1.0, std)
    return ((scores - mean[group]) / (std[group] + EPS)).unsqueeze(-1) * mask


def real_verl() -> dict[str, Callable[[torch.Tensor, torch.Tensor, np.ndarray], torch.Tensor]]:
    """verl's own functions, by the names they are shown under; empty where verl is not installed."""
    try:
        from verl.trainer.ppo import core_algos
    except ImportError:
        return {}
    named = {
        "verl itself, loop": "compute_grpo_outcome_advantage",
        "verl itself, vectorised": "compute_grpo_vectorized_outcome_advantage",
    }

    def call(function: Callable) -> Callable[[torch.Tensor, torch.Tensor, np.ndarray], torch.Tensor]:
        return lambda token_reward, mask, uid: function(token_reward, mask, uid)[0]

    return {name: call(getattr(core_algos, where)) for name, where in named.items() if hasattr(core_algos, where)}
