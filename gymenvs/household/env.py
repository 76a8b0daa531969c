"""`rtmc/Household-v0`: the household world as a gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium.error import ResetNeeded

from rtmc.gymenvs.household import texts
from rtmc.gymenvs.household.answers import Narrator
from rtmc.gymenvs.household.commands import forgive
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.facts import Ledger, Trace
from rtmc.gymenvs.household.knowledge import Describer, Knowledge, learn
from rtmc.gymenvs.household.sources import Games, Generated, Source, as_task, check_task_types
from rtmc.gymenvs.household.task import HouseholdTask
from rtmc.gymenvs.household.world import RULES, State, World
from rtmc.gymenvs.textenv import TextEnv

OBSERVATIONS = ("feedback", "knowledge")
SHOW = ("task", "commands")
STATE_KEYS = ("world", "knowledge")
_ECHO = 200  # characters of a command that a history repeats


class Snapshot(NamedTuple):
    """Everything an episode is made of; `HouseholdEnv.restore` goes back to it, in this or another environment."""

    task: HouseholdTask
    state: State
    trace: Trace
    known: Knowledge
    turn: int
    past: tuple[str, ...] = ()


class HouseholdEnv(TextEnv[HouseholdTask]):
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

    That is what the texts and the admissible commands have told, and no more: of a receptacle beside the one gone to
    nothing is known before a command names what is in it, and a lamp that can be used may read
    `desklamp 1: at desk 1 or shelf 1.`

    `history=k` puts the k observations before it, with the commands between them, in front of each (`> look`, on one
    line). `show` adds what a policy without memory lacks: `"task"` a first line `Your task is to: ...` on every
    observation that does not tell the task by itself, `"commands"` a last line `Admissible commands: ..., ...`.

    ## Action
    Text: one of `info["admissible_commands"]`, to the letter but for blanks around it, e.g. `go to shelf 1`,
    `open fridge 1`, `take mug 1 from countertop 1`, `move mug 1 to shelf 1`, `heat mug 1 with microwave 1`,
    `use desklamp 1`, `inventory`. Anything else is answered with `Nothing happens.` and costs a turn. With
    `lenient=True` letter case, articles, doubled blanks and a final full stop do not matter, and
    `put mug 1 in/on shelf 1` is understood.

    ## Reward
    1.0 on a step that makes the goal true (it did not hold before the step), else 0.0.

    ## Episode end
    `terminated` while the goal holds, `truncated` once `max_turns` steps were made. One may go on stepping after
    either, as the engine allows: the goal is judged anew each time, so that taking the object out again makes
    `success` false and `score` 0, and reaching it again pays again.

    ## Information
    `task_id`; `state_key`, `action_key` (the command as it was understood, without blanks around it; None after a
    reset); `valid` (whether the command was admissible; True after a reset); `success`; `score` (1 or 0);
    `admissible_commands` (sorted); with `details=True` also `facts` (the engine's facts, sorted) and
    `expert_plan` (commands of a shortest plan from here, None if there is none).

    ## State identity
    `state_key="world"`: the exact state of the world as a 64-bit hash (see `World.key`), the same in every process;
    what was seen, turn number and goal have no part in it. Nor has the engine's book-keeping of what lay where, on
    which one text depends: with equal keys `look` may tell of a thing beside a receptacle or not (see Rules).
    `state_key="knowledge"`: what the agent knows, as text,
    whatever the order in which it learned it: the places visited with what was seen there, doors, what it holds,
    states of things, where it is. Turn number, goal and `look`s leave no trace in it. Equal keys of one task admit
    the same commands, by either.

    ## Tasks
    `task` (an id, a `HouseholdTask`, the JSON object of a task or a recording, or the path of a `game.tw-pddl`) fixes
    the task. Else it is one of the split's, which are numbered 0, 1, 2, ...: number n has type
    `task_types[n % len(task_types)]` and seed `n // len(task_types)`. With `data` they are the games of ALFWorld's own
    data folder, by path, over and over. `reset(seed=s)` draws the number with that seed (of 10,000 a type, or of the
    folder's games) and thus fixes the whole episode; a later `reset()` draws the next from the same generator; an
    environment never seeded goes through the numbers in order from 0. `reset(options={"task": ...})` plays that task
    once, and leaves the order as it was.

    ## Rules
    `rules="alfworld"` keeps every quirk of the engine: heating and cooling work through a closed door, lamps in closed
    receptacles can be used and things there sliced; lamps never go off; only held things can be examined, and the
    states of a vessel are not told; `look` before the first walk sees nothing, and later tells of things that were
    moved within one location as lying beside a receptacle; walking to where one stands does nothing.
    `rules="plain"` mends what is plainly a mistake: things in view can be examined, `use` switches a lamp on and off,
    heating and cooling need an open door, using and slicing a thing within reach, `look` lists the room and invents
    nothing, and a vessel's states are told. `household.world` lists both.

    ## Source
    Shridhar et al., ALFWorld: Aligning Text and Embodied Environments for Interactive Learning, ICLR 2021
    (arXiv:2010.03768); rules and texts as of the package alfworld 0.4.2.

    Args:
        task: fixed task, see Tasks.
        split: `tiny`, `train`, `valid_seen`, `valid_unseen` or `tiny_unseen`, see `household.splits`; None = `tiny`.
            With `data`: `train`, `valid_seen`, `valid_unseen`; None = every game of the folder.
        task_types: which of the six types to play; None = all.
        max_turns: steps after which an episode is truncated.
        rules: `alfworld` or `plain`, see Rules.
        observation: `feedback` or `knowledge`.
        details: whether `info` has `facts` and `expert_plan`.
        lenient: whether commands may be worded freely, see Action.
        show: `"task"`, `"commands"`, or both, see Observation.
        history: earlier observations repeated in each, at least 0.
        state_key: `world` or `knowledge`; None = `knowledge` where that is what is observed, else `world`.
        data: ALFWorld's data folder, see `household.datafolder.find_games`; text may name a variable, as in
            `"$ALFWORLD_DATA"`.

    Raises:
        ValueError: an argument is none of those named; the message says which would be.
        TypeError: `task`, `task_types`, `show` or `data` is of a type that none of these has.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("rtmc.gymenvs:rtmc/Household-v0", task="tiny/pick_and_place_simple/1")
        >>> text, info = env.reset()
        >>> for command in env.unwrapped.expert_plan():
        ...     text, reward, terminated, truncated, info = env.step(command)
        >>> reward, terminated, info["success"]
        (1.0, True, True)
    """

    world = "Household"

    def __init__(
        self,
        task: str | HouseholdTask | Mapping[str, Any] | os.PathLike[str] | None = None,
        split: str | None = None,
        task_types: Sequence[str] | None = None,
        max_turns: int = 50,
        rules: str = "alfworld",
        observation: str = "feedback",
        details: bool = False,
        lenient: bool = False,
        show: str | Sequence[str] = (),
        history: int = 0,
        state_key: str | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> None:
        self.max_turns = self._whole("max_turns", max_turns, 1)
        self.history = self._whole("history", history, 0)
        self.rules = self._choice("rules", rules, RULES)
        self.observation = self._choice("observation", observation, OBSERVATIONS)
        usual = "knowledge" if observation == "knowledge" else "world"
        self.state_key = usual if state_key is None else self._choice("state_key", state_key, STATE_KEYS)
        if not isinstance(show, Iterable):
            raise TypeError(f"Household: show must be some of {', '.join(map(repr, SHOW))}, got {show!r}")
        self.show = tuple(self._choice("show", part, SHOW) for part in ((show,) if isinstance(show, str) else show))
        self.details, self.lenient = details, lenient
        self.task_types = check_task_types(task_types)
        self.source: Source
        if data is None:
            self.source = Generated("tiny" if split is None else split, self.task_types)
        else:
            self.source = Games(data, split, self.task_types)
        super().__init__(task)
        self._world: World | None = None

    # -- gymnasium -----------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; which task it has is told under Tasks.

        Raises:
            ValueError: an option is not `task`, or its value names no task.
        """
        task = self._begin(seed, options)
        world = self._enter(task)
        self._state, self._trace, self._turn = world.start, Trace(), 0
        self._known = learn(world, self._state, Knowledge())
        self._past: tuple[str, ...] = ()
        self._look_up(world)
        return self._observe(None, self._narrator.intro()), self._info(world, None, True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command.

        Raises:
            TypeError: the action is no text.
            gymnasium.error.ResetNeeded: no episode was started.
        """
        world = self._playing()
        if not isinstance(action, str):
            raise TypeError(f"Household: an action is text, got {type(action).__name__}: {action!r}")
        command = forgive(action, self._admissible) if self.lenient else action.strip()
        valid = command in self._admissible
        before = self._success
        self._turn += 1
        if valid:
            grounded = world.action(command)
            self._trace = self._ledger.note(self._trace, self._state, grounded)
            self._state = state = world.apply(self._state, grounded)
            self._known = learn(world, state, self._known, grounded)
            feedback = self._narrator.answer(state, self._trace, grounded)
            self._look_up(world)
        else:
            feedback = texts.NOTHING_HAPPENS
        reward = 1.0 if self._success and not before else 0.0
        truncated = self._turn >= self.max_turns
        return self._observe(command, feedback), reward, self._success, truncated, self._info(world, command, valid)

    # -- forks and help ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The episode as it is now: small, immutable, picklable."""
        return Snapshot(self._playing().task, self._state, self._trace, self._known, self._turn, self._past)

    def restore(self, snapshot: Snapshot) -> dict[str, Any]:
        """Go on from a snapshot, here or in another environment with the same rules.

        It costs microseconds while the snapshot's task is the one being played; for another task its world is made
        first (as in a reset, some tenths of a millisecond in a full room), and a snapshot out of another process is
        first compared with the task being played.

        Returns:
            The info of the restored state, with `action_key` None and `valid` True, as after a reset.

        Raises:
            TypeError: it is no snapshot of a household episode.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"Household: restore wants what snapshot() gave, got {type(snapshot).__name__}")
        world = self._enter(snapshot.task)
        _, self._state, self._trace, self._known, self._turn, self._past = snapshot
        self._look_up(world)
        return self._info(world, None, True)

    def expert_plan(self) -> list[str] | None:
        """A shortest plan from the present state: [] if the goal holds, None if it cannot be reached."""
        return shortest_plan(self._playing(), self._state)

    def describe(self) -> str:
        """The present knowledge as text, whatever `observation` is."""
        self._playing()
        return self._describer.text(self._state, self._known)

    # -- inside --------------------------------------------------------------------------------------------

    def _as_task(self, task: Any) -> HouseholdTask:
        return as_task(task, self.source)

    def _enter(self, task: HouseholdTask) -> World:
        if self._world is None or not (self._world.task is task or self._world.task == task):
            self._world = World(task, self.rules)
            self._ledger = Ledger(self._world)
            self._narrator = Narrator(self._world, self._ledger)
            self._describer = Describer(self._world)
        return self._world

    def _playing(self) -> World:
        if self._world is None:
            raise ResetNeeded("Household: call reset() (or restore()) first")
        return self._world

    def _look_up(self, world: World) -> None:
        """What follows from the state: its commands, and whether the goal holds."""
        self._admissible = world.commands(self._state)
        self._success = world.success(self._state)

    def _observe(self, command: str | None, feedback: str) -> str:
        """The observation after `command` (None: after a reset)."""
        text = feedback if self.observation == "feedback" else self._describer.text(self._state, self._known)
        told = command is None or self.observation == "knowledge"  # whether the text tells the task
        if self.history:
            if command is None:
                self._past = (text,)
            else:
                echo = command if len(command) <= _ECHO else command[:_ECHO] + "..."
                echo = " ".join(echo.splitlines())  # a command that breaks lines could pass for several
                told = told or self._turn <= self.history
                self._past = (*self._past, f"> {echo}", text)[-2 * self.history - 1 :]
            text = "\n".join(self._past)
        if self.show:
            if "task" in self.show and not told:
                text = f"Your task is to: {self._playing().goal.sentence}.\n{text}"
            if "commands" in self.show:
                text += f"\nAdmissible commands: {', '.join(self._admissible)}"
        return text

    def _info(self, world: World, command: str | None, valid: bool) -> dict[str, Any]:
        exact = self.state_key == "world"
        key = world.key(self._state) if exact else self._describer.key(self._state, self._known)
        info: dict[str, Any] = {
            "task_id": world.task.task_id,
            "state_key": key,
            "action_key": command,
            "valid": valid,
            "success": self._success,
            "score": int(self._success),
            "admissible_commands": list(self._admissible),
        }
        if self.details:
            info["facts"] = self._ledger.facts(self._state, self._trace)
            info["expert_plan"] = self.expert_plan()
        return info
