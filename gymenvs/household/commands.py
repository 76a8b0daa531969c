"""Commands as people and models write them, turned into the engine's, for `lenient=True`.

Forgiven are letter case, articles, doubled blanks, a full stop at the end, and the older wording `put X in/on Y` (also
`in`, `on`, `into`, `onto`, and `place`) for `move X to Y`. Nothing is guessed: what is none of the admissible commands
after that stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Collection

LONGEST = 1000  # no command is as long, and a text a million characters long is not worth the search
_ARTICLES = re.compile(r"\b(?:a|an|the)\s+")
_PUT = re.compile(r"(?:put|place|move) (.+?) (?:in/on|in|on|into|onto|to) (.+)")


def forgive(text: str, admissible: Collection[str]) -> str:
    """The admissible command that `text` means, else `text` without the blanks around it."""
    command = text.strip()
    if command in admissible or len(command) > LONGEST:
        return command
    plain = " ".join(_ARTICLES.sub("", command.lower().removesuffix(".")).split())
    if plain in admissible:
        return plain
    put = _PUT.fullmatch(plain)
    if put is not None and (moved := f"move {put[1]} to {put[2]}") in admissible:
        return moved
    return command
