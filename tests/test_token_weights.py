"""`aggregate_weights`, and `policy_loss` as a sum with them: masks, rows, micro-batches."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.policy_loss import KL_MODES, policy_loss
from rtmc.kernels.token_weights import AGGREGATES, aggregate_weights, segment_mean
from tests.kernel_cases.policy_loss import flat, random_batch


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


@pytest.mark.parametrize("masked_by", ["step", "rollout", "both"])
def test_verl_aggregates(shared, masked_by):
    for case in json.loads((shared / "vectors" / "verl_agg_loss.json").read_text())["cases"]:
        loss = torch.tensor(case["inputs"]["loss_mat"]).reshape(-1)
        mask = torch.tensor(case["inputs"]["mask"]).reshape(-1) > 0
        rollout = torch.arange(len(case["inputs"]["mask"])).repeat_interleave(len(case["inputs"]["mask"][0]))
        step = torch.where(mask, rollout, -1) if masked_by != "rollout" else rollout
        rollout = torch.where(mask, rollout, -1) if masked_by != "step" else rollout
        for mode, expected in case["outputs"].items():
            assert (aggregate_weights(step, rollout, mode) @ loss).item() == pytest.approx(expected, rel=1e-5), mode


def weight_of_each(rollout, weights):
    return torch.zeros(int(rollout.max()) + 1, dtype=weights.dtype).index_add(0, rollout, weights)


def test_a_trajectory_cut_into_rows_keeps_its_weight():
    """Two rollouts of 12 policy tokens, one as 1 row and one as 4 rows: equal shares under rollout-mean, four to one
    under a mean over rows."""
    step = torch.cat([torch.zeros(12), torch.arange(1, 5).repeat_interleave(3)]).long()
    rollout = torch.tensor([0] * 12 + [1] * 12)
    words = {"sequence_of_token": step, "dtype": torch.float64}
    for mode, share in (("rollout-mean", [0.5, 0.5]), ("seq-mean-token-mean", [0.2, 0.8])):
        weights = aggregate_weights(step, rollout, mode, **words)
        assert weight_of_each(rollout, weights).tolist() == pytest.approx(share)
    new = torch.randn(24, dtype=torch.float64)
    loss, _ = policy_loss(new, new, torch.ones(5), step, rollout, aggregate="rollout-mean", sequence_of_token=step)
    assert loss.item() == pytest.approx(-1.0)


def test_a_rollouts_length_is_its_policy_tokens():
    """Mask 000 1111 000 11111: nine tokens share the rollout's weight, not the twelve from first to last."""
    mask = torch.tensor([[0] * 3 + [1] * 4 + [0] * 3 + [1] * 5])
    weights = aggregate_weights(*flat(mask), "rollout-mean", dtype=torch.float64)
    assert torch.equal(weights > 0, mask[0] > 0)
    assert weights[mask[0] > 0].tolist() == pytest.approx([1 / 9] * 9)


def test_rows_of_two_rollouts_may_stand_in_any_order():
    """A B A B A B and A A A B B B: rollouts are told apart by their ids, never by where they stand."""
    rollout = torch.tensor([0, 0, 1, 0, 1, 1, 1])
    order = torch.tensor([0, 2, 1, 4, 3, 5, 6])
    for mode in AGGREGATES:
        sorted_, mixed = (aggregate_weights(r, r, mode, dtype=torch.float64) for r in (rollout, rollout[order]))
        assert torch.equal(sorted_[order], mixed), mode
    values = torch.tensor([1.0, 2.0, 10.0, 6.0, 20.0, 30.0, 0.0])
    assert segment_mean(values, rollout).tolist() == [3.0, 3.0, 15.0, 3.0, 15.0, 15.0, 15.0]
    assert segment_mean(values[order], rollout[order]).tolist() == [3.0, 15.0, 3.0, 15.0, 3.0, 15.0, 15.0]


def test_failed_turns_do_not_add_up():
    """Three turns with advantage 1 in one rollout, one turn in the other, equally long turns: as means over rollouts
    both weigh the same; as sums the longer one weighs three times as much, which has to be asked for."""
    step = torch.arange(4).repeat_interleave(2)
    rollout = torch.tensor([0] * 6 + [1] * 2)
    for mode, share in (("rollout-mean", [0.5, 0.5]), ("seq-mean-token-sum", [3.0, 1.0])):
        weights = aggregate_weights(step, rollout, mode)
        assert weight_of_each(rollout, weights).tolist() == pytest.approx(share)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_exactly_the_unmasked_tokens_are_trained(aggregate, device, backend):
    """P P P R R: the two targets R, the first included. A response [5, 6, EOS] padded with EOS to five: the mask comes
    from its length, and the first EOS is trained. A cut row, masked throughout, weighs nothing and is not counted."""
    step = torch.tensor([-1, -1, -1, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1], device=device)
    sequence = torch.arange(3, device=device).repeat_interleave(5)
    zero = torch.zeros(15, device=device, requires_grad=True)
    loss, stats = policy_loss(
        zero, zero.detach(), torch.ones(3, device=device), step, sequence, aggregate=aggregate, norm_length=5
    )
    loss.backward()
    assert (zero.grad != 0).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert stats.tokens.item() == 5
    expected = {"token-mean": 1.0, "token-sum": 5.0, "seq-mean-token-sum": 2.5, "seq-mean-token-sum-norm": 0.5}
    assert -loss.item() == pytest.approx(expected.get(aggregate, 1.0))


@pytest.mark.parametrize(
    "bad", [torch.zeros(2).short(), torch.zeros(3).long(), torch.zeros(2).long().to("meta"), [0, 0]]
)
def test_ids_of_another_kind_are_refused(bad):
    good = torch.zeros(2).long()
    for name in ("rollout_of_token", "sequence_of_token"):
        with pytest.raises((TypeError, ValueError), match=rf"`{name}`: got .*; wanted "):
            aggregate_weights(**{"step_of_token": good, "rollout_of_token": good, name: bad})
    with pytest.raises((TypeError, ValueError), match=r"`key`: got .*; wanted "):
        segment_mean(torch.zeros(2), bad)


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("ratio", ["token", "turn", "sequence"])
@pytest.mark.parametrize("tokens", [0, 4])
def test_fully_masked_batch(aggregate, ratio, tokens, device, backend):
    logprob = torch.full((tokens,), float("nan"), device=device, requires_grad=True)
    gone = torch.full((tokens,), -1, device=device)
    old = torch.full((tokens,), float("inf"), device=device)
    args = (logprob, old, torch.ones(1, device=device), gone, gone, old)
    loss, stats = policy_loss(*args, kl=0.5, aggregate=aggregate, ratio=ratio)
    assert loss.item() == 0.0
    assert loss.requires_grad
    loss.backward()
    assert torch.equal(logprob.grad, torch.zeros(tokens, device=device))
    assert [s.item() for s in stats] == [0.0] * len(stats)


@pytest.mark.parametrize("ratio", ["token", "turn", "sequence"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["logprob", "old", "ref", "advantage"])
def test_a_fault_reaches_the_loss_unless_masked(where, bad, ratio, device, backend):
    def run(step):
        arrays = {k: torch.zeros(4, device=device) for k in ("logprob", "old", "ref")}
        arrays["advantage"] = torch.ones(4, device=device)
        arrays[where][1] = bad
        arrays["logprob"].requires_grad_()
        steps = torch.tensor(step, device=device)
        loss, stats = policy_loss(
            arrays["logprob"], arrays["old"], arrays["advantage"], steps, torch.zeros_like(steps), arrays["ref"],
            kl=0.1, ratio=ratio,
        )  # fmt: skip
        loss.backward()
        return loss, arrays["logprob"].grad, stats

    loss, grad, stats = run([0, 1, 2, 3])
    assert not loss.isfinite()
    assert not grad[1].isfinite() or where == "advantage"
    assert stats.tokens.item() == 4
    loss, grad, stats = run([0, -1, 2, 3])
    assert loss.item() == pytest.approx(-1.0)
    assert grad.tolist() == pytest.approx([-1 / 3, 0, -1 / 3, -1 / 3])
    assert all(s.isfinite() for s in stats)


def test_reference_logprob_without_a_coefficient_only_informs(backend):
    zero = torch.zeros(1).long()
    ref = torch.tensor([float("nan")])
    loss, stats = policy_loss(torch.zeros(1), torch.zeros(1), torch.ones(1), zero, zero, ref)
    assert loss.item() == -1.0
    assert stats.ref_kl.isnan()


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_micro_batches_add_up_to_the_batch(aggregate, device):
    new, old, ref, turns, mask, per_step = random_batch(8, 11, 4, torch.float32)
    step, rollout = (x.to(device) for x in flat(mask, turns))
    new, old, ref, per_step = (x.reshape(-1).to(device) for x in (new, old, ref, per_step))
    words = {"kl": 0.1, "dual_clip": 3.0, "ratio": "turn"}
    whole = new.clone().requires_grad_()
    loss, _ = policy_loss(whole, old, per_step, step, rollout, ref, aggregate=aggregate, **words)
    loss.backward()
    weights = aggregate_weights(step, rollout, aggregate)
    parts, total = new.clone().requires_grad_(), 0.0
    for first, last in ((0, 11), (11, 44), (44, 88)):
        at = slice(first, last)
        part, _ = policy_loss(
            parts[at], old[at], per_step, step[at], rollout[at], ref[at], weights=weights[at], **words
        )
        part.backward()
        total += part.item()
    assert torch.equal(parts.grad, whole.grad)
    assert total == pytest.approx(loss.item(), rel=1e-6, abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(AGGREGATES), st.sampled_from(["token", "turn", "sequence"]))
def test_order_of_tokens_and_names_of_rows_do_not_matter(seed, aggregate, ratio):
    new, old, ref, turns, mask, per_step = random_batch(5, 6, seed)
    step, rollout = flat(mask, turns)
    new, old, ref = (x.reshape(-1) for x in (new, old, ref))
    words = {"aggregate": aggregate, "ratio": ratio, "kl": 0.2}
    loss, stats = policy_loss(new, old, per_step, step, rollout, ref, **words)
    g = torch.Generator().manual_seed(seed)
    p = torch.randperm(30, generator=g)
    renamed = torch.where(rollout >= 0, 1000 - 7 * rollout, -1)
    again, stats_again = policy_loss(new[p], old[p], per_step, step[p], renamed[p], ref[p], **words)
    assert again.item() == pytest.approx(loss.item(), rel=1e-12, abs=1e-13)
    torch.testing.assert_close(torch.stack([*map(torch.Tensor.double, stats)]),
                               torch.stack([*map(torch.Tensor.double, stats_again)]))  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(KL_MODES)))
def test_masked_tokens_change_no_bit(seed, kl_mode):
    new, old, ref, turns, mask, per_step = random_batch(4, 6, seed)
    step, rollout = flat(mask, turns)
    hidden = step < 0
    words = {"kl": 0.3, "kl_mode": kl_mode}
    first = policy_loss(new.reshape(-1), old.reshape(-1), per_step, step, rollout, ref.reshape(-1), **words)
    noise = torch.tensor([float("nan"), float("inf"), -1e30, 3.0])[torch.arange(24) % 4].double()
    new, old, ref = (torch.where(hidden, noise.roll(k), x.reshape(-1)) for k, x in enumerate((new, old, ref)))
    second = policy_loss(new, old, per_step, step, rollout, ref, **words)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_int32_ids_give_the_same_bits(device, backend):
    _, _, _, turns, mask, _ = random_batch(4, 6, 9)
    step, rollout = (x.to(device) for x in flat(mask, turns))
    words = {"sequence_of_token": rollout}
    for aggregate in AGGREGATES:
        want = aggregate_weights(step, rollout, aggregate, **words)
        for names in (("step_of_token",), ("rollout_of_token", "sequence_of_token")):
            ids = {"step_of_token": step, "rollout_of_token": rollout, **words}
            ids |= {name: ids[name].int() for name in names}
            assert torch.equal(aggregate_weights(**ids, aggregate=aggregate), want), (aggregate, names)
    values = torch.randn(24, device=device)
    assert torch.equal(segment_mean(values, rollout.int()), segment_mean(values, rollout))


def test_norm_length():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    weights = aggregate_weights(*flat(mask), "seq-mean-token-sum-norm", norm_length=100, dtype=torch.float64)
    assert weights[0].item() == pytest.approx(1 / 200)
    padded = aggregate_weights(*flat(mask), "seq-mean-token-sum-norm", dtype=torch.float64)
    assert padded[0].item() == pytest.approx(1 / 8)


def test_a_million_values_averaged_twice(device):
    g = torch.Generator().manual_seed(0)
    values, key = torch.randn(10**6, generator=g).to(device), torch.randint(0, 100, (10**6,), generator=g).to(device)
    one, two = (segment_mean(values, key) for _ in range(2))
    assert torch.equal(one, two)
    sums = torch.zeros(100, dtype=torch.float64).index_add(0, key.cpu(), values.double().cpu())
    truth = (sums / key.cpu().bincount(minlength=100))[key.cpu()]
    assert torch.allclose(one.double().cpu(), truth, rtol=2**-23, atol=0)


def test_mean_over_segments_by_hand(device):
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, float("nan")], device=device)
    key = torch.tensor([70, 5, 70, 5, -1], device=device)
    assert segment_mean(values, key).tolist() == [2.5, 5.0, 2.5, 5.0, 0.0]


def test_a_word_that_does_not_exist_is_refused():
    ids = torch.zeros(2).long()
    with pytest.raises(ValueError, match=r"`aggregate`: got 'mean'.*'rollout-mean'"):
        aggregate_weights(ids, ids, "mean")
    with pytest.raises(ValueError, match=r"`norm_length`: got 0"):
        aggregate_weights(ids, ids, norm_length=0)
