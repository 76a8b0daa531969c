"""Estimators beside the engines' own, time and peak memory, on what an engine's batch holds.

GRPO: 1,024 rollouts of 128 tasks, 1,024 tokens a rollout, in steps of 64 tokens of which 48 are the policy's. Every
candidate goes from rewards and names of groups to (B, T) advantages; ours pays for numbering the names, for a new step
table with its checks, and for the broadcast to tokens. Peers: verl's loop over a dictionary and its vectorised form,
written plainly (engine_estimators.py), and verl itself where it is installed.

GiGPO: its authors' pass, row by row, on 25,600 steps of 64 x 8 x 50; ours with a new table, and with ``similarity`` off
on both sides.

Every method, alone: 25,600 steps, no peer; methods for trees get rollouts of which every second branches off half-way.
"""

from collections.abc import Iterator

import numpy as np
import torch
from engine_estimators import grpo_loop, grpo_vectorised, real_verl
from measure import Case
from peers import largest
from step_credit import as_objects, gigpo_row_by_row, steps_of_groups

import rtmc
from rtmc.kernels.broadcast import broadcast_to_tokens

TESTS = ["tests/test_estimators_grpo.py", "tests/test_estimators_gigpo.py", "tests/test_steptable.py"]
_STEP, _POLICY = 64, 48


def cases(quick: bool) -> Iterator[Case]:
    yield grpo_case(quick)
    yield gigpo_case(quick)
    yield from method_cases(quick)


def grpo_case(quick: bool) -> Case:
    rollouts, tokens = (256, 512) if quick else (1024, 1024)
    g = torch.Generator().manual_seed(0)
    steps = tokens // _STEP
    place = torch.arange(tokens)
    policy = place % _STEP < _POLICY
    mask = policy.float().expand(rollouts, tokens).contiguous()
    token_reward = torch.zeros(rollouts, tokens)
    outcome = torch.randint(0, 3, (rollouts,), generator=g).float() / 2
    token_reward[:, _POLICY - 1 - _STEP] = outcome  # the last token of the policy
    uid = as_objects([f"task {row // 8}" for row in torch.randperm(rollouts, generator=g).tolist()])
    step_of_token = torch.where(policy, place // _STEP + steps * torch.arange(rollouts)[:, None], -1)

    def ours() -> torch.Tensor:
        scores = token_reward.sum(dim=-1)
        group = torch.from_numpy(np.unique(uid, return_inverse=True)[1])
        rollout = torch.arange(rollouts).repeat_interleave(steps)
        nothing = torch.zeros_like(rollout)
        # GRPO looks at no state; one a group says so, ids of different groups being different.
        state = group[rollout]
        table = rtmc.StepTable(
            rollout=rollout,
            index=torch.arange(steps).repeat(rollouts),
            state=state,
            action=state,
            next_state=nothing - 1,
            reward=nothing.float(),
            tokens=nothing + _POLICY,
            group=group,
            outcome=scores,
            ending=(scores > 0).to(torch.int8),
        )
        return broadcast_to_tokens(rtmc.advantages(table, "grpo", parity="verl"), step_of_token)

    peers = {"verl's loop": grpo_loop, "verl's vectorised form": grpo_vectorised, **real_verl()}
    candidates = {"rtmc grpo, from uids to tokens": ours}
    candidates |= {name: (lambda peer=peer: peer(token_reward, mask, uid)) for name, peer in peers.items()}
    label = f"GRPO, {rollouts:,} rollouts of {tokens:,} tokens"
    return Case(label, candidates, agree=largest, bound=1e-5, rows=rollouts * steps, memory=True)


def gigpo_case(quick: bool) -> Case:
    groups = 8 if quick else 64
    columns = steps_of_groups(groups, 8, 50, shuffled=False, dtype=torch.float32)
    rollout, outcome = columns["rollout"], columns["outcome"]
    total = torch.zeros_like(outcome).index_add_(0, rollout, columns["reward"]) + outcome
    last = columns["index"] == 49
    batch = {
        "reward": columns["reward"] + torch.where(last, outcome[rollout], 0.0),
        "episode_return": total[rollout],
        "group": as_objects([f"task {g}" for g in columns["group"][rollout].tolist()]),
        "observation": as_objects([f"observation {s}" for s in columns["state"].tolist()]),
        "rollout": as_objects([f"rollout {r}" for r in rollout.tolist()]),
    }
    candidates = {
        "rtmc gigpo, a new table": lambda: rtmc.advantages(rtmc.StepTable(**columns), "gigpo", parity="verl_agent"),
        "GiGPO's pass, row by row": lambda: gigpo_row_by_row(batch, 0.95),
    }
    rows = len(rollout)
    return Case(f"GiGPO, {rows:,} steps", candidates, agree=largest, bound=1e-4, rows=rows, memory=True)


def method_cases(quick: bool) -> Iterator[Case]:
    columns = steps_of_groups(8 if quick else 64, 8, 50, shuffled=False, dtype=torch.float32)
    rows = len(columns["rollout"])
    g = torch.Generator().manual_seed(1)
    for info in rtmc.estimators():
        known = set(columns) | {"parent"}
        scores = {name: torch.rand(rows, generator=g) * 0.9 + 0.05 for name in info.needs if name not in known}
        given = _branching(columns) if "parent" in info.needs else columns

        def ours(name=info.name, given=given, scores=scores):
            return rtmc.advantages(rtmc.StepTable(**given, scores=scores), name)

        yield Case(f"{info.name}, {rows:,} steps", {"rtmc, a new table": ours}, rows=rows, memory=True)


def _branching(columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same rows as trees: every second rollout goes on from the middle of the one before it."""
    row = torch.arange(len(columns["rollout"]))
    branch = columns["rollout"] % 2 == 1
    parent = torch.where(columns["index"] == 0, -1, row - 1)
    parent = torch.where(branch & (columns["index"] == 0), row - 50 + 24, parent)
    return {**columns, "index": columns["index"] + 25 * branch, "parent": parent}
