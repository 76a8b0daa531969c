"""The token broadcast and its transpose against products with the one-hot (T, S) matrix, in float64."""

from functools import partial

import torch

from rtmc.kernels import broadcast
from rtmc.kernels.broadcast import broadcast_to_tokens, sum_over_tokens
from tests.kernel_cases import AotCase

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def one_hot(step, steps):
    """(T, S) with a 1 where token i belongs to step s."""
    return (step.reshape(-1, 1) == torch.arange(steps)).double()


def compare(device, tokens, steps, dtype, make=lambda step: step):
    """Values, gradient and gradient of the gradient; ``make`` gives the ids another shape or other strides."""
    g = torch.Generator().manual_seed(tokens)
    values = torch.randn(steps, generator=g, dtype=torch.float64).to(dtype).to(device).requires_grad_()
    step = make(torch.randint(-1, steps, (tokens,), generator=g))
    upstream = torch.randn(step.shape, generator=g, dtype=torch.float64).to(dtype)
    member = one_hot(step, steps)

    out = broadcast_to_tokens(values, step.to(device), fill=-2.5)
    expected = member @ values.detach().double().cpu() + torch.where(step.reshape(-1) < 0, -2.5, 0.0)
    assert out.dtype == dtype
    assert out.shape == step.shape
    assert torch.equal(out.detach().double().cpu().reshape(-1), expected)

    out.backward(upstream.to(device))
    expected = member.T @ upstream.double().reshape(-1)
    # Summed in float64, then rounded: half a unit in the last place, and for the halves that of float32 before.
    bound = (torch.finfo(dtype).eps / 2 + 1e-7 * (dtype.itemsize == 2)) * expected.abs() + 1e-12
    assert values.grad.dtype == dtype
    assert ((values.grad.double().cpu() - expected).abs() <= bound).all()

    token_values = upstream.to(device).requires_grad_()
    sums = sum_over_tokens(token_values, step.to(device), steps)
    assert torch.equal(sums, values.grad)
    sums.backward(values.detach())
    expected = member @ values.detach().double().cpu()
    assert torch.equal(token_values.grad.double().cpu().reshape(-1), expected)


def compare_fill(device, dtype):
    """What of a fill arrives: its rounding to the dtype (halves: through float32), NaN and infinities."""
    values, step = torch.zeros(1, dtype=dtype, device=device), torch.tensor([0, -1], device=device)
    largest = torch.finfo(dtype).max
    for fill in (0.1, 1 + 2**-11 + 2**-30, largest, -largest, float("inf"), float("nan"), 5e-324, 3):
        out = broadcast_to_tokens(values, step, fill)
        want = torch.tensor(fill, dtype=torch.float64)
        want = want.float().to(dtype) if dtype.itemsize == 2 else want.to(dtype)
        assert torch.equal(out.cpu().nan_to_num(nan=7.0), torch.stack([values[0].cpu(), want]).nan_to_num(nan=7.0)), (
            fill
        )


def cases():
    for dtype in DTYPES:
        yield f"{dtype}", partial(compare, tokens=400, steps=11, dtype=dtype)
    for tokens in (0, 1, 255, 256, 257, 1025, 2047, 2048, 2049):
        yield f"{tokens} tokens", partial(compare, tokens=tokens, steps=3, dtype=torch.float32)
    shapes = {"two rows": lambda s: s.reshape(2, -1), "transposed": lambda s: s.reshape(6, -1).T,
              "every second": lambda s: s[::2], "expanded": lambda s: s[:1].expand(4, 9),
              "unaligned": lambda s: s[1:], "int32": lambda s: s.int()}  # fmt: skip
    for name, make in shapes.items():
        yield name, partial(compare, tokens=60, steps=12, dtype=torch.float32, make=make)

    for dtype in DTYPES:
        yield f"fills, {dtype}", partial(compare_fill, dtype=dtype)


def aot():
    for dtype in ("fp16", "bf16", "fp32", "fp64"):
        types = f"*{dtype} *i64 *{dtype} *{dtype} i64 i64"
        yield AotCase(broadcast._broadcast_to_tokens_kernel, types, {"BLOCK": 2048}, wide=4)
        if dtype != "fp16":  # sums of the halves leave as float32
            out = "fp32" if dtype == "bf16" else dtype
            yield AotCase(broadcast._sum_over_tokens_kernel, f"*{dtype} *i64 *i64 *{out}", {"BLOCK": 256})
