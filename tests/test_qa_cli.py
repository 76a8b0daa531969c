"""`rtmc evaluate qa` and `rtmc serve-search`, as a person runs them."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rtmc.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
GOLD = [
    {"_id": "1", "question": "Q one?", "answer": "Paris", "supporting_facts": [["A", 0]], "context": []},
    {"_id": "2", "question": "Q two?", "answer": "yes", "supporting_facts": [["B", 1], ["C", 0]], "context": []},
]


def files(tmp_path, predictions, golds=GOLD):
    paths = tmp_path / "pred.jsonl", tmp_path / "gold.json"
    text = predictions if isinstance(predictions, str) else "\n".join(map(json.dumps, predictions))
    paths[0].write_text(text)
    paths[1].write_text(json.dumps(golds))
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    "predictions",
    [
        [{"id": "1", "answer": "the Paris", "sp": [["A", 0]]}, {"id": "2", "answer": "no", "sp": []}],
        [
            {"question": "Q one?", "prediction": "paris", "supporting_facts": [["A", 0]]},
            {"id": 2, "predicted_answer": None},
        ],
        json.dumps({"answer": {"1": "Paris", "2": "no"}, "sp": {"1": [["A", 0]]}}),
        json.dumps({"answer": {"1": "Paris", "2": "no"}, "sp": {"1": [["A", 0]]}}, indent=1),
    ],
)
def test_scores_of_files(tmp_path, capsys, predictions):
    assert main(["evaluate", "qa", *files(tmp_path, predictions), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["questions"], scores["missing"]) == (2, 0)
    assert scores["em"] == scores["f1"] == scores["sp_em"] == scores["joint_f1"] == 0.5


def test_scores_as_text_and_missing_ones(tmp_path, capsys):
    assert main(["evaluate", "--json", "qa", *files(tmp_path, [{"id": "2", "answer": "yes"}])]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == 1
    assert main(["evaluate", "qa", *files(tmp_path, [{"id": "2", "answer": "yes"}])]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[2].split() == ["em", "0.5000"]


@pytest.mark.parametrize(
    ("predictions", "parts"),
    [
        ([{"id": "9", "answer": "x"}], ["pred.jsonl, record 1", "'9'"]),
        ([{"id": "1", "answer": "x"}] * 2, ["record 2", "answered before"]),
        ([{"answer": "x"}], ["record 1", "`id`"]),
        ([{"id": "1"}], ["record 1", "`answer`"]),
        ([{"id": "1", "answer": 3}], ["record 1", "`answer`"]),
        ([{"id": "1", "answer": "x", "sp": "A"}], ["record 1", "`sp`"]),
        ([{"id": "1", "answer": "x", "sp": [[{}, 0]]}], ["record 1", "`sp`"]),
        ('{"id": "1", "answer": "x"}\n{broken', ["line 2"]),
        ("", ["empty"]),
    ],
)
def test_bad_predictions_are_one_line_and_status_2(tmp_path, capsys, predictions, parts):
    assert main(["evaluate", "qa", *files(tmp_path, predictions)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    for part in parts:
        assert part in err


def test_evaluate_of_a_run_is_as_it_was(capsys):
    arguments = COMMANDS["evaluate"].parse(["./qa", "tasks=3", "--json"])
    assert (arguments.words, arguments.json) == (["./qa", "tasks=3"], True)
    assert not hasattr(arguments, "work")
    assert main(["evaluate", "qa", "one"]) == 2
    assert "rtmc evaluate qa" in capsys.readouterr().err
    assert main(["evaluate", "qa", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: rtmc evaluate qa")


def test_serve_search_speaks_to_a_client(tmp_path, monkeypatch):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "0", "contents": "\\"Kesh\\"\\nKesh is a town."}\n')
    command = [sys.executable, "-m", "rtmc", "serve-search", str(corpus), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # As a shell starts it: where the tests themselves run with Ctrl-C ignored, the child would not hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving 1 passages at http://127.0.0.1:")
            url = line.split()[4]
            body = json.dumps({"queries": ["kesh"], "topk": 5, "return_scores": True}).encode()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, body), timeout=20) as answer:
                assert json.loads(answer.read())["result"][0][0]["document"]["id"] == "0"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_serve_search_names_a_bad_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "0", "contents": "x"}\n{"id": "1"}\n')
    assert main(["serve-search", str(corpus), "--port", "0"]) == 2
    assert "line 2" in capsys.readouterr().err.splitlines()[-1]
    assert main(["serve-search", str(tmp_path / "none.jsonl")]) == 2
    assert list((tmp_path / "cache" / "qa").iterdir()) == []


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_serve_search_refuses_an_empty_corpus_in_one_line(tmp_path, monkeypatch, capsys, content):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    from rtmc.gymenvs.qa.retrieval import BM25Retriever, SearchServer

    def served(self, **given):
        raise AssertionError("an empty corpus is served")

    monkeypatch.setattr(SearchServer, "serve_forever", served)
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(content)
    assert main(["serve-search", str(corpus), "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{corpus}: the corpus holds no passage" in err.splitlines()[-1]
    # Nor an index that was made of nothing.
    BM25Retriever.build(tmp_path / "index", [])
    assert main(["serve-search", str(tmp_path / "index"), "--port", "0"]) == 2
    assert "the index holds no passage" in capsys.readouterr().err.splitlines()[-1]
