"""From rollouts to the step table: keys by a signature, step rewards, endings.

What this is not: it computes no credit. Step rewards are filled in here, never by an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rtmc.errors import RolloutError, SignatureError
from rtmc.rollouts import Rollout, Stop
from rtmc.signatures import Signature, get_signature

if TYPE_CHECKING:
    import torch

    from rtmc.table import StepTable


def tabulate(
    rollouts: Iterable[Rollout],
    signatures: str | Signature | Callable[[Rollout], str | Signature] = "env",
    valid_reward: float = 0.005,
    invalid_reward: float = -0.005,
    validation_bonus: float = 0.05,
    dtype: torch.dtype | None = None,
    errors: Literal["absent", "failure"] = "absent",
) -> StepTable:
    """Step table of `rollouts`; the group of a rollout is its task, rows are in the order given.

    The step reward is

        reward = step.reward + (valid_reward if valid, invalid_reward if not, 0 if the step does not say)
                             + (validation_bonus if the action checks the agent's own work: the step says so, or the
                                signature's `validates(action key)` does)

    and the outcome is not part of it. Keys come from `signatures` (see rtmc/signatures); a step without a
    count of tokens counts 1; the steps' `scores` become the table's.

    signatures   a name, a Signature, or a function that says which of these a rollout gets (for logs of several
                 kinds); one object serves all rollouts of a name
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
    if isinstance(signatures, (str, Signature)):
        signatures, rollouts = _fitted(get_signature(signatures), rollouts)
    choose = _chooser(signatures)
    # Equal keys are kept once: memory grows with the states and actions there are, not with the steps.
    known: dict[str, str] = {}
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
        signature = choose(rollout)
        validates = getattr(signature, "validates", None)
        keys = _keys(rollout, signature)
        for index, (step, (state, action, after)) in enumerate(zip(rollout.steps, keys, strict=True)):
            checks = step.validation or (validates is not None and validates(action))
            reward = step.reward + (validation_bonus if checks else 0.0)
            if step.valid is not None:
                reward += valid_reward if step.valid else invalid_reward
            tokens = 1 if step.tokens is None else step.tokens
            state, action = known.setdefault(state, state), known.setdefault(action, action)
            after = None if after is None else known.setdefault(after, after)
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


def _chooser(signatures: str | Signature | Callable[[Rollout], str | Signature]) -> Callable[[Rollout], Signature]:
    """Function from a rollout to its signature."""
    if isinstance(signatures, (str, Signature)) or not callable(signatures):
        one = get_signature(signatures)
        return lambda rollout: one
    made: dict[str, Signature] = {}

    def choose(rollout: Rollout) -> Signature:
        chosen = signatures(rollout)
        if not isinstance(chosen, str):
            return get_signature(chosen)
        if chosen not in made:
            made[chosen] = get_signature(chosen)
        return made[chosen]

    return choose


def _fitted(signature: Signature, rollouts: Iterable[Rollout]) -> tuple[Signature, Iterable[Rollout]]:
    """The signature, shown all rollouts first if it asks for them, and the rollouts."""
    fit = getattr(signature, "fit", None)
    if fit is None:
        return signature, rollouts
    rollouts = list(rollouts)
    fit([rollout for rollout in rollouts if isinstance(rollout, Rollout)])
    return signature, rollouts


def _keys(rollout: Rollout, signature: Signature) -> list[tuple[str, str, str | None]]:
    """(state, action, state after) of each step."""
    state = signature.state(rollout)
    # A state that knows what an action's key depends on (the folder, the open file) offers the key itself.
    action_key = getattr(state, "action", None) or signature.action
    states: list[str | None] = []
    actions: list[str] = []
    for place, step in enumerate(rollout.steps):
        states.append(_named(rollout, place, "state", state.key))
        actions.append(_named(rollout, place, "action", partial(action_key, step)))
        state.update(step)
    if rollout.steps:
        states.append(state.key())
    return list(zip(states, actions, states[1:], strict=False))  # type: ignore[arg-type]  # only the last may be None


def _named(rollout: Rollout, place: int, kind: str, key: Any) -> Any:
    """The key, with the rollout and the step in the message where there is none."""
    try:
        found = key()
    except SignatureError as error:
        raise SignatureError(f"{rollout.name}, step {place}: {error}") from None
    if not isinstance(found, str):
        raise SignatureError(f"{rollout.name}, step {place}: the {kind} key must be a string, got {found!r}")
    return found
