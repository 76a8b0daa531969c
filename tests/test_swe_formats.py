"""The public task sets' records, made here in the shape that each set publishes; and what is said of broken ones."""

import datetime
import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "wanted an object, got list"),
        ({}, "fields (none) are those of no known task set; known are rtmc, r2e-gym, swe-smith"),
        ({**BENCH, "FAIL_TO_PASS": "[]"}, "(swe-bench): field `FAIL_TO_PASS`: wanted at least one test, got none"),
        ({**BENCH, "FAIL_TO_PASS": "[1]"}, "field `FAIL_TO_PASS`[0]: wanted text, got int"),
        ({**BENCH, "FAIL_TO_PASS": "tests"}, "field `FAIL_TO_PASS`: this is no JSON"),
        ({**BENCH, "FAIL_TO_PASS": '{"a": 1}'}, "field `FAIL_TO_PASS`: wanted a list of test ids"),
        ({**BENCH, "PASS_TO_PASS": None}, "field `PASS_TO_PASS` is missing"),
        ({**BENCH, "instance_id": 7}, "field `instance_id`: wanted text, got int: 7"),
        ({**BENCH, "problem_statement": None}, "field `problem_statement` is missing"),
        ({**BENCH, "repo": "django/django", "test_patch": "@@ -1 +1 @@\n"}, "field `test_patch`: patch, line 1"),
        ({**SMITH, "patch": "--- a/x\n+++ b/x\n@@ -1,5 +1 @@\n a\n"}, "field `patch`: patch, line 3: the hunk's lines"),
        ({**SMITH, "patch": ""}, "field `patch`: wanted text that is not empty"),
        (
            {**REBENCH, "install_config": {"log_parser": "parse_log_js"}},
            "field `install_config`.log_parser: wanted the name",
        ),
        ({**REBENCH, "install_config": {"env_vars": {"A": 1}}}, "field `install_config`.env_vars.A: wanted text"),
        ({**R2E, "expected_output_json": "{}"}, "field `expected_output_json`: wanted an object of test names"),
        ({**R2E, "expected_output_json": "{"}, "field `expected_output_json`: this is no JSON"),
        (
            {**R2E, "parsed_commit_content": '{"file_diffs": [{}]}'},
            "`parsed_commit_content`.file_diffs[0].header: wanted",
        ),
        ({**R2E, "execution_result_content": '{"test_file_names": ["a"]}'}, "1 test_file_names and 0 test_file_codes"),
        ({**OWN, "source": {"kind": "folder"}}, "field `source`: field `path` is missing"),
    ],
)
def test_a_broken_record_is_named(tmp_path, record, said):
    path = write(tmp_path / "tasks.jsonl", [plain(GYM), plain(record)])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, record 2") as caught:
        list(read_tasks(path))
    assert said in str(caught.value)


def test_what_is_said_of_broken_files(tmp_path):
    twice = write(tmp_path / "twice.jsonl", [GYM, GYM])
    with pytest.raises(ValueError, match=r"record 2: the id 'getmoto__moto-2' came before, in .*record 1"):
        list(read_tasks(twice))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(GYM).encode())[:-20])
    with pytest.raises(ValueError, match=r"cut.gz: this gzip file is broken or cut off"):
        list(read_tasks(cut))
    inner = tmp_path / "inner.gz"
    inner.write_bytes(gzip.compress(b'[{"a": 1}, {"b":'))
    with pytest.raises(ValueError, match=r"inner.gz, record"):
        list(read_tasks(inner, "rtmc"))
    for data in (b"PAR1" + b"\0" * 40, b"PAR1", b"PAR1" + b"\0" * 40 + b"PAR1"):
        (tmp_path / "p").write_bytes(data)
        with pytest.raises(ValueError, match=r"p: this parquet file cannot be read"):
            list(read_tasks(tmp_path / "p"))
    with pytest.raises(FileNotFoundError):
        list(read_tasks(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: this folder has no file that ends in"):
        list(read_tasks(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"format='swebench' is none of 'auto', 'rtmc', 'r2e-gym'"):
        read_tasks(twice, "swebench")
    with pytest.raises(ValueError, match=r"is no folder; wanted one that holds clones, or a mapping"):
        read_tasks(twice, repos=tmp_path / "nowhere")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([PATCH, "[]", "{}", '["a"]']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({field for record in RECORDS.values() for field in record})


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(RECORDS)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.booleans(), JSON
)
def test_no_record_gives_another_error_than_the_documented_one(kind, changes, named, whole):
    for record in ({**RECORDS[kind], **changes}, whole):
        said = ""
        try:
            task = task_of(record, kind if named else "auto", "here")
        except ValueError as error:
            said = str(error)
        assert said.startswith("here") or SWETask.from_json(json.dumps(task.to_json())) == task


@settings(max_examples=200)
@given(st.binary(max_size=60) | JSON.map(lambda one: json.dumps(one).encode()) | st.text(max_size=40).map(str.encode))
def test_no_file_gives_another_error_than_the_documented_one(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(data)
    said = ""
    try:
        list(read_tasks(path))
    except ValueError as error:
        said = str(error)
    assert not said or str(path) in said


def test_deep_records_are_refused(tmp_path):
    deep = '{"instance_id": "a", "repo": "b/c", "base_commit": "0", "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [], '
    deep += '"problem_statement": "p", "version": ' + "[" * 800 + "]" * 800 + "}"
    (tmp_path / "x").write_text(deep)
    with pytest.raises(ValueError, match=r"field `meta`.*nested more than 64 deep"):
        list(read_tasks(tmp_path / "x"))


def test_every_schema_has_a_record_here():
    assert set(RECORDS) == set(SCHEMAS)
