"""Choosing among commands and scoring tokens, against one plain forward pass a sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from rtmc.train.config import Lora
from rtmc.train.forest import adapter_off
from rtmc.train.models import with_lora
from rtmc.train.policy import Choices, Policy, Request
from rtmc.train.prompt import PlainFormat, choices
from rtmc.train.sampling import sample
from tests import tiny

COMMANDS = ("go to shelf 1", "go to shelf 12", "go to fridge 1", "open fridge 1", "look", "take mug 1 from shelf 1")


def _moved(model: torch.nn.Module, scale: float = 0.05) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(scale * torch.randn(p.shape, generator=generator))
    return model


@pytest.fixture(scope="module", params=[("llama", 0), ("llama", 1), ("qwen2", 2), ("qwen3", 1)], ids=str)
def policy(request: pytest.FixtureRequest) -> Policy:
    """Models with the adapter in every layer (0) or in the last ones alone: then the lower layers' results are kept."""
    words = tiny.tokenizer()
    kind, layers = request.param
    model = with_lora(tiny.model(kind, vocab=len(words), layers=3), Lora(rank=2, layers=layers), 0)
    made = Policy(_moved(model), words, temperature=0.7)
    assert made.forward.split == (3 - layers if layers else 0)
    return made


def _logits(policy: Policy, tokens: tuple[int, ...], live: int) -> torch.Tensor:
    """Logits after every live token, by two plain forwards: the frozen part without the adapter, the rest with it."""
    base = policy.model.get_base_model()
    frozen = len(tokens) - live
    with torch.no_grad():
        cache = None
        if frozen:
            with adapter_off(policy.model):
                out = base(input_ids=torch.tensor([tokens[:frozen]]), use_cache=True)
            cache = out[policy.forward.cache_name]
        kwargs = {policy.forward.cache_name: cache} if cache is not None else {}
        return base(input_ids=torch.tensor([tokens[frozen:]]), **kwargs).logits[0] / policy.temperature


def _enumerate(policy: Policy, request: Request) -> np.ndarray:
    """Probabilities of the commands, each token renormalised over the continuations of listed commands."""
    out = []
    for tokens in request.choices.tokens:
        logits = _logits(policy, request.context + tokens, request.live + len(tokens))
        total = 0.0
        for j, token in enumerate(tokens):
            allowed = sorted({o[j] for o in request.choices.tokens if o[:j] == tokens[:j] and len(o) > j})
            row = logits[request.live - 1 + j][allowed].double().log_softmax(0)
            total += float(row[allowed.index(token)])
        out.append(total)
    return np.asarray(out)


@pytest.mark.parametrize("live", [1, 3, 20])
def test_choice_equals_enumeration_and_sums_to_one(policy: Policy, live: int) -> None:
    form = PlainFormat(policy.tokenizer)
    context = form.observation("You are in a room. Task: put some mug on shelf.", 0)[:24]
    request = Request(context, min(live, len(context)), choices=choices(form, COMMANDS))
    (answer,) = policy.answer([request])
    np.testing.assert_allclose(answer.command, _enumerate(policy, request), atol=2e-5)
    np.testing.assert_allclose(np.exp(answer.command).sum(), 1.0, atol=1e-12)


def test_entropy_and_gradient_of_a_choice(policy: Policy) -> None:
    form = PlainFormat(policy.tokenizer)
    request = Request(form.observation("Take what you like.", 0), 2, choices=choices(form, COMMANDS))
    scores = policy.score([request])
    command = torch.stack([scores.logprob[torch.as_tensor(e[e >= 0])].sum() for e in request.choices.tree.edges])
    torch.testing.assert_close(scores.entropy[0], -(command.exp() * command).sum())
    # The expected score is zero: sum over actions of p grad log p.
    grads = torch.autograd.grad(
        (command.exp().detach() * command).sum(), [p for p in policy.model.parameters() if p.requires_grad]
    )
    for g in grads:
        assert g.abs().max() < 1e-5


def test_a_batch_answers_as_each_alone_in_any_order(policy: Policy) -> None:
    form = PlainFormat(policy.tokenizer)
    rng = np.random.default_rng(0)
    requests = [
        Request(form.observation(text, 0), 2, choices=choices(form, rng.permutation(COMMANDS)[:n].tolist()))
        for text, n in itertools.product(("You are here.", "You are there.", "You are here. A mug 1."), (1, 2, 4, 6))
    ]
    together = policy.answer(requests)
    order = rng.permutation(len(requests))
    shuffled = policy.answer([requests[i] for i in order])
    for place, i in enumerate(order):
        np.testing.assert_allclose(shuffled[place].command, together[i].command, atol=2e-5)
    for request, answer in zip(requests, together, strict=True):
        np.testing.assert_allclose(policy.answer([request])[0].command, answer.command, atol=2e-5)


def test_live_contexts_share_what_they_have_in_common(policy: Policy) -> None:
    """Turns of one growing conversation read with the adapter on: one tree, each distinct token once."""
    form = PlainFormat(policy.tokenizer)
    first = form.observation("You are here.", 0)
    second = first + form.command("look") + form.observation("You are there.", 1)
    requests = [
        Request(first, len(first), choices=choices(form, COMMANDS)),
        Request(second, len(second), choices=choices(form, COMMANDS)),
        Request(second, len(second), sampled=form.command("go to shelf 1")),
    ]
    (tree,) = Policy(policy.model, policy.tokenizer, pack_tokens=1000)._live_trees(requests, [0, 1, 2])
    whole = [second + requests[2].sampled, *(c + t for c in (first, second) for t in requests[0].choices.tokens)]
    assert len(tree.nodes) <= len({text[:n] for text in whole for n in range(1, len(text) + 1)})
    together = policy.score(requests)
    ends = [*together.start[1:], len(together.logprob)]
    for request, start, end in zip(requests, together.start, ends, strict=True):
        torch.testing.assert_close(policy.score([request]).logprob, together.logprob[start:end], atol=3e-5, rtol=1e-4)
    np.testing.assert_allclose(policy.answer(requests[:1])[0].command, _enumerate(policy, requests[0]), atol=3e-5)


def test_a_single_command_is_forced(policy: Policy) -> None:
    form = PlainFormat(policy.tokenizer)
    (answer,) = policy.answer([Request((4, 5, 6), 1, choices=choices(form, ["look"]))])
    assert answer.command.tolist() == [0.0]
    assert len(answer.edge) == 0


def test_commands_that_begin_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="beginning of another"):
        _ = Choices(("go", "go on"), ((1, 2), (1, 2, 3))).tree
    with pytest.raises(ValueError, match="same tokens"):
        Choices(("a", "b"), ((1,), (1,)))
    with pytest.raises(ValueError, match="at least one"):
        Choices((), ())


@pytest.mark.parametrize("live", [1, 7])
def test_sampled_logprobs_equal_the_scored_ones(policy: Policy, live: int) -> None:
    contexts = [(9, 10, 11, 12, 13, 14, 15), (9, 10, 11, 12, 13, 14, 15), (9, 10, 11, 30, 31, 32, 33, 34)]
    generators = [np.random.default_rng([7, i]) for i in range(3)]
    samples = sample(policy, contexts, [live] * 3, generators, max_new_tokens=12, stop=(1,))
    requests = [Request(c, live, sampled=s.tokens) for c, s in zip(contexts, samples, strict=True)]
    with torch.no_grad():
        scores = policy.score(requests)
    flat = np.concatenate([s.logprob for s in samples])
    np.testing.assert_allclose(scores.logprob.numpy(), flat, atol=3e-5)
    for request, s in zip(requests, samples, strict=True):
        logits = _logits(policy, request.context + s.tokens, live + len(s.tokens))
        wanted = logits[live - 1 : -1].log_softmax(-1).gather(1, torch.tensor(s.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(s.logprob, wanted.numpy(), atol=3e-5)


def test_a_row_does_not_depend_on_its_neighbours(policy: Policy) -> None:
    contexts = [(9, 10, 11, 12), (40, 41, 42), (9, 10, 50)]

    def draw(rows: list[int]) -> list[tuple[int, ...]]:
        found = sample(
            policy,
            [contexts[r] for r in rows],
            [1] * len(rows),
            [np.random.default_rng([1, r]) for r in rows],
            max_new_tokens=10,
            stop=(1,),
        )
        return [s.tokens for s in found]

    assert draw([0, 1, 2]) == [draw([r])[0] for r in (0, 1, 2)]


def test_sampling_follows_the_distribution(policy: Policy) -> None:
    """First tokens of many draws against their exact probabilities (chi-square, fixed seed)."""
    from scipy.stats import chisquare

    context, draws = (9, 10, 11), 2000
    samples = sample(
        policy, [context] * draws, [1] * draws, [np.random.default_rng([5, i]) for i in range(draws)],
        max_new_tokens=1, stop=(1,), max_rows=2000,
    )  # fmt: skip
    probabilities = _logits(policy, context, 1)[-1].double().softmax(-1).numpy()
    counts = np.bincount([s.tokens[0] for s in samples], minlength=len(probabilities))
    common = probabilities * draws >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * draws
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_greedy_takes_the_most_likely_token(policy: Policy) -> None:
    (found,) = sample(policy, [(9, 10, 11)], [1], [np.random.default_rng(0)], max_new_tokens=3, stop=(1,), greedy=True)
    tokens: tuple[int, ...] = (9, 10, 11)
    for i, token in enumerate(found.tokens):
        assert token == int(_logits(policy, tokens, 1 + i)[-1].argmax())
        tokens = (*tokens, token)


def test_requests_are_checked(policy: Policy) -> None:
    with pytest.raises(ValueError, match="`live`"):
        Request((1, 2), 3, sampled=(4,))
    with pytest.raises(ValueError, match="exactly one"):
        Request((1, 2), 1)
    with pytest.raises(ValueError, match="passes the model"):
        policy.score([Request(tuple([5] * 1100), 1, sampled=(4,))])
    with pytest.raises(ValueError, match="temperature"):
        Policy(tiny.model(), None, temperature=0)
