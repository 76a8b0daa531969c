"""The public task sets' records, made here in the shape that each set publishes."""

import datetime
import gzip
import json

import pytest

from rtmc.gymenvs.swe.formats import read_tasks, task_of
from rtmc.gymenvs.swe.schemas import SCHEMAS
from rtmc.gymenvs.swe.task import Folder, Image, SWETask

PATCH = """\
diff --git a/pkg/core.py b/pkg/core.py
index 83db48f..bf269f4 100644
--- a/pkg/core.py
+++ b/pkg/core.py
@@ -1,3 +1,3 @@ def top():
 a
-b
+c
 d
"""
TEST_PATCH = """\
diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1 +1,2 @@
 x
+y
diff --git a/tests/data/new file.json b/tests/data/new file.json
new file mode 100644
--- /dev/null
+++ b/tests/data/new file.json\t
@@ -0,0 +1 @@
+{}
diff --git a/tests/test_old.py b/tests/test_old.py
deleted file mode 100644
--- a/tests/test_old.py
+++ /dev/null
@@ -1 +0,0 @@
-z
"""
# One of Verified's ids that are cut off in the middle of a parameter.
CUT = 'tests/test_core.py::test_wrap["a'
BENCH = {
    "repo": "pydata/xarray",
    "instance_id": "pydata__xarray-1",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "It is wrong.",
    "hints_text": "",
    "created_at": "2020-01-01T00:00:00Z",
    "version": "1.0",
    "environment_setup_commit": "f" * 40,
    "FAIL_TO_PASS": json.dumps(["tests/test_core.py::test_a", CUT, CUT]),
    "PASS_TO_PASS": json.dumps(["tests/test_core.py::test_b", "tests/test_core.py::test_a"]),
}
VERIFIED = {**BENCH, "difficulty": "<15 min fix"}
GYM = {
    **BENCH,
    "repo": "getmoto/moto",
    "instance_id": "getmoto__moto-2",
    "FAIL_TO_PASS": ["tests/test_core.py::test_a"],
    "PASS_TO_PASS": [],
}
del GYM["environment_setup_commit"]
SMITH = {
    "instance_id": "un33k__slugify.dbf6161c.func_basic__abc123",
    "repo": "swesmith/un33k__slugify.dbf6161c",
    "image_name": "jyangballin/swesmith.x86_64.un33k_1776_slugify.dbf6161c",
    "patch": PATCH,
    "problem_statement": "",
    "FAIL_TO_PASS": ["tests/test_core.py::T::test_a", "tests/sub/test_d.py::test_d[a/b::c]"],
    "PASS_TO_PASS": ["tests/test_core.py::T::test_b"],
}
REBENCH = {
    **BENCH,
    "instance_id": "own__er-3",
    "repo": "own/er",
    "FAIL_TO_PASS": ["tests/test_core.py::test_a"],
    "PASS_TO_PASS": ["tests/test_core.py::test_b"],
    "FAIL_TO_FAIL": ["x"],
    "PASS_TO_FAIL": [],
    "install_config": {
        "python": "3.9",
        "install": "pip install -e .",
        "test_cmd": "pytest --no-header -rA",
        "log_parser": "parse_log_pytest",
        "env_vars": {"TZ": "UTC", "OTHER": None},
    },
    "requirements": "a==1\n",
    "license_name": "MIT",
    "docker_image": "swerebench/own_er_3:latest",
    "meta": {"llm_score": {"difficulty_score": float("nan")}, "when": datetime.date(2024, 1, 2)},
}


def r2e_file(path, lines, section="def top():", minus=None, plus=None, misc=None):
    hunk = {
        "descriptor": {
            "old_range": {"start": 1, "length": 2},
            "new_range": {"start": 1, "length": 2},
            "section": section,
        },
        "line_group": {"all_lines": [{"content": text, "type": kind} for kind, text in lines]},
    }
    return {
        "header": {"file": {"path": path}, "misc_line": misc},
        "is_binary_file": False,
        "hunks": [hunk],
        "minus_file": {"path": minus or f"a/{path}"},
        "plus_file": {"path": plus or f"b/{path}"},
        "index_line": None,
        "old_file_content": "",
        "new_file_content": "",
    }


R2E_LINES = [("context", "a"), ("deleted", "b"), ("added", "c"), ("note", "No newline at end of file")]
R2E = {
    "repo_name": "aiohttp",
    "docker_image": "namanjain12/aiohttp_final:abc",
    "commit_hash": "abcdef0123456789",
    "problem_statement": "[ISSUE]\nIt is wrong.\n[/ISSUE]",
    "modified_files": ["aiohttp/core.py"],
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                r2e_file("aiohttp/core.py", R2E_LINES),
                r2e_file("tests/test_core.py", R2E_LINES),
                {**r2e_file("logo.png", []), "is_binary_file": True},
            ],
            "old_commit_hash": "0123456789abcdef",
            "new_commit_hash": "abcdef0123456789",
            "commit_message": "Fix",
        }
    ),
    "execution_result_content": json.dumps(
        {
            "test_file_names": ["test_1.py", "__init__.py"],
            "test_file_codes": ["def test_a():\n    pass\n", ""],
        }
    ),
    "expected_output_json": json.dumps(
        {
            "test_a": "PASSED",
            "\x1b[1mTestB.test_b\x1b[0m - assert 1 == 2": "FAILED",
            "test_c[a - b]": "PASSED",
        }
    ),
}
OWN = {
    "task_id": "mine",
    "problem_statement": "It is wrong.",
    "fail_to_pass": ["test_a.py::test_x"],
    "source": {"kind": "folder", "path": "somewhere"},
}
RECORDS = {
    "swe-bench": BENCH,
    "swe-gym": GYM,
    "swe-smith": SMITH,
    "swe-rebench": REBENCH,
    "r2e-gym": R2E,
    "rtmc": OWN,
}


def write(path, records, *, lines=True, packed=False):
    text = "\n".join(map(json.dumps, records)) + "\n" if lines else json.dumps(records, indent=1)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def plain(record):
    """A record without what JSON cannot hold."""
    if not isinstance(record, dict):
        return record
    return json.loads(json.dumps({key: value for key, value in record.items() if key != "meta"}))


def test_swe_bench():
    task = task_of(VERIFIED)
    assert task.task_id == "pydata__xarray-1"
    assert task.fail_to_pass == ("tests/test_core.py::test_a", CUT)
    assert task.pass_to_pass == ("tests/test_core.py::test_b",)
    assert task.source == Image(
        "swebench/sweb.eval.x86_64.pydata_1776_xarray-1:latest", "pydata/xarray", BENCH["base_commit"]
    )
    assert (task.patch, task.test_patch, task.difficulty) == (PATCH, TEST_PATCH, "<15 min fix")
    assert (task.test_command, task.test_parser) == ("", "pytest")
    assert task.meta["format"] == "swe-bench"
    assert task.meta["environment_setup_commit"] == "f" * 40


@pytest.mark.parametrize(
    ("repo", "parser", "command"),
    [
        (
            "django/django",
            "django",
            "python ./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_core",
        ),
        ("sympy/sympy", "sympy", "python bin/test -C --verbose tests/test_core.py"),
        ("sphinx-doc/sphinx", "pytest", ""),
    ],
)
def test_repositories_with_runners_of_their_own(repo, parser, command):
    task = task_of({**BENCH, "repo": repo})
    assert (task.test_parser, task.test_command) == (parser, command)


def test_swe_bench_s_tasks_in_somebody_else_s_images():
    task = task_of({**BENCH, "repo": "django/django", "docker_image": "some/where:1"})
    assert (task.meta["format"], task.source.image, task.test_parser) == ("swe-bench", "some/where:1", "django")


def test_swe_gym():
    task = task_of(GYM)
    assert (task.fail_to_pass, task.pass_to_pass) == (("tests/test_core.py::test_a",), ())
    assert task.source.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-2:latest"
    assert task.meta["format"] == "swe-gym"


def test_swe_smith_s_patch_is_the_bug():
    task = task_of(SMITH)
    assert task.bug_patch == PATCH
    assert task.patch == PATCH.replace("-b\n+c", "-c\n+b").replace("83db48f..bf269f4", "bf269f4..83db48f")
    assert task.hidden_files == ("tests/sub/test_d.py", "tests/test_core.py")
    assert task.problem_statement == ""
    assert (task.repo, task.base_commit) == ("swesmith/un33k__slugify.dbf6161c", "dbf6161c")
    assert task.source == Image(SMITH["image_name"], task.repo, "dbf6161c")


def test_swe_rebench():
    task = task_of(REBENCH)
    assert task.source.image == "swerebench/own_er_3:latest"
    assert task.test_command == "pytest --no-header -rA tests/test_core.py"
    assert task.env == {"TZ": "UTC"}
    assert task.meta["FAIL_TO_FAIL"] == ["x"]
    assert task.meta["meta"] == {"llm_score": {"difficulty_score": None}, "when": "2024-01-02"}
    several = {**REBENCH["install_config"], "test_cmd": ["make it", "pytest -rA"], "log_parser": "parse_log_django"}
    task = task_of({**REBENCH, "install_config": json.dumps(several)})
    assert task.test_command == "make it && pytest -rA tests/test_core.py"
    assert task.test_parser == "django"


def test_r2e_gym():
    task = task_of(R2E)
    assert task.task_id == "aiohttp__abcdef0123"
    assert task.expected == {"test_a": "PASSED", "TestB.test_b": "FAILED", "test_c[a": "PASSED"}
    assert (task.fail_to_pass, task.pass_to_pass, task.test_parser) == ((), (), "r2e")
    assert task.hidden_files == ("run_tests.sh", "r2e_tests")
    assert task.test_files == {"r2e_tests/test_1.py": "def test_a():\n    pass\n", "r2e_tests/__init__.py": ""}
    assert task.source == Image("namanjain12/aiohttp_final:abc", "aiohttp", "0123456789abcdef")
    assert task.patch == (
        "diff --git a/aiohttp/core.py b/aiohttp/core.py\n--- a/aiohttp/core.py\n+++ b/aiohttp/core.py\n"
        "@@ -1,2 +1,2 @@ def top():\n a\n-b\n+c\n\\ No newline at end of file\n"
    )


def test_a_record_may_come_with_objects_for_json_texts():
    opened = {key: json.loads(value) if key.endswith(("_content", "_json")) else value for key, value in R2E.items()}
    assert task_of(opened) == task_of(R2E)


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("lines", [True, False], ids=["jsonl", "list"])
def test_a_file_s_kind_is_told_by_its_content(tmp_path, kind, lines, packed):
    record = plain(RECORDS[kind])
    path = write(tmp_path / "file", [record], lines=lines, packed=packed)
    (task,) = read_tasks(path)
    assert task == task_of(record, kind)
    assert list(read_tasks(path, kind)) == [task]
    assert SWETask.from_json(json.dumps(task.to_json())) == task


@pytest.mark.parametrize("kind", RECORDS)
def test_parquet(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    record = plain(RECORDS[kind])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "x.bin")
    assert list(read_tasks(tmp_path / "x.bin")) == [task_of(record)]


def test_a_folder_s_files_are_read_by_name(tmp_path):
    write(tmp_path / "b.jsonl", [GYM])
    write(tmp_path / "a.json.gz", [VERIFIED], lines=False, packed=True)
    (tmp_path / "README.md").write_text("not a record")
    assert [one.task_id for one in read_tasks(tmp_path)] == ["pydata__xarray-1", "getmoto__moto-2"]


def test_a_wrapped_row_is_a_record(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [{"row_idx": 0, "row": GYM, "truncated_cells": []}]}))
    assert [one.task_id for one in read_tasks(path)] == ["getmoto__moto-2"]


def test_reading_is_one_record_at_a_time(tmp_path):
    path = write(tmp_path / "x.jsonl", [GYM, {"broken": 1}])
    tasks = read_tasks(path)
    assert next(tasks).task_id == "getmoto__moto-2"
    with pytest.raises(ValueError, match=r"record 2: fields 'broken' are those of no known task set"):
        next(tasks)


def test_a_prepared_folder_stands_for_the_image(tmp_path):
    path = write(tmp_path / "x.jsonl", [SMITH])
    (tmp_path / "ready" / SMITH["instance_id"]).mkdir(parents=True)
    (task,) = read_tasks(path, repos=tmp_path / "ready")
    assert task.source == Folder(str(tmp_path / "ready" / SMITH["instance_id"]))
    assert task.bug_patch == ""  # the image's tree has the bug already
    (task,) = read_tasks(path, repos={SMITH["instance_id"]: Folder("elsewhere", "venv/bin/python")})
    assert task.source == Folder("elsewhere", "venv/bin/python")


def test_every_schema_has_a_record_here():
    assert set(RECORDS) == set(SCHEMAS)
