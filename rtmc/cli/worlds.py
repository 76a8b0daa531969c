"""`rtmc play` and `rtmc envs`: the environments, reached through their gymnasium ids."""

import argparse
import importlib
import inspect
import re
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rtmc.cli.command import Command, Parser, UsageError, add_json, one_of, print_json
from rtmc.cli.training import prepare_threads
from rtmc.errors import unknown_name

# World -> gymnasium id; the prefix makes gymnasium import the module that registers it.
_WORLDS = {
    "household": "rtmc.gymenvs:rtmc/Household-v0",
    "search-qa": "rtmc.gymenvs:rtmc/SearchQA-v0",
    "swe": "rtmc.gymenvs:rtmc/SWE-v0",
}
# The module whose SPLITS has a world's splits as keys: gymnasium's specs have no place for them.
_SPLITS_OF = {
    "rtmc/Household-v0": "rtmc.gymenvs.household.generate",
    "rtmc/SearchQA-v0": "rtmc.gymenvs.qa.generated",
    "rtmc/SWE-v0": "rtmc.gymenvs.swe.episodes",
}


_NAMED = 40  # ids of tasks that are listed at most
_ASK = "`--task list`"  # an id like any other that is not there


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: a whole number from 0 on is wanted")
    return int(text)


def _play_arguments(parser: Parser) -> None:
    parser.add_argument("world", type=one_of("world", _WORLDS), metavar="WORLD", help=", ".join(_WORLDS))
    parser.add_argument("--split", metavar="NAME", help="which tasks to draw from (`rtmc envs` lists them)")
    parser.add_argument("--task", metavar="ID", help=f"this very task; {_ASK} tells which there are")
    parser.add_argument("--data", metavar="FOLDER", help="play the games of ALFWorld's own data folder")
    parser.add_argument("--tasks", metavar="FILE", help="play the tasks of this file, e.g. SWE-bench's")
    parser.add_argument("--repos", metavar="FOLDER", help="where the clones or prepared folders of such tasks lie")
    parser.add_argument("--rules", metavar="NAME", help="which rules hold, e.g. alfworld or plain")
    parser.add_argument("--lenient", action="store_true", default=None, help="understand freely worded commands")
    parser.add_argument("--seed", type=_seed, metavar="N", help="fixes the whole episode, the choice of task included")
    parser.add_argument("--model", metavar="RUN", help="watch the trained policy of this run's folder play instead")
    parser.add_argument("--max-turns", type=int, metavar="N", help="the environment's own turn limit")


def _play(arguments: argparse.Namespace) -> int:
    import gymnasium

    names = ("split", "task", "data", "tasks", "repos", "rules", "lenient", "max_turns")
    chosen = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    taken = _parameters(_WORLDS[arguments.world].partition(":")[2])
    for name in chosen:
        if name not in taken:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is no option of {arguments.world} (`rtmc envs` lists what each world takes)")
    given = (arguments.task or "").lstrip().startswith("{")  # a whole task, as JSON
    if arguments.repos is not None and arguments.tasks is None and not given:
        raise UsageError("--repos goes with --tasks: the shipped tasks bring their own repositories")
    _check_task(_WORLDS[arguments.world], chosen)
    if arguments.model is not None:
        prepare_threads()
        from rtmc.train.watch import watch

        watch(Path(arguments.model), _WORLDS[arguments.world], chosen, arguments.seed, print)
        return 0
    env = gymnasium.make(_WORLDS[arguments.world], **chosen)
    try:
        return _play_episode(env, arguments.seed, help_of(arguments.world))
    finally:
        env.close()


def _check_task(name: str, chosen: dict[str, Any]) -> None:
    """Raises UsageError that names the tasks there are, where a world has a short list without the one asked for."""
    import gymnasium

    task = chosen.get("task")
    if task is None or task.lstrip().startswith("{"):
        return
    env = gymnasium.make(name, **{key: value for key, value in chosen.items() if key != "task"})
    try:
        listed = getattr(getattr(env.unwrapped, "source", None), "tasks", None)
        known = [one.task_id for one in listed] if isinstance(listed, list) else [task]
    finally:
        env.close()
    if task not in known and len(known) <= _NAMED:
        raise UsageError(unknown_name("task", task, known))


_LINES = {
    "household": "  a command, as listed, or its number",
    "search-qa": "  a whole message, as the task's text asks for it",
    "swe": """  a line is a shell command, run in a sandbox without network, in the repository's folder. Each has its
  own shell, so only files stay. To go to a folder: `(cd DIR && COMMAND)`. A here-document may follow on more lines,
  and a whole message in the form that the task's text shows is taken as one.
  submit     end the task and have it graded by its hidden tests: nothing else gives a reward
  Ctrl-C     stop a command that runs; at the prompt, leave""",
}
_NEEDS = "`swe` needs git and a sandbox, bubblewrap or unshare: `rtmc doctor` tells what works here."
_LEFT = "it was not played to its end, so nothing is graded, and what was done is lost"
_WORDS = """  hint, h    what the expert would do next, and how many steps are left
  undo, u    take the last step back
  help, ?    this text
  quit, q    leave"""


def help_of(world: str) -> str:
    """What can be typed while a world is played."""
    return f"{_LINES[world]}\n{_WORDS}"


class _Moment(NamedTuple):
    """An episode at one turn: what `undo` goes back to. `snapshot` is None where a world cannot be forked."""

    snapshot: Any
    observation: str
    info: dict[str, Any]
    total: float


def _play_episode(env: Any, seed: int | None, told: str) -> int:
    """One episode on standard input: a command or its number a line, or a word of `told`, which is the help.

    Ctrl-C while a step runs ends that step alone; at the prompt it ends the episode, and is raised.
    """
    observation, info = env.reset(seed=seed)
    print(f"task {info['task_id']}\n\n{observation}")
    world: Any = env.unwrapped
    # A world whose actions are whole messages may read a person's line its own way, and says how.
    as_action = getattr(world, "read_line", lambda line: line)
    if hasattr(world, "LINE_HELP"):
        print(f"\n{world.LINE_HELP}")
    take = getattr(world, "snapshot", lambda: None)
    moments = [_Moment(take(), observation, info, 0.0)]
    _list_commands(info)
    while True:
        info, total, turns = moments[-1].info, moments[-1].total, len(moments) - 1
        left = f"\nleft after {turns} turns, reward {total:g}: {_LEFT}"
        try:
            word = _next_word("command or number" if info.get("admissible_commands") else "command")
        except KeyboardInterrupt:
            print(left)
            raise
        if word is None:
            print(left)
            return 0
        if word in ("help", "?"):
            print(f"\n{told}")
        elif word in ("hint", "h"):
            print(f"\n{_hint(env)}")
        elif word in ("undo", "u"):
            print(f"\n{_undo(env, moments)}")
            _list_commands(moments[-1].info)
        else:
            commands = info.get("admissible_commands", [])
            if commands and re.fullmatch(r"[+-]?[0-9]+", word):
                # No world understands a bare number: it is a slip, and costs no turn.
                number = int(word) if len(word) < 9 else 0
                if not 1 <= number <= len(commands):
                    print(f"\nthere is no command {word[:20]}: they are numbered 1 to {len(commands)}")
                    continue
                word = commands[number - 1]
            if hasattr(world, "read_line"):
                word = _whole_command(word)
            try:
                observation, reward, terminated, truncated, info = env.step(as_action(word))
            except KeyboardInterrupt:
                print(f"\n> {word}\n{_interrupted(world, moments[-1])}")
                continue
            print(f"\n> {word}\n{observation}")
            total, turns = total + float(reward), turns + 1
            if terminated or truncated:
                ending = "success" if info.get("success") else "the turn limit" if truncated else "failure"
                reason = (info.get("verdict") or {}).get("reason")
                print(f"\n{ending} after {turns} turns, reward {total:g}" + (f": {reason}" if reason else ""))
                return 0
            moments.append(_Moment(take(), observation, info, total))
            _list_commands(info)


def _interrupted(world: Any, before: _Moment) -> str:
    """Have a whole episode again after a step that was broken off; what to print.

    Where lines are commands, what they wrote stays, as after any command that is killed; the world's notes of it are
    made anew. Elsewhere the state is that before the step. Nothing of a killed command runs on: `Sandbox.run` sees to
    that before the interrupt goes on.
    """
    commands = hasattr(world, "read_line")
    if before.snapshot is not None:
        world.restore(world.snapshot() if commands else before.snapshot)
    code = f"Exit code: {128 + signal.SIGKILL}\n" if commands else ""
    return f"{code}stopped by Ctrl-C; the episode goes on, and no turn was taken"


def _list_commands(info: dict[str, Any]) -> None:
    print()
    for number, command in enumerate(info.get("admissible_commands", []), 1):
        print(f"{number:>3}  {command}")


def _hint(env: Any) -> str:
    expert = getattr(env.unwrapped, "expert_plan", None)
    if expert is None:
        return "this world has no expert"
    plan = expert()
    if plan == []:
        return "the goal is reached already"
    if plan is None:
        return "no steps lead to the goal from here: undo"
    return f"{plan[0]} (the goal is {len(plan)} {'step' if len(plan) == 1 else 'steps'} away)"


def _undo(env: Any, moments: list[_Moment]) -> str:
    """Go back one turn; what to print. The turn limit goes back too: a snapshot carries the turns."""
    if len(moments) == 1:
        return "nothing to undo: this is the start"
    if moments[-2].snapshot is None:
        return "this world cannot go back"
    moments.pop()
    env.unwrapped.restore(moments[-1].snapshot)
    return moments[-1].observation


def _next_word(wanted: str) -> str | None:
    """The next line that is not blank; None for `q` and at the end of the input. `wanted`: how the prompt calls it."""
    while True:
        if sys.stdin.isatty():
            print(f"\n{wanted}, ? for help, q to leave: ", end="", flush=True)
        line = sys.stdin.readline()
        word = line.strip()
        if not line or word in ("q", "quit"):
            return None
        if word:
            return word


def _whole_command(line: str) -> str:
    """The line, and those after it that belong to it: up to the end of a call, or of a shell's here-document."""
    calls = {"<function": "</function>", "<tool_call>": "</tool_call>", "```": "```"}
    end = next((close for start, close in calls.items() if line.startswith(start)), None)
    heredoc = re.search(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1", line)
    lines, closed = [line], end is not None and end in line[3:]
    while not closed and (end or heredoc) and (more := sys.stdin.readline()):
        lines.append(more.rstrip("\n"))
        closed = end in more if end is not None else heredoc is not None and more.strip() == heredoc[2]
    return "\n".join(lines)


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
    print(f"Which tasks a world has, or how their ids are written: `rtmc play WORLD` with {_ASK}.")
    return 0


def environments() -> list[dict[str, Any]]:
    """Every registered environment of ours: id, summary, splits, keyword arguments with defaults (as text).

    Raises ModuleNotFoundError without gymnasium.
    """
    import gymnasium

    import rtmc.gymenvs  # noqa: F401 - registers the ids

    return [
        {
            "id": name,
            "summary": (inspect.getdoc(_creator(name)) or "").split("\n")[0],
            "splits": list(importlib.import_module(_SPLITS_OF[name]).SPLITS),
            "arguments": _parameters(name),
        }
        for name in sorted(name for name in gymnasium.registry if name.startswith("rtmc/"))
    ]


def _creator(name: str) -> Any:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    import rtmc.gymenvs  # noqa: F401 - registers the ids

    entry_point = gymnasium.registry[name].entry_point
    assert entry_point is not None  # every id of ours is registered with one
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _parameters(name: str) -> dict[str, str]:
    """Keyword arguments of an environment, with their defaults as text."""
    parameters = inspect.signature(_creator(name)).parameters.values()
    return {p.name: repr(p.default) for p in parameters if p.default is not inspect.Parameter.empty}


ENVS = Command("envs", "list the environments, their splits and arguments", add_json, _envs)
PLAY = Command(
    "play",
    "play an episode yourself, or watch a trained policy",
    _play_arguments,
    _play,
    "Play an episode yourself, or watch a trained policy (--model). What can be typed:\n\n"
    + "".join(f"{world}\n{lines}\n" for world, lines in _LINES.items())
    + f"all worlds\n{_WORDS}\n\n{_NEEDS}",
)
