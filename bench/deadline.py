"""A limit on the seconds that a block of code may take, by the alarm signal: main thread, Unix.

Not here: what is limited (gpu.py).
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["limit"]


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """TimeoutError after ``seconds``; may stand inside another limit."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.01))
