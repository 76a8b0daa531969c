"""`rtmc play swe`: a person types shell commands, goes back, asks for a hint, and hands in."""

import io
import sys

import pytest

from rtmc.cli import main
from rtmc.gymenvs.swe.formats import load_embedded
from tests.sandbox_help import NEEDS_SANDBOX

pytestmark = NEEDS_SANDBOX


def played(monkeypatch, capsys, task, *lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["play", "swe", "--task", task])
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_person_works_in_a_shell_and_hands_in(monkeypatch, capsys):
    task = load_embedded()[0]
    lines = ["cat > note.txt <<'END'", "two words", "and more", "END", "cat note.txt", "undo", "undo", "ls", "submit"]
    code, told = played(monkeypatch, capsys, task.task_id, *lines)
    assert code == 0
    assert task.problem_statement.splitlines()[0] in told
    assert "Type shell commands" in told
    after_undo = told[told.index("> ls") :]
    assert "two words\nand more" in told[: told.index("> ls")]
    assert "note.txt" not in after_undo
    assert "failure after 2 turns, reward 0: " in told
    assert "fail_to_pass" in told


def test_the_hints_lead_to_the_reward(monkeypatch, capsys):
    task = load_embedded()[0].task_id
    from rtmc.gymenvs.swe.env import SWEEnv

    env = SWEEnv(task=task)
    try:
        env.reset()
        plan = env.expert_plan()
    finally:
        env.close()
    told = played(monkeypatch, capsys, task, "hint")[1]
    assert plan[0] in told
    assert f"(the goal is {len(plan)} steps away)" in told
    # A call of several lines is typed as one.
    told = played(monkeypatch, capsys, task, *[line for message in plan for line in message.splitlines()])[1]
    assert f"success after {len(plan)} turns, reward 1" in told
