"""`igpo`: information gain as the reward of a turn (arXiv 2510.14967).

Input: `answer_score` p, the probability of the reference answer after the turn (exp of the mean log-probability of
its tokens). The reward of a turn is what it added, that of the last turn is the outcome:

    r_t = p_t - p_{t-1}   for t < T - 1        r_{T-1} = R_i

p before the first turn is the same for all rollouts of a task: the score `root_score`, read from the first row of each
rollout, or 0 where the table has none. The score of the last turn is not read. Then, z being the z-score with sample
standard deviation and eps 1e-6 over the task,

    norm "separate"   z(r) over last turns and over all others, each by itself; A_t = z_t + gamma A_{t+1}
    norm "joint"      the same with one z-score over all turns

Rows with `tokens` = 0 are no turns: they stay out of differences and statistics, and get 0.

Two repositories compute this differently. "separate" is the second's (e3trange/IGRPO; with parity="verl_agent" its
raw reward for a task with a single last, or a single other, turn, which is 0 here). The first's (GuoqingWang1/IGPO) is
made for one row a token:

    norm "original"              G_t = r_t + gamma G_{t+1}, where G_{t+1} counts as 0 if row t+1 is masked, so that no
                                 credit crosses tool output; A = G - mean of G over the task's rollouts at the same
                                 index, a rollout that is shorter counting as 0; masked rows take part in the mean and
                                 get 0. The repository fixes gamma to 1
    norm "original_discounted"   its unused form (there with gamma 0.5): A = (G - mean) / (std + 1e-6) with the
                                 statistics of the FIRST row's G for all rows; 0 where those are all equal
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtmc.errors import EstimatorError
from rtmc.kernels.ids import dense_ids
from rtmc.kernels.returns import discounted_returns
from rtmc.kernels.segments import segment_stats
from rtmc.methods.options import choice, number
from rtmc.methods.registry import register_estimator
from rtmc.methods.relative import centre, known_groups, z_score
from rtmc.methods.scores import finite_score
from rtmc.table import StepTable
from rtmc.types import Estimate

EPS = 1e-6


class _Turns(NamedTuple):
    """Some rows of a table, in time order.

    rows      (N,) row of each
    offsets   (R+1,) where the rows of each rollout begin
    first     (N,) bool, the first of its rollout
    last      (N,) bool, the last of its rollout that the policy sampled
    """

    rows: Tensor
    offsets: Tensor
    first: Tensor
    last: Tensor


def _turns(table: StepTable, masked: bool) -> _Turns:
    """The rows that the policy sampled or, with `masked`, all of them."""
    policy = table.tokens > 0
    taken = torch.ones_like(policy) if masked else policy
    rows = taken.nonzero().squeeze(1)
    counts = torch.bincount(table.rollout[rows], minlength=table.n_rollouts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    first = torch.zeros_like(rows, dtype=torch.bool)
    first[offsets[:-1][counts > 0]] = True
    final = segment_stats(table.index.double(), torch.where(policy, table.rollout, -1), table.n_rollouts).max
    # A rollout without a row of the policy has NaN, which equals nothing.
    return _Turns(rows, offsets, first, table.index[rows] == final[table.rollout[rows]])


def _rewards(table: StepTable, turns: _Turns, mode: str) -> Tensor:
    """(N,) reward of each turn; 0 in a rollout with an unknown outcome."""
    counts = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    counts[turns.rows] = ~turns.last
    score = finite_score(table, "igpo", "answer_score", counts)[turns.rows]
    if mode == "reward":
        gain = score
    else:
        root = torch.zeros_like(score)
        if "root_score" in table.scores:
            at_first = torch.zeros_like(counts)
            at_first[turns.rows] = turns.first & ~turns.last
            root = finite_score(table, "igpo", "root_score", at_first)[turns.rows]
        before = torch.where(turns.first, root, score.roll(1))
        if mode == "logprob":
            read = counts[turns.rows] & table.known[table.rollout[turns.rows]]
            if bool((read & ((score <= 0) | (before <= 0))).any()):
                raise EstimatorError(
                    "estimator `igpo`: reward_mode='logprob' takes logarithms, so every `answer_score`, and the "
                    '`root_score` before the first turn, must be above 0; clamp them, or use reward_mode="prob"'
                )
            score, before = score.clamp(min=1e-300).log(), before.clamp(min=1e-300).log()
        gain = score - before
    known = table.known[table.rollout[turns.rows]]
    outcome = torch.where(table.known, table.outcome, 0.0)[table.rollout[turns.rows]]
    return torch.where(known, torch.where(turns.last, outcome, gain), 0.0)


@register_estimator(
    "igpo",
    needs=("answer_score",),
    options={
        "gamma": number(1.0, 0.0, 1.0),
        "norm": choice("separate", ("separate", "joint", "original", "original_discounted")),
        "reward_mode": choice("prob", ("prob", "logprob", "reward")),
        "parity": choice(None, ("verl_agent",)),
    },
    source="IGPO, arXiv 2510.14967; GuoqingWang1/IGPO and e3trange/IGRPO",
)
def igpo(table: StepTable, gamma: float, norm: str, reward_mode: str, parity: str | None) -> Estimate:
    """Discounted sum of normalised information gains, see the head of this file.

    gamma         discount from turn to turn, in [0, 1]
    norm          "separate", "joint", "original" or "original_discounted"
    reward_mode   "prob": r_t = p_t - p_{t-1}. "logprob": differences of log p, which needs `root_score`. "reward":
                  `answer_score` holds r_t itself
    parity        "verl_agent": raw rewards, / (1 + 1e-6), where a statistic has one member ("separate", "joint")

    A statistic with one member, or with equal members, gives 0. Parts: `turn`, the normalised reward whose discounted
    sum is the advantage ("separate" and "joint"; elsewhere r_t). Returns advantage and returns (discounted sum of r_t).

    Raises EstimatorError for an `answer_score` that is not finite on a turn other than the last, of a rollout with a
    known outcome.
    """
    original = norm.startswith("original")
    turns = _turns(table, masked=original)
    reward = _rewards(table, turns, reward_mode)
    if original:
        return _original(table, reward, gamma, norm == "original_discounted")
    ids = known_groups(table)[table.rollout[turns.rows]]
    if norm == "separate":
        ids = torch.where(ids < 0, -1, 2 * ids + turns.last)
    centred = centre(reward, ids, 2 * table.n_groups, ddof=1)
    turn = z_score(centred, EPS)
    if parity:
        turn = torch.where(centred.members == 1, reward / (1 + EPS), turn)

    def spread(values: Tensor) -> Tensor:
        return torch.zeros_like(table.reward).index_copy_(0, turns.rows, values)

    return Estimate(
        spread(discounted_returns(turn, turns.offsets, gamma)),
        returns=spread(discounted_returns(reward, turns.offsets, gamma)),
        parts={"turn": spread(turn)},
    )


def _original(table: StepTable, reward: Tensor, gamma: float, discounted: bool) -> Estimate:
    """Norms "original" and "original_discounted"; `reward` (S,) of all rows."""
    policy = table.tokens > 0
    # A masked row begins a stretch: what it holds does not reach the rows before it.
    begin = (~policy | (table.index == 0)).nonzero().squeeze(1)
    returns = discounted_returns(reward, torch.cat([begin, begin.new_tensor([len(table)])]), gamma)
    ids = known_groups(table)[table.rollout]
    counted = policy & (ids >= 0)
    group = table.group[table.rollout]
    if discounted:
        first = segment_stats(returns, torch.where(table.index == 0, ids, -1), table.n_groups)
        std = (first.var * first.count / (first.count - 1).clamp(min=1)).sqrt()
        advantage = (returns - first.mean[group]) / (std + EPS)[group]
        counted = counted & (first.min != first.max)[group]
    else:
        rollouts = segment_stats(torch.zeros_like(table.outcome), known_groups(table), table.n_groups).count[group]
        cells, count = dense_ids(group, table.index)
        there = segment_stats(returns, torch.where(ids < 0, -1, cells), int(count))
        # Equal values differ from their mean by rounding.
        equal = (there.min == there.max)[cells] & (there.count[cells] == rollouts)
        advantage = torch.where(equal, 0.0, returns - there.sum[cells] / rollouts)
    return Estimate(
        torch.where(counted, advantage, 0.0),
        returns=torch.where(policy, returns, 0.0),
        parts={"turn": reward},
    )
