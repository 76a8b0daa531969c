"""What the signatures have in common: a key's length, names by hash, tables of names."""

from __future__ import annotations

import hashlib

# A key is text that a reader can check; past this length the rest is told by its hash.
MAX_KEY = 6000


def word_set(text: str) -> frozenset[str]:
    """The words of a text: how tables of names are written here."""
    return frozenset(text.split())


def short_hash(text: str, chars: int = 8) -> str:
    """Hexadecimal digits of SHA-256 of the text; the same on every machine."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:chars]


def bounded(key: str) -> str:
    """The key; if it is very long, its beginning and a hash of the whole."""
    return key if len(key) <= MAX_KEY else f"{key[: MAX_KEY // 2]}...{len(key)} characters:{short_hash(key, 32)}"
