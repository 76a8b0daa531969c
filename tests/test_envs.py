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
from rtmc.gymenvs.household.vocabulary import TASK_TYPES

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
        {"rules": "plain", "lenient": True, "history": 2, "show": ("task", "commands"), "state_key": "knowledge"},
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


MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


def _plain(value):
    """Infos as lists and scalars, so that they compare."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _lived(kind, mode, seed, turns=7, number=2, **options):
    """Everything that a vector of environments says, one of which is cut every second step and one every third."""
    lengths = (2, 3)
    makers = [lambda k=k: gymnasium.make(HOUSEHOLD, max_turns=lengths[k], **options) for k in range(number)]
    if kind == "sync":
        vector = SyncVectorEnv(makers, autoreset_mode=mode)
    else:
        vector = AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=mode)
    texts, info = vector.reset(seed=seed)
    told = [(texts, _plain(info))]
    for _ in range(turns):
        texts, rewards, terminated, truncated, info = vector.step(("look", "inventory"))
        assert isinstance(texts, tuple)
        assert all(type(text) is str for text in texts)
        told.append((texts, rewards.tolist(), terminated.tolist(), truncated.tolist(), _plain(info)))
        done = np.logical_or(terminated, truncated)
        if mode is AutoresetMode.DISABLED and done.any():
            texts, info = vector.reset(options={"reset_mask": done})
            told.append((texts, _plain(info)))
    vector.close()
    return told


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [5, None, [9, 2]])
def test_sync_and_async_agree_in_every_autoreset_mode(mode, seed):
    told = _lived("sync", mode, seed)
    assert _lived("async", mode, seed) == told
    assert _lived("sync", mode, seed) == told


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_is_reset_once(mode):
    """An environment never seeded plays tasks 0, 1, 2, ...: a reset too many would leave one out."""
    told = _lived("sync", mode, None, turns=9)
    for env in range(2):
        ids = []
        for entry in told:
            info = entry[-1]
            # Of a partial reset the others' infos are absent, and say so.
            if info.get("_task_id", [True] * 2)[env] and info["task_id"][env] not in ids[-1:]:
                ids.append(info["task_id"][env])
        assert ids == [f"tiny/{TASK_TYPES[n % 6]}/{n // 6}" for n in range(len(ids))]
        assert len(ids) >= 3


def test_a_single_environment_is_not_reset_by_itself():
    env = gymnasium.make(HOUSEHOLD, max_turns=1)
    _, info = env.reset()
    for _ in range(3):
        _, _, _, truncated, after = env.step("look")
        assert truncated
        assert after["task_id"] == info["task_id"]
    assert env.reset()[1]["task_id"] != info["task_id"]


def test_reset_starts_the_same_task_again_on_request():
    env = gymnasium.make(HOUSEHOLD, split="train")
    first, info = env.reset(seed=4)
    env.step(info["admissible_commands"][0])
    again, told = env.reset(options={"task": info["task_id"]})
    assert (again, told) == (first, info)
    assert env.reset(options={"task": info["task_id"]}) == (first, info)


def test_shared_memory_is_refused_not_garbled():
    with pytest.raises(ValueError, match="shared_memory"):
        AsyncVectorEnv([lambda: gymnasium.make(HOUSEHOLD)] * 2)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_same_step_autoreset_keeps_the_last_observation(kind):
    vector = _vector(kind, number=2, mode=AutoresetMode.SAME_STEP, task="tiny/pick_and_place_simple/1")
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
    # What was told of the last state is not overwritten by the new episode's start.
    assert info["final_info"]["state_key"][0] != info["state_key"][0]
    assert info["final_info"]["admissible_commands"][0] != info["admissible_commands"][0]
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
