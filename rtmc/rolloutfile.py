"""The JSON form of a rollout, and reading and writing files of them.

Design requirements: what a log of another tool holds in this chat format is read without loss and written
back as it was; what is wrong is named with file and line; a file is read whole or not at all, written whole
or not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from rtmc.atomic import atomic_path
from rtmc.errors import RolloutError, unknown_name
from rtmc.rollouts import Rollout, Step, Stop

_KEYS = ("task_id", "rollout_id", "messages", "reward", "truncated", "step_rewards", "token_ids", "meta")
_SYSTEM_ROLES = ("system", "developer")
# Per-step facts that no message can say: field of Step -> accepted types.
_STEP_FACTS: dict[str, tuple[type, ...]] = {
    "state_key": (str,),
    "action_key": (str,),
    "next_state_key": (str,),
    "valid": (bool,),
    "tokens": (int,),
    "validation": (bool,),
    "answer": (str,),
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
    _, derived = _steps_of(value["messages"])
    plain = Step("", "")
    for name in _STEP_FACTS:
        facts = [getattr(step, name) for step in rollout.steps]
        if name == "answer":  # only answers that differ from the message that follows
            facts = [f if f != d.answer else None for f, d in zip(facts, derived, strict=True)]
        if name == "tokens" and rollout.token_ids is not None:
            facts = [f if f != len(ids) else None for f, ids in zip(facts, rollout.token_ids, strict=True)]
        if any(fact is not None and fact != getattr(plain, name) for fact in facts):
            own[name] = facts
    value["meta"] = {**rollout.meta, "rtmc": own}
    return value


def _messages(rollout: Rollout) -> list[dict[str, Any]]:
    if rollout.messages is None:
        return _made_messages(rollout)
    _, derived = _steps_of(rollout.messages)
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


def _steps_of(messages: list[dict[str, Any]]) -> tuple[str | None, list[Step]]:
    """System text and steps of checked messages; a step's answer is the text up to the next assistant message."""
    system: list[str] = []
    steps: list[Step] = []
    pending: list[str] = []
    for message in messages:
        text = _text(message.get("content"))
        if message["role"] in _SYSTEM_ROLES:
            system.append(text)
        elif message["role"] == "assistant":
            observation = "\n".join(pending)
            if steps:
                steps[-1].answer = observation
            calls = message.get("tool_calls") or []
            steps.append(Step(observation=observation, action=text, tool_calls=calls))
            pending = []
        else:
            pending.append(text)
    if steps and pending:
        steps[-1].answer = "\n".join(pending)
    return ("\n".join(system) if system else None), steps


def _text(content: Any) -> str:
    """Text of a message's content: a string, a list of parts whose texts are joined, or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def rollout_from_json(value: Any, default_id: str) -> Rollout:
    """See `Rollout.from_json`."""
    if not isinstance(value, dict):
        raise RolloutError(f"a rollout is a JSON object with `task_id` and `messages`, got {_kind(value)}")
    for key in ("task_id", "messages"):
        if key not in value:
            raise RolloutError(f"no `{key}`; a rollout needs `task_id` and `messages`")
    for key in value:
        near = [] if key in _KEYS else get_close_matches(key, _KEYS, n=1, cutoff=0.85)
        if near:
            raise RolloutError(f"unknown key `{key}`; did you mean `{near[0]}`?")
    task_id = _identifier(value, "task_id", None)
    rollout_id = _identifier(value, "rollout_id", default_id)
    messages = _checked_messages(value["messages"])
    system, steps = _steps_of(messages)

    meta = dict(_expect(value, "meta", dict, {}))
    own = meta.pop("rtmc", {})
    if not isinstance(own, dict):
        raise RolloutError(f"`meta.rtmc` is reserved for this library's own facts, got {_kind(own)}")
    for name, kinds in _STEP_FACTS.items():
        for step, fact in zip(steps, _per_step(own, name, kinds, len(steps), "meta.rtmc."), strict=True):
            if isinstance(fact, dict) and any(type(score) not in (int, float) for score in fact.values()):
                raise RolloutError(f"`meta.rtmc.{name}` must map names to numbers, got {fact!r}")
            if fact is not None:
                setattr(step, name, fact)
    for step, reward in zip(steps, _per_step(value, "step_rewards", (int, float), len(steps)), strict=True):
        step.reward = 0.0 if reward is None else float(reward)
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
        reward=float(reward),
        truncated=_expect(value, "truncated", bool, False),
        stop=_stop(own),
        error=_expect(own, "error", str, None),
        token_ids=token_ids,
        meta={**rest, **meta},
        system=system,
        messages=messages,
    )


def _kind(value: Any) -> str:
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
        wanted = _kind((kinds if isinstance(kinds, type) else kinds[-1])())
        raise RolloutError(f"`{key}` must be {wanted}, got {_kind(found)}")
    return found


def _identifier(value: dict[str, Any], key: str, default: str | None) -> str:
    found = value.get(key, default)
    if type(found) is int:
        return str(found)
    if not isinstance(found, str) or not found:
        raise RolloutError(f"`{key}` must be a string that is not empty, or an integer; got {found!r}")
    return found


def _per_step(value: dict[str, Any], key: str, kinds: tuple[type, ...], steps: int, prefix: str = "") -> list[Any]:
    found = value.get(key)
    if found is None:
        return [None] * steps
    if not isinstance(found, list) or len(found) != steps:
        got = f"{len(found)} entries" if isinstance(found, list) else _kind(found)
        raise RolloutError(
            f"`{prefix}{key}` must be a list of {steps} entries, one a step (assistant message); got {got}"
        )
    for place, fact in enumerate(found):
        if fact is not None and not _is_a(fact, kinds):
            raise RolloutError(f"`{prefix}{key}[{place}]` must be {_kind(kinds[-1]())} or null, got {_kind(fact)}")
    return found


def _stop(own: dict[str, Any]) -> Stop | None:
    found = own.get("stop")
    try:
        return None if found is None else Stop(found)
    except ValueError:
        raise RolloutError(f"`meta.rtmc.stop`: {unknown_name('reason', found, [s.value for s in Stop])}") from None


def _checked_messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        raise RolloutError(f"`messages` must be a list of chat messages, got {_kind(messages)}")
    for place, message in enumerate(messages):
        where = f"`messages[{place}]`"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RolloutError(f"{where} must be an object with a string `role` (and `content`)")
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not (content is None or isinstance(content, str | list)) or any(
            not isinstance(p, str | dict) for p in parts
        ):
            raise RolloutError(f"{where}: `content` must be a string, a list of parts or null, got {_kind(content)}")
        calls = message.get("tool_calls")
        if calls is not None and (not isinstance(calls, list) or any(not isinstance(call, dict) for call in calls)):
            raise RolloutError(f"{where}: `tool_calls` must be a list of objects")
    return messages


def _read_rtmc(path: Path) -> list[Rollout]:
    rollouts: list[Rollout] = []
    lines: dict[tuple[str, str], int] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RolloutError(
            f"{path}: not UTF-8 text (byte {error.start}); a rollout file is JSON lines in UTF-8"
        ) from None
    # Only "\n" ends a line: JSON strings may hold other characters that str.splitlines would cut at.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RolloutError(
                f"{path}:{number}: not JSON ({error}); every line is one rollout as a JSON object "
                "(format 'rtmc', the one that is read)"
            ) from None
        try:
            rollout = Rollout.from_json(value, default_id=f"{path.stem}:{number}")
        except RolloutError as error:
            raise RolloutError(f"{path}:{number}: {error}") from None
        before = lines.setdefault((rollout.task_id, rollout.rollout_id), number)
        if before != number:
            raise RolloutError(f"{path}:{number}: {rollout.name} is on line {before} already; ids are unique in a task")
        rollouts.append(rollout)
    return rollouts


_READERS: dict[str, Callable[[Path], list[Rollout]]] = {"rtmc": _read_rtmc}


def read_rollouts(path: str | PathLike[str], format: str = "auto") -> list[Rollout]:
    """All rollouts of a file, or of the `*.jsonl` files of a folder in the order of their names.

    path     file or folder
    format   "rtmc", this library's JSON lines (rtmc/rollouts.py); "auto" tries every format known, so far this one

    Raises RolloutError (a ValueError) that names the file, the line, what is wrong and what would be right;
    OSError where a file cannot be read. Nothing is returned unless everything was read.
    """
    if format not in ("auto", *_READERS):
        raise RolloutError(unknown_name("rollout format", format, ["auto", *_READERS]))
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise RolloutError(f"{path}: no `*.jsonl` file in this folder")
    read = _READERS["rtmc" if format == "auto" else format]
    rollouts = [rollout for file in files for rollout in read(file)]
    _check_unique(rollouts, path)
    return rollouts


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
