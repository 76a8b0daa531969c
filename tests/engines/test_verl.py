"""verl: its own `compute_advantage(DataProto)` and its v1 trainer, on CPU."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="needs verl: make test-engines")

from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage

import rtmc
import rtmc.adapters.verl as credit
from rtmc.errors import EstimatorError, TableError

# Two rollouts of each of two tasks; 1 = sampled, the zeros between are tool output, those at the end padding.
MASK = [
    [1, 1, 0, 1, 1, 0, 0],
    [1, 0, 0, 1, 0, 1, 1],
    [1, 1, 1, 0, 1, 0, 0],
    [1, 0, 1, 0, 0, 0, 0],
]
UID = ["a", "a", "b", "b"]
OUTCOME = [1.0, 0.0, 0.0, 1.0]
STEPS = [
    [{"state": "s", "action": "x"}, {"state": "sx", "action": "y"}],
    [{"state": "s", "action": "x"}, {"state": "sx", "action": "z"}, {"state": "sxz", "action": "y"}],
    [{"state": "s", "action": "p"}, {"state": "sp", "action": "y"}],
    [{"state": "s", "action": "q"}, {"state": "sq", "action": "y", "reward": 0.5}],
]


def batch(order=(0, 1, 2, 3), mask=MASK, uid=UID, outcome=OUTCOME, **columns) -> DataProto:
    mask = torch.tensor(mask)[list(order)]
    rewards = torch.zeros(mask.shape)
    rewards[:, 0] = torch.tensor(outcome)[list(order)]  # the place does not matter: verl sums them
    non_tensors = {"uid": np.array([uid[row] for row in order], dtype=object)}
    for name, values in columns.items():
        non_tensors[name] = np.empty(len(order), dtype=object)
        non_tensors[name][:] = [values[row] for row in order]
    return DataProto.from_dict(
        tensors={
            "token_level_rewards": rewards,
            "response_mask": mask,
            "responses": torch.zeros_like(mask),
            "attention_mask": torch.cat([torch.ones(len(mask), 2, dtype=mask.dtype), torch.ones_like(mask)], 1),
        },
        non_tensors=non_tensors,
    )


def expected(method, steps=STEPS, uid=UID, outcome=OUTCOME, **options) -> list[list[float]]:
    """Per rollout, its steps' advantages by `rtmc.estimate` on rows written down by hand."""
    rows = [
        {"state": 0, "action": 0, **step, "group": uid[r], "rollout": r, "index": i, "outcome": outcome[r]}
        for r, of_row in enumerate(steps)
        for i, step in enumerate(of_row)
    ]
    advantage = rtmc.advantages(rtmc.StepTable.from_rows(rows), method, **options).tolist()
    taken = iter(advantage)
    return [[next(taken) for _ in of_row] for of_row in steps]


def spread(per_step, mask=MASK) -> torch.Tensor:
    """Each run of ones gets its step's number."""
    out = torch.zeros(len(mask), len(mask[0]))
    for row, tokens in enumerate(mask):
        run = -1
        for place, token in enumerate(tokens):
            run += bool(token and (place == 0 or not tokens[place - 1]))
            if token:
                out[row, place] = per_step[row][run]
    return out


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(credit, "_settings", credit._Settings())
    credit.side_table.clear()
    credit.register()
    yield
    credit.side_table.clear()


def fill(steps=STEPS, uid=UID):
    for row, of_row in enumerate(steps):
        credit.side_table.put((uid[row], uid[:row].count(uid[row])), of_row)


def test_registering_twice_is_registering_once():
    names = credit.register()
    before = dict(core_algos.ADV_ESTIMATOR_REGISTRY)
    assert credit.register() == names
    assert before == core_algos.ADV_ESTIMATOR_REGISTRY
    assert {f"rtmc_{info.name}" for info in rtmc.estimators()} <= set(names)
    assert "rtmc" in names
    assert "grpo" not in names
    assert core_algos.ADV_ESTIMATOR_REGISTRY["grpo"].__module__.startswith("verl.")


def test_grpo_is_verls_own_number():
    data = compute_advantage(batch(), adv_estimator="rtmc_grpo", config=AlgoConfig())
    own = compute_advantage(batch(), adv_estimator=core_algos.AdvantageEstimator.GRPO)
    torch.testing.assert_close(data.batch["advantages"], own.batch["advantages"])
    assert data.batch["advantages"].dtype == torch.float32


def test_steps_get_their_own_credit():
    fill()
    data = compute_advantage(batch(), adv_estimator="rtmc", config=AlgoConfig(gamma=0.9))
    assert torch.equal(data.batch["advantages"], spread(expected("rtmc", gamma=0.9)))
    assert not torch.equal(spread(expected("rtmc", gamma=0.9)), spread(expected("rtmc")))
    outside = torch.tensor(MASK) == 0
    assert (data.batch["advantages"][outside] == 0).all()
    assert (data.batch["returns"][outside] == 0).all()
    # The return of the second rollout of b: 0.9 (0.5 + 1) at its first step.
    torch.testing.assert_close(data.batch["returns"][3], torch.tensor([1.35, 0, 1.5, 0, 0, 0, 0]))


def test_every_method_that_the_steps_can_feed():
    fill()
    fed = {"group", "rollout", "index", "outcome", "state", "action", "next_state", "reward"}
    methods = [info.name for info in rtmc.estimators() if set(info.needs) <= fed and info.name != "tempo"]
    assert {"grpo", "rloo", "dr_grpo", "grpo_step", "rtmc"} <= set(methods)
    for method in methods:
        gamma = {"gamma": 1.0} if "gamma" in next(i for i in rtmc.estimators() if i.name == method).options else {}
        data = compute_advantage(batch(), adv_estimator=f"rtmc_{method}", config=AlgoConfig())
        assert torch.equal(data.batch["advantages"], spread(expected(method, **gamma))), method


def test_lam_is_that_of_gae_alone():
    fill([[dict(step, value=0.25) for step in steps] for steps in STEPS])
    data = compute_advantage(batch(), adv_estimator="rtmc_gae", config=AlgoConfig(gamma=0.5, lam=0.5))
    with_value = [[dict(step, value=0.25) for step in steps] for steps in STEPS]
    assert torch.equal(data.batch["advantages"], spread(expected("gae", with_value, gamma=0.5, lam=0.5)))


def test_options_and_their_order():
    fill()
    credit.register(options={"rtmc": {"prior_visits": 0.0, "gamma": 0.5}})
    plain = compute_advantage(batch(), adv_estimator="rtmc", config=AlgoConfig(gamma=0.9))
    assert torch.equal(plain.batch["advantages"], spread(expected("rtmc", gamma=0.5, prior_visits=0.0)))
    config = OmegaConf.create({"gamma": 0.9, "rtmc": {"prior_visits": 4}})
    OmegaConf.set_struct(config, True)
    own = compute_advantage(batch(), adv_estimator="rtmc", config=config)
    assert torch.equal(own.batch["advantages"], spread(expected("rtmc", gamma=0.5, prior_visits=4)))
    with pytest.raises(EstimatorError, match="did you mean `prior_visits`"):
        compute_advantage(batch(), adv_estimator="rtmc", config=OmegaConf.create({"rtmc": {"prior_visit": 4}}))


def test_rows_in_any_order_by_column():
    order = (2, 0, 3, 1)
    whole = credit.compute_advantage(batch(rtmc_steps=STEPS), "rtmc", config=AlgoConfig())
    mixed = credit.compute_advantage(batch(order, rtmc_steps=STEPS), "rtmc", config=AlgoConfig())
    assert torch.equal(mixed.batch["advantages"], whole.batch["advantages"][list(order)])
    assert torch.equal(whole.batch["advantages"], spread(expected("rtmc", gamma=1.0)))


def test_steps_of_another_row_are_found_out():
    fill([[dict(step, tokens=count) for step, count in zip(steps, runs, strict=True)] for steps, runs in
          zip(STEPS, [[2, 2], [1, 1, 2], [3, 1], [1, 1]], strict=True)])  # fmt: skip
    compute_advantage(batch(), adv_estimator="rtmc", config=AlgoConfig())
    with pytest.raises(TableError, match=r"row 2 \(uid b\), step 0: 3 tokens were given, but the mask's run has 1"):
        compute_advantage(batch((0, 1, 3, 2)), adv_estimator="rtmc", config=AlgoConfig())


def test_missing_keys_say_which_and_how():
    with pytest.raises(EstimatorError, match=r"`rtmc` needs the state key .* row 0 \(uid a\), step 0 .*side_table"):
        compute_advantage(batch(), adv_estimator="rtmc", config=AlgoConfig())
    fill([STEPS[0], STEPS[0], STEPS[2], STEPS[3]])
    with pytest.raises(TableError, match=r"row 1 \(uid a\): the mask has 3 runs .* but 2 steps"):
        compute_advantage(batch(), adv_estimator="rtmc", config=AlgoConfig())


def test_uids_all_different():
    apart = batch(uid=["a", "b", "c", "d"])
    data = compute_advantage(apart, adv_estimator="rtmc_grpo", config=AlgoConfig())
    assert (data.batch["advantages"] == 0).all()
    credit.register(rollouts_per_task=2)
    with pytest.raises(EstimatorError, match="4 rollouts have 4 different group ids, though 2 rollouts a task"):
        compute_advantage(apart, adv_estimator="rtmc_grpo", config=AlgoConfig())
    compute_advantage(batch(), adv_estimator="rtmc_grpo", config=AlgoConfig())


def test_unknown_outcomes_and_cut_rows():
    fill()
    outcome = [1.0, math.nan, 0.0, 1.0]
    data = compute_advantage(batch(outcome=outcome), adv_estimator="rtmc", config=AlgoConfig())
    assert torch.isfinite(data.batch["advantages"]).all()
    assert (data.batch["advantages"][1] == 0).all()
    # The last row was cut before its second step: that step still counts for the other row.
    cut = [*MASK[:3], [1, 0, 0, 0, 0, 0, 0]]
    data = compute_advantage(batch(mask=cut), adv_estimator="rtmc", config=AlgoConfig())
    assert torch.equal(data.batch["advantages"], spread(expected("rtmc", gamma=1.0), cut))
    # A row without a token is a member of its group all the same.
    none = [*MASK[:3], [0] * 7]
    credit.side_table.clear()
    data = compute_advantage(batch(mask=none), adv_estimator="rtmc_dr_grpo", config=AlgoConfig())
    assert data.batch["advantages"][2].tolist() == [-0.5, -0.5, -0.5, 0, -0.5, 0, 0]


def test_padding_is_padding_even_where_the_mask_says_one():
    data = batch(rtmc_steps=STEPS)
    data.batch["response_mask"][0, 5:] = 1
    data.batch["attention_mask"][0, 2 + 5 :] = 0
    own = credit.compute_advantage(data, "rtmc", config=AlgoConfig())
    assert torch.equal(own.batch["advantages"], spread(expected("rtmc", gamma=1.0)))


def test_without_a_response_mask_all_of_the_response_is_one_step():
    data = batch()
    del data.batch["response_mask"]
    data = compute_advantage(data, adv_estimator="rtmc_dr_grpo", config=AlgoConfig())
    assert data.batch["advantages"][:, 0].tolist() == [0.5, -0.5, -0.5, 0.5]


class TestTrainer:
    """verl's own v1 trainer on a queue of this process."""

    KEYS = ("a_0_0", "a_1_0", "a_1_1", "b_0_0", "b_1_0")
    MASKS = ([1, 1, 0, 1, 1], [1], [1, 0, 1, 1], [1, 1, 1, 0, 1], [1, 0, 1])
    SCORES = (1.0, 0.0, 0.0, 0.0, 1.0)
    STEPS = (STEPS[0], STEPS[1][:1], STEPS[1][1:], STEPS[2], STEPS[3])

    def advantages(self, monkeypatch, extra_fields, order=(0, 1, 2, 3, 4), estimator="rtmc"):
        import verl.trainer.ppo.v1.trainer_base as base
        from tensordict import TensorDict
        from transfer_queue import KVBatchMeta

        def nested(rows):
            return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

        keys = [self.KEYS[row] for row in order]
        written = {}

        def get(keys, partition_id, select_fields):
            masks = [torch.tensor(self.MASKS[row]) for row in order]
            scores = [torch.zeros(len(mask)) for mask in masks]
            for score, row in zip(scores, order, strict=True):
                score[-1] = self.SCORES[row]
            if select_fields == ["extra_fields"]:
                return {"extra_fields": np.array([*[extra_fields[row] for row in order], None], dtype=object)[:-1]}
            fields = {"response_mask": nested(masks), "rm_scores": nested(scores)}
            found = TensorDict(fields, batch_size=len(keys))
            found["uid"] = [self.KEYS[row].split("_")[0] for row in order]
            return found

        queue = SimpleNamespace(kv_batch_get=get, kv_batch_put=lambda fields, **_: written.update(fields.items()))
        monkeypatch.setattr(base, "tq", queue)
        monkeypatch.setattr(credit, "import_engine", lambda module, package: queue)

        class Trainer(credit.StepAdvantageMixin, base.PPOTrainer):
            def __init__(self):
                algorithm = {"adv_estimator": estimator, "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False}
                rollout = {"rollout": {"n": 2}}
                self.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": rollout})

        for name in base.PPOTrainer.__abstractmethods__:
            setattr(Trainer, name, lambda self: None)
        Trainer.__abstractmethods__ = frozenset()
        batch = KVBatchMeta(
            partition_id="train", keys=keys, tags=[{"is_padding": key.startswith("pad")} for key in keys]
        )
        Trainer()._compute_advantage(batch, {})
        return [row.tolist() for row in written["advantages"].unbind()]

    def wanted(self):
        credit_of = expected("rtmc", gamma=1.0)
        per_row = [credit_of[0], credit_of[1][:1], credit_of[1][1:], credit_of[2], credit_of[3]]
        return [spread([steps], [mask])[0].tolist() for steps, mask in zip(per_row, self.MASKS, strict=False)]

    def test_outputs_of_a_session_are_one_rollout(self, monkeypatch):
        found = self.advantages(monkeypatch, [{"rtmc_steps": steps} for steps in self.STEPS])
        assert found == self.wanted()

    def test_order_changes_nothing(self, monkeypatch):
        order = (3, 2, 0, 4, 1)
        found = self.advantages(monkeypatch, [{"rtmc_steps": steps} for steps in self.STEPS], order)
        assert found == [self.wanted()[row] for row in order]

    def test_rows_that_fill_the_batch_count_for_nothing(self, monkeypatch):
        # verl copies the first row's fields into them; a wrong uid would also have to do no harm.
        monkeypatch.setattr(type(self), "KEYS", (*self.KEYS, "pad_0_0"))
        monkeypatch.setattr(type(self), "MASKS", (*self.MASKS, [1]))
        monkeypatch.setattr(type(self), "SCORES", (*self.SCORES, 7.0))
        extra = [{"rtmc_steps": steps} for steps in (*self.STEPS, self.STEPS[0])]
        found = self.advantages(monkeypatch, extra, (0, 1, 2, 3, 4, 5))
        assert found == [*self.wanted()[:5], [0.0]]

    def test_side_table_by_the_batchs_keys(self, monkeypatch):
        for key, steps in zip(self.KEYS, self.STEPS, strict=True):
            credit.side_table.put(key, steps)
        assert self.advantages(monkeypatch, [None] * 5) == self.wanted()

    def test_a_session_is_one_member_of_its_group(self, monkeypatch):
        found = self.advantages(monkeypatch, [None] * 5, estimator="rtmc_dr_grpo")
        assert [row[0] for row in found] == [0.5, -0.5, -0.5, -0.5, 0.5]


def test_the_lines_to_paste(paste):
    recorded = [(UID[row], UID[:row].count(UID[row]), steps) for row, steps in enumerate(STEPS)]
    names = paste(
        credit, recorded=recorded, data=batch(), config=AlgoConfig(gamma=0.9), compute_advantage=compute_advantage
    )
    assert torch.equal(names["data"].batch["advantages"], spread(expected("rtmc", gamma=0.9)))
    assert len(credit.side_table) == 0
