"""Degenerate input: what each estimator gives, worked by hand. The one source of the table in docs/estimators.md.

`python -m tests.degenerate_cells` prints that table; tests/test_estimators_degenerate.py checks every cell against the
estimator and the page against this file.

Every score is the same on all rows (`NEUTRAL`), and every option has its default, so that a number here shows what the
formula makes of the kind of input alone. Numbers hold up to the eps in a denominator (1e-5).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rtmc import StepTable
from tests.estimator_cases import is_tree, scores_of

NEUTRAL = {
    "value": 0.25,
    "answer_score": 0.5,
    "hindsight_logprob": -1.0,
    "entropy": 0.5,
    "prm_reward": 0.25,
    "pool_weight": 1.0,
    "root_score": 0.0,  # of `igpo`, as without the score
}
TOLERANCE = 1e-5


class Member(NamedTuple):
    """A rollout: its (state, action) pairs, its outcome and its ending."""

    steps: Sequence[tuple[str, str]]
    outcome: float
    ending: str | None = None


def table_of(method: str, members: Sequence[Member], dtype: torch.dtype = torch.float64) -> StepTable:
    """A group of these rollouts, none of which branches; the scores that `method` needs are `NEUTRAL`."""
    scores = {name: NEUTRAL[name] for name in scores_of(method)}
    rows: list[dict[str, Any]] = []
    empty: list[dict[str, Any]] = []
    for rollout, member in enumerate(members):
        common = {"group": 0, "rollout": rollout, "outcome": member.outcome, "ending": member.ending}
        if not member.steps:
            empty.append(common)
        for index, (state, action) in enumerate(member.steps):
            row = common | {"index": index, "state": state, "action": action} | scores
            if is_tree(method):
                row["parent"] = len(rows) - 1 if index else -1
            rows.append(row)
    return StepTable.from_rows(rows, empty, dtype)


class Kind(NamedTuple):
    """A kind of input; `cells` has the advantages of its steps, in order, by each method."""

    title: str
    input: str
    members: list[Member]
    cells: dict[str, list[float]]


_R2 = 2**-0.5
_TWO = [Member([("s", "a")], 1.0), Member([("s", "b")], 0.0)]
_BRANCHLESS = "treehca"  # compares the leaves of one tree; rollouts that do not branch are trees of one leaf


def _pm(x: float) -> list[float]:
    return [x, -x]


def _z(values: Sequence[float], ddof: int, eps: float = 0.0) -> list[float]:
    mean, std = statistics.fmean(values), statistics.stdev(values) if ddof else statistics.pstdev(values)
    return [(value - mean) / (std + eps) for value in values]


def _plus(*terms: Sequence[float]) -> list[float]:
    return [math.fsum(column) for column in zip(*terms, strict=True)]


_ZERO_ALONE = [
    "grpo", "dr_grpo", "rloo", "gigpo", "hgpo", "hcapo", "igpo", "igrpo", "istar", "treehca", "tree_grpo", "at2po",
    "tempo", "graphhca", "crbc", "graft",
]  # fmt: skip

ALONE = Kind(
    "group of one",
    "one rollout: state s, action a; state t, action b; outcome 1",
    [Member([("s", "a"), ("t", "b")], 1.0)],
    {method: [0.0, 0.0] for method in _ZERO_ALONE}
    | {
        "grpo_step": _z([0.99, 1.0], 1, 1e-6),  # compares steps, of which there are two
        "gae": [0.95 * 0.75, 0.75],
        "vineppo": [0.0, 0.75],
        "rtmc": [2 / 3 * (0.99 - 1), 0.0],
    },
)

EQUAL = Kind(
    "all outcomes equal",
    "three rollouts: state s, action a; state t, another action each; outcome 1",
    [Member([("s", "a"), ("t", f"b{number}")], 1.0) for number in range(3)],
    {method: [0.0] * 6 for method in _ZERO_ALONE if method != "hcapo"}
    | {
        "grpo_step": _z([0.99, 1.0] * 3, 1, 1e-6),
        "gae": [0.95 * 0.75, 0.75] * 3,
        "vineppo": [0.0, 0.75] * 3,
        "rtmc": [0.99 - (3 * 0.99 + 2) / 5, 0.0] * 3,
        "hcapo": [0.0, 1.0] * 3,  # Q = .95, 1: the first step's -1 does harm in a success, so it is 0
    },
)

EMPTY = Kind(
    "a member with no steps",
    "two rollouts: state s, action a, outcome 1; no step, outcome 0",
    [Member([("s", "a")], 1.0), Member([], 0.0)],
    {
        "grpo": [_R2],
        "dr_grpo": [0.5],
        "rloo": [1.0],
        "grpo_step": [0.0],
        "gae": [0.75],
        "vineppo": [0.75],
        "rtmc": [2 / 3 * (1 - 0.5)],
        "gigpo": [0.5],
        "hgpo": [_R2],
        "hcapo": [1.0],
        "igpo": [0.0],
        "igrpo": [0.0],
        "istar": [1.0],
        _BRANCHLESS: [0.0],
        "tree_grpo": [_R2],
        "at2po": [1.0],
        "tempo": [(0.5 + 0.5) / _R2],
        "graphhca": [1.0],
        "crbc": [1.0],
        "graft": [1.0],
    },
)

_BY_ACTION = {
    "grpo": _pm(_R2),
    "dr_grpo": _pm(0.5),
    "rloo": _pm(1.0),
    "grpo_step": _pm(_R2),
    "gae": [0.75, -0.25],
    "vineppo": [0.75, -0.25],
    "rtmc": _pm(0.5),  # Q = 1, 0; V' = (1 + 2/2) / 4
    "gigpo": _pm(0.5 + 0.5),
    "hgpo": _pm((_R2 + 2 * 1) / 3),
    "hcapo": _pm(1.0 + 1.0),
    "igpo": _pm(_R2),
    "igrpo": _pm(_R2),
    "istar": _pm(1.0),
    _BRANCHLESS: [0.0, 0.0],
    "tree_grpo": _pm(_R2),
    "at2po": _pm(1.0),
    "tempo": _pm((0.5 + 0.5) / _R2),
    "graphhca": _pm(1.0 + 1.0),
    "crbc": _pm(1.0 + 1.0),
    "graft": _pm(1.0 + 1.0),
}

ONE_STEP = Kind("one step", "two rollouts in state s: action a, outcome 1; action b, outcome 0", _TWO, dict(_BY_ACTION))

ONCE = Kind(
    "a state seen once",
    "two rollouts, action a: in state s, outcome 1; in state t, outcome 0",
    [Member([("s", "a")], 1.0), Member([("t", "a")], 0.0)],
    _BY_ACTION
    | {
        "rtmc": _pm(2 / 3 * 0.5),
        "gigpo": _pm(0.5),
        "hgpo": _pm(_R2),
        "tempo": _pm(_R2),
        "graphhca": _pm(1.0),
        "crbc": _pm(1.0),
        "graft": _pm(1.0),
    },
)

# Three edges leave s: to itself, to success, to failure. phi = .95 (phi + 1) / 3.
_PHI = (0.95 / 3) / (1 - 0.95 / 3)
_RETURNS = [0.95, 1.0, 0.0]

REPEATED = Kind(
    "repeated (state, action)",
    "two rollouts in state s: action a twice, outcome 1; action b, outcome 0",
    [Member([("s", "a"), ("s", "a")], 1.0), Member([("s", "b")], 0.0)],
    {
        "grpo": [_R2, _R2, -_R2],
        "dr_grpo": [0.5, 0.5, -0.5],
        "rloo": [1.0, 1.0, -1.0],
        "grpo_step": _z([0.99, 1.0, 0.0], 1),
        "gae": [0.95 * 0.75, 0.75, -0.25],
        "vineppo": [0.0, 0.75, -0.25],
        "rtmc": [0.99 - 1.99 / 4, 0.99 - 1.99 / 4, -1.99 / 4],  # the first visit counts: V' = (.99 + 2/2) / 4
        "gigpo": _plus([0.5, 0.5, -0.5], [value - 0.65 for value in _RETURNS]),  # every visit counts
        "hgpo": [(e + 2 * z) / 3 for e, z in zip([_R2, _R2, -_R2], _z(_RETURNS, 0), strict=True)],
        "hcapo": _plus([1.0, 1.0, -1.0], _z(_RETURNS, 0)),
        "igpo": [_R2, _R2, -_R2],
        "igrpo": _z([1.0, 1.0, 0.0], 1),
        "istar": [1.0, 1.0, -1.0],
        _BRANCHLESS: [0.0] * 3,
        "tree_grpo": [_R2, _R2, -_R2],
        "at2po": [1.0, 1.0, -1.0],
        "tempo": [2 * _R2, _R2, -2 * _R2],
        "graphhca": _plus([1.0, 1.0, -1.0], _z([math.log(_PHI), 0.0, math.log(0.01)], 0)),
        "crbc": [1.0 + _R2, 1.0 + _R2, -1.0 - 2 * _R2],
        "graft": _plus([1.0, 1.0, -1.0], _z([0.95 * _PHI, 0.95, 0.0], 0)),
    },
)

# The same with an option, where a default hides what a user of the option sees.
WITH_OPTION: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo, parity='verl'": ("grpo", {"parity": "verl"}),
    "rloo, parity='verl'": ("rloo", {"parity": "verl"}),
    "istar, parity='verl_agent'": ("istar", {"parity": "verl_agent"}),
    "treehca, leaf_norm='group'": ("treehca", {"leaf_norm": "group"}),
}
for _kind in (ALONE, EQUAL, EMPTY, ONE_STEP, ONCE, REPEATED):
    _kind.cells.update(
        {
            "grpo, parity='verl'": _kind.cells["grpo"],
            "rloo, parity='verl'": _kind.cells["rloo"],
            "istar, parity='verl_agent'": _kind.cells["istar"],
            "treehca, leaf_norm='group'": _kind.cells["grpo"],  # a leaf's value is its GRPO advantage
        }
    )
# An engine gives a group of one its raw score; iStar's a baseline of one step its raw prm_reward too.
ALONE.cells.update(
    {"grpo, parity='verl'": [1.0] * 2, "rloo, parity='verl'": [1.0] * 2, "istar, parity='verl_agent'": [1.25] * 2}
)
EMPTY.cells.update({"istar, parity='verl_agent'": [1.25]})

KINDS = [ALONE, EQUAL, EMPTY, ONE_STEP, ONCE, REPEATED]

# What becomes of "one step" when the outcomes are (x, 0), x = 1e30 or 1e-30.
LINEAR = {"dr_grpo", "rloo", "rtmc", "gigpo", "istar"}
SCORED = {"gae", "vineppo"}  # linear, beside a `value` of 1/4
WITH_EPS = {"grpo", "grpo_step", "hgpo", "igpo", "igrpo", "tree_grpo", "at2po", "tempo", "treehca"}
WITHOUT_EPS = {"hcapo", "graphhca", "crbc", "graft"}


def extreme(method: str, x: float) -> list[float]:
    """Advantages of "one step" with outcomes (x, 0): linear methods scale, z-scores do not, until eps swallows x."""
    method = WITH_OPTION.get(method, (method, {}))[0] if method != "treehca, leaf_norm='group'" else "grpo"
    if method in LINEAR:
        return [x * value for value in _BY_ACTION[method]]
    if method in SCORED:
        return [x - 0.25, -0.25]
    if method in WITHOUT_EPS or x > 1:
        return _BY_ACTION[method]
    assert method in WITH_EPS, f"tests/degenerate_cells.py does not say what rewards of 1e30 do to `{method}`"
    return [0.0, 0.0]


# Kinds whose answer is the same for every method; the test says how each is checked.
EVERYWHERE = {
    "NaN outcome": "0 on its steps; all other numbers are those of the table without that rollout",
    "duplicate rollouts": "each counts as a rollout of its own; copies get equal credit",
    "a truncated member": "as a failed one with the same outcome",
    "1e6 identical steps": "finite; equal credit for steps of equal position, outcome and history",
}


def methods() -> list[str]:
    """The rows of the table: methods, then methods with an option."""
    return list(ONE_STEP.cells)


def cell(kind: Kind, method: str) -> list[float]:
    """The numbers of one cell. Fails by name where there are none."""
    assert method in kind.cells, f"tests/degenerate_cells.py has no cell for `{method}` under {kind.title!r}"
    return kind.cells[method]


def _text(values: Sequence[float], zero: float = TOLERANCE / 10) -> str:
    """The numbers of a cell; a pattern that repeats is shown once."""
    shown = [f"{value:.3g}" if abs(value) > zero else "0" for value in values]
    for period in range(1, len(shown)):
        if len(shown) % period == 0 and shown == shown[:period] * (len(shown) // period):
            return ", ".join(shown[:period]) + (" each" if period > 1 else "")
    return ", ".join(shown)


def render() -> str:
    """The section of docs/estimators.md, markdown."""
    lines = [f"- **{kind.title}**: {kind.input}." for kind in KINDS]
    lines += [
        "- **1e30**, **1e-30**: as in *one step*, with outcomes 1e30 and 0, or 1e-30 and 0; a 0 here stands for",
        "  less than 1e-20.",
        "",
    ]
    titles = ["method", *(kind.title for kind in KINDS), "1e30", "1e-30"]
    lines += ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |"]
    for method in sorted(methods()):
        extremes = [_text(extreme(method, x), 1e-20 if x > 1 else x / 1e6) for x in (1e30, 1e-30)]
        numbers = [_text(cell(kind, method)) for kind in KINDS]
        lines.append(f"| `{method}` | " + " | ".join([*numbers, *extremes]) + " |")
    lines += ["", "The same for every method:", ""]
    lines += [f"- **{title}**: {answer}." for title, answer in EVERYWHERE.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
