"""The signed messages of the guard, read and judged outside the sandbox."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtmc.gymenvs.swe.grading.canary import Canary
from rtmc.gymenvs.swe.grading.claims import Claims
from rtmc.gymenvs.swe.grading.junit import parse_junit
from rtmc.gymenvs.swe.grading.report import BADNESS, TestResult
from rtmc.gymenvs.swe.grading.watch import LIBRARY_PART
from rtmc.gymenvs.swe.tree import IGNORED

__all__ = ["STOPPED", "Channel", "read_channel"]

# What traces a test can alter its variables: acts that only a tracer's own code may do.
_TRACING = {
    "sys.settrace": "settrace",
    "sys.setprofile": "setprofile",
    "sys.monitoring.register_callback": "monitoring",
}
_PHASES = ("setup", "call", "teardown")
# What each message holds. Who can sign can send anything: it has to be read all the same.
_SHAPES: dict[str, tuple[type | tuple[type, ...], ...]] = {
    "start": (str, str, list),
    "collected": (list,),
    "running": (str,),
    "phase": (str, str, str, bool, str, str, bool, bool, str, (int, float)),
    "log": (str, str, str, bool, bool),
    "collect_error": (str, str),
    "collect_skip": (str, str),
    "act": (str, str, str),
    "changed": (str, str),
    "fault": (str,),
    "internal_error": (str,),
    "interrupted": (str,),
    "no_runner": (str,),
    "junit": (str,),
    "end": (int,),
}
_PART = "a subtest failed"
STOPPED = "the code under test"  # begins the message of a result that the grader itself made a failure


def _messages(data: bytes, key: bytes) -> Iterator[list[Any] | str]:
    """Each line's values, or what is wrong with it. Stops at the first fault: what follows has no order."""
    signer = hmac.new(key, digestmod=hashlib.sha256)
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        body, _, signature = line.rpartition(b" ")
        signed = signer.copy()
        signed.update(body)
        if not hmac.compare_digest(signed.hexdigest().encode(), signature):
            yield "the channel of results holds a line that the runner did not write"
            return
        message = json.loads(body)
        if not isinstance(message, list) or message[:1] != [number]:
            yield "a result was sent twice or is missing from the channel"
            return
        kind, *values = message[1:] or ["?"]
        shape = _SHAPES.get(kind) if isinstance(kind, str) else None
        if shape is None or len(shape) != len(values) or not all(map(isinstance, values, shape)):
            yield "the channel of results holds a message that the runner does not send"
            return
        yield message[1:]
    if lines[-1]:  # cut off: the process was stopped while it wrote, or wrote without signing
        yield "cut"


@dataclass(slots=True)
class _Test:
    """One run of a test. parts: what its subtests ended with, each as the values of a phase, success left out."""

    phases: dict[str, list[Any]] = field(default_factory=dict)
    logged: dict[str, list[Any]] = field(default_factory=dict)
    parts: list[list[Any]] = field(default_factory=list)


@dataclass(slots=True)
class Channel:
    """What the messages say, canaries taken out and judged.

    Attributes:
        results, collection_errors, running, forged, suspicions: as in `TestReport`.
        status: the exit status of the session; None = it did not end.
        fault: why the runner could not do its work; "" = it could.
        interrupted: what broke the session off from inside; "" = nothing did.
    """

    results: dict[str, TestResult] = field(default_factory=dict)
    collection_errors: dict[str, str] = field(default_factory=dict)
    running: str = ""
    forged: list[str] = field(default_factory=list)
    suspicions: list[str] = field(default_factory=list)
    status: int | None = None
    fault: str = ""
    interrupted: str = ""
    facts: dict[str, str] = field(default_factory=dict)


def read_channel(
    data: bytes,
    key: bytes,
    *,
    inside: str,
    canaries: Sequence[Canary] = (),
    base: Path | None = None,
    changed: Collection[str] = (),
    protected: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
) -> Channel:
    """The report of one run, from what came out of the channel.

    Args:
        data: the bytes.
        key: the key of this run.
        inside: where the tree lay in the sandbox.
        canaries: the files of tests that have to fail.
        base: the tree as the agent got it; None = nobody is suspected, acts are only told.
        changed: paths in the tree that the agent made or changed, tests restored by the grader not among them.
        protected: paths of the tests and of what belongs to them, as the grader laid them.
        texts: path -> text of the protected Python files, as they lay before the run.
    """
    channel = Channel()
    tests: dict[str, list[_Test]] = {}
    junit: list[str] = []
    acts: list[tuple[str, str, str]] = []
    swapped: list[tuple[str, str]] = []
    files = {canary.path for canary in canaries}
    libraries: tuple[str, ...] = ()
    for message in _messages(data, key):
        if message == "cut":
            continue  # without an end the run counts as broken off anyway
        if isinstance(message, str):
            channel.forged.append(message)
            break
        kind, *values = message
        if kind == "phase":
            tests.setdefault(values[0], [_Test()])[-1].phases[values[1]] = values[2:]
        elif kind == "log":
            _log(tests.setdefault(values[0], [_Test()])[-1], values[1:])
        elif kind == "running":
            channel.running = values[0] if values[0].split("::")[0] not in files else ""
            tests.setdefault(values[0], []).append(_Test())  # an id may come twice
        elif kind == "collect_error":
            channel.collection_errors[values[0]] = values[1]
        elif kind == "junit":
            junit.append(values[0])
        elif kind == "act":
            acts.append((values[0], values[1], values[2]))
        elif kind == "changed":
            swapped.append((values[0], values[1]))
        elif kind == "internal_error":
            channel.fault = "the test runner broke: " + (values[0].strip().splitlines() or [""])[-1][:300]
        elif kind == "interrupted":
            channel.interrupted = str(values[0])
        elif kind == "no_runner":
            channel.fault = f"pytest cannot be imported by the task's Python: {values[0]}"
        elif kind == "start":
            channel.facts = {"pytest": values[0], "python": values[1]}
            libraries = tuple(f"{one}/" for one in values[2])
        elif kind == "end":
            channel.status = values[0]
    for path in files & channel.collection_errors.keys():  # what stood in a canary's way is told without its name
        text = channel.collection_errors.pop(path)
        if not channel.collection_errors:
            channel.collection_errors[""] = text
    texts = texts or {}
    claims = Claims(texts, base, changed)
    text = "\n".join(texts.values())
    places = _Places(inside, base, frozenset(changed), frozenset(protected), text, libraries, claims)
    outcomes = {name: _worst([_outcome(name, run, places) for run in runs]) for name, runs in tests.items()}
    for name, (result, fault) in outcomes.items():
        if fault:
            channel.forged.append(f"{name}: {fault}")
        if result is not None and name.split("::")[0] not in files:
            channel.results[name] = result
    if channel.status is not None and not channel.interrupted:
        channel.running = ""
        _judge_canaries(channel, canaries, {name: result for name, (result, _) in outcomes.items()})
        parts = {
            name: {_status("call", *part[:2]) for run in runs for part in run.parts} for name, runs in tests.items()
        }
        _compare_junit(channel, junit, parts)
        if channel.status == 1 and not channel.collection_errors:
            real = any(one.status in ("FAILED", "ERROR") for one in channel.results.values())
            channel.status = 1 if real else 0  # the canaries alone failed
    _judge_acts(channel, acts, swapped, places)
    return channel


def _log(test: _Test, values: list[Any]) -> None:
    when, outcome, wasxfail, part = values
    if part:  # a subtest, whose phase came just before
        ended = test.phases.pop(when, None)
        if outcome != "passed":
            test.parts.append([outcome, wasxfail, *(ended[2:] if ended else ["", "", False, False, "", 0.0])])
        return
    test.logged[when] = [outcome, wasxfail]


@dataclass(frozen=True, slots=True)
class _Places:
    """Whose a file is. Python lets code name any file as its own, so that a word in the test's text has to bear out
    what is said to come from a test."""

    inside: str
    base: Path | None
    changed: frozenset[str]
    protected: frozenset[str]
    text: str
    libraries: tuple[str, ...]
    claims: Claims

    def path(self, file: str) -> str:
        """The path in the tree, or the absolute one outside it."""
        return file[len(self.inside) + 1 :] if file.startswith(self.inside + "/") else file

    def says(self, test: str, *words: str) -> bool:
        """Whether what belongs to the test has one of the words."""
        return self.base is None or self.claims.says(test, *words)

    def had(self, file: str, word: str) -> bool:
        """Whether the file held the word already as the task began: a tracer is a tracer's own affair."""
        path = self.path(file)
        if self.base is None or os.path.isabs(path) or not (self.base / path).is_file():
            return False
        return word in (self.base / path).read_text("utf-8", "replace")

    def is_test(self, file: str) -> bool:
        return self.path(file) in self.protected

    def is_honest(self, file: str, *words: str) -> bool:
        """Whether the file is a test's (and one of the words stands in the tests), a library's, or as the task began.

        A file that cannot be told is not.
        """
        path = self.path(file)
        if self.base is None:
            return True
        if path in self.protected:
            return not words or any(word in self.text for word in words)
        if file.startswith(self.libraries):
            return True
        ours = not os.path.isabs(path) and IGNORED.isdisjoint(path.split("/"))
        return ours and path not in self.changed and (self.base / path).is_file()


def _outcome(name: str, test: _Test, places: _Places) -> tuple[TestResult | None, str]:
    """The result of one test (None = it did not run to its end), and the sign that it was forged."""
    if "teardown" not in test.phases or ("call" not in test.phases and test.phases.get("setup", ["?"])[0] == "passed"):
        return None, ""
    seconds = sum(float(phase[7]) for phase in test.phases.values())
    result = TestResult("PASSED", seconds=seconds)
    for when in _PHASES:
        if when not in test.phases:
            continue
        outcome, wasxfail, raised = test.phases[when][:3]
        if test.logged.get(when, [outcome, wasxfail]) != [outcome, wasxfail]:
            return None, "its outcome was altered after the test had run"
        if outcome == "passed" and raised:
            return None, f"{raised} was raised and yet the test is said to have passed"
        if outcome == "passed" and not wasxfail:
            continue
        result = _ended(name, when, test.phases[when], seconds, places)
    for part in test.parts if result.status == "PASSED" else ():
        # As pytest has it: its failure is the test's, its skip leaves the test a pass. Whose skip it is counts here.
        ended = _ended(name, "call", part, seconds, places)
        if ended.status == "FAILED":
            return TestResult("FAILED", ended.message if ended.message.startswith(STOPPED) else _PART, seconds), ""
    return result, ""


def _ended(name: str, when: str, phase: list[Any], seconds: float, places: _Places) -> TestResult:
    """What a phase that did not simply pass makes of a test."""
    outcome, wasxfail, raised, origin, sure, given, message, _ = phase
    status = _status(when, outcome, wasxfail)
    # A skip counts as maintained and an expected failure as a pass: neither is for the code under test to say.
    words = {"SKIPPED": ("skip", "Skip"), "XFAIL": ("xfail", "expectedFailure")}.get(status, ())
    place = places.path(origin) if words else ""
    if words and places.base is not None and not given:
        stopped = status == "SKIPPED" or raised == "XFailed"
        if stopped and origin and not (sure and places.is_honest(origin)):
            status, message = "FAILED", f"{STOPPED} ({place}) stopped the test\n{message}"
        elif not (stopped and origin and not places.is_test(origin)) and not places.says(name, *words):
            what = "that is skipped" if status == "SKIPPED" else "that fails"
            status, message = "FAILED", f"{STOPPED} marked the test as one {what}\n{message}"
    return TestResult(status, message, seconds, place)


def _worst(runs: list[tuple[TestResult | None, str]]) -> tuple[TestResult | None, str]:
    """Of the runs of one id, as a report of several entries reads: the worst result, None if one did not end."""
    fault = next((fault for _, fault in runs if fault), "")
    results = [result for result, _ in runs if result is not None]
    return (max(results, key=lambda one: BADNESS[one.status]) if len(results) == len(runs) else None), fault


def _status(when: str, outcome: str, wasxfail: bool) -> str:
    if outcome == "skipped":
        return "XFAIL" if wasxfail else "SKIPPED"
    if outcome == "passed":
        return "XPASS"
    return "FAILED" if when == "call" else "ERROR"


def _judge_canaries(channel: Channel, canaries: Sequence[Canary], outcomes: dict[str, TestResult | None]) -> None:
    if channel.status not in (0, 1) and not channel.results:
        return  # no test ran at all: there is nothing to believe
    for canary in canaries:
        found = {name.rpartition("::")[2]: one for name, one in outcomes.items() if name.startswith(canary.path + "::")}
        for ending, token in canary.tokens.items():
            result = next((one for name, one in found.items() if name.endswith(ending)), None)
            if result is None:
                said = "was not run"
            elif result.status in ("FAILED", "ERROR"):
                if result.status == "ERROR" or token in result.message:
                    continue
                said = "failed without its own message"
            else:
                said = f"is reported as {result.status}"
            channel.forged.append(f"a test that must fail {said}")
            return


def _compare_junit(channel: Channel, pieces: list[str], parts: Mapping[str, Collection[str]]) -> None:
    """Signed results against pytest's own report: two ways from the same run have to agree.

    parts: what subtests ended with. The report has one entry for a test, which says what was worst in it.
    """
    if channel.fault or (channel.status not in (0, 1) and not channel.results):
        return
    if not pieces:
        channel.forged.append("the JUnit report is missing")
        return
    try:
        written = parse_junit(b"".join(base64.b64decode(piece) for piece in pieces), channel.results)
    except (ValueError, binascii.Error) as error:
        channel.forged.append(f"the JUnit report cannot be read: {error}")
        return
    good = ("PASSED", "XFAIL", "XPASS", "SKIPPED")
    for name, result in channel.results.items():
        if result.message.startswith(STOPPED):
            continue  # the grader's own judgement, of which pytest knows nothing
        status = written.get(name, ("",))[0]
        part = status in parts.get(name, ()) and status in ("SKIPPED", "XFAIL")
        if not status or (result.status == "PASSED" and status != "PASSED" and not part):
            channel.forged.append(f"{name}: the JUnit report says {status or 'nothing'}, the run {result.status}")
            return
        if status in good and result.status not in good and result.message != _PART:
            channel.forged.append(f"{name}: the JUnit report says {status}, the run {result.status}")
            return


def _judge_acts(
    channel: Channel, acts: list[tuple[str, str, str]], swapped: list[tuple[str, str]], places: _Places
) -> None:
    """Which acts void the report, and which are only told.

    They void it where code that the agent wrote, or code that cannot be traced, altered the runner or a test.
    """
    for event, what, file in acts:
        text = f"{places.path(file) or 'something'}: {event}" + ("" if what == "called" else f" on {places.path(what)}")
        words = ("__code__",) if event == "object.__setattr__" else ()
        word = _TRACING.get(event, "")
        # A finalizer of the code under test runs in whatever frame is there: a test traces where its text says so.
        words = (word,) if word else words
        voids = (what != "called" or bool(word)) and not places.is_honest(file, *words)
        if word and (not file or places.had(file, word)):
            voids = False
        (channel.forged if voids else channel.suspicions).append(text)
    for name, file in swapped:
        text = f"{name} is no longer the runner's own" + (f", but of {places.path(file)}" if file else "")
        label = name.removesuffix(".__code__").removesuffix(".__defaults__").rpartition(".")[2]
        honest = places.is_honest(file, label) and (places.base is None or not _is_runner(file))
        if name.startswith(LIBRARY_PART):
            text = f"{name} is no longer its own" + (f", but of {places.path(file)}" if file else "")
            honest = honest or places.had(file, ".".join(name[len(LIBRARY_PART) :].split(".")[-2:]))  # as before
        (channel.suspicions if honest else channel.forged).append(text)


def _is_runner(file: str) -> bool:
    return file.startswith("<") or any(f"/{part}/" in file for part in ("_pytest", "pytest", "pluggy", "unittest"))
