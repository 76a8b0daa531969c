"""Household: tasks drawn by number, shortest plans, and what the agent knows."""

import json
import os
import random
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path

import pytest

from rtmc.gymenvs.household import SPLITS, HouseholdEnv, HouseholdTask, draw_task, generate_task
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.expert import shortest_plan
from rtmc.gymenvs.household.generate import held_out
from rtmc.gymenvs.household.knowledge import Describer, Knowledge, learn
from rtmc.gymenvs.household.world import World

FREE = ("help", "inventory", "look", "examine")
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "alfworld"


def changing(world, state):
    """The commands of a state that can change it, with the state each leads to."""
    return [
        (command, world.apply(state, action))
        for command, action in sorted(world.actions(state).items())
        if action.verb not in FREE
    ]


def shortest_by_enumeration(world, start):
    """Steps of the shortest way to the goal, found by trying every command in every state."""
    if world.success(start):
        return 0
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        state, steps = queue.popleft()
        for _, after in changing(world, state):
            if after in seen:
                continue
            if world.success(after):
                return steps + 1
            seen.add(after)
            queue.append((after, steps + 1))
    return None


def walk(world, state, rng, steps):
    for _ in range(steps):
        state = rng.choice(changing(world, state))[1]
    return state


# -- generated tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
@pytest.mark.parametrize("split", ["tiny", "tiny_unseen"])
def test_tiny_tasks(task_type, split):
    lengths, texts, sentences = Counter(), set(), set()
    for seed in range(60):
        task = draw_task(task_type, seed, split=split)
        world = World(task)
        assert task.task_id == f"{split}/{task_type}/{seed}"
        assert len(task.receptacles) in (3, 4)
        steps = shortest_by_enumeration(world, world.start) if seed < 12 else None
        plan = shortest_plan(world, world.start)
        assert steps in (None, len(plan))
        assert 2 <= len(plan) <= 4
        lengths[len(plan)] += 1
        texts.add(HouseholdTask.to_json(task).replace(task.task_id, ""))
        sentences.add(task.goal.sentence)
    assert len(lengths) >= 2
    assert len(texts) >= 55
    assert len(sentences) >= (25 if split == "tiny" else 8)


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_tiny_tasks_never_offer_more_than_eight_choices(task_type):
    for seed in range(8):
        world = World(draw_task(task_type, seed))
        seen, queue = {world.start}, [world.start]
        while queue:
            after = changing(world, queue.pop())
            assert 1 <= len(after) <= 8
            for _, state in after:
                if state not in seen:
                    seen.add(state)
                    queue.append(state)


def test_a_tiny_room_often_serves_another_goal_too():
    rivals = places = total = 0
    for task_type in voc.TASK_TYPES:
        for seed in range(40):
            task = draw_task(task_type, seed)
            goal, total = task.goal, total + 1
            others = [item for item in task.items if item.kind != goal.object and item.kind not in voc.LAMPS]
            rivals += bool(others)
            fitting = [
                r.kind
                for r in task.receptacles
                if goal.object in voc.ACCEPTS.get(r.kind, ()) and r.kind != goal.receptacle
            ]
            places += bool(fitting)
    assert rivals == total
    assert places / total > 0.7


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_full_rooms(split, task_type):
    for seed in range(6):
        task = draw_task(task_type, seed, split=split)
        world, goal = World(task), task.goal
        assert not world.success(world.start)
        state = world.start
        for command in shortest_plan(world, state):
            state = world.apply(state, world.actions(state)[command])
        assert world.success(state)
        assert held_out(goal.object, goal.receptacle or goal.lamp) == (split == "valid_unseen")
        for item in task.items:
            if item.kind not in voc.LAMPS:
                kinds = [r.kind for r in task.receptacles if r.name in item.inside]
                assert all(item.kind in voc.ACCEPTS[kind] for kind in kinds)
        assert len(task.receptacles) >= 8


def test_every_wording_is_used_in_every_split():
    for split in SPLITS:
        for task_type in voc.TASK_TYPES:
            # The first two words tell a type's two wordings apart.
            wanted = {tuple(text.split()[:2]) for text in voc.SENTENCES[task_type]}
            seen = {tuple(draw_task(task_type, seed, split=split).goal.sentence.split()[:2]) for seed in range(12)}
            assert len(seen) == len(wanted) == 2


def test_an_id_regenerates_its_task_knobs_included():
    task = draw_task("pick_clean_then_place_in_recep", 3, split="train", distractors=(2, 4), closed=0.5)
    assert task.task_id == "train/pick_clean_then_place_in_recep/3?distractors=2-4&closed=0.5"
    assert generate_task(task.task_id) == task
    roomy = draw_task("pick_and_place_simple", 3, receptacles=(6, 6), choices=0)
    assert len(roomy.receptacles) == 6
    assert generate_task(roomy.task_id) == roomy
    assert len(draw_task("pick_and_place_simple", 0, split="train", receptacles=(5, 5)).receptacles) == 5


def test_impossible_knobs_and_names():
    with pytest.raises(ValueError, match="no room was found that the knobs allow"):
        draw_task("look_at_obj_in_light", 0, plan=(40, 40))
    with pytest.raises(ValueError, match="did you mean 'distractors'"):
        draw_task("look_at_obj_in_light", 0, distractor=(1, 1))
    with pytest.raises(ValueError, match="seed=-1: wanted a whole number from 0"):
        draw_task("look_at_obj_in_light", -1)


_DIGEST = """
import hashlib
from rtmc.gymenvs.household import SPLITS, HouseholdEnv, draw_task, vocabulary
told = hashlib.sha256()
for split in SPLITS:
    for task_type in vocabulary.TASK_TYPES:
        told.update(draw_task(task_type, 7, split=split).to_json().encode())
env = HouseholdEnv(split="train", details=True)
for seed in range(3):
    text, info = env.reset(seed=seed)
    for command in env.expert_plan():
        told.update(repr((text, info)).encode())
        text, _, _, _, info = env.step(command)
print(told.hexdigest())
"""


def test_tasks_and_episodes_are_the_same_in_every_process():
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(digests) == 1


# -- the expert ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_plans_are_shortest_from_any_state(task_type):
    rng = random.Random(task_type)
    for seed in range(12):
        knobs = {"distractors": (1, 2), "receptacles": (4, 5), "choices": 0, "shared": 0.4, "plan": (1, 12)}
        world = World(draw_task(task_type, seed, **knobs))
        state = world.start
        for _ in range(4):
            plan = shortest_plan(world, state)
            assert len(plan) == shortest_by_enumeration(world, state)
            after = state
            for command in plan:
                after = world.apply(after, world.actions(after)[command])
            assert world.success(after)
            state = walk(world, state, rng, 4)


def test_plans_of_goals_met_or_out_of_reach():
    task = draw_task("pick_heat_then_place_in_recep", 1)
    world = World(task)
    state = world.start
    for command in shortest_plan(world, state):
        state = world.apply(state, world.actions(state)[command])
    assert shortest_plan(world, state) == []
    data = json.loads(task.to_json())
    data["items"] = [row for row in data["items"] if row["kind"] != task.goal.object]
    empty = World(HouseholdTask.from_json(data))
    assert shortest_plan(empty, empty.start) is None
    for row in (data := json.loads(task.to_json()))["receptacles"]:
        row["kind"] = "shelf" if row["kind"] == "microwave" else row["kind"]
    cold = World(HouseholdTask.from_json(data))
    assert shortest_plan(cold, cold.start) is None


# -- knowledge -----------------------------------------------------------------------------------------------


def test_knowledge_text_to_the_letter():
    task = HouseholdTask.from_json(
        {
            "task_id": "k",
            "goal": {
                "task_type": "pick_and_place_simple",
                "object": "mug",
                "sentence": "put some mug on shelf",
                "receptacle": "shelf",
            },
            "receptacles": [
                {"name": "countertop 1", "kind": "countertop", "location": "loc 2"},
                {"name": "drawer 10", "kind": "drawer", "location": "loc 4", "openable": True},
                {"name": "drawer 2", "kind": "drawer", "location": "loc 4", "openable": True},
                {"name": "microwave 1", "kind": "microwave", "location": "loc 2", "openable": True},
                {"name": "shelf 1", "kind": "shelf", "location": "loc 3"},
            ],
            "items": [
                {
                    "name": "desklamp 1",
                    "kind": "desklamp",
                    "traits": ["toggleable"],
                    "inside": ["shelf 1"],
                    "at": ["loc 3"],
                },
                {
                    "name": "mug 1",
                    "kind": "mug",
                    "traits": ["heatable", "pickupable"],
                    "inside": ["countertop 1"],
                    "at": ["loc 2"],
                },
                {
                    "name": "pen 1",
                    "kind": "pen",
                    "traits": ["pickupable"],
                    "inside": ["drawer 2"],
                    "at": ["loc 4"],
                },
            ],
            "start": "loc 1",
            "accepts": [["shelf", ["mug"]]],
        }
    )
    env = HouseholdEnv(task=task, observation="knowledge")
    head = "Task: put some mug on shelf.\nPlaces: countertop 1, drawer 2, drawer 10, microwave 1, shelf 1.\nSeen: "

    def told(*commands):
        for command in commands:
            text = env.step(command)[0]
        assert text.startswith(head)
        return text.removeprefix(head).split("\n")

    assert env.reset()[0] == head + "nothing yet.\nYou are in the middle of the room, holding nothing."
    assert told("go to countertop 1") == [
        "countertop 1: mug 1. microwave 1: closed.",
        "You are at countertop 1 and microwave 1, holding nothing.",
    ]
    assert told("take mug 1 from countertop 1", "heat mug 1 with microwave 1") == [
        "countertop 1: nothing. microwave 1: closed.",
        "You are at countertop 1 and microwave 1, holding mug 1 (hot).",
    ]
    assert told("go to drawer 10", "open drawer 2") == [
        "countertop 1: nothing. drawer 2 (open): pen 1. drawer 10: closed. microwave 1: closed.",
        "You are at drawer 2 and drawer 10, holding mug 1 (hot).",
    ]
    assert told("close drawer 2", "go to shelf 1", "move mug 1 to shelf 1", "use desklamp 1") == [
        "countertop 1: nothing. drawer 2 (closed): pen 1. drawer 10: closed. microwave 1: closed. "
        "shelf 1: desklamp 1, mug 1 (hot).",
        "You are at shelf 1, holding nothing. desklamp 1 is on.",
    ]


def test_the_order_of_visits_leaves_no_trace():
    env = HouseholdEnv(task="train/pick_and_place_simple/2", state_key="knowledge")
    _, info = env.reset()
    places = [command for command in info["admissible_commands"] if command.startswith("go to")]
    rng = random.Random(3)
    keys = set()
    for _ in range(6):
        env.reset()
        first = places[0]
        for command in rng.sample(places[1:5], 4):
            env.step(command)
            env.step(rng.choice(["look", "inventory", "help", "nonsense"]))
        keys.add(env.step(first)[4]["state_key"])
    assert len(keys) == 1


@pytest.mark.parametrize("task_type", voc.TASK_TYPES)
def test_things_are_neither_lost_nor_doubled(task_type):
    world = World(draw_task(task_type, 5, split="train"))
    rng, state = random.Random(1), world.start
    for _ in range(300):
        state = walk(world, state, rng, 1)
        for k in range(len(world.item_names)):
            inside = [r for r, mask in enumerate(state.contents) if mask >> k & 1]
            at = [place for place, mask in enumerate(state.lying) if mask >> k & 1]
            assert [world.receptacle_place[r] for r in inside] == at
            assert len(at) == (0 if k == state.held else 1)
        assert (state.hot & state.cool) == 0


@pytest.mark.parametrize("split", ["tiny", "train"])
def test_equal_keys_admit_equal_commands(split):
    rng = random.Random(split)
    for task_type in voc.TASK_TYPES:
        for seed in range(3):
            world = World(draw_task(task_type, seed, split=split))
            describer = Describer(world)
            admitted = {}
            for _ in range(15):
                state, known = world.start, learn(world, world.start, Knowledge())
                for _ in range(25):
                    actions = world.actions(state)
                    key = describer.key(state, known)
                    text = describer.text(state, known)
                    assert admitted.setdefault(key, (sorted(actions), text)) == (sorted(actions), text)
                    action = actions[rng.choice(sorted(actions))]
                    state = world.apply(state, action)
                    known = learn(world, state, known, action)


def test_the_key_hides_what_was_not_seen():
    task = draw_task("pick_and_place_simple", 11, split="train")
    world = World(task)
    describer = Describer(world)
    start = describer.key(world.start, learn(world, world.start, Knowledge()))
    assert start == "Seen: nothing yet. You are in the middle of the room, holding nothing."
    # Two rooms that differ in unseen places only cannot be told apart.
    other = World(draw_task("pick_and_place_simple", 12, split="train"))
    assert Describer(other).key(other.start, learn(other, other.start, Knowledge())) == start


def test_the_placement_rules_are_those_of_the_recorded_engine():
    files = sorted(SHARED.glob("*.json"))
    if not files:
        pytest.skip(f"the recorded episodes are not there: {SHARED}")
    task = HouseholdTask.from_recording(json.loads(files[0].read_text(encoding="utf-8")))
    assert {kind: frozenset(kinds) for kind, kinds in task.accepts} == voc.ACCEPTS
    for file in files:
        for item in HouseholdTask.from_recording(json.loads(file.read_text(encoding="utf-8"))).items:
            if item.kind in {kind for kinds in voc.ROOM_OBJECTS.values() for kind in kinds} | set(voc.LAMPS):
                assert item.traits == voc.traits_of(item.kind)
