"""From failing tests to a task's text that can be relied on: every piece of code in it has been run.

A piece is shown only if it ends without an error on the package as it should be, and on the mutant as the test did.
Both run without the files that are hidden from the agent. Of a mutant with two sites each is then mended alone: if
no piece of the text notices the other, a fix of all that the text tells would not be one, and there is no text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtmc.gymenvs.swe.mutate.issue import SHOWN, Case, write_issue
from rtmc.gymenvs.swe.mutate.mutants import Mutant
from rtmc.gymenvs.swe.mutate.snippet import snippets
from rtmc.gymenvs.swe.mutate.validate import GIVES_AWAY, HIDES, UNDESCRIBED, Bench

_TRIED = 6  # failing tests that are tried for a text


@dataclass(frozen=True, slots=True)
class Described:
    """text: of the task; "" = there is none, and `status` says why. depth: the fewest calls from a failing test down
    to a changed function, None = not seen."""

    text: str
    status: str
    depth: int | None


def describe(
    bench: Bench, mutant: Mutant, fails: Sequence[str], functions: Sequence[tuple[str, int, int]]
) -> Described:
    """The text of a mutant's task.

    Args:
        fails: the tests that fail. functions: the changed ones, as `Bench.observe` takes them.
    """
    notes = bench.observe({mutant.path: mutant.data}, fails, functions)
    depth = min((note["depth"] for note in notes if note.get("depth") is not None), default=None)
    hidden = hidden_files(fails)
    tried = [(note, list(snippets(bench.package.root, note))) for note in _plainest(notes)]
    cases: list[Case] = []
    status = UNDESCRIBED
    # Round by round: what is short first, and what is longer where that does not do.
    for turn in range(max((len(found) for _, found in tried), default=0)):
        shown = {id(case.note) for case in cases}
        offered = [Case(note, found[turn]) for note, found in tried if len(found) > turn and id(note) not in shown]
        safe = [case for case in offered if write_issue([case], mutant, 1) is not None]
        status = GIVES_AWAY if offered and not safe and not cases else status
        cases += _seen(bench, mutant, hidden, safe)
        if cases:
            chosen = _noticing(bench, mutant, hidden, cases)
            status = HIDES
            if chosen:
                text = write_issue(chosen, mutant, len(fails))
                return Described(text or "", "" if text else GIVES_AWAY, depth)
    return Described("", status, depth)


def hidden_files(tests: Sequence[str]) -> tuple[str, ...]:
    """The files that hold the tests."""
    return tuple(dict.fromkeys(test.split("::", 1)[0] for test in tests))


def _plainest(notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Some failing tests: one of each function first, those that say what was expected before crashes."""

    def plainness(note: Mapping[str, Any]) -> tuple[bool, int, str]:
        return (bool(note["inside"]), sum(map(len, note["parameters"].values())), note["test"])

    places: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for note in sorted(notes, key=plainness):  # one that is inherited runs the same code under several names
        places.setdefault((note["file"], note["line"], note["first"], *note["parameters"].values()), note)
    turns: dict[str, int] = {}
    order: list[tuple[int, int, Mapping[str, Any]]] = []
    for note in places.values():
        function = note["test"].split("[", 1)[0]
        order.append((turns.setdefault(function, 0), len(order), note))
        turns[function] += 1
    return [note for _, _, note in sorted(order, key=lambda one: one[:2])][:_TRIED]


def _seen(bench: Bench, mutant: Mutant, hidden: Sequence[str], cases: Sequence[Case]) -> Iterator[Case]:
    """The cases whose code fails as the test does on the mutant, and runs through without the bug."""
    codes = [case.snippet.code for case in cases]
    if not codes:
        return
    broken = bench.replay({mutant.path: mutant.data}, codes, hidden)
    clean = bench.replay({}, codes, hidden)
    shown: set[str] = set()
    for case, ended, without in zip(cases, broken, clean, strict=True):
        if without == "" and ended == case.note["exception"] and case.snippet.code not in shown:
            shown.add(case.snippet.code)
            yield case


def _noticing(bench: Bench, mutant: Mutant, hidden: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    """A few of the cases that together notice each site alone; none where they do not."""
    codes = [case.snippet.code for case in cases]
    left = {site: bench.replay({mutant.path: data}, codes, hidden) for site, data in enumerate(mutant.alone)}
    chosen: list[int] = []
    for endings in left.values():
        noticing = [at for at, ended in enumerate(endings) if ended]
        if not noticing:
            return []
        if not set(noticing) & set(chosen):
            chosen.append(noticing[0])
    chosen += [at for at in range(len(cases)) if at not in chosen]
    return [cases[at] for at in sorted(chosen[:SHOWN])]
