"""Which nodes of a module may be changed, and where each stands.

Left alone, because a change there is no bug of the code or none that a test could show: docstrings, annotations,
decorators, bases of classes, imports, assignments to dunder names (`__all__`, `__version__`) and to version names,
blocks under `if TYPE_CHECKING`, `if __name__ == ...` and a test of `sys.version_info` or `sys.platform`, overloads,
type variables, and `raise NotImplementedError`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rtmc.gymenvs.swe.mutate.text import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_FIELDS = {"annotation", "returns", "decorator_list", "bases", "type_params", "type_comment"}
_VERSION = re.compile(r"_*version(_?(info|tuple|string))?|__\w+__", re.IGNORECASE)
_TYPES = {"TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "NamedTuple", "TypedDict", "namedtuple"}
_SKIPPED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


@dataclass(frozen=True, slots=True)
class Place:
    """A node with the way down to it.

    path: from the module. parents: from the module to the node's parent. function: the innermost function it
    stands in. name: that function's dotted name with its classes, "" at the module's level.
    """

    node: ast.AST
    path: Path
    parents: tuple[ast.AST, ...]
    function: Function | None
    name: str

    @property
    def parent(self) -> ast.AST:
        return self.parents[-1]

    @property
    def in_fstring(self) -> bool:
        return any(isinstance(node, ast.JoinedStr) for node in self.parents)


def places(tree: ast.Module) -> Iterator[Place]:
    """Every node that may be changed, in the order of the text's tree."""
    waiting = [Place(tree, (), (), None, "")]
    while waiting:
        place = waiting.pop()
        if place.parents:
            yield place
        waiting.extend(reversed(list(_children(place))))


def _children(place: Place) -> Iterator[Place]:
    node = place.node
    function, name = place.function, place.name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        name = f"{name}.{node.name}" if name else node.name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        function = node
    for field, value in ast.iter_fields(node):
        if field in _FIELDS or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(-1, value)]:
            if isinstance(child, ast.AST) and not _left_alone(child):
                path = (*place.path, field) if at < 0 else (*place.path, field, at)
                yield Place(child, path, (*place.parents, node), function, name)


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, _SKIPPED):
        return True
    if isinstance(node, ast.Expr):  # a docstring, also of an attribute
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        named = [target.id for target in targets if isinstance(target, ast.Name)]
        value = node.value
        made = called(value) if isinstance(value, ast.Call) else ""
        return any(_VERSION.fullmatch(name) for name in named) or made in _TYPES
    if isinstance(node, ast.If):
        words = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.test)}
        return bool(words & {"TYPE_CHECKING", "__name__", "version_info", "platform"})
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any(_last_name(decorator) == "overload" for decorator in node.decorator_list)
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return _last_name(raised) == "NotImplementedError"
    return False


def called(call: ast.Call) -> str:
    """The last name of what is called: `b` of `a.b(...)`."""
    return _last_name(call.func)


def _last_name(node: ast.AST | None) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes that run in the function's own scope: not those of functions and classes defined in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
