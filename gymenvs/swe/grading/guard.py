"""What runs pytest inside the sandbox, and tells the grader outside what happened.

`run.py` sends this file's text, that of `watch` and one JSON object over standard input; nothing of them stands on a
disk, in an argument or in a variable of the process. They run under the task's own Python, so they keep to what Python
3.6 and pytest 5 know, and import nothing of ours but each other.

Before the first line of the tree's code runs: pytest and all its modules are imported from outside the tree; the pipe
that was standard output becomes the channel of results, under another number; what tests print goes to standard error.
Every message carries its number and a keyed hash (the key is read once and lives inside a hash object). A pipe cannot
be unwritten, so nothing that runs later changes an earlier result, and a message that the guard did not write is seen.

Reported are every phase of every test together with the exception that the test really raised; canaries (tests that
must fail) among the real ones; functions of pytest, pluggy, unittest and builtins that are no longer what they were;
and audited acts of the code under test, such as writing a test file or swapping a function's code.

It is no wall: code in the same process can, with knowledge of this file, find these objects and use them. See
`grading/__init__.py` for what remains possible.
"""

import base64
import fcntl
import hashlib
import hmac
import importlib
import json
import os
import pkgutil
import random
import sys

from rtmc.gymenvs.swe.grading.equal import Comparer
from rtmc.gymenvs.swe.grading.genuine import Genuine
from rtmc.gymenvs.swe.grading.origin import RUNNER, Origin
from rtmc.gymenvs.swe.grading.session import Watched, stranger
from rtmc.gymenvs.swe.grading.trust import Trust
from rtmc.gymenvs.swe.grading.watch import WATCHED_PACKAGES, Machinery, make_watch

MESSAGE = 4000  # characters of a failure's text that are sent
JUNIT_PIECE = 32768
OFTEN = 16  # of 256 tests, after how many everything is looked at; it costs milliseconds, and nobody foresees it


def make_channel(key):
    """`send(kind, *values)`: one signed line into what was standard output."""
    most = os.sysconf("SC_OPEN_MAX")
    most = min(most, 200) if most > 0 else 200
    low, high = most // 2, most - most // 8  # below the limit, with room above for more than one try
    descriptor = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, random.SystemRandom().randrange(low, high))
    os.dup2(2, 1)
    signer, owner, number = hmac.new(key, digestmod=hashlib.sha256), os.getpid(), [0]
    dumps, getpid, write = json.dumps, os.getpid, os.write

    def send(kind, *values):
        if getpid() != owner:
            return  # a forked child's copy of the session: the parent alone reports
        body = dumps([number[0], kind, *values]).encode("ascii")
        number[0] += 1
        signed = signer.copy()
        signed.update(body)
        line = body + b" " + signed.hexdigest().encode("ascii") + b"\n"
        while line:
            line = line[write(descriptor, line) :]

    return send


def load_runner():
    """Imports pytest and every module of it, so that none of its names is ever looked up in the tree."""
    import pytest

    for package in WATCHED_PACKAGES:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), package + "."):
            if found.name.endswith("__main__") or found.name in ("unittest.mock", "unittest.async_case"):
                continue  # nothing for pytest to need, and the last two load half of the standard library
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue  # a module for another platform or for a package that is not here
    return pytest


def only_known_metadata(inside, known):
    """Packages that lie in the tree are found by their metadata only where the task has them: entry points load
    plugins. Returns what takes this back."""
    undo = []
    for name in ("importlib.metadata", "importlib_metadata"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue

        def distributions(*args, found=module.distributions, **options):
            for one in found(*args, **options):
                place = os.path.normpath(os.path.abspath(str(getattr(one, "_path", ""))))
                if not place.startswith(inside + "/") or place[len(inside) + 1 :] in known:
                    yield one

        undo.append((module, module.distributions))
        setattr(module, "distributions", distributions)  # noqa: B010  mypy knows no such name of a module

    def take_back():
        for module, found in undo:
            setattr(module, "distributions", found)  # noqa: B010  as above

    return take_back


def drops_folders(version, arguments, inside):
    """Whether pytest collects nothing but a canary of a folder that it is given: release 8 does for a file beside its
    folder, in whatever order."""
    paths = [os.path.join(inside, str(one).split("::")[0]) for one in arguments]
    return version.startswith("8.") and any(map(os.path.isdir, paths))


def make_plugin(pytest, send, told, origin, undo):
    """The pytest plugin that reports. `told` is what the grader asked for."""
    inside = told["inside"]
    canary_files = set()
    shown_canaries = {canary["path"] for canary in told["canaries"]}
    seen_changes = set()
    comparer = Comparer(origin, told["before"])
    trust = Trust(origin, comparer.as_before)
    watching, owner, chance = told["watch"], os.getpid(), os.urandom

    def tell_one(name, file):
        if (name, file) not in seen_changes:
            seen_changes.add((name, file))
            send("changed", name, file)

    def tell(changes):
        for name, file in changes:
            tell_one(name, file)

    def check(whole):
        tell(machinery[0].changes(whole))

    genuine = Genuine(told, trust, comparer, lambda: check(True), lambda path: send("act", "open", path, ""))
    if watching:
        genuine.install()
    machinery = [Machinery(trust)]
    watched = Watched(trust, genuine, tell_one, told["plugins"])

    def message(report):
        text = report.longrepr
        if isinstance(text, tuple):
            text = ": ".join(str(part) for part in text)
        text = str(getattr(report, "longreprtext", "") or text or "")
        return text[-MESSAGE:]

    class Plugin:
        def pytest_load_initial_conftests(self, early_config, parser, args):
            # After every plugin (pytest's legacypath replaces methods here, before us), before the tree's conftest.
            undo()
            machinery[0], found = machinery[0].settled(inside)
            tell(found)
            if watching:
                watched.begin(early_config)
                if getattr(early_config.known_args_namespace, "assertmode", "rewrite") != "rewrite":
                    genuine.plain = True
                    importlib.import_module("_pytest.assertion").install_importhook(early_config)

        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config):
            # Several processes would report past us; stopping at the first failure would stop at a canary.
            told_off = {"numprocesses": 0, "dist": "no", "tx": [], "looponfail": False, "maxfail": 0}
            # One file that cannot be collected costs its own tests, not those of all others.
            for name, value in {**told_off, "continue_on_collection_errors": True}.items():
                if hasattr(config.option, name):
                    setattr(config.option, name, value)

        @pytest.hookimpl(tryfirst=True)
        def pytest_configure(self, config):
            prefix = (list(config.getini("python_functions")) or ["test"])[0].split("*")[0]
            for canary in told["canaries"]:
                path = os.path.join(inside, canary["path"])
                text = canary["source"].replace("CANARY_PREFIX", prefix or "test")
                with open(path, "x", encoding="utf-8") as file:
                    file.write(text)
                genuine.expect(path, text)
                canary_files.add(path)
                config.args.insert(canary["at"] % (len(config.args) + 1), path)
            if drops_folders(pytest.__version__, config.args, inside) and hasattr(config.option, "keepduplicates"):
                config.option.keepduplicates = True

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(self, session, config, items):
            canaries = [item for item in items if str(item.fspath) in canary_files]
            marks = watched.marks(items)
            yield
            watched.given(items, marks)
            # A test command's -k or -m must not choose canaries; others see none of them reordered.
            kept = set(map(id, items))
            items[:] = items + [item for item in canaries if id(item) not in kept]

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session):
            ids = [item.nodeid for item in session.items]
            for at in range(0, len(ids), 200):
                send("collected", ids[at : at + 200])
            if watching:
                watched.collected(session)
                watched.hooks()
            check(True)

        def pytest_collectreport(self, report):
            if report.failed:
                send("collect_error", report.nodeid, message(report))
            elif report.skipped:
                send("collect_skip", report.nodeid, message(report))

        def pytest_runtest_logstart(self, nodeid, location):
            send("running", nodeid)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_setup(self, item):
            if watching:
                watched.begins(item)
            yield

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            if watching:
                watched.begins(item)
                watched.hooks()
                check(False)
            yield
            if watching:
                watched.ends(item)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            raised = innermost(call.excinfo)
            first = stranger(origin, raised)  # before pytest puts its own exception in place of another runner's
            outcome = yield
            report = outcome.get_result()
            raised = innermost(call.excinfo)
            send(
                "phase",
                item.nodeid,
                call.when,
                report.outcome,
                bool(hasattr(report, "wasxfail")),
                raised.type.__name__ if raised is not None else "",
                *worse(first, stranger(origin, raised)),
                watched.is_given(item, "xfail" if hasattr(report, "wasxfail") else "skip"),
                message(report) if report.outcome != "passed" else "",
                float(getattr(report, "duration", 0.0)),
            )

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            part = type(report).__name__ != "TestReport"  # a subtest's, for instance
            send("log", report.nodeid, report.when, report.outcome, bool(hasattr(report, "wasxfail")), part)

        @pytest.hookimpl(tryfirst=True)
        def pytest_report_teststatus(self, report):
            # The printed log is for people: it shows the task's tests alone.
            return ("", "", "") if report.nodeid.split("::")[0] in shown_canaries else None

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logfinish(self, nodeid, location):
            check(chance(1)[0] < OFTEN)
            if watching:
                watched.hooks()

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_unconfigure(self, config):
            yield
            for path in canary_files if os.getpid() == owner else ():
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    send("act", "os.remove", path, "")
            if watching:
                watched.hooks()
            check(True)  # the last moment: pytest puts its own replacements back behind this hook

        def pytest_keyboard_interrupt(self, excinfo):
            send("interrupted", excinfo.type.__name__ + ": " + str(excinfo.value)[:500])

        def pytest_internalerror(self, excrepr):
            send("internal_error", str(excrepr)[-MESSAGE:])

    return Plugin()


def innermost(excinfo):
    """The exception's own record: pytest-subtests 0.15 hands one within another to pytest 8."""
    inner = getattr(excinfo, "_excinfo", None)
    return inner if inner is not None and type(inner) is type(excinfo) else excinfo


def worse(first, second):
    """Of two answers of `stranger`, the one that names somebody."""
    return first if not first[1] or (second[1] and first[0]) else second


def send_junit(send, path):
    try:
        with open(path, "rb") as file:
            data = file.read()
        os.unlink(path)
    except OSError:
        return
    for at in range(0, len(data), JUNIT_PIECE):
        send("junit", base64.b64encode(data[at : at + JUNIT_PIECE]).decode("ascii"))


def main(told, parts):
    send = make_channel(bytes.fromhex(told.pop("key")))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    outside = list(told["outside"])
    os.environ.update(told["variables"])
    try:
        pytest = load_runner()
    except ImportError as error:
        send("no_runner", str(error))
        os._exit(3)
    sys.path[:] = [told["inside"], *told["path"], *(path for path in sys.path if path not in outside)]
    libraries = tuple({*outside, sys.base_prefix, sys.prefix, os.path.dirname(os.__file__)})
    send("start", pytest.__version__, ".".join(map(str, sys.version_info[:3])), libraries)
    origin = Origin(told["inside"], libraries, told["changed"], told["ignored"])
    for names in (globals(), *(vars(part) for part in parts)):
        origin.own_all(names)
    origin.own(sys._getframe(1).f_code, RUNNER)
    undo = only_known_metadata(told["inside"], set(told["metadata"]))
    plugin = make_plugin(pytest, send, told, origin, undo)
    if told["watch"] and hasattr(sys, "addaudithook"):  # from Python 3.8 on
        sys.addaudithook(make_watch(send, told["inside"], told["protected"], origin))
    junit = told["junit"]
    arguments = [*told["arguments"], "--junitxml=" + junit, "-o", "junit_family=xunit1"]
    leave = os._exit
    sys.argv[:] = ["pytest", *told["arguments"]]
    try:
        status = int(pytest.main(arguments, plugins=[plugin]))
    except BaseException as error:  # SystemExit of a plugin as well: the session has no result then
        send("internal_error", repr(error)[:MESSAGE])
        status = 3
    send_junit(send, junit)
    send("end", status)
    sys.stdout.flush()
    sys.stderr.flush()
    leave(status)  # no exit handler of the tree runs
