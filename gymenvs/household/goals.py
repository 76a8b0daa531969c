"""The goal that a PDDL formula states: one of the six task types', told by what the formula means.

A goal says that certain things exist: `and`, `exists` and atoms, and for a pair `(not (= ?o1 ?o2))`. How these are
nested, ordered and named does not matter, which variable stands where does. So a formula is read as its variables and
the atoms on them, and compared with what each task type says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

from rtmc.gymenvs.household import vocabulary
from rtmc.gymenvs.household.pddl import Form, read_formula
from rtmc.gymenvs.household.task import Goal

# An atom on variables `type number`, e.g. ("inreceptacle", "object 0", "receptacle 0").
Atom = tuple[str, ...]
_LIT = [
    ("toggleable", "object 1"), ("istoggled", "object 1"), ("inreceptacle", "object 1", "receptacle 0"),
    ("receptacleatlocation", "receptacle 0", "location 0"), ("atlocation", "agent 0", "location 0"),
    ("holds", "agent 0", "object 0"),
]  # fmt: skip
_TYPES = ("agent", "location", "object", "receptacle")


class _Unlike(Exception):
    """The formula says something that no goal of ours does."""


def read_goal(formula: str, sentence: str) -> Goal:
    """The goal that a PDDL formula states; `sentence` tells it in words.

    Raises:
        ValueError: the formula is none of the six task types', nor one of them on sliced things.
    """
    try:
        atoms = set(_atoms(read_formula(formula, "goal"), {}, dict.fromkeys(_TYPES, 0)))
        return _goal_of(atoms, sentence)
    except _Unlike as error:
        known = ", ".join(vocabulary.TASK_TYPES)
        raise ValueError(f"household goal: none of {known}: {error}; got {formula!r}") from None


def _atoms(form: Form, bound: Mapping[str, str], counts: dict[str, int]) -> Iterator[Atom]:
    """The atoms of a formula, each variable under a name of its own. There is one agent, whatever it is called."""
    parts = form.parts[1:]
    if form.head == "and":
        for part in parts:
            yield from _atoms(part, bound, counts)
    elif form.head == "exists" and len(parts) == 2:
        yield from _atoms(parts[1], {**bound, **_bind(parts[0], counts)}, counts)
    elif form.head == "not" and len(parts) == 1 and parts[0].head == "=":
        _, *names = _atom(parts[0], bound)
        yield ("differ", *sorted(names))
    elif form.head in ("exists", "not", "or", "forall", "imply", "when", "=") or form.head is None:
        raise _Unlike(f"it has {str(form)[:60]!r}")
    else:
        yield _atom(form, bound)


def _atom(form: Form, bound: Mapping[str, str]) -> Atom:
    names = []
    for part in form.parts[1:]:
        if part.symbol is None:
            raise _Unlike(f"it has {str(form)[:60]!r}")
        if part.symbol.startswith("?") and part.symbol not in bound:
            raise _Unlike(f"{part.symbol} in {form} is no variable there")
        names.append(bound.get(part.symbol, part.symbol))
    return (str(form.head), *names)


def _bind(form: Form, counts: dict[str, int]) -> dict[str, str]:
    """The variables of `(?a ?b - TYPE ?c - TYPE ...)`."""
    bound: dict[str, str] = {}
    waiting: list[str] = []
    symbols = [part.symbol for part in form.parts]
    for k, symbol in enumerate(symbols):
        if symbol is None or (symbol == "-" and (k + 1 == len(symbols) or not waiting)):
            raise _Unlike(f"it has the variables {form}")
        if symbol.startswith("?"):
            waiting.append(symbol)
        elif symbol != "-":
            if symbol not in counts or k == 0 or symbols[k - 1] != "-":
                raise _Unlike(f"it has variables of the type {symbol!r}")
            for name in waiting:
                bound[name] = f"{symbol} {0 if symbol == 'agent' else counts[symbol]}"
                counts[symbol] += 1
            waiting = []
    if waiting:
        raise _Unlike(f"{', '.join(waiting)} has no type")
    return bound


def _goal_of(atoms: set[Atom], sentence: str) -> Goal:
    objects = {atom[1]: atom[2].removesuffix("type") for atom in atoms if atom[0] == "objecttype" and len(atom) == 3}
    receptacles = [atom[2].removesuffix("type") for atom in atoms if atom[0] == "receptacletype" and len(atom) == 3]
    if not 1 <= len(objects) <= 2:
        raise _Unlike(f"it tells the kind of {len(objects)} objects")
    for one, *rest in permutations(sorted(objects)):
        for task_type in vocabulary.TASK_TYPES:
            if task_type == "look_at_obj_in_light":
                if receptacles or len(rest) != 1:
                    continue
                goal = Goal(task_type, objects[one], sentence, lamp=objects[rest[0]])
            elif len(receptacles) != 1:
                continue
            else:
                goal = Goal(task_type, objects[one], sentence, receptacles[0])
            for sliced in (False, True):
                if atoms == {_renamed(atom, [one, *rest]) for atom in _meaning(goal, sliced)}:
                    return Goal(task_type, goal.object, sentence, goal.receptacle, goal.lamp, sliced)
    raise _Unlike("its atoms are no goal's")


def _renamed(atom: Atom, objects: list[str]) -> Atom:
    """The atom with our objects' names replaced by the formula's."""
    names = {f"object {k}": name for k, name in enumerate(objects)}
    head, *arguments = (names.get(part, part) for part in atom)
    return (head, *sorted(arguments)) if head == "differ" else (head, *arguments)


def _meaning(goal: Goal, sliced: bool) -> list[Atom]:
    """What a goal says: object 0 is what it is about, object 1 the second of a pair, or the lamp."""
    if goal.lamp is not None:
        atoms: list[Atom] = [*_LIT, ("objecttype", "object 1", f"{goal.lamp}type")]
        about = ["object 0"]
    else:
        pair = goal.task_type == "pick_two_obj_and_place"
        about = ["object 0", "object 1"] if pair else ["object 0"]
        atoms = [("receptacletype", "receptacle 0", f"{goal.receptacle}type")]
        atoms += [("inreceptacle", one, "receptacle 0") for one in about]
        atoms += [("differ", *about)] if pair else []
    for one in about:
        atoms.append(("objecttype", one, f"{goal.object}type"))
        if goal.task_type in vocabulary.TREATMENTS:
            state, trait, _ = vocabulary.TREATMENTS[goal.task_type]
            atoms += [(trait, one), (f"is{state}", one)]
        if sliced:
            atoms += [("sliceable", one), ("issliced", one)]
    return atoms
