"""Every registered environment as gymnasium and its vector environments see it."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import rtmc.gymenvs

HOUSEHOLD = "rtmc/Household-v0"
IDS = sorted(name for name in gymnasium.registry if name.startswith("rtmc/"))


def test_ids_are_versioned_and_registered():
    assert HOUSEHOLD in IDS
    assert all(name.endswith("-v0") for name in IDS)
    assert rtmc.gymenvs.__doc__


def test_make_by_module_works_alone():
    code = "import gymnasium; print(gymnasium.make('rtmc.gymenvs:rtmc/Household-v0').reset(seed=1)[1]['task_id'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tiny/")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"observation": "knowledge"},
        {"split": "train", "details": True},
        {"task": "tiny/pick_and_place_simple/0"},
        {"task_types": ["look_at_obj_in_light"], "max_turns": 3},
    ],
)
def test_check_env_without_warnings(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(HOUSEHOLD, **options)
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=0)
        env.step("look")
        env.close()


def _episode(env, seed, turns=12):
    text, info = env.reset(seed=seed)
    told = [text, info["task_id"], info["state_key"]]
    rng = np.random.default_rng(seed)
    for _ in range(turns):
        text, reward, terminated, truncated, info = env.step(str(rng.choice(info["admissible_commands"])))
        told += [text, reward, terminated, truncated, info["state_key"], info["action_key"]]
    return told


def test_a_seed_fixes_the_whole_episode():
    env = gymnasium.make(HOUSEHOLD)
    first = _episode(env, 123)
    assert _episode(env, 123) == first
    assert _episode(gymnasium.make(HOUSEHOLD), 123) == first
    assert len({env.reset(seed=seed)[1]["task_id"] for seed in range(6)}) > 1


def _vector(kind, number=4, mode=AutoresetMode.NEXT_STEP, **options):
    makers = [lambda: gymnasium.make(HOUSEHOLD, **options)] * number
    if kind == "sync":
        return SyncVectorEnv(makers, autoreset_mode=mode)
    return AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=mode)


def test_vector_seeds_give_different_tasks_repeatably():
    vector = gymnasium.make_vec(HOUSEHOLD, num_envs=4, vectorization_mode="sync")
    _, info = vector.reset(seed=0)
    tasks = list(info["task_id"])
    assert len(set(tasks)) == 4
    assert list(vector.reset(seed=0)[1]["task_id"]) == tasks
    assert list(vector.reset(seed=[3, 2, 1, 0])[1]["task_id"]) == tasks[::-1]
    vector.close()


def test_sync_and_async_agree():
    told = []
    for kind in ("sync", "async"):
        vector = _vector(kind, number=2)
        texts, info = vector.reset(seed=5)
        log = [texts, list(info["task_id"])]
        for _ in range(4):
            commands = tuple(admissible[-1] for admissible in info["admissible_commands"])
            texts, rewards, terminated, truncated, info = vector.step(commands)
            log += [texts, rewards.tolist(), terminated.tolist(), truncated.tolist(), list(info["state_key"])]
            assert isinstance(texts, tuple)
            assert all(type(text) is str for text in texts)
        told.append(log)
        vector.close()
    assert told[0] == told[1]


def test_shared_memory_is_refused_not_garbled():
    with pytest.raises(ValueError, match="shared_memory"):
        AsyncVectorEnv([lambda: gymnasium.make(HOUSEHOLD)] * 2)


def test_same_step_autoreset_keeps_the_last_observation():
    vector = _vector("sync", number=2, mode=AutoresetMode.SAME_STEP, task="tiny/pick_and_place_simple/1")
    _, info = vector.reset()
    single = gymnasium.make(HOUSEHOLD, task="tiny/pick_and_place_simple/1")
    start, _ = single.reset()
    plan = single.unwrapped.expert_plan()
    for command in plan:
        last = single.step(command)[0]
        texts, _, terminated, _, info = vector.step((command, "look"))
    assert terminated.tolist() == [True, False]
    assert texts[0] == start
    assert info["final_obs"][0] == last
    assert info["final_info"]["success"][0]
    vector.close()


def test_options_reach_every_part_of_a_vector():
    vector = _vector("sync", number=2)
    task = "tiny/pick_two_obj_and_place/4"
    _, info = vector.reset(options={"task": task})
    assert list(info["task_id"]) == [task, task]
    vector.close()
    vector = _vector("sync", number=2, mode=AutoresetMode.DISABLED)
    vector.reset(seed=1)
    _, info = vector.reset(options={"reset_mask": np.array([True, False]), "task": task})
    assert info["task_id"][0] == task
    vector.close()
