"""OpenHands runs: the events of a session, as its evaluation writes them (`output.jsonl`) and as it stores them.

    {"instance_id": "...", "history": [EVENT, ...], "test_result": {...}, "metadata": {...}, "error": null, ...}
    {"instance_id": "...", "history": [[ACTION, OBSERVATION], ...], ...}   as older versions write it
    [EVENT, ...]                                                             the events alone

An action is `{"id", "source", "action": "run" | "edit" | ..., "args": {...}, "tool_call_metadata": {...}}`, its answer
`{"observation": ..., "content": "...", "cause": ID, "extras": {...}}`. A step is one reply of the model: the actions
of one `model_response` with what answers each. A call has the arguments that the model gave where the event keeps its
reply, else those of the event. What follows a command's output (exit code, folder) is put behind it as the model saw
it.

What this is not: the trajectories that data sets made of these as chats, which `chat` reads.
Source: OpenHands' event serialization and its evaluation's output files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Format, facts_of, first_reward, made, task_from_text
from rtmc.logs.source import Place
from rtmc.rolloutfile import checked_messages, kind, short, steps_of
from rtmc.rollouts import Rollout

NAME = "openhands"
# Actions that are the framework's own and no step of the model.
_NO_STEP = ("system", "recall", "condensation", "condensation_request", "change_agent_state", "pause", "resume", "stop")
_NO_ANSWER = ("agent_state_changed", "recall", "null", "condense")
_TOOLS = {
    **{"run": "execute_bash", "run_ipython": "execute_ipython_cell", "read": "str_replace_editor"},
    **{"edit": "str_replace_editor", "write": "write_file", "browse_interactive": "browser"},
}
# What an event's arguments hold beside those that the model gave.
_OWN = (
    *("thought", "blocking", "confirmation_state", "is_confirmed", "security_risk", "impl_source", "keep_prompt"),
    *("hidden", "is_static", "cwd", "background", "is_input", "view_range", "start", "end", "kernel_init_code"),
    "include_extra",
)
_LIMITS = re.compile(r"maximum iteration|max_iterations|budget|AgentStuckInLoop|timed? ?out", re.I)


def is_events(value: Any) -> bool:
    """Whether a JSON value is a list of events, or of pairs of them."""
    if not isinstance(value, list) or not value:
        return False
    first = value[0][0] if isinstance(value[0], list) and value[0] else value[0]
    return isinstance(first, dict) and "role" not in first and _kind_of(first) is not None and _has_more(first)


def _has_more(event: dict[str, Any]) -> bool:
    return "source" in event or ("args" in event and "action" in event) or ("cause" in event and "content" in event)


def _kind_of(event: dict[str, Any]) -> str | None:
    return next((key for key in ("action", "observation") if isinstance(event.get(key), str)), None)


def _matches(record: dict[str, Any]) -> bool:
    if "messages" in record or "trajectory" in record:
        return False
    return is_events(record.get("history")) or _crashed(record)


def _crashed(record: dict[str, Any]) -> bool:
    """Whether it is what the evaluation writes of an instance that failed before its agent did anything."""
    named = "instance_id" in record and "history" in record and ("error" in record or "test_result" in record)
    return named and record["history"] in (None, [])


def _read(record: Any, place: Place) -> Iterator[Rollout]:
    if isinstance(record, list):
        record = {"history": record}
    messages = checked_messages(_messages(list(_events(record["history"] or []))))
    system, steps = steps_of(messages)
    facts = facts_of({key: value for key, value in record.items() if key not in ("history", "id")})
    reward = facts.reward
    for key in ("report", "test_result"):
        found = record.get(key)
        inner = found.get("report") if isinstance(found, dict) and key == "test_result" else found
        if math.isnan(reward) and isinstance(inner, dict):
            reward = first_reward(inner, ("resolved",))
    error = record["error"] if isinstance(record.get("error"), str) and record["error"] else None
    cut = error is not None and _LIMITS.search(error[:2000]) is not None
    posed = steps[0].observation if steps else "".join(m["content"] for m in messages if m["role"] == "user")
    rollout = made(
        NAME,
        place,
        replace(facts, reward=reward, truncated=facts.truncated or cut),
        steps,
        task_from_text(f"{system or ''}\n{posed}", place),
        system=system,
        error=None if cut or error is None else short(error, 300),
    )
    rollout.messages = messages
    yield rollout


def _events(history: list[Any]) -> Iterator[dict[str, Any]]:
    for number, entry in enumerate(history):
        for event in entry if isinstance(entry, list) else [entry]:
            if not isinstance(event, dict):
                raise RolloutError(f"`history[{number}]` must be an event or a pair of them, got {kind(event)}")
            yield event


def _messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events as a chat."""
    messages: list[dict[str, Any]] = []
    reply: Any = None  # the model's reply that the last assistant message is of
    waiting: dict[str, str] = {}  # id of an action -> that of its call
    for event in events:
        args = event["args"] if isinstance(event.get("args"), dict) else {}
        content = _content(event, args)
        if _kind_of(event) == "observation":
            if event["observation"] not in _NO_ANSWER:
                messages.append(_answer(event, content, waiting))
            continue
        name = event.get("action")
        if name == "system":
            messages.append({"role": "system", "content": content})
        elif not isinstance(name, str) or name in _NO_STEP:
            continue
        elif event.get("source", "agent") != "agent":
            messages.append({"role": "user", "content": content})
        elif name in ("message", "null"):
            if name == "message":
                messages.append({"role": "assistant", "content": content})
            reply = None
        else:
            told = _reply_of(event)
            if told is None or told != reply or not messages or messages[-1]["role"] not in ("assistant", "tool"):
                messages.append({"role": "assistant", "content": content, "tool_calls": []})
            calls = next(m for m in reversed(messages) if m["role"] == "assistant")["tool_calls"]
            call = _call(event, name, args, len(messages))
            calls.append(call)
            waiting[str(event.get("id"))] = call["id"]
            reply = told
    return messages


def _content(event: dict[str, Any], args: dict[str, Any]) -> str:
    """The text of an event: a message's, an observation's, the thought that goes with an action."""
    if "observation" in event:
        found: Any = event.get("content", event.get("message"))
    else:
        found = next((args[key] for key in ("content", "thought", "final_thought") if args.get(key)), "")
        if event.get("action") not in ("message", "system"):
            found = args.get("thought") or args.get("final_thought") or ""
    return found if isinstance(found, str) else "" if found is None else json.dumps(found)


def _reply_of(event: dict[str, Any]) -> str | None:
    """The id of the model's reply that an action is one of several calls of."""
    meta = event.get("tool_call_metadata")
    response = meta.get("model_response") if isinstance(meta, dict) else None
    name = response.get("id") if isinstance(response, dict) else None
    return name if isinstance(name, str) and name else None


def _call(event: dict[str, Any], name: str, args: dict[str, Any], number: int) -> dict[str, Any]:
    meta = event["tool_call_metadata"] if isinstance(event.get("tool_call_metadata"), dict) else {}
    call_id = meta.get("tool_call_id")
    call_id = call_id if isinstance(call_id, str) and call_id else f"{event.get('id', number)}"
    given = _given(meta, call_id)
    tool = meta.get("function_name")
    if given is None:
        given = _arguments(name, args)
        if name == "edit" and "command" not in given:
            tool = "edit_file"
    function = {"name": tool if isinstance(tool, str) and tool else _TOOLS.get(name, name), "arguments": given}
    return {"id": call_id, "type": "function", "function": function}


def _given(meta: dict[str, Any], call_id: str) -> Any:
    """The arguments that the model's own reply holds for the call; None where it is not kept."""
    found: Any = meta.get("model_response")
    for key in ("choices", 0, "message", "tool_calls"):
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            return None
    for call in found if isinstance(found, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and call.get("id") == call_id and isinstance(function.get("arguments"), str):
            return function["arguments"]
    return None


def _arguments(name: str, args: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in args.items() if key not in _OWN and value is not None and value != ""}
    if name == "read":
        found.setdefault("command", "view")
    if name in ("read", "edit", "write"):
        span = args.get("view_range")
        if span is None and isinstance(args.get("start"), int) and isinstance(args.get("end"), int):
            # Lines from 0 on in the oldest versions, all of them by default.
            span = (
                [max(args["start"], 1), args["end"]] if (args["start"], args["end"]) not in ((0, -1), (1, -1)) else None
            )
        if span is not None:
            found["view_range"] = span
    return found


def _answer(event: dict[str, Any], content: str, waiting: dict[str, str]) -> dict[str, Any]:
    extras = event["extras"] if isinstance(event.get("extras"), dict) else {}
    meta = extras["metadata"] if isinstance(extras.get("metadata"), dict) else {}
    code = meta.get("exit_code", extras.get("exit_code"))
    if event["observation"] == "run" and "[Command finished with exit code" not in content:
        parts = [f"{meta.get('prefix') or ''}{content}{meta.get('suffix') or ''}"]
        if isinstance(meta.get("working_dir"), str) and meta["working_dir"]:
            parts.append(f"[Current working directory: {meta['working_dir']}]")
        if type(code) is int:
            parts.append(f"[Command finished with exit code {code}]")
        content = "\n".join(parts)
    call = waiting.get(str(event.get("cause", "")))
    if call is None:
        return {"role": "user", "content": content}
    message = {"role": "tool", "tool_call_id": call, "content": content}
    return {**message, "is_error": True} if event["observation"] == "error" else message


FORMAT = Format(NAME, "swe", _matches, _read)
