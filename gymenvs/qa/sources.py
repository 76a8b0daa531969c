"""Where an environment's questions come from, and what it searches in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtmc.gymenvs.qa.generated import HOPS, SPLITS, make_questions
from rtmc.gymenvs.qa.questions import Question, read_questions
from rtmc.gymenvs.qa.retrieval.base import Passage, Retriever
from rtmc.gymenvs.qa.retrieval.bm25 import BM25Retriever, open_bm25
from rtmc.gymenvs.qa.retrieval.corpus import read_corpus
from rtmc.gymenvs.qa.retrieval.dense import DenseRetriever
from rtmc.gymenvs.qa.retrieval.folder import cache_folder, read_facts
from rtmc.gymenvs.qa.retrieval.http_client import HttpRetriever
from rtmc.gymenvs.qa.retrieval.tantivy_index import TantivyRetriever
from rtmc.gymenvs.qa.world import VERSION, make_world
from rtmc.gymenvs.textenv import TaskSource

Source = TaskSource[Question]
ENGINES: dict[str, Any] = {"bm25": BM25Retriever, "tantivy": TantivyRetriever, "dense": DenseRetriever}


class Embedded:
    """The questions of the made-up world, of a split, of the hops asked for; see `generated`."""

    def __init__(self, split: str, hops: Sequence[int]) -> None:
        if split not in SPLITS:
            raise _near("split", split, SPLITS)
        self.split, self.hops = split, tuple(sorted(hops))
        self.size = SPLITS[split] * len(self.hops) // len(HOPS)

    def task(self, number: int) -> Question:
        block, at = divmod(number % self.size, len(self.hops))
        return make_questions(self.split)[block * len(HOPS) + HOPS.index(self.hops[at])].question

    def named(self, task_id: str) -> Question:
        split, _, number = task_id.partition("/")
        if split in SPLITS and number.isascii() and number.isdecimal() and int(number) < SPLITS[split]:
            return make_questions(split)[int(number)].question
        wanted = ", ".join(f"{name}/0 to {name}/{size - 1}" for name, size in SPLITS.items())
        raise ValueError(f"Search QA: unknown task id {task_id!r}; there are {wanted}")


class Listed:
    """Questions of a file, or a list of them, in their order."""

    def __init__(self, questions: str | os.PathLike[str] | Iterable[Question], hops: Sequence[int] | None) -> None:
        if isinstance(questions, (str, os.PathLike)):
            found = list(read_questions(questions))
        else:
            found = list(questions)
            for one in found:
                if not isinstance(one, Question):
                    raise TypeError(f"Search QA: `questions` holds Question objects, got {type(one).__name__}")
        kept = [one for one in found if hops is None or one.hops in hops]
        if not kept:
            raise ValueError(f"Search QA: none of the {len(found)} questions is left to play (hops={hops})")
        self.questions, self.size = kept, len(kept)
        self._by_id = {one.id: one for one in found}
        if len(self._by_id) < len(found):
            raise ValueError("Search QA: two questions have the same id")

    def task(self, number: int) -> Question:
        return self.questions[number % self.size]

    def named(self, task_id: str) -> Question:
        if task_id not in self._by_id:
            raise _near("task id", task_id, self._by_id)
        return self._by_id[task_id]


def _near(what: str, got: object, known: Iterable[str]) -> ValueError:
    names = list(known)
    close = get_close_matches(str(got), names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ValueError(f"Search QA: unknown {what} {got!r}{hint} Known: {', '.join(names[:20])}{more}")


def check_hops(hops: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """The hops as a tuple. Raises ValueError for none at all and for anything but whole numbers from 1 on."""
    if hops is None:
        return None
    listed = (hops,) if isinstance(hops, int) else tuple(hops)
    if not listed or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in listed):
        raise ValueError(f"Search QA: hops={hops!r} must be whole numbers from 1 on")
    return tuple(dict.fromkeys(listed))


@lru_cache(maxsize=2)
def embedded_retriever(seed: int = 0) -> BM25Retriever:
    """BM25 over the passages of the made-up world: built at first use, kept in the cache, shared in the process."""
    return open_bm25(str(embedded_index("bm25", seed)))


def embedded_index(engine: str, seed: int = 0) -> Path:
    """The folder, in the cache, of an index of the made-up world's passages. Raises as `corpus_index` does."""
    return _built(f"world-{VERSION}-{seed}.{engine}", engine, lambda: make_world(seed).passages)


def check_retriever(retriever: Any) -> None:
    """Raises TypeError where it is no retriever, address or path, ValueError where the path does not exist."""
    if isinstance(retriever, (str, os.PathLike)):
        if not _is_address(retriever) and not Path(retriever).exists():
            raise ValueError(
                f"Search QA: retriever={str(retriever)!r} does not exist; wanted a corpus (JSON lines), the folder of "
                "an index, or the address of a server (http://...)"
            )
    elif retriever is not None and not isinstance(retriever, Retriever):
        raise TypeError(f"Search QA: a retriever has search(queries, k); {type(retriever).__name__} has not")


def open_retriever(retriever: Any, source: Source) -> Retriever:
    """What an environment searches in: see `SearchQAEnv`, Tasks.

    Raises:
        ValueError: a corpus or an index is broken, or there is nothing to search in.
    """
    if isinstance(retriever, (str, os.PathLike)):
        if _is_address(retriever):
            return HttpRetriever(str(retriever))
        path = Path(retriever)
        return open_index(path if path.is_dir() else corpus_index(path))
    if retriever is not None:
        return retriever
    return _context_retriever(source.questions) if isinstance(source, Listed) else embedded_retriever()


def open_index(folder: Path) -> Retriever:
    """The retriever of an index folder.

    Raises:
        ValueError: it is none, has no passage, or wants an encoder of its own.
    """
    facts = read_facts(folder)
    kind = facts.get("kind")
    if facts.get("passages") == 0:
        raise ValueError(f"{folder}: the index holds no passage, so that no search would find anything; build it anew")
    if kind == "bm25":
        return open_bm25(str(folder.resolve()))
    if kind == "tantivy":
        return TantivyRetriever(folder)
    if kind == "dense":
        return DenseRetriever(folder)
    raise ValueError(f"{folder}: an index of the kind {kind!r} does not open by its path; pass the retriever itself")


def _is_address(retriever: str | os.PathLike[str]) -> bool:
    return isinstance(retriever, str) and retriever.startswith(("http://", "https://"))


def corpus_index(path: Path, read: Callable[[Path], Iterable[Passage]] = read_corpus, engine: str = "bm25") -> Path:
    """The folder, in the cache, of an index of a corpus; built if the file has none or has changed since.

    Raises:
        ValueError: a line of the corpus is broken. OSError: the corpus cannot be read or the cache not written.
        ModuleNotFoundError: the engine's package is not installed.
    """
    told = path.stat()
    # The time of the last change too: whoever writes a file can set its other time back, but not this one.
    stamp = f"{path.resolve()} {told.st_ino} {told.st_size} {told.st_mtime_ns} {told.st_ctime_ns}"
    name = hashlib.sha256(stamp.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return _built(f"corpus-{name}.{engine}", engine, lambda: read(path))


def _built(name: str, engine: str, passages: Callable[[], Iterable[Passage]]) -> Path:
    folder = cache_folder() / "qa" / name
    if not folder.is_dir():
        ENGINES[engine].build(folder, passages())
    return folder


def _context_retriever(questions: Sequence[Question]) -> Retriever:
    passages = list(_context(questions))
    if not passages:
        raise ValueError(
            "Search QA: these questions bring no passages along; name a corpus, an index or a server with retriever="
        )
    digest = hashlib.sha256("\x00".join(one.contents for one in passages).encode("utf-8", "backslashreplace"))
    return open_bm25(str(_built(f"context-{digest.hexdigest()[:24]}.bm25", "bm25", lambda: passages)))


def _context(questions: Sequence[Question]) -> Iterator[Passage]:
    """The passages that the questions bring along, each once."""
    seen: set[tuple[str, str]] = set()
    for question in questions:
        for title, text in question.context:
            if (title, text) not in seen:
                seen.add((title, text))
                yield Passage.made(str(len(seen) - 1), title, text)
