"""Texts of made tasks over a real sandbox: what they show has been run, and tells all of the bug."""

import re
import textwrap

import pytest

from rtmc.gymenvs.swe.mutate.describe import _seen, describe
from rtmc.gymenvs.swe.mutate.issue import Case
from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.make import changed_functions
from rtmc.gymenvs.swe.mutate.mutants import Mutant, changed_lines
from rtmc.gymenvs.swe.mutate.snippet import Snippet
from rtmc.gymenvs.swe.mutate.validate import Stopped, judge, make_bench, measure
from tests.sandbox_help import NEEDS_SANDBOX

CODE = '''"""Things."""


class Bad(Exception):
    """Refused."""


def check(n):
    if n < 0:
        raise Bad("negative")
    return n * 2 + 1


def first(items):
    try:
        return items[0]
    except IndexError:
        raise Bad("empty") from None


class Box:
    def __init__(self, size):
        self.size = size

    def grow(self, by):
        self.size = self.size + by
        return self.size


def told(text):
    print(text.upper())
'''
TESTS = """import pytest

import things
from things import Bad, Box, check, first, told


@pytest.fixture
def box():
    return Box(3)


def make_box(n):
    return Box(n)


def test_first():
    assert first([7, 8]) == 7
    with pytest.raises(Bad, match="empty"):
        first([])


def test_box(box):
    assert box.grow(2) == 5


def test_helper():
    b = make_box(4)
    b.grow(1)
    assert b.size == 5, "size is wrong"


def test_loop():
    for n in range(5):
        assert things.check(n) == 2 * n + 1


def test_refused():
    with pytest.raises(Bad):
        check(-1)


def test_told(capsys):
    told("a")
    assert capsys.readouterr().out == "A\\n"


def test_there():
    assert things
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    root = tmp_path_factory.mktemp("things")
    (root / "things.py").write_text(CODE)
    (root / "test_things.py").write_text(TESTS)
    return measure(make_bench(read_package(root, "things"), limit_s=60), limit_s=10)


def mutant(*changes: tuple[str, str]) -> Mutant:
    """The changes at once; with two, each alone as well."""
    alone = []
    data = CODE
    for old, new in changes:
        assert CODE.count(old) == 1
        alone.append(CODE.replace(old, new).encode())
        data = data.replace(old, new)
    lines = changed_lines(CODE.encode(), data.encode())
    names = tuple((name, 1) for name in ("check", "first", "Box.__init__", "Box.grow", "told"))
    return Mutant("things.py", "by hand", names, data.encode(), lines, tuple(alone) if len(alone) > 1 else ())


def described(measured, *changes):
    bench, baseline = measured
    one = mutant(*changes)
    judged = judge(bench, baseline, one)
    assert judged.status == "accepted"
    return describe(bench, one, judged.fail_to_pass, list(changed_functions(one)))


LOST = ("        return items[0]\n", "        return None\n")
UNCAUGHT = ("except IndexError", "except ValueError")
SHRINKS = ("self.size + by", "self.size - by")
SIZELESS = ("        self.size = size\n", "        pass\n")


@NEEDS_SANDBOX
def test_a_second_bug_behind_the_first(measured):
    # `first` gives None for all: that the empty list is not refused shows only once this is mended.
    found = described(measured, LOST, UNCAUGHT)
    assert (found.text, found.status) == ("", "one site hides the other")
    # Either of them alone makes a text.
    assert "Wrong result of `first([7, 8])`" in described(measured, LOST).text
    found = described(measured, UNCAUGHT)
    assert found.text.startswith("IndexError instead of Bad from `first([])`")
    assert "I expect `Bad` to be raised there; `IndexError` comes:" in found.text


@NEEDS_SANDBOX
def test_two_bugs_that_the_text_shows(measured):
    found = described(measured, SHRINKS, SIZELESS)
    assert found.status == ""
    assert "grow" in found.text
    # The code of the text is what holds only when both are mended.
    bench, _ = measured
    codes = blocks(found.text)
    for _, data in zip((SHRINKS, SIZELESS), mutant(SHRINKS, SIZELESS).alone, strict=True):
        assert any(bench.replay({"things.py": data}, codes, ["test_things.py"]))
    assert not any(bench.replay({}, codes, ["test_things.py"]))


def blocks(text: str) -> list[str]:
    found = re.findall(r"This code shows it:\n\n((?:    .*\n|\n)+)", text)
    return [textwrap.dedent(block) for block in found]


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (("n * 2 + 1", "n * 2 - 1"), ["things.check(0)", "import things", "    n = 0\n", "-1 == ((2 * 0) + 1)"]),
        (SHRINKS, ["def box():\n        return Box(3)", "box = box()", "def make_box(n):", "from things import Box"]),
        (('        raise Bad("negative")\n', "        pass\n"), ["No Bad from `check(-1)`", "and no error comes."]),
    ],
)
def test_a_text_can_be_run(measured, change, shown):
    bench, _ = measured
    found = described(measured, change)
    for part in shown:
        assert part in found.text
    assert "range(5)`" not in found.text.splitlines()[0]
    codes = blocks(found.text)
    assert codes
    assert bench.replay({}, codes, ["test_things.py"]) == [""] * len(codes)
    assert all(bench.replay({"things.py": mutant(change).data}, codes, ["test_things.py"]))


@NEEDS_SANDBOX
def test_what_cannot_be_shown(measured):
    found = described(measured, ("text.upper()", "text.lower()"))
    assert (found.text, found.status) == ("", "not describable")


@NEEDS_SANDBOX
def test_how_pieces_of_code_end(measured):
    bench, _ = measured
    pieces = ["x = 1", "import things; things.check(-1)", "import os; os._exit(0)", "raise SystemExit(3)", "x ="]
    pieces += ["import sys; sys.stdout.write('no line end')", "import test_things"]
    wanted = ["", "Bad", None, "SystemExit", "SyntaxError", "", "ModuleNotFoundError"]
    assert bench.replay({}, pieces, ["test_things.py"]) == wanted


def test_only_code_that_fails_as_the_test_did_is_shown():
    endings = {  # of a piece with the bug, and without it
        "as the test": ("KeyError", ""),
        "in another way": ("ValueError", ""),
        "not at all": ("", ""),
        "without the bug too": ("KeyError", "KeyError"),
        "never ending": (None, None),
        "slow without the bug": ("KeyError", None),
    }

    class Told:
        def replay(self, files, pieces, hidden):
            return [endings[piece][0 if files else 1] for piece in pieces]

    cases = [Case({"exception": "KeyError"}, Snippet(code, "", "", "")) for code in [*endings, "as the test"]]
    shown = list(_seen(Told(), mutant(SHRINKS), (), cases))
    assert [case.snippet.code for case in shown] == ["as the test"]


@NEEDS_SANDBOX
def test_no_run_begins_after_a_stop(tmp_path, measured):
    bench, baseline = measured
    bench.stop.set()
    try:
        with pytest.raises(Stopped):
            judge(bench, baseline, mutant(SHRINKS))
    finally:
        bench.stop.clear()
