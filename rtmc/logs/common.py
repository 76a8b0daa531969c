"""What the readers of all formats share: the form of a format, and the words for a record's own facts.

What this is not: no format is known here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.source import Place
from rtmc.rolloutfile import as_float, kind, short
from rtmc.rollouts import Rollout, Step

TASK_KEYS = ("task_id", "instance_id", "problem_id", "question_id", "example_id", "prompt_id")
ROLLOUT_KEYS = ("rollout_id", "trajectory_id", "traj_id", "sample_id", "uuid", "uid", "id")
REWARD_KEYS = ("reward", "score", "resolved", "is_success", "success", "won", "target", "em")
PROMPT_KEYS = ("input", "prompt", "question", "problem_statement")
TEXT_KEYS = ("output", "response", "completion", "trajectory", "transcript", "sequences_str", "text", "log")
# owner__name-123 or name-123 at the beginning of a file's or a folder's name: the instance it is a run of.
_INSTANCE = re.compile(r"(?:[A-Za-z0-9_.-]+?__)?[A-Za-z0-9_-]+?-\d+(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Facts:
    """What a record says of itself beside its steps; `None` and NaN where it does not."""

    task_id: str | None = None
    rollout_id: str | None = None
    reward: float = math.nan
    truncated: bool = False
    prompt: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """One form of log.

    name         for `--format` and messages
    domain       the signatures that fit it ("" = told from each rollout's content)
    matches      whether a JSON object is a record of this form
    read         the rollouts of such a record; raises RolloutError saying what is wrong
    is_text      whether a text (or its beginning) is of this form; None = there is no text form
    read_text    the rollouts of such a text
    """

    name: str
    domain: str
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[Any, Place], Iterator[Rollout]]
    is_text: Callable[[str], bool] | None = None
    read_text: Callable[[str, Place, Facts], Iterator[Rollout]] | None = None


def facts_of(record: dict[str, Any]) -> Facts:
    """Ids, reward and prompt of a JSON record, by the usual names. Raises RolloutError for one of another type."""
    truncated = record.get("truncated")
    return Facts(
        task_id=first_id(record, TASK_KEYS),
        rollout_id=first_id(record, ROLLOUT_KEYS),
        reward=first_reward(record),
        truncated=truncated if isinstance(truncated, bool) else False,
        prompt=next((record[key] for key in PROMPT_KEYS if isinstance(record.get(key), str)), ""),
    )


def first_id(record: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first of `keys` that names something: a string that is not empty, or an integer."""
    for key in keys:
        found = record.get(key)
        if found is None:
            continue
        if type(found) is int or (isinstance(found, str) and found):
            return str(found)
        raise RolloutError(f"`{key}` must be a string that is not empty, or an integer; got {short(found)}")
    return None


def first_reward(record: dict[str, Any], keys: tuple[str, ...] = REWARD_KEYS) -> float:
    """The first of `keys` that is there as a number; true and false are 1 and 0, null is unknown, absent is NaN."""
    for key in keys:
        if record.get(key) is not None:
            return verdict(record[key], f"`{key}`")
    return math.nan


def verdict(value: Any, where: str) -> float:
    """A reward as a float: a number, true or false, or null (unknown, NaN). Raises RolloutError for all else."""
    if value is None:
        return math.nan
    if not isinstance(value, (bool, int, float)):
        raise RolloutError(f"{where} must be a number, true, false or null; got {kind(value)}")
    number = as_float(value, where)
    if math.isinf(number):
        raise RolloutError(f"{where} is {number}; it must be finite, or null where it is unknown")
    return number


def text_at(record: dict[str, Any], key: str, where: str = "") -> str:
    """A text field: a string, a list of parts (joined), or nothing. Raises RolloutError for all else."""
    found = record.get(key)
    if found is None:
        return ""
    parts = [found] if isinstance(found, str) else found
    if not isinstance(parts, list) or any(not isinstance(part, (str, dict)) for part in parts):
        raise RolloutError(f"{where}`{key}` must be a string or a list of parts, got {kind(found)}")
    return "".join(part if isinstance(part, str) else _text_of_part(part) for part in parts)


def _text_of_part(part: dict[str, Any]) -> str:
    return part["text"] if isinstance(part.get("text"), str) else ""


def task_from_text(text: str, place: Place) -> str:
    """A task's name from the text that poses it: its first words and 8 hex digits of its hash, so that rollouts of
    the same words are of one task. Nothing tells that rollouts that begin with nothing are of one: each is named by its
    place, or by the instance in the name of a file that holds no other."""
    plain = " ".join(text.split())
    if not plain:
        return (_instance(place) if place.file_id == place.stem else None) or str(place)
    words = re.findall(r"[A-Za-z0-9]+", plain)[:8]
    digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return "-".join([*(word.lower() for word in words), digest])


def task_from_place(place: Place) -> str:
    """A task's name from a file's: the instance (`owner__name-123`, `name-123`) that the file's or its folder's name
    begins with, else the stem."""
    return _instance(place) or place.stem


def _instance(place: Place) -> str | None:
    found = _INSTANCE.match(place.stem) or _INSTANCE.match(place.path.parent.name)
    return found.group() if found else None


def shell_call(command: str) -> dict[str, Any]:
    """A command as a call of a shell, in the chat format."""
    return {"type": "function", "function": {"name": "bash", "arguments": {"command": command}}}


def chain(pairs: list[Step], prompt: str) -> list[Step]:
    """The steps with their observations: the prompt before the first, each answer before the next."""
    before = prompt
    for step in pairs:
        step.observation = before
        before = step.answer or ""
    return pairs


def made(
    form: str,
    place: Place,
    facts: Facts,
    steps: list[Step],
    task_id: str,
    *,
    system: str | None = None,
    error: str | None = None,
    one_a_file: bool = False,
    meta: dict[str, Any] | None = None,
) -> Rollout:
    """The rollout of a record, marked with the format it was read from; `one_a_file` for formats whose files hold one
    rollout, which is then named after the file alone."""
    return Rollout(
        task_id=facts.task_id or task_id,
        rollout_id=facts.rollout_id or (place.file_id if one_a_file else place.default_id),
        steps=steps,
        reward=facts.reward,
        truncated=facts.truncated,
        error=error,
        system=system,
        meta={"format": form, **(meta or {}), **facts.meta},
    )
