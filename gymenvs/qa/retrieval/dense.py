"""Dense retrieval: passages and queries as vectors, found by their inner product, exactly.

    score(q, p) = <e(q), e(p)>,   e(x) = v(x) / |v(x)|

`v` is any function from texts to an array of shape (texts, width). `transformer_encoder` makes one of a sentence
encoder's folder (mean over the last hidden states of the text's tokens: Reimers & Gurevych, Sentence-BERT, 2019).
Vectors are kept as float32 in a memory-mapped file, and compared block by block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtmc.gymenvs.qa.retrieval.base import Hit, Passage, check_k, check_queries
from rtmc.gymenvs.qa.retrieval.corpus import PassageFile
from rtmc.gymenvs.qa.retrieval.folder import build_folder, check_kind

Encoder = Callable[[list[str]], NDArray[np.floating[Any]]]
_VECTORS = "vectors.npy"
_BLOCK = 65_536  # passages compared at once


class DenseRetriever:
    """An index opened, with the encoder it was built with (which is not stored).

    Raises:
        ValueError: the folder holds no such index, or the encoder's vectors have another width.
    """

    def __init__(self, folder: str | os.PathLike[str], encode: Encoder) -> None:
        self.facts = check_kind(folder, "dense")
        self.passages = PassageFile(folder)
        self._vectors = np.load(Path(folder) / _VECTORS, mmap_mode="r")
        self._encode = encode

    @classmethod
    def build(
        cls, folder: str | os.PathLike[str], passages: Iterable[Passage], encode: Encoder, batch: int = 64
    ) -> DenseRetriever:
        """Write the index of some passages into a folder and open it.

        Raises:
            ValueError: the encoder gives something other than one finite vector a text.
            FileExistsError: the folder holds something that is no index. OSError: it cannot be written.
        """
        facts: dict[str, Any] = {"kind": "dense", "version": 1}

        def fill(part: Path) -> None:
            facts["fingerprint"] = PassageFile.write(part, passages)
            written = iter(PassageFile(part))
            blocks = []
            while texts := [one.contents for one in islice(written, batch)]:
                blocks.append(_unit(encode(texts), len(texts)))
            vectors = np.concatenate(blocks) if blocks else np.zeros((0, 0), np.float32)
            facts["passages"], facts["width"] = vectors.shape
            np.save(part / _VECTORS, vectors)

        return cls(build_folder(folder, facts, fill), encode)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query the k nearest passages, best first; none for a query without any character but blanks.

        Raises:
            ValueError: k is no whole number of at least 1. TypeError: a query is no text.
        """
        check_k(k)
        asked = check_queries(queries)
        texts = [query for query in asked if query.strip()]
        if not texts or not len(self.passages):
            return [[] for _ in asked]
        vectors = _unit(self._encode(texts), len(texts))
        if vectors.shape[1] != self.facts["width"]:
            raise ValueError(
                f"DenseRetriever: the encoder gives {vectors.shape[1]} numbers a text, the index has "
                f"{self.facts['width']}; open it with the encoder it was built with"
            )
        blocks = [self._vectors[at : at + _BLOCK] @ vectors.T for at in range(0, len(self.passages), _BLOCK)]
        found = iter(self._best(column, k) for column in np.concatenate(blocks).T)
        return [next(found) if query.strip() else [] for query in asked]

    def _best(self, scores: NDArray[np.float32], k: int) -> list[Hit]:
        candidates = np.arange(len(scores))
        if k < len(scores):
            candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        order = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
        return [Hit(self.passages[int(at)], float(scores[at])) for at in order]


def _unit(vectors: Any, texts: int) -> NDArray[np.float32]:
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or array.shape[0] != texts or not np.isfinite(array).all():
        raise ValueError(
            f"DenseRetriever: the encoder gave an array of shape {array.shape} for {texts} texts; wanted one finite "
            "vector a text"
        )
    return array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)


def transformer_encoder(folder: str | os.PathLike[str], device: str = "cpu", max_tokens: int = 256) -> Encoder:
    """An encoder from a folder that holds a transformer and its tokenizer, in transformers' own form.

    Raises:
        OSError: the folder holds none. ModuleNotFoundError: transformers is not installed (extra `train`).
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).to(device).eval()

    def encode(texts: list[str]) -> NDArray[np.floating[Any]]:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt").to(device)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state.float()
        mask = batch["attention_mask"].unsqueeze(-1)
        return ((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy()

    return encode
