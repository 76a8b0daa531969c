"""Values that come from JSON, checked with the place of every fault: which field, what it holds, what is wanted there.

Each function returns the value in the form that tasks keep, or raises ValueError.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_DEPTH = 64  # of a free JSON value: deeper than any data set's, well below the interpreter's own limit


def fault(where: str, wanted: str, got: object) -> ValueError:
    """The error for a field at `where` that holds `got`."""
    try:
        shown = repr(got)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list nested thousands deep
        shown = "..."
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return ValueError(f"{where}: wanted {wanted}, got {type(got).__name__}: {shown}")


def read_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON document, given as text or as UTF-8."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: this JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: wanted UTF-8, got the byte 0x{error.object[error.start]:02x}") from None
    except ValueError as error:
        raise ValueError(f"{where}: this is no JSON: {error}") from None


def text(got: object, where: str, *, filled: bool = False) -> str:
    """Text that UTF-8 can hold; with `filled`, more than blanks. No NUL: neither a process nor a path can carry one."""
    if not isinstance(got, str):
        raise fault(where, "text", got)
    try:
        got.encode("utf-8")
    except UnicodeEncodeError:
        raise fault(where, "text that UTF-8 can hold (there is half a surrogate pair)", got) from None
    if "\0" in got:
        raise fault(where, "text without NUL characters", got)
    if filled and not got.strip():
        raise fault(where, "text that is not empty", got)
    return got


def texts(got: object, where: str) -> tuple[str, ...]:
    """A list of texts."""
    if isinstance(got, (str, bytes, Mapping)) or not isinstance(got, Iterable):
        raise fault(where, "a list of texts", got)
    return tuple(one if _plain_ascii(one) else text(one, f"{where}[{k}]") for k, one in enumerate(got))


def _plain_ascii(got: object) -> bool:
    """What `text` would not complain of; almost every test id is that, and data sets have millions."""
    return isinstance(got, str) and got.isascii() and "\0" not in got


def names(got: object, where: str) -> tuple[str, ...]:
    """A list of texts, none empty, none twice."""
    found = texts(got, where)
    if len(set(found)) == len(found) and all(map(str.strip, found)):
        return found
    seen: set[str] = set()
    for k, one in enumerate(found):
        if one in seen or not one.strip():
            raise fault(f"{where}[{k}]", "a name that is not empty and did not come before", one)
        seen.add(one)
    raise AssertionError("a list of names with a fault has an entry with one")


def record(got: object, where: str) -> Mapping[str, Any]:
    """An object whose keys are texts."""
    if not isinstance(got, Mapping):
        raise fault(where, "an object", got)
    for key in got:
        text(key, f"{where}: the key {key!r:.60}")
    return got


def known_keys(got: Mapping[str, Any], where: str, known: Iterable[str], required: Iterable[str] = ()) -> None:
    """Raises where the object lacks a required key, or has one that is not known."""
    known = tuple(known)
    for key in required:
        if key not in got:
            raise ValueError(f"{where}: field `{key}` is missing")
    for key in got:
        if key not in known:
            raise ValueError(f"{where}: unknown field {key!r:.60}; there are {', '.join(known)}")


def text_map(got: object, where: str) -> dict[str, str]:
    """An object of texts."""
    return {key: text(value, f"{where}[{key!r:.60}]") for key, value in record(got, where).items()}


def seconds(got: object, where: str) -> float:
    """A finite number above zero."""
    if isinstance(got, bool) or not isinstance(got, (int, float)) or not 0 < got < math.inf:
        raise fault(where, "a finite number of seconds above 0", got)
    try:
        return float(got)
    except OverflowError:
        raise fault(where, "a finite number of seconds above 0", got) from None


def fits(got: str) -> bool:
    """Whether a file system can hold the path: 255 bytes a part (NAME_MAX), 2,048 in all, so that a tree's own path
    has room before it (PATH_MAX is 4,096)."""
    data = got.encode("utf-8")
    return len(data) < 256 or (len(data) <= 2048 and max(map(len, data.split(b"/"))) < 256)


def test_ids(got: object, where: str) -> tuple[str, ...]:
    """A list of test ids, none twice; the file of `file.py::test` has to lie in the tree."""
    found = names(got, where)
    for k, one in enumerate(found):
        if len(one) < 256 and ".." not in one and one[0] != "/":
            continue  # of millions, nearly all
        file, colons, _ = one.partition("::")
        if colons and file.endswith(".py") and (file[0] == "/" or ".." in file.split("/") or not fits(file)):
            raise fault(f"{where}[{k}]", "a test in a file of the tree, such as 'tests/test_a.py::test_b'", one)
    return found


def path(got: object, where: str) -> str:
    """A path inside a tree: relative, `/` between its parts, none of them `.`, `..`, `.git` or empty; see `fits`."""
    found = text(got, where, filled=True)
    parts = found.split("/")
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise fault(where, "a path inside the tree, such as 'package/module.py'", got)
    if not fits(found):
        raise fault(where, "a path of parts of at most 255 bytes, 2048 in all", got)
    return found


def paths(got: object, where: str) -> tuple[str, ...]:
    """A list of paths inside a tree, none twice."""
    return tuple(path(one, f"{where}[{k}]") for k, one in enumerate(names(got, where)))


def files(got: object, where: str) -> dict[str, str | bytes]:
    """Files by their paths: text, its lines in a list (`text.split("\\n")`), or {"base64": ...} for other bytes."""
    found: dict[str, str | bytes] = {}
    for name, content in record(got, where).items():
        at = f"{where}[{name!r:.60}]"
        found[path(name, at)] = _content(content, at)
    for name in found:
        above = name
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in found:
                raise ValueError(f"{where}: {above!r} is a file, and {name!r} lies below it")
    return found


def _content(got: object, where: str) -> str | bytes:
    if isinstance(got, (bytes, bytearray)):
        return bytes(got)
    if isinstance(got, (list, tuple)):
        return "\n".join(texts(got, where))
    if isinstance(got, Mapping):
        known_keys(got, where, ("base64",), ("base64",))
        try:
            return base64.b64decode(text(got["base64"], f"{where}: field `base64`"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{where}: field `base64`: {error}") from None
    return text(got, where)


def files_json(got: Mapping[str, str | bytes]) -> dict[str, Any]:
    """What `files` reads back."""
    return {
        name: content if isinstance(content, str) else {"base64": base64.b64encode(content).decode("ascii")}
        for name, content in got.items()
    }


def plain(got: object, where: str, depth: int = _DEPTH) -> Any:
    """A free JSON value: texts, finite numbers, booleans, null, lists and objects; lists come back as lists."""
    if depth == 0:
        raise ValueError(f"{where}: lists or objects are nested more than {_DEPTH} deep")
    if got is None or isinstance(got, bool):
        return got
    if isinstance(got, int):
        if abs(got) >= 1 << 63:
            raise fault(where, "an integer of 64 bits", got)
        return got
    if isinstance(got, float):
        if not math.isfinite(got):
            raise fault(where, "a finite number", got)
        return got
    if isinstance(got, Mapping):
        return {key: plain(value, f"{where}[{key!r:.60}]", depth - 1) for key, value in record(got, where).items()}
    if isinstance(got, (list, tuple)):
        return [plain(value, f"{where}[{k}]", depth - 1) for k, value in enumerate(got)]
    if isinstance(got, str):
        return text(got, where)
    raise fault(where, "a JSON value", got)


def digest(got: object, where: str) -> str:
    """A SHA-256 in lower-case hexadecimals; empty = none."""
    found = text(got, where)
    if found and (len(found) != 64 or set(found) - set("0123456789abcdef")):
        raise fault(where, "a SHA-256 of 64 lower-case hexadecimals, or nothing", got)
    return found
