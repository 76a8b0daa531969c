"""What is said of broken records and files of tasks: file, record and field, and no other error than the documented."""

import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.formats import read_tasks, task_of
from rtmc.gymenvs.swe.task import SWETask
from tests.test_swe_formats import BENCH, GYM, OWN, PATCH, R2E, REBENCH, RECORDS, SMITH, plain, write


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


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
        (
            without(BENCH, "base_commit"),
            "missing of what a record of swe-rebench or swe-bench or swe-gym has: `base_commit`",
        ),
        (without(GYM, "PASS_TO_PASS"), "record of swe-rebench or swe-bench or swe-gym has: `PASS_TO_PASS`"),
        (without(SMITH, "PASS_TO_PASS"), "missing of what a record of swe-smith has: `PASS_TO_PASS`"),
        (without(R2E, "expected_output_json"), "missing of what a record of r2e-gym has: `expected_output_json`"),
        (without(OWN, "source"), "missing of what a record of rtmc has: `source`"),
        ({**BENCH, "base_commit": "--help"}, "(swe-bench): field `base_commit`: wanted a commit of a git repository"),
        (
            {**R2E, "expected_output_json": '{"test_a": "PASSED", "test_b": "MAYBE"}'},
            "field `expected_output_json`['test_b']: wanted one of PASSED, FAILED, ERROR, got str: 'MAYBE'",
        ),
    ],
)
def test_a_broken_record_is_named(tmp_path, record, said):
    path = write(tmp_path / "tasks.jsonl", [plain(GYM), plain(record)])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, record 2") as caught:
        list(read_tasks(path))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["[]", '{"rows": []}', " \n"])
def test_a_file_without_a_task_is_named(tmp_path, text):
    path = tmp_path / "none.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: (there is no task in it|the file is empty)"):
        list(read_tasks(path))


def test_a_repository_that_does_not_fit_is_told_with_the_task(tmp_path):
    path = write(tmp_path / "x.jsonl", [GYM])
    (tmp_path / "moto").mkdir()
    with pytest.raises(ValueError, match=r"x\.jsonl, record 1, task 'getmoto__moto-2': repos: .*no git clone"):
        list(read_tasks(path, repos=tmp_path))


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


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"5\n", "wanted records (JSON objects), got one JSON value: 5"),
        (b' "x"', 'got one JSON value: "x"'),
        (b"null", "got one JSON value: null"),
        ("".join(json.dumps(OWN) + "\n" for _ in range(2)).encode("utf-16"), "this is UTF-16 or UTF-32; wanted UTF-8"),
        (json.dumps(OWN).encode("utf-16-le"), "this is UTF-16 or UTF-32; wanted UTF-8"),
        (b'{"a": "b"}\n{"a": "caf\xe9"}\n', "line 2: this is no UTF-8 (its byte 11 is 0xe9)"),
        (b'[{"a": "b"},\n\n{"a": "\xff"}]', "line 3: this is no UTF-8 (its byte 8 is 0xff)"),
        (b"hello", "no JSON, no parquet"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_holds_no_records_is_told_by_what_it_holds(tmp_path, data, said, packed):
    file = tmp_path / ("tasks.jsonl.gz" if packed else "tasks.jsonl")
    file.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        list(read_tasks(file, "rtmc"))
    assert str(caught.value).startswith(str(file))


def test_deep_records_are_refused(tmp_path):
    deep = '{"instance_id": "a", "repo": "b/c", "base_commit": "0", "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [], '
    deep += '"problem_statement": "p", "version": ' + "[" * 800 + "]" * 800 + "}"
    (tmp_path / "x").write_text(deep)
    with pytest.raises(ValueError, match=r"field `meta`.*nested more than 64 deep"):
        list(read_tasks(tmp_path / "x"))
