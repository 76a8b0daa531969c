"""Peers of step-level credit, written as their users have them, and the inputs on which all are timed.

``rtmc_in_numpy``: what one writes who knows numpy well and has no kernel. ``gigpo_row_by_row``: GiGPO's advantage pass
the way a trainer does it whose batch is rows of tensors and numpy arrays of objects: dictionaries of lists of rows, one
tensor element at a time.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch


def steps_of_groups(groups: int, rollouts: int, steps: int, shuffled: bool, dtype: torch.dtype) -> dict[str, Any]:
    """Columns of a step table of integer ids: 200 states a group, nearly half of the visits to twenty of them."""
    g = torch.Generator().manual_seed(0)
    count = groups * rollouts
    rows = count * steps
    group = torch.arange(count) // rollouts
    row_group = group.repeat_interleave(steps)
    often = torch.rand(rows, generator=g) < 0.4
    place = torch.where(often, torch.randint(0, 20, (rows,), generator=g), torch.randint(0, 200, (rows,), generator=g))
    state = row_group * 200 + place
    columns = {
        "rollout": torch.arange(count).repeat_interleave(steps),
        "index": torch.arange(steps).repeat(count),
        "state": state,
        "action": row_group * 6 + torch.randint(0, 6, (rows,), generator=g),
        "next_state": torch.full((rows,), -1),
        "reward": (torch.randn(rows, generator=g) * 0.1).to(dtype),
        "tokens": torch.ones(rows, dtype=torch.int64),
    }
    last = columns["index"] == steps - 1
    columns["next_state"] = torch.where(last, -1, torch.roll(state, -1))
    if shuffled:
        order = torch.randperm(rows, generator=g)
        columns = {name: column[order] for name, column in columns.items()}
    outcome = torch.randint(0, 2, (count,), generator=g)
    return {**columns, "group": group, "outcome": outcome.to(dtype), "ending": outcome.to(torch.int8)}


def rtmc_in_numpy(columns: dict[str, np.ndarray], gamma: float, prior_visits: float) -> np.ndarray:
    """RTMC advantages (first visits, success rate as the prior) of rows in any order; every outcome known.

    Rollouts of one length would do for the returns here, but a step has to follow from the data: one pass a depth.
    """
    rollout, index = columns["rollout"], columns["index"]
    order = np.lexsort((index, rollout))
    rollout, index = rollout[order], index[order]
    group = columns["group"]
    returns = columns["reward"][order].astype(np.float64)
    lengths = np.bincount(rollout, minlength=len(group))
    ends = np.cumsum(lengths)
    filled = lengths > 0
    returns[ends[filled] - 1] += columns["outcome"][filled]
    for back in range(1, int(lengths.max(initial=0))):
        at = ends[lengths > back] - 1 - back
        returns[at] += gamma * returns[at + 1]
    _, state = np.unique(columns["state"][order], return_inverse=True)  # ids of different groups differ
    actions = columns["action"][order]
    _, pair = np.unique(state * (int(actions.max(initial=0)) + 1) + actions, return_inverse=True)
    # The first row of each (rollout, pair): np.unique gives the least place of equal values.
    _, first = np.unique(rollout * (int(pair.max(initial=0)) + 1) + pair, return_index=True)
    visits = np.bincount(pair[first], minlength=int(pair.max(initial=-1)) + 1)
    totals = np.bincount(pair[first], weights=returns[first], minlength=len(visits))
    state_visits = np.bincount(state[first], minlength=int(state.max(initial=-1)) + 1)
    state_totals = np.bincount(state[first], weights=returns[first], minlength=len(state_visits))
    prior = np.bincount(group, weights=columns["outcome"]) / np.bincount(group)
    q = totals[pair] / visits[pair]
    v = (state_totals[state] + prior_visits * prior[group[rollout]]) / (state_visits[state] + prior_visits)
    advantage = np.empty(len(q))
    advantage[order] = q - v
    return advantage


def gigpo_row_by_row(rows: dict[str, Any], gamma: float, std: bool = False, weight: float = 1.0) -> torch.Tensor:
    """GiGPO, arXiv 2505.10978: episode advantage over all step rows of the group, plus ``weight`` times the advantage
    among the rows of the group with the same observation.

    ``rows``: ``reward`` (N,) float32 tensor; ``episode_return`` likewise, the same on all rows of a rollout;
    ``group``, ``observation``, ``rollout``: (N,) numpy arrays of objects; the rows of a rollout in time order.
    """
    of_rollout, of_group, of_observation = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in range(len(rows["reward"])):
        of_rollout[rows["rollout"][row]].append(row)
        of_group[rows["group"][row]].append(row)
        of_observation[rows["group"][row], rows["observation"][row]].append(row)
    returns = torch.zeros(len(rows["reward"]))
    for members in of_rollout.values():
        running = torch.tensor(0.0)
        for row in reversed(members):
            running = rows["reward"][row] + gamma * running
            returns[row] = running
    episode = _normalised_row_by_row(rows["episode_return"], of_group, std, single_keeps=True)
    return episode + weight * _normalised_row_by_row(returns, of_observation, std, single_keeps=False)


def _normalised_row_by_row(
    values: torch.Tensor, clusters: dict[Any, list[int]], std: bool, single_keeps: bool
) -> torch.Tensor:
    """Values less the mean of their cluster (over its deviation + 1e-6); alone: as it is, or 0."""
    out = torch.zeros(len(values))
    for members in clusters.values():
        taken = [values[row] for row in members]
        if len(taken) == 1:
            mean, deviation = torch.tensor(0.0) if single_keeps else taken[0], torch.tensor(1.0)
        else:
            mean, deviation = torch.mean(torch.stack(taken)), torch.std(torch.stack(taken))
        for row in members:
            out[row] = values[row] - mean
            if std:
                out[row] = out[row] / (deviation + 1e-6)
    return out


def as_objects(names: list[Any]) -> np.ndarray:
    """(N,) of objects: names as a trainer's batch carries them."""
    column = np.empty(len(names), dtype=object)
    column[:] = names
    return column
