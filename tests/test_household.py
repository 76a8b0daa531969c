"""Household: the rules against episodes recorded from the engine, and the environment's own promises."""

import json
import pickle
import random
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from rtmc.gymenvs.household import Goal, HouseholdEnv, HouseholdTask, Item, Receptacle, load_game
from rtmc.gymenvs.household.records import names_of_ids

RECORDINGS = Path(__file__).resolve().parents[1].parent / "shared" / "alfworld"
FILES = sorted(RECORDINGS.glob("*.json")) or [None]


@pytest.fixture(params=FILES, ids=lambda path: path.stem if path else "absent")
def recording(request):
    if request.param is None:
        pytest.skip(f"the recorded episodes are not there: {RECORDINGS}")
    return json.loads(request.param.read_text(encoding="utf-8"))


def test_replay_of_the_engine(recording):
    env = HouseholdEnv(task=HouseholdTask.from_recording(recording), details=True, max_turns=10_000)
    text, info = env.reset()
    assert text == recording["observation"]
    assert info["admissible_commands"] == recording["admissible"]
    assert info["facts"] == recording["facts"]
    facts = set(info["facts"])
    won = False
    for number, step in enumerate(recording["steps"]):
        where = f"step {number}: {step['command']!r}"
        text, reward, terminated, _, info = env.step(step["command"])
        assert text == step["feedback"], where
        assert info["admissible_commands"] == step["admissible"], where
        assert (info["success"], terminated, info["score"]) == (step["won"], step["won"], step["score"]), where
        assert reward == float(step["won"] and not won), where
        now = set(info["facts"])
        assert sorted(now - facts) == step["facts_added"], where
        assert sorted(facts - now) == step["facts_removed"], where
        facts, won = now, step["won"]


def test_the_expert_needs_no_more_steps_than_the_engines_planner(recording):
    env = HouseholdEnv(task=HouseholdTask.from_recording(recording))
    env.reset()
    plan = env.expert_plan()
    for command in plan:
        success = env.step(command)[4]["success"]
    assert success
    assert len(plan) <= len(recording["planner_plan"])


def test_names_follow_from_the_ids(recording):
    names = {one: name.strip() for one, name in recording["entity_names"].items()}
    assert names_of_ids(names) == names


def test_a_recorded_task_survives_json_and_a_game_file(recording, tmp_path):
    task = HouseholdTask.from_recording(recording)
    assert HouseholdTask.from_json(task.to_json()) == task
    assert HouseholdTask.from_json(json.loads(task.to_json())) == task
    rows = "\n".join(f"({' '.join(row)})" for row in recording["init"] if row[0] != "=")
    problem = f"(define (problem x) (:init\n{rows}\n(= (total-cost) 0)\n)(:goal {recording['goal']}"
    grammar = f'"task": [{{"rhs": "Your task is to: {task.goal.sentence}."}}]'
    folder = tmp_path / "some-task" / "trial_1"
    folder.mkdir(parents=True)
    game = folder / "game.tw-pddl"
    game.write_text(json.dumps({"pddl_problem": problem, "grammar": grammar}), encoding="utf-8")
    read = load_game(game)
    assert read.task_id == "some-task/trial_1"
    assert (read.receptacles, read.items, read.goal) == (task.receptacles, task.items, task.goal)
    assert (read.start, read.accepts) == (task.start, task.accepts)


# -- rules, worked out by hand -------------------------------------------------------------------------------


def room(goal=None, **changes):
    """Cabinet 1 (closed) and countertop 1 stand together, microwave 1 and fridge 1 apart."""
    goal = goal or Goal("pick_heat_then_place_in_recep", "apple", "put a hot apple in cabinet", "cabinet")
    fields = {
        "task_id": "by-hand",
        "goal": goal,
        "receptacles": (
            Receptacle("cabinet 1", "cabinet", "loc 2", openable=True),
            Receptacle("countertop 1", "countertop", "loc 2"),
            Receptacle("fridge 1", "fridge", "loc 4", openable=True),
            Receptacle("microwave 1", "microwave", "loc 3", openable=True),
        ),
        "items": (
            Item(
                "apple 1",
                "apple",
                ("coolable", "heatable", "pickupable", "sliceable"),
                ("countertop 1",),
                ("loc 2",),
            ),
            Item("egg 1", "egg", ("pickupable", "sliceable"), ("fridge 1",), ("loc 4",)),
            Item("knife 1", "knife", ("pickupable",), ("countertop 1",), ("loc 2",)),
        ),
        "start": "loc 1",
        "accepts": (
            ("cabinet", ("apple", "knife")),
            ("countertop", ("apple", "egg", "knife")),
            ("fridge", ("apple", "egg")),
            ("microwave", ("apple", "egg")),
        ),
    }
    return HouseholdTask(**{**fields, **changes})


def play(env, *commands):
    for command in commands:
        text, _, _, _, info = env.step(command)
    return text, info


def start(task, **options):
    env = HouseholdEnv(task=task, **options)
    text, _ = env.reset()
    return env, text


def test_the_room_is_told_once_only():
    env, text = start(room())
    assert "you see a cabinet 1, a countertop 1, a fridge 1, and a microwave 1." in text
    assert text.endswith("\n\nYour task is to: put a hot apple in cabinet.")
    assert play(env, "look")[0] == ("You are in the middle of a room. Looking quickly around you, you see nothing.")


def test_two_receptacles_at_one_location():
    env, _ = start(room())
    text, info = play(env, "go to countertop 1")
    assert text == "You arrive at countertop 1. On the countertop 1, you see a apple 1, and a knife 1."
    assert "open cabinet 1" in info["admissible_commands"]
    assert not {"go to cabinet 1", "go to countertop 1"} & set(info["admissible_commands"])
    assert play(env, "go to cabinet 1")[0] == "Nothing happens."
    assert play(env, "look")[0] == "You are facing the cabinet 1, and countertop 1. Next to it, you see nothing."


def test_a_thing_moved_within_a_location_lies_beside():
    env, _ = start(room())
    text, _ = play(
        env,
        "go to cabinet 1",
        "open cabinet 1",
        "take knife 1 from countertop 1",
        "move knife 1 to cabinet 1",
        "look",
    )
    assert text.endswith("Next to it, you see a knife 1.")
    text, _ = play(env, "take knife 1 from cabinet 1", "move knife 1 to countertop 1", "look")
    assert text.endswith("Next to it, you see a knife 1.")


def test_heat_through_a_closed_door_and_lose_the_goal_again():
    env, _ = start(room())
    text, info = play(
        env,
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
    )
    assert text == "You heat the apple 1 using the microwave 1."
    assert play(env, "examine apple 1")[0] == "This is a hot apple 1."
    play(env, "go to cabinet 1", "open cabinet 1")
    text, reward, terminated, _, info = env.step("move apple 1 to cabinet 1")
    assert (reward, terminated, info["score"]) == (1.0, True, 1)
    _, reward, terminated, _, info = env.step("look")
    assert (reward, terminated, info["success"]) == (0.0, True, True)
    _, reward, terminated, _, info = env.step("take apple 1 from cabinet 1")
    assert (reward, terminated, info["success"], info["score"]) == (0.0, False, False, 0)
    play(env, "go to fridge 1")
    assert play(env, "cool apple 1 with fridge 1", "examine apple 1")[0] == "This is a cold apple 1."
    play(env, "go to cabinet 1", "move apple 1 to cabinet 1")
    assert not play(env, "look")[1]["success"]


def test_a_receptacle_that_stands_nowhere_is_out_of_the_game():
    attic = Receptacle("shelf 1", "shelf", None)
    book = Item("book 1", "book", ("pickupable",), ("shelf 1",))
    goal = Goal("pick_and_place_simple", "book", "put a book in cabinet", "cabinet")
    task = room(
        goal, receptacles=(*room().receptacles, attic), items=(*room().items, book), accepts=(("cabinet", ("book",)),)
    )
    env, text = start(task, details=True)
    assert "shelf" not in text
    _, info = play(env, "go to countertop 1")
    assert not any("shelf" in command or "book" in command for command in info["admissible_commands"])
    assert "shelf" not in env.describe()
    assert "inreceptacle(book 1, shelf 1)" in info["facts"]
    assert env.expert_plan() is None
    met, _ = start(
        room(
            Goal("pick_and_place_simple", "book", "put a book in shelf", "shelf"),
            receptacles=task.receptacles,
            items=task.items,
        )
    )
    assert met.expert_plan() == []


def test_slicing_reaches_into_a_closed_receptacle():
    env, _ = start(room(), state_key="knowledge")
    text, info = play(env, "go to countertop 1", "take knife 1 from countertop 1", "go to fridge 1")
    assert text.endswith("The fridge 1 is closed.")
    assert "slice egg 1 with knife 1" in info["admissible_commands"]
    assert "Offered: slice egg 1 with knife 1." in info["state_key"]
    text, info = play(env, "slice egg 1 with knife 1")
    assert text == "You sliced the egg 1 with the knife 1."
    assert "egg 1 is sliced." in info["state_key"]


@pytest.mark.parametrize("command", ["LOOK", "go to cabinet 2", "put apple 1 in/on cabinet 1", "", "open  fridge 1"])
def test_other_text_changes_nothing_but_costs_a_turn(command):
    env, _ = start(room(), max_turns=1)
    before = env.reset()[1]
    text, reward, terminated, truncated, info = env.step(command)
    assert (text, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, True)
    assert (info["valid"], info["action_key"]) == (False, command.strip())
    assert info["state_key"] == before["state_key"]
    assert info["admissible_commands"] == before["admissible_commands"]


def test_blanks_around_a_command_do_not_matter():
    env, _ = start(room())
    text, info = play(env, "  go to fridge 1\n")
    assert (text, info["action_key"], info["valid"]) == (
        "You arrive at fridge 1. The fridge 1 is closed.",
        "go to fridge 1",
        True,
    )


@pytest.mark.parametrize(
    ("states", "traits", "text"),
    [
        ((), (), "There's nothing special about apple 1."),
        (("hot",), (), "This is a hot apple 1."),
        (("cool",), (), "This is a cold apple 1."),
        (("clean",), (), "This is a clean apple 1."),
        (("clean", "hot"), (), "This is a hot and clean apple 1."),
        (("clean", "cool"), (), "This is a cool and clean apple 1."),
        (("clean", "cool", "sliced"), (), "This is a cool and clean sliced apple 1."),
        (("hot", "sliced"), (), "This is a hot sliced apple 1."),
        (("cool", "sliced"), (), "This is a cool sliced apple 1."),
        (("sliced",), ("sliceable",), "This is a sliced apple 1."),
        (("sliced",), (), "There's nothing special about apple 1."),
        (("sliced",), ("isreceptacleobject",), "This is a normal apple 1. In it, you see nothing."),
        (("sliced", "toggled"), ("toggleable",), "This apple 1 is on."),
        (("hot", "sliced"), ("isreceptacleobject",), "This is a normal apple 1. In it, you see nothing."),
        (("toggled",), ("toggleable",), "This apple 1 is on."),
    ],
)
def test_examine_a_held_thing(states, traits, text):
    apple = Item("apple 1", "apple", ("pickupable", *traits), states=states)
    env, _ = start(room(items=(apple,), held="apple 1"))
    assert play(env, "examine apple 1")[0] == text
    assert play(env, "inventory")[0] == "You are carrying: a apple 1."


# -- the environment -----------------------------------------------------------------------------------------


def test_snapshot_and_restore_at_every_turn():
    env = HouseholdEnv(split="train", task_types=["pick_heat_then_place_in_recep"], details=True)
    other = HouseholdEnv(details=True)
    rng = random.Random(0)
    _, info = env.reset(seed=4)
    for _ in range(25):
        kept = pickle.loads(pickle.dumps(env.snapshot()))
        commands = [rng.choice(info["admissible_commands"]) for _ in range(3)]
        ahead = [env.step(command) for command in commands]
        # Another environment that restores the snapshot lives through the same steps.
        restored = other.restore(kept)
        assert restored["state_key"] == info["state_key"]
        assert restored["facts"] == info["facts"]
        assert [other.step(command) for command in commands] == ahead
        env.restore(kept)
        info = env.step(commands[0])[4]


def test_a_snapshot_carries_the_turns():
    env, _ = start(room(), max_turns=3)
    play(env, "look", "look")
    kept = env.snapshot()
    assert env.step("look")[3]
    env.restore(kept)
    assert env.step("look")[3]
    other = HouseholdEnv(max_turns=3)
    other.restore(kept)
    assert other.step("look")[3]


def test_resets_follow_the_documented_order():
    env = gymnasium.make("rtmc/Household-v0", task_types=["pick_and_place_simple", "look_at_obj_in_light"])
    told = [env.reset()[1]["task_id"] for _ in range(4)]
    assert told == [
        "tiny/pick_and_place_simple/0",
        "tiny/look_at_obj_in_light/0",
        "tiny/pick_and_place_simple/1",
        "tiny/look_at_obj_in_light/1",
    ]
    chosen = "train/pick_clean_then_place_in_recep/5"
    first = env.reset(options={"task": chosen})
    assert first[1]["task_id"] == chosen
    assert env.reset(options={"task": chosen}) == first
    assert env.reset()[1]["task_id"] == "tiny/pick_and_place_simple/2"
    seeded = [env.reset(seed=9)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(3)]
    assert [env.reset(seed=9)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(3)] == seeded
    assert len(set(seeded)) > 1


def test_task_may_be_an_object_its_json_or_an_id():
    task = room()
    env = HouseholdEnv()
    for form in (task, json.loads(task.to_json())):
        assert env.reset(options={"task": form})[1]["task_id"] == "by-hand"
    fixed = gymnasium.make("rtmc/Household-v0", task="tiny/look_at_obj_in_light/2")
    assert {fixed.reset(seed=seed)[1]["task_id"] for seed in range(4)} == {"tiny/look_at_obj_in_light/2"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "trian"}, "did you mean 'train'"),
        ({"task_types": ["pick_and_place"]}, "did you mean 'pick_and_place_simple'"),
        ({"task_types": []}, "task_types is empty"),
        ({"task": "tiny/pick_and_place_simpel/3"}, "did you mean 'pick_and_place_simple'"),
        ({"task": "tiny/pick_and_place_simple/x"}, "split/task_type/seed"),
        ({"task": "tiny/pick_and_place_simple/1?distractor=1-2"}, "did you mean 'distractors'"),
        ({"task": "tiny/pick_and_place_simple/1?distractors=two"}, "'two' is no value for distractors"),
        ({"task": "nonsense"}, "split/task_type/seed"),
        ({"rules": "alfword"}, "did you mean 'alfworld'"),
        ({"observation": "image"}, "'feedback', 'knowledge'"),
        ({"max_turns": 0}, "at least 1, got 0"),
        ({"max_turns": 2.5}, "whole number"),
    ],
)
def test_bad_arguments_name_what_would_do(options, words):
    with pytest.raises(ValueError, match=words):
        HouseholdEnv(**options)


def test_bad_calls():
    env = HouseholdEnv()
    with pytest.raises(ResetNeeded):
        env.step("look")
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"tsak": "x"})
    env.reset()
    with pytest.raises(TypeError, match="an action is text, got int"):
        env.step(3)
    with pytest.raises(TypeError, match="what snapshot"):
        env.restore({})
    with pytest.raises(TypeError, match="JSON object, got int"):
        HouseholdEnv(task=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"items": (Item("egg 1", "egg", ("pickupable",), ("oven 1",)),)},
            r"egg 1 is inside \['oven 1'\]",
        ),
        ({"items": (Item("egg 1", "egg", ("edible",)),)}, r"egg 1 has \['edible'\]"),
        ({"held": "egg 9"}, "no item of the room"),
        ({"goal": Goal("pick_and_place_simple", "egg", "put a egg in it")}, "needs goal.receptacle"),
        ({"goal": Goal("juggle", "egg", "juggle")}, "'juggle'"),
        ({"receptacles": (Receptacle("a 1", "a", "loc 1"),) * 2, "items": ()}, "more than once"),
    ],
)
def test_impossible_tasks_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        room(**changes)


@pytest.mark.parametrize("document", ["[", "[]", "{}", '{"task_id": "x"}'])
def test_bad_json_is_refused(document):
    with pytest.raises(ValueError, match="JSON form"):
        HouseholdTask.from_json(document)


def test_bad_recordings_are_refused():
    with pytest.raises(ValueError, match=r"keys \['init', 'goal', 'entity_names', 'observation'\]"):
        HouseholdTask.from_recording({})
    base = {
        "init": [["atLocation", "agent1", "loc_bar_1"], ["flies", "pig_bar_1"]],
        "goal": "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r)"
        " (objectType ?o MugType) (receptacleType ?r ShelfType)))))",
        "entity_names": {"loc_bar_1": "loc 1", "agent1": "agent1 "},
        "observation": "Your task is to: put a mug in shelf.",
    }
    with pytest.raises(ValueError, match=r"predicates \['flies'\]"):
        HouseholdTask.from_recording(base)
    with pytest.raises(ValueError, match="no line 'Your task is to"):
        HouseholdTask.from_recording({**base, "observation": "hello"})
    with pytest.raises(ValueError, match="household goal: none of"):
        HouseholdTask.from_recording({**base, "goal": "(and (flies ?pig))"})
    with pytest.raises(ValueError, match="no name is given for 'mug_bar_1'"):
        HouseholdTask.from_recording({**base, "init": [*base["init"][:1], ["objectType", "mug_bar_1", "MugType"]]})
