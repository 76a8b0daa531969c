"""How likely the reference answer is after a history: TreeHCA's score of a completed turn.

    p(h) = exp( (1/L) sum_{j=1..L} log pi(y*_j | h, wrapper, y*_<j) )     in (0, 1]

the geometric mean probability of the L tokens of the reference answer y* (TreeHCA, Mukherjee et al.; the quantity of
IGPO, arXiv 2510.14967). The answer is read as the policy would write it: at the history's cue, inside a wrapper, as in
`<answer>Paris</answer>`. The wrapper's tokens are context; only the answer's count.

The joint. Wrapper and answer are encoded as one text, as a message of the policy's would be, and the answer's tokens
are those that hold a character of it: one that holds the wrapper's last character too (`>P`) counts. The history's
tokens stay as they are. A tokenizer that tells no offsets encodes the parts one by one.

The pass. Histories share prefixes, so the tokens in front of the last cue are read once each, by a `PrefixStore`, and
the cues and answers of many histories go through the model together. Where the adapter reads the cue and the action
alone (`adapt` "turn") that store is the policy's own, which mostly has the histories already; where it reads everything
("all") it is one of the adapted model.

What this is not: it takes no gradient, and chooses no turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rtmc.kernels.logprob import token_logprobs
from rtmc.train.forest import Nodes, PrefixStore, pack_live
from rtmc.train.policy import NOT_FINITE, Policy
from rtmc.train.prompt import Format
from rtmc.train.references import Reference

ANSWERS = ("first", "max")


class Target(NamedTuple):
    """An answer in its wrapper: `tokens` up to the answer's last one; those from `first` on are the answer's."""

    tokens: tuple[int, ...]
    first: int


def target_of(tokenizer: Any, answer: str, wrapper: str, lead: str = "") -> Target:
    """The tokens of `lead` + wrapper with the answer in it, see the head of this file.

    Raises ValueError where the tokenizer makes no token of the answer.
    """
    before, after = wrapper.split("{}")
    before = lead + before
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(before + answer + after, add_special_tokens=False, return_offsets_mapping=True)
        start, end = len(before), len(before) + len(answer)
        inside = [i for i, (a, b) in enumerate(encoded["offset_mapping"]) if a < end and b > start]
        tokens, first = encoded["input_ids"], inside[0] if inside else 0
        tokens = tokens[: inside[-1] + 1] if inside else []
    else:
        opening = list(tokenizer(before, add_special_tokens=False).input_ids)
        tokens, first = opening + list(tokenizer(answer, add_special_tokens=False).input_ids), len(opening)
    if len(tokens) == first:
        raise ValueError(f"the tokenizer makes no token of the reference answer {answer!r}")
    return Target(tuple(int(token) for token in tokens), first)


class _Question(NamedTuple):
    frozen: tuple[int, ...]
    live: tuple[int, ...]  # what is read in front of the target: the cue, or the context's last token
    target: Target


class AnswerScorer:
    """Scores reference answers after token contexts under the policy's present weights and temperature.

    adapt     "turn": the adapter reads the context's last `form.cue` tokens and the answer; "all": everything
    answers   which of several wordings counts. "first": the reference, y* of the formula. "max": the likeliest one,
              of every history anew
    """

    def __init__(self, policy: Policy, form: Format, adapt: str = "turn", answers: str = "first") -> None:
        for name, value, known in (("adapt", adapt, ("turn", "all")), ("answers", answers, ANSWERS)):
            if value not in known:
                raise ValueError(f"`{name}` must be {' or '.join(map(repr, known))}, got {value!r}")
        self.policy = policy
        self.form = form
        self.answers = answers
        self.adapted = adapt == "all"
        own = PrefixStore(policy.forward, policy.store.capacity, policy.store.pack_tokens, adapted=True)
        self.store = own if self.adapted else policy.store
        self._targets: dict[tuple[str, str], Target] = {}

    def weights_changed(self) -> None:
        """Forget what older weights read."""
        if self.adapted:
            self.store.clear()

    def score(self, contexts: Sequence[tuple[int, ...]], references: Sequence[Reference]) -> np.ndarray:
        """(n,) float64: p of each reference after its context, which ends with the cue; NaN where the context leaves
        the model no room for the answer. Raises ValueError for weights that are not finite."""
        questions: dict[_Question, float] = {}
        asked: list[list[_Question]] = []
        for context, reference in zip(contexts, references, strict=True):
            if not context:
                raise ValueError("a context to score an answer after must have at least one token")
            wordings = reference.answers if self.answers == "max" else reference.answers[:1]
            live = 1 if self.adapted else min(self.form.cue, len(context))
            split = len(context) - live
            found = [_Question(context[:split], context[split:], self._target(a, reference.wrapper)) for a in wordings]
            limit = math.inf if self.policy.limit is None else self.policy.limit
            # The answer's last token is predicted, not read.
            found = [q for q in found if len(context) + len(q.target.tokens) - 1 <= limit]
            asked.append(found)
            questions |= dict.fromkeys(found, math.nan)
        questions |= self._logprobs(sorted(questions))
        return np.asarray([math.exp(max(questions[q] for q in found)) if found else math.nan for found in asked])

    def _target(self, answer: str, wrapper: str) -> Target:
        key = (answer, wrapper)
        if key not in self._targets:
            self._targets[key] = target_of(self.policy.tokenizer, answer, wrapper, self.form.lead)
        return self._targets[key]

    @torch.no_grad()
    def _logprobs(self, questions: Sequence[_Question]) -> dict[_Question, float]:
        """Mean log-probability of the answer's tokens; questions come sorted, so that neighbours share a prefix."""
        trees: list[tuple[tuple[int, ...], Nodes]] = []
        place: dict[_Question, tuple[int, list[int]]] = {}  # its tree, and the nodes that predict the answer
        for question in questions:
            if not trees or trees[-1][0] != question.frozen or len(trees[-1][1]) >= self.policy.pack_tokens:
                trees.append((question.frozen, Nodes()))
            nodes, (tokens, first) = trees[-1][1], question.target
            rows = nodes.path((*question.live, *tokens[:-1]))
            place[question] = (len(trees) - 1, rows[len(question.live) - 1 + first :])
        paths = self.store.insert([frozen for frozen, _ in trees])
        members: dict[int, list[_Question]] = {}
        for question, (tree, _) in place.items():
            members.setdefault(tree, []).append(question)
        head, found = self.policy.head, {}
        for pack in pack_live(paths, [nodes for _, nodes in trees], self.policy.pack_tokens):
            hidden = self.policy.forward(pack.tokens, pack.positions, pack.visible, self.store.cache(pack.frozen))
            inside = [(q, start) for m, start in zip(pack.members, pack.starts, strict=True) for q in members[m]]
            rows = [start + row for q, start in inside for row in place[q][1]]
            targets = [token for q, _ in inside for token in q.target.tokens[q.target.first :]]
            logprob, _ = token_logprobs(
                hidden[torch.as_tensor(rows, device=hidden.device)],
                head.weight,
                torch.as_tensor(targets, device=hidden.device),
                head.bias,
                self.policy.temperature,
            )
            if not torch.isfinite(logprob).all():
                raise ValueError(NOT_FINITE)
            flat, begin = logprob.double().cpu().numpy(), 0
            for question, _ in inside:
                length = len(question.target.tokens) - question.target.first
                found[question] = float(flat[begin : begin + length].mean())
                begin += length
        return found
