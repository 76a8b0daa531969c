"""`env`: the identity the environment itself reports (`info["state_key"]`, `info["action_key"]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtmc.errors import SignatureError

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

_FIX = "record the environment's `info` keys, or choose another signature"


class EnvSignature:
    """State and action keys as the environment gave them.

    After the last step the state is that step's `next_state_key`, where the environment told it.
    Raises SignatureError naming the step that lacks a key, or whose `next_state_key` contradicts the next
    step.
    """

    def action(self, step: Step) -> str:
        """The step's `action_key`."""
        if step.action_key is None:
            raise SignatureError(f"no `action_key`; {_FIX}")
        return step.action_key

    def state(self, rollout: Rollout) -> _EnvState:
        """A state before the first step."""
        return _EnvState(rollout)


class _EnvState:
    def __init__(self, rollout: Rollout) -> None:
        self._steps = rollout.steps
        self._taken = 0
        self._promised: str | None = None

    def key(self) -> str | None:
        if self._taken == len(self._steps):
            return self._promised
        key = self._steps[self._taken].state_key
        if key is None:
            raise SignatureError(f"no `state_key`; {_FIX}")
        if self._promised is not None and self._promised != key:
            raise SignatureError(
                f"`state_key` is {key!r}, but the step before says that the state after it is {self._promised!r}; "
                "record both from the same `info`"
            )
        return key

    def update(self, step: Step) -> None:
        self._taken += 1
        self._promised = step.next_state_key
