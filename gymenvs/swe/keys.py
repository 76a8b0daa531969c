"""What state and action keys are made of: calls as the tools understand them, and what an agent has seen.

Two calls that a tool cannot tell apart have one key, however they are written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from rtmc.gymenvs.swe.actions import Invalid, ToolCall
from rtmc.gymenvs.swe.paths import TreeFolder
from rtmc.gymenvs.swe.tools import ToolResult
from rtmc.gymenvs.swe.tools.parameters import ALIASES, checked
from rtmc.gymenvs.swe.tools.results import ToolError
from rtmc.gymenvs.swe.tools.search import settled

_BUCKET = 100  # lines of a view that count as one thing seen
_LONGEST_PATH = 200  # characters of a path that a key shows


class CallKey(NamedTuple):
    """`digest`: a hash of the call, `-` where the message is none; `place`: the path that it names, or ""."""

    digest: str
    place: str


def key_of(call: ToolCall | Invalid, tree: TreeFolder) -> CallKey:
    """The key of a call that is about to be made on the tree as it is."""
    if not isinstance(call, ToolCall):
        return CallKey("-", "")
    name = ALIASES.get(call.name, call.name)
    try:
        arguments = checked(name, call.arguments)
    except (KeyError, ToolError):  # no such tool, or a call that it refuses
        arguments = call.arguments
    else:
        arguments = settled(tree, arguments) if name == "search" else arguments
    path = arguments.get("path")
    place = path if isinstance(path, str) and len(path) <= _LONGEST_PATH else ""
    return CallKey(short_hash(json.dumps([name, arguments], sort_keys=True, ensure_ascii=True)), place)


def action_key(call: ToolCall | Invalid, key: CallKey, result: ToolResult) -> str:
    """The kind of what was done, the path, and the hash of the call; `finish` and what is no call are all one."""
    if not isinstance(call, ToolCall):
        return "invalid"
    if result.kind == "finish":
        return result.kind
    return f"{result.kind}{':' if key.place else ''}{key.place}#{key.digest}"


def sights(result: ToolResult) -> Iterable[str]:
    """What a result showed of files: blocks of lines, or a file's name alone."""
    for path, ranges in result.viewed:
        blocks = {block for first, last in ranges for block in range((first - 1) // _BUCKET, (last - 1) // _BUCKET + 1)}
        yield from (f"view:{path}#{block}" for block in blocks) if blocks else (f"view:{path}",)


def short_hash(text: str) -> str:
    """16 hexadecimals."""
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
