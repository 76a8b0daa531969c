"""`text`: two states are the same if the model read the same text, two actions if it wrote the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step


class TextSignature:
    """State key: the observation, character by character. Action key: the action without white space at its
    ends, followed by its tool calls (name and arguments; call ids left out), if any. A call that only repeats the
    action, as readers make one of a command that a log holds as text, is told once.

    It knows nothing of what happened before the observation, so it merges states that only look the same.
    """

    def action(self, step: Step) -> str:
        """The stripped action and its tool calls, one a line."""
        said = step.action.strip()
        calls = (_call_text(call) for call in step.tool_calls if not _repeats(call, said))
        return "\n".join([said, *calls]).lstrip("\n")

    def state(self, rollout: Rollout) -> _TextState:
        """A state before the first step."""
        return _TextState(rollout)


class _TextState:
    def __init__(self, rollout: Rollout) -> None:
        self._text: str | None = rollout.steps[0].observation if rollout.steps else None
        self._following = iter(rollout.steps[1:])

    def key(self) -> str | None:
        return self._text

    def update(self, step: Step) -> None:
        following = next(self._following, None)
        self._text = step.answer if following is None else following.observation


def _repeats(call: dict[str, object], said: str) -> bool:
    function = call.get("function")
    given = function.get("arguments") if isinstance(function, dict) else None
    return isinstance(given, dict) and bool(said) and [str(value).strip() for value in given.values()] == [said]


def _call_text(call: dict[str, object]) -> str:
    """`name(arguments)` with the arguments' JSON in one fixed spelling; text that is no JSON stays as it is."""
    function = call.get("function", call)
    if not isinstance(function, dict):
        return json.dumps(call, sort_keys=True)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return f"{function.get('name')}({arguments})"
    return f"{function.get('name')}({json.dumps(arguments, sort_keys=True)})"
