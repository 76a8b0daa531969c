"""Household: the mended rules, free wording, the exact state's key; hand-worked, and by trying every state."""

import json
import os
import random
import subprocess
import sys

import pytest

from rtmc.gymenvs.household import Goal, HouseholdEnv, HouseholdTask, Item, Receptacle, draw_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.commands import forgive
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.world import World
from tests.test_household_tasks import changing, shortest_by_enumeration, walk


def den(**changes):
    """Drawer 1 (closed, a lamp and an egg in it) and desk 1 at one place; microwave 1 (closed) at another."""
    fields = {
        "task_id": "den",
        "goal": Goal("look_at_obj_in_light", "cup", "look at cup under the desklamp", lamp="desklamp"),
        "receptacles": (
            Receptacle("desk 1", "desk", "loc 2"),
            Receptacle("drawer 1", "drawer", "loc 2", openable=True),
            Receptacle("microwave 1", "microwave", "loc 3", openable=True),
        ),
        "items": (
            Item("cup 1", "cup", voc.traits_of("cup"), ("desk 1",), ("loc 2",)),
            Item("desklamp 1", "desklamp", ("toggleable",), ("drawer 1",), ("loc 2",)),
            Item("egg 1", "egg", voc.traits_of("egg"), ("drawer 1",), ("loc 2",)),
            Item("knife 1", "knife", voc.traits_of("knife"), ("desk 1",), ("loc 2",)),
        ),
        "start": "loc 1",
        "accepts": (("desk", ("cup", "knife")), ("drawer", ("cup",)), ("microwave", ("cup", "egg"))),
    }
    return HouseholdTask(**{**fields, **changes})


def start(rules, *commands):
    env = HouseholdEnv(task=den(), rules=rules)
    env.reset()
    for command in commands:
        text, _, _, _, info = env.step(command)
        assert info["valid"], command
    return (env, text, info) if commands else (env, "", {})


@pytest.mark.parametrize(
    ("commands", "command", "alfworld", "plain"),
    [
        ([], "look", "you see nothing.", "you see a desk 1, a drawer 1, and a microwave 1."),
        (["go to desk 1"], "examine cup 1", "Nothing happens.", "This is a normal cup 1. In it, you see nothing."),
        (["go to desk 1"], "examine egg 1", "Nothing happens.", "Nothing happens."),
        (["go to desk 1"], "use desklamp 1", "You turn on the desklamp 1.", "Nothing happens."),
        (["go to desk 1", "open drawer 1", "use desklamp 1"], "use desklamp 1", "turn on the", "turn off the"),
        (["go to desk 1", "open drawer 1"], "examine desklamp 1", "Nothing happens.", "This desklamp 1 is off."),
        (["go to desk 1", "open drawer 1", "use desklamp 1"], "examine desklamp 1", "Nothing", "desklamp 1 is on."),
        (["go to desk 1", "take knife 1 from desk 1"], "slice egg 1 with knife 1", "You sliced the egg 1", "Nothing"),
        (["go to desk 1", "take cup 1 from desk 1", "go to microwave 1"], "heat cup 1 with microwave 1",
         "You heat the cup 1 using the microwave 1.", "Nothing happens."),
        (["go to desk 1", "take cup 1 from desk 1", "go to microwave 1", "open microwave 1",
          "heat cup 1 with microwave 1"], "examine cup 1", "This is a normal cup 1.", "This is a hot cup 1."),
        (["go to desk 1", "open drawer 1", "take cup 1 from desk 1", "move cup 1 to drawer 1"], "look",
         "Next to it, you see a cup 1.", "Next to it, you see nothing."),
    ],
)  # fmt: skip
def test_what_the_plain_rules_mend(commands, command, alfworld, plain):
    for rules, wanted in (("alfworld", alfworld), ("plain", plain)):
        env, _, _ = start(rules, *commands)
        assert wanted in env.step(command)[0], rules


def test_a_lamp_that_is_switched_off_gives_no_light():
    for rules, wins in (("alfworld", True), ("plain", False)):
        env, _, _ = start(rules, "go to desk 1", "open drawer 1", "use desklamp 1", "use desklamp 1")
        assert env.step("take cup 1 from desk 1")[4]["success"] == wins


def test_plans_know_the_rules():
    quirky, _, _ = start("alfworld", "go to desk 1")
    plain, _, _ = start("plain", "go to desk 1")
    # Taking the cup fills the hand, but a drawer can be opened with the hand full: any order is a shortest one.
    assert sorted(quirky.expert_plan()) == ["take cup 1 from desk 1", "use desklamp 1"]
    assert sorted(plain.expert_plan()) == ["open drawer 1", "take cup 1 from desk 1", "use desklamp 1"]


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_plans_under_the_plain_rules_are_shortest(task_type):
    rng = random.Random(task_type)
    for seed in range(6):
        knobs = {"distractors": (1, 2), "receptacles": (4, 5), "choices": 0, "shared": 0.4, "plan": (1, 12)}
        world = World(draw_task(task_type, seed, **knobs), "plain")
        state = world.start
        for _ in range(3):
            plan = shortest_plan(world, state)
            assert len(plan) == shortest_by_enumeration(world, state)
            after = state
            for command in plan:
                after = world.apply(after, world.actions(after)[command])
            assert world.success(after)
            state = walk(world, state, rng, 4)
    hidden = World(den(), "plain")
    assert len(shortest_plan(hidden, hidden.start)) == shortest_by_enumeration(hidden, hidden.start) == 4


def with_a_sliced_goal(task, seed):
    """The task, its goal's kind made sliceable and to be sliced, and a knife somewhere in the room."""
    data = json.loads(task.to_json())
    stand = data["receptacles"][seed % len(data["receptacles"])]
    for item in data["items"]:
        if item["kind"] == task.goal.object:
            item["traits"].append("sliceable")
    knife = {"name": "knife 9", "kind": "knife", "traits": ["pickupable"]}
    data["items"].append({**knife, "inside": [stand["name"]], "at": [stand["location"]]})
    data["accepts"] = [[kind, [*kinds, "knife"]] for kind, kinds in data["accepts"]]
    data["goal"]["sliced"] = True
    return HouseholdTask.from_json(data)


@pytest.mark.parametrize("rules", ["alfworld", "plain"])
@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_plans_that_have_to_slice_are_shortest(task_type, rules):
    rng = random.Random(task_type)
    for seed in range(4):
        knobs = {"distractors": (1, 2), "receptacles": (3, 4), "choices": 0, "shared": 0.4, "plan": (1, 12)}
        world = World(with_a_sliced_goal(draw_task(task_type, seed, **knobs), seed), rules)
        state = world.start
        for _ in range(2):
            plan, steps = shortest_plan(world, state), shortest_by_enumeration(world, state)
            assert (None if plan is None else len(plan)) == steps
            after = state
            for command in plan or ():
                assert not world.success(after)
                after = world.apply(after, world.actions(after)[command])
            assert world.success(after) == (plan is not None)
            state = walk(world, state, rng, 3)


def test_no_knife_no_slice():
    data = json.loads(with_a_sliced_goal(draw_task("pick_and_place_simple", 1, split="train"), 0).to_json())
    data["items"] = [item for item in data["items"] if item["kind"] not in voc.KNIVES]
    world = World(HouseholdTask.from_json(data))
    assert shortest_plan(world, world.start) is None


def test_longer_plans_than_asked_for_are_not_sought():
    world = World(draw_task("pick_heat_then_place_in_recep", 3, split="train"))
    steps = len(shortest_plan(world, world.start))
    assert len(shortest_plan(world, world.start, steps)) == steps
    assert shortest_plan(world, world.start, steps - 1) is None


def test_warmth_undoes_cold_and_cold_warmth():
    egg = Item("egg 1", "egg", voc.traits_of("egg"))
    fridge = Receptacle("fridge 1", "fridge", "loc 3")
    room = den(held="egg 1", items=(egg,), start="loc 3", receptacles=(*den().receptacles, fridge))
    env = HouseholdEnv(task=room)
    env.reset()
    said = []
    for verb in ("cool egg 1 with fridge 1", "heat egg 1 with microwave 1", "cool egg 1 with fridge 1"):
        assert env.step(verb)[4]["valid"]
        said.append((env.step("examine egg 1")[0], env.describe().rsplit("holding ")[1]))
    cold, hot = ("This is a cold egg 1.", "egg 1 (cool)."), ("This is a hot egg 1.", "egg 1 (hot).")
    assert said == [cold, hot, cold]


def test_what_is_known_of_a_place_is_told_anew_once_a_thing_there_changed():
    env = HouseholdEnv(task=den(accepts=(("desk", ("cup",)),)), observation="knowledge")
    env.reset()
    said = []
    for commands in (["go to desk 1"], ["take cup 1 from desk 1", "go to microwave 1", "heat cup 1 with microwave 1"]):
        for command in [*commands, "go to desk 1", "move cup 1 to desk 1"]:
            text = env.step(command)[0]
        said.append(text.split("desk 1: ")[1].split(".")[0])
    assert said == ["cup 1, knife 1", "cup 1 (hot), knife 1"]


# -- free wording --------------------------------------------------------------------------------------------

OFFERED = ["go to desk 1", "look", "move cup 1 to drawer 1", "take cup 1 from desk 1"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("look", "look"),
        (" LOOK.\n", "look"),
        ("Go to the Desk 1", "go to desk 1"),
        ("take  a cup 1  from the desk 1.", "take cup 1 from desk 1"),
        ("put cup 1 in/on drawer 1", "move cup 1 to drawer 1"),
        ("Put the cup 1 in the drawer 1", "move cup 1 to drawer 1"),
        ("place cup 1 into drawer 1", "move cup 1 to drawer 1"),
        ("move cup 1 to the drawer 1", "move cup 1 to drawer 1"),
        ("  Dance the  tango ", "Dance the  tango"),
        ("take cup 1", "take cup 1"),
        ("put cup 2 in drawer 1", "put cup 2 in drawer 1"),
        ("go to desk 10", "go to desk 10"),
        # Text longer than any command is not searched for one.
        ("the " * 300 + "look", "the " * 300 + "look"),
        ("look\nlook", "look\nlook"),
        ("", ""),
    ],
)
def test_free_wording(text, meant):
    assert forgive(text, OFFERED) == meant


def test_lenient_episodes_tell_the_command_as_it_was_understood():
    env, strict = HouseholdEnv(task=den(), lenient=True), HouseholdEnv(task=den())
    for one in (env, strict):
        one.reset()
    text, _, _, _, info = env.step("GO to the desk 1.")
    assert (text, info["action_key"], info["valid"]) == (strict.step("go to desk 1")[0], "go to desk 1", True)
    assert strict.step("GO to the desk 1.")[0] == "Nothing happens."
    assert strict.step("GO to the desk 1.")[4]["action_key"] == "GO to the desk 1."


# -- the key of the exact state --------------------------------------------------------------------------------


def all_states(world):
    seen, queue = {world.start}, [world.start]
    while queue:
        for _, after in changing(world, queue.pop()):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return seen


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_keys_are_equal_where_states_are(task_type):
    task = draw_task(task_type, 4)
    world = World(task)
    states = all_states(world)
    keys = {world.key(state) for state in states}
    assert len(keys) == len(states) > 50
    assert all(len(key) == 16 and int(key, 16) < 2**64 for key in keys)
    # A task that lists its things the other way round is the same room.
    data = json.loads(task.to_json())
    data["items"].reverse()
    data["receptacles"].reverse()
    turned = World(HouseholdTask.from_json(data))
    assert turned.key(turned.start) == world.key(world.start)
    assert {turned.key(state) for state in all_states(turned)} == keys
    data["items"][0]["traits"] = []
    other = World(HouseholdTask.from_json(data))
    assert other.key(other.start) != world.key(world.start)


def test_keys_are_the_same_in_every_process():
    code = """
from rtmc.gymenvs.household import HouseholdEnv
env = HouseholdEnv(split="train")
_, info = env.reset(seed=3)
print(info["state_key"], *(env.step(command)[4]["state_key"] for command in env.expert_plan()))
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "77")
    }
    assert len(told) == 1
    keys = told.pop().split()
    assert len(keys) == len(set(keys)) > 3


def test_which_key_an_environment_tells():
    task = "tiny/pick_and_place_simple/3"
    exact = HouseholdEnv(task=task).reset()[1]["state_key"]
    known = HouseholdEnv(task=task, state_key="knowledge").reset()[1]["state_key"]
    assert len(exact) == 16
    assert known.startswith("Seen: ")
    assert HouseholdEnv(task=task, observation="knowledge").reset()[1]["state_key"] == known
    assert HouseholdEnv(task=task, observation="knowledge", state_key="world").reset()[1]["state_key"] == exact
    # Looking about changes what is known, never the world.
    env = HouseholdEnv(task=task)
    env.reset()
    for command in ("look", "help", "inventory", "nonsense"):
        assert env.step(command)[4]["state_key"] == exact
