"""verl: every estimator of `rtmc.estimators()` as an advantage estimator of verl (made for 0.9.1).

To paste, where the trainer's process starts:

    import rtmc.adapters.verl as credit

    credit.register(rollouts_per_task=2)
    for uid, row, steps in recorded:  # recorded by the agent loop: one mapping a model call
        credit.side_table.put((uid, row), steps)
    data = compute_advantage(data, adv_estimator="rtmc", config=config)
    credit.side_table.clear()

`compute_advantage` is verl's own; in a run of verl only `algorithm.adv_estimator=rtmc` changes.

Names: every method is `rtmc_<name>`; where verl has no estimator of that name the bare name works too (`rtmc`,
`gigpo`, `treehca`, ...; not `grpo`, `rloo`, `gae`, which stay verl's).

Options, later ones win: the method's defaults; `gamma` of verl's algorithm config, where the method has one (verl's
own default is 1), and its `lam` for `gae`; `register(options={"rtmc": {"prior_visits": 4}})`; the mapping
`algorithm.rtmc` of the config (`+algorithm.rtmc.prior_visits=4`).

Steps are the runs of ones in `response_mask`. The outcome is the sum of `token_level_rewards` over the row, so step
rewards must not be in there too: they come with the steps. What a step saw and did reaches the estimator in one of
three ways, because verl hands a registered estimator nothing but `uid`:

    side_table           a table of this process, keyed by (uid, row), row = how many rows of that uid stand before it
                         in the batch, or by the batch's key. verl's `trainer.balance_batch` changes the order of rows:
                         switch it off, or use another way
    compute_advantage    of this module, in place of verl's: reads the column `rtmc_steps` of `non_tensor_batch`, and
                         takes padding from `attention_mask`
    StepAdvantageMixin   for trainers with `_compute_advantage(batch, metrics)`, as verl's v1 trainers: reads
                         `rtmc_steps` from the `extra_fields` an agent loop returned, or the side table by the batch's
                         keys `<uid>_<session>_<output>`. The outputs of a session are one rollout, whose outcome is
                         that of the last; rows that verl adds to fill the batch count for nothing

The steps of a row: a list of mappings, or `{"steps": [...], "outcome": 1.0, "truncated": True}`. Tokens outside the
steps get 0: verl does not mask what an estimator returns. A row without any sampled token counts in the baselines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rtmc.adapters.attempts import Attempt, attempts_credit, estimator_info, import_engine, match_steps, read_steps
from rtmc.errors import EstimatorError, TableError
from rtmc.kernels.broadcast import broadcast_to_tokens
from rtmc.methods.registry import estimators
from rtmc.tokens import row_and_tokens, steps_from_mask

__all__ = ["SideTable", "StepAdvantageMixin", "compute_advantage", "register", "side_table"]

COLUMN = "rtmc_steps"
_PACKAGE = "verl==0.9.1"
_HINT = "put them into side_table or the column `rtmc_steps`, see the head of rtmc/adapters/verl.py"
Advantages = Callable[..., tuple[Tensor, Tensor]]


class SideTable:
    """Steps of rows, by (uid, row) or by the batch's key. Entries stay until `clear`."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Any] = {}

    def put(
        self,
        key: Hashable,
        steps: Sequence[Mapping[str, Any]],
        outcome: float | None = None,
        truncated: bool = False,
    ) -> None:
        """Remember the steps of a row; a second call with the same key replaces the first.

        key         (uid, row) or the key of a v1 batch
        outcome     the verifier's reward, in place of the sum of the row's token rewards
        truncated   the rollout was cut
        """
        self._entries[key] = {"steps": steps, "outcome": outcome, "truncated": truncated}

    def get(self, key: Hashable) -> Any:
        """The entry, or None."""
        return self._entries.get(key)

    def clear(self) -> None:
        """Forget everything: after every batch, or the table grows."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class _Batch:
    """What the caller of verl's `compute_advantage` knows and verl does not pass on."""

    items: Sequence[Any] | None = None
    keys: Sequence[Hashable] | None = None
    valid: Tensor | None = None  # (B, T), False = padding
    filler: Sequence[bool] | None = None  # rows that only fill up the batch


@dataclass
class _Settings:
    rollouts_per_task: int | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


side_table = SideTable()
_settings = _Settings()
_functions: dict[str, Advantages] = {}
_batch: ContextVar[_Batch | None] = ContextVar("rtmc_verl_batch", default=None)


def register(rollouts_per_task: int | None = None, options: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """Put every estimator of `rtmc.estimators()` into verl's register, and return the names verl now knows it by.

    rollouts_per_task   rollout.n of the run; with it, uids that are all different are an error and not raw rewards
    options             method -> its options

    Idempotent: calling it again registers what is new, and changes only the settings that are given.

    Raises MissingPackageError without verl, EstimatorError for an unknown method in `options`.
    """
    core = import_engine("verl.trainer.ppo.core_algos", _PACKAGE)
    if rollouts_per_task is not None:
        if rollouts_per_task < 1:
            raise EstimatorError(f"`rollouts_per_task` must be at least 1, got {rollouts_per_task}")
        _settings.rollouts_per_task = rollouts_per_task
    for method, given in (options or {}).items():
        estimator_info(method)
        _settings.options[method] = dict(given)
    names = []
    for info in estimators():
        function = _functions.setdefault(info.name, _function(info.name))
        for name in (f"rtmc_{info.name}", info.name):
            there = core.ADV_ESTIMATOR_REGISTRY.get(name)
            if name == info.name and there not in (None, function):
                continue  # verl's own, or another plug-in's: that name stays theirs
            core.register_adv_est(name)(function)
            names.append(name)
    return names


def _function(method: str) -> Advantages:
    def advantages(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, config: Any = None, **unused: Any
    ) -> tuple[Tensor, Tensor]:
        return _advantages(method, token_level_rewards, response_mask, index, config)

    advantages.__name__ = advantages.__qualname__ = f"rtmc_{method}"
    advantages.__doc__ = f"`rtmc.estimate(table, {method!r})` on the runs of `response_mask`; (advantages, returns)."
    return advantages


def _advantages(method: str, rewards: Tensor, response_mask: Tensor, uids: Any, config: Any) -> tuple[Tensor, Tensor]:
    """((B, T), (B, T)) in the dtype and on the device of `rewards`, 0 outside the steps."""
    if uids is None:
        raise TableError("verl passed no `uid`; it must be in `non_tensor_batch` to say which rows are compared")
    batch = _batch.get() or _Batch()
    mask = response_mask.cpu() != 0
    if batch.valid is not None:
        mask &= batch.valid.cpu()
    if batch.filler is not None:
        mask[torch.tensor(batch.filler)] = False
    step_of_token = steps_from_mask(mask)
    rows, first_run = _row_attempts(rewards.detach().cpu().double().sum(-1), uids, batch, step_of_token)
    estimate, first, _ = attempts_credit(
        [attempt for attempt, _ in rows],
        method,
        _options(method, config),
        per_group=_settings.rollouts_per_task,
        hint=_HINT,
    )
    # Table row of each run of the mask, from the rows of each attempt and where their steps begin in it.
    at = torch.zeros(first_run[-1], dtype=torch.int64)
    for start, (_, parts) in zip(first, rows, strict=True):
        for row, offset in parts:
            runs = torch.arange(first_run[row + 1] - first_run[row])
            at[first_run[row] + runs] = start + offset + runs
    returns = estimate.advantage if estimate.returns is None else estimate.returns
    spread = [
        broadcast_to_tokens(column[at], step_of_token, dtype=rewards.dtype) for column in (estimate.advantage, returns)
    ]
    return spread[0].to(rewards.device), spread[1].to(rewards.device)


def _row_attempts(
    outcome: Tensor, uids: Any, batch: _Batch, step_of_token: Tensor
) -> tuple[list[tuple[Attempt, list[tuple[int, int]]]], list[int]]:
    """The rollouts of the batch with their rows as (row, where its steps begin in the rollout), and the first run of
    each row (one more at the end)."""
    count = len(outcome)
    if len(uids) != count:
        raise TableError(f"verl passed {len(uids)} uids for {count} rows")
    run_row, run_tokens = row_and_tokens(step_of_token)
    per_row = torch.bincount(run_row, minlength=count)
    first_run = [0, *per_row.cumsum(0).tolist()]
    tokens = run_tokens.tolist()
    seen: defaultdict[Hashable, int] = defaultdict(int)
    items: list[Any] = []
    for row, uid in enumerate(uids):
        item = batch.items[row] if batch.items is not None else None
        if batch.filler is not None and batch.filler[row]:
            item = {"steps": [], "outcome": math.nan}  # whatever verl copied into it
        elif item is None:
            item = side_table.get((uid, seen[uid]) if batch.keys is None else batch.keys[row])
        seen[uid] += 1
        items.append(item)

    found = []
    for session in _sessions(batch.keys, count):
        steps: list[Mapping[str, Any]] = []
        sizes: list[int] = []
        parts: list[tuple[int, int]] = []
        reward, truncated = math.nan, False
        for row in session:
            name = f"row {row} (uid {uids[row]})"
            given, said, cut = read_steps(items[row], name)
            of_row, of_tokens = match_steps(given, tokens[first_run[row] : first_run[row + 1]], name)
            parts.append((row, len(steps)))
            steps += of_row
            sizes += of_tokens
            reward, truncated = float(outcome[row]) if said is None else said, truncated or cut
        ending = "truncated" if truncated else None
        name = f"the rollout of row {session[-1]} (uid {uids[session[-1]]})"
        found.append((Attempt(uids[session[0]], reward, steps, sizes, ending, name), parts))
    return found, first_run


def _sessions(keys: Sequence[Hashable] | None, rows: int) -> list[list[int]]:
    """Rows of each rollout: one row; with keys `<uid>_<session>_<output>` the rows of a session, by output."""
    if keys is None:
        return [[row] for row in range(rows)]
    if len(keys) != rows:
        raise TableError(f"the batch has {len(keys)} keys for {rows} rows")
    sessions: dict[Hashable, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        name, _, output = str(key).rpartition("_")
        if name and output.isdecimal():
            sessions.setdefault(name, []).append((int(output), row))
        else:
            sessions[key] = [(0, row)]
    return [[row for _, row in sorted(found)] for found in sessions.values()]


def _options(method: str, config: Any) -> dict[str, Any]:
    info = estimator_info(method)
    found: dict[str, Any] = {}
    read = getattr(config, "get", lambda name: getattr(config, name, None))
    for name in ("gamma", "lam"):
        # verl's `lam` is GAE's lambda; other methods have a `lam` of their own.
        taken = name in info.options and (name == "gamma" or method == "gae")
        value = read(name) if config is not None and taken else None
        if value is not None:
            found[name] = float(value)
    found |= _settings.options.get(method, {})
    own = read("rtmc") if config is not None else None
    if own is not None:
        if not isinstance(own, Mapping):
            raise EstimatorError(f"`algorithm.rtmc` must be a mapping of options, got {type(own).__name__}")
        found |= {name: tuple(value) if _is_list(value) else value for name, value in own.items()}
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


@contextmanager
def _known(batch: _Batch) -> Iterator[None]:
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


def compute_advantage(data: Any, adv_estimator: Any, **keywords: Any) -> Any:
    """verl's `compute_advantage` with the column `rtmc_steps` of `data.non_tensor_batch` passed on.

    Estimators that are not ours get what verl gives them. Tokens that `attention_mask` calls padding are none of a
    step's, whatever `response_mask` says.
    """
    trainer = import_engine("verl.trainer.ppo.ray_trainer", _PACKAGE)
    valid = None
    if "attention_mask" in data.batch and "responses" in data.batch:
        valid = data.batch["attention_mask"][:, -data.batch["responses"].shape[1] :] != 0
    with _known(_Batch(items=data.non_tensor_batch.get(COLUMN), valid=valid)):
        return trainer.compute_advantage(data, adv_estimator=adv_estimator, **keywords)


class StepAdvantageMixin:
    """Left of a trainer of verl with `_compute_advantage(batch, metrics)`, whose batch has `keys`.

    class Trainer(StepAdvantageMixin, PPOTrainer): ...
    """

    def rtmc_items(self, batch: Any) -> Sequence[Any] | None:
        """The steps of each row: `rtmc_steps` of the `extra_fields` that the agent loop returned. None = side table."""
        queue = import_engine("transfer_queue", "TransferQueue")
        fetched = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        extra = fetched["extra_fields"].tolist()
        return [entry.get(COLUMN) if isinstance(entry, Mapping) else None for entry in extra]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        filler = [bool(tag.get("is_padding")) for tag in batch.tags]
        with _known(_Batch(items=self.rtmc_items(batch), keys=list(batch.keys), filler=filler)):
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]  # of the trainer to the right
