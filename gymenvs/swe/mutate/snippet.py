"""What a failing test does, as a piece of code that runs by itself: imports, helpers and fixtures written out.

    for snippet in snippets(root, note): ...   # the shortest first

Made from the test file's own text and from what `observe` noted of the failure. The steps of the test end with the
statement that failed. A name that they read is looked up in the test file (imports, cut down to what is used;
functions, classes and values), a parameter is written as the value it had, a fixture as a call of its function. What
cannot be had this way leaves a snippet that does not run: `describe` runs each one, and drops those.
"""

import ast
import builtins
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtmc.gymenvs.swe.mutate.longvalues import written

_BUILTIN = {  # pytest's own fixtures that can be had without it
    "monkeypatch": ("import pytest", "monkeypatch = pytest.MonkeyPatch()"),
    "tmp_path": ("import pathlib, tempfile", "tmp_path = pathlib.Path(tempfile.mkdtemp())"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LONGEST = 40  # lines


@dataclass(frozen=True, slots=True)
class Snippet:
    """code: the whole text. setting: the part of it before the test's own steps. statement: the simple statement that
    failed, "" = the setting failed. expected: the exception that the failing test wants there, "" = none."""

    code: str
    setting: str
    statement: str
    expected: str


def snippets(root: Path, note: Mapping[str, Any]) -> Iterator[Snippet]:
    """Ways to write down one failure: with the steps that the failing statement needs, and with all before it.

    Args:
        root: the package's folder. note: what `observe` says of the failing test.
    """
    try:
        module = _Module(root, str(note["file"]))
    except (OSError, ValueError, SyntaxError):
        return
    found = module.function(note["first"])
    if found is None:
        return
    function, owner = found
    seen = set()
    for sparing in (True, False):
        made = _snippet(root, module, function, owner, note, sparing)
        if made is not None and made.code not in seen and made.code.count("\n") < _LONGEST:
            seen.add(made.code)
            yield made


class _Module:
    """A test file: its text, and what binds each name at its top."""

    def __init__(self, root: Path, path: str) -> None:
        self.text = (root / path).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.binds: dict[str, list[ast.stmt]] = {}
        for node in self.tree.body:
            for name in _bound(node):
                self.binds.setdefault(name, []).append(node)

    def function(self, first: int) -> tuple[ast.FunctionDef, ast.ClassDef | None] | None:
        """The function whose code begins at a line, and the class that it stands in."""
        waiting: list[tuple[ast.AST, ast.ClassDef | None]] = [(self.tree, None)]
        while waiting:
            node, owner = waiting.pop()
            if isinstance(node, ast.FunctionDef) and _first_line(node) == first:
                return node, owner
            inner = node if isinstance(node, ast.ClassDef) else owner
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
        return None

    def source(self, node: ast.stmt, bare: bool = False) -> str:
        """A statement's text without its indentation; `bare`: without decorators. Lines within a string stay."""
        kept: set[int] = set()
        for part in ast.walk(node):
            if isinstance(part, (ast.Constant, ast.JoinedStr)):
                kept |= set(range(part.lineno + 1, (part.end_lineno or part.lineno) + 1))
        docs = [part for part in ast.walk(node) if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
        for part in docs:  # what a docstring loses of its indentation nobody misses
            kept -= set(range(part.lineno + 1, (part.end_lineno or part.lineno) + 1))
        first = node.lineno if bare else _first_line(node)
        lines = self.text.split("\n")[first - 1 : node.end_lineno]
        if first == node.lineno:  # another statement may stand before it, on the same line
            lines[0] = " " * node.col_offset + lines[0].encode()[node.col_offset :].decode()
        blank = " " * node.col_offset
        return "\n".join(
            line if first + k in kept else line.removeprefix(blank).rstrip() if line.strip() else ""
            for k, line in enumerate(lines)
        )


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _snippet(
    root: Path,
    module: _Module,
    function: ast.FunctionDef,
    owner: ast.ClassDef | None,
    note: Mapping[str, Any],
    sparing: bool,
) -> Snippet | None:
    body = [node for node in function.body if not _is_docstring(node)]
    line = note["line"]
    at = next((k for k, node in enumerate(body) if _first_line(node) <= line <= (node.end_lineno or 0)), None)
    if line and at is None:
        return None
    steps = [] if at is None else body[: at + 1]
    if sparing:
        steps = _needed(steps)
    arguments = _arguments(function)
    setting = _Setting(root, module, note)
    names = {name for step in steps for name in _read(step)}
    local = {name for step in steps for name in _bound(step)}
    asked = [name for name in arguments if name != "self" and (name in names or not sparing or not steps)]
    for name in asked:
        if not setting.argument(name):
            return None
    if owner is not None and (note["unittest"] and ("self" in names or not steps)):
        setting.case(owner, _attributes(steps if sparing and steps else owner.body))
    setting.look_up(names - local - {"self", *asked}, module)
    written = setting.text()
    told = "\n".join(module.source(step) for step in steps)
    innermost = _innermost(steps[-1], line) if steps else None
    return Snippet(
        code="\n\n".join(part for part in (written, told) if part),
        setting=written,
        statement="" if innermost is None else module.source(innermost),
        expected=_wanted(steps[-1], line) if steps else "",
    )


class _Setting:
    """What stands before the steps of a test, gathered name by name."""

    def __init__(self, root: Path, module: _Module, note: Mapping[str, Any]) -> None:
        self.root, self.module, self.note = root, module, note
        self.imports: dict[str, dict[str, None]] = {}  # "from x import" -> names; "import x" -> none
        self.definitions: dict[tuple[int, int], str] = {}  # (module, line) -> text
        self.lines: list[str] = []
        self._modules = [module]
        self._done: set[tuple[int, str]] = set()

    def text(self) -> str:
        defined = [self.definitions[at] for at in sorted(self.definitions)]
        imported = [f"{start} {', '.join(sorted(names))}".strip() for start, names in sorted(self.imports.items())]
        blocks = ["\n".join(sorted(imported, key=_import_order)), *defined, "\n".join(self.lines)]
        return "\n\n".join(block for block in blocks if block)

    def argument(self, name: str) -> bool:
        """Writes what a test's argument is: a parameter, or what a fixture gives. Whether it could."""
        fixture = self._fixture(name)
        parameters: Mapping[str, str] = self.note["parameters"]
        # A fixture that asks for its parameter makes something of it; any other gives way to a parameter of its name.
        if name in parameters and (fixture is None or "request" not in _arguments(fixture[1])):
            self._value(name, parameters[name])
            return True
        if fixture is None and name in _BUILTIN:
            imported, line = _BUILTIN[name]
            self.imports[imported] = {}
            self.lines.append(line)
            return True
        if fixture is not None:
            module, node = fixture
            inner = _arguments(node)
            if "request" not in inner and all(self.argument(one) for one in inner):
                self._define(node, module, bare=True)
                gives = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))
                call = f"{node.name}({', '.join(inner)})"
                line = f"{name} = next({call})" if gives else f"{name} = {call}"
                if line not in self.lines:
                    self.lines.append(line)
                return True
        value = self.note["values"].get(name, "<")
        if value.startswith("<"):
            return False
        self._value(name, value)
        return True

    def _value(self, name: str, text: str) -> None:
        self.lines.append(f"{name} = {written(text)}")
        with_names = _parsed(text)
        if with_names is not None:
            self.look_up(_read(with_names), self.module)

    def _fixture(self, name: str) -> tuple[_Module, ast.FunctionDef] | None:
        folder = Path(str(self.note["file"])).parent
        places = [folder / "conftest.py", *(parent / "conftest.py" for parent in folder.parents)]
        for module in itertools.chain([self.module], self._others(places)):
            for node in module.binds.get(name, []):
                if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(d) for d in node.decorator_list):
                    return module, node
        return None

    def _others(self, places: Sequence[Path]) -> Iterator[_Module]:
        for place in places:
            if (self.root / place).is_file():
                yield _Module(self.root, place.as_posix())

    def case(self, owner: ast.ClassDef, used: set[str]) -> None:
        """Writes what a test case of unittest has before its test; used: the attributes that are of interest."""
        self.imports["import unittest"] = {}
        self.lines.append("self = unittest.TestCase()")
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == "setUp":
                steps = [one for one in node.body if not _is_docstring(one) and (_own(one) <= used or not _own(one))]
                self.look_up({name for one in steps for name in _read(one)} - {"self"}, self.module)
                self.lines += [self.module.source(one) for one in steps]

    def look_up(self, names: set[str], module: _Module) -> None:
        """Writes what binds the names in a module, and what that needs."""
        for name in sorted(names):
            if (id(module), name) in self._done:
                continue
            self._done.add((id(module), name))
            nodes = module.binds.get(name, [])
            if not nodes:
                stars = [n for n in module.tree.body if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
                if name not in vars(builtins):
                    for star in stars:
                        self.imports.setdefault(module.source(star), {})
            for node in nodes:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    self._import(node, name)
                else:
                    self._define(node, module)

    def _import(self, node: ast.Import | ast.ImportFrom, name: str) -> None:
        alias = next(one for one in node.names if (one.asname or one.name.partition(".")[0]) == name)
        renamed = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.Import):
            self.imports[f"import {alias.name}{renamed}"] = {}
            return
        source = "." * node.level + (node.module or "")
        top = self.note["public"].get(name)
        if top and source.startswith(f"{top}."):
            source = top  # where a user of the package would take it from
        self.imports.setdefault(f"from {source} import", {})[f"{alias.name}{renamed}"] = None

    def _define(self, node: ast.stmt, module: _Module, bare: bool = False) -> None:
        if module not in self._modules:
            self._modules.append(module)
        at = (-self._modules.index(module), node.lineno)
        if at in self.definitions:
            return
        self.definitions[at] = module.source(node, bare)
        names = _read(node) - _bound(node)
        if bare and isinstance(node, _FUNCTIONS):
            names = {name for part in node.body for name in _read(part)}
        inner = {one.arg for part in ast.walk(node) if isinstance(part, ast.arguments) for one in part.args}
        self.look_up(names - inner, module)


def _arguments(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _import_order(line: str) -> tuple[bool, str]:
    """As most do it: `import x` first, then `from x import`; future ones before all."""
    return (line.startswith("from") and not line.startswith("from __future__"), line)


def _attributes(nodes: Sequence[ast.AST]) -> set[str]:
    """Names of the attributes of `self` that are used."""
    parts = itertools.chain.from_iterable(map(ast.walk, nodes))
    return {one.attr for one in parts if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"}


def _own(step: ast.stmt) -> set[str]:
    """Names of the attributes of `self` that a statement sets."""
    targets = [step.target] if isinstance(step, (ast.AnnAssign, ast.AugAssign)) else getattr(step, "targets", [])
    return _attributes(targets)


def _parsed(text: str) -> ast.stmt | None:
    try:
        return ast.parse(text).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None


def _read(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds where it stands."""
    found: set[str] = set()
    waiting: list[ast.AST] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (*_FUNCTIONS, ast.ClassDef)):
            found.add(part.name)
            continue
        if isinstance(part, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            found |= {one.asname or one.name.partition(".")[0] for one in part.names}
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.add(part.id)
        elif isinstance(part, ast.ExceptHandler) and part.name:
            found.add(part.name)
        waiting += ast.iter_child_nodes(part)
    return found


def _needed(steps: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The last step with those before it that bind or may change what it reads; earlier checks are no part of it."""
    if not steps:
        return []
    kept = [steps[-1]]
    names = _read(steps[-1])
    local = {name for step in steps for name in _bound(step)}
    for step in reversed(steps[:-1]):
        binds = _bound(step) & names
        touches = not isinstance(step, ast.Assert) and not _wants_error(step) and _read(step) & names & local
        if binds or touches:
            kept.append(step)
            names |= _read(step)
    return kept[::-1]


def _wants_error(node: ast.stmt) -> bool:
    return isinstance(node, ast.With) and any("raises" in ast.unparse(item.context_expr).lower() for item in node.items)


def _innermost(node: ast.stmt, line: int) -> ast.stmt:
    """The smallest statement within a statement that holds the line."""
    for part in ast.iter_child_nodes(node):
        inner = part if isinstance(part, ast.stmt) else None
        if isinstance(part, ast.ExceptHandler):
            inner = next((one for one in part.body if one.lineno <= line <= (one.end_lineno or 0)), None)
        if inner is not None and _first_line(inner) <= line <= (inner.end_lineno or 0):
            return _innermost(inner, line)
    return node


def _wanted(node: ast.stmt, line: int) -> str:
    """The exception that the failing place is expected to raise."""
    found = ""
    for part in ast.walk(node):
        calls: list[ast.expr] = []
        if isinstance(part, ast.With) and part.lineno <= line <= (part.end_lineno or 0):
            calls = [item.context_expr for item in part.items]
        elif isinstance(part, ast.Expr) and part.lineno <= line <= (part.end_lineno or 0):
            calls = [part.value]
        for call in calls:
            if (
                isinstance(call, ast.Call)
                and call.args
                and _last_name(call.func).startswith(("raises", "assertRaises"))
            ):
                found = ast.unparse(call.args[0])
    return found


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
