"""Where protected tests compare: every `==`, `!=`, `in` and ordering of their text goes through the guard.

Sent into the sandbox beside `guard`; see there for what it may use. `instrument` changes a test file's syntax tree,
after pytest has rewritten its asserts. The value of a comparison is what it was; one of plain values is made in the
test's own frame, as before.
"""

import ast
import re

NAME = "@py_compare"  # no identifier: no code of the tests means it
OPERATORS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "In", "NotIn")
METHODS = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual"}
    | {"assertSequenceEqual", "assertCountEqual", "assertMultiLineEqual", "assertAlmostEqual", "assertIn"}
    | {"assertNotEqual", "assertLess", "assertGreater", "assertLessEqual", "assertGreaterEqual"}
)
# Calls whose argument names the errors that may come, and the place of that argument.
_ERRORS = {"raises": 0, "warns": 0, "assertRaises": 0, "assertRaisesRegex": 0, "assertWarns": 0, "isinstance": 1}
_ERRORS.update(assertIsInstance=1, issubclass=1)
_TRUTHS = frozenset(("assertTrue", "assertFalse", "bool"))  # calls that ask for the truth of what they are given
_EACH = frozenset(("all", "any"))  # and of each element
# A function that is read from its bytecode, or sent to another process, must be the one that was written.
_READ = re.compile(
    r"(?:numba|n?jit|vectorize|pony|cloudpickle|dill|dask|ray|joblib|loky|pyspark|ipyparallel|dis|bytecode|co_\w+"
    r"|marshal|__code__|executing)"
)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)


def instrument(tree):
    """Changes the tree of a test file in place: its comparisons go through `NAME`.

    Where the file speaks of code that is read or sent, functions inside functions, lambdas and generator expressions
    that have no assert stay as they are.
    """
    _Walk(any(map(_READ.fullmatch, _words(tree)))).children(tree, False, False)
    return tree


def _words(tree):
    for node in ast.walk(tree):
        for value in vars(node).values():
            if isinstance(value, str) and len(value) < 80:
                yield from value.split(".")


class _Walk:
    def __init__(self, spare):
        self.spare = spare

    def children(self, node, loose, inside):
        for name, child in ast.iter_fields(node):
            asked = self.asked(node, name, loose)
            if isinstance(child, list):
                child[:] = [self.visit(one, asked, inside) if isinstance(one, ast.AST) else one for one in child]
            elif isinstance(child, ast.AST):
                setattr(node, name, self.visit(child, asked, inside))

    def visit(self, node, loose, inside):
        if isinstance(node, _INNER):
            bare = inside or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if self.spare and bare and not any(isinstance(one, ast.Assert) for one in ast.walk(node)):
                return node
            inside = True
        if isinstance(node, ast.pattern if hasattr(ast, "pattern") else ()):
            return node
        each = isinstance(node, ast.Call) and _called(node) in _EACH and len(node.args) == 1
        if each and isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp, ast.SetComp)):
            if not (self.spare and isinstance(node.args[0], ast.GeneratorExp)):
                inner = node.args[0]
                inner.elt = self.visit(inner.elt, True, True)
                for one in inner.generators:
                    self.children(one, False, True)
            return node
        self.children(node, loose, inside)
        if isinstance(node, ast.Compare):
            return _compare(node, loose)
        if isinstance(node, ast.Call):
            self.call(node)
        return node

    @staticmethod
    def asked(node, name, loose):
        """Whether the part of a node is asked for its truth alone."""
        if isinstance(node, (ast.Assert, ast.If, ast.While, ast.IfExp)):
            return name == "test" or (isinstance(node, ast.IfExp) and loose)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not)
        if isinstance(node, ast.BoolOp):
            return loose
        if isinstance(node, ast.Call):
            return name == "args" and _called(node) in _TRUTHS
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            return name == "value" and isinstance(target, ast.Name) and target.id.startswith("@py_assert")
        return isinstance(node, ast.comprehension) and name == "ifs"

    @staticmethod
    def call(node):
        name = _called(node)
        if name in METHODS and isinstance(node.func, ast.Attribute):
            node.func = _at(ast.Call(_of("method", node), [node.func], []), node)
        at = _ERRORS.get(name)
        if at is not None and len(node.args) > at and not isinstance(node.args[at], ast.Starred):
            asked = [node.args[at], _at(ast.Constant(name), node)]
            node.args[at] = _at(ast.Call(_of("kind", node), asked, []), node)


def _called(node):
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _compare(node, loose):
    operands = [node.left, *node.comparators]
    if not all(type(one).__name__ in OPERATORS for one in node.ops) and len(node.ops) == 1:
        return node
    if len(node.ops) == 1:
        return _call(node, loose)
    # A chain is the same as its parts, if what stands between them can be named twice.
    if not all(isinstance(one, (ast.Name, ast.Constant)) for one in operands[1:-1]):
        return node
    parts = [_at(ast.Compare(operands[at], [one], [operands[at + 1]]), node) for at, one in enumerate(node.ops)]
    return _at(ast.BoolOp(ast.And(), [_compare(one, loose) for one in parts]), node)


def _call(node, loose):
    left, right = node.left, node.comparators[0]
    name = _at(ast.Constant(type(node.ops[0]).__name__), node)
    asked = _at(ast.Constant(loose), node)
    if not all(isinstance(one, (ast.Name, ast.Constant)) for one in (left, right)):
        return _at(ast.Call(_of("whole", node), [name, left, right, asked], []), node)
    plain = _at(ast.Call(_of("plain", node), [left, right], []), node)
    before = _at(ast.Call(_of("before", node), [name, left, right], []), node)
    with_care = _at(ast.Call(_name(node), [name, left, right, before, node, asked], []), node)
    return _at(ast.IfExp(plain, node, with_care), node)


def _of(attribute, node):
    return _at(ast.Attribute(_name(node), attribute, ast.Load()), node)


def _name(node):
    return _at(ast.Name(NAME, ast.Load()), node)


def _at(new, node):
    return ast.copy_location(new, node)
