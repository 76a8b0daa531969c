"""The toolbox: frames, forks, what the agent is told, and whatever an agent writes."""

import json
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.actions import CONTINUE_MSG, ToolCall, read_action, write_action
from rtmc.gymenvs.swe.paths import NoAccess
from rtmc.gymenvs.swe.tools import EDITORS, TOOL_HELP, Toolbox, ToolLimits, tool_help, tool_names, tool_schemas
from rtmc.gymenvs.swe.tools.results import CLIPPED
from tests.swe_toolbox import Scripted, tools


@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("syntax", ["r2e", "tools"])
def test_frames(tmp_path, syntax, editor):
    with tools(tmp_path, {"a.py": "x = 1\n"}, editor=editor, syntax=syntax) as bench:

        def answer(name, **arguments):
            return bench.box.answer(write_action(ToolCall(name, arguments), syntax))

        view = answer(editor, command="view", path="/testbed/a.py", view_range=[1, 1])
        assert view.text.startswith(f"Execution output of [{editor}]:\nHere's the result of running `cat -n` on ")
        assert (view.kind, view.error, view.exit_code, view.finished) == ("view", None, None, False)
        for name in ("finish", "submit"):
            done = answer(name, command="submit", result="fixed", more="x")
            assert (done.text, done.finished, done.kind) == ("<<< Finished >>>", True, "finish")
        other = next(name for name in EDITORS if name != editor)
        unknown = answer(other, command="view", path="/testbed/a.py")
        assert unknown.kind == "invalid"
        assert unknown.text == (
            f"Execution output of [{other}]:\nInvalid Action: input action must be one of allowed actions \n "
            f"Allowed actions: ['{editor}', 'search', 'execute_bash', 'finish'] \n Input action: {other}\t"
        )
        invalid = bench.box.answer("I am done.")
        assert invalid.kind == "invalid"
        assert (invalid.text == CONTINUE_MSG) == (syntax == "r2e")


def test_options(tmp_path):
    with tools(tmp_path, {}) as bench:
        with pytest.raises(ValueError, match="syntax='xml' is none of 'r2e', 'tools', 'bash'"):
            Toolbox(bench.tree, print, "xml")
        with pytest.raises(ValueError, match="editor='vim' is none of 'file_editor', 'str_replace_editor'"):
            Toolbox(bench.tree, print, editor="vim")
    with pytest.raises(ValueError, match="command_lines = 0: want a positive number"):
        ToolLimits(command_lines=0)


@pytest.mark.parametrize("editor", EDITORS)
def test_forks(tmp_path, editor):
    with tools(tmp_path, {"a.py": "x = 1\n"}, editor=editor) as bench:
        path = "/testbed/a.py"
        bench.edit("str_replace", path, old_str="1", new_str="2")
        saved = pickle.loads(pickle.dumps(bench.box.snapshot()))
        tree = bench.tree.snapshot()
        bench.edit("str_replace", path, old_str="2", new_str="3")
        bench.edit("undo_edit", path)
        bench.edit("undo_edit", path)
        assert bench.call(editor, command="undo_edit", path=path).error
        bench.tree.restore(tree)
        bench.box.restore(saved)
        assert "undone successfully" in bench.edit("undo_edit", path)
        assert bench.holds("a.py") == b"x = 1\n"
        assert bench.box.snapshot() == ()
        assert len(saved) == 1  # immutable: the fork's undo did not empty it


def test_the_history_is_bounded(tmp_path):
    limits = ToolLimits(undo_steps=3)
    with tools(tmp_path, {"a.py": "0\n", "b.py": "x" * 100}, limits=limits) as bench:
        for number in range(5):
            bench.edit("str_replace", "a.py", old_str=str(number), new_str=str(number + 1))
        for number in (4, 3, 2):
            bench.edit("undo_edit", "a.py")
            assert bench.holds("a.py") == f"{number}\n".encode()
        assert bench.edit("undo_edit", "a.py") == "ERROR: No previous edits found for a.py to undo."
    with tools(tmp_path / "b", {"a.py": "0\n"}, limits=ToolLimits(undo_bytes=10)) as bench:
        bench.edit("create", "b.py", file_text="x")
        bench.edit("str_replace", "a.py", old_str="0", new_str="1")
        assert sum(len(packed) for _, packed in bench.box.snapshot()) <= 10


@pytest.mark.parametrize("error", [NoAccess("d", "is not accessible"), OSError(5, "Input/output error", "/host/place")])
def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch, error):
    """Root reads every folder, so the refusal is put in the tree's place."""

    def walk(*_, **__):
        raise error

    with tools(tmp_path, {"d/a.py": ""}) as bench:
        monkeypatch.setattr(bench.tree, "walk", walk)
        for said in (bench.edit("view", "d"), bench.say("search", search_term="x", path="d")):
            assert said.startswith("ERROR: The path ")
            assert said.endswith(("is not accessible.", "cannot be used: Input/output error."))
            assert "/host" not in said


# What the agent is told


@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("syntax", ["r2e", "tools", "bash"])
def test_schemas_and_help(syntax, editor):
    names = tool_names(syntax, editor)
    schemas = tool_schemas(syntax, editor)
    assert [schema["function"]["name"] for schema in schemas] == list(names)
    assert json.loads(json.dumps(schemas)) == schemas
    text = tool_help(syntax, editor, inside="/repo")
    for schema in schemas:
        parameters = schema["function"]["parameters"]
        assert schema["type"] == "function"
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert all(
            value["type"] in ("string", "integer", "boolean", "array") for value in parameters["properties"].values()
        )
        if syntax != "bash":
            assert all(f"- {name} (" in TOOL_HELP[schema["function"]["name"]] for name in parameters["properties"])
            assert TOOL_HELP[schema["function"]["name"]] in text
    # The example in the help is a call that the syntax reads.
    assert isinstance(read_action(text, syntax), ToolCall) or syntax == "tools"
    assert ("/repo" in text) == (syntax != "bash")


# Whatever an agent writes

NAMES = st.sampled_from(["file_editor", "str_replace_editor", "search", "execute_bash", "bash", "finish", "é", ""])
KEYS = st.sampled_from(
    [
        "command",
        "path",
        "file_text",
        "old_str",
        "new_str",
        "insert_line",
        "view_range",
        "concise",
        "python_only",
        "enable_linting",
        "search_term",
        "cmd",
        "more",
    ]
)
ODD = [
    "view",
    "create",
    "str_replace",
    "insert",
    "undo_edit",
    "/testbed",
    "/testbed/a.py",
    "a.py",
    "b\n.py",
    "..",
    "/testbed/../..",
    "~",
    "\0",
    "\ud800",
    "[1, 2]",
    "[2, 1]",
    "-1",
    "true",
    "x",
    "",
    "/" * 5000,
    "a/" * 3000,
]
VALUE = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=5),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.lists(st.integers(-3, 9) | st.text(max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
COMMAND = st.sampled_from(ODD[:5])


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    run = Scripted(stdout="\x1b[0m\ud800out", stderr="err")
    opened = [
        tools(
            tmp_path_factory.mktemp("fuzz") / name,
            {"a.py": "x = 1\ny\t= 2\n", "b\n.py": b"\xff\r\n", "d/e.py": ""},
            editor=name,
            run=run,
        )
        for name in EDITORS
    ]
    benches = [bench.__enter__() for bench in opened]
    yield [bench.box for bench in benches] + [Toolbox(benches[0].tree, run, "bash")]
    for bench in opened:
        bench.__exit__(None, None, None)


@settings(deadline=None, max_examples=400)
@given(NAMES, st.dictionaries(KEYS, VALUE, max_size=5), st.none() | COMMAND)
@example("file_editor", {"path": "a.py", "view_range": [1, 10**400]}, "view")
@example("file_editor", {"path": "a.py", "insert_line": float("inf"), "new_str": ""}, "insert")
@example("search", {"search_term": "x", "path": "\ud800"}, None)
def test_no_call_raises(boxes, name, arguments, command):
    if command:
        arguments = {**arguments, "command": command}
    for box in boxes:
        before = pickle.dumps(box.snapshot())
        result = box.call(ToolCall(name, arguments))
        assert isinstance(result.text, str)
        result.text.encode()
        assert "\x1b[0m" not in result.text  # a sequence; an escape alone, as an argument may hold it, is a character
        assert len(result.text) < 30_000
        assert result.text.strip() or result.finished
        assert result.kind in (
            "view",
            "create",
            "str_replace",
            "insert",
            "undo_edit",
            "search",
            "bash",
            "finish",
            "invalid",
        )
        if result.error is not None:
            assert result.error.strip()
            assert pickle.dumps(box.snapshot()) == before  # a refused call leaves nothing to undo


@settings(deadline=None, max_examples=200)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "<function=file_editor>",
                "<parameter=command>",
                "view",
                "</parameter>",
                "<parameter=path>",
                "a.py",
                "</function>",
                "```bash\n",
                "\n```",
                "{",
                "}",
                '"name"',
                ":",
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_no_message_raises(boxes, message):
    for box in boxes:
        assert box.answer(message).text.strip()


def test_the_note_is_the_originals():
    assert CLIPPED.startswith(
        "<response clipped><NOTE>To save on context only part of this file has been shown to you."
    )
