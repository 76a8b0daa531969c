"""Rollouts: one attempt at a task, step by step, and the JSON-lines file they are kept in.

What this is not: it assigns no credit and decides on no signature; `rtmc.tabulate` turns rollouts into a step
table. It imports neither torch nor a tokenizer.

A file holds one JSON object a line, the chat format that trainers and engines share:

    {"task_id": "...", "rollout_id": "...", "messages": [{"role": ..., "content": ..., "tool_calls": [...]},
     ...], "reward": 1.0, "truncated": false, "step_rewards": [...], "token_ids": [[...], ...], "meta": {...}}

`task_id` and `messages` are required. A step is one assistant message and what answers it. What a message
cannot say (state keys, validity, the reason of the end) stands in `meta` under the reserved key `rtmc`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rtmc.errors import RolloutError
from rtmc.types import Ending


class Stop(StrEnum):
    """Why a rollout ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"  # a limit on turns, tokens, cost or time
    ERROR = "error"  # the environment, the engine or the sampler failed; the verdict says nothing about the policy
    UNKNOWN = "unknown"  # no reward is known and nothing says why


@dataclass(frozen=True)
class Reply:
    """What answered one tool call: its text, and whether the log marks the call as failed (None = it does not say)."""

    text: str
    failed: bool | None = None


@dataclass
class Step:
    """One model call and the environment's answer.

    observation      text the model saw before acting (what came since its last action)
    action           text of the model's message
    state_key        identity of the state before the action, where the environment gives one
    action_key       identity of the action, likewise
    next_state_key   identity of the state after it; by default the following step's `state_key`
    valid            the environment accepted the action; None = it does not say
    reward           the environment's own reward of this step, the outcome excluded
    tokens           policy tokens sampled in this step; None = not counted (a table then says 1)
    validation       the action checks the agent's own work (it runs a test)
    answer           what the environment replied; by default the following step's observation, if that has a text;
                     None = nothing did
    tool_calls       structured calls of the message, as in the chat format
    replies          what answered each of `tool_calls` (None = nothing did), where the log tells them apart; read from
                     the messages, never written beside them
    thought          the model's reasoning before the action, where the log keeps it apart from the action
    scores           further numbers for single methods (for instance `value`, `answer_score`)
    """

    observation: str
    action: str
    state_key: str | None = None
    action_key: str | None = None
    next_state_key: str | None = None
    valid: bool | None = None
    reward: float = 0.0
    tokens: int | None = None
    validation: bool = False
    answer: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    thought: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    replies: list[Reply | None] | None = field(default=None, compare=False)


@dataclass
class Rollout:
    """One attempt at a task.

    task_id       the group: rollouts of one task are compared with each other
    rollout_id    unique within the task
    steps         in time order; may be empty
    reward        the outcome, as the verifier gave it; NaN = unknown
    truncated     a limit ended the rollout
    stop          why it ended; by default told from `error`, `truncated` and `reward`, in this order
    error         what failed, for a rollout that ended in an error; None otherwise
    token_ids     sampled token ids, one list a step, or None; a step's `tokens` is taken from it where not
                  given
    meta          anything else, JSON values; the key `rtmc` is reserved
    system        text of the system prompt, None = none
    messages      the chat messages this rollout was read from, None = made from the steps when written
    """

    task_id: str
    rollout_id: str
    steps: list[Step]
    reward: float = math.nan
    truncated: bool = False
    stop: Stop | None = None
    error: str | None = None
    token_ids: list[list[int]] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    messages: list[dict[str, Any]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.complete()

    def complete(self) -> None:
        """Fill in what follows from the rest: answers, token counts, `stop`, `truncated`.

        Called when a rollout is made, written or tabulated; whoever appends steps later need not call it.

        Raises RolloutError for an infinite reward, a reserved key in `meta`, or `token_ids` of another length.
        """
        self.reward = math.nan if self.reward is None else float(self.reward)
        if math.isinf(self.reward):
            raise RolloutError(f"{self.name}: `reward` is {self.reward}; it must be finite, or NaN where it is unknown")
        if "rtmc" in self.meta:
            raise RolloutError(f"{self.name}: the key `rtmc` of `meta` is reserved; rename it")
        if self.token_ids is not None and len(self.token_ids) != len(self.steps):
            raise RolloutError(
                f"{self.name}: `token_ids` has {len(self.token_ids)} lists for {len(self.steps)} steps; give one a step"
            )
        for place, step in enumerate(self.steps):
            if step.answer is None and place + 1 < len(self.steps):
                step.answer = self.steps[place + 1].observation or None
            if step.tokens is None and self.token_ids is not None:
                step.tokens = len(self.token_ids[place])
        # "unknown" is told anew: the reward may have come since.
        self.stop = self._told_stop() if self.stop in (None, Stop.UNKNOWN) else Stop(self.stop)
        self.truncated = self.truncated or self.stop is Stop.TRUNCATED

    def _told_stop(self) -> Stop:
        if self.error is not None:
            return Stop.ERROR
        if self.truncated:
            return Stop.TRUNCATED
        if math.isnan(self.reward):
            return Stop.UNKNOWN
        return Stop.SUCCESS if self.reward > 0 else Stop.FAILURE

    @property
    def name(self) -> str:
        """The rollout in words, for messages."""
        return f"rollout {self.rollout_id!r} of task {self.task_id!r}"

    @property
    def ending(self) -> Ending:
        """Ending for the step table: success by `stop`, else truncated where a limit or an error cut the rollout,
        else failure."""
        stop = self._told_stop() if self.stop in (None, Stop.UNKNOWN) else self.stop
        if stop is Stop.SUCCESS:
            return Ending.SUCCESS
        return Ending.TRUNCATED if self.truncated or stop in (Stop.TRUNCATED, Stop.ERROR) else Ending.FAILURE

    def to_json(self) -> dict[str, Any]:
        """The JSON object of one line. Raises RolloutError where `messages` no longer match the steps."""
        from rtmc.rolloutfile import rollout_to_json

        return rollout_to_json(self)

    @classmethod
    def from_json(cls, value: Any, default_id: str = "0") -> Rollout:
        """Rollout from the JSON object of one line; `default_id` names one without `rollout_id`.

        `Rollout.from_json(r.to_json()) == r`. Raises RolloutError saying what is wrong and what would be
        right.
        """
        from rtmc.rolloutfile import rollout_from_json

        return rollout_from_json(value, default_id)
