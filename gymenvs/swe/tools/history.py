"""What `undo_edit` brings back: the contents that files had, newest first, within bounds.

Whole contents rather than differences, as in the tools copied: undo restores what was saved even where a command
changed the file since. They are kept compressed; the oldest go when there are too many or they are too large.
"""

from __future__ import annotations

import zlib

# (path in the tree, compressed content), oldest first. Immutable, so that forks share it.
Saved = tuple[tuple[str, bytes], ...]


class EditHistory:
    """Saved contents of the files of one episode."""

    def __init__(self, steps: int, size: int) -> None:
        self._steps = steps
        self._size = size
        self._saved: list[tuple[str, bytes]] = []
        self._held = 0

    def push(self, path: str, content: bytes) -> None:
        packed = zlib.compress(content, 1)
        self._saved.append((path, packed))
        self._held += len(packed)
        while self._saved and (len(self._saved) > self._steps or self._held > self._size):
            self._held -= len(self._saved.pop(0)[1])

    def last(self, path: str) -> bytes | None:
        """The content saved last, None if there is none."""
        return next((zlib.decompress(packed) for name, packed in reversed(self._saved) if name == path), None)

    def drop(self, path: str) -> None:
        """Forget the content saved last."""
        at = max(place for place, (name, _) in enumerate(self._saved) if name == path)
        self._held -= len(self._saved.pop(at)[1])

    def snapshot(self) -> Saved:
        return tuple(self._saved)

    def restore(self, saved: Saved) -> None:
        self._saved = list(saved)
        self._held = sum(len(packed) for _, packed in saved)
