"""ALFWorld ReAct transcripts: commands behind `> `, the world's replies below them.

    You are in the middle of a room. Looking quickly around you, you see a cabinet 4, ...
    Your task is to: put some mug on shelf.
    > think: First I need to find a mug.
    OK.
    > go to cabinet 1
    The cabinet 1 is closed.

A text may hold many games, one after the other, as ReAct's and Reflexion's trial logs do; each begins at its room's
description, and worked examples before "Here is the task" are none of them. `STATUS: OK` and `STATUS: FAIL`
(Reflexion) give the reward, without them it is unknown. A game is named after its goal, its room and, where a log
numbers its environments, nothing else: the same game in another trial is the same task.
Source: ReAct's and Reflexion's ALFWorld runs; the engine's texts.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import Facts, Format, chain, made, task_from_text
from rtmc.logs.source import Place
from rtmc.rollouts import Rollout, Step

NAME = "alfworld"
# A `look` is answered with a room's description too; a game's own is followed by its goal.
_GAME = re.compile(
    r"^[ \t]*(?:-= Welcome to TextWorld[^\n]*=-\s*)?You are in the middle of a room\. Looking quickly around you"
    r"(?:[^\n]*?|[^\n]*\n\s*)Your task is to: *[^\n]*",
    re.MULTILINE,
)
_GOAL = re.compile(r"Your task is to: *([^\n]*)")
_COMMAND = re.compile(r"^>[ \t]*(?:Action:[ \t]*)?(.*)$", re.MULTILINE)
_STATUS = re.compile(r"^STATUS: (OK|FAIL)\b", re.MULTILINE)
_EXAMPLES_END = re.compile(r"^Here is the task\b", re.MULTILINE)
_GAME_END = re.compile(r"^(?:STATUS: (?:OK|FAIL)\b|#####|-----|Environment #\d+)", re.MULTILINE)


def _matches(record: dict[str, Any]) -> bool:
    return False  # its records are texts with facts beside them: `is_text` decides


def _read(record: dict[str, Any], place: Place) -> Iterator[Rollout]:
    raise RolloutError("an ALFWorld record is an object with the transcript under `text`, `trajectory` or the like")


def _is_text(text: str) -> bool:
    return "Your task is to:" in text and _COMMAND.search(text) is not None


def _read_text(text: str, place: Place, facts: Facts) -> Iterator[Rollout]:
    games = list(_games(f"{facts.prompt.rstrip()}\n{text}" if facts.prompt.strip() else text))
    for number, (intro, body, reward) in enumerate(games, start=1):
        # Only a text of one game may have ids and a reward of its own.
        own = facts if len(games) == 1 else replace(facts, task_id=None, rollout_id=None, reward=math.nan)
        if math.isnan(own.reward):
            own = replace(own, reward=reward)
        here = place if len(games) == 1 else replace(place, item=number)
        yield made(NAME, here, own, chain(_steps(body), intro), _task(intro, place))


def _games(text: str) -> Iterator[tuple[str, str, float]]:
    """(description and goal, commands and replies, reward or NaN) of each game that is played."""
    opened = list(_GAME.finditer(text)) or list(_GOAL.finditer(text))[:1]
    tasks, ends = _starts(_EXAMPLES_END, text), _starts(_GAME_END, text)
    for number, game in enumerate(opened):
        start, goal_end = game.span()
        stop = opened[number + 1].start() if number + 1 < len(opened) else len(text)
        end = _next(ends, goal_end, len(text))
        if _next(tasks, start, len(text) + 1) <= end:
            continue  # a worked example of the prompt: the task itself is announced after it
        status = _STATUS.match(text, end) if end <= stop else None
        reward = math.nan if status is None else float(status.group(1) == "OK")
        yield game.group().strip(), text[goal_end : min(end, stop)], reward


def _starts(pattern: re.Pattern[str], text: str) -> list[int]:
    return [found.start() for found in pattern.finditer(text)]


def _next(starts: list[int], at: int, default: int) -> int:
    place = bisect_left(starts, at)
    return starts[place] if place < len(starts) else default


def _steps(body: str) -> list[Step]:
    commands = list(_COMMAND.finditer(body))
    steps = []
    for number, command in enumerate(commands):
        stop = commands[number + 1].start() if number + 1 < len(commands) else len(body)
        answer = body[command.end() : stop].strip()
        if command.group(1).strip() or answer:
            steps.append(Step("", command.group(1).strip(), answer=answer or None))
    return steps


def _task(intro: str, place: Place) -> str:
    goal = _GOAL.search(intro)
    words = goal.group(1) if goal else ""
    return task_from_text(f"{words} {intro}", place)


FORMAT = Format(NAME, "household", _matches, _read, _is_text, _read_text)
