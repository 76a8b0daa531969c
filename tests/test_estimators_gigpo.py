"""gigpo against verl-agent's numbers, a plain dictionary of lists, and hand-worked groups."""

import random
import statistics

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from tests.estimator_cases import vector_cases


def of_paths(rewards, states, groups, outcomes=None, dtype=torch.float64):
    rows = [
        {"group": g, "rollout": r, "index": t, "state": s, "action": "a", "reward": w}
        | ({} if outcomes is None else {"outcome": outcomes[r]})
        for r, (of_rollout, path, g) in enumerate(zip(rewards, states, groups, strict=True))
        for t, (w, s) in enumerate(zip(of_rollout, path, strict=True))
    ]
    return StepTable.from_rows(rows, dtype=dtype)


@pytest.mark.parametrize("as_outcome", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verl_agent_vectors(dtype, as_outcome, shared):
    """The last reward of a rollout may be given as a step reward or as the outcome."""
    for given, wanted in vector_cases(shared, "gigpo"):
        rewards, outcomes = given["rewards_by_traj"], None
        if as_outcome:
            outcomes = [path[-1] for path in rewards]
            rewards = [[*path[:-1], 0.0] for path in rewards]
        table = of_paths(rewards, given["obs_by_traj"], given["group_by_traj"], outcomes, dtype)
        for mode, std in (("mean_norm", False), ("mean_std_norm", True)):
            options = {"gamma": given["gamma"], "std": std, "parity": "verl_agent"}
            found = rtmc.estimate(table, "gigpo", **options)
            over_rollouts = rtmc.estimate(table, "gigpo", cross_steps=False, **options)
            for column, name in [
                (found.returns, "step_returns"),
                (found.advantage, f"{mode}_adv_per_row"),
                (found.parts["episode"], f"{mode}_episode_cross_steps_True"),
                (over_rollouts.parts["episode"], f"{mode}_episode_cross_steps_False"),
            ]:
                torch.testing.assert_close(column, torch.tensor(wanted[name], dtype=dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parity", [None, "verl_agent"])
def test_similar_states(parity, shared):
    for given, wanted in vector_cases(shared, "gigpo_similarity"):
        texts, threshold = given["obs"], given["threshold"]
        outcomes = [2.0**k for k in range(len(texts))]
        table = of_paths([[0.0]] * len(texts), [[text] for text in texts], [0] * len(texts), outcomes)
        found = rtmc.estimate(table, "gigpo", similarity=threshold, parity=parity)
        labels = wanted["cluster_labels_by_first_appearance"]
        members = [[o for o, other in zip(outcomes, labels, strict=True) if other == label] for label in labels]
        # A mean of different powers of two tells which of them were averaged.
        assert found.v.tolist() == pytest.approx([statistics.fmean(some) for some in members], abs=1e-12)
        assert found.visits.tolist() == [len(some) for some in members]


def test_similarity_looks_at_its_own_task_and_at_known_rollouts():
    texts = ["a long text, read 1", "a long text, read 2", "a long text, read 3"]
    table = of_paths([[0.0]] * 3, [[t] for t in texts], ["x", "y", "x"], [float("nan"), 1.0, 3.0])
    assert rtmc.estimate(table, "gigpo", similarity=0.9).visits.tolist() == [0, 1, 1]
    table = of_paths([[0.0]] * 3, [[t] for t in texts], ["x", "x", "x"], [5.0, 1.0, 3.0])
    assert rtmc.estimate(table, "gigpo", similarity=0.9).visits.tolist() == [3, 3, 3]
    assert rtmc.estimate(table, "gigpo", similarity=1.0).visits.tolist() == [1, 1, 1]


def test_similarity_needs_texts():
    table = of_paths([[0.0]], [[("a", 1)]], [0])
    with pytest.raises(EstimatorError, match=r"the state \('a', 1\) is a tuple"):
        rtmc.estimate(table, "gigpo", similarity=0.9)
    table.state_names = None
    with pytest.raises(EstimatorError, match="names of states, which this table lacks"):
        rtmc.estimate(table, "gigpo", similarity=0.9)
    for bad in (1.5, True, "0.9"):
        with pytest.raises(EstimatorError, match="`similarity` must be None or a number"):
            rtmc.estimate(table, "gigpo", similarity=bad)


@pytest.mark.parametrize("std", [False, True])
def test_against_a_dictionary(std):
    rng = random.Random(3)
    states = [[rng.randrange(3) for _ in range(rng.randrange(1, 6))] for _ in range(10)]
    rewards = [[rng.gauss(0, 0.2) for _ in path] for path in states]
    outcomes = [rng.choice([0.0, 1.0]) for _ in states]
    groups = [k % 2 for k in range(10)]
    found = rtmc.estimate(of_paths(rewards, states, groups, outcomes), "gigpo", gamma=0.9, std=std, step_weight=0.5)

    def relative(value, others):
        spread = statistics.stdev(others) + 1e-6 if std and len(others) > 1 else 1.0
        return (value - statistics.fmean(others)) / spread

    totals = {g: [] for g in (0, 1)}
    cells, returns = {}, []
    for path, of_rollout, outcome, g in zip(states, rewards, outcomes, groups, strict=True):
        totals[g].append(sum(of_rollout) + outcome)
        tail = [of_rollout[-1] + outcome]
        for reward in of_rollout[-2::-1]:
            tail.append(reward + 0.9 * tail[-1])
        for state, value in zip(path, tail[::-1], strict=True):
            returns.append((g, state, value, totals[g][-1]))
            cells.setdefault((g, state), []).append(value)
    expected = [relative(own, totals[g]) + 0.5 * relative(G, cells[g, s]) for g, s, G, own in returns]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.visits.tolist() == [len(cells[g, s]) for g, s, _, _ in returns]


def test_one_rollout_and_states_seen_once():
    table = of_paths([[0.0, 0.0]], [["s", "t"]], [0], [1.0])
    assert rtmc.advantages(table, "gigpo").tolist() == [0.0, 0.0]
    # Revisited within the rollout, a state compares its two returns, 0.5 and 1.
    table = of_paths([[0.0, 0.0]], [["s", "s"]], [0], [1.0])
    assert rtmc.advantages(table, "gigpo", gamma=0.5).tolist() == [-0.25, 0.25]


def test_without_step_term_it_is_the_centred_outcome():
    table = of_paths([[0.0] * 2, [0.0], [0.0] * 3], [["s", "t"], ["s"], ["s", "t", "u"]], [0] * 3, [1.0, 0.0, 0.0])
    torch.testing.assert_close(
        rtmc.advantages(table, "gigpo", step_weight=0.0), rtmc.advantages(table, "dr_grpo"), rtol=0, atol=0
    )
    torch.testing.assert_close(
        rtmc.advantages(table, "gigpo", step_weight=0.0, std=True), rtmc.advantages(table, "grpo"), rtol=0, atol=0
    )
