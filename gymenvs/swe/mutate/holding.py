"""One run at a time for one output: what two wrote into the same files would be the work of neither.

    with held(path, "who holds it"): ...

The lock is a file beside the output, held by `flock`: the system lets it go when its holder dies, so what a killed run
leaves stops nobody. It is removed at the end.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(output: Path, words: str = "") -> Iterator[None]:
    """Holds an output (its file need not be there) while the body runs.

    Args:
        output: another name of the same file, through links, is the same output. words: what the holder does, for
            whoever is refused.

    Raises:
        ValueError: another process holds it; the message says which. OSError: the lock cannot be written.
    """
    real = Path(os.path.realpath(output))
    place = real.with_name(f".{real.name}.lock")
    lock = _locked(place, output)
    try:
        told = f"process {os.getpid()} on {os.uname().nodename} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        os.ftruncate(lock, 0)
        os.write(lock, (told + (f": {words}" if words else "")).encode("utf-8", "replace"))
        yield
    finally:
        place.unlink(missing_ok=True)  # while it is held: whoever opened it meanwhile sees that it is gone
        os.close(lock)


def _locked(place: Path, output: Path) -> int:
    while True:
        lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), place.stat()):
                return lock
        except FileNotFoundError:  # of a holder that has just ended, who removed it
            pass
        except BlockingIOError:
            holder = os.read(lock, 2000).decode("utf-8", "replace").strip() or "another process"
            os.close(lock)
            raise ValueError(f"{output} is being written already, by {holder}; wait, or name another file") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
