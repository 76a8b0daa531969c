"""``token_logprobs`` by torch's log_softmax and autograd on whole float64 logits, and the cases it is compared on."""

from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch

from rtmc.kernels import logprob_triton
from rtmc.kernels.logprob import token_logprobs
from rtmc.kernels.logprob_sweep import Blocks
from tests.kernel_cases import AotCase, close

IGNORE = -100


@contextmanager
def small_blocks(rows=16, columns=48):
    """Blocks of so few numbers that small inputs take several of them in both directions."""
    with ExitStack() as stack:
        for kind in (Blocks, logprob_triton.TritonBlocks):
            stack.enter_context(patch.object(kind, "TOKENS", rows))
            stack.enter_context(patch.object(kind, "BUDGET", 4 * rows * columns))
        yield


def by_definition(hidden, weight, targets, bias=None, temperature=1.0, ignore_index=IGNORE):
    """(logprob, entropy, logits' log-probabilities) with every logit there at once, in float64."""
    z = hidden.double() @ weight.double().t()
    every = ((z if bias is None else z + bias.double()) / temperature).log_softmax(-1)
    counted = targets != ignore_index
    own = every.gather(1, torch.where(counted, targets, 0).long()[:, None])[:, 0]
    # 0 log 0 = 0, in the gradient as well.
    plogp = torch.where(every == -torch.inf, 0.0, every.exp() * every.clamp(min=-1e300))
    return torch.where(counted, own, 0.0), torch.where(counted, -plogp.sum(-1), 0.0), every


def inputs(tokens, vocabulary, size, dtype, seed=0, ignored=0.2, with_bias=True):
    """(hidden, weight, targets, bias) on the CPU, rounded to ``dtype``: the truth starts from the same numbers."""
    g = torch.Generator().manual_seed(seed + tokens + 1000 * vocabulary)
    hidden = torch.randn(tokens, size, generator=g, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, size, generator=g, dtype=torch.float64).to(dtype)
    bias = torch.randn(vocabulary, generator=g, dtype=torch.float64).to(dtype) if with_bias else None
    targets = torch.randint(0, vocabulary, (tokens,), generator=g)
    targets[torch.rand(tokens, generator=g) < ignored] = IGNORE
    return hidden, weight, targets, bias


def compare(device, values, temperature=1.0, entropy=True, train_weight=True, make=lambda x: x):
    """Forward, and every gradient that is asked for, against ``by_definition``.

    The bounds follow the arithmetic: an error of (H + 2) roundings in a logit is one in its log-probability, and enters
    a gradient through p. The halves' coefficients and gradients have one rounding of the dtype more each.
    """
    hidden, weight, targets, bias = values
    dtype, size = hidden.dtype, hidden.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    wides = [x.double().requires_grad_() for x in (hidden, weight, bias) if x is not None]
    expected, expected_entropy, every = by_definition(wides[0], wides[1], targets, *wides[2:], temperature=temperature)
    g = torch.Generator().manual_seed(1)
    up, up_entropy = torch.randn(2, len(targets), generator=g, dtype=torch.float64).to(wide).double()
    up[::7] = 0
    loss = (expected * up).sum() + ((expected_entropy * up_entropy).sum() if entropy else 0)
    truths = torch.autograd.grad(loss, wides)

    leaves = [make(x.to(device)).detach() for x in (hidden, weight, bias) if x is not None]
    for leaf in leaves if train_weight else leaves[:1]:
        leaf.requires_grad_()
    own_bias = leaves[2] if bias is not None else None
    got, got_entropy = token_logprobs(*leaves[:2], targets.to(device), own_bias, temperature, entropy)
    assert got.dtype == wide
    assert (got_entropy is not None) == entropy
    total = (got * up.to(device)).sum() + ((got_entropy * up_entropy.to(device)).sum() if entropy else 0)
    asked = leaves if train_weight else leaves[:1]
    grads = torch.autograd.grad(total, asked)

    h, w = hidden.double().abs(), weight.double().abs()
    unit = torch.finfo(wide).eps / 2
    magnitude = (h @ w.t() + (0 if bias is None else bias.double().abs())) / temperature
    of_logit = (size + 4) * unit * (magnitude.max().item() if magnitude.numel() else 0) + 4 * unit
    close(got, expected, rtol=4 * unit, atol=2 * of_logit)
    p = every.detach().exp()
    if entropy:
        spread = 1 + every.detach().abs().mul(p).sum(-1).max().item() if p.numel() else 1
        close(got_entropy, expected_entropy, rtol=4 * unit, atol=4 * of_logit * spread)
    still = (targets == IGNORE) | ((up == 0) & ((up_entropy == 0) if entropy else True))
    assert (grads[0][still.to(device)] == 0).all()
    assert (got[(targets == IGNORE).to(device)] == 0).all()

    # How large the terms of C are before they cancel.
    counted = (targets != IGNORE).double()
    terms = up.abs()[:, None] * (p + torch.nn.functional.one_hot(targets.clamp(min=0), len(weight)))
    if entropy:
        terms = terms + up_entropy.abs()[:, None] * p * (every.detach().clamp(min=-1000).abs() + 1 + spread)
    terms = terms * counted[:, None] / temperature
    rounding = (8 + len(weight) ** 0.5) * unit + 4 * of_logit + (0 if dtype == wide else 2 * torch.finfo(dtype).eps)
    scales = (terms @ w, terms.t() @ h, terms.sum(0))
    tiny = torch.finfo(dtype).tiny * (1 + len(targets) + len(weight))
    for name, grad, truth, scale, leaf in zip("hwb", grads, truths, scales, asked, strict=False):
        assert grad.dtype == dtype
        assert grad.shape == leaf.shape
        # The last rounding, to a half, is of the sum.
        bound = rounding * scale + tiny
        error = (grad.double().cpu() - truth).abs()
        assert (error <= bound).all(), f"d{name}: {(error / bound).max().item():.2f} times the bound"


def compare_random(device, tokens, vocabulary, size, dtype=torch.float64, blocks=None, with_bias=True, **options):
    values = inputs(tokens, vocabulary, size, dtype, with_bias=with_bias)
    with small_blocks(*blocks) if blocks else ExitStack():
        compare(device, values, **options)


def compare_extremes(device, dtype=torch.float32):
    """Logits of 10,000; masked entries; rows that hold no number. No row sees another."""
    size, vocabulary = 4, 100
    hidden, weight, targets, bias = inputs(9, vocabulary, size, dtype, ignored=0)
    weight[:, 0] = 0
    weight[3, 0], weight[5, 0], weight[90, 0] = 1, -1, 1
    hidden[0, 0], hidden[1, 0] = 1e4, -1e4
    bias[7], bias[40:60] = -torch.inf, -torch.inf
    targets[:3] = torch.tensor([3, 5, 7])
    odd = {4: torch.nan, 5: torch.inf, 6: -torch.inf}
    for row, value in odd.items():
        hidden[row, 0] = value  # 0 * infinity is NaN in each of these rows
    for blocks in ((16, 16), (4, 1000)):
        with small_blocks(*blocks):
            leaf = hidden.to(device).requires_grad_()
            args = (leaf, weight.to(device), targets.to(device), bias.to(device))
            for entropy in (False, True):
                got, own = token_logprobs(*args, entropy=entropy)
                expected, expected_entropy, _ = by_definition(hidden, weight, targets, bias)
                assert got[2].item() == -torch.inf
                rows = torch.arange(9)
                assert rows[got.isnan().cpu()].tolist() == list(odd)
                close(got[:2], expected[:2], rtol=1e-6, atol=2e-3)  # float32 has 1e-3 at 10,000
                for row in (2, 3, 7, 8):
                    close(got[row], expected[row], rtol=1e-5, atol=1e-5)
                up = torch.ones(9, device=device, dtype=got.dtype)
                up[4] = 0  # nothing comes back through this one
                (grad,) = torch.autograd.grad((got * up)[rows != 2].sum() + got[2].clamp(min=-1), leaf)
                assert rows[grad.isnan().any(1).cpu()].tolist() == [5, 6]
                assert (grad[4] == 0).all()
                if entropy:
                    assert rows[own.isnan().cpu()].tolist() == list(odd)
                    whole = [r for r in range(9) if r not in odd and r > 1]
                    close(own[whole], expected_entropy[whole], rtol=1e-5, atol=1e-5)


def compare_masked_gradient(device):
    """With masked words every gradient still equals autograd's: theirs are 0, that of a masked target too."""
    values = inputs(12, 40, 5, torch.float64, ignored=0.1)
    left = torch.cat([torch.arange(18, 22), torch.arange(30, 40)])
    kept = values[3][left].clone()
    values[3].fill_(-torch.inf)[left] = kept
    at = torch.where(values[2] == IGNORE, IGNORE, values[2] % len(left))  # among the words that are left
    targets = torch.where(at == IGNORE, IGNORE, left[at.clamp(min=0)])
    for entropy in (False, True):
        hidden, weight, _, bias = values
        leaves = [x.to(device).requires_grad_() for x in (hidden, weight, bias)]
        with small_blocks(5, 16):  # the first block is masked whole
            got, own = token_logprobs(leaves[0], leaves[1], targets.to(device), leaves[2], 0.8, entropy)
            grads = torch.autograd.grad(got.sum() + (own.sum() if entropy else 0), leaves)
        wides = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
        # The words that are not masked, as a vocabulary of their own.
        expected, expected_entropy, _ = by_definition(wides[0], wides[1][left], at, wides[2][left], 0.8)
        truths = torch.autograd.grad(expected.sum() + (expected_entropy.sum() if entropy else 0), wides)
        close(got, expected, rtol=1e-12, atol=1e-12)
        for grad, truth in zip(grads, truths, strict=True):
            close(grad, truth, rtol=1e-12, atol=1e-12)


def compare_autocast(device, dtype):
    """An autocast around the call changes no bit: the op's products are its own affair."""
    hidden, weight, targets, bias = (x.to(device) for x in inputs(6, 30, 8, dtype))
    for entropy in (False, True):
        results = []
        for enabled in (False, True):
            leaf = hidden.clone().requires_grad_()
            with torch.autocast(device, torch.bfloat16, enabled=enabled):
                got, own = token_logprobs(leaf, weight, targets, bias, entropy=entropy)
                results.append((got, *torch.autograd.grad(got.sum() + (own.sum() if entropy else 0), leaf)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def compare_no_tokens(device):
    """No token, and tokens that are all ignored, whatever they hold: 0 and no gradient."""
    for tokens in (0, 5):
        hidden = torch.full((tokens, 3), torch.nan, device=device, requires_grad=True)
        weight = torch.full((6, 3), torch.nan, device=device, requires_grad=True)
        targets = torch.full((tokens,), IGNORE, device=device)
        for w in (weight, weight.detach()):
            got, own = token_logprobs(hidden, w, targets, entropy=w is weight)
            assert got.tolist() == [0.0] * tokens
            asked = [hidden, weight] if w is weight else [hidden]
            grads = torch.autograd.grad(got.sum() + (own.sum() if own is not None else 0), asked)
            assert all((grad == 0).all() for grad in grads)


def cases():
    for tokens in (0, 1, 127, 128, 129):
        yield f"{tokens} tokens", partial(compare_random, tokens=tokens, vocabulary=5, size=3)
    for vocabulary in (1, 15, 16, 17, 1023, 1024, 1025, 2047, 2049, 4096):
        yield f"vocabulary of {vocabulary}", partial(compare_random, tokens=3, vocabulary=vocabulary, size=4)
    for vocabulary in (4095, 4096, 4097):
        body = partial(compare_random, tokens=3, vocabulary=vocabulary, size=4, dtype=torch.float32)
        yield f"vocabulary of {vocabulary}, float32", body
    for size in (0, 1, 130):
        yield f"hidden size {size}", partial(compare_random, tokens=6, vocabulary=20, size=size)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for entropy, train_weight in ((False, False), (False, True), (True, False)):
            words = f"{dtype}, {'entropy' if entropy else 'logprob'}, {'all' if train_weight else 'hidden'} trained"
            options = {"dtype": dtype, "entropy": entropy, "train_weight": train_weight, "temperature": 0.7}
            yield (
                f"{words}, blocks",
                partial(compare_random, tokens=12, vocabulary=131, size=9, blocks=(5, 64), **options),
            )
    bare = {"with_bias": False, "entropy": False, "train_weight": False, "dtype": torch.float32}
    yield "no bias, temperature 1", partial(compare_random, tokens=12, vocabulary=90, size=8, blocks=(8, 48), **bare)
    shapes = {
        "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
        "every second": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
        "steps of both": lambda x: x.repeat_interleave(2, 0).repeat_interleave(3, -1)[::2, ::3] if x.dim() == 2 else x,
    }
    for name, make in shapes.items():
        yield name, partial(compare_random, tokens=10, vocabulary=70, size=6, blocks=(8, 48), make=make)
    yield "extremes", compare_extremes
    yield "masked words", compare_masked_gradient
    yield "no tokens", compare_no_tokens
    for dtype in (torch.bfloat16, torch.float32):
        yield f"{dtype} under autocast", partial(compare_autocast, dtype=dtype)


def aot():
    # Columns are known as whole vectors at run time; ALIGNED says so here. Without it nothing is 128 bits wide.
    kinds = (("fp32", 4096, "bf16", True), ("fp32", 4096, "fp32", True), ("fp64", 2048, "fp64", True),
             ("fp32", 4096, "fp16", False), ("fp64", 2048, "fp64", False))  # fmt: skip
    for scalar, block, out, aligned in kinds:
        base = {"BIAS": out != "fp32", "ALIGNED": aligned, "BLOCK": block}
        reads = f"*{scalar} *{scalar} *{scalar}"
        if out != "bf16":  # the statistics do not depend on the dtype of the products
            types = f"{reads} *{scalar} i64"
            wide = 2 if aligned else 0
            kernel = logprob_triton._logprob_partials_kernel
            yield AotCase(kernel, types, base, num_warps=8, wide=wide, wide_stores=0)
        if aligned and out != "bf16":
            types = f"{reads} *i64 *{scalar} *{scalar} *{scalar} i64 i64 i64 i64"
            flags = {"BIAS": True, "BLOCK": 128}
            yield AotCase(logprob_triton._logprob_merge_kernel, types, flags)
        for gradient in (False, True) if aligned else (True,):
            types = f"{reads} *{'i64' if gradient else scalar} *{scalar} *{out} i64 i64"
            flags = {**base, "GRADIENT": gradient}
            wide = 2 if aligned else 0
            yield AotCase(logprob_triton._logprob_coefficients_kernel, types, flags, num_warps=8, wide=wide)
