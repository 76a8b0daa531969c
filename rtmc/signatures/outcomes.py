"""Which commands of a command line ran, and how each ended, told from the one answer and the one exit status.

A command's own complaint, a traceback through the script that it runs, and the summary of a test run say which one
failed. The exit status is the last command's: 0 says that all of a chain `a && b && c` that ends the line succeeded,
another that one of them failed and those after it did not run. Where nothing says which, it is the last of those whose
failure is nothing unusual (a test run, a script, a search) rather than an edit.

What this is not: nothing is run. What is not told is left open, and a command that nothing holds back is taken as run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rtmc.signatures import answers, refusals
from rtmc.signatures.effects import CLASSES, Effect, Understood, Unit
from rtmc.signatures.keys import word_set

# Programs whose silence says that they succeeded.
_SURE = word_set("cd pushd echo printf true : export set source . mkdir cat head tail less nl ls wc")
# The status of these is a finding rather than a fault.
_FINDERS = word_set("grep egrep fgrep rg ag ack diff cmp test [ [[ which find pytest")
_FALLIBLE = ("test", "execute", "install", "search")


@dataclass(slots=True)
class Outcome:
    """How a unit ended.

    ran      False = it was held back
    ok       True / False = it succeeded / failed, None = not told
    named    paths that a complaint names; where there are any, only what was done to those failed
    status   the exit status, where it is known to be this unit's
    hidden   what it would say of a failure goes into a file
    """

    ran: bool = True
    ok: bool | None = None
    named: set[str] = field(default_factory=set)
    status: int | None = None
    hidden: bool = False

    def failed(self, effect: Effect) -> bool:
        """Whether what the effect did failed."""
        return self.ok is False and (not self.named or effect.path in self.named)


_NOTHING_RAN = re.compile(r"(?:sh: |eval: )[^\n]*syntax error near unexpected")
_TOOL_FAILED = re.compile(r"Error executing command:|\A\s*(?:Error: |<(?:tool_use_)?error>)")
# What a program says under its name without complaining.
_CALM = re.compile(r"Nothing to be done|is up to date|Entering directory|Leaving directory|[Ww]arning|[Nn]ote: ")


def outcomes(understood: Understood, text: str | None, status: int | None) -> list[Outcome]:
    """The outcome of each unit of a command line; `text` and `status` are the answer's, None where there is none."""
    units = understood.units
    effects: list[list[Effect]] = [[] for _ in units]
    for effect in understood.effects:
        if effect.unit >= 0:
            effects[effect.unit].append(effect)
    found = [Outcome(hidden="2" in unit.hides) for unit in units]
    if text is None:
        return found
    if refusals.not_run(text):
        for outcome in found:
            outcome.ok = False
        return found
    if status is None and _TOOL_FAILED.search(text):
        status = 1
    chain = _chain(units)
    _complained(units, effects, found, text)
    _crashed(units, effects, found, text)
    _tested(units, effects, found, text)
    halted = refusals.stopped(text)
    if halted or refusals.killed(text):
        place = _longest(effects, found)
        found[place : place + 1] = [Outcome(ok=False, status=status)]
        status = None
        if halted:
            _walk(units, effects, found)
            for outcome in found[place + 1 :]:
                outcome.ran = False
            return found
    if status == 0:
        for place in chain:
            tested = any(e.category == "test" for e in effects[place])
            if not units[place].negated and not units[place].piped and not (tested and found[place].ok is False):
                found[place] = Outcome(ok=True, status=0)
    _walk(units, effects, found)
    if status not in (None, 0):
        _blame(units, effects, found, [place for place in chain if found[place].ran], int(status or 0))
        _walk(units, effects, found)
    return found


def _longest(effects: Sequence[list[Effect]], found: Sequence[Outcome]) -> int:
    """The unit that was stopped, of those that do not tell how they ended: the first that runs a program, else the
    first that does anything."""

    def first(categories: Sequence[str]) -> int | None:
        told = (
            place
            for place, there in enumerate(effects)
            if found[place].ok is None and any(e.category in categories and not e.aside for e in there)
        )
        return next(told, None)

    place = first(_FALLIBLE)
    place = first(CLASSES) if place is None else place
    return max(len(found) - 1, 0) if place is None else place


def _chain(units: Sequence[Unit]) -> list[int]:
    """The units that the exit status speaks of: the last one, and those before it that are joined by `&&`."""
    chain: list[int] = []
    for place in range(len(units) - 1, -1, -1):
        chain.insert(0, place)
        if units[place].join != "&&":
            break
    # Behind `||` a status of 0 may be the first side's.
    return [] if chain and units[chain[0]].join == "||" else chain


def _walk(units: Sequence[Unit], effects: Sequence[list[Effect]], found: list[Outcome]) -> None:
    """Which units ran, by the shell's rules for `&&` and `||`."""
    before: bool | None = None
    for place, unit in enumerate(units):
        outcome = found[place]
        led = unit.leader < 0 or found[unit.leader].ran
        held = (unit.join == "&&" and before is False) or (unit.join == "||" and before is True)
        outcome.ran = led and not held
        if not outcome.ran:
            continue
        before = outcome.ok
        if before is None and _silent(unit, effects[place]):
            before = True
        if unit.negated and before is not None:
            before = not before


def _silent(unit: Unit, effects: list[Effect]) -> bool:
    """Whether the unit's failure would have shown."""
    if unit.piped or "2" in unit.hides:
        return False
    writes = bool(effects) and all(e.category in ("modify", "create", "fileop") for e in effects if not e.aside)
    return (writes and any(not e.aside for e in effects)) or (bool(unit.names) and unit.names[0] in _SURE)


def _complained(units: Sequence[Unit], effects: Sequence[list[Effect]], found: list[Outcome], text: str) -> None:
    if _NOTHING_RAN.search(text):
        for outcome in found:
            outcome.ok = False
        return
    unknown = answers.unknown_commands(text)
    told = answers.complaints(text)
    patching, rejected = answers.patched_files(text)
    for place, unit in enumerate(units):
        if unit.names[:1] in (("false",), ("true",), (":",)):
            found[place].ok = unit.names[0] != "false"
            continue
        if unknown & set(unit.names):
            found[place].ok = False
            continue
        ours = [(name, line) for name, line in told if _is_ours(name, line, unit, effects[place])]
        if not ours:
            continue
        paths = {e.path: e for e in effects[place] if e.path}
        named = {path for path in paths if any(_mentions(line, path) for _, line in ours)}
        rivals = [k for k, other in enumerate(units) if k != place and set(other.names) & set(unit.names)]
        if rivals and not named and unit.folder is None:
            # Another one of the same name may be meant: that which the complaint names, else the first.
            theirs = any(_mentions(line, e.path or "") for k in rivals for e in effects[k] for _, line in ours)
            if theirs or min(rivals) < place:
                continue
        if unit.folder is not None and not any(_mentions(line, unit.folder) for _, line in ours):
            continue
        found[place].ok = False
        found[place].named = named if len(paths) > 1 else set()
    if rejected or "*** " in text or "can't find file to patch" in text or "verification failed" in text:
        for place, unit in enumerate(units):
            if {"patch", "apply_patch", "git"} & set(unit.names) and any(_patches(e) for e in effects[place]):
                everything = not rejected or rejected >= set(patching)
                refused = rejected or _PATCH_REFUSED.search(text)
                if refused:
                    found[place].ok = False
                    if not everything:
                        found[place].named = {
                            e.path for e in effects[place] if e.path and any(_mentions(r, e.path) for r in rejected)
                        } or {"-"}


_PATCH_REFUSED = re.compile(r"\*\*\*\* |can't find file to patch|verification failed")


def _patches(effect: Effect) -> bool:
    return effect.category in ("modify", "create", "fileop")


def _is_ours(name: str, line: str, unit: Unit, effects: list[Effect]) -> bool:
    """Whether a complaint is of one of the unit's programs, or the shell's about a file that it writes or enters."""
    if name in unit.names and not _CALM.search(line):
        # A viewer shows text that may look like a complaint.
        looks = all(e.category in ("view", "search") for e in effects if not e.aside)
        return not looks or name in ("cd", "pushd") or answers.complains(line)
    if name == "sh":
        writes = [e.path for e in effects if e.category in ("create", "modify") and e.path]
        return any(line.startswith(f"{path}: ") or _mentions(line.partition(": ")[0], path) for path in writes)
    if name in ("error", "fatal", "warning"):
        return "git" in unit.names and name != "warning"
    return False


def _mentions(line: str, path: str) -> bool:
    """Whether a message names the path, by however much of it."""
    leaf = posixpath.basename(path.rstrip("/"))
    return bool(leaf) and re.search(rf"(?<![\w.-]){re.escape(leaf)}(?![\w-]|\.\w)", line) is not None


def _crashed(units: Sequence[Unit], effects: Sequence[list[Effect]], found: list[Outcome], text: str) -> None:
    """Tracebacks, to the units whose script they go through."""
    for script in answers.crashed_scripts(text):
        leaf = posixpath.basename(script)
        running = [k for k, unit in enumerate(units) if _runs(unit, effects[k])]
        through = [k for k in running if leaf and posixpath.basename(units[k].source) == leaf]
        if not through and leaf:
            through = [k for k in running if not units[k].source]  # a runner's own frames come first
        for place in through[:1] if leaf else running[-1:]:
            if found[place].ok is None:
                found[place].ok = False


def _runs(unit: Unit, effects: list[Effect]) -> bool:
    programs = any(e.category in ("execute", "test", "install") and e.scope != "cd" for e in effects)
    return bool(unit.source) or (programs and bool(unit.names) and unit.names[0] not in _SURE)


def _tested(units: Sequence[Unit], effects: Sequence[list[Effect]], found: list[Outcome], text: str) -> None:
    """Summaries of test runs, in order where there are several runs."""
    testing = [k for k, there in enumerate(effects) if any(e.category == "test" for e in there)]
    if len(testing) > 1:
        for place, passed in zip(testing, answers.test_runs(text), strict=False):
            found[place].ok = passed
    elif testing:
        told = answers.run_passed(text, None)
        if told is not None:
            found[testing[0]].ok = told


def _blame(
    units: Sequence[Unit], effects: Sequence[list[Effect]], found: list[Outcome], chain: list[int], status: int
) -> None:
    """The status is not 0: one of the chain failed."""
    if not chain:
        return
    if any(found[place].ok is False for place in chain):
        return
    suspects = [k for k in chain if found[k].ok is None and not units[k].negated] or chain[-1:]
    fallible = [
        k
        for k in suspects
        if set(units[k].names) & _FINDERS or any(e.category in _FALLIBLE and not e.aside for e in effects[k])
    ]
    place = (fallible or suspects)[-1]
    found[place].ok, found[place].status = False, status
