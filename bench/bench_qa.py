"""Search QA: building an index, a query through `env.step`, environments that share an index; how hard the set is.

The peer of a query is `bm25s` as its own documentation calls it (`tokenize`, then `retrieve`), on the same index; the
passages and scores found are compared with ours where no two scores are equal. Notes below the table: how long the
index took, percentiles of single steps, the memory of eight environments, exact match of the scripted policies on the
embedded questions. The corpus is generated: 100,000 passages of about 90 words, of a vocabulary whose frequencies fall
as they do in text.
"""

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import Case

from rtmc.gymenvs.qa import Question, SearchQAEnv
from rtmc.gymenvs.qa.policies import measure as measure_policies
from rtmc.gymenvs.qa.retrieval import BM25Retriever, Passage

TESTS = ["tests/test_qa_retrieval.py", "tests/test_qa_env.py"]
NOTES: list[str] = []
VOCABULARY = 60_000


def corpus(number: int) -> list[Passage]:
    """Passages of words `w17`, by Zipf's law with an offset (the commonest words of text are stop words)."""
    rng = np.random.default_rng(0)
    weights = 1 / (np.arange(VOCABULARY) + 30.0)
    words = np.array([f"w{at}" for at in range(VOCABULARY)])
    drawn = words[rng.choice(VOCABULARY, size=(number, 90), p=weights / weights.sum())]
    return [Passage.made(str(at), f"Title {at}", " ".join(row)) for at, row in enumerate(drawn)]


def queries(passages: list[Passage], number: int) -> list[str]:
    """Five words of a passage each."""
    rng = np.random.default_rng(1)
    return [
        " ".join(rng.choice(passages[int(at)].text.split(), size=5, replace=False))
        for at in rng.integers(len(passages), size=number)
    ]


def query_case(index: BM25Retriever, asked: list[str], label: str, k: int = 3) -> Case:
    import bm25s

    raw = bm25s.BM25.load(str(index.folder), mmap=True, show_progress=False)

    def ours():
        return [[(hit.passage.id, hit.score) for hit in index.search([query], k)[0]] for query in asked]

    def peer():
        found = []
        for query in asked:
            tokens = bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)
            documents, scores = raw.retrieve(tokens, k=k, show_progress=False)
            texts = [index.passages[int(at)] for at in documents[0]]
            found.append([(text.id, float(score)) for text, score in zip(texts, scores[0], strict=True)])
        return found

    return Case(
        f"{label}, {len(asked)} queries", {"BM25Retriever": ours, "bm25s.retrieve": peer}, agree=apart, rows=len(asked)
    )


def apart(ours: list, other: list) -> float:
    """1.0 where a query's distinct scores name other passages, or scores differ."""
    for mine, theirs in zip(ours, other, strict=True):
        scores = [round(score, 4) for _, score in mine]
        if scores != [round(score, 4) for _, score in theirs]:
            return 1.0
        if (
            len(set(scores)) == len(scores)
            and mine[:-1]
            and [one[0] for one in mine[:-1]] != [one[0] for one in theirs[:-1]]
        ):
            return 1.0
    return 0.0


def resident() -> float:
    """MB that this process alone holds: shared and mapped pages of files are not counted."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


def steps(index: BM25Retriever, asked: list[str], label: str) -> None:
    question = Question("q", "What is it?", ("x",))
    env = SearchQAEnv(questions=[question], retriever=index, max_turns=10**9)
    taken = []
    for query in asked:
        env.reset()
        began = time.perf_counter()
        env.step(f"<search>{query}</search>")
        taken.append((time.perf_counter() - began) * 1e3)
    p50, p95 = (statistics.quantiles(taken, n=100)[at] for at in (49, 94))
    NOTES.append(f"{label}: a search through env.step: p50 {p50:.2f} ms, p95 {p95:.2f} ms ({len(taken)} steps)")


def shared(index: BM25Retriever, asked: list[str]) -> None:
    if not Path("/proc/self/statm").exists():
        return
    gc.collect()
    before = resident()
    question = Question("q", "What is it?", ("x",))
    envs = [SearchQAEnv(questions=[question], retriever=str(index.folder), max_turns=10**9) for _ in range(8)]
    marks = []
    for env in envs:
        env.reset()
        for query in asked[:50]:
            env.step(f"<search>{query}</search>")
        gc.collect()
        marks.append(resident() - before)
    one = {id(env.retriever) for env in envs}
    NOTES.append(
        f"8 environments by the index's path: {len(one)} index in memory; {marks[0]:.0f} MB more with the first, "
        f"{marks[-1]:.0f} MB with all eight"
    )


def cases(quick: bool) -> Iterator[Case]:
    NOTES.clear()
    number = 10_000 if quick else 100_000
    passages = corpus(number)
    asked = queries(passages, 100 if quick else 300)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        BM25Retriever.build(Path(folder) / "i", passages)
        NOTES.append(f"{number:,} passages indexed, saved and opened in {time.perf_counter() - began:.1f} s")
        del passages
        for backend in ("numpy", "numba"):
            index = BM25Retriever(Path(folder) / "i", backend)
            index.search(asked[:3], 3)  # numba compiles here
            yield query_case(index, asked[:100], f"qa, {number:,} passages, {backend}")
            steps(index, asked, f"{number:,} passages, {backend}")
        shared(index, asked)
    for name, row in measure_policies("valid", 80 if quick else None).items():
        NOTES.append(f"exact match, {name}: {', '.join(f'{hops} {em:.3f}' for hops, em in row.items())}")
