"""Ctrl-C at the right moment: at once while nothing is half-done, after the update while weights are moving."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers a Ctrl-C until `check` is called; a second Ctrl-C breaks in immediately."""

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Catch SIGINT inside the block (only the main thread can)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            # os.write: print may be in the middle of its own work when a signal arrives.
            os.write(2, b"\nstopping at the next whole state; Ctrl-C again stops at once\n")

        before = signal.signal(signal.SIGINT, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
