"""Mutants of a package's modules: every kind of change, each checked to be one that reads back as meant.

    source = Source(data, "package/module.py")
    for site in sites(source): ...                 # everything that could be changed
    for mutant in mutants(sources, seed=0): ...    # in a random order that the seed fixes, kinds taking turns

A mutant parses, differs from its original under the nodes it names and nowhere else, and is another text than every
mutant before it. Whether a test notices it, `validate` finds out.
"""

import ast
import difflib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rtmc.gymenvs.swe.mutate import expressions, statements
from rtmc.gymenvs.swe.mutate.expressions import Change
from rtmc.gymenvs.swe.mutate.places import Place, places
from rtmc.gymenvs.swe.mutate.text import Source, changed_only

Mutator = Callable[[Source, Place], Iterator[Change]]

MUTATORS: dict[str, Mutator] = {
    "operator": expressions.operator,
    "comparison": expressions.comparison,
    "constant": expressions.constant,
    "condition": expressions.condition,
    "statement removal": statements.statement_removal,
    "argument swap": expressions.argument_swap,
    "off-by-one": expressions.off_by_one,
    "wrong variable": statements.wrong_variable,
    "missing return": statements.missing_return,
    "exception type": statements.exception_type,
}
TWO_SITES = "two-site"
KINDS = (*MUTATORS, TWO_SITES)


@dataclass(frozen=True, slots=True)
class Site:
    """A place with what could be done to it: `changes` exclude each other.

    name: the dotted name of the function the place stands in, "" at the module's level. line: its line number.
    """

    path: str
    kind: str
    name: str
    line: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with a bug.

    path: of the module. data: its bytes with the bug. kind: one of `KINDS`. sites: (function, line number) of each
    place that was changed. lines: what stood there and what stands there now, without the lines that are equal.
    alone: of two sites, the module's bytes with the bug of each one alone; () = there is one site.
    """

    path: str
    kind: str
    sites: tuple[tuple[str, int], ...]
    data: bytes
    lines: tuple[tuple[str, ...], tuple[str, ...]]
    alone: tuple[bytes, ...] = ()


def sites(source: Source, kinds: Sequence[str] = tuple(MUTATORS)) -> list[Site]:
    """Every place of the module that one of the kinds could change, in the order of the text."""
    found = []
    for place in places(source.tree):
        for kind in kinds:
            changes = tuple(MUTATORS[kind](source, place)) if kind in MUTATORS else ()
            if changes and not (place.in_fstring and not _reads_back(source, place)):
                found.append(Site(source.name, kind, place.name, getattr(place.node, "lineno", 0), changes))
    return found


def _reads_back(source: Source, place: Place) -> bool:
    node = place.node
    return isinstance(node, ast.expr) and source.holds(node)


def mutants(sources: Sequence[Source], seed: int | str = 0, kinds: Sequence[str] = KINDS) -> Iterator[Mutant]:
    """Mutants without end of the list of sites: each site once, each two-site pair once.

    Args:
        sources: modules, their `name` is the path in the package.
        seed: fixes which mutants come and in which order, for the same sources.
        kinds: some of `KINDS`; they take turns as long as they have sites left.

    Raises:
        ValueError: a kind is unknown.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"unknown kind of mutation {unknown[0]!r}; there are {', '.join(KINDS)}")
    by_name = {source.name: source for source in sources}
    listed: dict[str, list[Site]] = {kind: [] for kind in MUTATORS}
    for source in sources:
        for site in sites(source):
            listed[site.kind].append(site)
    dice = random.Random(f"{seed}")
    for of_kind in listed.values():
        dice.shuffle(of_kind)
    turns = [_alone(listed[kind]) for kind in kinds if kind in MUTATORS]
    if TWO_SITES in kinds:
        turns.append((TWO_SITES, pair) for pair in _pairs(listed, dice))
    seen = {(source.name, source.data) for source in sources}
    for kind, chosen in _in_turn(turns):
        source = by_name[chosen[0].path]
        mutant = _made(source, kind, chosen, dice)
        if mutant is not None and (mutant.path, mutant.data) not in seen:
            seen.add((mutant.path, mutant.data))
            yield mutant


def _alone(of_kind: list[Site]) -> Iterator[tuple[str, tuple[Site, ...]]]:
    return ((site.kind, (site,)) for site in of_kind)


def count_sites(sources: Sequence[Source]) -> Counter[str]:
    """How many sites of each kind there are."""
    return Counter(site.kind for source in sources for site in sites(source))


def _in_turn(turns: list[Iterator[tuple[str, tuple[Site, ...]]]]) -> Iterator[tuple[str, tuple[Site, ...]]]:
    while turns:
        left = []
        for turn in turns:
            following = next(turn, None)
            if following is not None:
                yield following
                left.append(turn)
        turns = left


def _pairs(listed: dict[str, list[Site]], dice: random.Random) -> list[tuple[Site, ...]]:
    """Pairs of sites of one module: two lines of the same function, or of two functions of the same class."""
    groups: dict[tuple[str, str], list[Site]] = {}
    for site in itertools.chain.from_iterable(listed.values()):
        if site.name:
            owner = site.name.rpartition(".")[0] or site.name
            groups.setdefault((site.path, owner), []).append(site)
    pairs: list[tuple[Site, ...]] = []
    for group in groups.values():
        shuffled = dice.sample(group, len(group))
        pairs += [(a, b) for a, b in zip(shuffled[::2], shuffled[1::2], strict=False) if a.line != b.line]
    dice.shuffle(pairs)
    return pairs


def _made(source: Source, kind: str, chosen: tuple[Site, ...], dice: random.Random) -> Mutant | None:
    """The first of the sites' changes, in random order, that reads back as meant."""
    options = list(itertools.product(*(dice.sample(site.changes, len(site.changes)) for site in chosen)))
    for changes in options[:6]:
        if len(changes) > 1 and _nested(changes):
            continue
        try:
            data = source.splice([edit for change in changes for edit in change.edits])
        except (ValueError, OverflowError):
            continue
        if changed_only(source, data, [change.target for change in changes]):
            where = tuple((site.name, site.line) for site in chosen)
            alone = tuple(source.splice(change.edits) for change in changes) if len(changes) > 1 else ()
            return Mutant(source.name, kind, where, data, changed_lines(source.data, data), alone)
    return None


def _nested(changes: Sequence[Change]) -> bool:
    """Whether one change's node holds another's: what differs there could not be told apart."""
    pairs = itertools.permutations((change.target for change in changes), 2)
    return any(inner[: len(outer)] == outer for outer, inner in pairs)


def changed_lines(old: bytes, new: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines (blanks around them cut) that only the old text has at their place, and those only the new one has."""
    a, b = ([line.strip() for line in text.decode("utf-8", "replace").splitlines()] for text in (old, new))
    gone, come = [], []
    for tag, i, j, k, m in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        if tag != "equal":
            gone += [line for line in a[i:j] if line]
            come += [line for line in b[k:m] if line]
    return tuple(gone), tuple(come)
