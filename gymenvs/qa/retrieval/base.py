"""What a retriever is: passages, hits, the protocol, and the one error that a search may end in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable


class RetrievalError(RuntimeError):
    """A search failed: no connection, no time left, or an answer that is none. The message says which, in a line."""


class Passage(NamedTuple):
    """One passage of a corpus. `contents` is its heading, a line end, and its text, as Search-R1's corpora have it.

    In those corpora the heading is the title in double quotes, and it is shown so.
    """

    id: str
    contents: str

    @property
    def heading(self) -> str:
        """The first line, as it is written."""
        return self.contents.partition("\n")[0]

    @property
    def title(self) -> str:
        """The heading without the quotes around it."""
        heading = self.heading.strip()
        return heading[1:-1] if len(heading) > 1 and heading[0] == heading[-1] == '"' else heading

    @property
    def text(self) -> str:
        """All after the first line."""
        return self.contents.partition("\n")[2]

    @classmethod
    def made(cls, id: str, title: str, text: str) -> Passage:
        """A passage whose heading is the quoted title."""
        return cls(id, f'"{" ".join(title.split())}"\n{text}')


class Hit(NamedTuple):
    """A passage found, and its score: the higher the better."""

    passage: Passage
    score: float


@runtime_checkable
class Retriever(Protocol):
    """Anything that searches. An environment calls it with one query at a time, a server with several."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query at most `k` hits, best first; fewer, or none, where less was found.

        Raises:
            RetrievalError: the search failed. Anything else that is raised counts as a fault of the retriever.
        """


def checked_hits(answer: Any, queries: int) -> list[list[Hit]]:
    """A retriever's answer, once it is seen to be one.

    Raises:
        RetrievalError: it is not `queries` lists of hits.
    """
    if not isinstance(answer, (list, tuple)) or len(answer) != queries:
        got = f"{len(answer)} entries" if isinstance(answer, (list, tuple)) else type(answer).__name__
        raise RetrievalError(f"the retriever gave {got} for {queries} queries; wanted a list of hits for each")
    for hits in answer:
        if not isinstance(hits, (list, tuple)) or not all(_is_hit(hit) for hit in hits):
            raise RetrievalError("the retriever gave something that is no list of hits")
    return [list(hits) for hits in answer]


def _is_hit(hit: Any) -> bool:
    return (
        isinstance(hit, Hit)
        and isinstance(hit.passage, Passage)
        and isinstance(hit.passage.id, str)
        and isinstance(hit.passage.contents, str)
    )


def check_k(k: int) -> int:
    """`k` as it is. Raises ValueError for anything but a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"search: k must be a whole number of at least 1, got {k!r}")
    return k


def check_queries(queries: Sequence[str]) -> list[str]:
    """The queries as a list. Raises TypeError for a single string and for anything that is no text."""
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise TypeError(f"search: queries is a list of strings, got {queries!r}")
    return list(queries)
