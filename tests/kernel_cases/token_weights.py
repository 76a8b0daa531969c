"""Means over segments and lengths of keys against products with the matrix of equal keys, in float64."""

from functools import partial

import torch

from rtmc.kernels import token_weights
from rtmc.kernels.token_weights import aggregate_weights, segment_mean
from tests.kernel_cases import AotCase


def equal_keys(key):
    """(T, T) with a 1 where two tokens bear the same key >= 0."""
    return ((key[:, None] == key[None, :]) & (key[:, None] >= 0)).double()


def compare(device, tokens, keys, dtype=torch.float32, spread=1, make=lambda x: x):
    """``spread`` moves the keys apart; ``make`` gives values and keys other strides."""
    g = torch.Generator().manual_seed(tokens)
    values = make(torch.randn(tokens, generator=g, dtype=torch.float64).to(dtype))
    key = make(torch.randint(-1, keys, (tokens,), generator=g))
    key = torch.where(key >= 0, key * spread, torch.full_like(key, -1))
    values = torch.where(key >= 0, values, torch.nan)
    got = segment_mean(values.to(device), key.to(device))
    same = equal_keys(key)
    sums = same @ values.double().nan_to_num(0)
    expected = torch.where(key >= 0, sums / same.sum(1).clamp(min=1), 0.0)
    assert got.dtype == dtype
    # A sum of n terms in float64 and one rounding to the dtype (halves: through float32).
    bound = torch.finfo(dtype).eps * expected.abs() + 1e-13 * tokens
    assert ((got.double().cpu() - expected).abs() <= bound).all()

    lengths, count = same.sum(1), key[key >= 0].unique().numel()
    step = key.to(device)
    weights = aggregate_weights(step, step, "rollout-mean", dtype=torch.float64).cpu()
    expected = torch.where(key >= 0, 1 / (lengths * count).clamp(min=1), 0.0)
    torch.testing.assert_close(weights, expected, rtol=1e-15, atol=0)


def cases():
    for tokens in (0, 1, 255, 256, 257, 1025, 2000):
        yield f"{tokens} tokens", partial(compare, tokens=tokens, keys=3)
    yield "each token its own key", partial(compare, tokens=300, keys=10_000)
    yield "keys up to 10^15", partial(compare, tokens=300, keys=7, spread=10**14)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        yield f"{dtype}", partial(compare, tokens=100, keys=5, dtype=dtype)
    shapes = {
        "every second": lambda x: x[::2],
        "unaligned": lambda x: x[1:],
        "a column": lambda x: x.reshape(-1, 4).T[1],
        "expanded": lambda x: x[:1].expand(40),
        "int32": lambda x: x.int() if x.dtype == torch.int64 else x,
    }
    for name, make in shapes.items():
        yield name, partial(compare, tokens=80, keys=6, make=make)


def aot():
    for scalar in ("bf16", "fp32", "fp64"):
        acc = "fp64" if scalar == "fp64" else "fp32"
        types = f"*{scalar} *i64 *i64 *i64 *{acc}"
        yield AotCase(token_weights._segment_mean_kernel, types, {"BLOCK": 256})
