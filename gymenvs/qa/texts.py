"""What the environment says, in Search-R1's form or plainly.

Search-R1's own texts are the frame of its results and its notice of an invalid action: programs that read such logs
know them by these words (Jin et al., Search-R1, 2025).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from rtmc.gymenvs.qa.retrieval.base import Passage

OBSERVATIONS = ("search-r1", "plain")
REPEATED = "This was searched for before; the results are the same."
NOTHING_FOUND = "No results found."
SEARCH_FAILED = "Error: the search failed; no results were received."
NO_MATCH = "No results: the keyword is in none of the passages seen so far."
NO_MORE = "No more results: the keyword was looked up to the end."
# Punctuation of prose says nothing in a query; signs do: C++ is no C#.
_PROSE = str.maketrans("", "", "".join(set(string.punctuation) - set("#$%&*+/<=>@\\^|~")))
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_INVALID_R1 = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_TASK = {
    "tags": (
        "Find the answer to the question at the end. In each message, think first, between <think> and </think>. "
        "Then either search, with one query between <search> and </search>: the passages found come back between "
        "<information> and </information>. Or, once you know it, give the answer between <answer> and </answer>: "
        "a few words, nothing else."
    ),
    "tools": (
        "Find the answer to the question at the end. In each message, make one call on a line of its own: "
        "search(query) finds passages, lookup(keyword) shows the next sentence with the keyword in the passages seen, "
        "finish(answer) gives the answer, a few words, and ends."
    ),
}


def opening(question: str, form: str, instructions: bool, turns: int) -> str:
    """The first observation."""
    asked = f"Question: {question}\n"
    return f"{_TASK[form]} You have {turns} messages.\n{asked}" if instructions else asked


def passages_text(passages: Iterable[Passage], limit: int | None, notice: str = "") -> str:
    """`Doc 1(Title: "Velmar") text` a line, after the notice; texts cut to `limit` characters."""
    lines = [f"Doc {number}(Title: {one.heading}) {cut(one.text, limit)}" for number, one in enumerate(passages, 1)]
    return "\n".join([*([notice] if notice else []), *(lines or [NOTHING_FOUND])])


def query_form(query: str) -> str:
    """What a query is known by in keys: lower case, without articles and the punctuation of prose, single spaces.

    Signs such as `+`, `#`, `&` stay. Where nothing would be left, articles and then punctuation stay too, so that it is
    empty for blanks alone.
    """
    lower = query.lower()
    bare = lower.translate(_PROSE)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join(bare.split()) or " ".join(lower.split())


def cut(text: str, limit: int | None) -> str:
    """The text, or its beginning up to a word's end and `...`: at most `limit` characters in all."""
    if limit is None or len(text) <= limit:
        return text
    kept = text[: limit - 3]
    within = not (text[limit - 3].isspace() or kept[-1].isspace())
    if within and len(kept.split(None, 1)) > 1:
        kept = kept.rsplit(None, 1)[0]
    return kept.rstrip() + "..."


def result(text: str, observation: str) -> str:
    """What a search or a lookup brought, in its frame."""
    return f"\n\n<information>{text.strip()}</information>\n\n" if observation == "search-r1" else text


def invalid(reason: str, observation: str, form: str) -> str:
    """The notice of an invalid action. Search-R1's is for its tags alone; tool calls are told what is wrong."""
    return _INVALID_R1 if observation == "search-r1" and form == "tags" else f"Invalid action: {reason}."


def sentences_with(keyword: str, passages: Iterable[Passage]) -> list[tuple[str, str]]:
    """(title, sentence) of every sentence that holds the keyword, letter case apart."""
    wanted = keyword.lower()
    return [
        (one.title, sentence.strip())
        for one in passages
        if wanted in one.text.lower()
        for sentence in re.split(r"(?<=[.!?])\s+", one.text)
        if wanted in sentence.lower()
    ]
