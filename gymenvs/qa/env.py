"""`rtmc/SearchQA-v0`: find the answer to a question by searching a corpus, as a gymnasium environment."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium.error import ResetNeeded

from rtmc.gymenvs.qa import metrics, texts
from rtmc.gymenvs.qa.actions import FORMS, Act, read_action, write_action
from rtmc.gymenvs.qa.generated import HOPS
from rtmc.gymenvs.qa.questions import Question
from rtmc.gymenvs.qa.retrieval.base import Passage, Retriever, checked_hits
from rtmc.gymenvs.qa.sources import (
    Embedded,
    Listed,
    Source,
    check_hops,
    check_retriever,
    open_retriever,
)
from rtmc.gymenvs.textenv import TextEnv, as_task

REWARDS = {"em": metrics.exact_match, "f1": metrics.f1, "sub_em": metrics.sub_exact_match}
_LONG = 300  # characters of a normalised text that a key spells out


class Snapshot(NamedTuple):
    """Everything an episode is made of; `SearchQAEnv.restore` goes back to it, in this or another environment.

    `asked`: (query in its form for keys, digest of what was found); `looked_up`: (keyword in lower case, times);
    `seen`:
    passages by first appearance.
    """

    question: Question
    asked: frozenset[tuple[str, str]] = frozenset()
    looked_up: tuple[tuple[str, int], ...] = ()
    seen: tuple[Passage, ...] = ()
    answer: str | None = None
    well_formed: bool = True
    turn: int = 0


class SearchQAEnv(TextEnv[Question]):
    """Multi-hop questions, a search engine, and an answer that is graded by exact match.

    ## Observation
    Text. After a reset the task and `Question: ...` (`instructions=False`: the question alone); after a search the
    passages found, with `observation="search-r1"` in that project's frame

        <information>Doc 1(Title: "Velmar Works") Velmar Works is a company ...
        Doc 2(Title: "Velmar") Velmar is a town ...</information>

    with blank lines around it, and with `observation="plain"` without the frame. `top_k` passages at most, each text
    cut to `passage_chars` characters. A query that was asked before, in other case, punctuation or articles too, and
    that
    finds what it found then, is answered again after a line that says so (`repeat_notice`). After an answer the text is
    empty.

    ## Action
    Text: the agent's whole message. `actions="tags"`: `<think>...</think><search>query</search>` or
    `<answer>answer</answer>`. `actions="tools"`: one call of `search(query)`, `lookup(keyword)` or `finish(answer)`, on
    a line of its own or as a JSON tool call. Both are read strictly, see `rtmc.gymenvs.qa.actions`: one action a
    message, none inside the thought, none empty, none longer than 2,000 characters; anything else is invalid and costs
    a turn. `strict=False` reads tags as Search-R1 does: the first closed one. `lookup` shows the next sentence that
    holds the keyword in the passages seen, by passage id.

    ## Reward
    At the answer its score by `reward`: exact match (`em`), `f1` or `sub_em` (a gold occurs in it), from 0 to 1; see
    `rtmc.gymenvs.qa.metrics`. To this `format_reward` is added if every message of the episode was well-formed: a
    thought, then the action, nothing else. 0 on every other step, and for an episode without an answer.

    ## Episode end
    `terminated` by an answer, right or wrong; `truncated` once `max_turns` messages were sent without one. Then a reset
    is needed. A search engine that fails does not end the episode: the step says so in `info["error"]`, changes
    nothing but the turn, and the agent may try again.

    ## Information
    `task_id`; `state_key`, `action_key` (`search:...`, `lookup:...`, `answer:...`, or `invalid`; None after a reset; of
    a query its `texts.query_form`, of a keyword the lower case, of an answer the form that is graded: none is empty);
    `valid` (whether the message was one action; True after a reset); `success` (exact
    match, whatever the reward); `em`, `f1` (0 until there is an answer); `answer` (as given, or None); `documents` (ids
    of the passages seen, by first appearance); `error` (why an action was invalid or a search failed, or None);
    `hops` (where it is known).

    ## State identity
    `asked:Q;Q|seen:ID;ID`, each a sorted set: the queries (and `lookup:KEYWORD*TIMES`), in the forms of action keys,
    and
    the ids of the passages seen; then `|answered:TEXT`. The order in which things were found, the turn and failures
    leave no trace. With a retriever that gives equal answers to queries of one form, equal keys of one task are
    followed by equal answers to equal actions.

    ## Tasks
    `task` (an id, a `Question`, or its JSON object) fixes the question. Else it is one of the source's, numbered 0, 1,
    2, ...: the embedded set's (split `train` of 4,000 or `valid` of 400 questions of 1 to 4 hops over 6,000 passages of
    a made-up world, `rtmc.gymenvs.qa.generated`), or those of `questions`: a file that `read_questions` reads, or
    `Question` objects. `hops` keeps those of so many hops. `reset(seed=s)` draws the number with that seed and thus
    fixes the episode; a later `reset()` draws the next from the same generator; an environment never seeded goes
    through the numbers in order. `reset(options={"task": ...})` plays that task once, and leaves the order as it was.
    Searched is `retriever`: an object with `search(queries, k)`, the address of a Search-R1 server (`http://...`), a
    corpus of JSON lines (indexed once, in the cache), or the folder of an index. Without it, the embedded corpus, or
    the passages that the records of `questions` bring along; these two are opened at the first search.

    ## Source
    Jin et al., Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning, 2025
    (arXiv:2503.09516), for tags, frame, reward and limits; Yao et al., ReAct, ICLR 2023 (arXiv:2210.03629), for
    search, lookup and finish.

    Args:
        task: fixed question, see Tasks.
        split: `train` or `valid` of the embedded set; None = `train`. Not with `questions`.
        max_turns: messages after which an episode is truncated.
        hops: number of hops, or several; None = all.
        questions, retriever: see Tasks.
        actions: `tags` or `tools`.
        strict: whether tags are read strictly, see Action.
        observation: `search-r1` or `plain`.
        instructions: whether the first observation explains the task.
        top_k: passages of one search, at least 1.
        passage_chars: most characters shown of a passage's text, at least 10; None = all.
        repeat_notice: whether a repeated query is remarked on.
        reward: `em`, `f1` or `sub_em`.
        format_reward: added for a well-formed episode, see Reward; at least 0.

    Raises:
        ValueError: an argument is none of those named; the message says which would be. TypeError: one that is true or
            false is something else.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("rtmc.gymenvs:rtmc/SearchQA-v0", split="valid", task="valid/2")
        >>> text, info = env.reset()
        >>> for message in env.unwrapped.expert_plan():
        ...     text, reward, terminated, truncated, info = env.step(message)
        >>> reward, terminated, info["success"]
        (1.0, True, True)
    """

    world = "Search QA"

    def __init__(
        self,
        task: str | Question | Mapping[str, Any] | None = None,
        split: str | None = None,
        max_turns: int = 4,
        hops: int | Sequence[int] | None = None,
        questions: str | os.PathLike[str] | Iterable[Question] | None = None,
        retriever: str | os.PathLike[str] | Retriever | None = None,
        actions: str = "tags",
        strict: bool = True,
        observation: str = "search-r1",
        instructions: bool = True,
        top_k: int = 3,
        passage_chars: int | None = 1000,
        repeat_notice: bool = True,
        reward: str = "em",
        format_reward: float = 0.0,
    ) -> None:
        self.max_turns = self._whole("max_turns", max_turns, 1)
        self.top_k = self._whole("top_k", top_k, 1)
        self.passage_chars = None if passage_chars is None else self._whole("passage_chars", passage_chars, 10)
        self.form = self._choice("actions", actions, FORMS)
        self.observation = self._choice("observation", observation, texts.OBSERVATIONS)
        self.reward = self._choice("reward", reward, tuple(REWARDS))
        number = isinstance(format_reward, (int, float)) and not isinstance(format_reward, bool)
        if not number or not 0 <= format_reward < math.inf:
            raise ValueError(f"Search QA: format_reward must be a finite number of at least 0, got {format_reward!r}")
        self.format_reward = float(format_reward)
        self.strict = self._flag("strict", strict)
        self.instructions = self._flag("instructions", instructions)
        self.repeat_notice = self._flag("repeat_notice", repeat_notice)
        wanted = check_hops(hops)
        self.source: Source
        if questions is None:
            unknown = [one for one in wanted or () if one not in HOPS]
            if unknown:
                raise ValueError(f"Search QA: the embedded questions have 1 to 4 hops, got hops={hops!r}")
            self.source = Embedded("train" if split is None else split, wanted or HOPS)
        elif split is not None:
            raise ValueError(f"Search QA: split={split!r} is of the embedded set; with questions= leave it out")
        else:
            self.source = Listed(questions, wanted)
        check_retriever(retriever)
        self._given = retriever
        # A corpus or an index that is named by its path is opened now, so that a broken one is told of now.
        named = isinstance(retriever, (str, os.PathLike))
        self._opened: Retriever | None = open_retriever(retriever, self.source) if named else None
        super().__init__(task)
        self._now: Snapshot | None = None

    # -- gymnasium -----------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; which task it has is told under Tasks.

        Raises:
            ValueError: an option is not `task`, or its value names no task.
        """
        question = self._begin(seed, options)
        self._now = Snapshot(question)
        text = texts.opening(question.text, self.form, self.instructions, self.max_turns)
        return text, self._info(self._now, None, True, None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Read one message of the agent and answer it.

        Raises:
            TypeError: the action is no text.
            gymnasium.error.ResetNeeded: no episode was started, or it is over.
        """
        now = self._playing()
        if now.answer is not None or now.turn >= self.max_turns:
            raise ResetNeeded("Search QA: the episode is over; call reset() (or restore()) first")
        if not isinstance(action, str):
            raise TypeError(f"Search QA: an action is text, got {type(action).__name__}: {action!r}")
        act = read_action(action, self.form, loose=not self.strict)
        now = now._replace(turn=now.turn + 1, well_formed=now.well_formed and act.well_formed)
        text, reward, error = "", 0.0, None
        if act.kind == "invalid":
            text, error = texts.invalid(act.text, self.observation, self.form), act.text
        elif act.kind == "search":
            now, text, error = self._search(now, act.text)
        elif act.kind == "lookup":
            now, text = self._look_up(now, act.text)
        else:
            now = now._replace(answer=act.text)
            reward = REWARDS[self.reward](act.text, now.question.answers)
            reward += self.format_reward if now.well_formed else 0.0
        self._now = now
        terminated = now.answer is not None
        truncated = not terminated and now.turn >= self.max_turns
        return text, reward, terminated, truncated, self._info(now, _action_key(act), act.kind != "invalid", error)

    # -- forks and help ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The episode as it is now: small, immutable, picklable."""
        return self._playing()

    def restore(self, snapshot: Snapshot) -> dict[str, Any]:
        """Go on from a snapshot, here or in another environment with the same retriever.

        Returns:
            The info of the restored state, with `action_key` None and `valid` True, as after a reset.

        Raises:
            TypeError: it is no snapshot of a Search QA episode.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"Search QA: restore wants what snapshot() gave, got {type(snapshot).__name__}")
        self._now = snapshot
        return self._info(snapshot, None, True, None)

    def expert_plan(self) -> list[str] | None:
        """Messages that end in the right answer from here: the searches known for the question that were not yet made,
        as far as the turns allow, then the answer. None once the episode is over."""
        now = self._playing()
        left = self.max_turns - now.turn
        if now.answer is not None or left < 1:
            return None
        asked = {query for query, _ in now.asked}
        open_searches = [one for one in now.question.searches if texts.query_form(one) not in asked]
        plan = [("search", one) for one in open_searches[: left - 1]] + [("answer", now.question.answers[0])]
        return [write_action(kind, text, self.form) for kind, text in plan]

    @property
    def retriever(self) -> Retriever:
        """What is searched, opened."""
        if self._opened is None:
            self._opened = open_retriever(self._given, self.source)
        return self._opened

    # -- inside --------------------------------------------------------------------------------------------

    def _as_task(self, task: Any) -> Question:
        return as_task(self.world, task, self.source, Question)

    def _playing(self) -> Snapshot:
        if self._now is None:
            raise ResetNeeded("Search QA: call reset() (or restore()) first")
        return self._now

    def _search(self, now: Snapshot, query: str) -> tuple[Snapshot, str, str | None]:
        """The state after a search, what is said, and why it failed (None = it did not)."""
        retriever = self.retriever
        try:
            hits = checked_hits(retriever.search([query], self.top_k), 1)[0][: self.top_k]
        except Exception as failure:  # a retriever is other people's code: what it throws is a fact of this episode
            reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
            return now, texts.result(texts.SEARCH_FAILED, self.observation), reason
        known = {one.id for one in now.seen}
        found = tuple({hit.passage.id: hit.passage for hit in hits}.values())
        key = (texts.query_form(query), _digest("\0".join(f"{one.id}\0{one.contents}" for one in found)))
        notice = texts.REPEATED if self.repeat_notice and key in now.asked else ""
        text = texts.result(texts.passages_text(found, self.passage_chars, notice), self.observation)
        new = tuple(one for one in found if one.id not in known)
        return now._replace(asked=now.asked | {key}, seen=now.seen + new), text, None

    def _look_up(self, now: Snapshot, keyword: str) -> tuple[Snapshot, str]:
        key = keyword.lower()  # what is looked for: two keywords that differ in a sign find other sentences
        times = dict(now.looked_up)
        # By id, not by appearance: what is found must follow from the state's key.
        found = texts.sentences_with(keyword, sorted(now.seen, key=lambda one: one.id))
        at = times.get(key, 0)
        if at < len(found):
            title, sentence = found[at]
            text = f"(Result {at + 1} / {len(found)}) {title}: {texts.cut(sentence, self.passage_chars)}"
            times[key] = at + 1
        else:
            text = texts.NO_MORE if found else texts.NO_MATCH
            times.setdefault(key, 0)
        return now._replace(looked_up=tuple(sorted(times.items()))), texts.result(text, self.observation)

    def _info(self, now: Snapshot, action_key: str | None, valid: bool, error: str | None) -> dict[str, Any]:
        golds = now.question.answers
        em = 0.0 if now.answer is None else metrics.exact_match(now.answer, golds)
        info: dict[str, Any] = {
            "task_id": now.question.id,
            "state_key": _state_key(now),
            "action_key": action_key,
            "valid": valid,
            "success": em == 1.0,
            "em": em,
            "f1": 0.0 if now.answer is None else metrics.f1(now.answer, golds),
            "answer": now.answer,
            "documents": [one.id for one in now.seen],
            "error": error,
        }
        if now.question.hops is not None:  # left out: vector environments make one array of numbers of it
            info["hops"] = now.question.hops
        return info


def _state_key(now: Snapshot) -> str:
    asked = [_spelled(query) for query in {query for query, _ in now.asked}]
    asked += [f"lookup:{_spelled(keyword)}*{times}" for keyword, times in now.looked_up]
    key = f"asked:{';'.join(sorted(asked))}|seen:{';'.join(sorted(_spelled(one.id) for one in now.seen))}"
    return key if now.answer is None else f"{key}|answered:{_spelled(metrics.graded_form(now.answer))}"


_KEY_FORMS = {"search": texts.query_form, "lookup": str.lower, "answer": metrics.graded_form}


def _action_key(act: Act) -> str:
    return "invalid" if act.kind == "invalid" else f"{act.kind}:{_spelled(_KEY_FORMS[act.kind](act.text))}"


def _spelled(text: str) -> str:
    """The text with the key's own marks escaped; a long one is its beginning and a hash."""
    text = text.replace("%", "%25").replace(";", "%3B").replace("|", "%7C")
    return text if len(text) <= _LONG else f"{text[:100]}...{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
