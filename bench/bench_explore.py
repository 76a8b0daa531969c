"""Exploration: scoring the reference answer after every turn of a forest, prefixes shared, against one pass a turn.

A forest of 64 turns (32 with ``--quick``) of Search QA: questions of the embedded set with their searches, wrong
searches and answers in chains and branches of up to four turns, in the words of the environment, encoded by SmolLM2's
tokenizer. The model has SmolLM2-135M's shape with random weights and 2 of its 30 layers (1 with ``--quick``): each
layer costs the same. The peer is transformers alone, one sequence a turn from its first token, without padding; it
computes logits only where the answer stands, as ours does. ``histories kept`` is ours where sampling the turns has read
the histories already, as in training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from measure import Case
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from rtmc.train import models
from rtmc.train.acting import Acting
from rtmc.train.agent import ModelAgent
from rtmc.train.explore import explore
from rtmc.train.policy import Policy
from rtmc.train.prompt import PlainFormat
from rtmc.train.references import Reference
from rtmc.train.turn_forest import Forest, Move

TESTS = ["tests/test_explore_model.py"]
NOTES: list[str] = []


class Scripted(ModelAgent):
    """Says what its generator picks: a search known to help, another one, or an answer. The model only scores."""

    def act(
        self, histories: Sequence[Any], infos: Sequence[Mapping[str, Any]], generators: Sequence[Any]
    ) -> list[Move | None]:
        moves: list[Move | None] = []
        for history, rng in zip(histories, generators, strict=True):
            said = len(history.actions)
            word = self.words[int(rng.integers(len(self.words)))]
            tag = "answer" if said == 3 or rng.random() < 0.1 else "search"
            text = f"<think>After {said} searches I look at {word}.</think><{tag}>{word}</{tag}>"
            moves.append(Move(text, 1, 1.0, _Said(self.form.command(text))))
        return moves

    def score(self, histories: Sequence[Any], references: Sequence[Reference]) -> list[float]:
        return [0.5] * len(histories)  # the forest's shape is to be fixed; scores are what is measured


class _Said:
    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens


def model_of(layers: int) -> Any:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)


def grown(agent: Scripted, turns: int, tasks: int) -> Forest:
    """A forest of at least `turns` turns, by random branches."""
    env = gymnasium.make("rtmc.gymenvs:rtmc/SearchQA-v0", split="valid", disable_env_checker=True)
    agent.words = ["the oldest bridge", "river towns"]
    for task in range(tasks):
        env.reset(seed=task)
        agent.words += env.unwrapped.snapshot().question.searches
    return explore(agent, env, range(tasks), budget=turns // tasks, chains=2, rule="random")


def contexts_of(agent: Scripted, forest: Forest, turns: int) -> tuple[list[tuple[int, ...]], list[Reference]]:
    nodes = forest.nodes[:turns]
    references = [forest.roots[node.before.task].reference for node in nodes]
    return [agent.form.context(node.after.history) for node in nodes], [r for r in references if r is not None]


def plain_pass(
    agent: Scripted, contexts: Sequence[tuple[int, ...]], references: Sequence[Reference]
) -> Callable[[], np.ndarray]:
    model, found = agent.scorer.policy.model, []
    targets = [agent.scorer._target(r.answers[0], r.wrapper) for r in references]

    def work() -> np.ndarray:
        found.clear()
        with torch.no_grad():
            for context, (tokens, first) in zip(contexts, targets, strict=True):
                ids, kept = torch.tensor([[*context, *tokens[:-1]]]), len(tokens) - first
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0]
                logprob = logits.log_softmax(-1).gather(1, torch.tensor(tokens[first:])[:, None])
                found.append(float(logprob.mean().exp()))
        return np.asarray(found)

    return work


def cases(quick: bool) -> Iterator[Case]:
    NOTES.clear()
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("smollm2-135m"))
    turns, tasks = (32, 2) if quick else (64, 4)
    policy = Policy(model_of(1 if quick else 2), tokenizer)
    agent = Scripted(policy, PlainFormat(tokenizer), Acting("free"))
    contexts, references = contexts_of(agent, grown(agent, turns, tasks), turns)
    distinct = len({context[:k] for context in contexts for k in range(1, len(context) + 1)})
    NOTES.append(
        f"{len(contexts)} turns of {tasks} questions: {sum(map(len, contexts)):,} tokens of history in all, "
        f"{distinct:,} distinct; the longest {max(map(len, contexts))}"
    )

    def cold() -> np.ndarray:
        policy.forget()
        return agent.scorer.score(contexts, references)

    def warm() -> np.ndarray:
        return agent.scorer.score(contexts, references)

    def error(ours: np.ndarray, others: np.ndarray) -> float:
        return float(np.abs(np.log(ours) - np.log(others)).max())

    yield Case(
        f"score {len(contexts)} turns",
        {
            "shared prefixes": cold,
            "one pass a turn": plain_pass(agent, contexts, references),
            "histories kept": warm,
        },
        agree=error,
        bound=1e-4,
        rows=len(contexts),
    )
