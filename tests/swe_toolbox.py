"""A toolbox over a small tree, for the tests of the tools."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtmc.gymenvs.isolation.contract import Completed
from rtmc.gymenvs.swe.actions import ToolCall
from rtmc.gymenvs.swe.tools import Toolbox, ToolResult
from rtmc.gymenvs.swe.tree import WorkTree

Files = Mapping[str, str | bytes]


def no_process(command: str) -> Completed:
    raise AssertionError(f"a tool that starts no process ran {command!r}")


class Scripted:
    """A `run` that keeps what it was asked and gives one result."""

    def __init__(self, **result: Any) -> None:
        given = {"exit_code": 0, "stdout": "", "stderr": "", "timed_out": False, "stopped": None, "seconds": 0.1}
        self.result = Completed(**{**given, **result})
        self.commands: list[str] = []

    def __call__(self, command: str) -> Completed:
        self.commands.append(command)
        return self.result


@contextmanager
def tools(place: Path, files: Files, editor: str = "file_editor", **options: Any) -> Iterator["Bench"]:
    base = place / "base"
    base.mkdir(parents=True)
    for name, content in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    tree = WorkTree(base, layer="copy", place=place)
    try:
        yield Bench(tree, editor, Toolbox(tree, options.pop("run", no_process), editor=editor, **options))
    finally:
        tree.close()


class Bench:
    """A tree and its toolbox, with calls by keyword."""

    def __init__(self, tree: WorkTree, editor: str, box: Toolbox) -> None:
        self.tree = tree
        self.editor = editor
        self.box = box

    def call(self, name: str, **arguments: Any) -> ToolResult:
        return self.box.call(ToolCall(name, arguments))

    def say(self, name: str, **arguments: Any) -> str:
        """The observation without its frame."""
        frame = f"Execution output of [{name}]:\n"
        text = self.call(name, **arguments).text
        assert text.startswith(frame), text
        return text.removeprefix(frame)

    def edit(self, command: str, path: str, **arguments: Any) -> str:
        return self.say(self.editor, command=command, path=path, **arguments)

    def holds(self, path: str) -> bytes:
        return self.tree.read(path)
