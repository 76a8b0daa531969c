"""Household: what the agent is said to know is what texts and commands told it, by a second account kept here."""

import json
import random
import re

import pytest

from rtmc.gymenvs.household import Goal, HouseholdEnv, HouseholdTask, Item, Receptacle, draw_task
from rtmc.gymenvs.household import vocabulary as voc

PART = re.compile(r"([a-z]+ \d+)(?: \((?:open|closed)\))?: ((?:[^.:])*)\.")
SHELF = {
    "task_id": "shelves",
    "goal": Goal("pick_and_place_simple", "mug", "put some mug on desk", "desk"),
    "receptacles": (
        Receptacle("desk 1", "desk", "loc 2"),
        Receptacle("fridge 1", "fridge", "loc 3", openable=True),
        Receptacle("shelf 1", "shelf", "loc 1"),
        Receptacle("shelf 2", "shelf", "loc 1"),
    ),
    "items": (
        Item("book 1", "book", ("pickupable",), ("desk 1",), ("loc 2",)),
        Item("egg 1", "egg", voc.traits_of("egg"), ("fridge 1",), ("loc 3",), ("sliced",)),
        Item("egg 2", "egg", voc.traits_of("egg"), ("desk 1",), ("loc 2",), ("cool", "hot", "sliced")),
        Item("lamp 1", "lamp", ("toggleable",), ("fridge 1",), ("loc 3",), ("toggled",)),
        Item("mug 1", "mug", voc.traits_of("mug"), ("shelf 2",), ("loc 1",), ("clean",)),
        Item("spoon 1", "spoon", voc.traits_of("spoon"), ("shelf 1",), ("loc 1",)),
    ),
    "start": "loc 9",
    "accepts": (("desk", ("egg", "mug")), ("shelf", ("book", "mug", "spoon")), ("fridge", ("egg", "mug"))),
}


class Heard:
    """What the texts and commands of an episode have told: pairs (thing, receptacle), and pairs (thing, state)."""

    def __init__(self):
        self.lies, self.states, self.near = set(), set(), set()

    def hear(self, command, text, commands, here):
        for name, contents in re.findall(r"On the ([a-z]+ \d+), you see (.*?)\.", text):
            self.lies |= {(thing, name) for thing in re.findall(r"\ba ([a-z]+ \d+)", contents)}
        for name, contents in re.findall(r"The ([a-z]+ \d+) is open. In it, you see (.*?)\.", text):
            self.lies |= {(thing, name) for thing in re.findall(r"\ba ([a-z]+ \d+)", contents)}
        done = re.match(r"You move the ([a-z]+ \d+) to the ([a-z]+ \d+)", text)
        self.lies |= {done.groups()} if done else set()
        for verb, state in (("heat", "hot"), ("cool", "cool"), ("clean", "clean"), ("sliced", "sliced")):
            done = re.match(rf"You {verb} the ([a-z]+ \d+)", text)
            self.states |= {(done[1], state)} if done else set()
        examined = re.match(r"This is a ((?:hot|cool|cold|clean|and|sliced| )*)([a-z]+ \d+)\.", text)
        if examined:
            words = examined[1].replace("cold", "cool").split()
            self.states |= {(examined[2], word) for word in words if word != "and"}
        lit = re.match(r"You turn on the ([a-z]+ \d+)|This ([a-z]+ \d+) is on", text)
        self.states |= {(lit[1] or lit[2], "on")} if lit else set()
        for one in commands:
            if found := re.match(r"take (.*) from (.*)", one):
                self.lies.add(found.groups())
            if found := re.match(r"(?:use|examine) (.*)", one):
                # Where one receptacle alone stands, what is used or seen there is in it.
                self.near |= {(found[1], r) for r in here}
                self.lies |= {(found[1], here[0])} if len(here) == 1 else set()

    def check(self, text):
        seen, now = text.split("\n")[2:]
        for name, contents in PART.findall(seen):
            if contents.startswith("at "):
                assert all((name, r) in self.near for r in contents.removeprefix("at ").split(" or ")), text
            elif contents not in ("nothing", "closed", "open"):
                for thing in re.sub(r" \([^)]*\)", "", contents).split(", "):
                    assert (thing, name) in self.lies, f"{thing} in {name} was never told: {text}"
        for thing, states in re.findall(r"([a-z]+ \d+) \((?!open|closed)([a-z, ]+)\)", text):
            assert all((thing, state) in self.states for state in states.split(", ")), text
        for thing, state in re.findall(r"\. ([a-z]+ \d+) is (on|sliced)", now):
            assert (thing, state) in self.states, text


def here(text):
    found = re.search(r"You are at (.*?), holding", text)
    return found[1].split(" and ") if found else []


def wander(task, rules, seed, turns=40):
    env = HouseholdEnv(task=task, rules=rules, observation="feedback", state_key="knowledge", max_turns=10**6)
    text, info = env.reset()
    heard, rng, told = Heard(), random.Random(seed), set()
    heard.hear(None, text, info["admissible_commands"], here(env.describe()))
    for _ in range(turns):
        heard.check(env.describe())
        told.add((info["state_key"], env.describe(), tuple(info["admissible_commands"])))
        command = rng.choice(info["admissible_commands"])
        text, _, _, _, info = env.step(command)
        heard.hear(command, text, info["admissible_commands"], here(env.describe()))
    return told


def rooms():
    yield HouseholdTask(**SHELF)
    yield HouseholdTask(**{**SHELF, "start": "loc 1"})
    for task_type in voc.TASK_TYPES:
        for seed in range(4):
            yield draw_task(task_type, seed, shared=0.6, at_start=1.0, choices=0, closed=0.6)
    data = json.loads(draw_task("look_at_obj_in_light", 1, shared=0.9, split="train").to_json())
    for k, item in enumerate(data["items"]):
        item["states"] = [["hot"], ["clean", "sliced"], ["toggled"], ["cool"], []][k % 5]
    yield HouseholdTask.from_json(data)


@pytest.mark.parametrize("rules", ["alfworld", "plain"])
def test_nothing_is_known_that_was_not_told(rules):
    for task in rooms():
        texts = {}
        for seed in range(6):
            for key, text, commands in wander(task, rules, seed):
                # Equal keys of one task: the same commands, and the same description.
                assert texts.setdefault(key, (text, commands)) == (text, commands)


def told_by(env, *commands):
    for command in commands:
        info = env.step(command)[4]
        assert info["valid"], command
    return env.describe().split("\n")[2:]


def test_a_full_hand_tells_nothing_of_what_stands_beside():
    env = HouseholdEnv(task=HouseholdTask(**SHELF))
    env.reset()
    seen, now = told_by(env, "go to desk 1", "take book 1 from desk 1", "go to shelf 1")
    assert seen == "Seen: desk 1: egg 2. shelf 1: spoon 1."
    assert now == "You are at shelf 1 and shelf 2, holding book 1."
    # With the hand empty the commands name what can be taken.
    seen, _ = told_by(env, "move book 1 to shelf 1")
    assert seen == "Seen: desk 1: egg 2. shelf 1: book 1, spoon 1. shelf 2: mug 1."


def test_states_at_the_start_are_known_once_told():
    env = HouseholdEnv(task=HouseholdTask(**SHELF))
    env.reset()
    seen, now = told_by(env, "go to desk 1")
    assert (seen, now) == ("Seen: desk 1: book 1, egg 2.", "You are at desk 1, holding nothing.")
    assert told_by(env, "take egg 2 from desk 1")[1].endswith("holding egg 2.")
    assert env.step("examine egg 2")[0] == "This is a hot sliced egg 2."
    assert told_by(env)[1].endswith("holding egg 2 (hot, sliced).")
    seen, now = told_by(env, "go to fridge 1")
    assert "lamp 1" not in now
    assert seen.endswith("fridge 1: closed. lamp 1: at fridge 1.")
    seen, now = told_by(env, "open fridge 1", "use lamp 1")
    assert seen.endswith("fridge 1 (open): egg 1, lamp 1.")
    assert now.endswith(" lamp 1 is on.")
    assert told_by(env, "move egg 2 to fridge 1")[0].endswith("fridge 1 (open): egg 1, egg 2 (hot, sliced), lamp 1.")


def test_a_lamp_among_several_receptacles_is_near_them():
    lamp = Item("lamp 1", "lamp", ("toggleable",), ("shelf 2",), ("loc 1",))
    env = HouseholdEnv(task=HouseholdTask(**{**SHELF, "items": (lamp,)}))
    env.reset()
    assert told_by(env, "go to shelf 1")[0] == "Seen: shelf 1: nothing. lamp 1: at shelf 1 or shelf 2."
    assert told_by(env, "go to desk 1")[0] == "Seen: desk 1: nothing. shelf 1: nothing. lamp 1: at shelf 1 or shelf 2."
    assert told_by(env, "go to shelf 2")[0] == "Seen: desk 1: nothing. shelf 1: nothing. shelf 2: lamp 1."
