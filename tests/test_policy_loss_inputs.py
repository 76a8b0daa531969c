"""`policy_loss`: what it takes (kinds of ids and numbers, one advantage a row), and what it refuses in which words."""

import math

import numpy as np
import pytest
import torch

from rtmc.kernels.policy_loss import policy_loss
from tests.kernel_cases.policy_loss import flat, random_batch


@pytest.fixture(params=["device", "reference"])
def backend(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setenv("RTMC_BACKEND", "reference")
    return request.param


@pytest.mark.parametrize("per", ["step", "rollout"])
def test_an_advantage_a_token_is_not_taken_for_one_a_row(per, device, backend):
    """Six tokens, steps (or rollouts) 0, 0, 1, 1, 2, 2: six advantages are one a token, unless the caller says that
    there are six rows. Three are the rows' own; none below the largest row is enough."""
    ids = torch.tensor([0, 0, 1, 1, 2, 2], device=device)
    other = torch.zeros(6, dtype=torch.int64, device=device)
    zero = torch.zeros(6, device=device)
    rows = {"step": (ids, other), "rollout": (other, ids)}[per]
    six = torch.arange(6.0, device=device)
    words = {"aggregate": "token-sum", "per": per}
    with pytest.raises(ValueError, match=rf'`advantage`: got 6 .*largest unmasked {per} is 2.*per="token".*`rows=6`'):
        policy_loss(zero, zero, six, *rows, **words)
    assert policy_loss(zero, zero, six, *rows, rows=6, **words)[0].item() == -6.0
    assert policy_loss(zero, zero, six[:3], *rows, **words)[0].item() == -6.0
    assert policy_loss(zero, zero, six, *rows, **{**words, "per": "token"})[0].item() == -15.0
    # One token in each row; a row masked; every row masked; one row more than tokens.
    assert policy_loss(zero, zero, six, six.long(), six.long(), **words)[0].item() == -15.0
    gone = torch.where(ids == 2, -1, ids)
    with pytest.raises(ValueError, match=rf"largest unmasked {per} is 1"):
        policy_loss(zero, zero, six, *(gone if r is ids else r for r in rows), **words)
    none = torch.full_like(ids, -1)
    assert policy_loss(zero, zero, six, none, none, **words)[0].item() == 0.0
    assert policy_loss(zero, zero, torch.arange(7.0, device=device), *rows, **words)[0].item() == -6.0
    if device == "cpu":
        with pytest.raises(ValueError, match=rf"`{per}_of_token`: got 2; .*2 {per}s"):
            policy_loss(zero, zero, six[:2], *rows, **words)


@pytest.mark.parametrize("name", ["step_of_token", "rollout_of_token", "sequence_of_token"])
def test_int32_ids(name, device, backend):
    new, old, _, turns, mask, per_step = random_batch(4, 6, 9)
    step, rollout = flat(mask, turns)
    ids = {"step_of_token": step, "rollout_of_token": rollout, "sequence_of_token": rollout}
    ids = {key: value.to(device) for key, value in ids.items()}
    tensors = [x.to(device) for x in (new.reshape(-1), old.reshape(-1), per_step)]
    words = {"ratio": "turn", "aggregate": "seq-mean-token-mean"}
    want, _ = policy_loss(*tensors, **ids, **words)
    got, _ = policy_loss(*tensors, **{**ids, name: ids[name].int()}, **words)
    assert torch.equal(got, want)


def test_numbers_of_numpy_are_numbers(backend):
    zero, one = torch.zeros(2), torch.zeros(2).long()
    words = {"aggregate": "seq-mean-token-sum-norm", "ref_logprob": zero + 0.5}
    plain, _ = policy_loss(zero, zero, torch.ones(1), one, one, kl=0.5, norm_length=4, rows=1, **words)
    numpy, _ = policy_loss(
        zero, zero, torch.ones(1), one, one, kl=np.float32(0.5), norm_length=np.int64(4), rows=np.int64(1), **words
    )
    assert torch.equal(plain, numpy)


def test_a_clip_is_no_constant_of_the_kernel():
    """A bound that is a compile-time constant would mean a compilation for each new value."""
    from rtmc.kernels.backend import HAS_TRITON
    from rtmc.kernels.token_loss_triton import _token_loss_kernel

    if not HAS_TRITON:
        pytest.skip("Triton is not installed here")
    constants = {name for name, kind in _token_loss_kernel.fn.__annotations__.items() if "constexpr" in str(kind)}
    flags = {"PER", "HAS_WEIGHT", "HAS_REF", "ADD_KL", "HAS_SEGMENT", "HAS_ENTROPY", "HAS_DUAL", "HIGH_PASSES"}
    assert constants == {*flags, "KL_MODE", "BLOCK"}


GOOD = {
    "logprob": torch.zeros(2), "old_logprob": torch.zeros(2), "advantage": torch.zeros(3),
    "step_of_token": torch.zeros(2).long(), "rollout_of_token": torch.zeros(2).long(),
}  # fmt: skip
MORE = {
    "ref_logprob": torch.zeros(2), "sequence_of_token": torch.zeros(2).long(), "weights": torch.zeros(2),
    "entropy": torch.zeros(2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"logprob": [0.0, 0.0]}, TypeError, ("`logprob`", "list")),
        ({"logprob": torch.zeros(2, 1)}, ValueError, ("`logprob`", "(2, 1)", "(T,)")),
        ({"old_logprob": torch.zeros(3)}, ValueError, ("`old_logprob`", "(3,)", "(2,)")),
        ({"advantage": torch.zeros(3).long()}, ValueError, ("`advantage`", "int64", "float32")),
        ({"advantage": torch.zeros(3), "per": "token"}, ValueError, ("`advantage`", "(3,)", "(2,)")),
        ({"step_of_token": torch.tensor([0, 3])}, ValueError, ("`step_of_token`", "3 steps")),
        (
            {"rollout_of_token": torch.tensor([0, 3]), "per": "rollout"},
            ValueError,
            ("`rollout_of_token`", "3 rollouts"),
        ),
        ({"step_of_token": torch.zeros(2).short()}, ValueError, ("`step_of_token`", "int16", "int64 or int32")),
        ({"ratio": "word"}, ValueError, ("`ratio`", "'word'", "'turn'")),
        ({"kl_mode": "k4"}, ValueError, ("`kl_mode`", "'k4'", "'low_var_kl'")),
        ({"aggregate": "mean"}, ValueError, ("`aggregate`", "'mean'", "'token-mean'")),
        ({"per": "turn"}, ValueError, ("`per`", "'turn'", "'rollout'")),
        ({"clip": 0.2}, ValueError, ("`clip`", "0.2", "(low, high)")),
        ({"clip": (1.5, 0.2)}, ValueError, ("`clip[0]`", "1.5")),
        ({"dual_clip": 0.5}, ValueError, ("`dual_clip`", "0.5", "(1")),
        ({"kl": -1.0}, ValueError, ("`kl`", "-1.0")),
        ({"kl": 0.1}, ValueError, ("`ref_logprob`", "None", "0.1")),
        ({"norm_length": 0.0}, ValueError, ("`norm_length`", "0.0")),
        ({"weights": torch.zeros(3)}, ValueError, ("`weights`", "(3,)", "(2,)")),
        ({"sequence_of_token": torch.zeros(3).long()}, ValueError, ("`sequence_of_token`", "(3,)", "(2,)")),
        ({"rollout_of_token": torch.zeros(2).char()}, ValueError, ("`rollout_of_token`", "int8", "int64 or int32")),
        ({"sequence_of_token": torch.zeros(2).byte()}, ValueError, ("`sequence_of_token`", "uint8", "int64 or int32")),
        ({"step_of_token": torch.zeros(3).long()}, ValueError, ("`step_of_token`", "(3,)", "(2,)")),
        ({"step_of_token": [0, 0]}, TypeError, ("`step_of_token`", "list", "torch.Tensor")),
        ({"step_of_token": torch.ones(2).bool()}, ValueError, ("`step_of_token`", "bool", "int64")),
        ({"step_of_token": torch.tensor([0, -2])}, ValueError, ("`step_of_token`", "-2", "-1")),
        # Below -1 is refused whatever the advantages belong to.
        *(
            (
                {"advantage": torch.zeros(2 + (per != "token")), "per": per, name: torch.tensor([0, -2])},
                ValueError,
                (f"`{name}`", "-2", "-1"),
            )
            for per in ("step", "rollout", "token")
            for name in ("step_of_token", "rollout_of_token", "sequence_of_token")
        ),
        ({"kl_mode": ["k3"]}, ValueError, ("`kl_mode`", "['k3']", "'low_var_kl'")),
        ({"per": ["step"]}, ValueError, ("`per`", "['step']", "'rollout'")),
        ({"ratio": {"token": 1}}, ValueError, ("`ratio`", "'turn'")),
        ({"aggregate": np.array(["token-mean"])}, ValueError, ("`aggregate`", "'token-sum'")),
        ({"clip_high_passes": "yes"}, TypeError, ("`clip_high_passes`", "'yes'", "True or False")),
        ({"clip_high_passes": 1}, TypeError, ("`clip_high_passes`", "1", "True or False")),
        ({"logprob": torch.zeros(2).to_sparse()}, ValueError, ("`logprob`", "sparse_coo", "dense")),
        ({"kl": 10**400}, ValueError, ("`kl`", "1329 bits", "float64")),
        ({"entropy": torch.zeros(3)}, ValueError, ("`entropy`", "(3,)", "(2,)")),
        ({"entropy_coef": math.inf}, ValueError, ("`entropy_coef`", "inf")),
        ({"ref_logprob": torch.zeros(2, 1)}, ValueError, ("`ref_logprob`", "(2, 1)", "(2,)")),
        *(
            ({name: value.to("meta")}, ValueError, (f"`{name}`", "meta", "cpu"))
            for name, value in [*GOOD.items(), *MORE.items()]
            if name != "logprob"
        ),
        # One advantage for each row that `per` names, and no other shape.
        *(
            ({"advantage": torch.zeros(shape), "per": per}, ValueError, ("`advantage`", str(shape), wanted))
            for per, wanted in (("step", "(S,)"), ("rollout", "(R,)"), ("token", "(2,)"))
            for shape in ((1, 2), (2, 1), (1, 3), ())
        ),
        ({"advantage": torch.zeros(4), "rows": 3}, ValueError, ("`advantage`", "(4,)", "(3,)", "one for each step")),
        ({"advantage": torch.zeros(2), "rows": 3}, ValueError, ("`advantage`", "(2,)", "(3,)")),
        ({"advantage": torch.zeros(2), "rows": 1, "per": "rollout"}, ValueError, ("(2,)", "(1,)", "each rollout")),
        ({"advantage": torch.zeros(2), "rows": 2, "per": "token"}, ValueError, ("`rows`", "per='token'")),
        ({"rows": -1}, ValueError, ("`rows`", "-1")),
        ({"rows": True}, ValueError, ("`rows`", "True")),
    ],
)
def test_errors_name_argument_value_and_wish(change, error, words, backend):
    with pytest.raises(error) as caught:
        policy_loss(**{**GOOD, **change})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.gpu
def test_an_index_past_the_end_makes_the_loss_nan_on_cuda():
    arrays = {k: v.cuda() for k, v in GOOD.items()} | {"step_of_token": torch.tensor([0, 3], device="cuda")}
    assert policy_loss(**arrays)[0].isnan()
