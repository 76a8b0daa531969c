"""The household world: find things in a room, clean, heat or cool them, and put them where they belong.

Read it in this order: `vocabulary` (what there is), `task` (a room and a goal), `world` (the rules), `texts` (the
engine's words), `knowledge` (what the agent knows: state keys), `expert` (shortest plans), `splits` and
`generate` (tasks by number), `records` (tasks from the engine's files), `env` (the gymnasium environment).
"""

from rtmc.gymenvs.household.env import HouseholdEnv, Snapshot
from rtmc.gymenvs.household.generate import draw_task, generate_task
from rtmc.gymenvs.household.records import load_game
from rtmc.gymenvs.household.splits import SPLITS, Knobs
from rtmc.gymenvs.household.task import Goal, HouseholdTask, Item, Receptacle

__all__ = [
    "SPLITS",
    "Goal",
    "HouseholdEnv",
    "HouseholdTask",
    "Item",
    "Knobs",
    "Receptacle",
    "Snapshot",
    "draw_task",
    "generate_task",
    "load_game",
]
