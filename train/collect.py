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
from rtmc.train.config import Config
from rtmc.train.policy import NOT_FINITE, Answer, Policy, Request
from rtmc.train.prompt import Conversation, Format, choices
from rtmc.train.sampling import sample


@dataclass(frozen=True)
class Turn:
    """What the policy was asked and what it did: `tokens` with their log-probability and a mask of the sampled ones.

    `logprob` (n,) float32, 0 where a token was forced; `sampled` (n,) bool: the policy tokens; `edges` (n,) int64: for
    a choice, the scored edge of each token (-1 = forced), for free sampling its position.
    """

    request: Request
    tokens: tuple[int, ...]
    logprob: np.ndarray
    sampled: np.ndarray
    edges: np.ndarray


@dataclass
class Episode:
    """A rollout with the policy's turns beside its steps (turn t belongs to step t)."""

    rollout: Rollout
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Acting:
    """How the policy acts: `mode` "choice" or "free"; `hidden` are command beginnings never offered as a choice."""

    mode: str = "choice"
    hidden: tuple[str, ...] = ()
    greedy: bool = False
    max_new_tokens: int = 64
    adapt: str = "turn"


def acting_of(config: Config) -> Acting:
    """How a configuration's policy acts while it is trained (and, greedy aside, evaluated)."""
    act = config.act
    return Acting(act.mode, tuple(act.hide), False, act.max_new_tokens, config.lora.adapt)


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


class Collector:
    """Plays tasks of one environment with one policy; owns the environments and the answers that are still valid."""

    def __init__(self, make_env: Callable[[], gymnasium.Env], policy: Policy, form: Format) -> None:
        self.make_env = make_env
        self.policy = policy
        self.form = form
        self._envs: list[gymnasium.Env] = []
        self._answers: dict[tuple, Answer] = {}
        self.asked = 0
        self.answered = 0

    def weights_changed(self) -> None:
        """Forget answers that older weights gave."""
        self._answers.clear()

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

    def first_observation(self, seed: int) -> str:
        """The text that a task starts with: what tells tasks of a held-out set from those of training."""
        if not self._envs:
            self._envs.append(self.make_env())
        observation, _ = self._envs[0].reset(seed=int(seed))
        return str(observation)

    def _seat(self, env: gymnasium.Env, seed: int, member: int, draw: Sequence[int]) -> _Seat:
        rollout = Rollout(f"seed {seed}", f"{seed}-{member}", steps=[], reward=math.nan)
        rng = np.random.default_rng([*draw, seed, member])
        try:
            observation, info = env.reset(seed=int(seed))
        except Exception as error:  # a task that breaks is data, not the end of a run
            rollout.stop, rollout.error = Stop.ERROR, f"reset: {type(error).__name__}: {error}"
            return _Seat(env, Episode(rollout), rng, Conversation(), "", {}, done=True)
        rollout.task_id = str(info["task_id"])
        conversation = Conversation([self.form.observation(observation, 0)])
        return _Seat(env, Episode(rollout), rng, conversation, observation, info)

    def _turn(self, seats: list[_Seat], acting: Acting) -> None:
        playing, contexts = [], []
        for seat in seats:
            context = self.form.context(seat.conversation)
            # The longest listed command rarely has as many tokens as free text may have.
            if self.policy.limit is not None and len(context) + acting.max_new_tokens > self.policy.limit:
                seat.episode.rollout.stop, seat.episode.rollout.reward, seat.done = Stop.TRUNCATED, seat.reward, True
                continue
            playing.append(seat)
            contexts.append(context)
        if not playing:
            return
        live = [len(c) if acting.adapt == "all" else min(self.form.cue, len(c)) for c in contexts]
        act = self._choose if acting.mode == "choice" else self._write
        turns, texts = act(playing, contexts, live, acting)
        for seat, turn, text in zip(playing, turns, texts, strict=True):
            self._step(seat, turn, text)

    def _choose(
        self, seats: list[_Seat], contexts: list[tuple[int, ...]], live: list[int], acting: Acting
    ) -> tuple[list[Turn], list[str]]:
        requests = []
        for seat, context, n in zip(seats, contexts, live, strict=True):
            listed = seat.info["admissible_commands"]
            offered = [c for c in listed if not c.startswith(acting.hidden)] if acting.hidden else list(listed)
            if not offered:
                raise ValueError(f"`act.hide` hides every command that the environment offers: {', '.join(listed)}")
            requests.append(Request(context, n, choices=choices(self.form, offered)))
        self.asked += len(requests)
        new = {r.key: r for r in requests if r.key not in self._answers}
        self.answered += len(new)
        if new:
            for key, answer in zip(new, self.policy.answer(list(new.values())), strict=True):
                self._answers[key] = answer
        turns, texts = [], []
        for seat, request in zip(seats, requests, strict=True):
            answer = self._answers[request.key]
            if not np.isfinite(answer.command).all():
                raise ValueError(NOT_FINITE)
            if acting.greedy:
                pick = int(np.argmax(answer.command))
            else:
                # The draw is made on the cumulative distribution, one uniform number a turn.
                pick = int(np.searchsorted(np.exp(answer.command).cumsum(), seat.rng.random(), side="right"))
                pick = min(pick, len(answer.command) - 1)
            assert request.choices is not None
            edges = request.choices.tree.edges[pick]
            logprob = np.zeros(len(edges), dtype=np.float32)
            logprob[edges >= 0] = answer.edge[edges[edges >= 0]]
            turns.append(Turn(request, request.choices.tokens[pick], logprob, edges >= 0, edges))
            texts.append(request.choices.commands[pick])
        return turns, texts

    def _write(
        self, seats: list[_Seat], contexts: list[tuple[int, ...]], live: list[int], acting: Acting
    ) -> tuple[list[Turn], list[str]]:
        samples = sample(
            self.policy,
            contexts,
            live,
            [seat.rng for seat in seats],
            max_new_tokens=acting.max_new_tokens,
            stop=self.form.stop,
            greedy=acting.greedy,
        )
        turns, texts = [], []
        for context, n, s in zip(contexts, live, samples, strict=True):
            # Without a stop token the turn is closed by a forced one, so that the next piece starts where it should.
            tokens = s.tokens if s.stopped else (*s.tokens, self.form.stop[0])
            forced = len(tokens) - len(s.tokens)
            turns.append(
                Turn(
                    Request(context, n, sampled=s.tokens),
                    tokens,
                    np.append(s.logprob, np.zeros(forced, np.float32)),
                    np.arange(len(tokens)) < len(s.tokens),
                    np.where(np.arange(len(tokens)) < len(s.tokens), np.arange(len(tokens)), -1),
                )
            )
            texts.append(self.form.text(s.tokens))
        return turns, texts

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
