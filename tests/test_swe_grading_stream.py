"""The channel of results: what the guard sends is read, and every way to add to it, alter it or cut it is seen."""

import base64
import hashlib
import hmac
import json
import sys
import unittest.util
from pathlib import Path

import pytest

from rtmc.gymenvs.swe.grading.canary import make_canaries
from rtmc.gymenvs.swe.grading.origin import Origin
from rtmc.gymenvs.swe.grading.stream import read_channel
from rtmc.gymenvs.swe.grading.trust import Trust
from rtmc.gymenvs.swe.grading.watch import Machinery

KEY = b"k" * 32


def line(number: int, *values: object, key: bytes = KEY) -> bytes:
    body = json.dumps([number, *values]).encode()
    return body + b" " + hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b"\n"


def phases(
    test: str, outcome: str = "passed", raised: str = "", origin: str = "", message: str = "", xfail=False, **more
):
    """`sure`: everybody on the way of the exception is known; `given`: a hook of the task gave the mark."""
    sure, given = more.get("sure", True), more.get("given", False)
    yield "phase", test, "setup", "passed", False, "", "", True, False, "", 0.25
    yield "log", test, "setup", "passed", False, False
    yield "phase", test, "call", outcome, xfail, raised, origin, sure, given, message, 0.5
    yield "log", test, "call", outcome, xfail, False
    yield "phase", test, "teardown", "passed", False, "", "", True, False, "", 0.25
    yield "log", test, "teardown", "passed", False, False


def junit(**outcomes: str) -> bytes:
    entries = {"PASSED": "", "FAILED": '<failure message="no"/>', "SKIPPED": '<skipped type="pytest.skip"/>'}
    cases = "".join(f'<testcase classname="a" name="{n}">{entries[o]}</testcase>' for n, o in outcomes.items())
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>".encode()


def session(*tests, status=0, report: bytes | None = None, extra=()) -> list[tuple]:
    messages = [("start", "9", "3.11", ["/lib/python"]), *(m for test in tests for m in test), *extra]
    if report is not None:
        messages.append(("junit", base64.b64encode(report).decode()))
    return [*messages, ("end", status)]


def stream(messages) -> bytes:
    return b"".join(line(number, *values) for number, values in enumerate(messages))


GOOD = session(phases("a.py::t"), phases("a.py::u", "failed", "E", "", "E  assert 0"), status=1)
GOOD.insert(-1, ("junit", base64.b64encode(junit(t="PASSED", u="FAILED")).decode()))


def read(data: bytes, **options):
    return read_channel(data, KEY, inside="/testbed", **options)


def test_a_whole_session_is_read():
    channel = read(stream(GOOD))
    assert channel.forged == []
    assert {name: one.status for name, one in channel.results.items()} == {"a.py::t": "PASSED", "a.py::u": "FAILED"}
    assert channel.results["a.py::t"].seconds == 1.0
    assert (channel.status, channel.facts["pytest"]) == (1, "9")


@pytest.mark.parametrize("at", range(len(GOOD)))
def test_no_message_can_be_altered_left_out_doubled_or_added(at):
    lines = [line(number, *values) for number, values in enumerate(GOOD)]
    other = line(at, *GOOD[at], key=b"x" * 32)
    changed = [*lines[:at], lines[at].replace(b'"', b"'", 1) if b'"' in lines[at] else other, *lines[at + 1 :]]
    doubled = [*lines[:at], lines[at], *lines[at:]]
    swapped = [*lines[:at], other, *lines[at + 1 :]]
    added = [*lines[:at], b"PASSED a.py::v\n", *lines[at:]]
    for forged in (changed, doubled, swapped, added):
        assert read(b"".join(forged)).forged
    if at < len(GOOD) - 1:
        assert read(b"".join([*lines[:at], *lines[at + 1 :]])).forged


def test_a_stream_that_breaks_off_has_no_end_and_says_where():
    messages = [*GOOD[:7], ("running", "a.py::u")]
    channel = read(stream(messages) + b'[8, "pha')
    assert channel.forged == []
    assert (channel.status, channel.running) == (None, "a.py::u")
    assert set(channel.results) == {"a.py::t"}


def test_where_a_run_broke_off_is_never_said_to_be_a_canary():
    canary = make_canaries(["a.py"], 1)[0]
    messages = [*GOOD[:7], ("running", "a.py::u"), ("running", canary.path + "::test_x")]
    assert read(stream(messages), canaries=[canary]).running == ""
    errors = [("collect_error", canary.path, "E  no"), ("collect_error", "b.py", "E  no b")]
    assert read(stream([*GOOD[:1], *errors]), canaries=[canary]).collection_errors == {"b.py": "E  no b"}
    assert read(stream([*GOOD[:1], errors[0]]), canaries=[canary]).collection_errors == {"": "E  no"}


def test_a_test_without_all_its_phases_has_no_result():
    for left in range(6):
        assert "a.py::t" not in read(stream(session(list(phases("a.py::t"))[:left]))).results or left > 4


@pytest.mark.parametrize(
    ("test", "what"),
    [
        (phases("a.py::t", "passed", "AssertionError"), "was raised and yet"),
        ([m if m[0] == "phase" else (*m[:3], "failed", *m[4:]) for m in phases("a.py::t")], "altered"),
    ],
)
def test_a_pass_that_is_none_is_seen(test, what):
    channel = read(stream(session(test, report=junit(t="PASSED"))))
    assert what in channel.forged[0]
    assert "a.py::t" not in channel.results


@pytest.mark.parametrize(
    ("run", "report", "what"),
    [
        ("passed", junit(t="FAILED"), "the JUnit report says FAILED"),
        ("passed", junit(), "says nothing"),
        ("failed", junit(t="PASSED"), "the JUnit report says PASSED"),
        ("passed", b"<testsuites", "cannot be read"),
        ("passed", None, "missing"),
    ],
)
def test_reports_that_disagree_are_seen(run, report, what):
    raised = "" if run == "passed" else "AssertionError"
    channel = read(stream(session(phases("a.py::t", run, raised), report=report)))
    assert what in channel.forged[0]


def bird_session(birds, said):
    tests = [phases("a.py::t")]
    for bird in birds:
        tests += [said(f"{bird.path}::test_{ending}", token) for ending, token in bird.tokens.items()]
    return stream(session(*tests, status=1, report=junit(t="PASSED")))


def test_canaries_fail_and_are_no_results():
    birds = make_canaries(["tests/test_a.py", "b/test_b.py"], 3)
    assert {bird.path.split("/")[0] for bird in birds} <= {"tests", "b"}
    assert len({bird.path for bird in birds}) == 3
    data = bird_session(birds, lambda test, token: phases(test, "failed", "E", "", f"E  {token}"))
    channel = read(data, canaries=birds)
    assert (channel.forged, set(channel.results), channel.status) == ([], {"a.py::t"}, 0)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (lambda test, token: phases(test), "is reported as PASSED"),
        (lambda test, token: phases(test, "failed", "E", "", "E  something"), "without its own message"),
        (lambda test, token: phases(test, "skipped", "Skipped", "", token), "is reported as SKIPPED"),
        (lambda test, token: phases(test, "skipped", "E", "", token, True), "is reported as XFAIL"),
        (lambda test, token: (), "was not run"),
    ],
)
def test_a_canary_that_does_not_fail_by_itself_is_seen(said, what):
    birds = make_canaries(["test_a.py"], 1)
    assert what in read(bird_session(birds, said), canaries=birds).forged[0]


@pytest.mark.parametrize(
    ("message", "void"),
    [
        (("act", "gc.get_objects", "called", "/testbed/shop.py"), False),
        (("act", "sys.settrace", "called", "/testbed/shop.py"), True),
        (("act", "sys.setprofile", "called", "/testbed/tracer.py"), False),  # it was a profiler before
        (("act", "sys.setprofile", "called", "/testbed/shop.py"), True),
        # Whoever makes a finalizer acts in the frame of a test: its text has to bear that out too.
        (("act", "sys.settrace", "called", "/testbed/tests/test_a.py"), True),
        (("act", "sys.setprofile", "called", "/testbed/tests/test_a.py"), False),
        (("act", "sys.settrace", "called", "</lib/python/threading.py>"), True),
        (("act", "open", "/testbed/tests/test_a.py", "/testbed/shop.py"), True),
        (("act", "os.rename", "/testbed/tests", "/testbed/old.py"), False),  # as the task began
        (("act", "os.rename", "/testbed/tests", "/tmp/x.py"), True),
        (("act", "os.rename", "/testbed/tests", ""), True),
        (("act", "open", "/testbed/tests/test_a.py", "/testbed/.hypothesis/x.py"), True),
        (("changed", "_pytest.runner.call_and_report", "/testbed/shop.py"), True),
        (("changed", "_pytest.runner.call_and_report", "/lib/python/plugin.py"), False),
        (("changed", "_pytest.runner.call_and_report", "/lib/python/_pytest/other.py"), True),
        (("changed", "_pytest.runner.call_and_report", "<string>"), True),
        (("changed", "_pytest.runner.call_and_report", ""), True),
        # A file may be named by anyone: the tests' text has to bear out that they did it.
        (("changed", "_pytest.runner.call_and_report", "/testbed/tests/test_a.py"), True),
        (("changed", "builtins.print", "/testbed/tests/test_a.py"), False),
        # What the library judges by may be altered by whoever did so before.
        (("changed", "the library's re.search", "/testbed/shop.py"), True),
        (("changed", "the library's re.search", ""), True),
        (("changed", "the library's sys.setprofile", "/testbed/tracer.py"), False),
        (("changed", "the library's sys.settrace", "/testbed/tracer.py"), True),
        (("changed", "the library's re.search", "/lib/python/plugin.py"), False),
    ],
)
def test_what_voids_and_what_is_only_told(message, void, tmp_path):
    (tmp_path / "old.py").write_text("")
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "tracer.py").write_text("import sys\nsys.setprofile(print)\n")
    channel = read(
        stream(session(phases("a.py::t"), report=junit(t="PASSED"), extra=[message])),
        base=tmp_path,
        changed=["shop.py", "tracer.py"],
        protected=["tests/test_a.py"],
        texts={"tests/test_a.py": "import builtins, sys\nbuiltins.print = repr\nsys.setprofile(print)\n"},
    )
    assert bool(channel.forged) is void
    assert bool(channel.suspicions) is not void
    free = read(stream(session(phases("a.py::t"), report=junit(t="PASSED"), extra=[message])))
    assert free.forged == []  # nobody is suspected where no agent was


CALLS = "import pytest\n\n\ndef test_t():\n    {}\n\n\ndef test_other():\n    {}\n"
MARKED = "import pytest\n\n\n{}\ndef test_t():\n    assert 0\n\n\ndef test_other():\n    pass\n"
TEST, SHOP, LIB = "/testbed/tests/test_a.py", "/testbed/shop.py", "/lib/python/tools.py"


@pytest.mark.parametrize(
    ("raised", "origin", "more", "text", "status"),
    [
        ("Skipped", TEST, {}, CALLS.format("pytest.skip('x')", "pass"), "SKIPPED"),
        ("Skipped", TEST, {}, CALLS.format("pass", "pytest.skip('x')"), "FAILED"),  # another test says so
        ("Skipped", "", {}, MARKED.format("@pytest.mark.skip"), "SKIPPED"),
        ("Skipped", "", {}, MARKED.format("needs = pytest.mark.skipif(True)\n\n\n@needs"), "SKIPPED"),
        ("Skipped", "", {}, MARKED.format("pytestmark = pytest.mark.skip\n"), "SKIPPED"),
        ("Skipped", "", {}, MARKED.format(""), "FAILED"),  # the mark came from elsewhere
        ("Skipped", "", {"given": True}, MARKED.format(""), "SKIPPED"),  # from a hook of the task's
        ("Skipped", SHOP, {}, CALLS.format("pytest.skip('x')", "pass"), "FAILED"),
        ("Skipped", LIB, {}, CALLS.format("pass", "pass"), "SKIPPED"),
        ("Skipped", LIB, {"sure": False}, CALLS.format("pass", "pass"), "FAILED"),  # somebody took its name
        ("XFailed", TEST, {}, CALLS.format("pytest.xfail('x')", "pass"), "XFAIL"),
        ("XFailed", TEST, {}, CALLS.format("pass", "pytest.xfail('x')"), "FAILED"),
        ("XFailed", SHOP, {}, CALLS.format("pytest.xfail('x')", "pass"), "FAILED"),
        ("AssertionError", SHOP, {}, MARKED.format("@pytest.mark.xfail"), "XFAIL"),
        ("AssertionError", SHOP, {}, MARKED.format("") + "\n\n@pytest.mark.xfail\ndef test_no(): 0\n", "FAILED"),
    ],
)
def test_only_the_tests_may_skip_or_expect_a_failure(raised, origin, more, text, status, tmp_path):
    xfail = raised != "Skipped"
    test = "tests/test_a.py::test_t"
    report = junit(t="SKIPPED").replace(b'classname="a" name="t"', b'classname="tests.test_a" name="test_t"')
    channel = read(
        stream(session(phases(test, "skipped", raised, origin, "why", xfail, **more), report=report)),
        base=tmp_path,
        changed=["shop.py"],
        protected=["tests/test_a.py"],
        texts={"tests/test_a.py": text},
    )
    assert channel.forged == []
    assert channel.results[test].status == status


@pytest.mark.parametrize(
    "message",
    [
        ("phase", "t"),
        ("end", "x"),
        ("phase", 1, *phases("t")),
        ("unheard of",),
        ("changed", "a", None),
        ("act", [], "", ""),
    ],
)
def test_a_signed_message_of_another_shape_is_no_message(message):
    channel = read(stream(session(phases("a.py::t"), report=junit(t="PASSED"), extra=[message])))
    assert "does not send" in channel.forged[0]


def longer(first=1, *, second=2):
    return first + second


@pytest.mark.parametrize("part", ["__code__", "__defaults__", "__kwdefaults__", "name", "gone", "method"])
def test_the_runners_functions_are_compared_by_identity(part, monkeypatch):
    machinery = Machinery(
        Trust(Origin(str(Path(__file__).parent), [sys.base_prefix, sys.prefix], ()), lambda code: False)
    )
    assert machinery.changes(True) == []
    function = unittest.util.safe_repr
    if part == "name":
        monkeypatch.setattr(unittest.util, "safe_repr", longer)
    elif part == "gone":
        monkeypatch.delattr(unittest.util, "safe_repr")
    elif part == "method":
        monkeypatch.setattr(unittest.TestCase, "assertEqual", longer)
    else:
        monkeypatch.setattr(function, part, getattr(longer, part))
    found = dict(machinery.changes(True))
    assert all(("assertEqual" if part == "method" else "safe_repr") in name for name in found)
    assert "unittest.case.TestCase.assertEqual" in found or any("unittest.util.safe_repr" in name for name in found)
    assert {*found.values()} == {__file__ if part in ("__code__", "name", "method") else ""}
    monkeypatch.undo()
    assert machinery.changes(True) == []
