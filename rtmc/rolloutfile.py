"""The JSON form of a rollout, and reading and writing files of them.

Design requirements: what a log of another tool holds in this chat format is read without loss and written
back as it was; what is wrong is named with file and line; a file is read whole or not at all, written whole
or not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from rtmc.atomic import atomic_path
from rtmc.errors import RolloutError, unknown_name
from rtmc.rollouts import Reply, Rollout, Step, Stop

_KEYS = ("task_id", "rollout_id", "messages", "reward", "truncated", "step_rewards", "token_ids", "meta")
_SYSTEM_ROLES = ("system", "developer")
_TOOL_ROLES = ("tool", "function")
# Per-step facts that no message can say: field of Step -> accepted types.
_STEP_FACTS: dict[str, tuple[type, ...]] = {
    "state_key": (str,),
    "action_key": (str,),
    "next_state_key": (str,),
    "valid": (bool,),
    "tokens": (int,),
    "validation": (bool,),
    "answer": (str,),
    "thought": (str,),
    "scores": (dict,),
}


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """See `Rollout.to_json`."""
    rollout.complete()
    value: dict[str, Any] = {"task_id": rollout.task_id, "rollout_id": rollout.rollout_id}
    value["messages"] = _messages(rollout)
    value["reward"] = None if math.isnan(rollout.reward) else rollout.reward
    value["truncated"] = rollout.truncated
    if any(step.reward for step in rollout.steps):
        value["step_rewards"] = [step.reward for step in rollout.steps]
    if rollout.token_ids is not None:
        value["token_ids"] = rollout.token_ids
    own: dict[str, Any] = {"stop": str(rollout.stop)}
    if rollout.error is not None:
        own["error"] = rollout.error
    _, derived = steps_of(value["messages"])
    plain = Step("", "")
    for name in _STEP_FACTS:
        facts = [getattr(step, name) for step in rollout.steps]
        if name in ("answer", "thought"):  # only what differs from the messages
            facts = [f if f != getattr(d, name) else None for f, d in zip(facts, derived, strict=True)]
        if name == "tokens" and rollout.token_ids is not None:
            facts = [f if f != len(ids) else None for f, ids in zip(facts, rollout.token_ids, strict=True)]
        if any(fact is not None and fact != getattr(plain, name) for fact in facts):
            own[name] = facts
    value["meta"] = {**rollout.meta, "rtmc": own}
    return value


def _messages(rollout: Rollout) -> list[dict[str, Any]]:
    if rollout.messages is None:
        return _made_messages(rollout)
    _, derived = steps_of(rollout.messages)
    pairs = [[(step.observation, step.action) for step in steps] for steps in (derived, rollout.steps)]
    if pairs[0] != pairs[1]:
        place = next(
            (k for k, (a, b) in enumerate(zip(*pairs, strict=False)) if a != b),
            min(len(pairs[0]), len(pairs[1])),
        )
        raise RolloutError(
            f"{rollout.name}: `messages` and `steps` disagree from step {place} on; set `messages` to None to write "
            "the steps, or correct the messages"
        )
    return rollout.messages


def _made_messages(rollout: Rollout) -> list[dict[str, Any]]:
    """Chat messages that read back as these steps: an empty observation is no message."""
    messages: list[dict[str, Any]] = []
    if rollout.system is not None:
        messages.append({"role": "system", "content": rollout.system})
    calls: list[dict[str, Any]] = []

    def answer(text: str) -> None:
        reply: dict[str, Any] = {"role": "tool" if calls else "user", "content": text}
        if calls and "id" in calls[0]:
            reply["tool_call_id"] = calls[0]["id"]
        messages.append(reply)

    for step in rollout.steps:
        if step.observation:
            answer(step.observation)
        message: dict[str, Any] = {"role": "assistant", "content": step.action}
        calls = step.tool_calls
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    if rollout.steps and rollout.steps[-1].answer is not None:
        answer(rollout.steps[-1].answer)
    return messages


def steps_of(messages: list[dict[str, Any]]) -> tuple[str | None, list[Step]]:
    """System text and steps of checked messages; a step's answer is the text up to the next assistant message.

    Several tool calls in one message, with their replies, are one step. A reply no call asked for is text like
    any other.
    """
    system: list[str] = []
    steps: list[Step] = []
    pending: list[str] = []
    answering: list[dict[str, Any]] = []
    for message in messages:
        text = _text(message.get("content"))
        if message["role"] in _SYSTEM_ROLES:
            system.append(text)
        elif message["role"] == "assistant":
            observation = "\n".join(pending)
            if steps:
                steps[-1].answer = observation if pending else None
                steps[-1].replies = _replies(steps[-1].tool_calls, answering)
            steps.append(Step(observation, text, tool_calls=_calls(message), thought=_thought(message)))
            pending, answering = [], []
        else:
            pending.append(text)
            answering.append(message)
    if steps and pending:
        steps[-1].answer = "\n".join(pending)
        steps[-1].replies = _replies(steps[-1].tool_calls, answering)
    return ("\n".join(system) if system else None), steps


def _replies(calls: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[Reply | None] | None:
    """The reply to each call, by its id or else by their order; None where the messages do not tell, or where one call
    was answered by its text alone."""
    if not calls:
        return None
    found: list[tuple[Any, Reply]] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        results = [p for p in parts if isinstance(p, dict) and p.get("type") == "tool_result"]
        for part in results:
            found.append((part.get("tool_use_id"), Reply(_part_text(part), _failed(part))))
        if not results and message["role"] in _TOOL_ROLES:
            found.append((message.get("tool_call_id"), Reply(_text(content), _failed(message))))
    if not found or (len(calls) == 1 == len(found) and found[0][1].failed is None):
        return None
    ids = [call.get("id") for call in calls]
    named = {name: reply for name, reply in found if isinstance(name, str)}
    if len(named) == len(found) and set(named) <= set(filter(_is_name, ids)) and len(set(map(str, ids))) == len(ids):
        return [named.get(name) if isinstance(name, str) else None for name in ids]
    return [reply for _, reply in found] if len(found) == len(calls) else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _failed(reply: dict[str, Any]) -> bool | None:
    """Whether a reply is marked as an error, as `tool_result` parts and some tools' messages are."""
    for key in ("is_error", "isError"):
        if isinstance(reply.get(key), bool):
            return bool(reply[key])
    return True if reply.get("status") == "error" else None


def _text(content: Any) -> str:
    """Text of a message's content: a string, None, or a list of parts whose texts (and tool results) are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") != "tool_result":
        text = part.get("text")
        return "" if text is None else str(text)
    inner = part.get("content")
    if isinstance(inner, list):
        return "".join(_part_text(one) for one in inner if isinstance(one, str) or _is_text(one))
    return "" if inner is None else str(inner)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") != "tool_result"


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Tool calls of an assistant message, from `tool_calls`, the older `function_call`, or parts of the content."""
    calls = list(message.get("tool_calls") or [])
    older = message.get("function_call")
    if isinstance(older, dict):
        calls.append({"type": "function", "function": older})
    content = message.get("content")
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "tool_use":
            function = {"name": part.get("name"), "arguments": part.get("input")}
            call: dict[str, Any] = {"type": "function", "function": function}
            calls.append({"id": part["id"], **call} if "id" in part else call)
    return calls


def _thought(message: dict[str, Any]) -> str | None:
    """Reasoning that the message keeps apart from its text."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            return message[key]
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    found = [part["thinking"] for part in parts if isinstance(part, dict) and isinstance(part.get("thinking"), str)]
    return "\n".join(found) or None


def rollout_from_json(value: Any, default_id: str) -> Rollout:
    """See `Rollout.from_json`."""
    if not isinstance(value, dict):
        raise RolloutError(f"a rollout is a JSON object with `task_id` and `messages`, got {kind(value)}")
    for key in ("task_id", "messages"):
        if key not in value:
            hint = " (format 'chat' takes chats that begin alike for one task)" if "messages" in value else ""
            raise RolloutError(f"no `{key}`; a rollout needs `task_id` and `messages`{hint}")
    for key in value:
        near = [] if key in _KEYS or len(key) > 20 else get_close_matches(key, _KEYS, n=1, cutoff=0.85)
        if near:
            raise RolloutError(f"unknown key `{key}`; did you mean `{near[0]}`?")
    task_id = _identifier(value, "task_id", None)
    rollout_id = _identifier(value, "rollout_id", default_id)
    messages = checked_messages(value["messages"])
    system, steps = steps_of(messages)

    meta = dict(_expect(value, "meta", dict, {}))
    own = meta.pop("rtmc", {})
    if not isinstance(own, dict):
        raise RolloutError(f"`meta.rtmc` is reserved for this library's own facts, got {kind(own)}")
    for name, kinds in _STEP_FACTS.items():
        for step, fact in zip(steps, _per_step(own, name, kinds, len(steps), "meta.rtmc."), strict=True):
            if isinstance(fact, dict) and any(type(score) not in (int, float) for score in fact.values()):
                raise RolloutError(f"`meta.rtmc.{name}` must map names to numbers, got {short(fact)}")
            if name == "tokens" and fact is not None and not 0 <= fact < 2**63:
                raise RolloutError(f"`meta.rtmc.tokens` must hold counts, 0 or more, got {short(fact)}")
            if isinstance(fact, dict):
                fact = {key: as_float(score, f"`meta.rtmc.{name}`") for key, score in fact.items()}
            if fact is not None:
                setattr(step, name, fact)
    for step, reward in zip(steps, _per_step(value, "step_rewards", (int, float), len(steps)), strict=True):
        step.reward = 0.0 if reward is None else as_float(reward, "`step_rewards`")
        if not math.isfinite(step.reward):
            raise RolloutError(f"`step_rewards` holds {step.reward}; step rewards must be finite")
    token_ids = _expect(value, "token_ids", list, None)
    if token_ids is not None:
        token_ids = _per_step(value, "token_ids", (list,), len(steps))
        for place, ids in enumerate(token_ids):
            if ids is None or any(not isinstance(token, int) or isinstance(token, bool) for token in ids):
                raise RolloutError(f"`token_ids[{place}]` must be a list of integers, the tokens sampled in that step")
    reward = _expect(value, "reward", (int, float), math.nan)
    rest = {key: value[key] for key in value if key not in _KEYS}
    for key in rest:
        if key in meta:
            raise RolloutError(f"`{key}` stands beside `meta` and in it; keep one of the two")
    return Rollout(
        task_id=task_id,
        rollout_id=rollout_id,
        steps=steps,
        reward=as_float(reward, "`reward`"),
        truncated=_expect(value, "truncated", bool, False),
        stop=_stop(own),
        error=_expect(own, "error", str, None),
        token_ids=token_ids,
        meta={**rest, **meta},
        system=system,
        messages=messages,
    )


def short(value: Any, limit: int = 80) -> str:
    """A value for a message, cut so that a huge one does not flood it."""
    if isinstance(value, (dict, list)):
        return f"{kind(value)} of {len(value)} entries" if value else f"{kind(value)} without entries"
    text = repr(value[: limit + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def as_float(value: float, where: str) -> float:
    """A number as a float. Raises RolloutError, which begins with `where`, for one too large to be one."""
    try:
        return float(value)
    except OverflowError:
        raise RolloutError(f"{where} holds a number too large for a float") from None


def kind(value: Any) -> str:
    """The JSON kind of a value, for a message."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    return type(value) in wanted  # exact, so that true is no number


def _expect(value: dict[str, Any], key: str, kinds: type | tuple[type, ...], default: Any) -> Any:
    found = value.get(key)
    if found is None:
        return default
    if not _is_a(found, kinds):
        wanted = kind((kinds if isinstance(kinds, type) else kinds[-1])())
        raise RolloutError(f"`{key}` must be {wanted}, got {kind(found)}")
    return found


def _identifier(value: dict[str, Any], key: str, default: str | None) -> str:
    found = value.get(key, default)
    if type(found) is int:
        return str(found)
    if not isinstance(found, str) or not found:
        raise RolloutError(f"`{key}` must be a string that is not empty, or an integer; got {short(found)}")
    return found


def _per_step(value: dict[str, Any], key: str, kinds: tuple[type, ...], steps: int, prefix: str = "") -> list[Any]:
    found = value.get(key)
    if found is None:
        return [None] * steps
    if not isinstance(found, list) or len(found) != steps:
        got = f"{len(found)} entries" if isinstance(found, list) else kind(found)
        raise RolloutError(
            f"`{prefix}{key}` must be a list of {steps} entries, one a step (assistant message); got {got}"
        )
    for place, fact in enumerate(found):
        if fact is not None and not _is_a(fact, kinds):
            raise RolloutError(f"`{prefix}{key}[{place}]` must be {kind(kinds[-1]())} or null, got {kind(fact)}")
    return found


def _stop(own: dict[str, Any]) -> Stop | None:
    found = own.get("stop")
    try:
        return None if found is None else Stop(found)
    except ValueError:
        named = found if isinstance(found, str) and len(found) < 40 else short(found)
        raise RolloutError(f"`meta.rtmc.stop`: {unknown_name('reason', named, [s.value for s in Stop])}") from None


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages, if they are chat messages. Raises RolloutError naming the one that is not."""
    if not isinstance(messages, list):
        raise RolloutError(f"`messages` must be a list of chat messages, got {kind(messages)}")
    for place, message in enumerate(messages):
        where = f"`messages[{place}]`"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RolloutError(f"{where} must be an object with a string `role` (and `content`)")
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not (content is None or isinstance(content, str | list)) or any(
            not isinstance(p, str | dict) for p in parts
        ):
            raise RolloutError(f"{where}: `content` must be a string, a list of parts or null, got {kind(content)}")
        calls = message.get("tool_calls")
        if calls is not None and (not isinstance(calls, list) or any(not isinstance(call, dict) for call in calls)):
            raise RolloutError(f"{where}: `tool_calls` must be a list of objects")
    return messages


def read_rollouts(path: str | PathLike[str], format: str = "auto") -> list[Rollout]:
    """All rollouts of a log, or of the logs in a folder and the folders in it, in the order of their names.

    path     file or folder; gzip is seen by itself
    format   "auto" tells the form of each record by its content (rtmc/logs); or a name of `rtmc.logs.FORMATS`,
             for instance "rtmc", this library's own JSON lines (rtmc/rollouts.py)

    Raises RolloutError (a ValueError) that names the file, the line, what is wrong and what would be right;
    OSError where a file cannot be read. Nothing is returned unless everything was read; `rtmc.logs.LogReader`
    gives one rollout after the other, in bounded memory, and can skip what is malformed.
    """
    from rtmc.logs import LogReader

    return list(LogReader([path], format))


def write_rollouts(path: str | PathLike[str], rollouts: Iterable[Rollout]) -> None:
    """Write rollouts as JSON lines, whole or not at all; an older file of that name is replaced.

    Raises RolloutError for two rollouts of one task with the same id, or for one that cannot be written.
    """
    rollouts = list(rollouts)
    for place, rollout in enumerate(rollouts):
        if not isinstance(rollout, Rollout):
            raise TypeError(f"`rollouts[{place}]` must be a Rollout, got {type(rollout).__name__}")
    _check_unique(rollouts, Path(path))
    with atomic_path(path) as part, part.open("wb") as file:
        for rollout in rollouts:
            file.write(_line(rollout, path))


def _line(rollout: Rollout, path: str | PathLike[str]) -> bytes:
    value = rollout.to_json()
    try:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except UnicodeEncodeError:  # a lone surrogate (raw bytes of some tool) exists in JSON only as an escape
            return json.dumps(value, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RolloutError(f"{path}: {rollout.name} cannot be written as JSON: {error}") from None


def _check_unique(rollouts: list[Rollout], path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    for rollout in rollouts:
        key = (rollout.task_id, rollout.rollout_id)
        if key in seen:
            raise RolloutError(f"{path}: {rollout.name} comes twice; give each rollout of a task its own id")
        seen.add(key)
