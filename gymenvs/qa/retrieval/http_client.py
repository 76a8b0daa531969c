"""A client of Search-R1's retrieval server: `POST /retrieve`, JSON both ways.

    {"queries": ["...", ...], "topk": 3, "return_scores": true}
    {"result": [[{"document": {"id": "...", "contents": "..."}, "score": 1.5}, ...], ...]}

`return_scores` is always true: the original server cannot answer without. A request as a whole has a deadline, also
against a server that sends a byte now and then; what fails for want of a connection, of time or of the server's health
(a status of 500 and more, or 429) is tried again, a request that the server refuses is not. Proxies of the environment
are not used. What this is not: a pool of connections; each request opens its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from rtmc.gymenvs.qa.retrieval.base import Hit, Passage, RetrievalError, check_k, check_queries

_MAX_ANSWER = 64 * 2**20  # bytes
_MAX_TIMEOUT = 86_400.0  # a day; sockets and timers take no arbitrary number
_NO_ADDRESS = re.compile(r"[^!-~]")  # what stands in no address as it is sent: blanks, controls, letters beyond ASCII


class _Again(Exception):
    """This try failed; another may not."""


class HttpRetriever:
    """A retriever behind an address.

    Args:
        url: e.g. `http://127.0.0.1:8000/retrieve`; without a path, `/retrieve` is asked.
        timeout: seconds that one request may take in all, at most 86,400.
        retries: how often a failed request is made again, at least 0.
        backoff: seconds before the first retry; doubled before each later one.
        batch: most queries in one request.

    Raises:
        ValueError: the address is none, or a number is out of its range.
    """

    def __init__(
        self, url: str, timeout: float = 10.0, retries: int = 2, backoff: float = 0.2, batch: int = 256
    ) -> None:
        try:
            parts = urlsplit(url if isinstance(url, str) and not _NO_ADDRESS.search(url) else "")
            port = parts.port
        except ValueError:  # a port that is no number, brackets that do not close
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"HttpRetriever: url={url!r} is no address; wanted e.g. 'http://127.0.0.1:8000/retrieve'")
        if not 0 < timeout <= _MAX_TIMEOUT or retries < 0 or not 0 <= backoff <= _MAX_TIMEOUT or batch < 1:
            raise ValueError(
                f"HttpRetriever: timeout={timeout} must be positive and at most {_MAX_TIMEOUT:g}, retries={retries} at "
                f"least 0, backoff={backoff} from 0 to {_MAX_TIMEOUT:g}, batch={batch} at least 1"
            )
        self.url, self.timeout, self.retries, self.backoff, self.batch = url, timeout, retries, backoff, batch
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._port = port or (443 if self._secure else 80)
        path = parts.path if parts.path not in ("", "/") else "/retrieve"
        self._path = f"{path}?{parts.query}" if parts.query else path

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query at most k hits, in the server's order.

        Raises:
            RetrievalError: no connection, no answer in time, or an answer that is none; it names the address.
            ValueError: k is no whole number of at least 1. TypeError: a query is no text.
        """
        check_k(k)
        asked = check_queries(queries)
        found: list[list[Hit]] = []
        for at in range(0, len(asked), self.batch):
            part = asked[at : at + self.batch]
            document = self._ask({"queries": part, "topk": k, "return_scores": True})
            try:
                found += _hits(document, len(part), k)
            except ValueError as error:
                raise RetrievalError(f"{self.url}: {error}") from None
        return found

    def _ask(self, request: dict[str, Any]) -> Any:
        # Lone surrogates, which a model may write, are escaped by JSON's ASCII form.
        body = json.dumps(request).encode("ascii")
        for left in range(self.retries, -1, -1):
            try:
                return self._try(body)
            except _Again as failure:
                if not left:
                    tries = "" if not self.retries else f" ({self.retries + 1} tries)"
                    raise RetrievalError(f"{self.url}: {failure}{tries}") from None
                time.sleep(self.backoff * 2 ** (self.retries - left))
        raise AssertionError("the last try returns or raises")

    def _try(self, body: bytes) -> Any:
        """One request. Raises _Again where another try makes sense, RetrievalError where it does not."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout)
        late = threading.Event()
        opened: list[socket.socket] = []

        def stop() -> None:
            late.set()
            for one in opened:
                # Wakes a read that waits; closing alone would not. It may have ended by itself in this moment.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(self.timeout, stop)
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            opened.append(connection.sock)  # the connection lets go of it before the body is read
            connection.request("POST", self._path, body, {"Content-Type": "application/json", "Connection": "close"})
            answer = connection.getresponse()
            content = answer.read(_MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a TLS read after the shutdown
            if late.is_set() or isinstance(error, TimeoutError):
                raise _Again(f"no answer within {self.timeout:g} s") from None
            if isinstance(error, ConnectionRefusedError):
                raise _Again("no server answers there (connection refused); `rtmc serve-search` starts one") from None
            raise _Again(f"the connection failed ({type(error).__name__}: {error})") from None
        finally:
            watch.cancel()
            connection.close()
        if late.is_set():
            raise _Again(f"no whole answer within {self.timeout:g} s")
        if answer.length and len(content) <= _MAX_ANSWER:  # a bounded read ends early without an error
            raise _Again("the connection failed (the answer was cut off)")
        if answer.status >= 500 or answer.status == 429:
            raise _Again(f"the server failed with status {answer.status}{_said(content)}")
        if answer.status != 200:
            raise RetrievalError(f"{self.url}: the server refused with status {answer.status}{_said(content)}")
        if len(content) > _MAX_ANSWER:
            raise RetrievalError(f"{self.url}: the answer is longer than {_MAX_ANSWER} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise RetrievalError(f"{self.url}: the answer is no JSON{_said(content)}") from None


def _said(content: bytes) -> str:
    text = " ".join(content[:200].decode("utf-8", "replace").split())
    return f": {text}" if text else ""


def _hits(document: Any, queries: int, k: int) -> list[list[Hit]]:
    results = document.get("result") if isinstance(document, dict) else None
    if not isinstance(results, list) or len(results) != queries:
        raise ValueError(f"the answer has no `result` with one list for each of {queries} queries")
    found = []
    for number, listed in enumerate(results):
        if not isinstance(listed, list):
            raise ValueError(f"the answer's `result[{number}]` is no list")
        found.append([_hit(item, f"result[{number}][{at}]") for at, item in enumerate(listed[:k])])
    return found


def _hit(item: Any, where: str) -> Hit:
    record = item.get("document") if isinstance(item, dict) else None
    score = item.get("score") if isinstance(item, dict) else None
    if not isinstance(record, dict):
        raise ValueError(f"the answer's `{where}` has no `document`")
    # An int of four hundred digits is no float; NaN and infinity order nothing.
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not abs(score) <= sys.float_info.max:
        raise ValueError(f"the answer's `{where}` has no `score` that is a finite number")
    contents = record.get("contents")
    if not isinstance(contents, str):
        title, text = record.get("title"), record.get("text")
        if not isinstance(text, str):
            raise ValueError(f"the answer's `{where}.document` has no `contents` and no `text`")
        contents = Passage.made("", title if isinstance(title, str) else "", text).contents
    name = record.get("id", record.get("docid"))
    # The original BM25 server gives no ids: the heading with the text is then what tells passages apart.
    return Hit(Passage(contents if name is None else str(name), contents), float(score))
