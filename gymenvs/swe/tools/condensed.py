"""A Python file without the bodies of its functions, as R2E-Gym's `file_editor` condenses it.

What goes, each with a notice in its place: the body of every function of 4 lines and more, from its first statement
(a docstring is one) to its last; the inside of a class's docstring of 5 lines and more, its first and last line left.
A function within a body that went has its own notice. Lines keep their numbers.
"""

from __future__ import annotations

import ast
import threading
import warnings

MOST_CHARS = 400_000  # parsed in a second or two whatever they are; a longer text is not condensed
BODY_LINES = 4
DOCSTRING_LINES = 5


# The filters of warnings are the process's own, and episodes run in threads.
_filters = threading.Lock()


def parse_python(text: str, name: str) -> ast.Module:
    """The syntax tree of a text of at most `MOST_CHARS`, without the warnings that an agent's code earns.

    Raises:
        SyntaxError: the text, of the file `name`, is no Python, or nested too deeply to be parsed.
    """
    # A byte that is no UTF-8 (in a comment, say) keeps its place; the parser takes no surrogates.
    readable = text.encode("utf-8", "replace").decode()
    try:
        with _filters, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(readable, filename=name)
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("nested too deeply") from error
    except ValueError as error:  # a NUL, or a name that holds one
        raise SyntaxError(str(error)) from error


def condensed_lines(text: str, name: str) -> list[tuple[int, str, bool]]:
    """(number from 1, text, whether it is a line of the file) of the lines left and the notices, by number.

    Raises:
        SyntaxError: as in `parse_python`.
    """
    spans = [span for node in ast.walk(parse_python(text, name)) if (span := _left_out(node)) is not None]
    gone = {number for first, last in spans for number in range(first, last + 1)}
    rows = [(first, f"... eliding lines {first}-{last} ...", False) for first, last in spans]
    rows += [(number, line, True) for number, line in enumerate(text.split("\n"), 1) if number not in gone]
    return sorted(rows, key=lambda row: row[0])


def _left_out(node: ast.AST) -> tuple[int, int] | None:
    """The lines of a node that go, first and last."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
        return (first, last) if last - first + 1 >= BODY_LINES else None
    if isinstance(node, ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
        first, last = node.body[0].lineno, node.body[0].end_lineno or 0
        return (first + 1, last - 1) if last - first + 1 >= DOCSTRING_LINES else None
    return None
