"""Reading a JUnit XML report as pytest writes it.

Not the report that decides: code under test runs beside its writer and can rewrite the file. It is compared with the
signed results, and read where a report comes from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

__all__ = ["junit_name", "parse_junit"]

_ESCAPED = re.compile(r"#x([0-9A-F]{2,8})")
_LIMIT = 256 << 20


def junit_name(test: str) -> tuple[str, str]:
    """(classname, name) under which pytest's report shows a test: `a/test_b.py::C::t[1]` is (`a.test_b.C`, `t[1]`)."""
    path, *inner = _split(test)
    module = path.removesuffix(".py").replace("/", ".")
    return ".".join([module, *inner[:-1]]), _escaped(inner[-1] if inner else "")


def _split(test: str) -> list[str]:
    """A pytest id cut at `::`, the parameter left whole."""
    head, bracket, parameter = test.partition("[")
    parts = head.split("::")
    parts[-1] += bracket + parameter
    return parts


def _escaped(text: str) -> str:
    """Characters that XML 1.0 cannot hold, as pytest writes them."""

    def code(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"#x{number:02X}" if number <= 0xFF else f"#x{number:04X}"

    return re.sub("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", code, text)


def parse_junit(data: bytes, known: Iterable[str] = ()) -> dict[str, tuple[str, str]]:
    """id -> (status, message) of the report's test cases.

    A test with several entries (a failed call and a failed teardown) has the worst. Statuses are PASSED, FAILED,
    ERROR, SKIPPED and XFAIL.

    Args:
        data: the report.
        known: ids of tests that may stand in it. The report writes `a.test_b.C` for both `a/test_b.py::C` and
            `a/test_b/C.py`; a name that belongs to a known id is that id, any other is read by its `file` attribute
            or, without one, by the first part that begins with a capital as the class.

    Raises:
        ValueError: it is no JUnit report, or declares entities.
    """
    if len(data) > _LIMIT:
        raise ValueError(f"parse_junit: the report has {len(data)} bytes; at most {_LIMIT} are read")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("parse_junit: the report declares entities; pytest's reports have none")
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ValueError(f"parse_junit: this is no XML report: {error}") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise ValueError(f"parse_junit: wanted <testsuites> or <testsuite>, got <{root.tag}>")
    by_name = {junit_name(test): test for test in known}
    found: dict[str, tuple[str, str]] = {}
    for case in root.iter("testcase"):
        classname, name = case.get("classname") or "", case.get("name") or ""
        test = by_name.get((classname, name)) or _test_id(classname, name, case.get("file"))
        status, message = _outcome(case)
        if test not in found or _WORSE.index(status) > _WORSE.index(found[test][0]):
            found[test] = (status, message)
    return found


_WORSE = ("PASSED", "XFAIL", "SKIPPED", "FAILED", "ERROR")


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for tag, status in (("error", "ERROR"), ("failure", "FAILED"), ("skipped", "SKIPPED")):
        entry = case.find(tag)
        if entry is not None:
            if entry.get("type") == "pytest.xfail":
                status = "XFAIL"
            return status, entry.get("message") or entry.text or ""
    return "PASSED", ""


def _test_id(classname: str, name: str, file: str | None) -> str:
    name = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name) if "#x" in name else name
    parts = classname.split(".") if classname else []
    if file:
        module = len(file.removesuffix(".py").split("/"))
        return "::".join([file, *parts[module:], name])
    if not parts:  # an error of collection: the name is that of the module
        return name.replace(".", "/") + ".py"
    at = next((i for i, part in enumerate(parts) if i and part[:1].isupper()), len(parts))
    return "::".join(["/".join(parts[:at]) + ".py", *parts[at:], name])
