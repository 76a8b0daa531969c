"""The engine's sentences, word for word (ALFWorld 0.4.2). Names in, text out; no rule of the game stands here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NOTHING_HAPPENS = "Nothing happens."
EMPTY_HANDED = "You are not carrying anything."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(parts: Sequence[str]) -> str:
    """`nothing`, `x`, `x, and y`, `x, y, and z`."""
    if not parts:
        return "nothing"
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


def things(names: Sequence[str]) -> str:
    """The list with the engine's article, which is always `a`."""
    return listing([f"a {name}" for name in names])


def around(names: Sequence[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {things(names)}."


def facing(receptacles: Sequence[str], beside: Sequence[str]) -> str:
    return f"You are facing the {listing(receptacles)}. Next to it, you see {things(beside)}."


def intro(surroundings: str, sentence: str) -> str:
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{surroundings}\n\nYour task is to: {sentence}."


def receptacle(name: str, contents: Sequence[str], openable: bool, opened: bool) -> str:
    if openable and not opened:
        return f"The {name} is closed."
    if openable:
        return f"The {name} is open. In it, you see {things(contents)}."
    return f"On the {name}, you see {things(contents)}."


def item(name: str, states: Collection[str], vessel: bool, contents: Sequence[str] = ()) -> str:
    """What `examine` says of a held thing: the first rule that applies wins, and a vessel hides its states."""
    if vessel:
        return f"This is a normal {name}. In it, you see {things(contents)}."
    sliced = "sliced " if "sliced" in states else ""
    if "clean" in states:
        warmth = "hot and " if "hot" in states else "cool and " if "cool" in states else ""
        return f"This is a {warmth}clean {sliced}{name}."
    if "hot" in states:
        return f"This is a hot {sliced}{name}."
    if "cool" in states:
        # The engine says "cold", but "cool" once the thing is sliced.
        return f"This is a {'cool sliced' if sliced else 'cold'} {name}."
    if "toggled" in states:
        return f"This {name} is on."
    if sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."
