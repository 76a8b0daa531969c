"""The text of a task: what a user of the package would write, who sees wrong behaviour but not the code.

Written from what the failing tests saw (`observe`): the calls they make, the values they make them with, what was
expected and what came. The place is not given away: no frame, file or dotted module of the changed code is named, and a
text that would hold a changed line, before or after, is shortened until it does not, or given up.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rtmc.gymenvs.swe.mutate.mutants import Mutant

_CASES = 3  # failing behaviours that are shown
_LINES = 24  # of a test's own code
_OBJECT = re.compile(r"<(?:[\w<>]+\.)*([\w]+)(?: object)?(?: at 0x[0-9a-fA-F]+)?>")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_WHERE = re.compile(r"^(?:\s*\+\s*)+(where|and) +", re.MULTILINE)
_WORD = re.compile(r"\w")
_EXPECTED = {"raises", "warns", "deprecated_call"}


def write_issue(notes: Sequence[Mapping[str, Any]], mutant: Mutant, failing: int) -> str | None:
    """The text, or None where none can be written that keeps the place to itself.

    Args:
        notes: of failing tests, as `observe` prints them.
        failing: how many tests fail in all.
    """
    chosen = _chosen(notes)
    for code in (True, False):
        # By the case's text, so that two tests that show the same count once.
        cases = {_case(note, code): note for note in reversed(chosen)}
        shown = [(text, note) for text, note in reversed(cases.items())]
        while shown:
            text = _whole(shown, failing)
            if not gives_away(text, mutant):
                return text
            leaking = [at for at, (case, _) in enumerate(shown) if gives_away(case, mutant)]
            del shown[leaking[0] if leaking else -1]
    return None


def gives_away(text: str, mutant: Mutant) -> bool:
    """Whether the text names the module or holds a line of the change. A line of brackets alone tells nothing."""
    path = mutant.path
    module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    named = [path, path.rsplit("/", 1)[-1], *([module, module.replace("/", ".")] if "/" in module else [])]
    lines = [line for line in (*mutant.lines[0], *mutant.lines[1]) if len(_WORD.findall(line)) > 2]
    return any(part in text for part in (*named, *lines))


def _whole(shown: Sequence[tuple[str, Mapping[str, Any]]], failing: int) -> str:
    (first, note), *others = shown
    parts = [_title(note, first), first]
    for case, _ in others:
        parts += ["Also:", case]
    if failing > len(shown):
        rest = failing - len(shown)
        parts.append(f"I see this in {rest} more {'case' if rest == 1 else 'cases'} of the same kind.")
    return "\n\n".join(parts) + "\n"


def _chosen(notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A few failing tests: the plainest of each function first, those that say what was expected before crashes."""

    def plainness(note: Mapping[str, Any]) -> tuple[int, int, str]:
        return (bool(note["inside"]), sum(map(len, note["before"])) + len(note["statement"]), note["test"])

    ordered = sorted((note for note in notes if note["statement"]), key=plainness)
    by_code: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for note in ordered:  # a test that is inherited runs the same code under several names
        by_code.setdefault((*note["before"], note["statement"]), note)
    by_function: dict[str, Mapping[str, Any]] = {}
    for note in by_code.values():
        by_function.setdefault(note["test"].split("[", 1)[0], note)
    return [*by_function.values()][:_CASES]


def _title(note: Mapping[str, Any], case: str) -> str:
    call, claim = _first_call(note["statement"]), _claim(note["statement"])
    # What the case does not show, a shortened one for instance, the title must not show either.
    call, claim = (text if text and text in case else "" for text in (call, claim))
    error = note["exception"]
    if error == "Failed":
        return f"No error from `{call}`" if call else "An error is not raised any more"
    if error != "AssertionError":
        used = call or claim.split(" == ")[0]
        return f"{error} from `{used}`" if used else f"{error} in plain use"
    if call:
        return f"Wrong result of `{call}`"
    return f"`{claim}` does not hold" if claim else "Wrong result"


def _first_call(statement: str) -> str:
    """The first call in a statement that is not the test library's, if it is short."""
    try:
        tree = ast.parse(statement)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            text = ast.get_source_segment(statement, node) or ""
            if name.startswith("pytest.") or name.rpartition(".")[2] in _EXPECTED or name.startswith("self.assert"):
                continue
            if "\n" not in text and len(text) <= 80:
                return text
    return ""


def _case(note: Mapping[str, Any], code: bool) -> str:
    """One failing behaviour; without `code` only the statement that failed."""
    statement = note["statement"].strip("\n")
    steps = [step for step in [*note["before"], statement] if not _is_aside(step)] if code else [statement]
    shown = "\n".join(step.strip("\n") for step in steps)
    if shown.count("\n") >= _LINES:
        shown = statement
    parts = ["With this code", textwrap.indent(shown, "    ")]
    values = {**note["parameters"], **{k: v for k, v in note["values"].items() if k in _free_names(shown)}}
    told = [f"    {name} = {_plain(value)}" for name, value in values.items() if name in _free_names(shown)]
    if told:
        parts += ["where", "\n".join(told)]
    message = _plain(note["message"]).strip()
    if note["exception"] == "AssertionError":
        parts += _disappointed(statement, message)
    elif note["exception"] == "Failed":
        parts.append(f"I expected an error there. What I am told: {message}" if message else "It fails there.")
    else:
        cut = "      ... frames inside the package left out ...\n" if note["inside"] else ""
        last = statement.splitlines()[0] if statement else ""
        other = "raises(" in statement
        parts.append("I get another error than I expect:" if other else "I get an error instead of a result:")
        said = "\n".join(message.splitlines()[:_LINES])
        raised = f"{note['exception']}: {said}" if said else note["exception"]
        trace = f"Traceback (most recent call last):\n  {last}\n{cut}{raised}"
        parts.append(textwrap.indent(trace, "    "))
    return "\n\n".join(parts)


def _disappointed(statement: str, message: str) -> Iterator[str]:
    """What was expected, and what came."""
    # The runner's comparison of long values says again what stands above it.
    lines = [line.rstrip() for line in message.split("\n  Full diff", 1)[0].splitlines()]
    kept = [line for line in lines if line and "Use -v" not in line and line.strip() != "..."][:_LINES]
    body = _WHERE.sub(r"  \1 ", "\n".join(kept).removeprefix("assert "))
    claim = _claim(statement)
    if claim and not message.startswith("Regex pattern"):
        yield f"I expected `{claim}` to hold."
    yield "What I get:" if body else "That is not so."
    if body:
        yield textwrap.indent(body, "    ")


def _claim(statement: str) -> str:
    """What the statement's only `assert` asserts, if it is short."""
    try:
        tree = ast.parse(statement)
    except SyntaxError:
        return ""
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    if len(asserts) != 1:
        return ""
    text = ast.get_source_segment(statement, asserts[0].test) or ""
    return text if "\n" not in text and len(text) <= 200 else ""


def _is_aside(step: str) -> bool:
    """Imports and docstrings of a test say nothing of the behaviour."""
    try:
        body = ast.parse(textwrap.dedent(step)).body
    except SyntaxError:
        return False
    return all(
        isinstance(node, (ast.Import, ast.ImportFrom))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _free_names(code: str) -> set[str]:
    """Names that the code reads and does not bind before."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set()
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - bound


def _plain(text: str) -> str:
    """A value's text without addresses and without the module its class comes from."""
    return _ADDRESS.sub("", _OBJECT.sub(lambda found: f"<{found.group(1)}>", text))
