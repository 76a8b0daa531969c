"""Signatures by name, the built-in ones, and a user's own."""

import pytest

from rtmc import Rollout, SignatureError, Step, register_signature, tabulate
from rtmc.signatures import get_signature, signature_names


def keys(signature, rollout):
    """State keys before each step and after the last, and action keys."""
    found = get_signature(signature)
    state = found.state(rollout)
    states = [state.key()] if rollout.steps else []
    for step in rollout.steps:
        state.update(step)
        states.append(state.key())
    return states, [found.action(step) for step in rollout.steps]


def test_text_takes_what_was_read_and_written():
    rollout = Rollout("t", "r", [Step("room\n", "  go north \n"), Step("hall", "look", answer="a hall")])
    assert keys("text", rollout) == (["room\n", "hall", "a hall"], ["go north", "look"])


def test_text_of_tool_calls_ignores_ids_and_spelling():
    def step(call_id, arguments):
        return Step("q", " ", tool_calls=[{"id": call_id, "function": {"name": "search", "arguments": arguments}}])

    same = [step("1", '{"a": 1, "b": [2]}'), step("2", '{"b":[2],"a":1}'), step("3", {"b": [2], "a": 1})]
    found = {get_signature("text").action(s) for s in same}
    assert found == {'search({"a": 1, "b": [2]})'}
    assert get_signature("text").action(step("1", "not json")) == "search(not json)"
    assert get_signature("text").action(step("1", '{"a": 2}')) not in found


def test_text_of_no_steps():
    assert get_signature("text").state(Rollout("t", "r", [])).key() is None


def test_env_takes_the_environments_keys():
    steps = [Step("", "x", "s0", "a0", "s1"), Step("", "y", "s1", "a1", "end")]
    assert keys("env", Rollout("t", "r", steps)) == (["s0", "s1", "end"], ["a0", "a1"])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Step("", "x", "s0", "a0"), Step("", "y", None, "a1")], "rollout 'r' of task 't', step 1: no `state_key`"),
        ([Step("", "x", "s0", None)], "step 0: no `action_key`"),
        ([Step("", "x", "s0", "a0", "s1"), Step("", "y", "s2", "a1")], "step 1: `state_key` is 's2'.*'s1'"),
    ],
)
def test_env_names_the_step_without_a_key(steps, message):
    with pytest.raises(SignatureError, match=message):
        tabulate([Rollout("t", "r", steps, reward=1.0)])


def test_unknown_names_and_things():
    with pytest.raises(SignatureError, match="unknown signature 'txt'; did you mean `text`"):
        get_signature("txt")
    with pytest.raises(TypeError, match="`action` and `state`"):
        get_signature(object())
    assert {"env", "text"} <= set(signature_names())


class CountSignature:
    """State = how many steps were taken; action = its length."""

    def action(self, step):
        return str(len(step.action))

    def state(self, rollout):
        return CountState()


class CountState:
    def __init__(self):
        self.steps = 0

    def key(self):
        return f"after {self.steps}"

    def update(self, step):
        self.steps += 1


def test_a_users_own_signature():
    register_signature("count-of-steps", CountSignature)
    rollout = Rollout("t", "r", [Step("", "x"), Step("", "yy")], reward=1.0)
    for signature in ("count-of-steps", CountSignature()):
        table = tabulate([rollout], signatures=signature)
        assert table.state_names == ["after 0", "after 1", "after 2"]
        assert table.action_names == ["1", "2"]
        assert table.next_state.tolist() == [1, 2]
    with pytest.raises(SignatureError, match="taken"):
        register_signature("count-of-steps", CountSignature)
    with pytest.raises(SignatureError, match="taken"):
        register_signature("env", CountSignature)
    with pytest.raises(TypeError):
        register_signature("other", None)


def test_keys_must_be_text():
    class Numbers(CountSignature):
        def action(self, step):
            return 5

    with pytest.raises(SignatureError, match="step 0: the action key must be a string, got 5"):
        tabulate([Rollout("t", "r", [Step("", "x")])], signatures=Numbers())
