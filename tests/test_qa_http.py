"""Client and server of the retrieval protocol, over loopback: ours with ours, and each with the raw protocol."""

import contextlib
import json
import math
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rtmc.gymenvs.qa.retrieval import Hit, HttpRetriever, Passage, RetrievalError, SearchServer

PASSAGES = [Passage(str(at), f'"T{at}"\nalpha number {at} é') for at in range(30)]


class Fixed:
    """Finds the passages whose number the query names, with the query's length as score."""

    def search(self, queries, k):
        if "fail" in queries:
            raise RetrievalError("the index is gone")
        if "broken" in queries:
            raise KeyError("of the retriever's own")
        if "nothing" in queries:
            return None
        if "nan" in queries or "text" in queries:
            return [[Hit(PASSAGES[0], math.nan if "nan" in queries else "high")]]
        if "numpy" in queries:
            return [[Hit(PASSAGES[0], np.float32(0.5))]]
        return [[Hit(PASSAGES[int(n)], float(len(q))) for n in q.split() if n.isdecimal()][:k] for q in queries]


@contextlib.contextmanager
def serving(retriever, **options):
    with SearchServer(retriever, port=0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


@pytest.fixture
def server():
    with serving(Fixed()) as one:
        yield one


def post(url, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=10) as answer:
        return json.loads(answer.read())


def test_the_protocol_as_others_speak_it(server):
    document = {"id": "3", "contents": '"T3"\nalpha number 3 é', "title": "T3", "text": "alpha number 3 é"}
    asked = {"queries": ["3 4 5 6", ""], "topk": 2, "return_scores": True}
    found = post(server.url, asked)["result"]
    assert found[0][0] == {"document": document, "score": 7.0}
    assert [len(hits) for hits in found] == [2, 0]
    assert post(server.url, {"queries": ["3"], "topk": 1})["result"] == [[document]]
    assert [len(post(server.url, {"queries": ["1 2 3 4 5"], "topk": topk})["result"][0]) for topk in (None, 0, 4)] == [
        3,
        3,
        4,
    ]
    assert post(server.url, {"queries": []}) == {"result": []}
    assert post(server.url, {"queries": ["numpy"], "return_scores": True})["result"][0][0]["score"] == 0.5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ([], 400),
        ({}, 400),
        ({"queries": "3"}, 400),
        ({"queries": [3]}, 400),
        ({"queries": ["3"], "topk": -1}, 400),
        ({"queries": ["3"], "topk": "2"}, 400),
        ({"queries": ["3"], "return_scores": "yes"}, 400),
        ({"queries": ["3"] * 5000}, 400),
        ({"queries": ["fail"]}, 503),
        ({"queries": ["broken"]}, 503),
        ({"queries": ["nothing"]}, 503),
        ({"queries": ["nan"], "return_scores": True}, 503),
        ({"queries": ["text"], "return_scores": True}, 503),
        (b"[" * 100_000, 400),
    ],
)
def test_a_bad_request_is_refused_and_the_server_lives_on(server, body, status):
    with pytest.raises(urllib.error.HTTPError) as error:
        post(server.url, body)
    assert error.value.code == status
    assert json.loads(error.value.read())["detail"]
    assert post(server.url, {"queries": ["3"]})["result"][0]


def test_our_client_with_our_server(server):
    client = HttpRetriever(server.url, batch=2)
    found = client.search(["1 2", "", "5", "7 8 9", "29"], 2)
    assert found == Fixed().search(["1 2", "", "5", "7 8 9", "29"], 2)
    assert HttpRetriever(server.url.removesuffix("/retrieve")).search(["1"], 1) == [[Hit(PASSAGES[1], 1.0)]]
    assert client.search(["\ud800"], 1) == [[]]


def test_concurrent_clients_get_their_own_answers(server):
    def ask(number):
        client = HttpRetriever(server.url, batch=3)
        queries = [f"{(number + at) % 30} {at}" for at in range(8)]
        return client.search(queries, 2) == Fixed().search(queries, 2)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(64)))


@contextlib.contextmanager
def speaking(*answers, pause=0.0):
    """A server of raw bytes: each connection gets the next answer (the last one for ever), a byte a `pause`."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    calls = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            calls.append(1)
            answer = answers[min(len(calls), len(answers)) - 1]
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.recv(65536)
                for piece in [answer[at : at + 1] for at in range(len(answer))] if pause else [answer]:
                    connection.sendall(piece)
                    time.sleep(pause)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve", calls
    finally:
        listener.close()


def http(body, status="200 OK"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


GOOD = http({"result": [[{"document": {"contents": '"A"\nb'}, "score": 1}]]})


@pytest.mark.parametrize(
    ("answer", "part", "tries"),
    [
        (http(b"<html>"), "no JSON", 1),
        (http({"result": []}), "one list for each of 1", 1),
        (http({"results": [[]]}), "`result`", 1),
        (http([]), "`result`", 1),
        (http({"result": [None]}), "is no list", 1),
        (http({"result": [[{"id": "1", "contents": "x"}]]}), "no `document`", 1),
        (http({"result": [[{"document": {"contents": "x"}}]]}), "no `score`", 1),
        (http({"result": [[{"document": {"contents": "x"}, "score": 10**400}]]}), "finite number", 1),
        (http({"result": [[{"document": {"contents": "x"}, "score": math.nan}]]}), "finite number", 1),
        (http({"result": [[{"document": {"id": "1"}, "score": 1.0}]]}), "no `contents`", 1),
        (http(b"teapot", "418 I"), "status 418: teapot", 1),
        (http(b"moved", "302 Found"), "status 302", 1),
        (http(b"down", "503 Down"), "status 503: down (3 tries)", 3),
        (b"", "connection failed", 3),
        (b"SSH-2.0-x\r\n", "connection failed", 3),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "connection failed", 3),
    ],
)
def test_garbage_is_an_error_that_says_so(answer, part, tries):
    with speaking(answer) as (url, calls):
        with pytest.raises(RetrievalError) as error:
            HttpRetriever(url, retries=2, backoff=0.01, timeout=5).search(["q"], 1)
        assert url in str(error.value)
        assert part in str(error.value)
        assert len(calls) == tries


def test_a_failure_is_tried_again():
    with speaking(http(b"busy", "429 Slow"), b"", GOOD) as (url, calls):
        found = HttpRetriever(url, retries=2, backoff=0.01).search(["q"], 1)
        assert found == [[Hit(Passage('"A"\nb', '"A"\nb'), 1.0)]]
        assert len(calls) == 3


@pytest.mark.parametrize("answer", [GOOD, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b" " * 1000])
def test_a_server_that_drips_does_not_hold_us(answer):
    with speaking(answer, pause=0.05) as (url, _):
        began = time.monotonic()
        with pytest.raises(RetrievalError, match=r"within 0\.5 s"):
            HttpRetriever(url, timeout=0.5, retries=0).search(["q"], 1)
        assert time.monotonic() - began < 3


def test_no_server_and_no_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RetrievalError, match=r"connection refused.*serve-search.*\(2 tries\)"):
        HttpRetriever(f"http://127.0.0.1:{port}", retries=1, backoff=0.01).search(["q"], 1)
    for url in (
        "",
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:port",
        "http://exa mple/",
        "http://x/a b",
        "http://x\n/",
        3,
    ):
        with pytest.raises(ValueError, match="address"):
            HttpRetriever(url)
    for options in (
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": 1e300},
        {"backoff": 1e300},
        {"retries": -1},
        {"batch": 0},
    ):
        with pytest.raises(ValueError, match="HttpRetriever"):
            HttpRetriever("http://x", **options)


def test_a_request_that_is_too_long_or_has_no_length(server):
    for head, status in (
        (b"Content-Length: 99999999999\r\n", b"413"),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n", b"413"),
        (b"", b"411"),
        (b"Content-Length: -1\r\n", b"411"),
    ):
        with socket.create_connection(server.server_address, timeout=5) as connection:
            connection.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
            assert connection.recv(4096).split(b" ")[1] == status
    with pytest.raises(ValueError, match="topk=0"):
        SearchServer(Fixed(), port=0, topk=0)


def test_a_client_that_hangs_up_leaves_no_traceback(server, capfd):
    for part in (b"", b"POST /retr", b"POST /retrieve HTTP/1.1\r\nContent-Length: 50\r\n\r\n{"):
        with socket.create_connection(server.server_address, timeout=5) as connection:
            connection.sendall(part)
            # A reset, not an orderly end: what is written to it fails.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert post(server.url, {"queries": ["3"]})["result"][0]
    time.sleep(0.2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_fault_of_the_server_s_own_is_told(server, capfd):
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        server.handle_error(None, ("here", 1))
    assert "ZeroDivisionError" in capfd.readouterr().err
