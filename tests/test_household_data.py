"""Household: PDDL problems and ALFWorld's data folder, written here in that form; what is said of malformed ones."""

import json
import re
from dataclasses import replace

import gymnasium
import pytest

from rtmc.gymenvs.household import HouseholdEnv, draw_task, find_games, load_game, load_trial
from rtmc.gymenvs.household import vocabulary as voc
from rtmc.gymenvs.household.engine import game_of, problem_of
from rtmc.gymenvs.household.pddl import read_problem

# Written by hand in the form of ALFRED's planner: mixed case, costs, comments, a metric, ids with coordinates.
PROBLEM = """
(define (problem plan_trial)   ; a comment with (parentheses
    (:domain alfred)
    (:objects
        agent1 - agent
        MugType SpoonType - otype
        ShelfType CounterTopType FridgeType - rtype
        Mug_bar__plus_00_dot_50_bar__minus_01_dot_00 - object
        Mug_bar__plus_00_dot_75_bar__minus_01_dot_00 - object
        Shelf_bar__plus_01_dot_00 CounterTop_bar__minus_02_dot_00 - receptacle
        Fridge_bar__minus_03_dot_00 - receptacle
        loc_bar_1_bar_2_bar_0_bar_60 loc_bar_2_bar_2_bar_0_bar_60 loc_bar_9_bar_2_bar_0_bar_60 - location
    )
    (:init
        (= (total-cost) 0)
        (= (distance loc_bar_1_bar_2_bar_0_bar_60 loc_bar_2_bar_2_bar_0_bar_60) 3)
        (receptacleType Shelf_bar__plus_01_dot_00 ShelfType)
        (receptacleType CounterTop_bar__minus_02_dot_00 CounterTopType)
        (receptacleType Fridge_bar__minus_03_dot_00 FridgeType)
        (receptacleAtLocation Shelf_bar__plus_01_dot_00 loc_bar_1_bar_2_bar_0_bar_60)
        (receptacleAtLocation CounterTop_bar__minus_02_dot_00 loc_bar_2_bar_2_bar_0_bar_60)
        (openable Fridge_bar__minus_03_dot_00)
        (objectType Mug_bar__plus_00_dot_50_bar__minus_01_dot_00 MugType)
        (objectType Mug_bar__plus_00_dot_75_bar__minus_01_dot_00 MugType)
        (pickupable Mug_bar__plus_00_dot_50_bar__minus_01_dot_00)
        (pickupable Mug_bar__plus_00_dot_75_bar__minus_01_dot_00)
        (inReceptacle Mug_bar__plus_00_dot_50_bar__minus_01_dot_00 CounterTop_bar__minus_02_dot_00)
        (objectAtLocation Mug_bar__plus_00_dot_50_bar__minus_01_dot_00 loc_bar_2_bar_2_bar_0_bar_60)
        (canContain ShelfType MugType)
        (atLocation agent1 loc_bar_9_bar_2_bar_0_bar_60)
    )
    (:goal (and (exists (?r - receptacle) (exists (?o - object) (and
        (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r ShelfType))))))
    (:metric minimize (total-cost))
)
"""
MUG = "(objectType Mug_bar__plus_00_dot_50_bar__minus_01_dot_00 MugType)"
LINES = PROBLEM.split("\n")


def line_of(text):
    """The line of the problem on which the text stands, from 1 on."""
    (found,) = [number for number, line in enumerate(LINES, 1) if text in line]
    return found


TRAJECTORY = {
    "task_type": "pick_and_place_simple",
    "pddl_params": {"object_target": "Mug", "parent_target": "Shelf", "toggle_target": "", "object_sliced": False},
}


def test_a_problem_to_the_letter():
    problem = read_problem(PROBLEM)
    assert problem.facts[0] == ("receptacletype", "shelf_bar__plus_01_dot_00", "shelftype")
    assert len(problem.facts) == 14
    assert problem.goal.startswith("(and (exists (?r - receptacle) (exists (?o - object) (and (inreceptacle ?o ?r)")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (MUG, "(objectTyp a b)", line_of(MUG),
         "a predicate of the household domain (did you mean 'objecttype'?), got 'objecttyp'"),
        (MUG, "(objectType MugType)", line_of(MUG),
         "2 names after 'objecttype', got '(objecttype mugtype)'"),
        (MUG, "(objectType Mug_bar_1 MugType)", line_of(MUG),
         "an object that (:objects ...) declares, got 'mug_bar_1'"),
        (MUG, "(not (openable x))", line_of(MUG),
         "an object that (:objects ...) declares, got 'x'"),
        (MUG, "(not openable)", line_of(MUG),
         "a fact '(PREDICATE NAME ...)', got 'openable'"),
        (MUG, f"(not {MUG}) {MUG}", line_of(MUG), f"what line {line_of(MUG)} says of it"),
        (MUG, f"{MUG}\n(not {MUG})", line_of(MUG) + 1, f"what line {line_of(MUG)} says of it"),
        (MUG, "MugType", line_of(MUG),
         "a fact '(PREDICATE NAME ...)', got 'mugtype'"),
        ("(:metric minimize (total-cost))\n)", "(:metric minimize (total-cost))\n", len(LINES),
         "')' for the '(' of line 2, got the end of the file"),
        ("(total-cost))\n)", "(total-cost))))", line_of("(:metric"), "got ')' without its '('"),
        ("(:metric", "(:metrics", line_of("(:metric"), "a section, one of :domain, :objects"),
        ("(:metric", "(:goal", line_of("(:metric"), "one :goal section, got a second one, after line "),
        ("(:init", "(:inits", line_of("(:init"), "a section"),
        ("(define (problem plan_trial)", "(define (domain x)", 2, "'(problem NAME)' after 'define'"),
        ("(define (problem plan_trial)", "(problem plan_trial)(define (problem x)", 2, "'(define (problem ...) ...)'"),
        ("agent1 - agent", "agent1 - (either agent)", 5, "an object's name, or '- TYPE'"),
        ("(:goal (and", "(:goal and (and", line_of("(:goal"), "one formula in '(:goal ...)'"),
    ],
)  # fmt: skip
def test_malformed_problems_name_file_line_and_what_was_expected(old, new, line, words):
    assert old in PROBLEM
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        read_problem(PROBLEM.replace(old, new, 1), "start.pddl")
    assert str(caught.value).startswith(f"start.pddl:{line}: expected ")


@pytest.mark.parametrize(
    "text", ["", "   ; nothing\n", "x", "(", ")", "()", "(define)", "(" * 100_000, "(define (problem x))"]
)
def test_no_problem_at_all(text):
    with pytest.raises(ValueError, match=r"^problem:\d+: expected "):
        read_problem(text)


def trial(
    root, name="pick_and_place_simple-Mug-None-Shelf-1/trial_T1", start=PROBLEM, trajectory=TRAJECTORY, game=None
):
    folder = root / name
    folder.mkdir(parents=True)
    if start is not None:
        (folder / "initial_state.pddl").write_text(start, encoding="utf-8")
    if trajectory is not None:
        (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    if game is not None:
        (folder / "game.tw-pddl").write_text(json.dumps(game), encoding="utf-8")
    return folder


def test_a_trial_before_the_engine_made_a_game_of_it(tmp_path):
    task = load_trial(trial(tmp_path))
    assert task.task_id == "pick_and_place_simple-Mug-None-Shelf-1/trial_T1"
    env = HouseholdEnv(task=task)
    text, _ = env.reset()
    # The second mug and the fridge are nowhere; the engine's rule numbers the first id of a kind highest.
    assert text.split("\n\n")[1:] == [
        "You are in the middle of a room. Looking quickly around you, you see a countertop 1, and a shelf 1.",
        "Your task is to: put a mug in shelf.",
    ]
    text = env.step("go to countertop 1")[0]
    assert text == "You arrive at countertop 1. On the countertop 1, you see a mug 2."
    for command in ("take mug 2 from countertop 1", "go to shelf 1", "move mug 2 to shelf 1"):
        _, reward, terminated, _, _ = env.step(command)
    assert (reward, terminated) == (1.0, True)


def write_game(root, task, name, solvable=True):
    trajectory = {"task_type": task.goal.task_type, "pddl_params": {}}
    game = game_of(task, "(define (domain alfred))", '"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}]')
    return trial(root, name, start=problem_of(task), trajectory=trajectory, game={**game, "solvable": solvable})


@pytest.fixture
def alfworld_data(tmp_path, monkeypatch):
    """A data folder as ALFWorld lays it out: two splits, all six types, and what the engine leaves out."""
    root = tmp_path / "alfworld"
    tasks = {}
    for number, task_type in enumerate(voc.TASK_TYPES):
        tasks[f"{task_type}-x/trial_{number}"] = draw_task(task_type, number, split="train")
    for name, task in tasks.items():
        write_game(root / "json_2.1.1" / "train", task, name)
    write_game(root / "json_2.1.1" / "valid_seen", draw_task("look_at_obj_in_light", 9), "look-y/trial_9")
    train = root / "json_2.1.1" / "train"
    write_game(train, draw_task("look_at_obj_in_light", 8), "look-y/trial_8", solvable=False)
    trial(train, "pick_and_place_with_movable_recep-y/trial_7")
    trial(train, "pick_and_place_simple-AppleSliced-y/trial_6")
    trial(train, "pick_three-y/trial_5", trajectory={"task_type": "pick_three", "pddl_params": {}})
    (train / "empty" / "trial_4").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(root))
    return tasks


def test_the_data_folder_is_played_in_the_order_of_its_paths(alfworld_data):
    env = gymnasium.make("rtmc/Household-v0", data="$ALFWORLD_DATA", split="train")
    told = [env.reset()[1]["task_id"] for _ in range(8)]
    names = sorted(alfworld_data)
    assert told == [*names, *names[:2]]
    assert len({env.reset(seed=seed)[1]["task_id"] for seed in range(20)}) > 3
    assert env.reset(options={"task": names[3]})[1]["task_id"] == names[3]
    both = HouseholdEnv(data="$ALFWORLD_DATA")
    assert len(both.source.games) == 7
    two = HouseholdEnv(data="$ALFWORLD_DATA", task_types=["look_at_obj_in_light"])
    assert [two.reset()[1]["task_id"].split("/")[1] for _ in range(3)] == ["trial_1", "trial_9", "trial_1"]


def test_a_game_read_from_the_folder_is_the_task_it_was_made_of(alfworld_data):
    for folder in find_games("$ALFWORLD_DATA", "train"):
        task = load_trial(folder)
        made = alfworld_data[task.task_id]
        assert (task.receptacles, task.items, task.goal, task.start) == (
            made.receptacles,
            made.items,
            made.goal,
            made.start,
        )
        (folder / "game.tw-pddl").unlink()
        if task.goal.task_type == "pick_and_place_simple":
            parameters = {"object_target": task.goal.object.title(), "parent_target": task.goal.receptacle}
            (folder / "traj_data.json").write_text(json.dumps({**TRAJECTORY, "pddl_params": parameters}))
            again = load_trial(folder)
            assert (again.items, again.goal.object) == (task.items, task.goal.object)


def test_folders_without_games_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    for data, split, words in [
        ("$ALFWORLD_DATA", None, "the variable in it is not set"),
        (tmp_path / "no", None, "is no folder"),
        (tmp_path, "train", r"train: holds no game of the types pick_and_place_simple, .*alfworld-generate"),
        (tmp_path, "valid_seen", r"has no folder valid_seen, nor json_\*/valid_seen"),
        (tmp_path, "tiny", "'tiny' is none of train, valid_seen, valid_unseen"),
    ]:
        with pytest.raises(ValueError, match=words):
            HouseholdEnv(data=data, split=split)


def test_ids_of_a_folder_get_near_names(alfworld_data):
    with pytest.raises(ValueError, match="did you mean 'look_at_obj_in_light-x/trial_1'"):
        HouseholdEnv(data="$ALFWORLD_DATA", split="train", task="look_at_obj_in_light-x/trial_11")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trajectory": None}, "and for want of it no traj_data.json either"),
        ({"start": None}, "no initial_state.pddl either"),
        (
            {"start": PROBLEM.replace("(openable", "(openabel")},
            rf"initial_state.pddl:{line_of('(openable')}: expected .*'openable'",
        ),
        (
            {"start": PROBLEM.replace("(inReceptacle ?o ?r)", "")},
            rf"initial_state.pddl:{line_of('(:goal')}: household goal: none of",
        ),
        ({"start": PROBLEM.replace("(inReceptacle ?o ?r)", "(inReceptacle ?o ?r) (isHot ?o)")}, "goal: none of"),
        ({"start": PROBLEM.replace("(exists (?o", "(forall (?o")}, "household goal: none of"),
        ({"trajectory": {"task_type": "juggle", "pddl_params": {}}}, "task_type is 'juggle'; wanted one of"),
        ({"trajectory": {**TRAJECTORY, "pddl_params": {"object_sliced": True}}}, "with a sliced object"),
        ({"trajectory": {**TRAJECTORY, "pddl_params": {}}}, r"no text for \['object_target', 'parent_target'\]"),
        ({"trajectory": [1]}, r"traj_data.json must be an object, got list: \[1\]"),
        ({"trajectory": {}}, "traj_data.json: wanted an object with the text `task_type`, got None"),
        ({"trajectory": {**TRAJECTORY, "pddl_params": [1]}}, "traj_data.json: pddl_params must be an object, got list"),
    ],
)
def test_malformed_trials(tmp_path, changes, words):
    folder = trial(tmp_path, **changes)
    with pytest.raises(ValueError, match=words):
        load_trial(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "wanted a JSON object, got list"),
        ("{}", r"\['pddl_problem', 'grammar'\] are missing"),
        ('{"pddl_problem": 3, "grammar": ""}', "pddl_problem must be text, got int"),
        ('{"pddl_problem": "(define", "grammar": ""}', r"game.tw-pddl, pddl_problem:1: expected '\)'"),
        (json.dumps({"pddl_problem": PROBLEM, "grammar": "x"}), "has no 'Your task is to"),
    ],
)
def test_malformed_games(tmp_path, text, words):
    path = tmp_path / "game.tw-pddl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_game(path)
    with pytest.raises(ValueError, match=words):
        HouseholdEnv(task=path)


# -- trials as they lie about ----------------------------------------------------------------------------------


def test_what_the_engine_allows_in_a_start_is_allowed(tmp_path):
    plain = load_trial(trial(tmp_path, "a/trial"))
    fridge = "(openable Fridge_bar__minus_03_dot_00)"
    told = PROBLEM.replace(MUG, f"{MUG}\n{MUG}").replace(fridge, f"{fridge} (not (opened Fridge_bar__minus_03_dot_00))")
    assert told.count(MUG) == 2
    assert replace(load_trial(trial(tmp_path, "b/trial", start=told)), task_id=plain.task_id) == plain


SHELF_AT = "(receptacleAtLocation Shelf_bar__plus_01_dot_00 loc_bar_1_bar_2_bar_0_bar_60)"
AGENT_AT = "(atLocation agent1 loc_bar_9_bar_2_bar_0_bar_60)"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (SHELF_AT, SHELF_AT + SHELF_AT.replace("_1_", "_2_"), line_of(SHELF_AT), "expected one receptacleAtLocation"),
        (AGENT_AT, "", line_of("(:init"), "expected one atLocation of the agent, got none"),
        ("(receptacleType Shelf_bar__plus_01_dot_00 ShelfType)", "", line_of(SHELF_AT), "expected one receptacleType"),
        (MUG, f"{MUG} (holdsAny agent1)", line_of(MUG), "expected 'holds' as well"),
    ],
)  # fmt: skip
def test_starts_that_contradict_themselves_name_file_and_line(tmp_path, old, new, line, words):
    folder = trial(tmp_path, start=PROBLEM.replace(old, new))
    with pytest.raises(ValueError, match=rf"initial_state.pddl:{line}: {words}"):
        load_trial(folder)
    task = draw_task("pick_and_place_simple", 1)
    game = {**game_of(task, "", '"Your task is to: UNKNOWN GOAL."'), "pddl_problem": PROBLEM.replace(old, new)}
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    with pytest.raises(ValueError, match=rf"game.tw-pddl, pddl_problem:{line}: {words}"):
        load_trial(folder)


def test_files_that_are_no_utf_8_name_file_and_line(tmp_path):
    folder = trial(tmp_path)
    for name, line in (("initial_state.pddl", 7), ("traj_data.json", 1)):
        path = folder / name
        kept = path.read_bytes()
        lines = kept.split(b"\n")
        lines[line - 1] += b" \xff"
        path.write_bytes(b"\n".join(lines))
        with pytest.raises(ValueError, match=rf"{name}:{line}: expected UTF-8, got the byte 0xff"):
            load_trial(folder)
        path.write_bytes(kept)


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"pddl_params": {"object_target": "Apple", "parent_target": "Shelf"}}, "'object_target': 'apple'"),
        ({"pddl_params": {"object_target": "Mug", "parent_target": "Desk"}}, "'parent_target': 'desk'"),
        ({"task_type": "pick_two_obj_and_place"}, "'task_type': 'pick_two_obj_and_place'"),
        ({"pddl_params": {"object_target": "", "parent_target": "Shelf"}}, r"no text for \['object_target'\]"),
        ({"pddl_params": {"object_target": "Mug", "parent_target": " "}}, r"no text for \['parent_target'\]"),
    ],
)
def test_a_sentence_that_tells_another_goal_is_refused(tmp_path, goal, words):
    with pytest.raises(ValueError, match=words) as caught:
        load_trial(trial(tmp_path, trajectory={**TRAJECTORY, **goal}))
    if "no text" not in words:
        assert re.search(rf"initial_state.pddl:{line_of('(:goal')} states .*'object_target': 'mug'", str(caught.value))
        assert "traj_data.json {" in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]", "", "[" * 200_000, '{"task_type": 3}'])
def test_a_malformed_trajectory_beside_a_good_game_is_named(alfworld_data, tmp_path, text):
    folder = find_games("$ALFWORLD_DATA", "train")[2]
    (folder / "traj_data.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{folder.name}/traj_data\.json"):
        HouseholdEnv(data="$ALFWORLD_DATA")


def test_games_that_the_engine_skips_are_skipped(alfworld_data):
    games = find_games("$ALFWORLD_DATA", "train")
    (games[0] / "traj_data.json").unlink()
    for folder, solvable in zip(games[1:5], (None, False, 0, "absent"), strict=True):
        game = json.loads((folder / "game.tw-pddl").read_text())
        game = {**game, "solvable": solvable} if solvable != "absent" else {k: game[k] for k in game if k != "solvable"}
        (folder / "game.tw-pddl").write_text(json.dumps(game))
    assert find_games("$ALFWORLD_DATA", "train") == games[5:]
    (games[1] / "game.tw-pddl").write_text("[" * 200_000)
    with pytest.raises(ValueError, match=r"game\.tw-pddl: no JSON that can be read: .* nested too deeply"):
        find_games("$ALFWORLD_DATA", "train")


def test_two_games_of_one_name_have_ids_of_their_own(tmp_path):
    first, second = draw_task("look_at_obj_in_light", 1), draw_task("pick_and_place_simple", 1)
    for split, task in (("train", first), ("valid_seen", second)):
        write_game(tmp_path / "json_2.1.1" / split, task, "room-1/trial_1")
    write_game(tmp_path / "json_2.1.1" / "train", first, "room-2/trial_1")
    env = HouseholdEnv(data=tmp_path)
    told = [env.reset()[1]["task_id"] for _ in range(3)]
    assert told == ["train/room-1/trial_1", "room-2/trial_1", "valid_seen/room-1/trial_1"]
    for task_id, task in zip(told, (first, first, second), strict=True):
        text, info = env.reset(options={"task": task_id})
        assert info["task_id"] == task_id
        assert task.goal.sentence in text
    with pytest.raises(ValueError, match=r"did you mean .*'train/room-1/trial_1'"):
        env.reset(options={"task": "room-1/trial_1"})


def test_a_game_that_is_written_anew_is_read_anew(tmp_path):
    first, second = (draw_task("pick_and_place_simple", seed) for seed in (1, 2))
    folder = write_game(tmp_path / "train", first, "room/trial")
    env = HouseholdEnv(data=tmp_path)
    assert env.reset()[0].endswith(f"Your task is to: {first.goal.sentence}.")
    game = game_of(second, "", '"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}]')
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    assert env.reset()[0] == HouseholdEnv(task=second).reset()[0]
