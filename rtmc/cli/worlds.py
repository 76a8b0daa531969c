"""`rtmc play` and `rtmc envs`: the environments, reached through their gymnasium ids."""

import argparse
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from rtmc.cli.command import Command, Parser, add_json, one_of, print_json
from rtmc.cli.training import prepare_threads

# World -> gymnasium id; the prefix makes gymnasium import the module that registers it.
_WORLDS = {"household": "rtmc.gymenvs:rtmc/Household-v0"}
# The module whose SPLITS has a world's splits as keys: gymnasium's specs have no place for them.
_SPLITS_OF = {"rtmc/Household-v0": "rtmc.gymenvs.household.generate"}


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: a whole number from 0 on is wanted")
    return int(text)


def _play_arguments(parser: Parser) -> None:
    parser.add_argument("world", type=one_of("world", _WORLDS), metavar="WORLD", help=", ".join(_WORLDS))
    parser.add_argument("--split", metavar="NAME", help="which tasks to draw from (`rtmc envs` lists them)")
    parser.add_argument("--task", metavar="ID", help="this very task")
    parser.add_argument("--seed", type=_seed, metavar="N", help="fixes the whole episode, the choice of task included")
    parser.add_argument("--model", metavar="RUN", help="watch the trained policy of this run's folder play instead")
    parser.add_argument("--max-turns", type=int, metavar="N", help="the environment's own turn limit")


def _play(arguments: argparse.Namespace) -> int:
    import gymnasium

    settings = {"split": arguments.split, "task": arguments.task, "max_turns": arguments.max_turns}
    chosen = {key: value for key, value in settings.items() if value is not None}
    if arguments.model is not None:
        prepare_threads()
        from rtmc.train.watch import watch

        watch(Path(arguments.model), _WORLDS[arguments.world], chosen, arguments.seed, print)
        return 0
    env = gymnasium.make(_WORLDS[arguments.world], **chosen)
    try:
        return _play_episode(env, arguments.seed)
    finally:
        env.close()


def _play_episode(env: Any, seed: int | None) -> int:
    """One episode on standard input: a command or its number a line; `q` or the end of input leaves."""
    observation, info = env.reset(seed=seed)
    print(f"task {info['task_id']}\n\n{observation}")
    total, turns = 0.0, 0
    while True:
        commands = info.get("admissible_commands", [])
        print()
        for number, command in enumerate(commands, 1):
            print(f"{number:>3}  {command}")
        word = _next_word()
        if word is None:
            print(f"\nleft after {turns} turns, reward {total:g}")
            return 0
        if word.isdecimal() and 1 <= int(word) <= len(commands):
            word = commands[int(word) - 1]
        observation, reward, terminated, truncated, info = env.step(word)
        total, turns = total + float(reward), turns + 1
        print(f"\n> {word}\n{observation}")
        if terminated or truncated:
            ending = "success" if info.get("success") else "the turn limit" if truncated else "failure"
            print(f"\n{ending} after {turns} turns, reward {total:g}")
            return 0


def _next_word() -> str | None:
    """The next line that is not blank; None for `q` and at the end of the input."""
    while True:
        if sys.stdin.isatty():
            print("\ncommand or number, q to leave: ", end="", flush=True)
        line = sys.stdin.readline()
        word = line.strip()
        if not line or word == "q":
            return None
        if word:
            return word


def _envs(arguments: argparse.Namespace) -> int:
    records = environments()
    if arguments.json:
        print_json(records)
        return 0
    for record in records:
        print(f"{record['id']}\n    {record['summary']}")
        print(f"    splits: {', '.join(record['splits'])}")
        for name, default in record["arguments"].items():
            print(f"    {name} = {default}")
    return 0


def environments() -> list[dict[str, Any]]:
    """Every registered environment of ours: id, summary, splits, keyword arguments with defaults (as text).

    Raises ModuleNotFoundError without gymnasium.
    """
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    import rtmc.gymenvs  # noqa: F401 - registers the ids

    records = []
    for name in sorted(name for name in gymnasium.registry if name.startswith("rtmc/")):
        entry_point = gymnasium.registry[name].entry_point
        assert entry_point is not None  # every id of ours is registered with one
        creator: Any = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters.values()
        records.append(
            {
                "id": name,
                "summary": (inspect.getdoc(creator) or "").split("\n")[0],
                "splits": list(importlib.import_module(_SPLITS_OF[name]).SPLITS),
                "arguments": {p.name: repr(p.default) for p in parameters if p.default is not inspect.Parameter.empty},
            }
        )
    return records


ENVS = Command("envs", "list the environments, their splits and arguments", add_json, _envs)
PLAY = Command("play", "play an episode yourself, or watch a trained policy", _play_arguments, _play)
