"""Credit of the steps of logs: reading, rewards, signatures, the table and the methods, in one call.

What this is not: it prints and writes nothing (export.py writes). Step texts are not kept: what it holds grows with the
steps and with the distinct states and actions, not with the size of the logs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor

from rtmc.errors import EstimatorError, RolloutError, unknown_name
from rtmc.logs.domain import Choice
from rtmc.logs.reader import LogReader
from rtmc.logs.rewards import Rewards
from rtmc.logs.validity import mark_valid
from rtmc.methods.inputs import MEANING
from rtmc.methods.registry import estimate, estimators
from rtmc.rollouts import Rollout, Stop
from rtmc.signatures import get_signature
from rtmc.table import StepTable
from rtmc.tabulation import tabulate
from rtmc.types import Estimate

# What a step table has without being given a score.
_COLUMNS = ("state", "action", "next_state", "reward", "tokens", "parent")
# What one record tells beside the advantages, in this order; see `Credit.records`.
COLUMNS = ("task_id", "rollout_id", "step", "state", "action", "return", "q", "v", "visits")


@dataclass
class Credit:
    """The credit of every step that was read.

    table        StepTable of S steps, float64
    estimates    method -> Estimate of (S,) columns
    formats      format -> rollouts read in it
    signatures   signatures -> rollouts named by them
    chosen       whether the signatures were chosen by the logs' form, not by the caller
    known, from_sidecar     rollouts with a known reward; those of them whose reward a sidecar gave
    files, skipped          files with rollouts; malformed records left out
    notes        what a reader of the numbers has to know, one sentence each
    """

    table: StepTable
    estimates: dict[str, Estimate]
    formats: Counter[str] = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)
    chosen: bool = True
    known: int = 0
    from_sidecar: int = 0
    files: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """The methods in the order they were asked for."""
        return list(self.estimates)

    def records(self) -> Iterator[dict[str, Any]]:
        """One dict a step, in the order read: the names of `COLUMNS`, then `advantage`, method -> number.

        `return`, `q`, `v` and `visits` are of the first method that has a `q`, else of the first that has a `v` or
        returns; None where it has none, and for the steps of a rollout whose outcome is unknown, which have no return.
        """
        table = self.table
        unknown = table.outcome.isnan().tolist()
        columns = self._values()
        advantages = {name: found.advantage.tolist() for name, found in self.estimates.items()}
        groups, rollouts = _names(table.group_names), _names(table.rollout_names)
        states, actions = _names(table.state_names), _names(table.action_names)
        group_of = table.group.tolist()
        rows = zip(
            table.rollout.tolist(), table.index.tolist(), table.state.tolist(), table.action.tolist(), strict=True
        )
        for row, (rollout, index, state, action) in enumerate(rows):
            yield {
                "task_id": groups[group_of[rollout]],
                "rollout_id": rollouts[rollout],
                "step": index,
                "state": states[state],
                "action": actions[action],
                **{
                    name: None if values is None or unknown[rollout] else _number(values[row])
                    for name, values in columns.items()
                },
                "advantage": {name: _number(values[row]) for name, values in advantages.items()},
            }

    def _values(self) -> dict[str, list[Any] | None]:
        found = list(self.estimates.values())
        rank = [x for x in found if x.q is not None] + [x for x in found if x.v is not None or x.returns is not None]
        source = (rank or found)[0]
        columns = {"return": source.returns, "q": source.q, "v": source.v, "visits": source.visits}
        return {name: None if column is None else column.tolist() for name, column in columns.items()}

    def summary(self, tasks_at_most: int = 20) -> list[dict[str, Any]]:
        """One dict a method and task, and one a method for all tasks together (`task_id` None), which stands alone
        where there are more than `tasks_at_most` tasks.

        rollouts, steps; known (rollouts with a reward), success (share of those with a reward above 0); states; once
        (share of the states that one step alone visits); mean_abs, max_abs and std of the advantages, zero (their
        share that is 0).
        """
        table = self.table
        group_of_row = table.group[table.rollout]
        names = _names(table.group_names)
        tasks = list(range(len(names)))
        shown: list[int | None] = [*(tasks if 1 < len(tasks) <= tasks_at_most else []), None]
        records = []
        for method, found in self.estimates.items():
            for task in shown:
                rows = slice(None) if task is None else group_of_row == task
                rollouts = slice(None) if task is None else table.group == task
                facts = _facts(table.outcome[rollouts], table.state[rows], found.advantage[rows])
                name = None if task is None else names[task]
                records.append({"method": method, "task_id": name, **facts})
        return records

    def largest(self, method: str, count: int = 5) -> list[dict[str, Any]]:
        """The steps whose advantages by `method` are largest in size, at most `count`, none of them 0; of steps that do
        the same in the same state the first, and in `steps` how many they are.

        task_id, rollout_id, step, action, advantage, steps.
        """
        table, advantage = self.table, self.estimates[method].advantage
        groups, rollouts = _names(table.group_names), _names(table.rollout_names)
        actions = _names(table.action_names)
        found: dict[tuple[int, int, float], dict[str, Any]] = {}
        order = torch.sort(advantage.abs(), descending=True, stable=True).indices.tolist()
        for row in order:
            value = advantage[row].item()
            key = int(table.state[row]), int(table.action[row]), value
            if key in found:
                found[key]["steps"] += 1
            elif value == 0 or len(found) == count:
                break
            else:
                owner = int(table.rollout[row])
                found[key] = {
                    "task_id": groups[int(table.group[owner])],
                    "rollout_id": rollouts[owner],
                    "step": int(table.index[row]),
                    "action": actions[key[1]],
                    "advantage": value,
                    "steps": 1,
                }
        return list(found.values())

    def zeros(self, method: str) -> dict[str, int]:
        """Why advantages by `method` are 0: reason -> steps, each counted under the first reason that holds."""
        table = self.table
        zero = self.estimates[method].advantage == 0
        outcome = table.outcome
        low = torch.full((len(_names(table.group_names)),), math.inf, dtype=outcome.dtype)
        high = -low
        known = ~outcome.isnan()
        low = low.scatter_reduce(0, table.group[known], outcome[known], "amin")
        high = high.scatter_reduce(0, table.group[known], outcome[known], "amax")
        visits = torch.bincount(table.state)[table.state] if len(table) else table.state
        reasons = {
            "in rollouts of unknown reward": ~known[table.rollout],
            "in tasks whose rollouts all got the same reward": (low == high)[table.group[table.rollout]],
            "in states that one step alone visits": visits == 1,
        }
        found = {}
        for reason, holds in reasons.items():
            found[reason] = int((zero & holds).sum())
            zero = zero & ~holds
        return found | {"where the steps taken in the state fared alike": int(zero.sum())}

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values: what was read, the summary, the notes and the steps."""
        single = len(self.estimates) == 1
        return {
            "files": self.files,
            "formats": dict(self.formats),
            "signatures": {"chosen_by_form": self.chosen, "rollouts": dict(self.signatures)},
            "tasks": len(_names(self.table.group_names)),
            "rollouts": self.table.n_rollouts,
            "rewards": {
                "known": self.known,
                "unknown": self.table.n_rollouts - self.known,
                "from_sidecar": self.from_sidecar,
            },
            "skipped": self.skipped,
            "notes": self.notes,
            "methods": self.summary(),
            "steps": [flat(record, single) for record in self.records()],
        }


def flat(record: dict[str, Any], single: bool) -> dict[str, Any]:
    """A record with its advantage as a number, where there is a single method."""
    return {**record, "advantage": next(iter(record["advantage"].values()))} if single else record


def _names(names: Sequence[Hashable] | None) -> list[str]:
    return [str(name) for name in names or ()]


def _number(value: Any) -> Any:
    """A value for JSON: NaN is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _facts(outcome: Tensor, state: Tensor, advantage: Tensor) -> dict[str, Any]:
    known = outcome[~outcome.isnan()]
    visits = torch.unique(state, return_counts=True)[1]
    size = advantage.abs()
    some = len(advantage) > 0
    return {
        "rollouts": len(outcome),
        "steps": len(advantage),
        "known": len(known),
        "success": (known > 0).double().mean().item() if len(known) else None,
        "states": len(visits),
        "once": (visits == 1).double().mean().item() if some else None,
        "mean_abs": size.mean().item() if some else None,
        "max_abs": size.max().item() if some else None,
        "std": advantage.std(correction=0).item() if some else None,
        "zero": (size == 0).double().mean().item() if some else None,
    }


def credit_logs(
    paths: Iterable[str | PathLike[str]],
    methods: Mapping[str, Mapping[str, Any]] | None = None,
    signatures: str = "auto",
    rewards: Iterable[str | PathLike[str]] = (),
    step_rewards: bool = False,
    skip_bad: bool = False,
    format: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> Credit:
    """Credit of every step of the logs at `paths`.

    paths          files or folders, as `LogReader` reads them
    methods        method -> its options; by default RTMC with the paper's
    signatures     a name, options included; "auto" chooses for each task what fits its rollouts (domain.py); where
                   those of a task differ, files are read a second time; a pipe cannot be, and gets a note
    rewards        sidecar files (rewards.py), also as "RUN=FILE"; what they say replaces what a log says
    step_rewards   fill in +0.005 for a valid step, -0.005 for an invalid one, +0.05 for a validation (`tabulate`)
    skip_bad, format, progress   as of `LogReader`
    on_rollout     called with every rollout as it will be tabulated, for a caller that wants its texts

    Raises RolloutError for a malformed log or sidecar and where no rollout is found, EstimatorError for an unknown
    method or option or a missing input, SignatureError for unknown signatures; OSError for a file that cannot be read.
    """
    paths = list(paths)
    methods = methods or {"rtmc": {}}
    _check_methods(methods)
    chosen = signatures == "auto"
    if not chosen:
        get_signature(signatures)
    sidecar = Rewards.read(rewards)
    choice = Choice()
    reader = LogReader(paths, format, skip_bad, progress)
    sidecar.know(reader.paths)
    credit, absent = _read(reader, sidecar, choice if chosen else signatures, step_rewards, on_rollout)
    # That a task's rollouts look unlike shows only when all are read; what is read once more gives the same rollouts.
    again = choice.mixed and all(path.is_file() for path in reader.paths)
    if again:
        choice = Choice(choice.agreed())
        reader = LogReader(paths, format, skip_bad, progress)
        credit, absent = _read(reader, sidecar, choice, step_rewards, None)
    credit.chosen = chosen
    credit.signatures = choice.counts if chosen else Counter({str(signatures): credit.table.n_rollouts})
    if not reader.formats:
        named = ", ".join(fspath(path) for path in paths[:3])
        why = (
            f": all {reader.skipped} records are malformed, first {reader.skipped_examples[0]}"
            if reader.skipped
            else ""
        )
        raise RolloutError(f"{named}: no rollout was found{why or '; the file is empty'}")
    credit.notes = [
        *_notes_of_reading(reader),
        *_notes_of_signatures(choice),
        *_notes_of_rewards(credit, sidecar, absent),
    ]
    for name, options in methods.items():
        credit.estimates[name] = _estimate(credit.table, name, options)
    return credit


def _read(
    reader: LogReader,
    sidecar: Rewards,
    signatures: str | Choice,
    step_rewards: bool,
    on_rollout: Callable[[Rollout], None] | None,
) -> tuple[Credit, int]:
    """What the logs hold, without its estimates; and how many rollouts count as absent."""
    credit = Credit(StepTable.from_rows([]), {})
    absent = 0

    def rollouts() -> Iterator[Rollout]:
        nonlocal absent
        for rollout in reader:
            found = sidecar.of(rollout, reader.path)
            if found is not None:
                rollout.reward = found
                # Why it ended is told anew, but for what the reward does not decide.
                rollout.stop = rollout.stop if rollout.stop in (Stop.ERROR, Stop.TRUNCATED) else None
                rollout.complete()
                credit.from_sidecar += not math.isnan(rollout.reward)
            credit.known += not math.isnan(rollout.reward)
            absent += rollout.stop is Stop.ERROR
            if step_rewards:
                mark_valid(rollout)
            if on_rollout is not None:
                on_rollout(rollout)
            yield rollout

    # Without `--step-rewards` the steps keep the rewards their logs give them, and get no others.
    if step_rewards:
        credit.table = tabulate(rollouts(), signatures, dtype=torch.float64)
    else:
        credit.table = tabulate(rollouts(), signatures, 0.0, 0.0, 0.0, dtype=torch.float64)
    credit.formats, credit.files, credit.skipped = reader.formats, reader.files, reader.skipped
    return credit, absent


def _estimate(table: StepTable, name: str, options: Mapping[str, Any]) -> Estimate:
    """The estimate; where the method needs what the logs lack, the error says what a log can hold."""
    try:
        return estimate(table, name, **options)
    except EstimatorError:
        needs = next(info.needs for info in estimators() if info.name == name)
        if "parent" in needs and table.parent is None:
            raise EstimatorError(
                f"estimator `{name}` needs the tree that the rollouts were sampled in (the column `parent`); logs hold "
                "one rollout after the other. For those there are rtmc, gigpo, hgpo, graphhca, grpo_step and grpo"
            ) from None
        lacking = [need for need in needs if need in MEANING and need != "parent" and need not in table.scores]
        lacking += [need for need in needs if need not in (*MEANING, *_COLUMNS) and need not in table.scores]
        if not lacking:
            raise
        what = f": {MEANING[lacking[0]]}" if lacking[0] in MEANING else ""
        raise EstimatorError(
            f"estimator `{name}` needs the score `{lacking[0]}`{what}; the logs hold no such number. JSON lines may, "
            f'as {{"meta": {{"rtmc": {{"scores": [{{"{lacking[0]}": 0.5}}, ...]}}}}}}, one object a step'
        ) from None


def _check_methods(methods: Mapping[str, Mapping[str, Any]]) -> None:
    """Known methods and options, so that a misspelt one is told before hours of reading."""
    known = {info.name: info for info in estimators()}
    for name, options in methods.items():
        if name not in known:
            raise EstimatorError(unknown_name("estimator", name, known))
        for option in options:
            if option not in known[name].options:
                raise EstimatorError(f"estimator `{name}`: {unknown_name('option', option, known[name].options)}")


def _notes_of_reading(reader: LogReader) -> Iterator[str]:
    if reader.skipped:
        records = "record was" if reader.skipped == 1 else "records were"
        yield f"{reader.skipped} malformed {records} skipped, first {reader.skipped_examples[0]}"
    if reader.passed_over:
        files = "file is no log and was" if len(reader.passed_over) == 1 else "files are no logs and were"
        yield f"{len(reader.passed_over)} {files} passed over, first {reader.passed_over[0]}"


def _notes_of_signatures(choice: Choice) -> Iterator[str]:
    if choice.mixed:
        tasks = "1 task has" if len(choice.mixed) == 1 else f"{len(choice.mixed)} tasks have"
        task, names = next(iter(choice.mixed.items()))
        found = ", ".join(f"{name} for {count}" for name, count in names.most_common())
        yield (
            f"{tasks} rollouts that ask for different signatures, which keeps their states apart, first {task!r} "
            f"({found}): name one with --signatures"
        )


def _notes_of_rewards(credit: Credit, sidecar: Rewards, absent: int) -> Iterator[str]:
    table = credit.table
    unknown = table.n_rollouts - credit.known
    if unknown:
        what = "all rollouts" if not credit.known else f"{unknown} of {table.n_rollouts} rollouts"
        yield f"the reward of {what} is unknown: their advantages are 0; give --rewards"
    if absent:
        rollouts = "1 rollout" if absent == 1 else f"{absent} rollouts"
        counts = "counts" if absent == 1 else "count"
        yield f"{rollouts} ended in an error of the environment or the engine and {counts} as absent"
    unmatched = sidecar.unmatched
    if unmatched:
        yield f"{len(unmatched)} of {len(sidecar)} rewards name no rollout that was read, first {unmatched[0]!r}"
    if sidecar.shared:
        tasks = "1 task has" if len(sidecar.shared) == 1 else f"{len(sidecar.shared)} tasks have"
        yield (
            f"{tasks} one reward for several rollouts, and each of them got it: if it is one run's, say whose with "
            "--rewards RUN=FILE"
        )
    members = torch.bincount(table.group, minlength=len(_names(table.group_names)))
    alone = int((members == 1).sum())
    if alone:
        tasks = "1 task has" if alone == 1 else f"{alone} tasks have"
        yield f"{tasks} a single rollout, which nothing is compared with"
