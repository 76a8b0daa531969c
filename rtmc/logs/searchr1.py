"""Search-R1 rollouts: one tagged text, `<think>`, `<search>`, `<information>`, `<answer>`.

A step is what the model wrote up to a search or an answer; its answer is the `<information>` block or the notice
that the action was invalid, which the environment put in. The text may begin with the prompt (which holds an example
answer of its own): it ends at the last `assistant` marker of a chat template, or at the line `Question: ...`.
Source: Search-R1's generation loop and prompt (its tags and the text of the notice).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Facts, Format, chain, made, task_from_text
from rtmc.logs.source import Place
from rtmc.logs.transcript import last_turn, without_ends
from rtmc.rollouts import Rollout, Step

NAME = "search-r1"
_REPLY = re.compile(
    r"<information>.*?(?:</information>|\Z)|My previous action is invalid\..*?(?:Let me try again\.|\Z)",
    re.DOTALL,
)
_TAGS = re.compile(r"<search>|<answer>|<information>")
_QUESTION = re.compile(r"^.*?Question: ([^\n]*)\n", re.DOTALL)


def _matches(record: dict[str, Any]) -> bool:
    return False  # its records are texts with facts beside them: `is_text` decides


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    raise RolloutError(
        "a Search-R1 record is an object with the tagged text under `output`, `response`, `text` or the like"
    )


def is_tagged(text: str) -> bool:
    """Whether a text is a Search-R1 rollout: it searches and is informed, or thinks and answers."""
    if "<search>" in text and ("<information>" in text or "</search>" in text):
        return True
    return "<think>" in text and "<answer>" in text


def turns(text: str) -> list[Step]:
    """The steps of a response: the model's texts, cut at what the environment put between them."""
    steps: list[Step] = []
    at = 0
    for reply in _REPLY.finditer(text):
        # Two replies in a row answer the same step.
        action = text[at : reply.start()].strip()
        if action:
            steps.append(Step("", action, answer=reply.group()))
        elif steps:
            steps[-1].answer = f"{steps[-1].answer}\n{reply.group()}"
        at = reply.end()
    rest = text[at:].strip()
    if rest:
        steps.append(Step("", rest))
    return steps


def _read_text(text: str, place: Place, facts: Facts) -> Iterator[Rollout]:
    prompt, response = facts.prompt, text
    if not prompt:
        prompt, response = last_turn(text)
    question = _QUESTION.match(response)
    if question is not None and _TAGS.search(response, question.end()) is not None:
        prompt, response = prompt + question.group(), response[question.end() :]
    prompt = prompt.strip()
    asked = _QUESTION.match(prompt + "\n")
    posed = asked.group(1) if asked else prompt
    yield made(
        NAME,
        place,
        facts,
        chain(turns(without_ends(response)), prompt),
        task_from_text(posed, place),
    )


FORMAT = Format(NAME, "qa", _matches, _read, is_tagged, _read_text)
