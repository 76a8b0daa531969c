"""Names of tasks: splits, ids, and the knobs by which rooms are drawn.

`split/task_type/seed` names a task. Changed knobs are part of the name
(`train/pick_and_place_simple/3?distractors=2-4`), so that any id regenerates its task.

Splits
- `tiny`: three or four receptacles, two to four steps, at most eight choices at any time;
- `train`: rooms of 10 to 30 receptacles with about as many things, layouts 0 to 23 of each kind of room;
- `valid_seen`: the layouts of `train` with other contents;
- `valid_unseen`: layouts 24 to 29, which `train` and `valid_seen` never use, and goals (object with receptacle or lamp)
  that none of `tiny`, `train` and `valid_seen` ever asks for;
- `tiny_unseen`: as `tiny`, with goals out of those of `valid_unseen`.

What is unseen of a goal is that it is asked for. Where things lie at the start is drawn alike in every split, so a mug
may well lie on a shelf in `train` though "put a mug on shelf" is kept for `valid_unseen`.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real

from rtmc.gymenvs.household import vocabulary as voc


@dataclass(frozen=True)
class Knobs:
    """How a room is drawn. Pairs are (fewest, most), whole numbers in this order; probabilities lie in 0..1.

    Whole numbers and lists of two are taken for probabilities and pairs, and kept as such.

    Attributes:
        receptacles: how many stand in the room, 1 to 1000; None = as the room's layout has them.
        distractors: how many things besides those that the goal needs, 0 to 1000. Of the number that a split draws by
            itself those are left out that fit nowhere in the room; a number asked for is met.
        plan: steps of the shortest plan, at least 1.
        choices: most commands at any time besides help, inventory, look and examine; 0 = any number.
        closed: probability that a receptacle with a door is closed.
        shared: probability that a receptacle stands at the location of the one before it.
        at_start: probability that the agent starts at a receptacle instead of in the middle of the room.
        hidden: probability that a thing of the goal is put in a closed receptacle where one takes it.

    Raises:
        ValueError: a value is none of its knob's; the message names the knob, the value and the rule.
    """

    receptacles: tuple[int, int] | None = None
    distractors: tuple[int, int] = (10, 18)
    plan: tuple[int, int] = (3, 16)
    choices: int = 0
    closed: float = 1.0
    shared: float = 0.1
    at_start: float = 0.0
    hidden: float = 0.3

    def __post_init__(self) -> None:
        for knob, least in _LEAST_OF_PAIR.items():
            value = getattr(self, knob)
            if value is not None or knob != "receptacles":
                object.__setattr__(self, knob, _pair(knob, value, least))
        object.__setattr__(self, "choices", _whole("choices", self.choices, 0))
        for knob in ("closed", "shared", "at_start", "hidden"):
            object.__setattr__(self, knob, _probability(knob, getattr(self, knob)))


_LEAST_OF_PAIR = {"receptacles": 1, "distractors": 0, "plan": 1}
_MOST = 10**9 - 1  # ids have at most nine digits a number
_MOST_THINGS = 1000  # in one room


def _whole(what: str, got: object, least: int, most: int = _MOST) -> int:
    rule = f"wanted a whole number from {least} to {most}"
    if isinstance(got, bool):
        raise ValueError(f"household {what}={got!r}: {rule}")
    try:
        number = operator.index(got)  # type: ignore[arg-type]  # what has no index is the error
    except TypeError:
        raise ValueError(f"household {what}={got!r}: {rule}") from None
    if not least <= number <= most:
        raise ValueError(f"household {what}={got!r}: {rule}")
    return number


def _pair(knob: str, got: object, least: int) -> tuple[int, int]:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise ValueError(f"household knob {knob}={got!r}: wanted a pair (fewest, most)")
    low, high = (_whole(f"knob {knob}", value, least, _MOST if knob == "plan" else _MOST_THINGS) for value in got)
    if low > high:
        raise ValueError(f"household knob {knob}={got!r}: wanted (fewest, most), the first at most the second")
    return low, high


def _probability(knob: str, got: object) -> float:
    # A NaN lies nowhere, so that it is refused here too.
    if isinstance(got, bool) or not isinstance(got, Real) or not 0 <= float(got) <= 1:
        raise ValueError(f"household knob {knob}={got!r}: wanted a probability, a number from 0 to 1")
    return float(got)


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


def check_seed(seed: int) -> int:
    """The seed, or a ValueError that says which numbers are seeds."""
    return _whole("seed", seed, 0)


def check_split(split: str) -> str:
    """The split, or a ValueError that names the near ones."""
    if not isinstance(split, str) or split not in SPLITS:
        raise near("split", str(split), tuple(SPLITS))
    return split


def check_task_type(task_type: str) -> str:
    """The task type, or a ValueError that names the near ones."""
    if not isinstance(task_type, str) or task_type not in voc.TASK_TYPES:
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
        ValueError: the id is not `split/task_type/seed` with, after a `?`, knobs as `name=value`, each once; or a value
            is none of its knob's (`Knobs`).
    """
    path, _, query = task_id.partition("?")
    parts = path.split("/")
    if len(parts) != 3 or not re.fullmatch(r"[0-9]{1,9}", parts[2]):
        raise ValueError(
            f"household task id {task_id!r}: wanted split/task_type/seed with a seed of at most nine digits, "
            f"e.g. 'tiny/pick_and_place_simple/17'; splits are {', '.join(SPLITS)}"
        )
    split, task_type = check_split(parts[0]), check_task_type(parts[1])
    values: dict[str, object] = {}
    for assignment in query.split("&") if query else ():
        name, _, text = assignment.partition("=")
        if check_knob(name) in values:
            raise ValueError(f"household task id {task_id!r}: the knob {name} is given twice")
        values[name] = _read_knob(task_id, name, text)
    try:
        knobs = replace(SPLITS[split], **values)  # type: ignore[arg-type]  # each was read as its field's
    except ValueError as error:
        raise ValueError(f"household task id {task_id!r}: {error}") from None
    return split, task_type, int(parts[2]), knobs


def _read_knob(task_id: str, name: str, text: str) -> object:
    if name == "receptacles" and text == "None":
        return None
    if name in _LEAST_OF_PAIR:
        form, wanted = r"([0-9]{1,9})-([0-9]{1,9})", "FEWEST-MOST"
    elif name == "choices":
        form, wanted = r"([0-9]{1,9})", "a whole number"
    else:
        form, wanted = r"[0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?", "a number from 0 to 1"
    match = re.fullmatch(form, text)
    if match is None:
        raise ValueError(f"household task id {task_id!r}: {text!r} is no value for {name}; wanted {wanted}")
    if name in _LEAST_OF_PAIR:
        return int(match[1]), int(match[2])
    return int(text) if name == "choices" else float(text)
