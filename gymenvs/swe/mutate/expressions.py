"""Mutations of expressions: operator, comparison, constant, condition, argument swap, off-by-one.

Each function looks at one place and gives the changes that could be made there. Whether a change reads back as
meant is checked later, by `text.changed_only`: a swap that turns precedence round is thrown away there, and so is
everything in an f-string whose position is wrong.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rtmc.gymenvs.swe.mutate.places import Place, called
from rtmc.gymenvs.swe.mutate.text import Edit, Path, Source


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that could be done at a place: the edits, and the nodes that may differ afterwards."""

    kind: str
    edits: tuple[Edit, ...]
    target: Path


_BINARY: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("//", "+")),
    ast.Div: ("/", ("*", "//")),
    ast.FloorDiv: ("//", ("/", "*")),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.BitAnd: ("&", ("|", "^")),
    ast.BitOr: ("|", ("&", "^")),
    ast.BitXor: ("^", ("|", "&")),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
_PUNCTUATION = {",": ";", ".": ",", "-": "_", "_": "-", ":": "=", "/": "\\\\", "+": "-", "*": "+", " ": "", "|": "/"}
_INDEX_NAME = re.compile(r"[i-n]|.*(idx|index|pos|position|start|stop|end|count|size|length|offset|depth|width)")
_SWAP_CRASHES = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "delattr", "super", "print"}
_SWAP_SAME = {"min", "max"}
_SWAP_LINES = 4


def operator(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or _is_text_work(node):
        return
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    if isinstance(node.op, ast.BitOr) and place.function is None:
        return  # a type alias, as likely as not
    if type(node.op) in _BINARY:
        old, others = _BINARY[type(node.op)]
        yield from _replaced(source, place, "operator", (left, right), old, others)


def comparison(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for at, op in enumerate(node.ops):
        old, others = _COMPARE[type(op)]
        yield from _replaced(source, place, "comparison", (operands[at], operands[at + 1]), old, others)


def _replaced(
    source: Source, place: Place, kind: str, sides: tuple[ast.expr, ast.expr], old: str, others: tuple[str, ...]
) -> Iterator[Change]:
    start, end = source.span(sides[0])[1], source.span(sides[1])[0]
    found = _find(source, start, end, old)
    if found is not None:
        for new in others:
            yield Change(kind, (Edit(*found, new),), place.path)


def _find(source: Source, start: int, end: int, words: str) -> tuple[int, int] | None:
    """Where the operator stands between its operands. Its words may be apart by blanks and a continued line."""
    pattern = rb"(?:\s|\\)+".join(re.escape(word).encode() for word in words.split())
    found = re.search(pattern, source.gap(start, end))
    return None if found is None else (start + found.start(), start + found.end())


def _is_text_work(node: ast.BinOp | ast.AugAssign) -> bool:
    """Joining and formatting of literals: any other operator there is a TypeError, which is no bug to look for."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    for side in sides:
        if isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)):
            return True
        if isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)):
            return True
        if isinstance(side, ast.BinOp) and _is_text_work(side):
            return True
    return False


def constant(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Constant) or _is_position(place) or isinstance(place.parent, ast.JoinedStr):
        return
    text = source.of(node)
    for new in _other_constants(node.value, text):
        yield Change("constant", (Edit(*source.span(node), new),), place.path)


def _other_constants(value: object, text: str) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        others = [value + 1] if value == 0 else [value + 1, value - 1]
        return [_written_like(text, other) for other in others]
    if isinstance(value, float):
        return [repr(value * 10.0 if value else 1.0)] if abs(value) < 1e300 else []
    if isinstance(value, str) and len(value) <= 3 and text == f"{text[0]}{value}{text[0]}":
        if value in _PUNCTUATION:
            return [f"{text[0]}{_PUNCTUATION[value]}{text[0]}"]
        if value.strip() and value != value.strip():
            return [f"{text[0]}{value.strip()}{text[0]}"]
    return []


def _written_like(text: str, value: int) -> str:
    """`value` in the base that `text` is written in."""
    prefix = text[:2].lower()
    return {"0x": f"0x{value:x}", "0o": f"0o{value:o}", "0b": f"0b{value:b}"}.get(prefix, str(value))


def condition(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield from _clauses(source, place, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and not isinstance(place.parent, ast.UnaryOp):
        start, operand = source.span(node)[0], source.span(node.operand)[0]
        after = re.match(rb"not(?:\s|\\)*", source.gap(start, operand))
        if after is not None:
            yield Change("condition", (Edit(start, start + after.end(), ""),), place.path)
    elif place.path[-1] == "test" and not isinstance(node, (ast.Constant, ast.Compare)):
        text = source.of(node) if isinstance(node, ast.expr) else ""
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        if isinstance(node, ast.expr):
            yield Change(
                "condition", (Edit(*source.span(node), f"not {text}" if plain else f"not ({text})"),), place.path
            )


def _clauses(source: Source, place: Place, node: ast.BoolOp) -> Iterator[Change]:
    """One clause dropped; and, of the first pair, the word turned round."""
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    start, end = source.span(node)
    signs = []
    for left, right in zip(node.values, node.values[1:], strict=False):
        found = _find(source, source.span(left)[1], source.span(right)[0], word)
        if found is None:
            return
        signs.append(found)
    if len(node.values) == 2:
        yield Change("condition", (Edit(*signs[0], other),), place.path)
    for at in range(len(node.values)):
        if at == 0:
            # Up to the next clause with its parentheses.
            next_start = source.span(node.values[1])[0]
            between = source.gap(signs[0][1], next_start)
            cut = signs[0][1] + len(between) - len(between.lstrip(b" \t\r\n\f\\"))
            yield Change("condition", (Edit(start, cut, ""),), place.path)
            continue
        before = source.gap(source.span(node.values[at - 1])[1], signs[at - 1][0])
        cut = source.span(node.values[at - 1])[1] + len(before.rstrip(b" \t\r\n\f\\"))
        if at == len(node.values) - 1:
            yield Change("condition", (Edit(cut, end, ""),), place.path)
        else:
            after = source.gap(source.span(node.values[at])[1], signs[at][0])
            last = source.span(node.values[at])[1] + len(after.rstrip(b" \t\r\n\f\\"))
            yield Change("condition", (Edit(cut, last, ""),), place.path)


def argument_swap(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Call) or called(node) in _SWAP_CRASHES | _SWAP_SAME:
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        if isinstance(left, ast.Starred) or isinstance(right, ast.Starred) or ast.dump(left) == ast.dump(right):
            continue
        if (right.end_lineno or right.lineno) - left.lineno > _SWAP_LINES:
            continue  # two places that far apart are two sites in a diff
        edits = Edit(*source.span(left), source.of(right)), Edit(*source.span(right), source.of(left))
        yield Change("argument swap", edits, place.path)


def off_by_one(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.Call) and called(node) == "len" and isinstance(node.func, ast.Name):
        if not _is_truth(place):
            yield Change("off-by-one", (Edit(*source.span(node), f"{source.of(node)} - 1"),), place.path)
        return
    if not isinstance(node, ast.expr) or not _is_position(place) or isinstance(place.parent, ast.UnaryOp):
        return
    start, end = source.span(node)
    for new in _shifted(source, node, place):
        yield Change("off-by-one", (Edit(start, end, new),), place.path)


def _shifted(source: Source, node: ast.expr, place: Place) -> list[str]:
    """The texts of the position one further and one before."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [str(node.value + 1)] + ([str(node.value - 1)] if node.value > 0 else [])
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
    if isinstance(inner, ast.Constant) and type(inner.value) is int:
        value = inner.value
        return [f"-{value + 1}"] + ([f"-{value - 1}"] if value > 1 else [])
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        one = isinstance(node.right, ast.Constant) and node.right.value == 1
        sign = _find(source, source.span(node.left)[1], source.span(node.right)[0], _BINARY[type(node.op)][0])
        if one and sign is not None:
            return [source.text(source.span(node)[0], sign[0]).rstrip()]
        return []
    in_index = not isinstance(place.parent, (ast.Slice, ast.Call))
    if in_index and not (isinstance(node, ast.Name) and _INDEX_NAME.fullmatch(node.id)):
        return []  # the key of a mapping
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return [f"{source.of(node)} {sign} 1" for sign in "+-"]
    return []


def _is_position(place: Place) -> bool:
    """Whether the place counts places: a bound of a slice, an index, an argument of `range`."""
    parent, field = place.parent, place.path[-1]
    if isinstance(parent, ast.Slice):
        return field != "step"
    if isinstance(parent, ast.Subscript):
        return field == "slice" and not isinstance(place.node, (ast.Slice, ast.Tuple))
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub) and len(place.parents) > 1:
        return isinstance(place.parents[-2], (ast.Slice, ast.Subscript))
    return isinstance(parent, ast.Call) and called(parent) == "range" and place.path[-2] == "args"


def _is_truth(place: Place) -> bool:
    return place.path[-1] == "test" or isinstance(place.parent, (ast.BoolOp, ast.UnaryOp))
