"""Retrieval for the Search QA environment: the protocol, three indexes, and an HTTP client and server.

Read it in this order: `base` (passages, hits, the protocol), `corpus` (files of passages), `folder` (index folders and
the cache), `bm25` (the embedded default), `tantivy_index` and `dense` (optional), `http_client`, `server`.
"""

from rtmc.gymenvs.qa.retrieval.base import Hit, Passage, RetrievalError, Retriever
from rtmc.gymenvs.qa.retrieval.bm25 import BM25Retriever
from rtmc.gymenvs.qa.retrieval.corpus import read_corpus
from rtmc.gymenvs.qa.retrieval.dense import DenseRetriever, sentence_encoder
from rtmc.gymenvs.qa.retrieval.http_client import HttpRetriever
from rtmc.gymenvs.qa.retrieval.server import SearchServer
from rtmc.gymenvs.qa.retrieval.tantivy_index import TantivyRetriever

__all__ = [
    "BM25Retriever",
    "DenseRetriever",
    "Hit",
    "HttpRetriever",
    "Passage",
    "RetrievalError",
    "Retriever",
    "SearchServer",
    "TantivyRetriever",
    "read_corpus",
    "sentence_encoder",
]
