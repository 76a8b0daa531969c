"""The text that `echo`, `printf` and a heredoc give to a file or to the next command, where the line spells it.

What this is not: a shell. A format with a number's width, or a variable in the text, leaves it unknown or as written.
Source: the manuals of bash's `echo` and of `printf` (a format is used again while arguments are left).
"""

from __future__ import annotations

import re

from rtmc.signatures.programs import unwrapped
from rtmc.signatures.shell import Command

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_FIELD = re.compile(r"%(?:%|[sbdiuxXfgeq])|\\(.)", re.S)


def printed(command: Command) -> str | None:
    """What the command prints; None where the line does not spell it."""
    if command.text is not None:
        return command.text
    words = unwrapped(command.words)
    if words[:1] == ["printf"]:
        rest = words[2:] if words[1:2] == ["--"] else words[1:]
        return _formatted(rest[0], rest[1:]) if rest else ""
    if words[:1] != ["echo"]:
        return None
    rest, escaped, ended = words[1:], False, True
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        escaped = "e" in rest[0] or (escaped and "E" not in rest[0])
        ended = ended and "n" not in rest[0]
        rest = rest[1:]
    text = " ".join(rest)
    return (_unescaped(text) if escaped else text) + ("\n" if ended else "")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.S)


def _formatted(form: str, given: list[str]) -> str | None:
    if re.search(r"%[-+ #0-9.*]", form):
        return None
    fields = sum(not found[0].startswith(("\\", "%%")) for found in _FIELD.finditer(form))
    left = iter(given)

    def one(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _ESCAPES.get(found[1], found[0])
        if found[0] == "%%":
            return "%"
        word = next(left, "")
        return _unescaped(word) if found[0] == "%b" else word

    rounds = max(1, -(-len(given) // fields)) if fields else 1
    return "".join(_FIELD.sub(one, form) for _ in range(min(rounds, 1000)))
