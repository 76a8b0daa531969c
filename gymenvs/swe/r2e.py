"""R2E-Gym's records: a commit of a repository as JSON, and the outcome that its tests must have.

Its rule is another than SWE-bench's: the run's map of test names to statuses has to equal `expected_output_json`. The
names are those of the run, so they lose their colours and what stands after " - " here as they do there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rtmc.gymenvs.swe import checks
from rtmc.gymenvs.swe.sources import Image

HIDDEN = ("run_tests.sh", "r2e_tests")  # what the images keep from the agent
STATUSES = ("PASSED", "FAILED", "ERROR")  # those that its rule reads from a run
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


def read_r2e(record: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `SWETask`. Raises ValueError that names the field."""
    commit = checks.text(record.get("commit_hash"), "field `commit_hash`", filled=True)
    name = record.get("repo_name", record.get("repo"))
    repo = checks.text(name, "field `repo_name`", filled=True)
    parsed = _object(record.get("parsed_commit_content"), "field `parsed_commit_content`")
    run = _object(record.get("execution_result_content"), "field `execution_result_content`")
    base = parsed.get("old_commit_hash") or f"{commit}^"
    base = checks.text(base, "field `parsed_commit_content`.old_commit_hash")
    image = checks.text(record.get("docker_image") or "", "field `docker_image`")
    return {
        "task_id": checks.text(
            record.get("instance_id") or f"{repo}__{commit[:10]}", "field `instance_id`", filled=True
        ),
        "problem_statement": checks.text(record.get("problem_statement"), "field `problem_statement`", filled=True),
        "expected": _expected(record.get("expected_output_json")),
        "patch": _patch(parsed.get("file_diffs")),
        "test_files": _tests(run),
        "hidden_files": HIDDEN,
        "test_command": f"python -W ignore -m pytest -rA {HIDDEN[1]}",
        "test_parser": "r2e",
        "repo": repo,
        "base_commit": base,
        "source": Image(image, repo, base),
        "timeout_s": 300.0,
        "meta": {"format": "r2e-gym", "fix_commit": commit, "image": image},
    }


def _object(value: Any, where: str) -> Mapping[str, Any]:
    """A field that is the JSON text of an object, or the object; nothing reads as an empty one."""
    if value is None or value == "":
        return {}
    return checks.record(checks.read_json(value, where) if isinstance(value, str) else value, where)


def _expected(value: Any) -> dict[str, str]:
    where = "field `expected_output_json`"
    found = checks.text_map(_object(value, where), where)
    if not found:
        raise checks.fault(where, "an object of test names and statuses, or its JSON text", value)
    for name, status in found.items():
        if status not in STATUSES:
            raise checks.fault(f"{where}[{name!r:.60}]", f"one of {', '.join(STATUSES)}", status)
    bare = {_COLOUR.sub("", name): status for name, status in found.items()}
    return {name.split(" - ")[0]: bare[name] for name in sorted(bare)}


def _tests(run: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The hidden tests, which the record of their run holds."""
    where = "field `execution_result_content`"
    names = checks.texts(run.get("test_file_names") or (), f"{where}.test_file_names")
    codes = checks.texts(run.get("test_file_codes") or (), f"{where}.test_file_codes")
    if len(names) != len(codes):
        raise ValueError(f"{where}: {len(names)} test_file_names and {len(codes)} test_file_codes")
    folder = HIDDEN[1]
    return checks.files(
        {
            (one if one.startswith(f"{folder}/") else f"{folder}/{one}"): code
            for one, code in zip(names, codes, strict=True)
        },
        f"{where}.test_file_names",
    )


def is_test(path: str) -> bool:
    """Whether R2E-Gym counts a file of a commit among the tests."""
    *folders, name = path.split("/")
    return (
        name.startswith("test_")
        or name.endswith("_test.py")
        or bool({"test", "tests", "Test", "Tests"} & {*folders, name})
    )


def _patch(diffs: Any) -> str:
    """The commit's patch without its tests; binary files, whose content the record lacks, are left out."""
    where = "field `parsed_commit_content`.file_diffs"
    if diffs is None:
        return ""
    if not isinstance(diffs, list):
        raise checks.fault(where, "a list", diffs)
    parts: list[str] = []
    for k, one in enumerate(diffs):
        at = f"{where}[{k}]"
        one = checks.record(one, at)
        header = checks.record(one.get("header"), f"{at}.header")
        path = checks.text(checks.record(header.get("file"), f"{at}.header.file").get("path"), f"{at}.header.file.path")
        if is_test(path) or one.get("is_binary_file"):
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if header.get("misc_line"):
            parts.append(checks.text(header["misc_line"], f"{at}.header.misc_line") + "\n")
        sides = [one.get("minus_file"), one.get("plus_file")]
        if None not in sides:
            names = [checks.text(checks.record(side, at).get("path"), f"{at}: path of a side") for side in sides]
            parts += [f"--- {names[0]}\n", f"+++ {names[1]}\n"]
        hunks = one.get("hunks") or []
        if not isinstance(hunks, list):
            raise checks.fault(f"{at}.hunks", "a list", hunks)
        for n, hunk in enumerate(hunks):
            parts += _hunk(hunk, f"{at}.hunks[{n}]")
    return "".join(parts)


def _hunk(hunk: Any, where: str) -> list[str]:
    hunk = checks.record(hunk, where)
    descriptor = checks.record(hunk.get("descriptor"), f"{where}.descriptor")
    ranges = []
    for side in ("old_range", "new_range"):
        span = checks.record(descriptor.get(side), f"{where}.descriptor.{side}")
        start, length = span.get("start"), span.get("length")
        if type(start) is not int or (length is not None and type(length) is not int):
            raise checks.fault(f"{where}.descriptor.{side}", "integers `start` and `length`", dict(span))
        ranges.append(str(start) if length is None else f"{start},{length}")
    section = checks.text(descriptor.get("section") or "", f"{where}.descriptor.section")
    lines = checks.record(hunk.get("line_group"), f"{where}.line_group").get("all_lines")
    if not isinstance(lines, list):
        raise checks.fault(f"{where}.line_group.all_lines", "a list", lines)
    written = [f"@@ -{ranges[0]} +{ranges[1]} @@{' ' + section if section else ''}\n"]
    for k, line in enumerate(lines):
        at = f"{where}.line_group.all_lines[{k}]"
        line = checks.record(line, at)
        kind = line.get("type")
        if not isinstance(kind, str) or kind not in _SIGNS:
            raise checks.fault(f"{at}.type", f"one of {', '.join(_SIGNS)}", kind)
        written.append(_SIGNS[kind] + checks.text(line.get("content"), f"{at}.content") + "\n")
    return written
