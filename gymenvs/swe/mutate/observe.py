"""A pytest plugin that says what a failing test saw: run inside the sandbox, by the standard library alone.

It is mounted there as a file of its own, so nothing of this package may be imported. For each test that fails it
notes the exception, the line of the test that failed with the values of the names there, which names are the
package's (its modules are `RTMC_PACKAGE`, a JSON list of paths), and how many calls lie between the test and the
functions in `RTMC_OBSERVED` (a JSON list of [path, first line, last line]; the least of all paths of calls; 1 = the
test calls one of them itself). At the end it prints one line, `MARK` and a JSON list.
"""

import contextlib
import json
import os
import sys
import types
import unittest
from typing import Any

MARK = "@@rtmc-observed "
FIELDS = (
    "test", "exception", "message", "inside", "parameters", "values", "depth", "file", "first", "line", "ours",
    "public", "unittest",
)  # fmt: skip
_SHOWN = 2000  # characters of a value
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
    return _cut(text, _SHOWN)


def _cut(text, most):
    return text if len(text) <= most else text[:most] + "..."


def _files():
    return tuple("/" + path for path in json.loads(os.environ.get("RTMC_PACKAGE", "[]")))


def _is_ours(value, files):
    """Whether a value is a module, class, function or object of the package under test."""
    try:
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    except Exception:  # most values have none, and an object may do anything when asked
        return False
    file = getattr(sys.modules.get(name if isinstance(name, str) else ""), "__file__", None)
    return isinstance(file, str) and file.endswith(files)


def _names(frame, files):
    """Of the names that a frame sees: those of the package, and those that a top package offers: name -> package."""
    seen = {**frame.f_globals, **frame.f_locals}
    instance = seen.get("self")
    seen.update({f"self.{name}": value for name, value in getattr(instance, "__dict__", {}).items()})
    ours = sorted(name for name, value in seen.items() if _is_ours(value, files))
    public = {}
    for name in ours:
        value = seen[name]
        top = str(getattr(value, "__module__", "")).partition(".")[0]
        if top in sys.modules and vars(sys.modules[top]).get(getattr(value, "__name__", name)) is value:
            public[name] = top
    return ours, public


def _noted(item, error, when):
    """What is told of one failure."""
    test_file = str(item.path)
    entries = list(error.traceback)
    own = [entry for entry in entries if str(entry.path) == test_file]
    note = {
        "test": item.nodeid,
        "exception": error.typename,
        "message": _cut(str(error.value), 2 * _SHOWN),
        "inside": bool(own) and entries[-1] is not own[-1],
        "parameters": {},
        "values": {},
        "file": os.path.relpath(test_file, str(item.config.invocation_params.dir)),
        "first": getattr(getattr(item, "obj", None), "__code__", _noted.__code__).co_firstlineno,
        "line": 0,  # it failed before its own first line
        "ours": [],
        "public": {},
        "unittest": isinstance(getattr(item, "instance", None), unittest.TestCase),
    }
    spec = getattr(item, "callspec", None)
    if spec is not None:
        note["parameters"] = {str(name): _shown(value) for name, value in spec.params.items()}
    if own:
        frame = own[0].frame
        note["ours"], note["public"] = _names(frame, _files())
        if when == "call":
            # A test that is wrapped has its code elsewhere than its name says.
            note["first"], note["line"] = frame.code.firstlineno + 1, own[0].lineno + 1
            note["values"] = {
                name: _shown(value)
                for name, value in frame.f_locals.items()
                if name != "self" and not name.startswith("@") and not isinstance(value, types.ModuleType)
            }
    return note


def pytest_runtest_makereport(item, call):
    if call.when in ("setup", "call") and call.excinfo is not None and call.excinfo.typename != "Skipped":
        _found.append(_noted(item, call.excinfo, call.when))


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
