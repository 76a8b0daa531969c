"""TRL: a mixin for `GRPOTrainer` that writes one advantage a token, (B, T) (made for 1.16).

To paste, with `keywords` what GRPOTrainer takes, a `rollout_func` or an `environment_factory` among them:

    from trl import GRPOTrainer
    from rtmc.adapters.trl import StepAdvantageMixin

    class StepTrainer(StepAdvantageMixin, GRPOTrainer):
        rtmc_method = "rtmc"
        rtmc_options = {"gamma": 0.99, "prior_visits": 2}

    trainer = StepTrainer(**keywords)
    trainer.train()

Steps are the runs of sampled tokens: `tool_mask` (from tools, or a rollout function's `env_mask`), without the padding,
which TRL fills with ones there. The outcome is the weighted sum of the rewards; None or NaN from every reward function
is unknown, which counts as absent. The group is TRL's: `num_generations` rows in a row, over all processes.

What a step saw and did:

    rollout_func          returns, beside `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`, the field
                          `rtmc_steps`: for every completion the list of its steps, `{"state": ..., "action": ...}` with
                          whatever else StepTable.from_rows takes, or `{"steps": [...], "truncated": True}`
    environment_factory   the environment has an attribute or property `rtmc_state`, the key of the state it is in, and
                          may have `rtmc_reward`, the reward of the last tool call. The state before a turn and the
                          call's name and arguments are then the step's keys. Several calls in one turn are one step; a
                          turn without a call has its text as the action
    neither               override `rtmc_steps_of(example, completion, calls, environment)`; methods that read no keys,
                          as `grpo`, need none of this

The advantages are one more entry of the batch that TRL shuffles and splits, so they stay with their row. They replace
TRL's, and `scale_rewards` and `multi_objective_aggregation` have no effect: the method says how rewards are scaled.
Metrics: `rtmc/uniform_groups`, the fraction of groups whose known outcomes are all equal, and `rtmc/unknown_outcomes`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rtmc.adapters.attempts import Attempt, attempts_credit, import_engine, match_steps, read_steps
from rtmc.errors import EstimatorError, TableError
from rtmc.kernels.broadcast import broadcast_to_tokens
from rtmc.tokens import row_and_tokens, steps_from_mask

__all__ = ["Call", "StepAdvantageMixin", "steps_of_calls"]

COLUMN = "rtmc_steps"
_HINT = "see the head of rtmc/adapters/trl.py for how a rollout_func or an environment gives them"
Call = dict[str, Any]


class StepAdvantageMixin:
    """Left of `GRPOTrainer`, or of a class made from it.

    rtmc_method    a name of `rtmc.estimators()`
    rtmc_options   its options
    """

    rtmc_method: str = "rtmc"
    rtmc_options: Mapping[str, Any] = {}
    _rtmc_calls: list[list[Call]] | None = None
    _rtmc_seen: tuple[Tensor, list[Any]] | None = None

    def rtmc_steps_of(
        self, example: Mapping[str, Any], completion: Any, calls: list[Call] | None, environment: Any
    ) -> Any:
        """The steps of one completion, or None where no keys are known.

        example      the row of the data set, with the fields a rollout_func returned
        completion   its messages, or its text
        calls        the tool calls made in it, in order; None without an environment that has `rtmc_state`
        environment  the environment it was played in, or None
        """
        if COLUMN in example:
            return example[COLUMN]
        return None if calls is None else steps_of_calls(completion, calls, environment.rtmc_state)

    def _generate(self, prompts: list[Any]) -> Any:
        self._rtmc_calls = None
        environments = getattr(self, "environments", None) or []
        if environments and all(hasattr(environment, "rtmc_state") for environment in environments):
            self._rtmc_calls = [[] for _ in environments]
            for tools in (self._sync_tool_dicts, self._async_tool_dicts):  # type: ignore[attr-defined]  # of GRPOTrainer
                for environment, calls, named in zip(environments, self._rtmc_calls, tools, strict=True):
                    for name, tool in named.items():
                        named[name] = _recorded(name, tool, environment, calls)
        return super()._generate(prompts)  # type: ignore[misc]  # of GRPOTrainer

    def _calculate_rewards(
        self, inputs: list[Any], prompts: list[Any], completions: list[Any], ids: list[Any]
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, ids)  # type: ignore[misc]  # of GRPOTrainer
        environments = getattr(self, "environments", None) or [None] * len(inputs)
        calls: list[Any] = self._rtmc_calls or [None] * len(inputs)
        self._rtmc_seen = (
            rewards,
            [self.rtmc_steps_of(*row) for row in zip(inputs, completions, calls, environments, strict=True)],
        )
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # One row of the data set may stand here several times as the same object, and TRL writes into it.
        output: dict[str, Any] = super()._generate_and_score_completions(  # type: ignore[misc]  # of GRPOTrainer
            [dict(example) for example in inputs]
        )
        if self._rtmc_seen is None:
            raise EstimatorError(
                "TRL did not call `_calculate_rewards`: this version is not one the adapter was made for"
            )
        (rewards, given), self._rtmc_seen, self._rtmc_calls = self._rtmc_seen, None, None
        output["advantages"] = self._rtmc_advantages(output, rewards, given)
        return output

    def _rtmc_advantages(self, output: Mapping[str, Any], rewards: Tensor, given: list[Any]) -> Tensor:
        """(B, T) for the rows of this process; every process reckons with the rows of all."""
        mask = output["completion_mask"] != 0
        if output.get("tool_mask") is not None:
            mask = mask & (output["tool_mask"] != 0)
        step_of_token = steps_from_mask(mask.cpu())
        run_row, run_tokens = row_and_tokens(step_of_token)
        per_row = torch.bincount(run_row, minlength=len(mask)).tolist()
        runs = [part.tolist() for part in run_tokens.split(per_row)]
        operations = import_engine("accelerate.utils", "trl==1.16.0")
        everyone = operations.gather_object(list(zip(given, runs, strict=True)))

        weights = self.reward_weights.to(rewards.device)  # type: ignore[attr-defined]  # of GRPOTrainer
        outcome = (rewards * weights).nansum(1).double()
        outcome[rewards.isnan().all(1)] = torch.nan
        if len(outcome) != len(everyone):
            raise TableError(f"{len(outcome)} rewards for the {len(everyone)} completions of all processes")
        training = self.model.training  # type: ignore[attr-defined]  # of GRPOTrainer
        size = self.num_generations if training else self.num_generations_eval  # type: ignore[attr-defined]  # of GRPOTrainer
        attempts = []
        for row, ((item, sizes), reward) in enumerate(zip(everyone, outcome.tolist(), strict=True)):
            steps, said, truncated = read_steps(item, f"completion {row}")
            steps, tokens = match_steps(steps, sizes, f"completion {row}")
            ending = "truncated" if truncated else None
            attempts.append(
                Attempt(row // size, reward if said is None else said, steps, tokens, ending, f"completion {row}")
            )
        estimate, first, table = attempts_credit(attempts, self.rtmc_method, self.rtmc_options, hint=_HINT)

        count = table.summary()
        logged = self._metrics["train" if training else "eval"]  # type: ignore[attr-defined]  # of GRPOTrainer
        logged["rtmc/uniform_groups"].append(count["uniform"] / max(count["groups"], 1))
        logged["rtmc/unknown_outcomes"].append(count["unknown"] / max(count["rollouts"], 1))

        start = self.accelerator.process_index * len(mask)  # type: ignore[attr-defined]  # of GRPOTrainer
        # A row that was cut has lost runs at its end only, so the k-th run of a row is its k-th step.
        at = [first[start + row] + place for row, count_of_row in enumerate(per_row) for place in range(count_of_row)]
        values = estimate.advantage[torch.tensor(at, dtype=torch.int64)]
        return broadcast_to_tokens(values, step_of_token, dtype=torch.float32).to(mask.device)


def steps_of_calls(completion: Sequence[Mapping[str, Any]], calls: Sequence[Call], state: Any) -> list[dict[str, Any]]:
    """One step for every assistant message, from the tool calls that were made in the rollout.

    completion   messages; the tool calls of an assistant message are those it made, except names that are no tool
    calls        `name`, `state` and `next_state` (keys before and after it), `action`, `reward`, in order
    state        key of the state at the end

    The state of a step is that before its first call; a step without a call is in the state of the next call, or of the
    end. Its action is the key of its call, a tuple of them, or its text.
    """
    named = {call["name"] for call in calls}
    waiting = list(calls)
    steps: list[dict[str, Any]] = []
    for message in completion:
        if message.get("role") != "assistant":
            continue
        asked = [call.get("function", {}).get("name") for call in message.get("tool_calls") or []]
        made = [waiting.pop(0) for name in asked if name in named and waiting]
        if not made:
            now = waiting[0]["state"] if waiting else state
            steps.append({"state": now, "action": ("text", _text(message))})
            continue
        keys = tuple(call["action"] for call in made)
        steps.append(
            {
                "state": made[0]["state"],
                "action": keys if len(keys) > 1 else keys[0],
                "next_state": made[-1]["next_state"],
                "reward": sum(call["reward"] for call in made),
            }
        )
    if waiting:
        raise TableError(f"{len(waiting)} of {len(calls)} tool calls belong to no assistant message of the completion")
    return steps


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps([message.get("content"), message.get("tool_calls")], sort_keys=True, default=str)


def _recorded(name: str, tool: Callable[..., Any], environment: Any, calls: list[Call]) -> Callable[..., Any]:
    """The tool, with every call of it written down, one that raises too."""

    def begin(arguments: Mapping[str, Any]) -> Call:
        key = f"{name} {json.dumps(arguments, sort_keys=True, default=str)}"
        call = {"name": name, "state": environment.rtmc_state, "action": key, "next_state": None, "reward": 0.0}
        calls.append(call)
        return call

    def end(call: Call) -> None:
        call["next_state"] = environment.rtmc_state
        call["reward"] = float(getattr(environment, "rtmc_reward", 0.0) or 0.0)

    if inspect.iscoroutinefunction(tool):

        async def later(**arguments: Any) -> Any:
            call = begin(arguments)
            try:
                return await tool(**arguments)
            finally:
                end(call)

        return later

    def at_once(**arguments: Any) -> Any:
        call = begin(arguments)
        try:
            return tool(**arguments)
        finally:
            end(call)

    return at_once
