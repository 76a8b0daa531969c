"""`rtmc evaluate qa` and `rtmc serve-search`: grade answers, and serve a corpus to agents that search.

`rtmc evaluate` alone is of trained runs (`rtmc.cli.training`); a run's folder that is called `qa` is `./qa`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rtmc.cli.command import Command, Parser, add_json, print_json
from rtmc.cli.training import EVALUATE as EVALUATE_RUN

_ABOUT_QA = """Grade answers to questions: exact match, F1 and, where they are named, supporting facts and joint scores.

PRED   JSON lines of {"id": ..., "answer": ...}, with "sp" (pairs of title and sentence number) where supporting facts
       are named; or HotpotQA's own file. `question` may stand for `id`; a question without a prediction is wrong.
GOLD   a file of HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, NQ-open, TriviaQA, PopQA, FlashRAG or Search-R1,
       or JSON lines of {"id": ..., "question": ..., "answer": ...}."""


def _evaluate_qa_arguments(parser: Parser) -> None:
    parser.add_argument("predictions", metavar="PRED", help="file of predictions")
    parser.add_argument("golds", metavar="GOLD", help="file of questions with their answers")
    parser.add_argument("--format", default="auto", metavar="NAME", help="of GOLD (default: told by its fields)")
    add_json(parser)


def _evaluate_qa(arguments: argparse.Namespace) -> int:
    from rtmc.gymenvs.qa.scoring import evaluate_files

    scores = evaluate_files(arguments.predictions, arguments.golds, arguments.format)
    if arguments.json:
        print_json(scores)
        return 0
    for name, value in scores.items():
        print(f"{name:<16}{value:>10.4f}" if isinstance(value, float) else f"{name:<16}{value:>10}")
    return 0


_EVALUATE_QA = Command("evaluate qa", "grade answers to questions", _evaluate_qa_arguments, _evaluate_qa, _ABOUT_QA)


class _Evaluate(Command):
    """`rtmc evaluate`: of a run, or with the first word `qa` of a file of answers."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        at = next((at for at, word in enumerate(words) if not word.startswith("-")), None)
        if at is None or words[at] != "qa":
            return super().parse(words)
        parsed = _EVALUATE_QA.parse([*words[:at], *words[at + 1 :]])
        parsed.work = _EVALUATE_QA.run
        return parsed


def _evaluate(arguments: argparse.Namespace) -> int:
    return getattr(arguments, "work", EVALUATE_RUN.run)(arguments)


EVALUATE = _Evaluate(
    EVALUATE_RUN.name,
    f"{EVALUATE_RUN.summary}; `evaluate qa`: grade answers",
    EVALUATE_RUN.arguments,
    _evaluate,
    f"{EVALUATE_RUN.summary[0].upper()}{EVALUATE_RUN.summary[1:]}. `rtmc evaluate qa PRED GOLD` grades answers to "
    "questions;\n`rtmc evaluate qa --help` tells how.",
)


def _serve_arguments(parser: Parser) -> None:
    parser.add_argument(
        "corpus",
        nargs="?",
        metavar="CORPUS",
        help='JSON lines of {"id": ..., "contents": "title\\ntext"}, or the folder of an index; none: the embedded one',
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0 = any free one")
    parser.add_argument(
        "--engine",
        choices=("bm25", "tantivy", "dense"),
        default="bm25",
        help="index that a corpus is given, once, in the cache (default: bm25; the others are extras)",
    )
    parser.add_argument("--topk", type=int, default=3, metavar="N", help="hits where a request names none (default: 3)")


def _serve(arguments: argparse.Namespace) -> int:
    from rtmc.gymenvs.qa.retrieval import SearchServer
    from rtmc.gymenvs.qa.sources import corpus_index, embedded_index, open_index

    path = None if arguments.corpus is None else Path(arguments.corpus)
    if path is None:
        folder = embedded_index(arguments.engine)
    else:
        folder = path if path.is_dir() else corpus_index(path, _counted, arguments.engine)
    retriever: Any = open_index(folder)
    with SearchServer(retriever, arguments.host, arguments.port, arguments.topk) as server:
        size = f"{len(retriever):,} passages" if hasattr(retriever, "__len__") else "passages"
        print(f"serving {size} at {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever(poll_interval=0.1)
    return 0


def _counted(path: Path) -> Iterator[Any]:
    """The passages of a corpus; how many were read so far is said on standard error."""
    from rtmc.gymenvs.qa.retrieval.corpus import read_corpus

    number = 0
    print(f"indexing {path} (once; the index is kept)", file=sys.stderr, flush=True)
    for number, passage in enumerate(read_corpus(path), 1):
        if number % 100_000 == 0:
            print(f"  {number:,} passages read", file=sys.stderr, flush=True)
        yield passage
    print(f"  {number:,} passages; building the index", file=sys.stderr, flush=True)


SERVE_SEARCH = Command(
    "serve-search",
    "serve a corpus over HTTP by Search-R1's protocol",
    _serve_arguments,
    _serve,
)
