"""Objects that compare in odd, honest ways pass as they do without a guard."""

import re

import pytest

from tests.sandbox_help import NEEDS_SANDBOX
from tests.swe_equal_case import graded

pytestmark = NEEDS_SANDBOX


# A changed module with classes that compare honestly, though not as plain values do.
HONEST = '''
import decimal
import functools
import re
from dataclasses import dataclass, field


class Array:
    """As arrays do: element by element."""
    def __init__(self, items): self.items = list(items)
    def __eq__(self, o): return Array(a == b for a, b in zip(self.items, getattr(o, "items", [o] * len(self.items))))
    def __bool__(self): raise ValueError("the truth of an array is ambiguous")
    def all(self): return all(self.items)


class Symbol:
    """Structural, as formulas are."""
    def __init__(self, name, *parts): self.name, self.parts = name, parts
    def __eq__(self, o): return type(o) is Symbol and (self.name, self.parts) == (o.name, o.parts)
    def __hash__(self): return hash(self.name)


class Strict:
    def __init__(self, value): self.value = value
    def __eq__(self, o):
        if not isinstance(o, (Strict, int)): raise TypeError("not comparable")
        return self.value == getattr(o, "value", o)


class Markup(str):
    __slots__ = ()


class NoCase(str):
    def __eq__(self, o): return self.lower() == str(o).lower()
    def __ne__(self, o): return not self == o
    def __hash__(self): return hash(self.lower())


class NoCaseDict(dict):
    def _low(self, o): return {k.lower(): v for k, v in dict.items(o)}
    def __eq__(self, o): return isinstance(o, dict) and self._low(self) == self._low(o)


class Length:
    def __init__(self, number, unit): self.metres = number * {"m": 1, "cm": 0.01}[unit]
    def __eq__(self, o):
        if not isinstance(o, Length): return NotImplemented
        return abs(self.metres - o.metres) < 1e-9
    def __sub__(self, o): return Length(self.metres - o.metres, "m")


@functools.total_ordering
class Version:
    def __init__(self, text): self.parts = [int(one) for one in text.split(".")]
    def __eq__(self, o):
        o = Version(o) if isinstance(o, str) else o
        return self.parts == o.parts
    def __lt__(self, o):
        o = Version(o) if isinstance(o, str) else o
        return self.parts < o.parts


class Approximate(float):
    def __eq__(self, o): return abs(float(self) - float(o)) < 1e-3
    def __hash__(self): return 0


class Sum:
    """An expression builder: `==` makes another, which is true as any object is."""
    def __init__(self, text): self.text = text
    def __eq__(self, o): return Sum(f"{self.text} = {getattr(o, 'text', o)}")
    def __hash__(self): return 0


class Query:
    def __init__(self, *sums): self.sums = sums
    def __eq__(self, o): return [one.text for one in self.sums] == [one.text for one in o.sums]


class Bag(list):
    def __eq__(self, o): return sorted(self) == sorted(o)


class Missing:
    """A null object."""
    def __eq__(self, o): return o is None or isinstance(o, Missing)


class Break:
    """A node whose place in the text does not count."""
    def __init__(self, line): self.line = line
    def __eq__(self, o): return isinstance(o, Break)


class Glob:
    def __init__(self, pattern): self.pattern = pattern
    def __eq__(self, o): return bool(re.fullmatch(self.pattern, o))


class Lazy:
    """Made when it is first asked for."""
    def __init__(self, make): self._make, self.calls = make, 0
    def __eq__(self, o):
        if self._make: self._value, self._make, self.calls = self._make(), None, self.calls + 1
        return self._value == o


class Span:
    def __init__(self, low, high): self.low, self.high = low, high
    def __contains__(self, o): return self.low <= o <= self.high


class Numeric:
    def __init__(self, value): self.value = value
    def __eq__(self, o): return self.value == getattr(o, "value", o)
    def __lt__(self, o): return self.value < getattr(o, "value", o)
    def __gt__(self, o): return self.value > getattr(o, "value", o)
    def __sub__(self, o): return Numeric(self.value - getattr(o, "value", o))
    def __abs__(self): return abs(self.value)
    def __round__(self, n=None): return round(self.value, n)


@dataclass(order=True)
class Point:
    x: int
    y: int = 0
    note: str = field(default="", compare=False)


class Wild:
    def __eq__(self, o): return True
    def __hash__(self): return 1


class Loose(Exception):
    pass


ANYTHING = Wild()
'''
CALM = {
    "array": "assert (kit.Array([1, 2]) == kit.Array([1, 2])).all()\n    x = kit.Array([1]) == 1\n    assert "
    "x.items == [True]\n"
    "    with pytest.raises(ValueError, match='ambiguous'):\n        bool(kit.Array([1]) == 1)",
    "symbol": "assert kit.Symbol('x', 1) == kit.Symbol('x', 1) != kit.Symbol('x')",
    "strict": "assert kit.Strict(3) == 3\n    with pytest.raises(TypeError):\n        kit.Strict(3) == 'x'",
    "nan": "assert float('nan') != float('nan') and [math.nan] == [math.nan]",
    "selves": "a = []\n    a.append(a)\n    assert a == a and [a, 1] == [a, 1]\n    b = [1, {}]\n    b[1]['b'] "
    "= b\n    assert b == b",
    "enum": "assert Colour.RED == Colour(1) and Flags.A | Flags.B == 3 and Flags.A in Flags.A | Flags.B",
    "text": "assert kit.Markup('<b>') == '<b>' and kit.NoCase('Accept') == 'aCCept' and 'x' != kit.NoCase('Y')",
    "headers": "assert kit.NoCaseDict({'Accept': 'a'}) == {'accept': 'a'}",
    "units": "assert kit.Length(1, 'm') == kit.Length(100, 'cm')\n    assert [kit.Length(1, 'm')] == "
    "[kit.Length(100, 'cm')]",
    "versions": "assert '1.2' == kit.Version('1.2') and kit.Version('1.10') > '1.9' and kit.Version('1.2') <= '1.2'",
    "tolerance": "assert kit.Approximate(1.0) == 1.0001\n    assert [kit.Approximate(1.0)] == [1.0001]",
    "approx": "assert kit.Numeric(100.5).value == pytest.approx(100, abs=5)\n    assert [100, 203] == "
    "pytest.approx([102, 200], abs=9)\n"
    "    assert {'a': 5} == pytest.approx({'a': 6}, abs=10)",
    "dates": "assert datetime.date(2020, 1, 1) == datetime.datetime(2020, 1, 1).date() and pathlib.Path('a/b') "
    "== pathlib.PurePath('a/b')",
    "builder": "e = kit.Sum('a') == 3\n    assert e.text == 'a = 3' and str((kit.Sum('a') == "
    "kit.Sum('b')).text) == 'a = b'\n"
    "    assert kit.Query(kit.Sum('a')) == kit.Query(kit.Sum('a'))\n    assert isinstance(kit.Sum('a') == 1, kit.Sum)",
    "bag": "assert kit.Bag([1, 2]) == [2, 1] and kit.Bag([]) == []",
    "missing": "assert kit.Missing() == None and kit.Missing() == kit.Missing()",
    "break": "assert kit.Break(1) == kit.Break(2)\n    assert [kit.Break(1)] == [kit.Break(9)]",
    "glob": "assert kit.Glob('[a-f]+') == 'abc'",
    "lazy": "x = kit.Lazy(lambda: [1, 2])\n    assert x == [1, 2] and x.calls == 1",
    "span": "assert 3 in kit.Span(0, 10) and 11 not in kit.Span(0, 10) and 2 in [1, 2]",
    "numeric": "assert kit.Numeric(4) == 4 == kit.Numeric(4)\n    assert 3 < kit.Numeric(4) < 5 and "
    "kit.Numeric(1) == True\n"
    "    assert abs(kit.Numeric(4) - 4.0) < 1e-9 and kit.Numeric(4) in [3, 4, 5] and kit.Numeric(0) in [True, False]",
    "points": "assert kit.Point(1, 2, 'a') == kit.Point(1, 2, 'b') and kit.Point(1) < kit.Point(2)\n"
    "    assert sorted([kit.Point(2), kit.Point(1)]) == [kit.Point(1), kit.Point(2)]",
    "wild": "assert kit.ANYTHING == 3\n    assert [1, 2] == [1, kit.ANYTHING] and mock.ANY == 'x' and "
    "mock.call(1, b=mock.ANY) == mock.call(1, b=3)",
    "counting": "c = Counting(3)\n    assert c == 3 and [c] == [3] and c.asked == 2",
    "mocks": "m = mock.Mock()\n    m(kit.Point(1))\n    m.assert_called_once_with(kit.Point(1))\n"
    "    assert m.call_args == mock.call(kit.Point(1)) and m.mock_calls == [mock.call(kit.Point(1))] and m != 3",
    "errors": "with pytest.raises(kit.Loose):\n        raise kit.Loose\n    with pytest.raises((OSError, "
    "KeyError)):\n        raise KeyError\n"
    "    with pytest.raises(Abstract):\n        raise Concrete\n    assert isinstance([], "
    "collections.abc.Sequence) and isinstance(1, (int, str))",
    "order": "asked = []\n    def note(x):\n        asked.append(x)\n        return x\n"
    "    assert note(1) == note(1) and not note(2) == note(3)\n    assert 0 <= note(5) < note(9)\n    assert "
    "asked == [1, 1, 2, 3, 5, 9]",
    "warnings": "with pytest.warns(UserWarning, match='odd') as found:\n        assert Warning1() == 3\n    "
    "assert found[0].filename == __file__",
}
CALM_HEAD = """import abc
import collections.abc
import datetime
import enum
import math
import pathlib
import unittest
import warnings
from unittest import mock

import pytest

import kit


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Counting(int):
    asked = 0

    def __eq__(self, other):
        self.asked += 1
        return int(self) == int(other)


class Warning1:
    def __eq__(self, other):
        warnings.warn("odd", stacklevel=2)
        return True


class Abstract(Exception, metaclass=abc.ABCMeta):
    pass


class Concrete(Abstract):
    pass
"""
CALM_METHODS = {
    "plain": "self.assertEqual(kit.Numeric(3), 3)\n        self.assertEqual([kit.Numeric(3)], [3])",
    "near": "self.assertAlmostEqual(kit.Numeric(3.0000001), 3.0, places=5)\n"
    "        self.assertAlmostEqual(first=kit.Numeric(3), second=4, delta=1.5)",
    "other": "self.assertNotEqual(kit.Numeric(3), 4)\n        self.assertIn(kit.Numeric(3), [3])\n"
    "        self.assertLess(kit.Numeric(3), 4)\n        self.assertCountEqual([kit.Numeric(3), 1], [1, 3])",
}


@pytest.mark.parametrize("classes", ["new", "as before"])
def test_what_compares_oddly_passes(tmp_path, classes):
    tests = CALM_HEAD + "".join(f"\n\ndef test_{name}():\n    {body}\n" for name, body in CALM.items())
    tests += "\n\nclass TestMethods(unittest.TestCase):\n"
    tests += "".join(f"    def test_{name}(self):\n        {body}\n\n" for name, body in CALM_METHODS.items())
    before = HONEST.replace("from dataclasses", "x = 1\n\nfrom dataclasses")
    if classes == "new":
        # Those are free only where they were there before: what equals all, and what makes expressions.
        before = "".join(re.findall(r"^class (?:Wild|Sum):\n(?: .*\n)+", HONEST, re.M)) + "ANYTHING = Wild()\n"
    verdict = graded(tmp_path, tests, HONEST, before)
    assert verdict.reason is None
    assert verdict.reward == 1.0
