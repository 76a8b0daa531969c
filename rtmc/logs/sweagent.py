"""SWE-agent trajectories (`.traj`), the windowed editor of 2024 as well as version 1.x with its tools.

    {"trajectory": [{"action", "observation", "response", "thought", "state", ...}, ...], "history": [...],
     "info": {"exit_status", "submission", ...}, "replay_config": {...}, "environment": ...}

A step's action is the command that SWE-agent ran (`action`), as text and as a call of a shell, so that it is taken for
a command whatever its first word; its thought is the text before it. The end of a log says
whether a patch was submitted, never whether it solves the issue: the reward stays unknown. The same trajectories in
the chat form of published data sets ({"instance_id", "trajectory": [{"role": "ai", "text": ...}, ...], "target"})
are read too. Source: SWE-agent's `trajectories` documentation; the logs of versions 0.x and 1.x.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Facts, Format, chain, facts_of, first_reward, made, shell_call, task_from_place, text_at
from rtmc.logs.source import Place
from rtmc.rolloutfile import kind, steps_of
from rtmc.rollouts import Rollout, Step

NAME = "sweagent"
_ROLES = {"ai": "assistant", "gpt": "assistant", "human": "user"}
# Exits that a limit forced; a patch may still have been taken ("submitted (exit_cost)").
_LIMITS = ("exit_cost", "exit_context", "exit_total_execution_time", "exit_command_timeout", "early_exit")
_ERRORS = ("exit_error", "exit_environment_error", "exit_api")
_ROOT = re.compile(r"(?:^|\")/(?P<owner>[\w.-]+?)__(?P<repo>[\w.-]+)(?:[/\"]|$)")
_IMAGE = re.compile(r"sweb\.eval\.\w+\.([\w.-]+?)(?::|$)")


def _matches(record: dict[str, Any]) -> bool:
    steps = record.get("trajectory")
    if not isinstance(steps, list):
        return False
    first = steps[0] if steps else None
    if isinstance(first, dict) and "role" in first and "text" not in first:
        return False  # a chat that data sets hold under this name
    if any(key in record for key in ("history", "replay_config", "environment", "info")):
        return True
    return isinstance(first, dict) and ({"action", "observation"} <= first.keys() or {"role", "text"} <= first.keys())


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    items = record["trajectory"]
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise RolloutError(f"`trajectory[{number}]` must be an object, got {kind(item)}")
    facts = _facts(record)
    as_chat = bool(items) and "role" in items[0]
    if as_chat:
        system, steps = _chat(items)
    else:
        system, prompt = _prompt(record)
        steps = chain([_step(item, f"`trajectory[{number}]`: ") for number, item in enumerate(items)], prompt)
    info = record.get("info")
    status = info.get("exit_status") if isinstance(info, dict) else record.get("exit_status")
    status = status if isinstance(status, str) else ""
    cut = any(word in status for word in _LIMITS)
    error = status if any(word in status for word in _ERRORS) and "submitted" not in status else None
    reward = facts.reward if facts.reward == facts.reward else first_reward(info if isinstance(info, dict) else {})
    yield made(
        NAME,
        place,
        replace(facts, truncated=facts.truncated or cut, reward=reward),
        steps,
        _task(record) or _task_from_root(record, task_from_place(place)),
        system=system,
        one_a_file=not as_chat,
        error=error,
        meta={"exit_status": status} if status else {},
    )


def _facts(record: dict[str, Any]) -> Facts:
    facts = facts_of({key: value for key, value in record.items() if key not in ("id", "trajectory")})
    return replace(facts, prompt="")


def _step(item: dict[str, Any], where: str) -> Step:
    action = text_at(item, "action", where)
    response = text_at(item, "response", where)
    thought = text_at(item, "thought", where) or (response if response.strip() != action.strip() else "")
    # A reply without a command is a step all the same: its text is what the model did.
    step = Step("", action or response, thought=(thought or None) if action else None)
    if action:
        step.tool_calls = [shell_call(action)]
    if "observation" in item and item["observation"] is not None:
        step.answer = text_at(item, "observation", where)
    return step


def _prompt(record: dict[str, Any]) -> tuple[str | None, str]:
    """(system text, the message that poses the issue): what stands before the model's first own message."""
    system: list[str] = []
    prompt = ""
    history = record.get("history")
    if not isinstance(history, list):
        first = record["trajectory"][0] if record["trajectory"] else {}
        history = first.get("query")
    for message in history if isinstance(history, list) else []:
        if not isinstance(message, dict) or message.get("is_demo"):
            continue
        if message.get("role") == "system":
            system.append(text_at(message, "content", "`history`: "))
        elif message.get("role") == "user":
            prompt = text_at(message, "content", "`history`: ")
        else:
            break
    return ("\n".join(system) if system else None), prompt


def _chat(items: list[dict[str, Any]]) -> tuple[str | None, list[Step]]:
    messages = []
    for number, item in enumerate(items):
        role = item.get("role")
        if not isinstance(role, str):
            raise RolloutError(f"`trajectory[{number}]`: `role` must be a string, got {kind(role)}")
        keys = ("system_prompt", "text", "content") if role == "system" else ("text", "content")
        texts = (text_at(item, key, f"`trajectory[{number}]`: ") for key in keys)
        messages.append({"role": _ROLES.get(role, role), "content": next(filter(None, texts), "")})
    return steps_of(messages)


def _task(record: dict[str, Any]) -> str | None:
    """The instance: the problem's id, or the one the container's image is named after."""
    config = record.get("replay_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return None
    if not isinstance(config, dict):
        return None
    problem = config.get("problem_statement")
    found = problem.get("id") if isinstance(problem, dict) else None
    if isinstance(found, str) and found:
        return found
    image: Any = config
    for key in ("env", "deployment", "image"):
        image = image.get(key) if isinstance(image, dict) else None
    named = _IMAGE.search(image) if isinstance(image, str) else None
    return named.group(1).replace("_1776_", "__") if named else None


def _task_from_root(record: dict[str, Any], named: str) -> str:
    """`owner__repo-123` for a file named `repo-123`, where the agent worked in the folder `/owner__repo`."""
    for item in record["trajectory"]:
        state = item.get("state")
        folder = state.get("working_dir") if isinstance(state, dict) else state
        root = _ROOT.search(folder) if isinstance(folder, str) else None
        if root is not None:
            number = named.removeprefix(f"{root['repo']}-")
            return f"{root['owner']}__{root['repo']}-{number}" if number != named else named
    return named


FORMAT = Format(NAME, "swe", _matches, _read)
