"""`policy_loss`: hand-worked values, gradients by finite differences, what the engines' own functions returned, clamps.

Against the definition on padded matrices it is compared in kernel_cases/policy_loss.py.
"""

import json
import math

import numpy as np
import pytest
import torch

from rtmc.kernels.policy_loss import AGGREGATES, policy_loss
from rtmc.kernels.token_weights import aggregate_weights
from tests.kernel_cases.policy_loss import SETTINGS, compare_with_truth, flat, random_batch


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def vector(shared, name):
    return json.loads((shared / "vectors" / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s.values())) or "default")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_backend_equals_the_definition(setting, dtype, device, backend):
    compare_with_truth(device, setting, dtype)


@pytest.mark.parametrize("mode", ["k1", "k2", "k3", "abs"])
def test_gradcheck_by_finite_differences(mode, backend):
    new, old, ref, turns, mask, per_step = random_batch(3, 8, 5)
    step, rollout = flat(mask, turns)

    def loss_of(x):
        return policy_loss(
            x, old.reshape(-1), per_step, step, rollout, ref.reshape(-1), dual_clip=1.3, kl=0.2, kl_mode=mode
        )[0]

    assert torch.autograd.gradcheck(loss_of, new.reshape(-1).requires_grad_(), eps=1e-7, atol=1e-6)


def test_hand_case():
    """Two tokens of one step, A = 2: d = 0 gives -2; d = log 1.5 is clipped at 1.2 and gives -2.4 without gradient.
    A third of another step, A = -1, d = log 4: 4, or 3 under the dual clip."""
    logprob = torch.tensor([0.0, math.log(1.5), math.log(4.0)], dtype=torch.float64, requires_grad=True)
    rest = (
        torch.zeros(3, dtype=torch.float64),
        torch.tensor([2.0, -1.0]),
        torch.tensor([0, 0, 1]),
        torch.zeros(3).long(),
    )
    loss, stats = policy_loss(logprob, *rest, aggregate="token-sum")
    loss.backward()
    assert loss.item() == pytest.approx(-2 - 2.4 + 4)
    assert logprob.grad.tolist() == pytest.approx([-2, 0, 4])
    assert stats.clip_high.item() == pytest.approx(1 / 3)
    assert stats.clip_low.item() == stats.clip_dual.item() == 0
    assert stats.ratio_mean.item() == pytest.approx((1 + 1.5 + 4) / 3)
    assert stats.max_log_ratio.item() == pytest.approx(math.log(4))
    assert stats.approx_kl.item() == pytest.approx((0.5 - math.log(1.5) + 3 - math.log(4)) / 3)
    assert policy_loss(logprob, *rest, aggregate="token-sum", dual_clip=3)[0].item() == pytest.approx(-1.4)
    dual = policy_loss(logprob, *rest, aggregate="token-mean", dual_clip=3)[1]
    assert dual.clip_dual.item() == pytest.approx(1 / 3)


def test_lower_clip_is_counted():
    logprob = torch.tensor([math.log(0.5), 0.0])
    loss, stats = policy_loss(
        logprob, torch.zeros(2), torch.tensor([-1.0]), torch.zeros(2).long(), torch.zeros(2).long()
    )
    assert loss.item() == pytest.approx((0.8 + 1) / 2)
    assert stats.clip_low.item() == 0.5


@pytest.mark.parametrize("per", ["step", "rollout", "token"])
def test_advantages_per_step_rollout_and_token_agree(per, device, backend):
    new, old, _, turns, mask, per_step = (x.to(device) for x in random_batch(4, 9, 8))
    step, rollout = (x.to(device) for x in flat(mask.cpu(), turns.cpu()))
    by_rollout = per_step[:4]
    token = by_rollout[rollout]
    # A step's advantage: that of its rollout.
    step_value = torch.zeros(4 * 9 + 1, dtype=torch.float64, device=device)
    step_value[step[step >= 0]] = token[step >= 0]
    given = {"step": step_value, "rollout": by_rollout, "token": token}[per]
    loss, _ = policy_loss(new.reshape(-1), old.reshape(-1), given, step, rollout, per=per)
    expected = policy_loss(new.reshape(-1), old.reshape(-1), token, step, rollout, per="token")[0]
    assert torch.equal(loss, expected)


def test_verl_ppo_and_gspo(shared, backend):
    for case in vector(shared, "verl_policy_loss"):
        i, o = case["inputs"], case["outputs"]
        new, old, adv = (torch.tensor(i[k]).reshape(-1) for k in ("log_prob", "old_log_prob", "advantages"))
        step, rollout = flat(i["mask"])
        args = (new, old, adv, step, rollout)
        words = {"clip": (i["clip_low"], i["clip_high"]), "per": "token"}
        loss, stats = policy_loss(*args, dual_clip=i["dual_clip_c"], **words)
        assert loss.item() == pytest.approx(o["ppo_token_mean"], rel=1e-5)
        metrics = o["ppo_metrics"]
        assert (stats.clip_low + stats.clip_high).item() == pytest.approx(metrics["actor/pg_clipfrac"], rel=1e-6)
        assert stats.clip_dual.item() == pytest.approx(metrics["actor/pg_clipfrac_lower"], rel=1e-6)
        assert -stats.log_ratio_mean.item() == pytest.approx(metrics["actor/ppo_kl"], rel=1e-5)
        loss, stats = policy_loss(*args, ratio="sequence", aggregate="seq-mean-token-mean", **words)
        assert loss.item() == pytest.approx(o["gspo"], rel=1e-5)
        clipped = (stats.clip_low + stats.clip_high).item()
        assert clipped == pytest.approx(o["gspo_metrics"]["actor/pg_clipfrac"], rel=1e-6)


def test_at2po_turn_ratio(shared, backend):
    for case in vector(shared, "at2po_gspo_turn"):
        i, o = case["inputs"], case["outputs"]
        new, old, adv = (torch.tensor(i[k]).reshape(-1) for k in ("new", "old", "adv"))
        mask = torch.tensor(i["mask"])
        # Turns are the contiguous runs of the mask.
        turns = (mask.diff(dim=1, prepend=torch.zeros(len(mask), 1).long()) > 0).cumsum(1)
        step, rollout = flat(mask, turns)
        loss, stats = policy_loss(
            new, old, adv, step, rollout, ratio="turn", clip=(i["low"], i["high"]), aggregate="seq-mean-token-mean",
            per="token",
        )  # fmt: skip
        assert loss.item() == pytest.approx(o["loss"], rel=1e-5)
        assert f"{(stats.clip_low + stats.clip_high).item():.6f}" in o["rest"]
        assert f"{-stats.log_ratio_mean.item():.6f}" in o["rest"]


@pytest.mark.parametrize("mode", ["kl", "mse", "low_var_kl", "abs"])
def test_verl_kl(shared, mode, backend):
    for case in vector(shared, "verl_kl"):
        new, ref = (torch.tensor(case["inputs"][k]).reshape(-1) for k in ("logprob", "ref"))
        for token, expected in enumerate(torch.tensor(case["outputs"][mode]).reshape(-1).tolist()):
            one = slice(token, token + 1)
            zero = torch.zeros(1).long()
            words = {"kl": 1.0, "kl_mode": mode, "aggregate": "token-sum"}
            loss, stats = policy_loss(new[one], new[one], torch.zeros(1), zero, zero, ref[one], **words)
            assert loss.item() == pytest.approx(expected, rel=2e-6, abs=1e-7)
            assert stats.ref_kl.item() == pytest.approx(expected, rel=2e-6, abs=1e-7)


def test_aepo(shared, backend):
    """`clipping` keeps a gradient above the upper clip and changes no value; `advantage` reweights by entropy."""
    for case in vector(shared, "aepo_loss"):
        i, o = case["inputs"], case["outputs"]
        new, old, adv, entropy = (torch.tensor(i[k]).reshape(-1) for k in ("new", "old", "adv", "entropy"))
        words = {"clip": (i["cliprange"], i["cliprange"]), "per": "token", "dual_clip": 3.0}
        words["entropy"] = entropy if i["advantage"] else None
        for passes in (i["clipping"], not i["clipping"]):
            loss, _ = policy_loss(new, old, adv, *flat(i["mask"]), clip_high_passes=passes, **words)
            assert loss.item() == pytest.approx(o["loss"], rel=1e-5)


def test_the_upper_clip_that_passes_a_gradient(backend):
    """r = 1.5, high 0.2: value and slope -A 1.2. Below the lower clip, inside, or with A < 0 as ever."""
    new = torch.tensor([1.5, 1.5, 0.5, 1.1], dtype=torch.float64).log().requires_grad_()
    a = torch.tensor([2.0, -2.0, -1.0, 1.0])
    rows = torch.arange(4)
    loss, stats = policy_loss(new, torch.zeros(4).double(), a, rows, rows, aggregate="token-sum", clip_high_passes=True)
    loss.backward()
    assert loss.item() == pytest.approx(-2.4 + 3.0 + 0.8 - 1.1)
    assert new.grad.tolist() == pytest.approx([-2.4, 3.0, 0.0, -1.1])
    assert stats.clip_high.item() == stats.clip_low.item() == 0.25


@pytest.mark.parametrize(("entropy", "factors"), [
    ([1.0, 3.0], [1 - 0.2 / 2**0.5, 1 + 0.2 / 2**0.5]),  # mean 2, sample deviation sqrt 2
    ([5.0, 5.0], [1.0, 1.0]),
    ([5.0, None], [1.0, 0.0]),  # one unmasked token
    ([math.nan, 1.0], [math.nan, math.nan]),
])  # fmt: skip
def test_entropy_reweighting_by_hand(entropy, factors, backend):
    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    step = torch.tensor([-1 if h is None else 0 for h in entropy])
    given = torch.tensor([math.nan if h is None else h for h in entropy])
    words = {"entropy": given, "aggregate": "token-sum"}
    loss, _ = policy_loss(zero, zero.detach(), torch.ones(1), step, torch.zeros(2).long(), **words)
    loss.backward()
    assert (-zero.grad).tolist() == pytest.approx(factors, nan_ok=True)
    assert -loss.item() == pytest.approx(sum(factors), nan_ok=True)


def test_verl_aggregates_of_any_token_loss(shared, backend):
    """r = 1 and one advantage a token make the token's loss -A, so any matrix of losses goes through the op."""
    for case in vector(shared, "verl_agg_loss"):
        loss = torch.tensor(case["inputs"]["loss_mat"]).reshape(-1)
        zero = torch.zeros_like(loss)
        step, rollout = flat(case["inputs"]["mask"])
        for mode, expected in case["outputs"].items():
            got, _ = policy_loss(zero, zero, -loss, step, rollout, aggregate=mode, per="token")
            assert got.item() == pytest.approx(expected, rel=1e-5), mode


@pytest.mark.parametrize("aggregate", ["token-mean", "token-sum", "rollout-mean"])
@pytest.mark.parametrize("tokens", [70_001, 131_072])
def test_threads_change_no_bit(aggregate, tokens):
    """Several chunks on the CPU, against float64 by the definition and bit by bit against one thread."""
    g = torch.Generator().manual_seed(0)
    old, noise, ref = (torch.randn(tokens, generator=g) for _ in range(3))
    step = torch.arange(tokens) // 50
    step = torch.where(step % 4 == 0, -1, step)
    rollout = torch.arange(tokens) // 1000
    advantage = torch.randn(tokens // 50 + 1, generator=g)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        new = (old + 0.3 * noise).requires_grad_()
        loss, stats = policy_loss(new, old, advantage, step, rollout, ref, kl=0.1, aggregate=aggregate)
        loss.backward()
        results.append((loss, new.grad, torch.stack([x.double() for x in stats])))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    d, x = (new - old).detach().double(), (new.detach() - ref).double()
    a, r, y = advantage[step.clamp(min=0)].double(), d.exp(), (-x).clamp(-20, 20)
    token = torch.maximum(-a * r, -a * r.clamp(0.8, 1.2)) + 0.1 * (y.expm1() - y).clamp(max=10)
    expected = (token * aggregate_weights(step, rollout, aggregate, dtype=torch.float64)).sum()
    assert results[0][0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_exponential_of_the_cpu_code():
    from rtmc.kernels.token_loss_cpu import _exp_numba

    points = np.concatenate([np.linspace(-699, 20, 5001), np.linspace(-0.7, 0.7, 501), [0.0, 1.0, -1e-300]])
    got = np.array([_exp_numba(x) for x in points])
    exact = np.exp(points.astype(np.longdouble))
    assert np.abs((got - exact) / exact).max() <= 2 * np.finfo(np.float64).eps
    assert _exp_numba(0.0) == 1.0
    assert [_exp_numba(x) for x in (-701.0, -math.inf)] == [0.0, 0.0]
    assert math.isnan(_exp_numba(math.nan))


@pytest.mark.parametrize(("d", "a", "value", "slope"), [
    (25.0, -1.0, math.exp(20), 0.0),   # clamp of the log-ratio
    (-25.0, 1.0, -math.exp(-20), 0.0),
    (19.0, -1.0, math.exp(19), math.exp(19)),
    (19.0, 1.0, -1.2, 0.0),            # upper clip
])  # fmt: skip
def test_clamp_of_the_token_ratio(d, a, value, slope, backend):
    zero = torch.zeros(1).long()
    x = torch.tensor([d], dtype=torch.float64, requires_grad=True)
    loss, stats = policy_loss(x, torch.zeros(1).double(), torch.tensor([a]), zero, zero)
    loss.backward()
    assert (loss.item(), x.grad.item()) == pytest.approx((value, slope))
    assert stats.max_log_ratio.item() == abs(d)


@pytest.mark.parametrize(("x", "value", "slope"), [
    (-25.0, 10.0, 0.0), (25.0, math.exp(-20) + 19, 0.0), (15.0, 10.0, 0.0), (-2.0, math.e**2 - 3, 1 - math.e**2),
    (3.0, math.exp(-3) + 2, 1 - math.exp(-3)),
])  # fmt: skip
def test_clamps_of_k3(x, value, slope, backend):
    """k3 is at most 10 (so 19 becomes 10) and flat there and beyond 20."""
    zero = torch.zeros(1).long()
    new = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    args = (new, new.detach(), torch.zeros(1), zero, zero, torch.zeros(1).double())
    loss, _ = policy_loss(*args, kl=1.0)
    loss.backward()
    assert (loss.item(), new.grad.item()) == pytest.approx((min(value, 10.0), slope))


@pytest.mark.parametrize("x", [1e-4, -3e-3, 0.05, -0.12, 0.13])
def test_k3_near_zero_keeps_its_digits_in_float32(x, device):
    zero = torch.zeros(1).long()
    new, ref = torch.tensor([x]), torch.zeros(1)
    args = [a.to(device) for a in (new, new, torch.zeros(1), zero, zero, ref)]
    loss, _ = policy_loss(*args, kl=1.0)
    y = -float(new)
    assert loss.item() == pytest.approx(math.expm1(y) - y, rel=1e-4 if abs(x) < 0.01 else 5e-6)


def test_clamp_of_the_sequence_ratio(backend):
    new = torch.full((2,), 11.0, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(2).long()
    loss, _ = policy_loss(new, torch.zeros(2).double(), -torch.ones(1), zero, zero, ratio="sequence")
    loss.backward()
    assert loss.item() == pytest.approx(math.exp(10))
    assert new.grad.tolist() == [0, 0]


def test_any_strides(device, backend):
    new, old, ref, turns, mask, per_step = (x.to(device) for x in random_batch(6, 8, 2))
    step, rollout = (x.to(device) for x in flat(mask.cpu(), turns.cpu()))
    plain = (new.reshape(-1), old.reshape(-1), per_step, step, rollout, ref.reshape(-1))
    spread = [torch.stack([x, -x], dim=1)[:, 0] for x in plain]
    assert not any(x.is_contiguous() for x in spread)
    spread[0].requires_grad_()
    loss, _ = policy_loss(*spread, kl=0.1)
    assert torch.equal(loss, policy_loss(*plain, kl=0.1)[0])
    loss.backward()
    one_value = torch.zeros(1, device=device, dtype=torch.float64).expand(48)
    expanded = policy_loss(one_value, one_value, per_step, step, rollout)[0]
    assert torch.equal(expanded, policy_loss(one_value.clone(), one_value, per_step, step, rollout)[0])


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_opcheck(kl):
    new, old, ref, turns, mask, per_step = random_batch(3, 5, 1, torch.float32)
    step, rollout = flat(mask, turns)
    weights = aggregate_weights(step, rollout)
    args = (new.reshape(-1).requires_grad_(), old.reshape(-1), per_step, step, rollout, weights, ref.reshape(-1), None)
    torch.library.opcheck(torch.ops.rtmc.policy_loss.default, (*args, 0, 0.2, 0.2, 3.0, kl, 2))


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_traced_whole_by_torch_compile(aggregate, ratio):
    new, old, ref, turns, mask, per_step = random_batch(3, 5, 1)
    step, rollout = flat(mask, turns)
    rest = (old.reshape(-1), per_step, step, rollout, ref.reshape(-1))

    torch._dynamo.reset()  # the cases before this one count as recompilations

    def loss_of(x):
        return policy_loss(x, *rest, kl=0.1, aggregate=aggregate, ratio=ratio)[0]

    grads = []
    for f in (loss_of, torch.compile(loss_of, backend="aot_eager", fullgraph=True)):
        x = new.reshape(-1).clone().requires_grad_()
        f(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)


def test_half_precision_gradient_survives_a_loss_scale():
    """A weight of 1e-6 alone would vanish in float16; times the scale of 65536 it must not."""
    x = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    zero = torch.zeros(1).long()
    loss, _ = policy_loss(x, x.detach(), torch.ones(1), zero, zero, weights=torch.tensor([1e-9]))
    (loss * 65536).backward()
    assert x.grad.item() == pytest.approx(-6.5536e-5, rel=1e-3)
