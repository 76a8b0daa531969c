"""Mutations of statements and names: statement removal, missing return, exception type, wrong variable."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from rtmc.gymenvs.swe.mutate.expressions import Change
from rtmc.gymenvs.swe.mutate.places import Function, Place, own_nodes
from rtmc.gymenvs.swe.mutate.text import Edit, Source

# What a hurried hand writes instead: of the same family, so that a handler of the right one misses it.
_OTHER_EXCEPTION = {
    "ValueError": ("TypeError",),
    "TypeError": ("ValueError",),
    "KeyError": ("IndexError", "ValueError"),
    "IndexError": ("KeyError", "ValueError"),
    "AttributeError": ("KeyError", "TypeError"),
    "StopIteration": ("IndexError",),
    "ZeroDivisionError": ("OverflowError",),
    "OverflowError": ("ZeroDivisionError",),
    "OSError": ("ValueError",),
    "FileNotFoundError": ("PermissionError",),
    "LookupError": ("ArithmeticError",),
    "RuntimeError": ("ValueError",),
    "UnicodeDecodeError": ("UnicodeEncodeError",),
    "UnicodeEncodeError": ("UnicodeDecodeError",),
}
_BLANK_BEFORE = re.compile(rb"[ \t\f]*")
_REST_OF_LINE = re.compile(rb"[ \t\f]*(#[^\r\n]*)?(\r\n|\r|\n|$)")


def statement_removal(source: Source, place: Place) -> Iterator[Change]:
    """A statement without which its function still runs: a call, an update, a guard, a jump."""
    node, field = place.node, place.path[-2] if len(place.path) > 1 else ""
    if place.function is None or not isinstance(node, ast.stmt) or not _can_go(node, place.function):
        return
    block = getattr(place.parent, str(field))
    start, end = source.span(node)
    first = source.line_start(start)
    rest = _REST_OF_LINE.match(source.utf8, end)
    alone = _BLANK_BEFORE.fullmatch(source.utf8, first, start) is not None and rest is not None
    only = len(block) == 1 and not source.utf8.startswith(b"elif", start)  # an `elif` leaves no empty block behind
    if only or not alone or rest is None:
        yield Change("statement removal", (Edit(start, end, "pass"),), place.path)
    else:
        yield Change("statement removal", (Edit(first, rest.end(), ""),), place.path[:-1])


def _can_go(node: ast.stmt, function: Function) -> bool:
    if isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if isinstance(node, ast.Assign):
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            return True
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        # Bound before as well: without this binding the old value is used.
        return len(names) == len(node.targets) and all(
            name in _parameters(function) or _first_store(function, name) < node.lineno for name in names
        )
    if isinstance(node, ast.If) and not node.orelse:
        return all(not isinstance(part, (ast.Assign, ast.FunctionDef, ast.Import)) for part in node.body)
    return False


def missing_return(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Return) or node.value is None:
        return
    if isinstance(node.value, ast.Constant) and node.value.value is None:
        return
    start = source.span(node)[0]
    if isinstance(node.value, (ast.Call, ast.Await)):
        between = source.gap(start, source.span(node.value)[0])
        found = re.match(rb"return(?:[ \t]|\\\r?\n)*", between)
        if found is not None:
            yield Change("missing return", (Edit(start, start + found.end(), ""),), place.path)
    else:
        yield Change("missing return", (Edit(*source.span(node), "return None"),), place.path)


def exception_type(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Name) or node.id not in _OTHER_EXCEPTION:
        return
    # `raise X`, `raise X(...)`, `except X`, `except (X, Y)`.
    chain = [*place.parents[-2:], node]
    raised = any(isinstance(parent, ast.Raise) for parent in place.parents[-2:])
    caught = any(isinstance(parent, ast.ExceptHandler) for parent in place.parents[-2:]) and "type" in place.path
    called = isinstance(chain[-2], ast.Call) and place.path[-1] != "func"
    if (raised or caught) and not called:
        for other in _OTHER_EXCEPTION[node.id]:
            yield Change("exception type", (Edit(*source.span(node), other),), place.path)


def wrong_variable(source: Source, place: Place) -> Iterator[Change]:
    """Another name of the function that is bound at this point; or another attribute that the class sets on `self`."""
    node, function = place.node, place.function
    if function is None or not isinstance(getattr(node, "ctx", None), ast.Load) or place.path[-1] == "func":
        return
    if isinstance(node, ast.Attribute):
        yield from _wrong_attribute(source, place, node)
    if not isinstance(node, ast.Name) or _inside_scope(place):
        return
    parameters = _parameters(function)
    stores = _stores(function)
    if node.id not in parameters and node.id not in stores:
        return
    bound = [name for name in parameters if name != node.id]
    bound += sorted(name for name, line in stores.items() if name not in (node.id, *parameters) and line < node.lineno)
    for name in bound:
        yield Change("wrong variable", (Edit(*source.span(node), name),), place.path)


def _wrong_attribute(source: Source, place: Place, node: ast.Attribute) -> Iterator[Change]:
    if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        return
    owner = next((parent for parent in reversed(place.parents) if isinstance(parent, ast.ClassDef)), None)
    start = next((part for part in (owner.body if owner else ()) if getattr(part, "name", "") == "__init__"), None)
    if not isinstance(start, ast.FunctionDef):
        return
    names = sorted(
        {
            part.attr
            for part in own_nodes(start)
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _is_self(part.value)
        }
    )
    if node.attr in names:
        end = source.span(node)[1]
        for name in names:
            if name != node.attr:
                yield Change("wrong variable", (Edit(end - len(node.attr.encode()), end, name),), place.path)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _inside_scope(place: Place) -> bool:
    """In a lambda or a comprehension, where other names are bound than the function's."""
    scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(isinstance(parent, scopes) for parent in place.parents)


def _parameters(function: Function) -> list[str]:
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    return [parameter.arg for parameter in named if parameter.arg not in ("self", "cls")]


@lru_cache(maxsize=64)  # asked for at every name of a function; the tree does not change
def _stores(function: Function) -> dict[str, int]:
    """Each local name with the first line that binds it."""
    found: dict[str, int] = {}
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = min(node.lineno, found.get(node.id, node.lineno))
    return found


def _first_store(function: Function, name: str) -> int:
    return _stores(function).get(name, function.end_lineno or function.lineno)
