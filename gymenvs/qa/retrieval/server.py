"""A retrieval server that speaks Search-R1's protocol (see `http_client`), on the standard library's HTTP server.

`POST /retrieve`: `queries` is a list of strings; `topk` a number or null (null and 0 mean the server's own); with
`return_scores` true each hit is `{"document": ..., "score": ...}`, else the document alone, and `result` has one list
a query either way. A document is `{"id", "contents", "title", "text"}`. `GET /health`: `{"status": "ok"}`. A bad
request is answered with status 400 and `{"detail": "..."}`, a search that fails, in whatever way, with 503. Each
connection has a thread.

What this is not: hardened for the open net. It listens on loopback unless told otherwise, and knows no users.
"""

from __future__ import annotations

import json
import math
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rtmc.gymenvs.qa.retrieval.base import Hit, RetrievalError, Retriever, checked_hits

MAX_BODY = 16 * 2**20  # bytes
MAX_QUERIES = 4096
MAX_TOPK = 1000


class _Refusal(Exception):
    """The request is no good: status and what is wrong."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds without a byte from the client: its thread is not kept for ever
    server: SearchServer

    def do_GET(self) -> None:
        if self.path != "/health":
            self._send(404, _json({"detail": "there are POST /retrieve and GET /health"}))
            return
        self._send(200, _json({"status": "ok"}))

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path.partition("?")[0] != "/retrieve":
                raise _Refusal(404, "there are POST /retrieve and GET /health")
            status, content = 200, _json({"result": self.server.answer(body)})
        except _Refusal as refusal:
            status, content = refusal.status, _json({"detail": str(refusal)})
        except RetrievalError as error:
            status, content = 503, _json({"detail": str(error)})
        self._send(status, content)

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self.close_connection = True  # what follows cannot be told from the next request
            raise _Refusal(411, "the header Content-Length is wanted")
        length = length.lstrip("0") or "0"
        if len(length) > 12 or int(length) > MAX_BODY:  # a number of thousands of digits is no int of Python's
            self.close_connection = True
            raise _Refusal(413, f"the request has {length[:12]} bytes or more; at most {MAX_BODY} are read")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ConnectionResetError("the client hung up within its request")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise _Refusal(400, "the request is no JSON") from None

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a line a request would cost more than the search."""


class SearchServer(ThreadingHTTPServer):
    """A server around a retriever; `serve_forever()` runs it, `shutdown()` (from another thread) ends it.

    Args:
        retriever: what searches; its `search` is called by several threads at once.
        host: address to listen on. port: 0 = any free one, told by `url`.
        topk: hits a query where the request names no number.

    Raises:
        ValueError: `topk` is out of range. OSError: the address is taken or not ours.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, retriever: Retriever, host: str = "127.0.0.1", port: int = 8000, topk: int = 3) -> None:
        if not 1 <= topk <= MAX_TOPK:
            raise ValueError(f"SearchServer: topk={topk} must be from 1 to {MAX_TOPK}")
        if not 0 <= port <= 65535:
            raise ValueError(f"SearchServer: port={port} must be from 0 to 65535")
        self.retriever, self.topk = retriever, topk
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no fault of the server: nothing is printed then."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address to give to a client on this machine."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/retrieve"

    def answer(self, request: Any) -> list[list[dict[str, Any]]]:
        """`result` for a request's JSON. Raises _Refusal for a bad one, RetrievalError where the search fails."""
        if not isinstance(request, dict):
            raise _Refusal(400, "the request is no JSON object")
        queries, topk, scores = (request.get(name) for name in ("queries", "topk", "return_scores"))
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise _Refusal(400, "`queries` has to be a list of strings")
        if len(queries) > MAX_QUERIES:
            raise _Refusal(400, f"`queries` has {len(queries)} entries; at most {MAX_QUERIES} are answered")
        if topk is not None and (isinstance(topk, bool) or not isinstance(topk, int) or not 0 <= topk <= MAX_TOPK):
            raise _Refusal(400, f"`topk` has to be a whole number from 0 to {MAX_TOPK}, or null")
        if scores is not None and not isinstance(scores, bool):
            raise _Refusal(400, "`return_scores` has to be true or false")
        if not queries:
            return []
        try:
            answer = self.retriever.search(queries, topk or self.topk)
        except RetrievalError:
            raise
        except Exception as failure:  # a retriever is other people's code: what it throws is a search that failed
            reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
            raise RetrievalError(f"the retriever failed ({reason})") from failure
        return [[_shown(hit, bool(scores)) for hit in hits] for hits in checked_hits(answer, len(queries))]


def _shown(hit: Hit, score: bool) -> dict[str, Any]:
    passage = hit.passage
    document = {"id": passage.id, "contents": passage.contents, "title": passage.title, "text": passage.text}
    return {"document": document, "score": _number(hit.score)} if score else document


def _number(score: Any) -> float:
    """The score as JSON's number. Raises RetrievalError where it is none: an answer with NaN in it is no JSON."""
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RetrievalError(f"the retriever gave a hit the score {score!r}; wanted a finite number")
    return number


def _json(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False).encode("ascii")
