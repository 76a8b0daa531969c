"""Tinker: step credit for the transitions and the data of tinker-cookbook (made for tinker 0.38, cookbook 0.6).

To paste, with `groups` the TrajectoryGroups that tinker-cookbook's rollouts return:

    import rtmc.adapters.tinker as credit

    def keys(trajectory, index, transition):
        return {"state": transition.logs["state_key"], "action": transition.logs["action_key"]}

    data, where = credit.assemble_training_data(groups, "rtmc", keys=keys, gamma=0.99)
    for datum, place in zip(data, where):
        print(place["group_idx"], place["traj_idx"], datum.loss_fn_inputs["advantages"].to_torch())

A step is a transition. The outcome is the group's final reward of the trajectory; `transition.reward` is a step reward.
Most environments give their verdict as the last transition's reward, with a final reward of 0: `outcome="total"`, the
default, takes the sum of all, as the cookbook's `compute_advantages` does, and out of the last step's reward again;
`outcome="final"` takes the two as they are. Without `keys` a transition's state is the tokens the model saw and its
action those it sampled, so two trajectories share a state while they read and wrote the same.

A transition that the cookbook masks (an answer that could not be parsed) keeps mask and advantage 0, and counts in the
statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from rtmc.adapters.attempts import Attempt, attempts_credit, import_engine
from rtmc.errors import EstimatorError, TableError

__all__ = ["assemble_training_data", "transition_advantages"]

Keys = Callable[[Any, int, Any], Mapping[str, Any]]
_PACKAGE = "tinker==0.38.0 tinker-cookbook==0.6.1"
_HINT = "give `keys=`, a function of trajectory, index and transition"


def transition_advantages(
    groups: Sequence[Any],
    method: str,
    *,
    keys: Keys | None = None,
    outcome: Literal["total", "final"] = "total",
    **options: Any,
) -> list[list[list[float]]]:
    """Credit of every transition: one list a group, of one list a trajectory, of one number a transition.

    groups    objects with `trajectories_G`, each with `transitions`, and `final_rewards_G`
    keys      (trajectory, index, transition) -> what StepTable.from_rows takes for a step: `state`, `action`, `reward`,
              scores. None: see the head of this file
    outcome   see the head of this file
    options   of the method

    Raises EstimatorError or TableError (ValueErrors) as `rtmc.estimate` does, naming trajectory and transition.
    """
    if outcome not in ("total", "final"):
        raise EstimatorError(f"`outcome` must be 'total' or 'final', got {outcome!r}")
    attempts = []
    for number, group in enumerate(groups):
        for place, (trajectory, final) in enumerate(zip(group.trajectories_G, group.final_rewards_G, strict=True)):
            turns = trajectory.transitions
            total = float(sum(turn.reward for turn in turns) + final)
            rewards = [float(turn.reward) for turn in turns]
            if outcome == "total" and rewards:
                rewards[-1] += float(final) - total
            steps = [
                {"reward": reward, **(_keys(turn) if keys is None else keys(trajectory, index, turn))}
                for index, (turn, reward) in enumerate(zip(turns, rewards, strict=True))
            ]
            verdict = total if outcome == "total" else float(final)
            name = f"group {number}, trajectory {place}"
            attempts.append(Attempt(number, verdict, steps, [len(turn.ac.tokens) for turn in turns], None, name))
    found, first, _ = attempts_credit(attempts, method, options, hint=_HINT)
    advantage = found.advantage.tolist()
    starts = iter(first)
    return [
        [
            advantage[start : start + len(trajectory.transitions)]
            for trajectory, start in zip(group.trajectories_G, starts, strict=False)
        ]
        for group in groups
    ]


def _keys(turn: Any) -> dict[str, Any]:
    seen = tuple(_token(element) for element in _flat(turn.ob))
    return {"state": seen, "action": tuple(turn.ac.tokens)}


def _flat(ob: Any) -> list[Any]:
    """Tokens of an observation; a chunk that holds no tokens (an image) stands as itself."""
    flat: list[Any] = []
    for chunk in ob.chunks:
        flat.extend(chunk.tokens if hasattr(chunk, "tokens") else [chunk])
    return flat


def _token(element: Any) -> Any:
    return element if isinstance(element, int) else repr(element)


def assemble_training_data(
    groups: Sequence[Any],
    method: str,
    *,
    keys: Keys | None = None,
    outcome: Literal["total", "final"] = "total",
    include_provenance: bool = True,
    **options: Any,
) -> tuple[list[Any], list[dict[str, int]]]:
    """The cookbook's `assemble_training_data` with every transition's own credit in `loss_fn_inputs["advantages"]`.

    Returns its data, and for each datum `group_idx` and `traj_idx`. The other arguments are those of
    `transition_advantages`, and of the cookbook.

    Raises MissingPackageError without tinker-cookbook, TableError where its data do not hold the transitions' tokens.
    """
    processing = import_engine("tinker_cookbook.rl.data_processing", _PACKAGE)
    tinker = import_engine("tinker", _PACKAGE)
    credit = transition_advantages(groups, method, keys=keys, outcome=outcome, **options)
    ones = [torch.ones(len(group.trajectories_G)) for group in groups]
    data, where = processing.assemble_training_data(list(groups), ones, include_provenance=include_provenance)
    waiting = iter(zip(data, where, strict=True))
    for number, group in enumerate(groups):
        for place, trajectory in enumerate(group.trajectories_G):
            name = f"group {number}, trajectory {place}"
            for spans in _data_of(trajectory):
                datum, there = next(waiting)
                if (there["group_idx"], there["traj_idx"]) != (number, place):
                    raise TableError(f"{name}: the cookbook made other data of its transitions")
                inputs = datum.loss_fn_inputs
                targets, mask = inputs["target_tokens"].to_torch(), inputs["mask"].to_torch()
                advantage = torch.zeros_like(mask)
                for start, tokens, turn in spans:
                    if targets[start : start + len(tokens)].tolist() != list(tokens):
                        raise TableError(f"{name}: the targets do not hold the tokens of transition {turn}")
                    advantage[start : start + len(tokens)] = credit[number][place][turn]
                inputs["advantages"] = tinker.TensorData.from_torch(torch.where(mask != 0, advantage, 0.0))
    return data, where


def _data_of(trajectory: Any) -> list[list[tuple[int, list[int], int]]]:
    """For every datum the cookbook makes of a trajectory: (first target, tokens, number) of its transitions.

    While an observation begins with all that came before, one datum goes on; targets stand one place to the left.
    """
    data: list[list[tuple[int, list[int], int]]] = []
    before: list[Any] = []
    length = 0
    for number, turn in enumerate(trajectory.transitions):
        seen = _flat(turn.ob)
        if not before or seen[: len(before)] != before:
            data.append([])
            before, length = [], 0
        length += sum(1 if isinstance(element, int) else element.length for element in seen[len(before) :])
        tokens = list(turn.ac.tokens)
        # Without anything before it the first sampled token is an input and no target.
        data[-1].append((max(length - 1, 0), tokens if length else tokens[1:], number))
        before, length = [*seen, *tokens], length + len(tokens)
        if not before:
            data.pop()  # neither seen nor said: the cookbook makes nothing of it
    return data
