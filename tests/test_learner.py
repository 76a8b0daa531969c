"""The update against a plain one: no sharing, no packing, one forward a turn."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from rtmc.train.collect import Turn
from rtmc.train.config import Lora, Loss, Optim
from rtmc.train.forest import adapter_off
from rtmc.train.learner import Batch, Learner
from rtmc.train.models import with_lora
from rtmc.train.policy import Policy, Request
from rtmc.train.prompt import PlainFormat, choices
from tests import tiny

COMMANDS = ("go to shelf 1", "go to fridge 1", "open fridge 1", "look")


def _policy(moved: bool = True, layers: int = 1) -> Policy:
    words = tiny.tokenizer()
    model = with_lora(tiny.model(vocab=len(words)), Lora(rank=2, layers=layers), 0)
    if moved:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_B" in name:
                    p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return Policy(model, words)


def _turns(policy: Policy, count: int, free: bool = False, live: int = 2) -> list[Turn]:
    form = PlainFormat(policy.tokenizer)
    rng = np.random.default_rng(5)
    turns = []
    for i in range(count):
        context = form.observation(f"You are in room {i % 3}.", 0)
        if free:
            tokens = tuple(rng.integers(4, 300, 4).tolist())
            request, edges = Request(context, live, sampled=tokens), np.arange(4)
        else:
            request = Request(context, live, choices=choices(form, COMMANDS))
            pick = int(rng.integers(len(COMMANDS)))
            tokens, edges = request.choices.tokens[pick], request.choices.tree.edges[pick]
        with torch.no_grad():
            flat = policy.score([request]).logprob.numpy()
        old = np.where(edges >= 0, flat[edges] + rng.normal(0, 0.3, len(edges)), 0).astype(np.float32)
        turns.append(Turn(request, tokens, old, edges >= 0, edges))
    return turns


def _plain_loss(policy: Policy, batch: Batch, loss: Loss) -> torch.Tensor:
    """PPO's clipped objective with a k3 penalty and an entropy bonus, written out token by token."""
    terms, entropy = [], torch.zeros(())
    for turn, advantage in zip(batch.turns, batch.advantage, strict=True):
        scores = policy.score([turn.request])
        with torch.no_grad(), adapter_off(policy.model):
            reference = policy.score([turn.request]).logprob
        entropy = entropy + scores.entropy[0] / len(batch.turns)
        for edge, old in zip(turn.edges[turn.sampled], turn.logprob[turn.sampled], strict=True):
            now = scores.logprob[edge]
            ratio = (now - float(old)).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high) * advantage)
            difference = reference[edge] - now
            terms.append(-surrogate + loss.kl * (difference.exp() - difference - 1))
    return torch.stack(terms).mean() - loss.entropy * entropy


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("micro", [4, 10_000])
def test_one_update_equals_the_plain_one(free: bool, micro: int) -> None:
    policy, twin = _policy(), _policy()
    loss, optim = Loss(kl=0.1, entropy=0.05), Optim(lr=1e-2, minibatch=100, grad_norm=1e9)
    turns = _turns(policy, 9, free)
    advantage = torch.tensor(np.random.default_rng(2).normal(size=9), dtype=torch.float32)
    batch = Batch(turns, advantage, np.arange(9) // 3)
    stats = Learner(policy, optim, loss, 1, micro).update(batch, 0, np.random.default_rng(0))

    parameters = [p for p in twin.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)
    plain = _plain_loss(twin, batch, loss)
    plain.backward()
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    assert stats.grad_norm == pytest.approx(float(norm), rel=1e-3)
    assert stats.loss - loss.entropy * stats.entropy == pytest.approx(float(plain), abs=1e-4)
    optimizer.step()
    for a, b in zip(policy.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)
    assert stats.updates == 1
    assert stats.skipped == 0
    assert stats.distinct == (9 if free else 3)
    assert stats.tokens == sum(int(t.sampled.sum()) for t in turns)


def test_gradients_add_up_over_any_cut() -> None:
    turns = _turns(_policy(), 8)
    norms = []
    for micro in (3, 8, 10_000):
        policy = _policy()
        learner = Learner(policy, Optim(lr=1e-3, minibatch=100), Loss(entropy=0.01), 1, micro)
        batch = Batch(turns, torch.linspace(-1, 1, 8), np.zeros(8, np.int64))
        norms.append(learner.update(batch, 0, np.random.default_rng(0)).grad_norm)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-4)


@pytest.mark.parametrize("aggregate", ["token-mean", "rollout-mean", "seq-mean-token-sum"])
def test_minibatches_average_to_the_batch(aggregate: str) -> None:
    """A rollout has one share however its turns fall into minibatches: at rate zero the mean loss is the batch's."""
    policy = _policy()
    turns = _turns(policy, 9)
    batch = Batch(turns, torch.linspace(-1, 1, 9), np.asarray([0, 0, 0, 0, 0, 0, 0, 1, 2]))
    losses = []
    for minibatch in (1, 2, 100):
        optim = Optim(lr=1e-30, minibatch=minibatch)
        stats = Learner(policy, optim, Loss(aggregate=aggregate), 1, 1000).update(batch, 0, np.random.default_rng(0))
        losses.append(stats.loss)
    assert losses == pytest.approx([losses[-1]] * 3, rel=1e-4)


def test_turns_without_a_choice_are_left_alone() -> None:
    policy = _policy()
    form = PlainFormat(policy.tokenizer)
    request = Request(form.observation("One way.", 0), 2, choices=choices(form, ["look"]))
    edges = request.choices.tree.edges[0]
    forced = Turn(request, request.choices.tokens[0], np.zeros(len(edges), np.float32), edges >= 0, edges)
    learner = Learner(policy, Optim(minibatch=1), Loss(entropy=0.1), 1, 1)
    only = learner.update(Batch([forced], torch.ones(1), np.zeros(1, np.int64)), 0, np.random.default_rng(0))
    assert (only.updates, only.skipped) == (0, 0)
    mixed = Batch([forced, *_turns(policy, 3)], torch.ones(4), np.zeros(4, np.int64))
    found = learner.update(mixed, 0, np.random.default_rng(0))
    assert (found.updates, found.skipped) == (3, 0)


def test_the_reference_is_the_base_model_and_a_fresh_adapter_is_at_distance_zero() -> None:
    for moved in (False, True):
        policy = _policy(moved=moved)
        batch = Batch(_turns(policy, 4), torch.ones(4), np.zeros(4, np.int64))
        learner = Learner(policy, Optim(minibatch=100), Loss(kl=0.1), 1, 1000)
        kl = learner.update(batch, 0, np.random.default_rng(0)).kl
        assert (kl > 1e-4) if moved else abs(kl) < 1e-7


def test_from_a_fresh_adapter_one_step_moves_every_b_matrix() -> None:
    policy = _policy(moved=False)
    batch = Batch(_turns(policy, 4), torch.tensor([1.0, -1.0, 0.5, -0.5]), np.zeros(4, np.int64))
    Learner(policy, Optim(lr=1e-2), Loss(), 1, 1000).update(batch, 0, np.random.default_rng(0))
    for name, p in policy.model.named_parameters():
        if "lora_B" in name:
            assert p.abs().max() > 0, name


def test_later_epochs_see_a_ratio_that_left_one_and_clip() -> None:
    policy = _policy()
    turns = [dataclasses.replace(t, logprob=_now(policy, t)) for t in _turns(policy, 6)]
    batch = Batch(turns, torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0]), np.zeros(6, np.int64))
    one = Learner(_copy(policy), Optim(lr=0.05), Loss(), 1, 1000).update(batch, 0, np.random.default_rng(0))
    assert one.approx_kl < 1e-9
    assert one.clip_fraction == 0
    many = Learner(_copy(policy), Optim(lr=0.05, epochs=6), Loss(), 1, 1000).update(batch, 0, np.random.default_rng(0))
    assert many.approx_kl > 1e-4
    assert many.clip_fraction > 0


def _now(policy: Policy, turn: Turn) -> np.ndarray:
    with torch.no_grad():
        flat = policy.score([turn.request]).logprob.numpy()
    return np.where(turn.edges >= 0, flat[turn.edges], 0).astype(np.float32)


def _copy(policy: Policy) -> Policy:
    return Policy(copy.deepcopy(policy.model), policy.tokenizer)


def test_an_update_that_is_not_finite_is_skipped_and_counted() -> None:
    policy = _policy()
    turns = _turns(policy, 4)
    before = [p.detach().clone() for p in policy.model.parameters()]
    learner = Learner(policy, Optim(minibatch=1, epochs=2), Loss(), 1, 1000)
    stats = learner.update(Batch(turns, torch.full((4,), math.nan), np.zeros(4, np.int64)), 0, np.random.default_rng(0))
    assert stats.updates == 0
    assert stats.skipped == learner.bad_in_a_row == 2 * stats.distinct
    for a, b in zip(policy.model.parameters(), before, strict=True):
        assert torch.equal(a, b)
    learner.update(Batch(turns, torch.ones(4), np.zeros(4, np.int64)), 0, np.random.default_rng(0))
    assert learner.bad_in_a_row == 0


def test_learning_rate_schedule() -> None:
    policy = _policy()
    learner = Learner(policy, Optim(lr=1.0, warmup_steps=4, decay="linear"), Loss(), 12, 100)
    assert [learner.learning_rate(s) for s in (0, 1, 3, 4, 8, 12)] == [0.25, 0.5, 1.0, 1.0, 0.5, 0.0]
    assert Learner(policy, Optim(lr=1.0), Loss(), 12, 100).learning_rate(11) == 1.0


def test_a_model_without_an_adapter_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Learner(Policy(tiny.model(), tiny.tokenizer()), Optim(), Loss(), 1, 100)
