"""The update: clipped policy-gradient loss over the policy tokens of a batch of turns, on one optimiser.

Turns that asked the same question (same context, same commands) share one evaluation: its log-probabilities are
gathered to every token that needs them, and autograd adds their gradients. The loss op sees one row a sampled token,
as it would without sharing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rtmc.kernels.policy_loss import aggregate_weights, policy_loss
from rtmc.train.acting import Turn
from rtmc.train.config import Loss, Optim
from rtmc.train.forest import adapter_off, common_prefix
from rtmc.train.policy import Policy, Request


@dataclass(frozen=True)
class Batch:
    """Turns with their credit: `advantage` (S,) and `rollout` (S,), the row of each turn's rollout in the batch."""

    turns: Sequence[Turn]
    advantage: torch.Tensor
    rollout: np.ndarray


@dataclass(frozen=True)
class UpdateStats:
    """Means over the optimiser steps of one batch; `skipped` counts those that were not finite."""

    updates: int
    skipped: int
    loss: float
    entropy: float
    kl: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    tokens: int
    distinct: int


class Learner:
    """Owns the optimiser and its schedule."""

    def __init__(self, policy: Policy, optim: Optim, loss: Loss, total_steps: int, micro_tokens: int) -> None:
        self.policy = policy
        self.optim = optim
        self.loss = loss
        self.micro_tokens = micro_tokens
        self.total_steps = total_steps
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("the model has no trainable parameter: no adapter is active")
        self.optimizer = torch.optim.AdamW(self.parameters, lr=optim.lr, weight_decay=optim.weight_decay)
        self.bad_in_a_row = 0

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then constant or linear decay to zero at the run's end; `step` counts from 0."""
        rate = self.optim.lr
        if step < self.optim.warmup_steps:
            return rate * (step + 1) / self.optim.warmup_steps
        if self.optim.decay == "linear":
            left = (self.total_steps - step) / max(1, self.total_steps - self.optim.warmup_steps)
            return rate * max(0.0, min(1.0, left))
        return rate

    def update(self, batch: Batch, step: int, rng: np.random.Generator) -> UpdateStats:
        """`epochs` passes in minibatches of distinct questions; what has a non-finite loss or gradient is skipped."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        work = _Work.of(batch, self.loss.aggregate, self.optim.minibatch)
        reference = self._reference(work.requests) if self.loss.kl > 0 else None
        sums = dict.fromkeys(("loss", "entropy", "kl", "approx_kl", "clip_fraction", "grad_norm"), 0.0)
        updates = skipped = 0
        for _ in range(self.optim.epochs):
            for chosen in np.array_split(rng.permutation(work.open), work.minibatches) if len(work.open) else []:
                stats = self._minibatch(work, chosen.tolist(), reference)
                if stats is None:
                    skipped += 1
                    continue
                updates += 1
                for name, value in stats.items():
                    sums[name] += value
        means = {name: value / updates if updates else math.nan for name, value in sums.items()}
        return UpdateStats(
            updates=updates, skipped=skipped, tokens=len(work.weight), distinct=len(work.requests), **means
        )

    def _reference(self, requests: Sequence[Request]) -> list[torch.Tensor]:
        out = []
        with torch.no_grad(), adapter_off(self.policy.model):
            scores = self.policy.score(requests)
        ends = [*scores.start[1:], len(scores.logprob)]
        for start, end in zip(scores.start, ends, strict=True):
            out.append(scores.logprob[start:end])
        return out

    def _minibatch(
        self, work: _Work, chosen: Sequence[int], reference: Sequence[torch.Tensor] | None
    ) -> dict[str, float] | None:
        """One optimiser step; None where it was skipped because the loss or a gradient was not finite."""
        device = self.policy.forward.device
        micro = [_Tokens.of(work, part, device) for part in self._micro(work.requests, chosen)]
        advantage = work.batch.advantage.to(device, torch.float32)
        # The minibatches' objectives average to that of the whole batch, the parts' add up to the minibatch's.
        turns = len(work.batch.turns) / work.minibatches
        sums = dict.fromkeys(("loss", "entropy", "kl", "approx_kl", "clip_fraction"), 0.0)
        total = sum(len(m.edge) for m in micro)
        self.optimizer.zero_grad(set_to_none=True)
        for tokens in micro:
            part = [work.requests[i] for i in tokens.requests]
            scores = self.policy.score(part)
            start = torch.as_tensor(scores.start, device=device)
            ref = None
            if reference is not None:
                ref = torch.cat([reference[i] for i in tokens.requests])[start[tokens.request] + tokens.edge]
            loss, stats = policy_loss(
                scores.logprob[start[tokens.request] + tokens.edge],
                tokens.old,
                advantage,
                tokens.step,
                tokens.rollout,
                ref_logprob=ref,
                ratio=self.loss.ratio,
                clip=(self.loss.clip_low, self.loss.clip_high),
                kl=self.loss.kl,
                kl_mode=self.loss.kl_mode,
                aggregate=self.loss.aggregate,
                per="step",
                weights=tokens.weight,
                rows=len(advantage),
            )
            visits = torch.as_tensor([len(work.rows[i]) for i in tokens.requests], dtype=torch.float32, device=device)
            entropy = (scores.entropy * visits).sum() / turns
            objective = loss - self.loss.entropy * entropy
            if not torch.isfinite(objective):
                self._bad()
                return None
            objective.backward()
            share = len(tokens.edge) / total
            sums["loss"] += float(loss.detach())
            sums["entropy"] += float(entropy.detach())
            sums["kl"] += float(stats.ref_kl) * share
            sums["approx_kl"] += float(stats.approx_kl) * share
            sums["clip_fraction"] += float(stats.clip_low + stats.clip_high) * share
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.optim.grad_norm)
        if not torch.isfinite(norm):
            self._bad()
            return None
        self.optimizer.step()
        self.bad_in_a_row = 0
        sums["grad_norm"] = float(norm)
        return sums

    def _bad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.bad_in_a_row += 1

    def _micro(self, requests: Sequence[Request], chosen: Sequence[int]) -> Iterator[list[int]]:
        """Parts of a minibatch whose live tokens fit `micro_tokens`; neighbours share what their contexts share."""
        part: list[int] = []
        size = 0
        for i in sorted(chosen, key=lambda i: (requests[i].frozen, requests[i].context)):
            request = requests[i]
            action = len(request.choices.tree.nodes) if request.choices else len(request.sampled or ())
            shared = common_prefix(requests[part[-1]].context, request.context) if part else 0
            more = action + min(request.live, len(request.context) - shared)
            if part and size + more > self.micro_tokens:
                yield part
                part, size, more = [], 0, action + request.live
            part.append(i)
            size += more
        if part:
            yield part


@dataclass(frozen=True)
class _Work:
    """A batch sorted out: its distinct requests, who asked them, and every policy token's weight in the loss.

    `rows[i]` are the turns that asked request i; `open` the requests with a token that was sampled (where every token
    was forced there is nothing to train); `weight` (T,) is of the batch's policy tokens turn by turn, those of turn s
    from `start[s]` on, times the number of minibatches.
    """

    batch: Batch
    requests: list[Request]
    rows: list[list[int]]
    open: np.ndarray
    minibatches: int
    weight: torch.Tensor
    start: np.ndarray

    @classmethod
    def of(cls, batch: Batch, aggregate: str, minibatch: int) -> _Work:
        place: dict[tuple, int] = {}
        requests: list[Request] = []
        rows: list[list[int]] = []
        for row, turn in enumerate(batch.turns):
            i = place.setdefault(turn.request.key, len(requests))
            if i == len(requests):
                requests.append(turn.request)
                rows.append([])
            rows[i].append(row)
        counts = np.asarray([int(turn.sampled.sum()) for turn in batch.turns], dtype=np.int64)
        step = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        rollout = torch.from_numpy(np.repeat(np.asarray(batch.rollout, dtype=np.int64), counts))
        # Weights of the whole batch: a rollout whose turns lie in several minibatches has one share, not several.
        weight = aggregate_weights(step, rollout, aggregate)
        is_open = np.asarray([any(counts[row] for row in asked) for asked in rows], dtype=bool)
        minibatches = max(1, math.ceil(int(is_open.sum()) / minibatch))
        start = np.concatenate([[0], np.cumsum(counts)])
        return cls(batch, requests, rows, np.flatnonzero(is_open), minibatches, weight * minibatches, start)


@dataclass(frozen=True)
class _Tokens:
    """The policy tokens of some requests' turns, one row each."""

    requests: list[int]
    request: torch.Tensor  # place of the token's request in `requests`
    edge: torch.Tensor
    old: torch.Tensor
    step: torch.Tensor
    rollout: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def of(cls, work: _Work, part: list[int], device: torch.device) -> _Tokens:
        turns = [(place, row) for place, i in enumerate(part) for row in work.rows[i]]
        masks = [work.batch.turns[row].sampled for _, row in turns]
        counts = [int(mask.sum()) for mask in masks]

        def joined(parts: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
            return torch.as_tensor(np.concatenate(parts), dtype=dtype, device=device)

        def repeated(values: list[int]) -> torch.Tensor:
            return torch.as_tensor(np.repeat(values, counts), dtype=torch.int64, device=device)

        rows = [row for _, row in turns]
        return cls(
            part,
            repeated([place for place, _ in turns]),
            joined([work.batch.turns[row].edges[mask] for row, mask in zip(rows, masks, strict=True)], torch.int64),
            joined([work.batch.turns[row].logprob[mask] for row, mask in zip(rows, masks, strict=True)], torch.float32),
            repeated(rows),
            repeated([int(work.batch.rollout[row]) for row in rows]),
            torch.cat([work.weight[work.start[row] : work.start[row + 1]] for row in rows]).to(device),
        )
