"""Free sampling: many contexts decoded together on one tree of tokens.

Contexts share what they have in common; every step runs one new token for each unfinished row. Randomness is one
uniform number a token from the row's own generator (inverse of the cumulative distribution, in float64), so a row's
text does not depend on which rows are sampled beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rtmc.train.forest import common_prefix, pack
from rtmc.train.policy import NOT_FINITE, LiveTree, Policy


@dataclass(frozen=True)
class Sample:
    """`tokens` as sampled (a stop token included, if one came), their log-probabilities, and whether one came.

    `entropy` (n,) float32: of the distribution that each token was drawn from, in nats.
    """

    tokens: tuple[int, ...]
    logprob: np.ndarray
    stopped: bool
    entropy: np.ndarray


def sample(
    policy: Policy,
    contexts: Sequence[tuple[int, ...]],
    live: Sequence[int],
    generators: Sequence[np.random.Generator],
    *,
    max_new_tokens: int,
    stop: Sequence[int],
    greedy: bool = False,
    max_rows: int = 64,
) -> list[Sample]:
    """Continue every context until a stop token or `max_new_tokens`.

    The full vocabulary at the policy's temperature: no top-k, no top-p, so the recorded log-probability is the
    distribution the token was drawn from. `greedy` takes the most likely token instead.
    """
    if max_new_tokens < 1:
        raise ValueError(f"`max_new_tokens` must be at least 1, got {max_new_tokens}")
    out: list[Sample | None] = [None] * len(contexts)
    for rows in _portions(policy, contexts, live, max_rows):
        results = _decode(
            policy,
            [contexts[i] for i in rows],
            [live[i] for i in rows],
            [generators[i] for i in rows],
            max_new_tokens,
            frozenset(stop),
            greedy,
        )
        for i, result in zip(rows, results, strict=True):
            out[i] = result
    return [s for s in out if s is not None]


def _portions(
    policy: Policy, contexts: Sequence[tuple[int, ...]], live: Sequence[int], max_rows: int
) -> Iterator[list[int]]:
    """Rows to decode together: at most `max_rows`, and about `pack_tokens` live tokens before the first new one."""
    rows: list[int] = []
    size = 0
    for i in sorted(range(len(contexts)), key=lambda i: contexts[i]):
        shared = common_prefix(contexts[rows[-1]], contexts[i]) if rows else 0
        more = min(live[i], len(contexts[i]) - shared)
        if rows and (len(rows) == max_rows or size + more > policy.pack_tokens):
            yield rows
            rows, size, more = [], 0, live[i]
        rows.append(i)
        size += more
    if rows:
        yield rows


@torch.no_grad()
def _decode(
    policy: Policy,
    contexts: Sequence[tuple[int, ...]],
    live: Sequence[int],
    generators: Sequence[np.random.Generator],
    max_new_tokens: int,
    stop: frozenset[int],
    greedy: bool,
) -> list[Sample]:
    count = len(contexts)
    trees: dict[tuple[int, ...], LiveTree] = {}
    rows = []
    for context, n in zip(contexts, live, strict=True):
        frozen = context[: len(context) - n]
        tree = trees.setdefault(frozen, LiveTree(frozen))
        rows.append((frozen, tree.nodes.path(context[len(context) - n :])[-1]))
    packed = pack(policy.store.insert(list(trees)), [tree.nodes for tree in trees.values()], range(len(trees)))
    start = dict(zip(trees, packed.starts, strict=True))
    ends = [start[frozen] + row for frozen, row in rows]
    cache = policy.store.cache(packed.frozen)
    hidden = policy.forward(packed.tokens, packed.positions, packed.visible, cache)[ends]
    visible = np.tri(len(packed.tokens), dtype=bool) if packed.visible is None else packed.visible.numpy()
    sees = visible[ends]
    sampled: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    entropies: list[list[float]] = [[] for _ in range(count)]
    stopped = [False] * count
    active = list(range(count))
    for step in range(max_new_tokens):
        logprob = (policy.head(hidden).float() / policy.temperature).log_softmax(-1)
        if not torch.isfinite(logprob.amax(-1)).all():
            raise ValueError(NOT_FINITE)
        if greedy:
            picks = logprob.argmax(-1).cpu().numpy()
        else:
            cumulative = logprob.double().exp().cumsum(-1)
            uniform = torch.tensor([generators[i].random() for i in active], dtype=torch.float64, device=hidden.device)
            # The total differs from one by rounding; scaling the draw by it keeps every token's probability exact.
            picks = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
            picks = picks.clamp_max(logprob.shape[-1] - 1).cpu().numpy()
        chosen = logprob.gather(1, torch.as_tensor(picks, device=logprob.device)[:, None])[:, 0].cpu().numpy()
        # A word of probability 0 adds 0, not 0 times minus infinity.
        entropy = torch.special.entr(logprob.exp()).sum(-1).cpu().numpy()
        rest = []
        for place, i in enumerate(active):
            sampled[i].append(int(picks[place]))
            logprobs[i].append(float(chosen[place]))
            entropies[i].append(float(entropy[place]))
            if int(picks[place]) in stop:
                stopped[i] = True
            else:
                rest.append(place)
        active = [active[place] for place in rest]
        if not active or step + 1 == max_new_tokens:
            break
        grown = np.zeros((len(active), sees.shape[1] + len(active)), dtype=bool)
        grown[:, : sees.shape[1]] = sees[rest]
        grown[np.arange(len(active)), sees.shape[1] + np.arange(len(active))] = True
        sees = grown
        hidden = policy.forward(
            np.asarray([sampled[i][-1] for i in active]),
            np.asarray([len(contexts[i]) + step for i in active]),
            torch.from_numpy(sees),
            cache,
        )
    return [
        Sample(tuple(t), np.asarray(p, dtype=np.float32), s, np.asarray(e, dtype=np.float32))
        for t, p, s, e in zip(sampled, logprobs, stopped, entropies, strict=True)
    ]
