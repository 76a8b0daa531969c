"""The household world: find things in a room, clean, heat or cool them, and put them where they belong.

Read it in this order: `vocabulary` (what there is), `fields` and `task` (a room and a goal, and their JSON), `world`
(the rules), `facts`, `texts` and `answers` (what the engine says), `knowledge` (what the agent knows), `expert`
(shortest plans), `splits` and `generate` (tasks by number), `pddl`, `goals`, `records` and `datafolder` (tasks from the
engine's files), `sources` (an environment's order of tasks), `commands` (free wording), `env` (the gymnasium
environment), `engine` (the real engine behind the same interface, where it is installed).
"""

from rtmc.gymenvs.household.datafolder import find_games, load_trial
from rtmc.gymenvs.household.engine import EngineEnv
from rtmc.gymenvs.household.env import HouseholdEnv, Snapshot
from rtmc.gymenvs.household.generate import draw_task, draw_with_plan, generate_task
from rtmc.gymenvs.household.records import load_game
from rtmc.gymenvs.household.splits import SPLITS, Knobs
from rtmc.gymenvs.household.task import Goal, HouseholdTask, Item, Receptacle

__all__ = [
    "SPLITS",
    "EngineEnv",
    "Goal",
    "HouseholdEnv",
    "HouseholdTask",
    "Item",
    "Knobs",
    "Receptacle",
    "Snapshot",
    "draw_task",
    "draw_with_plan",
    "find_games",
    "generate_task",
    "load_game",
    "load_trial",
]
