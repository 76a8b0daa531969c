"""Names of tasks: splits, ids, and the knobs by which rooms are drawn.

`split/task_type/seed` names a task. Changed knobs are part of the name
(`train/pick_and_place_simple/3?distractors=2-4`), so that any id regenerates its task.

Splits
- `tiny`: three or four receptacles, two to four steps, at most eight choices at any time;
- `train`: rooms of 10 to 30 receptacles with about as many things, layouts 0 to 23 of each kind of room;
- `valid_seen`: the layouts of `train` with other contents;
- `valid_unseen`: layouts 24 to 29, and goals (object with receptacle or lamp) that no other split asks for;
- `tiny_unseen`: as `tiny`, with the goals of `valid_unseen`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from rtmc.gymenvs.household import vocabulary as voc


@dataclass(frozen=True)
class Knobs:
    """How a room is drawn. Pairs are (fewest, most).

    Attributes:
        receptacles: how many stand in the room; None = as the room's layout has them.
        distractors: how many things besides those that the goal needs.
        plan: steps of the shortest plan.
        choices: most commands at any time besides help, inventory, look and examine; 0 = any number.
        closed: probability that a receptacle with a door is closed.
        shared: probability that a receptacle stands at the location of the one before it.
        at_start: probability that the agent starts at a receptacle instead of in the middle of the room.
        hidden: probability that a thing of the goal is put in a closed receptacle where one takes it.
    """

    receptacles: tuple[int, int] | None = None
    distractors: tuple[int, int] = (10, 18)
    plan: tuple[int, int] = (3, 16)
    choices: int = 0
    closed: float = 1.0
    shared: float = 0.1
    at_start: float = 0.0
    hidden: float = 0.3


_TINY = Knobs((3, 4), (1, 3), (2, 4), 8, closed=0.8, shared=0.15, at_start=0.6, hidden=0.4)
SPLITS = {
    "tiny": _TINY,
    "train": Knobs(),
    "valid_seen": Knobs(),
    "valid_unseen": Knobs(),
    "tiny_unseen": _TINY,
}


def near(what: str, got: str, options: Sequence[str]) -> ValueError:
    """The error for an unknown name, with the near ones and the first of all."""
    close = difflib.get_close_matches(got, options, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    known = ", ".join(options[:20]) + (f" and {len(options) - 20} more" if len(options) > 20 else "")
    return ValueError(f"unknown household {what} {got!r}{hint} Known: {known}")


def check_split(split: str) -> str:
    """The split, or a ValueError that names the near ones."""
    if split not in SPLITS:
        raise near("split", str(split), tuple(SPLITS))
    return split


def check_task_type(task_type: str) -> str:
    """The task type, or a ValueError that names the near ones."""
    if task_type not in voc.TASK_TYPES:
        raise near("task type", str(task_type), voc.TASK_TYPES)
    return task_type


def check_knob(name: str) -> str:
    """The knob's name, or a ValueError that names the near ones."""
    known = tuple(field.name for field in fields(Knobs))
    if name not in known:
        raise near("knob", name, known)
    return name


def _write(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def task_id_of(split: str, task_type: str, seed: int, knobs: Knobs) -> str:
    """The id that names the task; knobs that differ from the split's are part of it."""
    usual = SPLITS[split]
    changed = [
        f"{field.name}={_write(getattr(knobs, field.name))}"
        for field in fields(Knobs)
        if getattr(knobs, field.name) != getattr(usual, field.name)
    ]
    return f"{split}/{task_type}/{seed}" + (f"?{'&'.join(changed)}" if changed else "")


def read_task_id(task_id: str) -> tuple[str, str, int, Knobs]:
    """Split, task type, seed and knobs of an id.

    Raises:
        ValueError: the id is not `split/task_type/seed` with, after a `?`, knobs as `name=value`.
    """
    path, _, query = task_id.partition("?")
    parts = path.split("/")
    if len(parts) != 3 or not re.fullmatch(r"\d{1,9}", parts[2]):
        raise ValueError(
            f"household task id {task_id!r}: wanted split/task_type/seed with a seed of at most nine digits, "
            f"e.g. 'tiny/pick_and_place_simple/17'; splits are {', '.join(SPLITS)}"
        )
    split, task_type = check_split(parts[0]), check_task_type(parts[1])
    values: dict[str, object] = {}
    kinds = {field.name: getattr(_TINY, field.name) for field in fields(Knobs)}
    for assignment in query.split("&") if query else ():
        name, _, text = assignment.partition("=")
        check_knob(name)
        try:
            if text == "None" and name == "receptacles":
                values[name] = None
            elif isinstance(kinds[name], tuple):
                low, high = text.split("-")
                values[name] = (int(low), int(high))
            else:
                values[name] = type(kinds[name])(text)
        except ValueError:
            raise ValueError(f"household task id {task_id!r}: {text!r} is no value for {name}") from None
    return split, task_type, int(parts[2]), replace(SPLITS[split], **values)  # type: ignore[arg-type]  # each was parsed by its field
