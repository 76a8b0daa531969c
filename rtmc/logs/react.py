"""ReAct transcripts on questions (HotpotQA, FEVER): numbered thoughts, actions and observations.

    Question: ...
    Thought 1: I need to search ...
    Action 1: Search[...]
    Observation 1: ...

A text may hold several questions. The verdict is read where the log has one: "Answer is CORRECT" (Reflexion),
"Episode finished, reward = 1" (ReAct); else the reward is unknown. Worked examples of a prompt cannot be told from
rollouts: give the response alone. Source: ReAct's and Reflexion's question-answering runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Facts, Format, chain, made, task_from_text
from rtmc.logs.source import Place
from rtmc.rollouts import Rollout, Step

NAME = "react"
_LABEL = re.compile(r"^[ \t]*(Thought|Action|Observation)(?:[ \t]+(\d+))?:[ \t]*", re.MULTILINE)
_QUESTION = re.compile(r"^[ \t]*(?:Question|Claim): *", re.MULTILINE)
_VERDICT = re.compile(r"Answer is (CORRECT|INCORRECT)|reward = ([01](?:\.\d+)?)")


def _matches(record: dict[str, Any]) -> bool:
    return False  # its records are texts with facts beside them: `is_text` decides


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    raise RolloutError("a ReAct record is an object with the transcript under `text`, `trajectory` or the like")


def _is_text(text: str) -> bool:
    labels = {found.group(1) for found in _LABEL.finditer(text)}
    return "Action" in labels and bool(labels & {"Thought", "Observation"})


def _read_text(text: str, place: Place, facts: Facts) -> Iterator[Rollout]:
    starts = [found.start() for found in _QUESTION.finditer(text)]
    first = _LABEL.search(text)
    if not starts or (first is not None and first.start() < starts[0]):
        starts = [0, *starts]
    parts = [(start, stop) for start, stop in zip(starts, [*starts[1:], len(text)], strict=True) if start < stop]
    parts = [part for part in parts if _LABEL.search(text, *part)]
    for number, (start, stop) in enumerate(parts, start=1):
        own = facts if len(parts) == 1 else replace(facts, task_id=None, rollout_id=None, reward=math.nan)
        here = place if len(parts) == 1 else replace(place, item=number)
        head, steps = _steps(text[start:stop])
        prompt = "\n".join(filter(None, (facts.prompt.strip(), head)))
        if math.isnan(own.reward):
            own = replace(own, reward=_reward(text[start:stop]))
        yield made(
            NAME,
            here,
            own,
            chain(steps, prompt),
            task_from_text(_posed(head or prompt), here),
        )


def _posed(text: str) -> str:
    """The question itself, so that other formats' rollouts on it are of the same task."""
    label = _QUESTION.search(text)
    return text if label is None else text[label.end() :].strip()


def _steps(text: str) -> tuple[str, list[Step]]:
    """(what stands before the first label, the steps): a step begins at a thought, or at an action without one."""
    labels = list(_LABEL.finditer(text))
    steps: list[Step] = []
    thought: str | None = None
    for number, label in enumerate(labels):
        stop = labels[number + 1].start() if number + 1 < len(labels) else len(text)
        content = text[label.end() : stop].strip()
        if label.group(1) == "Thought":
            thought = content if thought is None else f"{thought}\n{content}"
        elif label.group(1) == "Action":
            steps.append(Step("", content, thought=thought))
            thought = None
        elif steps:
            before = steps[-1].answer
            steps[-1].answer = content if before is None else f"{before}\n{content}"
    if thought:
        steps.append(Step("", thought))  # a reply that thought and did not act
    head = text[: labels[0].start()].strip() if labels else text.strip()
    return head, steps


def _reward(text: str) -> float:
    found = None
    for found in _VERDICT.finditer(text):  # noqa: B007 - the last one counts
        pass
    if found is None:
        return math.nan
    return float(found.group(1) == "CORRECT") if found.group(1) else float(found.group(2))


FORMAT = Format(NAME, "qa", _matches, _read, _is_text, _read_text)
