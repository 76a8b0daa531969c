"""Rewards from a file beside the logs.

Read are, each told by its content:

    {"TASK": {"ROLLOUT": 1.0, ...}, ...}                    JSON, by task and rollout
    {"ROLLOUT, TASK or TASK/ROLLOUT": 1.0, ...}             JSON, by either or both
    [{"task_id": ..., "rollout_id": ..., "reward": ...}]    JSON, or one such object a line
    task_id,rollout_id,reward                               CSV with a head line; `rollout_id` may be missing
    {"resolved_ids": [...], "unresolved_ids": [...], ...}   results of the SWE-bench harness, also the older lists
    {"INSTANCE": {"resolved": true, ...}}                   its report of one instance; a folder of such reports

What this is not: a verdict. A harness's `error_ids` and `incomplete_ids` had no verdict, so theirs stay unknown.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from rtmc.errors import RolloutError
from rtmc.logs.common import TASK_KEYS, first_id, first_reward, verdict
from rtmc.logs.source import Place, parse_json
from rtmc.rolloutfile import kind, short
from rtmc.rollouts import Rollout

_RESOLVED = ("resolved_ids", "resolved")
_FAILED = ("unresolved_ids", "empty_patch_ids", "no_generation")
# Of these, whoever is neither resolved nor without a verdict has failed.
_GRADED = ("completed_ids", "applied", "with_logs")
_NO_VERDICT = ("error_ids", "incomplete_ids", "no_logs")


class Rewards:
    """Rewards by task and rollout, or by one name that is a rollout's or a task's.

    `used` and `unmatched` say, once rollouts were looked up, which entries were of use; `shared` lists the tasks whose
    one verdict more than one rollout got.
    """

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], float] = {}
        self._by_name: dict[str, float] = {}
        self._used_pairs: set[tuple[str, str]] = set()
        self._used_names: dict[str, set[str]] = {}
        self._places: dict[tuple[str, ...], tuple[float, str]] = {}  # of the file that is being read

    @classmethod
    def read(cls, paths: Iterable[str | PathLike[str]]) -> Rewards:
        """Rewards of the files, or of the `report.json` files in a folder; a later file replaces an earlier one's
        entry.

        Raises RolloutError naming the file, what is wrong and what would be right; OSError for what is not there.
        """
        rewards = cls()
        for path in map(Path, paths):
            files = sorted(path.rglob("report.json")) if path.is_dir() else [path]
            if not files:
                raise RolloutError(f"{path}: no `report.json` in this folder or below")
            for file in files:
                rewards._places = {}
                try:
                    rewards._add(file)
                except RolloutError as error:
                    text = str(error)
                    raise RolloutError(text if text.startswith(str(file)) else f"{file}: {text}") from None
        return rewards

    def __len__(self) -> int:
        return len(self._by_pair) + len(self._by_name)

    def of(self, rollout: Rollout) -> float | None:
        """The reward of a rollout (NaN where the file says that it is unknown), or None where nothing names it."""
        pair = (rollout.task_id, rollout.rollout_id)
        if pair in self._by_pair:
            self._used_pairs.add(pair)
            return self._by_pair[pair]
        for name in ("/".join(pair), rollout.rollout_id, rollout.task_id):
            if name in self._by_name:
                self._used_names.setdefault(name, set()).add(rollout.name)
                return self._by_name[name]
        return None

    @property
    def unmatched(self) -> list[str]:
        """Entries that named no rollout seen so far."""
        pairs = [f"{task}/{rollout}" for task, rollout in self._by_pair if (task, rollout) not in self._used_pairs]
        return pairs + [name for name in self._by_name if name not in self._used_names]

    @property
    def shared(self) -> list[str]:
        """Tasks whose one verdict went to several rollouts."""
        return [name for name, rollouts in self._used_names.items() if len(rollouts) > 1]

    def _add(self, path: Path) -> None:
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            raise RolloutError("the file is empty; wanted are rewards as JSON or CSV")
        if raw.lstrip()[:1] in (b"{", b"["):
            self._add_json(raw, path)
        else:
            self._add_csv(raw, path)

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
                self._add_harness(value)
            elif where or {"task_id", "instance_id"} & value.keys():
                self._add_entry(value, where or "the object")
            else:
                self._add_nested(value)

    def _put(self, names: tuple[str, ...], reward: float, where: str) -> None:
        """Keep the reward of a pair or of a name. Raises RolloutError where this file gave it another one before."""
        before = self._places.setdefault(names, (reward, where))
        if before[0] != reward and not (math.isnan(before[0]) and math.isnan(reward)):
            told = "/".join(names)
            raise RolloutError(
                f"{told!r} comes twice with different rewards: {before[0]:g} on {before[1]}, {reward:g} on {where}; "
                "keep one"
            )
        if len(names) == 2:
            self._by_pair[names[0], names[1]] = reward
        else:
            self._by_name[names[0]] = reward

    def _add_entry(self, entry: Any, where: str) -> None:
        if not isinstance(entry, dict):
            raise RolloutError(
                f"{where} must be an object with `task_id`, `rollout_id` and `reward`, got {kind(entry)}"
            )
        task, rollout = first_id(entry, TASK_KEYS), first_id(entry, ("rollout_id",))
        name = task if task is not None else rollout
        if name is None:
            raise RolloutError(f"{where} has neither `task_id` nor `rollout_id`")
        if not any(key in entry for key in ("reward", "score", "resolved", "success")):
            raise RolloutError(f"{where} has no `reward`")
        reward = first_reward(entry, ("reward", "score", "resolved", "success"))
        self._put((name,) if task is None or rollout is None else (task, rollout), reward, where)

    def _add_nested(self, value: dict[str, Any]) -> None:
        for name, entry in value.items():
            if not isinstance(entry, dict):
                self._by_name[name] = verdict(entry, f"the reward of {short(name)}")
            elif isinstance(entry.get("resolved"), bool):
                self._by_name[name] = float(entry["resolved"])
            else:
                for rollout, reward in entry.items():
                    self._by_pair[name, rollout] = verdict(reward, f"the reward of {short(name)}, {short(rollout)}")

    def _add_harness(self, value: dict[str, Any]) -> None:
        resolved = set(_ids(value, _RESOLVED))
        unknown = set(_ids(value, _NO_VERDICT)) - resolved
        failed = (set(_ids(value, _FAILED)) | set(_ids(value, _GRADED))) - resolved - unknown
        self._by_name |= dict.fromkeys(sorted(failed), 0.0) | dict.fromkeys(sorted(resolved), 1.0)
        self._by_name |= dict.fromkeys(sorted(unknown), math.nan)

    def _add_csv(self, raw: bytes, path: Path) -> None:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RolloutError(f"not UTF-8 text (byte {error.start + 1})") from None
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            if "reward" in names and {"task_id", "rollout_id"} & set(names):
                for row in reader:
                    ids = {key: row.get(key) or None for key in ("task_id", "rollout_id")}
                    self._add_entry(ids | _read_reward(row), f"line {reader.line_num}")
                return
        except (csv.Error, RolloutError) as error:
            raise RolloutError(f"{path}:{max(1, reader.line_num)}: {str(error).strip()}") from None
        raise RolloutError(
            "neither JSON nor a CSV with the head line `task_id,rollout_id,reward`; its first line is "
            f"{short(text.split(chr(10), 1)[0].strip())}"
        )


def _read_reward(row: dict[str, Any]) -> dict[str, Any]:
    text = (row.get("reward") or "").strip()
    if text.lower() in ("", "nan", "null", "none"):
        return {"reward": None}
    if text.lower() in ("true", "false"):
        return {"reward": float(text.lower() == "true")}
    try:
        return {"reward": float(text)}
    except ValueError:
        raise RolloutError(f"`reward` must be a number, true, false or empty; got {short(text)}") from None


def _ids(value: dict[str, Any], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        found = value.get(key)
        for name in found if isinstance(found, list) else []:
            if not isinstance(name, str):
                raise RolloutError(f"`{key}` must be a list of instance ids, got {kind(name)} in it")
            yield name
