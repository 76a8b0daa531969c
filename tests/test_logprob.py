"""`token_logprobs`: hand-worked values, finite differences, torch's own functions, memory, properties, refusals.

Against whole float64 logits, at the sizes of blocks and with strides: ``tests/kernel_cases/logprob.py``.
"""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from rtmc.kernels import logprob
from rtmc.kernels.logprob import token_logprobs
from rtmc.kernels.logprob_sweep import Blocks
from rtmc.kernels.policy_loss import policy_loss
from tests.kernel_cases.logprob import (
    IGNORE,
    by_definition,
    compare,
    compare_extremes,
    compare_masked_gradient,
    inputs,
    small_blocks,
)

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


# --- values and gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("entropy", [False, True])
def test_hand_worked(entropy, device, backend):
    """Logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8; at temperature 1/2 they are 1/30, 4/30, 25/30."""
    weight = torch.tensor([1.0, 2.0, 5.0], device=device).double().log()[:, None].requires_grad_()
    hidden = torch.ones(3, 1, device=device).double().requires_grad_()
    targets = torch.tensor([2, IGNORE, 0], device=device)
    got, own = token_logprobs(hidden, weight, targets, entropy=entropy)
    assert got.tolist() == pytest.approx([math.log(5 / 8), 0, math.log(1 / 8)])
    cold, _ = token_logprobs(hidden, weight, targets, temperature=0.5)
    assert cold.tolist() == pytest.approx([math.log(25 / 30), 0, math.log(1 / 30)])
    grad, grad_weight = torch.autograd.grad(got.sum(), (hidden, weight), retain_graph=True)
    mean = (2 * math.log(2) + 5 * math.log(5)) / 8
    assert grad[:, 0].tolist() == pytest.approx([math.log(5) - mean, 0, -mean])
    assert grad_weight[:, 0].tolist() == pytest.approx([1 - 2 / 8, -4 / 8, 1 - 10 / 8])
    if entropy:
        nats = math.log(8) - mean
        assert own.tolist() == pytest.approx([nats, 0, nats])
        # d entropy / dz = -p (log p + entropy), and dz / dhidden = weight.
        of = sum(-n / 8 * (math.log(n / 8) + nats) * math.log(n) for n in (1, 2, 5))
        assert torch.autograd.grad(own.sum(), hidden)[0][:, 0].tolist() == pytest.approx([of, 0, of])
    else:
        assert own is None


@pytest.mark.parametrize("tokens", [1023, 1024, 1025])
@pytest.mark.parametrize("train_weight", [False, True])
def test_tokens_around_a_block(tokens, train_weight, device):
    assert Blocks.TOKENS == 1024
    compare(device, inputs(tokens, 9, 4, torch.float32), entropy=train_weight, train_weight=train_weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("entropy", "train_weight"), [(False, False), (False, True), (True, False), (True, True)])
def test_every_backend_equals_the_definition(dtype, entropy, train_weight, device, backend):
    with small_blocks(24, 64):
        compare(device, inputs(50, 211, 12, dtype), 1.3, entropy, train_weight)


def test_extremes_and_masked_words_by_every_backend(device, backend):
    compare_extremes(device, torch.float64)
    compare_masked_gradient(device)


def test_a_whole_row_of_masked_words_has_no_distribution(device, backend):
    bias = torch.full((5,), -torch.inf, device=device)
    args = (torch.ones(2, 3, device=device), torch.ones(5, 3, device=device), torch.tensor([1, IGNORE], device=device))
    for got in token_logprobs(*args, bias, entropy=True):
        assert got[0].isnan()
        assert got[1] == 0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_against_cross_entropy(temperature, device, backend):
    """torch's function on whole logits, with a mean over the tokens that count."""
    hidden, weight, targets, bias = (x.to(device) for x in inputs(40, 77, 10, torch.float64))
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    z = (hidden @ weight.t() + bias) / temperature
    theirs = torch.nn.functional.cross_entropy(z, targets, ignore_index=IGNORE)
    got, _ = token_logprobs(hidden, weight, targets, bias, temperature)
    ours = -got.sum() / (targets != IGNORE).sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("trained", ["h", "hw", "hwb", "w", "b"])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck_by_finite_differences(trained, entropy, backend):
    hidden, weight, targets, bias = inputs(5, 7, 3, torch.float64)
    named = {"h": hidden, "w": weight, "b": bias}
    leaves = [named[name].requires_grad_() for name in trained]

    def of(*_):
        got = token_logprobs(hidden, weight, targets, bias, 0.8, entropy)
        return got if entropy else got[0]

    with small_blocks(2, 4):
        assert torch.autograd.gradcheck(of, leaves)


@pytest.mark.parametrize("train_weight", [False, True])
def test_a_second_derivative_raises(train_weight, backend):
    hidden, weight, targets, _ = inputs(5, 7, 3, torch.float64)
    hidden.requires_grad_()
    weight.requires_grad_(train_weight)
    got, _ = token_logprobs(hidden, weight, targets)
    (grad,) = torch.autograd.grad(got.sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        (got.sum() + grad.square().sum()).backward()


def test_tied_embedding(device, backend):
    """One matrix embeds and projects, given as a view: both paths add up in its gradient."""
    ids = torch.randint(0, 30, (12,), device=device)
    table = torch.randn(31, 6, dtype=torch.float64, device=device, requires_grad=True)

    def loss(score):
        tied = table[1:]
        return score(torch.tanh(torch.nn.functional.embedding(ids, tied)), tied).sum()

    ours = loss(lambda h, w: token_logprobs(h[:-1], w, ids[1:])[0])
    theirs = loss(lambda h, w: by_definition(h[:-1], w, ids[1:])[0])
    (a,), (b,) = torch.autograd.grad(ours, table), torch.autograd.grad(theirs, table)
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_the_first_sampled_token_is_scored_by_the_last_prompt_token(device):
    """Prompt, prompt, prompt, response, response: with states shifted against tokens two targets are left, both
    responses, and the loss moves exactly the two states before them."""
    ids, sampled = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 0, 0, 1, 1])
    hidden = torch.randn(5, 4, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, device=device)
    targets = torch.where(sampled[1:] == 1, ids[1:], IGNORE).to(device)
    got, _ = token_logprobs(hidden[:-1], weight, targets)
    every = (hidden @ weight.t()).log_softmax(-1)
    torch.testing.assert_close(got[2:], torch.stack([every[2, 1], every[3, 5]]))
    got.sum().backward()
    assert hidden.grad.any(1).tolist() == [False, False, True, True, False]


def test_behind_the_policy_loss(device):
    """The loss's gradient to the hidden states, and nothing of a masked token that holds NaN."""
    hidden, weight, _, _ = (x.to(device) if x is not None else None for x in inputs(30, 50, 8, torch.float32))
    targets = torch.randint(0, 50, (30,), device=device)
    step = torch.where(torch.arange(30, device=device) % 5 == 0, -1, torch.arange(30, device=device) // 6)
    hidden[step < 0] = torch.nan
    old, advantage = torch.full((30,), -4.0, device=device), torch.randn(5, device=device)
    grads, losses = [], []
    for score in (
        lambda h: token_logprobs(h, weight, targets)[0],
        lambda h: by_definition(h.nan_to_num(0.0), weight, targets)[0].float(),
    ):
        leaf = hidden.clone().requires_grad_()
        loss, _ = policy_loss(score(leaf), old, advantage, step, torch.zeros_like(step))
        grads.append(torch.autograd.grad(loss, leaf)[0])
        losses.append(loss)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads[0][step >= 0], grads[1][step >= 0], rtol=1e-4, atol=1e-6)
    assert (grads[0][step < 0] == 0).all()


# --- properties ---------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.floats(0.2, 5), st.integers(0, 10**6))
def test_what_a_distribution_obeys(tokens, vocabulary, temperature, seed):
    hidden, weight, _, bias = inputs(tokens, vocabulary, 4, torch.float64, seed)
    with small_blocks(8, 16):
        # Every word scored from one state: probabilities sum to one, and their mean surprise is the entropy.
        words = torch.arange(vocabulary)
        of_one = hidden[:1].expand(vocabulary, 4)
        got, own = token_logprobs(of_one, weight, words, bias, temperature, True)
        assert got.exp().sum().item() == pytest.approx(1, rel=1e-12)
        assert -(got.exp() * got).sum().item() == pytest.approx(own[0].item(), rel=1e-10, abs=1e-12)
        assert 0 <= own[0] + 1e-12 <= math.log(vocabulary) + 2e-12
        # A constant on every logit changes nothing; another order of the words neither.
        shifted, _ = token_logprobs(of_one, weight, words, bias + 7, temperature)
        order = torch.randperm(vocabulary)
        mixed, _ = token_logprobs(of_one, weight[order], words.argsort()[order.argsort()], bias[order], temperature)
        # Temperature is a scale of the logits.
        scaled, _ = token_logprobs(of_one, weight / temperature, words, bias / temperature)
    for other in (shifted, mixed, scaled):
        torch.testing.assert_close(other, got, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("train_weight", [False, True])
def test_the_same_bits_every_time(train_weight, device):
    hidden, weight, targets, bias = (x.to(device) for x in inputs(300, 500, 16, torch.float32))
    results = []
    for dtype in (torch.int64, torch.int32, torch.int64):
        leaves = [x.clone().requires_grad_() for x in ((hidden, weight, bias) if train_weight else (hidden,))]
        args = (
            leaves[0],
            leaves[1] if train_weight else weight,
            targets.to(dtype),
            leaves[-1] if train_weight else bias,
        )
        got, _ = token_logprobs(*args, 0.9)
        results.append((got, *torch.autograd.grad(got.square().sum(), leaves)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


# --- memory and work ----------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Every tensor that torch makes below an op's implementation, and the rows of every matrix product."""

    def __init__(self):
        super().__init__()
        self.sizes, self.products = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else [out]:
            if isinstance(made, torch.Tensor):
                self.sizes.add(made.numel())
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            shapes = [a.shape for a in args if isinstance(a, torch.Tensor)][-2:]
            self.products.append((shapes[0][0], shapes[0][1], shapes[1][1]))
        return out


def watched(work, *args):
    with Watch() as watch:
        result = work(Blocks, *args)
    return watch, result


def test_no_tensor_of_tokens_by_vocabulary_is_made():
    """Below the ops, forward and backward by either way; and without a gradient to ``weight`` none of its size."""
    tokens, vocabulary, size = 256, 2000, 8
    hidden, weight, targets, bias = inputs(tokens, vocabulary, size, torch.float32)
    largest = Blocks.BUDGET // 4
    with small_blocks(64, 256):
        budget = Blocks.BUDGET // 4
        assert budget < tokens * vocabulary / 30 < largest
        tie = hidden[:0]
        forward, out = watched(
            logprob._token_logprobs_in_blocks, hidden, weight, targets, bias, 0.7, False, IGNORE, tie
        )
        again, _ = watched(logprob._token_logprobs_in_blocks, hidden, weight, targets, bias, 0.7, True, IGNORE, None)
        up = torch.ones(tokens)
        args = (up, up, hidden, weight, targets, bias, out[2], torch.ones(tokens), 0.7, IGNORE)
        backward, _ = watched(logprob._token_logprobs_bwd_in_blocks, *args, True, False, False)
        trained, _ = watched(logprob._token_logprobs_bwd_in_blocks, *args, True, True, True)
    for watch in (forward, again, backward):
        assert max(watch.sizes) <= budget  # which is more than tokens x size, and as much as vocabulary x size
        assert budget in watch.sizes
    assert max(trained.sizes) == max(weight.numel(), budget)


def test_ignored_rows_and_rows_without_gradient_enter_no_product():
    hidden, weight, targets, _ = inputs(100, 48, 8, torch.float32, ignored=0.5)
    count = int((targets != IGNORE).sum())
    args = (hidden, weight, targets, None, 1.0, False, IGNORE, None)
    forward, out = watched(logprob._token_logprobs_in_blocks, *args)
    assert forward.products == [(count, 8, 48)]
    up = torch.zeros(100)
    moved = (targets != IGNORE).nonzero()[:3, 0]
    up[moved] = 1
    args = (up, None, hidden, weight, targets, None, out[2], out[1], 1.0, IGNORE, True, True, False)
    backward, _ = watched(logprob._token_logprobs_bwd_in_blocks, *args)
    assert backward.products == [(3, 8, 48), (3, 48, 8), (48, 3, 8)]


def allocated(work):
    """(peak, largest single allocation) of ``work`` in bytes, as torch's allocator on the CPU reports each."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, max(event.nbytes() for event in events)


@pytest.mark.parametrize("way", ["logprob", "entropy", "all trained"])
def test_peak_of_the_whole_pass(way, monkeypatch):
    """Four sequences, a sixteenth of 2,048 tokens each, and of 151,936 words: through the public op and back."""
    monkeypatch.undo()  # poisoned memory makes no difference here but takes time
    tokens, vocabulary, size = 4 * 128, 151936 // 16, 16
    hidden, weight, targets, _ = inputs(tokens, vocabulary, size, torch.float32, ignored=0, with_bias=False)
    hidden.requires_grad_()
    weight.requires_grad_(way == "all trained")
    asked = [hidden, weight] if weight.requires_grad else [hidden]
    logits = tokens * vocabulary * 4

    def ours():
        got, own = token_logprobs(hidden, weight, targets, entropy=way == "entropy")
        torch.autograd.grad(got.sum() + (own.sum() if own is not None else 0), asked)

    def plain():
        torch.autograd.grad((hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None]).sum(), hidden)

    ours()
    peak, largest = allocated(ours)
    assert largest <= Blocks.BUDGET < logits / 2
    buffers = {"logprob": 1, "entropy": 2, "all trained": 1}[way]
    of_weight = 2 * weight.numel() if weight.requires_grad else 0  # its gradient, and the block that is summed up
    assert peak <= buffers * Blocks.BUDGET + 4 * (5 * hidden.numel() + 40 * tokens + of_weight)
    assert allocated(plain)[0] >= 2 * logits


def test_resident_memory_of_the_whole_pass(monkeypatch):
    """The same by the system's account, which sees libraries too; and the account itself, on a tensor of known size."""
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(BENCH))
    from memory import peak_extra_bytes

    def known():
        torch.ones(48 * 2**20, dtype=torch.uint8)  # gone again at once
        return torch.ones(16 * 2**20, dtype=torch.uint8)

    assert 47 <= peak_extra_bytes(known, "cpu") / 2**20 <= 48 + 16 + 4
    with pytest.raises(ValueError, match="`device`: got 'meta'"):
        peak_extra_bytes(known, "meta")
    tokens, vocabulary = 4096, 9496
    hidden, weight, targets, _ = inputs(tokens, vocabulary, 8, torch.float32, ignored=0, with_bias=False)
    hidden.requires_grad_()

    def ours():
        return torch.autograd.grad(token_logprobs(hidden, weight, targets)[0].sum(), hidden)

    ours()
    assert peak_extra_bytes(ours, "cpu") <= tokens * vocabulary * 4 / 8


# --- the op -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_opcheck(dtype, device):
    hidden, weight, targets, bias = (x.to(device) for x in inputs(6, 9, 4, dtype))
    hidden.requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    op = torch.ops.rtmc.token_logprobs
    torch.library.opcheck(op, (hidden, weight, targets, None, 1.0, False, IGNORE, hidden[:0].clone()), test_utils=tests)
    weight.requires_grad_()
    bias.requires_grad_()
    torch.library.opcheck(op, (hidden, weight, targets, bias, 0.7, True, IGNORE), test_utils=tests)
    plain = [x.detach() for x in (hidden, weight, targets, bias)]
    _, own, stats, direction = op(*plain, 0.7, True, IGNORE, plain[0][:0])
    up = torch.ones_like(own)
    needs = (True, False, True)
    backward = torch.ops.rtmc.token_logprobs_bwd
    torch.library.opcheck(backward, (up, up, *plain, stats, own, 0.7, IGNORE, *needs), test_utils=tests)
    scaled = torch.ops.rtmc.token_logprobs_scaled
    torch.library.opcheck(scaled, (direction, up, plain[2], IGNORE, plain[0][:0]), test_utils=tests)


@pytest.mark.parametrize("train_weight", [False, True])
def test_a_caller_compiles_whole(train_weight, device):
    hidden, weight, targets, bias = (x.to(device) for x in inputs(20, 30, 8, torch.float32))
    hidden.requires_grad_()
    weight.requires_grad_(train_weight)

    def caller(h, w):
        got, own = token_logprobs(torch.tanh(h), w, targets, bias, 0.7, train_weight)
        return got.sum() + (own.sum() if train_weight else 0)

    asked = [hidden, weight] if train_weight else [hidden]
    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")
    for a, b in zip(*(torch.autograd.grad(f(hidden, weight), asked) for f in (compiled, caller)), strict=True):
        torch.testing.assert_close(a, b)


HIDDEN, WEIGHT, TARGETS = torch.ones(3, 4), torch.ones(5, 4), torch.tensor([0, IGNORE, 4])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1.0]], WEIGHT, TARGETS), TypeError, "`hidden`: got list"),
        ((HIDDEN.long(), WEIGHT, TARGETS), ValueError, "`hidden`: got int64"),
        ((HIDDEN[None], WEIGHT, TARGETS), ValueError, r"`hidden`: .*\(1, 3, 4\).*\(T, H\)"),
        ((HIDDEN, WEIGHT.half(), TARGETS), ValueError, "`weight`: got float16.*wanted float32"),
        ((HIDDEN, WEIGHT[:, :3], TARGETS), ValueError, r"`weight`: .*\(5, 3\).*\(V, 4\)"),
        ((HIDDEN, WEIGHT.to("meta"), TARGETS), ValueError, "`weight`: .*on meta; wanted .*on cpu"),
        ((HIDDEN, WEIGHT, TARGETS[:2]), ValueError, r"`targets`: .*\(2,\).*\(3,\)"),
        ((HIDDEN, WEIGHT, TARGETS.float()), ValueError, "`targets`: got float32.*int64 or int32"),
        ((HIDDEN, WEIGHT, torch.tensor([0, 5, 9])), ValueError, r"`targets`: got 5 at position 1; wanted 0 to 4"),
        ((HIDDEN, WEIGHT, torch.tensor([0, 0, -1])), ValueError, r"`targets`: got -1 at position 2; .*-100"),
        ((HIDDEN, WEIGHT[:0], TARGETS), ValueError, r"`targets`: got 0 at position 0"),
        ((HIDDEN, WEIGHT, TARGETS, torch.ones(4)), ValueError, r"`bias`: .*\(4,\).*\(5,\)"),
        ((HIDDEN, WEIGHT, TARGETS, torch.ones(5).double()), ValueError, "`bias`: got float64"),
        ((HIDDEN, WEIGHT, TARGETS, 1.0), TypeError, "`bias`: got float"),
        ((HIDDEN, WEIGHT, TARGETS, None, 0.0), ValueError, "`temperature`: got 0.0"),
        ((HIDDEN, WEIGHT, TARGETS, None, -1.0), ValueError, "`temperature`: got -1.0"),
        ((HIDDEN, WEIGHT, TARGETS, None, math.nan), ValueError, "`temperature`: got nan"),
        ((HIDDEN, WEIGHT, TARGETS, None, math.inf), ValueError, "`temperature`: got inf"),
        ((HIDDEN, WEIGHT, TARGETS, None, 1e-46), ValueError, "`temperature`: got 1e-46; .*reciprocal .* float32"),
        ((HIDDEN.half(), WEIGHT.half(), TARGETS, None, 1e-39), ValueError, "`temperature`: got 1e-39; .* float32"),
        ((HIDDEN.double(), WEIGHT.double(), TARGETS, None, 5e-324), ValueError, "`temperature`: got 5e-324; .*float64"),
        (
            (HIDDEN.to_sparse(), WEIGHT, TARGETS),
            ValueError,
            "`hidden`: got a tensor of layout sparse_coo",
        ),
        ((HIDDEN, WEIGHT, TARGETS.short()), ValueError, "`targets`: got int16.*wanted int64 or int32"),
        ((HIDDEN, WEIGHT, TARGETS, None, "1"), TypeError, "`temperature`: got '1'"),
        ((HIDDEN, WEIGHT, TARGETS, None, 1.0, 1), TypeError, "`entropy`: got 1"),
        ((HIDDEN, WEIGHT, TARGETS, None, 1.0, False, None), TypeError, "`ignore_index`: got None"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        token_logprobs(*arguments)


def test_the_ignored_target_may_be_a_word(device, backend):
    args = (HIDDEN.to(device), WEIGHT.to(device), torch.tensor([0, 2, 4], device=device))
    assert token_logprobs(*args, ignore_index=2)[0].tolist() == pytest.approx([-math.log(5), 0, -math.log(5)])
