"""Chats of other tools: messages with tool calls whose ids or roles are named otherwise than in our own format.

    {"messages": [...], "instance_id" | "problem_id" | "id" | ...: ..., "resolved" | "score" | ...: ...}
    {"trajectory": [{"role": ..., "content": ..., "tool_calls": ...}, ...], "instance_id": ..., "resolved": ...}
    {"conversations": [{"from": "human" | "gpt", "value": "..."}, ...]}
    {"prompt": [...], "completion": [...], "reward": ...}   or both a text: one turn
    [{"role": ..., "content": ...}, ...]

Where nothing names the task, rollouts that begin with the same messages are of one task. Calls may stand in
`tool_calls`, in the older `function_call`, or in parts of the content (`tool_use`, `tool_result`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import ROLLOUT_KEYS, TASK_KEYS, Format, facts_of, made, task_from_text
from rtmc.logs.source import Place
from rtmc.rolloutfile import checked_messages, kind, steps_of
from rtmc.rollouts import Rollout

NAME = "chat"
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "observation": "tool",
    "function": "tool",
    "ipython": "tool",
}
_CHATS = ("prompt", "completion", "messages", "trajectory", "conversations")
_OTHER_IDS = tuple(key for key in (*TASK_KEYS, *ROLLOUT_KEYS) if key != "rollout_id")


def _matches(record: dict[str, Any]) -> bool:
    if "messages" in record:
        # With a task id it is our own format; with neither it is that too, and its reader says what is missing.
        return "task_id" not in record and any(key in record for key in _OTHER_IDS)
    if isinstance(record.get("conversations"), list) or _is_chat(record.get("trajectory")):
        return True
    return isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list)


def _is_chat(value: Any) -> bool:
    return is_message_list(value) and all("content" in m or "tool_calls" in m for m in value)


def is_message_list(value: Any) -> bool:
    """Whether a JSON list is one chat."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _read(record: Any, place: Place) -> Iterator[Rollout]:
    if isinstance(record, list):
        record = {"messages": record}
    messages = checked_messages(_messages(record))
    if any(message["role"] in _ROLES for message in messages):
        messages = [{**message, "role": _ROLES.get(message["role"], message["role"])} for message in messages]
    system, steps = steps_of(messages)
    known = {key: value for key, value in record.items() if key not in _CHATS}
    begin = steps[0].observation if steps else "\n".join(str(message.get("content") or "") for message in messages)
    rollout = made(
        NAME, place, facts_of(known), steps, task_from_text(f"{system or ''}\n{begin}", place), system=system
    )
    rollout.messages = messages
    yield rollout


def _messages(record: dict[str, Any]) -> Any:
    if "messages" in record:
        found = record["messages"]
        if not isinstance(found, str):
            return found
        try:
            return json.loads(found)  # some data sets store the list as its JSON text
        except (ValueError, RecursionError) as error:
            raise RolloutError(f"`messages` must be a list of chat messages, or its JSON text ({error})") from None
    if _is_chat(record.get("trajectory")):
        return record["trajectory"]
    if "conversations" not in record:
        return [*record["prompt"], *record["completion"]]
    messages = []
    for number, turn in enumerate(record["conversations"]):
        if not isinstance(turn, dict):
            raise RolloutError(f"`conversations[{number}]` must be an object, got {kind(turn)}")
        given = turn.get("from", turn.get("role"))
        if not isinstance(given, str):
            raise RolloutError(f"`conversations[{number}]`: `from` must be a string, got {kind(given)}")
        messages.append({"role": given, "content": turn.get("value", turn.get("content"))})
    return messages


FORMAT = Format(NAME, "", _matches, _read)
