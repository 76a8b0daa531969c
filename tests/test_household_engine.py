"""Household beside the real engine: generated tasks played through both at once.

Needs `alfworld==0.4.2` and `textworld[pddl]==1.7.0`, which are large and no dependency of the project; without them
this is skipped, and the recorded episodes (test_household.py) stand for the engine.
"""

import random
import re

import pytest

from rtmc.gymenvs.household import HouseholdEnv, draw_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.records import task_from_game

textworld = pytest.importorskip("textworld", reason="the engine (textworld, alfworld) is not installed")
pytest.importorskip("alfworld", reason="the engine (textworld, alfworld) is not installed")

STATE_FACTS = {"clean": "isClean", "cool": "isCool", "hot": "isHot", "sliced": "isSliced", "toggled": "isToggled"}


def identifiers(task):
    """An engine id for each name, such that the engine's own numbering gives the name back."""
    ids = {}
    names = [r.name for r in task.receptacles] + [i.name for i in task.items]
    places = {r.location for r in task.receptacles} | {task.start}
    for name in names + sorted(places):
        kind, number = name.rsplit(" ", 1)
        # The first id in sorting order gets the highest number.
        order = f"_bar__plus_{90 - int(number):02d}_dot_00"
        if kind.endswith("basin"):
            ids[name] = f"{kind.removesuffix('basin')}{order}_bar_{kind}"
        else:
            ids[name] = f"{kind}{order}"
    return ids


def problem(task):
    """The task as a PDDL problem of the engine's domain."""
    ids = identifiers(task)
    kinds = {r.kind for r in task.receptacles}
    things = {i.kind for i in task.items}
    declared = [
        "agent1 - agent",
        *(f"{kind}type - rtype" for kind in sorted(kinds | {"sinkbasin", "microwave", "fridge"})),
        *(f"{kind}type - otype" for kind in sorted(things | {"knife", "butterknife", task.goal.object})),
        *(f"{ids[r.name]} - receptacle" for r in task.receptacles),
        *(f"{ids[i.name]} - object" for i in task.items),
        *(f"{ids[place]} - location" for place in sorted({r.location for r in task.receptacles} | {task.start})),
    ]
    facts = [f"atLocation agent1 {ids[task.start]}"]
    for r in task.receptacles:
        facts += [f"receptacleType {ids[r.name]} {r.kind}type", f"receptacleAtLocation {ids[r.name]} {ids[r.location]}"]
        facts += [f"openable {ids[r.name]}"] * r.openable + [f"opened {ids[r.name]}"] * r.opened
    for i in task.items:
        facts.append(f"objectType {ids[i.name]} {i.kind}type")
        facts += [f"{trait} {ids[i.name]}" for trait in i.traits]
        facts += [f"inReceptacle {ids[i.name]} {ids[name]}" for name in i.inside]
        facts += [f"objectAtLocation {ids[i.name]} {ids[place]}" for place in i.at]
    facts += [f"canContain {kind}type {held}type" for kind, kinds_held in task.accepts for held in kinds_held]
    library = pytest.importorskip("alfworld.gen.goal_library")
    goal = task.goal
    formula = library.gdict[goal.task_type]["pddl"].replace("#", "-")
    formula = formula.format(obj=goal.object, recep=goal.receptacle, toggle=goal.lamp)
    rows = "\n".join(f"({fact})" for fact in facts)
    objects = "\n".join(declared)
    return (
        f"(define (problem x)\n(:domain alfred)\n(:objects\n{objects})\n(:init\n{rows}\n(= (total-cost) 0)\n){formula}"
    )


def engine(task):
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    from textworld.envs import PddlEnv

    with open(ALFRED_PDDL_PATH) as domain, open(ALFRED_TWL2_PATH) as grammar:
        game = {
            "pddl_domain": domain.read(),
            "grammar": grammar.read().replace("UNKNOWN GOAL", task.goal.sentence),
            "pddl_problem": problem(task),
        }
    played = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True, facts=True)))
    played.load(game)
    return played, game


def told(state):
    facts = [f"{f.name}({', '.join(a.name.strip() for a in f.arguments)})" for f in state["facts"]]
    return sorted(fact for fact in facts if not fact.startswith("new-axiom"))


@pytest.mark.slow
@pytest.mark.parametrize("split", ["tiny", "train"])
@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_generated_tasks_play_alike(task_type, split):
    task = draw_task(task_type, 21, split=split)
    played, game = engine(task)
    env = HouseholdEnv(task=task, details=True, max_turns=1000)
    state = played.reset()
    text, info = env.reset()
    read = task_from_game(game, task.task_id)
    assert [r.name for r in read.receptacles] == [r.name for r in task.receptacles]
    assert (read.items, read.goal, read.start) == (task.items, task.goal, task.start)
    rng = random.Random(task_type)
    for _ in range(40):
        assert text == state.feedback
        assert info["admissible_commands"] == state["admissible_commands"]
        assert info["success"] == state["won"]
        assert set(info["facts"]) == set(told(state))
        plan = env.expert_plan()
        if plan and rng.random() < 0.4:
            command = plan[0]
        else:
            # Walking is most of what is offered; half the time something else is tried.
            still = [c for c in info["admissible_commands"] if not re.match("go to|help", c)]
            command = rng.choice(still if rng.random() < 0.6 else info["admissible_commands"])
        text, _, _, _, info = env.step(command)
        state, _, _ = played.step(command)
