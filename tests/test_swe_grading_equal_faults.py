"""Tasks whose tests cannot lie where they are said to: one error that names the task and its field."""

import pytest

from rtmc.gymenvs.swe.grading import run_tests
from rtmc.gymenvs.swe.grading.lay import lay_over
from tests.swe_grading_case import BASE, make_task, runtime, write

LONG = "a" * 256 + ".py"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fail_to_pass", ("../x.py::t",)),
        ("fail_to_pass", ("tests/../../x.py::t",)),
        ("pass_to_pass", ("/abs.py::t",)),
        ("fail_to_pass", (f"tests/{LONG}::t",)),
        ("fail_to_pass", ("a/" * 1100 + "x.py::t",)),
        ("test_files", {LONG: "x"}),
        ("hidden_files", ("é" * 128 + "/x",)),
    ],
)
def test_a_file_that_no_tree_has_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"^SWETask 'shop-1': field `{field}`"):
        make_task(**{field: value})


@pytest.mark.parametrize("test", ["tests/x.py::t[../a]", f"tests/x.py::t[{'long ' * 99}]", "a..b.py::t", "x" * 300])
def test_other_ids_are_taken(test):
    assert make_task(fail_to_pass=(test,)).fail_to_pass == (test,)


def test_a_folder_is_no_place_for_a_test_file(tmp_path):
    write(tmp_path / "base", BASE)
    write(tmp_path / "tree", BASE)
    task = make_task(test_files={"tests": "x"}, hidden_files=())
    with pytest.raises(ValueError, match="task 'shop-1': field `test_files`: 'tests' is a folder of the tree"):
        lay_over(task, tmp_path / "base", tmp_path / "tree", [])
    assert (tmp_path / "tree" / "tests").is_dir()


def test_a_run_wants_names_that_files_can_have(tmp_path):
    with pytest.raises(ValueError, match="`tests`: wanted files of the tree"):
        run_tests(tmp_path, ("x" * 300,), runtime=runtime())
