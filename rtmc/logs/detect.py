"""Which format a record is in, told from its content and never from the file's name.

What this is not: it reads no rollout; each format's own file does. To add a format, write such a file and name it
in `FORMATS`; the order there is the order of the questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs import alfworld, chat, miniswe, openhands, r2egym, react, searchr1, sweagent
from rtmc.logs.common import TEXT_KEYS, Facts, Format, facts_of
from rtmc.logs.source import Place
from rtmc.logs.transcript import is_templated, messages_of
from rtmc.rolloutfile import kind, rollout_from_json
from rtmc.rollouts import Rollout


class UnknownFormatError(RolloutError):
    """A record in none of the known formats."""


# A record with these, and without messages, is a step as `rtmc advantages -o` writes it.
_STEP_KEYS = {"task_id", "rollout_id", "step", "state", "action", "advantage"}


def is_step(record: Any) -> bool:
    """Whether a JSON value is a step's credit rather than a rollout: what `rtmc advantages -o` writes, read again."""
    return isinstance(record, dict) and record.keys() >= _STEP_KEYS and "messages" not in record


def _is_own(record: dict[str, Any]) -> bool:
    if is_step(record):
        return False
    return "messages" in record or ("task_id" in record and _text_of(record) is None)


def _read_own(record: Any, place: Place) -> Iterator[Rollout]:
    rollout = rollout_from_json(record, place.default_id)
    steps = rollout.steps
    # Search-R1 writes a whole rollout as one message, what the environment put in included.
    if len(steps) == 1 and rollout.token_ids is None and "<information>" in steps[0].action:
        parts = searchr1.turns(steps[0].action)
        if len(parts) > 1 and steps[0].state_key is None and not steps[0].reward:
            parts[0].observation = steps[0].observation
            for before, step in pairwise(parts):
                step.observation = before.answer or ""
            parts[-1].answer = parts[-1].answer or steps[0].answer
            rollout.steps, rollout.messages = parts, None
    yield rollout


RTMC = Format("rtmc", "", _is_own, _read_own)
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        miniswe.FORMAT,
        sweagent.FORMAT,
        r2egym.FORMAT,
        openhands.FORMAT,
        chat.FORMAT,
        RTMC,
        alfworld.FORMAT,
        searchr1.FORMAT,
        react.FORMAT,
    )
}


def text_format(text: str) -> Format | None:
    """The format of a text, or None."""
    return next((form for form in FORMATS.values() if form.is_text is not None and form.is_text(text)), None)


def _text_of(record: dict[str, Any]) -> str | None:
    """The text that a record holds beside its facts: a string under one of the usual names."""
    return next((record[key] for key in TEXT_KEYS if isinstance(record.get(key), str) and record[key].strip()), None)


def rollouts_of(value: Any, place: Place, wanted: str = "auto") -> Iterator[tuple[str, Rollout]]:
    """(name of the format, rollout) of every rollout of one JSON value.

    wanted   the format's name; "auto" asks each in turn. A list is a chat, the events of
             a session, or holds one record an entry.

    Raises RolloutError saying what is wrong, with the entry of the list but without the file and line;
    UnknownFormatError where no format matches.
    """
    if chat.is_message_list(value):
        yield from ((chat.NAME, rollout) for rollout in chat.FORMAT.read(value, place))
        return
    if openhands.is_events(value):
        yield from ((openhands.NAME, rollout) for rollout in openhands.FORMAT.read(value, place))
        return
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for item, entry in enumerate(value):
            try:
                yield from rollouts_of(entry, replace(place, item=item), wanted)
            except RolloutError as error:
                raise type(error)(f"item {item}: {error}") from None
        return
    if not isinstance(value, dict):
        raise UnknownFormatError(f"a rollout is a JSON object with `task_id` and `messages`, got {kind(value)}")
    if is_step(value):
        raise UnknownFormatError("the credit of a step, as `rtmc advantages -o` writes it; wanted is the log itself")
    text = _text_of(value)
    form = FORMATS[wanted] if wanted != "auto" else next((f for f in FORMATS.values() if f.matches(value)), None)
    if form is None and text is not None:
        yield from _of_text_record(value, text, place)
    elif form is None:
        raise UnknownFormatError(
            f"not a log in a known format ({', '.join(FORMATS)}), and none of the texts they are read from "
            f"({', '.join(TEXT_KEYS)}); its keys: {_keys_of(value)}; no `task_id`, no `messages`"
        )
    elif form.read_text is not None and text is not None and not form.matches(value):
        yield from ((form.name, rollout) for rollout in form.read_text(text, place, facts_of(value)))
    elif form is not RTMC and not form.matches(value) and not (form is chat.FORMAT and "messages" in value):
        raise UnknownFormatError(f"not a record of the format '{form.name}'; its keys: {_keys_of(value)}")
    else:
        yield from ((form.name, rollout) for rollout in form.read(value, place))


def _keys_of(record: dict[str, Any]) -> str:
    return ", ".join(f"`{key[:30]}`" for key in list(record)[:8]) or "none"


def _of_text_record(record: dict[str, Any], text: str, place: Place) -> Iterator[tuple[str, Rollout]]:
    facts = facts_of(record)
    form = text_format(text)
    whole = facts.prompt + text
    if form is not None and form.read_text is not None:
        yield from ((form.name, rollout) for rollout in form.read_text(text, place, facts))
    elif is_templated(whole):
        messages = messages_of(whole)
        for rollout in chat.FORMAT.read({**record, "messages": messages}, place):
            rollout.truncated = facts.truncated
            yield chat.NAME, rollout
    elif facts.prompt.strip() and record.get("completion") is text:  # one turn, as trainers log it
        messages = [{"role": "user", "content": facts.prompt}, {"role": "assistant", "content": text}]
        for rollout in chat.FORMAT.read({**record, "messages": messages}, place):
            rollout.truncated = facts.truncated
            yield chat.NAME, rollout
    else:
        raise UnknownFormatError(
            "a record with a text in no known form: it has neither a chat template's markers, nor the calls of "
            f"{', '.join(f.name for f in FORMATS.values() if f.is_text is not None)}"
        )


def rollouts_of_text(text: str, place: Place, wanted: str = "auto") -> Iterator[tuple[str, Rollout]]:
    """(name of the format, rollout) of every rollout of a file that is a text. Raises as `rollouts_of`."""
    form = text_format(text) if wanted == "auto" else FORMATS[wanted]
    if form is None or form.read_text is None:
        named = "not a log in a known format" if form is None else f"format '{form.name}' has no text form"
        raise UnknownFormatError(f"{named}; texts are read as {', '.join(_text_names())}")
    yield from ((form.name, rollout) for rollout in form.read_text(text, place, Facts()))


def _text_names() -> list[str]:
    return [form.name for form in FORMATS.values() if form.is_text is not None]
