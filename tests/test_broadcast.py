"""`broadcast_to_tokens` and `sum_over_tokens` against indexing and matrix products in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.broadcast import broadcast_to_tokens, sum_over_tokens
from tests.kernel_cases.broadcast import DTYPES, compare


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def random_case(tokens, steps, dtype, device, seed=0):
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(steps, generator=g, dtype=torch.float64).to(dtype)
    step = torch.randint(-1, steps, (tokens,), generator=g)
    return values.to(device), step.to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [0, 1, 1025, 5000])
def test_every_backend_equals_the_matrix_product(tokens, dtype, device, backend):
    compare(device, tokens, 37, dtype)


def test_hand_case_two_rows(device, backend):
    values = torch.tensor([0.5, -1.0, 2.0], device=device)
    step = torch.tensor([[-1, 0, 0, -1], [2, 2, 1, -1]], device=device)
    expected = [[9.0, 0.5, 0.5, 9.0], [2.0, 2.0, -1.0, 9.0]]
    assert broadcast_to_tokens(values, step, 9.0).tolist() == expected
    assert sum_over_tokens(torch.ones(2, 4, device=device), step, 3).tolist() == [2.0, 1.0, 2.0]


def test_fill_may_be_nan(device, backend):
    values = torch.ones(1, device=device, dtype=torch.float64)
    out = broadcast_to_tokens(values, torch.tensor([-1, 0], device=device), float("nan"))
    assert out.isnan().tolist() == [True, False]


def test_fill_is_exact_in_float64(device, backend):
    out = broadcast_to_tokens(
        torch.zeros(1, dtype=torch.float64, device=device), torch.tensor([-1], device=device), 0.1
    )
    assert out.item() == 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fill_that_the_dtype_cannot_hold_is_refused(dtype, device, backend):
    """As a number; infinities and NaN are asked for as such. The dtype is that of the result."""
    step = torch.tensor([-1], device=device)
    top = torch.finfo(dtype).max
    values = torch.zeros(1, dtype=dtype, device=device)
    other = torch.zeros(1, dtype=torch.float64, device=device)
    beyond = [10**400, -(10**400)] if dtype == torch.float64 else [top * 1.001, -top * 2, 1e300, 10**400]
    for fill in beyond:
        with pytest.raises(ValueError, match=r"`fill`: got .*wanted"):
            broadcast_to_tokens(values, step, fill)
        with pytest.raises(ValueError, match=r"`fill`: got .*wanted"):
            broadcast_to_tokens(other, step, fill, dtype=dtype)
    for fill in (top, -top, float("inf"), float("-inf")):
        assert broadcast_to_tokens(values, step, fill).item() == fill
    assert broadcast_to_tokens(values.to(torch.float16), step, top, dtype=dtype).item() == top
    assert broadcast_to_tokens(values, step, np.float32(0.5)).item() == 0.5
    assert broadcast_to_tokens(values, step, np.int64(2)).item() == 2.0


def test_a_million_tokens_summed_twice(device):
    """Bitwise the same, in float32, whatever ran beside it."""
    g = torch.Generator().manual_seed(0)
    values, step = torch.randn(10**6, generator=g).to(device), torch.randint(0, 100, (10**6,), generator=g).to(device)
    one, two = (sum_over_tokens(values, step, 100) for _ in range(2))
    assert torch.equal(one, two)
    # And right: each sum rounded once from float64.
    truth = torch.zeros(100, dtype=torch.float64).index_add(0, step.cpu(), values.double().cpu())
    assert torch.allclose(one.double().cpu(), truth, rtol=2**-23, atol=0)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_a_masked_token_counts_as_one_without_a_step(kind, device, backend):
    values = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    step = torch.tensor([[0, 0, 7], [1, -1, 1]], device=device)  # step 7 does not exist, and is not looked at
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]], device=device).to(kind)
    out = broadcast_to_tokens(values, step, fill=9.0, mask=mask)
    assert out.tolist() == [[0.5, 9.0, 9.0], [-1.0, 9.0, -1.0]]
    out.backward(torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], device=device))
    assert values.grad.tolist() == [1.0, 40.0]


def test_another_dtype_of_the_result(device, backend):
    values = torch.tensor([1 / 3, 2.0], device=device, dtype=torch.float64, requires_grad=True)
    step = torch.tensor([0, 1, -1, 0], device=device)
    for dtype in DTYPES:
        out = broadcast_to_tokens(values, step, dtype=dtype)
        assert out.dtype == dtype
        assert out.tolist() == [values[0].to(dtype).item(), 2.0, 0.0, values[0].to(dtype).item()]
    gradient = torch.autograd.grad(out.sum(), values)[0]
    assert gradient.dtype == torch.float64
    assert gradient.tolist() == [2.0, 1.0]


def test_int32_steps_and_unaligned_tokens(device, backend):
    values, step = random_case(41, 12, torch.float32, device)
    want = broadcast_to_tokens(values, step[1:].clone())
    assert torch.equal(broadcast_to_tokens(values, step[1:]), want)
    assert torch.equal(broadcast_to_tokens(values, step.int()[1:]), want)
    assert torch.equal(sum_over_tokens(want, step.int()[1:], 12), sum_over_tokens(want, step[1:].clone(), 12))


def test_gradients_of_both_ops_to_second_order():
    values, step = random_case(40, 7, torch.float64, "cpu")
    assert torch.autograd.gradcheck(lambda v: broadcast_to_tokens(v, step), values.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda v: broadcast_to_tokens(v, step) ** 3, values)
    tokens = torch.randn(40, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: sum_over_tokens(v, step, 7), tokens)


def test_float32_sums_survive_cancellation(device, backend):
    values = torch.tensor([1e8, 1.0, -1e8, 1.0] * 500, device=device)
    step = torch.zeros(2000, dtype=torch.int64, device=device)
    assert sum_over_tokens(values, step, 1).item() == 1000.0


@pytest.mark.parametrize("make", ["every_second", "transposed", "expanded"])
def test_any_strides(make, device, backend):
    values, step = random_case(60, 12, torch.float64, device)
    grad = torch.randn(60, dtype=torch.float64, device=device)
    if make == "every_second":
        step, grad = step[::2], grad[::2]
    elif make == "transposed":
        step, grad = step.reshape(6, 10).T, grad.reshape(6, 10).T
    else:
        step, grad = step[:1].expand(3, 20), grad[:20].expand(3, 20)
    values = torch.stack([values, values], dim=1)[:, 1]
    assert not step.is_contiguous()
    assert not values.is_contiguous()
    out = broadcast_to_tokens(values, step)
    assert torch.equal(out, broadcast_to_tokens(values.contiguous(), step.contiguous()))
    sums = sum_over_tokens(grad, step, 12)
    assert torch.equal(sums, sum_over_tokens(grad.contiguous(), step.contiguous(), 12))


def test_same_bits_in_every_run(device):
    values = torch.randn(20000, device=device)
    step = torch.randint(-1, 50, (20000,), device=device)
    first = sum_over_tokens(values, step, 50)
    assert all(torch.equal(first, sum_over_tokens(values, step, 50)) for _ in range(3))


def test_values_of_tokens_without_a_step_are_not_read(device, backend):
    values = torch.tensor([float("nan"), 1.0, float("inf")], device=device)
    assert sum_over_tokens(values, torch.tensor([-1, 1, -1], device=device), 2).tolist() == [0.0, 1.0]


def test_no_steps_at_all(device, backend):
    step = torch.full((5,), -1, device=device)
    empty = torch.zeros(0, device=device, requires_grad=True)
    broadcast_to_tokens(empty, step).sum().backward()
    assert empty.grad.shape == (0,)
    assert sum_over_tokens(torch.ones(5, device=device), step, 0).shape == (0,)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 6), max_size=60), st.integers(0, 2**31))
def test_the_two_ops_are_transposes(steps_of_tokens, seed):
    """<broadcast(v), g> = <v, sum(g)> for all v and g."""
    rng = np.random.default_rng(seed)
    step = torch.tensor(steps_of_tokens, dtype=torch.int64)
    v, g = torch.tensor(rng.normal(size=7)), torch.tensor(rng.normal(size=len(steps_of_tokens)))
    left = broadcast_to_tokens(v, step) @ g
    assert torch.allclose(left, v @ sum_over_tokens(g, step, 7), rtol=0, atol=1e-12)


def test_opcheck():
    values, step = random_case(12, 5, torch.float32, "cpu")
    torch.library.opcheck(torch.ops.rtmc.broadcast_to_tokens.default, (values.requires_grad_(), step, 1.0))
    torch.library.opcheck(
        torch.ops.rtmc.sum_over_tokens.default, (torch.randn(3, 4, requires_grad=True), step.reshape(3, 4), 5)
    )


def test_traced_whole_by_torch_compile():
    values, step = random_case(30, 5, torch.float32, "cpu")
    compiled = torch.compile(lambda v, s: broadcast_to_tokens(v, s) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(values, step), broadcast_to_tokens(values, step) * 2)


@pytest.mark.parametrize(
    ("values", "step", "error", "words"),
    [
        ([1.0], torch.zeros(2, dtype=torch.int64), TypeError, ("`values`", "list", "torch.Tensor")),
        (torch.ones(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), ValueError, ("`values`", "int64")),
        (torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), ValueError, ("`values`", "(2, 1)", "(S,)")),
        (torch.ones(2), torch.zeros(2, dtype=torch.int16), ValueError, ("`step_of_token`", "int16", "int64 or int32")),
        (torch.ones(2), torch.zeros(2, device="meta").long(), ValueError, ("`step_of_token`", "on meta", "on cpu")),
        (torch.ones(2), torch.zeros(1, 1, 1).long(), ValueError, ("`step_of_token`", "(1, 1, 1)", "(B, T)")),
        (torch.ones(2), torch.tensor([0, 2]), ValueError, ("`step_of_token`", "2", "2 steps")),
        (torch.ones(2), torch.tensor([0, -2]), ValueError, ("`step_of_token`", "-2", "-1")),
    ],
)
def test_errors_name_argument_value_and_wish(values, step, error, words, backend):
    with pytest.raises(error) as caught:
        broadcast_to_tokens(values, step)
    assert all(word in str(caught.value) for word in words)


def test_errors_of_the_sum(backend):
    step = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"`values`.*\(3,\).*\(2,\)"):
        sum_over_tokens(torch.ones(3), step, 1)
    with pytest.raises(ValueError, match="`steps`: got -1"):
        sum_over_tokens(torch.ones(2), step, -1)
    with pytest.raises(ValueError, match="`step_of_token`: got 0"):
        sum_over_tokens(torch.ones(2), step, 0)
    with pytest.raises(TypeError, match="`fill`"):
        broadcast_to_tokens(torch.ones(2), step, "0")
    with pytest.raises(ValueError, match=r"`mask`: .*\(3,\).*\(2,\)"):
        broadcast_to_tokens(torch.ones(2), step, mask=torch.ones(3))
    with pytest.raises(ValueError, match=r"`dtype`: got torch\.int64; wanted one of float16"):
        broadcast_to_tokens(torch.ones(2), step, dtype=torch.int64)


@pytest.mark.gpu
def test_a_step_that_does_not_exist_becomes_nan_on_cuda():
    out = broadcast_to_tokens(torch.ones(2, device="cuda"), torch.tensor([0, 2, -2, -1], device="cuda"))
    assert out.isnan().tolist() == [False, True, True, False]
