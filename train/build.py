"""From a configuration to the parts of a run, checked in the order in which they can fail.

What this is not: it writes nothing. Bad input of any kind is told here, before a run's folder is touched.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch

import rtmc
from rtmc.errors import RtmcError
from rtmc.signatures import get_signature
from rtmc.train import models
from rtmc.train.acting import acting_of
from rtmc.train.agent import ModelAgent
from rtmc.train.collect import Collector, first_observation
from rtmc.train.config import Config, Credit, Explore, Prompt
from rtmc.train.evaluate import held_out_seeds
from rtmc.train.examples import expert_examples
from rtmc.train.explore import Explorer
from rtmc.train.forks import Worlds
from rtmc.train.policy import Policy
from rtmc.train.prompt import ChatFormat, Format, PlainFormat
from rtmc.train.references import Reference, reference_of
from rtmc.train.revisit import Settings

# What the trainer reads from an environment's info, after reset and after every step.
_INFO = ("task_id", "state_key", "action_key", "valid", "success")


class RunError(RtmcError, ValueError):
    """A run that cannot start: the message names the folder, key or environment."""


@dataclass
class Parts:
    """What a configuration builds. `held_out` plays the evaluation's tasks, `held_out_texts` is how those begin;
    `explorer` grows the training's trees, where the configuration explores."""

    config: Config
    model: Any
    policy: Policy
    form: Format
    collector: Collector
    held_out: Collector
    held_out_texts: frozenset[str]
    explorer: Explorer | None = None

    def close(self) -> None:
        if self.explorer is not None:
            self.explorer.worlds.close()
        self.collector.close()
        self.held_out.close()


def build(config: Config, say: Callable[[str], None], evaluated: bool = True) -> Parts:
    """Environment, model, adapter and prompt of a configuration. Raises RtmcError or ValueError, all in one line.

    `evaluated` False: no task is held out (to watch a policy play one task).
    """
    _check_combination(config)
    _check_method(config)
    make_env = env_maker(config, {})
    _check_env(config, make_env)
    exploring = config.explore.rule != "off"
    if exploring:
        _check_exploring(config, make_env)
    changes = config.evaluation.kwargs
    make_held_out = env_maker(config, changes) if changes else make_env
    held_out_tasks = held_out_seeds(config.evaluation.tasks) if evaluated else []
    texts = frozenset(_first_texts(make_held_out, held_out_tasks))
    if evaluated:
        _check_enough_tasks(config, make_env, texts)
        if note := _same_split(config):
            say(note)
    examples = expert_examples(make_env, config.prompt.examples, texts)
    if config.budget.threads:
        torch.set_num_threads(config.budget.threads)
    base, tokenizer = models.load(config.model, say)
    policy = Policy(
        models.with_lora(base, config.lora, config.seed),
        tokenizer,
        temperature=config.act.temperature,
        capacity=config.budget.prefix_tokens,
        pack_tokens=config.budget.pack_tokens,
    )
    form: Format
    if config.prompt.format == "chat":
        form = ChatFormat(tokenizer, config.prompt.system)
    else:
        form = PlainFormat(tokenizer, examples, config.prompt.history, config.prompt.cue, config.prompt.system)
    collector = Collector(make_env, policy, form)
    held_out = Collector(make_held_out, policy, form) if changes else collector
    parts = Parts(config, policy.model, policy, form, collector, held_out, texts)
    if exploring:
        agent = ModelAgent(
            policy,
            form,
            acting_of(config),
            answers=config.explore.answers,
            wrapper=config.explore.wrapper,
            actor=collector.actor,
        )
        parts.explorer = Explorer(agent, Worlds(make_env), _settings(config))
    return parts


def env_maker(config: Config, changes: dict[str, Any]) -> Callable[[], gymnasium.Env]:
    """A function that makes the configured environment, some arguments changed; RunError for a wrong id or argument."""
    kwargs = {**config.env.kwargs, **changes}
    # Our own ids are registered by importing `rtmc.gymenvs`, which gymnasium does for an id with that prefix.
    name = f"rtmc.gymenvs:{config.env.id}" if config.env.id.startswith("rtmc/") else config.env.id

    def make() -> gymnasium.Env:
        try:
            return gymnasium.make(name, disable_env_checker=True, **kwargs)
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError, ValueError) as error:
            raise RunError(f"`env`: {config.env.id} with {kwargs or 'no arguments'}: {error}") from None

    return make


# What the configuration calls the settings of an exploration, where it is not `explore.` and their name.
SETTING_NAMES = {"budget": "explore.budget_tokens", "chains": "group_size"} | {
    name: f"explore.{name}" for name in ("threshold", "eps_smooth")
}


def _settings(config: Config) -> Settings:
    explore = config.explore
    return Settings(
        explore.rule,
        explore.budget_tokens,
        config.group_size,
        explore.candidates,
        explore.per_round,
        explore.threshold,
        explore.penalty,
        eps_smooth=explore.eps_smooth,
    )


def _check_exploring(config: Config, make_env: Callable[[], gymnasium.Env]) -> None:
    """Refuse an environment that cannot be forked where the rule forks it, or that has no reference answer."""
    _settings(config)
    if config.explore.wrapper is not None:
        try:
            Reference(("answer",), config.explore.wrapper)
        except ValueError as error:
            raise RunError(f"`explore.wrapper`: {error}") from None
    worlds = Worlds(make_env)
    try:
        worlds.check_forks(config.explore.rule not in ("none", "chains"), f'`explore.rule = "{config.explore.rule}"`')
        worlds.reset(0)
        reference_of(worlds.first)
    finally:
        worlds.close()


def _check_combination(config: Config) -> None:
    """Refuse options that another option leaves without effect."""
    prompt, act = config.prompt, config.act
    if prompt.format == "chat":
        for name in ("history", "examples", "cue"):
            if getattr(prompt, name) != Prompt.model_fields[name].default:
                raise RunError(
                    f'`prompt.{name}` belongs to `prompt.format = "plain"`; leave it out (`prompt.{name}=none`)'
                )
    if config.explore.rule == "off":
        changed = [
            name for name, field in Explore.model_fields.items() if getattr(config.explore, name) != field.default
        ]
        if changed:
            raise RunError(f'`explore.{changed[0]}` belongs to an exploration: set `explore.rule`, to "hindsight" say')
    else:
        for name in ("signatures", "valid_reward", "invalid_reward", "validation_bonus"):
            if getattr(config.credit, name) != Credit.model_fields[name].default:
                raise RunError(
                    f"`credit.{name}` is of plain rollouts: an explored tree has the environment's keys and no step "
                    f"rewards; leave it out (`credit.{name}=none`)"
                )
    if act.mode == "free" and act.hide:
        raise RunError('`act.hide` belongs to `act.mode = "choice"`: leave it out (`act.hide=none`)')
    cores = os.cpu_count() or 1
    if config.budget.threads > cores:
        raise RunError(f"`budget.threads` is {config.budget.threads}; this machine has {cores} cores: use at most that")
    if config.group_size == 1 and config.credit.filter_uniform:
        raise RunError(
            "`group_size = 1` makes every group uniform, and `credit.filter_uniform` leaves all of them out: nothing "
            "would be learned"
        )


def _check_method(config: Config) -> None:
    """Credit two steps as a trial: an unknown method, option or signature is told before a model is loaded."""
    get_signature(config.credit.signatures)
    if clash := {"table", "method"} & config.credit.options.keys():
        raise RunError(f"`credit.options` has {min(clash)!r}: the method is named by `method`")
    trees = [info.name for info in rtmc.estimators() if "parent" in info.needs]
    if config.method in trees and config.explore.rule == "off":
        raise RunError(
            f'`method = "{config.method}"` reads trees, and with `explore.rule = "off"` none are grown: set '
            '`explore.rule`, to "hindsight" say (`explore.rule=hindsight`), or take a method of chains such as "rtmc"'
        )
    rows: list[dict[str, Any]] = [
        {"group": "trial", "rollout": r, "index": 0, "state": "s", "action": r, "outcome": float(r)} for r in range(2)
    ]
    if config.explore.rule != "off":  # what a forest's table has beside
        scores = {"answer_score": 0.5, "root_score": 0.5, "entropy": 0.5, "pool_weight": 1.0, "tree": 0.0}
        rows = [{**row, "parent": -1, **scores} for row in rows]
    rtmc.estimate(rtmc.StepTable.from_rows(rows), config.method, **config.credit.options)


def _check_env(config: Config, make_env: Callable[[], gymnasium.Env]) -> None:
    env = make_env()
    try:
        try:
            observation, info = env.reset(seed=0)
        except Exception as error:
            raise RunError(
                f"`env.id` = {config.env.id}: its first task cannot start: {type(error).__name__}: {error}"
            ) from error
        missing = [name for name in _INFO if name not in info]
        if missing or not isinstance(observation, str):
            what = (
                f"its info lacks {', '.join(missing)}"
                if missing
                else f"its observation is a {type(observation).__name__}"
            )
            raise RunError(
                f"`env.id` = {config.env.id}: the trainer needs text and info of the documented form; {what}"
            )
        if config.act.mode == "choice" and "admissible_commands" not in info:
            raise RunError(
                f'`act.mode = "choice"` needs an environment whose info lists `admissible_commands`; {config.env.id} '
                'does not: use "free"'
            )
    finally:
        env.close()


def _check_enough_tasks(config: Config, make_env: Callable[[], gymnasium.Env], texts: frozenset[str]) -> None:
    env = make_env()
    try:
        if all(first_observation(env, seed) in texts for seed in range(200)):
            raise RunError(
                f"`evaluation.tasks` = {config.evaluation.tasks}: the environment has too few tasks, all of 200 drawn "
                "start like a held-out one. Lower it, or widen `env.kwargs`"
            )
    finally:
        env.close()


def _same_split(config: Config) -> str | None:
    """What to say of held-out tasks that come from the split of training, where the environment has another."""
    own, twin = {**config.env.kwargs}, "valid"
    if "split" in config.evaluation.kwargs or own.get("split") not in (None, "train"):
        return None
    env = env_maker(config, {})()
    try:
        takes = "split" in inspect.signature(type(env.unwrapped).__init__).parameters
    finally:
        env.close()
    if not takes:
        return None
    try:
        env_maker(config, {"split": twin})().close()
    except RunError:  # no such split, or not with these arguments: there is nothing to advise
        return None
    split = repr(own["split"]) if own.get("split") else "its default split"
    return (
        f"held-out tasks are drawn from the split that training draws from ({split}; none of them is trained on): "
        f'`evaluation.kwargs={{split="{twin}"}}` takes them from "{twin}"'
    )


def _first_texts(make_env: Callable[[], gymnasium.Env], seeds: list[int]) -> list[str]:
    env = make_env()
    try:
        return [text for seed in seeds if (text := first_observation(env, seed)) is not None]
    finally:
        env.close()
