"""R2E-Gym's file editor: its messages to the letter, worked by hand, against `cat -n` and `find`."""

import subprocess

import pytest

from rtmc.gymenvs.swe.tools.results import CLIPPED
from tests.swe_toolbox import tools

A = "".join(f"line {number}\n" for number in range(1, 21))
AFTER = "Review the changes and make sure they are as expected. Edit the file again if necessary."
AFTER_INSERT = (
    "Review the changes and make sure they are as expected (correct indentation, no duplicate lines, etc). "
    "Edit the file again if necessary."
)


@pytest.fixture
def bench(tmp_path):
    files = {
        "a.py": A,
        "empty.py": "",
        "pkg/b.py": "x = 1",
        "pkg/deep/er/c.py": "",
        "pkg/data.json": "{}",
        "README.md": "hi\n",
        ".hidden/d.py": "",
        "pkg/.e.py": "",
    }
    with tools(tmp_path, files) as bench:
        yield bench


def cat_n(text, first=1, last=None):
    """Lines as the program `cat -n` numbers them."""
    out = subprocess.run(["cat", "-n"], input=text, capture_output=True, text=True, check=True).stdout
    return "\n".join(out.splitlines()[first - 1 : last])


def test_view(bench):
    shown = "Here's the result of running `cat -n` on the file: /testbed/a.py:\n"
    every = [f"{number:6d} line {number}" for number in range(1, 21)]
    assert bench.edit("view", "/testbed/a.py") == shown + "\n".join(every)
    assert bench.edit("view", "a.py", view_range="[3, 5]") == shown.replace("/testbed/", "") + "\n".join(every[2:5])
    assert bench.edit("view", "/testbed//./a.py", view_range=[18, -1]) == shown + "\n".join(every[17:])
    assert bench.edit("view", "/testbed/empty.py") == shown.replace("a.py", "empty.py")
    assert bench.call("file_editor", command="view", path="a.py", view_range="[3, 5]").viewed == (("a.py", ((3, 5),)),)
    assert bench.call("file_editor", command="view", path="empty.py").viewed == (("empty.py", ()),)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([0, 5], "start line must be in [1, 20]"),
        ([-3, 5], "start line must be in [1, 20]"),
        ([21, -1], "start line must be in [1, 20]"),
        ([10**12, 10**13], "start line must be in [1, 20]"),
        ([5, 3], "end must be >= start and <= 20, or -1 to view until end."),
        ([5, 21], "end must be >= start and <= 20, or -1 to view until end."),
        ([5, -2], "end must be >= start and <= 20, or -1 to view until end."),
    ],
)
def test_ranges_out_of_the_file(bench, asked, what):
    said = bench.edit("view", "/testbed/a.py", view_range=str(asked))
    assert said == f"\nERROR: Invalid view_range {asked}: {what}"


@pytest.mark.parametrize(
    "asked", ["[1]", "1", "[1, 2, 3]", "a", "[1.5, 2]", [1, "x"], [1], {"a": 1}, 7, True, "9" * 99]
)
def test_ranges_that_are_none(bench, asked):
    said = bench.edit("view", "/testbed/a.py", view_range=asked)
    assert said.startswith("ERROR: Invalid view_range ")
    assert said.endswith(": expected two whole numbers, [first line, last line].")


def test_a_folder_is_listed_as_find_does(bench):
    options = ["-maxdepth", "2", "-not", "-path", "*/.*", "(", "-type", "d", "-o", "-name", "*.py", ")"]
    root = str(bench.tree.root)
    found = subprocess.run(["find", root, *options], capture_output=True, text=True, check=True).stdout.split()
    said = bench.edit("view", "/testbed")
    title, *names = said.split("\n")
    assert title == "Here's the files and directories up to 2 levels deep in /testbed, excluding hidden:"
    assert sorted(names) == sorted(name.replace(root, "/testbed") for name in found)
    assert names == [
        "/testbed",
        "/testbed/a.py",
        "/testbed/empty.py",
        "/testbed/pkg",
        "/testbed/pkg/b.py",
        "/testbed/pkg/deep",
    ]
    assert bench.edit("view", "pkg").split("\n")[1:] == ["pkg", "pkg/b.py", "pkg/deep", "pkg/deep/er"]
    assert "pkg/data.json" in bench.edit("view", "pkg", python_only="false")


def test_other_files_than_pythons_are_not_shown(bench):
    refusal = (
        "\nERROR: ERROR: Viewing non-Python files is disallowed for saving context. File 'README.md' is not a .py file."
    )
    assert bench.edit("view", "/testbed/README.md") == refusal
    assert bench.edit("view", "/testbed/README.md", python_only=False).endswith(":\n     1 hi")


def test_long_output_is_clipped(tmp_path):
    text = "".join(f"x{number} = {number}\n" for number in range(3000))
    with tools(tmp_path, {"a.py": text, "b.txt": text}) as bench:
        whole = "Here's the result of running `cat -n` on the file: a.py:\n"
        whole += "\n".join(f"{number:6d} {line}" for number, line in enumerate(text.splitlines(), 1))
        said = bench.edit("view", "a.py", view_range="[1, -1]")
        assert said == whole[:10_000] + CLIPPED
        last = int(said.removesuffix(CLIPPED).splitlines()[-1].split()[0])
        assert bench.call("file_editor", command="view", path="a.py", view_range="1 -1").viewed == (
            ("a.py", ((1, last),)),
        )
        # An edit's answer clips the text before it is numbered.
        said = bench.edit("create", "c.txt", file_text=text)
        assert said.startswith(
            "File created at c.txt. Here's the result of running `cat -n` on c.txt:\n     1\tx0 = 0\n"
        )
        assert said.endswith(
            CLIPPED + "\nReview the file and make sure that it is as expected. Edit the file if necessary."
        )
        assert bench.holds("c.txt").decode() == text


CONDENSED = '''\
"""Doc."""


class A(Base):
    """Long
    doc
    string
    of a class
    """

    def one(self):
        return 1

    def long(self, a):
        """Says."""
        b = a
        c = b
        return c

    async def longer(self):
        def inner():
            a = 1
            b = 2
            c = 3
            return a

        return inner
'''


def test_a_condensed_view(tmp_path):
    filler = "".join(f"v{number} = {number}\n" for number in range(90))
    with tools(
        tmp_path, {"a.py": CONDENSED, "b.py": CONDENSED + filler, "c.py": filler * 2, "bad.py": "x = (\n" * 120}
    ) as bench:
        shown = bench.edit("view", "/testbed/a.py", concise="True").split("\n")
        lines = CONDENSED.split("\n")
        assert shown[0] == (
            "Here is a condensed view for file: /testbed/a.py; [Note: Useful for understanding file structure in a "
            "concise manner. Please use specific view_range without concise cmd if you want to explore further into "
            "the relevant parts.]"
        )
        expected = [f"{number:6d} {lines[number - 1]}" for number in (1, 2, 3, 4, 5)]
        expected += ["     6 ... eliding lines 6-8 ..."]
        expected += [f"{number:6d} {lines[number - 1]}" for number in (9, 10, 11, 12, 13, 14)]
        expected += ["    15 ... eliding lines 15-18 ..."]
        expected += [f"{number:6d} {lines[number - 1]}" for number in (19, 20)]
        expected += ["    21 ... eliding lines 21-27 ...", "    22 ... eliding lines 22-25 ..."]
        assert shown[1:] == expected
        viewed = bench.call("file_editor", command="view", path="/testbed/a.py", concise=True).viewed
        assert viewed == (("a.py", ((1, 5), (9, 14), (19, 20))),)
        # 117 lines: condensed unless a range is asked for; 110 lines are shown.
        assert "... eliding lines 15-18 ..." in bench.edit("view", "b.py")
        assert "    16         b = a" in bench.edit("view", "b.py", view_range="[1, -1]")
        ranged = bench.edit("view", "b.py", view_range="[14, 117]", concise="true")
        assert ranged.split("\n")[1:3] == ["    14     def long(self, a):", "    15 ... eliding lines 15-18 ..."]
        assert ranged.endswith("   117 v89 = 89")
        assert bench.edit("view", "c.py").startswith("Here is a condensed view")
        assert bench.edit("view", "bad.py").startswith("ERROR: Syntax error for file bad.py: ")
        assert bench.edit("view", "bad.py", view_range="[1, 2]").endswith("\n     1 x = (\n     2 x = (")


@pytest.mark.parametrize("lines", [110, 111])
def test_where_a_view_begins_to_be_condensed(tmp_path, lines):
    with tools(tmp_path, {"a.py": "x = 1\n" * lines}) as bench:
        assert bench.edit("view", "a.py").startswith("Here is a condensed view") == (lines > 110)


@pytest.mark.parametrize("editor", ["condensed", "linted"])
@pytest.mark.parametrize(
    "text",
    [
        "-" * 100_000 + "1",
        "1" + "+1" * 100_000,
        "x" + ".a" * 100_000,
        "(" * 100_000,
        "lambda:" * 50_000,
        "'\\d'\n" * 10,
    ],
    ids=["unary", "binary", "attributes", "brackets", "lambdas", "escapes"],
)
def test_texts_that_are_hard_to_parse(tmp_path, text, editor):
    with tools(tmp_path, {"a.py": f"{text}\n", "b.py": "x\n"}) as bench:
        if editor == "condensed":
            said = bench.edit("view", "a.py", concise=True)
            assert said.startswith(("ERROR: Syntax error for file a.py: ", "Here is a condensed view for file: a.py"))
        else:
            said = bench.edit("str_replace", "b.py", old_str="x", new_str=text, enable_linting=True)
            assert said.startswith(("\nERROR: Your proposed edit has introduced", "The file b.py has been edited."))


def test_very_long_files_are_not_parsed(tmp_path):
    text = "def f():\n" + "    a = 1\n" * 45_000
    with tools(tmp_path, {"a.py": text}) as bench:
        assert bench.edit("view", "a.py", concise=True).startswith("Here's the result of running `cat -n` on the file")
        said = bench.edit("insert", "a.py", insert_line=0, new_str="x = 1", enable_linting=True)
        assert said.startswith("ERROR: The file would have 450015 characters; ")
        assert bench.holds("a.py").decode() == text


def test_a_condensed_view_of_bytes_that_are_no_utf8(tmp_path):
    with tools(tmp_path, {"a.py": b"# caf\xe9\n" + b"x = 1\n" * 120}) as bench:
        assert bench.edit("view", "a.py").startswith("Here is a condensed view for file: a.py")


@pytest.mark.parametrize("body", [3, 4])
def test_which_bodies_are_left_out(tmp_path, body):
    with tools(tmp_path, {"a.py": "def f():\n" + "    a = 1\n" * body}) as bench:
        assert ("eliding" in bench.edit("view", "a.py", concise=True)) == (body == 4)


def test_create(bench):
    said = bench.edit("create", "/testbed/pkg/new.py", file_text="a = 1\n\tb\n")
    listing = "     1\ta = 1\n     2\t        b\n     3\t\n"
    assert said == (
        f"File created at /testbed/pkg/new.py. Here's the result of running `cat -n` on /testbed/pkg/new.py:\n{listing}"
        "Review the file and make sure that it is as expected. Edit the file if necessary."
    )
    assert bench.holds("pkg/new.py") == b"a = 1\n\tb\n"
    exists = "ERROR: File already exists at: {}. Cannot overwrite with 'create'."
    assert bench.edit("create", "/testbed/pkg/new.py", file_text="") == exists.format("/testbed/pkg/new.py")
    assert bench.edit("create", "/testbed/pkg", file_text="") == exists.format("/testbed/pkg")
    assert bench.edit("create", "b.py") == "ERROR: Cannot create file without 'file_text' parameter."
    missing = "ERROR: Error creating file at no/b.py: [Errno 2] No such file or directory: 'no/b.py'"
    assert bench.edit("create", "no/b.py", file_text="x") == missing
    missing = "ERROR: Error creating file at a.py/b.py: [Errno 20] Not a directory: 'a.py/b.py'"
    assert bench.edit("create", "a.py/b.py", file_text="x") == missing
    assert "lies outside of /testbed" in bench.edit("create", "/tmp/b.py", file_text="x")
    assert bench.edit("create", "e.py", file_text="").startswith("File created at e.py. ")
    assert bench.holds("e.py") == b""


def test_str_replace(bench):
    said = bench.edit("str_replace", "/testbed/a.py", old_str="line 10\n", new_str="ten\nTEN\n")
    now = A.replace("line 10\n", "ten\nTEN\n")
    assert said == (
        "The file /testbed/a.py has been edited. Here's the result of running `cat -n` on a snippet of /testbed/a.py:\n"
        f"{cat_n(now, 6, 16)}\n{AFTER}"
    )
    assert bench.holds("a.py").decode() == now
    # At the beginning, without `new_str`: what is there of the context.
    said = bench.edit("str_replace", "a.py", old_str="line 1\nline 2\n")
    assert f":\n     1\tline 3\n     2\tline 4\n     3\tline 5\n     4\tline 6\n     5\tline 7\n{AFTER}" in said
    viewed = bench.call("file_editor", command="str_replace", path="a.py", old_str="TEN", new_str="X").viewed
    assert viewed == (("a.py", ((5, 13),)),)


def test_str_replace_refusals(bench):
    assert bench.edit("str_replace", "/testbed/a.py", old_str="nine", new_str="9") == (
        "ERROR: No occurrences of 'nine' found in /testbed/a.py for replacement."
    )
    assert bench.edit("str_replace", "a.py", old_str="line 2", new_str="") == (
        "ERROR: Multiple occurrences of 'line 2' found in a.py. Please ensure it is unique before using str_replace."
    )
    assert bench.edit("str_replace", "a.py", old_str="", new_str="x") == (
        "ERROR: Multiple occurrences of '' found in a.py. Please ensure it is unique before using str_replace."
    )
    assert bench.edit("str_replace", "empty.py", old_str="", new_str="x") == (
        "ERROR: No occurrences of '' found in empty.py for replacement."
    )
    assert bench.edit("str_replace", "a.py") == "ERROR: Missing required parameter 'old_str' for 'str_replace'."
    assert bench.edit("str_replace", "pkg", old_str="a") == (
        "ERROR: The path 'pkg' is a directory. Only 'view' can be used on directories."
    )
    assert bench.edit("str_replace", "no.py", old_str="a") == "ERROR: The path 'no.py' does not exist."
    assert bench.edit("str_replace", "a.py/x", old_str="a") == "ERROR: The path 'a.py/x' does not exist."
    said = bench.edit("str_replace", "a.py", old_str="y" * 1_000_000)
    assert len(said) < 2_200
    assert "998000 characters left out" in said
    assert bench.holds("a.py").decode() == A
    # The original takes the same text for an edit.
    assert bench.edit("str_replace", "a.py", old_str="line 3", new_str="line 3").startswith(
        "The file a.py has been edited."
    )


@pytest.mark.parametrize(
    ("line", "now", "shown"),
    [
        (0, "new\n1\n2\n3\n4\n5\n6\n", (1, 5)),
        (3, "1\n2\n3\nnew\n4\n5\n6\n", (1, 8)),
        (6, "1\n2\n3\n4\n5\n6\nnew\n", (3, 8)),
        # behind the last line, which has no end: as `"\n".join` of the lines has it
        (7, "1\n2\n3\n4\n5\n6\n\nnew", (4, 8)),
    ],
)
def test_insert(tmp_path, line, now, shown):
    with tools(tmp_path, {"a.py": "1\n2\n3\n4\n5\n6\n"}) as bench:
        said = bench.edit("insert", "/testbed/a.py", insert_line=str(line), new_str="new")
        rows = [f"{number:6}\t{text}" for number, text in enumerate(now.split("\n"), 1)][shown[0] - 1 : shown[1]]
        assert said == (
            "The file /testbed/a.py has been edited. "
            "Here's the result of running `cat -n` on a snippet of the edited file:\n"
            + "\n".join(rows)
            + f"\n{AFTER_INSERT}"
        )
        assert bench.holds("a.py").decode() == now


def test_insert_refusals(bench):
    assert (
        bench.edit("insert", "a.py", insert_line=22, new_str="x")
        == "ERROR: Invalid insert_line 22. Must be in [0, 21]."
    )
    assert (
        bench.edit("insert", "a.py", insert_line="-1", new_str="x")
        == "ERROR: Invalid insert_line -1. Must be in [0, 21]."
    )
    assert bench.edit("insert", "a.py", insert_line=1) == "ERROR: Missing required parameter 'new_str' for 'insert'."
    assert bench.edit("insert", "a.py", new_str="x") == "ERROR: Missing required parameter 'insert_line' for 'insert'."
    for wrong in ("one", "1.5", 1.5, 1e300, True, [1], "9" * 40, 10**20):
        said = bench.edit("insert", "a.py", insert_line=wrong, new_str="x")
        assert said.startswith("ERROR: Invalid insert_line ")
        assert said.endswith(": expected a whole number.")
    assert bench.holds("a.py").decode() == A
    assert bench.edit("insert", "empty.py", insert_line=" 0 ", new_str="x").startswith("The file empty.py")
    assert bench.holds("empty.py") == b"x\n"


def test_undo(bench):
    bench.edit("str_replace", "/testbed/a.py", old_str="line 10\n", new_str="")
    bench.edit("insert", "a.py", insert_line=0, new_str="top")
    once = bench.edit("undo_edit", "/testbed/a.py")
    now = A.replace("line 10\n", "")
    assert once == (
        "Last edit to /testbed/a.py undone successfully. Here's the result of running `cat -n` on /testbed/a.py:\n"
        f"{cat_n(now)}\n    20\t"
    )
    assert bench.holds("a.py").decode() == now
    assert bench.edit("undo_edit", "a.py").startswith("Last edit to a.py undone successfully.")
    assert bench.holds("a.py").decode() == A
    assert bench.edit("undo_edit", "a.py") == "ERROR: No previous edits found for a.py to undo."


def test_undo_brings_back_what_was_saved(bench):
    """Also where a command changed the file since; after `create`, the empty file."""
    bench.edit("str_replace", "a.py", old_str="line 10\n", new_str="")
    bench.tree.write("a.py", b"written by a command\n")
    bench.edit("undo_edit", "a.py")
    assert bench.holds("a.py").decode() == A
    bench.edit("create", "new.py", file_text="x = 1\n")
    bench.edit("undo_edit", "new.py")
    assert bench.holds("new.py") == b""
    bench.edit("create", "gone.py", file_text="x = 1\n")
    bench.tree.remove("gone.py")
    assert bench.edit("undo_edit", "gone.py") == "ERROR: The path 'gone.py' does not exist."


def test_linting(bench):
    lint = {"command": "str_replace", "path": "pkg/b.py", "old_str": "x = 1", "new_str": "x = ("}
    said = bench.say("file_editor", enable_linting="true", **lint)
    assert said.startswith(
        "\nERROR: Your proposed edit has introduced new syntax error(s).\n"
        "Please read this error message carefully and then retry editing the file.\nERRORS:\n"
        "'(' was never closed (b.py, line 1)"
    )
    assert bench.holds("pkg/b.py") == b"x = 1"
    assert (
        bench.call("file_editor", command="undo_edit", path="pkg/b.py").error
        == "No previous edits found for pkg/b.py to undo."
    )
    assert bench.edit("create", "c.py", file_text="(", enable_linting=True).startswith("\nERROR: Your proposed edit")
    assert (
        bench.edit("insert", "a.txt", insert_line=0, new_str="(", enable_linting=True)
        == "ERROR: The path 'a.txt' does not exist."
    )
    assert bench.say("file_editor", enable_linting="false", **lint).startswith("The file pkg/b.py has been edited.")


def test_commands_and_parameters(bench):
    allowed = "Allowed commands: view, create, str_replace, insert, undo_edit."
    assert bench.edit("open", "a.py") == f"ERROR: Unrecognized command 'open'. {allowed}"
    assert bench.say("file_editor", path="a.py") == f"ERROR: Missing required parameter 'command'. {allowed}"
    assert bench.say("file_editor", command="view") == "ERROR: Missing required parameter 'path' for 'view'."
    assert bench.edit("view", "  ") == "ERROR: Missing required parameter 'path' for 'view'."
    said = bench.edit("view", "a.py", line=3)
    assert said.startswith(
        "ERROR: Unknown parameter 'line' of file_editor. Allowed parameters: command, path, file_text,"
    )
    assert bench.edit("view", 5) == "ERROR: Invalid path 5: expected a text, got a number."
    assert (
        bench.edit("create", "n.py", file_text=["a"]) == "ERROR: Invalid file_text ['a']: expected a text, got a list."
    )
    assert bench.edit("view", "a.py", concise="maybe") == "ERROR: Invalid concise 'maybe': expected true or false."
    assert "half of a surrogate pair" in bench.edit("create", "n.py", file_text="\ud800")
    assert "NUL byte" in bench.edit("view", "a\0.py")
    assert bench.edit("view", "a.py", view_range=None, old_str=None).startswith("Here's the result")
    assert bench.edit("view", "a" * 5000).startswith("ERROR: The path 'aaa")
