"""Which estimators a table can feed, and what the others lack.

Every method is tried, with its defaults, on the table itself: a score that is there but holds NaN where the method
reads it shows as well.

What this is not: a judgement of what is worth running. `notes` tells what a table makes of all methods alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from rtmc.errors import EstimatorError
from rtmc.methods.registry import estimate, estimators, lacking
from rtmc.table import StepTable


@dataclass(frozen=True)
class Feed:
    """Whether a table feeds a method.

    lacks    inputs that the table does not have
    reason   why the method cannot run with its defaults, "" where it can: what an input means, how to get it, and
             which option does without it
    zero     share of steps whose advantage is 0, None where the method cannot run
    """

    method: str
    lacks: tuple[str, ...] = ()
    reason: str = ""
    zero: float | None = None

    @property
    def feeds(self) -> bool:
        return not self.reason


def feeds(table: StepTable) -> list[Feed]:
    """One entry a registered method. Raises TableError for a table that breaks its contract."""
    table.validate()
    found = []
    for info in estimators():
        lacks = lacking(table, info.name)
        try:
            advantage = estimate(table, info.name).advantage
        except EstimatorError as error:
            reason = str(error).removeprefix(f"estimator `{info.name}`").removeprefix(":").strip()
            found.append(Feed(info.name, lacks, reason))
        else:
            zero = (advantage == 0).double().mean().item() if len(table) else None
            found.append(Feed(info.name, zero=zero))
    return found


def notes(table: StepTable) -> Iterator[str]:
    """What holds for every method on this table, one sentence each."""
    facts = table.summary()
    if facts["steps"] == 0:
        yield "the table has no steps"
    if facts["unknown"] == facts["rollouts"]:
        yield "no outcome is known: every advantage is 0"
    elif facts["unknown"]:
        yield f"{facts['unknown']} of {facts['rollouts']} outcomes are unknown: the advantages of these rollouts are 0"
    if facts["groups"] and facts["groups"] == facts["rollouts"]:
        yield "every group has one rollout, so that nothing is compared; is `group` the task?"
    if facts["steps"] and not bool(table.reward.any()):
        yield "every step reward is 0: methods that read `reward` see the outcome alone"
    if facts["steps"] and int(table.state.unique().numel()) == facts["steps"]:
        yield "no state recurs: methods that compare steps of one state have nothing to compare"


def read_table(path: str | PathLike[str]) -> StepTable:
    """The step table of a parquet file that `StepTable.save` wrote, or of a log that `rtmc advantages` reads.

    Raises TableError, RolloutError or OSError naming the file.
    """
    if Path(path).suffix == ".parquet":
        Path(path).stat()  # of a missing file pyarrow's error has no reason
        return StepTable.load(path)
    from rtmc.logs.credit import credit_logs

    return credit_logs([fspath(path)]).table
