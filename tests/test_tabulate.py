"""tabulate: rollouts to the step table."""

import math
import weakref

import pytest
import torch

from rtmc import Ending, Rollout, RolloutError, SignatureError, Step, Stop, advantages, tabulate
from rtmc.signatures import get_signature


def step(state, action, **more):
    return Step(f"text of {state}", action, state_key=state, action_key=action, **more)


def test_columns():
    rollouts = [
        Rollout("t1", "a", [step("s0", "x", tokens=4), step("s1", "y", next_state_key="end")], reward=1.0),
        Rollout("t2", "a", [step("s0", "x", scores={"value": 0.5})], reward=0.0, truncated=True),
        Rollout("t1", "b", [], reward=0.0),
    ]
    table = tabulate(rollouts)
    assert table.group_names == ["t1", "t2"]
    assert table.rollout_names == ["a", "a", "b"]
    assert table.group.tolist() == [0, 1, 0]
    assert table.state_names == ["s0", "s1", "s0", "end"]
    assert table.state.tolist() == [0, 1, 2]
    assert table.next_state.tolist() == [1, 3, -1]
    assert table.index.tolist() == [0, 1, 0]
    assert table.tokens.tolist() == [4, 1, 1]
    assert table.outcome.tolist() == [1.0, 0.0, 0.0]
    assert table.ending.tolist() == [Ending.SUCCESS, Ending.TRUNCATED, Ending.FAILURE]
    assert table.scores["value"].tolist()[2] == 0.5
    assert table.dtype == torch.float32
    assert tabulate(rollouts, dtype=torch.float64).dtype == torch.float64


def test_step_rewards():
    steps = [
        step("s", "a", valid=True),
        step("s", "b", valid=False),
        step("s", "c"),
        step("s", "d", valid=True, validation=True),
        step("s", "e", validation=True, reward=0.25),
    ]
    rollout = Rollout("t", "r", steps, reward=1.0)
    table = tabulate([rollout], dtype=torch.float64)
    expected = [0.005, -0.005, 0.0, 0.055, 0.3]
    torch.testing.assert_close(table.reward, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    table = tabulate([rollout], valid_reward=1, invalid_reward=-2, validation_bonus=4)
    assert table.reward.tolist() == [1.0, -2.0, 0.0, 5.0, 4.25]
    assert tabulate([rollout], valid_reward=0, invalid_reward=0, validation_bonus=0).reward.tolist()[:4] == [0.0] * 4


def test_an_error_is_absent_unless_it_counts_as_failure():
    good = [Rollout("t", str(k), [step("s", "ab"[k])], reward=float(k)) for k in (0, 1)]
    broken = Rollout("t", "2", [step("s", "a")], reward=1.0, error="the engine died")
    stopped = Rollout("t", "3", [], stop=Stop.ERROR)
    table = tabulate([*good, broken, stopped])
    assert table.outcome.isnan().tolist() == [False, False, True, True]
    assert table.ending.tolist()[2:] == [Ending.TRUNCATED, Ending.TRUNCATED]
    for method in ("grpo", "rtmc", "grpo_step"):
        credit = advantages(table, method)
        assert credit[2] == 0
        assert torch.equal(credit[:2], advantages(tabulate(good), method))
    counted = tabulate([*good, broken, stopped], errors="failure")
    assert counted.outcome.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_no_reward_anywhere_is_unknown_not_zero():
    table = tabulate([Rollout("t", "r", [step("s", "a")])])
    assert math.isnan(table.outcome[0])


def test_nothing():
    assert len(tabulate([])) == 0
    assert tabulate([Rollout("t", "r", [], reward=1.0)]).n_rollouts == 1


def test_names_of_scores_must_not_be_columns():
    with pytest.raises(RolloutError, match="rollout 'r' of task 't', step 0: the score `reward`"):
        tabulate([Rollout("t", "r", [step("s", "a", scores={"reward": 1.0})])])


@pytest.mark.parametrize("name", ["valid_reward", "invalid_reward", "validation_bonus"])
def test_bad_numbers(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a finite number"):
        tabulate([], **{name: math.nan})


def test_bad_arguments():
    rollout = Rollout("t", "r", [step("s", "a")])
    with pytest.raises(RolloutError, match="rollout 'r' of task 't' comes twice"):
        tabulate([rollout, rollout])
    with pytest.raises(TypeError, match="Rollout objects"):
        tabulate([{}])
    with pytest.raises(ValueError, match="'absent' or 'failure'"):
        tabulate([], errors="skip")
    with pytest.raises(SignatureError, match="did you mean `env`"):
        tabulate([], signatures="enw")


class Checks:
    """A signature by the text, of which the action "test" checks the agent's own work."""

    def action(self, step):
        return step.action

    def state(self, rollout):
        return get_signature("text").state(rollout)

    def validates(self, action):
        return action == "test"


def test_the_signature_says_what_is_a_validation():
    steps = [
        Step("a", "test"),
        Step("b", "look"),
        Step("c", "look", validation=True),
        Step("d", "test", validation=True),
    ]
    table = tabulate([Rollout("t", "r", steps)], Checks(), dtype=torch.float64)
    assert table.reward.tolist() == [0.05, 0.0, 0.05, 0.05]
    assert tabulate([Rollout("t", "r", steps)], "text", dtype=torch.float64).reward.tolist() == [0.0, 0.0, 0.05, 0.05]


def test_signatures_chosen_for_each_rollout():
    env = [Rollout("e", str(k), [step("s", "x"), step("t", "y")], reward=float(k)) for k in (0, 1)]
    text = [Rollout("t", str(k), [Step("see", f"do {k}")], reward=float(k)) for k in (0, 1)]
    seen = []

    def choose(rollout):
        seen.append((rollout.task_id, rollout.rollout_id))
        return "env" if rollout.task_id == "e" else checks

    checks = Checks()
    table = tabulate([env[0], text[0], env[1], text[1]], choose)
    assert seen == [("e", "0"), ("t", "0"), ("e", "1"), ("t", "1")]
    assert [table.state_names[state] for state in table.state] == ["s", "t", "see", "s", "t", "see"]
    # Each task gets what it would get by itself.
    for rollouts, signature in ((env, "env"), (text, "text")):
        alone = advantages(tabulate(rollouts, signature), "rtmc")
        rows = [
            row
            for row, group in enumerate(table.group[table.rollout].tolist())
            if table.group_names[group] == rollouts[0].task_id
        ]
        assert torch.equal(advantages(table, "rtmc")[rows], alone)
    with pytest.raises(SignatureError, match="unknown signature"):
        tabulate(env, lambda rollout: "nothing")


def test_rollouts_may_come_one_after_the_other():
    alive = 0

    def stream():
        nonlocal alive
        for number in range(50):
            rollout = Rollout("t", str(number), [step("s", "x")], reward=0.0)
            weak.append(weakref.ref(rollout))
            yield rollout
            del rollout
            alive = max(alive, sum(ref() is not None for ref in weak))

    weak = []
    assert len(tabulate(stream())) == 50
    assert alive <= 2
