"""Patches as effects: unified diffs, sections of `*** Update File`, and search/replace blocks.

What this is not: no patch is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from rtmc.signatures.effects import Effect, Swap

_HUNK = re.compile(r"^@@", re.M)


_SEARCH = re.compile(r"(?:<{3,9}|-{5,9}) ?SEARCH>?\s*")
_MIDDLE = re.compile(r"={5,9}\s*")
_REPLACE = re.compile(r"(?:>{3,9}|\+{5,9}) ?REPLACE>?\s*")


def search_blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """(line before it, old text, new text) of each search/replace block, as aider, Cline and Roo write them. A fence
    may stand between that line and the block."""
    before, part = "", ""
    parts: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if _SEARCH.fullmatch(line):
            part, parts = "old", {"old": [], "new": []}
        elif part == "old" and _MIDDLE.fullmatch(line):
            part = "new"
        elif part == "new" and _REPLACE.fullmatch(line):
            old, new = ("".join(f"{kept}\n" for kept in parts[name]) for name in ("old", "new"))
            yield before, old, new
            part = ""
        elif part == "old" and (re.fullmatch(r":(?:start|end)_line: ?\d+", line) or line == "-------"):
            continue  # Roo's place of the block
        elif part:
            parts[part].append(line)
        elif line.strip() and not line.startswith("```"):
            before = line.strip().strip("`*")


def block_texts(text: str) -> list[tuple[str, str]]:
    """(old, new) of the search/replace blocks of a text."""
    return [(old, new) for _, old, new in search_blocks(text)] if "SEARCH" in text else []


def patch_effects(text: str, shell: bool = True) -> list[Effect]:
    """One effect a file of a unified diff, or of `*** Update File` / `*** Add File` / `*** Delete File` sections."""
    if "*** Begin Patch" in text or "*** Update File" in text or "*** Add File" in text or "*** Delete File" in text:
        return list(_sections(text, shell))
    found: list[Effect] = []
    path, source, inside = "", "", False
    hunks: list[list[str]] = []

    def close() -> Iterator[Effect]:
        if not path:
            return
        if path == "/dev/null":
            yield Effect("fileop", source, "delete", shell=shell)
        elif source == "/dev/null":
            yield Effect("create", path, new=_side([line for hunk in hunks for line in hunk], "+"), shell=shell)
        else:
            yield _patched(path, hunks, shell)

    for line in text.splitlines():
        if line.startswith("--- "):
            found += close()
            path, hunks, source = "", [], _stripped(line[4:])
            inside = False
        elif line.startswith("+++ "):
            path = _stripped(line[4:])
        elif _HUNK.match(line):
            inside = True
            hunks.append([])
        elif line.startswith("diff --git "):
            inside = False
        elif inside and line[:1] in ("-", "+", " ", ""):
            hunks[-1].append(line)
    return found + list(close())


def reversed_effects(effects: list[Effect]) -> list[Effect]:
    """What the same patch does when it is taken back."""
    return [
        replace(e, old=e.new, new=e.old, swaps=tuple(replace(s, old=s.new, new=s.old) for s in e.swaps))
        if e.category == "modify"
        else Effect("fileop", e.path, "delete", shell=e.shell)
        if e.category == "create"
        else e
        for e in effects
    ]


def patched_by(source: str, text: str | None, reverse: bool) -> list[Effect]:
    """What the patch in `source` does, of which the line spells nothing, or a `text` that names no file: some change of
    the folder, told from others by the patch's name, until the rollout shows what it holds."""
    new = text or " ".join(filter(None, ("-R" if reverse else "", source))) or None
    return [Effect("modify", "", "patch", new=new, target="" if text else source, term="-R" * reverse, shell=True)]


def _side(lines: list[str], signs: str) -> str:
    return "\n".join(line[1:] for line in lines if line[:1] in signs or (not line and " " in signs))


def _patched(path: str, hunks: list[list[str]], shell: bool) -> Effect:
    """The change of a file by hunks: lines with the signs of a diff; an empty one is a context line cut short."""
    for hunk in hunks:
        while hunk and not hunk[-1]:  # between two files, or before the end of the text
            hunk.pop()
    lines = [line for hunk in hunks for line in hunk]
    swaps = tuple(Swap(_side(hunk, " -"), _side(hunk, " +")) for hunk in hunks if any(h[:1] in "+-" for h in hunk if h))
    return Effect("modify", path, "replace", old=_side(lines, "-"), new=_side(lines, "+"), shell=shell, swaps=swaps)


def _stripped(name: str) -> str:
    name = name.split("\t")[0].strip()
    return name[2:] if name.startswith(("a/", "b/")) else name


def _sections(text: str, shell: bool) -> Iterator[Effect]:
    for part in re.split(r"^\*\*\* (?=(?:Update|Add|Delete) File: )", text, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        verb, _, path = head.partition(" File: ")
        path = path.strip()
        lines = [line for line in body.splitlines() if not line.startswith("***")]
        if verb == "Delete":
            yield Effect("fileop", path, "delete", shell=shell)
        elif verb == "Add":
            yield Effect("create", path, new=_side(lines, "+"), shell=shell)
        else:
            hunks: list[list[str]] = [[]]
            for line in lines:
                if _HUNK.match(line):
                    hunks.append([])
                elif line[:1] in ("-", "+", " ", ""):
                    hunks[-1].append(line)
            yield _patched(path, hunks, shell)
