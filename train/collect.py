"""Rollout collection: the episodes of many tasks played in lockstep by one policy.

A task is a seed: `env.reset(seed=...)` fixes the whole episode, so the members of a group start alike. All unfinished
episodes take their next turn together; equal questions to the policy (same context, same commands) are asked once,
also across turns, as long as the weights stay the same. Every draw comes from the episode's own generator: what an
episode does depends on its seed and the weights alone, not on what is played beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rtmc.rollouts import Rollout, Step, Stop
from rtmc.train.acting import Acting, Actor, Turn
from rtmc.train.policy import Policy
from rtmc.train.prompt import Conversation, Format


@dataclass
class Episode:
    """A rollout with the policy's turns beside its steps (turn t belongs to step t); `hops` are the task's, where the
    environment's info has them."""

    rollout: Rollout
    turns: list[Turn] = field(default_factory=list)
    hops: int | None = None


@dataclass
class _Seat:
    """One running episode."""

    env: gymnasium.Env
    episode: Episode
    rng: np.random.Generator
    conversation: Conversation
    observation: str
    info: dict[str, Any]
    reward: float = 0.0
    done: bool = False


def first_observation(env: gymnasium.Env, seed: int) -> str | None:
    """The text that a task starts with; None where it can't start, which its episodes will tell."""
    try:
        return str(env.reset(seed=int(seed))[0])
    except Exception:  # a task that breaks is data, not the end of a run
        return None


class Collector:
    """Plays tasks of one environment with one policy; owns the environments and the answers that are still valid."""

    def __init__(self, make_env: Callable[[], gymnasium.Env], policy: Policy, form: Format) -> None:
        self.make_env = make_env
        self.policy = policy
        self.form = form
        self.actor = Actor(policy, form)
        self._envs: list[gymnasium.Env] = []

    @property
    def asked(self) -> int:
        """Questions put to the policy so far."""
        return self.actor.asked

    @property
    def answered(self) -> int:
        """Those of them that the model was run for."""
        return self.actor.answered

    def weights_changed(self) -> None:
        """Forget answers that older weights gave."""
        self.actor.weights_changed()

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs.clear()

    def play(
        self,
        seeds: Sequence[int],
        members: int,
        acting: Acting,
        draw: Sequence[int],
        on_turn: Callable[[int, int], None] | None = None,
    ) -> list[list[Episode]]:
        """One group of `members` episodes for each task seed.

        `draw` seeds the actions: member m of seed s draws from `default_rng([*draw, s, m])`. `on_turn(unfinished, all)`
        is called after every lockstep turn.
        """
        while len(self._envs) < len(seeds) * members:
            self._envs.append(self.make_env())
        envs = iter(self._envs)
        groups = [[self._seat(next(envs), seed, m, draw) for m in range(members)] for seed in seeds]
        seats = [seat for group in groups for seat in group]
        while running := [seat for seat in seats if not seat.done]:
            self._turn(running, acting)
            if on_turn is not None:
                on_turn(sum(not seat.done for seat in seats), len(seats))
        return [[seat.episode for seat in group] for group in groups]

    def first_observation(self, seed: int) -> str | None:
        """The text that a task starts with: what tells tasks of a held-out set from those of training."""
        if not self._envs:
            self._envs.append(self.make_env())
        return first_observation(self._envs[0], seed)

    def _seat(self, env: gymnasium.Env, seed: int, member: int, draw: Sequence[int]) -> _Seat:
        rollout = Rollout(f"seed {seed}", f"{seed}-{member}", steps=[], reward=math.nan)
        rng = np.random.default_rng([*draw, seed, member])
        try:
            observation, info = env.reset(seed=int(seed))
        except Exception as error:  # a task that breaks is data, not the end of a run
            rollout.stop, rollout.error = Stop.ERROR, f"reset: {type(error).__name__}: {error}"
            return _Seat(env, Episode(rollout), rng, Conversation(), "", {}, done=True)
        rollout.task_id = str(info["task_id"])
        hops = None if info.get("hops") is None else int(info["hops"])
        conversation = Conversation([self.form.observation(observation, 0)])
        return _Seat(env, Episode(rollout, hops=hops), rng, conversation, observation, info)

    def _turn(self, seats: list[_Seat], acting: Acting) -> None:
        playing, contexts = [], []
        for seat in seats:
            context = self.actor.context(seat.conversation, acting)
            if context is None:
                seat.episode.rollout.stop, seat.episode.rollout.reward, seat.done = Stop.TRUNCATED, seat.reward, True
                continue
            playing.append(seat)
            contexts.append(context)
        if not playing:
            return
        turns = self.actor.act(contexts, [seat.info for seat in playing], [seat.rng for seat in playing], acting)
        for seat, (turn, text) in zip(playing, turns, strict=True):
            self._step(seat, turn, text)

    def _step(self, seat: _Seat, turn: Turn, text: str) -> None:
        before = seat.info
        rollout = seat.episode.rollout
        try:
            observation, reward, terminated, truncated, info = seat.env.step(text)
        except Exception as error:  # a task that breaks is data, not the end of a run
            rollout.stop, rollout.error, seat.done = Stop.ERROR, f"{type(error).__name__}: {error}", True
            return
        rollout.steps.append(
            Step(
                observation=seat.observation,
                action=text,
                state_key=before["state_key"],
                action_key=info["action_key"],
                next_state_key=info["state_key"],
                valid=bool(info["valid"]),
                validation=bool(info.get("validation", False)),
                tokens=int(turn.sampled.sum()),
                answer=str(observation),
            )
        )
        if turn.request.sampled is not None:
            rollout.token_ids = [*(rollout.token_ids or []), list(turn.request.sampled)]
        seat.episode.turns.append(turn)
        seat.conversation.actions.append(turn.tokens)
        seat.conversation.observations.append(self.form.observation(observation, len(seat.conversation.actions)))
        seat.observation, seat.info = observation, info
        seat.reward += float(reward)
        if terminated or truncated:
            seat.done = True
            rollout.reward = seat.reward
            rollout.stop = Stop.SUCCESS if info["success"] else Stop.TRUNCATED if truncated else Stop.FAILURE


def successes(groups: Iterable[Sequence[Episode]]) -> np.ndarray:
    """(number of episodes,) bool: which ended in success."""
    return np.asarray([e.rollout.stop is Stop.SUCCESS for group in groups for e in group], dtype=bool)
