"""Properties that hold for every registered estimator, in every mode: order, groups, absence, scale; and identities.

Methods and modes come from the register (tests/estimator_cases.py), so a new one is tested without a line here, but
for its law of scale and shift: a method that `LAWS` does not know fails by name.
"""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import StepTable
from tests.estimator_cases import ALL, INFO, adopted, is_tree, label, permuted, random_rows, without_unknown

SEEDS = st.integers(0, 10**6)
CASES = pytest.mark.parametrize(("method", "options"), ALL, ids=map(label, ALL))
# These take one statistic over the whole table, on purpose and by their documentation.
ACROSS_GROUPS = {("gae", "whiten"), ("gae", "parity"), ("dr_grpo", "whiten"), ("istar", "batch_norm")}


def table_of(rows: list[dict[str, Any]], dtype: torch.dtype = torch.float64) -> StepTable:
    return StepTable.from_rows(rows, dtype=dtype)


@CASES
@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, double=st.booleans())
def test_permuting_rows_changes_no_bit(method, options, seed, double):
    rows = random_rows(method, seed, unknown=0.15)
    order = list(range(len(rows)))
    random.Random(seed + 1).shuffle(order)
    dtype = torch.float64 if double else torch.float32
    straight = rtmc.estimate(table_of(rows, dtype), method, **options)
    shuffled = rtmc.estimate(table_of(permuted(rows, order), dtype), method, **options)
    for (name, column), (_, other) in zip(straight.items(), shuffled.items(), strict=True):
        assert torch.equal(column[order], other), name


@CASES
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_interleaving_groups_changes_no_bit(method, options, seed):
    """A group alone, and between the rows of two others."""
    if (method, next(iter(options), None)) in ACROSS_GROUPS:
        pytest.skip(f"{method} with {options} has one statistic for the whole table, as documented")
    rows = random_rows(method, seed, unknown=0.15)
    order = sorted(range(len(rows)), key=lambda row: (rows[row]["rollout"], rows[row]["index"], rows[row]["group"]))
    mixed = rtmc.advantages(table_of(permuted(rows, order)), method, **options)
    for group in range(3):
        own = [row for row in order if rows[row]["group"] == group]
        alone = rtmc.advantages(table_of(permuted(rows, own)), method, **options)
        assert torch.equal(mixed[[order.index(row) for row in own]], alone)


@CASES
@settings(max_examples=4, deadline=None)
@given(seed=SEEDS)
def test_unknown_outcomes_are_absent(method, options, seed):
    rows = random_rows(method, seed, groups=2, unknown=0.4)
    if "premature" in options:  # which gives a truncated rollout an outcome, so that it is not absent
        rows = [row | {"ending": "failure"} for row in rows]
    found = rtmc.estimate(table_of(rows), method, **options)
    for name, column in found.items():
        assert torch.isfinite(column.double()).all(), name
    kept = without_unknown(rows)
    absent = [row for row in range(len(rows)) if row not in set(kept or ())]
    assert (found.advantage[absent] == 0).all()
    if kept is not None:
        rest = permuted(rows, kept)
        alone = rtmc.advantages(table_of(adopted(rest) if is_tree(method) else rest), method, **options)
        if options.get("divisor") == "children":
            # An absent leaf can lengthen a path by a node of weight 1: logs of weights are then added in other pairs.
            torch.testing.assert_close(found.advantage[kept], alone, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(found.advantage[kept], alone)


@CASES
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_single_precision_is_the_double_result_rounded_once(method, options, seed):
    rows = random_rows(method, seed, draw=lambda rng: rng.randrange(-8, 9) / 8)
    for row in rows:  # inputs that both precisions hold
        row.update({name: round(value * 256 + 0.5) / 256 for name, value in row.items() if isinstance(value, float)})
    single = rtmc.estimate(table_of(rows, torch.float32), method, **options)
    double = rtmc.estimate(table_of(rows), method, **options)
    for (name, column), (_, other) in zip(single.items(), double.items(), strict=True):
        assert torch.equal(column, other.to(column.dtype)), name


class Law(NamedTuple):
    """What becomes of the advantage when outcomes, step rewards and `scores` are multiplied by c > 0 (`scale`), and
    when outcomes and `shifted` scores are raised by d (`shift`): "linear" = multiplied by c, "same" = unchanged,
    None = the formula promises nothing. Under `options`.
    """

    scale: str | None
    shift: str | None
    options: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple's default; never written to
    scores: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()


LAWS = {
    "grpo": Law("same", "same", {"eps": 0.0}),
    "dr_grpo": Law("linear", "same"),
    "rloo": Law("linear", "same"),
    "grpo_step": Law("same", "same", {"gamma": 1.0, "eps": 0.0}),
    "gae": Law("linear", "same", scores=("value",), shifted=("value",)),
    "vineppo": Law("linear", "same", scores=("value",), shifted=("value",)),
    "rtmc": Law("linear", "same", {"gamma": 1.0}),
    "gigpo": Law("linear", "same", {"gamma": 1.0}),
    "hgpo": Law("same", "same", {"gamma": 1.0}),
    # Q = rho gamma^k R is not centred before the do-no-harm mask looks at the sign of R.
    "hcapo": Law("same", None),
    "igpo": Law("same", "same"),
    "igrpo": Law("same", "same"),
    "istar": Law("linear", "same", scores=("prm_reward",)),
    "treehca": Law("same", "same"),
    "tree_grpo": Law("same", "same"),
    "at2po": Law("same", "same"),
    "tempo": Law("same", "same"),
    # The graph sees endings, not outcomes; the episode term is a z-score.
    "graphhca": Law("same", "same"),
    "crbc": Law("same", "same"),
    "graft": Law("same", "same"),
}


def law_of(method: str) -> Law:
    assert method in LAWS, f"no law of scale and shift for `{method}` in LAWS of {__file__}; add what its formula says"
    return LAWS[method]


def changed(rows, c, d, law):
    """Rows with outcomes c R + d, rewards c r, and the scores of the law likewise."""
    return [
        row
        | {"outcome": c * row["outcome"] + d, "reward": c * row["reward"]}
        | {name: c * row[name] for name in law.scores}
        | {name: c * row[name] + d for name in law.shifted}
        for row in rows
    ]


@pytest.mark.parametrize("method", INFO)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, c=st.sampled_from([0.25, 3.0, 100.0]))
def test_scaling_rewards_acts_as_the_formula_says(method, seed, c):
    law = law_of(method)
    # Values on a grid: what differs at all differs by far more than the eps of a z-score.
    rows = random_rows(method, seed, draw=lambda rng: rng.randrange(-4, 5) / 4)
    before = rtmc.advantages(table_of(rows), method, **law.options)
    after = rtmc.advantages(table_of(changed(rows, c, 0.0, law)), method, **law.options)
    if law.scale is not None:
        wanted = before * c if law.scale == "linear" else before
        torch.testing.assert_close(after, wanted, rtol=2e-4, atol=2e-4 * max(1.0, c if law.scale == "linear" else 1))


@pytest.mark.parametrize("method", [name for name in INFO if law_of(name).shift] if set(INFO) <= set(LAWS) else INFO)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, d=st.sampled_from([-2.0, 0.5, 8.0]))
def test_shifting_outcomes_changes_nothing(method, seed, d):
    law = law_of(method)
    rows = random_rows(method, seed, draw=lambda rng: rng.randrange(-4, 5) / 4)
    before = rtmc.advantages(table_of(rows), method, **law.options)
    after = rtmc.advantages(table_of(changed(rows, 1.0, d, law)), method, **law.options)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


def test_a_method_without_a_law_fails_by_name():
    with pytest.raises(AssertionError, match="no law of scale and shift for `novel`"):
        law_of("novel")


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_without_a_prior_credit_sums_to_zero_in_each_state(seed):
    """Over the visits that count: the first of each (state, action) in a rollout."""
    rows = random_rows("rtmc", seed)
    table = table_of(rows)
    found = rtmc.advantages(table, "rtmc", prior_visits=0)
    sums: dict[tuple[int, int], float] = {}
    seen = set()
    for row, credit in zip(rows, found.tolist(), strict=True):
        visit = (row["group"], row["rollout"], row["state"], row["action"])
        if visit not in seen:
            seen.add(visit)
            state = (row["group"], row["state"])
            sums[state] = sums.get(state, 0.0) + credit
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, k=st.integers(0, 5))
def test_distinct_states_leave_the_prior_alone(seed, k):
    rows = [row | {"state": number, "reward": 0.0} for number, row in enumerate(random_rows("rtmc", seed, groups=1))]
    outcomes = {row["rollout"]: row["outcome"] for row in rows}
    mean = math.fsum(outcomes.values()) / len(outcomes)
    found = rtmc.advantages(table_of(rows), "rtmc", gamma=1.0, prior_visits=k)
    assert found.tolist() == pytest.approx([k / (1 + k) * (row["outcome"] - mean) for row in rows], abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_credits_of_graphhca_telescope(seed):
    """ell_t = Psi(s_t+1) - Psi(s_t): a rollout's sum is its terminal's potential less that of its first state."""
    rows = random_rows("graphhca", seed, groups=1)
    table = table_of(rows)
    found = rtmc.estimate(table, "graphhca")
    credit, potential = found.parts["credit"], found.parts["potential"]
    for rollout in range(4):
        own = [number for number, row in enumerate(rows) if row["rollout"] == rollout]
        end = 0.0 if rows[own[0]]["ending"] == "success" else math.log(0.01)
        assert credit[own].sum().item() == pytest.approx(end - potential[own[0]].item(), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_graphhca_without_steps_is_grpo_bit_for_bit(seed):
    table = table_of(random_rows("graphhca", seed))
    grpo = rtmc.advantages(table, "grpo", ddof=0, eps=0.0)
    assert torch.equal(rtmc.advantages(table, "graphhca", step_weight=0.0), grpo)


@settings(max_examples=20, deadline=None)
@given(outcomes=st.lists(st.integers(-8, 8), min_size=2, max_size=6))
def test_child_mean_on_a_star_is_grpo(outcomes):
    """One first turn and a leaf for every outcome: AT2PO's leaves are GRPO's rollouts, ddof 0."""
    assume(len(set(outcomes)) > 1)
    common = {"group": 0, "state": 0, "entropy": 0.5}
    rows = [common | {"rollout": 0, "index": 0, "action": 0, "parent": -1, "outcome": outcomes[0]}]
    rows += [
        common | {"rollout": r, "index": 1, "action": r + 1, "parent": 0, "outcome": outcome}
        for r, outcome in enumerate(outcomes)
    ]
    star = rtmc.advantages(table_of(rows), "at2po", backup="child_mean")
    flat = table_of([row | {"index": 0, "parent": -1} for row in rows[1:]])
    grpo = rtmc.advantages(flat, "grpo", ddof=0)
    torch.testing.assert_close(star[1:], grpo, rtol=1e-12, atol=1e-12)
    assert star[0].item() == pytest.approx(0.0, abs=1e-9)
