"""What the engine adapters share, and what of them runs without an engine."""

import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
import rtmc.adapters.trl as trl_adapter
import rtmc.adapters.verl as verl_adapter
from rtmc.adapters.attempts import Attempt, attempts_credit, hashable, import_engine, match_steps, read_steps
from rtmc.errors import EstimatorError, MissingPackageError, TableError
from rtmc.types import Ending

ADAPTERS = ("verl", "trl", "verifiers", "rows", "rllm", "tinker")
STEP = {"state": "s", "action": "a"}


def test_an_adapter_loads_no_engine():
    engines = ("verl", "trl", "verifiers", "rllm", "tinker", "tinker_cookbook", "ray", "accelerate", "transformers")
    code = (
        f"import sys, importlib\nfor name in {ADAPTERS}: importlib.import_module('rtmc.adapters.' + name)\n"
        f"print([name for name in {engines} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_missing_engine_is_named():
    with pytest.raises(MissingPackageError, match=r"needs `no_such_engine`.*pip install no-such==1"):
        import_engine("no_such_engine", "no-such==1")
    if find_spec("verl") is None:
        with pytest.raises(ImportError, match=r"pip install verl==0\.9\.1"):
            verl_adapter.register()


def test_credit_of_attempts_is_the_table_of_their_rows():
    attempts = [
        Attempt("g", 1.0, [STEP, {"state": "t", "action": "b", "reward": 0.5}], [3, 1]),
        Attempt("g", 0.0, [], []),
        Attempt("g", 0.0, [STEP], [2], ending="truncated"),
    ]
    found, first, table = attempts_credit(attempts, "rtmc", {"gamma": 0.5})
    rows = [
        {"group": "g", "rollout": 0, "index": 0, "outcome": 1.0, **STEP},
        {"group": "g", "rollout": 0, "index": 1, "outcome": 1.0, "state": "t", "action": "b", "reward": 0.5},
        {"group": "g", "rollout": 2, "index": 0, "outcome": 0.0, **STEP},
    ]
    empty = [{"group": "g", "rollout": 1, "outcome": 0.0}]
    assert torch.equal(found.advantage, rtmc.advantages(rtmc.StepTable.from_rows(rows, empty), "rtmc", gamma=0.5))
    assert first == [0, 2, 2]
    assert table.tokens.tolist() == [3, 1, 2]
    assert Ending.TRUNCATED in table.ending.tolist()


def test_an_unknown_outcome_of_all_is_no_zero():
    found, _, table = attempts_credit([Attempt("g", math.nan, [STEP])], "rtmc")
    assert table.outcome.isnan().all()
    assert found.advantage.tolist() == [0.0]


def test_methods_without_keys_need_none():
    found, _, _ = attempts_credit([Attempt("g", 1.0, [{}]), Attempt("g", 0.0, [{}, {}])], "dr_grpo")
    assert found.advantage.tolist() == [0.5, -0.5, -0.5]


@pytest.mark.parametrize(
    ("attempt", "method", "error", "text"),
    [
        (
            Attempt("g", 1.0, [STEP, {}], name="row 7"),
            "rtmc",
            EstimatorError,
            "the state key .* row 7, step 1 .*: how to",
        ),
        (Attempt("g", 1.0, [{"state": 1}]), "rtmc", EstimatorError, "the action key .* attempt 0, step 0"),
        (Attempt("g", 1.0, ["s"]), "grpo", TableError, "attempt 0, step 0: got str, wanted a mapping"),  # type: ignore[list-item]  # the fault
        (Attempt("g", 1.0, [{"outcome": 1}]), "grpo", TableError, "step 0 has `outcome`"),
        (Attempt("g", 1.0, [STEP], [1, 2]), "grpo", TableError, "1 steps, but the tokens of 2"),
        (Attempt("g", 1.0, [STEP]), "grpoo", EstimatorError, "did you mean"),
    ],
)
def test_bad_attempts(attempt, method, error, text):
    with pytest.raises(error, match=text):
        attempts_credit([attempt], method, hint="how to give them")


def test_ids_all_different():
    apart = [Attempt(number, 1.0, [{}]) for number in range(3)]
    with pytest.raises(EstimatorError, match="3 rollouts have 3 different group ids, though 8 rollouts a task"):
        attempts_credit(apart, "grpo", per_group=8)
    # A group that lost members, one rollout a task, and one rollout in all are no fault.
    attempts_credit([*apart, Attempt(0, 0.0, [{}])], "grpo", per_group=8)
    attempts_credit(apart, "grpo", per_group=1)
    attempts_credit(apart[:1], "grpo", per_group=8)


def test_steps_beside_the_runs_of_a_mask():
    assert match_steps(None, [2, 1], "row 0") == ([{}, {}], [2, 1])
    assert match_steps([STEP, STEP], [2, 1], "row 0") == ([STEP, STEP], [2, 1])
    # Cut at the end: the steps that lost their tokens stay.
    assert match_steps([STEP, STEP, STEP], [2], "row 0")[1] == [2, 0, 0]
    sized = [{**STEP, "tokens": 2}, {**STEP, "tokens": 5}]
    assert match_steps(sized, [2, 3], "row 0")[1] == [2, 3]
    with pytest.raises(TableError, match="row 0, step 0: 2 tokens were given, but the mask's run has 1"):
        match_steps(sized, [1, 5], "row 0")
    with pytest.raises(TableError, match="row 0, step 1: 5 tokens were given, but the mask's run has 6"):
        match_steps(sized, [2, 6], "row 0")
    with pytest.raises(TableError, match="row 0: the mask has 2 runs of sampled tokens, but 1 steps"):
        match_steps([STEP], [2, 1], "row 0")


def test_what_a_user_gives_for_a_row():
    assert read_steps(None, "row") == (None, None, False)
    assert read_steps([STEP], "row") == ([STEP], None, False)
    assert read_steps({"steps": [STEP], "outcome": 2, "truncated": True}, "row") == ([STEP], 2.0, True)
    for item in ({"step": []}, {"steps": [], "reward": 1}, {}, "text", {"steps": "text"}, 3):
        with pytest.raises(TableError, match="row 5: got"):
            read_steps(item, "row 5")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(VALUES, VALUES)
def test_keys_are_equal_where_content_is(one, other):
    hash(hashable(one))
    assert (hashable(one) == hashable(other)) == (one == other)


def test_keys_of_arrays():
    same = [np.arange(4.0).reshape(2, 2), np.arange(8.0).reshape(2, 4)[:, :2] * 0 + [[0, 1], [2, 3]]]
    assert hashable(same[0]) == hashable(same[1]) == hashable(torch.arange(4, dtype=torch.float64).reshape(2, 2))
    assert hashable(np.array([0.0])) == hashable(np.array([-0.0]))
    assert hashable(np.arange(4)) != hashable(np.arange(4).reshape(2, 2))
    assert hashable(np.array([1.0])) != hashable(np.array([1.0 + 1e-15]))
    assert hashable({"a": 1, "b": [2]}) == hashable({"b": (2,), "a": np.int64(1)})
    assert hashable(np.array([{"a": 1}], dtype=object)) == hashable(np.array([{"a": 1}], dtype=object))


class TestToolCalls:
    """The steps that TRL's messages and the recorded tool calls make together."""

    def call(self, name="open", before="s", after="t", action="x"):
        return {"name": name, "state": before, "next_state": after, "action": action, "reward": 0.5}

    def asks(self, *names):
        return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name}} for name in names]}

    def test_a_call_then_an_answer(self):
        said = [self.asks("open"), {"role": "tool"}, {"role": "assistant", "content": "done"}]
        first, last = trl_adapter.steps_of_calls(said, [self.call()], "t")
        assert first == {"state": "s", "action": "x", "next_state": "t", "reward": 0.5}
        assert last["state"] == "t"

    def test_calls_in_parallel_are_one_step(self):
        said = [self.asks("open", "open"), {"role": "tool"}, {"role": "tool"}]
        calls = [self.call(), self.call(before="t", after="u", action="y")]
        assert trl_adapter.steps_of_calls(said, calls, "u") == [
            {"state": "s", "action": ("x", "y"), "next_state": "u", "reward": 1.0}
        ]

    def test_a_name_that_is_no_tool_and_a_call_that_was_not_made(self):
        said = [self.asks("fly"), {"role": "tool"}, self.asks("open"), {"role": "tool"}, self.asks("open")]
        steps = trl_adapter.steps_of_calls(said, [self.call()], "t")
        assert [step["state"] for step in steps] == ["s", "s", "t"]
        assert steps[1]["action"] == "x"

    def test_a_call_of_no_message(self):
        with pytest.raises(TableError, match="1 of 1 tool calls belong to no assistant message"):
            trl_adapter.steps_of_calls([{"role": "user"}], [self.call()], "t")


class TestVerlNumbers:
    """The estimator that verl calls, called directly."""

    def run(self, method, rewards, mask, uids, **keywords):
        return verl_adapter._advantages(method, torch.tensor(rewards), torch.tensor(mask), uids, keywords.get("config"))

    def test_groups_by_id_and_not_by_place(self):
        rewards = [[1.0, 0], [0.0, 0], [2.0, 0], [4.0, 0], [0.0, 0], [0.0, 0]]
        mask = [[1, 1]] * 6
        apart = self.run("dr_grpo", [rewards[i] for i in (0, 2, 4, 1, 3, 5)], mask, list("AAABBB"))[0]
        mixed = self.run("dr_grpo", rewards, mask, list("ABABAB"))[0]
        assert torch.equal(apart[[0, 3, 1, 4, 2, 5]], mixed)
        # Groups of means 1 and 4/3: each sums to 0.
        assert mixed[::2, 0].sum().abs() < 1e-6
        assert mixed[1::2, 0].sum().abs() < 1e-6

    def test_one_known_outcome_among_unknown_ones(self):
        advantage, returns = self.run("grpo", [[math.nan]] * 7 + [[1.0]], [[1]] * 8, ["a"] * 8)
        assert torch.isfinite(advantage).all()
        assert torch.isfinite(returns).all()
        some = self.run("dr_grpo", [[math.nan], [0.0], [1.0], [1.0]], [[1]] * 4, ["a"] * 4)[0]
        assert some[:, 0].tolist() == pytest.approx([0, -2 / 3, 1 / 3, 1 / 3])

    def test_options_of_the_config(self):
        config = {"gamma": 0.5, "lam": 0.1}
        assert verl_adapter._options("rtmc", config) == {"gamma": 0.5}
        assert verl_adapter._options("grpo", config) == {}
        assert verl_adapter._options("rtmc", None) == {}
        with pytest.raises(EstimatorError, match="must be a mapping of options, got int"):
            verl_adapter._options("rtmc", {"rtmc": 3})

    def test_sessions(self):
        keys = ["u_1_1_0", "u_1_0_1", "v_0_0", "u_1_0_0", "odd", "_2"]
        assert verl_adapter._sessions(keys, 6) == [[0], [3, 1], [2], [4], [5]]
        with pytest.raises(TableError, match="1 keys for 2 rows"):
            verl_adapter._sessions(["a"], 2)

    def test_no_uid(self):
        with pytest.raises(TableError, match="no `uid`"):
            self.run("grpo", [[1.0]], [[1]], None)
        with pytest.raises(TableError, match="1 uids for 2 rows"):
            self.run("grpo", [[1.0], [0.0]], [[1], [1]], ["a"])
