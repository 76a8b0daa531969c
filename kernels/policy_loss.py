"""The clipped policy-gradient loss of a batch of tokens and its gradient, read once and computed in one pass.

With d = logprob - old_logprob of an unmasked token, A its advantage, and weights w that depend on masks
alone:

    r     = exp(clamp(d, -20, 20))                                      ratio="token"
    r     = exp(min(mean of d over the token's turn or sequence, 10))   ratio="turn" / "sequence"
    l     = max(-A r, -A clip(r, 1 - low, 1 + high));   with a dual clip c and A < 0:  min(l, -A c)
    loss  = sum over tokens of w (l + kl k(logprob, ref_logprob))

    k1    x                 x = logprob - ref_logprob         ("kl" in verl)
    k2    x^2 / 2                                              ("mse")
    k3    exp(-x) - 1 + x   -x kept in [-20, 20], k <= 10      ("low_var_kl", with verl's two clamps)
    abs   |x|

With per-token entropies H (AEPO) each advantage is first multiplied by 1 + c z(H), z over the unmasked tokens of the
call: (H - mean) / sample standard deviation, divided by 1 where that is 0 or there is one token. With
``clip_high_passes`` the upper bound is (1 + high) r / stopgrad(r): the same value, but a slope.

The gradient is taken with respect to ``logprob`` alone. Under "turn" and "sequence" the mean is the value of
the ratio and each token's own logprob carries the gradient (dr/dlogprob = r), as in GSPO's token form.
Outside a clamp the gradient is zero. Every aggregate is a weight per token (``aggregate_weights``), so that
micro-batches can use the weights of their whole batch.

Sources: Schulman et al. 2017 (arXiv 1707.06347); Ye et al. 2020 (dual clip, arXiv 1912.09729); Zheng et al.
2025 (GSPO, arXiv 2507.18071); Dong et al. 2025 (AEPO, arXiv 2510.14545); clamps, KL names and aggregates as verl's
core_algos.py computes them.

Not here: advantages (the estimators), log-probabilities (logprob.py), entropy bonuses.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from rtmc.kernels.backend import FLOAT_DTYPES, check_integers, check_range, check_tensor, choose
from rtmc.kernels.token_loss import token_loss
from rtmc.kernels.token_weights import AGGREGATES, aggregate_weights, segment_mean

__all__ = ["AGGREGATES", "KL_MODES", "RATIOS", "PolicyLossStats", "aggregate_weights", "policy_loss"]

RATIOS = ("token", "turn", "sequence")
# verl's words come after ours.
KL_MODES = {"k1": 0, "k2": 1, "k3": 2, "abs": 3, "kl": 0, "mse": 1, "low_var_kl": 2}
_PER = {"step": 0, "rollout": 1, "token": 2}
_INFINITY = float("inf")


class PolicyLossStats(NamedTuple):
    """What happened in one call, as 0-d tensors (float64) without gradient; means over unmasked tokens, 0 if none."""

    tokens: torch.Tensor  # int64: unmasked tokens
    ratio_mean: torch.Tensor  # of r after its clamp
    clip_low: torch.Tensor  # share of tokens whose loss is the lower clip's (A < 0, r < 1 - low)
    clip_high: torch.Tensor  # share whose loss is the upper clip's (A > 0, r > 1 + high)
    clip_dual: torch.Tensor  # share whose loss is the dual clip's
    log_ratio_mean: torch.Tensor  # of d; its negative is verl's ppo_kl (k1 of old to new)
    approx_kl: torch.Tensor  # k3 of old to new: mean of exp(d) - 1 - d, d kept in [-20, 20]
    ref_kl: torch.Tensor  # mean of k(logprob, ref_logprob); 0 without ref_logprob
    max_log_ratio: torch.Tensor  # largest |d|; inf where any is not finite


def _check_advantage(
    advantage: object, per: str, rows: int | None, shape: tuple[int, ...], device: torch.device
) -> None:
    if per == "token":
        if rows is not None:
            raise ValueError(f"`rows`: got {rows!r} with per='token'; wanted None: there is one advantage a token")
        check_tensor("advantage", advantage, dtypes=FLOAT_DTYPES, shape=shape, device=device)
        return
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 0):
        raise ValueError(f"`rows`: got {rows!r}; wanted the number of {per}s, an int >= 0")
    wanted: int | str = {"step": "S", "rollout": "R"}[per] if rows is None else int(rows)
    try:
        check_tensor("advantage", advantage, dtypes=FLOAT_DTYPES, shape=(wanted,), device=device)
    except ValueError as error:
        raise ValueError(f"{error} (per={per!r}: one for each {per})") from None


def _entropy_moments(entropy: torch.Tensor, active: torch.Tensor, coefficient: float) -> torch.Tensor:
    """(mean, coefficient / sample deviation) over unmasked tokens, (2,) float64; two passes, no host wait."""
    values = torch.where(active, entropy.detach().double(), 0.0)
    count = active.sum()
    mean = values.sum() / count.clamp(min=1)
    squares = torch.where(active, (values - mean).square(), 0.0).sum()
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.stack([mean, coefficient / torch.where(deviation == 0, 1.0, deviation)])


def policy_loss(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    step_of_token: torch.Tensor,
    rollout_of_token: torch.Tensor,
    ref_logprob: torch.Tensor | None = None,
    ratio: str = "token",
    clip: tuple[float, float] = (0.2, 0.2),
    dual_clip: float | None = None,
    kl: float = 0.0,
    kl_mode: str = "k3",
    aggregate: str = "token-mean",
    *,
    per: str = "step",
    sequence_of_token: torch.Tensor | None = None,
    norm_length: float | None = None,
    weights: torch.Tensor | None = None,
    rows: int | None = None,
    entropy: torch.Tensor | None = None,
    entropy_coef: float = 0.2,
    clip_high_passes: bool = False,
) -> tuple[torch.Tensor, PolicyLossStats]:
    """The clipped policy-gradient loss of T tokens (formulas at the head of this file), and what it did.

    A token whose step or rollout (or sequence) is -1 is masked: nothing of it, NaN included, reaches the
    loss, its gradient is 0 and no count sees it. At an unmasked token a NaN or infinity in a log-probability
    makes the loss and that token's gradient NaN, so that it can be noticed; an infinite advantage gives an
    infinite or NaN loss. Without an unmasked token the loss is 0 and still differentiable, with zero
    gradients.

    Parameters
    ----------
    logprob : (T,) float16, bfloat16, float32 or float64, any strides
        log pi of each token now (nats). The one differentiable argument. float64 is computed in float64, all
        else in float32; the sums of the reduction are float64 from the second stage on.
    old_logprob, ref_logprob : (T,) any of these dtypes; constants
        Under the policy that sampled the tokens, and under the reference (only read for the KL term and its
        stat).
    advantage : (S,), (R,) or (T,) floating point; constant
        Per step, rollout or token as ``per`` says; gathered where it is used, so that no (T,) copy exists. No other
        shape is taken, and none is guessed from its length.
    step_of_token, rollout_of_token : (T,) int64, or int32, which is widened
        Row of the token's step in 0..S-1 and of its rollout in 0..R-1; -1 masks. Only the one that ``per``
        names must be a row; the other may be any number >= -1.
    rows : int, optional
        S or R; with it another number of advantages is refused. Without it a table longer than the rows that appear is
        accepted, because a micro-batch holds some of the steps; but not one of exactly T advantages whose last row
        does not appear, which most likely has one a token.
    ratio : "token", "turn" (the mean of d over the step's tokens) or "sequence" (over the sequence's, GSPO)
        A batch must hold turns or sequences whole under the last two.
    clip : (low, high), both >= 0, low <= 1
    dual_clip : number > 1, or None
    kl, kl_mode : coefficient >= 0 of the penalty; "k1", "k2", "k3", "abs", or verl's "kl", "mse",
    "low_var_kl"
        With kl = 0 the reference only feeds ``stats.ref_kl``.
    aggregate, sequence_of_token, norm_length
        See ``aggregate_weights``.
    weights : (T,) floating point, optional
        Weights of the tokens computed beforehand by ``aggregate_weights`` over a whole batch; ``aggregate``
        and ``norm_length`` are then not read. A weight of 0 does not mask.
    entropy : (T,) floating point, optional; constant
        Of each token's distribution (nats), for AEPO's reweighting with the coefficient ``entropy_coef``. At an
        unmasked token a NaN makes the loss NaN; masked ones are not read.
    clip_high_passes : bool
        Tokens above the upper clip keep a gradient (AEPO).

    Returns
    -------
    loss : 0-d, float64 for float64 ``logprob`` else float32; differentiable once
    stats : PolicyLossStats

    Raises
    ------
    TypeError, ValueError
        For a wrong dtype, shape, device or word; for what looks like an advantage a token under another ``per`` (on
        CUDA the host waits for the device where T advantages are given for steps or rollouts without ``rows``); on CPU
        also for a step or rollout outside its table, or a step, rollout or sequence below -1. On CUDA a token past the
        end of the table makes the loss NaN, and one below -1 is masked.
    """
    choose("ratio", ratio, RATIOS)
    choose("kl_mode", kl_mode, KL_MODES)
    choose("aggregate", aggregate, AGGREGATES)
    choose("per", per, _PER)
    check_tensor("logprob", logprob, dtypes=FLOAT_DTYPES, shape=("T",))
    like: dict[str, Any] = {"shape": tuple(logprob.shape), "device": logprob.device}
    check_tensor("old_logprob", old_logprob, dtypes=FLOAT_DTYPES, **like)
    _check_advantage(advantage, per, rows, **like)
    step_of_token = check_integers("step_of_token", step_of_token, **like)
    rollout_of_token = check_integers("rollout_of_token", rollout_of_token, **like)
    for name, tensor in (("ref_logprob", ref_logprob), ("weights", weights), ("entropy", entropy)):
        if tensor is not None:
            check_tensor(name, tensor, dtypes=FLOAT_DTYPES, **like)
    if sequence_of_token is not None:
        sequence_of_token = check_integers("sequence_of_token", sequence_of_token, **like)
    if not isinstance(clip_high_passes, bool):
        raise TypeError(f"`clip_high_passes`: got {clip_high_passes!r}; wanted True or False")
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise ValueError(f"`clip`: got {clip!r}; wanted a pair (low, high)")
    low = check_range("clip[0]", clip[0], 0, 1)
    high = check_range("clip[1]", clip[1], 0, _INFINITY)
    dual = 0.0 if dual_clip is None else check_range("dual_clip", dual_clip, 1, _INFINITY, low_open=True)
    kl = check_range("kl", kl, 0, _INFINITY, high_open=True)
    entropy_coef = check_range("entropy_coef", entropy_coef, -_INFINITY, _INFINITY, low_open=True, high_open=True)
    if norm_length is not None:
        check_range("norm_length", norm_length, 0, _INFINITY, low_open=True, high_open=True)
    if kl > 0 and ref_logprob is None:
        raise ValueError(f"`ref_logprob`: got None with kl={kl}; wanted (T,) log-probabilities of the reference")
    acc = torch.promote_types(logprob.dtype, torch.float32)

    sequence = rollout_of_token
    if sequence_of_token is not None:
        sequence = sequence_of_token
        # A sequence of -1 masks as a rollout of -1 does, and one below is refused with it.
        lower = torch.minimum(rollout_of_token, sequence_of_token)
        rollout_of_token = torch.where(sequence_of_token >= 0, rollout_of_token, lower)
    # A mean over all unmasked tokens, or their sum, needs no weight of each: the op counts as it goes.
    mean = weights is None and aggregate == "token-mean"
    if weights is None and aggregate not in ("token-mean", "token-sum"):
        weights = aggregate_weights(
            step_of_token,
            rollout_of_token,
            aggregate,
            sequence_of_token=sequence_of_token,
            norm_length=norm_length,
            dtype=acc,
        )
    segment_log_ratio, entropy_z = None, None
    with torch.no_grad():
        if ratio != "token":
            active = (step_of_token >= 0) & (rollout_of_token >= 0)
            difference = logprob.detach().to(acc) - old_logprob.to(acc)
            key = step_of_token if ratio == "turn" else sequence
            segment_log_ratio = segment_mean(difference, torch.where(active, key, -1))
        if entropy is not None:
            active = (step_of_token >= 0) & (rollout_of_token >= 0)
            entropy_z = _entropy_moments(entropy, active, entropy_coef)

    loss, _, numbers = token_loss(
        logprob,
        old_logprob,
        advantage,
        step_of_token,
        rollout_of_token,
        weights,
        ref_logprob,
        segment_log_ratio,
        _PER[per],
        low,
        high,
        dual,
        kl,
        KL_MODES[kl_mode],
        entropy,
        entropy_z,
        mean,
        clip_high_passes,
        rows is None and per != "token" and advantage.shape[0] == logprob.shape[0],
    )
    _, ratio_mean, below, above, capped, log_ratio, approx_kl, ref_kl, unmasked, largest, _ = numbers.unbind()
    return loss, PolicyLossStats(
        tokens=unmasked.long(),
        ratio_mean=ratio_mean,
        clip_low=below,
        clip_high=above,
        clip_dual=capped,
        log_ratio_mean=log_ratio,
        approx_kl=approx_kl,
        ref_kl=ref_kl,
        max_log_ratio=largest,
    )
