"""Edits that a command spells in a language of its own: patches, sed programmes, Python that writes files.

What this is not: none of it is run. What the text does not tell (a computed path, a pattern with repetition) is left
unknown rather than guessed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from rtmc.signatures.effects import Effect

_HUNK = re.compile(r"^@@", re.M)
_SUBSTITUTE = re.compile(r"^\s*(?P<from>\d+|\$)?(?:,(?P<to>\d+|\$))?\s*(?P<verb>[sdaic])(?P<rest>.*)$", re.S)
# What these may hold in a log is not worth a parse.
_MAX_CODE = 100_000


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


def sed_change(programme: str, lines: dict[int, str]) -> tuple[str, str] | None:
    """(old, new) lines that a sed programme changes in the known lines of a file; None where that is not told.

    Understood are `s`, `d`, `c`, `a`, `i` with line numbers; a pattern with repetition other than `.*`, groups or
    classes is not.
    """
    if "\n" in programme.strip() and not re.match(r"^\s*[\d,$]*[aic]", programme):
        return None
    match = _SUBSTITUTE.match(programme)
    if not match or not lines:
        return None
    low, high = _address(match["from"], lines), _address(match["to"], lines)
    numbers = [n for n in sorted(lines) if low is None or low <= n <= (low if high is None else high)]
    if not numbers or (low is not None and low not in lines):
        return None
    verb, rest = match["verb"], match["rest"]
    before = "\n".join(lines[n] for n in numbers)
    if verb in "aic":
        if low is None:
            return None
        # A backslash keeps the white space after it.
        text = rest[1:].removeprefix("\n") if rest.startswith("\\") else rest.lstrip()
        return ("", text) if verb != "c" else (before, text)
    if verb == "d":
        return (before, "") if low is not None and not rest.strip() else None
    cut = _split(rest)
    if cut is None:
        return None
    pattern, replacement, flags = cut
    expression = _literal(pattern, "I" in flags or "i" in flags)
    if expression is None:
        return None
    old, new = [], []
    for number in numbers:
        if len(lines[number]) > 2000:
            return None
        changed = expression.sub(lambda m: _filled(replacement, m), lines[number], count=0 if "g" in flags else 1)
        if changed != lines[number]:
            old.append(lines[number])
            new.append(changed)
    return ("\n".join(old), "\n".join(new)) if old else None


def sed_texts(programme: str) -> tuple[str, str]:
    """(pattern, replacement) of a substitution as plain text, or ("", the programme)."""
    match = _SUBSTITUTE.match(programme)
    cut = _split(match["rest"]) if match and match["verb"] == "s" else None
    if cut is None:
        return "", programme
    return re.sub(r"\\(\W)", r"\1", cut[0]), re.sub(r"\\(\W)", r"\1", cut[1].replace("\\n", "\n"))


def _address(text: str | None, lines: dict[int, str]) -> int | None:
    if text is None:
        return None
    return max(lines) if text == "$" else int(text[:9])


def _split(rest: str) -> tuple[str, str, str] | None:
    """pattern, replacement and flags of the text after `s`."""
    if not rest or rest[0].isalnum() or rest[0] in "\\\n":
        return None
    mark, parts, at = rest[0], [""], 1
    while at < len(rest):
        if rest[at] == "\\" and at + 1 < len(rest):
            parts[-1] += rest[at + 1] if rest[at + 1] == mark else rest[at : at + 2]
            at += 1
        elif rest[at] == mark:
            parts.append("")
        else:
            parts[-1] += rest[at]
        at += 1
    return (parts[0], parts[1], parts[2].strip()) if len(parts) == 3 else None


def _literal(pattern: str, ignore_case: bool) -> re.Pattern[str] | None:
    """A basic regular expression of plain characters, `.`, `.*`, `^` and `$`; None for any other: no pattern from a
    log may take more than linear time."""
    made, at, stars = "", 0, 0
    while at < len(pattern):
        here, two = pattern[at], pattern[at : at + 2]
        if here == "\\":
            if len(two) < 2 or two[1] in "(){}+?|<>123456789bswSW":
                return None
            made += {"n": "\n", "t": "\t"}.get(two[1], re.escape(two[1]))
            at += 2
            continue
        if two == ".*":
            stars += 1
            made += ".*"
            at += 2
            continue
        if here in "[*":
            return None
        if (here == "^" and at == 0) or (here == "$" and at == len(pattern) - 1) or here == ".":
            made += here
        else:
            made += re.escape(here)
        at += 1
    return re.compile(made, re.I if ignore_case else 0) if made and stars < 2 else None


def _filled(replacement: str, match: re.Match[str]) -> str:
    def one(found: re.Match[str]) -> str:
        if found[0] == "&":
            return match[0]
        return {"n": "\n", "t": "\t"}.get(found[1], found[1] or "")

    return re.sub(r"&|\\(.)", one, replacement, flags=re.S)


def python_effects(code: str) -> list[Effect]:
    """Files that a script writes under a path it spells out: `open(path, "w")`, `Path(path).write_text`, and what it
    deletes. A file that it also reads is modified, by the texts of its `.replace(old, new)` calls."""
    if len(code) > _MAX_CODE or not re.search(r"open\(|write_|unlink|remove\(|rmtree", code):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        return _written(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _written(tree: ast.Module) -> list[Effect]:
    names: dict[str, ast.expr] = {}
    written: dict[str, list[str | None]] = {}
    read: set[str] = set()
    replaced: list[tuple[str, str]] = []
    deleted: list[str] = []
    opened: dict[str, str] = {}  # handle -> path
    appended: set[str] = set()

    def text(node: ast.expr | None, depth: int = 0) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if depth < 5 and isinstance(node, ast.Name) and node.id in names:
            return text(names[node.id], depth + 1)
        named = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Path"
        if named and isinstance(node, ast.Call) and node.args:
            return text(node.args[0], depth + 1)
        return None

    def handled(call: ast.expr) -> tuple[str, str] | None:
        """(path, mode) of a call of `open`."""
        if not isinstance(call, ast.Call):
            return None
        function = call.func
        arguments = list(call.args)
        if isinstance(function, ast.Attribute) and function.attr == "open":
            path = text(function.value)
        elif isinstance(function, ast.Name) and function.id == "open" and arguments:
            path = text(arguments.pop(0))
        else:
            return None
        mode = next((text(k.value) for k in call.keywords if k.arg == "mode"), None)
        mode = (text(arguments[0]) if arguments else mode) or "r"
        return (path, mode) if path else None

    def note(opening: tuple[str, str]) -> None:
        path, mode = opening
        if mode[:1] in ("w", "a", "x"):
            written.setdefault(path, [])
            if mode[:1] == "a":
                appended.add(path)
        else:
            read.add(path)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            names.setdefault(node.targets[0].id, node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            opening = handled(node.context_expr)
            if opening:
                opened[node.optional_vars.id + opening[1][:1]] = opening[0]
        if not isinstance(node, ast.Call):
            continue
        opening = handled(node)
        if opening:
            note(opening)
        if not isinstance(node.func, ast.Attribute):
            continue
        verb, value = node.func.attr, node.func.value
        first = text(node.args[0]) if node.args else None
        if verb in ("read_text", "read_bytes") and text(value):
            read.add(str(text(value)))
        elif verb in ("write_text", "write_bytes") and text(value):
            written.setdefault(str(text(value)), []).append(first)
        elif verb == "write" and handled(value):
            written.setdefault(handled(value)[0], []).append(first)  # type: ignore[index]  # asked just before
        elif verb == "write" and isinstance(value, ast.Name):
            path = opened.get(value.id + "w") or opened.get(value.id + "a") or opened.get(value.id + "x")
            if path:
                written.setdefault(path, []).append(first)
        elif verb in ("replace", "sub") and len(node.args) >= 2:
            pair = (text(node.args[0]), text(node.args[1]))
            if pair[0] is not None and pair[1] is not None:
                replaced.append((pair[0], pair[1]))
        elif verb in ("unlink", "remove", "rmtree"):
            path = text(value) if verb == "unlink" and not first else first
            if path:
                deleted.append(path)
    effects = []
    for path, parts in written.items():
        known = None if not parts or any(part is None for part in parts) else "".join(map(str, parts))
        if path in read:
            old, new = "\n".join(a for a, _ in replaced), "\n".join(b for _, b in replaced)
            changed = (old, new) if replaced else (None, known)
            effects.append(Effect("modify", path, "replace", old=changed[0], new=changed[1], shell=True))
        elif path in appended:
            effects.append(Effect("modify", path, "insert", new=known, shell=True))
        else:
            effects.append(Effect("create", path, "overwrite", new=known, shell=True))
    return effects + [Effect("fileop", path, "delete", shell=True) for path in deleted]
