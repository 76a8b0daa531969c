"""Patches in git's format, made from two states of files, without a process. `git apply` takes them.

Text is compared by lines that end at `\\n`; a file with a NUL byte or without valid UTF-8 is binary and given as
`GIT binary patch`, both ways, so that the patch can be taken back. The comparison is Myers' (An O(ND) Difference
Algorithm and Its Variations, 1986), on what lies between the common beginning and end; where more than MOST_EDITS
lines differ there, all of that is replaced: right, but not the shortest.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

MOST_EDITS = 600
_CONTEXT = 3
_QUOTES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPE = re.compile(r'\\([abfnrtv"\\]|[0-7]{3})')


class Blob(NamedTuple):
    """A file or link as git knows it: `mode` 0o100644, 0o100755 or 0o120000; `content` None where it is left out."""

    mode: int
    content: bytes | None


class _Edit(NamedTuple):
    """Lines start:end of the old are replaced by lines new_start:new_end of the new."""

    start: int
    end: int
    new_start: int
    new_end: int


def make_patch(old: Mapping[str, str | bytes], new: Mapping[str, str | bytes]) -> str:
    """The patch from one set of files (path -> content) to another. Files absent from `new` are deleted."""
    pairs = [(path, _text_blob(old.get(path)), _text_blob(new.get(path))) for path in sorted({*old, *new})]
    return write_patch((path, before, after) for path, before, after in pairs if before != after)


def write_patch(pairs: Iterable[tuple[str, Blob | None, Blob | None]]) -> str:
    """The patch for (path, old, new), None for what isn't there. What goes stands before what comes.

    A blob without content gives a line that the files differ, which `git apply` refuses.
    """
    removals, rest = [], []
    for path, old, new in pairs:
        if old is not None and new is not None and old.mode | 0o111 != new.mode | 0o111:
            # A file becomes a link or a link a file: git deletes the one and adds the other.
            removals.append(_file_patch(path, old, None))
            rest.append(_file_patch(path, None, new))
        elif new is None and old is not None:
            removals.append(_file_patch(path, old, None))
        else:
            rest.append(_file_patch(path, old, new))
    return b"".join(removals + rest).decode()


def _text_blob(content: str | bytes | None) -> Blob | None:
    if content is None:
        return None
    return Blob(0o100644, content.encode() if isinstance(content, str) else content)


def _file_patch(path: str, old: Blob | None, new: Blob | None) -> bytes:
    head = [f"diff --git {_quoted('a/' + path)} {_quoted('b/' + path)}"]
    if old is None and new is not None:
        head.append(f"new file mode {new.mode:o}")
    elif new is None and old is not None:
        head.append(f"deleted file mode {old.mode:o}")
    elif old is not None and new is not None and old.mode != new.mode:
        head += [f"old mode {old.mode:o}", f"new mode {new.mode:o}"]
    before = b"" if old is None else old.content
    after = b"" if new is None else new.content
    names = "/dev/null" if old is None else _tabbed("a/" + path), "/dev/null" if new is None else _tabbed("b/" + path)
    body = b""
    if before is None or after is None:
        plain = [name.rstrip("\t") for name in names]
        body = f"Binary files {plain[0]} and {plain[1]} differ\n".encode()
    elif before != after or old is None or new is None:
        binary = not (_is_text(before) and _is_text(after))
        digits = 40 if binary else 7
        marks = [
            "0" * digits if blob is None else _object_name(content)[:digits]
            for blob, content in ((old, before), (new, after))
        ]
        # With two modes the mode stands above; with one it ends the line of the object names.
        mode = f" {old.mode:o}" if old is not None and new is not None and old.mode == new.mode else ""
        head.append(f"index {marks[0]}..{marks[1]}{mode}")
        if binary:
            body = b"GIT binary patch\n" + _literal(after) + _literal(before)
        elif before != after:
            body = f"--- {names[0]}\n+++ {names[1]}\n".encode() + b"".join(_hunks(_lines(before), _lines(after)))
    return "".join(line + "\n" for line in head).encode() + body


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _object_name(content: bytes) -> str:
    """The name git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> bytes:
    """A file's whole content as git's binary patches have it: deflated, 52 bytes a line, the length as a letter."""
    packed = zlib.compress(content)
    lines = [b"literal %d\n" % len(content)]
    for at in range(0, len(packed), 52):
        part = packed[at : at + 52]
        length = len(part) + (64 if len(part) <= 26 else 70)  # A-Z for 1 to 26, a-z for 27 to 52
        lines.append(bytes([length]) + base64.b85encode(part, pad=True) + b"\n")
    return b"".join(lines) + b"\n"


def _quoted(name: str) -> str:
    """A path as git writes it: in C's quotes where it has other bytes than ASCII's visible ones and the blank."""
    data = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return name
    shown = (
        f"\\{_QUOTES[byte]}" if byte in _QUOTES else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in data
    )
    return '"' + "".join(shown) + '"'


def unquoted(name: str) -> str:
    """The path that `_quoted` wrote; a name without quotes is itself."""
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    codes = {letter: byte for byte, letter in _QUOTES.items()}

    def byte_of(match: re.Match[str]) -> str:
        code = match[1]
        return chr(codes[code] if code in codes else int(code, 8) & 255)

    # One character a byte, so that the bytes come together again.
    data = os.fsencode(name[1:-1]).decode("latin-1")
    return os.fsdecode(_ESCAPE.sub(byte_of, data).encode("latin-1"))


def _tabbed(name: str) -> str:
    """For `---` and `+++` lines: a tab ends a name that has a blank."""
    quoted = _quoted(name)
    return quoted + "\t" if " " in quoted and quoted == name else quoted


def _lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    edits = list(_edits(old, new))
    at = 0
    while at < len(edits):
        end = at + 1
        while end < len(edits) and edits[end].start - edits[end - 1].end <= 2 * _CONTEXT:
            end += 1
        group = edits[at:end]
        before = min(_CONTEXT, group[0].start)
        start, new_start = group[0].start - before, group[0].new_start - before
        stop = min(len(old), group[-1].end + _CONTEXT)
        new_stop = group[-1].new_end + stop - group[-1].end
        yield f"@@ -{_range(start, stop)} +{_range(new_start, new_stop)} @@\n".encode()
        position = start
        for edit in group:
            yield from (_line(b" ", line) for line in old[position : edit.start])
            yield from (_line(b"-", line) for line in old[edit.start : edit.end])
            yield from (_line(b"+", line) for line in new[edit.new_start : edit.new_end])
            position = edit.end
        yield from (_line(b" ", line) for line in old[position:stop])
        at = end


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"  # an empty range names the line before it


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _edits(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[_Edit]:
    """The replaced ranges, in order, no two adjacent."""
    first, limit = 0, min(len(old), len(new))
    while first < limit and old[first] == new[first]:
        first += 1
    last = 0
    while last < limit - first and old[-1 - last] == new[-1 - last]:
        last += 1
    a, b = old[first : len(old) - last], new[first : len(new) - last]
    if not a and not b:
        return
    kept = _common(a, b) if a and b else []
    at = new_at = 0
    for i, j in [*kept, (len(a), len(b))]:
        if i > at or j > new_at:
            yield _Edit(first + at, first + i, first + new_at, first + j)
        at, new_at = i + 1, j + 1


def _common(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of equal lines that a shortest edit keeps, ascending; none where it has more than MOST_EDITS lines."""
    furthest = {1: 0}  # diagonal i - j -> the furthest i
    rounds: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), MOST_EDITS) + 1):
        rounds.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            i = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            j = i - diagonal
            while i < len(a) and j < len(b) and a[i] == b[j]:
                i, j = i + 1, j + 1
            furthest[diagonal] = i
            if i >= len(a) and j >= len(b):
                return _traced(a, b, rounds)
    return []


def _traced(a: Sequence[bytes], b: Sequence[bytes], rounds: list[dict[int, int]]) -> list[tuple[int, int]]:
    """The kept pairs along the path that the rounds found, from its end back."""
    kept: list[tuple[int, int]] = []
    i, j = len(a), len(b)
    for edits in range(len(rounds) - 1, -1, -1):
        before, diagonal = rounds[edits], i - j
        down = diagonal == -edits or (diagonal != edits and before.get(diagonal - 1, -1) < before.get(diagonal + 1, -1))
        outer = diagonal + 1 if down else diagonal - 1
        from_i = before[outer]
        from_j = from_i - outer
        start_i, start_j = (from_i, from_j + 1) if down else (from_i + 1, from_j)
        if edits == 0:
            start_i = start_j = 0
        while i > start_i and j > start_j:
            i, j = i - 1, j - 1
            kept.append((i, j))
        i, j = from_i, from_j
    return kept[::-1]
