"""What the agent is told of its tools: help texts for a prompt, and JSON schemas for a chat template."""

from __future__ import annotations

from typing import Any

from rtmc.gymenvs.swe.actions import FINISH_LINE, SYNTAXES, ToolCall, write_action
from rtmc.gymenvs.swe.tools.parameters import TOOLS, Parameter

EDITORS = ("file_editor", "str_replace_editor")
_FORMS = {
    "r2e": "In each message, think, and then make exactly one call, as the last thing, in this form:",
    "tools": "In each message, think, and then make exactly one tool call, as JSON in this form:",
    "bash": "In each message, think, and then give exactly one command, in one block of this form:",
}
_VALUES = {
    "r2e": " White space at the ends of a value is dropped, and a value cannot hold `</parameter>`.",
    "tools": "",
    "bash": "",
}
_BASH = (
    "The command runs in a new shell in the repository's root; you see its exit code and output as JSON. Only files "
    "stay from one command to the next. There is no network and no input; a command that runs too long is stopped. "
    f"When the work is done, give the command `echo {FINISH_LINE}` and no other: it ends the task."
)


def tool_names(syntax: str, editor: str = "file_editor") -> tuple[str, ...]:
    """The tools that an agent has.

    Raises:
        ValueError: the syntax or the editor is unknown.
    """
    if syntax not in SYNTAXES:
        raise ValueError(f"tools: syntax={syntax!r} is none of {', '.join(map(repr, SYNTAXES))}")
    if editor not in EDITORS:
        raise ValueError(f"tools: editor={editor!r} is none of {', '.join(map(repr, EDITORS))}")
    return ("bash",) if syntax == "bash" else (editor, "search", "execute_bash", "finish")


def tool_help(syntax: str = "r2e", editor: str = "file_editor", inside: str = "/testbed") -> str:
    """How to act, for the prompt: the tools with their parameters, and the form of a call.

    Args:
        syntax: `r2e`, `tools` or `bash`.
        editor: `file_editor` or `str_replace_editor`.
        inside: where the agent sees the repository.

    Raises:
        ValueError: the syntax or the editor is unknown.
    """
    names = tool_names(syntax, editor)
    if syntax == "bash":
        return f"{_FORMS[syntax]}\n\n{write_action(ToolCall('bash', {'command': 'ls -la'}), syntax)}\n\n{_BASH}"
    example = ToolCall(editor, {"command": "view", "path": inside})
    parts = [f"{_FORMS[syntax]}\n\n{write_action(example, syntax)}\n\nOnly one call is carried out.{_VALUES[syntax]}"]
    parts += [TOOL_HELP[name] for name in names]
    return "\n\n".join(parts)


def tool_schemas(syntax: str = "tools", editor: str = "file_editor") -> list[dict[str, Any]]:
    """The tools as JSON schemas, in the form that OpenAI's API and chat templates (`tools=`) take."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": TOOLS[name].help,
                "parameters": {
                    "type": "object",
                    "properties": {key: _schema(value) for key, value in TOOLS[name].parameters.items()},
                    "required": [key for key, value in TOOLS[name].parameters.items() if value.required],
                },
            },
        }
        for name in tool_names(syntax, editor)
    ]


def _schema(parameter: Parameter) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "flag": {"type": "boolean"},
        "range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    }
    choices = {"enum": list(parameter.choices)} if parameter.choices else {}
    return {**kinds[parameter.kind], "description": parameter.help, **choices}


def _help(name: str) -> str:
    tool = TOOLS[name]
    rows = [f"{name}: {tool.help}"]
    rows += [
        f"- {key} ({value.kind}{', required' if value.required else ''}): {value.help}"
        for key, value in tool.parameters.items()
    ]
    return "\n".join(rows)


TOOL_HELP: dict[str, str] = {name: _help(name) for name in TOOLS}
