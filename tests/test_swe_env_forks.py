"""Episodes of `rtmc/SWE-v0` that fork, meet, run side by side, and leave nothing."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from rtmc.gymenvs.isolation.contract import SandboxError
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


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("execute_bash", {}, 2),
        ("execute_bash", {"cmd": "cd x"}, 1),
        ("execute_bash", {"cmd": "ls", "more": "x"}, 2),
        ("search", {}, None),
        ("search", {"search_term": "x", "path": "/etc"}, None),
        ("search", {"search_term": "x", "path": "nowhere"}, None),
        ("file_editor", {"command": "view", "path": "/etc"}, None),
        ("nosuch", {"search_term": "x"}, None),
    ],
)
def test_a_refused_call_leaves_the_state_as_it_was(env, name, arguments, code):
    _, start = env.reset()
    text, *_, info = env.step(write_action(ToolCall(name, arguments), env.syntax))
    assert (info["valid"], info["state_key"]) == (False, start["state_key"])
    assert info.get("exit_code") == code  # what the agent is told, and nothing where it is told of none
    assert text.startswith(f"Exit code: {code}\n" if code else "Execution output of [")
    *_, info = shell(env, "true")
    assert info["state_key"] != start["state_key"]


def test_a_command_that_could_not_be_run_showed_nothing(env, monkeypatch):
    def fails(command, **_):
        raise SandboxError("no room")

    _, start = env.reset()
    monkeypatch.setattr(env, "_run", fails)
    env._toolbox._run = fails
    *_, info = shell(env, "ls")
    assert (info["valid"], info["state_key"]) == (False, start["state_key"])


def test_equal_searches_are_one_thing_seen(env):
    def look(**arguments):
        env.reset()
        text, *_, info = env.step(write_action(ToolCall("search", {"search_term": "def", **arguments}), env.syntax))
        return text, info["state_key"], info["action_key"]

    written = [{"path": path} for path in (".", "/testbed", "/testbed/", "/testbed/tests/..", "tests/../")]
    same = [look(**arguments) for arguments in ({}, {"python_only": "true"}, *written)]
    assert len(set(same)) == 1
    files = [look(path=path) for path in ("calc.py", "/testbed/calc.py", "/testbed/./calc.py")]
    files += [look(path="calc.py", python_only="false")]  # of a file it says nothing
    assert len(set(files)) == 1
    others = [look(python_only="false"), look(path="/testbed/tests"), look(search_term="return"), files[0], same[0]]
    assert len({key for _, key, _ in others}) == len({key for *_, key in others}) == len(others)


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


def test_a_wrapped_environment_wants_a_reset_before_its_step_and_an_unwrapped_one_does_not(env):
    env.reset()
    saved = env.snapshot()
    made = gymnasium.make("rtmc/SWE-v0", tasks=[calc()])
    try:
        made.unwrapped.restore(saved)
        with pytest.raises(ResetNeeded):
            made.step("no call")
        assert made.unwrapped.step("no call")[-1]["tool"] == "invalid"
        made.reset()
        made.unwrapped.restore(saved)
        assert made.step("no call")[-1]["tool"] == "invalid"
    finally:
        made.close()
