"""`discounted_returns`: hand-worked returns, the closed form, gradients, strides, permutations, refusals.

The sizes around a block and every backend: ``tests/kernel_cases/returns.py``.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.kernels.returns import discounted_returns
from tests.kernel_cases import offsets_of
from tests.kernel_cases.returns import by_definition


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


def test_hand_worked(device, backend):
    # rollout 0: 1, 2, 4 with 8 on top of the last; rollout 1 has no step; rollout 2: one step.
    reward = torch.tensor([1.0, 2.0, 4.0, 16.0], device=device)
    offsets = torch.tensor([0, 3, 3, 4], device=device)
    final = torch.tensor([8.0, 100.0, -1.0], device=device)
    assert discounted_returns(reward, offsets, 0.5, final).tolist() == [5.0, 8.0, 12.0, 15.0]
    assert discounted_returns(reward, offsets, 0.5).tolist() == [3.0, 4.0, 4.0, 16.0]
    assert discounted_returns(reward, offsets, 0.0, final).tolist() == [1.0, 2.0, 12.0, 15.0]
    assert discounted_returns(reward, offsets, 1.0, final).tolist() == [15.0, 14.0, 12.0, 15.0]


def test_outcome_alone_is_a_power_of_gamma(device, backend):
    reward = torch.zeros(1500, dtype=torch.float64, device=device)
    offsets = torch.tensor([0, 1500], device=device)
    got = discounted_returns(reward, offsets, 0.99, torch.ones(1, device=device))
    truth = 0.99 ** torch.arange(1499, -1, -1, dtype=torch.float64)
    # A product of n factors, rounded n times.
    torch.testing.assert_close(got.cpu(), truth, rtol=1500 * 2.0**-52, atol=0)


def test_the_input_stays_as_it_was(device, backend):
    reward, offsets, final = torch.ones(4, dtype=torch.float64), torch.tensor([0, 4]), torch.ones(1)
    before = reward.clone()
    out = discounted_returns(reward.to(device), offsets.to(device), 1.0, final.to(device))
    assert torch.equal(reward, before)
    assert out.data_ptr() != reward.data_ptr()


@pytest.mark.parametrize("view", ["step", "transpose", "expand"])
def test_strides(device, backend, view):
    offsets = torch.tensor([0, 2, 6], device=device)
    base = torch.randn(12, 6, dtype=torch.float64, device=device)
    reward = {"step": base[0:12:2, 1], "transpose": base.t()[:, 3], "expand": base[0, :1].expand(6)}[view]
    offsets = torch.stack([offsets, offsets], 1)[:, 0]
    got = discounted_returns(reward, offsets, 0.9)
    assert torch.equal(got, discounted_returns(reward.contiguous(), offsets.contiguous(), 0.9))
    torch.testing.assert_close(got.cpu(), by_definition(reward, offsets, 0.9), rtol=1e-14, atol=1e-14)


def test_unaligned_rows_and_int32_offsets(device, backend):
    base = torch.randn(7, device=device)
    offsets = torch.tensor([0, 2, 6], device=device)
    want = discounted_returns(base[1:].clone(), offsets, 0.9)
    assert torch.equal(discounted_returns(base[1:], offsets, 0.9), want)
    assert torch.equal(discounted_returns(base[1:], offsets.int(), 0.9), want)


def test_numbers_that_are_none_spread_backwards_in_their_rollout_alone(device, backend):
    reward = torch.tensor([1.0, math.nan, 1.0, 1.0, math.inf, 1.0], device=device)
    got = discounted_returns(reward, torch.tensor([0, 3, 4, 6], device=device), 0.5)
    assert got.isnan().tolist() == [True, True, False, False, False, False]
    assert got.tolist()[2:] == [1.0, 1.0, math.inf, 1.0]


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_an_infinity_reaches_rows_from_which_gamma_underflows(device, backend, odd):
    """0.01^162 is 0 in float64, and 0 times infinity would be NaN."""
    reward = torch.cat([torch.ones(600), torch.tensor([odd])]).double().to(device)
    got = discounted_returns(reward, torch.tensor([0, 601], device=device), 0.01).cpu()
    assert got.tolist() == [odd] * 601 if odd == odd else got.isnan().all()
    # At gamma 0 only the row itself keeps it: before it stands 0 times infinity.
    none = discounted_returns(reward, torch.tensor([0, 601], device=device), 0.0).cpu()
    assert none[:600].isnan().all()
    assert none[600].item() == odd or math.isnan(odd)


def test_gradients(device, backend):
    offsets = offsets_of([3, 0, 1, 5]).to(device)
    reward = torch.randn(9, dtype=torch.float64, device=device, requires_grad=True)
    final = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)

    def f(r, e):
        return discounted_returns(r, offsets, 0.7, e)

    assert torch.autograd.gradcheck(f, (reward, final))
    assert torch.autograd.gradgradcheck(f, (reward, final))


def test_opcheck(device):
    reward = torch.randn(5, device=device, requires_grad=True)
    final = torch.randn(2, device=device, requires_grad=True)
    offsets = torch.tensor([0, 2, 5], device=device)
    torch.library.opcheck(torch.ops.rtmc.discounted_returns, (reward, offsets, 0.9, final))
    torch.library.opcheck(torch.ops.rtmc.discounted_returns, (reward.half(), offsets, 0.9))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.floats(0, 1), st.randoms())
def test_moving_whole_rollouts_changes_no_bit(lengths, gamma, random):
    torch.manual_seed(sum(lengths))
    parts = [torch.randn(n, dtype=torch.float32) for n in lengths]
    final = torch.randn(len(lengths))
    order = random.sample(range(len(lengths)), len(lengths))
    one = discounted_returns(torch.cat(parts), offsets_of(lengths), gamma, final)
    moved = discounted_returns(
        torch.cat([parts[i] for i in order]), offsets_of([lengths[i] for i in order]), gamma, final[order]
    )
    pieces = one.split(lengths)
    assert torch.equal(moved, torch.cat([pieces[i] for i in order]))


REWARD, OFFSETS = torch.ones(3), torch.tensor([0, 3])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], OFFSETS, 0.5), TypeError, "`reward`: got list"),
        ((REWARD.long(), OFFSETS, 0.5), ValueError, "`reward`: got int64"),
        ((REWARD.to_sparse(), OFFSETS, 0.5), ValueError, "`reward`: got a tensor of layout sparse_coo; wanted a dense"),
        ((REWARD[None], OFFSETS, 0.5), ValueError, r"`reward`: .*\(1, 3\)"),
        ((REWARD, OFFSETS.short(), 0.5), ValueError, "`offsets`: got int16.*wanted int64 or int32"),
        ((REWARD, OFFSETS.to("meta"), 0.5), ValueError, "`offsets`: .*on meta; wanted .*on cpu"),
        ((REWARD, OFFSETS, 0.5, torch.ones(1, device="meta")), ValueError, "`final`: .*on meta; wanted .*on cpu"),
        ((REWARD, OFFSETS, math.nan), ValueError, "`gamma`: got nan"),
        ((REWARD, OFFSETS, -0.5), ValueError, "`gamma`: got -0.5"),
        ((REWARD, OFFSETS, True), TypeError, "`gamma`: got True"),
        ((REWARD, OFFSETS, 10**400), ValueError, "`gamma`: got an integer of 1329 bits"),
        ((REWARD, OFFSETS[:0], 0.5), ValueError, "`offsets`: got no element"),
        ((REWARD, torch.tensor([0, 2]), 0.5), ValueError, "`offsets`: they run from 0 to 2; .*row numbers from 0 to 3"),
        ((REWARD, torch.tensor([0, 3, 2, 3]), 0.5), ValueError, "`offsets`: they decrease"),
        ((REWARD, OFFSETS, 1.01), ValueError, r"`gamma`: got 1.01.*\[0.0, 1.0\]"),
        ((REWARD, OFFSETS, 0.5, torch.ones(2)), ValueError, r"`final`: .*\(2,\).*\(1,\)"),
    ],
)
def test_refusals(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        discounted_returns(*arguments)
