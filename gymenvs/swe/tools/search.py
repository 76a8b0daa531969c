"""R2E-Gym's `search`: which files of a folder hold a text, or which lines of a file.

The text is taken literally in both (the original looks for it literally in a folder, and hands it to `grep` as a
pattern for a file). Counted are lines that hold it. In a folder only `.py` files are searched unless
`python_only=false` (which the original reads as true); what begins with a dot, links, binary and very large files are
left out, and how much is read is bounded. Starts no process.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rtmc.gymenvs.swe.paths import NotFolder, NotFound, OutsideTree, TreeError, TreeFolder
from rtmc.gymenvs.swe.tools.filetext import FileText
from rtmc.gymenvs.swe.tools.results import Shown, ToolError, ToolLimits, clip, quote, tree_fault

VIEW_CHARS = 10_000


def search(tree: TreeFolder, arguments: Mapping[str, Any], limits: ToolLimits) -> Shown:
    """Carry out a search; a refusal is a ToolError. Arguments that were not given are missing or None."""
    term, path = arguments.get("search_term"), arguments.get("path") or "."
    if not term:
        raise ToolError("The parameter 'search_term' is required: the text to search for.")
    if "\0" in path:
        raise ToolError(f"The path {path!r} holds a NUL byte, which no path can.")
    named = str(PurePosixPath(path))
    try:
        entry = tree.entry(named)
    except (NotFound, NotFolder):
        raise ToolError(f"Directory '{_absolute(tree, named, limits)}' not found or not a directory.") from None
    except OutsideTree:
        what = f"lies outside of {tree.inside}. Only files under it can be searched."
        raise ToolError(f"The path '{quote(named, limits.quoted_chars)}' {what}") from None
    except (TreeError, OSError) as error:
        raise ToolError(f"The path '{quote(named, limits.quoted_chars)}' {tree_fault(error)}.") from error
    where = posixpath.join(tree.inside, entry.path) if entry.path else tree.inside
    if entry.is_folder:
        return _in_folder(tree, entry.path, where, term, arguments.get("python_only") is not False, limits)
    return _in_file(tree, entry.path, where, term, limits)


def settled(tree: TreeFolder, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with what they leave open, and the path as the answer names it: equal for searches that are one.

    They stay as they are where there is nothing of that path.
    """
    try:
        entry = tree.entry(str(PurePosixPath(arguments.get("path") or ".")))
    except (TreeError, OSError):
        return dict(arguments)
    found = {**arguments, "path": posixpath.join(tree.inside, entry.path) if entry.path else tree.inside}
    found.pop("python_only", None)
    return found | ({"python_only": arguments.get("python_only") is not False} if entry.is_folder else {})


def _absolute(tree: TreeFolder, path: str, limits: ToolLimits) -> str:
    return quote(posixpath.normpath(posixpath.join(tree.inside, path)), limits.quoted_chars)


def _in_folder(tree: TreeFolder, start: str, where: str, term: str, python_only: bool, limits: ToolLimits) -> Shown:
    wanted = term.encode("utf-8", "surrogateescape")
    found: list[tuple[str, int]] = []
    files = read = 0
    whole = True
    for entry in tree.walk(start):
        if entry.is_folder or entry.is_link or (python_only and not entry.path.endswith(".py")):
            continue
        if files >= limits.search_files or read + entry.size > limits.search_bytes:
            whole = False
            break
        files += 1
        if entry.size > limits.file_bytes:
            continue
        try:
            content = tree.read(entry.path, limit=entry.size)
        except (TreeError, OSError):  # gone or grown meanwhile, unreadable, or no regular file
            continue
        read += len(content)
        if wanted in content and b"\0" not in content:
            lines = sum(wanted in line for line in content.split(b"\n"))
            if lines:  # a text with a line end in it stands in no line
                found.append((entry.path, lines))
    shown = quote(term, limits.quoted_chars)
    rest = "" if whole else f"\nOnly {files} files were searched; there are more. Please narrow your search."
    if not found:
        return Shown(f'No matches found for "{shown}" in {where}{rest}')
    if len(found) > limits.matched_files:
        return Shown(f'More than {len(found)} files matched for "{shown}" in {where}. Please narrow your search.{rest}')
    rows = [f'Found {sum(lines for _, lines in found)} matches for "{shown}" in {where}:']
    rows += [f"./{path} ({lines} matches)" for path, lines in found]
    rows.append(f'End of matches for "{shown}" in {where}{rest}')
    return Shown(clip("\n".join(rows), limits.view_chars or VIEW_CHARS), tuple((path, ()) for path, _ in found))


def _in_file(tree: TreeFolder, path: str, where: str, term: str, limits: ToolLimits) -> Shown:
    try:
        file = FileText(tree.read(path, limit=limits.file_bytes))
    except (TreeError, OSError) as error:
        raise ToolError(f"The file '{where}' {tree_fault(error)}.") from error
    if file.binary:
        raise ToolError(f"The file '{where}' is binary: it holds NUL bytes. Use a command to look into it.")
    wanted, shown = file.as_written(term), quote(term, limits.quoted_chars)
    title = f'Matches for "{shown}" in {where}:'
    rows, numbers = [title], []
    room = limits.view_chars or VIEW_CHARS
    for number, line in enumerate(file.text.split("\n"), 1):
        if wanted in line:
            rows.append(f"{number}:{line}")
            numbers.append(number)
            room -= len(rows[-1])
            if room < 0:  # the rest is clipped
                break
    if not numbers:
        return Shown(f'No matches found for "{shown}" in {where}')
    lines = tuple((number, number) for number in numbers)
    return Shown(clip("\n".join(rows).rstrip(), limits.view_chars or VIEW_CHARS), ((path, lines),))
