"""Tools of many agents by what they do: known by name, or told by their arguments."""

import pytest

from tests.swe_replays import call
from tests.test_signatures_swe import NONE, of

P = "/testbed/src/a.py"
A = "src/a.py"

KNOWN = [
    # Claude Code
    ("view:full@src/a.py", "Read", {"file_path": P}),
    ("view:partial[0]@src/a.py", "read", {"filePath": P, "offset": 10, "limit": 20}),
    ("create@src/a.py", "Write", {"file_path": P, "content": "x"}),
    ("modify:replace@src/a.py", "Edit", {"file_path": P, "old_string": "a", "new_string": "b"}),
    ("search@.", "Glob", {"pattern": "**/*.py"}),
    ("search@src", "Grep", {"pattern": "x", "path": "src"}),
    ("think", "TodoWrite", {"todos": []}),
    ("execute:task@.:ok", "Task", {"prompt": "x"}),
    # Codex
    ("view:full@src/a.py", "exec_command", {"cmd": f"cat {A}", "workdir": "/testbed"}),
    ("view:full@src/a.py", "shell_command", {"command": f"cat {A}"}),
    ("view:full@src/a.py", "container.exec", {"cmd": ["bash", "-lc", f"cat {A}"]}),
    ("think", "update_plan", {"plan": []}),
    # Gemini
    ("view:full@src/a.py", "read_file", {"absolute_path": P}),
    ("search@.", "search_file_content", {"pattern": "x"}),
    ("view:full@src/a.py", "read_many_files", {"paths": [A]}),
    ("search@src", "list_directory", {"dir_path": "src"}),
    # Moatless
    ("view:partial[0-1]@src/a.py", "ViewCode", {"files": [{"file_path": A, "start_line": 5, "end_line": 120}]}),
    ("create@src/a.py", "CreateFile", {"path": A, "file_text": "x"}),
    ("modify:insert@src/a.py", "AppendString", {"path": A, "new_str": "x"}),
    ("modify:insert@src/a.py", "InsertLines", {"path": A, "insert_line": 3, "new_str": "x"}),
    ("modify:replace@src/a.py", "StringReplace", {"path": A, "old_str": "a", "new_str": "b"}),
    ("search@.", "FindFunction", {"function_name": "f"}),
    ("search@.", "FindClass", {"class_name": "C"}),
    ("search@.", "FindCodeSnippet", {"code_snippet": "x"}),
    ("search@.", "SemanticSearch", {"query": "x"}),
    ("search@src", "ListFiles", {"directory": "src"}),
    ("test@tests/test_a.py", "RunTests", {"test_files": ["tests/test_a.py"]}),
    ("finish", "VerifiedFinish", {"finish_reason": "x"}),
    # trae
    ("think", "sequentialthinking", {"thought": "x"}),
    ("finish", "task_done", {}),
    ("modify:replace@src/a.py", "json_edit_tool", {"operation": "set", "file_path": P, "json_path": "$.a", "value": 1}),
    # Augment
    ("view:full@src/a.py", "launch-process", {"command": f"cat {A}"}),
    ("create@src/a.py", "save-file", {"path": A, "file_content": "x"}),
    (
        "modify:replace@src/a.py",
        "str-replace-editor",
        {"command": "str_replace", "path": A, "old_str": "a", "new_str": "b"},
    ),
    # others
    ("modify:replace@src/a.py", "edit_lines", {"path": A, "start_line": 3, "end_line": 4, "new_content": "x"}),
    ("create@src/a.py", "new_file", {"path": A, "content": "x"}),
    ("fileop:move@src/a.py", "move_file", {"source": A, "destination": "src/b.py"}),
    ("view:full@src/a.py", "get_file_contents", {"path": A}),
    ("fileop:delete@src/a.py", "delete_file", {"target_file": A}),
    ("search@.", "get_repo_structure", {}),
]
UNKNOWN = [
    ("modify:replace@src/a.py", "acme_swap", {"path": A, "old_text": "a", "new_text": "b"}),
    ("modify:replace@src/a.py", "change_range", {"file": A, "start": 3, "end": 4, "content": "x"}),
    ("modify:replace@src/a.py", "update_document", {"path": A, "content": "x"}),
    ("modify:insert@src/a.py", "prepend_text", {"path": A, "text": "x", "line": 0}),
    ("create@src/a.py", "make_or_write_text", {"path": A, "content": "x"}),
    ("view:full@src/a.py", "show_document", {"path": A}),
    ("view:partial[1]@src/a.py", "fetch_lines", {"path": A, "start_line": 120, "end_line": 130}),
    ("search@src", "tree_of", {"path": "src"}),
    ("search@.", "lookup_symbol", {"symbol": "f"}),
    ("search@src", "seek_find", {"path": "src", "query": "x"}),
    ("fileop:delete@src/a.py", "unlink_path", {"path": A}),
    ("fileop:copy@src/a.py", "copy_path", {"source": A, "destination": "b.py"}),
    ("view:full@src/a.py", "acme_shell", {"command": f"cat {A}"}),
    ("think", "ponder", {"thought": "x"}),
    # what no argument tells stays an execution under its name
    ("execute:web_search@.:ok", "web_search", {"query": "x"}),
    ("execute:open_browser_url@.:ok", "open_browser_url", {"url": "x"}),
    ("execute:frobnicate@src/a.py:ok", "frobnicate", {"path": A}),
    ("execute:frobnicate@.:ok", "frobnicate", {"level": 3}),
]


@pytest.mark.parametrize(("key", "name", "arguments"), KNOWN + UNKNOWN)
def test_what_a_tool_does(key, name, arguments):
    assert of((call(name, **arguments), "ok"), prompt="The repository is in /testbed.", hash_chars=0)[1] == [key]


def test_edits_of_line_ranges_are_those_of_text():
    shown = ("cat -n a.py", "     1\ta\n     2\tb\n     3\tc")
    forms = [
        call("edit_lines", path="a.py", start_line=2, end_line=2, new_content="B"),
        call("edit_file", path="a.py", start=2, end=2, content="B"),
        call("acme_range", file="a.py", start_line="2", end_line="2", content="B", mode="edit"),
        call("edit", path="a.py", old_str="b", new_str="B"),
        call("acme_swap", file_path="a.py", old_str="b", new_str="B"),
    ]
    assert len({of(shown, (form, "ok"))[1][1] for form in forms}) == 1


def test_files_that_are_looked_at_together():
    states, _ = of((call("ViewCode", files=[{"file_path": "a.py"}, {"file_path": "b.py", "start_line": 3}]), "x"))
    assert states[-1] == f"a.py:Vf|b.py:V[0-end]|{NONE}"


# SWE-agent's editor with cursors, whose answers mark where they are.

START, END = '"<<<<< START CURSOR >>>>>"', '"<<<<< END CURSOR >>>>>"'


def window(*lines, first=1, marked=None, total=None):
    shown = [f"[File: /r/a.py ({total or len(lines)} lines total)]"]
    for number, line in enumerate(lines, first):
        shown += [START] if marked and number == marked[0] else []
        shown.append(f"{number}:{line}")
        shown += [END] if marked and number == marked[1] else []
    return "\n".join(shown)


def edit(text):
    return f"edit\n{text}\nend_of_edit"


CURSORS = {
    "marked": [
        ("create a.py", window("", marked=(1, 1))),
        (edit("x = 1\ny = 2"), window("x = 1", "y = 2", marked=(1, 2)) + "\nFile updated."),
        (edit("x = 1\ny = 3"), window("x = 1", "y = 3", marked=(1, 2)) + "\nFile updated."),
    ],
    "set": [
        ("create a.py", window("")),
        ("set_cursors 1 1", window("")),
        (edit("x = 1\ny = 2"), window("x = 1", "y = 2") + "\nFile updated."),
        (edit("x = 1\ny = 3"), window("x = 1", "y = 3") + "\nFile updated."),
    ],
    "neither": [
        ("create a.py", window("")),
        (edit("x = 1\ny = 2"), window("x = 1", "y = 2") + "\nFile updated."),
        (edit("x = 1\ny = 3"), window("x = 1", "y = 3") + "\nFile updated."),
    ],
    "refused between": [
        ("create a.py", window("", marked=(1, 1))),
        (edit("x = 1\ny = 2"), window("x = 1", "y = 2", marked=(1, 2)) + "\nFile updated."),
        (edit("x ="), "Your proposed edit has introduced new syntax error(s).\n" + window("x =", marked=(1, 1))),
        (edit("x = 1\ny = 3"), window("x = 1", "y = 3", marked=(1, 2)) + "\nFile updated."),
    ],
}


@pytest.mark.parametrize("form", CURSORS)
def test_cursors_are_where_the_answer_marks_them(form):
    ranges = [
        ("create a.py", window("")),
        ("edit 1:1\nx = 1\ny = 2\nend_of_edit", window("x = 1", "y = 2") + "\nFile updated."),
        ("edit 1:2\nx = 1\ny = 3\nend_of_edit", window("x = 1", "y = 3") + "\nFile updated."),
    ]
    expected = of(*ranges)
    states, actions = of(*CURSORS[form])
    assert actions[-1] == expected[1][-1]
    assert expected[1][1:] == ["modify:insert:c690@a.py", "modify:replace:5874@a.py"]
    assert list(dict.fromkeys(states)) == expected[0]


def test_marked_cursors_within_a_window():
    steps = [
        ("open a.py 300", window("a", "b", "c", "d", first=300, marked=(301, 302), total=900)),
        (edit("B"), window("a", "B", "d", first=300, marked=(301, 301), total=899) + "\nFile updated."),
        (edit("b"), window("a", "b", "d", first=300, marked=(301, 301), total=899) + "\nFile updated."),
    ]
    _, actions = of(*steps)
    ranged = [steps[0], ("edit 301:302\nB\nend_of_edit", steps[1][1]), ("edit 301:301\nb\nend_of_edit", steps[2][1])]
    assert actions == of(*ranged)[1]
