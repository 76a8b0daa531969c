"""The policy loss by its definition on padded (B, L) float64 matrices, and the cases it is compared on."""

import math
from functools import partial

import torch

from rtmc.kernels import token_loss_triton
from rtmc.kernels.policy_loss import AGGREGATES, aggregate_weights, policy_loss
from tests.kernel_cases import PLACES, AotCase

# Of the loss against float64, relative to the sum of |w A|: the rounding of the inputs is shared, the rest is this.
TOLERANCE = {torch.float16: 2e-6, torch.bfloat16: 2e-6, torch.float32: 2e-6, torch.float64: 1e-13}


def flat(mask, turns=None):
    """(step_of_token, rollout_of_token) of a padded (B, L) batch: a row is a rollout; without turns it is one step."""
    mask = torch.as_tensor(mask) != 0
    rows, width = mask.shape
    rollout = torch.arange(rows)[:, None].expand(rows, width)
    step = rollout if turns is None else rollout * width + torch.as_tensor(turns)
    return torch.where(mask, step, -1).reshape(-1), rollout.reshape(-1)


def aggregate_of(loss, mask, mode):
    """The aggregates as sums over rows of a padded matrix; a row is a sequence and a rollout."""
    sums, lengths = (loss * mask).sum(1), mask.sum(1)
    rows = (lengths > 0).sum()
    if mode == "token-sum":
        return sums.sum()
    if mode == "token-mean":
        return sums.sum() / lengths.sum()
    if mode == "seq-mean-token-sum":
        return sums.sum() / rows
    if mode == "seq-mean-token-sum-norm":
        return sums.sum() / rows / mask.shape[1]
    return (sums / lengths.clamp(min=1)).sum() / rows


def reweighted(adv, entropy, mask, coefficient):
    """AEPO's advantages: times 1 + c z(entropy), z over the unmasked tokens with the sample deviation."""
    chosen = entropy[mask > 0]
    return adv * (1 + coefficient * (entropy - chosen.mean()) / chosen.std())


def truth(new, old, adv, mask, turns, ref, *, ratio, low, high, dual, kl, kl_mode, aggregate, high_passes=False):
    """The loss of a padded batch by torch's own autograd, every array (B, L) float64."""
    d = new - old
    if ratio == "token":
        log_ratio = d.clamp(-20, 20)
    else:
        level = torch.zeros_like(d)
        for b in range(d.shape[0]):
            ids = turns[b] if ratio == "turn" else torch.zeros_like(turns[b])
            for t in ids.unique():
                chosen = (ids == t) & (mask[b] > 0)
                if chosen.any():
                    level[b, chosen] = d[b, chosen].detach().mean()
        log_ratio = (level + new - new.detach()).clamp(max=10)
    r = log_ratio.exp()
    upper = (1 + high) * r / r.detach() if high_passes else torch.full_like(r, 1 + high)
    loss = torch.maximum(-adv * r, -adv * torch.minimum(r.clamp(min=1 - low), upper))
    if dual is not None:
        loss = torch.where(adv < 0, torch.minimum(loss, -adv * dual), loss)
    if kl:
        x = new - ref
        y = (-x).clamp(-20, 20)
        loss = loss + kl * {"k1": x, "k2": x**2 / 2, "k3": (y.exp() - 1 - y).clamp(-10, 10), "abs": x.abs()}[kl_mode]
    return aggregate_of(loss, mask, aggregate)


def random_batch(rows, width, seed, dtype=torch.float64):
    """Rounded to ``dtype`` first, so that the float64 truth starts from the same numbers."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=g, dtype=torch.float64) * 3
    new = old + 0.4 * torch.randn(rows, width, generator=g, dtype=torch.float64)
    ref = old + 0.4 * torch.randn(rows, width, generator=g, dtype=torch.float64)
    turns = torch.sort(torch.randint(0, 3, (rows, width), generator=g), 1).values
    mask = (torch.rand(rows, width, generator=g) < 0.7).double()
    mask[rows // 2] = 0
    # One more than there are tokens: as many would look like one a token.
    per_step = torch.randn(rows * width + 1, generator=g, dtype=torch.float64).to(dtype)
    new, old, ref = (x.to(dtype) for x in (new, old, ref))
    return new, old, ref, turns, mask, per_step


SETTINGS = [
    {},
    {"clip": (0.1, 0.3), "dual_clip": 1.2},
    {"ratio": "turn", "clip": (0.05, 0.02), "aggregate": "seq-mean-token-mean"},
    {"ratio": "sequence", "clip": (0.02, 0.05), "kl": 0.3, "kl_mode": "k1"},
    *({"kl": 0.7, "kl_mode": mode} for mode in ("k2", "k3", "abs")),
    *({"aggregate": mode} for mode in AGGREGATES),
    {"entropy_coef": 0.7, "clip": (0.1, 0.1), "clip_high_passes": True},
    {"entropy_coef": 0.2, "ratio": "turn", "clip_high_passes": True, "dual_clip": 1.3, "aggregate": "rollout-mean"},
]


def compare_with_truth(device, setting, dtype, rows=7, width=13, seed=3):
    """Loss, gradient and token count of one batch against ``truth``."""
    new, old, ref, turns, mask, per_step = random_batch(rows, width, seed, dtype)
    step, rollout = flat(mask, turns)
    wide = [x.double().clone() for x in (new, old, ref)]
    wide[0].requires_grad_()
    adv = per_step.double()[step.clamp(min=0)].reshape(new.shape)
    entropy = None
    if "entropy_coef" in setting:
        entropy = torch.rand(new.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        adv = reweighted(adv, entropy.double(), mask, setting["entropy_coef"])
        entropy = torch.where(step < 0, torch.nan, entropy.reshape(-1)).to(device)
    low, high = setting.get("clip", (0.2, 0.2))
    words = {"ratio": "token", "kl": 0.0, "kl_mode": "k3", "aggregate": "token-mean"}
    words |= {k: v for k, v in setting.items() if k in words}
    arrays = (*wide[:2], adv, mask, turns, wide[2])
    passes = setting.get("clip_high_passes", False)
    expected = truth(*arrays, low=low, high=high, dual=setting.get("dual_clip"), high_passes=passes, **words)
    expected.backward()

    logprob = new.reshape(-1).to(device).requires_grad_()
    rest = [x.to(device) for x in (old.reshape(-1), per_step, step, rollout, ref.reshape(-1))]
    loss, stats = policy_loss(logprob, *rest, **setting, entropy=entropy)
    (loss * 2).backward()
    weights = aggregate_weights(rest[2], rest[3], words["aggregate"], dtype=torch.float64).cpu()
    scale = (weights * (adv.abs().reshape(-1) * 2 + 1)).sum()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert abs(loss.item() - expected.item()) <= TOLERANCE[dtype] * scale
    assert logprob.grad.dtype == dtype
    # The gradient is rounded to the argument's dtype at the end, so it is relative to each token's own.
    torch.testing.assert_close(
        logprob.grad.double().cpu() / 2,
        wide[0].grad.reshape(-1),
        rtol=max(4 * TOLERANCE[dtype], torch.finfo(dtype).eps),
        atol=1e-7 if dtype == torch.float16 else TOLERANCE[dtype] * weights.max().item(),
    )
    assert stats.tokens.item() == int(mask.sum())


def compare_sizes(device, tokens):
    """Lengths around the block: the loss and the mean ratio of one-token steps."""
    g = torch.Generator().manual_seed(tokens)
    new, old, adv = (torch.randn(tokens, generator=g) * 0.1 for _ in range(3))
    rollout = torch.arange(tokens) // 100
    args = [x.to(device) for x in (new, old, adv, rollout, rollout)]
    loss, stats = policy_loss(*args, per="token", aggregate="token-mean")
    r = (new.double() - old.double()).exp()
    expected = torch.maximum(-adv.double() * r, -adv.double() * r.clamp(0.8, 1.2)).mean()
    assert abs(loss.item() - expected.item()) <= 2e-7
    assert stats.tokens.item() == tokens
    assert abs(stats.ratio_mean.item() - r.mean().item()) <= 1e-6
    assert torch.equal(loss, policy_loss(*args, per="token")[0])


def compare_place(device, place):
    """Every argument elsewhere, or narrower; the gradient goes back to where the log-probabilities lie."""
    new, old, ref, turns, mask, per_step = random_batch(5, 7, 11, torch.float32)
    step, rollout = flat(mask, turns)
    entropy, weights = torch.rand(2, step.shape[0], generator=torch.Generator().manual_seed(0)).unbind(0)
    plain = [new.reshape(-1), old.reshape(-1), per_step, step, rollout, ref.reshape(-1)]
    more = {"sequence_of_token": rollout, "entropy": entropy, "weights": weights}
    words = {"kl": 0.1, "ratio": "turn"}
    results = []
    for move in (lambda t: t, place):
        args = [move(t.to(device)) for t in plain]
        args[0] = args[0].detach().requires_grad_()
        loss, stats = policy_loss(*args, **{name: move(t.to(device)) for name, t in more.items()}, **words)
        loss.backward()
        results.append((loss.detach(), args[0].grad, *(s.double() for s in stats)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def compare_expanded(device):
    """One log-probability, one advantage and one id for 40 tokens."""
    new, old, a = (torch.tensor([x], device=device) for x in (-0.3, -0.4, 1.5))
    ids = torch.tensor([2], device=device)
    spread = [x.expand(40) for x in (new, old, a, ids, ids)]
    loss, stats = policy_loss(*spread, per="token", ratio="sequence")
    assert torch.equal(loss, policy_loss(*(x.contiguous() for x in spread), per="token", ratio="sequence")[0])
    assert abs(loss.item() + 1.5 * math.exp(0.1)) <= 1e-6
    assert stats.tokens.item() == 40


def compare_extremes(device):
    """Differences far beyond every clamp, in both signs, against the definition; then the same with faults."""
    grid = torch.tensor([-30.0, -20.0, -5.0, -1e-3, 0.0, 1e-3, 0.3, 2.0, 5.0, 15.0, 30.0], dtype=torch.float64)
    new = grid.repeat(2)[None]
    zero = torch.zeros_like(new)
    adv = torch.cat([torch.ones(11), -torch.ones(11)]).double()[None]
    step = torch.arange(22)
    for mode in ("k1", "k2", "k3", "abs"):
        x = new.clone().requires_grad_()
        words = {"kl": 0.5, "kl_mode": mode, "aggregate": "token-sum"}
        expected = truth(
            x, zero, adv, torch.ones_like(new), zero, zero, ratio="token", low=0.2, high=0.2, dual=3.0, **words
        )
        expected.backward()
        y = new[0].to(device).requires_grad_()
        nil = zero[0].to(device)
        index = step.to(device)
        loss, stats = policy_loss(y, nil, adv[0].to(device), index, index, nil, dual_clip=3.0, **words)
        loss.backward()
        torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=1e-12, atol=1e-9)
        # At d = 0 the kinks of |x| and of the ratio meet; all agree on the derivative 0 of |x| there.
        torch.testing.assert_close(y.grad.cpu(), x.grad[0], rtol=1e-9, atol=1e-9)
        assert stats.max_log_ratio.item() == 30
    for bad in (float("nan"), float("inf"), -float("inf")):
        y = new[0].clone()
        y[3] = bad
        y = y.to(device).requires_grad_()
        loss, stats = policy_loss(y, nil, adv[0].to(device), index, index, nil, kl=0.1)
        loss.backward()
        assert loss.isnan()
        assert y.grad.isnan().nonzero().tolist() == [[3]]
        assert stats.max_log_ratio.item() == float("inf")
        index_without = torch.where(index == 3, -1, index)
        loss, _ = policy_loss(y, nil, adv[0].to(device), index_without, index, nil, kl=0.1)
        assert loss.isfinite()


def cases():
    for setting in SETTINGS:
        name = " ".join(map(str, setting.values())) or "default"
        yield f"{name}, float32", partial(compare_with_truth, setting=setting, dtype=torch.float32)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        setting = {"kl": 0.1, "dual_clip": 1.2, "ratio": "turn"}
        yield f"{dtype}", partial(compare_with_truth, setting=setting, dtype=dtype)
    for tokens in (1, 511, 512, 513, 1023, 1024, 1025, 2000):
        yield f"{tokens} tokens", partial(compare_sizes, tokens=tokens)
    yield "clamps, kinks and faults", compare_extremes

    for name, place in PLACES.items():
        yield name, partial(compare_place, place=place)
    yield "expanded", compare_expanded


def aot():
    flags = {"PER": 0, "HAS_WEIGHT": False, "HAS_REF": True, "ADD_KL": True, "HAS_SEGMENT": False, "KL_MODE": 2}
    flags |= {"HAS_ENTROPY": False, "HIGH_PASSES": False, "HAS_DUAL": True, "BLOCK": 1024}
    plain = {**flags, "HAS_REF": False, "ADD_KL": False, "HAS_DUAL": False, "HAS_WEIGHT": True}
    entropy = {"HAS_ENTROPY": True, "HIGH_PASSES": True}
    # (dtype of logprob, of what is computed, constexprs, wide loads of a thread: two for each of the ids, one for each
    # float32 array; a bfloat16 array is read 64 bits at a time on AMD, where a thread has 4 tokens).
    variants = [
        ("bf16", "fp32", flags, 6),
        ("fp16", "fp32", {**flags, "KL_MODE": 0}, 6),
        ("fp32", "fp32", plain, 7),
        ("fp32", "fp32", {**flags, "KL_MODE": 1}, 7),
        ("fp32", "fp32", {**flags, **entropy, "HAS_SEGMENT": True, "KL_MODE": 3, "PER": 1}, 9),
        ("fp64", "fp64", {**flags, "BLOCK": 512, "PER": 2}, 5),
    ]
    for new, acc, constexprs, wide in variants:
        types = (
            f"*{new} *{acc} *fp32 *i64 *i64 *{acc} *{acc} *{acc} *fp32 *fp64 *{acc} *fp64 i64 i64 fp32 fp32 i64 i64 i64"
        )
        yield AotCase(token_loss_triton._token_loss_kernel, types, constexprs, wide=wide)
    for acc, mean in (("fp32", True), ("fp64", False)):
        types = f"*fp64 *{acc} *fp64 i64"
        yield AotCase(token_loss_triton._token_stats_kernel, types, {"MEAN": mean, "BLOCK": 1024})
