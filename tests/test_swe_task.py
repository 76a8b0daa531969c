"""The task's class: its JSON form both ways, and what it says of wrong fields."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtmc.gymenvs.swe.task import Clone, Embedded, Folder, Image, Sdist, SdistFix, SWETask

SOURCE = {"kind": "embedded", "files": {"a.py": "x = 1\n"}}
RECORD = {"task_id": "t", "problem_statement": "It is wrong.", "source": SOURCE, "fail_to_pass": ["test_a.py::test_x"]}

# No NUL and no half of a surrogate pair: neither a file's name nor a command can hold them.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
FILLED = TEXT.filter(str.strip)
PATH = st.lists(
    FILLED.map(lambda s: s.replace("/", "_")).filter(lambda s: s.strip(".") and s.lower() != ".git"),
    min_size=1,
    max_size=3,
).map("/".join)
NAMES = st.lists(FILLED, unique=True, max_size=3).map(tuple)
CONTENT = TEXT | st.binary(max_size=20)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def no_folder_is_a_file(files):
    return not any(other.startswith(f"{name}/") for name in files for other in files)


FILES = st.dictionaries(PATH, CONTENT, max_size=3).filter(no_folder_is_a_file)
WORD = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
DIGEST = st.just("") | st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
SOURCES = st.one_of(
    st.builds(Embedded, FILES.filter(bool)),
    st.builds(Folder, FILLED, TEXT),
    st.builds(Clone, FILLED, WORD, TEXT),
    st.builds(Sdist, WORD, WORD, DIGEST),
    st.builds(Image, TEXT, TEXT, TEXT),
)
HUNKS = st.dictionaries(
    PATH, st.sets(st.integers(1, 9), max_size=3).map(lambda one: tuple(sorted(one))), min_size=1, max_size=2
)
FIXES = st.builds(SdistFix, WORD, WORD, DIGEST, HUNKS, st.lists(PATH, unique=True, max_size=2).map(tuple), DIGEST)


@st.composite
def tasks(draw):
    tests = draw(st.lists(FILLED, unique=True, min_size=1, max_size=6))
    half = draw(st.integers(1, len(tests)))
    fix = draw(st.none() | FIXES)
    expected = draw(st.just({}) | st.dictionaries(TEXT, st.sampled_from(["PASSED", "FAILED"]), min_size=1, max_size=3))
    return SWETask(
        task_id=draw(FILLED),
        problem_statement=draw(TEXT),
        source=draw(SOURCES),
        fail_to_pass=() if expected else tuple(tests[:half]),
        pass_to_pass=() if expected else tuple(tests[half:]),
        expected=expected,
        patch="" if fix else draw(TEXT),
        bug_patch="" if fix else draw(TEXT),
        fix=fix,
        test_patch=draw(TEXT),
        test_files=draw(FILES),
        hidden_files=draw(st.lists(PATH, unique=True, max_size=3).map(tuple)),
        test_command=draw(TEXT),
        test_parser=draw(st.sampled_from(["pytest", "r2e", "unittest", "django", "sympy"])),
        difficulty=draw(TEXT),
        repo=draw(TEXT),
        base_commit=draw(TEXT),
        python_packages=draw(NAMES),
        setup_command=draw(TEXT),
        env=draw(st.dictionaries(WORD, TEXT, max_size=2)),
        timeout_s=draw(st.floats(0.1, 1e6)),
        setup_timeout_s=draw(st.floats(0.1, 1e6)),
        meta=draw(st.dictionaries(TEXT, PLAIN, max_size=3)),
    )


@given(tasks())
def test_json_and_pickle_give_the_task_back(task):
    assert SWETask.from_json(json.dumps(task.to_json())) == task
    assert SWETask.from_json(task.to_json()) == task
    assert pickle.loads(pickle.dumps(task)) == task
    assert hash(SWETask.from_json(task.to_json())) == hash(task)


def test_defaults_are_left_out_of_the_json():
    assert SWETask.from_json(RECORD).to_json() == RECORD


def test_texts_may_come_as_lines():
    lines = {**RECORD, "problem_statement": ["It is", "wrong."], "patch": ["", "x", ""]}
    lines["source"] = {"kind": "embedded", "files": {"a.py": ["x = 1", ""], "b.bin": {"base64": "AP8="}}}
    task = SWETask.from_json(lines)
    assert (task.problem_statement, task.patch) == ("It is\nwrong.", "\nx\n")
    assert task.source == Embedded({"a.py": "x = 1\n", "b.bin": b"\x00\xff"})


def test_the_json_shares_nothing_with_the_task():
    meta = {"a": [1, {"b": 2}]}
    task = SWETask.from_json({**RECORD, "meta": meta})
    meta["a"].append(3)
    task.to_json()["meta"]["a"].append(4)
    assert task.meta == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task_id": 3}, "field `task_id`: wanted text, got int: 3"),
        ({"task_id": " "}, "field `task_id`: wanted text that is not empty"),
        ({"problem_statement": None}, "field `problem_statement`: wanted text, got NoneType"),
        ({"problem_statement": "\ud800"}, "field `problem_statement`: wanted text that UTF-8 can hold"),
        ({"fail_to_pass": []}, "field `fail_to_pass`: wanted at least one test"),
        ({"fail_to_pass": "a"}, "field `fail_to_pass`: wanted a list of texts, got str"),
        (
            {"fail_to_pass": ["a", "a"]},
            "field `fail_to_pass`[1]: wanted a name that is not empty and did not come before",
        ),
        ({"fail_to_pass": ["a", " "]}, "field `fail_to_pass`[1]: wanted a name that is not empty"),
        ({"fail_to_pass": ["a", 1]}, "field `fail_to_pass`[1]: wanted text, got int: 1"),
        ({"pass_to_pass": ["test_a.py::test_x"]}, "'test_a.py::test_x' stands in fail_to_pass as well"),
        ({"expected": {"a": "PASSED"}}, "it stands beside fail_to_pass"),
        ({"expected": {"a": 1}}, "field `expected`['a']: wanted text"),
        ({"test_parser": "nose"}, "field `test_parser`: wanted one of pytest, r2e, unittest, django, sympy"),
        ({"test_files": {"../a.py": ""}}, "field `test_files`['../a.py']: wanted a path inside the tree"),
        ({"test_files": {"/a.py": ""}}, "wanted a path inside the tree"),
        ({"test_files": {"a/.git/config": ""}}, "wanted a path inside the tree"),
        ({"test_files": {"a": "", "a/b": ""}}, "'a' is a file, and 'a/b' lies below it"),
        ({"test_files": {"a": {"base64": "!"}}}, "field `test_files`['a']: field `base64`"),
        ({"test_files": {"a": {"hex": "00"}}}, "field `test_files`['a']: field `base64` is missing"),
        ({"test_files": {"a": 1}}, "field `test_files`['a']: wanted text, got int"),
        ({"hidden_files": ["a", "."]}, "field `hidden_files`[1]: wanted a path inside the tree"),
        ({"env": {"A=B": "x"}}, "field `env`: wanted names of variables, got str: 'A=B'"),
        ({"env": {"A": 1}}, "field `env`['A']: wanted text"),
        ({"timeout_s": 0}, "field `timeout_s`: wanted a finite number of seconds above 0, got int: 0"),
        ({"timeout_s": float("inf")}, "field `timeout_s`: wanted a finite number"),
        ({"timeout_s": 10**400}, "field `timeout_s`: wanted a finite number"),
        ({"timeout_s": True}, "field `timeout_s`: wanted a finite number"),
        ({"meta": {"a": float("nan")}}, "field `meta`['a']: wanted a finite number"),
        ({"meta": {"a": 10**5000}}, "field `meta`['a']: wanted an integer of 64 bits"),
        ({"meta": []}, "field `meta`: wanted an object, got list"),
        ({"fix": {"name": "a"}}, "field `fix`: field `version` is missing"),
        (
            {"fix": {"name": "a", "version": "1", "hunks": {"a.py": [2, 1]}}},
            "field `hunks`['a.py']: wanted rising numbers",
        ),
        ({"fix": {"name": "a", "version": "1", "hunks": {"a.py": [0]}}}, "wanted a list of numbers from 1"),
        ({"fix": {"name": "a", "version": "1", "hunks": {}}}, "field `hunks`: wanted at least one file"),
        ({"patch": "x", "fix": {"name": "a", "version": "1", "hunks": {"a.py": []}}}, "it stands beside a patch"),
        ({"source": None}, "field `source`: wanted an object, got NoneType"),
        (
            {"source": {"kind": "zip"}},
            "field `source`: field `kind`: wanted one of embedded, folder, clone, sdist, image",
        ),
        ({"source": {"kind": "folder"}}, "field `source`: field `path` is missing"),
        ({"source": {"kind": "folder", "path": "x", "pth": "y"}}, "field `source`: unknown field 'pth'"),
        ({"source": {"kind": "embedded", "files": {}}}, "field `files`: wanted at least one file"),
        ({"source": {"kind": "clone", "path": "x", "commit": "--all"}}, "field `commit`: wanted a commit"),
        ({"source": {"kind": "sdist", "name": "-e .", "version": "1"}}, "field `name`: wanted the name of a package"),
        ({"source": {"kind": "sdist", "name": "a", "version": "1 --x"}}, "field `version`: wanted one version"),
        (
            {"source": {"kind": "sdist", "name": "a", "version": "1", "sha256": "xy"}},
            "field `sha256`: wanted a SHA-256",
        ),
        ({"fail_to_pas": []}, "unknown field 'fail_to_pas'"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(ValueError, match=r"^tasks.json, record 7: ") as caught:
        SWETask.from_json({**RECORD, **change}, "tasks.json, record 7")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["task_id", "problem_statement", "source"])
def test_a_missing_field_is_named(field):
    with pytest.raises(ValueError, match=f"field `{field}` is missing"):
        SWETask.from_json({name: value for name, value in RECORD.items() if name != field})


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "1", '"x"', "{" * 100_000, "[" * 100_000, b"\xff", b"{\xff}", "1" * 5000]
)
def test_what_is_no_task_is_said(text):
    with pytest.raises(ValueError, match=r"^x: "):
        SWETask.from_json(text, "x")
