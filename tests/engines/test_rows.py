"""Batches of one row a step, with the column names of verl-agent and ROLL."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rtmc
import rtmc.adapters.rows as credit
from rtmc.errors import EstimatorError, TableError


def objects(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


# Two rollouts of one task, one of another; the outcome is in the last step's reward.
BATCH = {
    "uid": objects(["a", "a", "a", "a", "a", "b"]),
    "traj_uid": objects(["1", "1", "2", "2", "2", "3"]),
    "anchor_obs": objects(["s", "sx", "s", "sx", "sxz", "t"]),
    "rewards": objects([0.0, 1.0, 0.0, 0.25, 0.0, 1.0]),
    "episode_rewards": objects([1.0, 1.0, 0.25, 0.25, 0.25, 1.0]),
    "active_masks": objects([True] * 6),
}
TEXTS = ["x", "y", "x", "z", "y", "p"]


def expected(method, **options):
    rows = [
        {"group": g, "rollout": r, "index": i, "state": s, "action": a, "reward": w, "outcome": o}
        for g, r, i, s, a, w, o in [
            ("a", 1, 0, "s", "x", 0.0, 1.0),
            ("a", 1, 1, "sx", "y", 0.0, 1.0),
            ("a", 2, 0, "s", "x", 0.0, 0.25),
            ("a", 2, 1, "sx", "z", 0.25, 0.25),
            ("a", 2, 2, "sxz", "y", -0.25, 0.25),
            ("b", 3, 0, "t", "p", 0.0, 1.0),
        ]
    ]
    return rtmc.advantages(rtmc.StepTable.from_rows(rows), method, **options)


@pytest.mark.parametrize("batch", [BATCH, SimpleNamespace(non_tensor_batch=BATCH)])
@pytest.mark.parametrize(("method", "options"), [("rtmc", {"gamma": 0.9}), ("grpo", {}), ("grpo_step", {"gamma": 0.5})])
def test_the_same_as_rows_by_hand(batch, method, options):
    assert torch.equal(credit.advantages(batch, method, action=TEXTS, **options), expected(method, **options))


@pytest.mark.parametrize("case", [0, 1])
def test_gigpo_gives_verl_agents_numbers(case, shared):
    found = json.loads((shared / "vectors" / "gigpo.json").read_text())["cases"][case]
    given = found["inputs"]
    lengths = [len(rewards) for rewards in given["rewards_by_traj"]]

    def spread(per_rollout):
        return objects([value for value, length in zip(per_rollout, lengths, strict=True) for _ in range(length)])

    batch = {
        "uid": spread(given["group_by_traj"]),
        "traj_uid": spread(list(range(len(lengths)))),
        "anchor_obs": objects([key for keys in given["obs_by_traj"] for key in keys]),
        "rewards": objects([reward for rewards in given["rewards_by_traj"] for reward in rewards]),
        "episode_rewards": spread([sum(rewards) for rewards in given["rewards_by_traj"]]),
        "active_masks": objects([True] * sum(lengths)),
    }
    advantage = credit.advantages(batch, "gigpo", gamma=given["gamma"], parity="verl_agent")
    wanted = torch.tensor(found["outputs"]["mean_norm_adv_per_row"])
    torch.testing.assert_close(advantage, wanted, rtol=1e-5, atol=1e-6)


def test_spread_over_the_mask():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0], [1, 0, 0]])
    per_token = credit.advantages(BATCH, "rtmc", action=TEXTS, mask=mask)
    assert torch.equal(per_token, expected("rtmc")[:, None] * mask)
    with pytest.raises(ValueError, match=r"`mask` must have shape \(6, T\), got \(2, 3\)"):
        credit.advantages(BATCH, "grpo", mask=mask[:2])


def test_rows_that_are_no_steps():
    batch = {name: objects([*values, values[-1]]) for name, values in BATCH.items()}
    batch["active_masks"][6] = False
    batch["episode_rewards"][6] = 99.0  # whatever an inactive row says
    found = credit.advantages(batch, "rtmc", action=[*TEXTS, "?"])
    assert torch.equal(found[:6], expected("rtmc"))
    assert found[6] == 0


def roll(order=(0, 1, 2, 3, 4, 5)):
    names = {"uid": "traj_group_id", "traj_uid": "traj_id", "anchor_obs": "state_hash", "rewards": "step_scores"}
    names["episode_rewards"] = "episode_scores"
    batch = {name: objects([BATCH[old][row] for row in order]) for old, name in names.items()}
    return batch | {"step": objects([[0, 1, 0, 1, 2, 0][row] for row in order])}


def test_any_order_and_copies_where_steps_are_numbered():
    order = [4, 0, 5, 3, 1, 2, 3, 0]  # interleaved, two rows copied to fill the batch
    texts = [TEXTS[row] for row in order]
    found = credit.advantages(roll(order), "rtmc", fields="roll", action=texts)
    assert torch.equal(found, expected("rtmc")[order])


def test_outcome_apart_from_the_rewards():
    names = credit.Fields("uid", "traj_uid", "anchor_obs", None, "rewards", "episode_rewards", outcome_in_rewards=False)
    batch = BATCH | {"rewards": objects([0.0, 0.0, 0.0, 0.25, -0.25, 0.0])}
    assert torch.equal(credit.advantages(batch, "rtmc", fields=names, action=TEXTS), expected("rtmc"))
    without = {name: values for name, values in BATCH.items() if name != "episode_rewards"}
    assert torch.equal(credit.advantages(without, "rtmc", action=TEXTS), expected("rtmc"))


def test_unknown_outcomes():
    batch = BATCH | {"episode_rewards": objects([None, None, 0.25, 0.25, 0.25, 1.0])}
    found = credit.advantages(batch, "rtmc", action=TEXTS)
    assert torch.isfinite(found).all()
    assert found[:2].tolist() == [0.0, 0.0]


def test_observations_of_every_kind_are_compared_by_content():
    seen = [
        {"image": np.zeros((2, 2)), "text": ["a"]},
        np.array([1.0, 2.0]),
        {"text": ["a"], "image": np.zeros((2, 2))},
        torch.tensor([1.0, 2.0], dtype=torch.float64),
        [1, [2]],
        np.array([1.0, 3.0]),
    ]
    batch = BATCH | {"anchor_obs": objects(seen)}
    assert torch.equal(credit.advantages(batch, "rtmc", action=TEXTS), expected("rtmc"))


@pytest.mark.parametrize(
    ("change", "keywords", "error", "text"),
    [
        ({}, {"fields": "verl_agnt"}, TableError, "did you mean `verl_agent`"),
        ({"uid": None}, {}, TableError, r"no column `uid` \(its columns: traj_uid"),
        ({"rewards": objects([0.0])}, {}, TableError, "column `rewards`: 1 values for 6 rows"),
        ({"rewards": objects(["x"] * 6)}, {}, TableError, "row 0, column `rewards`: got 'x'"),
        (
            {"episode_rewards": objects([1.0, 2.0, 0, 0, 0, 0])},
            {},
            TableError,
            "rows 0 and 1 of one rollout differ in column `episode_rewards`: 1.0 and 2.0",
        ),
        ({}, {}, EstimatorError, "needs the action key .* rollout '1' of group 'a', step 0 .*`action=`"),
        ({}, {"action": ["x"]}, TableError, "`action`: 1 values for 6 rows"),
    ],
)
def test_bad_batches(change, keywords, error, text):
    batch = {name: values for name, values in (BATCH | change).items() if values is not None}
    with pytest.raises(error, match=text):
        credit.advantages(batch, "rtmc", **keywords)


def test_ids_all_different():
    batch = BATCH | {"uid": objects(list("abcdef")), "traj_uid": objects(list("123456"))}
    batch["episode_rewards"] = batch["rewards"]
    with pytest.raises(EstimatorError, match="6 rollouts have 6 different group ids, though 8 rollouts a task"):
        credit.advantages(batch, "grpo", per_group=8)


def test_scores():
    value = [0.5, 0.75, 0.5, 0.25, 0.125, 0.5]
    found = credit.advantages(BATCH, "vineppo", scores={"value": value})
    # r + V(next) - V, the outcome with the last step: 0.75 - 0.5, 1 - 0.75, 0.25 - 0.5, 0.25 + 0.125 - 0.25, 0 - 0.125
    assert found.tolist() == [0.25, 0.25, -0.25, 0.125, -0.125, 0.5]


def test_the_lines_to_paste(paste):
    mask = torch.ones(6, 2)
    names = paste(credit, batch=BATCH, response_mask=mask, text_actions=TEXTS)
    assert torch.equal(names["per_token"], names["per_step"][:, None] * mask)
    assert torch.equal(names["from_texts"], expected("rtmc"))
    assert names["roll"] == credit.ROLL
