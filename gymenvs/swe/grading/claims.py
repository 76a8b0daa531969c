"""Whether a test's own text says that it may be skipped, or that it fails: nobody else may say so.

A result of pytest does not tell who marked a test. Its text does: the function with its decorators, its class's, the
module's `pytestmark`, its fixtures, and whatever of the protected files these name. What another test says of itself
counts for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

__all__ = ["Claims"]

_MOST = 400  # definitions that one question may lead through
_ALWAYS = (
    *("pytestmark", "setup_module", "setUpModule", "setup_function", "setup_class", "setup_method", "setUp"),
    *("setUpClass", "asyncSetUp", "setup", "__unittest_skip__"),
)
_RUNNERS = ("pytest", "_pytest", "unittest")


@dataclass(slots=True)
class _Module:
    text: list[str]
    names: dict[str, list[ast.AST]] = field(default_factory=dict)  # definitions at the top
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # name -> module it is from
    broken: bool = False


class Claims:
    """Answers for the tests of one run.

    Args:
        texts: path -> text of the protected Python files.
        base: the tree as the agent got it; None = nothing but `texts` is looked into.
        changed: paths that the agent made or changed: they say nothing.
    """

    def __init__(self, texts: Mapping[str, str], base: Path | None = None, changed: Collection[str] = ()) -> None:
        self._texts, self._base, self._changed = texts, base, frozenset(changed)
        self._modules: dict[str, _Module | None] = {}

    def says(self, test: str, *words: str) -> bool:
        """Whether one of the words stands in what belongs to the test of this id."""
        path, *inner = test.partition("[")[0].split("::")
        module = self._module(path)
        if module is None:
            return False
        if module.broken:  # for another Python than ours
            return any(word in line for line in module.text for word in words)
        return any(any(word in line for word in words) for line in self._belonging(path, module, inner))

    def _belonging(self, path: str, module: _Module, inner: list[str]) -> Iterator[str]:
        waiting: list[tuple[str, ast.AST]] = []
        for name in _ALWAYS:
            waiting += [(path, node) for node in module.names.get(name, ())]
        owner = next((module.classes[name] for name in reversed(inner[:-1]) if name in module.classes), None)
        for name in inner[:-1]:
            if name in module.classes:
                waiting += self._class(path, module.classes[name], inner[-1])
        if inner and (owner is None or not any(_name(one) == inner[-1] for one in owner.body)):
            waiting += self._everywhere(path, inner[-1])
        for near in self._near(path):
            found = self._module(near)
            if found is not None:
                waiting += [(near, node) for nodes in found.names.values() for node in nodes if _is_autouse(node)]
                waiting += [(near, node) for node in found.names.get("pytestmark", ()) if near == path]
        seen: set[int] = set()
        while waiting and len(seen) < _MOST:
            place, node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            here = self._module(place)
            assert here is not None
            yield from _lines(here, node)
            for one in ast.walk(node):
                name = one.id if isinstance(one, ast.Name) else one.attr if isinstance(one, ast.Attribute) else ""
                name = one.arg if isinstance(one, ast.arg) else name
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
                    name = one.value  # usefixtures("name")
                if not name:
                    continue
                waiting += self._everywhere(place, name)
                if isinstance(one, ast.Attribute) and owner is not None:
                    waiting += [(path, member) for member in owner.body if _name(member) == name]
                if name in here.imports and isinstance(one, ast.Name):
                    yield from self._imported(here.imports[name], name, node)

    def _class(self, path: str, owner: ast.ClassDef, test: str) -> list[tuple[str, ast.AST]]:
        found: list[tuple[str, ast.AST]] = [(path, one) for one in (*owner.decorator_list, *owner.bases)]
        found += [(path, one) for one in owner.body if _name(one) in (test, *_ALWAYS) or _is_autouse(one)]
        return found

    def _everywhere(self, path: str, name: str) -> list[tuple[str, ast.AST]]:
        """Definitions of a name in the file, in the conftest files above it, and in other protected helpers."""
        module = self._module(path)
        if module is not None and name in module.names:
            return [(path, node) for node in module.names[name]]
        found: list[tuple[str, ast.AST]] = []
        for other in self._texts:
            if other == path or name.startswith("test"):
                continue
            near = self._module(other)
            if near is not None:
                found += [(other, node) for node in near.names.get(name, ())]
        return found

    def _imported(self, module: str, name: str, node: ast.AST) -> Iterator[str]:
        """What a name says that comes from a file of the tree which is as the task began, or a library's decorator."""
        if self._base is None:
            return
        path = module.replace(".", "/")
        places = [f"{root}{path}{end}" for root in ("", "src/", "lib/") for end in (".py", "/__init__.py")]
        there = next((one for one in places if (self._base / one).is_file()), None)
        if there is None:
            decorators = getattr(node, "decorator_list", ())
            if module.split(".")[0] not in _RUNNERS and any(name in _names(one) for one in decorators):
                yield f"skip: {name} of {module}"  # a library's decorator does what it is made for
        elif there not in self._changed:
            found = self._module(there)
            for inner in found.names.get(name, ()) if found is not None else ():
                assert found is not None
                yield from _lines(found, inner)

    def _near(self, path: str) -> list[str]:
        folders = [str(one) for one in PurePosixPath(path).parents]
        return [path, *("conftest.py" if one == "." else f"{one}/conftest.py" for one in folders)]

    def _module(self, path: str) -> _Module | None:
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def _read(self, path: str) -> _Module | None:
        text = self._texts.get(path)
        if text is None:
            if self._base is None or path in self._changed or not (self._base / path).is_file():
                return None
            text = (self._base / path).read_text("utf-8", "replace")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return _Module(text.splitlines(), broken=True)
        module = _Module(text.split("\n"))
        waiting: list[ast.stmt] = list(tree.body)
        while waiting:
            node = waiting.pop(0)
            for name in _bound(node):
                module.names.setdefault(name, []).append(node)
            if isinstance(node, ast.ClassDef):
                module.classes[node.name] = node
                waiting += [one for one in node.body if isinstance(one, ast.ClassDef)]
            elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
                waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
                waiting += [one for part in getattr(node, "handlers", ()) for one in part.body]
            elif isinstance(node, ast.ImportFrom) and node.module:
                module.imports.update({one.asname or one.name: node.module for one in node.names})
            elif isinstance(node, ast.Import):
                module.imports.update({(one.asname or one.name).split(".")[0]: one.name for one in node.names})
        return module


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_autouse(node: ast.AST) -> bool:
    return any("autouse" in ast.dump(one) for one in getattr(node, "decorator_list", ()))


def _lines(module: _Module, node: ast.AST) -> list[str]:
    first = min([getattr(node, "lineno", 1), *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return module.text[first - 1 : getattr(node, "end_lineno", first) or first]
