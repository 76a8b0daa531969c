"""A question-answering world and a tiny model for the tests of exploration: real code, nothing downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from rtmc.gymenvs.qa import Question
from rtmc.gymenvs.qa.retrieval import Hit, Passage
from rtmc.train.acting import Acting
from rtmc.train.agent import ModelAgent
from rtmc.train.config import Lora
from rtmc.train.models import with_lora
from rtmc.train.policy import Policy
from rtmc.train.prompt import ChatFormat, Conversation, PlainFormat
from rtmc.train.turn_forest import Move
from tests import tiny

PASSAGES = [
    Passage.made("d1", "Velmar Works", "Velmar Works was founded by Ana Dorr."),
    Passage.made("d2", "Ana Dorr", "Ana Dorr was born in Kesh."),
]
QUESTIONS = [
    Question("q0", "Where was the founder of Velmar Works born?", ("Kesh", "the town of Kesh"), hops=2),
    Question("q1", "Who founded Velmar Works?", ("Ana Dorr",), hops=1),
]
# What the policy may say: searches that find something or nothing, answers of which one is right, and no action at all.
MESSAGES = (
    "<think>who</think><search>Velmar Works</search>",
    "<think>where</think><search>Ana Dorr</search>",
    "<search>tea</search>",
    "<answer>Kesh</answer>",
    "<answer>Ana Dorr</answer>",
    "hm",
)


class Titles:
    """Finds the passages whose title the query names."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[Hit(p, 1.0) for p in PASSAGES if p.title.lower() in q.lower()][:k] for q in queries]


def search_qa(**options: Any) -> gymnasium.Env:
    given = {"questions": QUESTIONS, "retriever": Titles(), "instructions": False, "max_turns": 3, **options}
    return gymnasium.make("rtmc.gymenvs:rtmc/SearchQA-v0", disable_env_checker=True, **given)


class Messenger(ModelAgent):
    """A language model that chooses among MESSAGES, with the probabilities it gives them."""

    def act(
        self,
        histories: Sequence[Conversation],
        infos: Sequence[Mapping[str, Any]],
        generators: Sequence[np.random.Generator],
    ) -> list[Move | None]:
        return super().act(histories, [{**info, "admissible_commands": MESSAGES} for info in infos], generators)


def moved(model: torch.nn.Module, scale: float = 0.05) -> torch.nn.Module:
    """The model with an adapter that does something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(scale * torch.randn(p.shape, generator=generator))
    return model


def messenger(
    adapter: str = "none",
    adapt: str = "turn",
    chat: bool = False,
    kind: str = "llama",
    mode: str = "choice",
    **more: Any,
) -> Messenger:
    """`adapter`: "none" = the bare model, "fresh" = one that changes nothing yet, "moved"."""
    words = tiny.tokenizer()
    model = tiny.model(kind, vocab=len(words))
    if adapter != "none":
        model = with_lora(model, Lora(rank=2), 0)
    if adapter == "moved":
        moved(model)
    temperature = more.pop("temperature", 1.0)
    pack_tokens = more.pop("pack_tokens", 384)
    policy = Policy(model, words, temperature=temperature, pack_tokens=pack_tokens)
    form = ChatFormat(words) if chat else PlainFormat(words)
    return Messenger(policy, form, Acting(mode, adapt=adapt, max_new_tokens=6), **more)
