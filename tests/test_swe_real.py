"""The tasks over real packages: their files hold facts alone; and, with a registry, they are played and graded."""

import re
from importlib import resources
from pathlib import Path

import pytest

from rtmc.gymenvs.isolation import users
from rtmc.gymenvs.swe.env import SWEEnv
from rtmc.gymenvs.swe.formats import load_real
from rtmc.gymenvs.swe.grading import grade
from rtmc.gymenvs.swe.patch import apply_patch
from rtmc.gymenvs.swe.policies import play
from rtmc.gymenvs.swe.repository import PreparationError, cache_folder, prepare
from rtmc.gymenvs.swe.sdists import fetch
from rtmc.gymenvs.swe.tree import WorkTree
from tests.sandbox_help import NEEDS_SANDBOX

TASKS = load_real()


def test_there_are_three_of_three_packages():
    assert len({one.source.name for one in TASKS}) >= 3
    assert len({one.task_id for one in TASKS}) == len(TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda one: one.task_id)
def test_a_task_file_holds_facts_and_our_own_words(task):
    # The packages' own text (patches, tests, sources) is theirs: it is told by names, numbers and hashes.
    assert (task.patch, task.bug_patch, task.test_patch, dict(task.test_files)) == ("", "", "", {})
    assert task.source.sha256
    assert task.fix.sha256
    assert task.fix.patch_sha256
    assert task.fix.version != task.source.version
    assert task.meta["license"]
    assert task.problem_statement.count(" ") > 60
    for line in task.problem_statement.splitlines():
        assert not re.match(r"(diff --git|@@ |\+\+\+ |--- [ab/])", line)
    # The statement tells neither where the bug is nor which tests are hidden.
    for told in (*task.fix.hunks, *task.fix.test_files, *task.fail_to_pass):
        assert Path(told.split("::")[-1]).name not in task.problem_statement


def test_the_files_are_data_of_the_package():
    folder = resources.files("rtmc.gymenvs.swe") / "real"
    assert len(TASKS) == len(list(folder.iterdir()))


@NEEDS_SANDBOX
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda one: one.task_id)
def test_the_fix_solves_it_and_nothing_else_does(task, tmp_path, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path))
    try:
        for release in (task.source, task.fix):
            fetch(release, cache_folder() / "sdists")
    except PreparationError as error:
        # A registry that answers knows other versions; another hash is no missing network either.
        if "(from versions: none)" not in str(error) and "took longer" not in str(error):
            raise
        pytest.skip(f"needs the package registry: {error}")
    prepared = prepare(task)
    for solved in (False, True):
        with WorkTree(prepared.base, owner=users.owner()) as tree:
            if solved:
                apply_patch(tree, prepared.task.patch)
            verdict = grade(prepared.task, prepared.base, tree.snapshot(), runtime=prepared.runtime)
        assert set(verdict.fail_to_pass) == set(task.fail_to_pass)
        assert set(verdict.fail_to_pass.values()) == {solved}
        assert set(verdict.pass_to_pass) == set(task.pass_to_pass)
        assert set(verdict.pass_to_pass.values()) == {True}
        assert (verdict.resolved, verdict.reward) == (solved, float(solved))
    env = SWEEnv()
    try:
        assert play(env, "oracle", task)[0] == 1.0
        assert play(env, "null", task)[0] == 0.0
    finally:
        env.close()
