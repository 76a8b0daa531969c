"""The real engine behind the same interface: household tasks stepped by the packages `alfworld` and `textworld`.

For comparison and for doubt. It is some ten thousand times slower than `HouseholdEnv`, which says and does the same;
`tests/test_household_engine.py` holds the two against each other. The packages are no dependency of this one, and the
planner they bring is under the GPL: `pip install alfworld==0.4.2 'textworld[pddl]==1.7.0'`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.error import ResetNeeded

from rtmc.gymenvs.household.env import HouseholdEnv
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.task import HouseholdTask
from rtmc.gymenvs.household.world import NOBODY, STATE_NAMES, State, World

_FACT = re.compile(r"(\w+)\((.*)\)")


class EngineSnapshot(NamedTuple):
    """What leads to a moment of an episode: the engine itself cannot be copied, so restoring plays it again."""

    task: HouseholdTask
    commands: tuple[str, ...]


class EngineEnv(gym.Env[str, str]):
    """As `HouseholdEnv` with its default rules and observation, played by the real engine.

    Observation, action, reward, episode end, information, state identity, tasks and arguments are told there.
    `snapshot` and `restore` fork an episode, at the price of playing it again.

    Raises:
        ModuleNotFoundError: the engine's packages are not installed; the message says how to get them.
        ValueError: as `HouseholdEnv`; or a task's things are not numbered 1, 2, ... of each kind, as the engine does.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- the name and type are gymnasium's

    def __init__(
        self,
        task: str | HouseholdTask | Mapping[str, Any] | os.PathLike[str] | None = None,
        split: str | None = None,
        task_types: Sequence[str] | None = None,
        max_turns: int = 50,
        details: bool = False,
        data: str | os.PathLike[str] | None = None,
    ) -> None:
        self._parts = _packages()
        # Only the order of tasks and the checks of arguments are taken from it; it is never stepped.
        self._order = HouseholdEnv(task, split, task_types, max_turns, data=data)
        self.max_turns, self.details = max_turns, details
        self.observation_space, self.action_space = self._order.observation_space, self._order.action_space
        self._game: Any = None
        self._world: World | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as `HouseholdEnv.reset`."""
        super().reset(seed=seed)
        self._order.reset(seed=seed, options=options)
        return self._start(self._order.snapshot().task)

    def _start(self, task: HouseholdTask) -> tuple[str, dict[str, Any]]:
        if self._world is None or self._world.task != task:
            self._world = World(task)
            self._game = self._load(game_of(task, self._parts["domain"], self._parts["grammar"]))
        self._seen = self._game.reset()
        self._commands: list[str] = []
        return self._seen.feedback, self._info(None, True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command, as `HouseholdEnv.step`."""
        if self._game is None:
            raise ResetNeeded("Household engine: call reset() (or restore()) first")
        if not isinstance(action, str):
            raise TypeError(f"Household engine: an action is text, got {type(action).__name__}: {action!r}")
        command = action.strip()
        before = self._seen
        valid = command in before["admissible_commands"]
        self._seen, _, _ = self._game.step(command)
        self._commands.append(command)
        won = bool(self._seen["won"])
        reward = 1.0 if won and not before["won"] else 0.0
        return self._seen.feedback, reward, won, len(self._commands) >= self.max_turns, self._info(command, valid)

    def snapshot(self) -> EngineSnapshot:
        """The episode so far: its task and commands."""
        if self._world is None:
            raise ResetNeeded("Household engine: call reset() (or restore()) first")
        return EngineSnapshot(self._world.task, tuple(self._commands))

    def restore(self, snapshot: EngineSnapshot) -> dict[str, Any]:
        """Play an episode again up to the snapshot; returns the info there, as `HouseholdEnv.restore`."""
        if not isinstance(snapshot, EngineSnapshot):
            raise TypeError(f"Household engine: restore wants what snapshot() gave, got {type(snapshot).__name__}")
        self._start(snapshot.task)
        for command in snapshot.commands:
            self.step(command)
        return self._info(None, True)

    def expert_plan(self) -> list[str] | None:
        """A shortest plan from the present state, by the expert of `HouseholdEnv`."""
        if self._world is None:
            raise ResetNeeded("Household engine: call reset() (or restore()) first")
        return shortest_plan(self._world, state_of(self._world, self._facts()))

    def close(self) -> None:
        if self._game is not None:
            self._game.close()

    def _load(self, game: dict[str, Any]) -> Any:
        textworld = self._parts["textworld"]
        infos = textworld.EnvInfos(won=True, admissible_commands=True, facts=True)
        played = self._parts["demangler"](self._parts["pddl"](infos))
        played.load(game)
        return played

    def _facts(self) -> list[str]:
        told = (f"{f.name}({', '.join(a.name.strip() for a in f.arguments)})" for f in self._seen["facts"])
        # The planner's own axioms are no facts of the world.
        return sorted({fact for fact in told if not fact.startswith("new-axiom")})

    def _info(self, command: str | None, valid: bool) -> dict[str, Any]:
        assert self._world is not None  # an episode was started
        facts = self._facts()
        info = {
            "task_id": self._world.task.task_id,
            "state_key": self._world.key(state_of(self._world, facts)),
            "action_key": command,
            "valid": valid,
            "success": bool(self._seen["won"]),
            "score": int(self._seen["won"]),
            "admissible_commands": list(self._seen["admissible_commands"]),
        }
        if self.details:
            info["facts"] = facts
            info["expert_plan"] = self.expert_plan()
        return info


def _packages() -> dict[str, Any]:
    try:
        textworld = import_module("textworld")
        player = import_module("textworld.envs").PddlEnv
        demangler = import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        paths = import_module("alfworld.info")
    except ImportError as error:
        raise ModuleNotFoundError(
            f"the household engine needs alfworld and textworld ({error}): "
            "pip install alfworld==0.4.2 'textworld[pddl]==1.7.0'",
            name=error.name,
        ) from error
    texts = {
        "domain": Path(paths.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": Path(paths.ALFRED_TWL2_PATH).read_text(encoding="utf-8"),
    }
    return {"textworld": textworld, "demangler": demangler, "pddl": player, **texts}


def state_of(world: World, facts: Sequence[str]) -> State:
    """The state that the engine's facts describe, of the same task."""
    receptacles = {name: r for r, name in enumerate(world.receptacle_names)}
    items = {name: k for k, name in enumerate(world.item_names)}
    places = {name: place for place, name in enumerate(world.locations)}
    place, held, opened = 0, NOBODY, 0
    contents, lying = [0] * len(receptacles), [0] * len(places)
    states = dict.fromkeys(STATE_NAMES, 0)
    for fact in facts:
        match = _FACT.fullmatch(fact)
        assert match is not None  # every fact is predicate(arguments)
        name, arguments = match[1], match[2].split(", ")
        if name == "atlocation":
            place = places[arguments[1]]
        elif name == "holds":
            held = items[arguments[1]]
        elif name == "opened":
            opened |= 1 << receptacles[arguments[0]]
        elif name == "inreceptacle":
            contents[receptacles[arguments[1]]] |= 1 << items[arguments[0]]
        elif name == "objectatlocation":
            lying[places[arguments[1]]] |= 1 << items[arguments[0]]
        elif name.removeprefix("is") in states and name.startswith("is"):
            states[name.removeprefix("is")] |= 1 << items[arguments[0]]
    return State(place, held, tuple(contents), tuple(lying), opened, **states)


def game_of(task: HouseholdTask, domain: str, grammar: str) -> dict[str, Any]:
    """The task as the JSON object of a `game.tw-pddl` file, given the engine's domain and grammar."""
    sentence = grammar.replace("UNKNOWN GOAL", task.goal.sentence)
    return {"pddl_domain": domain, "grammar": sentence, "pddl_problem": problem_of(task), "solvable": True}


def problem_of(task: HouseholdTask) -> str:
    """The task as a PDDL problem of the engine's domain, whose ids the engine turns into the task's names.

    Raises:
        ValueError: the things of a kind are not numbered from 1 on.
    """
    ids = _ids_of(task)
    rtypes = {r.kind for r in task.receptacles} | {kind for kind, _ in task.accepts}
    otypes = {i.kind for i in task.items} | {held for _, kinds in task.accepts for held in kinds}
    # The domain's actions name these kinds, whether or not the room has one.
    rtypes |= {"sinkbasin", "microwave", "fridge"}
    otypes |= {"knife", "butterknife", task.goal.object}
    declared = [
        "agent1 - agent",
        *(f"{kind}type - rtype" for kind in sorted(rtypes)),
        *(f"{kind}type - otype" for kind in sorted(otypes)),
        *(f"{ids[r.name]} - receptacle" for r in task.receptacles),
        *(f"{ids[i.name]} - object" for i in task.items),
        *(f"{ids[place]} - location" for place in _places_of(task)),
    ]
    facts = [f"atlocation agent1 {ids[task.start]}"]
    for r in task.receptacles:
        facts.append(f"receptacletype {ids[r.name]} {r.kind}type")
        facts += [f"receptacleatlocation {ids[r.name]} {ids[r.location]}"] if r.location is not None else []
        facts += [f"openable {ids[r.name]}"] * r.openable + [f"opened {ids[r.name]}"] * r.opened
    for i in task.items:
        facts.append(f"objecttype {ids[i.name]} {i.kind}type")
        facts += [f"{trait} {ids[i.name]}" for trait in i.traits]
        facts += [f"is{state} {ids[i.name]}" for state in i.states]
        facts += [f"inreceptacle {ids[i.name]} {ids[name]}" for name in i.inside]
        facts += [f"objectatlocation {ids[i.name]} {ids[place]}" for place in i.at]
        facts += [f"inreceptacleobject {ids[name]} {ids[i.name]}" for name in i.contents]
    if task.held is not None:
        facts += [f"holds agent1 {ids[task.held]}", "holdsany agent1"]
    facts += [f"cancontain {kind}type {held}type" for kind, kinds in task.accepts for held in kinds]
    rows = "\n".join(f"  ({fact})" for fact in facts)
    objects = "\n".join(f"  {row}" for row in declared)
    return (
        f"(define (problem household)\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n{rows}\n  (= (total-cost) 0)\n)\n(:goal {_goal_of(task)})\n)\n"
    )


def _places_of(task: HouseholdTask) -> list[str]:
    places = {r.location for r in task.receptacles if r.location is not None} | {task.start}
    return sorted(places | {place for i in task.items for place in i.at})


def _ids_of(task: HouseholdTask) -> dict[str, str]:
    ids = {}
    numbers: dict[str, list[int]] = {}
    for name in [r.name for r in task.receptacles] + [i.name for i in task.items] + _places_of(task):
        kind, _, number = name.rpartition(" ")
        if not number.isdecimal():
            raise ValueError(f"household task {task.task_id!r}: the engine numbers things, and {name!r} has no number")
        numbers.setdefault(kind, []).append(int(number))
        # The first id in sorting order gets the highest number.
        ids[name] = f"{kind}_bar_{10**6 - int(number)}"
        if kind.endswith("basin"):
            ids[name] = f"{kind.removesuffix('basin')}_bar_{10**6 - int(number)}_bar_{kind}"
    for kind, given in numbers.items():
        if sorted(given) != list(range(1, len(given) + 1)):
            raise ValueError(
                f"household task {task.task_id!r}: the engine numbers the things of a kind from 1 on, "
                f"but {kind} has {sorted(given)}"
            )
    return ids


def _goal_of(task: HouseholdTask) -> str:
    goal = task.goal
    cut = "(sliceable {0}) (issliced {0}) " if goal.sliced else ""
    if goal.lamp is not None:
        lamp = (
            f"(objecttype ?ot {goal.lamp}type) (toggleable ?ot) (istoggled ?ot)"
            " (receptacleatlocation ?r ?l) (atlocation ?a ?l) (inreceptacle ?ot ?r)"
        )
        lit = f"(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lamp}))"
        kind = f"{cut.format('?o')}(objecttype ?o {goal.object}type)"
        held = f"(exists (?o - object ?a - agent) (and {kind} (holds ?a ?o)))"
        return f"(and {lit} {held})"
    treated = {"heat": "(heatable ?o) (ishot ?o)", "cool": "(coolable ?o) (iscool ?o)"}
    treated["clean"] = "(cleanable ?o) (isclean ?o)"
    state = next((text for verb, text in treated.items() if f"_{verb}_" in goal.task_type), "")
    there = (
        f"{cut}(objecttype {{0}} {goal.object}type) (receptacletype ?r {goal.receptacle}type) (inreceptacle {{0}} ?r)"
    )
    if goal.task_type == "pick_two_obj_and_place":
        second = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {there.format('?o2')}))"
        return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {there.format('?o1')} {second}))))"
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {state} {there.format('?o')}))))"
