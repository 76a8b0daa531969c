"""mini-swe-agent trajectories (`.traj.json`).

    {"trajectory_format": "mini-swe-agent-1", "info": {"exit_status", "submission", ...}, "messages": [...]}

The messages are a chat: one shell command a message, in a block of backticks or as a tool call, and the environment's
reply. As with SWE-agent, "Submitted" says nothing of the issue: the reward stays unknown unless the file has one.
Source: the trajectory files of mini-swe-agent 1.x and 2.x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.logs.common import Format, facts_of, first_id, first_reward, made, shell_call, task_from_place
from rtmc.logs.source import Place
from rtmc.rolloutfile import checked_messages, steps_of
from rtmc.rollouts import Rollout

NAME = "mini-swe-agent"
_LIMITS = ("LimitsExceeded", "ContextWindowExceeded", "TimeExceeded", "Timeout")


def _matches(record: dict[str, Any]) -> bool:
    form = record.get("trajectory_format")
    if isinstance(form, str) and form.startswith("mini-swe-agent"):
        return True
    info = record.get("info")
    return (
        "task_id" not in record
        and isinstance(record.get("messages"), list)
        and isinstance(info, dict)
        and ("exit_status" in info or "mini_version" in info)
    )


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    messages = checked_messages(record.get("messages"))
    system, steps = steps_of(messages)
    own = [message for message in messages if message["role"] == "assistant"]
    for step, message in zip(steps, own, strict=True):
        if not step.action and not step.tool_calls:
            step.action = _commands(message.get("extra"))
            step.tool_calls = [shell_call(step.action)] if step.action else []
    info = record["info"] if isinstance(record.get("info"), dict) else {}
    status = info["exit_status"] if isinstance(info.get("exit_status"), str) else ""
    facts = facts_of({key: value for key, value in record.items() if key not in ("info", "messages")})
    reward = facts.reward if facts.reward == facts.reward else first_reward(info)
    cut = any(word in status for word in _LIMITS)
    known = cut or status in ("", "Submitted", "submitted")
    yield made(
        NAME,
        place,
        replace(facts, truncated=facts.truncated or cut, reward=reward),
        steps,
        first_id(info, ("instance_id", "task_id")) or task_from_place(place),
        system=system,
        one_a_file=True,
        error=None if known else status,
        meta={"exit_status": status} if status else {},
    )


def _commands(extra: Any) -> str:
    """The commands of a message whose text is empty, as the agent's record of them has them."""
    actions = extra.get("actions") if isinstance(extra, dict) else None
    found = []
    for action in actions if isinstance(actions, list) else []:
        command = action.get("command") if isinstance(action, dict) else action
        if isinstance(command, str):
            found.append(command)
    return "\n".join(found)


FORMAT = Format(NAME, "swe", _matches, _read)
