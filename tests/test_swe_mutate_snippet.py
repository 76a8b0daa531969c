"""Pieces of code cut out of test files: each runs by itself, and does what the test does."""

import subprocess
import sys
import textwrap

import pytest

from rtmc.gymenvs.swe.mutate.snippet import snippets

TESTS = '''\
import json, os
import unittest
from collections import OrderedDict as Ordered
from decimal import *

import pytest

LIMIT = 3
START = LIMIT - 1


@pytest.fixture
def box():
    return [LIMIT]


@pytest.fixture
def opened(box):
    yield {"box": box}


def grown(box, by=START):
    box.append(by)
    return box


def test_helper(box):
    """About boxes."""
    assert LIMIT == 3
    other = [0]
    b = grown(box)
    b.append(9)
    assert b == [3, 2]


@pytest.mark.parametrize("text", ["a", "b"])
def test_texts(text, opened):
    assert Ordered(a=text) == {}, """
  two lines
"""


def test_loop():
    for n in range(5):
        double = n * 2
        assert double != 4


def test_raises():
    with pytest.raises(KeyError) as caught:
        {}["a"]
    with pytest.raises(ValueError):
        {}["b"]


def test_patched(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sep", "!")
    (tmp_path / "a").write_text("x")
    assert (tmp_path / "a").read_text() == os.sep


def test_star():
    assert Decimal("1") == 2


def test_unknown(capsys):
    print("x")
    assert capsys.readouterr().out == ""


class Old(unittest.TestCase):
    def setUp(self):
        self.box = [1]
        self.unused = json.loads("[]")

    def test_box(self):
        self.assertEqual(self.box, [2])

    def test_raises(self):
        self.assertRaises(ValueError, int, "1")
'''


def written(folder, function, failing, text=TESTS, **changes):
    """The snippets for a failure at the line that holds `failing`."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests/test_a.py").write_text(text)
    lines = text.split("\n")
    at = next(k for k, line in enumerate(lines) if line.strip().startswith(f"def {function}("))
    first = at if at and lines[at - 1].strip().startswith("@") else at + 1
    line = next((k for k, line in enumerate(lines, 1) if k > at and failing in line), 0) if failing else 0
    note = {"file": "tests/test_a.py", "first": first, "line": line, "parameters": {}, "values": {}, "public": {}}
    return list(snippets(folder, {**note, "unittest": False, **changes}))


def ending(code):
    """The exception that the code ends with, in a process of its own: what it patches stays patched."""
    program = (
        "import sys\n"
        "try:\n    exec(compile(sys.stdin.read(), 'example', 'exec'), {'__name__': '__main__'})\n"
        "except BaseException as error:\n    print('ended', type(error).__name__)\n"
        "else:\n    print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("ended")[2].strip()


CASES = [
    ("test_helper", "assert b ==", {}, "AssertionError", ""),
    ("test_texts", "assert Ordered", {"parameters": {"text": "'b'"}}, "AssertionError", ""),
    ("test_loop", "assert double", {}, "AssertionError", ""),
    ("test_raises", '{}["b"]', {}, "KeyError", "ValueError"),
    ("test_patched", "assert (tmp", {}, "AssertionError", ""),
    ("test_star", "assert", {}, "AssertionError", ""),
    ("test_box", "assertEqual", {"unittest": True}, "AssertionError", ""),
]


@pytest.mark.parametrize(("function", "failing", "changes", "ended", "expected"), CASES)
def test_a_snippet_runs_by_itself(tmp_path, function, failing, changes, ended, expected):
    found = written(tmp_path, function, failing, **changes)
    assert found
    assert ending(found[-1].code) == ended
    for snippet in found:
        assert snippet.expected == expected
        assert failing in snippet.statement
        assert snippet.code.startswith(snippet.setting)


def test_a_long_parameter_is_written_in_short_lines_and_stays_the_same(tmp_path):
    value = "0.0-" + "1" * 1500
    found = written(tmp_path, "test_texts", "assert Ordered", parameters={"text": repr(value)})[0]
    assert max(map(len, found.code.split("\n"))) < 120
    assert "text = '0.0-' + '1' * 1500" in found.code
    assert ending(found.code) == "AssertionError"


def test_the_failing_statement_and_what_it_needs(tmp_path):
    short, whole = written(tmp_path, "test_helper", "assert b ==")
    assert short.code == textwrap.dedent("""\
        LIMIT = 3

        START = LIMIT - 1

        def box():
            return [LIMIT]

        def grown(box, by=START):
            box.append(by)
            return box

        box = box()

        b = grown(box)
        b.append(9)
        assert b == [3, 2]""")
    assert "other = [0]" in whole.code
    assert "assert LIMIT == 3" in whole.code
    assert "About boxes" not in whole.code


def test_text_over_several_lines_stays_as_it_is(tmp_path):
    (found, *_) = written(tmp_path, "test_texts", "assert Ordered", parameters={"text": "'b'"})
    assert found.code.endswith('assert Ordered(a=text) == {}, """\n  two lines\n"""')
    assert "from collections import OrderedDict as Ordered" in found.code
    whole = written(tmp_path, "test_texts", "assert Ordered", parameters={"text": "'b'"})[-1]
    assert "opened = next(opened(box))" in whole.code


def test_a_test_case_of_unittest(tmp_path):
    (found, *_) = written(tmp_path, "test_box", "assertEqual", unittest=True)
    assert (
        found.code == "import unittest\n\nself = unittest.TestCase()\nself.box = [1]\n\nself.assertEqual(self.box, [2])"
    )
    # Of the two functions of one name, the one whose code it is.
    line = TESTS.split("\n").index("    def test_raises(self):") + 1
    note = {"file": "tests/test_a.py", "first": line, "line": line + 1, "parameters": {}, "values": {}, "public": {}}
    (found, *_) = snippets(tmp_path, {**note, "unittest": True})
    assert found.expected == "ValueError"
    assert "self.box" not in found.code


def test_a_fixture_that_fails(tmp_path):
    (found,) = written(tmp_path, "test_texts", "", parameters={"text": "'b'"})
    assert found.statement == ""
    assert found.code.endswith("box = box()\nopened = next(opened(box))")
    assert ending(found.code) == ""


def test_what_cannot_be_written(tmp_path):
    assert written(tmp_path, "test_unknown", "assert capsys") == []
    assert written(tmp_path, "test_helper", "no such line") != []  # as if the setting had failed
    broken = {"file": "tests/none.py", "first": 1, "line": 2, "parameters": {}, "values": {}, "public": {}}
    assert list(snippets(tmp_path, {**broken, "unittest": False})) == []
    # What the fixture gave can be written, if its text can.
    kept = "def test_x(thing):\n    assert thing == 2\n"
    assert written(tmp_path, "test_x", "assert", kept, values={"thing": "<Thing>"}) == []
    (found,) = written(tmp_path, "test_x", "assert", kept, values={"thing": "[1]"})
    assert found.code == "thing = [1]\n\nassert thing == 2"


def test_an_import_from_where_a_user_takes_it(tmp_path):
    text = "from json.decoder import JSONDecodeError as E\n\ndef test_x():\n    assert E is None\n"
    (found,) = written(tmp_path, "test_x", "assert", text, public={"E": "json"})
    assert found.code == "from json import JSONDecodeError as E\n\nassert E is None"
    (found,) = written(tmp_path, "test_x", "assert", text)
    assert found.code == "from json.decoder import JSONDecodeError as E\n\nassert E is None"


@pytest.mark.parametrize(
    ("fixture", "code"),
    [
        ("def size():\n    return 9\n", "size = 2\n\nassert size == 3"),  # the parameter goes before the fixture
        ("def size(request):\n    return [request.param]\n", "size = [2]\n\nassert size == 3"),
    ],
)
def test_a_parameter_with_the_name_of_a_fixture(tmp_path, fixture, code):
    text = f"import pytest\n\n@pytest.fixture\n{fixture}\n\ndef test_x(size):\n    assert size == 3\n"
    values = {"size": "[2]" if "request" in fixture else "2"}
    (found,) = written(tmp_path, "test_x", "assert", text, parameters={"size": "2"}, values=values)
    assert found.code == code


def test_fixtures_of_a_conftest(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import math, pytest\n\n\n@pytest.fixture\ndef root():\n    return math.sqrt(4)\n"
    )
    (found,) = written(tmp_path, "test_x", "assert", "def test_x(root):\n    assert root == 3\n")
    assert found.code == "import math\n\ndef root():\n    return math.sqrt(4)\n\nroot = root()\n\nassert root == 3"
