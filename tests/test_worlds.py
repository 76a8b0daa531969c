"""`rtmc play`, scripted through a terminal of its own: a person's commands, help, the expert's hint, undo."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra `envs`")

ROOT = Path(__file__).resolve().parents[1]
TASK = "tiny/pick_heat_then_place_in_recep/1"
PROMPT = "q to leave: "


class Terminal:
    """A process on a pseudo-terminal: `say` types a line and gives what is printed up to the next prompt."""

    def __init__(self, *words):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "rtmc", "play", "household", *words]
        self._child = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=environment,
            close_fds=True,
            # A terminal's child hears Ctrl-C; ours would not where the tests themselves run with it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(theirs)
        self._terminal = ours
        self.start = self._read()

    def _read(self, seconds=60):
        text, until = "", time.monotonic() + seconds
        while time.monotonic() < until:
            if select.select([self._terminal], [], [], 0.2)[0]:
                try:
                    part = os.read(self._terminal, 65536).decode()
                except OSError:  # Linux says so once the other end is closed
                    part = ""
                if not part:
                    break
                text += part
            if text.endswith(PROMPT):
                break
        return text.replace("\r\n", "\n")

    def say(self, line):
        os.write(self._terminal, f"{line}\n".encode())
        return self._read()

    def close(self):
        try:
            return self._child.wait(timeout=30)
        finally:
            self._child.kill()
            os.close(self._terminal)


@pytest.fixture
def plan():
    env = gymnasium.make("rtmc.gymenvs:rtmc/Household-v0", task=TASK)
    env.reset()
    return env.unwrapped.expert_plan()


def test_a_person_plays_with_help_hint_and_undo(plan):
    terminal = Terminal("--task", TASK)
    assert f"task {TASK}" in terminal.start
    assert "Your task is to: " in terminal.start
    assert terminal.start.endswith(PROMPT)
    listed = re.findall(r"^ +\d+  .+$", terminal.start, re.M)

    helped = terminal.say("help")
    for word in ("hint", "undo", "quit"):
        assert re.search(rf"^  {word}", helped, re.M), word
    assert f"{plan[0]} (the goal is {len(plan)} steps away)" in terminal.say("hint")
    assert "nothing to undo" in terminal.say("undo")

    taken = terminal.say(plan[0])
    assert f"> {plan[0]}" in taken
    assert f"the goal is {len(plan) - 1} step" in terminal.say("h")
    back = terminal.say("u")
    # The start is told again, with its commands, and the hint is the first again.
    assert "Your task is to: " in back
    assert re.findall(r"^ +\d+  .+$", back, re.M) == listed
    assert f"the goal is {len(plan)} steps away" in terminal.say("hint")

    assert "Nothing happens." in terminal.say("dance")
    assert "Your task is to: " in terminal.say("undo")
    for command in plan[:-1]:
        terminal.say(command)
    assert "the goal is 1 step away" in terminal.say("hint")
    # Steps that were taken back are not counted.
    assert f"success after {len(plan)} turns, reward 1" in terminal.say(plan[-1])
    assert terminal.close() == 0


def test_undo_gives_turns_back():
    terminal = Terminal("--task", TASK, "--max-turns", "2")
    for _ in range(3):
        terminal.say("look")
        terminal.say("undo")
    terminal.say("look")
    assert "the turn limit after 2 turns, reward 0" in terminal.say("look")
    assert terminal.close() == 0


@pytest.mark.parametrize("word", ["q", "quit", "\x04"])
def test_leaving(word):
    terminal = Terminal("--task", TASK)
    said = terminal.say(word)
    assert "left after 0 turns, reward 0" in said
    assert terminal.close() == 0


def test_interrupting_leaves_without_a_traceback():
    terminal = Terminal("--task", TASK)
    terminal._child.send_signal(2)
    said = terminal._read()
    assert "interrupted" in said
    assert "Traceback" not in said
    assert terminal.close() == 130


def test_an_unknown_task_gets_near_names():
    terminal = Terminal("--task", "tiny/pick_and_place_simpel/3")
    assert "did you mean 'pick_and_place_simple'" in terminal.start
    assert "Traceback" not in terminal.start
    assert terminal.close() == 2


def played(monkeypatch, capsys, words, lines):
    """What `rtmc play household` prints for the lines, and its exit code."""
    import io

    from rtmc.cli import main

    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["play", "household", *words])
    return code, capsys.readouterr().out


def test_a_number_that_is_none_of_the_commands_costs_no_turn(monkeypatch, capsys):
    lines = ["99", "0", "-1", "+99", "9" * 5000, "1"]
    code, told = played(monkeypatch, capsys, ["--task", TASK], lines)
    number = len(re.findall(r"^ +\d+  .+$", told.split("there is no command")[0], re.M))
    assert re.findall(r"there is no command (.{1,4}).*: they are numbered 1 to (\d+)", told) == [
        (word, str(number)) for word in ("99", "0", "-1", "+99", "9999")
    ]
    assert (code, "Nothing happens." in told) == (0, False)
    assert "\nleft after 1 turns, reward 0: it was not played to its end" in told


def test_the_hint_knows_a_goal_that_holds_already_from_one_out_of_reach(monkeypatch, capsys):
    from rtmc.gymenvs.household import HouseholdEnv, generate_task

    task = generate_task("tiny/pick_and_place_simple/3")
    data = json.loads(task.to_json())
    (target,) = {r["name"] for r in data["receptacles"] if r["kind"] == task.goal.receptacle}
    place = next(r["location"] for r in data["receptacles"] if r["name"] == target)
    for item in data["items"]:
        if item["kind"] == task.goal.object:
            item.update(inside=[target], at=[place])
    assert HouseholdEnv(task=data).reset()[1]["success"]
    told = played(monkeypatch, capsys, ["--task", json.dumps(data)], ["hint"])[1]
    assert "the goal is reached already" in told
    data["items"] = [item for item in data["items"] if item["kind"] != task.goal.object]
    told = played(monkeypatch, capsys, ["--task", json.dumps(data)], ["hint"])[1]
    assert "no steps lead to the goal from here" in told


def test_play_takes_a_data_folder_rules_and_free_wording(monkeypatch, capsys, tmp_path):
    from rtmc.gymenvs.household import draw_task
    from rtmc.gymenvs.household.engine import game_of

    task = draw_task("pick_and_place_simple", 5, split="train")
    folder = tmp_path / "train" / "room" / "trial"
    folder.mkdir(parents=True)
    game = game_of(task, "", '"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}]')
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_simple"}))
    words = ["--data", str(tmp_path), "--split", "train"]
    told = played(monkeypatch, capsys, words, ["LOOK"])[1]
    assert "task room/trial\n" in told
    assert told.count("Nothing happens.") == 1
    told = played(monkeypatch, capsys, [*words, "--rules", "plain", "--lenient"], ["LOOK"])[1]
    # The mended rules list the room on the first look.
    assert told.count("You are in the middle of a room. Looking quickly around you, you see a ") == 2
    code, _ = played(monkeypatch, capsys, ["--rules", "plane"], [])
    assert code == 2


class Bare(gymnasium.Env):
    """A world that has no expert and cannot be forked."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "start", {"task_id": "bare"}

    def step(self, action):
        return f"heard {action}", 0.0, action == "end", False, {"task_id": "bare", "success": False}


def test_a_world_without_expert_and_forks(monkeypatch, capsys):
    import io

    from rtmc.cli import worlds

    monkeypatch.setattr(sys, "stdin", io.StringIO("hint\none\nundo\nend\n"))
    assert worlds._play_episode(Bare(), 0, "help") == 0
    told = capsys.readouterr().out
    assert "this world has no expert" in told
    assert "this world cannot go back" in told
    assert told.endswith("failure after 2 turns, reward 0\n")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["search-qa", "--rules", "plain"], "--rules is no option of search-qa"),
        (["household", "--tasks", "x.jsonl"], "--tasks is no option of household"),
        (["swe", "--lenient"], "--lenient is no option of swe"),
    ],
)
def test_an_option_of_another_world_is_refused_in_a_line(words, option, capsys):
    from rtmc.cli import main

    assert main(["play", *words]) == 2
    assert option in capsys.readouterr().err
