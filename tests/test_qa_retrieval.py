"""Indexes against scores computed by hand, corpora with faults, folders of indexes."""

import gzip
import json
import math
import os
from collections import Counter

import numpy as np
import pytest

from rtmc.gymenvs.qa.retrieval import BM25Retriever, DenseRetriever, Passage, RetrievalError, Retriever, read_corpus
from rtmc.gymenvs.qa.retrieval.corpus import PassageFile, corpus_line
from rtmc.gymenvs.qa.retrieval.folder import build_folder
from rtmc.gymenvs.qa.sources import corpus_index, open_index

WORDS = ["amber", "bell", "clock", "door", "ember", "field", "garden", "harbour", "island", "kettle", "lantern"]


def corpus(number=200, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Passage.made(f"p{at}", f"Title {at}", " ".join(rng.choice(WORDS, size=rng.integers(3, 30))))
        for at in range(number)
    ]


def lucene(passages, query, k1=1.5, b=0.75):
    """BM25 by its formula, in float64, a passage at a time."""
    counts = [Counter(w for w in p.contents.lower().replace('"', "").split() if len(w) > 1) for p in passages]
    lengths = [c.total() for c in counts]
    mean, total = sum(lengths) / len(lengths), len(passages)
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        score = 0.0
        for word in query.lower().split():
            df = sum(word in c for c in counts)
            if count[word]:
                idf = math.log(1 + (total - df + 0.5) / (df + 0.5))
                score += idf * count[word] / (count[word] + k1 * (1 - b + b * length / mean))
        scores.append(score)
    return scores


@pytest.fixture(params=["numpy", "numba"])
def bm25(request, tmp_path):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    return BM25Retriever.build(tmp_path / "index", corpus(), backend=request.param)


@pytest.mark.parametrize("query", ["amber bell", "clock clock", "title 7", "zebra kettle", "harbour"])
@pytest.mark.parametrize("k", [1, 2, 3, 5])  # 200 passages: the k-th score is bounded by blocks up to 3
def test_bm25_is_lucene_s_formula(bm25, query, k):
    truth = lucene(corpus(), query)
    # Equal scores stand in the order of the corpus: of floats of the index's own precision.
    hits = bm25.search([query], k)[0]
    assert [hit.score for hit in hits] == pytest.approx(sorted(truth, reverse=True)[:k], rel=1e-5)
    for hit in hits:
        assert hit.score == pytest.approx(truth[int(hit.passage.id[1:])], rel=1e-5)
        assert hit.passage == corpus()[int(hit.passage.id[1:])]


def test_ties_stand_in_the_order_of_the_corpus(tmp_path):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    same = [Passage(str(at), f"Twin\nsame words {'here' if at % 2 else 'there'}") for at in range(500)]
    index = BM25Retriever.build(tmp_path / "i", same)
    assert len(index.search(["here"], 1000)[0]) == 250
    assert [hit.passage.id for hit in index.search(["here"], 4)[0]] == ["1", "3", "5", "7"]


def test_k_above_the_corpus_and_words_it_does_not_have(bm25):
    assert len(bm25.search(["amber"], 10_000)[0]) == sum("amber" in p.contents for p in corpus())
    queries = ["", "   ", "?!", "zzz unheard", "the of and", "\ud800", "x" * 100_000]
    assert bm25.search(queries, 3) == [[]] * len(queries)
    assert bm25.search([], 3) == []
    assert len(bm25.search(["amber " * 20_000], 3)[0]) == 3


@pytest.mark.parametrize(
    ("queries", "k", "error"),
    [(["a"], 0, ValueError), (["a"], True, ValueError), ("a", 1, TypeError), ([1], 1, TypeError)],
)
def test_bad_searches(bm25, queries, k, error):
    with pytest.raises(error):
        bm25.search(queries, k)


def test_an_index_is_opened_again_and_mapped(bm25):
    again = BM25Retriever(bm25.folder)
    assert again.search(["amber bell"], 7) == bm25.search(["amber bell"], 7)
    assert isinstance(again._index.scores["data"].base, np.memmap) or isinstance(again._index.scores["data"], np.memmap)
    assert isinstance(again, Retriever)


@pytest.mark.parametrize("passages", [[], [Passage("0", "a")], [Passage("0", "the of\nand")]])
def test_a_corpus_without_words(tmp_path, passages):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    assert BM25Retriever.build(tmp_path / "i", passages).search(["the x", ""], 3) == [[], []]


def test_folders_are_whole_or_absent(tmp_path):
    def broken(part):
        (part / "half").write_text("x")
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        build_folder(tmp_path / "i", {}, broken)
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("x")
    with pytest.raises(FileExistsError, match="no index"):
        build_folder(tmp_path / "mine", {}, lambda part: None)
    assert (tmp_path / "mine" / "letter").read_text() == "x"
    with pytest.raises(ValueError, match="holds no index"):
        DenseRetriever(tmp_path / "mine", lambda texts: np.ones((len(texts), 2)))
    build_folder(tmp_path / "mine2", {"kind": "dense"}, lambda part: None)
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    with pytest.raises(ValueError, match="'dense'"):
        BM25Retriever(tmp_path / "mine2")


def test_passages_by_number(tmp_path):
    passages = [*corpus(20), Passage("é", "Ünï\n\ud800 \n line ends \u2028 too")]
    PassageFile.write(tmp_path, passages)
    file = PassageFile(tmp_path)
    assert list(file) == passages
    assert (file[-1], file[3:5]) == (passages[-1], passages[3:5])
    with pytest.raises(IndexError):
        file[21]


def test_headings_and_titles():
    passage = Passage("0", '"A \\"B\\""\ntext\nmore')
    assert (passage.heading, passage.text) == ('"A \\"B\\""', "text\nmore")
    assert Passage("0", '"Paris"\nx').title == Passage("0", "Paris\nx").title == "Paris"
    assert Passage.made("1", "Paris\n(city)", "x").contents == '"Paris (city)"\nx'


def test_corpora_of_all_three_forms(tmp_path):
    lines = [
        '{"id": "a", "contents": "\\"Paris\\"\\nA city."}',
        "",
        '{"id": 7, "title": "Rome", "text": "Too."}',
        '{"_id": "c", "text": "No title."}',
        '{"contents": "Line five\\nhas no id"}',
    ]
    file = tmp_path / "c.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    assert [(p.id, p.title, p.text) for p in read_corpus(file)] == [
        ("a", "Paris", "A city."), ("7", "Rome", "Too."), ("c", "", "No title."), ("4", "Line five", "has no id"),
    ]  # fmt: skip
    assert json.loads(corpus_line(next(read_corpus(file)))) == json.loads(lines[0])


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"id": "x"}', ["line 2", "no text", "`contents`"]),
        ('{"id": "x", "contents": "  "}', ["line 2", "`contents`"]),
        ('{"id": "x", "text": 3}', ["line 2", "`text`", "3"]),
        ('{"id": ["x"], "text": "t"}', ["line 2", "`id`"]),
        ('{"id": "x", "text": "t", "title": 5}', ["line 2", "`title`"]),
        ("[1]", ["line 2", "list"]),
        ("{broken", ["line 2"]),
        ('{"id": "first", "text": "t"}', ["line 2", "'first'", "came before"]),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, parts):
    file = tmp_path / "c.jsonl"
    file.write_text('{"id": "first", "contents": "t"}\n' + line + "\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011 -- what it says is checked below, part by part
        list(read_corpus(file))
    for part in [str(file), *parts]:
        assert part in str(error.value)


def bag(texts):
    """A little encoder: how often each word occurs."""
    return np.array([[text.lower().split().count(word) + 1e-3 for word in WORDS] for text in texts])


def test_dense_is_the_exact_inner_product(tmp_path):
    passages = corpus(70)
    index = DenseRetriever.build(tmp_path / "i", passages, bag, batch=16)
    vectors = bag([p.contents for p in passages])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = bag(["amber door"])[0]
    truth = vectors @ (query / np.linalg.norm(query))
    hits, none = DenseRetriever(tmp_path / "i", bag).search(["amber door", "  "], 4)
    assert none == []
    assert [hit.score for hit in hits] == pytest.approx(np.sort(truth)[::-1][:4], rel=1e-5)
    assert index.search(["amber door"], 4)[0] == hits
    assert len(index.search(["amber"], 1000)[0]) == 70
    with pytest.raises(ValueError, match="encoder gives 3"):
        DenseRetriever(tmp_path / "i", lambda texts: np.ones((len(texts), 3))).search(["x"], 1)
    with pytest.raises(ValueError, match="one finite"):
        DenseRetriever.build(tmp_path / "j", passages, lambda texts: np.full((len(texts), 2), np.nan))


def test_corpora_with_a_byte_order_mark_packed_or_in_another_encoding(tmp_path):
    file = tmp_path / "c.jsonl"
    line = '{"id": "a", "contents": "é"}\n'
    for content in (b"\xef\xbb\xbf" + line.encode(), gzip.compress(line.encode())):
        file.write_bytes(content)
        assert list(read_corpus(file)) == [Passage("a", "é")]
    file.write_bytes(b'{"id": "b", "contents": "x"}\n' + line.encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 2.*utf-8"):
        list(read_corpus(file))


def test_a_changed_corpus_is_indexed_anew_whatever_its_times_say(tmp_path, monkeypatch):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "corpus.jsonl"
    found = []
    for word in ("amber", "ember"):
        file.write_text(corpus_line(Passage.made("0", "T", f"{word} door")))
        os.utime(file, ns=(10**18, 10**18))
        found.append(open_index(corpus_index(file)).search([word], 1)[0][0].passage.text)
    assert found == ["amber door", "ember door"]
    assert corpus_index(file) == corpus_index(file)


def test_a_damaged_index_is_told_of(tmp_path):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    for damage in ("ends.npy", "passages.jsonl", "gone"):
        folder = tmp_path / damage
        BM25Retriever.build(folder, corpus(5))
        if damage == "gone":
            (folder / "passages.jsonl").unlink()
        else:
            (folder / damage).write_bytes((folder / damage).read_bytes()[:-3])
        with pytest.raises(ValueError, match=r"damaged .*build it anew"):
            BM25Retriever(folder)
    folder = tmp_path / "bytes"
    BM25Retriever.build(folder, corpus(5))
    texts = (folder / "passages.jsonl").read_bytes()
    (folder / "passages.jsonl").write_bytes(b"x" * len(texts))
    with pytest.raises(RetrievalError, match="damaged; build it anew"):
        BM25Retriever(folder).search(["amber bell clock door ember field garden"], 1)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_corpus_without_a_passage_is_refused(tmp_path, monkeypatch, content, packed):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "c.jsonl"
    file.write_bytes(gzip.compress(content) if packed else content)
    for read in (lambda: list(read_corpus(file)), lambda: corpus_index(file)):
        with pytest.raises(ValueError, match=r"c\.jsonl: the corpus holds no passage"):
            read()
    assert list((tmp_path / "cache" / "qa").iterdir()) == []  # and once it has one, it is read
    file.write_bytes(b'{"contents": "amber"}')
    assert len(open_index(corpus_index(file)).search(["amber"], 3)[0]) == 1


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_an_index_without_a_passage_is_not_opened_by_its_path(tmp_path, kind):
    if kind == "bm25":
        pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
        BM25Retriever.build(tmp_path / "i", [])
    else:
        DenseRetriever.build(tmp_path / "i", [], lambda texts: np.ones((len(texts), 2)))
    with pytest.raises(ValueError, match="the index holds no passage"):
        open_index(tmp_path / "i")
