"""Cases of ``discounted_returns``: the sum over later rewards, term by term in float64."""

import functools

import torch

from rtmc.kernels.returns import discounted_returns
from tests.kernel_cases import PLACES, AotCase, close, offsets_of


def by_definition(reward, offsets, gamma, final=None):
    """G_t = sum_k gamma^(k-t) r_k as one matrix product per rollout; no recursion."""
    out = torch.zeros(len(reward), dtype=torch.float64)
    for r, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        x = reward[begin:end].double().cpu().clone()
        if final is not None and end > begin:
            x[-1] += final[r].double().cpu()
        lag = torch.arange(end - begin)[None, :] - torch.arange(end - begin)[:, None]
        weight = torch.where(lag >= 0, torch.tensor(gamma, dtype=torch.float64) ** lag.clamp_min(0), 0.0)
        out[begin:end] = weight @ x
    return out


def check_odd(device, gamma):
    """NaN and infinities as IEEE has them, row after row, also where gamma^k has long become 0."""
    inf, nan = float("inf"), float("nan")
    odd = {600: inf, 1000: nan, 1300: inf, 1350: -inf, 1900: -inf, 1901: inf}
    lengths = [601, 0, 500, 400, 300, 2, 100]
    offsets = offsets_of(lengths)
    reward = torch.ones(int(offsets[-1]), dtype=torch.float64)
    reward[1801:1803] = 1.7e308  # of which two overflow
    for row, value in odd.items():
        reward[row] = value
    final = torch.tensor([0.0, inf, 0.0, 0.0, 0.0, 0.0, -inf])
    truth = []
    for begin, end, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), final.tolist(), strict=True):
        rows = reward[begin:end].tolist()
        for t in range(len(rows) - 1, -1, -1):
            rows[t] += last if t == len(rows) - 1 else gamma * rows[t + 1]
        truth += rows
    got = discounted_returns(reward.to(device), offsets.to(device), gamma, final.to(device))
    assert got.isnan().any()
    assert got.isinf().any()
    close(got, torch.tensor(truth, dtype=torch.float64), rtol=1e-12)


def check_place(device, place):
    torch.manual_seed(0)
    offsets, final = offsets_of([5, 0, 40, 300]), torch.randn(4)
    reward = torch.randn(345, dtype=torch.float64)
    truth = by_definition(reward, offsets, 0.9, final)
    got = discounted_returns(*(place(t.to(device)) for t in (reward, offsets)), 0.9, place(final.to(device)))
    close(got, truth, rtol=1e-13, atol=1e-13)


def check_expanded(device):
    offsets = offsets_of([3, 4])
    reward, final = torch.tensor([0.7]).expand(7), torch.tensor([2.0]).expand(2)
    truth = by_definition(reward, offsets, 0.9, final)
    got = discounted_returns(torch.tensor([0.7], device=device).expand(7), offsets.to(device), 0.9, final.to(device))
    close(got, truth, rtol=1e-7)


def check(device, lengths, gamma, dtype, with_final, strided):
    torch.manual_seed(len(lengths))
    offsets = offsets_of(lengths)
    reward = torch.randn(int(offsets[-1]), dtype=torch.float64).to(dtype)
    final = torch.randn(len(lengths)) if with_final else None
    truth = by_definition(reward, offsets, gamma, final)
    on_device = reward.to(device)
    if strided:
        on_device = torch.stack([on_device, on_device], 1)[:, 0]
    got = discounted_returns(on_device, offsets.to(device), gamma, None if final is None else final.to(device))
    assert got.dtype == dtype
    # float64: the number of terms times the unit roundoff, against sums of size about 10; else one rounding.
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-7, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    close(got, truth, rtol=tolerance, atol=1e-12)


def cases():
    lengths = {
        "ragged": [0, 1, 3, 0, 17, 256, 257, 0],
        "longer than a block": [1023, 300],
        "around four blocks": [1024, 1, 1025],
        "nothing": [0, 0],
        "no rollout": [],
    }
    for name, lens in lengths.items():
        for gamma in (0.0, 0.9, 1.0):
            body = functools.partial(
                check, lengths=lens, gamma=gamma, dtype=torch.float64, with_final=True, strided=gamma == 0.9
            )
            yield f"{name}, gamma {gamma}", body
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield (
            f"{dtype}",
            functools.partial(check, lengths=[5, 40, 0, 300], gamma=0.97, dtype=dtype, with_final=False, strided=True),
        )

    for gamma in (0.0, 0.01, 0.9, 1.0):
        yield f"values that are no numbers, gamma {gamma}", functools.partial(check_odd, gamma=gamma)
    for name, place in PLACES.items():
        yield name, functools.partial(check_place, place=place)
    yield "expanded", check_expanded


def aot():
    from rtmc.kernels.returns import _BLOCK, _returns_kernel

    for scalar, final in (("fp32", True), ("fp64", True), ("fp64", False)):
        types = f"*{scalar} *i64 *fp64 *fp64 *{scalar}"
        yield AotCase(_returns_kernel, types, {"HAS_FINAL": final, "BLOCK": _BLOCK}, num_warps=1)
