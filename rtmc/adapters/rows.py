"""Batches with one row a step, as verl-agent and ROLL make them: columns by name, arrays of objects.

To paste, with `batch` a DataProto or its `non_tensor_batch`, and `response_mask` (N, T):

    import rtmc.adapters.rows as credit

    per_step = credit.advantages(batch, "gigpo", fields="verl_agent", gamma=0.95)          # (N,)
    per_token = credit.advantages(batch, "gigpo", fields="verl_agent", mask=response_mask)  # (N, T)

    from_texts = credit.advantages(batch, "rtmc", fields="verl_agent", action=text_actions)
    roll = credit.Fields(group="traj_group_id", rollout="traj_id", state="state_hash",
                         reward="step_scores", outcome="episode_scores", index="step")  # is fields="roll"

Rows may stand in any order and groups may be mixed where the batch has a column of step numbers (ROLL's `step`); two
rows with the same number in a rollout are copies of one step, as a batch that was filled up has them, and get the same
credit. Without such a column (verl-agent) the rows of a rollout have to stand in time order and without copies: call
this before the batch is filled up or put into another order.

Engines of this form count the outcome among the step rewards, and `episode_rewards` is their sum. The table keeps the
two apart, so the outcome is taken out of the last step's reward again; `Fields(outcome_in_rewards=False)` says that it
is not in there. Rows with a false `active_masks` are no steps and get 0.

What this is not: no engine is imported, and none of these engines stands in a package registry.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

import torch
from torch import Tensor

from rtmc.adapters.attempts import Attempt, attempts_credit, hashable
from rtmc.errors import TableError, unknown_name

__all__ = ["ROLL", "VERL_AGENT", "Fields", "advantages"]


@dataclass(frozen=True)
class Fields:
    """Names of the columns of a batch; None = there is no such column.

    group, rollout       ids of the task and of the attempt
    state, action        keys of the step; arrays, lists and mappings are compared by content
    reward               step reward
    outcome              reward of the whole rollout, the same on all of its rows; where the column is missing, the sum
                         of the step rewards
    index                number of the step in its rollout
    active               false for rows that are no steps
    outcome_in_rewards   the outcome is the sum of the step rewards, or part of the last one
    """

    group: str
    rollout: str
    state: str | None = None
    action: str | None = None
    reward: str | None = None
    outcome: str | None = None
    index: str | None = None
    active: str | None = None
    outcome_in_rewards: bool = True


VERL_AGENT = Fields("uid", "traj_uid", "anchor_obs", None, "rewards", "episode_rewards", None, "active_masks")
ROLL = Fields("traj_group_id", "traj_id", "state_hash", None, "step_scores", "episode_scores", "step")
_NAMED = {"verl_agent": VERL_AGENT, "roll": ROLL}
_HINT = "name the column in Fields, or give `action=`, one key a row"


def advantages(
    batch: Any,
    method: str,
    *,
    fields: str | Fields = "verl_agent",
    mask: Tensor | None = None,
    action: Sequence[Any] | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    per_group: int | None = None,
    **options: Any,
) -> Tensor:
    """Credit of every row, (N,) float32; with `mask` (N, T) spread over its ones, (N, T), and 0 elsewhere.

    batch       an object with `non_tensor_batch`, or a mapping of column name to (N,) values
    fields      "verl_agent", "roll", or the names of your columns
    action      (N,) action keys, in place of a column
    scores      name -> (N,), what a method needs beyond states and rewards
    per_group   rollouts a task is meant to have; group ids that are all different are then an error
    options     of the method

    Raises TableError or EstimatorError (ValueErrors) for a column that is missing or has another length, rewards of one
    rollout that differ, and whatever the method needs and lacks.
    """
    columns = getattr(batch, "non_tensor_batch", batch)
    if not isinstance(columns, Mapping):
        raise TypeError(f"`batch` must be a mapping of columns or have `non_tensor_batch`, got {type(batch).__name__}")
    if isinstance(fields, str):
        if fields not in _NAMED:
            raise TableError(unknown_name("form of a batch", fields, _NAMED))
        fields = _NAMED[fields]
    extra = {"action": action} if action is not None else {}
    rows = _Rows(columns, fields, {**extra, **(scores or {})})
    attempts, steps = rows.attempts()
    found, first, _ = attempts_credit(attempts, method, options, per_group=per_group, hint=_HINT)
    per_row = torch.zeros(rows.count, dtype=found.advantage.dtype)
    for start, of_attempt in zip(first, steps, strict=True):
        for index, copies in enumerate(of_attempt):
            per_row[copies] = found.advantage[start + index]
    if mask is None:
        return per_row
    if mask.dim() != 2 or len(mask) != rows.count:
        raise ValueError(f"`mask` must have shape ({rows.count}, T), got {tuple(mask.shape)}")
    return per_row.to(mask.device)[:, None] * (mask != 0)


class _Rows:
    """The columns of a batch, read by role."""

    def __init__(self, columns: Mapping[str, Any], names: Fields, extra: Mapping[str, Sequence[Any]]) -> None:
        self._names, self._extra = names, extra
        self._columns: dict[str, Any] = {}
        for entry in fields_of(names):
            name = getattr(names, entry.name)
            if isinstance(name, str) and name in columns:
                self._columns[entry.name] = columns[name]
        for role in ("group", "rollout"):
            if role not in self._columns:
                there = ", ".join(map(str, columns)) or "none"
                raise TableError(f"the batch has no column `{getattr(names, role)}` (its columns: {there})")
        self.count = len(self._columns["group"])
        for role, values in [*self._columns.items(), *extra.items()]:
            if len(values) != self.count:
                raise TableError(f"{self._called(role)}: {len(values)} values for {self.count} rows")

    def _called(self, role: str) -> str:
        return f"`{role}`" if role in self._extra else f"column `{getattr(self._names, role)}`"

    def _number(self, role: str, row: int) -> float:
        value = self._columns[role][row]
        try:
            return math.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise TableError(f"row {row}, {self._called(role)}: got {value!r}; it must be a number") from None

    def _step(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for role in ("state", "action"):
            values = self._extra.get(role, self._columns.get(role))
            if values is not None and values[row] is not None:
                found[role] = hashable(values[row])
        if "reward" in self._columns:
            found["reward"] = self._number("reward", row)
        for name, values in self._extra.items():
            if name != "action":
                found[name] = float(values[row])
        return found

    def attempts(self) -> tuple[list[Attempt], list[list[list[int]]]]:
        """The rollouts, and the rows of each of their steps."""
        rows: dict[tuple[Hashable, Hashable], list[int]] = {}
        for row in range(self.count):
            if "active" not in self._columns or bool(self._columns["active"][row]):
                key = hashable(self._columns["group"][row]), hashable(self._columns["rollout"][row])
                rows.setdefault(key, []).append(row)
        attempts, steps = [], []
        for (group, rollout), of_rollout in rows.items():
            in_order = list(self._in_order(of_rollout))
            made = [self._step(copies[0]) for copies in in_order]
            outcome = self._outcome(of_rollout, made)
            if self._names.outcome_in_rewards and "reward" in self._columns and not math.isnan(outcome):
                made[-1]["reward"] -= outcome
            attempts.append(Attempt(group, outcome, made, name=f"rollout {rollout!r} of group {group!r}"))
            steps.append(in_order)
        return attempts, steps

    def _in_order(self, rows: list[int]) -> Iterator[list[int]]:
        if "index" not in self._columns:
            yield from ([row] for row in rows)
            return
        by_step: dict[float, list[int]] = {}
        for row in rows:
            by_step.setdefault(self._number("index", row), []).append(row)
        yield from (by_step[step] for step in sorted(by_step))

    def _outcome(self, rows: list[int], steps: list[dict[str, Any]]) -> float:
        if "outcome" not in self._columns:
            return math.fsum(step.get("reward", 0.0) for step in steps)
        found = self._number("outcome", rows[0])
        for row in rows[1:]:
            other = self._number("outcome", row)
            if other != found and not (math.isnan(other) and math.isnan(found)):
                raise TableError(
                    f"rows {rows[0]} and {row} of one rollout differ in {self._called('outcome')}: {found} and {other}"
                )
        return found
