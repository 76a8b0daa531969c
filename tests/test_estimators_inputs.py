"""What `rtmc.estimate` says of inputs that are missing, of groups that are none, and of wrong registrations."""

import pytest
import torch

import rtmc
from rtmc import EstimatorError, StepTable
from rtmc.methods.inputs import MEANING
from rtmc.methods.options import choice, number
from rtmc.methods.registry import lacking
from rtmc.table.steptable import STEP_COLUMNS


@pytest.fixture
def registered(monkeypatch):
    """A register that forgets what the test adds."""
    from rtmc.methods import registry

    monkeypatch.setattr(registry, "_registered", dict(registry._load()))


def of_groups(groups, **more):
    rows = [
        {"group": group, "rollout": r, "index": 0, "state": "s", "action": "a", "outcome": float(r % 2)} | more
        for r, group in enumerate(groups)
    ]
    return StepTable.from_rows(rows)


def test_every_input_that_a_method_needs_has_a_meaning():
    needed = {need for info in rtmc.estimators() for need in info.needs} - set(STEP_COLUMNS)
    assert needed <= set(MEANING)


@pytest.mark.parametrize("info", rtmc.estimators(), ids=lambda info: info.name)
def test_a_missing_input_is_named_explained_and_gone_when_given(info):
    table = of_groups([0, 0])
    missing = lacking(table, info.name)
    assert set(missing) == set(info.needs) - set(STEP_COLUMNS)
    for need in missing:
        with pytest.raises(EstimatorError) as caught:
            rtmc.estimate(table, info.name)
        message = str(caught.value)
        assert message.startswith(
            f"estimator `{info.name}` needs the {'column' if need == 'parent' else 'score'} `{need}`"
        )
        assert MEANING[need] in message
        assert "StepTable.from_rows" in message
        assert ("it is not needed" in message) == (need in info.unless)
        if need == "parent":
            table = of_groups([0, 0], parent=-1)
        else:
            table.scores[need] = torch.full((2,), 0.5)
    assert torch.isfinite(rtmc.advantages(table, info.name)).all()


@pytest.mark.parametrize("info", [info for info in rtmc.estimators() if info.unless], ids=lambda info: info.name)
def test_an_option_that_does_without_an_input_really_does(info):
    for need, options in info.unless.items():
        others = [name for name in info.needs if name not in (need, *STEP_COLUMNS, "parent")]
        # What an option reads in the input's place is given too.
        given = dict.fromkeys([*others, "pool_weight"], 0.5)
        table = of_groups([0, 0], **given, **({"parent": -1} if "parent" in info.needs else {}))
        for option, values in options.items():
            for value in values:
                assert torch.isfinite(rtmc.advantages(table, info.name, **{option: value})).all()


@pytest.mark.usefixtures("registered")
def test_a_need_that_an_option_waives():
    rtmc.register_estimator(
        "judged",
        lambda table, mode, weight: table.scores.get("judge", table.reward) * weight,
        needs={"judge": "a judge's mark of the step"},
        options={"mode": choice("marks", ("marks", "none")), "weight": number(1.0)},
        unless={"judge": {"mode": ("none",)}},
    )
    table = of_groups([0, 0], reward=2.0)
    with pytest.raises(EstimatorError) as caught:
        rtmc.estimate(table, "judged", weight=3)
    assert str(caught.value) == (
        "estimator `judged` needs the score `judge`, which the table lacks (its scores: none): a judge's mark of the "
        "step; give it as a key of the rows in StepTable.from_rows, or set table.scores['judge'] to a (2,) tensor; "
        "with mode='none' it is not needed"
    )
    assert rtmc.advantages(table, "judged", mode="none").tolist() == [2.0, 2.0]
    assert lacking(table, "judged") == ("judge",)
    info = next(info for info in rtmc.estimators() if info.name == "judged")
    assert info.needs == ("judge",)
    assert info.unless == {"judge": {"mode": ("none",)}}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unless": {"judge": {"mode": (1,)}}}, "`unless` speaks of 'judge', which is not in `needs`"),
        ({"needs": ["judge"], "unless": {"judge": {"mod": (1,)}}}, "unknown option 'mod'; did you mean `mode`"),
        ({"options": {"method": number(1.0)}}, "an option may not be named `method`"),
        ({"options": {"rollouts_per_group": number(1.0)}}, "an option may not be named `rollouts_per_group`"),
    ],
)
def test_wrong_registrations(settings, message):
    given = {"options": {"mode": number(1.0)}} | settings
    with pytest.raises(EstimatorError, match=message):
        rtmc.register_estimator("wrong", lambda table, **options: table.reward, **given)
    with pytest.raises(EstimatorError, match="unknown estimator 'wrong'"):
        rtmc.estimate(of_groups([0, 0]), "wrong")


def test_a_need_that_is_text_and_no_list():
    with pytest.raises(TypeError, match="`needs` must be a sequence of names"):
        rtmc.register_estimator("wrong", lambda table: table.reward, needs="judge")


@pytest.mark.parametrize("method", [None, 3, ["grpo"]])
def test_a_method_that_is_no_name(method):
    with pytest.raises(TypeError, match="`method` must be the name of an estimator"):
        rtmc.estimate(of_groups([0]), method)


@pytest.mark.parametrize("method", ["grpo", "rtmc"])
def test_group_ids_that_are_rollout_ids_are_an_error_with_the_count(method):
    table = of_groups(range(16))
    for parity in ({}, {"parity": "verl"} if method == "grpo" else {}):
        with pytest.raises(
            EstimatorError, match="8 rollouts a group are declared, but the 16 rollouts have 16 different"
        ):
            rtmc.advantages(table, method, rollouts_per_group=8, **parity)
    # Not declared, it may be so; and one rollout alone is a group that lost its members.
    assert torch.equal(rtmc.advantages(table, method, rollouts_per_group=1), rtmc.advantages(table, method))
    assert torch.isfinite(rtmc.advantages(of_groups([0]), method, rollouts_per_group=8)).all()


def test_groups_that_lack_members_are_used():
    table = of_groups([0, 0, 0, 1])
    assert torch.equal(rtmc.advantages(table, "grpo", rollouts_per_group=4), rtmc.advantages(table, "grpo"))


def test_rollouts_of_trees_and_without_steps_count():
    rows = [{"group": 0, "rollout": 0, "index": 0, "state": "s", "action": "a", "outcome": 1.0}]
    table = StepTable.from_rows(rows, [{"group": 1, "rollout": 1, "outcome": 0.0}])
    with pytest.raises(EstimatorError, match="2 rollouts have 2 different group ids"):
        rtmc.estimate(table, "grpo", rollouts_per_group=2)


@pytest.mark.parametrize("count", [0, -1, 2.0, "8", True])
def test_a_count_that_is_none(count):
    with pytest.raises(EstimatorError, match="`rollouts_per_group` must be an integer of at least 1"):
        rtmc.estimate(of_groups([0, 0]), "grpo", rollouts_per_group=count)
