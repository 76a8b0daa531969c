"""The policy: a causal LM with a LoRA adapter that picks actions and scores the tokens it picked.

Two ways to act, told apart by the request:

* `choice`: the action is one of the commands the environment lists. The model's own next-token distribution is
  restricted, token by token, to continuations of some listed command and renormalised (a softmax over the allowed
  tokens' logits). Tokens with a single continuation are forced: probability one, nothing sampled, nothing to train.
  The probability of a command is the product over its branching tokens; over the list they sum to one.
* `free`: ordinary sampling from the full vocabulary until a stop token.

Where nothing says otherwise, `logprob` is the natural logarithm of a probability under the given temperature, in
float32. The reference policy is the base model: the same call inside `adapter_off`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rtmc.train.forest import ROOT, CachedForward, Nodes, Pack, PrefixStore, pack_live

NOT_FINITE = (
    "the model's probabilities are not finite: its weights or its half-precision arithmetic broke "
    '(`model.dtype = "float32"` rules the latter out)'
)


@dataclass(frozen=True)
class Choices:
    """Listed commands as token sequences; no one is the beginning of another."""

    commands: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.commands:
            raise ValueError("there must be at least one command to choose from")
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError(f"two of the commands {list(self.commands)} have the same tokens")

    @cached_property
    def tree(self) -> ChoiceTree:
        return ChoiceTree(self)


class ChoiceTree:
    """The prefix tree of a list of commands, cut to the nodes whose next token is a real choice.

    `nodes` are the command tokens that must be read by the model; `node_of_edge` (-1 = the end of the context) and
    `token_of_edge` list every continuation of every branching node; `edges[c]` gives, for the tokens of command c, the
    edge it took or -1 where it was forced.
    """

    def __init__(self, choices: Choices) -> None:
        full = Nodes()
        paths = [full.path(tokens) for tokens in choices.tokens]
        children: dict[int, list[int]] = {}
        for row, parent in enumerate(full.parent):
            children.setdefault(parent, []).append(row)
        for path, command in zip(paths, choices.commands, strict=True):
            if path[-1] in children:
                raise ValueError(
                    f"the command {command!r} is the beginning of another one: end commands with a stop token"
                )
        branching = [row for row in (ROOT, *range(len(full))) if len(children.get(row, ())) > 1]
        needed = sorted({a for row in branching for a in full.ancestors(row)})
        self.nodes = Nodes()
        keep = {ROOT: ROOT}
        for row in needed:
            keep[row] = self.nodes.child(keep[full.parent[row]], full.token[row])
        edge: dict[int, int] = {}
        node_of_edge: list[int] = []
        token_of_edge: list[int] = []
        for row in branching:
            for child in children[row]:
                edge[child] = len(node_of_edge)
                node_of_edge.append(keep[row])
                token_of_edge.append(full.token[child])
        self.node_of_edge = np.asarray(node_of_edge, dtype=np.int64)
        self.token_of_edge = np.asarray(token_of_edge, dtype=np.int64)
        self.edges = tuple(np.asarray([edge.get(row, -1) for row in path], dtype=np.int64) for path in paths)


@dataclass(frozen=True)
class Request:
    """One question to the policy: after `context`, score the choices, or the tokens that were sampled freely.

    `live` is how many of the context's last tokens are read with the adapter on (at least one: the token whose output
    predicts the first action token); everything before is frozen.
    """

    context: tuple[int, ...]
    live: int
    choices: Choices | None = None
    sampled: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.live <= len(self.context):
            raise ValueError(f"`live` must lie in 1..{len(self.context)} (the context's length), got {self.live}")
        if (self.choices is None) == (self.sampled is None):
            raise ValueError("a request scores either `choices` or `sampled` tokens: give exactly one of them")

    @property
    def frozen(self) -> tuple[int, ...]:
        return self.context[: len(self.context) - self.live]

    @cached_property
    def key(self) -> tuple:
        """Equal keys, equal answers under one set of weights."""
        return (self.context, self.live, self.choices.tokens if self.choices else self.sampled)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.key == other.key


class LiveTree:
    """Live tokens of requests that share their frozen context; `rows[i]`: the nodes in front of request i's edges."""

    def __init__(self, frozen: tuple[int, ...]) -> None:
        self.frozen = frozen
        self.nodes = Nodes()
        self.rows: dict[int, np.ndarray] = {}

    def add(self, i: int, request: Request) -> None:
        end = self.nodes.path(request.context[len(self.frozen) :])[-1]
        if request.choices is None:
            assert request.sampled is not None
            rows = [end, *self.nodes.path(request.sampled[:-1], end)]
        else:
            tree = request.choices.tree
            keep = {ROOT: end}
            for row, (token, parent) in enumerate(zip(tree.nodes.token, tree.nodes.parent, strict=True)):
                keep[row] = self.nodes.child(keep[parent], token)
            rows = [keep[int(n)] for n in tree.node_of_edge]
        self.rows[i] = np.asarray(rows, dtype=np.int64)


@dataclass
class Scores:
    """Scores of a batch of requests. Edges are the sampled tokens or the continuations of branching nodes.

    `logprob` (E,) float32; `entropy` (N,) float32, one a request: of the distribution over commands, or the mean over
    the sampled tokens' distributions; `start[i]` is the first edge of request i.
    """

    logprob: torch.Tensor
    entropy: torch.Tensor
    start: list[int]


@dataclass(frozen=True)
class Answer:
    """How a choice was answered: `edge` (edges,) float32 and `command` (commands,) float64, exactly normalised."""

    edge: np.ndarray
    command: np.ndarray


class Policy:
    """A model, its tokenizer and its frozen-prefix store behind two calls: `score` and `sample`."""

    def __init__(
        self,
        model: Any,
        tokenizer: object,
        *,
        temperature: float = 1.0,
        capacity: int = 65536,
        pack_tokens: int = 384,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {temperature}")
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.pack_tokens = pack_tokens
        self.forward = CachedForward(model)
        self.store = PrefixStore(self.forward, capacity=capacity, pack_tokens=pack_tokens)
        self._lower: dict[tuple, torch.Tensor] = {}
        self._lower_rows = 0
        self.limit = getattr(self.forward.config, "max_position_embeddings", None)
        self.head = self.forward.base.get_output_embeddings()
        if not isinstance(self.head, torch.nn.Linear):
            raise ValueError(
                f"the model's output projection is a {type(self.head).__name__}; a torch.nn.Linear is supported"
            )
        for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
            if getattr(self.forward.config, name, None) not in (None, 1, 1.0):
                raise ValueError(
                    f"the model rescales its logits ({name}={getattr(self.forward.config, name)}): not supported"
                )

    def forget(self) -> None:
        """Drop every kept key, value and hidden state (they would be computed again, equal up to rounding)."""
        self.store.clear()
        self._lower.clear()
        self._lower_rows = 0

    def score(self, requests: Sequence[Request]) -> Scores:
        """Log-probabilities of every edge of every request, with gradients where they are enabled.

        Raises ValueError for a request whose context leaves the model no room.
        """
        order = sorted(range(len(requests)), key=lambda i: (requests[i].frozen, requests[i].context))
        trees = self._live_trees(requests, order)
        paths = self.store.insert([tree.frozen for tree in trees])
        scored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for pack in pack_live(paths, [tree.nodes for tree in trees], self.pack_tokens):
            hidden = self._hidden(pack, [tuple(requests[i].key for i in trees[m].rows) for m in pack.members])
            for member, start in zip(pack.members, pack.starts, strict=True):
                for i, rows in trees[member].rows.items():
                    score = self._score_choice if requests[i].choices is not None else self._score_free
                    scored[i] = score(requests[i], hidden, torch.as_tensor(rows + start, device=hidden.device))
        logprobs, entropies = zip(*(scored[i] for i in range(len(requests))), strict=True)
        starts = np.cumsum([0, *(len(logprob) for logprob in logprobs[:-1])]).tolist()
        return Scores(torch.cat(logprobs), torch.stack(entropies), starts)

    def _live_trees(self, requests: Sequence[Request], order: Sequence[int]) -> list[LiveTree]:
        """The requests' live tokens, those with one frozen context on one tree as far as `pack_tokens` allows."""
        trees: list[LiveTree] = []
        for i in order:
            if not trees or trees[-1].frozen != requests[i].frozen or len(trees[-1].nodes) >= self.pack_tokens:
                trees.append(LiveTree(requests[i].frozen))
            trees[-1].add(i, requests[i])
            longest = len(trees[-1].frozen) + max(trees[-1].nodes.depth) + 1
            if self.limit is not None and longest > self.limit:
                raise ValueError(
                    f"a context of {longest} tokens passes the model's {self.limit} positions: shorten the history"
                )
        return trees

    def _hidden(self, pack: Pack, keys: Sequence[tuple]) -> torch.Tensor:
        """Last hidden states of a pack; what the layers below the adapter make of it is kept for the next time."""
        split = self.forward.split
        if split == 0:
            return self.forward(pack.tokens, pack.positions, pack.visible, self.store.cache(pack.frozen))
        if any(key not in self._lower for key in keys):
            if self._lower_rows > self.store.capacity:
                self._lower.clear()
                self._lower_rows = 0
            with torch.no_grad():
                cache = self.store.cache(pack.frozen, 0, split)
                lower = self.forward.lower(pack.tokens, pack.positions, pack.visible, cache)
            ends = [*pack.starts[1:], len(pack.tokens)]
            self._lower |= {k: lower[a:b].clone() for k, a, b in zip(keys, pack.starts, ends, strict=True)}
            self._lower_rows += len(pack.tokens)
        else:
            lower = torch.cat([self._lower[key] for key in keys])
        return self.forward.upper(lower, pack.positions, pack.visible, self.store.cache(pack.frozen, split))

    def _score_choice(
        self, request: Request, hidden: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert request.choices is not None
        tree = request.choices.tree
        if len(rows) == 0:  # a single command: forced
            zero = hidden.new_zeros((), dtype=torch.float32)
            return hidden.new_zeros(0, dtype=torch.float32), zero
        tokens = torch.as_tensor(tree.token_of_edge, device=hidden.device)
        # A product of a few rows, in float32 also where the model computes in half precision.
        logits = (hidden[rows].float() * self.head.weight[tokens].float()).sum(-1)
        if self.head.bias is not None:
            logits = logits + self.head.bias[tokens].float()
        logits = logits / self.temperature
        # Edges of one node are neighbours in the list; a softmax inside each run of them.
        runs = np.flatnonzero(np.diff(tree.node_of_edge, prepend=tree.node_of_edge[0] - 1))
        sizes = np.diff(np.append(runs, len(tree.node_of_edge)))
        logprob = torch.cat([part.log_softmax(0) for part in logits.split(sizes.tolist())])
        command = torch.stack([logprob[torch.as_tensor(e[e >= 0], device=hidden.device)].sum() for e in tree.edges])
        return logprob, -(command.exp() * command).sum()

    def _score_free(
        self, request: Request, hidden: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(hidden[rows]).float() / self.temperature
        logprobs = logits.log_softmax(-1)
        sampled = torch.as_tensor(request.sampled, device=hidden.device)
        entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        return logprobs.gather(1, sampled[:, None])[:, 0], entropy

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """For each choice request, the log-probabilities it was answered with (no gradients)."""
        with torch.no_grad():
            scores = self.score(requests)
        flat = scores.logprob.cpu().numpy()
        out = []
        for request, start in zip(requests, scores.start, strict=True):
            assert request.choices is not None
            edges = request.choices.tree.edges
            edge = flat[start : start + len(request.choices.tree.node_of_edge)]
            command = np.asarray([edge[e[e >= 0]].sum(dtype=np.float64) for e in edges])
            out.append(Answer(edge, command - np.logaddexp.reduce(command)))
        return out
