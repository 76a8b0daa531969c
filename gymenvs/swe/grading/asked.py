"""What is asked beside one comparison of a test: which objects in it, and what each is compared with once more.

Sent into the sandbox beside `guard`; see there for what it may use. `equal` says when, and whose classes are whose.
"""

import gc
import operator
import os
import types

from rtmc.gymenvs.swe.grading.vary import NOTHING, attributes, below, far, near, shuffled

__unittest = True  # unittest's mark for frames that a failure's text leaves out

PLAIN = frozenset((int, str, bool, float, bytes, type(None), complex, bytearray, range, type(Ellipsis)))
EQUAL = ("__eq__", "__ne__")
SUMS = ("__sub__", "__rsub__", "__abs__", "__round__")  # by which tests of nearness judge
APPROX = ("_pytest.python_api", "_pytest.approx")  # where pytest.approx comes from, in old and new releases
_ATOMS: tuple = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.CodeType,
)
_ATOMS += (types.GeneratorType, types.CoroutineType, types.FrameType, types.TracebackType)
_BUILT_IN = (list, tuple, dict, set, frozenset, str, int, float, bytes)
# Pairs of parts that are looked at in a comparison: what has a counterpart on the other side, and what has none.
_PAIRED, _ALONE = 50000, 1000
_MANY, _SELDOM = 100, 16  # of very many objects of one class in a comparison, some are asked


class Asked:
    """One comparison's questions, the first of them asked at once, in an order that nobody foresees.

    Of each group of others, an object that equals too many proves that it equals everything."""

    def __init__(self, comparer, name, left, right):
        self.comparer, self.negated = comparer, name in ("NotEq", "NotIn")
        self.by = operator.ne if self.negated else operator.eq
        self.groups, self.later = [], []  # [object, how many are too many, how many it equals]; (group, other, strict)
        self.again = False
        first = []
        for one, other in _suspects(comparer, name, left, right):
            inside = one is not left and one is not right
            strange = self._questions(one, other, inside)
            self.again = self.again or (bool(strange) and not inside and name in ("Eq", "NotEq"))
            first += strange
        first = shuffled(first)
        cut = below(len(first) + 1)
        self.later += first[cut:]
        for question in first[:cut]:
            self._ask(*question)

    def _questions(self, one, other, inside):
        """Notes what to ask of an object; returns what may be asked before the test's own comparison."""
        kind = type(other)
        whose = self.comparer.asks(type(one), EQUAL + SUMS if kind.__module__ in APPROX else EQUAL)
        groups = [([fresh_class(object)()], 1)]
        related = issubclass(kind, type(one)) or issubclass(type(one), kind)
        # Another object of one class may differ in what honestly does not count: a line, a cache.
        if other is not NOTHING and (not related or issubclass(kind, _BUILT_IN)):
            try:
                groups += near(other, self._opens(kind)) if whose == "strange" else []
                groups.append(([far(other, self._opens(kind))], 1))
            except Exception:
                del groups[1:]  # a value of the tests that cannot be copied
        questions = []
        for group, wanted in groups:
            if group[0] is not NOTHING:
                questions += [(len(self.groups), value, inside and whose == "known") for value in group]
                self.groups.append([one, wanted, 0])
        if whose == "strange":
            return questions
        self.later += questions
        return []

    def _opens(self, also):
        return lambda kind: kind is also or self.comparer.opens(kind)

    def _ask(self, number, other, strict):
        group = self.groups[number]
        try:
            said = self.by(group[0], other)
            # Within another object, what makes an expression of a comparison is no answer.
            answer = None if strict and type(said) not in PLAIN else bool(said)
        except Exception:
            return
        group[2] += answer is (not self.negated)

    def rest(self, left, right, again):
        """Asks what is left, now that the test's own comparison has said "equal"; that one once more if `again`."""
        __tracebackhide__ = True
        for question in shuffled([*self.later, None] if again and self.again else self.later):
            if question is not None:
                self._ask(*question)
            elif self.comparer.holds(self.by, left, right) is self.negated:
                strange = left if self.comparer.asks(type(left), EQUAL) == "strange" else right
                self.comparer.fail(strange, "no longer equals what it did, and might equal")
        for one, wanted, found in self.groups:
            if found >= wanted and not self.comparer.free(one):
                self.comparer.fail(one, "equals")


def _suspects(comparer, name, left, right):
    """(object, its counterpart or NOTHING) for what the operands are and hold, where its comparison is not built in."""
    pairs: list = []
    alone: list = []
    asked: dict = {}
    often: dict = {}
    told, seen = set(), set()
    if name in ("In", "NotIn"):
        members = list(right) if type(right) in (list, tuple, set, frozenset, dict) else []
        pairs += [(one, left) for one in members if type(one) not in PLAIN]
        if type(left) not in PLAIN:
            known = members[:50] if comparer.asks(type(left), EQUAL) else ()
            alone.append((left, next((one for one in known if comparer.holds(operator.eq, left, one)), NOTHING)))
    else:
        pairs.append((left, right))
    rest = [_PAIRED, _ALONE]
    while (pairs and rest[0]) or (alone and rest[1]):
        lone = not (pairs and rest[0])
        rest[lone] -= 1
        one, other = (alone if lone else pairs).pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        seen.add((id(one), id(other)))
        for this, that in ((one, other), (other, one)):
            kind = type(this)
            if this is NOTHING or kind in PLAIN or issubclass(kind, _ATOMS) or (id(this), type(that)) in told:
                continue
            told.add((id(this), type(that)))
            close = type(that).__module__ in APPROX
            if (kind, close) not in asked:
                asked[kind, close] = comparer.asks(kind, EQUAL + SUMS if close else EQUAL)
            if asked[kind, close]:
                often[kind] = often.get(kind, 0) + 1
                if often[kind] <= _MANY or below(_SELDOM) == 0:
                    yield this, that
        for inner, counter in _held(one, other):
            (alone if inner is NOTHING or counter is NOTHING else pairs).append((inner, counter))


def _held(one, other):
    """The parts of two values, side by side; NOTHING beside what has no counterpart."""
    if bare(one) and bare(other):
        return
    mine, yours = _parts(one), _parts(other)
    for key, inner in mine.items():
        counter = yours.get(key, NOTHING)
        if inner is not counter and not (type(inner) in PLAIN and (counter is NOTHING or type(counter) in PLAIN)):
            yield inner, counter
    for key, counter in yours.items():
        if key not in mine and type(counter) not in PLAIN:
            yield NOTHING, counter


def bare(value):
    """Whether a value holds nothing but plain ones, as most lists do. No object of its own is made of them."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return PLAIN.issuperset(map(type, value))
    if kind is dict:
        return PLAIN.issuperset(map(type, value)) and PLAIN.issuperset(map(type, value.values()))
    return value is NOTHING or kind in PLAIN or issubclass(kind, _ATOMS)


def _parts(value):
    """What a value holds, by what stands for its place, past all code of its class."""
    kind = type(value)
    if value is NOTHING or kind in PLAIN or issubclass(kind, _ATOMS):
        return {}
    found: dict = {}
    base = next((one for one in (list, tuple, set, frozenset, dict) if issubclass(kind, one)), None)
    if base is dict:
        for at, (key, inner) in enumerate(dict.items(value)):
            if type(key) in PLAIN:
                found["of", key] = inner
            else:
                found["key", at], found["of key", at] = key, inner
    elif base is not None:
        found.update(enumerate(base.__iter__(value)))
    if kind is base:
        return found
    space, slots = attributes(value)
    found.update((("attribute", name), inner) for name, inner in space.items())
    found.update((("slot", at), get(value)) for at, (get, _) in enumerate(slots))
    if not found:  # of another built-in class: a deque, a view
        held = [inner for inner in gc.get_referents(value) if not issubclass(type(inner), _ATOMS)]
        found.update((("held", at), inner) for at, inner in enumerate(held))
    return found


def fresh_class(base):
    """A class that nobody knows."""
    return type("_" + os.urandom(8).hex(), (base,), {})
