"""`tokens`: a state is everything that came before, token for token; rollouts share states as long as they are equal.

This is the prefix tree of the sampled tokens (the states of token-level methods, and of rollouts that fork from one
another). A key is the number of steps and a hash over the prompt, the sampled tokens (`token_ids`, or the action's text
and tool calls where a rollout has none) and the answers, in order.

What this is not: nothing is merged that differs in a single character.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rtmc.signatures.keys import short_hash
from rtmc.signatures.text import TextSignature

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step


class TokensSignature:
    """States by the exact prefix, actions by the exact tokens."""

    def __init__(self) -> None:
        self._text = TextSignature()

    def action(self, step: Step) -> str:
        """`text:HASH` of the action's text and tool calls; a state that knows the sampled tokens gives
        `COUNT tokens:HASH`."""
        return f"text:{short_hash(self._text.action(step), 32)}"

    def state(self, rollout: Rollout) -> _Prefix:
        """A state before the first step."""
        return _Prefix(self, rollout)


class _Prefix:
    def __init__(self, signature: TokensSignature, rollout: Rollout) -> None:
        self._signature = signature
        self._tokens = rollout.token_ids
        self._steps = rollout.steps
        self._taken = 0
        first = rollout.steps[0].observation if rollout.steps else ""
        self._hash = hashlib.sha256()
        self._feed(rollout.system or "")
        self._feed(first)

    def key(self) -> str:
        return f"{self._taken} steps:{self._hash.hexdigest()[:32]}"

    def action(self, step: Step) -> str:
        if self._tokens is None:
            return self._signature.action(step)
        ids = self._tokens[self._taken]
        return f"{len(ids)} tokens:{short_hash(','.join(map(str, ids)), 32)}"

    def update(self, step: Step) -> None:
        self._feed(self.action(step))
        self._taken += 1
        following = self._steps[self._taken].observation if self._taken < len(self._steps) else step.answer
        self._feed(following or "")

    def _feed(self, text: str) -> None:
        """Text with its length before it, so that no two sequences of texts run together."""
        data = text.encode("utf-8", "backslashreplace")
        self._hash.update(f"{len(data)}:".encode())
        self._hash.update(data)
