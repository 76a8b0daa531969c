"""Household: knobs, task ids, arguments, tasks as JSON and recordings that are not as they should be."""

import copy
import json
import time

import numpy as np
import pytest

from rtmc.gymenvs.household import HouseholdEnv, HouseholdTask, Knobs, draw_task, draw_with_plan, generate_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.generate import SEEN_LAYOUTS, UNSEEN_LAYOUTS, _Dice, _Draft
from rtmc.gymenvs.household.splits import SPLITS, read_task_id, task_id_of

SIMPLE, HEAT, TWO = "pick_and_place_simple", "pick_heat_then_place_in_recep", "pick_two_obj_and_place"

# -- knobs and ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task_type", "query", "words"),
    [
        (SIMPLE, "plan=9-2", r"knob plan=\(9, 2\): wanted \(fewest, most\), the first at most the second"),
        (SIMPLE, "plan=0-0", "knob plan=0: wanted a whole number from 1"),
        (SIMPLE, "distractors=4-2", r"knob distractors=\(4, 2\): wanted \(fewest, most\)"),
        (SIMPLE, "receptacles=0-3", "knob receptacles=0: wanted a whole number from 1"),
        (SIMPLE, "distractors=0-1001", "knob distractors=1001: wanted a whole number from 0 to 1000"),
        (HEAT, "plan=2-2", r"no room was found that the knobs allow: plan=\(2, 2\) is too short, .* at least 3 steps"),
        (TWO, "choices=0&plan=3-3", "no room was found that the knobs allow.* at least 4 steps"),
        (SIMPLE, "plan=1-1", "no room was found that the knobs allow.* at least 2 steps"),
        (SIMPLE, "receptacles=1-1", "no room was found that the knobs allow"),
        (SIMPLE, "closed=7", "knob closed=7.0: wanted a probability"),
        (SIMPLE, "closed=nan", "'nan' is no value for closed; wanted a number from 0 to 1"),
        (SIMPLE, "shared=inf", "'inf' is no value for shared"),
        (SIMPLE, "hidden=-1", "'-1' is no value for hidden"),
        (SIMPLE, "plan=2", "'2' is no value for plan; wanted FEWEST-MOST"),
        (SIMPLE, "plan=2-3-4", "no value for plan"),
        (SIMPLE, "plan=[2, 4]", "no value for plan"),
        (SIMPLE, "choices=3.0", "no value for choices; wanted a whole number"),
        (SIMPLE, "closed=1&closed=1", "the knob closed is given twice"),
    ],
)
def test_ids_with_impossible_knobs(task_type, query, words):
    with pytest.raises(ValueError, match=words):
        generate_task(f"tiny/{task_type}/1?{query}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": 3}, r"knob plan=3: wanted a pair \(fewest, most\)"),
        ({"plan": None}, "knob plan=None: wanted a pair"),
        ({"plan": "23"}, "knob plan='23': wanted a pair"),
        ({"distractors": (1, 2.5)}, "knob distractors=2.5: wanted a whole number"),
        ({"choices": True}, "choices=True: wanted a whole number"),
        ({"choices": -1}, "choices=-1: wanted a whole number from 0"),
        ({"closed": float("nan")}, "knob closed=nan: wanted a probability"),
        ({"at_start": "often"}, "knob at_start='often'"),
        ({"shared": -0.1}, "knob shared=-0.1"),
        ({"seed": 1.5}, "seed=1.5: wanted a whole number from 0 to 999999999"),
        ({"seed": True}, "seed=True"),
        ({"seed": 10**9}, "seed=1000000000"),
        ({"split": ["tiny"]}, "unknown household split"),
    ],
)
def test_impossible_arguments_of_a_draw(changes, words):
    with pytest.raises(ValueError, match=words):
        draw_task(SIMPLE, **{"seed": 1, **changes})
    with pytest.raises(ValueError, match="unknown household task type '3'"):
        draw_task(3, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": [3, 4]},
        {"closed": 1},
        {"closed": 0},
        {"closed": 1e-7},
        {"distractors": [2, 2], "hidden": np.float64(1)},
    ],
)
def test_what_may_be_given_makes_ids_that_are_read_again(changes):
    task = draw_task(SIMPLE, np.int64(4), **changes)
    split, task_type, seed, knobs = read_task_id(task.task_id)
    assert task_id_of(split, task_type, seed, knobs) == task.task_id
    assert knobs == Knobs(**{**vars(SPLITS["tiny"]), **changes})
    assert generate_task(task.task_id) == task


def distractors(task):
    """Things that are none of the goal's: neither its object nor a lamp of the light's."""
    lamps = voc.LAMPS if task.goal.lamp else ()
    return sum(item.kind not in (task.goal.object, *lamps) for item in task.items)


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_rooms_have_what_the_knobs_ask_for(task_type):
    for seed in range(12):
        for low, high in ((1, 1), (2, 2), (0, 0), (3, 5)):
            task, plan = draw_with_plan(task_type, seed, distractors=(low, high), choices=0, plan=(2, 8))
            # A distractor may be another lamp.
            assert low - 2 * bool(task.goal.lamp) <= distractors(task) <= high
            assert 2 <= len(plan) <= 8
        for low, high in ((5, 5), (9, 10)):
            task = draw_task(task_type, seed, split="train", receptacles=(low, high))
            assert low <= len(task.receptacles) <= high
    if task_type != "look_at_obj_in_light":
        assert distractors(draw_task(task_type, 1, split="train", distractors=(25, 25))) == 25


def test_no_room_is_handed_out_that_the_knobs_do_not_allow():
    kitchen = sum(most for _, most in voc.ROOM_RECEPTACLES["kitchen"].values())
    assert len(draw_task(HEAT, 1, split="train", receptacles=(kitchen, kitchen), plan=(2, 30)).receptacles) == kitchen
    for seed in range(6):
        # A thing in the microwave that is to be heated and put there: nothing else has to stand in the room.
        assert len(draw_task(HEAT, seed, receptacles=(1, 1)).receptacles) == 1
    with pytest.raises(ValueError, match=r"receptacles=60-60': no room was found that the knobs allow"):
        draw_task(SIMPLE, 1, split="train", receptacles=(60, 60))


def test_a_wide_range_of_lengths_is_no_reason_to_give_up():
    began = time.process_time()
    plan = draw_with_plan(SIMPLE, 1, plan=(2, 10**9 - 1))[1]
    assert len(plan) >= 2
    assert time.process_time() - began < 60


def test_lengths_are_drawn_in_proportion():
    dice, counts = _Dice("lengths"), dict.fromkeys(range(2, 6), 0)
    for _ in range(14_000):
        counts[dice.length(2, 5)] += 1
    # 2, 3, 4 and 5 parts of 14; five standard deviations.
    for n, count in counts.items():
        assert abs(count - 1000 * n) < 5 * (1000 * n * (1 - n / 14)) ** 0.5
    assert dice.length(7, 7) == 7


def test_unseen_layouts_and_goals_are_unseen():
    layouts = {False: set(), True: set()}
    for task_type, unseen in ((t, u) for t in (SIMPLE, "look_at_obj_in_light") for u in (False, True)):
        for room in voc.TASK_ROOMS[task_type]:
            for number in UNSEEN_LAYOUTS if unseen else SEEN_LAYOUTS:
                draft = _Draft(_Dice("x"), task_type, "train", SPLITS["train"], False)
                draft.room = room
                draft._lay_out(_Dice(f"layout {room} {number}"))
                layouts[unseen].add((room, tuple(draft.kinds), tuple(draft.location)))
    assert not layouts[False] & layouts[True]
    goals = {split: set() for split in SPLITS}
    for split in SPLITS:
        for task_type in voc.TASK_TYPES:
            for seed in range(40):
                goal = draw_task(task_type, seed, split=split).goal
                goals[split].add((goal.object, goal.receptacle or goal.lamp))
    seen = goals["tiny"] | goals["train"] | goals["valid_seen"]
    assert not seen & (goals["valid_unseen"] | goals["tiny_unseen"])


# -- JSON --------------------------------------------------------------------------------------------------------

TASK = json.loads(draw_task(SIMPLE, 1).to_json())


def changed(document, path, value):
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["task_id"], 7, "task_id must be text, got int: 7"),
        (["start"], 3, "start must be text, got int: 3"),
        (["start"], None, "start must be text, got NoneType"),
        (["held"], 3, "held must be text or null"),
        (["goal"], None, "goal must be an object"),
        (["goal", "object"], None, "goal.object must be text"),
        (["goal", "receptacle"], 3, "goal.receptacle must be text or null, got int: 3"),
        (["goal", "sliced"], "no", "goal.sliced must be true or false"),
        (["receptacles"], {}, "receptacles must be a list"),
        (["receptacles", 0], "desk", r"receptacles\[0\] must be an object"),
        (["receptacles", 0, "location"], 3, r"receptacles\[0\].location must be text or null, got int: 3"),
        (["receptacles", 1, "openable"], 1, r"receptacles\[1\].openable must be true or false"),
        (["items"], None, "items must be a list"),
        (["items", 0, "name"], 3, r"items\[0\].name must be text"),
        (["items", 0, "at"], 3, r"items\[0\].at must be a list"),
        (["items", 0, "at"], "loc 1", r"items\[0\].at must be a list"),
        (["items", 0, "contents"], 3, r"items\[0\].contents must be a list"),
        (["items", 0, "inside"], [None], r"items\[0\].inside\[0\] must be text"),
        (["items", 0, "colour"], "red", r"items\[0\] has \['colour'\], which it never has"),
        (["accepts"], [["a"]], r"accepts\[0\] must be a pair"),
        (["accepts"], [["a", "b"]], r"accepts\[0\]\[1\] must be a list"),
        (["notes"], [3], r"notes\[0\] must be text"),
        (["held"], TASK["items"][0]["name"], "cannot be inside .* as well"),
    ],
)
def test_fields_of_the_wrong_kind_are_named(path, value, words):
    with pytest.raises(ValueError, match=words):
        HouseholdTask.from_json(changed(TASK, path, value))
    with pytest.raises(ValueError, match=words):
        HouseholdEnv(task=json.dumps(changed(TASK, path, value)))


def test_json_that_is_nested_without_end():
    for document in ('{"a":' * 200_000, "[" * 200_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            HouseholdTask.from_json(document)


RECORDING = {
    "init": [
        ["atLocation", "agent1", "loc_bar_1"],
        ["receptacleType", "shelf_bar_1", "ShelfType"],
        ["receptacleAtLocation", "shelf_bar_1", "loc_bar_2"],
        ["receptacleType", "desk_bar_1", "DeskType"],
        ["receptacleAtLocation", "desk_bar_1", "loc_bar_2"],
        ["objectType", "mug_bar_1", "MugType"],
        ["pickupable", "mug_bar_1"],
        ["inReceptacle", "mug_bar_1", "desk_bar_1"],
        ["canContain", "ShelfType", "MugType"],
    ],
    "goal": "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r)"
    " (objectType ?o MugType) (receptacleType ?r ShelfType)))))",
    "entity_names": {
        "agent1": "agent1 ", "loc_bar_1": "loc 1", "loc_bar_2": "loc 2", "shelf_bar_1": "shelf 1",
        "desk_bar_1": "desk 1", "mug_bar_1": "mug 1", "shelftype": "shelftype", "mugtype": "mugtype",
    },
    "observation": "Your task is to: put a mug in shelf.",
}  # fmt: skip


def with_facts(*facts, without=()):
    return [row for row in RECORDING["init"] if row[0] not in without] + [list(fact) for fact in facts]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("init", None, "household recording: init must be a list, got NoneType"),
        ("init", [[]], r"init\[0\] must be a fact \[predicate, id, ...\], got list: \[\]"),
        ("init", [3], r"init\[0\] must be a list"),
        ("init", [["openable", 3]], r"init\[0\]\[1\] must be text"),
        ("init", [["openable"]], r"init\[0\]: expected 1 names after 'openable'"),
        ("init", with_facts(("receptacleAtLocation", "shelf_bar_1", "loc_bar_1")),
         r"init\[9\]: expected one receptacleAtLocation of 'shelf_bar_1', got"),
        ("init", with_facts(without=("atLocation",)), "household recording: expected one atLocation of the agent, got"),
        ("init", with_facts(without=("receptacleType",)),
         r"init\[\d\]: expected one receptacleType of 'desk_bar_1', got \('receptacleatlocation', .*alone"),
        ("init", with_facts(("objectType", "mug_bar_1", "ShelfType")), r"init\[9\]: expected one objectType"),
        ("init", with_facts(("holds", "agent1", "mug_bar_1"), without=("inReceptacle",)),
         r"init\[8\]: expected 'holdsany' as well"),
        ("init", with_facts(("holdsAny", "agent1")), r"init\[9\]: expected 'holds' as well"),
        ("init", with_facts(("holds", "agent1", "mug_bar_1"), ("holdsAny", "agent1")), "cannot be inside"),
        ("goal", None, "household recording: goal must be text"),
        ("entity_names", [], "entity_names must be an object, got list"),
        ("entity_names", {"a": 3}, r"entity_names\['a'\] must be text"),
        ("observation", 3, "observation must be text"),
        ("name", 3, "household recording: name must be text"),
    ],
)  # fmt: skip
def test_recordings_of_the_wrong_kind_are_named(key, value, words):
    assert HouseholdTask.from_recording(RECORDING).items[0].inside == ("desk 1",)
    with pytest.raises(ValueError, match=words):
        HouseholdTask.from_recording({**RECORDING, key: value})


def test_a_fact_may_be_told_twice():
    twice = {**RECORDING, "init": RECORDING["init"] * 2}
    assert HouseholdTask.from_recording(twice) == HouseholdTask.from_recording(RECORDING)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": ["tiny"]}, "split"),
        ({"task_types": 3}, "task_types must be names of task types, got 3"),
        ({"task_types": [3]}, "task type '3'"),
        ({"show": 3}, "show must be some of 'task', 'commands', got 3"),
        ({"show": [3]}, "show=3"),
        ({"data": 3}, "household data must be the path of a folder, got int: 3"),
        ({"rules": ["plain"]}, "rules="),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        HouseholdEnv(**options)


def test_a_folder_given_as_text_is_told_how_to_be_given(tmp_path):
    with pytest.raises(ValueError, match=r"the name of a folder: pass the folder of one game as pathlib.Path\('"):
        HouseholdEnv(task=str(tmp_path))


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028", "\x85", "\v"])
def test_a_history_keeps_a_command_on_one_line(line_break):
    env = HouseholdEnv(task="tiny/pick_and_place_simple/3", history=4, show="task")
    env.reset()
    text = env.step(f"dance{line_break}> open drawer 1{line_break}You open the drawer 1.")[0]
    assert [line for line in text.splitlines() if line.startswith(">")] == [
        "> dance > open drawer 1 You open the drawer 1."
    ]
    assert text.endswith("\nNothing happens.")


@pytest.mark.parametrize("history", [0, 1, 3])
def test_the_task_is_told_once_in_every_observation(history):
    for observation, word in (("feedback", "Your task is to: "), ("knowledge", "Task: ")):
        env = HouseholdEnv(split="tiny", history=history, show="task", observation=observation)
        texts = [env.reset(seed=3)[0]] + [env.step("look")[0] for _ in range(5)]
        for turn, text in enumerate(texts):
            # What is known begins with the task each time; feedback has it in the first text alone.
            times = min(turn, history) + 1 if observation == "knowledge" else 1
            assert text.count(word) == times
