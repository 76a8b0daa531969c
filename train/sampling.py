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

from rtmc.train.forest import ROOT, Nodes, common_prefix
from rtmc.train.policy import NOT_FINITE, Policy


@dataclass(frozen=True)
class Sample:
    """`tokens` as sampled (a stop token included, if one came), their log-probabilities, and whether one came."""

    tokens: tuple[int, ...]
    logprob: np.ndarray
    stopped: bool


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
    paths = policy.store.insert([c[: len(c) - n] for c, n in zip(contexts, live, strict=True)])
    frozen = sorted({row for path in paths for row in path})
    column = {row: i for i, row in enumerate(frozen)}
    # The live ends of the contexts, one tree below each distinct frozen path.
    trees: dict[tuple[int, ...], tuple[Nodes, int]] = {}
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    ends: list[int] = []
    heads: list[list[int]] = []
    index: dict[tuple[tuple[int, ...], int], int] = {}
    for context, n, path in zip(contexts, live, paths, strict=True):
        key = tuple(path)
        tree, _ = trees.setdefault(key, (Nodes(), 0))
        for row in tree.path(context[len(context) - n :]):
            if (key, row) not in index:
                index[key, row] = len(tokens)
                tokens.append(tree.token[row])
                positions.append(len(path) + tree.depth[row])
                parents.append(ROOT if tree.parent[row] == ROOT else index[key, tree.parent[row]])
                heads.append([column[r] for r in path] if tree.parent[row] == ROOT else [])
        ends.append(index[key, row])
    past, width = len(frozen), len(tokens)
    visible = np.zeros((width, past + width), dtype=bool)
    for i, parent in enumerate(parents):
        if parent == ROOT:
            visible[i, heads[i]] = True
        else:
            visible[i] = visible[parent]
        visible[i, past + i] = True
    cache = policy.store.cache(np.asarray(frozen, dtype=np.int64))
    hidden = policy.forward(np.asarray(tokens), np.asarray(positions), torch.from_numpy(visible), cache)[ends]

    sees = visible[ends]
    sampled: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
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
        rest = []
        for place, i in enumerate(active):
            sampled[i].append(int(picks[place]))
            logprobs[i].append(float(chosen[place]))
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
        Sample(tuple(t), np.asarray(p, dtype=np.float32), s) for t, p, s in zip(sampled, logprobs, stopped, strict=True)
    ]
