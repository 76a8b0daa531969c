"""igpo and igrpo against the two repositories' numbers and hand-worked turns and trees."""

import math
import statistics

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases


def of_scores(scores, outcomes, dtype=torch.float64, **more):
    rows = [
        {"group": 0, "rollout": r, "index": t, "state": "s", "action": "a", "outcome": outcomes[r], "answer_score": p}
        | {name: column[r][t] for name, column in more.items()}
        for r, own in enumerate(scores)
        for t, p in enumerate(own)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("mode", ["prob", "reward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verl_agent_port_vectors(dtype, mode, shared):
    for given, wanted in vector_cases(shared, "igpo_verl_agent_port"):
        rows, reached = [], {}
        for reward, rollout, index, last in zip(
            given["step_rewards"], given["traj"], given["step"], given["is_terminal"], strict=True
        ):
            reached[rollout] = reached.get(rollout, 0.0) + reward
            row = {"group": given["group"], "rollout": rollout, "index": index, "state": "s", "action": "a"}
            row["answer_score"] = reward if mode == "reward" else reached[rollout]
            rows.append(row | ({"outcome": reward} if last else {}))
        table = StepTable.from_rows(rows, dtype=dtype)
        found = rtmc.advantages(table, "igpo", gamma=given["gamma"], reward_mode=mode, parity="verl_agent")
        torch.testing.assert_close(found, torch.tensor(wanted["adv_per_row"], dtype=dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_original_repository_vectors(dtype, padded, shared):
    """Rows of a batch are padded to one length; a table need not hold the padding."""
    for given, wanted in vector_cases(shared, "igpo_original_repo"):
        rows, kept = [], []
        for r, (rewards, mask) in enumerate(zip(given["token_level_rewards"], given["mask"], strict=True)):
            last = max(t for t, m in enumerate(mask) if m)
            for t, (reward, m) in enumerate(zip(rewards, mask, strict=True)):
                if padded or t <= last:
                    kept.append((r, t))
                    row = {"group": given["group"][r], "rollout": r, "index": t, "state": "s", "action": "a"}
                    row |= {"tokens": int(m), "answer_score": reward, "outcome": rewards[last]}
                    rows.append(row)
        table = StepTable.from_rows(rows, dtype=dtype)
        for norm, gamma, names in [
            ("original", 1.0, ("active_grpo_branch_adv", "active_returns")),
            ("original_discounted", 0.5, ("compute_grpo_discounted_advantage_gamma0.5", "discounted_returns")),
        ]:
            found = rtmc.estimate(table, "igpo", norm=norm, gamma=gamma, reward_mode="reward")
            for column, name in zip((found.advantage, found.returns), names, strict=True):
                expected = torch.tensor([wanted[name][r][t] for r, t in kept], dtype=dtype)
                torch.testing.assert_close(column, expected, rtol=1e-5, atol=1e-6)


def test_turns_by_hand():
    scores, root = [[0.3, 0.6, 0.9], [0.2, 0.1]], [[0.1] * 3, [0.1] * 2]
    table = of_scores(scores, [1.0, 0.0], root_score=root)
    found = rtmc.estimate(table, "igpo", gamma=0.5)
    inner = [0.2, 0.3, 0.1]  # gains before the last turn: two of the first rollout, one of the second
    z = [(x - statistics.fmean(inner)) / (statistics.stdev(inner) + 1e-6) for x in inner]
    end = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert found.parts["turn"].tolist() == pytest.approx([z[0], z[1], end, z[2], -end])
    expected = [z[0] + 0.5 * (z[1] + 0.5 * end), z[1] + 0.5 * end, end, z[2] - 0.5 * end, -end]
    assert found.advantage.tolist() == pytest.approx(expected)
    assert found.returns.tolist() == pytest.approx([0.2 + 0.5 * (0.3 + 0.5), 0.8, 1.0, 0.1, 0.0])
    joint = [0.2, 0.3, 1.0, 0.1, 0.0]
    z = [(x - statistics.fmean(joint)) / (statistics.stdev(joint) + 1e-6) for x in joint]
    assert rtmc.estimate(table, "igpo", norm="joint").parts["turn"].tolist() == pytest.approx(z)


def test_what_is_read_of_scores():
    scores = [[0.3, 0.6, math.nan], [0.2, math.nan]]  # the last turn's is not read
    bare = rtmc.estimate(of_scores(scores, [1.0, 0.0]), "igpo", norm="original")
    assert bare.returns.tolist() == pytest.approx([1.6, 1.3, 1.0, 0.2, 0.0])  # nothing before the first turn: 0
    with pytest.raises(EstimatorError, match="`root_score` before the first turn, must be above 0"):
        rtmc.estimate(of_scores(scores, [1.0, 0.0]), "igpo", reward_mode="logprob")
    root = [[0.1] * 3, [0.1] * 2]
    found = rtmc.estimate(
        of_scores(scores, [1.0, 0.0], root_score=root), "igpo", reward_mode="logprob", norm="original"
    )
    assert found.parts["turn"].tolist() == pytest.approx([math.log(3), math.log(2), 1.0, math.log(2), 0.0])
    scores[0][1] = math.nan
    with pytest.raises(EstimatorError, match="`answer_score` is nan at step 1 of rollout 0"):
        rtmc.estimate(of_scores(scores, [1.0, 0.0]), "igpo")


def test_masked_rows_are_no_turns():
    scores = [[0.3, 9.0, 0.6, 0.9, 9.0], [0.2, 0.1]]
    tokens = [[1, 0, 1, 1, 0], [1, 1]]
    masked = rtmc.advantages(of_scores(scores, [1.0, 0.0], tokens=tokens), "igpo").tolist()
    plain = rtmc.advantages(of_scores([[0.3, 0.6, 0.9], [0.2, 0.1]], [1.0, 0.0]), "igpo").tolist()
    assert masked == [plain[0], 0.0, plain[1], plain[2], 0.0, *plain[3:]]


def test_one_turn_and_one_rollout():
    assert rtmc.advantages(of_scores([[0.5, 0.5]], [1.0]), "igpo").tolist() == [0.0, 0.0]
    raw = rtmc.advantages(of_scores([[0.5, 0.5]], [1.0]), "igpo", parity="verl_agent")
    assert raw.tolist() == pytest.approx([1.5, 1.0], abs=2e-6)
    # In the other rollout's absence there is one gain, and nothing to compare it with.
    two = rtmc.estimate(of_scores([[0.5, 0.5], [0.1]], [1.0, 0.0]), "igpo")
    assert two.parts["turn"].tolist()[0] == 0.0


def tree(outcomes, endings=("failure",) * 4, scores=(0.5,) * 6, dtype=torch.float64):
    """prompt -> a -> {l1, l2}, prompt -> b -> l3, prompt -> l4."""
    spec = [("a", 0, 0, -1), ("l1", 0, 1, 0), ("l2", 1, 1, 0), ("b", 2, 0, -1), ("l3", 2, 1, 3), ("l4", 3, 0, -1)]
    rows = [
        {"group": 0, "rollout": r, "index": i, "state": f"before {name}", "action": name, "parent": p}
        | {"outcome": outcomes[r], "ending": endings[r], "answer_score": score}
        for (name, r, i, p), score in zip(spec, scores, strict=True)
    ]
    return StepTable.from_rows(rows, dtype=dtype)


def z_scores(values):
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(value - mean) / (std + 1e-6) for value in values]


def test_igrpo_writes_out_every_path():
    found = rtmc.estimate(tree([1.0, 0.0, 0.0, 1.0]), "igrpo")
    a1, l1, a2, l2, b, l3, l4 = z_scores([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    assert found.advantage.tolist() == pytest.approx([(a1 + a2) / 2, l1, l2, b, l3, l4])
    assert found.returns.tolist() == [0.5, 1.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("mode", "shared_reward"), [("avg", 0.5), ("max", 1.0)])
def test_igrpo_on_nodes(mode, shared_reward):
    found = rtmc.estimate(tree([1.0, 0.0, 0.0, 1.0]), "igrpo", reward_mode=mode)
    rewards = [shared_reward, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert found.returns.tolist() == rewards
    assert found.advantage.tolist() == pytest.approx(z_scores(rewards))
    discounted = rtmc.estimate(tree([1.0, 0.0, 0.0, 1.0]), "igrpo", reward_mode=mode, gamma=0.5)
    assert discounted.returns.tolist() == [shared_reward / 2, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_igrpo_modes_agree_on_chains():
    table = of_scores([[0.5] * 3, [0.5], [0.5] * 2], [1.0, 0.0, 0.0])
    found = [rtmc.advantages(table, "igrpo", reward_mode=mode) for mode in ("full", "avg", "max")]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert found[0].tolist() == pytest.approx(z_scores([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize(("premature", "reward"), [("score", 0.6), ("half", 0.3), ("threshold", 1.0)])
def test_igrpo_rewards_a_cut_leaf_by_its_score(premature, reward):
    cut = tree(
        [1.0, math.nan, 0.0, 0.0], ("success", "truncated", "failure", "failure"), (0.5, 0.5, 0.6, 0.5, 0.5, 0.5)
    )
    whole = tree([1.0, reward, 0.0, 0.0])
    found = rtmc.advantages(cut, "igrpo", premature=premature)
    torch.testing.assert_close(found, rtmc.advantages(whole, "igrpo"), rtol=0, atol=1e-15)
    absent = rtmc.advantages(cut, "igrpo").tolist()
    assert absent[2] == 0.0
    one, _, b, l3, l4 = z_scores([1.0, 1.0, 0.0, 0.0, 0.0])
    assert absent == pytest.approx([one, one, 0.0, b, l3, l4])
    missing = tree([1.0, math.nan, 0.0, 0.0], ("success", "truncated", "failure", "failure"), (math.nan,) * 6)
    with pytest.raises(EstimatorError, match="that of rollout 1 is not finite"):
        rtmc.estimate(missing, "igrpo", premature=premature)


def test_igrpo_single_row():
    table = of_scores([[0.5]], [0.7])
    assert rtmc.advantages(table, "igrpo").tolist() == [0.0]
    assert rtmc.advantages(table, "igrpo", parity="verl_agent").tolist() == pytest.approx([0.7], abs=1e-6)
