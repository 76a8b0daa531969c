"""A pytest plugin that says what a failing test saw: run inside the sandbox, by the standard library alone.

It is mounted there as a file of its own, so nothing of this package may be imported. For each test that fails it
notes the exception, the statement of the test that failed with the values of the names in it, and how many calls lie
between the test and the functions in `RTMC_OBSERVED` (a JSON list of [path, first line, last line]; the least of all
paths of calls; 1 = the test calls one of them itself). At the end it prints one line, `MARK` and a JSON list.
"""

import ast
import contextlib
import inspect
import json
import os
import sys
import textwrap
from typing import Any

MARK = "@@rtmc-observed "
FIELDS = ("test", "exception", "message", "inside", "parameters", "statement", "before", "values", "depth")
_SHOWN = 300  # characters of a value
_found: list[dict[str, Any]] = []
_depth: dict[str, int] = {}


def _targets():
    return [tuple(one) for one in json.loads(os.environ.get("RTMC_OBSERVED", "[]"))]


def _hit(code, targets):
    return any(
        code.co_filename.endswith(path) and first <= code.co_firstlineno <= last for path, first, last in targets
    )


@contextlib.contextmanager
def _watched(item):
    """Counts the frames above every call of an observed function, down to the test's own."""
    targets = _targets()
    test = getattr(getattr(item, "obj", None), "__code__", None)

    def profile(frame, event, argument):
        if event != "call" or not _hit(frame.f_code, targets):
            return
        depth, above = 1, frame.f_back
        while above is not None and above.f_code is not test:
            depth += 1
            above = above.f_back
        if above is not None:
            _depth[item.nodeid] = min(depth, _depth.get(item.nodeid, depth))

    if not targets or test is None:
        yield
        return
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _shown(value):
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ is one of the things that a bug may bring
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _statement(function, line):
    """The source of the test's own statement that holds the line (of the file), and the statements before it."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return "", []
    text = textwrap.dedent("".join(lines))
    body = getattr(tree.body[0], "body", []) if tree.body else []
    inside = line - first + 1
    before, found = [], ""
    for node in body:
        part = ast.get_source_segment(text, node, padded=True) or ""
        if node.lineno <= inside <= (node.end_lineno or node.lineno):
            found = textwrap.dedent(part)
            break
        if node.lineno > inside:
            break
        before.append(textwrap.dedent(part))
    return found, before


def _names(text):
    try:
        return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    except SyntaxError:
        return set()


def _noted(item, error):
    """What is told of one failure."""
    test_file = str(item.path)
    entries = list(error.traceback)
    own = [entry for entry in entries if str(entry.path) == test_file]
    last = own[-1] if own else None
    note = {
        "test": item.nodeid,
        "exception": error.typename,
        "message": str(error.value)[:4000],
        "inside": bool(own) and entries[-1] is not last,
        "parameters": {},
        "statement": "",
        "before": [],
        "values": {},
    }
    spec = getattr(item, "callspec", None)
    if spec is not None:
        note["parameters"] = {str(name): _shown(value) for name, value in spec.params.items()}
    if last is not None:
        function = getattr(item, "obj", None)
        note["statement"], note["before"] = _statement(function, own[0].lineno + 1)
        wanted = _names("\n".join([*note["before"], note["statement"]]))
        values = own[0].frame.f_locals
        note["values"] = {
            name: _shown(values[name])
            for name in sorted(wanted & set(values))
            if not callable(values[name]) and name != "self"
        }
    return note


def pytest_runtest_makereport(item, call):
    if call.when in ("setup", "call") and call.excinfo is not None and call.excinfo.typename != "Skipped":
        _found.append(_noted(item, call.excinfo))


def pytest_configure(config):
    # The decorator of a hook needs pytest; imported here, this file can be read where there is none.
    import pytest

    class Hooks:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_pyfunc_call(self, pyfuncitem):
            with _watched(pyfuncitem):
                yield

    config.pluginmanager.register(Hooks(), "rtmc_observe_hooks")


def pytest_unconfigure(config):
    for note in _found:
        note["depth"] = _depth.get(note["test"])
    line = "\n" + MARK + json.dumps(_found) + "\n"
    os.write(1, line.encode())
