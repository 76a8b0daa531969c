"""Tasks from the files that the public data sets come in.

    for task in read_tasks("swe_bench_verified.parquet", repos="clones/"): ...

Read are SWE-bench and SWE-bench Verified (Jimenez et al. 2024), SWE-Gym (Pan et al. 2025), SWE-smith (Yang et al.
2025), SWE-rebench (Badertdinov et al. 2025), R2E-Gym (Jain et al. 2025) and our own `SWETask` JSON; `schemas` has the
fields.
The kind of a record is told by its fields, the kind of a file by its first bytes.

Nothing is fetched here. A public task names a repository and a container image: with `repos` its source becomes a local
clone or a prepared folder, without it the image is kept, and `repository.prepare` says what would do.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rtmc.gymenvs.qa.recordfile import read_records
from rtmc.gymenvs.swe import checks
from rtmc.gymenvs.swe.repos import Repos
from rtmc.gymenvs.swe.schemas import SCHEMAS, detect
from rtmc.gymenvs.swe.sources import Folder, Image, Source, commit_name
from rtmc.gymenvs.swe.task import SWETask

_SHORT = 1 << 16  # bytes: a file that holds one plain value is shorter
_ENDINGS = (".json", ".jsonl", ".ndjson", ".parquet", ".json.gz", ".jsonl.gz", ".ndjson.gz")


def read_tasks(
    path: str | os.PathLike[str],
    format: str = "auto",
    repos: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Iterator[SWETask]:
    """The tasks of a file or of a folder of them, in order, one at a time.

    Args:
        path: JSON lines, a JSON list, one object or parquet (which needs `pyarrow`), each also gzipped, told apart by
            content; or a folder, whose files of these endings are read by name.
        format: a name of `SCHEMAS`, or `auto`: told record by record.
        repos: where repositories lie; see `repos.Repos`.

    Raises:
        ValueError: there is no task; the file or a record is of no known kind, a field is missing or wrong, or an id
            comes twice; the message names file, record and field. FileNotFoundError: there is no such file.
        ModuleNotFoundError: the file is parquet and `pyarrow` is not installed.
    """
    if format != "auto" and format not in SCHEMAS:
        raise ValueError(f"read_tasks: format={format!r} is none of 'auto', {', '.join(map(repr, SCHEMAS))}")
    found = None if repos is None else Repos(repos)
    return _read(Path(path), format, found)


def _read(path: Path, format: str, repos: Repos | None) -> Iterator[SWETask]:
    seen: dict[str, str] = {}
    for file in _files(path):
        for number, record in enumerate(_records(file), 1):
            where = f"{file}, record {number}"
            task = task_of(record, format, where)
            if task.task_id in seen:
                raise ValueError(f"{where}: the id {task.task_id!r} came before, in {seen[task.task_id]}")
            seen[task.task_id] = where
            try:
                found = task if repos is None else with_repository(task, repos)
            except ValueError as error:
                raise ValueError(f"{where}, task {task.task_id!r:.80}: {error}") from None
            yield found
    if not seen:
        raise ValueError(f"{path}: there is no task in it")


def task_of(record: Any, format: str = "auto", where: str = "record") -> SWETask:
    """The task of one record. Raises ValueError, which begins with `where` and names the field."""
    record = checks.record(record, where)
    if set(record) >= {"row", "row_idx"}:  # as the Hugging Face datasets server wraps them
        record = checks.record(record["row"], f"{where}: field `row`")
    if format == "auto":
        format = detect(record, where)
    if format == "rtmc":
        return SWETask.from_json(record, where)
    try:
        return SWETask(**SCHEMAS[format].read(record))
    except ValueError as error:
        raise ValueError(f"{where} ({format}): {error}") from None


def with_repository(task: SWETask, repos: Repos) -> SWETask:
    """The task with a local clone or folder for its image, where `repos` has one.

    Raises ValueError as `Repos.find`, and where the task's commit is no name of one.
    """
    if not isinstance(task.source, Image):
        return task
    if task.source.commit:
        commit_name(task.source.commit, "field `base_commit`")
    source: Source | None = repos.find(task.task_id, task.source.repo, task.source.commit)
    if source is None:
        return task
    if isinstance(source, Folder):
        # A prepared folder stands where the image does: the bug is in it already.
        return task.replace(source=source, bug_patch="")
    return task.replace(source=source)


def load_embedded() -> tuple[SWETask, ...]:
    """The tasks that ship with the package, with all their files."""
    from rtmc.gymenvs.swe.mutate.readyset import ready_tasks

    return ready_tasks()


def load_real() -> tuple[SWETask, ...]:
    """The tasks over releases of real packages that ship with this one: facts alone.

    Preparing one fetches two source archives from the package registry.
    """
    folder = resources.files("rtmc.gymenvs.swe") / "real"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".json")), key=lambda one: one.name)
    return tuple(SWETask.from_json(one.read_bytes(), one.name) for one in files)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.name.endswith(_ENDINGS) and one.is_file())
    if not found:
        raise ValueError(f"{path}: this folder has no file that ends in {', '.join(_ENDINGS)}")
    return found


def _records(file: Path) -> Iterator[Any]:
    """The records; a gzipped file is unpacked beside other temporary files, as its readers need to seek."""
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with contextlib.ExitStack() as stack:
        plain = file
        if packed:
            plain = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rtmc-tasks-"))) / file.stem
            try:
                with gzip.open(file, "rb") as source, plain.open("wb") as target:
                    shutil.copyfileobj(source, target)
            except (OSError, EOFError, zlib.error) as error:
                raise ValueError(f"{file}: this gzip file is broken or cut off ({error})") from None
        try:
            yield from read_records(plain)
        except ValueError as error:
            if told := _no_records(plain):
                raise ValueError(f"{file}{told}") from None
            # Of an unpacked file the message names the temporary copy; the reader of it knows the packed one.
            raise ValueError(str(error).replace(str(plain), str(file))) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"{file}: this parquet file cannot be read ({error})") from None


def _no_records(file: Path) -> str:
    """What stands in a file that cannot be read, where it is another encoding or a JSON value that is no record; else
    "". Of another encoding the line and the byte in it are told: both also where a file is one long line."""
    with file.open("rb") as raw:
        start = raw.read(_SHORT)
        raw.seek(0)
        if start.startswith((b"\xff\xfe", b"\xfe\xff")) or (start[1:2] or start[:1]) == b"\0":
            return ": this is UTF-16 or UTF-32; wanted UTF-8"
        if start.startswith(b"PAR1"):
            return ""
        for number, line in enumerate(raw, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f", line {number}: this is no UTF-8 (its byte {error.start + 1} is 0x{line[error.start]:02x})"
    if len(start) < _SHORT:
        with contextlib.suppress(ValueError, RecursionError):
            return f": wanted records (JSON objects), got one JSON value: {json.dumps(json.loads(start))[:60]}"
    return ""
