"""Inputs for every registered estimator: rows any method can read, the variants of its options, and stored cases.

What this is not: a list of methods. They are read from the register; a method that needs a score of which nothing is
known here, or whose law stands in no table of the tests, makes a test fail by name.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rtmc
from rtmc.methods.registry import EstimatorInfo

INFO: dict[str, EstimatorInfo] = {info.name: info for info in rtmc.estimators()}
COLUMNS = ("state", "action", "next_state", "reward", "parent")
# Range of each score; what is optional is given too, so that every mode can run.
SCORES: dict[str, Callable[[random.Random], float]] = {
    "value": lambda rng: rng.gauss(0.4, 0.3),
    "answer_score": lambda rng: rng.uniform(0.02, 1.0),
    "hindsight_logprob": lambda rng: -rng.expovariate(1.0),
    "entropy": lambda rng: rng.expovariate(1.0),
    "prm_reward": lambda rng: rng.gauss(0.0, 0.5),
}
OPTIONAL: dict[str, dict[str, Callable[[random.Random], float]]] = {
    "igpo": {"root_score": lambda rng: 0.25},
    "treehca": {"pool_weight": lambda rng: rng.uniform(0.2, 3.0)},
}
# Values of an option that go together with another option's alone.
TOGETHER: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("treehca", "divisor", "children"): {"weights": "pool_corrected"},
}
# Read one token a row: histories meet in the tokens alone.
TOKEN_ROWS = {"tempo"}


def scores_of(method: str) -> dict[str, Callable[[random.Random], float]]:
    """Name -> draw of every score that `method` reads. Fails by name where this file knows no range."""
    needed = [name for name in INFO[method].needs if name not in COLUMNS]
    unknown = [name for name in needed if name not in SCORES]
    assert not unknown, f"tests/estimator_cases.py: no range in SCORES for {unknown}, which `{method}` needs"
    return {name: SCORES[name] for name in needed} | OPTIONAL.get(method, {})


def is_tree(method: str) -> bool:
    return "parent" in INFO[method].needs


def variants(method: str) -> list[dict[str, Any]]:
    """The defaults, then each option alone at each other value it names: flags turned, choices taken."""
    found: list[dict[str, Any]] = [{}]
    for name, default in INFO[method].options.items():
        words = re.findall(r"'([^']+)'", INFO[method].wanted[name])
        others: list[Any] = [not default] if isinstance(default, bool) else words
        others += [None] if words and default is not None and "None" in INFO[method].wanted[name] else []
        found += [{name: value} | TOGETHER.get((method, name, value), {}) for value in others if value != default]
    return found


ALL = [(method, options) for method in INFO for options in variants(method)]


def label(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


def random_rows(
    method: str,
    seed: int,
    groups: int = 3,
    rollouts: int = 4,
    unknown: float = 0.0,
    draw: Callable[[random.Random], float] | None = None,
) -> list[dict[str, Any]]:
    """Rows of `groups` tasks that `method` can read, with states, actions and histories that recur.

    unknown   share of rollouts with a NaN outcome
    draw      of outcomes and step rewards; by default awkward reals and plain verdicts
    """
    rng = random.Random(seed)
    scores = scores_of(method)
    rows: list[dict[str, Any]] = []
    for group in range(groups):
        group_rows: list[int] = []
        for rollout in range(rollouts):
            outcome = draw(rng) if draw else rng.choice([0.0, 1.0, rng.gauss(0, 1)])
            if rng.random() < unknown:
                outcome = math.nan
            ending = "success" if outcome > 0 else rng.choice(["failure", "truncated"])
            branches = is_tree(method) and group_rows and rng.random() < 0.7
            parent = rng.choice(group_rows) if branches else -1
            depth = rows[parent]["index"] + 1 if parent >= 0 else 0
            for index in range(depth, depth + rng.randrange(1, 4)):
                row = {
                    "group": group,
                    "rollout": rollout,
                    "index": index,
                    "state": rng.randrange(3),
                    "action": rng.randrange(2),
                    "reward": draw(rng) if draw else rng.gauss(0, 0.1),
                    "outcome": outcome,
                    "ending": ending,
                } | {name: score(rng) for name, score in scores.items()}
                if method in TOKEN_ROWS:
                    row["state"] = row["index"]
                if is_tree(method):
                    row["parent"] = parent
                    parent = len(rows)
                    group_rows.append(parent)
                rows.append(row)
    return rows


def permuted(rows: list[dict[str, Any]], order: list[int]) -> list[dict[str, Any]]:
    """`rows[order[0]]`, `rows[order[1]]`, ...; parents follow their rows."""
    place = {old: new for new, old in enumerate(order)}
    return [
        rows[old] | ({"parent": place.get(rows[old]["parent"], -1)} if "parent" in rows[old] else {}) for old in order
    ]


def without_unknown(rows: list[dict[str, Any]]) -> list[int] | None:
    """Numbers of the rows that a rollout with a known outcome passes; None where nothing is known."""
    known = [row for row, entry in enumerate(rows) if not math.isnan(entry["outcome"])]
    kept = set(known)
    for row in known:
        while rows[row].get("parent", -1) >= 0:
            row = rows[row]["parent"]
            kept.add(row)
    return sorted(kept) or None


def adopted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows, each of an unknown rollout given to the rollout of a child: an unknown leaf leaves the tree, what
    others branched from stays."""
    rows = [dict(row) for row in rows]
    for number in sorted(range(len(rows)), key=lambda row: -rows[row]["index"]):
        if math.isnan(rows[number]["outcome"]):
            child = next(row for row in rows if row["parent"] == number)
            rows[number] |= {name: child[name] for name in ("rollout", "outcome", "ending")}
    return rows


class Outputs(Mapping[str, Any]):
    """The outputs of a stored case; it remembers which of them were read."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self.outputs, self.unread = outputs, set(outputs)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __contains__(self, name: object) -> bool:
        return name in self.outputs


def vector_cases(shared: Path, name: str) -> Iterator[tuple[dict[str, Any], Outputs]]:
    """(inputs, outputs) of every case of vectors/`name`.json. Fails where a test leaves an output unread.

    So a file that gains an output nobody checks makes its test fail, rather than pass in silence.
    """
    cases = json.loads((shared / "vectors" / f"{name}.json").read_text())["cases"]
    assert cases, f"vectors/{name}.json has no cases"
    for number, case in enumerate(cases):
        outputs = Outputs(case["outputs"])
        yield case["inputs"], outputs
        assert not outputs.unread, f"vectors/{name}.json, case {number}: the test does not read {outputs.unread}"
