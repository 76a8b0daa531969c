"""From rollouts to the step table: keys by a signature, step rewards, endings.

What this is not: it computes no credit. Step rewards are filled in here, never by an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from rtmc.errors import RolloutError, SignatureError
from rtmc.rollouts import Rollout, Step, Stop
from rtmc.signatures import Signature, get_signature

if TYPE_CHECKING:
    import torch

    from rtmc.table import StepTable


def tabulate(
    rollouts: Iterable[Rollout],
    signatures: str | Signature = "env",
    valid_reward: float = 0.005,
    invalid_reward: float = -0.005,
    validation_bonus: float = 0.05,
    dtype: torch.dtype | None = None,
    errors: Literal["absent", "failure"] = "absent",
) -> StepTable:
    """Step table of `rollouts`; the group of a rollout is its task, rows are in the order given.

    The step reward is

        reward = step.reward + (valid_reward if valid, invalid_reward if not, 0 if the step does not say)
                             + (validation_bonus if the action checks the agent's own work)

    and the outcome is not part of it. Keys come from `signatures` (see rtmc/signatures); a step without a
    count of tokens counts 1; the steps' `scores` become the table's.

    errors   what a rollout that ended in an error is worth. "absent" (default): its outcome is NaN whatever
             its reward says, so it gets advantage 0 and shifts no baseline. "failure": its outcome is 0 and
             it counts. Either way its steps are rows of the table and its ending is truncated.
    dtype    torch.float32 (default) or torch.float64

    Rollouts without steps are kept: they count in the group's outcomes. No rollouts give an empty table.

    Raises SignatureError for an unknown signature or a step that lacks a key (rollout and step are named),
    RolloutError for two rollouts of a task with one id, ValueError for a number that is not finite or an
    unknown `errors`. Source: RTMC's step rewards, +0.005 / -0.005 / +0.05 (arXiv 2604.11037, section 5).
    """
    import torch

    from rtmc.table import StepTable

    if errors not in ("absent", "failure"):
        raise ValueError(f"`errors` must be 'absent' or 'failure', got {errors!r}")
    numbers = {
        "valid_reward": valid_reward,
        "invalid_reward": invalid_reward,
        "validation_bonus": validation_bonus,
    }
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"`{name}` must be a finite number, got {number!r}")
    signature = get_signature(signatures)
    rows: list[dict[str, Any]] = []
    empty: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    for rollout in rollouts:
        if not isinstance(rollout, Rollout):
            raise TypeError(f"`rollouts` must hold Rollout objects, got {type(rollout).__name__}")
        rollout.complete()
        if (rollout.task_id, rollout.rollout_id) in seen:
            raise RolloutError(f"{rollout.name} comes twice; give each rollout of a task its own id")
        seen.add((rollout.task_id, rollout.rollout_id))
        outcome = rollout.reward
        if rollout.error is not None or rollout.stop is Stop.ERROR:
            outcome = math.nan if errors == "absent" else 0.0
        whole: dict[str, Any] = {
            "group": rollout.task_id,
            "rollout": rollout.rollout_id,
            "outcome": outcome,
            "ending": rollout.ending,
        }
        if not rollout.steps:
            empty.append(whole)
        keys = _keys(rollout, signature)
        for index, (step, (state, action, after)) in enumerate(zip(rollout.steps, keys, strict=True)):
            reward = step.reward + (validation_bonus if step.validation else 0.0)
            if step.valid is not None:
                reward += valid_reward if step.valid else invalid_reward
            tokens = 1 if step.tokens is None else step.tokens
            own = {"index": index, "state": state, "action": action, "next_state": after}
            row = {**whole, **own, "reward": reward, "tokens": tokens}
            for name in step.scores:
                if name in row or name == "parent":
                    raise RolloutError(
                        f"{rollout.name}, step {index}: the score `{name}` has the name of a column; "
                        "give it another name"
                    )
            rows.append(row | step.scores)
    return StepTable.from_rows(rows, empty, dtype=torch.float32 if dtype is None else dtype)


def _keys(rollout: Rollout, signature: Signature) -> list[tuple[str, str, str | None]]:
    """(state, action, state after) of each step."""
    state = signature.state(rollout)
    states: list[str | None] = []
    actions: list[str] = []
    for place, step in enumerate(rollout.steps):
        states.append(_named(rollout, place, "state", state.key))
        actions.append(_named(rollout, place, "action", _bound(signature, step)))
        state.update(step)
    if rollout.steps:
        states.append(state.key())
    return list(zip(states, actions, states[1:], strict=False))  # type: ignore[arg-type]  # only the last may be None


def _bound(signature: Signature, step: Step) -> Any:
    return lambda: signature.action(step)


def _named(rollout: Rollout, place: int, kind: str, key: Any) -> Any:
    """The key, with the rollout and the step in the message where there is none."""
    try:
        found = key()
    except SignatureError as error:
        raise SignatureError(f"{rollout.name}, step {place}: {error}") from None
    if not isinstance(found, str):
        raise SignatureError(f"{rollout.name}, step {place}: the {kind} key must be a string, got {found!r}")
    return found
