"""A causal language model evaluated on trees of tokens: every distinct prefix is computed once.

The rollouts of a task share their prompt, equal histories and, where the agent chooses among listed commands, the
commands' first words. Written as a tree (a node is a token, its ancestors are its context) all of that is one forward
pass over the distinct nodes, with an attention mask that lets a node see its ancestors alone and positions equal to its
depth. Nothing is padded and nothing is computed twice.

Two parts of a context are told apart. The *frozen* part is read with the adapter off: its keys and values never
change in a run, so they are kept in a `PrefixStore` and reused between turns, steps and evaluations. The *live* part
is read with the adapter on and carries gradients. Where the frozen part is empty this is ordinary LoRA training;
where it is the whole prompt it is the idea of activated LoRA (Greenewald et al. 2025, arXiv 2504.12397).

Shapes: P frozen nodes of a pack, Q nodes computed in a pack, H hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

ROOT = -1


class CachedForward:
    """One forward pass over packed nodes, through whatever the installed transformers calls its cache argument.

    `model` is a causal LM (a torch module, bare or wrapped by peft); `body` its decoder without the vocabulary
    projection. `split` is the first layer with an adapter: the layers below compute the same for a text whatever is
    trained, so their result can be kept. It is 0 where the model's layers cannot be run in two parts.
    """

    def __init__(self, model: Any) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.model = model
        self.base = base
        self.body = base.base_model if hasattr(base, "base_model") else base.model
        parameters = inspect.signature(self.body.forward).parameters
        # transformers renamed the argument; passing the unknown name would vanish into **kwargs without an error.
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"
        if self.cache_name not in parameters:
            raise ValueError(
                f"the forward of {type(self.body).__name__} takes neither `cache` nor `past_key_values`: "
                "models that keep a key-value cache are supported"
            )
        self.config = base.config
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        if not getattr(self.config, "layer_types", None) and getattr(self.config, "sliding_window", None) is not None:
            kinds = {"sliding_attention"}
        if kinds != {"full_attention"}:
            raise ValueError(
                f"the model has layers of the kinds {sorted(kinds)}; full attention in every layer is supported"
            )
        self.device = next(base.parameters()).device
        self.layers = int(self.config.num_hidden_layers)
        self.split = self._first_adapted_layer()

    def _first_adapted_layer(self) -> int:
        if not isinstance(getattr(self.body, "layers", None), torch.nn.ModuleList) or not hasattr(self.body, "norm"):
            return 0
        for i, layer in enumerate(self.body.layers):
            if any(parameter.requires_grad for parameter in layer.parameters()):
                return i
        return 0

    def __call__(
        self, tokens_Q: np.ndarray, positions_Q: np.ndarray, visible_QK: torch.Tensor | None, cache: DynamicCache | None
    ) -> torch.Tensor:
        """Hidden states (Q, H) of `tokens_Q`; `cache` (P nodes) is extended in place by the Q new nodes.

        `visible_QK` (Q, P + Q) bool says which nodes a node attends to; None = plain causal order.
        """
        ids = torch.as_tensor(tokens_Q, device=self.device)[None]
        return self._run({"input_ids": ids}, positions_Q, visible_QK, cache, 0)

    def lower(
        self, tokens_Q: np.ndarray, positions_Q: np.ndarray, visible_QK: torch.Tensor | None, cache: DynamicCache
    ) -> torch.Tensor:
        """Hidden states (Q, H) below layer `split`; the cache holds the layers below it."""
        ids = torch.as_tensor(tokens_Q, device=self.device)[None]
        with self._only(0, self.split):
            return self._run({"input_ids": ids}, positions_Q, visible_QK, cache, 0)

    def upper(
        self, hidden_QH: torch.Tensor, positions_Q: np.ndarray, visible_QK: torch.Tensor | None, cache: DynamicCache
    ) -> torch.Tensor:
        """The last hidden states (Q, H) from those below layer `split`; the cache holds the layers from it on."""
        with self._only(self.split, self.layers):
            return self._run({"inputs_embeds": hidden_QH[None]}, positions_Q, visible_QK, cache, self.split)

    def _run(
        self,
        inputs: dict[str, torch.Tensor],
        positions_Q: np.ndarray,
        visible_QK: torch.Tensor | None,
        cache: DynamicCache | None,
        first_layer: int,
    ) -> torch.Tensor:
        kwargs = {"use_cache": False} if cache is None else {"use_cache": True, self.cache_name: cache}
        before = cache.layers[first_layer].get_seq_length() if cache is not None else 0
        mask = None
        if visible_QK is not None:
            dtype = self.base.dtype
            mask = torch.zeros(visible_QK.shape, dtype=dtype, device=self.device)
            mask.masked_fill_(~visible_QK.to(self.device), torch.finfo(dtype).min)
            mask = mask[None, None]
        positions = torch.as_tensor(positions_Q, device=self.device)[None]
        out = self.body(position_ids=positions, attention_mask=mask, **inputs, **kwargs)
        hidden = out.last_hidden_state[0]
        if cache is not None and cache.layers[first_layer].get_seq_length() != before + len(hidden):
            raise RuntimeError(
                f"the key-value cache holds {cache.layers[first_layer].get_seq_length()} tokens after a pass, "
                f"{before + len(hidden)} expected: this transformers version handles its cache otherwise"
            )
        return hidden

    @contextmanager
    def _only(self, first: int, last: int) -> Iterator[None]:
        """The decoder reduced to some of its layers, without the final norm unless the last layer is among them."""
        layers, norm = self.body.layers, self.body.norm
        try:
            self.body.layers = torch.nn.ModuleList(list(layers)[first:last])
            if last < self.layers:
                self.body.norm = torch.nn.Identity()
            yield
        finally:
            self.body.layers, self.body.norm = layers, norm


@dataclass
class Nodes:
    """Tokens as a tree: `token[i]`, `parent[i]` (an earlier row or ROOT), `depth[i]` (0 = first token)."""

    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    _child: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token)

    def child(self, parent: int, token: int) -> int:
        """Row of `token` under `parent`, made when it is new."""
        key = (parent, token)
        row = self._child.get(key)
        if row is None:
            row = len(self.token)
            self._child[key] = row
            self.token.append(token)
            self.parent.append(parent)
            self.depth.append(0 if parent == ROOT else self.depth[parent] + 1)
        return row

    def path(self, tokens: Iterable[int], start: int = ROOT) -> list[int]:
        """Rows of a chain of tokens below `start`."""
        rows = []
        for token in tokens:
            start = self.child(start, token)
            rows.append(start)
        return rows

    def ancestors(self, row: int) -> list[int]:
        """Rows from the first token to `row`, both included."""
        rows = []
        while row != ROOT:
            rows.append(row)
            row = self.parent[row]
        return rows[::-1]


class PrefixStore:
    """Keys and values of contexts that are read without gradients, one row a distinct prefix.

    They are the base model's, which never change in a run; with `adapted` the adapted model's, and then whoever
    changes the weights has to `clear` the store. Memory: layers x 2 x key-value heads x head size x element size a
    token. Once it holds `capacity` tokens the store is emptied before the next insertion (contexts that are still
    needed are computed again).
    """

    def __init__(
        self, forward: CachedForward, capacity: int = 65536, pack_tokens: int = 384, adapted: bool = False
    ) -> None:
        if capacity < 1 or pack_tokens < 1:
            raise ValueError(f"`capacity` and `pack_tokens` must be positive, got {capacity} and {pack_tokens}")
        self.forward = forward
        self.capacity = capacity
        self.pack_tokens = pack_tokens
        self.adapted = adapted
        self.computed_tokens = 0
        self.clear()

    def clear(self) -> None:
        self.nodes = Nodes()
        self.ready = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def insert(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Paths (rows of the store) of the given token sequences; what is new is computed."""
        if len(self.nodes) >= self.capacity:
            self.clear()
        paths = [self.nodes.path(context) for context in contexts]
        self._compute()
        return paths

    def cache(self, rows: np.ndarray, first: int = 0, last: int | None = None) -> DynamicCache:
        """A cache of batch size 1 that holds the given rows, in that order, in layers first..last (all by default)."""
        cache = DynamicCache(config=self.forward.config)
        if len(rows) > 0:
            index = torch.as_tensor(rows, device=self.forward.device)
            for layer in range(first, self.forward.layers if last is None else last):
                keys, values = self._keys[layer].index_select(1, index), self._values[layer].index_select(1, index)
                cache.update(keys[None], values[None], layer)
        return cache

    def _compute(self) -> None:
        nodes = self.nodes
        while self.ready < len(nodes):
            rows = range(self.ready, min(len(nodes), self.ready + self.pack_tokens))
            # Rows are in insertion order, so a parent always precedes its children: a block of rows only needs
            # rows before it and rows inside it.
            local = {row: i for i, row in enumerate(rows)}
            parents = [local.get(nodes.parent[row], ROOT) for row in rows]
            # What the others see begins with what one of these does.
            lines = {i: nodes.ancestors(nodes.parent[row]) for i, row in enumerate(rows) if parents[i] == ROOT}
            past = sorted({a for line in lines.values() for a in line})
            column = {row: i for i, row in enumerate(past)}
            heads = {i: [column[a] for a in line] for i, line in lines.items()}
            read_by = nullcontext() if self.adapted else adapter_off(self.forward.model)
            with torch.no_grad(), read_by:
                cache = self.cache(np.asarray(past, dtype=np.int64))
                self.forward(
                    np.asarray([nodes.token[r] for r in rows]),
                    np.asarray([nodes.depth[r] for r in rows]),
                    visibility(parents, heads, len(past)),
                    cache,
                )
            self._append(cache, len(rows))
            self.ready += len(rows)
            self.computed_tokens += len(rows)

    def _append(self, cache: DynamicCache, count: int) -> None:
        if not self._keys:
            for layer in cache.layers:
                heads, size = layer.keys.shape[1], layer.keys.shape[3]
                shape = (heads, min(self.capacity, 4096), size)
                self._keys.append(layer.keys.new_empty(shape))
                self._values.append(layer.values.new_empty(shape))
        if self.ready + count > self._keys[0].shape[1]:
            room = max(2 * self._keys[0].shape[1], self.ready + count)
            for store in (self._keys, self._values):
                for i, old in enumerate(store):
                    new = old.new_empty((old.shape[0], room, old.shape[2]))
                    new[:, : self.ready] = old[:, : self.ready]
                    store[i] = new
        rows = slice(self.ready, self.ready + count)
        for i, layer in enumerate(cache.layers):
            self._keys[i][:, rows] = layer.keys[0, :, -count:]
            self._values[i][:, rows] = layer.values[0, :, -count:]


def visibility(parents: Sequence[int], heads: Mapping[int, Sequence[int]], past: int) -> torch.Tensor:
    """(Q, past + Q) bool: which of `past` known nodes and of Q new ones each new node sees: its ancestors and itself.

    `parents[i]` is an earlier new node, or ROOT; then `heads[i]` are the known nodes that node i continues.
    """
    visible = np.zeros((len(parents), past + len(parents)), dtype=bool)
    for i, parent in enumerate(parents):
        if parent == ROOT:
            visible[i, heads[i]] = True
        else:
            visible[i] = visible[parent]
        visible[i, past + i] = True
    return torch.from_numpy(visible)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two texts share."""
    length = min(len(a), len(b))
    for i in range(length):
        if a[i] != b[i]:
            return i
    return length


class adapter_off:
    """The base model inside the block (peft's adapters disabled); does nothing for a bare model."""

    def __init__(self, model: Any) -> None:
        self._context = model.disable_adapter() if hasattr(model, "disable_adapter") else None

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._context is not None:
            self._context.__exit__(*exc)


@dataclass(frozen=True)
class Pack:
    """Live trees that one pass evaluates together: `frozen` rows of the store, then the live nodes."""

    frozen: np.ndarray
    tokens: np.ndarray
    positions: np.ndarray
    visible: torch.Tensor | None  # None: one chain and nothing frozen, plain causal order
    members: tuple[int, ...]  # which requests are in the pack, in order
    starts: tuple[int, ...]  # first live row of each member


def pack_live(
    frozen_paths: Sequence[Sequence[int]], trees: Sequence[Nodes], pack_tokens: int, pack_frozen: int = 2048
) -> Iterator[Pack]:
    """Group live trees (each below its frozen path) into packs of at most about `pack_tokens` live nodes.

    Neighbours in the given order share a pack, so callers list requests of one task together.
    """
    members: list[int] = []
    live = 0
    frozen: set[int] = set()
    for i, tree in enumerate(trees):
        union = frozen | set(frozen_paths[i])
        if members and (live + len(tree) > pack_tokens or len(union) > pack_frozen):
            yield pack(frozen_paths, trees, members)
            members, live, union = [], 0, set(frozen_paths[i])
        members.append(i)
        live += len(tree)
        frozen = union
    if members:
        yield pack(frozen_paths, trees, members)


def pack(frozen_paths: Sequence[Sequence[int]], trees: Sequence[Nodes], members: Sequence[int]) -> Pack:
    """One pass over the given members' trees."""
    frozen = sorted({row for i in members for row in frozen_paths[i]})
    column = {row: c for c, row in enumerate(frozen)}
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    heads: dict[int, list[int]] = {}
    starts = []
    for i in members:
        start, path = len(tokens), [column[row] for row in frozen_paths[i]]
        starts.append(start)
        for row, parent in enumerate(trees[i].parent):
            if parent == ROOT:
                heads[start + row] = path
            parents.append(ROOT if parent == ROOT else start + parent)
        tokens += trees[i].token
        positions += [len(path) + depth for depth in trees[i].depth]
    chain = not frozen and parents == list(range(ROOT, len(parents) - 1))
    return Pack(
        np.asarray(frozen, dtype=np.int64),
        np.asarray(tokens, dtype=np.int64),
        np.asarray(positions, dtype=np.int64),
        None if chain else visibility(parents, heads, len(frozen)),
        tuple(members),
        tuple(starts),
    )
