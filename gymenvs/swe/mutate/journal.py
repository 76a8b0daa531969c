"""What has been found out so far, kept so that an interrupted run goes on where it was.

One JSON object a line, appended and flushed whole; a line that was cut off by a crash is dropped when the file is read
again. Records are found by a key, which names everything they depend on, so a changed package or setting simply finds
nothing.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO


class Journal:
    """A file of records. It is made with the first of them.

    Raises:
        ValueError: the file is there and is no journal. OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Any]] = {}
        self._kept = self._read() if path.exists() else 0
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(path.parent)!r} for {path.name}")
        self._file: BinaryIO | None = None

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> dict[str, Any] | None:
        return self._records.get(key)

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"key": key, **record}, ensure_ascii=False) + "\n"
        with self._lock:
            self._records[key] = dict(record)
            file = self._opened()
            file.write(line.encode())
            file.flush()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self.path.open("ab")
            if self._file.tell() > self._kept:  # a line that was cut off
                self._file.truncate(self._kept)
                self._file.seek(0, os.SEEK_END)
        return self._file

    def _read(self) -> int:
        """How many bytes of the file are whole records."""
        kept = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
                if record is not None:
                    self._records[record.pop("key")] = record
            except (ValueError, TypeError, KeyError, AttributeError):
                where = f"{self.path}, line {number}"
                raise ValueError(
                    f"{where}: this is no record of a run; move the file away, or name another output"
                ) from None
            if record is None:
                break  # cut off
            kept += len(line)
        return kept
