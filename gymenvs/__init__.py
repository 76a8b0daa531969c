"""Gymnasium environments for language-model agents. Importing this package registers their ids.

    env = gymnasium.make("rtmc.gymenvs:rtmc/Household-v0")

Observations and actions are text (`rtmc.gymenvs.spaces.UnicodeText`). No TimeLimit wrapper is used: the turn limit is
counted inside the environment, so that a snapshot carries it. With `AsyncVectorEnv` pass `shared_memory=False`.
"""

from gymnasium.envs.registration import register

register(id="rtmc/Household-v0", entry_point="rtmc.gymenvs.household.env:HouseholdEnv")
register(id="rtmc/SearchQA-v0", entry_point="rtmc.gymenvs.qa.env:SearchQAEnv")
register(id="rtmc/SWE-v0", entry_point="rtmc.gymenvs.swe.env:SWEEnv")
