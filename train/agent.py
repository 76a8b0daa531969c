"""Who explores: the interface that exploration asks, and the language model behind it.

What this is not: a collector of whole episodes (`collect.py`). It keeps no environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rtmc.train.acting import Acting, Actor
from rtmc.train.policy import Policy
from rtmc.train.prompt import Conversation, Format
from rtmc.train.references import Reference
from rtmc.train.scoring import AnswerScorer
from rtmc.train.turn_forest import Move

ENTROPIES = ("surprise", "distribution")


class Agent(Protocol):
    """The policy and its scorer, as exploration sees them.

    A history is the agent's own object; `extend` makes a new one and leaves the old as it is, as branches share it.
    """

    def begin(self, observation: str) -> Any:
        """The history of a task's first observation."""

    def act(
        self, histories: Sequence[Any], infos: Sequence[Mapping[str, Any]], generators: Sequence[Any]
    ) -> Sequence[Move | None]:
        """A turn sampled at each history, by its generator's random numbers alone; None = it has no room for one."""

    def extend(self, history: Any, move: Move, observation: str) -> Any:
        """The history after a turn and the environment's answer."""

    def score(self, histories: Sequence[Any], references: Sequence[Reference]) -> Sequence[float]:
        """p of each reference answer after its history, in [0, 1]; NaN = it could not be measured."""

    def weights_changed(self) -> None:
        """Called before anything else: forget what older weights said."""


class ModelAgent:
    """A language model that explores: an `Agent` whose histories are conversations.

    acting    how it acts, as for a collector; `greedy` is refused: every candidate would be the same
    answers   "first" or "max": which of several wordings of the reference is scored (`AnswerScorer`)
    wrapper   text to write the reference in, `{}` at its place; None = the reference's own
    entropy   what the score `entropy` is. "surprise": mean negative log-probability of the turn's sampled tokens, as in
              AT2PO's code and the estimator `at2po`. "distribution": mean entropy of the distributions they were drawn
              from. Nats; 0 for a turn whose tokens were all forced
    actor     who asks the policy, to share its answers; None = one of its own
    """

    def __init__(
        self,
        policy: Policy,
        form: Format,
        acting: Acting | None = None,
        *,
        answers: str = "first",
        wrapper: str | None = None,
        entropy: str = "surprise",
        actor: Actor | None = None,
    ) -> None:
        self.acting = Acting() if acting is None else acting
        if self.acting.greedy:
            raise ValueError("`acting.greedy` must be False: exploration samples its candidates from the policy")
        if entropy not in ENTROPIES:
            raise ValueError(f"`entropy` must be {' or '.join(map(repr, ENTROPIES))}, got {entropy!r}")
        if wrapper is not None:
            Reference(("answer",), wrapper)  # a wrapper without its place is told of now
        self.form = form
        self.actor = Actor(policy, form) if actor is None else actor
        self.scorer = AnswerScorer(policy, form, self.acting.adapt, answers)
        self.wrapper = wrapper
        self.entropy = entropy

    def begin(self, observation: str) -> Conversation:
        """See Agent."""
        return Conversation([self.form.observation(observation, 0)])

    def act(
        self,
        histories: Sequence[Conversation],
        infos: Sequence[Mapping[str, Any]],
        generators: Sequence[np.random.Generator],
    ) -> list[Move | None]:
        """See Agent; a Move's `data` is the `Turn`."""
        contexts = [self.actor.context(history, self.acting) for history in histories]
        there = [(i, context) for i, context in enumerate(contexts) if context is not None]
        found: list[Move | None] = [None] * len(contexts)
        if not there:
            return found
        turns = self.actor.act(
            [context for _, context in there],
            [infos[i] for i, _ in there],
            [generators[i] for i, _ in there],
            self.acting,
        )
        for (i, _), (turn, text) in zip(there, turns, strict=True):
            unsure = turn.surprise if self.entropy == "surprise" else turn.entropy
            found[i] = Move(text, int(turn.sampled.sum()), unsure, turn)
        return found

    def extend(self, history: Conversation, move: Move, observation: str) -> Conversation:
        """See Agent."""
        turns = len(history.actions) + 1
        return Conversation(
            [*history.observations, self.form.observation(observation, turns)], [*history.actions, move.data.tokens]
        )

    def score(self, histories: Sequence[Conversation], references: Sequence[Reference]) -> list[float]:
        """See Agent; a history ends with the cue, as if the policy were to answer now."""
        if self.wrapper is not None:
            references = [Reference(reference.answers, self.wrapper) for reference in references]
        scores = self.scorer.score([self.form.context(history) for history in histories], references)
        return [math.nan if math.isnan(score) else min(float(score), 1.0) for score in scores]

    def weights_changed(self) -> None:
        """See Agent."""
        self.actor.weights_changed()
        self.scorer.weights_changed()
