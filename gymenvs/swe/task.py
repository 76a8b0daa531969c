"""A task: a repository with a bug, what is said of it, and the tests that tell whether it is fixed.

    task = SWETask.from_json(text)
    task.fail_to_pass  # tests that fail before the fix and pass after it

A task only describes. `repository.prepare` makes the agent's starting folder and fills in what is derived (gold patch
of a reversed bug, hidden test files); `grading` judges; `formats` reads the public data sets into tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from rtmc.gymenvs.swe import checks
from rtmc.gymenvs.swe.sources import (
    Clone,
    Embedded,
    Folder,
    Image,
    Sdist,
    SdistFix,
    Source,
    part_from_json,
    part_json,
    source_from_json,
    source_json,
)

__all__ = ["TEST_PARSERS", "Clone", "Embedded", "Folder", "Image", "SWETask", "Sdist", "SdistFix", "Source"]

TEST_PARSERS = ("pytest", "r2e", "unittest", "django", "sympy")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class SWETask:
    """One task. Immutable: its mappings are copies and are not to be changed; picklable; JSON by `to_json`.

    Attributes:
        task_id: unique in its set.
        problem_statement: what the agent is told; may be empty in SWE-smith's sets.
        fail_to_pass: ids of tests that fail before the fix and have to pass after it, as the test runner prints them
            (some of SWE-bench's are cut off; the grader matches those by their beginning).
        pass_to_pass: ids of tests that pass before and have to go on passing.
        expected: test name -> status, for R2E-Gym's rule: the run must give exactly this map. Then `fail_to_pass` and
            `pass_to_pass` are empty.
        patch: the gold patch, a unified diff with `a/` and `b/`; "" = unknown.
        bug_patch: applied to the source's files to make the agent's tree (SWE-smith); the gold patch is its reverse,
            which a prepared task has in `patch`.
        test_patch: a unified diff of the tests that belong to the fix, applied to the tree for grading.
        test_files: path -> content of files laid over the tree for grading; they replace what the agent has there.
        hidden_files: paths (files or folders) that the agent's tree lacks. What the source has there is laid back for
            grading.
        test_command: the whole command that runs the tests, in a shell at the tree's top; "" = pytest on the files
            that the test ids name.
        test_parser: how the output of the command is read, one of `TEST_PARSERS`.
        source: where the files come from.
        fix: where the gold patch and the hidden tests come from, if they are those of a later release.
        difficulty: as the set calls it; "" = not told.
        repo, base_commit: `owner/name` and the commit; "" = none.
        python_packages: distributions that the tests need beside pytest, by their installed names.
        setup_command: run once in the sandbox when the tree is made, before the agent sees it; "" = none.
        env: variables of the sandbox.
        timeout_s: seconds that the tests may run.
        setup_timeout_s: seconds that `setup_command` may run.
        meta: whatever else is known of the task; a JSON object.

    Raises:
        ValueError: a field is missing, of another type, or contradicts another; the message names task and field.
    """

    task_id: str
    problem_statement: str
    source: Source
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    expected: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""
    bug_patch: str = ""
    test_patch: str = ""
    test_files: Mapping[str, str | bytes] = field(default_factory=dict)
    hidden_files: tuple[str, ...] = ()
    test_command: str = ""
    test_parser: str = "pytest"
    fix: SdistFix | None = None
    difficulty: str = ""
    repo: str = ""
    base_commit: str = ""
    python_packages: tuple[str, ...] = ()
    setup_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    setup_timeout_s: float = 600.0
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.text(self.task_id, "SWETask: field `task_id`", filled=True)
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name), self._at(name)))
        if not isinstance(self.source, Source):
            raise checks.fault(self._at("source"), "Embedded, Folder, Clone, Sdist or Image", self.source)
        if self.fix is not None and not isinstance(self.fix, SdistFix):
            raise checks.fault(self._at("fix"), "an SdistFix or None", self.fix)
        if self.test_parser not in TEST_PARSERS:
            raise checks.fault(self._at("test_parser"), f"one of {', '.join(TEST_PARSERS)}", self.test_parser)
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise checks.fault(self._at("env"), "names of variables", name)
        self._check_tests()

    def _check_tests(self) -> None:
        if self.expected:
            if self.fail_to_pass or self.pass_to_pass:
                raise ValueError(f"{self._at('expected')}: it stands beside fail_to_pass or pass_to_pass; wanted one")
        elif not self.fail_to_pass:
            raise ValueError(f"{self._at('fail_to_pass')}: wanted at least one test, got none")
        both = set(self.fail_to_pass) & set(self.pass_to_pass)
        if both:
            raise ValueError(f"{self._at('pass_to_pass')}: {min(both)!r:.120} stands in fail_to_pass as well")
        if self.fix is not None and (self.patch or self.bug_patch):
            raise ValueError(f"{self._at('fix')}: it stands beside a patch; wanted one of them")

    def _at(self, name: str) -> str:
        return f"SWETask {self.task_id!r:.80}: field `{name}`"

    def __hash__(self) -> int:
        return hash(self.task_id)

    def replace(self, **changes: Any) -> SWETask:
        """The task with other values in the named fields. Raises as the class does."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back; fields at their defaults are left out."""
        values: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if value == default:
                continue
            if one.name == "source":
                value = source_json(value)
            elif one.name == "fix":
                value = part_json(value)
            elif one.name == "test_files":
                value = checks.files_json(value)
            elif one.name == "meta":
                value = json.loads(json.dumps(value))  # a copy all the way down
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            values[one.name] = value
        return values

    @classmethod
    def from_json(cls, value: str | bytes | Mapping[str, Any], where: str = "SWETask") -> SWETask:
        """The task of a JSON object, or of its text.

        Args:
            value: as `to_json` gives it; texts of files may also be lists of lines (`text.split("\\n")`).
            where: begins every message: the file and the record, for instance.

        Raises:
            ValueError: it is none; the field is named.
        """
        if isinstance(value, (str, bytes)):
            value = checks.read_json(value, where)
        values = dict(checks.record(value, where))
        required = ("task_id", "problem_statement", "source")
        checks.known_keys(values, where, [one.name for one in fields(cls)], required)
        values["source"] = source_from_json(values["source"], f"{where}: field `source`")
        if values.get("fix") is not None:
            values["fix"] = part_from_json(SdistFix, values["fix"], f"{where}: field `fix`")
        for name in ("problem_statement", "patch", "bug_patch", "test_patch"):
            if isinstance(values.get(name), list):
                values[name] = "\n".join(checks.texts(values[name], f"{where}: field `{name}`"))
        try:
            return cls(**values)
        except ValueError as error:
            message = str(error)
            raise ValueError(message if where == "SWETask" else f"{where}: {message}") from None


_CHECKS: dict[str, Any] = {
    **dict.fromkeys(
        ("problem_statement", "patch", "bug_patch", "test_patch", "test_command", "test_parser", "difficulty", "repo"),
        checks.text,
    ),
    **dict.fromkeys(("base_commit", "setup_command"), checks.text),
    **dict.fromkeys(("fail_to_pass", "pass_to_pass"), checks.test_ids),
    "python_packages": checks.names,
    **dict.fromkeys(("expected", "env"), checks.text_map),
    **dict.fromkeys(("timeout_s", "setup_timeout_s"), checks.seconds),
    "test_files": checks.files,
    "hidden_files": checks.paths,
    "meta": lambda got, where: checks.plain(checks.record(got, where), where),
}
