"""Episodes of `rtmc/SWE-v0` that fork, meet, run side by side, and leave nothing."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gymnasium.error import ResetNeeded

from rtmc.gymenvs.swe.actions import ToolCall, write_action
from rtmc.gymenvs.swe.env import SWEEnv
from rtmc.gymenvs.swe.oracle import finish_action
from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_episodes import BROKEN, calc, edit, shell, view

pytestmark = NEEDS_SANDBOX


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def env():
    made = SWEEnv(tasks=[calc()])
    yield made
    made.close()


def test_equal_states_have_equal_keys_whatever_led_there(env):
    keys = []
    for order in ((0, 1), (1, 0)):
        env.reset()
        steps = [lambda: view(env), lambda: view(env, "/testbed/tests/test_zero.py")]
        for at in order:
            *_, info = steps[at]()
        keys.append(info["state_key"])
    assert keys[0] == keys[1]
    *_, info = view(env)
    assert info["state_key"] == keys[0]  # seen before
    *_, info = edit(env, "return a - b", "return b - a")
    changed = info["state_key"]
    assert changed != keys[0]
    *_, info = edit(env, "return b - a", "return a - b")
    assert info["state_key"] == keys[0]
    *_, info = shell(env, "sed -i 's/a - b/b - a/' calc.py")
    assert info["state_key"].split("|")[0] == changed.split("|")[0]


def test_equal_calls_have_equal_action_keys_however_they_are_written(env):
    env.reset()
    keys = {view(env, view_range=text)[-1]["action_key"] for text in ("[1,5]", "[1, 5]", "[ 1 , 5 ]")}
    other = SWEEnv(tasks=[calc()], actions="tools")
    try:
        other.reset()
        keys.add(view(other, view_range=[1, 5])[-1]["action_key"])
    finally:
        other.close()
    assert len(keys) == 1
    assert view(env, view_range="[1, 6]")[-1]["action_key"] not in keys


def test_names_that_are_no_utf_8_are_told_in_text_that_is(env):
    env.reset()
    *_, info = shell(env, "touch $'\\xff.py'")
    assert [name.encode() for name in info["changed"]] == ["\ufffd.py".encode()]


def test_a_fork_goes_on_from_any_turn_in_this_and_in_another_environment(env):
    env.reset()
    edit(env, "return a - b", "return b - a")
    shell(env, "mkdir -p new && echo x > new/file && chmod +x new/file")
    moment, key = env.snapshot(), view(env)[-1]["state_key"]
    shell(env, "rm -rf tests new; echo y > calc.py")
    info = env.restore(moment)
    assert (info["action_key"], info["valid"]) == (None, True)
    assert info["changed"] == ["calc.py", "new/file"]
    assert view(env)[-1]["state_key"] == key
    # The editor's undo history is part of the moment.
    env.step(write_action(ToolCall("file_editor", {"command": "undo_edit", "path": "/testbed/calc.py"}), "r2e"))
    assert env.tree.read("calc.py") == BROKEN.encode()
    other = SWEEnv(tasks=[calc()])
    try:
        other.restore(pickle.loads(pickle.dumps(moment)))
        assert shell(other, "cat new/file && test -x new/file && ls tests")[-1]["exit_code"] == 0
        edit(other, "return b - a", "return a + b")
        _, reward, *_, info = other.step(finish_action("r2e"))
        assert (reward, info["success"]) == (1.0, True)
        # The end, too, is a moment; and one can go back from it.
        over = other.snapshot()
        other.restore(moment)
        assert edit(other, "return b - a", "return a")[-1]["valid"]
        assert other.restore(over)["success"]
        with pytest.raises(ResetNeeded):
            view(other)
    finally:
        other.close()


def test_the_turns_are_part_of_a_moment():
    env = SWEEnv(tasks=[calc()], max_turns=2)
    try:
        env.reset()
        view(env)
        moment = env.snapshot()
        assert view(env)[3]
        env.restore(moment)
        assert view(env)[3]
    finally:
        env.close()


def test_episodes_at_once_do_not_see_one_another():
    def episode(number):
        env = SWEEnv(tasks=[calc()])
        try:
            env.reset()
            shell(env, f"echo {number} > mark; sleep 0.2")
            text, *_ = shell(env, "cat mark; ls")
            if number % 2:
                edit(env, "return a - b", "return a + b")
            return str(number) in text.split(), env.step(finish_action("r2e"))[1]
        finally:
            env.close()

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(episode, range(16)))
    assert results == [(True, float(number % 2)) for number in range(16)]


def test_nothing_is_left_after_close(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "from rtmc.gymenvs.swe.env import SWEEnv\nfrom tests.swe_episodes import calc, shell\n"
        "env = SWEEnv(tasks=[calc()]); env.reset(); shell(env, 'echo x > y'); env.close()\n"
        "env.reset()"  # and one that nobody closes
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=120)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_no_message_raises(env):
    env.reset()
    messages = ["", "\x00", "<function=", "<function=execute_bash></function>", "é" * 100_000, "\ud800", "{}", "```"]
    messages += [
        write_action(ToolCall("file_editor", {"command": "view", "path": path}), "r2e") for path in ("../..", "~")
    ]
    for message in messages:
        text, reward, *_, info = env.step(message)
        assert (reward, info["valid"], bool(text)) == (0.0, False, True), message[:40]
