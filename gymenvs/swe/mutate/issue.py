"""The text of a task: what a user of the package would write, who sees wrong behaviour but not the code.

Written from failures of the package's tests (`observe`), each with a piece of code that shows it by itself
(`snippet`): what was expected there and what came. The place is not given away: no frame or file of the changed code
is named, its dotted module only where the code has to import from it, and a text that would hold a changed line,
before or after, is not written.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtmc.gymenvs.swe.mutate.longvalues import shortened
from rtmc.gymenvs.swe.mutate.mutants import Mutant
from rtmc.gymenvs.swe.mutate.snippet import Snippet

SHOWN = 3  # failing behaviours in a text
_LINES = 24  # of a message
_OBJECT = re.compile(r"<(?:\w+\.)*(\w+)(?: object)?(?: at 0x[0-9a-fA-F]+)?>")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_WHERE = re.compile(r"^(?:\s*\+\s*)+(where|and) +", re.MULTILINE)
# What the runner says of where a function comes from, which the code says as well.
_NOISE = re.compile(
    r"\s*(?:where|and) +(?:<(?:function|class|module|built-in|bound method)\b.*> = \S*|(\w+) = .*\.\1)\s*"
)
_IMPORT = re.compile(r"^ *(?:from [\w.]+ import .*|import .*)$", re.MULTILINE)
_WORD = re.compile(r"\w")
_CLAIMS = {
    "assertEqual": "==", "assertNotEqual": "!=", "assertIs": "is", "assertIsNot": "is not", "assertIn": "in",
    "assertNotIn": "not in", "assertLess": "<", "assertLessEqual": "<=", "assertGreater": ">",
    "assertGreaterEqual": ">=", "assertTrue": "", "assertFalse": "not",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One failure. note: as `observe` prints it. snippet: code that has been seen to fail in the same way."""

    note: Mapping[str, Any]
    snippet: Snippet


def write_issue(cases: Sequence[Case], mutant: Mutant, failing: int) -> str | None:
    """The text over some cases, the first of which gives it its title; None where it would give the place away.

    Args:
        cases: at least one.
        failing: how many tests fail in all.
    """
    parts = [_title(cases[0]), case_text(cases[0])]
    for case in cases[1:]:
        parts += ["Also:", case_text(case)]
    if failing > len(cases):
        rest = failing - len(cases)
        parts.append(f"I see this in {rest} more {'case' if rest == 1 else 'cases'} of the same kind.")
    text = "\n\n".join(parts) + "\n"
    return None if gives_away(text, mutant) else text


def gives_away(text: str, mutant: Mutant) -> bool:
    """Whether the text names the module or holds a line of the change. A line of brackets alone tells nothing.

    An import may name the module: without it the code of the text could not run.
    """
    path = mutant.path
    module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    named = [path, path.rsplit("/", 1)[-1], *([module] if "/" in module else [])]
    lines = [line for line in (*mutant.lines[0], *mutant.lines[1]) if len(_WORD.findall(line)) > 2]
    dotted = module.replace("/", ".")
    return any(part in text for part in (*named, *lines)) or ("." in dotted and dotted in _IMPORT.sub("", text))


def case_text(case: Case) -> str:
    """One failing behaviour: code that shows it, what was expected, what came."""
    note, snippet = case.note, case.snippet
    parts = ["This code shows it:", textwrap.indent(snippet.code, "    ")]
    told = [f"    {name} = {value}" for name, value in _told_values(case)]
    if told:
        parts += ["It fails where", "\n".join(told)]
    message = shortened(_plain(note["message"]).strip())
    wanted, missing = snippet.expected, _is_missing(note)
    if missing and wanted:
        parts.append(f"I expect `{wanted}` to be raised there, and no error comes.")
    elif note["exception"] == "Failed":
        parts.append(f"It fails there: {message}" if message else "It fails there.")
    elif note["exception"] == "AssertionError":
        parts += _disappointed(snippet, message)
    else:
        if wanted:
            parts.append(f"I expect `{wanted}` to be raised there; `{note['exception']}` comes:")
        else:
            parts.append("I get an error instead of a result:")
        cut = "      ... frames inside the package left out ...\n" if note["inside"] else ""
        last = (snippet.statement or snippet.setting.rpartition("\n")[2]).strip().partition("\n")[0]
        said = "\n".join(message.splitlines()[:_LINES])
        raised = f"{note['exception']}: {said}" if said else note["exception"]
        parts.append(textwrap.indent(f"Traceback (most recent call last):\n  {last}\n{cut}{raised}", "    "))
    return "\n\n".join(parts)


def _title(case: Case) -> str:
    note, snippet = case.note, case.snippet
    error, wanted = note["exception"], snippet.expected
    tree = _tree(snippet.statement)
    calls = [] if tree is None else _calls(tree, set(note["ours"]) - _defined(snippet.code))
    told = [text for text in (_with_values(call, case) for call in calls) if "\n" not in text and len(text) <= 80]
    call = f" from `{told[0]}`" if len(told) == len(calls) == 1 else ""
    if _is_missing(note) and wanted:
        return f"No {wanted}{call}" if call else f"{wanted} is not raised where it should be"
    if error == "AssertionError" and wanted:
        return f"Wrong text of {wanted}{call}"
    if isinstance(tree, (ast.Import, ast.ImportFrom)):
        call = f" from `{ast.unparse(tree)}`"
    if error not in ("AssertionError", "Failed"):
        return f"{error} instead of {wanted}{call}" if wanted else f"{error}{call or ' in plain use'}"
    claim = None if tree is None else _claim(tree)
    if claim is None:
        return "Wrong result"
    # Where both sides look the same it is the comparison that is wrong.
    left, _, right = note["message"].partition("\n")[0].removeprefix("assert ").partition(" == ")
    if call and _is_about(claim, calls[0]) and left != right:
        return f"Wrong result of{call.removeprefix(' from')}"
    text = ast.unparse(claim)
    return f"`{text}` does not hold" if "\n" not in text and len(text) <= 100 else "Wrong result"


def _is_missing(note: Mapping[str, Any]) -> bool:
    """Whether it failed for want of an exception; unittest says so in a failed assertion."""
    message = note["message"]
    return (note["exception"] == "Failed" and "DID NOT RAISE" in message) or (
        note["exception"] == "AssertionError" and re.match(r"\S+ not raised", message) is not None
    )


def _tree(statement: str) -> ast.stmt | None:
    try:
        return ast.parse(statement).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None


def _defined(code: str) -> set[str]:
    """Names of the functions and classes that a text defines: its own, whatever they are made with."""
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError):
        return set()
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def _calls(node: ast.AST, ours: set[str]) -> list[ast.Call]:
    """The calls into the package in a statement, those within other such calls left out."""
    found: list[ast.Call] = []
    waiting = [node]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func).rpartition(".")[2]
            if name == "assertRaises" and len(part.args) > 1:
                # The call is written as its parts.
                part = ast.Call(part.args[1], part.args[2:], part.keywords)
            if _root(part.func) & ours:
                found.append(part)
                continue
        waiting = [*ast.iter_child_nodes(part), *waiting]
    return found


def _root(node: ast.expr) -> set[str]:
    """The names that a called expression begins with: `a` of `a.b()[0].c`; `self.a` where it begins with that."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return {f"self.{node.attr}"}
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _claim(node: ast.stmt) -> ast.expr | None:
    """What a statement asserts."""
    if isinstance(node, ast.Assert):
        return node.test
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return None
    call = node.value
    sign = _CLAIMS.get(ast.unparse(call.func).removeprefix("self."))
    if sign is None or len(call.args) < (1 if sign in ("", "not") else 2):
        return None
    sides = [f"({ast.unparse(one)})" for one in call.args[:2]]
    text = f"{sign} {sides[0]}".strip() if sign in ("", "not") else f"{sides[0]} {sign} {sides[1]}"
    return ast.parse(text, mode="eval").body


def _is_about(claim: ast.expr, call: ast.Call) -> bool:
    """Whether a claim says what one call gives, and nothing else."""
    if isinstance(claim, ast.UnaryOp) and isinstance(claim.op, ast.Not):
        claim = claim.operand
    sides = [claim.left, *claim.comparators] if isinstance(claim, ast.Compare) else [claim]
    return len(sides) <= 2 and any(ast.dump(side) == ast.dump(call) for side in sides)


def _with_values(call: ast.Call, case: Case) -> str:
    """The text of a call, with short values in the place of the names that hold them."""
    values = {
        name: value
        for name, value in {**case.note["parameters"], **case.note["values"]}.items()
        if len(value) <= 40 and _is_literal(value)
    }
    functions = {id(part.func) for part in ast.walk(call) if isinstance(part, ast.Call)}

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            if id(node) in functions or node.id not in values:
                return node
            return ast.parse(values[node.id], mode="eval").body

    plain = ast.unparse(call)
    filled = ast.unparse(Filled().visit(ast.parse(plain, mode="eval")))
    # An inner call's function may bear the name of a value; a name is what stands there then.
    return filled if len(filled) <= 80 and _same_calls(plain, filled) else plain


def _same_calls(a: str, b: str) -> bool:
    """Whether two expressions call the same functions in the same order."""
    return [ast.unparse(n.func) for n in ast.walk(ast.parse(a)) if isinstance(n, ast.Call)] == [
        ast.unparse(n.func) for n in ast.walk(ast.parse(b)) if isinstance(n, ast.Call)
    ]


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _told_values(case: Case) -> Iterator[tuple[str, str]]:
    """Values that names of the failing statement had, where the code does not say them: a loop's, for instance."""
    tree = _tree(case.snippet.statement)
    names = set() if tree is None else {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    said = case.snippet.code.splitlines()
    for name, value in case.note["values"].items():
        if name in names and len(value) <= 200 and _is_literal(value) and f"{name} = {value}" not in said:
            yield name, value


def _disappointed(snippet: Snippet, message: str) -> Iterator[str]:
    """What was expected, and what came."""
    # The runner's comparison of long values says again what stands above it.
    lines = [line.rstrip() for line in message.split("\n  Full diff", 1)[0].splitlines()]
    kept = [line for line in lines if line and "Use -v" not in line and line.strip() != "..."][:_LINES]
    told = _WHERE.sub(r"  \1 ", "\n".join(kept).removeprefix("assert "))
    body = "\n".join(line for line in told.splitlines() if not _NOISE.fullmatch(line))
    tree = _tree(snippet.statement)
    claim = None if tree is None else _claim(tree)
    if snippet.expected:
        yield f"I expect `{snippet.expected}` there, and with another text."
    elif claim is not None and len(text := ast.unparse(claim)) <= 200 and "\n" not in text:
        yield f"I expect `{text}` to hold."
    yield "What I get:" if body else "That is not so."
    if body:
        yield textwrap.indent(body, "    ")


def _plain(text: str) -> str:
    """A value's text without addresses and without the module its class comes from."""
    text = text.replace(".<locals>", "")
    return _ADDRESS.sub("", _OBJECT.sub(lambda found: f"<{found.group(1)}>", text))
