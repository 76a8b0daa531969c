"""Patches as effects: unified diffs, sections of `*** Update File`, and search/replace blocks.

What this is not: no patch is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtmc.signatures.effects import Effect

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
    old: list[str] = []
    new: list[str] = []

    def close() -> Iterator[Effect]:
        if not path:
            return
        if path == "/dev/null":
            yield Effect("fileop", source, "delete", shell=shell)
        elif source == "/dev/null":
            yield Effect("create", path, new="\n".join(new), shell=shell)
        else:
            yield Effect("modify", path, "replace", old="\n".join(old), new="\n".join(new), shell=shell)

    for line in text.splitlines():
        if line.startswith("--- "):
            found += close()
            path, old, new, source = "", [], [], _stripped(line[4:])
            inside = False
        elif line.startswith("+++ "):
            path = _stripped(line[4:])
        elif _HUNK.match(line):
            inside = True
        elif line.startswith("diff --git "):
            inside = False
        elif inside and line.startswith("-"):
            old.append(line[1:])
        elif inside and line.startswith("+"):
            new.append(line[1:])
    return found + list(close())


def _stripped(name: str) -> str:
    name = name.split("\t")[0].strip()
    return name[2:] if name.startswith(("a/", "b/")) else name


def _sections(text: str, shell: bool) -> Iterator[Effect]:
    for part in re.split(r"^\*\*\* (?=(?:Update|Add|Delete) File: )", text, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        verb, _, path = head.partition(" File: ")
        path = path.strip()
        lines = body.splitlines()
        old = "\n".join(line[1:] for line in lines if line.startswith("-"))
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        if verb == "Delete":
            yield Effect("fileop", path, "delete", shell=shell)
        elif verb == "Add":
            yield Effect("create", path, new=new, shell=shell)
        else:
            yield Effect("modify", path, "replace", old=old, new=new, shell=shell)
