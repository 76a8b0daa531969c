"""Checkpoints: a folder that is there whole or not at all, and holds all that a run needs to go on.

`step-N/` holds `state.pt` (adapter, optimiser moments, counters) and `about.json` (the base model's fingerprint).
Draws are keyed by step, seed and episode, so no generator state has to be kept.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from rtmc.errors import RtmcError
from rtmc.train.models import fingerprint

_NAME = re.compile(r"step-(\d+)")


class CheckpointError(RtmcError, ValueError):
    """A checkpoint that is missing, broken, or of another model."""


def save(folder: Path, step: int, model: PeftModel, state: dict[str, Any], keep: int) -> Path:
    """Write `folder/step-N` and drop older checkpoints past the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step}"
    partial = folder / f".step-{step}.part"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        torch.save({"adapter": get_peft_model_state_dict(model), **state}, partial / "state.pt")
        about = {"step": step, "model": fingerprint(model), "lora_alpha": _alpha(model)}
        (partial / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for _, old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def _alpha(model: PeftModel) -> float:
    return float(model.peft_config["default"].lora_alpha)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every whole checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and (path / "state.pt").exists():
            found.append((int(match[1]), path))
    return sorted(found)


def latest(run: Path) -> Path:
    """The newest checkpoint of a run. Raises CheckpointError where there is none."""
    if not run.is_dir():
        raise CheckpointError(f"{run}: no such run folder")
    found = checkpoints(run / "checkpoints")
    if not found:
        raise CheckpointError(f"{run}: the run has no checkpoint (its `checkpoints` folder holds no whole `step-N`)")
    return found[-1][1]


def load(path: Path, model: PeftModel) -> dict[str, Any]:
    """Put a checkpoint's adapter into `model` and return the rest of its state.

    Raises CheckpointError for a broken file, another base model, or an adapter of another shape.
    """
    try:
        about = json.loads((path / "about.json").read_text(encoding="utf-8"))
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path}: not a readable checkpoint ({type(error).__name__}: {error})") from None
    here = fingerprint(model)
    if not isinstance(about, dict) or about.get("model") != here:
        about = about if isinstance(about, dict) else {}
        raise CheckpointError(
            f"{path}: it belongs to another base model (fingerprint {about.get('model')}, this one is {here}): "
            "set `model.name` to the model it was trained on"
        )
    if about.get("lora_alpha") != _alpha(model):
        raise CheckpointError(
            f"{path}: its adapter was trained with `lora.alpha` {about.get('lora_alpha')}, the configuration says "
            f"{_alpha(model)}: the same weights would mean another policy"
        )
    adapter = state.pop("adapter")
    expected = get_peft_model_state_dict(model)
    wrong = [
        name
        for name in sorted(adapter.keys() | expected.keys())
        if name not in adapter or name not in expected or adapter[name].shape != expected[name].shape
    ]
    if wrong:
        raise CheckpointError(
            f"{path}: its adapter has another shape than the configuration's `[lora]` ({wrong[0]} differs): "
            "resume with the run's own configuration"
        )
    set_peft_model_state_dict(model, adapter)
    return state
