"""What a run leaves behind and what it shows: metrics, rollouts, checkpoints, progress, and the curve.

A run's folder: `config.toml`, `metrics.jsonl` (one JSON object a line: steps and evaluations), `tensorboard/`,
`checkpoints/`, `adapter/`, `rollouts/step-N.jsonl`, `curve.png`, `report.html`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rtmc.atomic import atomic_path
from rtmc.rolloutfile import write_rollouts
from rtmc.train import checkpoint
from rtmc.train.collect import Episode
from rtmc.train.evaluate import Evaluated

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rtmc.train.loop import Trainer


class Recorder:
    """Writes a run's folder while it grows and shows where it stands.

    `console` None = quiet. Lines already written stay valid if the run stops at any moment.
    """

    def __init__(self, folder: Path, steps: int, console: Console | None, keep_checkpoints: int = 2) -> None:
        self.folder = folder
        self.console = console
        self.keep = keep_checkpoints
        self.history: list[dict[str, Any]] = []
        self._steps = steps
        self._writer: SummaryWriter | None = None
        self._progress: Progress | None = None
        if console is not None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=not console.is_terminal,
            )
            self._run = self._progress.add_task("training", total=steps, note="")
            self._part = self._progress.add_task("", total=1, note="", visible=False)

    def __enter__(self) -> Recorder:
        if self._progress is not None and self.console is not None and self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._writer is not None:
            self._writer.close()

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False, soft_wrap=True)

    def start_afresh(self) -> None:
        """Drop what a run that never came to its first checkpoint left in the folder."""
        (self.folder / "metrics.jsonl").unlink(missing_ok=True)
        for name in ("rollouts", "tensorboard"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def resume(self, step: int) -> None:
        """Drop what was written after `step` (it is about to be done again) and read the rest.

        Raises ValueError for a line that is not of this file's form; a last line cut off half-way is dropped.
        """
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                past = entry["step"] > step
            except (json.JSONDecodeError, KeyError, TypeError):
                if number == len(lines):
                    break
                raise ValueError(
                    f"{path}, line {number}: not a line of metrics (an object with `step` is wanted)"
                ) from None
            if not past:
                kept.append(line)
                self.history.append(entry)
        with atomic_path(path) as part:
            part.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        if self._progress is not None:
            self._progress.update(self._run, completed=step)

    def on_turn(self, unfinished: int, total: int) -> None:
        if self._progress is not None:
            self._progress.update(
                self._part,
                description="  rollouts",
                completed=total - unfinished,
                total=total,
                visible=unfinished > 0,
            )

    def on_evaluation(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.update(
                self._part, description="  held-out tasks", completed=done, total=total, visible=done < total
            )
            if not self._progress.console.is_terminal and done < total:
                self.say(f"  held-out tasks {done}/{total}")

    def step(self, step: int, metrics: dict[str, Any], groups: Sequence[Sequence[Episode]]) -> None:
        self._append({"kind": "train", "step": step, **metrics})
        write_rollouts(self.folder / "rollouts" / f"step-{step}.jsonl", [e.rollout for group in groups for e in group])
        note = (
            f"success {metrics['success']:.2f}  mixed groups {1 - metrics['uniform_groups']:.2f}"
            f"  entropy {format(metrics['entropy'], '.2f') if 'entropy' in metrics else '-'}"
        )
        if metrics["skipped_updates"]:
            note += f"  skipped updates {metrics['skipped_updates']}"
        if self._progress is not None:
            self._progress.update(self._run, completed=step, note=note)
        seconds = metrics["collect_seconds"] + metrics["update_seconds"]
        self.say(f"step {step}/{self._steps}  {note}  turns {metrics['turns']:.1f}  {seconds:.1f} s")

    def evaluation(self, step: int, result: Evaluated) -> None:
        self._append({"kind": "evaluation", "step": step, **result.to_json()})
        text = f"held-out after step {step}: sampled {result.sampled}"
        if result.greedy is not None:
            text += f", greedy {result.greedy}"
        if result.errors:
            text += f"; {result.errors} episodes broke and count as failures"
        self.say(text)

    def checkpoint(self, trainer: Trainer) -> Path:
        """Write a checkpoint of the trainer's present state."""
        model = trainer.learner.policy.model
        return checkpoint.save(self.folder / "checkpoints", trainer.step, model, trainer.state(), self.keep)

    def _append(self, entry: dict[str, Any]) -> None:
        self.history.append(entry)
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({k: _finite(v) for k, v in entry.items()}, allow_nan=False)
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder / "tensorboard"))
        for name, value in entry.items():
            if isinstance(value, float | int) and not isinstance(value, bool) and name != "step":
                self._writer.add_scalar(f"{entry['kind']}/{name}", value, entry["step"])
        if entry["kind"] == "evaluation":
            for kind in ("sampled", "greedy"):
                if entry.get(kind):
                    self._writer.add_scalar(f"evaluation/{kind}", entry[kind]["success"], entry["step"])
        self._writer.flush()


def _finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is written as null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
