"""Unified diffs as text: which files one touches, its reverse, some of its hunks.

Nothing is applied here (`patch.apply_patch` does that), none is made (`difftext`) and no file is opened. Lines end at
`\\n` alone, as git has it: a carriage return or a form feed belongs to its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rtmc.gymenvs.swe.difftext import unquoted

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_SWAPPED = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
    "rename from": "rename to",
    "rename to": "rename from",
}


class Touched(NamedTuple):
    """One file of a patch: its path before (None: the patch adds it) and after (None: it deletes it)."""

    old: str | None
    new: str | None


class _Section(NamedTuple):
    """One file's part. `head`: lines before the hunks; `hunks`: each begins with its `@@` line; `binary`: the rest."""

    line: int
    head: list[str]
    hunks: list[list[str]]
    binary: list[str]


def touched(patch: str) -> tuple[Touched, ...]:
    """The files of a patch, in its order.

    Raises:
        ValueError: it is no unified diff; the line is named.
    """
    return tuple(_paths(section) for section in _sections(patch))


def reverse(patch: str) -> str:
    """The patch that takes `patch` back.

    Raises:
        ValueError: it is no unified diff, or has a binary file without its content; the line is named.
    """
    return "".join("".join(_reversed(section)) for section in _sections(patch))


def pick(patch: str, hunks: Sequence[int]) -> str:
    """A patch of one file with some of its hunks, numbered from 1, in rising order.

    Raises:
        ValueError: it is no unified diff of one file with text, or has fewer hunks.
    """
    sections = list(_sections(patch))
    if len(sections) != 1 or sections[0].binary:
        raise ValueError(f"wanted a patch of one text file, got one of {len(sections)}")
    section, shift = sections[0], 0
    if hunks and max(hunks) > len(section.hunks):
        raise ValueError(f"hunk {max(hunks)} is wanted, the patch has {len(section.hunks)}")
    # Without `index`: it names the content that all of the hunks together make.
    parts = [line for line in section.head if not line.startswith("index ")]
    for number in hunks:
        header, *lines = section.hunks[number - 1]
        old, length, _, added, rest = _header(header)
        # Where the new side begins depends on the hunks before it, and some of them are left out.
        start = int(old) + shift + (not int(length)) - (not int(added))
        parts += [f"@@ -{_span(old, length)} +{_span(str(start), added)} @@{rest}", *lines]
        shift += int(added) - int(length)
    return "".join(parts)


def hunks(patch: str) -> list[str]:
    """The hunks of a patch, file by file, each from its `@@` line on. Raises ValueError where it is no unified diff."""
    return ["".join(hunk) for section in _sections(patch) for hunk in section.hunks]


def hunk_of(patch: str, path: str, line: int, *, reverse: bool = False) -> list[str] | None:
    """The hunk of a file that begins at a line of the old file (`reverse`: of the new), or None where there is none."""
    try:
        for section in _sections(patch):
            names = _paths(section)
            for hunk in section.hunks if path in (names.old, names.new) else ():
                old, _, new, _, _ = _header(hunk[0])
                if int(new if reverse else old) == line:
                    return hunk
    except ValueError:  # whoever asks has an error to tell already
        pass
    return None


def _header(line: str) -> tuple[str, str, str, str, str]:
    """Old start, old length, new start, new length and what comes after, of a hunk's first line."""
    match = _HUNK.fullmatch(line)
    assert match is not None, "a hunk begins with its header"
    return match[1], match[2] or "1", match[3], match[4] or "1", match[5]


def _span(start: str, length: str) -> str:
    return start if length == "1" else f"{start},{length}"


def _lines(text: str) -> list[str]:
    """The lines with their ends; the last may lack it."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _sections(patch: str) -> Iterator[_Section]:
    lines = [line if line.endswith("\n") else line + "\n" for line in _lines(patch)]
    at, section, with_git = 0, _Section(0, [], [], []), False
    while at < len(lines):
        line = lines[at]
        hunk = _HUNK.fullmatch(line)
        starts = line.startswith("diff --git ")
        # A diff that is not git's begins a file at `---`; git's has that line inside the file's part.
        begins = line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")
        if starts or (begins and (not with_git or section.hunks)):
            if section.head:
                yield section
            section, with_git = _Section(at + 1, [], [], []), starts
        if hunk:
            if not section.head:
                raise ValueError(f"patch, line {at + 1}: a hunk stands before the name of its file")
            end = _hunk_end(lines, at, int(hunk[2] or 1), int(hunk[4] or 1))
            section.hunks.append(lines[at:end])
            at = end
            continue
        if section.binary or line.startswith("GIT binary patch"):
            section.binary.append(line)
        elif starts or begins or (section.head and not section.hunks):
            section.head.append(line)  # a text before the first file, or after a hunk, is a message: left out
        at += 1
    if section.head:
        yield section


def _hunk_end(lines: list[str], at: int, old: int, new: int) -> int:
    """The line after the hunk whose header is at `at`, which has so many lines of the old and of the new file."""
    start = at
    at += 1
    while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith("\\")):
        sign = lines[at][0]
        if sign not in " +-\\\n" or (sign == "-" and old == 0) or (sign == "+" and new == 0):
            break
        old -= sign in " -\n"
        new -= sign in " +\n"
        at += 1
    if old > 0 or new > 0 or old < 0 or new < 0:
        raise ValueError(f"patch, line {start + 1}: the hunk's lines are not as many as its header says")
    return at


def _paths(section: _Section) -> Touched:
    found: dict[str, str] = {}
    for line in section.head:
        for mark in ("--- ", "+++ ", "rename from ", "rename to ", "copy to ", "new file mode", "deleted file mode"):
            if line.startswith(mark):
                found[mark.strip()] = line[len(mark) :].rstrip("\n")
    for one, other in (("---", "+++"), ("rename from", "rename to")):
        if (one in found) != (other in found):
            raise ValueError(f"patch, line {section.line}: the file has only one of `{one}` and `{other}`")
    header = section.head[0]
    if "copy to" in found:
        return Touched(None, unquoted(found["copy to"]))
    if "---" in found:
        old, new = (_side(found[mark], mark, section.line) for mark in ("---", "+++"))
    elif "rename from" in found:
        old, new = unquoted(found["rename from"]), unquoted(found["rename to"])
    else:
        old = new = _same(header, section.line)
    if old is None and new is None:
        raise ValueError(f"patch, line {section.line}: the file has no name on either side")
    return Touched(None if "new file mode" in found else old, None if "deleted file mode" in found else new)


def _side(name: str, mark: str, line: int) -> str | None:
    """The path of a `---` or `+++` line; None for /dev/null."""
    name = unquoted(name.partition("\t")[0])
    if name == "/dev/null":
        return None
    prefix = "a/" if mark == "---" else "b/"
    path = name.removeprefix(prefix)
    if not path:
        raise ValueError(f"patch, line {line}: a file without a name")
    return path


def _same(header: str, line: int) -> str:
    """The path in `diff --git a/PATH b/PATH`, where nothing else tells it."""
    rest = header.removeprefix("diff --git ").rstrip("\n")
    if rest.startswith('"'):
        rest = unquoted(rest[: len(rest) // 2]) + " " + unquoted(rest[len(rest) // 2 + 1 :])
    half = len(rest) // 2
    left, right = rest[:half], rest[half + 1 :]
    if left[2:] != right[2:] or not left.startswith("a/") or not left[2:]:
        raise ValueError(f"patch, line {line}: the two names of the file differ and no line tells why")
    return left[2:]


def _reversed(section: _Section) -> Iterator[str]:
    _paths(section)  # refuses a head that does not hold together
    sides: dict[str, str] = {}
    for line in section.head:
        for mark in ("--- ", "+++ ", "rename from ", "rename to "):
            if line.startswith(mark):
                sides[mark] = line[len(mark) :]
    moved: list[str] = []
    for line in section.head:
        if line.startswith(("Binary files ", "copy ")):
            raise ValueError(
                f"patch, line {section.line}: {line.strip()!r} cannot be taken back: its content is not told"
            )
        if line.startswith("diff --git ") and "rename from " in sides:
            names = (
                _prefixed(sides[mark].rstrip("\n"), one) for mark, one in (("rename to ", "a/"), ("rename from ", "b/"))
            )
            moved.append(f"diff --git {' '.join(names)}\n")
        elif line.startswith("--- "):
            moved.append("--- " + _sided(sides["+++ "], "b/", "a/"))
        elif line.startswith("+++ "):
            moved.append("+++ " + _sided(sides["--- "], "a/", "b/"))
        elif index := re.fullmatch(r"index (\w+)\.\.(\w+)(.*\n)", line):
            moved.append(f"index {index[2]}..{index[1]}{index[3]}")
        else:
            start = next((start for start in _SWAPPED if line.startswith(start + " ")), None)
            moved.append(_SWAPPED[start] + line[len(start) :] if start else line)
    # git wants `old mode` before `new mode`, `rename from` before `rename to`: the swap turned them round.
    order = ("old mode", "new mode", "rename from", "rename to")
    spots = [k for k, line in enumerate(moved) if line.startswith(order)]
    ranked = sorted((moved[k] for k in spots), key=lambda line: [line.startswith(one) for one in order].index(True))
    for k, line in zip(spots, ranked, strict=True):
        moved[k] = line
    yield from moved
    for hunk in section.hunks:
        yield from _reversed_hunk(hunk)
    yield from _reversed_binary(section)


def _prefixed(name: str, prefix: str) -> str:
    """A name, in git's quotes or not, with a folder before it."""
    return f'"{prefix}{name[1:]}' if name.startswith('"') else prefix + name


def _sided(name: str, old: str, new: str) -> str:
    """The name of one side as the other side writes it."""
    quote = '"' if name.startswith('"') else ""
    return quote + new + name.removeprefix(quote + old) if name.startswith(quote + old) else name


def _reversed_hunk(hunk: list[str]) -> Iterator[str]:
    old, length, new, added, rest = _header(hunk[0])
    yield f"@@ -{_span(new, added)} +{_span(old, length)} @@{rest}"
    minus: list[str] = []
    plus: list[str] = []
    last = minus
    for line in hunk[1:]:
        if line[0] == "-":
            last = plus
            plus.append("+" + line[1:])
        elif line[0] == "+":
            last = minus
            minus.append("-" + line[1:])
        elif line[0] == "\\" and (minus or plus):
            last.append(line)  # the note on a missing last newline goes with its line
        else:
            yield from (*minus, *plus, line)
            minus, plus = [], []
            last = minus
    yield from (*minus, *plus)


def _reversed_binary(section: _Section) -> Iterator[str]:
    """`GIT binary patch`, the content after, a blank line, the content before, a blank line."""
    if not section.binary:
        return
    bodies: list[list[str]] = []
    for line in section.binary[1:]:
        if line.startswith(("literal ", "delta ")):
            bodies.append([])
        if bodies and line.strip():
            bodies[-1].append(line)
    if len(bodies) != 2:
        raise ValueError(f"patch, line {section.line}: the binary file's old content is not told")
    yield from (section.binary[0], *bodies[1], "\n", *bodies[0], "\n")
