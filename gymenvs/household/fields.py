"""JSON read with the place of every fault: which field is wrong, what it holds, what is wanted there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def read_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON document, given as text or as UTF-8.

    Raises:
        ValueError: it is none, is not UTF-8, or is nested too deeply; the message begins with `where` and tells the
            line and column.
    """
    try:
        return json.loads(decoded(text, where) if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{where}: no JSON that can be read: lists or objects are nested too deeply") from None


def decoded(data: bytes, where: str) -> str:
    """The text of UTF-8 bytes. Raises ValueError naming the line that is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{where}:{line}: expected UTF-8, got the byte 0x{data[error.start]:02x}") from error


def fault(where: str, wanted: str, got: object) -> ValueError:
    """The error for a field at `where` that holds `got`."""
    shown = repr(got)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return ValueError(f"{where} must be {wanted}, got {type(got).__name__}: {shown}")


def text(got: object, where: str) -> str:
    if not isinstance(got, str):
        raise fault(where, "text", got)
    return got


def optional_text(got: object, where: str) -> str | None:
    if got is not None and not isinstance(got, str):
        raise fault(where, "text or null", got)
    return got


def flag(got: object, where: str) -> bool:
    if not isinstance(got, bool):
        raise fault(where, "true or false", got)
    return got


def rows(got: object, where: str) -> Sequence[Any]:
    if not isinstance(got, (list, tuple)):
        raise fault(where, "a list", got)
    return got


def texts(got: object, where: str) -> tuple[str, ...]:
    return tuple(text(one, f"{where}[{k}]") for k, one in enumerate(rows(got, where)))


def record(got: object, where: str) -> Mapping[str, Any]:
    if not isinstance(got, Mapping):
        raise fault(where, "an object", got)
    return got


def known_keys(got: Mapping[str, Any], where: str, required: Sequence[str], optional: Sequence[str]) -> None:
    """Raises ValueError where the object lacks a key or has one that is not known."""
    missing = [key for key in required if key not in got]
    surplus = sorted(str(key) for key in got if key not in required and key not in optional)
    if missing or surplus:
        faults = [f"lacks {missing}"] * bool(missing) + [f"has {surplus}, which it never has"] * bool(surplus)
        raise ValueError(f"{where} {' and '.join(faults)}")
