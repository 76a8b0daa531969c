"""The household environment: steps, resets, forks, tasks drawn; memory over a million steps of 64 environments.

The peer of the steps is a household written the plain way, with the same rules and no look-ups: a state is a set of
facts, and commands and texts are found by going through the facts. It keeps no account of what the agent knows, has no
key of a state and cannot be forked; its commands, its texts, and whether the goal holds, are compared with ours at
every step. Where `alfworld` and `textworld` are installed the real engine plays in the same run, and everything it
says is compared.

Scripts are random walks that change or examine something, the same for all candidates. Notes below the table:
percentiles of single steps, draws of tasks, and the memory.
"""

import copy
import gc
import importlib.util
import random
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium
from measure import Case

from rtmc.gymenvs.household import EngineEnv, HouseholdEnv, draw_task, draw_with_plan
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.world import World

TESTS = ["tests/test_household.py", "tests/test_household_env.py"]
ID = "rtmc.gymenvs:rtmc/Household-v0"
NOTES: list[str] = []


class FactWorld:
    """The rules over a set of facts, tuples with the predicate first. One class of goal: a kind put into a kind."""

    def __init__(self, task):
        self.goal = task.goal
        self.doors = {r.name for r in task.receptacles if r.openable}
        self.place = {r.name: r.location for r in task.receptacles}
        self.items = [i.name for i in task.items]
        self.kind = {one.name: one.kind for one in (*task.receptacles, *task.items)}
        self.traits = {i.name: set(i.traits) for i in task.items}
        self.takes = {(kind, held) for kind, kinds in task.accepts for held in kinds}
        facts = {("at", task.start)} | {("opened", r.name) for r in task.receptacles if r.opened}
        for i in task.items:
            facts |= {("in", i.name, r) for r in i.inside} | {("lies", i.name, place) for place in i.at}
            facts |= {(state, i.name) for state in i.states}
        self.start = frozenset(facts)

    def commands(self, facts):
        here = next(fact[1] for fact in facts if fact[0] == "at")
        held = next((fact[1] for fact in facts if fact[0] == "holds"), None)
        found = {"help", "inventory", "look"} | {f"go to {r}" for r, place in self.place.items() if place != here}
        if held:
            found.add(f"examine {held}")
        for r, place in self.place.items():
            if place != here:
                continue
            found.add(f"examine {r}")
            shut = r in self.doors and ("opened", r) not in facts
            if r in self.doors:
                found.add(f"open {r}" if shut else f"close {r}")
            for fact in facts:
                if fact[0] == "in" and fact[2] == r:
                    if not shut and not held and "pickupable" in self.traits[fact[1]]:
                        found.add(f"take {fact[1]} from {r}")
                    if "toggleable" in self.traits[fact[1]]:
                        found.add(f"use {fact[1]}")
            if held:
                if not shut and (self.kind[r], self.kind[held]) in self.takes:
                    found.add(f"move {held} to {r}")
                for verb, trait, kind in (
                    ("heat", "heatable", "microwave"),
                    ("cool", "coolable", "fridge"),
                    ("clean", "cleanable", "sinkbasin"),
                ):
                    if self.kind[r] == kind and trait in self.traits[held]:
                        found.add(f"{verb} {held} with {r}")
        if held and self.kind[held] in voc.KNIVES:
            for fact in facts:
                if fact[0] == "lies" and fact[2] == here and "sliceable" in self.traits[fact[1]]:
                    found.add(f"slice {fact[1]} with {held}")
        return sorted(found)

    def apply(self, facts, command):
        verb, _, rest = command.partition(" ")
        here = next(fact for fact in facts if fact[0] == "at")
        if verb == "go":
            return facts - {here} | {("at", self.place[rest.removeprefix("to ")])}
        if verb == "open":
            return facts | {("opened", rest)}
        if verb == "close":
            return facts - {("opened", rest)}
        if verb == "take":
            thing, _, r = rest.partition(" from ")
            return facts - {("in", thing, r), ("lies", thing, here[1])} | {("holds", thing)}
        if verb == "move":
            thing, _, r = rest.partition(" to ")
            return facts - {("holds", thing)} | {("in", thing, r), ("lies", thing, here[1])}
        thing = rest.partition(" with ")[0]
        if verb in ("heat", "cool"):
            now, before = ("hot", "cool") if verb == "heat" else ("cool", "hot")
            return facts - {(before, thing)} | {(now, thing)}
        state = {"clean": "clean", "slice": "sliced", "use": "toggled"}.get(verb)
        return facts | {(state, thing)} if state else facts

    def say(self, facts, command):
        """The answer, told from the facts after the command."""
        verb, _, rest = command.partition(" ")
        name = rest.removeprefix("to ")
        if verb in ("go", "open", "examine"):
            things = [f"a {k}" for k in self.items if ("in", k, name) in facts]
            seen = ", ".join(things[:-1]) + (", and " if len(things) > 1 else "") + things[-1] if things else "nothing"
            sight = f"On the {name}, you see {seen}."
            if name in self.doors:
                opened = ("opened", name) in facts
                sight = f"The {name} is open. In it, you see {seen}." if opened else f"The {name} is closed."
            return {"go": f"You arrive at {name}. ", "open": f"You open the {name}. "}.get(verb, "") + sight
        if verb == "slice":
            return "You sliced the {} with the {}.".format(*rest.split(" with "))
        thing, _, r = re.sub(" (?:from|to|with) ", "|", rest).partition("|")
        return {
            "close": f"You close the {thing}.",
            "take": f"You pick up the {thing} from the {r}.",
            "move": f"You move the {thing} to the {r}.",
            "use": f"You turn on the {thing}.",
        }.get(verb, f"You {verb} the {thing} using the {r}.")

    def success(self, facts):
        state = voc.TREATMENTS[self.goal.task_type][0] if self.goal.task_type in voc.TREATMENTS else None
        return any(
            fact[0] == "in"
            and self.kind[fact[1]] == self.goal.object
            and self.kind[fact[2]] == self.goal.receptacle
            and (state is None or (state, fact[1]) in facts)
            for fact in facts
        )


def walks(tasks, steps):
    """For each task the commands of a random walk, chosen among the admissible ones."""
    scripts = []
    for number, task in enumerate(tasks):
        rng, env, script = random.Random(number), HouseholdEnv(task=task, max_turns=steps), []
        _, info = env.reset()
        for _ in range(steps):
            held = env.snapshot().state.held
            skipped = {"help", "inventory", "look", held >= 0 and f"examine {task.items[held].name}"}
            script.append(rng.choice([c for c in info["admissible_commands"] if c not in skipped]))
            info = env.step(script[-1])[4]
        scripts.append(script)
    return scripts


def difference(ours, other) -> float:
    return 0.0 if ours == other else 1.0


def step_cases(tasks, scripts) -> Iterator[Case]:
    steps = sum(map(len, scripts))
    env = gymnasium.make(ID, max_turns=10**9)
    worlds = [World(task) for task in tasks]
    fact_worlds = [FactWorld(task) for task in tasks]

    def through_gymnasium():
        told = []
        for task, script in zip(tasks, scripts, strict=True):
            env.reset(options={"task": task})
            for command in script:
                text, _, _, _, info = env.step(command)
                told.append((text, info["admissible_commands"], info["success"]))
        return told

    def bare():
        told = []
        for world, script in zip(worlds, scripts, strict=True):
            state = world.start
            world.commands(state)  # an action is known once its command was listed
            for command in script:
                state = world.apply(state, world.action(command))
                told.append((world.commands(state), world.success(state)))
        return told

    def facts(text=True):
        told = []
        for world, script in zip(fact_worlds, scripts, strict=True):
            state = world.start
            for command in script:
                state = world.apply(state, command)
                said = (world.say(state, command),) if text else ()
                told.append((*said, world.commands(state), world.success(state)))
        return told

    label = f"household, {steps:,} steps in full rooms"
    yield Case(
        f"{label}, text and commands",
        {"gymnasium.make": through_gymnasium, "sets of facts": facts},
        agree=difference,
        rows=steps,
    )
    yield Case(
        f"{label}, bare world", {"World": bare, "sets of facts": lambda: facts(False)}, agree=difference, rows=steps
    )


def engine_cases(task, script) -> Iterator[Case]:
    if any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld")):
        NOTES.append("the real engine is not installed (alfworld, textworld[pddl]): not in this run")
        return
    ours, engine = (kind(task=task, max_turns=10**9) for kind in (HouseholdEnv, EngineEnv))

    def play(env):
        return [env.reset(), *(env.step(command) for command in script)]

    yield Case(
        f"household, one reset and {len(script)} steps beside the engine",
        {"HouseholdEnv": lambda: play(ours), "the real engine": lambda: play(engine)},
        agree=difference,
        rows=len(script),
    )


def fork_cases(task) -> Iterator[Case]:
    env = gymnasium.make(ID, task=task).unwrapped
    _, start = env.reset()

    def fork():
        for _ in range(100):
            info = env.restore(env.snapshot())
        return info

    def deep():
        for _ in range(100):
            info = copy.deepcopy(env).restore(env.snapshot())
        return info

    yield Case(
        "household, 100 snapshots restored", {"snapshot, restore": fork, "copy.deepcopy": deep}, agree=difference
    )
    again = gymnasium.make(ID)

    def reset():
        return again.reset(options={"task": task})[1]

    def anew():
        return gymnasium.make(ID, task=task).reset()[1]

    assert reset() == start
    yield Case("household, reset of a ready task", {"reset": reset, "make and reset": anew}, agree=difference)


def percentiles(tasks, scripts) -> None:
    """Single steps of full rooms; resets to a room not played before count as steps, for an episode pays for them."""
    taken = []
    env = gymnasium.make(ID, max_turns=10**9)
    began_all = time.thread_time()
    for task, script in zip(tasks, scripts, strict=True):
        env.reset(options={"task": task})
        for command in script:
            began = time.perf_counter()
            env.step(command)
            taken.append(time.perf_counter() - began)
    rate = len(taken) / (time.thread_time() - began_all)
    p50, p99 = (statistics.quantiles(taken, n=100)[k] * 1e6 for k in (49, 98))
    NOTES.append(
        f"a step with text and commands: p50 {p50:.1f} us, p99 {p99:.1f} us; {rate:,.0f} steps a second of processor "
        f"time, a reset every {len(taken) // len(tasks)} steps included ({len(taken):,} steps)"
    )


def draws(number) -> None:
    for split in ("tiny", "train"):
        taken = []
        for task_type in voc.TASK_TYPES:
            for seed in range(5000, 5000 + number):
                began = time.thread_time()
                draw_with_plan(task_type, seed, split=split)
                taken.append((time.thread_time() - began) * 1e3)
        ordered = sorted(taken)
        NOTES.append(
            f"a {split} task drawn, with its plan: median {statistics.median(taken):.2f} ms, mean "
            f"{statistics.mean(taken):.2f} ms, p99 {ordered[int(0.99 * len(ordered))]:.2f} ms of processor time "
            f"({len(taken)} tasks)"
        )


def resident() -> float:
    """MB this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def memory(steps) -> None:
    """64 environments in one process, each on a task of its own for ever; a tenth of the steps is the warm-up."""
    envs = [HouseholdEnv(split="train", max_turns=10**9) for _ in range(64)]
    infos = [env.reset(seed=seed)[1] for seed, env in enumerate(envs)]
    rng = random.Random(0)

    def play(turns):
        for _ in range(turns // len(envs)):
            for k, env in enumerate(envs):
                infos[k] = env.step(rng.choice(infos[k]["admissible_commands"]))[4]
        gc.collect()

    marks = []
    for _ in range(10):
        play(steps // 10)
        marks.append(resident())
    NOTES.append(
        f"64 environments, {steps:,} steps: {marks[0]:.0f} MB resident after a tenth of them, {marks[4]:.0f} MB after "
        f"half, {marks[-1]:.0f} MB at the end"
    )


def cases(quick: bool) -> Iterator[Case]:
    NOTES.clear()
    rooms = [name for name in voc.TASK_TYPES if name not in ("look_at_obj_in_light", "pick_two_obj_and_place")]
    tasks = [draw_task(name, seed, split="train") for name in rooms for seed in range(1 if quick else 6)]
    scripts = walks(tasks, 100)
    yield from step_cases(tasks, scripts)
    yield from fork_cases(tasks[0])
    yield from engine_cases(draw_task("pick_heat_then_place_in_recep", 7), walks([draw_task(rooms[2], 7)], 6)[0])
    percentiles(tasks, scripts)
    draws(5 if quick else 50)
    if Path("/proc/self/statm").exists():
        memory(100_000 if quick else 1_000_000)
