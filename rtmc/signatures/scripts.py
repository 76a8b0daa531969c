"""What a Python script does to files under paths that it spells out.

What this is not: nothing is run. A computed path or text is left unknown rather than guessed.
"""

from __future__ import annotations

import ast
import re
import warnings

from rtmc.signatures.effects import Effect, Swap
from rtmc.signatures.keys import word_set
from rtmc.signatures.sed import line_edit

# What these may hold in a log is not worth a parse.
_MAX_CODE = 100_000
_WRITES = re.compile(r"open\(|write_|unlink|remove\(|rmtree|fileinput")
# A script that calls nothing else only shows.
_MAX_SHOWN = 2000
_SHOWING = word_set(
    "print open read readlines readline read_text splitlines split join Path enumerate strip rstrip lstrip len range "
    "str repr format list"
)
_LINES = ("readlines", "splitlines", "split")


def python_effects(code: str) -> list[Effect]:
    """Files that a script writes under a path it spells out: `open(path, "w")`, `Path(path).write_text`,
    `fileinput.input(path, inplace=True)`, and what it deletes. A file that it also reads is modified, by the texts of
    its `.replace(old, new)` calls or by what it puts into the list of its lines."""
    if len(code) > _MAX_CODE or not _WRITES.search(code):
        return []
    try:
        tree = _parsed(code)
        return _Script(tree).effects()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def python_views(code: str) -> list[Effect]:
    """The files under paths that it spells out that a script does nothing but print, whole or some lines of."""
    if len(code) > _MAX_SHOWN or "print" not in code or not re.search(r"open\(|read_text", code):
        return []
    try:
        tree = _parsed(code)
        called = [getattr(n.func, "id", _method_of(n)) for n in ast.walk(tree) if isinstance(n, ast.Call)]
        if "print" not in called or not _SHOWING.issuperset(called):
            return []
        paths = _Script(tree).looked_at()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    cuts = [n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)]
    if not cuts:
        return [Effect("view", path, "full", shell=True) for path in paths]
    low, high = _index(cuts[0].lower or ast.Constant(0)), _index(cuts[0].upper)
    lines = None if low is None or len(cuts) > 1 or len(paths) > 1 else (low + 1, -1 if high is None else high)
    scope = "some" if lines is None else "partial"
    return [Effect("view", path, scope, lines=lines, shell=True) for path in paths]


def _parsed(code: str) -> ast.Module:
    """The syntax tree. What Python warns of in an agent's script (an odd escape, say) is no news of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def calls_in_code(code: str) -> list[tuple[str, list[object], dict[str, object]]]:
    """(name, arguments, named arguments) of the calls that a cell consists of, such as `open_file("a.py", 10)`, as far
    as their arguments are spelled out; none where it has another statement or call."""
    try:
        tree = _parsed(code if len(code) <= _MAX_CODE else "")
        found = []
        for node in tree.body:
            call = node.value if isinstance(node, ast.Expr) else None
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                return []
            named = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
            found.append((call.func.id, [ast.literal_eval(a) for a in call.args], named))
        return found
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


class _Script:
    """One pass over a script for the names it gives, one for what it does with them."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, ast.expr] = {}
        self._written: dict[str, list[str | None]] = {}
        self._read: set[str] = set()
        self._appended: set[str] = set()
        self._replaced: list[tuple[tuple[int, int], Swap]] = []  # (place in the script, what is replaced)
        self._edits: list[tuple[int, int, str | None] | None] = []  # None = one that is not spelled out
        self._deleted: list[str] = []
        self._opened: dict[str, str] = {}  # handle and mode -> path
        self._lists: set[str] = set()  # names of lists of lines
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._names.setdefault(node.targets[0].id, node.value)
                called = (_method_of(n) for n in ast.walk(node.value))
                if any(name in _LINES for name in called):
                    self._lists.add(node.targets[0].id)
        for node in ast.walk(tree):
            self._statement(node)
            if isinstance(node, ast.Call):
                self._call(node)

    def effects(self) -> list[Effect]:
        """What the script does to files."""
        found = []
        for path, parts in self._written.items():
            known = None if not parts or any(part is None for part in parts) else "".join(map(str, parts))
            if path in self._read:
                found.append(self._modified(path, known))
            elif path in self._appended:
                found.append(Effect("modify", path, "insert", new=known, shell=True))
            else:
                found.append(Effect("create", path, "overwrite", new=known, shell=True))
        return found + [Effect("fileop", path, "delete", shell=True) for path in self._deleted]

    def looked_at(self) -> list[str]:
        """The files that the script reads, if it changes none."""
        return [] if self._written or self._deleted else sorted(self._read)

    def _modified(self, path: str, known: str | None) -> Effect:
        if self._edits and not self._replaced:
            edits = [edit for edit in self._edits if edit is not None]
            # Of several, those that change the number of lines would move the lines of the next.
            told = len(edits) == len(self._edits)
            if told and (len(edits) == 1 or all(low == high and text is not None for low, high, text in edits)):
                programme = "\n".join(line_edit(*edit) for edit in edits)
                return Effect("modify", path, "sed", new=programme, shell=True)
        if self._replaced:
            swaps = tuple(swap for _, swap in sorted(self._replaced, key=lambda found: found[0]))
            old, new = "\n".join(swap.old for swap in swaps), "\n".join(swap.new for swap in swaps)
            return Effect("modify", path, "replace", old=old, new=new, shell=True, swaps=swaps)
        return Effect("modify", path, "overwrite" if known is not None else "replace", new=known, shell=True)

    def _text(self, node: ast.expr | None, depth: int = 0) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if depth < 5 and isinstance(node, ast.Name) and node.id in self._names:
            return self._text(self._names[node.id], depth + 1)
        if depth < 5 and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = self._text(node.left, depth + 1), self._text(node.right, depth + 1)
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
        named = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Path"
        if named and isinstance(node, ast.Call) and node.args:
            return self._text(node.args[0], depth + 1)
        return None

    def _lines_text(self, node: ast.expr | None) -> str | None:
        """The text of a string, or of a list of lines, without the last line end."""
        if isinstance(node, (ast.List, ast.Tuple)):
            parts = [self._text(entry) for entry in node.elts]
            if any(part is None for part in parts):
                return None
            return "\n".join(str(part).removesuffix("\n") for part in parts)
        text = self._text(node)
        return None if text is None else text.removesuffix("\n")

    def _swap(self, node: ast.Call, verb: str, value: ast.expr) -> Swap | None:
        """What `text.replace(old, new)`, `re.sub(pattern, new, text)` or `re.compile(pattern).sub(new, text)` replaces,
        where the script spells it."""
        arguments, named = list(node.args), {k.arg: k.value for k in node.keywords}
        dialect = ""
        if verb != "replace":
            dialect = "python"
            if not (isinstance(value, ast.Name) and value.id == "re"):
                made = self._names.get(value.id, value) if isinstance(value, ast.Name) else value
                if _method_of(made) != "compile" or not isinstance(made, ast.Call) or len(made.args) != 1:
                    return None
                arguments.insert(0, made.args[0])
            del arguments[2:3]
        if len(arguments) < 2 or "flags" in named or len(arguments) > 3:
            return None
        old, new = self._text(arguments[0]), self._text(arguments[1])
        count = _index(arguments[2] if len(arguments) > 2 else named.get("count", ast.Constant(0)))
        return None if old is None or new is None or count is None else Swap(old, new, count, dialect)

    def _handled(self, call: ast.expr) -> tuple[str, str] | None:
        """(path, mode) of a call of `open`."""
        if not isinstance(call, ast.Call):
            return None
        function = call.func
        arguments = list(call.args)
        if isinstance(function, ast.Attribute) and function.attr == "open":
            path = self._text(function.value)
        elif isinstance(function, ast.Name) and function.id == "open" and arguments:
            path = self._text(arguments.pop(0))
        else:
            return None
        mode = next((self._text(k.value) for k in call.keywords if k.arg == "mode"), None)
        mode = (self._text(arguments[0]) if arguments else mode) or "r"
        return (path, mode) if path else None

    def _statement(self, node: ast.AST) -> None:
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            opening = self._handled(node.context_expr)
            if opening:
                self._opened[node.optional_vars.id + opening[1][:1]] = opening[0]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            opening = self._handled(node.value)
            if opening and isinstance(target, ast.Name):
                self._opened[target.id + opening[1][:1]] = opening[0]
            if isinstance(target, ast.Subscript) and self._is_lines(target.value):
                text = self._lines_text(node.value)
                span = _span(target.slice)
                if span is None or text is None:
                    self._edits.append(None)
                elif not text and isinstance(node.value, ast.List) and not node.value.elts:
                    self._edits.append((*span, None))
                else:
                    self._edits.append((*span, text))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and self._is_lines(target.value):
                    span = _span(target.slice)
                    self._edits.append(None if span is None else (*span, None))

    def _is_lines(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._lists

    def _call(self, node: ast.Call) -> None:
        opening = self._handled(node)
        if opening:
            path, mode = opening
            if mode[:1] in ("w", "a", "x"):
                self._written.setdefault(path, [])
                if mode[:1] == "a":
                    self._appended.add(path)
            else:
                self._read.add(path)
                if "+" in mode:
                    self._written.setdefault(path, [None])
        named = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if named in ("input", "FileInput") and any(
            k.arg == "inplace" and getattr(k.value, "value", None) for k in node.keywords
        ):
            files = next((k.value for k in node.keywords if k.arg == "files"), node.args[0] if node.args else None)
            for entry in files.elts if isinstance(files, (ast.List, ast.Tuple)) else [files]:
                name = self._text(entry)
                if name:
                    self._read.add(name)
                    self._written.setdefault(name, [None])
        if isinstance(node.func, ast.Attribute):
            self._method(node, node.func.attr, node.func.value)

    def _method(self, node: ast.Call, verb: str, value: ast.expr) -> None:
        first = self._text(node.args[0]) if node.args else None
        if verb in ("read_text", "read_bytes") and self._text(value):
            self._read.add(str(self._text(value)))
        elif verb in ("write_text", "write_bytes") and self._text(value):
            self._written.setdefault(str(self._text(value)), []).append(first)
        elif verb in ("write", "writelines"):
            opening = self._handled(value)
            handles = [value.id + mode for mode in "wax"] if isinstance(value, ast.Name) else []
            paths = [opening[0]] if opening else [self._opened[h] for h in handles if h in self._opened]
            for written in paths[:1]:
                self._written.setdefault(written, []).append(first)
        elif verb in ("replace", "sub", "subn") and node.args:
            swap = self._swap(node, verb, value)
            if swap is not None:
                self._replaced.append(((node.end_lineno or 0, node.end_col_offset or 0), swap))
        elif verb == "insert" and len(node.args) == 2 and self._is_lines(value):
            span, text = _span(node.args[0]), self._lines_text(node.args[1])
            self._edits.append(None if span is None or text is None else (span[0], span[0] - 1, text))
        elif verb == "pop" and node.args and self._is_lines(value):
            span = _span(node.args[0])
            self._edits.append(None if span is None else (*span, None))
        elif verb in ("unlink", "remove", "rmtree"):
            gone = self._text(value) if verb == "unlink" and not first else first
            if gone:
                self._deleted.append(gone)


def _method_of(node: ast.AST) -> str:
    """The name of the method that a call calls, or ""."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _span(node: ast.expr) -> tuple[int, int] | None:
    """First and last line, from 1 on, of an index or a slice of a list of lines; first > last for an empty slice."""
    if isinstance(node, ast.Slice):
        low, high = _index(node.lower), _index(node.upper)
        return None if low is None or high is None or node.step is not None else (low + 1, high)
    index = _index(node)
    return None if index is None else (index + 1, index + 1)


def _index(node: ast.expr | None) -> int | None:
    """A number that is spelled out, 0 or more; `1475 - 1` is one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = _index(node.left), _index(node.right)
        if left is None or right is None:
            return None
        found: object = left + right if isinstance(node.op, ast.Add) else left - right
    else:
        found = node.value if isinstance(node, ast.Constant) else None
    return found if type(found) is int and 0 <= found < 10**9 else None
