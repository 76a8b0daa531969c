"""R2E-Gym's search: its messages to the letter, and what it counts against `grep`."""

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.tools import ToolLimits
from rtmc.gymenvs.swe.tools.results import CLIPPED
from tests.swe_toolbox import tools

FILES = {
    "a.py": "import os\nx = os.path\nos.path; os.path\n",
    "pkg/b.py": "from os.path import join",
    "pkg/c.txt": "os.path",
    "pkg/z.py": "nothing\n",
    ".hidden/d.py": "os.path",
    "pkg/.e.py": "os.path",
    "bin.py": b"os.path\0",
    "bad.py": b"os.path \xff\n",
    "crlf.py": b"os.path\r\n\r\n",
    "re.py": "a.c\nabc\n[x](*)\n",
}


@pytest.fixture
def bench(tmp_path):
    with tools(tmp_path, FILES) as bench:
        yield bench


def test_a_folder(bench):
    assert bench.say("search", search_term="os.path") == (
        'Found 5 matches for "os.path" in /testbed:\n./a.py (2 matches)\n./bad.py (1 matches)\n./crlf.py (1 matches)\n'
        './pkg/b.py (1 matches)\nEnd of matches for "os.path" in /testbed'
    )
    below = 'Found 1 matches for "os.path" in /testbed/pkg:\n./pkg/b.py (1 matches)\n'
    below += 'End of matches for "os.path" in /testbed/pkg'
    for path in ("/testbed/pkg", "pkg", "./pkg/", "/testbed/pkg/../pkg"):
        assert bench.say("search", search_term="os.path", path=path) == below
    assert "./pkg/c.txt (1 matches)" in bench.say("search", search_term="os.path", python_only="false")
    found = bench.call("search", search_term="os.path")
    assert found.viewed == (("a.py", ()), ("bad.py", ()), ("crlf.py", ()), ("pkg/b.py", ()))
    assert found.kind == "search"


def test_a_file(bench):
    said = bench.say("search", search_term="os.path", path="/testbed/a.py")
    assert said == 'Matches for "os.path" in /testbed/a.py:\n2:x = os.path\n3:os.path; os.path'
    assert bench.call("search", search_term="os.path", path="a.py").viewed == (("a.py", ((2, 2), (3, 3))),)
    assert bench.say("search", search_term="x", path="pkg/c.txt") == 'No matches found for "x" in /testbed/pkg/c.txt'
    assert (
        bench.say("search", search_term="os.path", path="bad.py")
        == 'Matches for "os.path" in /testbed/bad.py:\n1:os.path \ufffd'
    )
    assert "is binary" in bench.say("search", search_term="os.path", path="bin.py")
    # Literally, not as a pattern.
    assert bench.say("search", search_term="a.c", path="re.py").endswith(":\n1:a.c")
    assert bench.say("search", search_term="[x](*)", path="re.py").endswith(":\n3:[x](*)")


def test_refusals(bench):
    assert bench.say("search", search_term="nowhere") == 'No matches found for "nowhere" in /testbed'
    assert bench.say("search", search_term="os\nx") == 'No matches found for "os\nx" in /testbed'
    assert bench.say("search", search_term="a", path="no") == "Directory '/testbed/no' not found or not a directory."
    assert (
        bench.say("search", search_term="a", path="a.py/b")
        == "Directory '/testbed/a.py/b' not found or not a directory."
    )
    assert "lies outside of /testbed" in bench.say("search", search_term="root", path="/etc")
    for arguments in ({}, {"search_term": ""}, {"search_term": None}):
        assert "'search_term' is required" in bench.say("search", **arguments)
    assert "Unknown parameter 'term' of search" in bench.say("search", term="a")
    assert "expected a text, got a number" in bench.say("search", search_term=3)
    assert "NUL byte" in bench.say("search", search_term="a", path="\0")
    assert (
        bench.call("search", search_term="a", path="no").error
        == "Directory '/testbed/no' not found or not a directory."
    )


def test_many_files_and_long_lines(tmp_path):
    files = {f"d{number // 50}/f{number}.py": "needle\n" for number in range(101)}
    with tools(tmp_path, {**files, "long.py": "thread" * 5_000 + "\n" + "thread\n" * 50}) as bench:
        many = 'More than 101 files matched for "needle" in /testbed. Please narrow your search.'
        assert bench.say("search", search_term="needle") == many
        assert bench.say("search", search_term="needle", path="d0").startswith(
            'Found 50 matches for "needle" in /testbed/d0:'
        )
        said = bench.say("search", search_term="thread", path="long.py")
        assert said == ('Matches for "thread" in /testbed/long.py:\n1:' + "thread" * 5_000)[:10_000] + CLIPPED
        assert bench.say("search", search_term="y" * 1_000_000).count("y") < 3_000


def test_bounds(tmp_path):
    files = {f"f{number:02}.py": "needle\n" for number in range(30)}
    limits = ToolLimits(search_files=10, search_bytes=70, file_bytes=50)
    with tools(tmp_path, {**files, "f000.py": "needle" * 9}, limits=limits) as bench:
        said = bench.say("search", search_term="needle")
        # Seven bytes a file; the first, of 54, is too large to be read but is one of the ten.
        assert said.startswith('Found 9 matches for "needle" in /testbed:\n./f00.py')
        assert said.endswith("Only 10 files were searched; there are more. Please narrow your search.")
    with tools(tmp_path / "b", files, limits=ToolLimits(search_bytes=70)) as bench:
        assert bench.say("search", search_term="needle").startswith("Found 10 matches")


def test_links_pipes_and_odd_names(tmp_path):
    with tools(
        tmp_path,
        {"a.py": "needle\n", "new\nline.py": "needle", b"\xff.py".decode("utf-8", "surrogateescape"): "needle"},
    ) as bench:
        root = bench.tree.root
        (tmp_path / "secret.py").write_text("needle")
        (root / "out.py").symlink_to(tmp_path / "secret.py")
        (root / "folder").symlink_to(tmp_path)
        (root / "again").symlink_to(".")
        (root / "twice.py").symlink_to("a.py")
        os.mkfifo(root / "pipe.py")
        said = bench.say("search", search_term="needle")
        assert said.startswith('Found 3 matches for "needle" in /testbed:')
        assert {"./a.py (1 matches)", "./\ufffd.py (1 matches)"} <= set(said.split("\n"))
        said.encode()
        assert "lies outside" in bench.say("search", search_term="needle", path="out.py")
        assert "pipe" in bench.say("search", search_term="needle", path="pipe.py")


LINES = st.lists(st.text("ab.*[ \t", max_size=6), max_size=12)


@settings(deadline=None, max_examples=25)
@given(LINES, st.text("ab.*[ ", min_size=1, max_size=3))
def test_as_grep_finds_them(tmp_path_factory, lines, term):
    text = "\n".join(lines)
    with tools(tmp_path_factory.mktemp("grep"), {"a.py": text}) as bench:
        out = subprocess.run(
            ["grep", "-nF", "--", term, bench.tree.root / "a.py"], capture_output=True, text=True
        ).stdout
        title = f'Matches for "{term}" in /testbed/a.py:\n'
        expected = title + out.rstrip() if out else f'No matches found for "{term}" in /testbed/a.py'
        assert bench.say("search", search_term=term, path="a.py") == expected
        count = out.count("\n")
        if count:
            assert f"./a.py ({count} matches)" in bench.say("search", search_term=term)
