"""`household`: the world as the agent can know it from the text (ALFWorld), in no order.

Facts: where the agent stands, what it holds, what was seen in or on each place, which doors are open or closed, which
things are hot, cool, clean, sliced or switched on. Only the agent changes the room, so what was seen stays true until
it acts on it. State key: `at X|holding O|PLACE (open): A, B|THING is hot|...`.
Action key: the command in lower case; `put O in/on R` of older engines is `move O to R`; thoughts are `think`.

What this is not: nothing unseen is inferred, and a place that shares a spot with another is known once it is named.
Source of the sentences: ALFWorld's engine, versions 0.2 to 0.4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rtmc.signatures.keys import bounded

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

_NAME = r"[a-z][a-z ]{0,60} \d{1,4}"
_LABEL = re.compile(r"<action>(.*?)</action>|^\s*(?:Action(?: \d+)?|ACTION)[ \t]*:[ \t]*(.*)$", re.S | re.M)
_THINK = re.compile(r"think\b|thought\b")
_PUT = re.compile(rf"(?:put|place) (?P<thing>{_NAME}) (?:in/on|in|on|into|onto) (?P<place>{_NAME})$")
_ARRIVED = re.compile(rf"You arrive at (?:loc \d+|(?P<place>{_NAME}))\.", re.I)
_DOOR = re.compile(rf"[Tt]he ({_NAME}) is (open|closed)\.")
_INSIDE = re.compile(rf"(?:(?:On|In) the ({_NAME})|(?<=\. )(?:In it)|\AIn it), you see ([^.]*)\.")
_OPENED = re.compile(rf"You (open|close) the ({_NAME})\.")
_TOOK = re.compile(rf"You (?:pick up|take) the ({_NAME}) from the ({_NAME})\.")
_MOVED = re.compile(rf"You (?:move|put|place) the ({_NAME}) (?:to|in/on|in|on) the ({_NAME})\.")
_TREATED = re.compile(rf"You (heat|cool|clean) the ({_NAME}) (?:using|with) the {_NAME}\.")
_SWITCHED = re.compile(rf"You turn (on|off) the ({_NAME})\.")
_SLICED = re.compile(rf"You sliced? the ({_NAME}) with the {_NAME}\.")
_CARRYING = re.compile(r"You are carrying: ([^.]*)\.|You are (not carrying anything)\.")
_STATES = re.compile(rf"This is an? ((?:(?:hot|cool|cold|clean|sliced)(?: and )?)+) ?({_NAME})\.")
_LAMP = re.compile(rf"This ({_NAME}) is (on|off)\.")
_TREATMENTS = {"heat": ("hot", "cool"), "cool": ("cool", "hot"), "clean": ("clean", "")}


class HouseholdSignature:
    """Signatures of text agents in ALFWorld's households."""

    def action(self, step: Step) -> str:
        """The command in its normal spelling; `think` for a thought or no command."""
        return command_of(step)

    def state(self, rollout: Rollout) -> HouseholdState:
        """A state before the first step: nothing but the list of places is known, which is the task's own."""
        return HouseholdState()


def command_of(step: Step) -> str:
    """The command that a step gives, in the newest engine's spelling."""
    text = step.action
    if step.tool_calls:
        function = step.tool_calls[0].get("function", step.tool_calls[0])
        arguments = function.get("arguments", function.get("input")) if isinstance(function, dict) else None
        if isinstance(arguments, dict):
            text = next((v for v in arguments.values() if isinstance(v, str)), text)
        elif isinstance(arguments, str):
            text = next(iter(re.findall(r":\s*\"([^\"]*)\"", arguments)), text)
    labelled = _LABEL.findall(text)
    if labelled:
        text = labelled[-1][0] or labelled[-1][1]
    line = next((line for line in text.strip().splitlines() if line.strip()), "").strip().lstrip(">").strip().lower()
    line = " ".join(line.rstrip(".").split())
    if not line or _THINK.match(line):
        return "think"
    put = _PUT.match(line)
    return bounded(f"move {put['thing']} to {put['place']}" if put else line)


class HouseholdState:
    """Facts, changed by what the engine answers."""

    def __init__(self) -> None:
        self.place = ""
        self.held: set[str] = set()
        self.contents: dict[str, set[str]] = {}
        self.doors: dict[str, str] = {}
        self.states: dict[str, set[str]] = {}

    def key(self) -> str:
        """The facts, sorted."""
        facts = [f"at {self.place}"] if self.place else []
        facts += [f"holding {', '.join(_sorted(self.held))}"] if self.held else []
        for place in _sorted({*self.contents, *self.doors}):
            door = f" ({self.doors[place]})" if place in self.doors else ""
            seen = f": {', '.join(_sorted(self.contents[place])) or 'nothing'}" if place in self.contents else ""
            facts.append(f"{place}{door}{seen}")
        facts += [
            f"{thing} is {', '.join(sorted(self.states[thing]))}"
            for thing in _sorted(self.states)
            if self.states[thing]
        ]
        return bounded("|".join(facts))

    def update(self, step: Step) -> None:
        """Learn from the answer to a command."""
        answer, command = step.answer, command_of(step)
        if not answer or command == "think" or answer.lstrip().startswith("Nothing happens"):
            return
        text = answer[:20_000].strip()
        went = re.fullmatch(rf"(?:go to|goto) ({_NAME})", command)
        arrived = _ARRIVED.search(text)
        if went and (arrived or _INSIDE.search(text) or _DOOR.search(text)):
            self.place = went[1]  # older engines do not say that one has arrived
        elif arrived and arrived["place"]:
            self.place = arrived["place"].lower()
        self._saw(text)
        for verb, place in _OPENED.findall(text):
            self.doors[place] = "open" if verb == "open" else "closed"
        for thing, place in _TOOK.findall(text):
            self.contents.setdefault(place, set()).discard(thing)
            self.held = {thing}
        for thing, place in _MOVED.findall(text):
            self.held.discard(thing)
            self.contents.setdefault(place, set()).add(thing)
        for verb, thing in _TREATED.findall(text):
            gained, lost = _TREATMENTS[verb]
            self._gain(thing, gained, lost)
        for state, thing in _SWITCHED.findall(text):
            self._gain(thing, state, "off" if state == "on" else "on")
        for thing in _SLICED.findall(text):
            self._gain(thing, "sliced", "")
        self._examined(text)

    def _saw(self, text: str) -> None:
        for place, door in _DOOR.findall(text):
            self.doors[place] = door
        last = ""
        for match in re.finditer(rf"{_DOOR.pattern}|{_INSIDE.pattern}", text):
            if match[1]:
                last = match[1]
                continue
            place = match[3] or last
            if place:
                self.contents[place] = _things(match[4])

    def _examined(self, text: str) -> None:
        carrying = _CARRYING.search(text)
        if carrying:
            self.held = set() if carrying[2] else _things(carrying[1])
        for states, thing in _STATES.findall(text):
            for state in states.replace(" and ", " ").split():
                self._gain(thing, "cool" if state == "cold" else state, "")
        for thing, state in _LAMP.findall(text):
            self._gain(thing, state, "off" if state == "on" else "on")

    def _gain(self, thing: str, state: str, lost: str) -> None:
        states = self.states.setdefault(thing, set())
        states.discard(lost)
        states.add(state)


def _things(text: str) -> set[str]:
    """`a cup 2, and a tomato 1` -> {"cup 2", "tomato 1"}; `nothing` -> none."""
    return set(re.findall(rf"\b(?:an?|the) ({_NAME})", text))


def _sorted(names: object) -> list[str]:
    """By kind, then by number: drawer 2 before drawer 10."""

    def parts(name: str) -> tuple[str, int]:
        kind, _, number = name.rpartition(" ")
        return kind, int(number) if number.isdigit() else 0

    return sorted(names, key=parts)  # type: ignore[call-overload]  # any collection of names
