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
    if quick:
        candidates["reference"] = reference(ours)
    name = f"RTMC in time order, {groups:,} groups x {rollouts:,} x {steps} = {rows:,} rows"
    return Case(name, candidates, device, rows * 52, largest, 1e-5, rows=rows)
