"""Household: the goal that a PDDL formula states, and formulas that state none of ours."""

import re
from dataclasses import replace

import pytest

from rtmc.gymenvs.household import Goal, draw_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.engine import problem_of
from rtmc.gymenvs.household.goals import read_goal
from rtmc.gymenvs.household.pddl import read_problem


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_goals_of_every_type_are_read(task_type, sliced):
    task = draw_task(task_type, 2)
    task = replace(task, goal=replace(task.goal, sliced=sliced))
    formula = read_problem(problem_of(task)).goal
    assert read_goal(formula, task.goal.sentence) == task.goal
    # A goal that lacks one of the atoms is none of ours; only a pair may leave out the receptacle's kind once.
    atoms = set(re.findall(r"\(\w+ \?[^()]*\)", formula))
    if task_type == "pick_two_obj_and_place":
        atoms = {atom for atom in atoms if not atom.startswith("(receptacletype")}
    assert len(atoms) >= 2
    for atom in atoms:
        with pytest.raises(ValueError, match="household goal: none of"):
            read_goal(formula.replace(atom, "", 1), task.goal.sentence)


SHELVED = "(inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r ShelfType)"
SAME = "(and (exists (?r - receptacle) (exists (?o - object) (and {}))))"
TWO = (
    "(and (exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 MugType) (receptacleType ?r ShelfType)"
    " (inReceptacle ?o1 ?r) (exists (?o2 - object) (and {} (objectType ?o2 MugType) (receptacleType ?r ShelfType)"
    " (inReceptacle ?o2 ?r)))))))"
)


@pytest.mark.parametrize(
    ("formula", "task_type"),
    [
        (SAME.format(SHELVED), "pick_and_place_simple"),
        (SAME.format(SHELVED) + "\n)\n)", "pick_and_place_simple"),
        ("(exists (?thing - object ?in - receptacle) (and (receptacletype ?in shelftype) (and (inreceptacle ?thing ?in)"
         " (objecttype ?thing mugtype))))", "pick_and_place_simple"),
        ("(exists (?r ?s - receptacle ?o - object) (and (inReceptacle ?o ?s) (objectType ?o MugType)"
         " (receptacleType ?s ShelfType)))", None),  # nothing is asked of ?r
        (TWO.format("(not (= ?o1 ?o2))"), "pick_two_obj_and_place"),
        (TWO.format("(not (= ?o2 ?o1))"), "pick_two_obj_and_place"),
        (TWO.format(""), None),  # one mug would do
        (TWO.format("(not (= ?o1 ?o1))"), None),
        (TWO.format("(not (= ?o1 ?r))"), None),
        # The kind is asked of another thing than the one that is put somewhere.
        ("(exists (?r - receptacle) (and (exists (?o - object) (inReceptacle ?o ?r)) (receptacleType ?r ShelfType)"
         " (exists (?o - object) (objectType ?o MugType))))", None),
        (SAME.format(SHELVED).replace("(?r - receptacle)", "(?r - object)"), None),
        (SAME.format(SHELVED).replace("(?r - receptacle)", "(?r)"), None),
        (SAME.format(SHELVED).replace("(inReceptacle ?o ?r)", "(inReceptacle ?o ?p)"), None),
        (SAME.format(SHELVED).replace("(inReceptacle ?o ?r)", "(inReceptacle ?r ?o)"), None),
        (SAME.format(f"(or {SHELVED})"), None),
        (SAME.format(f"(not (and {SHELVED}))"), None),
        (SAME.format(SHELVED.replace("(inReceptacle ?o ?r)", "(not (inReceptacle ?o ?r))")), None),
        (SAME.format(SHELVED + " (objectType ?o CupType)"), None),
        (SAME.format(SHELVED + " (heatable ?o)"), None),
        (SAME.format(SHELVED + " (heatable ?o) (isHot ?o)"), "pick_heat_then_place_in_recep"),
        (SAME.format(SHELVED + " (coolable ?o) (isHot ?o)"), None),
    ],
)  # fmt: skip
def test_a_goal_is_what_its_formula_means(formula, task_type):
    if task_type is None:
        with pytest.raises(ValueError, match="household goal: none of"):
            read_goal(formula, "do it")
    else:
        assert read_goal(formula, "do it") == Goal(task_type, "mug", "do it", "shelf")


@pytest.mark.parametrize(
    "formula", ["", "x", "(and", "))", "(" * 1000 + ")" * 1000, "(and) (and)", "(and ())", "(((x)))"]
)
def test_goals_that_are_no_formula(formula):
    with pytest.raises(ValueError, match="goal"):
        read_goal(formula, "do it")


def test_light_has_to_fall_on_the_place_of_the_agent():
    task = draw_task("look_at_obj_in_light", 2)
    formula = read_problem(problem_of(task)).goal
    assert read_goal(formula, task.goal.sentence) == task.goal
    for old, new in (
        ("(atlocation ?a ?l)", "(exists (?m - location) (atlocation ?a ?m))"),
        ("(holds ?a ?o)", "(holds ?a ?ot)"),
        ("(istoggled ?ot)", "(exists (?o - object) (istoggled ?o))"),
    ):
        assert old in formula
        with pytest.raises(ValueError, match="household goal: none of"):
            read_goal(formula.replace(old, new), task.goal.sentence)
