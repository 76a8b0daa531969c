"""R2E-Gym runs: function-call text, `<function=NAME><parameter=k>v</parameter></function>`.

    {"trajectory_steps": [{"thought", "action", "observation", ...}, ...], "problem_statement": "...", "ds": {...},
     "docker_image": "...", "reward": 1.0, "exit_reason": "agent", ...}

Also a text of the same, with or without a chat template's role markers. Without them only the calls and the beginnings
of replies can be told: what stands between a call and the next one is its reply.
Source: R2E-Gym's trajectory files and tool texts (`Execution output of [NAME]:`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Facts, Format, chain, facts_of, first_id, made, task_from_text, text_at
from rtmc.logs.source import Place
from rtmc.logs.transcript import is_templated, messages_of
from rtmc.rolloutfile import kind, steps_of
from rtmc.rollouts import Rollout, Step

NAME = "r2e-gym"
_CALL = re.compile(r"<function\s*=\s*[^>\n]+>")
_CLOSED = "</function>"
# A call or two with their replies make a log of it; a page that only mentions the syntax is none.
_REPLY = re.compile(r"Execution output of \[\w+\]|<<< Finished >>>|Exit code: -?\d+")


def _matches(record: dict[str, Any]) -> bool:
    return isinstance(record.get("trajectory_steps"), list)


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    steps = []
    for number, item in enumerate(record["trajectory_steps"]):
        where = f"`trajectory_steps[{number}]`"
        if not isinstance(item, dict):
            raise RolloutError(f"{where} must be an object, got {kind(item)}")
        thought, action = text_at(item, "thought", f"{where}: "), text_at(item, "action", f"{where}: ")
        step = Step("", action or thought, thought=(thought or None) if action else None)
        if item.get("observation") is not None:
            step.answer = text_at(item, "observation", f"{where}: ")
        steps.append(step)
    facts = facts_of(record)
    reason = record["exit_reason"] if isinstance(record.get("exit_reason"), str) else ""
    cut = any(word in reason for word in ("limit", "time"))
    yield made(
        NAME,
        place,
        replace(facts, truncated=facts.truncated or cut),
        chain(steps, facts.prompt),
        _task(record) or task_from_text(facts.prompt, place),
        error=reason if "error" in reason else None,
        meta={"exit_status": reason} if reason else {},
    )


def _task(record: dict[str, Any]) -> str | None:
    source = record.get("ds")
    named = first_id(source, ("instance_id", "docker_image")) if isinstance(source, dict) else None
    return named or first_id(record, ("docker_image",))


def _is_text(text: str) -> bool:
    return _CALL.search(text) is not None and _CLOSED in text and _REPLY.search(text) is not None


def _read_text(text: str, place: Place, facts: Facts) -> Iterator[Rollout]:
    if is_templated(facts.prompt + text):
        system, steps = steps_of(messages_of(facts.prompt + text))
        prompt = steps[0].observation if steps else facts.prompt
        yield made(NAME, place, facts, steps, task_from_text(prompt, place), system=system)
        return
    prompt, steps = _split(text, facts.prompt)
    yield made(NAME, place, facts, chain(steps, prompt), task_from_text(prompt, place))


def _split(text: str, prompt: str) -> tuple[str, list[Step]]:
    """(prompt, steps): with no prompt given, the paragraphs before the one that holds the first call pose the task."""
    steps: list[Step] = []
    first = _CALL.search(text)
    at = 0
    if first is not None and not prompt:
        at = max(text.rfind("\n\n", 0, first.start()), 0)
        prompt = text[:at].strip()
    while (found := _CALL.search(text, at)) is not None:
        end = text.find(_CLOSED, found.end())
        end = len(text) if end < 0 else end + len(_CLOSED)
        following = _CALL.search(text, end)
        stop = len(text) if following is None else following.start()
        thought = text[at : found.start()].strip() if not steps else ""
        answer = text[end:stop].strip()
        steps.append(Step("", text[found.start() : end], thought=thought or None, answer=answer or None))
        at = stop
    return prompt, steps


FORMAT = Format(NAME, "swe", _matches, _read, _is_text, _read_text)
