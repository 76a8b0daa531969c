"""How good a signature is for some rollouts: how much it merges, how much credit that yields, what it confuses.

A signature that is too fine leaves states visited once, whose steps get no credit of their own; one that is too coarse
gives different situations one key. Both are counted here, with examples.

What this is not: it does not say which keys are right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rtmc.signatures.text import TextSignature

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout
    from rtmc.signatures.protocol import Signature
    from rtmc.table import StepTable

_SHOWN = 300  # characters of an example's text


@dataclass(frozen=True)
class Collision:
    """A key that stands for texts that differ.

    kind      "state" or "action"
    task_id   the group
    key       the key
    texts     how many different texts it stands for
    examples  some of them, cut to a few hundred characters: (rollout_id, step, text)
    """

    kind: str
    task_id: str
    key: str
    texts: int
    examples: list[tuple[str, int, str]]


@dataclass(frozen=True)
class SignatureQuality:
    """Counts over all rollouts given; shares are of 1, NaN where there is nothing to share.

    groups, rollouts, steps     what was counted
    states, actions             distinct keys that steps stand in, and take; keys of different tasks are different
    single_visit_states         share of the states in which one step alone stands
    single_visit_steps          share of the steps that stand in such a state
    shared_states               share of the states in which steps of several rollouts stand
    group_size_by_turn          for each turn, the mean number of steps that stand in the state of a step of that turn
    shared_by_turn              for each turn, the share of its steps in a state that another rollout visits
    zero_advantage              share of the steps whose advantage is 0, by `method`; so is that of an unknown outcome
    method                      the estimator
    colliding_states            share of the states whose observations differ in their text
    colliding_actions           share of the actions (within a task) whose text differs
    collisions                  the keys that stand for most texts, states then actions
    """

    groups: int
    rollouts: int
    steps: int
    states: int
    actions: int
    single_visit_states: float
    single_visit_steps: float
    shared_states: float
    group_size_by_turn: list[float]
    shared_by_turn: list[float]
    zero_advantage: float
    method: str
    colliding_states: float
    colliding_actions: float
    collisions: list[Collision] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; NaN is None."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        """A few lines for a terminal."""

        def share(value: float) -> str:
            return "-" if math.isnan(value) else f"{100 * value:.1f} %"

        sizes = " ".join(f"{size:.1f}" for size in self.group_size_by_turn[:20])
        lines = [
            f"{self.steps} steps of {self.rollouts} rollouts of {self.groups} tasks: "
            f"{self.states} states, {self.actions} actions",
            f"visited once: {share(self.single_visit_states)} of the states, "
            f"{share(self.single_visit_steps)} of the steps; "
            f"visited by several rollouts: {share(self.shared_states)} of the states",
            f"steps in the same state, by turn: {sizes}{' ...' if len(self.group_size_by_turn) > 20 else ''}",
            f"advantage 0 by {self.method}: {share(self.zero_advantage)} of the steps",
            f"one key, several texts: {share(self.colliding_states)} of the states, "
            f"{share(self.colliding_actions)} of the actions",
        ]
        for collision in self.collisions:
            lines.append(f"  {collision.kind} {_cut(collision.key, 100)!r} ({collision.texts} texts)")
            lines += [f"    {rollout}, step {step}: {_cut(text, 100)!r}" for rollout, step, text in collision.examples]
        return "\n".join(lines)


def signature_quality(
    rollouts: Sequence[Rollout],
    signatures: str | Signature = "env",
    *,
    table: StepTable | None = None,
    method: str = "rtmc",
    examples: int = 3,
    **options: Any,
) -> SignatureQuality:
    """Quality of `signatures` on `rollouts`.

    table      the rollouts' table where it is made already (by `tabulate`, rows in the rollouts' order)
    method     estimator whose advantages are counted, with its `options`
    examples   collisions of each kind that are shown, and texts of each

    Raises ValueError for a table of another number of steps; what `tabulate` and `advantages` raise.
    """
    import rtmc

    rollouts = list(rollouts)
    if table is None:
        table = rtmc.tabulate(rollouts, signatures)
    steps = [(rollout, place) for rollout in rollouts for place in range(len(rollout.steps))]
    if len(table) != len(steps):
        raise ValueError(
            f"`table` has {len(table)} rows, `rollouts` have {len(steps)} steps; give the table of these rollouts"
        )
    states, actions = table.state.tolist(), table.action.tolist()
    owners = table.rollout.tolist()
    visits: dict[int, int] = {}
    visitors: dict[int, set[int]] = {}
    for state, owner in zip(states, owners, strict=True):
        visits[state] = visits.get(state, 0) + 1
        visitors.setdefault(state, set()).add(owner)
    sizes: list[list[int]] = []
    shared: list[list[bool]] = []
    for state, (_, place) in zip(states, steps, strict=True):
        while len(sizes) <= place:
            sizes.append([])
            shared.append([])
        sizes[place].append(visits[state])
        shared[place].append(len(visitors[state]) > 1)
    advantage = rtmc.advantages(table, method, **options) if steps else None
    zero = math.nan if advantage is None else float((advantage == 0).double().mean())
    raw = TextSignature()
    seen = [rollout.steps[place].observation for rollout, place in steps]
    done = [raw.action(rollout.steps[place]) for rollout, place in steps]
    state_share, state_examples = _collisions("state", states, seen, steps, table.state_names, examples)
    action_share, action_examples = _collisions("action", actions, done, steps, table.action_names, examples)
    return SignatureQuality(
        groups=len({rollout.task_id for rollout in rollouts}),
        rollouts=len(rollouts),
        steps=len(steps),
        states=len(visits),
        actions=len(set(actions)),
        single_visit_states=_share([count == 1 for count in visits.values()]),
        single_visit_steps=_share([visits[state] == 1 for state in states]),
        shared_states=_share([len(owner) > 1 for owner in visitors.values()]),
        group_size_by_turn=[sum(turn) / len(turn) for turn in sizes],
        shared_by_turn=[_share(turn) for turn in shared],
        zero_advantage=zero,
        method=method,
        colliding_states=state_share,
        colliding_actions=action_share,
        collisions=state_examples + action_examples,
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def _collisions(
    kind: str, ids: list[int], texts: list[str], steps: list[tuple[Rollout, int]], names: Any, shown: int
) -> tuple[float, list[Collision]]:
    """Share of the keys that stand for several texts, and those that stand for most."""
    held: dict[int, dict[str, int]] = {}
    for row, (key, text) in enumerate(zip(ids, texts, strict=True)):
        held.setdefault(key, {}).setdefault(text, row)
    colliding = sorted((key for key in held if len(held[key]) > 1), key=lambda key: (-len(held[key]), key))
    found = []
    for key in colliding[:shown]:
        rows = list(held[key].items())
        found.append(
            Collision(
                kind,
                steps[rows[0][1]][0].task_id,
                str(names[key]) if names is not None else str(key),
                len(rows),
                [(steps[row][0].rollout_id, steps[row][1], _cut(text, _SHOWN)) for text, row in rows[:shown]],
            )
        )
    return (len(colliding) / len(held) if held else math.nan), found


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."
