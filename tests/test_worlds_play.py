"""`rtmc play`: what Ctrl-C ends, what the help says of each world, and which words are refused."""

import contextlib
import io
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from rtmc.cli import main
from rtmc.cli.command import UsageError
from rtmc.cli.worlds import _WORLDS, PLAY, _play_episode, help_of
from rtmc.gymenvs.swe.formats import load_embedded
from tests.sandbox_help import NEEDS_SANDBOX

pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
ROOT = Path(__file__).resolve().parents[1]


class Terminal:
    """`rtmc play` on a terminal of its own: a person reads until a prompt and types."""

    def __init__(self, *words: str, env: dict[str, str]) -> None:
        program = "import sys; from rtmc.cli import main; sys.exit(main(sys.argv[1:]))"
        self.pid, self.end = pty.fork()
        if self.pid == 0:  # a child of a shell in the background would ignore the signal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            command = [sys.executable, "-c", program, "play", *words]
            os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(ROOT), **env})
        self.text = ""

    def until(self, wanted: str, seconds: float = 60) -> str:
        """What is printed from here up to and with a text."""
        deadline, text = time.monotonic() + seconds, ""
        while wanted not in text:
            assert time.monotonic() < deadline, text
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    text += os.read(self.end, 65536).decode(errors="replace").replace("\r", "")
                except OSError:  # the program has ended
                    break
        return text

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def code(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.end)
        return code

    def kill(self) -> None:
        with contextlib.suppress(OSError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            self.code()


def running(words: str) -> list[str]:
    """The processes of this machine whose command line begins with the words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if line.startswith(words):
                found.append(line)
    return found


@NEEDS_SANDBOX
def test_ctrl_c_stops_a_command_and_then_ends_the_episode(tmp_path):
    seconds = str(40000 + os.getpid() % 10000)
    terminal = Terminal("swe", "--task", load_embedded()[0].task_id, env={"RTMC_CACHE": str(tmp_path)})
    try:
        terminal.until("q to leave: ")
        terminal.type(f"echo kept > note; sleep {seconds} & setsid sleep {seconds} & sleep {seconds}\n")
        deadline = time.monotonic() + 30
        while len(running(f"sleep {seconds}")) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.type("\x03")
        told = terminal.until("q to leave: ")
        assert "Exit code: 137\nstopped by Ctrl-C; the episode goes on, and no turn was taken" in told
        assert running(f"sleep {seconds}") == []
        terminal.type("cat note; git status --short\n")
        assert "kept\n?? note" in terminal.until("q to leave: ")
        terminal.type("undo\n")
        terminal.until("q to leave: ")
        terminal.type("ls note\n")
        assert "No such file" in terminal.until("q to leave: ")
        terminal.type("\x03")
        told = terminal.until("interrupted\n")
        assert "left after 1 turns, reward 0: it was not played to its end, so nothing is graded" in told
        assert terminal.code() == 130
    finally:
        terminal.kill()


class Interrupted:
    """A world in which a step is broken off when half of it is done."""

    def __init__(self, shell: bool) -> None:
        self.state, self.unwrapped = 0, self
        if shell:
            self.read_line = lambda line: line

    def reset(self, seed=None):
        return "start", {"task_id": "t", "admissible_commands": []}

    def snapshot(self):
        return self.state

    def restore(self, state):
        self.state = state
        return {}

    def step(self, action):
        self.state += 1
        if action == "half":
            raise KeyboardInterrupt
        return f"state {self.state}", 0.0, False, False, {"admissible_commands": []}


@pytest.mark.parametrize(("shell", "state"), [(False, 2), (True, 3)])
def test_a_step_that_is_broken_off(monkeypatch, capsys, shell, state):
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\nhalf\ngo\n"))
    assert _play_episode(Interrupted(shell), None, "help") == 0
    told = capsys.readouterr().out
    assert f"state {state}" in told
    assert ("Exit code: 137" in told) is shell
    assert "left after 2 turns" in told


def test_ctrl_c_at_the_prompt_leaves(monkeypatch, capsys):
    class Closed(io.StringIO):
        def readline(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Closed())
    assert main(["play", "household", "--split", "tiny", "--seed", "3"]) == 130
    captured = capsys.readouterr()
    assert "left after 0 turns, reward 0: it was not played to its end" in captured.out
    assert captured.err == "rtmc: interrupted\n"


def test_each_world_has_a_help_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("?\n"))
    assert main(["play", "household", "--split", "tiny", "--seed", "3"]) == 0
    assert help_of("household") in capsys.readouterr().out
    texts = {help_of(world) for world in _WORLDS}
    assert len(texts) == len(_WORLDS)
    swe = help_of("swe")
    for word in ("shell command", "submit", "graded", "Ctrl-C", "undo"):
        assert word in swe
    assert "shell command" not in help_of("household")
    told = " ".join(PLAY.parser().format_help().split())
    for word in ("shell command", "submit", "git and a sandbox", "rtmc doctor", "--task list"):
        assert word in told


def test_an_unknown_task_tells_which_there_are(capsys):
    assert main(["play", "swe", "--task", "list"]) == 2
    told = capsys.readouterr().err
    for task in load_embedded():
        assert task.task_id in told
    assert main(["play", "swe", "--task", "spans-lost-whole"]) == 2
    assert re.search(r"did you mean `spans-lost-hole`", capsys.readouterr().err)
    assert main(["play", "search-qa", "--task", "list"]) == 2
    assert "train/0 to train/" in capsys.readouterr().err
    assert main(["envs"]) == 0
    assert "`rtmc play WORLD` with `--task list`" in capsys.readouterr().out


def test_repositories_without_tasks_are_refused():
    with pytest.raises(UsageError, match="--repos goes with --tasks"):
        PLAY.run(PLAY.parse(["swe", "--repos", "/tmp"]))
