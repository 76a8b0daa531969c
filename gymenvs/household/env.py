"""`rtmc/Household-v0`: the household world as a gymnasium environment."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.error import ResetNeeded

from rtmc.gymenvs.household import generate, splits, texts, vocabulary
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.knowledge import Describer, Knowledge, learn
from rtmc.gymenvs.household.task import HouseholdTask
from rtmc.gymenvs.household.world import State, Trace, World
from rtmc.gymenvs.spaces import UnicodeText

SEEDS_PER_TYPE = 10_000
RULES = ("alfworld",)
OBSERVATIONS = ("feedback", "knowledge")


class Snapshot(NamedTuple):
    """Everything an episode is made of; `HouseholdEnv.restore` goes back to it, in this or another environment."""

    task: HouseholdTask
    state: State
    trace: Trace
    known: Knowledge
    turn: int


class HouseholdEnv(gym.Env[str, str]):
    """Household tasks in text, by the rules and in the words of ALFWorld.

    The agent stands in a room, goes to receptacles, opens them, takes things, cleans, heats or cools them, and puts
    them where the goal wants them.

    ## Observation
    Text. With `observation="feedback"` what the engine says, e.g. after a reset

        -= Welcome to TextWorld, ALFRED! =-

        You are in the middle of a room. Looking quickly around you, you see a shelf 1, and a countertop 1.

        Your task is to: put some mug on shelf.

    and after `go to countertop 1`: `You arrive at countertop 1. On the countertop 1, you see a mug 1.` With
    `observation="knowledge"` all that the agent knows, so that the last text alone suffices to act:

        Task: put some mug on shelf.
        Places: countertop 1, fridge 1, shelf 1.
        Seen: countertop 1: mug 1, plate 1. fridge 1: closed.
        You are at countertop 1, holding nothing.

    An open receptacle reads `fridge 1 (open): cup 2.`, one that was closed again `fridge 1 (closed): cup 2.`, a thing
    that was heated `mug 1 (hot)`, a lamp that is lit ` desklamp 1 is on.` at the end of the last line.

    ## Action
    Text: one of `info["admissible_commands"]`, to the letter but for blanks around it, e.g. `go to shelf 1`,
    `open fridge 1`, `take mug 1 from countertop 1`, `move mug 1 to shelf 1`, `heat mug 1 with microwave 1`,
    `use desklamp 1`, `inventory`. Anything else is answered with `Nothing happens.` and costs a turn.

    ## Reward
    1.0 on a step that makes the goal true (it did not hold before the step), else 0.0.

    ## Episode end
    `terminated` while the goal holds, `truncated` once `max_turns` steps were made. One may go on stepping after
    either, as the engine allows: the goal is judged anew each time, so that taking the object out again makes
    `success` false and `score` 0, and reaching it again pays again.

    ## Information
    `task_id`; `state_key`, `action_key` (the command without blanks around it; None after a reset); `valid`
    (whether the command was admissible; True after a reset); `success`; `score` (1 or 0);
    `admissible_commands` (sorted); with `details=True` also `facts` (the engine's facts, sorted) and
    `expert_plan` (commands of a shortest plan from here, None if there is none).

    ## State identity
    `state_key` is what the agent knows, whatever the order in which it learned it: the places visited with what
    was seen there, doors, what it holds, states of things, where it is. Turn number, goal and `look`s leave no trace
    in it. Equal keys of one task admit the same commands.

    ## Tasks
    `task` (an id, a `HouseholdTask`, or the JSON object of a task or a recording) fixes the task. Else it is one of
    the split's, which are numbered 0, 1, 2, ...: number n has type `task_types[n % len(task_types)]` and seed
    `n // len(task_types)`. `reset(seed=s)` draws the number with that seed (of 10,000 a type) and thus fixes the
    whole episode; a later `reset()` draws the next from the same generator; an environment never seeded goes
    through the numbers in order from 0. `reset(options={"task": ...})` plays that task once, and leaves the order
    as it was.

    ## Source
    Shridhar et al., ALFWorld: Aligning Text and Embodied Environments for Interactive Learning, ICLR 2021
    (arXiv:2010.03768); rules and texts as of the package alfworld 0.4.2.

    Args:
        task: fixed task, see Tasks.
        split: `tiny`, `train`, `valid_seen`, `valid_unseen` or `tiny_unseen`; see `household.splits`.
        task_types: which of the six types to play; None = all.
        max_turns: steps after which an episode is truncated.
        rules: `alfworld`, the one set of rules there is.
        observation: `feedback` or `knowledge`.
        details: whether `info` has `facts` and `expert_plan`.

    Raises:
        ValueError: an argument is none of those named; the message says which would be.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("rtmc.gymenvs:rtmc/Household-v0", task="tiny/pick_and_place_simple/1")
        >>> text, info = env.reset()
        >>> for command in env.unwrapped.expert_plan():
        ...     text, reward, terminated, truncated, info = env.step(command)
        >>> reward, terminated, info["success"]
        (1.0, True, True)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- the name and type are gymnasium's

    def __init__(
        self,
        task: str | HouseholdTask | Mapping[str, Any] | None = None,
        split: str = "tiny",
        task_types: Sequence[str] | None = None,
        max_turns: int = 50,
        rules: str = "alfworld",
        observation: str = "feedback",
        details: bool = False,
    ) -> None:
        self.split = splits.check_split(split)
        if isinstance(task_types, str):
            task_types = (task_types,)
        self.task_types = tuple(vocabulary.TASK_TYPES if task_types is None else task_types)
        for task_type in self.task_types:
            splits.check_task_type(task_type)
        if not self.task_types:
            raise ValueError(f"Household: task_types is empty; wanted some of {', '.join(vocabulary.TASK_TYPES)}")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ValueError(f"Household: max_turns must be a whole number of at least 1, got {max_turns!r}")
        _check_choice("rules", rules, RULES)
        _check_choice("observation", observation, OBSERVATIONS)
        self.max_turns, self.observation, self.details = max_turns, observation, details
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText(10_000)
        self.task = None if task is None else _as_task(task)
        self._number = 0
        self._seeded = False
        self._world: World | None = None

    # -- gymnasium -----------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; which task it has is told under Tasks.

        Raises:
            ValueError: an option is not `task`, or its value names no task.
        """
        super().reset(seed=seed)
        self._seeded = self._seeded or seed is not None
        unknown = sorted(set(options or ()) - {"task"})
        if unknown:
            raise ValueError(f"Household: unknown reset options {unknown}; there is one, 'task'")
        chosen = (options or {}).get("task")
        if chosen is not None:
            task = _as_task(chosen)
        elif self.task is not None:
            task = self.task
        else:
            task = self._next_task()
        self._enter(task)
        world = self._playing()
        self._state, self._trace, self._turn = world.start, Trace(), 0
        self._known = learn(world, self._state, Knowledge())
        self._look_up()
        return self._observe(world.intro()), self._info(None, True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command.

        Raises:
            TypeError: the action is no text.
            gymnasium.error.ResetNeeded: no episode was started.
        """
        world = self._playing()
        if not isinstance(action, str):
            raise TypeError(f"Household: an action is text, got {type(action).__name__}: {action!r}")
        command = action.strip()
        grounded = self._actions.get(command)
        before = self._success
        self._turn += 1
        if grounded is None:
            feedback = texts.NOTHING_HAPPENS
        else:
            self._trace = world.note(self._trace, self._state, grounded)
            self._state = world.apply(self._state, grounded)
            self._known = learn(world, self._state, self._known)
            feedback = world.feedback(self._state, self._trace, grounded)
            self._look_up()
        reward = 1.0 if self._success and not before else 0.0
        truncated = self._turn >= self.max_turns
        info = self._info(command, grounded is not None)
        return self._observe(feedback), reward, self._success, truncated, info

    # -- forks and help ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The episode as it is now: small, immutable, picklable."""
        return Snapshot(self._playing().task, self._state, self._trace, self._known, self._turn)

    def restore(self, snapshot: Snapshot) -> dict[str, Any]:
        """Go on from a snapshot, here or in another environment.

        Returns:
            The info of the restored state, with `action_key` None and `valid` True, as after a reset.

        Raises:
            TypeError: it is no snapshot of a household episode.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"Household: restore wants what snapshot() gave, got {type(snapshot).__name__}")
        self._enter(snapshot.task)
        self._state, self._trace, self._known = snapshot.state, snapshot.trace, snapshot.known
        self._turn = snapshot.turn
        self._look_up()
        return self._info(None, True)

    def expert_plan(self) -> list[str] | None:
        """A shortest plan from the present state: [] if the goal holds, None if it cannot be reached."""
        return shortest_plan(self._playing(), self._state)

    def describe(self) -> str:
        """The present knowledge as text, whatever `observation` is."""
        self._playing()
        return self._describer.text(self._state, self._known)

    # -- inside --------------------------------------------------------------------------------------------

    def _next_task(self) -> HouseholdTask:
        types = self.task_types
        if self._seeded:
            number = int(self.np_random.integers(SEEDS_PER_TYPE * len(types)))
        else:
            number = self._number
            self._number += 1
        seed, kind = divmod(number, len(types))
        return generate.draw_task(types[kind], seed, split=self.split)

    def _enter(self, task: HouseholdTask) -> None:
        if self._world is None or self._world.task != task:
            self._world = World(task)
            self._describer = Describer(self._world)

    def _playing(self) -> World:
        if self._world is None:
            raise ResetNeeded("Household: call reset() (or restore()) first")
        return self._world

    def _look_up(self) -> None:
        """What follows from the state: its commands, whether the goal holds, its key."""
        world = self._playing()
        self._actions = world.actions(self._state)
        self._admissible = sorted(self._actions)
        self._success = world.success(self._state)
        self._key = self._describer.key(self._state, self._known, self._actions)

    def _observe(self, feedback: str) -> str:
        if self.observation == "feedback":
            return feedback
        return self._describer.text(self._state, self._known)

    def _info(self, command: str | None, valid: bool) -> dict[str, Any]:
        world = self._playing()
        info: dict[str, Any] = {
            "task_id": world.task.task_id,
            "state_key": self._key,
            "action_key": command,
            "valid": valid,
            "success": self._success,
            "score": int(self._success),
            "admissible_commands": list(self._admissible),
        }
        if self.details:
            info["facts"] = world.facts(self._state, self._trace)
            info["expert_plan"] = self.expert_plan()
        return info


def _check_choice(name: str, got: str, options: Sequence[str]) -> None:
    if got not in options:
        close = difflib.get_close_matches(str(got), options, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"Household: {name}={got!r} is none of {', '.join(map(repr, options))}{hint}")


def _as_task(task: Any) -> HouseholdTask:
    if isinstance(task, HouseholdTask):
        return task
    if isinstance(task, str) and task.lstrip().startswith("{"):
        return HouseholdTask.from_json(task)
    if isinstance(task, str):
        return generate.generate_task(task)
    if isinstance(task, Mapping):
        return HouseholdTask.from_recording(task) if "init" in task else HouseholdTask.from_json(task)
    raise TypeError(f"Household: a task is an id, a HouseholdTask or its JSON object, got {type(task).__name__}")
