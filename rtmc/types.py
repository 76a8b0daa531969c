"""Words shared by the rooms of `rtmc`: how a rollout ends, and what an estimator returns.

Legend of shape suffixes, used in every docstring and, where it helps, in names:

    S   steps (rows of the step table)        R   rollouts (attempts at a task)
    G   groups (tasks)                        P   steps of all root-to-leaf paths (P = S where rollouts are chains)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Ending(IntEnum):
    """How a rollout ended; the int8 code in `StepTable.ending`."""

    FAILURE = 0
    SUCCESS = 1
    TRUNCATED = 2


@dataclass(frozen=True)
class Estimate:
    """What an estimator returns, one number a step, in the row order and dtype of the table it was given.

    advantage       (S,)  the credit of the step
    returns         (S,)  discounted return G from the step on, the outcome included; step rewards alone where the
                          outcome is unknown
    q               (S,)  value of (state, action)
    v               (S,)  value subtracted from it (the smoothed one for `rtmc`)
    visits          (S,)  N(s), int64; in a tree the mean over the leaves below the node, in the table's dtype
    action_visits   (S,)  N(s, a), likewise
    parts           name -> (S,), the terms whose documented combination is the advantage

    A field that a method does not have is None.
    """

    advantage: Tensor
    returns: Tensor | None = None
    q: Tensor | None = None
    v: Tensor | None = None
    visits: Tensor | None = None
    action_visits: Tensor | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """(name, column) of every column that is there; parts as `parts.<name>`."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "parts":
                yield from ((f"parts.{name}", part) for name, part in value.items())
            elif value is not None:
                yield entry.name, value

    def map(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """The same estimate with `function` applied to every column that is there."""
        changed = {
            entry.name: function(getattr(self, entry.name))
            for entry in fields(self)
            if entry.name != "parts" and getattr(self, entry.name) is not None
        }
        return replace(self, **changed, parts={name: function(part) for name, part in self.parts.items()})
