"""SWE-agent's editor: its messages to the letter, worked by hand."""

import pytest

from rtmc.gymenvs.swe.tools.results import CLIPPED
from tests.swe_toolbox import tools

A = "".join(f"line {number}\n" for number in range(1, 21))
AFTER = "Review the changes and make sure they are as expected. Edit the file again if necessary."


@pytest.fixture
def bench(tmp_path):
    files = {"a.py": A, "empty.py": "", "pkg/b.txt": "x = 1", "pkg/deep/er/c.py": "", ".hidden/d.py": ""}
    with tools(tmp_path, files, editor="str_replace_editor") as bench:
        yield bench


def rows(text, first, last):
    return "\n".join(
        f"{number:6}\t{line}" for number, line in enumerate(text.split("\n"), 1) if first <= number <= last
    )


def test_view(bench):
    shown = "Here's the result of running `cat -n` on /testbed/a.py:\n"
    # The last line end begins a line here, unlike in R2E-Gym's editor.
    assert bench.edit("view", "/testbed/a.py") == shown + rows(A, 1, 21)
    assert bench.edit("view", "/testbed/a.py", view_range=[3, 5]) == shown + rows(A, 3, 5)
    assert bench.edit("view", "/testbed/a.py", view_range="[20, -1]") == shown + rows(A, 20, 21)
    assert bench.edit("view", "/testbed/empty.py") == shown.replace("a.py", "empty.py") + "     1\t"
    assert bench.edit("view", "/testbed/pkg/b.txt").endswith(":\n     1\tx = 1")
    folder = "Here's the files and directories up to 2 levels deep in /testbed/pkg, excluding hidden items:\n"
    assert (
        bench.edit("view", "/testbed/pkg")
        == folder + "/testbed/pkg\n/testbed/pkg/b.txt\n/testbed/pkg/deep\n/testbed/pkg/deep/er"
    )
    viewed = bench.call("str_replace_editor", command="view", path="/testbed/a.py", view_range=[3, 5]).viewed
    assert viewed == (("a.py", ((3, 5),)),)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([0, 5], "Its first element `0` should be within the range of lines of the file: [1, 21]"),
        ([-1, 5], "Its first element `-1` should be within the range of lines of the file: [1, 21]"),
        ([22, -1], "Its first element `22` should be within the range of lines of the file: [1, 21]"),
        ([5, 22], "Its second element `22` should be smaller than the number of lines in the file: `21`"),
        ([5, 3], "Its second element `3` should be larger or equal than its first `5`"),
        ([5, -2], "Its second element `-2` should be larger or equal than its first `5`"),
    ],
)
def test_ranges(bench, asked, what):
    assert bench.edit("view", "/testbed/a.py", view_range=asked) == f"Invalid `view_range`: {asked}. {what}"


def test_paths(bench):
    relative = "The path {} is not an absolute path, it should start with `/`. Maybe you meant /testbed/{}?"
    assert bench.edit("view", "pkg/b.txt") == relative.format("pkg/b.txt", "pkg/b.txt")
    assert bench.edit("view", "./a.py") == relative.format("a.py", "a.py")
    assert bench.edit("view", "~/a.py") == relative.format("~/a.py", "~/a.py")
    gone = "The path /testbed/no.py does not exist. Please provide a valid path."
    assert bench.edit("view", "/testbed/no.py") == gone
    assert bench.edit("undo_edit", "/testbed/no.py") == gone
    folder = "The path /testbed/pkg is a directory and only the `view` command can be used on directories"
    assert bench.edit("str_replace", "/testbed/pkg", old_str="a") == folder
    assert bench.edit("view", "/testbed/pkg", view_range=[1, 2]) == (
        "The `view_range` parameter is not allowed when `path` points to a directory."
    )
    assert bench.edit("view", "/etc/passwd") == (
        "The path '/etc/passwd' lies outside of /testbed. Only files under it can be used."
    )
    assert bench.edit("fly", "/testbed/a.py") == (
        "Unrecognized command fly. The allowed commands for the str_replace_editor tool are: "
        '"view", "create", "str_replace", "insert", "undo_edit"'
    )
    assert bench.say("str_replace_editor", command="view") == "Parameter `path` is required for command: view"


def test_create_and_undo(bench):
    said = bench.edit("create", "/testbed/pkg/new.py", file_text="a = 1\n")
    assert said == "File created successfully at: /testbed/pkg/new.py"
    assert bench.holds("pkg/new.py") == b"a = 1\n"
    for path in ("/testbed/pkg/new.py", "/testbed/pkg"):
        exists = f"File already exists at: {path}. Cannot overwrite files using command `create`."
        assert bench.edit("create", path, file_text="") == exists
    assert bench.edit("create", "/testbed/n.py") == "Parameter `file_text` is required for command: create"
    for parent in ("/testbed/no", "/testbed/a.py"):
        said = bench.edit("create", f"{parent}/b.py", file_text="")
        assert said == f"The parent directory {parent} does not exist. Please create it first."
    # `create` saved the created text, as in the original: undoing leaves it, and then there is nothing left to undo.
    bench.edit("str_replace", "/testbed/pkg/new.py", old_str="1", new_str="2")
    undone = "Last edit to /testbed/pkg/new.py undone successfully. "
    undone += "Here's the result of running `cat -n` on /testbed/pkg/new.py:\n"
    for _ in range(2):
        assert bench.edit("undo_edit", "/testbed/pkg/new.py") == f"{undone}     1\ta = 1\n     2\t"
        assert bench.holds("pkg/new.py") == b"a = 1\n"
    assert bench.edit("undo_edit", "/testbed/pkg/new.py") == "No edit history found for /testbed/pkg/new.py."


def test_str_replace(bench):
    said = bench.edit("str_replace", "/testbed/a.py", old_str="line 10\n", new_str="ten\nTEN\n")
    now = A.replace("line 10\n", "ten\nTEN\n")
    title = (
        "The file /testbed/a.py has been edited. Here's the result of running `cat -n` on a snippet of /testbed/a.py:\n"
    )
    assert said == f"{title}{rows(now, 6, 16)}\n{AFTER}"
    assert bench.holds("a.py").decode() == now


def test_str_replace_refusals(bench):
    def said(old, new=None):
        return bench.edit("str_replace", "/testbed/a.py", old_str=old, new_str=new)

    nothing = "No replacement was performed"
    assert said("nine") == f"{nothing}, old_str `nine` did not appear verbatim in /testbed/a.py."
    many = "{}. Multiple occurrences of old_str `{}` in lines {}. Please ensure it is unique"
    assert said("line 2") == many.format(nothing, "line 2", [2, 20])
    assert said("2\n") == many.format(nothing, "2\n", [2, 12])
    assert said("\nline 1") == many.format(nothing, "\nline 1", list(range(9, 19)))
    assert said("") == many.format(nothing, "", list(range(1, 22)))
    assert said("line 3\n", "line 3\n") == f"{nothing}, old_str `line 3\n` is the same as new_str `line 3\n`."
    missing = "Parameter `old_str` is required for command: str_replace"
    assert bench.edit("str_replace", "/testbed/a.py") == missing
    assert bench.edit("str_replace", "/testbed/empty.py", old_str="") == (
        f"{nothing}, old_str `` did not appear verbatim in /testbed/empty.py."
    )


def test_tabs_are_expanded_for_the_search_and_kept_in_the_file(tmp_path):
    text = "all:\n\tcc  a\tb\n\n  \tx\n"
    with tools(tmp_path, {"Makefile": text}, editor="str_replace_editor") as bench:
        path = "/testbed/Makefile"
        assert bench.edit("view", path).split("\n")[2] == "     2\t        cc  a   b"
        # As seen in the view, with spaces; elsewhere the tabs stay.
        bench.edit("str_replace", path, old_str="        cc  a   b", new_str="\tld a\tb")
        assert bench.holds("Makefile") == b"all:\n\tld a\tb\n\n  \tx\n"
        # A part of a tab: the rest of it stays as spaces.
        bench.edit("str_replace", path, old_str="    ld", new_str="cc")
        assert bench.holds("Makefile") == b"all:\n    cc a\tb\n\n  \tx\n"
        # One that ends within a tab, too.
        bench.edit("str_replace", path, old_str="cc a  ", new_str="x")
        assert bench.holds("Makefile") == b"all:\n    x      b\n\n  \tx\n"
        bench.edit("undo_edit", path)
        assert bench.edit("undo_edit", path).startswith("Last edit")
        assert bench.holds("Makefile") == b"all:\n\tld a\tb\n\n  \tx\n"
        same = bench.edit("str_replace", path, old_str="\tld a\tb", new_str="        ld a    b")
        assert "is the same as new_str" in same


def test_insert(bench):
    said = bench.edit("insert", "/testbed/a.py", insert_line=2, new_str="new")
    now = "line 1\nline 2\nnew\n" + A.removeprefix("line 1\nline 2\n")
    assert said == (
        "The file /testbed/a.py has been edited. "
        "Here's the result of running `cat -n` on a snippet of the edited file:\n"
        f"{rows(now, 1, 7)}\nReview the changes and make sure they are as expected "
        "(correct indentation, no duplicate lines, etc). Edit the file again if necessary."
    )
    assert bench.holds("a.py").decode() == now
    for line in (-1, 23):
        said = bench.edit("insert", "/testbed/a.py", insert_line=line, new_str="x")
        where = f"{line}. It should be within the range of lines of the file: [0, 22]"
        assert said == f"Invalid `insert_line` parameter: {where}"
    required = "Parameter `{}` is required for command: insert"
    assert bench.edit("insert", "/testbed/a.py", new_str="x") == required.format("insert_line")
    assert bench.edit("insert", "/testbed/a.py", insert_line=1) == required.format("new_str")


def test_long_views_are_clipped(tmp_path):
    text = "".join(f"x{number} = {number}\n" for number in range(3000))
    with tools(tmp_path, {"a.py": text}, editor="str_replace_editor") as bench:
        said = bench.edit("view", "/testbed/a.py")
        kept = text[:16_000] + CLIPPED
        assert said == "Here's the result of running `cat -n` on /testbed/a.py:\n" + rows(kept, 1, 5000)
        viewed = bench.call("str_replace_editor", command="view", path="/testbed/a.py").viewed
        assert viewed == (("a.py", ((1, text[:16_000].count("\n") + 1),)),)
