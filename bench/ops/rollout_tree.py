"""`rollout_tree_advantages` on rows in time order beside the same in numpy; what a row costs at ten million of them.

The cost a row should hardly depend on the size, because groups are done one after the other and the table of one fits
the cache; 64 huge groups show what it costs where it does not. The same through the estimator, rows in any order:
../bench_credit.py.
"""

from collections.abc import Iterator

import torch
from measure import Case
from peers import largest, reference
from step_credit import rtmc_in_numpy, steps_of_groups

from rtmc.kernels.rollout_tree import rollout_tree_advantages


def cases(quick: bool, device: str) -> Iterator[Case]:
    sizes = [(64, 8)] if quick else [(64, 8), (25_000, 8), (64, 3_125)]
    for groups, rollouts in sizes:
        yield case_of(groups, rollouts, quick, device)


def in_torch(
    reward: torch.Tensor,
    outcome: torch.Tensor,
    group: torch.Tensor,
    state: torch.Tensor,
    action: torch.Tensor,
    gamma: float,
    prior_visits: float,
) -> torch.Tensor:
    """The same with torch's functions, for rollouts of one length; index_add is not repeatable on CUDA."""
    rollouts, rows = outcome.shape[0], reward.shape[0]
    padded = reward.double().view(rollouts, -1)
    running = torch.zeros_like(outcome, dtype=torch.float64)
    columns = []
    for t in range(padded.shape[1] - 1, -1, -1):
        running = padded[:, t] + (gamma * running if columns else outcome.double())
        columns.append(running)
    returns = torch.stack(columns[::-1], 1).view(-1)
    rollout = torch.arange(rollouts, device=reward.device).repeat_interleave(rows // rollouts)
    _, states = torch.unique(state, return_inverse=True)  # ids of different groups differ
    _, pairs = torch.unique(states * (action.max() + 1) + action, return_inverse=True)
    key, order = torch.sort(rollout * (pairs.max() + 1) + pairs, stable=True)
    head = torch.ones(rows, dtype=torch.float64, device=reward.device)
    head[1:] = (key[1:] != key[:-1]).double()
    first = torch.empty_like(head).scatter_(0, order, head)

    def sums(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(rows).index_add_(0, ids, values)

    one = torch.ones_like(outcome, dtype=torch.float64)
    prior = sums(outcome.double(), group) / sums(one, group)
    q = sums(returns * first, pairs)[pairs] / sums(first, pairs)[pairs]
    n, w = sums(first, states)[states], sums(returns * first, states)[states]
    return q - (w + prior_visits * prior[group][rollout]) / (n + prior_visits)


def case_of(groups: int, rollouts: int, quick: bool, device: str) -> Case:
    steps = 50
    rows = groups * rollouts * steps
    made = steps_of_groups(groups, rollouts, steps, shuffled=False, dtype=torch.float32)
    offsets = torch.arange(0, rows + 1, steps)
    columns = [made["reward"], made["outcome"], offsets, made["group"], made["state"], made["action"]]
    columns = [column.to(device) for column in columns]

    def ours():
        return rollout_tree_advantages(*columns, gamma=0.99, prior_visits=2.0, prior="success_rate").advantage

    candidates = {"rollout_tree_advantages": ours}
    if rows <= 100_000:
        arrays = {name: column.numpy() for name, column in made.items()}
        candidates["numpy: unique, bincount, lexsort"] = lambda: torch.from_numpy(rtmc_in_numpy(arrays, 0.99, 2.0)).to(
            device
        )
        candidates["torch: unique, index_add"] = lambda: in_torch(*columns[:2], *columns[3:], 0.99, 2.0)
    if quick:
        candidates["reference"] = reference(ours)
    name = f"RTMC in time order, {groups:,} groups x {rollouts:,} x {steps} = {rows:,} rows"
    return Case(name, candidates, device, rows * 52, largest, 1e-5, rows=rows)
