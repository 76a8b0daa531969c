"""Checkpoints: whole or not at all, of this model or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rtmc.train import checkpoint
from rtmc.train.config import Lora
from rtmc.train.models import fingerprint, with_lora
from tests import tiny


def _model(seed: int = 0, rank: int = 2, kind: str = "llama") -> torch.nn.Module:
    model = with_lora(tiny.model(kind, seed=seed), Lora(rank=rank), 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.01 * (seed + 1))
    return model


def test_round_trip_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    model = _model()
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "checkpoints", step, model, {"step": step}, keep=2)
    assert [n for n, _ in checkpoint.checkpoints(tmp_path / "checkpoints")] == [2, 3]
    other = with_lora(tiny.model(), Lora(rank=2), 5)
    assert checkpoint.load(checkpoint.latest(tmp_path), other) == {"step": 3}
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.requires_grad == b.requires_grad


def test_another_model_or_adapter_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, _model(), {}, keep=1)
    with pytest.raises(checkpoint.CheckpointError, match="another base model"):
        checkpoint.load(path, _model(seed=1))
    with pytest.raises(checkpoint.CheckpointError, match="another base model"):
        checkpoint.load(path, _model(kind="qwen2"))
    with pytest.raises(checkpoint.CheckpointError, match="another shape"):
        checkpoint.load(path, _model(rank=3))


def test_the_fingerprint_is_the_base_models_alone() -> None:
    assert fingerprint(tiny.model()) == fingerprint(_model()) == fingerprint(_model(rank=3))
    assert fingerprint(tiny.model()) != fingerprint(tiny.model(seed=1))


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match="no such run folder"):
        checkpoint.latest(tmp_path / "absent")
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint"):
        checkpoint.latest(tmp_path)
    path = checkpoint.save(tmp_path / "checkpoints", 1, _model(), {}, keep=1)
    (path / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(checkpoint.CheckpointError, match="not a readable checkpoint"):
        checkpoint.load(path, _model())
    (path / "about.json").write_text(json.dumps([]))
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.load(path, _model())


def test_a_write_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, _model(), {"step": 1}, keep=1)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, _model(), {"step": 2}, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
