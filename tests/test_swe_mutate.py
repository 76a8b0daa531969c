"""Kinds of mutations: what each makes of a line, what is left alone, and properties over real modules."""

import ast
import configparser
import fractions
import inspect
import itertools
import shlex
import textwrap
from collections import Counter

import pytest

from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.mutate.mutants import KINDS, MUTATORS, changed_lines, count_sites, mutants, sites
from rtmc.gymenvs.swe.mutate.text import Source, changed_only

MODULES = [fractions, shlex, textwrap]


def all_texts(code: str, kind: str, name: str = "m.py") -> set[str]:
    """Every text that a kind makes of a module and that reads back as meant."""
    source = Source(code.encode(), name)
    found = set()
    for site in sites(source, [kind]):
        for change in site.changes:
            data = source.splice(change.edits)
            if changed_only(source, data, [change.target]):
                found.add(data.decode())
    return found


def line(code: str, kind: str) -> set[str]:
    """What a kind makes of the only line of a function of x, y and z."""
    head = "def f(x, y, z):\n    "
    return {text.removeprefix(head).rstrip("\n") for text in all_texts(f"{head}{code}\n", kind)}


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("operator", "return x + y", {"return x - y"}),
        ("operator", "return x*y + z", {"return x//y + z", "return x+y + z", "return x*y - z"}),
        ("operator", "return x + y * z", {"return x - y * z", "return x + y // z"}),
        ("operator", "return (x) + (  # a + b\n  y)", {"return (x) - (  # a + b\n  y)"}),
        ("operator", "x += 1", {"x -= 1"}),
        ("operator", "return x ** y", {"return x * y"}),
        ("operator", "return x \\\n  | y", {"return x \\\n  & y", "return x \\\n  ^ y"}),
        ("operator", "return 'a' + x", set()),
        ("operator", "return '%s' % x", set()),
        ("comparison", "return x < y <= z", {f"return x {a} z" for a in ("<= y <=", ">= y <=", "< y <", "< y >")}),
        ("comparison", "return x is not None", {"return x is None"}),
        ("comparison", "return x not \\\n  in y", {"return x in y"}),
        ("comparison", "return f'{x == y}'", {"return f'{x != y}'"}),
        ("constant", "return 10", {"return 11", "return 9"}),
        ("constant", "return 0xFF", {"return 0x100", "return 0xfe"}),
        ("constant", "return 0", {"return 1"}),
        ("constant", "return True", {"return False"}),
        ("constant", "return 2.5", {"return 25.0"}),
        ("constant", "return ', '", {"return ','"}),
        ("constant", "return 'word'", set()),
        ("constant", "return x[1:2]", set()),
        ("condition", "return x and y", {"return x or y", "return x", "return y"}),
        ("condition", "return (x) and (y) and z", {"return (y) and z", "return (x) and z", "return (x) and (y)"}),
        ("condition", "z = not (x or y)", {f"z = {t}" for t in ("(x or y)", "not (x and y)", "not (y)", "not (x)")}),
        ("condition", "while x: pass", {"while not x: pass"}),
        ("condition", "return x if x + y else z", {"return x if not (x + y) else z"}),
        ("condition", "if x == y: pass", set()),
        ("statement removal", "x.append(y)\n    return x", {"return x"}),
        ("statement removal", "x.append(y)", {"pass"}),
        ("statement removal", "x = y; return x", {"pass; return x"}),
        ("statement removal", "w = y\n    return w", set()),
        ("statement removal", "if x:  # guard\n        return 1  # one\n    return y", {"return y"}),
        ("statement removal", "if x:\n        y = 1\n    return y", {"if x:\n        pass\n    return y"}),
        ("argument swap", "return g(x, y + 1, *z)", {"return g(y + 1, x, *z)"}),
        ("argument swap", "return isinstance(x, y)", set()),
        ("argument swap", "return g(x, x)", set()),
        ("off-by-one", "return x[0]", {"return x[1]"}),
        ("off-by-one", "return x[-1]", {"return x[-2]"}),
        ("off-by-one", "return x[1:y]", {f"return x[{t}]" for t in ("2:y", "0:y", "1:y + 1", "1:y - 1")}),
        ("off-by-one", "return x[(y - 1):]", {"return x[(y):]"}),
        ("off-by-one", "return range(y)", {"return range(y + 1)", "return range(y - 1)"}),
        ("off-by-one", "return len(x)", {"return len(x) - 1"}),
        ("off-by-one", "return x[y]", set()),
        ("wrong variable", "return x.a", {"return y.a", "return z.a"}),
        (
            "wrong variable",
            "w = x; return w",
            {f"w = {t}; return w" for t in "yz"} | {f"w = x; return {t}" for t in "xyz"},
        ),
        ("wrong variable", "return x(1)", set()),
        ("wrong variable", "return [x for x in ()]", set()),
        ("missing return", "return g(x)", {"g(x)"}),
        ("missing return", "return x", {"return None"}),
        ("missing return", "return", set()),
        ("missing return", "return None", set()),
        ("exception type", "raise ValueError('a')", {"raise TypeError('a')"}),
        ("exception type", "raise KeyError", {"raise IndexError", "raise ValueError"}),
        ("exception type", "raise Mine(ValueError)", set()),
        ("exception type", "return ValueError", set()),
    ],
)
def test_what_becomes_of_a_line(kind, code, expected):
    assert line(code, kind) == expected


def test_a_handler_of_another_type():
    body = "    try:\n        g()\n    except (KeyError, mine):\n        pass\n    except OSError:\n        raise\n"
    code = f"def f():\n{body}"
    made = all_texts(code, "exception type")
    assert made == {code.replace("KeyError", new) for new in ("IndexError", "ValueError")} | {
        code.replace("OSError", "ValueError")
    }


def test_an_elif_goes_with_its_block():
    code = "def f(x, y):\n    if x:\n        return 1\n    elif y:  # why\n        return 2\n    return 3\n"
    assert all_texts(code, "statement removal") == {code.replace("    elif y:  # why\n        return 2\n", "")}
    more = code.replace("    return 3\n", "    else:\n        return 3\n")
    assert all_texts(more, "statement removal") == set()


def test_attributes_that_the_class_sets():
    code = (
        "class A:\n    def __init__(self, n):\n        self.low = n\n        self.high = n\n"
        "    def f(self):\n        return self.low + self.other\n"
    )
    assert all_texts(code, "wrong variable") == {code.replace("return self.low", "return self.high")}


LEFT_ALONE = '''"""Doc 1 < 2."""
from typing import TYPE_CHECKING, TypeVar, overload
import sys
__all__ = ["a"]
__version__ = "1"
VERSION = 3
version_info = (1, 2)
T = TypeVar("T", bound=1)
if TYPE_CHECKING:
    X = 1 + 2
if sys.version_info < (3, 1):
    Y = 1
if __name__ == "__main__":
    print(1 + 1)

@overload
def f(a: 1) -> 2: ...

@decorated(1, 2)
def f(a: "1 < 2", b: list[1]) -> (1, 2):
    """Doc."""
    c: list[3]
    raise NotImplementedError("1")

class A(base(1), key=2):
    ", "
'''


def test_what_is_left_alone():
    # Not even the constants: everything that could be one stands where a bug would be none.
    assert sites(Source(LEFT_ALONE.encode(), "m.py")) == []


def test_what_stands_beside_is_not():
    code = LEFT_ALONE.replace('raise NotImplementedError("1")', "return a < 1")
    assert {site.kind for site in sites(Source(code.encode(), "m.py"))} == {
        "comparison",
        "constant",
        "missing return",
        "wrong variable",
    }


def docstrings(source: Source) -> list[str | None]:
    nodes = (node for node in ast.walk(source.tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    return [ast.get_docstring(node) for node in nodes]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_properties_of_mutants(module, newline):
    text = inspect.getsource(module).replace("\n", newline)
    source = Source(text.encode(), "m.py")
    docs = docstrings(source)
    seen = set()
    for mutant in itertools.islice(mutants([source], seed=3), 22):
        new = Source(mutant.data, "m.py")
        assert ast.dump(new.tree) != ast.dump(source.tree)
        hunks = make_patch({"m.py": source.data}, {"m.py": mutant.data}).count("\n@@ ")
        assert hunks == 1 if mutant.kind != "two-site" else hunks in (1, 2)
        assert len(mutant.sites) == (2 if mutant.kind == "two-site" else 1)
        assert docstrings(new) == docs
        # A lone line feed or carriage return would be an end of another kind than the file's.
        assert mutant.data.count(b"\n") - mutant.data.count(newline.encode()) == 0
        assert mutant.lines == changed_lines(source.data, mutant.data)
        assert mutant.data not in seen
        seen.add(mutant.data)
    assert len(seen) == 22


def test_the_seed_fixes_everything():
    sources = [Source(inspect.getsource(module).encode(), f"{module.__name__}.py") for module in MODULES]
    first, second = (list(itertools.islice(mutants(sources, seed=5), 15)) for _ in range(2))
    assert first == second
    assert first != list(itertools.islice(mutants(sources, seed=6), 15))
    assert len({mutant.path for mutant in first}) > 1


def test_kinds_take_turns():
    source = Source(inspect.getsource(configparser).encode(), "m.py")
    counts = Counter(mutant.kind for mutant in itertools.islice(mutants([source]), 2 * len(KINDS)))
    assert set(counts) == set(KINDS)
    only = {mutant.kind for mutant in itertools.islice(mutants([source], kinds=["constant", "off-by-one"]), 8)}
    assert only == {"constant", "off-by-one"}
    with pytest.raises(ValueError, match="unknown kind of mutation 'typo'"):
        next(mutants([source], kinds=["typo"]))


def test_all_sites_come_once():
    source = Source(b"def f(x, y):\n    if x < y:\n        return x + 1\n    return g(x, y)\n", "m.py")
    made = list(mutants([source], kinds=tuple(MUTATORS)))
    assert Counter(mutant.kind for mutant in made) == count_sites([source])


def test_the_same_text_comes_once():
    # Either of two equal lines can go: what is left is the same.
    source = Source(b"def f(x):\n    x += y\n    x += y\n    return x\n", "m.py")
    made = list(mutants([source], kinds=["statement removal"]))
    assert [mutant.data for mutant in made] == [b"def f(x):\n    x += y\n    return x\n"]


def test_two_sites_are_two_lines_of_one_module():
    source = Source(inspect.getsource(fractions).encode(), "m.py")
    for mutant in itertools.islice(mutants([source], kinds=["two-site"]), 20):
        (_, first), (_, second) = mutant.sites
        assert first != second
