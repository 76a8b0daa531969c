"""BM25 over passages with the package `tantivy` (optional): for corpora too large for one matrix.

Words are stemmed (English), and a passage scores by the BM25 of any of the query's words. A query is read as words
alone, whatever else stands in it: tantivy's query language (`title:`, quotes, brackets, AND) has no part here, because
ordinary questions are errors in it.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rtmc.gymenvs.qa.retrieval.base import Hit, Passage, RetrievalError, check_k, check_queries
from rtmc.gymenvs.qa.retrieval.folder import build_folder, check_kind

_MAX_QUERY_WORDS = 200  # each word is a clause of its own


class TantivyRetriever:
    """An index opened. `TantivyRetriever.build(folder, passages)` makes one, `TantivyRetriever(folder)` opens it.

    Raises:
        ValueError: the folder holds no such index. ModuleNotFoundError: `tantivy` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        tantivy = _package()
        check_kind(folder, "tantivy")
        self._index = tantivy.Index.open(str(folder))
        self._index.reload()

    @classmethod
    def build(
        cls, folder: str | os.PathLike[str], passages: Iterable[Passage], memory_mb: int = 256
    ) -> TantivyRetriever:
        """Write the index of some passages into a folder and open it. `memory_mb`: what the writer may hold.

        Raises:
            FileExistsError: the folder holds something that is no index. OSError: it cannot be written.
        """
        tantivy = _package()
        facts: dict[str, Any] = {"kind": "tantivy", "version": 1}

        def fill(part: Path) -> None:
            schema = tantivy.SchemaBuilder()
            schema.add_text_field("id", stored=True, tokenizer_name="raw")
            schema.add_text_field("contents", stored=True, tokenizer_name="en_stem")
            index = tantivy.Index(schema.build(), path=str(part))
            writer = index.writer(memory_mb * 2**20, 1)  # one thread: the same segments, and so scores, each time
            facts["passages"] = 0
            for passage in passages:
                writer.add_document(tantivy.Document(id=passage.id, contents=passage.contents))
                facts["passages"] += 1
            writer.commit()
            writer.wait_merging_threads()

        return cls(build_folder(folder, facts, fill))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query at most k hits, best first.

        Raises:
            ValueError: k is no whole number of at least 1. TypeError: a query is no text.
            RetrievalError: tantivy refuses the query.
        """
        check_k(k)
        searcher = self._index.searcher()
        return [self._search(searcher, query, k) for query in check_queries(queries)]

    def _search(self, searcher: Any, text: str, k: int) -> list[Hit]:
        # In lower case none is an operator of the query language (AND, OR, NOT, IN, TO).
        words = re.findall(r"\w+", text.lower())[:_MAX_QUERY_WORDS]
        if not words:
            return []
        try:
            found = searcher.search(self._index.parse_query(" ".join(words), ["contents"]), k).hits
        except ValueError as error:
            raise RetrievalError(f"tantivy refuses the query: {error}") from None
        hits = []
        for score, address in found:
            record = searcher.doc(address)
            hits.append(Hit(Passage(record.get_first("id"), record.get_first("contents")), float(score)))
        return hits


def _package() -> Any:
    try:
        return importlib.import_module("tantivy")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this index needs the package `tantivy`: pip install 'rtmc[tantivy]'", name=error.name
        ) from None
