"""The tool calls of a step, whatever syntax the model's message writes them in.

Understood are structured calls (chat format, Anthropic's `tool_use`), R2E-Gym's `<function=...>` text, `<tool_call>`
JSON, `<invoke name=...>` and `<execute_bash>` text, SWE-agent's `<command>`, fenced blocks (SWE-agent, mini-swe-agent),
search/replace blocks as aider writes them, Cline's tags, `*** Begin Patch` text, and a bare command line.

What this is not: a call is a name and arguments; what it does is for the readers of shell and editor commands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rtmc.signatures.edits import search_blocks
from rtmc.signatures.keys import word_set

if TYPE_CHECKING:
    from rtmc.rollouts import Step

# Names under which agents offer a shell; matched in lower case, without a prefix such as `functions.`.
SHELLS = word_set(
    "bash execute_bash shell sh terminal run_command run_shell_command run_terminal_cmd execute_command exec cmd "
    "run execute run_bash bash_command local_shell run_in_terminal run_terminal_command exec_command shell_command "
    "launch_process"
)
# Words in the names of other shells; such a tool takes a `command` and no file.
_SHELL_LIKE = re.compile(r"exec|shell|bash|terminal|process|command|(?:^|_)cmd")
# First words by which a line without any mark is taken for a command rather than prose, in this spelling only.
_COMMANDS = word_set(
    "awk bash cat cd chmod conda coverage cp curl diff echo egrep env export fgrep file find git grep head ls make "
    "mkdir mv nl nosetests patch perl pip pip3 poetry printf pushd pwd pytest py.test python python2 python3 rg rm "
    "sed sh sort source stat sudo tail tee timeout touch tox tree uv wc which xargs open goto scroll_up scroll_down "
    "create edit insert set_cursors search_dir search_file find_file get_symbols filemap submit exit "
    "str_replace_editor edit_anthropic view_map"
)
_SHELL_FENCES = ("bash", "sh", "shell", "console", "mswea_bash_command", "zsh")
# Longer messages hold a file; their beginning holds the call. What closes a tag is found by plain search: a text of a
# thousand opened tags must not cost a million steps.
_MAX_TEXT = 500_000
_FUNCTION = re.compile(r"<function\s*=\s*([^>]{1,200})>")
_PARAMETER = re.compile(r"<parameter\s*=\s*([^>]{1,200})>")
_INVOKE = re.compile(r"<(?:\w{1,20}:)?invoke name=\"([^\"]{1,200})\">")
_NAMED = re.compile(r"<(?:\w{1,20}:)?parameter name=\"([^\"]{1,200})\"[^>]{0,200}>")
_TOOL_CALL = re.compile(r"<(tool_call)>")
_COMMAND = re.compile(r"<(command)>\n?")
# Tools of Cline and Roo; `_CLINE_END` closes any of them.
_CLINE_TOOLS = (
    "write_to_file|replace_in_file|read_file|execute_command|search_files|list_files|list_code_definition_names"
    "|attempt_completion|apply_diff|insert_content|search_and_replace|ask_followup_question"
)
_CLINE = re.compile(rf"(?:\A|(?<=\n))[ \t]*<({_CLINE_TOOLS})>")
_CLINE_END = re.compile(rf"</(?:{_CLINE_TOOLS})>")
_TAG = re.compile(r"<([a-z_]{2,30})>")
_ANY_END = re.compile(r"</(?:\w{1,20}:)?(?:invoke|parameter)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the tool's name in lower case without its prefix, and its arguments."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def calls_of(step: Step) -> list[Call]:
    """The calls of a step in order; none = the model only thought aloud."""
    if step.tool_calls:
        return [_structured(call) for call in step.tool_calls]
    return calls_in_text(step.action)


def calls_in_text(text: str) -> list[Call]:
    """The calls written in a message's text. Of several readings the first that the text shows marks of counts."""
    text = text[:_MAX_TEXT].replace("\r\n", "\n")
    if "<" in text:
        found = _tagged(text)
        if found:
            return found
    if "*** Begin Patch" in text:
        patch = text[text.index("*** Begin Patch") :]
        return [Call("apply_patch", {"patch": patch.partition("*** End Patch")[0]})]
    if "```" in text:
        return _fenced(text)
    bare = text.strip()
    return [_shell(bare)] if _is_command(bare) else []


def _tags(text: str, opening: re.Pattern[str], closing: str | re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """(what the opening tag names, what it encloses) of each pair of tags; one not closed ends with the text."""
    at = 0
    while match := opening.search(text, at):
        if isinstance(closing, str):
            end = text.find(closing, match.end())
            at = end + len(closing)
        else:
            close = closing.search(text, match.end())
            end, at = (-1, 0) if close is None else (close.start(), close.end())
        if end < 0:
            yield match[1], text[match.end() :]
            return
        yield match[1], text[match.end() : end]


def _tagged(text: str) -> list[Call]:
    for name, body in _tags(text, _FUNCTION, "</function>"):  # R2E-Gym runs the first alone
        given = {key.strip(): value.strip("\n") for key, value in _tags(body, _PARAMETER, "</parameter>")}
        return [_named(name, given)]
    if "invoke name=" in text:
        starts = list(_INVOKE.finditer(text))
        ends = [m.start() for m in starts[1:]] + [len(text)]
        invoked = [(m[1], text[m.end() : end]) for m, end in zip(starts, ends, strict=True)]
        return [_named(name, {k: v.strip("\n") for k, v in _tags(body, _NAMED, _ANY_END)}) for name, body in invoked]
    calls = []
    for _, body in _tags(text, _TOOL_CALL, "</tool_call>"):
        try:
            calls.append(_structured(json.loads(body, strict=False)))
        except (ValueError, RecursionError):
            continue
    if calls:
        return calls
    for kind in ("bash", "ipython"):
        for _, body in _tags(text, re.compile(f"<execute_({kind})>"), f"</execute_{kind}>"):
            calls.append(_shell(body.strip()) if kind == "bash" else Call("ipython", {"code": body}))
    if calls:
        return calls
    for _, body in _tags(text, _COMMAND, "</command>"):
        return [_shell(body.strip("\n"))]
    return _cline(text) or (list(_blocks(text)) if " SEARCH\n" in text else [])


def _blocks(text: str) -> Iterator[Call]:
    """Search/replace blocks: the file's name on the line before (a fence may stand between)."""
    for path, old, new in search_blocks(text):
        yield Call("search_replace", {"path": path, "old_str": old, "new_str": new})


def _cline(text: str) -> list[Call]:
    """Tools as Cline and Roo write them: the tool's name is a tag, its arguments are tags in it."""
    for name, body in _tags(text, _CLINE, _CLINE_END):
        given = {key: value.strip("\n") for key, value in _arguments(body)}
        return [_named(name, given)]
    return []


def _arguments(body: str) -> Iterator[tuple[str, str]]:
    at = 0
    while match := _TAG.search(body, at):
        # What a file holds may have tags of its own: its own closing tag is the last one.
        close = f"</{match[1]}>"
        end = body.rfind(close) if match[1] in ("content", "diff") else body.find(close, match.end())
        if end < match.end():
            end = len(body)
        yield match[1], body[match.end() : end]
        at = end + len(close)


def _fenced(text: str) -> list[Call]:
    """The last block of a shell if one is marked so, else the last block without a language."""
    blocks: list[tuple[str, str]] = []
    kept: list[str] | None = None
    language = ""
    for line in text.split("\n"):
        if kept is None and line.startswith("```"):
            language, kept = line[3:].strip().lower(), []
        elif kept is not None and line.rstrip() == "```":
            blocks.append((language, "\n".join(kept)))
            kept = None
        elif kept is not None:
            kept.append(line)
    if kept is not None:  # never closed
        blocks.append((language, "\n".join(kept)))
    if not blocks:  # within a line
        blocks = [("", text.partition("```")[2].partition("```")[0])]
    marked = [body for language, body in blocks if language in _SHELL_FENCES]
    plain = [body for language, body in blocks if not language]
    return [_shell(body) for body in (marked or plain)[-1:] if body.strip()]


def _is_command(text: str) -> bool:
    """A line without marks that is a command: it starts with a known one and is not a sentence."""
    first, _, rest = text.partition("\n")
    words = first.split()
    script = words and words[0].startswith("./")
    loop = re.match(r"for \w+ in [^;\n]{1,500}[;\n]\s*do\b", text)
    if not words or not (words[0] in _COMMANDS or script or loop):
        return False
    prose = not rest and len(words) > 1 and re.search(r"[A-Za-z]{2}[.:!?]$", first) is not None
    return not prose and not (len(words) > 1 and words[1] in ("the", "a", "an", "this", "that", "sure", "it"))


def _shell(text: str) -> Call:
    return Call("bash", {"command": text})


def _structured(call: Any) -> Call:
    """Chat format, `{"name", "arguments"}` or Anthropic's `{"name", "input"}`."""
    if not isinstance(call, dict):
        return Call("unknown")
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    name = inner.get("name")
    arguments: Any = next((inner[key] for key in ("arguments", "input", "parameters", "args") if key in inner), {})
    if isinstance(arguments, str):
        written = arguments
        try:
            arguments = json.loads(written, strict=False)
        except (ValueError, RecursionError):
            if written.lstrip()[:1] in ("{", "["):  # cut off, or else no JSON: what was meant is not known
                return Call("unparsed", {"text": f"{name} {written}"})
            arguments = {"text": written}
    if not isinstance(arguments, dict):
        arguments = {"text": arguments}
    return _named(name if isinstance(name, str) else str(function or "unknown"), arguments)


def _is_text(arguments: dict[str, Any], names: tuple[str, ...]) -> bool:
    return any(isinstance(arguments.get(name), (str, list)) and arguments[name] for name in names)


def _named(name: str, arguments: dict[str, Any]) -> Call:
    """The call under a plain name; a shell's always as `bash` with `command`."""
    short = re.split(r"[.:/]|__", name.strip())[-1].lower().replace("-", "_") or "unknown"
    alike = _SHELL_LIKE.search(short) and "path" not in arguments and _is_text(arguments, ("command", "cmd"))
    if short in SHELLS or alike:
        names = ("command", "cmd", "script", "input", "code", "text")
        command: Any = next((arguments[k] for k in names if k in arguments), "")
        if "path" in arguments and command in ("view", "create", "str_replace"):
            return Call("str_replace_editor", arguments)
        if isinstance(command, list):
            words = [str(word) for word in command]
            if len(words) > 2 and words[0].rpartition("/")[2] in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc"):
                return _shell(words[2])
            command = shlex.join(words)
        return _shell(command if isinstance(command, str) else str(command))
    return Call(short, arguments)
