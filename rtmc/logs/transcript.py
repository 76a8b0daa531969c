"""Texts that a chat template has made of a conversation, taken apart into messages again.

What this is not: a template engine. The role markers of ChatML (`<|im_start|>role`) and of Llama 3
(`<|start_header_id|>role<|end_header_id|>`) are known; a text without them is left whole.
"""

from __future__ import annotations

import re

_MARKER = re.compile(
    r"<\|im_start\|>\s*(?P<chatml>system|user|assistant|tool)[ \t]*\n?"
    r"|<\|start_header_id\|>(?P<llama>system|user|assistant|tool|ipython)<\|end_header_id\|>\n*"
)
_END = re.compile(r"<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|begin_of_text)\|>")
_ROLE = {"ipython": "tool"}


def is_templated(text: str) -> bool:
    """Whether the text has role markers."""
    return _MARKER.search(text) is not None


def messages_of(text: str) -> list[dict[str, str]]:
    """The messages of a templated text. Text before the first marker is taken for the user's."""
    found = list(_MARKER.finditer(text))
    messages = []
    head = _END.sub("", text[: found[0].start()] if found else text)
    if head.strip():
        messages.append({"role": "user", "content": head.strip("\n")})
    ends = [marker.start() for marker in found[1:]] + [len(text)]
    for marker, end in zip(found, ends, strict=True):
        role = marker["chatml"] or marker["llama"]
        content = _END.sub("", text[marker.end() : end]).rstrip("\n")
        messages.append({"role": _ROLE.get(role, role), "content": content})
    return messages


def without_ends(text: str) -> str:
    """The text without the markers that end a turn or the text."""
    return _END.sub("", text)


def last_turn(text: str) -> tuple[str, str]:
    """(what stands before, text of the last `assistant` turn) where the text has markers; else ("", text)."""
    turns = [marker for marker in _MARKER.finditer(text) if (marker["chatml"] or marker["llama"]) == "assistant"]
    if not turns:
        return "", text
    return text[: turns[-1].start()], text[turns[-1].end() :]
