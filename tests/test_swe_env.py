"""`rtmc/SWE-v0`: what gymnasium asks, rewards of scripted policies, states, forks, and agents that misbehave."""

import json
import time
import warnings

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rtmc.gymenvs.isolation.contract import SandboxError
from rtmc.gymenvs.swe.env import SWEEnv
from rtmc.gymenvs.swe.formats import load_embedded
from rtmc.gymenvs.swe.oracle import finish_action, shell_action
from rtmc.gymenvs.swe.patch import make_patch
from rtmc.gymenvs.swe.policies import play
from rtmc.gymenvs.swe.tree import WorkTree
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_episodes import BROKEN, HIDDEN, MENDED, calc, edit, shell

pytestmark = NEEDS_SANDBOX


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def env():
    made = SWEEnv(tasks=[calc()])
    yield made
    made.close()


# -- gymnasium ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"actions": "tools", "editor": "str_replace_editor"}, {"actions": "bash", "instructions": False}],
)
def test_check_env_without_warnings(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("rtmc/SWE-v0", tasks=[calc()], **options)
        check_env(env.unwrapped, skip_render_check=True)
        env.close()


def test_seeds_fix_the_task_and_an_unseeded_environment_goes_in_order():
    ids = [task.task_id for task in load_embedded()]
    env, other = SWEEnv(), SWEEnv()
    try:
        assert [env.reset()[1]["task_id"] for _ in range(3)] == ids[:3]
        drawn = [env.reset(seed=seed)[1]["task_id"] for seed in range(6)]
        assert drawn == [other.reset(seed=seed)[1]["task_id"] for seed in range(6)]
        assert len(set(drawn)) > 1
        text, info = env.reset(options={"task": ids[3]})
        assert (text, info) == other.reset(options={"task": ids[3]})
        assert info["task_id"] == ids[3]
    finally:
        env.close()
        other.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_of_environments_takes_any_mix_of_actions(mode):
    tasks = [calc(), calc(task_id="calc/other")]
    end, run, wrong = finish_action("r2e"), shell_action("python -m pytest -q tests", "r2e"), "zz"
    for first in (end, run, wrong):
        for second in (end, run, wrong):
            names = [lambda: gymnasium.make("rtmc/SWE-v0", tasks=tasks)] * 2
            env = SyncVectorEnv(names, autoreset_mode=mode)
            try:
                _, info = env.reset(options={"task": "calc/other"})
                assert info["task_id"].tolist() == ["calc/other"] * 2
                _, _, terminated, _, info = env.step([first, second])
                assert terminated.tolist() == [first == end, second == end]
                if mode != AutoresetMode.SAME_STEP:
                    ran = [first == run, second == run]
                    if any(ran):
                        assert info["_exit_code"].tolist() == ran
                    assert info["valid"].tolist() == [first != wrong, second != wrong]
            finally:
                env.close()


def test_seeds_of_a_vector_are_repeatable_and_the_terminal_info_is_kept():
    names = [lambda: gymnasium.make("rtmc/SWE-v0", max_turns=2) for _ in range(3)]
    env = SyncVectorEnv(names, autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        _, info = env.reset(seed=[0, 1, 2])
        again = info["task_id"].tolist()
        assert len(set(again)) > 1
        assert env.reset(seed=[0, 1, 2])[1]["task_id"].tolist() == again
        _, rewards, terminated, _, info = env.step([finish_action("r2e")] * 3)
        assert (rewards.tolist(), terminated.tolist()) == ([0.0] * 3, [True] * 3)
        assert info["final_info"]["task_id"].tolist() == again
    finally:
        env.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "test"}, "none of 'ready', 'real'"),
        ({"task": "no/such"}, "unknown task id 'no/such'"),
        ({"actions": "json"}, "did you mean|none of"),
        ({"max_turns": 0}, "at least 1"),
        ({"tasks": [], "split": None}, "no task to play"),
        ({"tasks": [calc()], "split": "ready"}, "leave it out"),
        ({"tasks": [calc(), calc()]}, "same id"),
        ({"command_s": -1.0}, "above zero"),
    ],
)
def test_arguments_are_checked(options, said):
    with pytest.raises(ValueError, match=said):
        SWEEnv(**options)


@pytest.mark.parametrize("tasks", [3, {"task_id": "x"}, b"tasks.jsonl", [calc(), "x"]])
def test_tasks_of_another_type_are_refused(tasks):
    with pytest.raises(TypeError, match=r"SWE: `tasks` (is a file, a folder or|holds) SWETask objects, got"):
        SWEEnv(tasks=tasks)


@pytest.mark.parametrize("name", ["trusted", "instructions", "grade_at_limit"])
def test_a_word_is_no_truth_value(name):
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 'no'"):
        SWEEnv(**{name: "no"})


def test_steps_out_of_order_and_of_another_type_are_refused(env):
    with pytest.raises(ResetNeeded):
        env.step("x")
    with pytest.raises(ResetNeeded):
        env.snapshot()
    env.reset()
    with pytest.raises(TypeError, match="an action is text"):
        env.step(3)
    for other in ("x", env.snapshot()._replace(tree=None)):
        with pytest.raises(TypeError, match="restore wants"):
            env.restore(other)
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"tasks": 1})
    env.reset()
    env.step(finish_action("r2e"))
    with pytest.raises(ResetNeeded, match="over"):
        env.step("x")


# -- rewards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["oracle", "null", "random"])
@pytest.mark.parametrize(
    ("actions", "editor"),
    [("r2e", "file_editor"), ("r2e", "str_replace_editor"), ("tools", "str_replace_editor"), ("bash", "file_editor")],
)
def test_scripted_policies_are_paid_what_they_must_be(actions, editor, policy):
    env = SWEEnv(tasks=[calc()], actions=actions, editor=editor)
    try:
        reward, info = play(env, policy, "calc/add")
    finally:
        env.close()
    assert reward == (1.0 if policy == "oracle" else 0.0)
    assert info["success"] == (policy == "oracle")
    assert info["verdict"]["fail_to_pass"] == {"tests/test_calc.py::test_add": policy == "oracle"}


@pytest.mark.slow
def test_every_shipped_task_pays_the_oracle_and_nobody_else():
    env = SWEEnv()
    try:
        paid = {
            task.task_id: [play(env, policy, task, turns=3)[0] for policy in ("oracle", "null", "random")]
            for task in load_embedded()
        }
    finally:
        env.close()
    assert len(paid) >= 20
    assert {name: rewards for name, rewards in paid.items() if rewards != [1.0, 0.0, 0.0]} == {}


def test_breaking_the_module_scores_nothing_and_says_why(env):
    """Tests that are missing from the output are failed tests, not passed ones."""
    env.reset()
    edit(env, "return a - b", "return a + b)")
    *_, info = env.step(finish_action("r2e"))
    assert not info["success"]
    assert "collection error" in info["verdict"]["reason"]
    assert not any(info["verdict"]["pass_to_pass"][name] for name in ("tests/test_calc.py::test_double",))


def test_the_turn_limit_truncates_and_is_graded_only_when_asked():
    for graded in (False, True):
        env = SWEEnv(tasks=[calc()], max_turns=1, grade_at_limit=graded)
        try:
            env.reset()
            _, reward, terminated, truncated, info = edit(env, "return a - b", "return a + b")
            assert (terminated, truncated) == (False, True)
            assert (reward, info["success"], "verdict" in info) == (float(graded), graded, graded)
        finally:
            env.close()


# -- what a step tells ----------------------------------------------------------------------------------------------


def test_info_tells_what_a_command_did(env):
    text, info = env.reset()
    assert "`add(2, 3)` gives -1" in text
    assert (info["action_key"], info["valid"], info["changed"]) == (None, True, [])
    assert not {"tests", "exit_code", "verdict"} & set(info)
    text, reward, terminated, truncated, info = shell(env, "python -m pytest -q tests")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert text.startswith("Exit code: 0\nExecution output of [execute_bash]:\n")
    assert info["tests"] == {"passed": 1, "failed": 0, "errors": 0}
    assert (info["exit_code"], info["timed_out"], info["tool"], info["valid"]) == (0, False, "bash", True)
    *_, info = shell(env, "printf 'def test_no():\\n    assert 0\\n' > tests/test_no.py; python -m pytest -q tests")
    assert info["tests"] == {"passed": 1, "failed": 1, "errors": 0}
    assert info["exit_code"] == 1
    assert info["changed"] == ["tests/test_no.py"]
    *_, info = edit(env, "no such text", "x")
    assert (info["valid"], info["tool"]) == (False, "str_replace")
    assert "No occurrences" in info["error"]
    *_, info = env.step("no call at all")
    assert (info["valid"], info["tool"], info["action_key"]) == (False, "invalid", "invalid")


def test_a_command_past_its_time_is_stopped_and_the_episode_goes_on():
    env = SWEEnv(tasks=[calc()], command_s=1.0)
    try:
        env.reset()
        began = time.monotonic()
        text, *_, info = shell(env, "sleep 60 & sleep 60")
        assert time.monotonic() - began < 20
        assert (info["timed_out"], info["exit_code"]) == (True, -1)
        assert "took too long" in text
        *_, info = shell(env, "true")
        assert info["exit_code"] == 0
    finally:
        env.close()


def test_neither_the_fix_nor_the_hidden_tests_can_be_found_inside():
    mark, secret = "zq71mended", "zq71hidden"
    mended = MENDED.replace("return a + b", f"return a + b  # {mark}")
    task = calc(
        patch=make_patch({"calc.py": BROKEN}, {"calc.py": mended}),
        test_files={"tests/test_calc.py": HIDDEN.replace("test_add", secret)},
        fail_to_pass=(f"tests/test_calc.py::{secret}",),
    )
    env = SWEEnv(tasks=[task], actions="bash")
    try:
        env.reset()
        # The pattern is put together inside, so that the command that looks for it does not hold it.
        look = (
            "pattern=zq7; pattern=${pattern}1; cp calc.py /tmp/here; echo $pattern > /tmp/seen;"
            "grep -rlI $pattern / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=dev 2>/dev/null;"
            "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -ac zq7[1];"
            "git log --all --format=%s | wc -l; git fsck --lost-found 2>&1 | grep -c dangling"
        )
        text, *_ = shell(env, look)
    finally:
        env.close()
    assert json.loads(text)["output"].split() == ["/tmp/seen", "0", "1", "0"]


def test_a_sandbox_that_fails_is_a_fact_of_the_episode(env, monkeypatch):
    env.reset()

    def fail(*arguments, **options):
        raise SandboxError("no room for a process")

    with monkeypatch.context() as patched:
        patched.setattr(env._sandbox, "run", fail, raising=False)
        text, reward, terminated, truncated, info = shell(env, "ls")
    assert "could not be run" in text
    assert "no room for a process" in info["error"]
    assert (reward, terminated, truncated, info["valid"]) == (0.0, False, False, False)
    assert shell(env, "true")[-1]["exit_code"] == 0
    monkeypatch.setattr("rtmc.gymenvs.swe.env.grade", fail)
    _, reward, terminated, truncated, info = env.step(finish_action("r2e"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "grading failed" in info["error"]


def test_a_setup_that_hangs_makes_reset_raise_within_its_limit():
    env = SWEEnv(tasks=[calc(task_id="calc/hangs", setup_command="sleep 300", setup_timeout_s=1.0)])
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"calc/hangs.*setup_timeout_s = 1 s"):
        env.reset()
    assert time.monotonic() - began < 30
    env.close()


# -- trees that are no trees to grade -------------------------------------------------------------------------------


def test_more_than_a_snapshot_holds_is_a_grade_of_0(env, monkeypatch):
    env.reset()
    monkeypatch.setattr(WorkTree.snapshot, "__kwdefaults__", {"limit": 1000})
    shell(env, "head -c 2000 /dev/urandom > big")
    _, reward, terminated, truncated, info = env.step(finish_action("r2e"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "too large to grade" in info["verdict"]["reason"]
    assert info["verdict"]["fail_to_pass"] == {"tests/test_calc.py::test_add": False}


def test_a_tree_with_too_many_files_does_not_end_the_episode(monkeypatch):
    env = SWEEnv(tasks=[calc()], layer="copy")
    try:
        env.reset()
        monkeypatch.setattr("rtmc.gymenvs.swe.layers.MOST_ENTRIES", 50)
        _, _, terminated, truncated, info = shell(env, "mkdir d; for i in $(seq 99); do ln README.md d/$i; done")
        assert (terminated, truncated) == (False, False)
        assert "cannot be compared" in info["error"]
        key = info["state_key"]
        assert shell(env, "true")[4]["state_key"].split("|")[0] == key.split("|")[0]
        _, reward, terminated, _, info = env.step(finish_action("r2e"))
        assert (reward, terminated) == (0.0, True)
        assert "too large to grade" in info["verdict"]["reason"]
    finally:
        env.close()


def test_a_configuration_nested_too_deeply_is_no_error_of_the_grader(env):
    env.reset()
    edit(env, "a - b", "a + b")
    shell(env, 'python3 -c \'print("x = " + "[" * 5000 + "]" * 5000)\' > pyproject.toml')
    _, reward, terminated, _, info = env.step(finish_action("r2e"))
    assert (reward, terminated, info["error"]) == (1.0, True, None)
