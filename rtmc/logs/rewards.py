"""Rewards from a file beside the logs.

Read are, each told by its content:

    {"TASK": {"ROLLOUT": 1.0, ...}, ...}                    JSON, by task and rollout
    {"ROLLOUT, TASK or TASK/ROLLOUT": 1.0, ...}             JSON, by either or both
    [{"task_id": ..., "rollout_id": ..., "reward": ...}]    JSON, or one such object a line
    task_id,rollout_id,reward                               CSV (also with `;` or tabs) with a head line; `rollout_id`
                                                            may be missing; also `instance_id` and `resolved`
    {"resolved_ids": [...], "unresolved_ids": [...], ...}   results of the SWE-bench harness, also the older lists
    {"INSTANCE": {"resolved": true, ...}}                   its report of one instance; a folder of such reports

Of whose run is a verdict? An entry that names a rollout is that rollout's. One that names a task alone, as those of the
harness do, is the verdict of one run: of that which is given as `RUN=FILE`, where RUN is the name of a folder that the
run's logs lie in, of a log's file, or a rollout's id; else of the run whose folder's name the report bears as well, be
it in the names of its own folders (`.../RUN/INSTANCE/report.json`), in its file's name (`MODEL.RUN.json`), or as
`run_id` or `model_name_or_path` within. A verdict that is not tied in one of these ways to any of the logs goes to
every rollout of its task, and is listed in `shared`. Two verdicts that differ about one rollout are an error.

What this is not: a verdict. A harness's `error_ids` and `incomplete_ids` had no verdict, so theirs stay unknown.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import TASK_KEYS, first_id, first_reward, verdict
from rtmc.logs.source import Place, parse_json
from rtmc.rolloutfile import kind, short
from rtmc.rollouts import Rollout

_REWARDS = ("reward", "score", "resolved", "success")
_RUNS = ("run_id", "model_name_or_path")
# Of the harness's report of an instance: RUN/MODEL/INSTANCE/report.json.
_FOLDERS = 3
_RESOLVED = ("resolved_ids", "resolved")
_FAILED = ("unresolved_ids", "empty_patch_ids", "no_generation")
# Of these, whoever is neither resolved nor without a verdict has failed.
_GRADED = ("completed_ids", "applied", "with_logs")
_NO_VERDICT = ("error_ids", "incomplete_ids", "no_logs")


def split_run(given: str | PathLike[str]) -> tuple[str | None, Path]:
    """(run, file) of `RUN=FILE`; the run is None where there is none, as in the name of a file that is there."""
    text = fspath(given)
    run, mark, file = text.partition("=")
    if not mark or not run or not file or Path(text).exists():
        return None, Path(text)
    return run, Path(file)


@dataclass
class _File:
    """The rewards of one file. entries = names (one, or task and rollout) -> (reward, place in the file); run = the run
    that it was said to be of; labels = names of runs that it bears."""

    path: Path
    run: str | None = None
    labels: set[str] = field(default_factory=set)
    entries: dict[tuple[str, ...], tuple[float, str]] = field(default_factory=dict)


class Rewards:
    """Rewards by task and rollout, or by one name that is a rollout's or a task's.

    `unmatched` says, once rollouts were looked up, which entries were of no use; `shared` lists the tasks whose one
    verdict more than one rollout got.
    """

    def __init__(self) -> None:
        self._files: list[_File] = []
        self._used: dict[tuple[int, tuple[str, ...]], set[str]] = {}  # (file, entry) -> rollouts
        self._folders: Counter[str] = Counter()
        self._logs = 0

    @classmethod
    def read(cls, paths: Iterable[str | PathLike[str]]) -> Rewards:
        """Rewards of the files (`FILE` or `RUN=FILE`), or of the `report.json` files in a folder.

        Raises RolloutError naming the file, what is wrong and what would be right; OSError for what is not there.
        """
        rewards = cls()
        for run, path in map(split_run, paths):
            files = sorted(path.rglob("report.json")) if path.is_dir() else [path]
            if not files:
                raise RolloutError(f"{path}: no `report.json` in this folder or below")
            for file in files:
                made = _File(file, run)
                try:
                    _Reader(made).read()
                except RolloutError as error:
                    text = str(error)
                    raise RolloutError(text if text.startswith(str(file)) else f"{file}: {text}") from None
                rewards._files.append(made)
        return rewards

    def __len__(self) -> int:
        return sum(len(file.entries) for file in self._files)

    def know(self, logs: Iterable[Path]) -> None:
        """The files that rollouts will be read from, among whose folders the runs are looked for."""
        for path in logs:
            self._logs += 1
            self._folders.update(_names_of(path))

    def of(self, rollout: Rollout, path: Path | None = None) -> float | None:
        """The reward of a rollout, which was read from the file `path` (NaN where its entry says that it is unknown),
        or None where nothing names it. Raises RolloutError for entries that differ about it."""
        task, name = rollout.task_id, rollout.rollout_id
        runs = {name, *(_names_of(path) if path is not None else ())}
        for entry in ((task, name), (f"{task}/{name}",), (name,), (task,)):
            found = [k for k, file in enumerate(self._files) if entry in file.entries]
            if not found:
                continue
            tied = [k for k in found if self._is_of(self._files[k], runs)]
            chosen = tied or [k for k in found if not self._is_tied(self._files[k])]
            if len(entry) == 2:
                chosen = found
            known = [k for k in chosen if not math.isnan(self._files[k].entries[entry][0])] or chosen
            if not known:
                continue
            values = {self._files[k].entries[entry][0] for k in known}
            if len(values) > 1 and not all(map(math.isnan, values)):
                raise RolloutError(self._conflict(entry, rollout, known))
            for k in chosen:
                self._used.setdefault((k, entry), set()).add(rollout.name)
            return self._files[known[0]].entries[entry][0]
        return None

    def _shows(self, name: str) -> bool:
        """Whether a folder's name tells one log from another."""
        return 0 < self._folders[name] < self._logs

    def _is_of(self, file: _File, runs: set[str]) -> bool:
        if file.run is not None:
            return file.run in runs
        return any(label in runs and (self._shows(label) or not self._folders[label]) for label in file.labels)

    def _is_tied(self, file: _File) -> bool:
        return file.run is not None or any(map(self._shows, file.labels))

    def _conflict(self, entry: tuple[str, ...], rollout: Rollout, found: list[int]) -> str:
        files = [self._files[k] for k in found]
        first = files[0]
        other = next(f for f in files if f.entries[entry][0] != first.entries[entry][0])
        told = ", ".join(f"{_at(file, entry)} says {file.entries[entry][0]:g}" for file in (first, other))
        hint = ""
        if len(entry) == 1 and entry[0] == rollout.task_id:
            hint = "; which run each is of is not told: give them as --rewards RUN=FILE, RUN the name of a run's folder"
        return f"{'/'.join(entry)!r} has two rewards that differ for the {rollout.name}: {told}{hint}"

    @property
    def unmatched(self) -> list[str]:
        """Entries that named no rollout seen so far."""
        return [
            "/".join(entry)
            for k, file in enumerate(self._files)
            for entry in sorted(file.entries, key=len, reverse=True)
            if (k, entry) not in self._used
        ]

    @property
    def shared(self) -> list[str]:
        """Tasks whose one verdict went to several rollouts."""
        found = [entry[0] for (_, entry), rollouts in self._used.items() if len(entry) == 1 and len(rollouts) > 1]
        return list(dict.fromkeys(found))


def _at(file: _File, entry: tuple[str, ...]) -> str:
    where = file.entries[entry][1]
    return f"{file.path}, {where}" if where else str(file.path)


def _names_of(path: Path) -> set[str]:
    """The names by which a log's run may be called: those of its folders, and its own."""
    return {*path.resolve().parts[1:-1], Place(path).stem}


class _Reader:
    """Fills one `_File`."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def read(self) -> None:
        """Raises RolloutError, OSError."""
        path = self._file.path
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            raise RolloutError("the file is empty; wanted are rewards as JSON or CSV")
        if raw.lstrip()[:1] in (b"{", b"["):
            self._add_json(raw, path)
        else:
            self._add_csv(raw, path)
        self._file.labels -= {name for entry in self._file.entries for name in entry}

    def _add_json(self, raw: bytes, path: Path) -> None:
        try:
            values = [("", parse_json(raw, Place(path)))]
        except RolloutError as error:
            if "Extra data" not in str(error):
                raise
            lines = enumerate(raw.split(b"\n"), start=1)
            values = [(f"line {n}", parse_json(line, Place(path, n))) for n, line in lines if line.strip()]
        for where, value in values:
            if isinstance(value, list):
                for number, entry in enumerate(value):
                    self._add_entry(entry, f"entry {number}")
            elif not isinstance(value, dict):
                raise RolloutError(f"wanted an object or a list of rewards, got {kind(value)}")
            elif any(isinstance(value.get(key), list) for key in (*_RESOLVED, *_FAILED)):
                self._label(value, {path.resolve().parent.name, *Place(path).stem.split(".")})
                self._add_harness(value)
            elif where or {"task_id", "instance_id"} & value.keys():
                self._add_entry(value, where or "the object")
            else:
                self._add_nested(value)

    def _label(self, verdicts: dict[str, Any], names: set[str]) -> None:
        self._file.labels |= names | {verdicts[key] for key in _RUNS if isinstance(verdicts.get(key), str)}

    def _put(self, names: tuple[str, ...], reward: float, where: str) -> None:
        """Keep the reward of a pair or of a name. Raises RolloutError where this file gave it another one before."""
        before = self._file.entries.setdefault(names, (reward, where))
        if before[0] != reward and not (math.isnan(before[0]) and math.isnan(reward)):
            told = "/".join(names)
            raise RolloutError(
                f"{told!r} comes twice with different rewards: {before[0]:g} on {before[1]}, {reward:g} on {where}; "
                "keep one"
            )

    def _add_entry(self, entry: Any, where: str) -> None:
        if not isinstance(entry, dict):
            raise RolloutError(
                f"{where} must be an object with `task_id`, `rollout_id` and `reward`, got {kind(entry)}"
            )
        task, rollout = first_id(entry, TASK_KEYS), first_id(entry, ("rollout_id",))
        name = task if task is not None else rollout
        if name is None:
            raise RolloutError(f"{where} has neither `task_id` nor `rollout_id`")
        if not any(key in entry for key in _REWARDS):
            raise RolloutError(f"{where} has no `reward`")
        reward = first_reward(entry, _REWARDS)
        self._put((name,) if task is None or rollout is None else (task, rollout), reward, where)

    def _add_nested(self, value: dict[str, Any]) -> None:
        for name, entry in value.items():
            if not isinstance(entry, dict):
                self._put((name,), verdict(entry, f"the reward of {short(name)}"), "")
            elif isinstance(entry.get("resolved"), bool):
                self._label(entry, set(self._file.path.resolve().parts[1:-1][-_FOLDERS:]))
                self._put((name,), float(entry["resolved"]), "")
            else:
                for rollout, reward in entry.items():
                    self._put((name, rollout), verdict(reward, f"the reward of {short(name)}, {short(rollout)}"), "")

    def _add_harness(self, value: dict[str, Any]) -> None:
        resolved = set(_ids(value, _RESOLVED))
        unknown = set(_ids(value, _NO_VERDICT)) - resolved
        failed = (set(_ids(value, _FAILED)) | set(_ids(value, _GRADED))) - resolved - unknown
        for names, reward in ((failed, 0.0), (resolved, 1.0), (unknown, math.nan)):
            for name in sorted(names):
                self._put((name,), reward, "")

    def _add_csv(self, raw: bytes, path: Path) -> None:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RolloutError(f"not UTF-8 text (byte {error.start + 1})") from None
        head = text.split("\n", 1)[0].strip()
        comma = max(",;\t", key=head.count)
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=comma)
        try:
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            if len(set(names)) < len(names):
                raise RolloutError(f"two columns have one name: {short(head)}")
            told = next((name for name in _REWARDS if name in names), None)
            if told is not None and {*TASK_KEYS, "rollout_id"} & set(names):
                for row in reader:
                    ids = {key: row.get(key) or None for key in (*TASK_KEYS, "rollout_id")}
                    self._add_entry(ids | _read_reward(row, told), f"line {reader.line_num}")
                return
        except (csv.Error, RolloutError) as error:
            raise RolloutError(f"{path}:{max(1, reader.line_num)}: {str(error).strip()}") from None
        raise RolloutError(
            "neither JSON nor a CSV with the head line `task_id,rollout_id,reward`; its first line is " + short(head)
        )


def _read_reward(row: dict[str, Any], name: str) -> dict[str, Any]:
    if row[name] is None:
        raise RolloutError(f"the line ends before `{name}`; leave it empty where the reward is unknown")
    if None in row:
        raise RolloutError("the line has more values than the head line has names")
    text = row[name].strip()
    if text.lower() in ("", "nan", "null", "none"):
        return {"reward": None}
    if text.lower() in ("true", "false"):
        return {"reward": float(text.lower() == "true")}
    try:
        return {"reward": float(text)}
    except ValueError:
        raise RolloutError(f"`{name}` must be a number, true, false or empty; got {short(text)}") from None


def _ids(value: dict[str, Any], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        found = value.get(key)
        for name in found if isinstance(found, list) else []:
            if not isinstance(name, str):
                raise RolloutError(f"`{key}` must be a list of instance ids, got {kind(name)} in it")
            yield name
