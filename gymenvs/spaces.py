"""A space of text: any string up to a length, whatever its characters.

`gymnasium.spaces.Text` names its characters one by one, so full Unicode costs seconds and megabytes, and an
asynchronous vector environment with shared memory returns stale text for it. This space holds no alphabet. Batches
of it are tuples of strings; `AsyncVectorEnv` wants `shared_memory=False`, and says so if it is not given.
"""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Space


class UnicodeText(Space[str]):
    """All strings of at most `max_length` characters.

    Args:
        max_length: most characters, at least 1.
        seed: of `sample`, which draws printable ASCII text.

    Raises:
        ValueError: `max_length` is below 1.
    """

    def __init__(self, max_length: int = 1_000_000, *, seed: int | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"UnicodeText: max_length must be at least 1, got {max_length}")
        self.max_length = int(max_length)
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Printable text of 0 to 32 characters. A mask or a probability has no meaning here.

        Raises:
            ValueError: `mask` or `probability` is given.
        """
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes no mask and no probability: there is no alphabet")
        length = int(self.np_random.integers(0, min(self.max_length, 32) + 1))
        letters = string.digits + string.ascii_letters + string.punctuation + " "
        return "".join(letters[k] for k in self.np_random.integers(0, len(letters), size=length))

    def __repr__(self) -> str:
        return f"UnicodeText(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.max_length))
