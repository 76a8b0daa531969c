"""Tinker: the cookbook's own training data, with every transition's credit in it."""

import pytest
import torch

pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook: make test-engines")

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl import data_processing
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, TrajectoryGroup, Transition

import rtmc
import rtmc.adapters.tinker as credit
from rtmc.errors import EstimatorError


def transition(seen, said, reward=0.0, state=None, action=None, **metrics):
    return Transition(
        ob=tinker.ModelInput.from_ints(seen) if isinstance(seen, list) else seen,
        ac=TokensWithLogprobs(tokens=said, maybe_logprobs=[-1.0] * len(said)),
        reward=reward,
        episode_done=False,
        metrics=metrics,
        logs={"state_key": state, "action_key": action},
    )


def trajectory(*transitions):
    return Trajectory(transitions=list(transitions), final_ob=tinker.ModelInput.from_ints([]))


def groups():
    """Two tasks. The first rollout grows by appending, the second starts a new prompt at its third turn."""
    one = trajectory(
        transition([1, 2], [5, 6], state="s", action="x"),
        transition([1, 2, 5, 6, 9], [7], 1.0, state="sx", action="y"),
    )
    two = trajectory(
        transition([1, 2], [5, 6], state="s", action="x"),
        transition([1, 2, 5, 6, 9], [8, 8], 0.25, state="sx", action="z"),
        transition([3, 3, 3], [7, 4], 0.0, state="sxz", action="y"),
    )
    three = trajectory(transition([4], [10], 1.0, state="t", action="p"))
    four = trajectory(transition([4], [11, 12], 0.0, state="t", action="q"))
    return [TrajectoryGroup([one, two], [0.0, 0.0], [{}, {}]), TrajectoryGroup([three, four], [0.5, 0.0], [{}, {}])]


def keys(trajectory, index, transition):
    return {"state": transition.logs["state_key"], "action": transition.logs["action_key"]}


def expected(method, found, **options):
    """The same by rows written down: the outcome is the sum of all rewards, and taken out of the last step's."""
    rows = []
    for g, group in enumerate(found):
        for r, (one, final) in enumerate(zip(group.trajectories_G, group.final_rewards_G, strict=True)):
            total = final + sum(turn.reward for turn in one.transitions)
            for i, turn in enumerate(one.transitions):
                last = i == len(one.transitions) - 1
                rows.append(
                    {
                        **keys(one, i, turn),
                        "reward": turn.reward + (final - total if last else 0.0),
                        **{"group": g, "rollout": r, "index": i, "outcome": total},
                    }
                )
    taken = iter(rtmc.advantages(rtmc.StepTable.from_rows(rows), method, **options).tolist())
    return [[[next(taken) for _ in one.transitions] for one in group.trajectories_G] for group in found]


def test_every_transition_has_its_own_credit():
    found = groups()
    wanted = expected("rtmc", found, gamma=0.9)
    assert credit.transition_advantages(found, "rtmc", keys=keys, gamma=0.9) == wanted
    data, where = credit.assemble_training_data(found, "rtmc", keys=keys, gamma=0.9)
    assert [(place["group_idx"], place["traj_idx"]) for place in where] == [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1)]
    advantages = [datum.loss_fn_inputs["advantages"].to_torch().tolist() for datum in data]
    a, b = wanted[0]
    # Targets stand one place to the left of the tokens.
    assert advantages[0] == [0, a[0], a[0], 0, a[1]]
    assert advantages[1] == [0, b[0], b[0], 0, b[1], b[1]]
    assert advantages[2] == [0, 0, b[2], b[2]]
    assert advantages[3:] == [[wanted[1][0][0]], [wanted[1][1][0]] * 2]


def test_one_number_a_trajectory_gives_the_cookbooks_data():
    found = groups()
    data, where = credit.assemble_training_data(found, "dr_grpo")
    own, own_where = data_processing.assemble_training_data(found, data_processing.compute_advantages(found))
    assert where == own_where
    for datum, other in zip(data, own, strict=True):
        assert datum.model_input == other.model_input
        for name in ("target_tokens", "logprobs", "mask", "advantages"):
            torch.testing.assert_close(
                datum.loss_fn_inputs[name].to_torch(), other.loss_fn_inputs[name].to_torch(), check_dtype=False
            )


def test_keys_are_the_tokens_where_none_are_given():
    found = groups()
    tokens = credit.transition_advantages(found, "rtmc", prior_visits=0)
    named = credit.transition_advantages(found, "rtmc", keys=keys, prior_visits=0)
    # Here the tokens tell the same states apart as the names do.
    assert tokens == named


def test_the_outcome_is_the_sum_or_the_final_reward():
    found = groups()
    total = credit.transition_advantages(found, "dr_grpo")
    final = credit.transition_advantages(found, "dr_grpo", outcome="final")
    assert total[0][0] == [0.375, 0.375]
    assert total[1] == [[0.75], [-0.75]]
    assert final[0] == [[0.0, 0.0], [0.0, 0.0, 0.0]]
    assert final[1] == [[0.25], [-0.25]]
    # Returns are the same either way: only what counts as outcome differs.
    step = [credit.transition_advantages(found, "grpo_step", outcome=how) for how in ("total", "final")]
    assert step[0] == step[1]
    with pytest.raises(EstimatorError, match="'total' or 'final'"):
        credit.transition_advantages(found, "grpo", outcome="sum")


def test_masked_transitions_stay_masked():
    found = groups()
    first = found[0].trajectories_G[0].transitions[0]
    first.metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
    data, _ = credit.assemble_training_data(found, "rtmc", keys=keys)
    advantages = data[0].loss_fn_inputs["advantages"].to_torch()
    assert advantages[1:3].tolist() == [0, 0]
    assert advantages[4] == expected("rtmc", found)[0][0][1]


def test_images_and_rollouts_without_a_turn():
    picture = tinker.types.ImageChunk(data=b"x", format="png", expected_tokens=3)
    seen = tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=[1]), picture])
    more = tinker.ModelInput(chunks=[*seen.chunks, tinker.EncodedTextChunk(tokens=[7, 2])])
    turns = [transition(seen, [7], state="s", action="a"), transition(more, [8, 8], 1.0, state="t", action="b")]
    found = [TrajectoryGroup([trajectory(*turns), trajectory()], [0.0, 0.0], [{}, {}])]
    data, where = credit.assemble_training_data(found, "dr_grpo", keys=keys)
    assert len(data) == len(where) == 1
    # text, three places of the picture, the token 7, 2, then 8 8; the first of them is no target.
    assert data[0].loss_fn_inputs["advantages"].to_torch().tolist() == [0, 0, 0, 0.5, 0, 0.5, 0.5]


def test_missing_keys_are_named():
    with pytest.raises(EstimatorError, match=r"needs the action key .* group 0, trajectory 0, step 0 .*`keys=`"):
        credit.transition_advantages(groups(), "rtmc", keys=lambda one, index, turn: {"state": 0})


def test_the_lines_to_paste(paste, capsys):
    names = paste(credit, groups=groups())
    assert len(names["data"]) == 5
    assert str(names["data"][0].loss_fn_inputs["advantages"].to_torch()) in capsys.readouterr().out
