"""Scripted policies, played through the environment itself: the reward is right if each gets what it must.

    python -m rtmc.gymenvs.swe.policies [TASK ...]

`oracle` makes the gold patch with the tools and is paid 1.0; `null` finishes at once and is paid 0.0; `random` looks
around, edits lines at random, runs commands, and is paid 0.0.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from typing import Any

from rtmc.gymenvs.swe.actions import ToolCall, write_action
from rtmc.gymenvs.swe.env import SWEEnv
from rtmc.gymenvs.swe.episodes import Listed
from rtmc.gymenvs.swe.oracle import finish_action, shell_action

POLICIES = ("oracle", "null", "random")
_COMMANDS = ("ls", "python -m pytest -q", "git status --short", "git diff", "grep -rn return .", "false")


def play(env: SWEEnv, policy: str, task: Any, seed: int = 0, turns: int = 8) -> tuple[float, dict[str, Any]]:
    """One episode of a scripted policy: its reward, and the info of its last step.

    Args:
        policy: one of POLICIES. task: as in `reset(options={"task": task})`.
        seed, turns: of `random`: what it does, and how often before it finishes.

    Raises:
        ValueError: the policy is unknown, or the task has no gold patch for the oracle.
    """
    env.reset(options={"task": task})
    if policy == "oracle":
        plan = env.expert_plan()
        if plan is None:
            raise ValueError(f"task {task!r:.80} has no gold patch that fits into the turns")
        messages: Iterator[str] = iter(plan)
    elif policy == "null":
        messages = iter([finish_action(env.syntax)])
    elif policy == "random":
        messages = _random(env, random.Random(seed), turns)
    else:
        raise ValueError(f"policy={policy!r} is none of {', '.join(map(repr, POLICIES))}")
    total, info = 0.0, dict[str, Any]()
    for message in messages:
        _, reward, terminated, truncated, info = env.step(message)
        total += reward
        if terminated or truncated:
            break
    return total, info


def _random(env: SWEEnv, rng: random.Random, turns: int) -> Iterator[str]:
    for _ in range(turns):
        yield _some_action(env, rng)
    yield finish_action(env.syntax)


def _some_action(env: SWEEnv, rng: random.Random) -> str:
    if env.syntax == "bash" or rng.random() < 0.3:
        return shell_action(rng.choice(_COMMANDS), env.syntax)
    path, lines = _some_file(env, rng)
    kind = rng.choice(("view", "search", "str_replace", "insert", "broken"))
    if kind == "broken":
        return f"I would rather talk about {path}."
    if kind == "search":
        word = rng.choice(rng.choice(lines).split() or ["def"])
        call = ToolCall("search", {"search_term": word, "path": env.inside})
    elif kind == "view":
        call = ToolCall(env.editor, {"command": "view", "path": path})
    elif kind == "insert":
        arguments = {"command": "insert", "path": path, "insert_line": str(rng.randrange(len(lines) + 1))}
        call = ToolCall(env.editor, {**arguments, "new_str": "# a remark"})
    else:
        old, new = rng.choice(lines).strip() or "x", rng.choice(lines).strip() or "y"
        call = ToolCall(env.editor, {"command": "str_replace", "path": path, "old_str": old, "new_str": new})
    try:
        return write_action(call, env.syntax)
    except ValueError:  # a line that the syntax cannot carry
        return write_action(ToolCall(env.editor, {"command": "view", "path": path}), env.syntax)


def _some_file(env: SWEEnv, rng: random.Random) -> tuple[str, list[str]]:
    names = [entry.path for entry in env.tree.walk() if entry.path.endswith(".py") and not entry.is_folder]
    name = rng.choice(sorted(names))
    lines = env.tree.read(name).decode("utf-8", "replace").splitlines()
    return f"{env.inside}/{name}", lines or [""]


def main(words: list[str]) -> int:
    """Plays every policy on the tasks named, or on all shipped ones; 1 if one is not paid as it must be."""
    parser = argparse.ArgumentParser(prog="python -m rtmc.gymenvs.swe.policies", description=main.__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="ids of shipped tasks (default: all)")
    tasks = parser.parse_args(words).tasks
    env = SWEEnv()
    wrong = 0
    try:
        known = [task.task_id for task in Listed(None, None).tasks]
        unknown = [name for name in tasks if name not in known]
        if unknown:
            parser.error(f"unknown task {unknown[0]!r}; there are {', '.join(known)}")
        print(f"{'task':<40}" + "".join(f"{policy:>8}" for policy in POLICIES))
        for name in tasks or known:
            rewards = [play(env, policy, name)[0] for policy in POLICIES]
            wrong += rewards != [1.0, 0.0, 0.0]
            print(f"{name:<40}" + "".join(f"{reward:>8.1f}" for reward in rewards), flush=True)
    finally:
        env.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
