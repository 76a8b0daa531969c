"""`qa`: what was asked, which documents were seen, what was answered, in no order.

Action key: `search:QUERY`, `lookup:QUERY`, `answer:TEXT`, another tool's `name:ARGUMENTS`, or `think`; texts in the
form in which answers are graded (lower case, no punctuation, no articles, single spaces: SQuAD, HotpotQA, Search-R1;
of a text that would leave nothing, such as the title "A", as much is taken away as leaves something).
State key: `asked:Q;Q|seen:DOC;DOC|answered:TEXT`, each a sorted set.

A document's id is the one the answer gives (JSON results), or its title and a hash of its text (`Doc 1(Title: ...)`
passages), or the first words and a hash of the text (a page shown whole). A search without a result shows none.

Read are structured calls, Search-R1's tags, and ReAct's `Search[...]`, `Lookup[...]`, `Finish[...]`. In a rollout that
writes neither tags nor ReAct's forms, a last message without a call, to which nothing came back, is the answer: what
stands in its last `\\boxed{...}` or after its last `answer:` or `answer is`, else all of it.
What this is not: queries of one meaning in other words stay apart, and so do answers within differing sentences.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rtmc.errors import SignatureError
from rtmc.signatures.calls import Call, calls_of
from rtmc.signatures.keys import bounded, short_hash, word_set

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_REACT = re.compile(r"\b(Search|Lookup|Finish)\[(.*?)\][ \t]*$", re.M)
_INPUT = re.compile(r"^Action: *(\w+) *\nAction Input: *(.*)$", re.M)
_DOCUMENT = re.compile(r"(?:\A|(?<=\s)|(?<=>))Doc \d{1,6} ?\(Title: ")
_TAGS_AROUND = re.compile(r"</?information>|^\s*Observation(?: \d+)?:|^\s*\(Result \d+ ?/ ?\d+\)")
_NOTHING = re.compile(
    r"\s*(?:Could not find|No (?i:results?|matches|documents|more results)|Invalid|My previous action is invalid"
    r"|Answer is|Episode finished|The last page Searched|There is no|Error)",
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]+)\}")
_SAID = re.compile(r"\banswer(?: is)?[ \t*_]*:[ \t*_]*(\S.*)$|\banswer is[ \t]+(\S.*?)(?:\.(?=\s)|$)", re.I | re.M)
_ANSWERS = word_set("finish answer submit final_answer respond give_answer")
_LOOKUPS = word_set("lookup find find_in_page")
_SEARCHES = re.compile(r"search|retriev|wiki|query|browse|google|bing|bm25|fetch")
_QUERY = (
    "query",
    "queries",
    "q",
    "entity",
    "keyword",
    "keywords",
    "term",
    "text",
    "input",
    "search_term",
    "title",
    "url",
)
_ANSWER = ("answer", "text", "response", "final_answer", "result", "input", "content", "output")
_WRITTEN = ("react", "search-r1")  # formats of logs whose acts stand in the text
# Documents of one answer, and characters of it that are read.
_MAX_DOCUMENTS, _MAX_TEXT = 200, 200_000
_MAX_ACTION = 10_000  # the act stands at the end of a message


def normal_form(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, single spaces (in this order); where that leaves
    nothing, with its articles, and else with its punctuation."""
    lower = text.lower()
    bare = lower.translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join(bare.split()) or " ".join(lower.split())


class QaSignature:
    """Signatures of agents that search and answer.

    queries     the queries asked are part of the state
    documents   the documents seen are part of the state

    Raises SignatureError where both are switched off: every state before the answer would be one.
    """

    def __init__(self, queries: bool = True, documents: bool = True) -> None:
        if type(queries) is not bool or type(documents) is not bool or not (queries or documents):
            raise SignatureError(
                f"qa: `queries` and `documents` must be true or false, one of them true; got {queries!r}, {documents!r}"
            )
        self.queries = queries
        self.documents = documents

    def action(self, step: Step) -> str:
        """`search:...`, `lookup:...`, `answer:...`, another tool's name and arguments, or `think`."""
        return _key(_acts(step))

    def state(self, rollout: Rollout) -> _QaState:
        """A state before the first step."""
        return _QaState(self, _plain_answer(rollout))


class _QaState:
    def __init__(self, signature: QaSignature, answering: Step | None) -> None:
        self._signature = signature
        self._answering = answering
        self._asked: set[str] = set()
        self._seen: set[str] = set()
        self._answered = ""

    def key(self) -> str:
        parts = [f"asked:{';'.join(sorted(self._asked))}"] if self._signature.queries else []
        if self._signature.documents:
            parts.append(f"seen:{';'.join(sorted(self._seen))}")
        if self._answered:
            parts.append(f"answered:{self._answered}")
        return bounded("|".join(parts))

    def action(self, step: Step) -> str:
        """The signature's key, but for the answer that is given as plain text."""
        return _key(self._acts(step))

    def _acts(self, step: Step) -> list[tuple[str, str]]:
        return [("answer", normal_form(_said(step.action)))] if step is self._answering else _acts(step)

    def update(self, step: Step) -> None:
        looked = False
        for kind, text in self._acts(step):
            if kind == "answer":
                self._answered = text
            elif kind != "think":
                self._asked.add(text if kind == "search" else f"{kind}:{text}")
                looked = True
        if looked and step.answer is not None:
            self._seen.update(_documents(step.answer[:_MAX_TEXT]))


def _key(acts: list[tuple[str, str]]) -> str:
    return bounded(";".join(f"{kind}:{text}" for kind, text in acts) or "think")


def _plain_answer(rollout: Rollout) -> Step | None:
    """The step that answers in plain text, if the rollout has one; where acts are written in tags or in ReAct's form,
    a text without them is no answer but a fault."""
    last = rollout.steps[-1] if rollout.steps else None
    if last is None or last.tool_calls or last.answer is not None or not last.action.strip():
        return None
    written = any(not step.tool_calls and _acts(step) for step in rollout.steps)
    return None if written or rollout.meta.get("format") in _WRITTEN else last


def _said(text: str) -> str:
    """The answer within a last message."""
    boxed = _BOXED.findall(text[-_MAX_ACTION:])
    told = [one or other for one, other in _SAID.findall(text[-_MAX_ACTION:])]
    return next(iter([*boxed[-1:], *told[-1:]]), text)


def _acts(step: Step) -> list[tuple[str, str]]:
    """(kind, normal text) of what the step does."""
    if step.tool_calls:
        return [act for call in calls_of(step) for act in _of_call(call)]
    text = step.action[-_MAX_ACTION:]
    at = {kind: text.find(f"<{kind}>") for kind in ("search", "answer") if f"<{kind}>" in text}
    for kind in sorted(at, key=at.__getitem__):
        body, closed, _ = text[at[kind] + len(kind) + 2 :].partition(f"</{kind}>")
        if closed:
            return [(kind, normal_form(body))]
    written = _REACT.findall(text)[-1:] or _INPUT.findall(text)[-1:]
    return [(_kind(name.lower()), normal_form(text)) for name, text in written]


def _kind(name: str) -> str:
    if name in _ANSWERS:
        return "answer"
    if name in _LOOKUPS:
        return "lookup"
    return "search" if _SEARCHES.search(name) else name


def _of_call(call: Call) -> Iterator[tuple[str, str]]:
    kind = _kind(call.name)
    if kind in ("think", "thought"):
        return
    names = _ANSWER if kind == "answer" else _QUERY
    value: Any = next((call.arguments[n] for n in names if n in call.arguments), None)
    if value is None:
        value = " ".join(f"{k} {_plain(v)}" for k, v in sorted(call.arguments.items(), key=lambda kv: str(kv[0])))
    for text in value if isinstance(value, list) else [value]:
        yield kind, normal_form(_plain(text))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _documents(answer: str) -> set[str]:
    """Ids of the documents that an answer shows."""
    text = answer.strip()
    if text[:1] in ("{", "["):
        try:
            listed = list(_listed(json.loads(text), 0))
        except (ValueError, RecursionError):
            listed = []
        if listed:
            return set(listed[:_MAX_DOCUMENTS])
    found = _DOCUMENT.split(text)[1:]
    text = _TAGS_AROUND.sub("", text).strip()
    if found:
        return {_passage(part) for part in found[:_MAX_DOCUMENTS]}
    if not text or _NOTHING.match(text):
        return set()
    plain = normal_form(text)
    return {f"{' '.join(plain.split()[:4])[:60]}#{short_hash(plain, 6)}"}


def _passage(text: str) -> str:
    """`"Title") text`, as it follows `Doc 1(Title: `; a title in quotes may hold brackets."""
    title, mark, body = text.partition('")') if text.startswith('"') else text.partition(")")
    return _named(title, body) if mark else _named(text[:80], text)


def _named(title: str, body: str) -> str:
    body = normal_form(_TAGS_AROUND.sub("", body))
    return f"{normal_form(title)[:80]}#{short_hash(body, 6)}"


def _listed(value: Any, depth: int) -> Iterator[str]:
    """Ids of the documents in JSON results (Search-R1's server: lists of {"document": {"id", "contents"}, "score"})."""
    if depth > 6:
        return
    if isinstance(value, list):
        for item in value:
            yield from _listed(item, depth + 1)
    elif isinstance(value, dict):
        if isinstance(value.get("document"), dict):
            yield from _listed(value["document"], depth + 1)
            return
        name = next((value[k] for k in ("id", "doc_id", "docid", "document_id", "url") if k in value), None)
        body = next(
            (value[k] for k in ("contents", "content", "text", "snippet") if isinstance(value.get(k), str)), None
        )
        if isinstance(name, (str, int)):
            yield re.sub(r"[|;\s]+", "_", str(name))[:100]
        elif body is not None:
            title = value.get("title")
            yield _named(title if isinstance(title, str) else body.partition("\n")[0], body)
        else:
            for key in ("result", "results", "documents", "docs", "hits", "data"):
                if key in value:
                    yield from _listed(value[key], depth + 1)
