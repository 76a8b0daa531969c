"""The texts of steps for the page: each kept once, cut so that all of them fit into the page.

What this is not: a copy of the logs. With the full texts asked for it is one, and then grows with the logs; else what
is held is bounded by `_HELD` characters and a few hundred a step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtmc.rollouts import Rollout, Step
from rtmc.signatures.text import TextSignature

LONGEST = 8000  # characters of a text that may be cut
TOLD = 1500  # characters of a text that the tables show, where others have to be shorter
_SHORTEST = 24
_HELD = 100_000_000  # characters held at a time; past that all texts are cut to half
_EXAMPLE = 300  # characters of a text that the signatures' quality may show
_SURROGATE = re.compile("[\ud800-\udfff]")


def script_json(value: Any) -> str:
    r"""JSON that can stand inside an HTML script element and in a UTF-8 file.

    Every `<` is written `\u003c`, so that no text can end the element or open a comment in it; a lone surrogate (a raw
    byte of some tool) is written as its escape. Raises ValueError for a number that is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextStore:
    """Texts by number; equal texts have one number. `cut`: whether long ones may lose their end."""

    def __init__(self, cut: bool = True) -> None:
        self.texts: list[str] = []
        self.lengths: list[int] = []  # of the whole texts, in characters
        self._cap: int | None = LONGEST if cut else None
        self._numbers: dict[tuple[str, int], int] = {}
        self._held = 0
        self._sizes = np.zeros(0)

    def add(self, text: str) -> int:
        """The number of `text`."""
        key = (text[: self._cap], len(text))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.texts)
            self.texts.append(key[0])
            self.lengths.append(key[1])
            self._held += len(key[0])
            if self._cap is not None and self._held > _HELD and self._cap > _SHORTEST:
                self._cut_to_half()
        return number

    def _cut_to_half(self) -> None:
        assert self._cap is not None
        self._cap = max(self._cap // 2, _SHORTEST)
        self.texts = [text[: self._cap] for text in self.texts]
        self._numbers = {
            (text, length): at for at, (text, length) in enumerate(zip(self.texts, self.lengths, strict=True))
        }
        self._held = sum(map(len, self.texts))

    def fitted(self, budget: float, told: Collection[int] = ()) -> list[str]:
        """The texts in the order of their numbers, those longer than some length cut to it.

        budget   bytes of JSON for all of them; the length is about the largest with which they fit, and no less than
                 24 characters. Not heeded where the texts may not be cut.
        told     numbers of texts that keep 1,500 characters in any case
        """
        if self._cap is None or not self.texts:
            return self.texts
        lengths = np.array([len(text) for text in self.texts], dtype=np.float64)
        a_character = self.sizes() / np.maximum(lengths, 1)
        least = np.full(len(lengths), float(_SHORTEST))
        least[list(told)] = TOLD

        def bytes_at(length: float) -> float:
            return float((np.minimum(lengths, np.maximum(least, length)) * a_character + 3).sum())

        low, high = float(_SHORTEST), float(self._cap)
        if bytes_at(high) <= budget:
            return self.texts
        while high - low > 1:
            middle = (low + high) / 2
            low, high = (middle, high) if bytes_at(middle) <= budget else (low, middle)
        return [text[: int(max(low, least[at]))] for at, text in enumerate(self.texts)]

    def sizes(self) -> np.ndarray:
        """Bytes of each text in JSON, its quotes not counted."""
        if len(self._sizes) != len(self.texts):
            self._sizes = np.array([_size(text) for text in self.texts], dtype=np.float64)
        return self._sizes


def _size(text: str) -> int:
    return len(script_json(text).encode()) - 2


@dataclass
class StepTexts:
    """Numbers of the texts of one rollout: what each step saw, thought (-1 = nothing apart) and did; the last answer.

    `rollout` is the rollout with texts just long enough to tell them apart and to show an example of each.
    """

    rollout: Rollout
    saw: list[int] = field(default_factory=list)
    thought: list[int] = field(default_factory=list)
    did: list[int] = field(default_factory=list)
    answer: int = -1


class Collector:
    """Takes the texts out of rollouts as they pass: `credit_logs(..., on_rollout=collector)`.

    full_text   keep the texts whole
    """

    def __init__(self, full_text: bool = False) -> None:
        self.full_text = full_text
        self.store = TextStore(cut=not full_text)
        self.rollouts: list[StepTexts] = []
        self._raw = TextSignature()

    def __call__(self, rollout: Rollout) -> None:
        """Keep the texts of `rollout`."""
        add = self.store.add
        found = StepTexts(Rollout(rollout.task_id, rollout.rollout_id, [], rollout.reward, rollout.truncated))
        for step in rollout.steps:
            found.saw.append(add(step.observation))
            found.thought.append(add(step.thought) if step.thought and step.thought not in step.action else -1)
            found.did.append(add(action_text(step)))
            found.rollout.steps.append(Step(_short(step.observation), _short(self._raw.action(step))))
        if rollout.steps and rollout.steps[-1].answer:
            found.answer = add(rollout.steps[-1].answer)
        self.rollouts.append(found)


def _short(text: str) -> str:
    """A text that differs from others as `text` does and begins with what an example shows of it."""
    if len(text) <= _EXAMPLE:
        return text
    return text[:_EXAMPLE] + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def action_text(step: Step) -> str:
    """What the step did, to be read: its message, then its tool calls that say more than the message."""
    said = step.action.strip()
    return "\n\n".join(part for part in (said, *(_call(call, said) for call in step.tool_calls)) if part)


def _call(call: dict[str, Any], said: str) -> str:
    function = call.get("function", call)
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False)
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return f"{function.get('name')}({given})"
    if not isinstance(given, dict):
        return f"{function.get('name')}({json.dumps(given, ensure_ascii=False)})"
    if [str(value).strip() for value in given.values()] == [said]:
        return ""
    long = any(isinstance(value, str) and "\n" in value for value in given.values())
    words = [
        f"{name}={value if long and isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    ]
    return (
        f"{function.get('name')}(\n" + ",\n".join(words) + "\n)"
        if long
        else f"{function.get('name')}({', '.join(words)})"
    )
