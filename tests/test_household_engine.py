"""Household beside the real engine: generated tasks and rooms with every oddity, played through both at once.

Needs `alfworld==0.4.2` and `textworld[pddl]==1.7.0`, which are large and no dependency of the project; without them
this is skipped, and the recorded episodes (test_household.py) stand for the engine.
"""

import random
import re

import pytest

from rtmc.gymenvs.household import EngineEnv, Goal, HouseholdEnv, HouseholdTask, Item, Receptacle, draw_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.engine import game_of, problem_of
from rtmc.gymenvs.household.pddl import read_problem
from rtmc.gymenvs.household.records import task_from_problem

pytest.importorskip("textworld", reason="the engine (textworld, alfworld) is not installed")
pytest.importorskip("alfworld", reason="the engine (textworld, alfworld) is not installed")
pytestmark = pytest.mark.slow

# Three full rooms of each type, crowded so that several receptacles share a location; and two small ones.
GAMES = [
    *((name, seed, {"split": "train", "shared": 0.4, "closed": 0.7}) for name in voc.TASK_TYPES for seed in (21, 22)),
    *((task_type, 23, {"split": "valid_unseen"}) for task_type in voc.TASK_TYPES),
    *((task_type, 24, {"split": "tiny"}) for task_type in voc.TASK_TYPES[1:3]),
]  # fmt: skip
NONSENSE = ("", "LOOK", "go to nowhere 3", "put mug 1 in/on shelf 1", "take", "open  fridge 1", "look\nlook", "日本 é")


def play_alike(task, choose, steps):
    """Both at once: every text, reward, flag, list, fact and key is the same at every step."""
    engine = EngineEnv(task=task, details=True, max_turns=steps)
    ours = HouseholdEnv(task=task, details=True, max_turns=steps)
    told = ours.reset()
    assert engine.reset() == told
    won = 0
    for number in range(steps):
        command = choose(told[-1])
        told = ours.step(command)
        assert engine.step(command) == told, f"{task.task_id}, step {number}: {command!r}"
        won += told[2]
    engine.close()
    return won


def wandering(seed):
    rng = random.Random(seed)

    def choose(info):
        plan, roll = info["expert_plan"], rng.random()
        if roll < 0.1:
            return rng.choice(NONSENSE)
        if plan and roll < 0.45:
            return plan[0]
        # Walking is most of what is offered; half the time something else is tried.
        still = [c for c in info["admissible_commands"] if not re.match("go to|help|look|inventory", c)]
        return rng.choice(still if still and rng.random() < 0.6 else info["admissible_commands"])

    return choose


@pytest.mark.parametrize(("task_type", "seed", "options"), GAMES)
def test_generated_tasks_play_alike(task_type, seed, options):
    task = draw_task(task_type, seed, **options)
    read = task_from_problem(read_problem(problem_of(task)), task.task_id, task.goal.sentence)
    assert read == task
    play_alike(task, wandering(seed), 30)


def odd_room(goal, **changes):
    """Everything a start can hold that a generated one does not: doors open, things treated, lamps behind doors."""
    fields = {
        "task_id": "odd",
        "goal": goal,
        "receptacles": (
            Receptacle("cabinet 2", "cabinet", "loc 1", openable=True, opened=True),
            Receptacle("cabinet 1", "cabinet", "loc 3", openable=True),
            Receptacle("countertop 1", "countertop", "loc 3"),
            Receptacle("fridge 1", "fridge", "loc 4", openable=True),
            Receptacle("microwave 1", "microwave", "loc 3", openable=True),
            Receptacle("sinkbasin 1", "sinkbasin", "loc 4"),
        ),
        "items": (
            Item("apple 2", "apple", voc.traits_of("apple"), ("fridge 1",), ("loc 4",), ("hot", "sliced")),
            Item("apple 1", "apple", voc.traits_of("apple"), ("countertop 1",), ("loc 3",), ("clean", "cool")),
            Item("desklamp 1", "desklamp", ("toggleable",), ("cabinet 1",), ("loc 3",)),
            Item("knife 2", "knife", voc.traits_of("knife"), ("cabinet 2",), ("loc 1",)),
            Item("knife 1", "knife", voc.traits_of("knife")),
            Item("mug 1", "mug", voc.traits_of("mug"), ("countertop 1",), ("loc 3",), contents=("spoon 1",)),
            Item("spoon 1", "spoon", voc.traits_of("spoon"), ("countertop 1",), ("loc 3",)),
        ),
        "start": "loc 2",
        "held": "knife 1",
        "accepts": (
            ("cabinet", ("apple", "knife", "mug")),
            ("countertop", ("apple", "knife", "mug", "spoon")),
            ("fridge", ("apple", "mug")),
            ("microwave", ("apple", "mug")),
            ("sinkbasin", ("apple", "knife", "mug", "spoon")),
        ),
    }
    return HouseholdTask(**{**fields, **changes})


GOALS = {
    "two": Goal("pick_two_obj_and_place", "apple", "put two apple in cabinet", "cabinet"),
    "light": Goal("look_at_obj_in_light", "spoon", "look at spoon under the desklamp", lamp="desklamp"),
    "cool": Goal("pick_cool_then_place_in_recep", "mug", "put a cool mug in cabinet", "cabinet"),
    "sliced": Goal("pick_and_place_simple", "apple", "put sliced apple in cabinet", "cabinet", sliced=True),
    "two sliced": Goal("pick_two_obj_and_place", "apple", "put two sliced apple in cabinet", "cabinet", sliced=True),
    "hot": Goal("pick_heat_then_place_in_recep", "apple", "put a hot apple in cabinet", "cabinet"),
}


@pytest.mark.parametrize("name", GOALS)
def test_odd_rooms_play_alike(name):
    play_alike(odd_room(GOALS[name]), wandering(name), 60)


SCRIPT = (
    """
look|inventory|examine knife 1|go to fridge 1|slice apple 2 with knife 1|examine apple 2
clean knife 1 with sinkbasin 1|examine knife 1|move knife 1 to sinkbasin 1|look|open fridge 1
take apple 2 from fridge 1|examine apple 2|clean apple 2 with sinkbasin 1|examine apple 2
cool apple 2 with fridge 1|examine apple 2|move apple 2 to sinkbasin 1|look|close fridge 1
take apple 2 from sinkbasin 1|go to microwave 1|heat apple 2 with microwave 1|heat apple 2 with microwave 1
examine apple 2|use desklamp 1|use desklamp 1|go to cabinet 1|go to countertop 1|open cabinet 1
examine desklamp 1|move apple 2 to cabinet 1|look|take mug 1 from countertop 1|examine mug 1
heat mug 1 with microwave 1|examine mug 1|open microwave 1|move mug 1 to microwave 1|examine microwave 1|look
take mug 1 from microwave 1|move mug 1 to cabinet 1|examine cabinet 1|take spoon 1 from countertop 1
examine spoon 1|look|move spoon 1 to countertop 1|look|close cabinet 1|examine cabinet 1|close cabinet 1
take mug 1 from cabinet 1|help
""".strip()
    .replace("\n", "|")
    .split("|")
)


@pytest.mark.parametrize("name", GOALS)
def test_a_script_through_every_verb_plays_alike(name):
    script = iter(SCRIPT)
    won = play_alike(odd_room(GOALS[name]), lambda info: next(script), len(SCRIPT))
    # It puts a heated and sliced apple into a cabinet, and holds the spoon where the lamp is lit.
    assert bool(won) == (name in ("light", "hot", "sliced"))


def test_facts_that_can_never_hold_are_not_told():
    """Starts that a generated task has not: a thing in a receptacle but at no location; sliced, but not sliceable."""
    task = odd_room(GOALS["cool"])
    items = (
        *task.items[:1],
        Item("apple 1", "apple", ("heatable", "pickupable"), ("countertop 1",), ("loc 3",), ("hot", "sliced")),
        *task.items[2:6],
        Item("spoon 1", "spoon", ("cleanable", "pickupable"), ("countertop 1",), (), ("sliced",)),
    )
    accepts = (("cabinet", ("knife", "mug")), ("fridge", ("spoon",)), ("sinkbasin", ("spoon",)))
    script = """go to countertop 1|take spoon 1 from countertop 1|examine spoon 1|go to sinkbasin 1
move spoon 1 to sinkbasin 1|take spoon 1 from sinkbasin 1|clean spoon 1 with sinkbasin 1|examine spoon 1|open fridge 1
move spoon 1 to fridge 1|go to countertop 1|take apple 1 from countertop 1|examine apple 1|look"""
    commands = iter(script.replace("\n", "|").split("|"))
    room = odd_room(GOALS["cool"], items=items, accepts=accepts, held=None)
    play_alike(room, lambda info: next(commands), script.count("|") + script.count("\n") + 1)


def test_a_start_told_twice_and_denied_plays_alike():
    task = odd_room(GOALS["cool"])
    engine, ours = EngineEnv(task=task), HouseholdEnv(task=task)
    told = ours.reset()
    problem = problem_of(task)
    rows = re.search(r":init\n(.*?)\n  \(= ", problem, re.S)[1]
    (fridge,) = re.findall(r"\(receptacletype (\S+) fridgetype\)", rows)
    denied = problem.replace(rows, f"{rows}\n{rows}\n  (not (opened {fridge}))")
    assert task_from_problem(read_problem(denied), task.task_id, task.goal.sentence) == task
    engine.reset()
    game = game_of(task, engine._parts["domain"], engine._parts["grammar"])
    engine._game = engine._load({**game, "pddl_problem": denied})
    engine._seen = engine._game.reset()
    assert (engine._seen.feedback, list(engine._seen["admissible_commands"])) == (
        told[0],
        told[1]["admissible_commands"],
    )
    for command in ("go to fridge 1", "open fridge 1", "examine fridge 1"):
        assert engine.step(command) == ours.step(command)
    engine.close()


def test_an_episode_forks_by_being_played_again():
    task = draw_task("pick_and_place_simple", 5)
    engine, ours = EngineEnv(task=task), HouseholdEnv(task=task)
    engine.reset()
    ours.reset()
    plan = ours.expert_plan()
    assert engine.expert_plan() == plan
    engine.step(plan[0])
    ours.step(plan[0])
    kept, ours_kept = engine.snapshot(), ours.snapshot()
    ahead = engine.step(plan[1])
    engine.step("look")
    assert engine.restore(kept) == ours.restore(ours_kept)
    assert engine.step(plan[1]) == ahead
    engine.close()
