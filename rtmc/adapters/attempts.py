"""What the adapters share: attempts as an engine has them, and their credit.

An engine knows of an attempt (a rollout) its group, its reward and which tokens the policy sampled; what a step saw
and did is known to the user's environment alone, who hands it over as one mapping a step: `state`, `action`, and
whatever else `StepTable.from_rows` takes (`reward`, `next_state`, scores).

What this is not: it reads no engine's object, and invents no key. A method that reads states needs states.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rtmc.errors import EstimatorError, MissingPackageError, TableError, unknown_name
from rtmc.methods.registry import EstimatorInfo, estimate, estimators
from rtmc.table import StepTable
from rtmc.types import Estimate

__all__ = ["Attempt", "attempts_credit", "estimator_info", "hashable", "import_engine", "match_steps", "read_steps"]

_OF_ATTEMPT = ("group", "rollout", "index", "outcome", "ending", "parent")
_KEYS = ("state", "action", "next_state")


@dataclass(frozen=True)
class Attempt:
    """One rollout, a chain of steps.

    group     what it is compared with, any hashable value
    outcome   the verifier's reward; NaN = unknown
    steps     one mapping a step, in time order, with what `StepTable.from_rows` takes; empty where no key is known
    tokens    policy tokens of each step, as long as `steps`; None = one each
    ending    "success", "failure", "truncated", or None: by the outcome
    name      how an error speaks of it
    """

    group: Hashable
    outcome: float
    steps: Sequence[Mapping[str, Any]]
    tokens: Sequence[int] | None = None
    ending: str | None = None
    name: str = ""


def estimator_info(method: str) -> EstimatorInfo:
    """What `rtmc.estimators()` says of a method. Raises EstimatorError (a ValueError) with the near names."""
    known = {info.name: info for info in estimators()}
    if method not in known:
        raise EstimatorError(unknown_name("estimator", method, known))
    return known[method]


def import_engine(module: str, package: str) -> ModuleType:
    """The engine's module. Raises MissingPackageError (an ImportError) that says how to get the package."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"this adapter needs `{module}`, and importing it failed: {error}. Install the engine: "
            f"pip install {package} (its pins may fight ours; then install it without its dependencies)"
        ) from error


def attempts_credit(
    attempts: Sequence[Attempt],
    method: str,
    options: Mapping[str, Any] | None = None,
    per_group: int | None = None,
    hint: str = "give every step's keys",
) -> tuple[Estimate, list[int], StepTable]:
    """Credit of the steps of chains by `rtmc.estimate`.

    per_group   attempts that a group is meant to have. Above 1, and every group has one alone: an EstimatorError with
                the count, because then nothing is compared and the engine's ids are most likely wrong
    hint        how the user of this engine gives keys; for the error where a method needs some and they are missing

    Returns (estimate, first, table): the steps of attempt i are the rows from first[i] on.

    Raises EstimatorError or TableError (ValueErrors) for missing keys, a method's own complaints, and steps that are
    no mappings.
    """
    info = estimator_info(method)
    _check_groups(attempts, per_group)
    rows: list[dict[str, Any]] = []
    first: list[int] = []
    for number, attempt in enumerate(attempts):
        first.append(len(rows))
        of_attempt = {"group": attempt.group, "rollout": number, "outcome": attempt.outcome, "ending": attempt.ending}
        name = attempt.name or f"attempt {number}"
        steps = attempt.steps
        if attempt.tokens is not None and len(attempt.tokens) != len(steps):
            raise TableError(f"{name}: {len(steps)} steps, but the tokens of {len(attempt.tokens)}")
        for index, step in enumerate(steps):
            _check_step(step, f"{name}, step {index}", info, hint)
            row = {"state": index, "action": index, **step, **of_attempt, "index": index}
            if attempt.tokens is not None:
                row["tokens"] = int(attempt.tokens[index])
            rows.append(row)
    empty = [
        {"group": a.group, "rollout": number, "outcome": a.outcome, "ending": a.ending}
        for number, a in enumerate(attempts)
        if not a.steps
    ]
    table = StepTable.from_rows(rows, empty_rollouts=empty)
    return estimate(table, method, **(options or {})), first, table


def _check_groups(attempts: Sequence[Attempt], per_group: int | None) -> None:
    groups = {attempt.group for attempt in attempts}
    if per_group is not None and per_group > 1 and len(attempts) > 1 and len(groups) == len(attempts):
        raise EstimatorError(
            f"{len(attempts)} rollouts have {len(groups)} different group ids, though {per_group} rollouts a task were "
            "declared: nothing could be compared. Give the rollouts of a task the same id"
        )


def _check_step(step: object, where: str, info: EstimatorInfo, hint: str) -> None:
    if not isinstance(step, Mapping):
        raise TableError(
            f"{where}: got {type(step).__name__}, wanted a mapping such as {{'state': ..., 'action': ...}}"
        )
    for name in _KEYS[:2]:
        if name in info.needs and step.get(name) is None:
            raise EstimatorError(
                f"estimator `{info.name}` needs the {name} key of every step; {where} has none: {hint}"
            )
    for name in step:
        if name in _OF_ATTEMPT:
            raise TableError(f"{where} has `{name}`, which belongs to the rollout and is filled in here; leave it out")


def read_steps(item: Any, where: str) -> tuple[Sequence[Mapping[str, Any]] | None, float | None, bool]:
    """(steps, outcome, truncated) of what a user gave for a row; None where it does not say.

    item    None; a list of mappings, one a step; or {"steps": [...], "outcome": 1.0, "truncated": True}, of which only
            `steps` is required

    Raises TableError (a ValueError) for anything else.
    """
    if item is None:
        return None, None, False
    steps, outcome, truncated = item, None, False
    if isinstance(item, Mapping):
        if "steps" not in item or set(item) - {"steps", "outcome", "truncated"}:
            raise TableError(
                f"{where}: got a mapping with {', '.join(map(str, item)) or 'nothing'}; wanted `steps`, and where you "
                "like `outcome` and `truncated`"
            )
        steps, outcome, truncated = item["steps"], item.get("outcome"), bool(item.get("truncated"))
    if not isinstance(steps, list | tuple):
        raise TableError(f"{where}: got {type(steps).__name__}, wanted the row's steps, a list of mappings")
    return steps, None if outcome is None else float(outcome), truncated


def match_steps(
    given: Sequence[Mapping[str, Any]] | None, tokens: Sequence[int], where: str
) -> tuple[Sequence[Mapping[str, Any]], list[int]]:
    """The user's steps beside the runs of sampled tokens, and the tokens of each step; a bare step a run without them.

    A batch cut at its maximal length has lost runs at the end: the steps without tokens are kept, with 0 tokens,
    because they happened and the statistics may use them. A step that says how many `tokens` it has is checked,
    except the last run, which may have been cut.

    Raises TableError (a ValueError) where there are more runs than steps, or other tokens.
    """
    runs = [int(count) for count in tokens]
    if given is None:
        return [{}] * len(runs), runs
    if len(runs) > len(given):
        raise TableError(
            f"{where}: the mask has {len(runs)} runs of sampled tokens, but {len(given)} steps were given; give one "
            "step for every model call, in order"
        )
    for place, (step, run) in enumerate(zip(given, runs, strict=False)):
        said = step.get("tokens") if isinstance(step, Mapping) else None
        if said is not None and int(said) != run and not (place == len(runs) - 1 and run < int(said)):
            raise TableError(
                f"{where}, step {place}: {said} tokens were given, but the mask's run has {run}; the rows are not the "
                "steps' (were they put into another order?)"
            )
    return given, runs + [0] * (len(given) - len(runs))


def hashable(value: Any) -> Hashable:
    """A key for an observation: equal content, equal key, nothing rounded.

    Arrays and tensors by shape and bytes, mappings by sorted items, lists and tuples by their items, the rest as is.
    Raises TypeError for what cannot be a key.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return hashable(value.item())
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("array", value.shape, tuple(hashable(item) for item in value.ravel().tolist()))
        # -0.0 equals 0.0, and its bytes do not.
        exact = np.ascontiguousarray(value + 0 if value.dtype.kind in "fc" else value)
        return ("array", value.shape, exact.dtype.str, exact.tobytes())
    if isinstance(value, Mapping):
        return ("mapping", tuple(sorted(((repr(k), hashable(v)) for k, v in value.items()), key=lambda item: item[0])))
    if isinstance(value, list | tuple):
        return tuple(hashable(item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, set | frozenset):
        return ("set", tuple(sorted(repr(item) for item in value)))
    hash(value)
    return value
