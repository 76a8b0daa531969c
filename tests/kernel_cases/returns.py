"""Cases of ``discounted_returns``: the sum over later rewards, term by term in float64."""

import functools

import torch

from rtmc.kernels.returns import discounted_returns
from tests.kernel_cases import AotCase, close, offsets_of


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


def aot():
    from rtmc.kernels.returns import _BLOCK, _returns_kernel

    for scalar, final in (("fp32", True), ("fp64", True), ("fp64", False)):
        types = f"*{scalar} *i64 *fp64 *fp64 *{scalar}"
        yield AotCase(_returns_kernel, types, {"HAS_FINAL": final, "BLOCK": _BLOCK}, num_warps=1)
