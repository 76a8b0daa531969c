"""The token forest against one plain forward pass a sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtmc.train.config import Lora
from rtmc.train.forest import CachedForward, Nodes, PrefixStore, adapter_off, pack_live
from rtmc.train.models import with_lora
from tests import tiny

KINDS = ["llama", "qwen2", "qwen3"]


def _sequences(rng: np.random.Generator, shared: int = 9) -> list[tuple[int, ...]]:
    head = rng.integers(0, 300, shared).tolist()
    return [
        tuple(head[: int(cut)] + rng.integers(0, 300, int(n)).tolist()) for cut, n in ((9, 4), (9, 7), (5, 8), (0, 11))
    ]


def _plain(model: torch.nn.Module, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pack", [3, 384])
def test_frozen_and_live_parts_equal_one_forward(kind: str, pack: int) -> None:
    model = tiny.model(kind)
    forward = CachedForward(model)
    sequences = _sequences(np.random.default_rng(0))
    store = PrefixStore(forward, pack_tokens=pack)
    cut = [len(s) - 3 for s in sequences]
    paths = store.insert([s[:c] for s, c in zip(sequences, cut, strict=True)])
    trees = []
    for s, c in zip(sequences, cut, strict=True):
        nodes = Nodes()
        nodes.path(s[c:])
        trees.append(nodes)
    seen = 0
    for packed in pack_live(paths, trees, pack):
        hidden = forward(packed.tokens, packed.positions, packed.visible, store.cache(packed.frozen))
        for member, start in zip(packed.members, packed.starts, strict=True):
            torch.testing.assert_close(
                hidden[start : start + 3], _plain(model, sequences[member])[cut[member] :], atol=2e-5, rtol=1e-4
            )
            seen += 1
    assert seen == len(sequences)


def test_shared_prefixes_are_computed_once() -> None:
    store = PrefixStore(CachedForward(tiny.model()))
    store.insert([(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4, 6)])
    assert store.computed_tokens == 6
    store.insert([(1, 2, 3, 4, 6)])
    assert store.computed_tokens == 6


def test_growth_and_emptying_change_nothing() -> None:
    model = tiny.model()
    store = PrefixStore(CachedForward(model), capacity=40, pack_tokens=16)
    rng = np.random.default_rng(1)
    for _ in range(6):
        sequences = _sequences(rng)
        paths = store.insert(sequences)
        assert len(store.nodes) < 40 + sum(map(len, sequences))
        for tokens, path in zip(sequences, paths, strict=True):
            cache = store.cache(np.asarray(path[:-1]))
            hidden = store.forward(
                np.asarray(tokens[-1:]),
                np.asarray([len(tokens) - 1]),
                torch.ones(1, len(tokens), dtype=torch.bool),
                cache,
            )
            torch.testing.assert_close(hidden[0], _plain(model, tokens)[-1], atol=2e-5, rtol=1e-4)


def test_live_gradients_equal_those_of_a_plain_forward_and_every_adapter_matrix_gets_one() -> None:
    model = with_lora(tiny.model(), Lora(rank=2), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.05 * torch.randn(p.shape, generator=generator))
    forward = CachedForward(model)
    tokens = tuple(np.random.default_rng(2).integers(0, 300, 12).tolist())
    wanted = torch.randn(12, 64, generator=generator)

    def gradients(hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        (hidden * wanted).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}

    plain = gradients(model.get_base_model().base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0])
    nodes = Nodes()
    nodes.path(tokens)
    (packed,) = pack_live([[]], [nodes], 100)
    store = PrefixStore(forward)
    tree = gradients(forward(packed.tokens, packed.positions, packed.visible, store.cache(packed.frozen)))
    for name in plain:
        assert plain[name].abs().max() > 0, name
        torch.testing.assert_close(tree[name], plain[name], atol=1e-5, rtol=1e-3)


def test_adapter_off_is_the_base_model_and_a_fresh_adapter_changes_nothing() -> None:
    base = tiny.model()
    tokens = (5, 6, 7, 8)
    before = _plain(base, tokens)
    model = with_lora(base, Lora(rank=2), seed=0)
    forward = CachedForward(model)
    ids, positions = np.asarray(tokens), np.arange(4)
    with torch.no_grad():
        fresh = forward(ids, positions, None, None)
        torch.testing.assert_close(fresh, before, atol=0, rtol=0)
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.1)
        assert not torch.allclose(forward(ids, positions, None, None), before)
        with adapter_off(model):
            torch.testing.assert_close(forward(ids, positions, None, None), before, atol=0, rtol=0)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="capacity"):
        PrefixStore(CachedForward(tiny.model()), capacity=0)
