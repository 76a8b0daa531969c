"""Turns: what the policy is asked at a context and what it answers, for many conversations at once.

Two callers ask: the collector, which plays episodes side by side, and the exploration, which also goes back to earlier
histories. What this is not: it steps no environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtmc.train.config import Config
from rtmc.train.policy import NOT_FINITE, Answer, Choices, Policy, Request
from rtmc.train.prompt import Conversation, Format, choices
from rtmc.train.sampling import sample


@dataclass(frozen=True)
class Turn:
    """What the policy was asked and what it did: `tokens` with their log-probability and a mask of the sampled ones.

    `logprob` (n,) float32, 0 where a token was forced; `sampled` (n,) bool: the policy tokens; `edges` (n,) int64: for
    a choice, the scored edge of each token (-1 = forced), for free sampling its position. `entropy`: mean over the
    sampled tokens of the entropy, in nats, of the distribution each was drawn from; 0 where all were forced, NaN where
    it was not computed.
    """

    request: Request
    tokens: tuple[int, ...]
    logprob: np.ndarray
    sampled: np.ndarray
    edges: np.ndarray
    entropy: float = math.nan

    @property
    def surprise(self) -> float:
        """Mean negative log-probability of the sampled tokens, in nats; 0 where all were forced."""
        return -float(self.logprob[self.sampled].mean(dtype=np.float64)) if self.sampled.any() else 0.0


@dataclass(frozen=True)
class Acting:
    """How the policy acts: `mode` "choice" or "free"; `hidden` are command beginnings never offered as a choice."""

    mode: str = "choice"
    hidden: tuple[str, ...] = ()
    greedy: bool = False
    max_new_tokens: int = 64
    adapt: str = "turn"


def acting_of(config: Config) -> Acting:
    """How a configuration's policy acts while it is trained (and, greedy aside, evaluated)."""
    act = config.act
    return Acting(act.mode, tuple(act.hide), False, act.max_new_tokens, config.lora.adapt)


class Actor:
    """Asks the policy for turns; owns the answers that are still valid.

    Equal questions (same context, same commands) are asked once, also across calls, as long as the weights stay the
    same. `asked` counts questions, `answered` those that the model was run for.
    """

    def __init__(self, policy: Policy, form: Format) -> None:
        self.policy = policy
        self.form = form
        self._answers: dict[tuple, Answer] = {}
        self.asked = 0
        self.answered = 0

    def weights_changed(self) -> None:
        """Forget answers that older weights gave."""
        self._answers.clear()

    def context(self, conversation: Conversation, acting: Acting) -> tuple[int, ...] | None:
        """The tokens that the next turn is written after; None where they leave the model no room for it."""
        context = self.form.context(conversation)
        # The longest listed command rarely has as many tokens as free text may have.
        full = self.policy.limit is not None and len(context) + acting.max_new_tokens > self.policy.limit
        return None if full else context

    def act(
        self,
        contexts: Sequence[tuple[int, ...]],
        infos: Sequence[Mapping[str, Any]],
        generators: Sequence[np.random.Generator],
        acting: Acting,
    ) -> list[tuple[Turn, str]]:
        """The next turn after each context and its text. A turn depends on its context, the commands that its `info`
        lists, its generator and the weights alone, not on what is asked beside it."""
        live = [live_tokens(len(context), self.form, acting.adapt) for context in contexts]
        if acting.mode == "choice":
            return self._choose(contexts, live, infos, generators, acting)
        return self._write(contexts, live, generators, acting)

    def _choose(
        self,
        contexts: Sequence[tuple[int, ...]],
        live: Sequence[int],
        infos: Sequence[Mapping[str, Any]],
        generators: Sequence[np.random.Generator],
        acting: Acting,
    ) -> list[tuple[Turn, str]]:
        requests = []
        for context, n, info in zip(contexts, live, infos, strict=True):
            listed = info["admissible_commands"]
            offered = [c for c in listed if not c.startswith(acting.hidden)] if acting.hidden else list(listed)
            if not offered:
                raise ValueError(f"`act.hide` hides every command that the environment offers: {', '.join(listed)}")
            requests.append(Request(context, n, choices=choices(self.form, offered)))
        self.asked += len(requests)
        new = {r.key: r for r in requests if r.key not in self._answers}
        self.answered += len(new)
        if new:
            for key, answer in zip(new, self.policy.answer(list(new.values())), strict=True):
                self._answers[key] = answer
        turns = []
        for request, rng in zip(requests, generators, strict=True):
            answer = self._answers[request.key]
            if not np.isfinite(answer.command).all():
                raise ValueError(NOT_FINITE)
            if acting.greedy:
                pick = int(np.argmax(answer.command))
            else:
                # The draw is made on the cumulative distribution, one uniform number a turn.
                pick = int(np.searchsorted(np.exp(answer.command).cumsum(), rng.random(), side="right"))
                pick = min(pick, len(answer.command) - 1)
            assert request.choices is not None
            edges = request.choices.tree.edges[pick]
            logprob = np.zeros(len(edges), dtype=np.float32)
            logprob[edges >= 0] = answer.edge[edges[edges >= 0]]
            entropy = _entropy_along(request.choices, answer, edges[edges >= 0])
            turn = Turn(request, request.choices.tokens[pick], logprob, edges >= 0, edges, entropy)
            turns.append((turn, request.choices.commands[pick]))
        return turns

    def _write(
        self,
        contexts: Sequence[tuple[int, ...]],
        live: Sequence[int],
        generators: Sequence[np.random.Generator],
        acting: Acting,
    ) -> list[tuple[Turn, str]]:
        self.asked += len(contexts)
        self.answered += len(contexts)  # free text is drawn anew, also of equal contexts
        samples = sample(
            self.policy,
            contexts,
            live,
            generators,
            max_new_tokens=acting.max_new_tokens,
            stop=self.form.stop,
            greedy=acting.greedy,
        )
        turns = []
        for context, n, s in zip(contexts, live, samples, strict=True):
            # Without a stop token the turn is closed by a forced one, so that the next piece starts where it should.
            tokens = s.tokens if s.stopped else (*s.tokens, self.form.stop[0])
            forced = len(tokens) - len(s.tokens)
            turn = Turn(
                Request(context, n, sampled=s.tokens),
                tokens,
                np.append(s.logprob, np.zeros(forced, np.float32)),
                np.arange(len(tokens)) < len(s.tokens),
                np.where(np.arange(len(tokens)) < len(s.tokens), np.arange(len(tokens)), -1),
                float(s.entropy.mean(dtype=np.float64)),
            )
            turns.append((turn, self.form.text(s.tokens)))
        return turns


def live_tokens(length: int, form: Format, adapt: str) -> int:
    """How many of a context's last tokens the adapter reads: all of them, or the cue."""
    return length if adapt == "all" else min(form.cue, length)


def _entropy_along(offered: Choices, answer: Answer, taken: np.ndarray) -> float:
    """Mean entropy of the branchings that a command passed; `taken` are its edges there."""
    if len(taken) == 0:
        return 0.0
    node = offered.tree.node_of_edge + 1
    logprob = answer.edge.astype(np.float64)
    entropy = -np.bincount(node, weights=np.exp(logprob) * logprob)
    return float(entropy[node[taken]].mean())
