"""BM25 over passages with the package `bm25s`: the embedded default.

An index is a folder: built once, memory-mapped afterwards, so that environments and processes share its pages. Words
are runs of two or more word characters, in lower case, without English stop words; scores are Lucene's BM25
(Lù, BM25S, 2024; k1 = 1.5, b = 0.75). A hit shares at least one word with its query: fewer than k, or none, may come
back. Equal scores stand in the order of the corpus, so results are the same on every machine.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtmc.gymenvs.qa.retrieval.base import Hit, Passage, check_k, check_queries
from rtmc.gymenvs.qa.retrieval.corpus import PassageFile
from rtmc.gymenvs.qa.retrieval.folder import build_folder, check_kind

_WORD = re.compile(r"(?u)\b\w\w+\b")
_BLOCK = 64
_MAX_QUERY_WORDS = 1000  # a longer query costs time and finds nothing else


class BM25Retriever:
    """An index opened. `BM25Retriever.build(folder, passages)` makes one, `BM25Retriever(folder)` opens it.

    Searching changes nothing, so threads may share it.

    Args:
        folder: of the index.
        backend: `numpy` or `numba`: what adds the scores up. `numba` compiles on the first search.

    Raises:
        ValueError: the folder holds no such index, or the backend is unknown.
        ModuleNotFoundError: `bm25s` is not installed (extra `envs`).
    """

    def __init__(self, folder: str | os.PathLike[str], backend: str = "numpy") -> None:
        if backend not in ("numpy", "numba"):
            raise ValueError(f"BM25Retriever: backend={backend!r} is none of 'numpy', 'numba'")
        bm25s = _package()
        self.facts = check_kind(folder, "bm25")
        self.folder, self.passages = Path(folder), PassageFile(folder)
        self._empty = not self.facts["words"]
        if not self._empty:
            self._index = bm25s.BM25.load(str(folder), mmap=True, show_progress=False, backend=backend)

    @classmethod
    def build(
        cls, folder: str | os.PathLike[str], passages: Iterable[Passage], backend: str = "numpy"
    ) -> BM25Retriever:
        """Write the index of some passages into a folder and open it.

        Raises:
            FileExistsError: the folder holds something that is no index. OSError: it cannot be written.
        """
        bm25s = _package()
        facts: dict[str, Any] = {"kind": "bm25", "version": 1}

        def fill(part: Path) -> None:
            facts["fingerprint"] = PassageFile.write(part, passages)
            texts = PassageFile(part)
            tokens = bm25s.tokenize((one.contents for one in texts), stopwords="en", show_progress=False)
            facts["passages"], facts["words"] = len(texts), len([word for word in tokens.vocab if word])
            if facts["words"]:
                index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
                index.index(tokens, show_progress=False)
                index.save(str(part), show_progress=False)

        return cls(build_folder(folder, facts, fill), backend)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query at most k hits, best first; see the module.

        Raises:
            ValueError: k is no whole number of at least 1. TypeError: a query is no text.
        """
        check_k(k)
        return [self._search(query, k) for query in check_queries(queries)]

    def _search(self, query: str, k: int) -> list[Hit]:
        known = {} if self._empty else self._index.vocab_dict
        words = [known[word] for word in _WORD.findall(query.lower()) if word in known][:_MAX_QUERY_WORDS]
        if not words:
            return []
        scores = self._index.get_scores_from_ids(words)
        # At least k passages score so much, and all that do are sorted: ties then stand in the order of the corpus.
        found = np.flatnonzero(scores >= max(_floor(scores, k), np.finfo(scores.dtype).tiny))
        order = found[np.argsort(-scores[found], kind="stable")[:k]]
        return [Hit(self.passages[int(at)], float(scores[at])) for at in order]


def _floor(scores: NDArray[np.float32], k: int) -> float:
    """A score that at least k passages reach, close below the k-th best: the k-th best of the maxima of blocks.

    Far cheaper than a partition of all scores. 0 where there are fewer blocks than k.
    """
    blocks = len(scores) // _BLOCK
    if blocks < k:
        return 0.0
    best = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    return float(np.partition(best, blocks - k)[blocks - k])


@lru_cache(maxsize=8)
def open_bm25(folder: str, backend: str = "numpy") -> BM25Retriever:
    """The index of a folder, opened once a process: environments share it."""
    return BM25Retriever(folder, backend)


def _package() -> Any:
    try:
        return importlib.import_module("bm25s")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "searching needs the package `bm25s`: pip install 'rtmc[envs]'", name=error.name
        ) from None
