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
from typing import Any


class Journal:
    """A file of records.

    Raises:
        ValueError: the file is there and is no journal. OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Any]] = {}
        kept = self._read() if path.exists() else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if self._file.tell() > kept:
            self._file.truncate(kept)
            self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> dict[str, Any] | None:
        return self._records.get(key)

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"key": key, **record}, ensure_ascii=False) + "\n"
        with self._lock:
            self._records[key] = dict(record)
            self._file.write(line.encode())
            self._file.flush()

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
