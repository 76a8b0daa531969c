"""Rollouts out of files and folders of logs, one after the other.

What this is not: it decides on no format (detect.py) and no signature (domain.py). Memory is bounded by the largest
record and one id a rollout, so a file larger than memory can be read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path

from rtmc.errors import RolloutError, unknown_name
from rtmc.logs.detect import FORMATS, UnknownFormatError, rollouts_of, rollouts_of_text, text_format
from rtmc.logs.source import LogFile, Place, Record, log_files
from rtmc.rollouts import Rollout

_KEPT = 20


class LogReader:
    """Iterable over the rollouts of files and folders, once; counts what it meets.

    paths      files, or folders: every log in them and below, in sorted order. Of a folder, a file whose first record
               is in no known format is passed over and listed; a file that is named must be a log.
    format     "auto", or a name of `rtmc.logs.FORMATS`
    skip_bad   leave malformed records out, and list them, instead of raising
    progress   called with (bytes read, bytes in all)

    A rollout without an id of its own is named after its file (`stem`, `stem:line`). Of files of one name, as several
    runs' folders hold them, each is named by its path from the folder that they have in common (`runA/stem`), however
    the paths were given. `path` is the file of the rollout that came last, `paths` are all files.

    Raises RolloutError naming file, line, what is wrong and what would be right, for the first malformed record and
    for two rollouts of a task with one id; OSError where a file cannot be read; RolloutError at once for an unknown
    format and for a file that is given twice.
    """

    def __init__(
        self,
        paths: Iterable[str | PathLike[str]],
        format: str = "auto",
        skip_bad: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if format not in ("auto", *FORMATS):
            raise RolloutError(unknown_name("rollout format", format, ["auto", *FORMATS]))
        self._format = format
        self._skip_bad = skip_bad
        self._progress = progress
        self._found = [(file, looked) for path in paths for file, looked in _files(Path(path))]
        self._total = sum(file.stat().st_size for file, _ in self._found)
        self._before = 0
        self._seen: dict[tuple[str, str], str] = {}
        self._names = _file_names(self.paths)
        self.path: Path | None = None
        self.formats: Counter[str] = Counter()
        self.files = 0
        self.skipped = 0
        self.skipped_examples: list[str] = []
        self.passed_over: list[str] = []

    @property
    def paths(self) -> list[Path]:
        """All files, in the order they are read."""
        return [file for file, _ in self._found]

    def __iter__(self) -> Iterator[Rollout]:
        for file, looked in self._found:
            size = file.stat().st_size
            before = sum(self.formats.values())
            self.path = file
            yield from self._file(file, looked)
            if sum(self.formats.values()) > before:
                self.files += 1
            self._before += size
        if not self.formats and self.passed_over and not self.skipped:
            more = f" (and {len(self.passed_over) - 1} files more)" if len(self.passed_over) > 1 else ""
            raise RolloutError(f"{self.passed_over[0]}{more}")

    def _file(self, path: Path, looked: bool) -> Iterator[Rollout]:
        form = None if self._format == "auto" else FORMATS[self._format]

        def is_text(head: str) -> bool:
            return (form.is_text is not None) if form is not None else text_format(head) is not None

        known = False
        for record in LogFile(path, is_text, self._report).records():
            try:
                for name, rollout in self._rollouts(record):
                    known = True
                    self._name(rollout, record.place)
                    self.formats[name] += 1
                    yield rollout
            except UnknownFormatError as error:
                if looked and not known:
                    self.passed_over.append(_line(record.place, error))
                    return
                self._bad(record.place, error)
            except RolloutError as error:
                if looked and record.foreign:
                    self.passed_over.append(_line(record.place, error))
                    return
                known = True
                self._bad(record.place, error)

    def _rollouts(self, record: Record) -> Iterator[tuple[str, Rollout]]:
        if record.foreign:
            raise RolloutError(f"{record.error}; nor is it a log in text form")
        if record.error is not None:
            raise record.error
        if record.text is not None:
            yield from rollouts_of_text(record.text, record.place, self._format)
        else:
            yield from rollouts_of(record.value, record.place, self._format)

    def _name(self, rollout: Rollout, place: Place) -> None:
        """Name the rollout after its file, if its id is made of that, and hold the id against those before it."""
        here = str(place)
        if re.fullmatch(rf"{re.escape(place.stem)}(?::\d+)*", rollout.rollout_id) is not None:
            rollout.rollout_id = self._names[place.path] + rollout.rollout_id.removeprefix(place.stem)
        key = (rollout.task_id, rollout.rollout_id)
        before = self._seen.get(key)
        if before is not None:
            line = before.removeprefix(f"{place.path}:")
            where = f"on line {line} already" if line.isdecimal() else f"in {before} already"
            raise RolloutError(f"{rollout.name} is {where}, it comes twice; ids are unique in a task")
        self._seen[key] = here

    def _bad(self, place: Place, error: RolloutError) -> None:
        message = _line(place, error)
        if not self._skip_bad:
            raise type(error)(message) from None
        self.skipped += 1
        if len(self.skipped_examples) < _KEPT:
            self.skipped_examples.append(message)

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(self._before + done, self._total)


def _files(path: Path) -> list[tuple[Path, bool]]:
    files, looked = log_files(path)
    return [(file, looked) for file in files]


def _file_names(paths: list[Path]) -> dict[Path, str]:
    """A name for each file: its stem, or the path from the common folder on for those with one stem. Raises
    RolloutError for a file that is given twice."""
    whole: dict[Path, Path] = {}
    stems: dict[str, list[Path]] = {}
    for path in paths:
        known = path.resolve()
        if known in whole:
            other = f" (as {whole[known]} before)" if whole[known] != path else ""
            raise RolloutError(f"{path}: this file is given twice{other}; give it once")
        whole[known] = path
        stems.setdefault(Place(path).stem, []).append(known)
    names = {}
    for stem, alike in stems.items():
        common = os.path.commonpath([path.parent for path in alike])
        for path in alike:
            folder = path.parent.relative_to(common).as_posix()
            # Agents put a run's log into a folder of the same name.
            told = folder if folder.rpartition("/")[2] == stem and folder != stem else f"{folder}/{stem}"
            names[whole[path]] = stem if folder == "." else told
    return names


def _line(place: Place, error: RolloutError) -> str:
    """The error in one line that begins with its place."""
    text = " ".join(str(error).split())
    return text if text.startswith(str(place)) else f"{place}: {text}"
