"""A tiny random causal LM with a tokenizer made on the spot: nothing is downloaded, everything is real code."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

TEXT = [
    "Task: put some mug on shelf. You are in the middle of a room. go to countertop 1, take mug 1 from shelf 2,",
    "open fridge 1, close drawer 3, move apple 1 to cabinet 4, heat egg 1 with microwave 1, look, inventory, help",
    "You arrive at desk 1. On the desk 1, you see a book 1, and a pen 2. Nothing happens. The cabinet 5 is closed.",
]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXT * 4, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>")
    if chat:
        made.chat_template = CHAT
    return made


def model(kind: str = "llama", vocab: int = 330, seed: int = 0, layers: int = 2) -> torch.nn.Module:
    shape = {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.1,
    }
    config = {
        "llama": lambda: LlamaConfig(**shape, tie_word_embeddings=True),
        "qwen2": lambda: Qwen2Config(**shape),
        "qwen3": lambda: Qwen3Config(**shape, head_dim=16),
    }[kind]()
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return made.requires_grad_(False)


def folder(path: Path, kind: str = "llama", seed: int = 0) -> Path:
    """A local model folder, as a user has one."""
    words = tokenizer()
    # A few rows more than the tokenizer has: transformers adds the tokens that a model family always has.
    model(kind, len(words) + 8, seed).save_pretrained(path)
    words.save_pretrained(path)
    return path
