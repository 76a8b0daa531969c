"""What the inputs that estimators ask for mean, and whether a table has them.

What this is not: a check of values. That an `answer_score` lies in [0, 1] is for the method that reads it to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtmc.errors import EstimatorError
from rtmc.table import StepTable
from rtmc.table.steptable import ROLLOUT_COLUMNS, STEP_COLUMNS

MEANING = {
    "parent": "the row of the preceding turn, -1 for a child of the prompt",
    "value": "V of the state before the row: a critic's value, or the mean reward of fresh rollouts from there",
    "answer_score": "the probability in [0, 1] of the reference answer after the turn, exp of the mean "
    "log-probability of its tokens",
    "hindsight_logprob": "the mean token log-probability of the step's action with the rollout's outcome put into the "
    "prompt, from one teacher-forced pass",
    "entropy": "the mean negative log-probability of the tokens that the turn sampled",
    "prm_reward": "the step's reward by a process reward model, such as beta times the sum over its tokens of "
    "log pi_prm - log pi_ref",
}
_COLUMNS = (*STEP_COLUMNS, *ROLLOUT_COLUMNS)

Waivers = Mapping[str, Mapping[str, tuple[Any, ...]]]


def missing_inputs(
    table: StepTable, needs: tuple[str, ...], unless: Waivers, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Those of `needs` that `table` lacks and no option of `settings` waives.

    unless   input -> option -> values with which the method does without the input
    """

    def there(name: str) -> bool:
        return table.parent is not None if name == "parent" else name in _COLUMNS or name in table.scores

    def waived(name: str) -> bool:
        return any(settings[option] in values for option, values in unless.get(name, {}).items())

    return tuple(name for name in needs if not there(name) and not waived(name))


def missing_text(table: StepTable, name: str, meanings: Mapping[str, str], unless: Waivers) -> str:
    """What `name` is, how a table gets it, and which option does without it."""
    meaning = meanings.get(name) or MEANING.get(name)
    meaning = f": {meaning}" if meaning else ""
    without = [f"{option}={value!r}" for option, values in unless.get(name, {}).items() for value in values]
    waiver = f"with {' or '.join(without)} it is not needed" if without else "no option does without it"
    if name == "parent":
        return (
            f"needs the column `parent`, which the table lacks{meaning}; give every row its `parent` in "
            f"StepTable.from_rows (a table without it holds chains); {waiver}"
        )
    scores = ", ".join(f"`{score}`" for score in sorted(table.scores)) or "none"
    return (
        f"needs the score `{name}`, which the table lacks (its scores: {scores}){meaning}; give it as a key of the "
        f"rows in StepTable.from_rows, or set table.scores[{name!r}] to a ({len(table)},) tensor; {waiver}"
    )


def check_group_sizes(table: StepTable, rollouts_per_group: int) -> None:
    """Raise where every rollout is a group of its own although several a group were declared.

    Group ids that are really rollout ids would otherwise pass for groups of one: zeros, or raw rewards.
    """
    if not isinstance(rollouts_per_group, int) or isinstance(rollouts_per_group, bool) or rollouts_per_group < 1:
        raise EstimatorError(f"`rollouts_per_group` must be an integer of at least 1, got {rollouts_per_group!r}")
    rollouts = table.n_rollouts
    if rollouts < 2 or rollouts_per_group == 1:
        return
    distinct = int(table.group.unique().numel())
    if distinct == rollouts:
        raise EstimatorError(
            f"{rollouts_per_group} rollouts a group are declared, but the {rollouts} rollouts have {distinct} "
            "different group ids, so that nothing can be compared; `group` must name the task, not the rollout"
        )
