"""The records of the public SWE data sets: which fields tell them apart, and what a task takes from each.

A schema's `read` gives the arguments of `SWETask`. Test ids stay as the sets have them (676 of Verified's are cut off
in the middle; the grader matches those by their beginning); ids that come twice are taken once, and one that has to
pass anyway is not listed again among those that have to go on passing.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rtmc.gymenvs.swe import checks, patchtext
from rtmc.gymenvs.swe.r2e import read_r2e
from rtmc.gymenvs.swe.sources import Image, commit_name

Record = Mapping[str, Any]

_SWE_BENCH = (
    "astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask", "psf/requests",
    "pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest", "scikit-learn/scikit-learn", "sphinx-doc/sphinx",
    "sympy/sympy",
)  # fmt: skip
_META = (
    "hints_text", "created_at", "version", "environment_setup_commit", "license_name", "install_config", "requirements",
    "environment", "FAIL_TO_FAIL", "PASS_TO_FAIL", "strategy", "meta",
)  # fmt: skip
_TIMEOUT_S = 1800.0  # SWE-bench's own default for one instance


class Schema(NamedTuple):
    """`matches`: whether a record is of this kind, by its fields; `read`: what it says; `needs`: the fields that every
    record of the kind has."""

    matches: Callable[[Record], bool]
    read: Callable[[Record], dict[str, Any]]
    needs: tuple[str, ...]


def detect(record: Record, where: str) -> str:
    """The first schema that the record matches. Raises ValueError where there is none; the field that is missing is
    named where the record has most of a schema's."""
    for name, schema in SCHEMAS.items():
        if schema.matches(record):
            return name
    missing = {name: [one for one in schema.needs if one not in record] for name, schema in SCHEMAS.items()}
    name = min(missing, key=lambda one: len(missing[one]) / len(SCHEMAS[one].needs))
    if len(missing[name]) <= len(SCHEMAS[name].needs) / 2:
        listed = ", ".join(f"`{one}`" for one in missing[name])
        alike = [one for one, lacking in missing.items() if lacking == missing[name]]
        raise ValueError(f"{where}: missing of what a record of {' or '.join(alike)} has: {listed}")
    shown = ", ".join(f"{name!r:.40}" for name in list(record)[:12])
    raise ValueError(
        f"{where}: fields {shown or '(none)'} are those of no known task set; known are {', '.join(SCHEMAS)}"
    )


def _has(*names: str) -> Callable[[Record], bool]:
    return lambda record: all(name in record for name in names)


def _text(record: Record, name: str, default: str | None = None) -> str:
    """A field's text; where it is missing or null, `default`, or ValueError where there is none."""
    value = record.get(name)
    if value is None:
        if default is None:
            raise ValueError(f"field `{name}` is missing")
        return default
    return checks.text(value, f"field `{name}`", filled=default is None)


def _tests(record: Record, name: str) -> tuple[str, ...]:
    """Test ids: a list of them, or the list's JSON text."""
    where, value = f"field `{name}`", record.get(name)
    if value is None:
        raise ValueError(f"{where} is missing")
    if isinstance(value, str):
        value = checks.read_json(value, where) if value.strip() else []
    if not isinstance(value, (list, tuple)):
        raise checks.fault(where, "a list of test ids, or the JSON text of one", value)
    return tuple(dict.fromkeys(checks.texts(value, where)))


def _outcomes(record: Record) -> dict[str, tuple[str, ...]]:
    failing = _tests(record, "FAIL_TO_PASS")
    named = set(failing)
    if not failing:
        raise ValueError("field `FAIL_TO_PASS`: wanted at least one test, got none")
    return {
        "fail_to_pass": failing,
        "pass_to_pass": tuple(one for one in _tests(record, "PASS_TO_PASS") if one not in named),
    }


def _loose(value: Any, depth: int = 70) -> Any:
    """A JSON value for `meta`: dates as text, numbers that JSON lacks as null. The task checks how deep it goes."""
    if depth and isinstance(value, Mapping):
        return {str(key): _loose(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_loose(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value


def _meta(record: Record, kind: str) -> dict[str, Any]:
    return {"format": kind, **{name: _loose(record[name]) for name in _META if record.get(name) is not None}}


def _image(record: Record) -> str:
    """The image that a record names; "" = none."""
    return _text(record, "docker_image", "") or _text(record, "image_name", "")


def _common(record: Record, kind: str, image: str) -> dict[str, Any]:
    """What SWE-bench's fields say, which most sets share."""
    repo, commit = _text(record, "repo"), commit_name(_text(record, "base_commit"), "field `base_commit`")
    return {
        "task_id": _text(record, "instance_id"),
        "problem_statement": _text(record, "problem_statement"),
        "patch": _text(record, "patch", ""),
        "test_patch": _text(record, "test_patch", ""),
        "repo": repo,
        "base_commit": commit,
        "difficulty": _text(record, "difficulty", ""),
        "source": Image(image, repo, commit),
        "timeout_s": _TIMEOUT_S,
        "meta": _meta(record, kind),
        **_outcomes(record),
    }


def _test_files(test_patch: str) -> list[str]:
    """The Python files that a test patch leaves behind. Raises ValueError that names the field."""
    try:
        after = [one.new for one in patchtext.touched(test_patch)]
    except ValueError as error:
        raise ValueError(f"field `test_patch`: {error}") from None
    return [name for name in after if name is not None and name.endswith(".py")]


def _swe_bench(record: Record) -> dict[str, Any]:
    name = _text(record, "instance_id").lower().replace("__", "_1776_")
    values = _common(record, "swe-bench", _image(record) or f"swebench/sweb.eval.x86_64.{name}:latest")
    # Two of the repositories have runners of their own; the others' tests are pytest's.
    if values["repo"] == "django/django":
        modules = (one.removeprefix("tests/").removesuffix(".py") for one in _test_files(values["test_patch"]))
        labels = [shlex.quote(one.replace("/", ".")) for one in modules]
        command = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
        values |= {"test_parser": "django", "test_command": " ".join(["python", command, *labels])}
    elif values["repo"] == "sympy/sympy":
        files = [shlex.quote(one) for one in _test_files(values["test_patch"])]
        values |= {"test_parser": "sympy", "test_command": " ".join(["python bin/test -C --verbose", *files])}
    return values


def _swe_gym(record: Record) -> dict[str, Any]:
    name = _text(record, "instance_id").lower().replace("__", "_s_")
    return _common(record, "swe-gym", _image(record) or f"xingyaoww/sweb.eval.x86_64.{name}:latest")


def _swe_rebench(record: Record) -> dict[str, Any]:
    values = _common(record, "swe-rebench", _image(record))
    config = record.get("install_config")
    if isinstance(config, str):
        config = checks.read_json(config, "field `install_config`")
    if config is None:
        return values
    where = "field `install_config`"
    config = checks.record(config, where)
    parser = checks.text(config.get("log_parser") or "parse_log_pytest", f"{where}.log_parser")
    known = {"django": "django", "sympy": "sympy", "unittest": "unittest"}
    for word in ("pytest", "seaborn", "matplotlib"):  # the latter two read pytest's lines too
        known[word] = "pytest"
    kind = next((kind for word, kind in known.items() if word in parser), None)
    if kind is None:
        raise checks.fault(f"{where}.log_parser", f"the name of a parser with one of {', '.join(known)} in it", parser)
    values["test_parser"] = kind
    command = config.get("test_cmd") or ""
    if isinstance(command, (list, tuple)):
        command = " && ".join(checks.texts(command, f"{where}.test_cmd"))
    command = checks.text(command, f"{where}.test_cmd").strip()
    if command:
        files = [shlex.quote(one) for one in _test_files(values["test_patch"])]
        values["test_command"] = " ".join([command, *files])
    variables = config.get("env_vars") or {}
    values["env"] = {
        name: checks.text(value, f"{where}.env_vars.{name}")
        for name, value in checks.record(variables, f"{where}.env_vars").items()
        if value is not None  # parquet gives every row every row's variables
    }
    return values


def _swe_smith(record: Record) -> dict[str, Any]:
    """The patch is the bug: applied to the repository it makes the agent's tree, taken back it is the fix."""
    task_id, bug = _text(record, "instance_id"), _text(record, "patch")
    repo = _text(record, "repo", "") or f"swesmith/{task_id.rpartition('.')[0]}"
    outcomes = _outcomes(record)
    try:
        gold = patchtext.reverse(bug)
    except ValueError as error:
        raise ValueError(f"field `patch`: {error}") from None
    # owner__repo.commit8: the upstream commit that the mirror was taken at
    commit = re.fullmatch(r".*\.([0-9a-f]{7,40})", repo)
    return {
        "task_id": task_id,
        "problem_statement": _text(record, "problem_statement", ""),
        "patch": gold,
        "bug_patch": bug,
        "repo": repo,
        "base_commit": commit[1] if commit else "",
        "source": Image(_text(record, "image_name", ""), repo, commit[1] if commit else ""),
        # The set leaves the failing tests in sight; here they are kept back, so that they cannot be edited.
        "hidden_files": _files_of(outcomes["fail_to_pass"]),
        "meta": _meta(record, "swe-smith"),
        **outcomes,
    }


def _files_of(tests: tuple[str, ...]) -> tuple[str, ...]:
    """The files that pytest's ids name."""
    named = (one.partition("::")[0] for one in tests if "::" in one)
    return tuple(sorted({one for one in named if one.endswith(".py")}))


def _is_smith(record: Record) -> bool:
    if not _has("instance_id", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")(record):
        return False
    repo = record.get("repo")
    return (isinstance(repo, str) and repo.startswith("swesmith/")) or (
        "test_patch" not in record and "image_name" in record
    )


def _is_rebench(record: Record) -> bool:
    fields = ("instance_id", "repo", "base_commit", "FAIL_TO_PASS")
    own = ("install_config", "FAIL_TO_FAIL", "PASS_TO_FAIL", "docker_image", "license_name")
    if not _has(*fields)(record):
        return False
    # SWE-bench's own tasks are also passed on with images of somebody else's.
    ours = isinstance(record["repo"], str) and record["repo"] in _SWE_BENCH and "install_config" not in record
    return not ours and any(name in record for name in own)


def _is_bench(record: Record) -> bool:
    if not _has("instance_id", "repo", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS")(record):
        return False
    # SWE-Gym has the same fields: the repository tells, or else that SWE-bench's lists are JSON texts.
    return record["repo"] in _SWE_BENCH or isinstance(record["FAIL_TO_PASS"], str)


_BENCH = ("instance_id", "repo", "base_commit", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS")
_SMITH = ("instance_id", "patch", "image_name", "FAIL_TO_PASS", "PASS_TO_PASS")
SCHEMAS = {
    "rtmc": Schema(_has("task_id", "source"), dict, ("task_id", "problem_statement", "source")),
    "r2e-gym": Schema(_has("commit_hash", "expected_output_json"), read_r2e, ("commit_hash", "expected_output_json")),
    "swe-smith": Schema(_is_smith, _swe_smith, _SMITH),
    "swe-rebench": Schema(_is_rebench, _swe_rebench, _BENCH),
    "swe-bench": Schema(_is_bench, _swe_bench, _BENCH),
    "swe-gym": Schema(_has("instance_id", "repo", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS"), _swe_gym, _BENCH),
}
